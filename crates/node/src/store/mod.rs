//! What a node keeps on disk, behind one narrow trait.
//!
//! [`open`] gives the store of a data directory, a journal of our own ([`disk`]); [`Memory`] keeps
//! records for tests, and [`faulty`] makes any store fail or wait on command.

pub mod disk;
pub mod faulty;
mod live;
mod log;
pub mod objects;

use std::path::Path;

use conclave_protocol::keeper::{KeeperRecord, KeeperStored};
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

impl<S: Store + ?Sized> Store for Box<S> {
    fn load(&mut self) -> Result<Option<Stored>, StoreError> {
        (**self).load()
    }

    fn write(&mut self, records: &[Record]) -> Result<(), StoreError> {
        (**self).write(records)
    }
}

/// Where the records of a node's keeper go: leases and objects.
pub trait KeeperStore: Send {
    /// What the records so far add up to; none if there was never any.
    fn load(&mut self) -> Result<Option<KeeperStored>, StoreError>;

    /// Writes records in order. When it returns they survive a crash and a loss of power. After an
    /// error nothing more may be written: the node stops. `all` tells what all records, these
    /// included, add up to.
    fn write(&mut self, records: &[KeeperRecord], all: All<'_>) -> Result<(), StoreError>;
}

/// Tells what the keeper's records add up to.
pub type All<'a> = &'a dyn Fn() -> KeeperStored;

impl<S: KeeperStore + ?Sized> KeeperStore for Box<S> {
    fn load(&mut self) -> Result<Option<KeeperStored>, StoreError> {
        (**self).load()
    }

    fn write(&mut self, records: &[KeeperRecord], all: All<'_>) -> Result<(), StoreError> {
        (**self).write(records, all)
    }
}

/// Opens the store of node `node` (from 1) of `cluster` in this directory, and makes it if there
/// is none. No other process can open it until the result is dropped.
pub fn open(path: &Path, node: u32, cluster: &str) -> Result<Box<dyn Store>, StoreError> {
    Ok(Box::new(disk::Disk::open(path, node, cluster)?))
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
    /// The directory or a file in it cannot be made or read.
    #[error("cannot open {path}: {problem}; check the path, its owner and the disk")]
    Open {
        /// Where.
        path: String,
        /// What the system said.
        problem: String,
    },
    /// Another process has the directory open.
    #[error(
        "{path} is used by another process (pid {pid}); stop it, or give this node a directory \
         of its own"
    )]
    InUse {
        /// The directory.
        path: String,
        /// The other process, as far as it said.
        pid: String,
    },
    /// The directory belongs to another node or cluster.
    #[error("{path} holds the data of {found}, not of {wanted}; give the directory of {wanted}")]
    OtherNode {
        /// The directory.
        path: String,
        /// Whose it is.
        found: String,
        /// Who opened it.
        wanted: String,
    },
    /// The directory holds something else.
    #[error(
        "{path} is not a data directory: it holds {what}; give one that is empty or does not \
         exist"
    )]
    Foreign {
        /// The directory.
        path: String,
        /// What was found in it.
        what: String,
    },
    /// The directory was written in a format that this version does not know.
    #[error("{path} has data format {found}, this version knows {known}; start a newer version")]
    Format {
        /// The directory.
        path: String,
        /// Its format.
        found: u32,
        /// The one that is known.
        known: u32,
    },
    /// What the directory holds is not what was written there.
    #[error(
        "{path} is damaged: {what}; bring back the undamaged disk (never an older copy), or \
         remove the directory and start the node as one that lost its disk"
    )]
    Damaged {
        /// The directory.
        path: String,
        /// What is wrong.
        what: String,
    },
}

/// A store that keeps its records in memory: nothing survives.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    stored: Option<Stored>,
}

impl Memory {
    /// A store with these contents.
    pub fn holding(stored: Option<Stored>) -> Self {
        Self { stored }
    }
}

impl Store for Memory {
    fn load(&mut self) -> Result<Option<Stored>, StoreError> {
        Ok(self.stored.clone())
    }

    fn write(&mut self, records: &[Record]) -> Result<(), StoreError> {
        for record in records {
            self.stored.get_or_insert_default().apply(record.clone());
        }
        Ok(())
    }
}

/// A keeper's store in memory: nothing survives.
#[derive(Clone, Debug, Default)]
pub struct KeeperMemory {
    stored: Option<KeeperStored>,
}

impl KeeperMemory {
    /// A store with these contents.
    pub fn holding(stored: Option<KeeperStored>) -> Self {
        Self { stored }
    }
}

impl KeeperStore for KeeperMemory {
    fn load(&mut self) -> Result<Option<KeeperStored>, StoreError> {
        Ok(self.stored.clone())
    }

    fn write(&mut self, _records: &[KeeperRecord], all: All<'_>) -> Result<(), StoreError> {
        self.stored = Some(all());
        Ok(())
    }
}
