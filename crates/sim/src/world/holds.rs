//! Wishes on their way: waiting, inside, acting on the resource, cancelled, released, lost.

use std::collections::BTreeMap;
use std::sync::Arc;

use conclave_protocol::id::{GrantNo, Key, Name, NodeId, RequestNo, SessionId, Token};
use conclave_protocol::lock::{
    Acquire, ClientEvent, ClientInput, Ended, Group, Handle, Mode, Refusal,
};
use conclave_protocol::table::Slab;

use super::clients::ClientThing;
use super::{Event, World};
use crate::fact::{Fact, Holder, True};
use crate::measure::Stamp;
use crate::net::exponential;
use crate::workload::{Wish, Workload};

/// Bits of a key that say where its wish lies.
const PLACE_BITS: u32 = 24;

/// What may be due for a wish.
#[derive(Clone, Copy, Debug)]
pub(super) enum Do {
    /// Use the resource of this one of its locks.
    Act(u32),
    /// Leave.
    Leave,
    /// Stop waiting.
    Cancel,
    /// Renew the handle.
    Keep,
    /// See whether the handle has run out.
    RunOut,
    /// Show the handle that ran out once more.
    Retry,
}

/// How far one lock of a wish has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Waiting,
    Inside,
    Over,
}

/// One lock of a wish.
#[derive(Clone, Debug)]
pub(super) struct Lock {
    pub(super) name: u32,
    pub(super) mode: Mode,
    pub(super) phase: Phase,
    pub(super) group: Option<Group>,
    pub(super) token: Token,
    pub(super) stamp: Stamp,
    /// The session of its own, if the hold is to be detached.
    session: Option<SessionId>,
}

/// A hold that lives by its handle.
#[derive(Clone, Debug)]
pub(super) struct Detached {
    named: bool,
    /// The present handle; none until the hold is detached.
    pub(super) handle: Option<Box<Handle>>,
    /// An earlier handle, which somebody may still use.
    pub(super) old: Option<Box<Handle>>,
    /// Until when the handle is valid, on true time.
    pub(super) until: u64,
    leave_at: u64,
}

/// A wish of a client.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    pub(super) key: Key,
    pub(super) client: u32,
    pub(super) life: u32,
    pub(super) locks: Vec<Lock>,
    pub(super) detached: Option<Detached>,
    /// Whether any one of its locks will do.
    any: bool,
    /// The locks that were not wanted any more once one was entered.
    declined: Vec<Lock>,
    stay: u64,
}

impl Hold {
    fn is_over(&self) -> bool {
        self.locks.iter().all(|lock| lock.phase == Phase::Over)
    }

    /// Whether the hold lives by a handle and no longer by its client.
    pub(super) fn is_detached(&self) -> bool {
        let detached = self.detached.as_ref();
        detached.is_some_and(|detached| detached.handle.is_some())
    }

    /// Whether its handle ran out and its holder tries it all the same.
    pub(super) fn is_overdue(&self) -> bool {
        self.is_detached() && self.locks.iter().all(|lock| lock.phase == Phase::Waiting)
    }
}

/// An operation on a handle through some client.
#[derive(Clone, Copy, Debug)]
struct Operation {
    hold: Key,
    client: u32,
    life: u32,
    /// Whether its answer tells about the hold: not for an old handle or one released before.
    counts: bool,
}

/// All wishes on their way.
#[derive(Debug, Default)]
pub(super) struct Holds {
    wishes: Slab<Hold>,
    operations: BTreeMap<Key, Operation>,
    next: u64,
}

impl Holds {
    fn place(key: Key) -> u32 {
        key.0 as u32 & ((1 << PLACE_BITS) - 1)
    }

    pub(super) fn get(&self, key: Key) -> Option<&Hold> {
        let hold = self.wishes.get(Self::place(key));
        hold.filter(|hold| hold.key == key)
    }

    fn get_mut(&mut self, key: Key) -> Option<&mut Hold> {
        let hold = self.wishes.get_mut(Self::place(key));
        hold.filter(|hold| hold.key == key)
    }

