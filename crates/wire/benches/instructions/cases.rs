//! What is counted: each case is prepared first and then runs on warm machines.

use std::hint::black_box;

use conclave_protocol::Machine;
use conclave_protocol::id::{ConnNo, NodeId};
use conclave_protocol::lock::{ClientEffects, ClientInput, Message, NodeEffects, NodeInput};
use conclave_wire::codec::{Decoder, Encoder};

use super::mesh::Mesh;

/// So many locks or cycles each case works on.
const COUNT: usize = 1_000;
/// Who wants the one lock of the handover.
const CROWD: usize = 64;

/// Whether a node says what it should.
type Answer = fn(&[Message]) -> bool;

/// The part of a case that is counted; it returns how many steps it took.
pub(crate) type Run = Box<dyn FnMut() -> usize>;

/// A case: its name, what one step of it is, and how it is prepared.
pub(crate) type Case = (&'static str, &'static str, fn() -> Run);

/// All cases.
pub(crate) const CASES: [Case; 16] = [
    ("arbiter-grant", "a node grants a request", arbiter_grant),
    (
        "arbiter-wait",
        "a node queues a request behind a holder",
        arbiter_wait,
    ),
    (
        "arbiter-release",
        "a node hears that a holder left",
        arbiter_release,
    ),
    (
        "arbiter-handover",
        "the same while another one waits",
        arbiter_handover,
    ),
    (
        "requester-acquire",
        "a call becomes three requests",
        requester_acquire,
    ),
    (
        "requester-granted",
        "three grants become an entry",
        requester_granted,
    ),
    (
        "requester-release",
        "a release becomes three messages",
        requester_release,
    ),
    ("encode-request", "one REQUEST is written", || {
        encode(requests())
    }),
    ("encode-locked", "one LOCKED is written", || {
        encode(answers())
    }),
    ("encode-release", "one RELEASE is written", || {
        encode(releases())
    }),
    ("decode-request", "one REQUEST is read", || {
        decode(&requests())
    }),
    ("decode-locked", "one LOCKED is read", || decode(&answers())),
    ("decode-release", "one RELEASE is read", || {
        decode(&releases())
    }),
    ("cycle", "acquire and release, all of the above", cycle),
    (
        "cycle-64",
        "the same, 64 at a time share their frames",
        crowd_of_cycles,
    ),
    (
        "handover",
        "one hot lock goes on to the next of 64",
        handover,
    ),
];

/// A cluster in which a client has asked for many locks and no node has heard it yet.
fn asked(clients: usize) -> Mesh {
    let mut mesh = Mesh::warm(clients);
    for name in 0..COUNT {
        mesh.acquire(0, name);
    }
    mesh
}

/// A cluster in which the first client holds many locks.
fn held(clients: usize) -> Mesh {
    let mut mesh = asked(clients);
    mesh.settle();
    mesh
}

fn leave_all(mesh: &mut Mesh) {
    let keys = mesh.entered(0);
    assert_eq!(keys.len(), COUNT);
    for key in keys {
        mesh.client(0, ClientInput::Release(key));
    }
}

/// One node hears these messages of a client, and answers each as it should.
fn hear(mut mesh: Mesh, client: usize, messages: Vec<Message>, answer: Answer) -> Run {
    let now = mesh.now;
    let (node, link) = mesh.node(0, client);
    let inputs = messages.into_iter();
    let mut inputs = inputs
        .map(|message| NodeInput::Receive(link, message))
        .collect::<Vec<_>>();
    let mut out = NodeEffects::new();
    let mut trial = node.clone();
    for input in &inputs {
        trial.handle(now, input.clone(), &mut out);
        let said = out.send_now.drain(..).map(|envelope| envelope.message);
        assert!(answer(&said.collect::<Vec<_>>()), "not the case it is");
        out.clear();
    }
    Box::new(move || {
        let (now, node) = (mesh.now, mesh.node(0, client).0);
        let steps = inputs.len();
        for input in inputs.drain(..) {
            node.handle(now, input, &mut out);
            black_box(&out);
            out.clear();
        }
        steps
    })
}

fn arbiter_grant() -> Run {
    let mut mesh = asked(1);
    let messages = mesh.sent_up(0, 0);
    hear(mesh, 0, messages, |said| {
        matches!(said, [Message::Locked { .. }])
    })
}

fn arbiter_wait() -> Run {
    let mut mesh = held(2);
    for name in 0..COUNT {
        mesh.acquire(1, name);
    }
    let messages = mesh.sent_up(1, 0);
    hear(mesh, 1, messages, |said| {
        matches!(said, [Message::Queued { .. }])
    })
}

