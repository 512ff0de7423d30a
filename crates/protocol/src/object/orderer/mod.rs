//! One client's work on one object: submits what its callers want, and orders what waits.
//!
//! A batch of wishes is sent to all nodes. Then the client contends for the object's lease. Who
//! has it asks the nodes what is there (under a rank), finishes what another has begun, or turns
//! everything that waits into the next state, proposes it, and commits it once a quorum holds it.
//! Whoever's batch was in it is done; so is a client whom b+1 nodes tell the same result.
//!
//! Ranks alone keep the order right. The lease only keeps clients from getting in each other's
//! way, so whatever happens to time costs patience and nothing else.

mod abort;
mod batch;
mod hold;
mod judge;
mod known;
mod peek;
mod round;
mod run;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use conclave_quorum::Prng;

use super::config::ObjectConfig;
use super::envelope::{Fault, Wish};
use super::kind::Kind;
use super::message::{Author, ObjectAsk, ObjectRefusal, ObjectTell, OpId, Rank};
use super::sign::Signing;
use super::state::{Stamp, State};
use crate::fault::Lie;
use crate::id::{ClientId, Key, Name, NodeId};
use crate::keeper::Ask;
use crate::keeper::client::{ClientEffects, ClientEvent, Failure};
use crate::lease::{Backoff, Contender, LeaseAsk, LeaseKey, LeaseReply, Space, Standing, Terms};
use crate::time::{Instant, Now, Wake};
pub use judge::{Verdict, Views, verdict};
use known::Known;
use peek::{Reading, Watching};
use round::Stage;

/// The most wishes of callers that wait for their turn.
pub const WAITING_MAX: usize = 65_536;
/// The longest time between two sendings of an operation.
const RESEND_MAX: Duration = Duration::from_secs(2);
/// After so many attempts that others outranked, a client contends anew.
const ABORTS_MAX: u32 = 3;

/// A batch that was submitted.
#[derive(Clone, Debug)]
struct Flight {
    op: OpId,
    body: Arc<[u8]>,
    callers: Vec<Key>,
    /// Whether it was sent to the nodes; whoever orders it itself need not.
    sent: bool,
    results: BTreeMap<NodeId, Arc<[u8]>>,
    denied: BTreeMap<NodeId, ObjectRefusal>,
    resend: Instant,
    pause: Duration,
}

/// What wants to know the object as it is, from an ordering round.
#[derive(Clone, Debug)]
enum Refresh {
    /// A reader, with the spans of cells as nodes know them.
    Read(Key, Vec<super::message::Span>),
    /// A node that lost its disk: the state must be committed under the rank, too.
    Rejoin(Key),
}

/// How much work an object was, for measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Times that the client began to contend.
    pub contends: u64,
    /// Rounds of messages, by kind: get, propose, commit.
    pub gets: u64,
    /// Proposals.
    pub proposes: u64,
    /// Commits.
    pub commits: u64,
    /// Attempts that others outranked.
    pub outranked: u64,
    /// Attempts that took too long.
    pub timeouts: u64,
    /// Reads that needed no ordering.
    pub peeks: u64,
    /// Reads that did.
    pub refreshes: u64,
    /// Operations that this client applied, its own and others'.
    pub applied: u64,
    /// Answers that cannot be if at most b nodes lie.
    pub alarms: u64,
    /// Bytes of cells that came as pages of whole states.
    pub fetched: u64,
    /// Bytes of cells that were sent as steps.
    pub stepped: u64,
}

impl Counters {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            contends: self.contends + other.contends,
            gets: self.gets + other.gets,
            proposes: self.proposes + other.proposes,
            commits: self.commits + other.commits,
            outranked: self.outranked + other.outranked,
            timeouts: self.timeouts + other.timeouts,
            peeks: self.peeks + other.peeks,
            refreshes: self.refreshes + other.refreshes,
            applied: self.applied + other.applied,
            alarms: self.alarms + other.alarms,
            fetched: self.fetched + other.fetched,
            stepped: self.stepped + other.stepped,
        }
    }
}

