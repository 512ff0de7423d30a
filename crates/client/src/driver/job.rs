//! What a job was told, and what callers want of the machine.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use conclave_protocol::Instant;
use conclave_protocol::id::Key;
use conclave_protocol::lock::ClientEvent;
use tokio::sync::Notify;

use super::Work;
use super::sights::Sights;
use crate::clock;
use crate::trace::Acquisition;

/// What dropping a job means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It takes locks: they are given up.
    Take,
    /// It watches locks: the watch ends.
    Watch,
    /// It works on a handle, which others may have too: it goes on unheard.
    Handle,
}

/// What a caller waits for.
#[derive(Debug)]
pub(super) struct JobState {
    /// The earliest end of the locks that it holds, as they were told; zero once that is not all.
    until: Instant,
    pub(super) kind: Kind,
    pub(super) events: VecDeque<ClientEvent>,
    /// What a watch has not read, beside its events.
    sights: Sights,
    pub(super) waker: Option<Waker>,
    pub(super) over: bool,
    /// Whether its caller need not hear at once of its place in the queue.
    pub(super) quiet: bool,
    /// Told when a lock of the job is lost.
    alarm: Option<Arc<Alarm>>,
    is_lost: bool,
    /// Its spans, if somebody wants them.
    pub(super) trace: Option<Box<Acquisition>>,
}

/// Tells any number of waiters that a lock is lost.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    rung: AtomicBool,
    notify: Notify,
}

impl Alarm {
    pub(super) fn ring(&self) {
        self.rung.store(true, Ordering::Release);
        self.notify.notify_waiters();
    }

    /// Ends when it rings, at once if it has.
    pub(super) async fn heard(self: Arc<Self>) {
        let mut notified = std::pin::pin!(self.notify.notified());
        // From here on no ring is missed.
        notified.as_mut().enable();
        if !self.rung.load(Ordering::Acquire) {
            notified.await;
        }
    }
}

impl JobState {
    pub(super) fn new(kind: Kind) -> Self {
        Self {
            kind,
            until: Instant::FAR,
            events: VecDeque::new(),
            sights: Sights::default(),
            waker: None,
            over: false,
            quiet: false,
            alarm: None,
            is_lost: false,
            trace: None,
        }
    }

    /// Whether all that it was told to hold is held right now, for sure.
    pub(super) fn surely_holds(&self) -> bool {
        !self.is_lost && !self.over && self.until > clock::steady()
    }

    /// Whether what is told next may be out of date, so that the machine must see the time first.
    fn is_stale(&self) -> bool {
        !self.events.is_empty() && self.until < Instant::FAR && self.until <= clock::steady()
    }

    /// As [`JobState::look`], if that is not out of date.
    pub(super) fn look_now(&mut self, key: Key, cx: &Context<'_>) -> Result<Told, Stale> {
        if self.is_stale() {
            return Err(Stale);
        }
        Ok(self.look(key, cx))
    }

    /// As [`JobState::pop`], if that is not out of date.
    pub(super) fn pop_now(&mut self, key: Key) -> Result<Option<ClientEvent>, Stale> {
        if self.is_stale() {
            return Err(Stale);
        }
        Ok(self.pop(key))
    }

    /// The next thing to tell, or its end, or a place among those who are woken.
    pub(super) fn look(&mut self, key: Key, cx: &Context<'_>) -> Told {
        if let Some(event) = self.pop(key) {
            return Poll::Ready(Some(event));
        }
        if self.over {
            return Poll::Ready(None);
        }
        let waits = |waker: &Waker| waker.will_wake(cx.waker());
        if !self.waker.as_ref().is_some_and(waits) {
            self.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// The next thing to tell.
    pub(super) fn pop(&mut self, key: Key) -> Option<ClientEvent> {
        let seen = self.sights.next(key);
        seen.or_else(|| self.events.pop_front())
    }

    pub(super) fn put(&mut self, event: ClientEvent) {
        match &event {
            ClientEvent::Entered { until, .. } => self.until = self.until.min(*until),
            // It rests on other grants now, or is watched by whoever has the handle.
            ClientEvent::Moved { .. } | ClientEvent::Handle(..) => self.until = Instant::ZERO,
            _ => {}
        }
        match event {
            ClientEvent::Seen(_, state) => self.sights.state(state),
            ClientEvent::Synced(_, partial) => self.sights.synced(partial),
            event => put(&mut self.events, event),
        }
    }

    pub(super) fn lose(&mut self) {
        self.is_lost = true;
        if let Some(alarm) = &self.alarm {
            alarm.ring();
        }
    }

    /// What tells of a loss, past or to come.
    pub(super) fn alarm(&mut self) -> Arc<Alarm> {
        let alarm = self.alarm.get_or_insert_default().clone();
        if self.is_lost {
            alarm.ring();
        }
        alarm
    }
}

/// What was told may have ended since: the machine must see the time first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stale;

/// What a caller reads: its next event, or that none comes any more.
pub(super) type Told = Poll<Option<ClientEvent>>;

/// What a job was told. Its caller reads it without disturbing the machine.
pub(super) type Cell = Arc<Mutex<JobState>>;

/// Looks at what a job was told. Whoever has the core may: never the other way round.
pub(super) fn locked(cell: &Cell) -> MutexGuard<'_, JobState> {
    cell.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives every job a key of its own.
#[derive(Debug, Default)]
pub(super) struct Keys(AtomicU64);

impl Keys {
    pub(super) fn next(&self) -> Key {
        Key(self.0.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// What a caller wants of the machine without waiting for it.
#[derive(Debug)]
pub(super) enum Wish {
    /// Begin a piece of work.
    Begin(Key, Cell, Work),
    /// Leave the locks of a job that is over for its caller.
    Leave(Key),
    /// Nobody wants the job any more.
    Drop(Key),
}

/// Adds an event. Only the newest place in the queue counts, and the newest state of a hold.
fn put(events: &mut VecDeque<ClientEvent>, event: ClientEvent) {
    match &event {
        ClientEvent::Position(..) => {
            events.retain(|old| !matches!(old, ClientEvent::Position(..)));
        }
        ClientEvent::Moved { name, .. } => {
            events.retain(|old| !matches!(old, ClientEvent::Moved { name: of, .. } if of == name));
        }
        _ => {}
    }
    events.push_back(event);
}