    pub(super) fn insert(&mut self, hold: Hold) -> Key {
        let place = self.wishes.insert(hold);
        self.next += 1;
        let key = Key(self.next << PLACE_BITS | u64::from(place));
        if let Some(hold) = self.wishes.get_mut(place) {
            hold.key = key;
        }
        key
    }

    pub(super) fn new_key(&mut self) -> Key {
        self.next += 1;
        // No wish lies at the last place.
        Key(self.next << PLACE_BITS | ((1 << PLACE_BITS) - 1))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Hold> {
        self.wishes.iter().map(|(_, hold)| hold)
    }

    /// Whether a wish uses this session that its caller named.
    pub(super) fn uses_session(&self, session: SessionId) -> bool {
        self.iter().any(|hold| {
            let detached = hold.detached.as_ref();
            let mut sessions = hold.locks.iter().filter_map(|lock| lock.session);
            detached.is_some_and(|detached| detached.named) && sessions.any(|own| own == session)
        })
    }

    /// Takes a wish out, without a word.
    pub(super) fn take(&mut self, key: Key) -> Option<Hold> {
        self.get(key)?;
        self.wishes.remove(Self::place(key))
    }

    /// Whether nothing is waited for or held.
    pub(super) fn is_quiet(&self) -> bool {
        self.wishes.is_empty() && self.operations.is_empty()
    }
}

impl World<'_> {
    pub(super) fn think(&mut self) -> u64 {
        exponential(self.options.think_ms * 1_000_000, self.workload.rng()) + 1
    }

    fn holder(&self, hold: &Hold, lock: &Lock) -> Holder {
        Holder {
            client: hold.client,
            life: hold.life,
            key: hold.key,
            name: self.name(lock.name),
        }
    }

    /// A client makes its next wish, unless everything is to end.
    pub(super) fn wish(&mut self, client: u32, life: u32) {
        let process = &self.clients[client as usize];
        let asks = self.options.asks;
        let spent = asks > 0 && process.asked >= asks;
        if self.healed || spent || process.life != life || process.machine.is_none() {
            return;
        }
        if self.defer(client, ClientThing::Wish).is_none() {
            return;
        }
        let process = &mut self.clients[client as usize];
        process.asked += 1;
        let warm = process.warm;
        let wish = self.workload.wish(self.options, client);
        let locks: Vec<Lock> = wish
            .locks
            .iter()
            .enumerate()
            .map(|(place, (name, mode))| Lock {
                name: *name,
                mode: mode.clone(),
                phase: Phase::Waiting,
                group: None,
                token: Token(0),
                stamp: self.meter.asked(self.now, *name, warm),
                session: wish.session(place).map(|(session, _)| session),
            })
            .collect();
        let detached = wish.detach.map(|(_, named)| Detached {
            named,
            handle: None,
            old: None,
            until: 0,
            leave_at: 0,
        });
        let key = self.holds.insert(Hold {
            key: Key(0),
            client,
            life,
            locks,
            detached,
            any: wish.any,
            declined: Vec::new(),
            stay: wish.hold,
        });
        if self.watched {
            self.tell_each(key, |holder| Fact::Asked { holder });
            if wish.any {
                let of = wish.locks.len();
                self.tell_each(key, |holder| Fact::AskedAny { holder, of });
            }
        }
        if let Some(nanos) = wish.cancel {
            self.queue.push_in(nanos, Event::Hold(key, Do::Cancel));
        }
        self.ask(client, key, &wish);
    }

    fn ask(&mut self, client: u32, key: Key, wish: &Wish) {
        let now = self.clients[client as usize].clock.now(True(self.now)).mono;
        let mut all: Vec<Acquire> = Vec::with_capacity(wish.locks.len());
        for (place, (name, mode)) in wish.locks.iter().enumerate() {
            let mut acquire = Acquire::new(self.name(*name), mode.clone(), wish.ttl);
            let deadline = wish.deadline.map(std::time::Duration::from_nanos);
            acquire.deadline = deadline.map(|span| now + span);
            acquire.attempt = wish.attempt;
            acquire.detach = wish.session(place);
            all.push(acquire);
        }
        let input = if wish.any {
            ClientInput::AcquireAny(key, all)
        } else if all.len() > 1 {
            ClientInput::AcquireAll(key, all)
        } else if let Some(one) = all.pop() {
            ClientInput::Acquire(key, one)
        } else {
            return;
        };
        self.step_client(client, input);
    }

