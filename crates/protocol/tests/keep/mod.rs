//! Keepers by hand: nodes whose disk, connections and answers a test holds in its hands.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod net;

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::fault::{Aborts, Faults};
use conclave_protocol::id::{ClientId, LinkId, Name, NodeId};
use conclave_protocol::keeper::{
    Answer, Ask, Caller, Keeper, KeeperConfig, KeeperEvent, KeeperInput, KeeperRecord, KeeperStart,
    KeeperStored,
};
use conclave_protocol::lease::LeaseConfig;
use conclave_protocol::lock::{Access, Who};
use conclave_protocol::object::author::{self, LastOp};
use conclave_protocol::object::{
    Author, Carry, Cell, Delta, ObjectAsk, ObjectConfig, ObjectTell, OpId, Rank, RankSigner,
    RankVerifier, Rules, Stamp, State, Value, View,
};
use conclave_protocol::{Effects, EffectsOf, Instant, Machine, Now, Wall};

/// The object that most tests are about.
pub(crate) fn object() -> Name {
    Name::new("shared")
}

/// What all agree on with so many nodes and liars.
pub(crate) fn config(nodes: usize, liars: usize, rules: Rules) -> Arc<ObjectConfig> {
    let faults = Faults::new(nodes, liars).expect("enough for leases");
    let lease = Arc::new(LeaseConfig::new(faults));
    let config = ObjectConfig::new(lease, Aborts::Timed).expect("enough for objects");
    Arc::new(config.ruled(rules))
}

/// A node: its machine, what is on its disk and what it said.
pub(crate) struct Node {
    pub(crate) keeper: Keeper,
    pub(crate) config: KeeperConfig,
    /// Every record that was ever written and is on disk.
    pub(crate) disk: Vec<KeeperRecord>,
    /// Written, but not on disk.
    pub(crate) unwritten: Vec<KeeperRecord>,
    /// Answers that wait for the disk, each with how many records of this life they need.
    parked: Vec<(u64, LinkId, Answer)>,
    life: u64,
    pub(crate) said: Vec<(LinkId, Answer)>,
    pub(crate) events: Vec<KeeperEvent>,
    pub(crate) now: Now,
}

impl Node {
    /// A new node.
    pub(crate) fn new(objects: &Arc<ObjectConfig>, access: Access) -> Self {
        let config = KeeperConfig {
            lease: objects.lease.clone(),
            objects: Some(objects.clone()),
            access: Arc::new(access),
            verifier: objects.signed.then(|| Arc::new(Seals) as _),
            seed: 1,
        };
        let now = Now {
            mono: Instant::from_nanos(1_000_000_000),
            wall: Wall(1_700_000_000_000_000),
        };
        let mut out = Effects::new();
        let keeper = Keeper::new(config.clone(), KeeperStart::Fresh, now, &mut out);
        let mut node = Self {
            keeper,
            config,
            disk: Vec::new(),
            unwritten: Vec::new(),
            parked: Vec::new(),
            life: 0,
            said: Vec::new(),
            events: Vec::new(),
            now,
        };
        node.take(out);
        node.sync();
        node
    }

    fn take(&mut self, mut out: EffectsOf<Keeper>) {
        self.life += out.persist.len() as u64;
        self.unwritten.append(&mut out.persist);
        for envelope in out.send_now {
            self.said.push((envelope.to, envelope.message));
        }
        for envelope in out.send_durable {
            self.parked.push((self.life, envelope.to, envelope.message));
        }
        self.events.append(&mut out.events);
    }

    /// One step, after which nothing is on disk yet.
    pub(crate) fn step(&mut self, input: KeeperInput) {
        let mut out = Effects::new();
        self.keeper.handle(self.now, input, &mut out);
        self.take(out);
    }

    /// All that was written is on disk now.
    pub(crate) fn sync(&mut self) {
        self.disk.append(&mut self.unwritten);
        for (_, link, answer) in std::mem::take(&mut self.parked) {
            self.said.push((link, answer));
        }
        self.step(KeeperInput::Durable(self.life));
    }

    pub(crate) fn pass(&mut self, span: Duration) {
        self.now.mono = self.now.mono + span;
        self.now.wall = self.now.wall.plus(span);
    }

    /// The node dies with what is not on disk, and comes back.
    pub(crate) fn restart(&mut self) {
        self.unwritten.clear();
        self.parked.clear();
        self.life = 0;
        let stored = Box::new(replay(&self.disk));
        let mut out = Effects::new();
        let start = KeeperStart::Kept(stored);
        self.keeper = Keeper::new(self.config.clone(), start, self.now, &mut out);
        self.take(out);
    }

