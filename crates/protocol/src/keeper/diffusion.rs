//! Background work: a node looks at what the others have committed, and takes what it lacks.
//!
//! Every second or so each other node is asked for a part of its list. A state counts that b+1
//! others vouch for, in a later version than the node's own: one of them tells the truth, and a
//! state that one honest node has committed is the only one of its version. It is fetched from one
//! of them and checked against its digest. Ranks and proposals are never touched: those are
//! promises of a node to clients. Without this work a node that missed commits is as safe; it
//! only has less to tell.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use conclave_quorum::Prng;

use super::{Answer, Ask};
use crate::id::{Name, NodeId};
use crate::machine::{EffectsOf, Machine};
use crate::object::record::{Assembled, Assembly};
use crate::object::{Carry, ObjectAsk, ObjectConfig, ObjectTell, Page, Remedy, Stamp, State};
use crate::time::{Instant, Now, Wake};

/// How long to wait between two parts of one node's list, more or less.
const EVERY: Duration = Duration::from_secs(1);
/// A question without an answer is given up after this.
const PATIENCE: Duration = Duration::from_secs(5);
/// Commits reach all nodes by themselves; only what is missing for longer is fetched.
const GRACE: Duration = Duration::from_secs(1);
/// How many states are fetched at once.
const JOBS_MAX: usize = 2;
/// How many objects of one node are remembered as later than the own ones.
const AHEAD_MAX: usize = 4096;

/// What the background work is told.
#[derive(Clone, Debug)]
pub enum DiffusionInput {
    /// What this node has committed: all at the start, then whatever changes.
    Own(Name, Stamp),
    /// A state was handed over, and this node's keeper did not take it.
    NotAdopted(Name, Stamp),
    /// A connection to another node is open.
    Opened(NodeId),
    /// A connection to another node is gone.
    Closed(NodeId),
    /// Another node says something.
    Heard(NodeId, Answer),
    /// The time of [`Machine::next_wake`] has come, or may have.
    Wake,
}

/// What comes of the background work, for this node's keeper.
#[derive(Clone, Debug)]
pub enum DiffusionEvent {
    /// Enough others vouch for this committed state.
    Adopt {
        /// The object.
        object: Name,
        /// Which state.
        stamp: Stamp,
        /// What it is.
        remedy: Remedy,
    },
    /// Every node has this committed state.
    Settled {
        /// The object.
        object: Name,
        /// Which state.
        stamp: Stamp,
    },
}

/// The background work of one node.
#[derive(Debug)]
pub struct Diffusion {
    config: Arc<ObjectConfig>,
    empty: Stamp,
    own: BTreeMap<Name, Stamp>,
    peers: BTreeMap<NodeId, Peer>,
    /// Objects that b+1 others have later, since when, and in which state.
    wanted: BTreeMap<Name, (Instant, Stamp)>,
    jobs: BTreeMap<Name, Job>,
    /// Own states that some others are not known to have, and who has them.
    unsettled: BTreeMap<Name, BTreeSet<NodeId>>,
    tickets: u64,
    rng: Prng,
}

/// Another node.
#[derive(Debug)]
struct Peer {
    /// After which object to go on.
    after: Option<Name>,
    /// The question under way, and when it is given up.
    asked: Option<(u64, Instant)>,
    /// When to ask next.
    next: Instant,
    /// What it has in a later version than this node.
    ahead: BTreeMap<Name, Stamp>,
}

/// A state that is being fetched.
#[derive(Debug)]
struct Job {
    stamp: Stamp,
    /// What this node had when the question was asked.
    base: Stamp,
    /// From whom, and from whom else.
    from: NodeId,
    others: Vec<NodeId>,
    ticket: u64,
    stage: Stage,
    until: Instant,
}

#[derive(Debug)]
enum Stage {
    /// Asked for what has changed since.
    Suffix,
    /// Asked for all of it.
    Pages(Assembly),
    /// Handed over to the keeper; what was handed over was all of it.
    Handed(bool),
}

type Out = EffectsOf<Diffusion>;

