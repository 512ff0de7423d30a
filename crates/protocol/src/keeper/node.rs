//! The node's machine for leases and objects.
//!
//! It joins the votes for leases with the objects, decides who may ask what, and sees to it that
//! nothing leaves before what it rests on is on disk. A node whose disk was lost says nothing but
//! that it does not serve, until it has ordered every object anew.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::span::Spans;
use super::{Answer, Ask, Caller, KeeperRecord, KeeperStored};
use crate::id::{LinkId, Name, NodeId, Token};
use crate::lease::{
    LeaseAnswer, LeaseAsk, LeaseConfig, LeaseKey, LeaseOut, LeaseRefusal, LeaseReply, LeaseServer,
    LeaseStart, Space,
};
use crate::lock::{Access, Action};
use crate::machine::{EffectsOf, Machine};
use crate::object::acl::Want;
use crate::object::server::refused;
use crate::object::{
    ObjectAsk, ObjectConfig, ObjectOut, ObjectRefusal, ObjectServer, ObjectTell, ObjectView, Phase,
    Plant, Proof, Rank, RankVerifier, Remedy, Stamp, State,
};
use crate::time::{Instant, Now, Wake};

/// What a node's keeper is told.
#[derive(Clone, Debug)]
pub enum KeeperInput {
    /// A connection is open.
    Opened(LinkId, Caller),
    /// Somebody asks something.
    Receive(LinkId, Ask),
    /// A connection is gone.
    Closed(LinkId),
    /// So many records of this life are on disk.
    Durable(u64),
    /// The time of [`Machine::next_wake`] has come, or may have.
    Wake,
    /// The cluster's permissions from now on.
    Access(Arc<Access>),
    /// Enough other nodes vouch for a committed state that this node may not have.
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
    /// A node that lost its disk has ordered this object anew.
    Restored {
        /// The object.
        object: Name,
        /// Under which rank.
        rank: Rank,
        /// The rank's signature.
        proof: Proof,
        /// What came of it.
        state: State,
    },
    /// A node that lost its disk has all objects, and may serve.
    Rejoined {
        /// No lease with a larger token can have had this node's vote.
        mark: Token,
    },
    /// No node ever kept anything: there is nothing that a lost disk could have held.
    Begin,
}

/// What a node's keeper tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeeperEvent {
    /// It serves from now on. Votes for leases may come later.
    Serving,
    /// Another node says that it never kept anything.
    New(NodeId),
    /// An object has a new committed state.
    Committed {
        /// The object.
        object: Name,
        /// Which state.
        stamp: Stamp,
    },
    /// A state that others vouch for was not taken: there is a later one, or it is not what it
    /// was said to be.
    NotAdopted {
        /// The object.
        object: Name,
        /// Which state.
        stamp: Stamp,
    },
}

/// How a node's keeper begins.
#[derive(Clone, Debug)]
pub enum KeeperStart {
    /// The node is new, or was told to begin anew: nobody can have asked it for anything.
    Fresh,
    /// It comes back with what was on its disk. If it was about to rejoin when it stopped, it
    /// goes on with that.
    Kept(Box<KeeperStored>),
    /// Its disk was lost.
    Lost,
}

/// What a keeper must know besides its records.
#[derive(Clone, Debug)]
pub struct KeeperConfig {
    /// What all agree on about leases.
    pub lease: Arc<LeaseConfig>,
    /// What all agree on about objects; none if there are too few nodes, or none are wanted.
    pub objects: Option<Arc<ObjectConfig>>,
    /// Who may do what.
    pub access: Arc<Access>,
    /// Knows signed ranks, if the cluster asks for them.
    pub verifier: Option<Arc<dyn RankVerifier>>,
    /// Chance, for this life.
    pub seed: u64,
}

/// A node's leases and objects.
#[derive(Debug)]
pub struct Keeper {
    config: KeeperConfig,
    leases: LeaseServer,
    objects: Option<ObjectServer>,
    links: BTreeMap<LinkId, Link>,
    spans: Spans,
    serving: bool,
    /// Votes are given from then on.
    opens: Instant,
    written: u64,
    synced: u64,
    /// The record that the last mark or span is in.
    vote_record: u64,
}

#[derive(Debug)]
struct Link {
    caller: Caller,
    /// The last record that something sent there waits for; what follows must not overtake it.
    waits: u64,
}

type Out = EffectsOf<Keeper>;

