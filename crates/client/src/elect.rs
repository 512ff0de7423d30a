//! Elections: a leader is whoever holds a lock, and its note says what it wants others to know.

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::lock::{Group, LockState, Refusal, Watch as What};

use crate::driver::Driver;
use crate::error::{AcquireError, LostError};
use crate::guard::Guard;
use crate::request::LockRequest;
use crate::watch::{Watch, WatchError};

/// A candidacy. Nothing is asked before [`Election::lead`] is awaited.
#[must_use = "nothing is asked before lead is awaited"]
#[derive(Debug)]
pub struct Election {
    request: LockRequest,
    wait: Option<Duration>,
    limit: usize,
}

impl Election {
    pub(crate) fn new(request: LockRequest, limit: usize) -> Self {
        Self {
            request: request.note(b""),
            wait: None,
            limit,
        }
    }

    /// What observers read about the leader, such as where it is reached: 4096 bytes at most
    /// unless the cluster says otherwise.
    pub fn value(mut self, value: impl AsRef<[u8]>) -> Self {
        self.request = self.request.note(value);
        self
    }

    /// How long the lead outlives contact with the nodes: after a crash of the leader the next
    /// one waits this long.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.request = self.request.ttl(ttl);
        self
    }

    /// How long to wait for the lead at most; for ever unless said otherwise.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.wait = Some(limit);
        self
    }

    /// Calls back with the place among the candidates whenever it changes.
    pub fn on_position(mut self, tell: impl FnMut(u32) + Send + 'static) -> Self {
        self.request = self.request.on_position(tell);
        self
    }

    /// Waits until it leads. Dropping the future withdraws the candidacy.
    pub async fn lead(self) -> Result<Leader, AcquireError> {
        let guard = match self.wait {
            None => self.request.acquire().await?,
            Some(limit) => self.request.acquire_timeout(limit).await?,
        };
        let limit = self.limit;
        Ok(Leader { guard, limit })
    }
}

/// The lead. Dropping it resigns without blocking.
///
/// It is a held lock: [`Leader::lost`] fires before another can lead, as long as this process
/// runs. A process that was stopped must be caught by [`Leader::token`] at whatever it leads.
#[derive(Debug)]
#[must_use = "a leader that is dropped resigns"]
pub struct Leader {
    guard: Guard,
    limit: usize,
}

impl Leader {
    /// The fencing token, as [`Guard::token`].
    pub fn token(&self) -> u64 {
        self.guard.token()
    }

    /// The group that a [`Fence`](crate::Fence) compares.
    pub fn group(&self) -> Group {
        self.guard.group()
    }

    /// Whether it leads right now, by the clock.
    pub fn is_leading(&self) -> bool {
        self.guard.is_held()
    }

    /// Changes what observers read. They may miss values in between, and see none twice.
    pub fn set_value(&self, value: impl AsRef<[u8]>) -> Result<(), Refusal> {
        if value.as_ref().len() > self.limit {
            return Err(Refusal::Size);
        }
        self.guard.set_note(value);
        Ok(())
    }

    /// Ends when the lead is lost, as [`Guard::lost`].
    pub fn lost(&self) -> impl Future<Output = ()> + Send + Sync + use<> {
        self.guard.lost()
    }

    /// The lock below.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Lets the next one lead. An error says that the lead had been lost before.
    pub async fn resign(self) -> Result<(), LostError> {
        self.guard.release().await
    }
}

/// Who leads, as an observer knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leading {
    /// The leader; none if nobody leads.
    pub leader: Option<LeaderView>,
    /// Whether too few nodes are heard to know for sure.
    pub partial: bool,
}

/// A leader, as others may know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderView {
    /// Its value.
    pub value: Arc<[u8]>,
    /// Its token.
    pub token: u64,
    /// Who owns its session, for people.
    pub owner: Arc<str>,
    /// How often it has changed its value.
    pub edition: u32,
}

/// Follows an election. Token and value never go back; some may be missed.
#[derive(Debug)]
pub struct Observer {
    watch: Watch,
    last: Option<Leading>,
}

impl Observer {
    pub(crate) fn new(driver: Driver, what: What) -> Self {
        Self {
            watch: Watch::new(driver, what),
            last: None,
        }
    }

    /// Who leads now, at first; then waits until that changes. Cancelling the future loses
    /// nothing.
    pub async fn next(&mut self) -> Result<Leading, WatchError> {
        loop {
            let leading = leading(&self.watch.next().await?);
            if self.last.as_ref() != Some(&leading) {
                self.last = Some(leading.clone());
                return Ok(leading);
            }
        }
    }
}

fn leading(state: &LockState) -> Leading {
    let leader = state.leader().map(|holder| LeaderView {
        value: holder.note.clone().unwrap_or_default(),
        token: holder.token.0,
        owner: holder.owner.clone(),
        edition: holder.edition,
    });
    Leading {
        leader,
        partial: state.partial,
    }
}