    /// Tells a fact about each lock of a wish that is not over.
    pub(super) fn tell_each(&mut self, key: Key, fact: impl Fn(Holder) -> Fact) {
        let Some(hold) = self.holds.get(key) else {
            return;
        };
        let live = hold.locks.iter().filter(|lock| lock.phase != Phase::Over);
        let holders: Vec<Holder> = live.map(|lock| self.holder(hold, lock)).collect();
        for holder in holders {
            self.tell(&fact(holder));
        }
    }

    /// A client tells something about one of its wishes.
    pub(super) fn hold_event(&mut self, client: u32, life: u32, event: ClientEvent) {
        match event {
            ClientEvent::Entered {
                key,
                name,
                token,
                members,
                ..
            } => self.entered(key, &name, token, members),
            ClientEvent::EnteredAll(key) => self.schedule_leave(key),
            ClientEvent::Moved {
                key,
                name,
                token,
                members,
            } => self.moved(key, &name, token, members),
            ClientEvent::Lost(key, name) => self.lost(key, &name),
            ClientEvent::Ended(key, why) => self.ended(key, &why),
            ClientEvent::Handle(key, handle, until) => {
                let until = self.clients[client as usize].clock.true_at(until).0;
                self.handle(key, (client, life), handle, until);
            }
            ClientEvent::Connect(..)
            | ClientEvent::Disconnect(..)
            | ClientEvent::Position(..)
            | ClientEvent::Seen(..)
            | ClientEvent::Synced(..) => {}
        }
    }

    /// The group of a holder: what the nodes granted to, or one that nobody else has.
    fn group_of(&self, hold: &Hold, lock: &Lock, members: &[(NodeId, GrantNo)]) -> Group {
        let named = hold
            .detached
            .as_ref()
            .is_some_and(|detached| detached.named);
        match (&lock.mode, lock.session) {
            (Mode::Shared, _) => Group::Shared,
            (Mode::Group(name), _) => Group::Named(name.clone()),
            (Mode::Exclusive, Some(session)) if named => Group::Session(session),
            (Mode::Exclusive, _) => {
                let known = members.iter().find_map(|member| self.groups.get(member));
                let own = || Group::Request(SessionId(0), RequestNo(hold.key.0));
                known.cloned().unwrap_or_else(own)
            }
        }
    }

    pub(super) fn entered(
        &mut self,
        key: Key,
        name: &Name,
        token: Token,
        members: Vec<(NodeId, GrantNo)>,
    ) {
        let Some(number) = Workload::number(name) else {
            return;
        };
        self.take_back(key, number);
        let Some(hold) = self.holds.get(key) else {
            return;
        };
        let place = hold.locks.iter().position(|lock| lock.name == number);
        let Some(mut place) = place else {
            return;
        };
        if hold.locks[place].phase != Phase::Waiting {
            return;
        }
        let group = self
            .watched
            .then(|| self.group_of(hold, &hold.locks[place], &members));
        let Some(hold) = self.holds.get_mut(key) else {
            return;
        };
        let (client, single) = (hold.client, hold.any || hold.locks.len() == 1);
        let attached = hold.detached.is_none();
        let lock = &mut hold.locks[place];
        lock.phase = Phase::Inside;
        lock.token = token;
        lock.group.clone_from(&group);
        self.meter
            .entered(self.now, (number, &lock.mode, client), lock.stamp, &members);
        self.clients[client as usize].warm = true;
        if self.decline_others(key, number) {
            place = 0;
        }
        if let Some(group) = group {
            let holder = self
                .holds
                .get(key)
                .map(|hold| self.holder(hold, &hold.locks[place]));
            if let Some(holder) = holder {
                self.tell(&Fact::Entered {
                    holder,
                    group,
                    token,
                    members,
                });
            }
            self.schedule_act(key, place as u32);
        }
        if single && attached {
            self.schedule_leave(key);
        }
    }

