//! Leases and objects for thin clients: each caller's own client of the nodes.
//!
//! A node's certificate authorises no lease and no object, so a gateway shows the nodes the token
//! of its caller. Whoever calls through a gateway believes this gateway; the full promise, with up
//! to b liars, is that of clients which ask the nodes themselves.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use conclave_client::keeper::Keeper;
use conclave_client::{LeaseError, ObjectError, Trouble, clock};
use conclave_protocol::Instant;
use conclave_protocol::fault::Lie;
use conclave_protocol::id::{Name, NodeId};
use conclave_protocol::lease::{LeaseHandle, LeaseRefusal};
use conclave_protocol::lock::Refusal;
use conclave_protocol::object::{KindError, ObjectRefusal};
use conclave_wire::lease_handle;

use super::App;
use super::admit::Caller;
use super::answer::Answer;
use super::deliver::Guard;
use super::errors::{Failure, KeeperFailure};
use super::gateway::Taken;

/// The most callers with a client of their own at a time; the one idle for longest goes first.
const CALLERS_MAX: usize = 256;
/// How long a lease lasts if its caller does not say.
const SPAN: Duration = Duration::from_secs(5);
/// How long to wait for a lease if its caller does not say, and at the most.
const WAIT: Duration = Duration::from_secs(30);
const WAIT_MAX: Duration = Duration::from_mins(10);
/// How long nodes may take to renew or release a lease.
const PATIENCE: Duration = Duration::from_secs(2);

/// The clients of callers, for their connections: no lease lives or ends with one of them.
#[derive(Debug, Default)]
pub(crate) struct Keepers {
    callers: Mutex<BTreeMap<Digest, Kept>>,
}

/// What a caller showed, without showing it.
type Digest = [u8; 32];

#[derive(Debug)]
struct Kept {
    keeper: Keeper,
    used: Instant,
}

