//! Locks in hand.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use conclave_protocol::id::{GrantNo, Name, NodeId, Token};
use conclave_protocol::lock::{ClientEvent, Group};

use crate::clock;
use crate::driver::Job;
use crate::error::LostError;
use crate::semaphore::slot_of;

/// A held lock. Dropping it releases the lock without blocking.
///
/// The nodes are told every now and then that it is still held. If too few of them can be reached
/// for the TTL, it is lost: [`Guard::lost`] fires, before any node may give the lock to others.
#[derive(Debug)]
#[must_use = "a guard that is dropped releases its lock"]
pub struct Guard {
    hold: Hold,
    name: Name,
    group: Group,
}

impl Guard {
    pub(crate) fn new(hold: Hold) -> Self {
        let (name, group) = {
            let parts = hold.parts();
            let first = parts.first().expect("invariant: one lock was taken");
            (first.name.clone(), first.group.clone())
        };
        Self { hold, name, group }
    }

    /// The fencing token: larger than that of every conflicting holder before. Hand it to what
    /// the lock protects. It may grow while the lock is held; earlier values stay good until
    /// another conflicting holder was admitted.
    pub fn token(&self) -> u64 {
        self.hold.update();
        let parts = self.hold.parts();
        parts.first().map_or(0, |part| part.token.0)
    }

    /// Which lock.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The group that a [`Fence`](crate::Fence) compares. An exclusive holder is a group of one.
    pub fn group(&self) -> Group {
        self.group.clone()
    }

    /// Whether it is held right now, by the clock.
    pub fn is_held(&self) -> bool {
        self.hold.is_held()
    }

    /// How long it is held if no node is heard from again; zero once it is lost.
    pub fn valid_for(&self) -> Duration {
        self.hold.valid_for()
    }

    /// [`Guard::valid_for`] as a reading of [`clock::now`], in nanoseconds; zero once it is lost.
    /// All processes of one machine share that clock.
    pub fn until_nanos(&self) -> u64 {
        self.hold.until_nanos()
    }

    /// The grants it rests on: the number of each node, from 1, and of its grant.
    pub fn members(&self) -> Vec<(u32, u64)> {
        self.hold.update();
        let parts = self.hold.parts();
        let members = parts.iter().flat_map(|part| &part.members);
        members.map(|(node, grant)| (node.0 + 1, grant.0)).collect()
    }

    /// Changes what others may read about the holder.
    pub fn set_note(&self, note: impl AsRef<[u8]>) {
        self.hold.job.note(note.as_ref().into());
    }

    /// Ends when the lock is lost, before any node may give it to others; at once if it is lost
    /// already. It borrows nothing, and any number may wait. A guard that is released or dropped
    /// never ends it.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + Sync + use<> {
        self.hold.job.lost()
    }

    /// Releases the lock; the nodes are told without waiting for their answers, together with what
    /// this task asks for next or as soon as it lets other tasks run. An error says that the lock
    /// had been lost before.
    pub fn release(self) -> impl Future<Output = Result<(), LostError>> + Send {
        std::future::ready(self.hold.release())
    }
}

/// A slot of a semaphore, held. It is a [`Guard`] of that slot's lock in all else.
#[derive(Debug)]
#[must_use = "a guard that is dropped releases its slot"]
pub struct SlotGuard {
    guard: Guard,
    slot: u32,
}

impl SlotGuard {
    pub(crate) fn new(hold: Hold) -> Self {
        let guard = Guard::new(hold);
        let slot = slot_of(guard.name()).unwrap_or_default();
        Self { guard, slot }
    }

    /// Which slot, from 1. Two holders never have the same.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Releases the slot, as [`Guard::release`].
    pub fn release(self) -> impl Future<Output = Result<(), LostError>> + Send {
        self.guard.release()
    }

    /// The guard of the slot's lock.
    pub fn into_guard(self) -> Guard {
        self.guard
    }
}

impl std::ops::Deref for SlotGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}

/// Several locks, held together. Dropping it releases them without blocking.
#[derive(Debug)]
#[must_use = "guards that are dropped release their locks"]
pub struct GuardSet {
    hold: Hold,
}

impl GuardSet {
    pub(crate) fn new(hold: Hold) -> Self {
        Self { hold }
    }

    /// The names of the locks, in order.
    pub fn names(&self) -> Vec<Name> {
        let parts = self.hold.parts();
        parts.iter().map(|part| part.name.clone()).collect()
    }

    /// The token of one of the locks, as [`Guard::token`]; none if it is not one of them.
    pub fn token(&self, name: impl AsRef<[u8]>) -> Option<u64> {
        self.hold.update();
        self.hold.find(name.as_ref(), |part| part.token.0)
    }