    /// One of several was entered: the others are over, and nobody hears of them again.
    fn decline_others(&mut self, key: Key, number: u32) -> bool {
        let Some(hold) = self.holds.get(key).filter(|hold| hold.any) else {
            return false;
        };
        let waits = |lock: &&Lock| lock.name != number && lock.phase == Phase::Waiting;
        let others: Vec<u32> = hold
            .locks
            .iter()
            .filter(waits)
            .map(|lock| lock.name)
            .collect();
        if others.is_empty() {
            return false;
        }
        for other in &others {
            self.leave_one(key, *other, |holder| Fact::Ended { holder });
        }
        if let Some(hold) = self.holds.get_mut(key) {
            let locks = std::mem::take(&mut hold.locks);
            (hold.declined, hold.locks) = locks
                .into_iter()
                .partition(|lock| others.contains(&lock.name));
        }
        true
    }

    /// A client that enters a lock it had declined is wrong, and the checkers must hear of it.
    fn take_back(&mut self, key: Key, number: u32) {
        let Some(hold) = self.holds.get_mut(key) else {
            return;
        };
        let place = hold.declined.iter().position(|lock| lock.name == number);
        if let Some(place) = place {
            let mut lock = hold.declined.remove(place);
            lock.phase = Phase::Waiting;
            hold.locks.push(lock);
        }
    }

    fn schedule_act(&mut self, key: Key, lock: u32) {
        let nanos = exponential(self.options.act_ms * 1_000_000, self.workload.rng());
        self.queue.push_in(nanos, Event::Hold(key, Do::Act(lock)));
    }

    fn schedule_leave(&mut self, key: Key) {
        if let Some(hold) = self.holds.get(key) {
            let stay = hold.stay;
            self.queue.push_in(stay, Event::Hold(key, Do::Leave));
        }
    }

    fn moved(&mut self, key: Key, name: &Name, token: Token, members: Vec<(NodeId, GrantNo)>) {
        let Some(number) = Workload::number(name) else {
            return;
        };
        let Some(hold) = self.holds.get_mut(key) else {
            return;
        };
        let lock = hold.locks.iter_mut().find(|lock| lock.name == number);
        let Some(lock) = lock.filter(|lock| lock.phase == Phase::Inside) else {
            return;
        };
        lock.token = token;
        if self.watched {
            let hold = self.holds.get(key);
            let find = |hold: &Hold| {
                let lock = hold.locks.iter().find(|lock| lock.name == number)?;
                Some(self.holder(hold, lock))
            };
            if let Some(holder) = hold.and_then(find) {
                self.tell(&Fact::Moved {
                    holder,
                    token,
                    members,
                });
            }
        }
    }

    fn lost(&mut self, key: Key, name: &Name) {
        if self.holds.get(key).is_none() {
            self.operation_failed(key);
            return;
        }
        let Some(number) = Workload::number(name) else {
            return;
        };
        self.leave_one(key, number, |holder| Fact::Lost { holder });
        let Some(hold) = self.holds.get(key) else {
            return;
        };
        if hold.is_over() {
            self.remove(key);
        } else {
            // The rest of a set is of no use without the lost one.
            self.queue.push(True(self.now), Event::Hold(key, Do::Leave));
        }
    }

    /// One lock of a wish ends, inside or outside.
    fn leave_one(&mut self, key: Key, name: u32, fact: impl Fn(Holder) -> Fact) {
        let Some(hold) = self.holds.get_mut(key) else {
            return;
        };
        let Some(place) = hold.locks.iter().position(|lock| lock.name == name) else {
            return;
        };
        let lock = &mut hold.locks[place];
        match std::mem::replace(&mut lock.phase, Phase::Over) {
            Phase::Over => return,
            Phase::Waiting => self.meter.gave_up(name),
            Phase::Inside => self.meter.left(self.now, name, &lock.mode),
        }
        if self.watched {
            let hold = self.holds.get(key);
            let holder = hold.map(|hold| self.holder(hold, &hold.locks[place]));
            if let Some(holder) = holder {
                self.tell(&fact(holder));
            }
        }
    }