/// One client's work on one object.
#[derive(Debug)]
pub struct Orderer {
    config: Arc<ObjectConfig>,
    name: Name,
    kind: Arc<dyn Kind>,
    client: ClientId,
    /// For secrets of leases.
    seed: [u8; 32],
    chance: Prng,
    author: Author,
    /// The number of the author's last operation.
    number: u64,
    waiting: VecDeque<(Key, Wish)>,
    flight: Option<Flight>,
    refreshes: Vec<Refresh>,
    reads: BTreeMap<u64, Reading>,
    watches: BTreeMap<u64, Watching>,
    tickets: u64,
    lease: Option<Contender>,
    /// The number of the next attempt for the lease.
    attempts: u64,
    /// In whose name each node takes what this client submits, and what enough of them say.
    named: BTreeMap<NodeId, Arc<str>>,
    principal: Option<Arc<str>>,
    stage: Stage,
    /// The largest round that was used or must be exceeded.
    round: u64,
    aborts: u32,
    /// The latest version that a quorum is known to have committed.
    completed: u64,
    known: Known,
    /// What each node said last that it has committed.
    seen: BTreeMap<NodeId, Stamp>,
    open: BTreeSet<NodeId>,
    counters: Counters,
    /// How ranks are signed, if they are.
    signing: Option<Signing>,
}

impl Orderer {
    /// A client's work on an object, which is nothing yet. Attempts for its lease have numbers
    /// from `first` on, which the client uses for nothing else; the seed must be secret and new.
    pub fn new(
        config: Arc<ObjectConfig>,
        name: Name,
        kind: Arc<dyn Kind>,
        client: ClientId,
        first: u64,
        seed: [u8; 32],
    ) -> Self {
        let mut chance = [0; 8];
        chance.copy_from_slice(&blake3::hash(&seed).as_bytes()[..8]);
        Self {
            config,
            name,
            kind,
            client,
            seed,
            chance: Prng::new(u64::from_le_bytes(chance)),
            author: Author(0),
            number: 0,
            waiting: VecDeque::new(),
            flight: None,
            refreshes: Vec::new(),
            reads: BTreeMap::new(),
            watches: BTreeMap::new(),
            tickets: 0,
            lease: None,
            attempts: first,
            named: BTreeMap::new(),
            principal: None,
            stage: Stage::Idle,
            round: 0,
            aborts: 0,
            completed: 0,
            known: Known::default(),
            seen: BTreeMap::new(),
            open: BTreeSet::new(),
            counters: Counters::default(),
            signing: None,
        }
    }

    /// The same with signed ranks.
    #[must_use]
    pub fn signed(mut self, signing: Option<Signing>) -> Self {
        self.signing = signing;
        self
    }

    /// How much work there was.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The kind that the client takes the object for.
    pub fn kind(&self) -> &Arc<dyn Kind> {
        &self.kind
    }

    /// The latest state that this client knows to be committed.
    pub fn state(&self) -> &State {
        self.known.base()
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.flight.is_none()
            && self.waiting.is_empty()
            && self.refreshes.is_empty()
            && self.reads.is_empty()
            && self.watches.is_empty()
            && matches!(self.stage, Stage::Idle)
            && self.lease.is_none()
    }

    /// A caller's wish; what comes of it is told under the key.
    pub fn submit(&mut self, now: Now, key: Key, wish: Wish, out: &mut ClientEffects) {
        if wish.bytes() + super::envelope::KIND_NAME_MAX + 8 > self.config.op_size_max {
            fail(out, key, Failure::Object(ObjectRefusal::TooLarge));
        } else if self.waiting.len() >= WAITING_MAX {
            fail(out, key, Failure::Busy);
        } else {
            self.waiting.push_back((key, wish));
            self.take_off(now, out);
            self.go(now, out);
        }
    }

    /// The object's latest state, committed once more under a rank of this client's: for a node
    /// that lost its disk.
    pub fn rejoin(&mut self, now: Now, key: Key, out: &mut ClientEffects) {
        self.refreshes.push(Refresh::Rejoin(key));
        self.go(now, out);
    }

    /// The caller no longer waits. What was submitted may still be done.
    pub fn end(&mut self, now: Now, key: Key, out: &mut ClientEffects) {
        self.waiting.retain(|(other, _)| *other != key);
        self.refreshes.retain(|refresh| refresh.key() != key);
        self.end_in_attempt(key);
        self.reads.retain(|_, read| read.key != key);
        self.end_watch(key, out);
        if let Some(flight) = &mut self.flight {
            for caller in &mut flight.callers {
                if *caller == key {
                    *caller = NOBODY;
                }
            }
        }
        self.rest(now, out);
    }

    /// A connection to a node is new.
    pub fn opened(&mut self, now: Now, node: NodeId, out: &mut ClientEffects) {
        self.open.insert(node);
        self.lease_asks(out, |lease, asks| lease.opened(now, node, asks));
        self.after_lease(now, out);
        if let Some(flight) = &self.flight
            && flight.sent
            && !flight.results.contains_key(&node)
        {
            let (op, body) = (flight.op, flight.body.clone());
            self.ask(out, node, ObjectAsk::Submit { op, body });
        }
        self.send_round_to(node, out);
        self.send_reads_to(node, out);
    }

