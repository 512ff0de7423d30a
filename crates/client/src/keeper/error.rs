//! What can go wrong with leases and objects, and what helps.

use conclave_protocol::id::NodeId;
use conclave_protocol::lease::LeaseRefusal;
use conclave_protocol::object::{KindError, ObjectRefusal};
use thiserror::Error;

use super::Keeper;
use super::object::Pending;
use crate::error::listed;

/// Why neither leases nor objects can be had.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Trouble {
    /// Too few nodes can be reached.
    #[error(
        "no quorum: {reachable} of {nodes} nodes can be reached and {needed} are needed{}; \
         start or reconnect them",
        listed(troubles)
    )]
    NoQuorum {
        /// How many nodes are connected.
        reachable: usize,
        /// How many there are.
        nodes: usize,
        /// How many are needed.
        needed: usize,
        /// What went wrong with the others.
        troubles: Vec<(NodeId, String)>,
    },
    /// The nodes want to know who asks, and do not accept what was shown.
    #[error("not authenticated: the nodes accept no such token; ask the operator for a valid one")]
    NotAuthenticated,
    /// Too few endpoints say the same about the cluster.
    #[error(
        "{equal} of the endpoints agree about the cluster, and {needed} must, as {byzantine} \
         nodes may lie; name more endpoints, or give the cluster file"
    )]
    Unconfirmed {
        /// So many said the same.
        equal: usize,
        /// So many must.
        needed: usize,
        /// How many nodes may lie.
        byzantine: usize,
    },
    /// One token for all nodes, some of which may lie.
    #[error(
        "one token for all nodes is not safe where {byzantine} of them may lie: any of them could \
         use it at the others; give one token per node, or a client certificate"
    )]
    SharedToken {
        /// How many nodes may lie.
        byzantine: usize,
    },
    /// The cluster keeps no objects.
    #[error("this cluster keeps no objects: its file says objects = \"off\"")]
    NoObjects,
    /// The description of the cluster makes no sense.
    #[error("the description of the cluster is wrong: {0}")]
    Cluster(String),
    /// This client has as much under way as it may.
    #[error("too much is under way in this client; wait until some of it is done")]
    Busy,
    /// The client was closed, or its runtime ended.
    #[error("the client is closed; connect again")]
    Closed,
    /// What was held or wanted ended with the configuration of the cluster.
    #[error("the cluster has another configuration; ask again")]
    Reconfigured,
    /// The client closed itself: what it held is lost.
    #[error("a fault in the client closed it: {0}; connect again, and please report it")]
    Fault(String),
}

impl Trouble {
    /// Its name, for programs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::NoQuorum { .. } => "no_quorum",
            Self::NotAuthenticated => "not_authenticated",
            Self::Unconfirmed { .. } => "unconfirmed",
            Self::SharedToken { .. } => "shared_token",
            Self::NoObjects => "no_objects",
            Self::Cluster(_) => "cluster",
            Self::Busy => "busy",
            Self::Closed => "closed",
            Self::Reconfigured => "reconfigured",
            Self::Fault(_) => "fault",
        }
    }
}

/// Why a lease was not had.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// Somebody else had it all the time.
    #[error("not acquired in time; ask again or wait longer")]
    TimedOut,
    /// Enough nodes refuse it.
    #[error("refused: {}", lease_words(*.0))]
    Refused(LeaseRefusal),
    /// It has ended.
    #[error("the lease has ended; what was done last may need a look")]
    Ended,
    /// Too few nodes renewed it; it ends when it was to end.
    #[error("too few nodes renewed the lease; it ends when it was to end")]
    NotRenewed,
    /// Too few nodes said that they have forgotten it.
    #[error("too few nodes confirmed the release; ask again, or the lease ends by itself")]
    NotReleased,
    /// Leases cannot be had.
    #[error(transparent)]
    Trouble(#[from] Trouble),
}

impl LeaseError {
    /// Its name, for programs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::TimedOut => "timed_out",
            Self::Refused(why) => lease_name(*why),
            Self::Ended => "ended",
            Self::NotRenewed => "not_renewed",
            Self::NotReleased => "not_released",
            Self::Trouble(trouble) => trouble.name(),
        }
    }
}

fn lease_name(why: LeaseRefusal) -> &'static str {
    match why {
        LeaseRefusal::NotPermitted => "not_permitted",
        LeaseRefusal::Span => "span",
        LeaseRefusal::TokenTooFar => "token_too_far",
        LeaseRefusal::Full => "full",
        LeaseRefusal::Name => "name",
        LeaseRefusal::NotServing => "not_serving",
        LeaseRefusal::Infeasible => "infeasible",
    }
}

