//! The client's machine for leases and objects: many of both over one connection to each node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::client::{ClientEffects, ClientEvent, ClientInput, Command, Failure};
use super::{Answer, Ask};
use crate::id::{ClientId, Key, Name, NodeId};
use crate::lease::{
    Attempt, Contender, HandleAction, HandleRequest, HandleStanding, LeaseAsk, LeaseConfig,
    LeaseHandle, LeaseKey, LeaseReply, Space, Standing, Terms,
};
use crate::machine::Machine;
use crate::object::{Counters, Kind, ObjectConfig, ObjectRefusal, Orderer, Signing};
use crate::time::{Instant, Now, Wake};

/// The most leases that one client holds or wants.
pub const LEASES_MAX: usize = 100_000;
/// The most objects that one client works on at once.
pub const OBJECTS_MAX: usize = 10_000;
/// So many objects that nobody works on are kept, for the states that they know.
const IDLE_MAX: usize = 256;
/// How many attempts each lease or object may make: numbers are never used twice.
const ATTEMPTS: u64 = 1 << 40;

/// Whatever goes wrong, nothing is woken more often than this.
const WAKE_LEAST: Duration = Duration::from_millis(1);

/// What has timers of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    Lease(Key),
    Handle(Key),
    Object(Name),
}

/// A lease that somebody wants or holds.
#[derive(Debug)]
struct Pursuit {
    name: Name,
    contender: Contender,
    /// Until when to try.
    until: Option<Instant>,
    once: bool,
    /// The end that its caller knows of, once it is held.
    told: Option<Instant>,
    renewing: bool,
}

/// Leases and objects of one client. See [`ClientInput`] for what it is told.
#[derive(Debug)]
pub struct KeeperClient {
    lease: Arc<LeaseConfig>,
    objects: Option<Arc<ObjectConfig>>,
    client: ClientId,
    seed: [u8; 32],
    /// How many leases and objects there were.
    count: u64,
    pursuits: BTreeMap<Key, Pursuit>,
    /// Which pursuit attempts belong to, by their range of numbers.
    ranges: BTreeMap<u64, Key>,
    /// Leases that are renewed or released by their handles.
    handles: BTreeMap<Key, HandleRequest>,
    /// Whose answers those about an attempt are.
    by_attempt: BTreeSet<(Attempt, Key)>,
    /// The number of the last request with a handle.
    last_sub: u32,
    orderers: BTreeMap<Name, Orderer>,
    /// Which object a key is about.
    keys: BTreeMap<Key, Name>,
    /// Objects in the order in which they were used last.
    used: Vec<Name>,
    open: BTreeSet<NodeId>,
    wakes: BTreeSet<(Instant, Item)>,
    wake_of: BTreeMap<Item, Instant>,
    /// No item is woken before this.
    soonest: Instant,
    past: Counters,
    signing: Option<Signing>,
}

impl KeeperClient {
    /// A client without leases and objects. Without a configuration of objects it refuses them.
    /// The seed must be secret and new.
    pub fn new(
        lease: Arc<LeaseConfig>,
        objects: Option<Arc<ObjectConfig>>,
        client: ClientId,
        seed: [u8; 32],
    ) -> Self {
        Self {
            lease,
            objects,
            client,
            seed,
            count: 0,
            pursuits: BTreeMap::new(),
            ranges: BTreeMap::new(),
            handles: BTreeMap::new(),
            by_attempt: BTreeSet::new(),
            last_sub: 0,
            orderers: BTreeMap::new(),
            keys: BTreeMap::new(),
            used: Vec::new(),
            open: BTreeSet::new(),
            wakes: BTreeSet::new(),
            wake_of: BTreeMap::new(),
            soonest: Instant::ZERO,
            past: Counters::default(),
            signing: None,
        }
    }

    /// The same with signed ranks, for clusters that ask for them.
    #[must_use]
    pub fn signed(mut self, signing: Signing) -> Self {
        self.signing = Some(signing);
        self
    }

    /// How many leases are held or wanted, and how many objects are known.
    pub fn kept(&self) -> (usize, usize) {
        (self.pursuits.len(), self.orderers.len())
    }

    /// Whether nothing is under way: what was begun is finished, and no lease is held.
    pub fn is_idle(&self) -> bool {
        self.pursuits.is_empty()
            && self.handles.is_empty()
            && self.orderers.values().all(Orderer::is_idle)
    }

    /// How much work all objects were.
    pub fn counters(&self) -> Counters {
        let each = self.orderers.values().map(Orderer::counters);
        each.fold(self.past, Counters::plus)
    }