    /// A connection to a node is gone.
    pub fn closed(&mut self, node: NodeId) {
        self.open.remove(&node);
    }

    /// A node says something about the object.
    pub fn heard(&mut self, now: Now, node: NodeId, tell: &ObjectTell, out: &mut ClientEffects) {
        match tell {
            ObjectTell::Held { principal, .. } => self.named(node, principal),
            ObjectTell::Done { op, result } => self.told(now, node, *op, result, out),
            ObjectTell::Denied { op, why } => self.denied(now, node, *op, *why, out),
            ObjectTell::Got { rank, nonce, view } => {
                self.got(now, node, *rank, *nonce, view, out);
            }
            ObjectTell::Taken {
                rank,
                phase,
                stamp,
                waiting,
            } => self.taken(now, node, (*rank, *phase, *stamp), *waiting, out),
            ObjectTell::Outranked {
                rank, max, proof, ..
            } => self.outranked(now, node, *rank, (*max, proof), out),
            ObjectTell::NeedState {
                rank,
                phase,
                stamp,
                committed,
                proposed,
            } => {
                let has = [*committed, *proposed];
                self.needs(now, node, (*rank, *phase, *stamp), has, out);
            }
            ObjectTell::Refused { rank, why, .. } => self.refused(now, node, *rank, *why, out),
            ObjectTell::Page {
                ticket,
                stamp,
                page,
            } => self.page(now, node, *ticket, *stamp, page, out),
            ObjectTell::Given { ticket, whole } => self.given(now, node, *ticket, *whole, out),
            ObjectTell::Gone { ticket, why } => self.gone(now, node, *ticket, *why, out),
            ObjectTell::Peeked { ticket, .. } => self.peeked(now, node, *ticket, tell, out),
            ObjectTell::Changed { ticket, stamp } => self.changed(node, *ticket, *stamp, out),
        }
    }

    /// A node answers about the object's lease.
    pub fn heard_lease(
        &mut self,
        now: Now,
        node: NodeId,
        reply: &LeaseReply,
        out: &mut ClientEffects,
    ) {
        self.lease_asks(out, |lease, asks| lease.heard(now, node, reply, asks));
        self.after_lease(now, out);
    }

    /// The time of [`Self::next_wake`] has come, or may have.
    pub fn wake(&mut self, now: Now, out: &mut ClientEffects) {
        self.lease_asks(out, |lease, asks| lease.wake(now, asks));
        self.after_lease(now, out);
        self.resend(now, out);
        self.wake_round(now, out);
        self.wake_reads(now, out);
    }

    /// When it must be woken at the latest.
    pub fn next_wake(&self) -> Option<Wake> {
        let wake = |at, reason| Some(Wake { at, reason });
        let flight = self.flight.as_ref().filter(|flight| flight.sent);
        let wakes = [
            self.lease.as_ref().and_then(Contender::next_wake),
            flight.and_then(|flight| wake(flight.resend, "an operation is sent again")),
            self.round_wake()
                .and_then(|at| wake(at, "a phase of an attempt")),
            self.reads_wake()
                .and_then(|at| wake(at, "a read is decided")),
        ];
        wakes.into_iter().flatten().min_by_key(|wake| wake.at)
    }

    /// A node says in whose name it takes what this client submits.
    fn named(&mut self, node: NodeId, principal: &Arc<str>) {
        self.named.insert(node, principal.clone());
        let same = self.named.values().filter(|other| *other == principal);
        if same.count() >= self.config.faults.vouch() {
            self.principal = Some(principal.clone());
        }
    }

    // The lease.

    /// Whether something needs an ordering round of this client.
    fn wants_order(&self) -> bool {
        self.flight.is_some() || !self.refreshes.is_empty() || self.attempt_serves()
    }

    /// Contends for the lease if there is something to order.
    fn go(&mut self, now: Now, out: &mut ClientEffects) {
        if !self.wants_order() || !matches!(self.stage, Stage::Idle) || self.lease.is_some() {
            return;
        }
        if self.flight.as_ref().is_some_and(|flight| !flight.sent) {
            self.send_flight(now, out);
        }
        let key = LeaseKey {
            space: Space::Object,
            name: self.name.clone(),
        };
        let mut terms = Terms::new(self.config.order_span);
        // Ranks keep the order; a short lease is as good as a long one.
        terms.least = Duration::ZERO;
        if self.config.rules.is_paper() {
            terms.release = false;
            terms.backoff = Backoff::Exponential { cap: 12 };
        }
        let lease = self.config.lease.clone();
        // Every contender draws its own waits.
        let seed = *blake3::keyed_hash(&self.seed, &self.attempts.to_le_bytes()).as_bytes();
        let contender = Contender::new(lease, key, self.client, terms, self.attempts, seed);
        self.lease = Some(contender);
        self.counters.contends += 1;
        self.lease_asks(out, |lease, asks| lease.start(now, asks));
        self.after_lease(now, out);
    }

