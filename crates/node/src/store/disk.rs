//! The store of a data directory.
//!
//! | file | what |
//! |---|---|
//! | `lock` | locked by the process that uses the directory; its pid |
//! | `identity` | whose data this is: format, cluster, node, checksum |
//! | `journal` | the records, see the format in `log.rs` |
//! | `journal.next` | the journal that is being prepared, or a former one to be used again |
//!
//! A journal is written to only by the process that began it: opening reads the old one, writes
//! the state it adds up to as a new one and puts it in its place, and so does a journal that is
//! full. Until the new one is on disk the old one is not touched.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use conclave_protocol::lock::{Record, Stored};
use conclave_wire::record;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use tracing::debug;

use super::live::Live;
use super::log::{FORMAT, Log, ReadError, read};
use super::{Store, StoreError};

const LOCK: &str = "lock";
const IDENTITY: &str = "identity";
const JOURNAL: &str = "journal";
const NEXT: &str = "journal.next";
const IDENTITY_NEXT: &str = "identity.next";
/// What a file system puts at the top of a new disk.
const LOST_AND_FOUND: &str = "lost+found";

/// A journal begins with this much room per copy, and grows up to the most if it fills up.
const CAPACITY_MIN: u64 = 1 << 20;
const CAPACITY_MAX: u64 = 16 << 20;

/// The records of one node in a directory.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
    /// Held for as long as the store is open.
    _lock: File,
    owner: u64,
    live: Live,
    log: Log,
    /// The former journal, to be used again.
    spare: Option<Log>,
    failed: Option<StoreError>,
}

impl Disk {
    /// See [`super::open`].
    pub fn open(path: &Path, node: u32, cluster: &str) -> Result<Self, StoreError> {
        make_directory(path).map_err(|problem| cannot_open(path, &problem))?;
        let lock = lock(path)?;
        let identity = Identity::new(node, cluster);
        let live = find(path, &identity)?;
        let begun = begin(path, identity.owner(), CAPACITY_MIN, &live);
        let log = begun.map_err(|problem| cannot_write(path, &problem))?;
        replace(path, false).map_err(|problem| cannot_write(path, &problem))?;
        identity
            .write(path)
            .map_err(|problem| cannot_write(path, &problem))?;
        Ok(Self {
            path: path.to_owned(),
            _lock: lock,
            owner: identity.owner(),
            live,
            log,
            spare: None,
            failed: None,
        })
    }

    fn try_write(&mut self, records: &[Record]) -> io::Result<()> {
        let bytes: Vec<Vec<u8>> = records.iter().map(record::encode).collect();
        let fits = self.log.fits(bytes.iter().map(Vec::as_slice));
        if fits {
            self.log.append(&bytes.iter().map(Vec::as_slice))?;
        }
        for (record, bytes) in records.iter().zip(bytes) {
            self.live.apply(record, bytes);
        }
        if fits {
            return Ok(());
        }
        self.rewrite()
    }

    /// Writes the state as a new journal and puts it in the place of the full one.
    fn rewrite(&mut self) -> io::Result<()> {
        let reused = match self.spare.take() {
            Some(spare) => spare.again(self.owner, draw()?, &self.live.records())?,
            None => None,
        };
        let log = if let Some(log) = reused {
            log
        } else {
            let capacity = (2 * self.log.capacity()).clamp(CAPACITY_MIN, CAPACITY_MAX);
            begin(&self.path, self.owner, capacity, &self.live)?
        };
        let kept = replace(&self.path, true)?;
        let former = std::mem::replace(&mut self.log, log);
        self.spare = (kept && former.capacity() == self.log.capacity()).then_some(former);
        Ok(())
    }
}

impl Store for Disk {
    fn load(&mut self) -> Result<Option<Stored>, StoreError> {
        self.live
            .stored()
            .map_err(|problem| damaged(&self.path, &problem.to_string()))
    }