fn arbiter_release() -> Run {
    let mut mesh = held(1);
    leave_all(&mut mesh);
    let messages = mesh.sent_up(0, 0);
    hear(mesh, 0, messages, <[Message]>::is_empty)
}

fn arbiter_handover() -> Run {
    let mut mesh = held(2);
    for name in 0..COUNT {
        mesh.acquire(1, name);
    }
    mesh.settle();
    leave_all(&mut mesh);
    let messages = mesh.sent_up(0, 0);
    hear(mesh, 0, messages, |said| {
        matches!(said, [Message::Locked { .. }])
    })
}

/// A client is told these things; so many acquisitions they are.
fn tell(mut mesh: Mesh, mut inputs: Vec<ClientInput>) -> Run {
    let mut out = ClientEffects::new();
    Box::new(move || {
        let now = mesh.now;
        let client = mesh.machine(0);
        for input in inputs.drain(..) {
            client.handle(now, input, &mut out);
            black_box(&out);
            out.clear();
        }
        COUNT
    })
}

fn requester_acquire() -> Run {
    let mut mesh = Mesh::warm(1);
    let inputs = (0..COUNT).map(|name| mesh.wish(0, name).1).collect();
    tell(mesh, inputs)
}

fn requester_granted() -> Run {
    let mut mesh = asked(1);
    mesh.deliver_up();
    let mut answers = mesh.sent_down(0);
    // The three answers to one request come together, as they do when nobody is in the way.
    answers.sort_by_key(|(_, _, message)| match message {
        Message::Locked { grant, .. } => grant.request,
        message => panic!("only grants here, but {message:?}"),
    });
    let receive =
        |(node, no, message): (NodeId, ConnNo, Message)| ClientInput::Receive(node, no, message);
    let inputs = answers.into_iter().map(receive).collect();
    tell(mesh, inputs)
}

fn requester_release() -> Run {
    let mut mesh = held(1);
    let keys = mesh.entered(0);
    assert_eq!(keys.len(), COUNT);
    let inputs = keys.into_iter().map(ClientInput::Release).collect();
    tell(mesh, inputs)
}

fn requests() -> Vec<Message> {
    asked(1).sent_up(0, 0)
}

fn answers() -> Vec<Message> {
    let mut mesh = asked(1);
    mesh.deliver_up();
    let answers = mesh.sent_down(0).into_iter();
    answers.map(|(_, _, message)| message).collect()
}

fn releases() -> Vec<Message> {
    let mut mesh = held(1);
    leave_all(&mut mesh);
    mesh.sent_up(0, 0)
}

fn encode(messages: Vec<Message>) -> Run {
    let (mut encoder, mut bytes) = (Encoder::new(), Vec::new());
    for message in &messages {
        encoder.encode(message, &mut bytes);
    }
    Box::new(move || {
        bytes.clear();
        for message in &messages {
            encoder.encode(black_box(message), &mut bytes);
        }
        messages.len()
    })
}

/// Reads one by one, as both ends of a connection do.
fn decode(messages: &[Message]) -> Run {
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
    let mut bytes = Vec::new();
    // The first time tells the number of the session; the second time is what is counted.
    for first in [true, false] {
        bytes.clear();
        for message in messages {
            encoder.encode(message, &mut bytes);
        }
        if first {
            read(&mut decoder, &bytes);
        }
    }
    Box::new(move || read(&mut decoder, &bytes))
}

fn read(decoder: &mut Decoder, mut bytes: &[u8]) -> usize {
    let mut messages = 0;
    while let Some((message, length)) = decoder.decode(bytes).unwrap() {
        black_box(&message);
        messages += 1;
        bytes = &bytes[length..];
    }
    messages
}

fn cycle() -> Run {
    let mut mesh = Mesh::warm(1);
    Box::new(move || {
        for _ in 0..COUNT {
            mesh.cycle(0);
        }
        COUNT
    })
}

fn crowd_of_cycles() -> Run {
    let mut mesh = Mesh::warm(1);
    let rounds = COUNT / CROWD;
    Box::new(move || {
        for round in 0..rounds {
            for name in 0..CROWD {
                mesh.acquire(0, round * CROWD + name);
            }
            mesh.settle();
            let keys = mesh.entered(0);
            assert_eq!(keys.len(), CROWD);
            for key in keys {
                mesh.client(0, ClientInput::Release(key));
            }
            mesh.settle();
        }
        rounds * CROWD
    })
}

fn handover() -> Run {
    let mut mesh = Mesh::warm(1);
    for _ in 0..CROWD {
        mesh.acquire(0, 0);
    }
    mesh.settle();
    for _ in 0..COUNT {
        mesh.handover(0);
    }
    Box::new(move || {
        for _ in 0..COUNT {
            mesh.handover(0);
        }
        COUNT
    })
}