    fn lease_asks(
        &mut self,
        out: &mut ClientEffects,
        step: impl FnOnce(&mut Contender, &mut Vec<(NodeId, LeaseAsk)>),
    ) {
        let Some(lease) = &mut self.lease else {
            return;
        };
        let mut asks = Vec::new();
        step(lease, &mut asks);
        self.attempts = self.attempts.max(lease.next_number());
        for (node, lie) in lease.take_lies() {
            lied(out, node, lie);
        }
        let key = LeaseKey {
            space: Space::Object,
            name: self.name.clone(),
        };
        for (node, ask) in asks {
            if self.open.contains(&node) {
                out.send(node, Ask::Lease(key.clone(), ask));
            }
        }
    }

    /// The lease may have been won, lost or refused.
    fn after_lease(&mut self, now: Now, out: &mut ClientEffects) {
        let Some(lease) = &self.lease else {
            return;
        };
        match lease.standing() {
            Standing::Held { .. } if matches!(self.stage, Stage::Idle) => {
                if let Some(rank) = lease.rank() {
                    self.round = self.round.max(rank.round);
                }
                self.aborts = 0;
                if self.wants_order() {
                    self.begin_get(now, out);
                } else {
                    self.leave(now, out);
                }
            }
            Standing::Ended(Some(_)) => {
                self.lease = None;
                self.give_up(ObjectRefusal::NotPermitted, out);
                for refresh in std::mem::take(&mut self.refreshes) {
                    let why = Failure::Object(ObjectRefusal::NotPermitted);
                    fail(out, refresh.key(), why);
                }
                self.take_off(now, out);
                self.go(now, out);
            }
            Standing::Idle | Standing::Ended(None) => {
                self.lease = None;
                self.go(now, out);
            }
            Standing::Held { .. } | Standing::Trying | Standing::Waiting { .. } => {}
        }
    }

    /// Whether the lease lasts for another round.
    fn may_order(&self, now: Now) -> bool {
        let standing = self.lease.as_ref().map(Contender::standing);
        matches!(standing, Some(Standing::Held { end, .. }) if now.mono + self.config.delay < *end)
    }

    /// Gives the lease back.
    fn leave(&mut self, now: Now, out: &mut ClientEffects) {
        self.stage = Stage::Idle;
        if self.config.rules.is_paper() {
            // The published protocol has no release: whoever is done waits for the lease to end.
            self.lease = None;
        } else {
            self.lease_asks(out, |lease, asks| lease.release(now, asks));
            self.lease = None;
        }
        self.go(now, out);
    }

    /// Stops contending and asking once nobody needs it; what was proposed is finished.
    fn rest(&mut self, now: Now, out: &mut ClientEffects) {
        let begun = matches!(self.stage, Stage::Proposing(_) | Stage::Committing(_));
        if !self.wants_order() && !begun && self.lease.is_some() {
            self.leave(now, out);
        }
    }

    fn ask(&self, out: &mut ClientEffects, node: NodeId, ask: ObjectAsk) {
        out.send(node, Ask::Object(self.name.clone(), ask));
    }

    fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    fn rank(&self, round: u64) -> Rank {
        Rank {
            round,
            client: self.client,
        }
    }
}

/// The key of a caller that no longer waits.
const NOBODY: Key = Key(u64::MAX);

impl Refresh {
    fn key(&self) -> Key {
        match self {
            Self::Read(key, _) | Self::Rejoin(key) => *key,
        }
    }

    fn is_rejoin(&self) -> bool {
        matches!(self, Self::Rejoin(_))
    }
}

fn fail(out: &mut ClientEffects, key: Key, why: Failure) {
    out.events.push(ClientEvent::Failed { key, why });
}

fn lied(out: &mut ClientEffects, node: NodeId, lie: Lie) {
    out.events.push(ClientEvent::Lied { node, lie });
}

fn failure(fault: Fault) -> Failure {
    match fault {
        Fault::TooLarge => Failure::Object(ObjectRefusal::TooLarge),
        Fault::OtherKind => Failure::OtherKind,
        Fault::NotPermitted => Failure::Object(ObjectRefusal::NotPermitted),
        Fault::Unreadable => Failure::Object(ObjectRefusal::Contradiction),
    }
}
