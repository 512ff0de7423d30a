//! Leases and objects for thin clients: each caller's own client of the nodes.
//!
//! A node's certificate authorises no lease and no object, so a gateway shows the nodes the token
//! of its caller. Whoever calls through a gateway believes this gateway; the full promise, with up
//! to b liars, is that of clients which ask the nodes themselves.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use conclave_client::keeper::Keeper;
use conclave_client::{LeaseError, LeaseGuard, ObjectError, Trouble, clock};
use conclave_protocol::Instant;
use conclave_protocol::fault::Lie;
use conclave_protocol::id::{Name, NodeId};
use conclave_protocol::lease::LeaseRefusal;
use conclave_protocol::lock::Refusal;
use conclave_protocol::object::{KindError, ObjectRefusal};

use super::App;
use super::admit::Caller;
use super::errors::{Failure, KeeperFailure};

/// The most callers with a client of their own at a time; the one idle for longest goes first.
const CALLERS_MAX: usize = 256;
/// The most leases that thin clients hold through one node.
const LEASES_MAX: usize = 10_000;
/// How long a lease lasts if its caller does not say.
const SPAN: Duration = Duration::from_secs(5);
/// How long to wait for a lease if its caller does not say, and at the most.
const WAIT: Duration = Duration::from_secs(30);
const WAIT_MAX: Duration = Duration::from_mins(10);

/// The clients of callers, and the leases that they hold.
#[derive(Debug, Default)]
pub(crate) struct Keepers {
    callers: Mutex<BTreeMap<Digest, Kept>>,
    leases: Mutex<BTreeMap<u128, Held>>,
}

/// What a caller showed, without showing it.
type Digest = [u8; 32];

#[derive(Debug)]
struct Kept {
    keeper: Keeper,
    used: Instant,
}

/// A lease that a thin client holds.
#[derive(Clone)]
struct Held {
    principal: Arc<str>,
    guard: Arc<tokio::sync::Mutex<LeaseGuard>>,
}

impl fmt::Debug for Held {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Held({})", self.principal)
    }
}

/// What a thin client is told of its lease.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct LeaseAnswer {
    pub(crate) handle: String,
    pub(crate) token: u64,
    pub(crate) valid_ms: u64,
    pub(crate) attempts: u32,
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
                // Its leases keep it running until they end.
                callers.remove(&oldest);
            }
        }
        let security = match token {
            Some(token) => self.security.clone().with_bearer(token.clone()),
            None => self.security.clone(),
        };
        let keeper = Keeper::spawn(&self.cluster, &security)
            .map_err(|error| Failure::NotReady(error.to_string()))?;
        let kept = Kept {
            keeper: keeper.clone(),
            used: now,
        };
        callers.insert(digest, kept);
        Ok(keeper)
    }

    /// Takes a lease for a thin client.
    pub(crate) async fn take_lease(
        &self,
        caller: &Caller,
        name: &Name,
        span: Option<Duration>,
        wait: Option<Duration>,
    ) -> Result<LeaseAnswer, Failure> {
        let keeper = self.keeper(caller)?;
        let waiting = self.waiting.clone().try_acquire_owned();
        let _waiting = waiting.map_err(|_| Failure::TooManyWaiters)?;
        let request = keeper.lease(name.bytes()).for_(span.unwrap_or(SPAN));
        let wait = wait.unwrap_or(WAIT).min(WAIT_MAX);
        let mut stopping = self.stopping.clone();
        let taken = async {
            if wait.is_zero() {
                return request.try_().await?.ok_or(LeaseError::TimedOut);
            }
            request.wait(wait).await
        };
        let guard = tokio::select! {
            taken = taken => taken?,
            _ = stopping.wait_for(|stopping| *stopping) => {
                return Err(Failure::NotReady("stopping".to_owned()));
            }
        };
        let mut id = [0; 16];
        getrandom::fill(&mut id)
            .map_err(|_| Failure::NotReady("without random numbers from its system".to_owned()))?;
        let id = u128::from_le_bytes(id);
        let answer = told(format!("{}-{id:032x}", self.id), &guard);
        let mut leases = locked(&self.keepers.leases);
        leases.retain(|_, held| held.guard.try_lock().is_ok_and(|guard| guard.is_held()));
        if leases.len() >= LEASES_MAX {
            return Err(failure(
                StatusCode::TOO_MANY_REQUESTS,
                "too_many_leases",
                "too many leases are held through this node; ask another one",
            ));
        }
        let held = Held {
            principal: caller.principal().into(),
            guard: Arc::new(tokio::sync::Mutex::new(guard)),
        };
        leases.insert(id, held);
        Ok(answer)
    }

    /// The lease of a handle, if it is the caller's and was given out by this node.
    fn lease_of(&self, caller: &Caller, handle: &str) -> Result<(u128, Held), Failure> {
        let (node, id) = handle.split_once('-').ok_or(Failure::Forged)?;
        let id = u128::from_str_radix(id, 16).map_err(|_| Failure::Forged)?;
        let node = node.parse::<u32>().map_err(|_| Failure::Forged)?;
        if node != self.id {
            return Err(failure(
                StatusCode::BAD_REQUEST,
                "other_node",
                format!("node {node} gave this lease out: renew and release it there"),
            ));
        }
        let held = locked(&self.keepers.leases).get(&id).cloned();
        let held = held.ok_or_else(ended)?;
        if *held.principal != *caller.principal() {
            return Err(Failure::Foreign);
        }
        Ok((id, held))
    }

    /// Extends a lease of a thin client.
    pub(crate) async fn renew_lease(
        &self,
        caller: &Caller,
        handle: &str,
    ) -> Result<LeaseAnswer, Failure> {
        let (_, held) = self.lease_of(caller, handle)?;
        let mut guard = held.guard.lock().await;
        guard.renew().await?;
        Ok(told(handle.to_owned(), &guard))
    }

    /// Gives a lease of a thin client back.
    pub(crate) fn release_lease(&self, caller: &Caller, handle: &str) -> Result<(), Failure> {
        let (id, held) = self.lease_of(caller, handle)?;
        // Whoever renews it just now gives it back when that is over.
        drop(held);
        let held = locked(&self.keepers.leases).remove(&id);
        let is_held = held.is_some_and(|held| {
            let guard = held.guard.try_lock();
            guard.map_or(true, |guard| guard.is_held())
        });
        if is_held { Ok(()) } else { Err(ended()) }
    }
}

fn ended() -> Failure {
    failure(
        StatusCode::GONE,
        "ended",
        "the lease has ended: stop using it, and acquire it again",
    )
}

fn told(handle: String, guard: &LeaseGuard) -> LeaseAnswer {
    LeaseAnswer {
        handle,
        token: guard.token(),
        valid_ms: u64::try_from(guard.remaining().as_millis()).unwrap_or(u64::MAX),
        attempts: guard.attempts(),
    }
}

impl From<LeaseError> for Failure {
    fn from(error: LeaseError) -> Self {
        let status = match &error {
            LeaseError::TimedOut => StatusCode::CONFLICT,
            LeaseError::Ended => StatusCode::GONE,
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
