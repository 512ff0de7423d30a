//! Leases: the exclusive right to something for a time.

use std::time::Duration;

use conclave_protocol::Instant;
use conclave_protocol::id::Name;
use conclave_protocol::keeper::client::{ClientEvent, Command, Failure};
use conclave_protocol::lease::{HandleAction, LeaseHandle, Terms};

use super::error::{LeaseError, Trouble, trouble};
use super::{Job, Keeper, Source};
use crate::clock;

/// How long a lease lasts unless its caller says otherwise.
const SPAN: Duration = Duration::from_secs(5);
/// A lease that is kept is renewed so many times during its span.
const RENEWALS: u32 = 3;
/// How often the time that is left is looked at, at least: timers stand still while a machine
/// sleeps, the lease does not.
const LOOK: Duration = Duration::from_millis(250);

/// A request for a lease. Nothing is sent before one of its last methods is awaited; dropping
/// their futures gives up, and gives back what was won.
#[derive(Debug)]
#[must_use = "nothing is asked before acquire, wait or try_ is awaited"]
pub struct LeaseRequest {
    source: Source,
    name: Name,
    span: Duration,
}

impl LeaseRequest {
    pub(crate) fn new(source: Source, name: Name) -> Self {
        Self {
            source,
            name,
            span: SPAN,
        }
    }

    /// How long it is to last.
    pub fn for_(mut self, span: Duration) -> Self {
        self.span = span;
        self
    }

    /// Waits as long as it takes.
    pub async fn acquire(self) -> Result<LeaseGuard, LeaseError> {
        self.take(None).await
    }

    /// Waits at most this long.
    pub async fn wait(self, limit: Duration) -> Result<LeaseGuard, LeaseError> {
        self.take(Some(limit)).await
    }