    /// The group of one of the locks, as [`Guard::group`]; none if it is not one of them.
    pub fn group(&self, name: impl AsRef<[u8]>) -> Option<Group> {
        self.hold.find(name.as_ref(), |part| part.group.clone())
    }

    /// Whether all are held right now, by the clock.
    pub fn is_held(&self) -> bool {
        self.hold.is_held()
    }

    /// How long all are held if no node is heard from again; zero once one is lost.
    pub fn valid_for(&self) -> Duration {
        self.hold.valid_for()
    }

    /// As [`Guard::until_nanos`], for the lock that ends first.
    pub fn until_nanos(&self) -> u64 {
        self.hold.until_nanos()
    }

    /// The grants that one of the locks rests on, as [`Guard::members`].
    pub fn members(&self, name: impl AsRef<[u8]>) -> Vec<(u32, u64)> {
        self.hold.update();
        let numbers = |part: &Part| {
            let members = part.members.iter();
            members.map(|(node, grant)| (node.0 + 1, grant.0)).collect()
        };
        self.hold.find(name.as_ref(), numbers).unwrap_or_default()
    }

    /// Ends when any of the locks is lost, as [`Guard::lost`]. The others stay held until the set
    /// is released or dropped.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + Sync + use<> {
        self.hold.job.lost()
    }

    /// Releases all; an error names one that had been lost before.
    pub fn release(self) -> impl Future<Output = Result<(), LostError>> + Send {
        std::future::ready(self.hold.release())
    }
}

/// Something that holds locks, for [`while_holding`](crate::Request::while_holding).
pub trait Holding {
    /// Whether it holds this lock.
    fn holds(&self, name: &Name) -> bool;
}

impl Holding for Guard {
    fn holds(&self, name: &Name) -> bool {
        self.name == *name && self.is_held()
    }
}

impl Holding for SlotGuard {
    fn holds(&self, name: &Name) -> bool {
        self.guard.holds(name)
    }
}

impl Holding for GuardSet {
    fn holds(&self, name: &Name) -> bool {
        let held = |part: &Part| self.hold.job.held_until(&part.name).is_some();
        self.hold.find(name.bytes(), held).unwrap_or(false)
    }
}

/// One lock of a hold, as it was last heard of.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) name: Name,
    pub(crate) token: Token,
    pub(crate) group: Group,
    pub(crate) members: Vec<(NodeId, GrantNo)>,
}

impl Part {
    /// The hold has moved to other nodes, or has a larger token.
    pub(crate) fn apply(&mut self, event: &ClientEvent) {
        if let ClientEvent::Moved {
            name,
            token,
            members,
            ..
        } = event
            && *name == self.name
        {
            self.token = self.token.max(*token);
            self.members.clone_from(members);
        }
    }
}

/// What guards and sets of guards have in common.
#[derive(Debug)]
pub(crate) struct Hold {
    job: Job,
    parts: Mutex<Vec<Part>>,
}

impl Hold {
    pub(crate) fn new(job: Job, parts: Vec<Part>) -> Self {
        Self {
            job,
            parts: Mutex::new(parts),
        }
    }

    fn parts(&self) -> MutexGuard<'_, Vec<Part>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what has changed since the last look.
    fn update(&self) {
        let mut parts = self.parts();
        while let Some(event) = self.job.try_next() {
            parts.iter_mut().for_each(|part| part.apply(&event));
        }
    }

    fn find<T>(&self, name: &[u8], read: impl FnOnce(&Part) -> T) -> Option<T> {
        let parts = self.parts();
        parts
            .iter()
            .find(|part| part.name.bytes() == name)
            .map(read)
    }

    /// When the first of the locks ends; zero if one is lost.
    fn until_nanos(&self) -> u64 {
        let parts = self.parts();
        let until = |part: &Part| {
            let until = self.job.held_until(&part.name);
            until.map_or(0, conclave_protocol::Instant::nanos)
        };
        parts.iter().map(until).min().unwrap_or(0)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.until_nanos() > 0
    }

    fn valid_for(&self) -> Duration {
        let now = clock::now().mono.nanos();
        Duration::from_nanos(self.until_nanos().saturating_sub(now))
    }

    fn release(self) -> Result<(), LostError> {
        let parts = self.parts.into_inner();
        let parts = parts.unwrap_or_else(PoisonError::into_inner);
        match self.job.leave(parts.iter().map(|part| &part.name)) {
            None => Ok(()),
            Some(name) => Err(LostError { name: name.clone() }),
        }
    }
}
