//! Asking for locks.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::Name;
use conclave_protocol::lock::{Acquire, Mode};

use crate::acquire::{Wait, Wanted};
use crate::driver::Driver;
use crate::error::AcquireError;
use crate::guard::{Guard, GuardSet, Holding};

/// A request for one lock. Nothing is sent before one of its `acquire` methods is awaited.
///
/// Dropping the future of such a method cancels the request; nothing stays behind.
#[must_use = "nothing is asked before acquire, try_acquire or acquire_timeout is awaited"]
pub struct LockRequest {
    wanted: Wanted,
}

impl LockRequest {
    pub(crate) fn new(driver: Driver, name: Name, ttl: Duration) -> Self {
        let wish = Acquire::new(name, Mode::Exclusive, ttl);
        Self {
            wanted: Wanted {
                driver,
                wishes: vec![wish],
                set: false,
                held: None,
                on_position: None,
            },
        }
    }

    fn change(mut self, change: impl FnOnce(&mut Acquire)) -> Self {
        self.wanted.wishes.first_mut().map(change);
        self
    }

    /// Alone; this is what is asked for unless said otherwise.
    pub fn exclusive(self) -> Self {
        self.mode(Mode::Exclusive)
    }

    /// Together with all others that ask for it shared.
    pub fn shared(self) -> Self {
        self.mode(Mode::Shared)
    }

    /// Together with all others that ask for the same group.
    pub fn group(self, group: impl AsRef<[u8]>) -> Self {
        self.mode(Mode::group(group))
    }

    /// With whom it may be shared.
    pub fn mode(self, mode: Mode) -> Self {
        self.change(|wish| wish.mode = mode)
    }

    /// How long the hold outlives contact with the nodes. A short one is given on soon after a
    /// crash of its holder; a long one bears longer troubles of the network.
    pub fn ttl(self, ttl: Duration) -> Self {
        self.change(|wish| wish.ttl = ttl)
    }

    /// What others may read about the holder.
    pub fn note(self, note: impl AsRef<[u8]>) -> Self {
        self.change(|wish| wish.note = Some(Arc::from(note.as_ref())))
    }

    /// Calls back with the place in the queue whenever it changes: how many are before this
    /// request, at the node where most are.
    pub fn on_position(mut self, tell: impl FnMut(u32) + Send + 'static) -> Self {
        self.wanted.on_position = Some(Box::new(tell));
        self
    }

    /// Says what the caller holds while it asks. Asking for one of those locks again is then an
    /// error instead of a wait for oneself.
    pub fn while_holding(mut self, held: &impl Holding) -> Self {
        let mut names = self.wanted.wishes.iter().map(|wish| &wish.name);
        if let Some(name) = names.find(|name| held.holds(name)) {
            self.wanted.held = Some(name.clone());
        }
        self
    }

    /// Waits as long as it takes.
    pub async fn acquire(self) -> Result<Guard, AcquireError> {
        waited(self.wanted.take(Wait::Forever).await).map(Guard::new)
    }

    /// Waits at most this long.
    pub async fn acquire_timeout(self, limit: Duration) -> Result<Guard, AcquireError> {
        waited(self.wanted.take(Wait::AtMost(limit)).await).map(Guard::new)
    }

    /// Waits for nobody: none if somebody is in the way.
    pub async fn try_acquire(self) -> Result<Option<Guard>, AcquireError> {
        Ok(self.wanted.take(Wait::Not).await?.map(Guard::new))
    }
}

impl fmt::Debug for LockRequest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wishes = &self.wanted.wishes;
        out.debug_tuple("LockRequest").field(wishes).finish()
    }
}

/// A request for several locks together, all or none.
#[must_use = "nothing is asked before acquire, try_acquire or acquire_timeout is awaited"]
pub struct LockAllRequest {
    wanted: Wanted,
    ttl: Duration,
}

impl LockAllRequest {
    pub(crate) fn new(driver: Driver, names: Vec<Name>, ttl: Duration) -> Self {
        let wishes = names.into_iter();
        let wishes = wishes.map(|name| Acquire::new(name, Mode::Exclusive, ttl));
        Self {
            wanted: Wanted {
                driver,
                wishes: wishes.collect(),
                set: true,
                held: None,
                on_position: None,
            },
            ttl,
        }
    }

    /// Each alone; this is what is asked for unless said otherwise.
    pub fn exclusive(self) -> Self {
        self.mode(&Mode::Exclusive)
    }

    /// Each together with all others that ask for it shared.
    pub fn shared(self) -> Self {
        self.mode(&Mode::Shared)
    }

    /// Each together with all others that ask for the same group.
    pub fn group(self, group: impl AsRef<[u8]>) -> Self {
        self.mode(&Mode::group(group))
    }

    fn mode(mut self, mode: &Mode) -> Self {
        for wish in &mut self.wanted.wishes {
            wish.mode = mode.clone();
        }
        self
    }

    /// Adds one more lock, with a mode of its own.
    pub fn with(mut self, name: impl AsRef<[u8]>, mode: Mode) -> Self {
        let wish = Acquire::new(Name::new(name), mode, self.ttl);
        self.wanted.wishes.push(wish);
        self
    }

    /// How long the holds outlive contact with the nodes.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        for wish in &mut self.wanted.wishes {
            wish.ttl = ttl;
        }
        self
    }

    /// What others may read about the holder.
    pub fn note(mut self, note: impl AsRef<[u8]>) -> Self {
        let note: Arc<[u8]> = Arc::from(note.as_ref());
        for wish in &mut self.wanted.wishes {
            wish.note = Some(note.clone());
        }
        self
    }

    /// Says what the caller holds while it asks, as [`LockRequest::while_holding`] does.
    pub fn while_holding(mut self, held: &impl Holding) -> Self {
        let mut names = self.wanted.wishes.iter().map(|wish| &wish.name);
        if let Some(name) = names.find(|name| held.holds(name)) {
            self.wanted.held = Some(name.clone());
        }
        self
    }

    /// Waits as long as it takes.
    pub async fn acquire(self) -> Result<GuardSet, AcquireError> {
        waited(self.wanted.take(Wait::Forever).await).map(GuardSet::new)
    }

    /// Waits at most this long, for all of them together.
    pub async fn acquire_timeout(self, limit: Duration) -> Result<GuardSet, AcquireError> {
        waited(self.wanted.take(Wait::AtMost(limit)).await).map(GuardSet::new)
    }

    /// Waits for nobody: none if somebody is in the way of any of them.
    pub async fn try_acquire(self) -> Result<Option<GuardSet>, AcquireError> {
        Ok(self.wanted.take(Wait::Not).await?.map(GuardSet::new))
    }
}

impl fmt::Debug for LockAllRequest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wishes = &self.wanted.wishes;
        out.debug_tuple("LockAllRequest").field(wishes).finish()
    }
}

/// Whoever may wait is never told that somebody is in the way.
fn waited<T>(taken: Result<Option<T>, AcquireError>) -> Result<T, AcquireError> {
    taken?.ok_or(AcquireError::TimedOut { position: None })
}
