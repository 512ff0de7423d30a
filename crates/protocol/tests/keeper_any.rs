//! Whatever is said to a keeper, in whatever order: it never stops, keeps within its limits, takes
//! back no word, and finds on disk what it had.

mod keep;

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::{ClientId, LinkId, Name, NodeId, Token};
use conclave_protocol::keeper::{Ask, KeeperInput, KeeperStored};
use conclave_protocol::lease::{Attempt, LeaseAsk, LeaseKey, Secret, Space, Try};
use conclave_protocol::lock::Access;
use conclave_protocol::object::{
    Carry, Cell, ObjectAsk, ObjectConfig, Page, Rank, Remedy, Rules, Span, Stamp, State, Value,
};
use conclave_quorum::Prng;
use proptest::prelude::*;

use keep::{Node, Proposal, caller, config, done, op, replay, submit};

/// A little tree of states: two versions of each, and steps between them.
fn steps() -> Vec<Proposal> {
    let empty = State::new();
    let mut steps = vec![done(&empty, op(1, 1), "a"), done(&empty, op(2, 1), "b")];
    for at in 0..4 {
        let base = steps[at].state.clone();
        steps.push(done(&base, op(1, 2 + at as u64), "c"));
        steps.push(done(&base, op(3, 1), &"d".repeat(200)));
    }
    steps
}

fn small() -> Arc<ObjectConfig> {
    let mut config = (*config(5, 1, Rules::default())).clone();
    config.objects_max = 2;
    config.object_size_max = 700;
    config.op_size_max = 16;
    config.delta_size_max = 400;
    config.pending_per_object = 2;
    config.pending_bytes = 250;
    config.page_bytes = 128;
    config.recent_bytes = 600;
    config.uploads_bytes = 900;
    config.watches_max = 2;
    let mut lease = (*config.lease).clone();
    lease.leases_max = 3;
    config.lease = Arc::new(lease);
    Arc::new(config)
}

struct Any {
    rng: Prng,
    steps: Vec<Proposal>,
    pages: Vec<(Stamp, Page)>,
}

impl Any {
    fn new(seed: u64) -> Self {
        let steps = steps();
        let pages = |step: &Proposal| {
            let stamp = step.stamp();
            let pages = step.state.pages(100);
            pages.map(move |page| (stamp, page)).collect::<Vec<_>>()
        };
        let pages = steps.iter().flat_map(pages).collect();
        let rng = Prng::new(seed);
        Self { rng, steps, pages }
    }

    fn of(&mut self, count: usize) -> u64 {
        self.rng.below(count) as u64
    }

    fn step(&mut self) -> Proposal {
        let at = self.rng.below(self.steps.len());
        self.steps[at].clone()
    }

    fn rank(&mut self) -> Rank {
        keep::rank(self.of(6), u128::from(self.of(2)))
    }

    fn name(&mut self) -> Name {
        let names = ["shared", "shared", "shared", "other", "third", ""];
        Name::new(names[self.rng.below(names.len())])
    }

    fn stamp(&mut self) -> Stamp {
        match self.of(4) {
            0 => State::new().stamp(),
            _ => self.step().stamp(),
        }
    }

    fn carry(&mut self, step: &Proposal) -> Option<Carry> {
        match self.of(8) {
            0 => None,
            1 => Some(self.step().carry()),
            _ => Some(step.carry()),
        }
    }

    fn cell(&mut self) -> Cell {
        let names: [&[u8]; 4] = [b"", b"\x01", b"\x02", b"\x03"];
        Cell::from(names[self.rng.below(names.len())])
    }

    fn object_ask(&mut self) -> ObjectAsk {
        let (rank, proof, ticket) = (self.rank(), None, self.of(3));
        match self.of(12) {
            0 | 1 => submit(op(u128::from(self.of(4)), self.of(4)), "twelve bytes"),
            2 | 3 => ObjectAsk::Get {
                rank,
                nonce: self.of(2),
                have: Some(self.stamp()),
                proof,
            },
            4 | 5 => {
                let step = self.step();
                ObjectAsk::Propose {
                    rank,
                    stamp: step.stamp(),
                    carry: self.carry(&step),
                    proof,
                }
            }
            6 | 7 => {
                let step = self.step();
                ObjectAsk::Commit {
                    rank,
                    stamp: step.stamp(),
                    carry: self.carry(&step),
                    proof,
                }
            }
            8 => ObjectAsk::Fetch {
                ticket,
                stamp: self.stamp(),
                after: Some(self.cell()).filter(|cell| !cell.is_empty()),
            },
            9 => {
                let at = self.rng.below(self.pages.len());
                let (stamp, mut page) = self.pages[at].clone();
                if self.of(10) == 0 {
                    page.cells.push((self.cell(), Value::from(&b"x"[..])));
                }
                ObjectAsk::Give {
                    ticket,
                    stamp,
                    page,
                }
            }
            10 => {
                let span = Span {
                    from: self.cell(),
                    to: Some(self.cell()).filter(|_| self.of(2) == 0),
                    limit: u32::MAX * u32::from(self.of(2) == 0),
                    backwards: self.of(2) == 0,
                };
                ObjectAsk::Peek {
                    ticket,
                    have: Some(self.stamp()),
                    spans: vec![span; self.rng.below(3)],
                }
            }
            _ if self.of(3) == 0 => ObjectAsk::Unwatch { ticket },
            _ => ObjectAsk::Watch { ticket },
        }
    }