    /// All locks of a wish end: those inside with one fact, those outside with another.
    fn leave_all(&mut self, key: Key, inside: fn(Holder) -> Fact, outside: fn(Holder) -> Fact) {
        let Some(hold) = self.holds.get(key) else {
            return;
        };
        let locks: Vec<(u32, Phase)> = hold.locks.iter().map(|l| (l.name, l.phase)).collect();
        for (name, phase) in locks {
            let fact = if phase == Phase::Inside {
                inside
            } else {
                outside
            };
            self.leave_one(key, name, fact);
        }
    }

    fn ended(&mut self, key: Key, why: &Ended) {
        let Some(hold) = self.holds.get(key) else {
            // Only a node's word ends a hold; whoever was too slow tries again.
            if *why == Ended::NotHeld {
                self.operation_failed(key);
            } else {
                self.holds.operations.remove(&key);
                self.check_quiet();
            }
            return;
        };
        if hold.is_detached() {
            return;
        }
        if self.tracer.is_some() {
            let client = hold.client;
            let text = format!("key {key} ended: {why:?}");
            self.note(None, Some(client), || text);
        }
        if matches!(why, Ended::Refused(Refusal::TokenAhead { .. })) {
            self.turned_away(key);
        }
        // Nobody let go of a hold that a node calls finished.
        let inside = match why {
            Ended::NotHeld => |holder| Fact::Lost { holder },
            _ => |holder| Fact::Released { holder },
        };
        let outside = |holder| Fact::Ended { holder };
        self.leave_all(key, inside, outside);
        self.remove(key);
    }

    /// Tells checkers of a wish that ends because no quorum took its token.
    fn turned_away(&mut self, key: Key) {
        let Some(hold) = self.holds.get(key) else {
            return;
        };
        let Some(lock) = hold.locks.first() else {
            return;
        };
        let holder = Holder {
            client: hold.client,
            life: hold.life,
            key,
            name: self.name(lock.name),
        };
        if self.watched && self.nodes_hear_each_other() {
            self.tell(&Fact::Unserved { holder });
        }
    }

    /// A wish is over; its client rests and makes another.
    fn remove(&mut self, key: Key) {
        let Some(hold) = self.holds.get(key) else {
            return;
        };
        let (client, life) = (hold.client, hold.life);
        self.holds.wishes.remove(Holds::place(key));
        let nanos = self.think();
        if !self.healed {
            self.queue.push_in(nanos, Event::Wish(client, life));
        }
        self.check_quiet();
    }

    /// Something is due for a wish.
    pub(super) fn hold_due(&mut self, key: Key, what: Do) {
        let Some(hold) = self.holds.get(key) else {
            return;
        };
        let (client, detached) = (hold.client, hold.is_detached());
        if !detached && self.defer(client, ClientThing::Due(key, what)).is_none() {
            return;
        }
        match what {
            Do::Act(lock) => {
                if self.still_believes(key, lock) {
                    self.act(key, lock);
                }
            }
            Do::Leave if detached => self.finish_handle(key),
            Do::Leave => {
                let released = |holder| Fact::Released { holder };
                let outside = |holder| Fact::Ended { holder };
                self.leave_all(key, released, outside);
                self.step_client(client, ClientInput::Release(key));
                self.remove(key);
            }
            Do::Cancel => {
                let waits = |lock: &Lock| lock.phase == Phase::Waiting;
                if self
                    .holds
                    .get(key)
                    .is_some_and(|hold| hold.locks.iter().any(waits))
                {
                    self.step_client(client, ClientInput::Cancel(key));
                }
            }
            Do::Keep => self.keep_handle(key),
            Do::RunOut => self.run_out(key),
            Do::Retry => self.retry_overdue(key),
        }
    }

    fn still_believes(&self, key: Key, lock: u32) -> bool {
        let Some(hold) = self.holds.get(key) else {
            return false;
        };
        let holder = self.holder(hold, &hold.locks[lock as usize]);
        let until = crate::fact::Eyes::believes_until(self, &holder);
        until.is_some_and(|until| until.0 > self.now)
    }