impl Keeper {
    /// The keeper of a node that starts now.
    pub fn new(config: KeeperConfig, start: KeeperStart, now: Now, out: &mut Out) -> Self {
        let fresh = matches!(start, KeeperStart::Fresh);
        let (stored, serving) = match start {
            KeeperStart::Fresh => (KeeperStored::new(), true),
            KeeperStart::Lost => (KeeperStored::new(), false),
            KeeperStart::Kept(stored) => {
                let open = stored.open;
                (*stored, open)
            }
        };
        // Whoever does not know what it has voted for waits for the longest vote there can be.
        let longest = if serving {
            stored.span
        } else {
            config.lease.quarantine()
        };
        let opens = now.mono + longest + Duration::from_nanos(u64::from(!longest.is_zero()));
        let start = LeaseStart {
            opens,
            mark: stored.mark,
        };
        let objects = config.objects.as_ref().map(|objects| {
            let (access, verifier) = (config.access.clone(), config.verifier.clone());
            ObjectServer::new(objects.clone(), access, verifier, stored.objects)
        });
        let mut keeper = Self {
            leases: LeaseServer::new(config.lease.clone(), start, config.seed),
            objects,
            links: BTreeMap::new(),
            spans: Spans::new(longest, opens),
            serving,
            opens,
            written: 0,
            synced: 0,
            vote_record: 0,
            config,
        };
        if fresh {
            keeper.record(KeeperRecord::Span(keeper.spans.longest()), out);
            keeper.record(KeeperRecord::Opened, out);
            keeper.vote_record = keeper.written;
        }
        if serving {
            out.events.push(KeeperEvent::Serving);
        }
        keeper
    }

    /// Whether it serves, or waits to be told that it has rejoined.
    pub fn is_serving(&self) -> bool {
        self.serving
    }

    /// From when on votes for leases are given.
    pub fn opens(&self) -> Instant {
        self.opens
    }

    /// Above every token that this node has voted for.
    pub fn mark(&self) -> Token {
        self.leases.mark()
    }

    /// Its leases, for those who look after the node.
    pub fn leases(&self) -> &LeaseServer {
        &self.leases
    }

    /// Objects after a name, at most so many, for those who look after the node.
    pub fn views(&self, after: Option<&Name>, limit: usize) -> Vec<ObjectView> {
        let objects = self.objects.as_ref();
        objects.map_or_else(Vec::new, |objects| objects.views(after, limit).collect())
    }

    /// How many objects there are, and how many bytes they have.
    pub fn size(&self) -> (usize, usize) {
        self.objects.as_ref().map_or((0, 0), ObjectServer::size)
    }

    /// All that its records add up to, for a snapshot: what is on disk and what is on its way.
    pub fn stored(&self) -> KeeperStored {
        let mut stored = KeeperStored::new();
        stored.open = self.serving;
        stored.mark = self.leases.mark();
        stored.span = self.spans.longest();
        if let Some(objects) = &self.objects {
            stored.objects = objects.stored();
        }
        stored
    }

    fn record(&mut self, record: KeeperRecord, out: &mut Out) {
        self.written += 1;
        out.persist.push(record);
    }

    /// Sends an answer that rests on the records up to this one.
    fn send(&mut self, link: LinkId, answer: Answer, rests: u64, out: &mut Out) {
        let Some(to) = self.links.get_mut(&link) else {
            return;
        };
        to.waits = to.waits.max(rests);
        if to.waits > self.synced {
            // It leaves when all that is written by now is on disk.
            to.waits = self.written;
            let message = answer;
            out.send_durable.push(crate::Envelope { to: link, message });
        } else {
            out.send(link, answer);
        }
    }

    fn receive(&mut self, now: Now, link: LinkId, ask: Ask, out: &mut Out) {
        match ask {
            Ask::Lease(key, ask) => self.lease(now, link, &key, &ask, out),
            Ask::Object(object, ask) => self.object(now, link, &object, ask, out),
            Ask::Survey { ticket, after, new } => {
                let node = self.links.get(&link).and_then(|link| link.caller.node);
                if let Some(node) = node.filter(|_| new && !self.serving) {
                    out.events.push(KeeperEvent::New(node));
                }
                self.survey(link, ticket, after.as_ref(), out);
            }
        }
    }

    fn lease(&mut self, now: Now, link: LinkId, key: &LeaseKey, ask: &LeaseAsk, out: &mut Out) {
        if let Some(why) = self.lease_refusal(link, key, ask) {
            let (attempt, sub) = match ask {
                LeaseAsk::Try(asked) => (asked.attempt, asked.sub),
                LeaseAsk::Release { attempt, .. } => (*attempt, 0),
                LeaseAsk::Renew { attempt, sub, .. } => (*attempt, *sub),
            };
            let reply = LeaseReply {
                attempt,
                sub,
                answer: LeaseAnswer::Refused(why),
            };
            return self.send(link, Answer::Lease(key.clone(), reply), 0, out);
        }
        let rank = match (key.space, &self.objects) {
            (Space::Object, Some(objects)) => Some(objects.rank(&key.name)),
            _ => None,
        };
        let mut given = LeaseOut::default();
        self.leases.ask(now, link, key, ask, rank, &mut given);
        self.voted(now, given, out);
    }