fn failure(status: StatusCode, code: &'static str, message: impl Into<String>) -> Failure {
    Failure::Keeper(Box::new(KeeperFailure {
        status,
        code,
        message: message.into(),
    }))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Keepers {
    /// Which nodes the clients of all callers saw to lie, how, and how often.
    pub(crate) fn lies(&self) -> BTreeMap<(NodeId, Lie), u64> {
        let mut totals = BTreeMap::new();
        for kept in locked(&self.callers).values() {
            for (node, lie, count) in kept.keeper.lies() {
                *totals.entry((node, lie)).or_default() += count;
            }
        }
        totals
    }
}

impl App {
    /// A client of the nodes in the name of a caller.
    pub(crate) fn keeper(&self, caller: &Caller) -> Result<Keeper, Failure> {
        if caller.is_node() {
            return Err(Failure::Refused(Refusal::NotPermitted));
        }
        let token = caller.bearer().filter(|_| !self.gate.is_open());
        if token.is_none() && (!self.gate.is_open() || self.security.tls().is_some()) {
            return Err(failure(
                StatusCode::FORBIDDEN,
                "needs_token",
                "a gateway cannot show your certificate to the other nodes: call with a bearer \
                 token, or use the Rust client or 'conclave lease' and 'conclave object'",
            ));
        }
        let shown = token.map_or("", |token| token.reveal());
        let digest = *blake3::hash(shown.as_bytes()).as_bytes();
        let mut callers = locked(&self.keepers.callers);
        let now = clock::now().mono;
        if let Some(kept) = callers.get_mut(&digest) {
            kept.used = now;
            return Ok(kept.keeper.clone());
        }
        if callers.len() >= CALLERS_MAX {
            let oldest = callers.iter().min_by_key(|(_, kept)| kept.used);
            if let Some(oldest) = oldest.map(|(digest, _)| *digest) {
                // What is under way keeps it running until it is done.
                callers.remove(&oldest);
            }
        }
        let security = match token {
            Some(token) => self.security.clone().with_bearer(token.clone()),
            None => self.security.clone(),
        };
        let keeper = Keeper::spawn(&self.cluster, &security)
            .map_err(|error| Failure::NotReady(error.to_string()))?;
        self.end_with("gateway", keeper.failed());
        let kept = Kept {
            keeper: keeper.clone(),
            used: now,
        };
        callers.insert(digest, kept);
        Ok(keeper)
    }

    /// Takes a lease for a thin client, who gets its handle. It is given back if the answer does
    /// not reach its caller; otherwise this gateway keeps nothing of it.
    pub(crate) async fn take_lease(
        &self,
        arrived: Instant,
        caller: &Caller,
        name: &Name,
        span: Option<Duration>,
        wait: Option<Duration>,
    ) -> Result<Taken, Failure> {
        let keeper = self.keeper(caller)?;
        let waiting = self.waiting.take(caller.account());
        let _waiting = waiting.ok_or(Failure::TooManyWaiters)?;
        let request = keeper.lease(name.bytes()).for_(span.unwrap_or(SPAN));
        let wait = wait.unwrap_or(WAIT).min(WAIT_MAX);
        let mut stopping = self.stopping.clone();
        let taken = async {
            if wait.is_zero() {
                return request.try_().await?.ok_or(LeaseError::TimedOut);
            }
            request.wait(wait).await
        };
        let lease = tokio::select! {
            taken = taken => taken?,
            _ = stopping.wait_for(|stopping| *stopping) => {
                return Err(Failure::NotReady("stopping".to_owned()));
            }
        };
        let (handle, until) = lease.handle().zip(lease.ends()).ok_or_else(too_late)?;
        let text = lease_handle::seal(&self.key, caller.principal(), &self.config.id, &handle);
        let answer = self.leased(text, &handle, arrived, until);
        // With nothing left the lease is dropped here, which gives it back.
        if answer.times(clock::now().mono).is_none() {
            return Err(too_late());
        }
        let guard = Guard::of_lease(lease);
        Ok(Taken { answer, guard })
    }

    /// Extends a lease by its handle, whichever node gave it out. The caller's deadline counts
    /// from when this node asked the others.
    pub(crate) async fn renew_lease(
        &self,
        arrived: Instant,
        caller: &Caller,
        text: &str,
    ) -> Result<Answer, Failure> {
        let handle = self.lease_of(caller, text)?;
        let keeper = self.keeper(caller)?;
        let until = keeper.renew_lease(handle.clone(), PATIENCE).await?;
        let answer = self.leased(text.to_owned(), &handle, arrived, until);
        answer.times(clock::now().mono).ok_or_else(ended)?;
        Ok(answer)
    }

    /// Gives a lease back by its handle, whichever node gave it out, also one that has ended.
    pub(crate) async fn release_lease(&self, caller: &Caller, text: &str) -> Result<(), Failure> {
        let handle = self.lease_of(caller, text)?;
        let keeper = self.keeper(caller)?;
        Ok(keeper.release_lease(handle, PATIENCE).await?)
    }

    /// The lease that a handle is of, if it is the caller's.
    fn lease_of(&self, caller: &Caller, text: &str) -> Result<LeaseHandle, Failure> {
        let opened = lease_handle::open(&self.key, caller.principal(), text);
        let opened = opened.map_err(|error| {
            let failure = Failure::from(error);
            if let Some(audit) = &self.audit {
                audit.refused(caller.principal(), None, failure.code(), "api");
            }
            failure
        });
        let (config, handle) = opened?;
        // The nodes of another configuration may be others: none of them is shown the secrets.
        if config != self.config.id {
            return Err(ended());
        }
        Ok(handle)
    }

    fn leased(
        &self,
        text: String,
        handle: &LeaseHandle,
        arrived: Instant,
        until: Instant,
    ) -> Answer {
        Answer {
            handle: text,
            token: handle.token.0,
            group: None,
            slot: None,
            attempts: Some(handle.attempts),
            arrived,
            until,
            times: self.config.times,
        }
    }
}

/// The answer to whoever shows the handle of a lease that cannot be renewed any more.
pub(crate) fn ended() -> Failure {
    failure(
        StatusCode::GONE,
        "ended",
        "the lease has ended, or ends when it was to end: stop using it, and acquire it again",
    )
}

/// The answer to whoever would get a lease of which nothing is left.
pub(crate) fn too_late() -> Failure {
    LeaseError::TimedOut.into()
}

impl From<LeaseError> for Failure {
    fn from(error: LeaseError) -> Self {
        let status = match &error {
            LeaseError::TimedOut => StatusCode::CONFLICT,
            LeaseError::Ended => return ended(),
            LeaseError::Refused(LeaseRefusal::NotPermitted) => StatusCode::FORBIDDEN,
            LeaseError::Refused(LeaseRefusal::Full) => StatusCode::TOO_MANY_REQUESTS,
            LeaseError::Refused(LeaseRefusal::Span | LeaseRefusal::Name) => StatusCode::BAD_REQUEST,
            LeaseError::Trouble(trouble) => trouble_status(trouble),
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        failure(status, error.name(), error.to_string())
    }
}

impl From<ObjectError> for Failure {
    fn from(error: ObjectError) -> Self {
        let status = match &error {
            ObjectError::Kind(KindError::TooLarge)
            | ObjectError::Refused(ObjectRefusal::TooLarge) => StatusCode::PAYLOAD_TOO_LARGE,
            ObjectError::Kind(KindError::Empty) => StatusCode::NOT_FOUND,
            ObjectError::Kind(_) | ObjectError::OtherKind => StatusCode::CONFLICT,
            ObjectError::Refused(ObjectRefusal::NotPermitted) => StatusCode::FORBIDDEN,
            ObjectError::Refused(ObjectRefusal::Full) => StatusCode::TOO_MANY_REQUESTS,
            ObjectError::Refused(ObjectRefusal::Name) => StatusCode::BAD_REQUEST,
            ObjectError::Trouble(trouble) => trouble_status(trouble),
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        failure(status, error.name(), error.to_string())
    }
}

fn trouble_status(trouble: &Trouble) -> StatusCode {
    match trouble {
        Trouble::NotAuthenticated => StatusCode::UNAUTHORIZED,
        Trouble::NoObjects => StatusCode::BAD_REQUEST,
        Trouble::Busy => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}
