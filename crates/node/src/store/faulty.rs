//! A store that fails or waits on command, for tests of whatever stands on a store.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use conclave_protocol::keeper::{KeeperRecord, KeeperStored};
use conclave_protocol::lock::{Record, Stored};

use super::{All, KeeperStore, Store, StoreError};

/// How a write fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The disk is full: nothing of the write is kept.
    NoSpace,
    /// The sync failed: the write may or may not be kept. Here it is.
    Sync,
}

/// A store around another one that does what its [`Faults`] say.
#[derive(Debug)]
pub struct Faulty<S> {
    inner: S,
    faults: Faults,
}

impl<S> Faulty<S> {
    /// The store, and the handle that commands it.
    pub fn new(inner: S) -> (Self, Faults) {
        let faults = Faults::default();
        let store = Self {
            inner,
            faults: faults.clone(),
        };
        (store, faults)
    }
}

impl<S: Store> Store for Faulty<S> {
    fn load(&mut self) -> Result<Option<Stored>, StoreError> {
        self.inner.load()
    }

    fn write(&mut self, records: &[Record]) -> Result<(), StoreError> {
        let (inner, faults) = (&mut self.inner, &self.faults);
        faults.guard(records.len(), || inner.write(records))
    }
}

impl<S: KeeperStore> KeeperStore for Faulty<S> {
    fn load(&mut self) -> Result<Option<KeeperStored>, StoreError> {
        self.inner.load()
    }

    fn write(&mut self, records: &[KeeperRecord], all: All<'_>) -> Result<(), StoreError> {
        let (inner, faults) = (&mut self.inner, &self.faults);
        faults.guard(records.len(), || inner.write(records, all))
    }
}

fn failure(problem: &str) -> StoreError {
    StoreError::Write {
        path: "the faulty store".into(),
        problem: problem.into(),
    }
}

/// Commands a [`Faulty`] store from another thread.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    shared: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Debug, Default)]
struct State {
    /// Fails when this many more writes have succeeded; then every write fails.
    fault: Option<(u64, Fault)>,
    closed: bool,
    waiting: bool,
    writes: u64,
    records: u64,
}

impl Faults {
    /// Lets `writes` more writes succeed and fails all after them.
    pub fn fail_after(&self, writes: u64, fault: Fault) {
        self.change(|state| state.fault = Some((writes, fault)));
    }

    /// Makes writes wait before they do anything, until [`Self::let_go`].
    pub fn hold(&self) {
        self.change(|state| state.closed = true);
    }

    /// Lets waiting and later writes go on.
    pub fn let_go(&self) {
        self.change(|state| state.closed = false);
    }

    /// Returns once a write waits at the gate.
    pub fn await_waiting(&self) {
        self.until(|state| state.waiting);
    }

    /// Returns once this many writes have succeeded.
    pub fn await_writes(&self, writes: u64) {
        self.until(|state| state.writes >= writes);
    }

    /// How many writes succeeded, and how many records were in them.
    pub fn written(&self) -> (u64, u64) {
        let state = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        (state.writes, state.records)
    }

    /// Does a write of so many records, or fails as it was told to.
    fn guard(
        &self,
        records: usize,
        write: impl FnOnce() -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        match self.enter() {
            None => write()?,
            Some(Fault::NoSpace) => return Err(failure("No space left on device (os error 28)")),
            Some(Fault::Sync) => {
                write()?;
                return Err(failure("sync: Input/output error (os error 5)"));
            }
        }
        self.leave(records);
        Ok(())
    }

    fn enter(&self) -> Option<Fault> {
        let (lock, changed) = &*self.shared;
        let mut state = lock.lock().unwrap_or_else(PoisonError::into_inner);
        while state.closed {
            state.waiting = true;
            changed.notify_all();
            state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting = false;
        match &mut state.fault {
            Some((0, fault)) => Some(*fault),
            Some((left, _)) => {
                *left -= 1;
                None
            }
            None => None,
        }
    }

    fn leave(&self, records: usize) {
        self.change(|state| {
            state.writes += 1;
            state.records += records as u64;
        });
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let (lock, changed) = &*self.shared;
        change(&mut lock.lock().unwrap_or_else(PoisonError::into_inner));
        changed.notify_all();
    }

    fn until(&self, done: impl Fn(&State) -> bool) {
        let (lock, changed) = &*self.shared;
        let mut state = lock.lock().unwrap_or_else(PoisonError::into_inner);
        while !done(&state) {
            state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