impl Diffusion {
    /// The background work of a node that knows nothing yet.
    pub fn new(config: Arc<ObjectConfig>, seed: u64) -> Self {
        Self {
            config,
            empty: State::new().stamp(),
            own: BTreeMap::new(),
            peers: BTreeMap::new(),
            wanted: BTreeMap::new(),
            jobs: BTreeMap::new(),
            unsettled: BTreeMap::new(),
            tickets: 0,
            rng: Prng::new(seed),
        }
    }

    /// How many objects others have in a later version, as far as b+1 of them say so.
    pub fn behind(&self) -> usize {
        self.wanted.len()
    }

    fn own(&self, object: &Name) -> Stamp {
        self.own.get(object).copied().unwrap_or(self.empty)
    }

    fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// The time of the next question, so that nodes do not ask in step.
    fn later(&mut self, now: Instant) -> Instant {
        let percent = 75 + self.rng.below(50);
        now + EVERY * u32::try_from(percent).unwrap_or(100) / 100
    }

    fn owns(&mut self, object: Name, stamp: Stamp) {
        let known = self.own.insert(object.clone(), stamp);
        if known == Some(stamp) {
            return;
        }
        for peer in self.peers.values_mut() {
            let reached = |ahead: &Stamp| ahead.version <= stamp.version;
            if peer.ahead.get(&object).is_some_and(reached) {
                peer.ahead.remove(&object);
            }
        }
        let reached = |wanted: &(Instant, Stamp)| wanted.1.version <= stamp.version;
        if self.wanted.get(&object).is_some_and(reached) {
            self.wanted.remove(&object);
        }
        let reached = |job: &Job| job.stamp.version <= stamp.version;
        if self.jobs.get(&object).is_some_and(reached) {
            self.jobs.remove(&object);
        }
        self.unsettled.insert(object, BTreeSet::new());
    }

    fn heard(&mut self, now: Now, from: NodeId, answer: Answer, out: &mut Out) {
        match answer {
            Answer::Surveyed {
                ticket,
                objects,
                last,
                ..
            } => self.surveyed(now, from, ticket, objects, last, out),
            Answer::Object(object, tell) => self.fetched(now, from, &object, tell, out),
            Answer::Lease(..) => {}
        }
    }

    fn surveyed(
        &mut self,
        now: Now,
        from: NodeId,
        ticket: u64,
        objects: Vec<(Name, Stamp)>,
        last: bool,
        out: &mut Out,
    ) {
        let next = self.later(now.mono);
        let Some(peer) = self.peers.get_mut(&from) else {
            return;
        };
        if peer.asked.is_none_or(|(asked, _)| asked != ticket) {
            return;
        }
        peer.asked = None;
        peer.next = next;
        let end = objects.last().map(|(name, _)| name.clone());
        peer.after = end.filter(|_| !last);
        for (object, stamp) in objects {
            self.compare(now.mono, from, object, stamp, out);
        }
    }

    /// Another node has committed this.
    fn compare(&mut self, now: Instant, from: NodeId, object: Name, stamp: Stamp, out: &mut Out) {
        let own = self.own(&object);
        let Some(peer) = self.peers.get_mut(&from) else {
            return;
        };
        if stamp.version <= own.version {
            peer.ahead.remove(&object);
            if stamp == own && own.version > 0 {
                self.agrees(from, object, stamp, out);
            }
            return;
        }
        if peer.ahead.len() < AHEAD_MAX || peer.ahead.contains_key(&object) {
            peer.ahead.insert(object.clone(), stamp);
        }
        if let Some(stamp) = self.vouched(&object) {
            self.wanted.entry(object).or_insert((now, stamp)).1 = stamp;
        }
    }

    fn agrees(&mut self, from: NodeId, object: Name, stamp: Stamp, out: &mut Out) {
        let Some(agreed) = self.unsettled.get_mut(&object) else {
            return;
        };
        agreed.insert(from);
        if agreed.len() + 1 >= self.config.faults.nodes() {
            self.unsettled.remove(&object);
            out.events.push(DiffusionEvent::Settled { object, stamp });
        }
    }

    /// The latest state that b+1 others have and this node has not.
    fn vouched(&self, object: &Name) -> Option<Stamp> {
        let mut counts: BTreeMap<Stamp, usize> = BTreeMap::new();
        for stamp in self
            .peers
            .values()
            .filter_map(|peer| peer.ahead.get(object))
        {
            *counts.entry(*stamp).or_default() += 1;
        }
        let enough = self.config.faults.vouch();
        let mut stamps = counts.into_iter().rev();
        stamps
            .find(|(_, count)| *count >= enough)
            .map(|(stamp, _)| stamp)
    }