    /// What renews and releases the lease of this key elsewhere; none if it is not held.
    pub fn lease_handle(&self, key: Key) -> Option<LeaseHandle> {
        self.pursuits.get(&key)?.contender.handle()
    }

    /// The client's work on an object, if it knows it.
    pub fn orderer(&self, object: &Name) -> Option<&Orderer> {
        self.orderers.get(object)
    }

    fn fresh(&mut self) -> (u64, [u8; 32]) {
        self.count += 1;
        let seed = blake3::keyed_hash(&self.seed, &self.count.to_le_bytes());
        (self.count.saturating_mul(ATTEMPTS), *seed.as_bytes())
    }

    fn start(&mut self, now: Now, key: Key, command: Command, out: &mut ClientEffects) {
        match command {
            Command::Lease { name, terms, wait } => self.pursue(now, key, name, terms, wait, out),
            Command::Handle {
                handle,
                action,
                patience,
            } => self.with_new_handle(now, key, handle, action, patience, out),
            Command::Submit { object, kind, wish } => {
                self.on(now, key, &object, Some(&kind), out, |orderer, out| {
                    orderer.submit(now, key, wish, out);
                });
            }
            Command::Read {
                object,
                kind,
                spans,
            } => self.on(now, key, &object, Some(&kind), out, |orderer, out| {
                orderer.read(now, key, spans, out);
            }),
            Command::Watch { object, kind } => {
                self.on(now, key, &object, Some(&kind), out, |orderer, out| {
                    orderer.watch(key, out);
                });
            }
            Command::Refresh { object } => {
                self.on(now, key, &object, None, out, |orderer, out| {
                    orderer.rejoin(now, key, out);
                });
            }
        }
    }

    // Leases.

    fn pursue(
        &mut self,
        now: Now,
        key: Key,
        name: Name,
        terms: Terms,
        wait: Option<Duration>,
        out: &mut ClientEffects,
    ) {
        if self.pursuits.len() >= LEASES_MAX {
            out.events.push(failed(key, Failure::Busy));
            return;
        }
        let (first, seed) = self.fresh();
        let lease_key = LeaseKey {
            space: Space::Lease,
            name: name.clone(),
        };
        let lease = self.lease.clone();
        let contender = Contender::new(lease, lease_key, self.client, terms, first, seed);
        self.ranges.insert(first / ATTEMPTS, key);
        let pursuit = Pursuit {
            name,
            contender,
            until: wait.map(|wait| now.mono + wait),
            once: wait.is_some_and(|wait| wait.is_zero()),
            told: None,
            renewing: false,
        };
        self.pursuits.insert(key, pursuit);
        self.with_lease(now, key, out, |lease, asks| lease.start(now, asks));
    }

    /// Lets a contender do something, and tells its caller what has changed.
    fn with_lease(
        &mut self,
        now: Now,
        key: Key,
        out: &mut ClientEffects,
        step: impl FnOnce(&mut Contender, &mut Vec<(NodeId, LeaseAsk)>),
    ) {
        let Some(pursuit) = self.pursuits.get_mut(&key) else {
            return;
        };
        let mut asks = Vec::new();
        step(&mut pursuit.contender, &mut asks);
        let over = pursuit.look(now, key, out);
        if over {
            pursuit.contender.release(now, &mut asks);
        }
        for (node, lie) in pursuit.contender.take_lies() {
            out.events.push(ClientEvent::Lied { node, lie });
        }
        let lease_key = LeaseKey {
            space: Space::Lease,
            name: pursuit.name.clone(),
        };
        self.ask_all(&lease_key, asks, out);
        if over {
            self.forget_lease(key);
        } else {
            self.note_wake(Item::Lease(key));
        }
    }

    fn forget_lease(&mut self, key: Key) {
        self.pursuits.remove(&key);
        self.ranges.retain(|_, other| *other != key);
        self.note_wake(Item::Lease(key));
    }

    // Leases by their handles.

    fn with_new_handle(
        &mut self,
        now: Now,
        key: Key,
        handle: LeaseHandle,
        action: HandleAction,
        patience: Duration,
        out: &mut ClientEffects,
    ) {
        if self.handles.len() >= LEASES_MAX {
            out.events.push(failed(key, Failure::Busy));
            return;
        }
        // Rounds of attempts begin at 0, which is also what releases are answered with.
        self.last_sub = self.last_sub.wrapping_add(1).max(1);
        let (config, sub) = (self.lease.clone(), self.last_sub);
        let mut asks = Vec::new();
        let request = HandleRequest::new(config, handle, action, sub, now, patience, &mut asks);
        self.by_attempt.insert((request.handle().attempt, key));
        let lease_key = request.handle().key();
        self.handles.insert(key, request);
        self.ask_all(&lease_key, asks, out);
        self.note_wake(Item::Handle(key));
    }