    fn lease_refusal(&self, link: LinkId, key: &LeaseKey, ask: &LeaseAsk) -> Option<LeaseRefusal> {
        let caller = &self.links.get(&link)?.caller;
        if caller.node.is_some() && key.space == Space::Lease {
            return Some(LeaseRefusal::NotPermitted);
        }
        if !self.serving {
            return Some(LeaseRefusal::NotServing);
        }
        let may = match (key.space, &self.objects) {
            (Space::Lease, _) => {
                let principal = &caller.who.principal;
                let (access, name) = (&self.config.access, key.name.bytes());
                access.may(principal, Action::Acquire, name)
            }
            (Space::Object, Some(objects)) if caller.node.is_some() => {
                objects.has(&key.name) && self.is_short(ask)
            }
            (Space::Object, Some(objects)) => objects.may(link, &key.name, Want::Write),
            (Space::Object, None) => return Some(LeaseRefusal::Infeasible),
        };
        (!may).then_some(LeaseRefusal::NotPermitted)
    }

    /// Whether a node may ask this: one that rebuilds after a lost disk takes its turn as clients
    /// do, and keeps it no longer than one operation takes.
    fn is_short(&self, ask: &LeaseAsk) -> bool {
        let most = self.config.objects.as_ref().map(|config| config.order_span);
        match ask {
            LeaseAsk::Try(wish) => most.is_some_and(|most| wish.span <= most),
            LeaseAsk::Release { .. } => true,
            LeaseAsk::Renew { .. } => false,
        }
    }

    /// Writes what votes rest on, and sends them.
    fn voted(&mut self, now: Now, given: LeaseOut, out: &mut Out) {
        if let Some(mark) = given.mark {
            self.record(KeeperRecord::Mark(mark), out);
            self.vote_record = self.written;
        }
        let lasts = given.lasts;
        if let Some(longer) = lasts.and_then(|lasts| self.spans.voted(now.mono, lasts)) {
            self.record(KeeperRecord::Span(longer), out);
            self.vote_record = self.written;
        }
        let free = |reply: &LeaseReply| matches!(reply.answer, LeaseAnswer::Free { .. });
        for (link, key, reply) in given.answers {
            let rests = if free(&reply) { self.vote_record } else { 0 };
            self.send(link, Answer::Lease(key, reply), rests, out);
        }
    }

    fn object(&mut self, now: Now, link: LinkId, object: &Name, ask: ObjectAsk, out: &mut Out) {
        let why = match &self.objects {
            None => Some(ObjectRefusal::Infeasible),
            Some(_) if !self.serving => Some(ObjectRefusal::NotServing),
            Some(_) => None,
        };
        if let Some(why) = why {
            if let Some(tell) = refused(&ask, why) {
                self.send(link, Answer::Object(object.clone(), tell), 0, out);
            }
            return;
        }
        let mut told = ObjectOut::default();
        if let Some(objects) = &mut self.objects {
            objects.ask(now, link, object, ask, &mut told);
        }
        self.tell(told, out);
    }

    /// Writes what a step of the objects led to, and tells it.
    fn tell(&mut self, told: ObjectOut, out: &mut Out) {
        for record in told.records {
            self.record(record, out);
        }
        let rules = self.config.objects.as_ref().map(|config| config.rules);
        let hasty = rules.is_some_and(|rules| rules.has(Plant::CommitBeforeDisk));
        for (link, object, tell) in told.tells {
            let commit =
                matches!(&tell, ObjectTell::Taken { phase, .. } if *phase == Phase::Commit);
            let rests = if tell.rests() { self.written } else { 0 };
            let answer = Answer::Object(object, tell);
            if hasty && commit && self.links.contains_key(&link) {
                out.send(link, answer);
            } else {
                self.send(link, answer, rests, out);
            }
        }
        for (object, stamp) in told.committed {
            out.events.push(KeeperEvent::Committed { object, stamp });
        }
    }

    /// Whether it never voted for a lease and never had an object, as far as it knows.
    pub fn is_new(&self) -> bool {
        self.leases.mark() == Token(0) && self.size().0 == 0
    }

    /// Says which objects there are. A node that does not serve says only that: what it lacks
    /// must not be taken for what there is.
    fn survey(&mut self, link: LinkId, ticket: u64, after: Option<&Name>, out: &mut Out) {
        let (objects, last) = match &self.objects {
            Some(objects) if self.serving => objects.survey(link, after),
            _ => (Vec::new(), true),
        };
        let answer = Answer::Surveyed {
            ticket,
            objects,
            token: self.leases.mark(),
            last,
            lost: !self.serving,
            new: self.is_new(),
        };
        self.send(link, answer, self.written, out);
    }