    fn wake(&mut self, now: Now, out: &mut Out) {
        let due: Vec<NodeId> = self
            .peers
            .iter_mut()
            .filter_map(|(node, peer)| {
                peer.asked.take_if(|(_, until)| *until <= now.mono);
                (peer.asked.is_none() && peer.next <= now.mono).then_some(*node)
            })
            .collect();
        for node in due {
            let ticket = self.ticket();
            if let Some(peer) = self.peers.get_mut(&node) {
                peer.asked = Some((ticket, now.mono + PATIENCE));
                let after = peer.after.clone();
                let new = false;
                out.send(node, Ask::Survey { ticket, after, new });
            }
        }
        let late = |job: &Job| job.until <= now.mono;
        let late = self.jobs.iter().filter(|(_, job)| late(job));
        for object in late.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.another(now.mono, &object, out);
        }
        self.begin(now.mono, out);
    }

    /// Begins to fetch what has been missing for long enough.
    fn begin(&mut self, now: Instant, out: &mut Out) {
        let free = JOBS_MAX.saturating_sub(self.jobs.len());
        let ready = |(name, wanted): &(&Name, &(Instant, Stamp))| {
            now.since(wanted.0) >= GRACE && !self.jobs.contains_key(*name)
        };
        let ready = self.wanted.iter().filter(ready).take(free);
        for object in ready.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            let Some(stamp) = self.vouched(&object) else {
                self.wanted.remove(&object);
                continue;
            };
            let has = |peer: &Peer| peer.ahead.get(&object) == Some(&stamp);
            let has = self.peers.iter().filter(|(_, peer)| has(peer));
            let mut others: Vec<NodeId> = has.map(|(node, _)| *node).collect();
            let from = others.remove(self.rng.below(others.len()));
            let job = Job {
                stamp,
                base: self.own(&object),
                from,
                others,
                ticket: 0,
                stage: Stage::Suffix,
                until: now,
            };
            self.jobs.insert(object.clone(), job);
            self.question(now, &object, out);
        }
    }

    /// Asks the node of a job for what comes next.
    fn question(&mut self, now: Instant, object: &Name, out: &mut Out) {
        let ticket = self.ticket();
        let base = self.own(object);
        let Some(job) = self.jobs.get_mut(object) else {
            return;
        };
        job.ticket = ticket;
        job.until = now + PATIENCE;
        let ask = match &job.stage {
            Stage::Suffix => {
                job.base = base;
                ObjectAsk::Peek {
                    ticket,
                    have: Some(base),
                    spans: Vec::new(),
                }
            }
            Stage::Pages(assembly) => ObjectAsk::Fetch {
                ticket,
                stamp: job.stamp,
                after: assembly.last().cloned(),
            },
            Stage::Handed(_) => return,
        };
        out.send(job.from, Ask::Object(object.clone(), ask));
    }

    /// Goes on with all of the state from another node, or gives up until the next survey.
    fn another(&mut self, now: Instant, object: &Name, out: &mut Out) {
        let Some(job) = self.jobs.get_mut(object) else {
            return;
        };
        let Some(next) = job.others.pop() else {
            self.jobs.remove(object);
            self.wanted.remove(object);
            return;
        };
        job.from = next;
        job.stage = Stage::Pages(Assembly::new(job.stamp));
        self.question(now, object, out);
    }

    fn fetched(&mut self, now: Now, from: NodeId, object: &Name, tell: ObjectTell, out: &mut Out) {
        let Some(job) = self.jobs.get_mut(object) else {
            return;
        };
        let now = now.mono;
        let mine = |ticket: u64| job.from == from && job.ticket == ticket;
        match tell {
            ObjectTell::Peeked { ticket, suffix, .. }
                if mine(ticket) && matches!(job.stage, Stage::Suffix) =>
            {
                let steps = job.stamp.version.saturating_sub(job.base.version);
                let steps = usize::try_from(steps).unwrap_or(usize::MAX);
                if steps == 0 || suffix.len() < steps {
                    job.stage = Stage::Pages(Assembly::new(job.stamp));
                    return self.question(now, object, out);
                }
                let deltas = suffix.into_iter().take(steps).collect();
                let base = job.base;
                let carry = Carry { base, deltas };
                self.hand_over(now, object, Remedy::Carry(carry), out);
            }
            ObjectTell::Page { ticket, page, .. } if mine(ticket) => {
                self.page(now, object, &page, out);
            }
            ObjectTell::Gone { ticket, .. } if mine(ticket) => self.another(now, object, out),
            _ => {}
        }
    }

    fn page(&mut self, now: Instant, object: &Name, page: &Page, out: &mut Out) {
        let most = self.config.object_size_max;
        let Some(job) = self.jobs.get_mut(object) else {
            return;
        };
        let Stage::Pages(assembly) = &mut job.stage else {
            return;
        };
        match assembly.add(page, most) {
            Assembled::More => self.question(now, object, out),
            Assembled::False => self.another(now, object, out),
            Assembled::Whole => {
                if let Some(state) = assembly.whole().cloned() {
                    self.hand_over(now, object, Remedy::Whole(state), out);
                }
            }
        }
    }

    fn hand_over(&mut self, now: Instant, object: &Name, remedy: Remedy, out: &mut Out) {
        let Some(job) = self.jobs.get_mut(object) else {
            return;
        };
        job.stage = Stage::Handed(matches!(remedy, Remedy::Whole(_)));
        job.until = now + PATIENCE;
        out.events.push(DiffusionEvent::Adopt {
            object: object.clone(),
            stamp: job.stamp,
            remedy,
        });
    }

    /// What was handed over was not the state. A suffix may have been overtaken; then all of the
    /// state comes from the same node.
    fn not_adopted(&mut self, now: Instant, object: &Name, stamp: Stamp, out: &mut Out) {
        let Some(job) = self.jobs.get_mut(object).filter(|job| job.stamp == stamp) else {
            return;
        };
        match job.stage {
            Stage::Handed(false) => {
                job.stage = Stage::Pages(Assembly::new(stamp));
                self.question(now, object, out);
            }
            Stage::Handed(true) => self.another(now, object, out),
            Stage::Suffix | Stage::Pages(_) => {}
        }
    }

    fn closed(&mut self, now: Instant, node: NodeId, out: &mut Out) {
        self.peers.remove(&node);
        let cut = self.jobs.iter().filter(|(_, job)| job.from == node);
        for object in cut.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.another(now, &object, out);
        }
    }
}

