//! Signed ranks, for clusters that ask for them.
//!
//! A client signs the object's name and its rank; a node that refuses an attempt shows the signed
//! rank that it has seen. Then one node's word is enough to give up: it cannot invent a rank. It
//! can show old ones one by one, so whoever gives up goes above the rank by a random margin.

use std::fmt;
use std::sync::Arc;

use super::message::Rank;
use crate::id::Name;

/// Signs the ranks of this client.
pub trait RankSigner: fmt::Debug + Send + Sync {
    /// The signature of an object's name and a rank.
    fn sign(&self, object: &Name, rank: Rank) -> Arc<[u8]>;
}

/// Knows the signatures of all clients that may order.
pub trait RankVerifier: fmt::Debug + Send + Sync {
    /// Whether a client signed this that may have this rank.
    fn valid(&self, object: &Name, rank: Rank, proof: &[u8]) -> bool;
}

/// How a client signs its ranks and knows those of others.
#[derive(Clone, Debug)]
pub struct Signing {
    /// Signs.
    pub signer: Arc<dyn RankSigner>,
    /// Knows.
    pub verifier: Arc<dyn RankVerifier>,
}

/// The most bytes of a signature.
pub const PROOF_MAX: usize = 1024;

/// The largest margin by which an attempt goes above a rank that it was shown.
pub const MARGIN: u64 = 1 << 10;

/// The round to go on with after a valid larger rank was shown.
pub fn above(shown: Rank, chance: u64) -> u64 {
    shown.round.saturating_add(1 + chance % MARGIN)
}