    /// Sends what is to be asked to the nodes that are connected.
    fn ask_all(&self, key: &LeaseKey, asks: Vec<(NodeId, LeaseAsk)>, out: &mut ClientEffects) {
        for (node, ask) in asks {
            if self.open.contains(&node) {
                out.send(node, Ask::Lease(key.clone(), ask));
            }
        }
    }

    /// Lets a request with a handle do something, and tells its caller what came of it.
    fn with_handle(
        &mut self,
        key: Key,
        out: &mut ClientEffects,
        step: impl FnOnce(&mut HandleRequest),
    ) {
        let Some(request) = self.handles.get_mut(&key) else {
            return;
        };
        step(request);
        let event = match request.standing() {
            HandleStanding::Open => return self.note_wake(Item::Handle(key)),
            HandleStanding::Renewed { end } => ClientEvent::Renewed { key, end },
            HandleStanding::Released => ClientEvent::Released { key },
            HandleStanding::Ended => failed(key, Failure::Ended),
            HandleStanding::Refused(why) => failed(key, Failure::Lease(why)),
            HandleStanding::TimedOut => failed(key, Failure::TimedOut),
        };
        out.events.push(event);
        self.forget_handle(key);
    }

    fn forget_handle(&mut self, key: Key) {
        if let Some(request) = self.handles.remove(&key) {
            self.by_attempt.remove(&(request.handle().attempt, key));
        }
        self.note_wake(Item::Handle(key));
    }

    /// A node answers about an attempt that somebody showed the handle of.
    fn heard_of_handle(
        &mut self,
        now: Now,
        node: NodeId,
        reply: &LeaseReply,
        out: &mut ClientEffects,
    ) {
        let from = (reply.attempt, Key(0));
        let of_attempt = self.by_attempt.range(from..);
        let of_attempt = of_attempt.take_while(|(attempt, _)| *attempt == reply.attempt);
        let keys: Vec<Key> = of_attempt.map(|(_, key)| *key).collect();
        for key in keys {
            self.with_handle(key, out, |request| request.heard(now, node, reply));
        }
    }

    // Objects.

    /// Lets the work on an object do something; it begins if there is none yet.
    fn on(
        &mut self,
        now: Now,
        key: Key,
        object: &Name,
        kind: Option<&Arc<dyn Kind>>,
        out: &mut ClientEffects,
        step: impl FnOnce(&mut Orderer, &mut ClientEffects),
    ) {
        let Some(config) = self.objects.clone() else {
            let why = Failure::Object(ObjectRefusal::Infeasible);
            out.events.push(failed(key, why));
            return;
        };
        let named = object.bytes().len();
        if named == 0 || named > config.lease.name_max {
            let why = Failure::Object(ObjectRefusal::Name);
            out.events.push(failed(key, why));
            return;
        }
        if let Some(orderer) = self.orderers.get(object)
            && let Some(kind) = kind
            && orderer.kind().name() != kind.name()
        {
            if !orderer.is_idle() {
                out.events.push(failed(key, Failure::OtherKind));
                return;
            }
            self.forget_object(&object.clone());
        }
        if !self.orderers.contains_key(object) {
            if self.orderers.len() >= OBJECTS_MAX {
                out.events.push(failed(key, Failure::Busy));
                return;
            }
            let kind = kind.cloned().unwrap_or_else(|| Arc::new(AnyKind));
            let (first, seed) = self.fresh();
            let name = object.clone();
            let orderer = Orderer::new(config, name.clone(), kind, self.client, first, seed)
                .signed(self.signing.clone());
            self.orderers.insert(name, orderer);
            for node in self.open.clone() {
                self.with_object(object, out, |orderer, out| orderer.opened(now, node, out));
            }
        }
        self.keys.insert(key, object.clone());
        self.with_object(object, out, step);
    }

    fn with_object(
        &mut self,
        object: &Name,
        out: &mut ClientEffects,
        step: impl FnOnce(&mut Orderer, &mut ClientEffects),
    ) {
        let Some(orderer) = self.orderers.get_mut(object) else {
            return;
        };
        let told = out.events.len();
        step(orderer, out);
        for event in &out.events[told..] {
            if let ClientEvent::Done { key, .. }
            | ClientEvent::Read { key, .. }
            | ClientEvent::Refreshed { key, .. }
            | ClientEvent::Failed { key, .. } = event
            {
                self.keys.remove(key);
            }
        }
        self.note_wake(Item::Object(object.clone()));
        if self.orderers.get(object).is_some_and(Orderer::is_idle) {
            self.make_room(object);
        }
    }