impl Machine for Diffusion {
    type Input = DiffusionInput;
    type Address = NodeId;
    type Message = Ask;
    type Record = ();
    type Event = DiffusionEvent;

    fn handle(&mut self, now: Now, input: DiffusionInput, out: &mut Out) {
        match input {
            DiffusionInput::Own(object, stamp) => self.owns(object, stamp),
            DiffusionInput::NotAdopted(object, stamp) => {
                self.not_adopted(now.mono, &object, stamp, out);
            }
            DiffusionInput::Opened(node) => {
                let next = self.later(now.mono);
                let peer = Peer {
                    after: None,
                    asked: None,
                    next,
                    ahead: BTreeMap::new(),
                };
                self.peers.insert(node, peer);
            }
            DiffusionInput::Closed(node) => self.closed(now.mono, node, out),
            DiffusionInput::Heard(node, answer) => self.heard(now, node, answer, out),
            DiffusionInput::Wake => self.wake(now, out),
        }
    }

    fn next_wake(&self) -> Option<Wake> {
        let asks = self.peers.values().map(|peer| match peer.asked {
            Some((_, until)) => until,
            None => peer.next,
        });
        let jobs = self.jobs.values().map(|job| job.until);
        let idle = self.jobs.len() < JOBS_MAX;
        let wanted = self.wanted.iter();
        let wanted = wanted.filter(|(name, _)| idle && !self.jobs.contains_key(*name));
        let wanted = wanted.map(|(_, (since, _))| *since + GRACE);
        let at = asks.chain(jobs).chain(wanted).min()?;
        Some(Wake {
            at,
            reason: "to look at what the others have",
        })
    }
}
