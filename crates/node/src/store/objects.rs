//! The store of a node's keeper, in the data directory of the node.
//!
//! | file | what |
//! |---|---|
//! | `objects/log` | the records, in the format of the node's journal |
//! | `objects/log.next` | the log that is being prepared |
//! | `objects.made` | says that there is a log: without it there never was one |
//!
//! The log begins with what all records so far add up to, and has as much room again for more. When
//! it is full a new one is written and put in its place; until it is on disk the old one is not
//! touched. So the log is never more than a few times as large as what it keeps.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use conclave_protocol::keeper::{KeeperRecord, KeeperStored};
use conclave_wire::keeper::{decode_record, encode_record};

use super::disk::{
    Identity, cannot_open, cannot_write, create, damaged, draw, make_directory, sync_directory,
};
use super::log::{FORMAT, Log, ReadError, read, size_of};
use super::{All, KeeperStore, StoreError};

const FOLDER: &str = "objects";
const LOG: &str = "log";
const NEXT: &str = "log.next";
const MADE: &str = "objects.made";

/// A log has at least so much room.
const CAPACITY_MIN: u64 = 1 << 20;
/// Records of a snapshot that make up one batch, in bytes.
const BATCH: usize = 4 << 20;
/// Bytes of cells in one record of a snapshot.
const PAGE_BYTES: usize = 256 << 10;

/// The keeper's records of one node. The node's own store must be open: its lock covers both.
#[derive(Debug)]
pub struct ObjectDisk {
    /// The data directory of the node.
    data: PathBuf,
    owner: u64,
    /// What was found, until it is loaded.
    found: Option<KeeperStored>,
    log: Log,
    failed: Option<StoreError>,
}

impl ObjectDisk {
    /// Opens the store in the data directory of node `node` (from 1) of `cluster`, and makes it if
    /// there is none.
    pub fn open(data: &Path, node: u32, cluster: &str) -> Result<Self, StoreError> {
        let folder = data.join(FOLDER);
        make_directory(&folder).map_err(|problem| cannot_open(&folder, &problem))?;
        let owner = Identity::new(node, cluster).owner();
        let (stored, touched) = find(data, owner)?;
        let log = begin(&folder, owner, &stored, touched)
            .map_err(|problem| cannot_write(&folder, &problem))?;
        mark_made(data).map_err(|problem| cannot_write(data, &problem))?;
        Ok(Self {
            data: data.to_owned(),
            owner,
            found: touched.then_some(stored),
            log,
            failed: None,
        })
    }

    fn try_write(&mut self, records: &[KeeperRecord], all: All<'_>) -> io::Result<()> {
        let bytes: Vec<Vec<u8>> = records.iter().map(encode_record).collect();
        let bytes = bytes.iter().map(Vec::as_slice);
        if self.log.fits(bytes.clone()) {
            return self.log.append(&bytes);
        }
        let folder = self.data.join(FOLDER);
        self.log = begin(&folder, self.owner, &all(), true)?;
        Ok(())
    }
}

impl KeeperStore for ObjectDisk {
    fn load(&mut self) -> Result<Option<KeeperStored>, StoreError> {
        Ok(self.found.take())
    }

    fn write(&mut self, records: &[KeeperRecord], all: All<'_>) -> Result<(), StoreError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        if records.is_empty() {
            return Ok(());
        }
        self.try_write(records, all).map_err(|problem| {
            // A failed sync leaves unknown what is on disk: trying again could report a success
            // that is none.
            let error = cannot_write(&self.data.join(FOLDER), &problem);
            self.failed = Some(error.clone());
            error
        })
    }
}

/// What the directory holds, and whether that is anything.
fn find(data: &Path, owner: u64) -> Result<(KeeperStored, bool), StoreError> {
    let (mut stored, mut touched) = (KeeperStored::new(), false);
    let path = data.join(FOLDER).join(LOG);
    let file = match OpenOptions::new().read(true).open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(cannot_open(&path, &error));
        }
        Err(_) if data.join(MADE).exists() => {
            return Err(damaged(data, "its log of objects is missing"));
        }
        Err(_) => return Ok((stored, touched)),
    };
    let result = read(&file, owner, |bytes| {
        let wrong = |problem: &dyn std::fmt::Display| ReadError::Damaged(problem.to_string());
        let record = decode_record(bytes).map_err(|problem| wrong(&problem))?;
        stored.apply(&record).map_err(|problem| wrong(&problem))?;
        touched = true;
        Ok(())
    });
    match result {
        Ok(()) => Ok((stored, touched)),
        Err(ReadError::Io(problem)) => Err(cannot_open(&path, &problem)),
        Err(ReadError::Damaged(what)) => Err(damaged(data, &format!("in objects/log, {what}"))),
        Err(ReadError::Format(found)) => Err(StoreError::Format {
            path: path.display().to_string(),
            found,
            known: FORMAT,
        }),
    }
}

/// Writes what is stored as a new log and puts it in its place.
fn begin(folder: &Path, owner: u64, stored: &KeeperStored, touched: bool) -> io::Result<Log> {
    let next = folder.join(NEXT);
    match fs::remove_file(&next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let sizes = batches(stored, touched).map(|batch| size_of(batch.iter().map(Vec::as_slice)));
    let size: u64 = sizes.sum();
    let capacity = CAPACITY_MIN.max(2 * size);
    let parts = batches(stored, touched);
    let log = Log::begin_in_parts(create(&next)?, owner, draw()?, capacity, parts)?;
    fs::rename(&next, folder.join(LOG))?;
    sync_directory(folder)?;
    Ok(log)
}

/// The records that add up to what is stored, as bytes, some at a time; the first batch may be
/// empty.
fn batches(stored: &KeeperStored, touched: bool) -> impl Iterator<Item = Vec<Vec<u8>>> + use<'_> {
    let records = touched.then(|| stored.records(PAGE_BYTES));
    let mut records = records.into_iter().flatten();
    let mut first = true;
    std::iter::from_fn(move || {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while bytes < BATCH
            && let Some(record) = records.next()
        {
            let record = encode_record(&record);
            bytes += record.len();
            batch.push(record);
        }
        let more = std::mem::take(&mut first) || !batch.is_empty();
        more.then_some(batch)
    })
}

fn mark_made(data: &Path) -> io::Result<()> {
    let path = data.join(MADE);
    if path.exists() {
        return Ok(());
    }
    File::create(&path)?.sync_all()?;
    sync_directory(data)
}
