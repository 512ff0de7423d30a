//! Leases and objects at one node, over a real socket: greetings, questions, answers, restarts.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::{PATIENCE, Plan, Raw, greeting, plan, plan_with};
use conclave_node::store::Memory;
use conclave_node::store::faulty::{Fault, Faulty};
use conclave_node::store::objects::ObjectDisk;
use conclave_node::store::{KeeperMemory, KeeperStore};
use conclave_node::{Node, NodeError};
use conclave_protocol::id::{ClientId, Name, NodeId, Token};
use conclave_protocol::keeper::{Answer, Ask};
use conclave_protocol::lease::{
    Attempt, LeaseAnswer, LeaseAsk, LeaseKey, LeaseRefusal, Secret, Space, Try,
};
use conclave_protocol::object::{Carry, Delta, ObjectAsk, ObjectTell, Phase, Rank, Stamp, State};
use conclave_wire::greeting::{Rejection, Role, Service};
use conclave_wire::keeper::{decode_answer, encode_ask};

/// A connection that asks about leases and objects.
struct Asker(Raw);

impl Asker {
    fn open(plan: &Plan, role: Role) -> Self {
        let mut raw = Raw::connect(plan.peer(1));
        let mut greeting = greeting(&plan.cluster, 1);
        greeting.service = Service::Keeper;
        greeting.role = role;
        raw.greet(&greeting);
        assert_eq!(raw.reply().unwrap().refusal, None);
        Self(raw)
    }

    fn send(&mut self, ask: &Ask) {
        let mut bytes = Vec::new();
        encode_ask(ask, &mut bytes).unwrap();
        self.0.stream.write_all(&bytes).unwrap();
    }

    fn hear(&mut self) -> Option<Answer> {
        loop {
            if let Some((answer, used)) = decode_answer(&self.0.bytes).unwrap() {
                self.0.bytes.drain(..used);
                return Some(answer);
            }
            if !self.0.more() {
                return None;
            }
        }
    }

    fn ask(&mut self, ask: &Ask) -> Answer {
        self.send(ask);
        self.hear().expect("an answer")
    }

    fn object(&mut self, ask: ObjectAsk) -> ObjectTell {
        match self.ask(&Ask::Object(Name::new("hits"), ask)) {
            Answer::Object(_, tell) => tell,
            other => panic!("{other:?}"),
        }
    }

    fn lease(&mut self, number: u64) -> LeaseAnswer {
        let attempt = Attempt {
            client: ClientId(7),
            number,
        };
        let key = LeaseKey {
            space: Space::Lease,
            name: Name::new("job"),
        };
        let seal = Secret::new(&[1; 32], &key, attempt, NodeId(0)).seal();
        let wish = Try {
            attempt,
            sub: 0,
            token: Token(conclave_client::clock::now().wall.0 + number),
            span: Duration::from_secs(5),
            seal,
            patience: Duration::ZERO,
            waited: Duration::ZERO,
        };
        match self.ask(&Ask::Lease(key, LeaseAsk::Try(wish))) {
            Answer::Lease(_, reply) => reply.answer,
            other => panic!("{other:?}"),
        }
    }

    /// Commits the next version of the object under a rank, and says which it is.
    fn commit(&mut self, round: u64) -> Stamp {
        let rank = Rank {
            round,
            client: ClientId(7),
        };
        let got = self.object(ObjectAsk::Get {
            rank,
            nonce: round,
            have: None,
            proof: None,
        });
        let ObjectTell::Got { view, .. } = got else {
            panic!("{got:?}");
        };
        let base = view.committed;
        let state = rebuilt(base);
        let delta = Delta::new(vec![change(base.version + 1)]);
        let stamp = state.next(&delta).unwrap().stamp();
        let carry = Some(Carry {
            base,
            deltas: vec![delta],
        });
        for phase in [Phase::Propose, Phase::Commit] {
            let (carry, proof) = (carry.clone(), None);
            let ask = match phase {
                Phase::Propose => ObjectAsk::Propose {
                    rank,
                    stamp,
                    carry,
                    proof,
                },
                _ => ObjectAsk::Commit {
                    rank,
                    stamp,
                    carry: None,
                    proof,
                },
            };
            let taken = self.object(ask);
            assert!(matches!(taken, ObjectTell::Taken { .. }), "{taken:?}");
        }
        stamp
    }

