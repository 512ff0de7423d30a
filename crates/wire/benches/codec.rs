//! Speed of the frames that every lock costs: nanoseconds to write and to read one.
//!
//! `cargo bench -p conclave-wire --bench codec`

#![allow(
    clippy::unwrap_used,
    reason = "a benchmark that cannot go on should stop"
)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use conclave_protocol::Wall;
use conclave_protocol::id::{
    ClientId, ConnNo, GrantNo, Incarnation, Name, RequestNo, SessionId, Token,
};
use conclave_protocol::lock::{Ask, Bond, ConfigId, GrantRef, Message, Mode, Priority};
use conclave_wire::codec::{Decoder, Encoder};

/// Frames per buffer, as a busy connection has them.
const BATCH: u64 = 256;
/// The best of so many rounds counts: the others were disturbed.
const ROUNDS: usize = 400;

const CLOCK: u64 = 1_767_225_600_000_000;

fn main() {
    // Tests of all targets run benchmarks too, without this argument: once is enough then.
    let rounds = if std::env::args().any(|arg| arg == "--bench") {
        ROUNDS
    } else {
        1
    };
    println!(
        "{:<22} {:>6} {:>10} {:>10} {:>10}",
        "frame", "bytes", "write ns", "read ns", "one by one"
    );
    for (name, sessions, make) in [
        ("request", 1, request as fn(u64, u128) -> Message),
        ("locked", 1, locked),
        ("done", 1, done),
        ("heartbeat", 1, heartbeat),
        ("beat", 1, beat),
        ("request, 64 sessions", 64, request),
        ("locked, 64 sessions", 64, locked),
    ] {
        let messages: Vec<_> = (0..BATCH)
            .map(|i| make(i, u128::from(i % sessions) << 64 | 7))
            .collect();
        measure(name, &messages, rounds);
    }
}

fn measure(name: &str, messages: &[Message], rounds: usize) {
    let hello = Message::Hello {
        client: ClientId(7),
        conn: ConnNo(1),
        config: ConfigId::default(),
    };
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
    let mut bytes = Vec::new();
    encoder.encode(&hello, &mut bytes);
    decoder.decode(&bytes).unwrap().unwrap();
    let (mut write, mut read, mut single) = (f64::MAX, f64::MAX, f64::MAX);
    let mut length = 0;
    for _ in 0..rounds {
        bytes.clear();
        let start = Instant::now();
        for message in messages {
            encoder.encode(black_box(message), &mut bytes);
        }
        write = write.min(start.elapsed().as_nanos() as f64);
        length = bytes.len();
        let mut got = Vec::with_capacity(messages.len());
        let start = Instant::now();
        let taken = decoder.decode_each(&bytes, |message| got.push(message));
        read = read.min(start.elapsed().as_nanos() as f64);
        assert_eq!((taken.unwrap(), &got[..]), (bytes.len(), messages));
        got.clear();
        let mut rest = &bytes[..];
        let start = Instant::now();
        while let Some((message, length)) = decoder.decode(rest).unwrap() {
            got.push(message);
            rest = &rest[length..];
        }
        single = single.min(start.elapsed().as_nanos() as f64);
        assert_eq!(got, messages);
    }
    let each = messages.len() as f64;
    let (length, write) = (length as f64 / each, write / each);
    let (read, single) = (read / each, single / each);
    println!("{name:<22} {length:>6.0} {write:>10.1} {read:>10.1} {single:>10.1}");
}

fn grant(i: u64, session: u128) -> GrantRef {
    GrantRef {
        session: SessionId(session),
        request: RequestNo(100_000 + i),
        grant: GrantNo(200_000 + i),
    }
}

fn request(i: u64, session: u128) -> Message {
    let request = RequestNo(100_000 + i);
    Message::Request {
        ask: Arc::new(Ask {
            name: Name::new(format!("jobs/nightly/{i:06}")),
            mode: Mode::Exclusive,
            session: SessionId(session),
            request,
            priority: Priority {
                t: CLOCK + i,
                client: ClientId(7),
                request,
            },
            bond: Bond::Attached,
        }),
        hint: Token(CLOCK),
        inside: None,
    }
}

fn locked(i: u64, session: u128) -> Message {
    Message::Locked {
        grant: grant(i, session),
        floor: Token(CLOCK),
        limit: Token(CLOCK + 1_000_000),
        incarnation: Incarnation(CLOCK),
        clock: Wall(CLOCK + i),
    }
}

fn done(i: u64, session: u128) -> Message {
    Message::Done {
        session: SessionId(session),
        request: RequestNo(100_000 + i),
        token: Some(Token(CLOCK + i)),
    }
}

fn heartbeat(i: u64, _: u128) -> Message {
    Message::Heartbeat {
        beat: i,
        entered: Vec::new(),
    }
}

fn beat(i: u64, _: u128) -> Message {
    Message::Beat {
        beat: i,
        clock: Wall(CLOCK + i),
        noted: Vec::new(),
    }
}