    /// A holder uses the resource.
    pub(super) fn act(&mut self, key: Key, lock: u32) {
        let Some(hold) = self.holds.get(key) else {
            return;
        };
        let of = &hold.locks[lock as usize];
        let (name, token) = (of.name as usize, of.token);
        if of.phase != Phase::Inside {
            return;
        }
        let Some(group) = of.group.clone() else {
            return;
        };
        let holder = self.holder(hold, of);
        let admitted = self.fences[name].admit(&group, token);
        self.tell(&Fact::Acted {
            holder,
            group,
            token,
            admitted,
        });
        self.schedule_act(key, lock);
    }

    /// The process of a client has died: what it waited for and held is gone, but for handles.
    pub(super) fn vanish(&mut self, client: u32) {
        let gone = self
            .holds
            .iter()
            .filter(|hold| hold.client == client && !hold.is_detached());
        let keys: Vec<Key> = gone.map(|hold| hold.key).collect();
        for key in keys {
            let vanished = |holder| Fact::Vanished { holder };
            self.leave_all(key, vanished, vanished);
            self.holds.wishes.remove(Holds::place(key));
        }
        self.holds
            .operations
            .retain(|_, operation| operation.client != client);
        self.check_quiet();
    }

    // Handles.

    /// A hold was detached, renewed or moved.
    fn handle(&mut self, key: Key, through: (u32, u32), handle: Box<Handle>, until: u64) {
        if self.holds.get(key).is_some() {
            self.detach(key, handle, until);
            return;
        }
        let Some(operation) = self.holds.operations.remove(&key) else {
            return;
        };
        debug_assert_eq!((operation.client, operation.life), through);
        if let Some(hold) = self.holds.get(operation.hold) {
            let before = hold.detached.as_ref();
            let same = before
                .and_then(|d| d.handle.as_ref())
                .is_some_and(|old| old.token == handle.token && old.grants == handle.grants);
            let later = before.is_some_and(|detached| until > detached.until);
            let name = handle.ask.name.clone();
            let members = members_of(&handle);
            let token = handle.token;
            if hold.is_overdue() {
                // An answer that is too old proves nothing.
                if until > self.now {
                    self.back_inside(operation.hold, handle, until);
                }
            } else if later {
                self.set_handle(operation.hold, handle, until);
                if !same {
                    self.moved(operation.hold, &name, token, members);
                }
            }
        }
        self.check_quiet();
    }

    fn detach(&mut self, key: Key, handle: Box<Handle>, until: u64) {
        let name = handle.ask.name.clone();
        let members = members_of(&handle);
        let token = handle.token;
        // Some clients tell the entry before the handle, some with it.
        self.entered(key, &name, token, members);
        let Some(hold) = self.holds.get_mut(key) else {
            return;
        };
        let leave_at = self.now + hold.stay;
        let Some(detached) = &mut hold.detached else {
            return;
        };
        let first = detached.handle.is_none();
        detached.leave_at = leave_at;
        self.set_handle(key, handle, until);
        if first {
            self.queue.push(True(leave_at), Event::Hold(key, Do::Leave));
            self.schedule_keep(key);
        }
    }

    pub(super) fn set_handle(&mut self, key: Key, handle: Box<Handle>, until: u64) {
        let Some(hold) = self.holds.get_mut(key) else {
            return;
        };
        let Some(detached) = &mut hold.detached else {
            return;
        };
        detached.old = detached.handle.replace(handle);
        detached.until = until;
        self.queue.push(True(until), Event::Hold(key, Do::RunOut));
    }

    pub(super) fn schedule_keep(&mut self, key: Key) {
        let Some(detached) = self.holds.get(key).and_then(|hold| hold.detached.as_ref()) else {
            return;
        };
        let Some(handle) = &detached.handle else {
            return;
        };
        let ttl = handle.ttl.as_nanos() as usize;
        let nanos = ttl / 6 + self.workload.rng().below(ttl / 2);
        self.queue.push_in(nanos as u64, Event::Hold(key, Do::Keep));
    }