    fn committed(&mut self) -> Stamp {
        let peeked = self.object(ObjectAsk::Peek {
            ticket: 1,
            have: None,
            spans: Vec::new(),
        });
        match peeked {
            ObjectTell::Peeked { committed, .. } => committed,
            other => panic!("{other:?}"),
        }
    }
}

fn change(version: u64) -> (Arc<[u8]>, Option<Arc<[u8]>>) {
    let cell: Arc<[u8]> = Arc::from(&b"\x02count"[..]);
    (cell, Some(version.to_be_bytes().as_slice().into()))
}

/// The state of the version, as [`Asker::commit`] makes them.
fn rebuilt(stamp: Stamp) -> State {
    let mut state = State::new();
    for version in 1..=stamp.version {
        state = state.next(&Delta::new(vec![change(version)])).unwrap();
    }
    assert_eq!(state.stamp(), stamp);
    state
}

fn start(plan: &mut Plan, data: &Path, store: impl KeeperStore + 'static) -> Node {
    let options = plan.options(1, data);
    let clock = Arc::new(conclave_client::clock::now);
    Node::start_with(options, Box::new(Memory::default()), Box::new(store), clock).unwrap()
}

fn disk(data: &Path) -> ObjectDisk {
    ObjectDisk::open(data, 1, "test").unwrap()
}