fn lease_words(why: LeaseRefusal) -> &'static str {
    match why {
        LeaseRefusal::NotPermitted => "you may not take this lease; ask the operator",
        LeaseRefusal::Span => "the lease is longer than the cluster allows (span_max), or nothing",
        LeaseRefusal::TokenTooFar => "the clock of this machine is far ahead of the nodes'; set it",
        LeaseRefusal::Full => "the nodes keep as many leases as they may; try again later",
        LeaseRefusal::Name => "the name is empty or too long",
        LeaseRefusal::NotServing => "the nodes do not serve yet; try again in a minute",
        LeaseRefusal::Infeasible => "the cluster has too few nodes for that many liars",
    }
}

/// Why an operation on an object has no answer, or not the one that was hoped for.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// It took too long; nothing was changed by it.
    #[error("no answer in time; ask again or wait longer")]
    TimedOut,
    /// It took too long, and may still be done.
    #[error("no answer in time: whether operation {} was done or will be is not known", .0.id())]
    Unknown(Pending),
    /// The kind of object says no.
    #[error("{0}")]
    Kind(#[from] KindError),
    /// Enough nodes refuse it.
    #[error("refused: {}", object_words(*.0))]
    Refused(ObjectRefusal),
    /// The object is of another kind.
    #[error("the object is of another kind, or was made by newer code; use the kind it has")]
    OtherKind,
    /// The answer makes no sense.
    #[error("the answer cannot be read; are all clients of the same version?")]
    Unreadable,
    /// Objects cannot be had.
    #[error(transparent)]
    Trouble(#[from] Trouble),
}

impl ObjectError {
    /// Its name, for programs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::TimedOut => "timed_out",
            Self::Unknown(_) => "unknown",
            Self::Kind(KindError::Unreadable) | Self::Unreadable => "unreadable",
            Self::Kind(KindError::TooLarge) => "too_large",
            Self::Kind(KindError::VersionMismatch { .. }) => "version_mismatch",
            Self::Kind(KindError::Empty) => "empty",
            Self::Kind(KindError::Overflow) => "overflow",
            Self::Refused(why) => object_name(*why),
            Self::OtherKind => "other_kind",
            Self::Trouble(trouble) => trouble.name(),
        }
    }
}

fn object_name(why: ObjectRefusal) -> &'static str {
    match why {
        ObjectRefusal::NotPermitted => "not_permitted",
        ObjectRefusal::TooLarge => "too_large",
        ObjectRefusal::Full => "full",
        ObjectRefusal::Name => "name",
        ObjectRefusal::NotServing => "not_serving",
        ObjectRefusal::Unknown => "unknown_state",
        ObjectRefusal::Contradiction => "contradiction",
        ObjectRefusal::Older => "older",
        ObjectRefusal::Proof => "proof",
        ObjectRefusal::Infeasible => "infeasible",
        ObjectRefusal::Forgotten => "forgotten",
    }
}

fn object_words(why: ObjectRefusal) -> &'static str {
    match why {
        ObjectRefusal::NotPermitted => "you may not do this to the object; ask its owner",
        ObjectRefusal::TooLarge => "the operation or the object would be larger than allowed",
        ObjectRefusal::Full => "the nodes keep as much as they may; try again later",
        ObjectRefusal::Name => "the name is empty or too long",
        ObjectRefusal::NotServing => "the nodes do not serve yet; try again in a minute",
        ObjectRefusal::Unknown => "the nodes do not know that state; try again",
        ObjectRefusal::Contradiction => "the nodes saw two states under one rank; tell us",
        ObjectRefusal::Older => "the state is older than the committed one; try again",
        ObjectRefusal::Proof => "the nodes want signed ranks",
        ObjectRefusal::Infeasible => "the cluster has too few nodes for objects",
        ObjectRefusal::Forgotten => "this client was away for so long that it was forgotten",
    }
}

/// Why too few nodes take this client in, as far as the driver knows; none if enough do.
pub(super) fn trouble(keeper: &Keeper, needed: usize) -> Option<Trouble> {
    if let Some(words) = keeper.fault() {
        return Some(Trouble::Fault(words.to_string()));
    }
    if keeper.is_outdated() {
        return Some(Trouble::Reconfigured);
    }
    if keeper.is_unauthenticated() && keeper.is_hopeless() {
        return Some(Trouble::NotAuthenticated);
    }
    let reachable = keeper.reachable();
    (reachable < needed).then(|| Trouble::NoQuorum {
        reachable,
        nodes: keeper.lease_config().faults.nodes(),
        needed,
        troubles: keeper.troubles(),
    })
}
