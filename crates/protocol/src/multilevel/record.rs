//! What a node of a hierarchy keeps on disk.

use std::collections::BTreeMap;
use std::time::Duration;

use super::message::{Block, GrantId, Id, Place};
use crate::id::Token;

/// What is written to disk. Only arbiters of the root write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LevelRecord<L> {
    /// The root's permission was given.
    Grant(L, Kept),
    /// It is free again.
    Free(L),
    /// Tokens up to this one may be promised, and leases of up to this length.
    Promise {
        /// The largest token.
        ceiling: Token,
        /// The longest lease.
        lease: Duration,
    },
}

/// A permission of the root as it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kept {
    /// Whose it is.
    pub rid: Id,
    /// Its place in the order.
    pub place: Place,
    /// Its number.
    pub grant: GrantId,
    /// The tokens reserved for it.
    pub block: Block,
    /// How long it is kept for a silent holder.
    pub span: Duration,
}

/// What a node finds on its disk when it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelStored<L> {
    /// Permissions that were not freed.
    pub grants: BTreeMap<L, Kept>,
    /// The largest token that may have been promised in any lock.
    pub ceiling: Token,
    /// The longest lease that may have been promised.
    pub lease: Duration,
    /// Whether the disk was lost: then this is the most that may have been promised, and every
    /// lease is waited for, whatever the restart policy.
    pub lost: bool,
}

impl<L> Default for LevelStored<L> {
    fn default() -> Self {
        Self {
            grants: BTreeMap::new(),
            ceiling: Token(0),
            lease: Duration::ZERO,
            lost: false,
        }
    }
}

impl<L: Ord + Clone> LevelStored<L> {
    /// Takes note of one record.
    pub fn apply(&mut self, record: &LevelRecord<L>) {
        match record {
            LevelRecord::Grant(lock, kept) => {
                self.grants.insert(lock.clone(), *kept);
                self.ceiling = self.ceiling.max(kept.block.to);
                self.lease = self.lease.max(kept.span);
            }
            LevelRecord::Free(lock) => {
                self.grants.remove(lock);
            }
            LevelRecord::Promise { ceiling, lease } => {
                self.ceiling = self.ceiling.max(*ceiling);
                self.lease = self.lease.max(*lease);
            }
        }
    }
}