    /// Tries once: none if somebody else has it.
    pub async fn try_(self) -> Result<Option<LeaseGuard>, LeaseError> {
        match self.take(Some(Duration::ZERO)).await {
            Ok(guard) => Ok(Some(guard)),
            Err(LeaseError::TimedOut) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn take(self, wait: Option<Duration>) -> Result<LeaseGuard, LeaseError> {
        let keeper = self.source.keeper().await?;
        let command = Command::Lease {
            name: self.name.clone(),
            terms: Terms::new(self.span),
            wait,
        };
        let mut job = keeper.begin_ready(command).await;
        let (token, attempts) = loop {
            match job.next().await {
                Some(ClientEvent::Held {
                    token, attempts, ..
                }) => break (token.0, attempts),
                Some(ClientEvent::Failed { why, .. }) => return Err(failed(&keeper, why)),
                Some(_) => {}
                None => return Err(ended(&keeper)),
            }
        };
        Ok(LeaseGuard {
            job,
            keeper,
            name: self.name,
            span: self.span,
            token,
            attempts,
        })
    }
}

/// Extends a lease by its handle.
pub(super) async fn renew(
    keeper: &Keeper,
    handle: LeaseHandle,
    patience: Duration,
) -> Result<Instant, LeaseError> {
    let action = HandleAction::Renew;
    match by_handle(keeper, handle, action, patience).await? {
        ClientEvent::Renewed { end, .. } => Ok(end),
        _ => Err(ended(keeper)),
    }
}

/// Gives a lease back by its handle.
pub(super) async fn release(
    keeper: &Keeper,
    handle: LeaseHandle,
    patience: Duration,
) -> Result<(), LeaseError> {
    let action = HandleAction::Release;
    by_handle(keeper, handle, action, patience).await.map(drop)
}

/// Does something with a handle, and says what came of it.
async fn by_handle(
    keeper: &Keeper,
    handle: LeaseHandle,
    action: HandleAction,
    patience: Duration,
) -> Result<ClientEvent, LeaseError> {
    let command = Command::Handle {
        handle,
        action,
        patience,
    };
    let mut job = keeper.begin_ready(command).await;
    match job.next().await {
        Some(ClientEvent::Failed { why, .. }) => Err(match (failed(keeper, why), action) {
            (LeaseError::TimedOut, HandleAction::Renew) => LeaseError::NotRenewed,
            (LeaseError::TimedOut, HandleAction::Release) => LeaseError::NotReleased,
            (error, _) => error,
        }),
        Some(event) => Ok(event),
        None => Err(ended(keeper)),
    }
}

fn failed(keeper: &Keeper, why: Failure) -> LeaseError {
    let needed = keeper.lease_config().faults.free();
    match why {
        Failure::Lease(why) => LeaseError::Refused(why),
        Failure::Busy => Trouble::Busy.into(),
        Failure::Ended => LeaseError::Ended,
        _ => trouble(keeper, needed).map_or(LeaseError::TimedOut, LeaseError::Trouble),
    }
}

fn ended(keeper: &Keeper) -> LeaseError {
    let needed = keeper.lease_config().faults.free();
    trouble(keeper, needed).unwrap_or(Trouble::Closed).into()
}

/// A lease in hand. It ends by itself; dropping it gives it back at once, without blocking.
///
/// Nobody else has it before [`LeaseGuard::ends`], whatever up to b nodes say, as long as the
/// clocks of this machine and of the nodes run at the same rate (within half a percent). A process
/// that was stopped cannot know: hand [`LeaseGuard::token`] to what the lease protects.
#[derive(Debug)]
#[must_use = "a lease that is dropped is given back"]
pub struct LeaseGuard {
    job: Job,
    keeper: Keeper,
    name: Name,
    span: Duration,
    token: u64,
    attempts: u32,
}

impl LeaseGuard {
    /// The fencing token: larger than that of every holder before.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Which lease.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// What renews and releases it by [`Keeper::renew_lease`] and [`Keeper::release_lease`], also
    /// in another process; none once it has ended. It holds the secrets of the lease.
    pub fn handle(&self) -> Option<LeaseHandle> {
        self.job.lease_handle()
    }

    /// Leaves the lease to whoever has its handle: nothing is given back.
    pub fn hand_over(self) {
        self.job.hand_over();
    }

    /// How many attempts it took.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// When it ends, as a reading of [`clock::now`]; none once it has.
    pub fn ends(&self) -> Option<Instant> {
        self.job.held_until()
    }

    /// How long it is held still; zero once it has ended.
    pub fn remaining(&self) -> Duration {
        let now = clock::now().mono;
        self.ends().map_or(Duration::ZERO, |end| end.since(now))
    }

    /// Whether it is held right now, by the clock.
    pub fn is_held(&self) -> bool {
        self.ends().is_some()
    }

    /// Extends it by its span from now.
    pub async fn renew(&mut self) -> Result<Duration, LeaseError> {
        if !self.is_held() {
            return Err(LeaseError::Ended);
        }
        self.job.renew();
        loop {
            let pause = LOOK.min(self.remaining());
            tokio::select! {
                event = self.job.next() => match event {
                    Some(ClientEvent::Renewed { .. }) if self.is_held() => {
                        return Ok(self.remaining());
                    }
                    Some(ClientEvent::NotRenewed { .. }) => return Err(LeaseError::NotRenewed),
                    Some(ClientEvent::Failed { why, .. }) => {
                        return Err(failed(&self.keeper, why));
                    }
                    Some(_) => {}
                    None => return Err(ended(&self.keeper)),
                },
                () = tokio::time::sleep(pause) => {
                    if !self.is_held() {
                        return Err(LeaseError::Ended);
                    }
                }
            }
        }
    }

    /// Extends it again and again from now on, in the background, until it is dropped or too few
    /// nodes can be reached.
    pub fn keep(&self) {
        self.job.keep(self.span / RENEWALS);
    }

    /// Ends when the lease has, before anybody else can have it.
    pub async fn lost(&self) {
        loop {
            let left = self.remaining();
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(LOOK)).await;
        }
    }

    /// Gives it back; the nodes are told without waiting for their answers. An error says that it
    /// had ended before.
    pub fn release(self) -> Result<(), LeaseError> {
        if self.is_held() {
            Ok(())
        } else {
            Err(LeaseError::Ended)
        }
    }
}