/// Tries for the lease until the node gives votes again.
fn vote(asker: &mut Asker, from: u64) -> LeaseAnswer {
    let begun = std::time::Instant::now();
    for number in from.. {
        let answer = asker.lease(number);
        if matches!(answer, LeaseAnswer::Free { .. }) || begun.elapsed() > PATIENCE {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    unreachable!()
}

#[test]
fn what_was_answered_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = plan(1);
    let node = start(&mut plan, folder.path(), disk(folder.path()));
    let mut asker = Asker::open(&plan, Role::Client);
    let free = asker.lease(1);
    assert!(matches!(free, LeaseAnswer::Free { .. }), "{free:?}");
    let locked = asker.lease(2);
    assert!(matches!(locked, LeaseAnswer::Locked { .. }), "{locked:?}");
    let stamp = (1..=20).map(|round| asker.commit(round)).last().unwrap();
    assert_eq!(stamp.version, 20);
    drop(node);
    let node = start(&mut plan, folder.path(), disk(folder.path()));
    let mut asker = Asker::open(&plan, Role::Client);
    assert_eq!(asker.committed(), stamp);
    let outranked = asker.object(ObjectAsk::Get {
        rank: Rank {
            round: 20,
            client: ClientId(6),
        },
        nonce: 9,
        have: None,
        proof: None,
    });
    assert!(
        matches!(outranked, ObjectTell::Outranked { .. }),
        "{outranked:?}"
    );
    let locked = asker.lease(3);
    assert!(
        matches!(locked, LeaseAnswer::Locked { .. } | LeaseAnswer::Refused(_)),
        "the vote before the restart may still count: {locked:?}"
    );
    assert_eq!(asker.commit(21).version, 21);
    drop(node);
}

#[test]
fn every_image_after_an_answer_holds_what_was_answered() {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = plan(1);
    let node = start(&mut plan, folder.path(), disk(folder.path()));
    let mut asker = Asker::open(&plan, Role::Client);
    for round in 1..=10 {
        let stamp = asker.commit(round);
        // The files now are what a kill right after the answer leaves.
        let copy = tempfile::tempdir().unwrap();
        std::fs::create_dir(copy.path().join("objects")).unwrap();
        for file in ["objects/log", "objects.made"] {
            std::fs::copy(folder.path().join(file), copy.path().join(file)).unwrap();
        }
        let stored = disk(copy.path()).load().unwrap().expect("records");
        let kept = &stored.objects[&Name::new("hits")];
        assert_eq!(kept.committed.stamp(), stamp);
        assert_eq!(kept.max.round, round);
    }
    drop(node);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_fails_stops_the_node_and_nothing_is_answered() {
    for fault in [Fault::NoSpace, Fault::Sync] {
        let mut plan = plan(1);
        let (store, faults) = Faulty::new(KeeperMemory::default());
        let node = start(&mut plan, Path::new("unused"), store);
        let mut asker = Asker::open(&plan, Role::Client);
        assert_eq!(asker.commit(1).version, 1);
        faults.fail_after(0, fault);
        let rank = Rank {
            round: 2,
            client: ClientId(7),
        };
        let get = ObjectAsk::Get {
            rank,
            nonce: 2,
            have: None,
            proof: None,
        };
        asker.send(&Ask::Object(Name::new("hits"), get));
        let answer = tokio::task::spawn_blocking(move || asker.hear())
            .await
            .unwrap();
        assert_eq!(answer, None, "nothing that is not on disk is told");
        let ended = common::in_time("the end", node.wait()).await;
        assert!(matches!(ended, Err(NodeError::Store(_))), "{ended:?}");
    }
}

#[test]
fn nodes_may_look_and_nothing_else() {
    let mut plan = plan(3);
    let _node = start(&mut plan, Path::new("unused"), KeeperMemory::default());
    let mut client = Asker::open(&plan, Role::Client);
    let stamp = client.commit(1);
    let mut node = Asker::open(&plan, Role::Node(NodeId(1)));
    let refused = node.lease(1);
    let why = LeaseAnswer::Refused(LeaseRefusal::NotPermitted);
    assert_eq!(refused, why);
    let rank = Rank {
        round: 5,
        client: ClientId(7),
    };
    let commit = node.object(ObjectAsk::Commit {
        rank,
        stamp: Stamp {
            version: stamp.version + 1,
            ..stamp
        },
        carry: None,
        proof: None,
    });
    assert!(matches!(commit, ObjectTell::Refused { .. }), "{commit:?}");
    let survey = Ask::Survey {
        ticket: 1,
        after: None,
        new: false,
    };
    match node.ask(&survey) {
        Answer::Surveyed { objects, .. } => assert_eq!(objects, [(Name::new("hits"), stamp)]),
        other => panic!("{other:?}"),
    }
    assert!(matches!(vote(&mut client, 1), LeaseAnswer::Free { .. }));
}

#[test]
fn unknown_services_and_damaged_frames_end_their_connection_alone() {
    let mut plan = plan(1);
    let _node = start(&mut plan, Path::new("unused"), KeeperMemory::default());
    let mut raw = Raw::connect(plan.peer(1));
    let mut greeting = greeting(&plan.cluster, 1);
    greeting.service = Service::Other(9);
    raw.greet(&greeting);
    let refusal = raw.reply().unwrap().refusal;
    assert!(
        matches!(refusal, Some(Rejection::Service { .. })),
        "{refusal:?}"
    );
    let mut asker = Asker::open(&plan, Role::Client);
    let mut other = Asker::open(&plan, Role::Client);
    asker.0.stream.write_all(&[0xff; 64]).unwrap();
    assert!(asker.0.ends());
    assert_eq!(other.commit(1).version, 1);
}

#[test]
fn more_questions_than_fit_wait_and_are_all_answered() {
    let mut plan = plan_with(1, "");
    let _node = start(&mut plan, Path::new("unused"), KeeperMemory::default());
    let mut asker = Asker::open(&plan, Role::Client);
    let many = 20_000;
    let mut writer = asker.0.stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        for ticket in 0..many {
            let ask = Ask::Survey {
                ticket,
                after: None,
                new: false,
            };
            encode_ask(&ask, &mut bytes).unwrap();
        }
        writer.write_all(&bytes).unwrap();
    });
    for expected in 0..many {
        match asker.hear() {
            Some(Answer::Surveyed { ticket, .. }) => assert_eq!(ticket, expected),
            other => panic!("{other:?}"),
        }
    }
    sender.join().unwrap();
}

#[test]
fn a_node_that_lost_its_disk_is_silent_even_if_it_is_restarted() {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = plan(3);
    for restart in 0..3 {
        let mut options = plan.options(1, folder.path());
        options.init = false;
        // At first both stores are empty; later that of locks has records.
        let store = conclave_node::store::open(folder.path(), 1, "test").unwrap();
        let objects = Box::new(disk(folder.path()));
        let clock = Arc::new(conclave_client::clock::now);
        let node = Node::start_with(options, store, objects, clock).unwrap();
        if restart == 0 {
            // It says nothing about locks before it has asked the others.
            drop(node);
            continue;
        }
        drop(node);
        let stored = disk(folder.path()).load().unwrap();
        assert!(
            stored.is_some_and(|stored| !stored.open),
            "restart {restart}"
        );
    }
}