    /// A running client through which to use a handle.
    fn gateway(&mut self) -> Option<u32> {
        let count = self.clients.len();
        for _ in 0..4 {
            let client = self.workload.rng().below(count);
            let process = &self.clients[client];
            if process.machine.is_some() && !process.paused {
                return Some(client as u32);
            }
        }
        None
    }

    pub(super) fn operate(&mut self, hold: Key, handle: Box<Handle>, counts: bool, finish: bool) {
        let Some(client) = self.gateway() else {
            return;
        };
        let key = self.holds.new_key();
        let life = self.clients[client as usize].life;
        let operation = Operation {
            hold,
            client,
            life,
            counts,
        };
        self.holds.operations.insert(key, operation);
        if self.tracer.is_some() {
            let what = if finish { "finishes" } else { "keeps" };
            self.note(None, Some(client), || {
                format!("{what} the handle of key {hold} as key {key}")
            });
        }
        let input = if finish {
            ClientInput::Finish(key, handle)
        } else {
            ClientInput::Keep(key, handle, Arc::default())
        };
        self.step_client(client, input);
    }

    /// Renews a handle through some client, sometimes through two, sometimes with an old copy.
    fn keep_handle(&mut self, key: Key) {
        let Some(detached) = self.holds.get(key).and_then(|hold| hold.detached.as_ref()) else {
            return;
        };
        let (handle, old) = (detached.handle.clone(), detached.old.clone());
        let Some(handle) = handle else {
            return;
        };
        if self.workload.rng().chance(0.2) {
            self.operate(key, handle.clone(), true, false);
        }
        if let Some(old) = old
            && self.workload.rng().chance(0.2)
        {
            self.operate(key, old, false, false);
        }
        self.operate(key, handle, true, false);
        self.schedule_keep(key);
    }

    /// The holder leaves: its handle is released, sometimes twice, sometimes late, sometimes
    /// beside a renewal, sometimes never.
    fn finish_handle(&mut self, key: Key) {
        let Some(detached) = self.holds.get(key).and_then(|hold| hold.detached.as_ref()) else {
            return;
        };
        let (handle, old) = (detached.handle.clone(), detached.old.clone());
        let released = |holder| Fact::Released { holder };
        let outside = |holder| Fact::Ended { holder };
        self.leave_all(key, released, outside);
        let rng = self.workload.rng();
        let (twice, beside, with_old) = (rng.chance(0.2), rng.chance(0.2), rng.chance(0.2));
        if let Some(handle) = handle {
            let shown = match old {
                Some(old) if with_old => old,
                _ => handle.clone(),
            };
            if beside {
                self.operate(key, handle.clone(), false, false);
            }
            self.operate(key, shown, false, true);
            if twice {
                self.operate(key, handle, false, true);
            }
        }
        self.remove(key);
    }

    /// A handle that nobody renewed in time.
    fn run_out(&mut self, key: Key) {
        let Some(detached) = self.holds.get(key).and_then(|hold| hold.detached.as_ref()) else {
            return;
        };
        if detached.until > self.now {
            return;
        }
        let lost = |holder| Fact::Lost { holder };
        self.leave_all(key, lost, lost);
        if !self.try_overdue(key) {
            self.remove(key);
        }
    }

    /// A handle was not renewed, or not released.
    fn operation_failed(&mut self, key: Key) {
        let Some(operation) = self.holds.operations.remove(&key) else {
            return;
        };
        let hold = self.holds.get(operation.hold);
        // Whoever tries a handle that ran out has nothing to lose.
        if operation.counts && hold.is_some_and(|hold| !hold.is_overdue()) {
            let lost = |holder| Fact::Lost { holder };
            self.leave_all(operation.hold, lost, lost);
            self.remove(operation.hold);
        }
        self.check_quiet();
    }
}

pub(super) fn members_of(handle: &Handle) -> Vec<(NodeId, GrantNo)> {
    let grants = handle.grants.iter();
    grants.map(|(node, _, grant)| (*node, *grant)).collect()
}