    fn wake(&mut self, now: Now, out: &mut Out) {
        let mut given = LeaseOut::default();
        let objects = self.objects.as_ref();
        let rank_of = |name: &Name| objects.map(|objects| objects.rank(name));
        self.leases.wake(now, &rank_of, &mut given);
        self.voted(now, given, out);
        if let Some(shorter) = self.spans.lapsed(now.mono) {
            self.record(KeeperRecord::Span(shorter), out);
        }
        if let Some(objects) = &mut self.objects {
            objects.wake(now);
        }
    }

    fn rejoined(&mut self, mark: Token, out: &mut Out) {
        if self.serving {
            return;
        }
        self.serving = true;
        let start = LeaseStart {
            opens: self.opens,
            mark,
        };
        let (lease, seed) = (self.config.lease.clone(), self.config.seed);
        self.leases = LeaseServer::new(lease, start, seed);
        self.record(KeeperRecord::Mark(mark), out);
        self.record(KeeperRecord::Span(self.spans.longest()), out);
        self.record(KeeperRecord::Opened, out);
        self.vote_record = self.written;
        out.events.push(KeeperEvent::Serving);
    }

    /// Begins as a new node does: nobody can have asked it for anything.
    fn begin(&mut self, now: Now, out: &mut Out) {
        if self.serving || !self.is_new() {
            return;
        }
        self.serving = true;
        self.opens = now.mono;
        let start = LeaseStart {
            opens: now.mono,
            mark: Token(0),
        };
        let (lease, seed) = (self.config.lease.clone(), self.config.seed);
        self.leases = LeaseServer::new(lease, start, seed);
        self.spans = Spans::new(Duration::ZERO, now.mono);
        self.record(KeeperRecord::Span(Duration::ZERO), out);
        self.record(KeeperRecord::Opened, out);
        self.vote_record = self.written;
        out.events.push(KeeperEvent::Serving);
    }

    fn opened(&mut self, link: LinkId, caller: Caller) {
        if let Some(objects) = &mut self.objects {
            objects.opened(link, caller.clone());
        }
        self.links.insert(link, Link { caller, waits: 0 });
    }

    fn closed(&mut self, link: LinkId) {
        self.links.remove(&link);
        self.leases.closed(link);
        if let Some(objects) = &mut self.objects {
            objects.closed(link);
        }
    }
}

impl Machine for Keeper {
    type Input = KeeperInput;
    type Address = LinkId;
    type Message = Answer;
    type Record = KeeperRecord;
    type Event = KeeperEvent;

    fn handle(&mut self, now: Now, input: KeeperInput, out: &mut Out) {
        let mut told = ObjectOut::default();
        match input {
            KeeperInput::Opened(link, caller) => self.opened(link, caller),
            KeeperInput::Receive(link, ask) => {
                if self.links.contains_key(&link) {
                    self.receive(now, link, ask, out);
                }
            }
            KeeperInput::Closed(link) => self.closed(link),
            KeeperInput::Durable(records) => {
                self.synced = self.synced.max(records.min(self.written));
            }
            KeeperInput::Wake => self.wake(now, out),
            KeeperInput::Access(access) => {
                self.config.access = access.clone();
                if let Some(objects) = &mut self.objects {
                    objects.set_access(access);
                }
            }
            KeeperInput::Adopt {
                object,
                stamp,
                remedy,
            } => {
                let objects = self.objects.as_mut().filter(|_| self.serving);
                let adopted = objects
                    .is_some_and(|objects| objects.adopt(now, &object, stamp, remedy, &mut told));
                if !adopted {
                    out.events.push(KeeperEvent::NotAdopted { object, stamp });
                }
            }
            KeeperInput::Settled { object, stamp } => {
                if let Some(objects) = &mut self.objects {
                    objects.settled(&object, stamp);
                }
            }
            KeeperInput::Restored {
                object,
                rank,
                proof,
                state,
            } => {
                // Only before it serves: later its own promises count.
                if let Some(objects) = self.objects.as_mut().filter(|_| !self.serving) {
                    objects.restore(now, &object, (rank, &proof), &state, &mut told);
                }
            }
            KeeperInput::Rejoined { mark } => self.rejoined(mark, out),
            KeeperInput::Begin => self.begin(now, out),
        }
        self.tell(told, out);
    }

    fn next_wake(&self) -> Option<Wake> {
        let wakes = [
            self.leases.next_wake(),
            self.objects.as_ref().and_then(ObjectServer::next_wake),
            self.spans.next_wake(),
        ];
        wakes.into_iter().flatten().min_by_key(|wake| wake.at)
    }
}
