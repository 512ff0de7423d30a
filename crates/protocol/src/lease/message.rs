//! What contenders and nodes say to each other about leases.

use std::time::Duration;

use crate::id::{ClientId, Name, NodeId, Token};
use crate::object::Rank;

/// What a lease is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Space {
    /// A user's lease.
    Lease,
    /// The right to order an object's operations.
    Object,
}

/// Which lease.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseKey {
    /// What it is for.
    pub space: Space,
    /// The name of the lease or of the object.
    pub name: Name,
}

/// One attempt of a client to get a lease. A client never uses a number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt {
    /// Whose.
    pub client: ClientId,
    /// Which of its attempts.
    pub number: u64,
}

/// What only the holder of a vote knows; each node has its own, so none can use it elsewhere.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub [u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Secret(..)")
    }
}

/// The hash of a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal(pub [u8; 32]);

impl Secret {
    /// The secret of an attempt for one node, from the seed that its client keeps to itself.
    pub fn new(seed: &[u8; 32], key: &LeaseKey, attempt: Attempt, node: NodeId) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(seed);
        hasher.update(&[key.space as u8]);
        hasher.update(&attempt.client.0.to_le_bytes());
        hasher.update(&attempt.number.to_le_bytes());
        hasher.update(&node.0.to_le_bytes());
        hasher.update(key.name.bytes());
        Self(*hasher.finalize().as_bytes())
    }

    /// What is shown of it beforehand.
    pub fn seal(&self) -> Seal {
        Seal(*blake3::hash(&self.0).as_bytes())
    }
}

/// What a contender asks of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseAsk {
    /// Give me your vote.
    Try(Try),
    /// Forget the vote you gave to this attempt.
    Release {
        /// The attempt.
        attempt: Attempt,
        /// Shows that it is the holder's wish.
        secret: Secret,
    },
    /// Count the vote you gave to this attempt from now on.
    Renew {
        /// The attempt.
        attempt: Attempt,
        /// Which of its rounds; answers name it.
        sub: u32,
        /// Shows that it is the holder's wish.
        secret: Secret,
    },
}

/// A request for a vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Try {
    /// Whose, and which.
    pub attempt: Attempt,
    /// Which round of the attempt: a new one for every new token.
    pub sub: u32,
    /// The token that the lease will have.
    pub token: Token,
    /// How long the lease is to last.
    pub span: Duration,
    /// The seal of the secret that releases and renews it at this node.
    pub seal: Seal,
    /// How long the node may keep the request while it is locked; zero asks for an answer at once.
    pub patience: Duration,
    /// How long its client has waited already: older ones are answered first.
    pub waited: Duration,
}

/// What a node answers, about which attempt and round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseReply {
    /// The attempt.
    pub attempt: Attempt,
    /// Its round; zero in answers to a release.
    pub sub: u32,
    /// The answer.
    pub answer: LeaseAnswer,
}

/// What a node answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseAnswer {
    /// You have my vote.
    Free {
        /// How long the request was kept before the vote was given.
        held: Duration,
        /// The largest rank that the node has seen, if the lease is an object's.
        rank: Option<Rank>,
    },
    /// Somebody else has it.
    Locked {
        /// Whether the request is kept until the vote is free.
        queued: bool,
        /// How long the vote is given away for at most. A hint.
        remaining: Duration,
        /// The largest token that the node has granted.
        token: Token,
        /// The largest rank that the node has seen, if the lease is an object's.
        rank: Option<Rank>,
    },
    /// The token is not larger than one that was granted.
    Stale {
        /// The largest token that the node has granted.
        token: Token,
    },
    /// The vote of this attempt is free again, or never was its.
    Released,
    /// Not now, or never.
    Refused(LeaseRefusal),
}

/// Why a node refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeaseRefusal {
    /// The caller may not.
    NotPermitted,
    /// The span is longer than the cluster allows, or nothing.
    Span,
    /// The token lies too far in the future.
    TokenTooFar,
    /// The node keeps as many leases as it may.
    Full,
    /// The name is too long, or empty.
    Name,
    /// The node does not serve yet.
    NotServing,
    /// The cluster's nodes are too few for what was asked.
    Infeasible,
}