    /// A connection of a principal.
    pub(crate) fn open(&mut self, link: u64, principal: &str) -> LinkId {
        self.step(KeeperInput::Opened(LinkId(link), caller(principal, None)));
        LinkId(link)
    }

    /// Asks about the object, waits for the disk, and takes what is said to that connection.
    pub(crate) fn ask(&mut self, link: LinkId, ask: ObjectAsk) -> Vec<ObjectTell> {
        self.step(KeeperInput::Receive(link, Ask::Object(object(), ask)));
        self.sync();
        self.heard(link)
    }

    /// What was said to a connection about the object since the last time.
    pub(crate) fn heard(&mut self, link: LinkId) -> Vec<ObjectTell> {
        let mut tells = Vec::new();
        self.said.retain(|(to, answer)| match answer {
            Answer::Object(_, tell) if *to == link => {
                tells.push(tell.clone());
                false
            }
            _ => true,
        });
        tells
    }

    pub(crate) fn get(&mut self, link: LinkId, rank: Rank, nonce: u64) -> ObjectTell {
        let ask = ObjectAsk::Get {
            rank,
            nonce,
            have: None,
            proof: None,
        };
        only(self.ask(link, ask))
    }

    pub(crate) fn view(&mut self, link: LinkId, rank: Rank) -> View {
        match self.get(link, rank, rank.round) {
            ObjectTell::Got { view, .. } => *view,
            other => panic!("no view: {other:?}"),
        }
    }

    pub(crate) fn propose(&mut self, link: LinkId, rank: Rank, step: &Proposal) -> Vec<ObjectTell> {
        let ask = ObjectAsk::Propose {
            rank,
            stamp: step.stamp(),
            carry: Some(step.carry()),
            proof: None,
        };
        self.ask(link, ask)
    }

    pub(crate) fn commit(&mut self, link: LinkId, rank: Rank, step: &Proposal) -> Vec<ObjectTell> {
        let ask = ObjectAsk::Commit {
            rank,
            stamp: step.stamp(),
            carry: None,
            proof: None,
        };
        self.ask(link, ask)
    }
}

/// Signatures that anybody could make, which is enough to see where they are asked for.
#[derive(Debug)]
pub(crate) struct Seals;

impl RankSigner for Seals {
    fn sign(&self, object: &Name, rank: Rank) -> Arc<[u8]> {
        let text = format!("{object} {rank:?}");
        blake3::hash(text.as_bytes()).as_bytes().as_slice().into()
    }
}

impl RankVerifier for Seals {
    fn valid(&self, object: &Name, rank: Rank, proof: &[u8]) -> bool {
        *self.sign(object, rank) == *proof
    }
}

/// What records add up to.
pub(crate) fn replay(records: &[KeeperRecord]) -> KeeperStored {
    let mut stored = KeeperStored::new();
    for record in records {
        stored.apply(record).expect("it follows");
    }
    stored
}

pub(crate) fn caller(principal: &str, node: Option<NodeId>) -> Caller {
    let who = Who {
        principal: principal.into(),
        gateway: false,
    };
    Caller { who, node }
}

/// The only one there is.
pub(crate) fn only(mut tells: Vec<ObjectTell>) -> ObjectTell {
    assert_eq!(tells.len(), 1, "{tells:?}");
    tells.remove(0)
}

pub(crate) fn rank(round: u64, client: u128) -> Rank {
    let client = ClientId(client);
    Rank { round, client }
}

/// A next version, with its author's record.
#[derive(Clone, Debug)]
pub(crate) struct Proposal {
    pub(crate) base: Stamp,
    pub(crate) delta: Delta,
    pub(crate) state: State,
}

impl Proposal {
    pub(crate) fn stamp(&self) -> Stamp {
        self.state.stamp()
    }

    pub(crate) fn carry(&self) -> Carry {
        Carry {
            base: self.base,
            deltas: vec![self.delta.clone()],
        }
    }
}

pub(crate) fn op(author: u128, number: u64) -> OpId {
    let author = Author::new(1_700_000_000_000, author << 64);
    OpId { author, number }
}

/// The version after a state in which an operation was done with this result.
pub(crate) fn done(base: &State, op: OpId, result: &str) -> Proposal {
    let last = LastOp {
        number: op.number,
        millis: 1,
        result: result.as_bytes(),
    };
    let writes = vec![
        (author::cell(op.author), Some(last.write())),
        (
            Cell::from(&b"\x02last"[..]),
            Some(Value::from(result.as_bytes())),
        ),
    ];
    let delta = Delta::new(writes);
    let state = base.next(&delta).expect("a version");
    Proposal {
        base: base.stamp(),
        delta,
        state,
    }
}

pub(crate) fn submit(op: OpId, body: &str) -> ObjectAsk {
    ObjectAsk::Submit {
        op,
        body: body.as_bytes().into(),
    }
}
