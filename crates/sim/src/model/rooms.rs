//! The code of the service, as the model of objects asks it: nodes and decisions.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use conclave_protocol::Now;
use conclave_protocol::fault::{Aborts, Faults};
use conclave_protocol::id::{ClientId, LinkId, Name, NodeId};
use conclave_protocol::keeper::{Caller, KeeperRecord, KeeperStored};
use conclave_protocol::lease::LeaseConfig;
use conclave_protocol::lock::{Access, Who};
use conclave_protocol::object::orderer::{Verdict, Views, verdict};
use conclave_protocol::object::{
    Cell, Delta, How, ObjectAsk, ObjectConfig, ObjectOut, ObjectServer, ObjectTell, Plant, Rank,
    Rules, Stamp, State, StoredObject, Value, View,
};

use super::object::ObjectModel;
use super::options::ModelError;

/// A rank larger than all real ones, as a liar names it.
pub(super) const HUGE: u8 = u8::MAX;
/// What a node holds, with small numbers for ranks and states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Held {
    pub(super) max: u8,
    pub(super) proposer: u8,
    pub(super) proposed: u8,
    pub(super) committer: u8,
    pub(super) committed: u8,
}

/// What a node answered to a get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Seen {
    pub(super) committed: u8,
    pub(super) proposed: u8,
    pub(super) proposer: u8,
}

/// A state and where it came from.
pub(super) struct Made {
    pub(super) state: State,
    pub(super) base: u8,
    /// By which attempt; none if a liar made it up.
    pub(super) by: Option<u8>,
}

/// The code of the service, asked once for every question.
pub(super) struct Rooms {
    pub(super) config: Arc<ObjectConfig>,
    pub(super) plant: Option<Plant>,
    pub(super) name: Name,
    pub(super) states: Vec<Made>,
    pub(super) steps: HashMap<(Held, u8, u8, u8), Option<Held>>,
    pub(super) verdicts: HashMap<Vec<Seen>, Option<(bool, u8)>>,
}

/// The first states: the empty one, and two that nobody made.
pub(super) const EMPTY: u8 = 0;
pub(super) const FALSE_ONE: u8 = 1;
pub(super) const FALSE_TWO: u8 = 2;

impl Rooms {
    pub(super) fn new(options: &ObjectModel) -> Result<Self, ModelError> {
        let faults = Faults::new(options.nodes, options.liars)?;
        let lease = Arc::new(LeaseConfig::new(faults));
        let rules = options.plant.map_or_else(Rules::default, Rules::planted);
        let config = ObjectConfig::new(lease, Aborts::Timed)?.ruled(rules);
        let mut rooms = Self {
            config: Arc::new(config),
            plant: options.plant,
            name: Name::new("object"),
            states: Vec::new(),
            steps: HashMap::new(),
            verdicts: HashMap::new(),
        };
        let (base, by) = (EMPTY, None);
        let state = State::new();
        rooms.states.push(Made { state, base, by });
        rooms.add(EMPTY, None);
        rooms.add(FALSE_ONE, None);
        Ok(rooms)
    }

    /// Adds the state that follows from another one.
    pub(super) fn add(&mut self, base: u8, by: Option<u8>) -> u8 {
        let cell = Cell::from(&b"\x02by"[..]);
        let value = Value::from(&[by.map_or(99, |by| by)][..]);
        let delta = Delta::new(vec![(cell, Some(value))]);
        let next = self.states[usize::from(base)].state.next(&delta);
        let state = next.expect("invariant: there is a next version");
        self.states.push(Made { state, base, by });
        (self.states.len() - 1) as u8
    }

    /// The state that an attempt makes of another one.
    pub(super) fn built(&mut self, base: u8, by: u8) -> u8 {
        let same = |made: &Made| made.base == base && made.by == Some(by);
        match self.states.iter().position(same) {
            Some(at) => at as u8,
            None => self.add(base, Some(by)),
        }
    }

    pub(super) fn state(&self, at: u8) -> &State {
        &self.states[usize::from(at)].state
    }

    pub(super) fn find(&self, stamp: Stamp) -> u8 {
        let same = |made: &Made| made.state.stamp() == stamp;
        let at = self.states.iter().position(same);
        at.expect("invariant: every state is in the table") as u8
    }

    /// Whether one state is the other or came before it.
    pub(super) fn leads_to(&self, first: u8, mut last: u8) -> bool {
        let version = self.state(first).version();
        while self.state(last).version() > version {
            last = self.states[usize::from(last)].base;
        }
        first == last
    }

    /// The rank of an attempt. Two share one if that is the bug.
    pub(super) fn rank_of(&self, attempt: u8) -> u8 {
        if self.plant == Some(Plant::GetAtEqualRank) {
            1 + attempt / 2
        } else {
            1 + attempt
        }
    }

    pub(super) fn rank(small: u8) -> Rank {
        Rank {
            round: u64::from(small),
            client: ClientId(u128::from(small)),
        }
    }

    pub(super) fn small(rank: Rank) -> u8 {
        u8::try_from(rank.round).unwrap_or(HUGE)
    }