    /// Keeps some objects that nobody works on, the ones used last.
    fn make_room(&mut self, object: &Name) {
        self.used.retain(|other| other != object);
        self.used.push(object.clone());
        if self.used.len() <= IDLE_MAX {
            return;
        }
        let oldest = self.used.remove(0);
        if self.orderers.get(&oldest).is_some_and(Orderer::is_idle) {
            self.forget_object(&oldest);
        }
    }

    fn forget_object(&mut self, object: &Name) {
        if let Some(orderer) = self.orderers.remove(object) {
            self.past = self.past.plus(orderer.counters());
        }
        self.used.retain(|other| other != object);
        self.note_wake(Item::Object(object.clone()));
    }

    // Everything.

    fn heard(&mut self, now: Now, node: NodeId, answer: Answer, out: &mut ClientEffects) {
        match answer {
            Answer::Lease(key, reply) if key.space == Space::Lease => {
                self.heard_of_handle(now, node, &reply, out);
                let range = reply.attempt.number / ATTEMPTS;
                let Some(pursuit) = self.ranges.get(&range).copied() else {
                    return;
                };
                let same = |pursuit: &Pursuit| pursuit.name == key.name;
                if self.pursuits.get(&pursuit).is_some_and(same) {
                    self.with_lease(now, pursuit, out, |lease, asks| {
                        lease.heard(now, node, &reply, asks);
                    });
                }
            }
            Answer::Lease(key, reply) => self.with_object(&key.name, out, |orderer, out| {
                orderer.heard_lease(now, node, &reply, out);
            }),
            Answer::Object(name, tell) => self.with_object(&name, out, |orderer, out| {
                orderer.heard(now, node, &tell, out);
            }),
            Answer::Surveyed { .. } => {}
        }
    }

    fn opened(&mut self, now: Now, node: NodeId, out: &mut ClientEffects) {
        self.open.insert(node);
        let leases: Vec<Key> = self.pursuits.keys().copied().collect();
        for key in leases {
            self.with_lease(now, key, out, |lease, asks| lease.opened(now, node, asks));
        }
        for request in self.handles.values() {
            let mut asks = Vec::new();
            request.opened(node, &mut asks);
            self.ask_all(&request.handle().key(), asks, out);
        }
        let objects: Vec<Name> = self.orderers.keys().cloned().collect();
        for object in objects {
            self.with_object(&object, out, |orderer, out| orderer.opened(now, node, out));
        }
    }

    fn end(&mut self, now: Now, key: Key, out: &mut ClientEffects) {
        if self.pursuits.contains_key(&key) {
            self.with_lease(now, key, out, |lease, asks| lease.release(now, asks));
            self.forget_lease(key);
        } else if self.handles.contains_key(&key) {
            self.forget_handle(key);
        } else if let Some(object) = self.keys.remove(&key) {
            self.with_object(&object, out, |orderer, out| orderer.end(now, key, out));
        }
    }

    fn wake(&mut self, now: Now, out: &mut ClientEffects) {
        self.soonest = now.mono + WAKE_LEAST;
        let due = self.wakes.iter().take_while(|(at, _)| *at <= now.mono);
        let due: Vec<(Instant, Item)> = due.cloned().collect();
        for (at, item) in due {
            self.wakes.remove(&(at, item.clone()));
            self.wake_of.remove(&item);
            match item {
                Item::Lease(key) => {
                    self.with_lease(now, key, out, |lease, asks| lease.wake(now, asks));
                }
                Item::Handle(key) => self.with_handle(key, out, |request| request.wake(now)),
                Item::Object(object) => {
                    self.with_object(&object, out, |orderer, out| orderer.wake(now, out));
                }
            }
        }
        self.soonest = Instant::ZERO;
    }

    /// Notes when an item must be woken. One that was just woken rests a little, whatever it says.
    fn note_wake(&mut self, item: Item) {
        let at = match &item {
            Item::Lease(key) => self.pursuits.get(key).and_then(Pursuit::next_wake),
            Item::Handle(key) => self.handles.get(key).and_then(HandleRequest::next_wake),
            Item::Object(name) => self.orderers.get(name).and_then(Orderer::next_wake),
        };
        let at = at.map(|wake| wake.at.max(self.soonest));
        let old = match at {
            Some(at) => self.wake_of.insert(item.clone(), at),
            None => self.wake_of.remove(&item),
        };
        if old == at {
            return;
        }
        if let Some(old) = old {
            self.wakes.remove(&(old, item.clone()));
        }
        if let Some(at) = at {
            self.wakes.insert((at, item));
        }
    }
}

