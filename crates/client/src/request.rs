//! Asking for locks: one, several together, or a slot of a semaphore.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::Name;
use conclave_protocol::lock::{Acquire, Mode};

use crate::acquire::{Wait, Want, Wanted};
use crate::driver::Driver;
use crate::error::AcquireError;
use crate::guard::{Guard, GuardSet, Hold, Holding, SlotGuard};

/// How long a hold outlives contact with the nodes unless the caller says otherwise.
const TTL: Duration = Duration::from_secs(10);

/// A request that ends in a guard of type `G`. Nothing is sent before one of its `acquire`
/// methods is awaited.
///
/// Dropping the future of such a method cancels the request; nothing stays behind.
#[must_use = "nothing is asked before acquire, try_acquire or acquire_timeout is awaited"]
pub struct Request<G> {
    wanted: Wanted,
    ttl: Duration,
    /// Makes a guard of what the nodes granted.
    make: fn(Hold) -> G,
}

/// A request for one lock.
pub type LockRequest = Request<Guard>;

/// A request for several locks together, all or none.
pub type LockAllRequest = Request<GuardSet>;

/// A request for a slot of a semaphore.
pub type SlotRequest = Request<SlotGuard>;

/// What may be shared with others. A slot of a semaphore may not.
pub trait Sharable {}

impl Sharable for Guard {}
impl Sharable for GuardSet {}

impl<G> Request<G> {
    fn new(driver: Driver, names: Vec<Name>, want: Want, make: fn(Hold) -> G) -> Self {
        let config = driver.config();
        let times = &config.times;
        let ttl = TTL.clamp(times.ttl_min, times.ttl_max);
        let wishes = names.into_iter();
        let wishes = wishes.map(|name| Acquire::new(name, Mode::Exclusive, ttl));
        Self {
            wanted: Wanted {
                driver,
                wishes: wishes.collect(),
                want,
                wrong: None,
                on_position: None,
            },
            ttl,
            make,
        }
    }

    /// It is not asked for at all: whoever awaits it is told why.
    pub(crate) fn refused(mut self, why: AcquireError) -> Self {
        self.wanted.wrong = Some(why);
        self
    }

    fn change(mut self, change: impl Fn(&mut Acquire)) -> Self {
        self.wanted.wishes.iter_mut().for_each(change);
        self
    }

    /// How long the hold outlives contact with the nodes. A short one is given on soon after a
    /// crash of its holder; a long one bears longer troubles of the network.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self.change(|wish| wish.ttl = ttl)
    }

    /// What others may read about the holder.
    pub fn note(self, note: impl AsRef<[u8]>) -> Self {
        let note: Arc<[u8]> = Arc::from(note.as_ref());
        self.change(|wish| wish.note = Some(note.clone()))
    }

    /// Calls back with the place in the queue whenever it changes: how many are before this
    /// request, at the node where most are; of several slots, in the shortest queue.
    pub fn on_position(mut self, tell: impl FnMut(u32) + Send + 'static) -> Self {
        self.wanted.on_position = Some(Box::new(tell));
        self
    }

    /// Says what the caller holds while it asks. Asking for one of those locks again is then an
    /// error instead of a wait for oneself.
    pub fn while_holding(mut self, held: &impl Holding) -> Self {
        let mut names = self.wanted.wishes.iter().map(|wish| &wish.name);
        if let Some(name) = names.find(|name| held.holds(name)) {
            let name = name.clone();
            self.wanted.wrong = Some(AcquireError::AlreadyHeld { name });
        }
        self
    }
}

impl LockRequest {
    pub(crate) fn one(driver: Driver, name: Name) -> Self {
        Self::new(driver, vec![name], Want::One, Guard::new)
    }
}

impl SlotRequest {
    pub(crate) fn any(driver: Driver, slots: Vec<Name>) -> Self {
        Self::new(driver, slots, Want::Any, SlotGuard::new)
    }
}

impl<G: Sharable> Request<G> {
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

    /// With whom it may be shared; of several locks, each.
    #[expect(clippy::needless_pass_by_value, reason = "callers make it in place")]
    pub fn mode(self, mode: Mode) -> Self {
        self.change(|wish| wish.mode = mode.clone())
    }
}

impl LockAllRequest {
    pub(crate) fn all(driver: Driver, names: Vec<Name>) -> Self {
        Self::new(driver, names, Want::All, GuardSet::new)
    }

    /// Adds one more lock, with a mode of its own.
    pub fn with(mut self, name: impl AsRef<[u8]>, mode: Mode) -> Self {
        let wish = Acquire::new(Name::new(name), mode, self.ttl);
        self.wanted.wishes.push(wish);
        self
    }
}

impl<G> Request<G> {
    /// Waits as long as it takes.
    pub async fn acquire(self) -> Result<G, AcquireError> {
        waited(self.wanted.take(Wait::Forever).await).map(self.make)
    }

    /// Waits at most this long, for all of several locks together.
    pub async fn acquire_timeout(self, limit: Duration) -> Result<G, AcquireError> {
        waited(self.wanted.take(Wait::AtMost(limit)).await).map(self.make)
    }

    /// Waits for nobody: none if somebody is in the way. Of several who try at the same moment,
    /// all may find another in the way.
    pub async fn try_acquire(self) -> Result<Option<G>, AcquireError> {
        Ok(self.wanted.take(Wait::Not).await?.map(self.make))
    }
}

impl<G> fmt::Debug for Request<G> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wanted = &self.wanted;
        let mut out = out.debug_struct("Request");
        out.field("want", &wanted.want);
        out.field("wishes", &wanted.wishes);
        out.finish_non_exhaustive()
    }
}

/// Whoever may wait is never told that somebody is in the way.
fn waited<T>(taken: Result<Option<T>, AcquireError>) -> Result<T, AcquireError> {
    taken?.ok_or(AcquireError::TimedOut { position: None })
}