    pub(super) fn stored(&self, held: Held) -> StoredObject {
        let mut stored = StoredObject::new(self.state(EMPTY));
        stored.max = Self::rank(held.max);
        stored.proposer = Self::rank(held.proposer);
        stored.proposed = self.state(held.proposed).clone();
        stored.committer = Self::rank(held.committer);
        stored.committed = self.state(held.committed).clone();
        stored
    }

    pub(super) fn held(&self, stored: &StoredObject) -> Held {
        Held {
            max: Self::small(stored.max),
            proposer: Self::small(stored.proposer),
            proposed: self.find(stored.proposed.stamp()),
            committer: Self::small(stored.committer),
            committed: self.find(stored.committed.stamp()),
        }
    }

    /// What a node holds after a message of an attempt; none if it refuses it. Phase 0 is get, 1
    /// propose, 2 commit.
    pub(super) fn step(&mut self, held: Held, attempt: u8, phase: u8, goal: u8) -> Option<Held> {
        let key = (held, self.rank_of(attempt), phase, goal);
        if let Some(known) = self.steps.get(&key) {
            return *known;
        }
        let (rank, stamp) = (Self::rank(key.1), self.state(goal).stamp());
        let (carry, proof) = (None, None);
        let ask = match phase {
            0 => ObjectAsk::Get {
                rank,
                nonce: u64::from(attempt),
                have: None,
                proof,
            },
            1 => ObjectAsk::Propose {
                rank,
                stamp,
                carry,
                proof,
            },
            _ => ObjectAsk::Commit {
                rank,
                stamp,
                carry,
                proof,
            },
        };
        let next = self.ask(held, goal, ask);
        self.steps.insert(key, next);
        next
    }

    /// Runs a node's machine on one question. The state is given to it beforehand.
    pub(super) fn ask(&self, held: Held, goal: u8, ask: ObjectAsk) -> Option<Held> {
        let objects = BTreeMap::from([(self.name.clone(), self.stored(held))]);
        let access = Arc::new(Access::default());
        let mut server = ObjectServer::new(self.config.clone(), access, None, objects);
        let (link, now) = (LinkId(1), Now::default());
        let who = Who {
            principal: "model".into(),
            gateway: false,
        };
        server.opened(link, Caller { who, node: None });
        let mut out = ObjectOut::default();
        let state = self.state(goal);
        for page in state.pages(usize::MAX) {
            let (ticket, stamp) = (1, state.stamp());
            let give = ObjectAsk::Give {
                ticket,
                stamp,
                page,
            };
            server.ask(now, link, &self.name, give, &mut out);
        }
        out.tells.clear();
        server.ask(now, link, &self.name, ask, &mut out);
        let good =
            |tell: &ObjectTell| matches!(tell, ObjectTell::Got { .. } | ObjectTell::Taken { .. });
        if !out.tells.iter().any(|(_, _, tell)| good(tell)) {
            return None;
        }
        server.stored().get(&self.name).map(|kept| self.held(kept))
    }

    /// What a node comes back with: all of it, or only commits if that is the bug.
    pub(super) fn restarted(&self, held: Held) -> Held {
        if self.plant != Some(Plant::ForgetRank) {
            return held;
        }
        let mut stored = KeeperStored::new();
        let state = self.state(held.committed);
        let committed = KeeperRecord::Committed {
            object: self.name.clone(),
            rank: Self::rank(held.committer),
            stamp: state.stamp(),
            how: How::Pages,
            proof: None,
        };
        let pages = state.pages(usize::MAX).map(|page| KeeperRecord::Page {
            object: self.name.clone(),
            stamp: state.stamp(),
            page,
        });
        for record in pages.chain([committed]) {
            stored.apply(&record).expect("invariant: it follows");
        }
        self.held(&stored.objects[&self.name])
    }

    /// What an attempt does after these answers: whether it builds anew, and upon or with which
    /// state; none if they cannot be.
    pub(super) fn verdict(&mut self, mut seen: Vec<Seen>) -> Option<(bool, u8)> {
        seen.sort_unstable();
        if let Some(known) = self.verdicts.get(&seen) {
            return *known;
        }
        let view = |seen: &Seen| View {
            committed: self.state(seen.committed).stamp(),
            proposed: self.state(seen.proposed).stamp(),
            proposer: match seen.proposer {
                HUGE => Rank {
                    round: u64::MAX,
                    client: ClientId(0),
                },
                small => Self::rank(small),
            },
            pending: Vec::new(),
            suffix: Vec::new(),
            step: None,
        };
        let views: Views = seen
            .iter()
            .enumerate()
            .map(|(at, seen)| (NodeId::at(at), Box::new(view(seen))))
            .collect();
        let found = match verdict(&views, 0, &self.config) {
            Verdict::Finish(stamp) => Some((false, self.find(stamp))),
            Verdict::Build(stamp) => Some((true, self.find(stamp))),
            Verdict::Impossible => None,
        };
        self.verdicts.insert(seen, found);
        found
    }
}
