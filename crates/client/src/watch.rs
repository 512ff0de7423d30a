//! Watching locks.

use conclave_protocol::lock::{ClientEvent, Ended, LockState, Refusal, Watch as What};
use thiserror::Error;

use crate::driver::{Driver, Job, Work};
use crate::error::{AcquireError, no_quorum};

/// Why a watch ended.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WatchError {
    /// A node or this client refused it.
    #[error("the watch is refused: {0}")]
    Refused(Refusal),
    /// Too few nodes take this client in.
    #[error(transparent)]
    NoQuorum(AcquireError),
    /// The client was closed, or its runtime ended.
    #[error("the client is closed; connect again")]
    Closed,
    /// The client closed itself.
    #[error("a fault in the client closed it: {words}; connect again, and please report it")]
    Fault {
        /// What the panic said.
        words: String,
    },
}

/// A watch on one lock: its present state, and then every change, as far as the caller keeps up.
///
/// States may be skipped, and a state may be late, but none goes back: a holder is never shown
/// after a conflicting one with a larger token. A holder that died is shown until its nodes have
/// let it go. A watch is for people, caches and routing; what must not be wrong is checked at the
/// resource, with the token.
#[derive(Debug)]
pub struct Watch {
    inner: Watching,
}

impl Watch {
    pub(crate) fn new(driver: Driver, what: What) -> Self {
        Self {
            inner: Watching::new(driver, what),
        }
    }

    /// The newest state that was not read yet; waits until there is one. Cancelling the future
    /// loses nothing.
    pub async fn next(&mut self) -> Result<LockState, WatchError> {
        loop {
            if let Sight::State(state) = self.inner.next().await? {
                return Ok(state);
            }
        }
    }
}

/// A watch on all locks whose names begin alike, as [`Watch`] is on one.
#[derive(Debug)]
pub struct PrefixWatch {
    inner: Watching,
}

/// What a watch of a prefix tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sight {
    /// A lock as it is now. One with nobody inside and nobody waiting is over.
    State(LockState),
    /// All locks there were have been told. Said once at the beginning, and again when the watch
    /// becomes partial or complete.
    Synced {
        /// Whether too few nodes are heard to know of every holder.
        partial: bool,
    },
}

impl PrefixWatch {
    pub(crate) fn new(driver: Driver, what: What) -> Self {
        Self {
            inner: Watching::new(driver, what),
        }
    }

    /// What is new; per lock only the newest state waits to be read. Cancelling the future loses
    /// nothing.
    pub async fn next(&mut self) -> Result<Sight, WatchError> {
        self.inner.next().await
    }
}

/// What both have in common.
#[derive(Debug)]
struct Watching {
    driver: Driver,
    what: What,
    job: Job,
}

impl Watching {
    fn new(driver: Driver, what: What) -> Self {
        let job = driver.begin(Work::Watch(what.clone()));
        Self { driver, what, job }
    }

    async fn next(&mut self) -> Result<Sight, WatchError> {
        loop {
            match self.job.next().await {
                Some(ClientEvent::Seen(_, state)) => return Ok(Sight::State(*state)),
                Some(ClientEvent::Synced(_, partial)) => return Ok(Sight::Synced { partial }),
                Some(ClientEvent::Ended(_, Ended::Refused(why))) => {
                    return Err(WatchError::Refused(why));
                }
                Some(ClientEvent::Ended(..)) | None if self.driver.is_hopeless() => {
                    return Err(WatchError::NoQuorum(no_quorum(&self.driver)));
                }
                // The cluster has another configuration.
                Some(ClientEvent::Ended(_, Ended::NotHeld)) => {
                    self.job = self.driver.begin(Work::Watch(self.what.clone()));
                }
                None => {
                    let fault = self.driver.fault().map(|words| words.to_string());
                    return Err(
                        fault.map_or(WatchError::Closed, |words| WatchError::Fault { words })
                    );
                }
                Some(_) => {}
            }
        }
    }
}