impl Machine for KeeperClient {
    type Input = ClientInput;
    type Address = NodeId;
    type Message = Ask;
    type Record = ();
    type Event = ClientEvent;

    fn handle(&mut self, now: Now, input: ClientInput, out: &mut ClientEffects) {
        match input {
            ClientInput::Opened(node) => self.opened(now, node, out),
            ClientInput::Closed(node) => {
                self.open.remove(&node);
                for orderer in self.orderers.values_mut() {
                    orderer.closed(node);
                }
            }
            ClientInput::Heard(node, answer) => self.heard(now, node, answer, out),
            ClientInput::Wake => self.wake(now, out),
            ClientInput::Do(key, command) => self.start(now, key, command, out),
            ClientInput::Renew(key) => {
                if let Some(pursuit) = self.pursuits.get_mut(&key) {
                    pursuit.renewing = true;
                }
                self.with_lease(now, key, out, |lease, asks| lease.renew(now, asks));
            }
            ClientInput::HandOver(key) => self.forget_lease(key),
            ClientInput::End(key) => self.end(now, key, out),
        }
    }

    fn next_wake(&self) -> Option<Wake> {
        let (at, item) = self.wakes.first()?;
        let wake = match item {
            Item::Lease(key) => self.pursuits.get(key).and_then(Pursuit::next_wake),
            Item::Handle(key) => self.handles.get(key).and_then(HandleRequest::next_wake),
            Item::Object(name) => self.orderers.get(name).and_then(Orderer::next_wake),
        };
        let reason = wake.map_or("something is due", |wake| wake.reason);
        Some(Wake { at: *at, reason })
    }
}

impl Pursuit {
    fn next_wake(&self) -> Option<Wake> {
        let until = self.until.filter(|_| self.told.is_none() && !self.once);
        let until = until.map(|at| Wake {
            at,
            reason: "the time to wait is over",
        });
        let wakes = [self.contender.next_wake(), until];
        wakes.into_iter().flatten().min_by_key(|wake| wake.at)
    }

    /// Tells the caller what has changed; `true` if it is over.
    fn look(&mut self, now: Now, key: Key, out: &mut ClientEffects) -> bool {
        match self.contender.standing() {
            Standing::Held {
                token,
                end,
                attempts,
            } => {
                self.tell_held(key, *token, *end, *attempts, out);
                false
            }
            Standing::Ended(Some(why)) => {
                out.events.push(failed(key, Failure::Lease(*why)));
                true
            }
            // It has come to its end, which its caller knows.
            Standing::Idle | Standing::Ended(None) if self.told.is_some() => true,
            Standing::Idle | Standing::Ended(None) => true,
            Standing::Trying | Standing::Waiting { .. } => {
                let failed_once = matches!(self.contender.standing(), Standing::Waiting { .. });
                let late = self.until.is_some_and(|until| until <= now.mono);
                let over = if self.once { failed_once } else { late };
                if over {
                    out.events.push(failed(key, Failure::TimedOut));
                }
                over
            }
        }
    }

    fn tell_held(
        &mut self,
        key: Key,
        token: crate::id::Token,
        end: Instant,
        attempts: u32,
        out: &mut ClientEffects,
    ) {
        match self.told {
            None => out.events.push(ClientEvent::Held {
                key,
                token,
                end,
                attempts,
            }),
            Some(told) if told != end => {
                self.renewing = false;
                out.events.push(ClientEvent::Renewed { key, end });
            }
            Some(_) if self.renewing && !self.contender.renewing() => {
                self.renewing = false;
                out.events.push(ClientEvent::NotRenewed { key });
            }
            Some(_) => {}
        }
        self.told = Some(end);
    }
}

fn failed(key: Key, why: Failure) -> ClientEvent {
    ClientEvent::Failed { key, why }
}

/// The kind of whoever wants a state and no operation.
#[derive(Debug)]
struct AnyKind;

impl Kind for AnyKind {
    fn name(&self) -> &'static str {
        ""
    }

    fn apply(
        &self,
        _: &[u8],
        _: &mut crate::object::Draft<'_>,
        _: &mut crate::object::Context,
    ) -> Vec<u8> {
        Vec::new()
    }

    fn reads(&self, _: &[u8]) -> Option<Vec<crate::object::Span>> {
        None
    }
}