    fn write(&mut self, records: &[Record]) -> Result<(), StoreError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        if records.is_empty() {
            return Ok(());
        }
        self.try_write(records).map_err(|problem| {
            // A failed sync leaves unknown what is on disk: trying again could report a success
            // that is none.
            let error = cannot_write(&self.path, &problem);
            self.failed = Some(error.clone());
            error
        })
    }
}

/// Whose data a directory holds.
pub(super) struct Identity {
    node: u32,
    cluster: String,
}

impl Identity {
    pub(super) fn new(node: u32, cluster: &str) -> Self {
        Self {
            node,
            cluster: cluster.to_owned(),
        }
    }

    fn text(&self, format: u32) -> String {
        let body = format!(
            "conclave data {format}\nnode {}\ncluster {:?}\n",
            self.node, self.cluster
        );
        let sum = blake3::hash(body.as_bytes()).to_hex();
        format!("{body}checksum {sum}\n")
    }

    /// Binds the journal to this identity.
    pub(super) fn owner(&self) -> u64 {
        let hash = blake3::hash(self.text(FORMAT).as_bytes());
        let mut owner = [0; 8];
        owner.copy_from_slice(&hash.as_bytes()[..8]);
        u64::from_le_bytes(owner)
    }

    /// Checks that the directory's identity, if it has one, is this one.
    fn check(&self, path: &Path) -> Result<bool, StoreError> {
        let mut text = String::new();
        let read = match File::open(path.join(IDENTITY)) {
            Ok(file) => file.take(IDENTITY_MAX).read_to_string(&mut text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(cannot_open(path, &error)),
        };
        match read {
            Err(error) if error.kind() != io::ErrorKind::InvalidData => {
                return Err(cannot_open(path, &error));
            }
            _ if text == self.text(FORMAT) => return Ok(true),
            _ => {}
        }
        let Some((body, sum)) = text.split_once("checksum ") else {
            return Err(damaged(path, "its identity file is not one"));
        };
        if sum.trim_end() != blake3::hash(body.as_bytes()).to_hex().as_str() {
            return Err(damaged(path, "the checksum of its identity file is wrong"));
        }
        let mut lines = body.lines();
        let format = lines
            .next()
            .and_then(|line| line.strip_prefix("conclave data "));
        match format.and_then(|format| format.parse().ok()) {
            Some(FORMAT) => Err(StoreError::OtherNode {
                path: path.display().to_string(),
                found: lines.collect::<Vec<_>>().join(" of "),
                wanted: format!("node {} of cluster {:?}", self.node, self.cluster),
            }),
            Some(found) => Err(StoreError::Format {
                path: path.display().to_string(),
                found,
                known: FORMAT,
            }),
            None => Err(damaged(path, "its identity file is not one")),
        }
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let to = path.join(IDENTITY);
        if to.exists() {
            return Ok(());
        }
        let from = path.join(IDENTITY_NEXT);
        let mut file = create(&from)?;
        file.write_all(self.text(FORMAT).as_bytes())?;
        file.sync_all()?;
        fs::rename(from, to)?;
        sync_directory(path)
    }
}

/// What the directory holds; nothing if it is new.
fn find(path: &Path, identity: &Identity) -> Result<Live, StoreError> {
    let known = identity.check(path)?;
    let mut live = Live::default();
    match OpenOptions::new().read(true).open(path.join(JOURNAL)) {
        Ok(file) => read_into(path, &file, identity.owner(), &mut live)?,
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(cannot_open(path, &error));
        }
        Err(_) if known => return Err(damaged(path, "its journal is missing")),
        Err(_) => no_strangers(path)?,
    }
    // The identity is written last when a directory is made, before the first record.
    if !known && !live.is_new() {
        return Err(damaged(path, "its identity file is missing"));
    }
    Ok(live)
}

