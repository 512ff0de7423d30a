//! What a node keeps on disk, behind one narrow trait.

use conclave_protocol::lock::{Record, Stored};
use thiserror::Error;

/// Where a node's records go.
pub trait Store: Send {
    /// What the records so far add up to; none if there was never any.
    fn load(&mut self) -> Result<Option<Stored>, StoreError>;

    /// Writes records in order. When it returns they survive a crash and a loss of power. After an
    /// error nothing more may be written: the node stops.
    fn write(&mut self, records: &[Record]) -> Result<(), StoreError>;
}

/// Why the store cannot be used, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StoreError {
    /// The disk failed or is full.
    #[error("cannot write to {path}: {problem}; the node stops to keep its promises")]
    Write {
        /// Where.
        path: String,
        /// What the system said.
        problem: String,
    },
}