    fn lease_ask(&mut self) -> Ask {
        let space = if self.of(2) == 0 {
            Space::Lease
        } else {
            Space::Object
        };
        let name = self.name();
        let key = LeaseKey { space, name };
        let attempt = Attempt {
            client: ClientId(u128::from(self.of(2))),
            number: self.of(3),
        };
        let secret = Secret::new(&[7; 32], &key, attempt, NodeId(0));
        let ask = match self.of(4) {
            0 => LeaseAsk::Release { attempt, secret },
            1 => LeaseAsk::Renew {
                attempt,
                sub: 1,
                secret,
            },
            _ => LeaseAsk::Try(Try {
                attempt,
                sub: self.of(3) as u32,
                token: Token(1_700_000_000_000_000 + self.of(100)),
                span: Duration::from_secs(self.of(70)),
                seal: secret.seal(),
                patience: Duration::from_secs(self.of(3)),
                waited: Duration::from_secs(self.of(3)),
            }),
        };
        Ask::Lease(key, ask)
    }

    fn input(&mut self) -> KeeperInput {
        let link = LinkId(self.of(4));
        match self.of(24) {
            0 => {
                let node = Some(NodeId(3)).filter(|_| self.of(3) == 0);
                KeeperInput::Opened(link, caller("ann", node))
            }
            1 if self.of(3) == 0 => KeeperInput::Closed(link),
            2 => KeeperInput::Wake,
            3 => {
                let step = self.step();
                let remedy = match self.of(2) {
                    0 => Remedy::Whole(step.state.clone()),
                    _ => Remedy::Carry(step.carry()),
                };
                KeeperInput::Adopt {
                    object: self.name(),
                    stamp: step.stamp(),
                    remedy,
                }
            }
            4 => KeeperInput::Settled {
                object: self.name(),
                stamp: self.stamp(),
            },
            5 => {
                let step = self.step();
                KeeperInput::Restored {
                    object: self.name(),
                    rank: self.rank(),
                    proof: None,
                    state: step.state,
                }
            }
            6 => KeeperInput::Receive(
                link,
                Ask::Survey {
                    ticket: 1,
                    after: Some(self.name()),
                    new: false,
                },
            ),
            7..=10 => KeeperInput::Receive(link, self.lease_ask()),
            _ => {
                let name = self.name();
                KeeperInput::Receive(link, Ask::Object(name, self.object_ask()))
            }
        }
    }
}

/// What must never go back.
fn no_word_is_taken_back(before: &KeeperStored, after: &KeeperStored) {
    assert!(before.mark <= after.mark);
    for (name, old) in &before.objects {
        let new = after.objects.get(name).expect("nothing is forgotten");
        assert!(old.max <= new.max && old.proposer <= new.proposer);
        assert!(old.committed.version() <= new.committed.version());
    }
}

fn within_limits(node: &Node) {
    let config = node.config.objects.as_ref().expect("objects");
    let (objects, bytes) = node.keeper.size();
    assert!(objects <= config.objects_max);
    assert!(bytes <= config.objects_max * config.object_size_max);
    for view in node.keeper.views(None, 10) {
        assert!(view.pending <= config.pending_per_object);
        assert!(view.bytes <= config.object_size_max);
    }
    assert!(node.keeper.leases().names() <= config.lease.leases_max);
    for (_, answer) in &node.said {
        if let conclave_protocol::keeper::Answer::Object(_, tell) = answer {
            assert!(format!("{tell:?}").len() < 8192, "{tell:?}");
        }
    }
}

fn run(seed: u64, length: usize) {
    let mut any = Any::new(seed);
    let mut node = Node::new(&small(), Access::default());
    for link in 0..4 {
        node.open(link, "ann");
    }
    let mut before = node.keeper.stored();
    for _ in 0..length {
        if any.of(3) == 0 {
            node.pass(Duration::from_millis(any.of(20_000)));
        }
        node.step(any.input());
        no_word_is_taken_back(&before, &node.keeper.stored());
        before = node.keeper.stored();
        let all: Vec<_> = node.disk.iter().chain(&node.unwritten).cloned().collect();
        assert_eq!(replay(&all), before);
        if any.of(2) == 0 {
            node.sync();
        }
        within_limits(&node);
        node.said.clear();
        if any.of(40) == 0 {
            // It dies with some of what it wrote.
            let kept = any.rng.below(node.unwritten.len() + 1);
            let kept: Vec<_> = node.unwritten.drain(..kept).collect();
            node.disk.extend(kept);
            node.restart();
            before = node.keeper.stored();
            assert_eq!(replay(&node.disk), before);
            let snapshot: Vec<_> = before.records(100).collect();
            assert_eq!(replay(&snapshot), before);
            node.disk = snapshot;
            for link in 0..4 {
                node.open(link, "ann");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn any_words_are_safe_and_records_lead_back(seed: u64) {
        run(seed, 120);
    }
}