fn read_into(path: &Path, file: &File, owner: u64, live: &mut Live) -> Result<(), StoreError> {
    let kind = file.metadata().map(|meta| meta.is_file());
    if !kind.map_err(|problem| cannot_open(path, &problem))? {
        return Err(damaged(path, "its journal is not a file"));
    }
    let result = read(file, owner, |bytes| {
        let record = record::decode(bytes)
            .map_err(|problem| ReadError::Damaged(format!("in its journal, {problem}")))?;
        live.apply(&record, bytes.to_vec());
        Ok(())
    });
    result.map_err(|error| match error {
        ReadError::Io(problem) => cannot_open(path, &problem),
        ReadError::Damaged(what) => damaged(path, &what),
        ReadError::Format(found) => StoreError::Format {
            path: path.display().to_string(),
            found,
            known: FORMAT,
        },
    })
}

pub(super) fn make_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => sync_directory(Path::new(".")),
        Some(parent) => sync_directory(parent),
        None => Ok(()),
    }
}

/// Refuses a directory that somebody else uses for something else.
fn no_strangers(path: &Path) -> Result<(), StoreError> {
    let entries = fs::read_dir(path).map_err(|problem| cannot_open(path, &problem))?;
    for entry in entries {
        let name = entry
            .map_err(|problem| cannot_open(path, &problem))?
            .file_name();
        let ours = [LOCK, NEXT, IDENTITY_NEXT, LOST_AND_FOUND];
        if !ours.iter().any(|ours| name == OsStr::new(ours)) {
            return Err(StoreError::Foreign {
                path: path.display().to_string(),
                what: format!("{:?}", name.to_string_lossy()),
            });
        }
    }
    Ok(())
}

fn lock(path: &Path) -> Result<File, StoreError> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path.join(LOCK))
        .map_err(|problem| cannot_open(path, &problem))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let _ = (&file).take(20).read_to_string(&mut pid);
            let known = !pid.trim().is_empty();
            return Err(StoreError::InUse {
                path: path.display().to_string(),
                pid: if known { pid.trim() } else { "unknown" }.to_owned(),
            });
        }
        Err(TryLockError::Error(problem)) => return Err(cannot_open(path, &problem)),
    }
    // The pid only helps people; a disk too full for it is found when it matters.
    let _ = file.set_len(0);
    let _ = write!(file, "{}", std::process::id());
    Ok(file)
}

fn begin(path: &Path, owner: u64, capacity: u64, live: &Live) -> io::Result<Log> {
    let next = path.join(NEXT);
    match fs::remove_file(&next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let size: u64 = live.records().map(|record| record.len() as u64 + 8).sum();
    let capacity = capacity.max(2 * size);
    Log::begin(create(&next)?, owner, draw()?, capacity, &live.records())
}

/// Puts the next journal in its place; says whether the former one was kept as the next one.
fn replace(path: &Path, keep: bool) -> io::Result<bool> {
    let (from, to) = (path.join(NEXT), path.join(JOURNAL));
    let kept = keep && renameat_with(CWD, &from, CWD, &to, RenameFlags::EXCHANGE).is_ok();
    if !kept {
        debug!(path = %path.display(), "a new journal takes the place of the old one");
        fs::rename(&from, &to)?;
    }
    sync_directory(path)?;
    Ok(kept)
}

pub(super) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
}

pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// A number that no other journal of this directory has.
pub(super) fn draw() -> io::Result<u64> {
    let drawn = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
    Ok(drawn.max(1))
}

pub(super) fn cannot_open(path: &Path, problem: &io::Error) -> StoreError {
    StoreError::Open {
        path: path.display().to_string(),
        problem: problem.to_string(),
    }
}

pub(super) fn cannot_write(path: &Path, problem: &io::Error) -> StoreError {
    StoreError::Write {
        path: path.display().to_string(),
        problem: problem.to_string(),
    }
}

pub(super) fn damaged(path: &Path, what: &str) -> StoreError {
    StoreError::Damaged {
        path: path.display().to_string(),
        what: what.to_owned(),
    }
}

/// More than any identity file has.
const IDENTITY_MAX: u64 = 64 << 10;
