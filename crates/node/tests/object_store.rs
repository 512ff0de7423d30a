//! The store of leases and objects: what a crash leaves is taken up, damage is refused.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use conclave_node::store::objects::ObjectDisk;
use conclave_node::store::{KeeperStore, StoreError};
use conclave_protocol::id::{ClientId, Name, Token};
use conclave_protocol::keeper::{KeeperRecord, KeeperStored};
use conclave_protocol::object::{Carry, Delta, How, Rank, State};

/// Records and what they add up to.
struct Book {
    stored: KeeperStored,
    state: State,
    round: u64,
    bytes: usize,
}

impl Book {
    fn new(bytes: usize) -> Self {
        Self {
            stored: KeeperStored::new(),
            state: State::new(),
            round: 0,
            bytes,
        }
    }

    /// The records of the next commit, which changes one cell of this size.
    fn next(&mut self) -> Vec<KeeperRecord> {
        self.round += 1;
        let object = Name::new("map");
        let rank = Rank {
            round: self.round,
            client: ClientId(1),
        };
        let cell: Arc<[u8]> = (self.round % 50).to_be_bytes().as_slice().into();
        let value: Arc<[u8]> = vec![self.round as u8; self.bytes].into();
        let delta = Delta::new(vec![(cell, Some(value))]);
        let base = self.state.stamp();
        self.state = self.state.next(&delta).unwrap();
        let stamp = self.state.stamp();
        let proof = None;
        let records = vec![
            KeeperRecord::Mark(Token(self.round)),
            KeeperRecord::Proposed {
                object: object.clone(),
                rank,
                stamp,
                how: How::Carry(Carry {
                    base,
                    deltas: vec![delta],
                }),
                proof: None,
            },
            KeeperRecord::Committed {
                object,
                rank,
                stamp,
                how: How::Held,
                proof,
            },
        ];
        for record in &records {
            self.stored.apply(record).unwrap();
        }
        records
    }

    fn write(&mut self, disk: &mut ObjectDisk) {
        let records = self.next();
        let stored = self.stored.clone();
        disk.write(&records, &|| stored.clone()).unwrap();
    }
}

fn open(path: &Path) -> Result<ObjectDisk, StoreError> {
    ObjectDisk::open(path, 1, "test")
}

fn found(path: &Path) -> KeeperStored {
    open(path).unwrap().load().unwrap().expect("records")
}

fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to.join("objects")).unwrap();
    for file in ["objects/log", "objects.made"] {
        fs::copy(from.join(file), to.join(file)).unwrap();
    }
}

#[test]
fn a_new_store_has_nothing_and_an_old_one_everything() {
    let folder = tempfile::tempdir().unwrap();
    let mut disk = open(folder.path()).unwrap();
    assert!(disk.load().unwrap().is_none());
    drop(disk);
    assert!(open(folder.path()).unwrap().load().unwrap().is_none());
    let mut book = Book::new(1000);
    for _ in 0..3 {
        let mut disk = open(folder.path()).unwrap();
        for _ in 0..20 {
            book.write(&mut disk);
        }
        drop(disk);
        assert!(found(folder.path()) == book.stored);
    }
}

#[test]
fn a_full_log_begins_anew_and_stays_small() {
    let folder = tempfile::tempdir().unwrap();
    let mut disk = open(folder.path()).unwrap();
    // 50 cells of 20 kB: a megabyte that is written again and again.
    let mut book = Book::new(20_000);
    for round in 0..300 {
        book.write(&mut disk);
        if round % 60 == 0 {
            let image = folder.path().join("image");
            copy(folder.path(), &image);
            assert!(found(&image) == book.stored, "round {round}");
        }
    }
    drop(disk);
    assert!(found(folder.path()) == book.stored);
    let size = fs::metadata(folder.path().join("objects/log"))
        .unwrap()
        .len();
    assert!(size < 20 << 20, "{size}");
}

#[test]
fn what_was_being_written_when_the_power_went_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let mut disk = open(folder.path()).unwrap();
    let mut book = Book::new(300);
    (0..5).for_each(|_| book.write(&mut disk));
    let before = fs::read(folder.path().join("objects/log")).unwrap();
    let confirmed = book.stored.clone();
    book.write(&mut disk);
    let after = fs::read(folder.path().join("objects/log")).unwrap();
    let differing: Vec<usize> = (0..after.len())
        .filter(|at| before[*at] != after[*at])
        .map(|at| at / 512)
        .collect();
    let mut sectors = differing;
    sectors.dedup();
    // Any of the sectors may have reached the disk, in any order.
    for choice in 0..1_u32 << sectors.len().min(8) {
        copy(folder.path(), &image);
        let mut bytes = before.clone();
        for (place, sector) in sectors.iter().enumerate() {
            if choice >> place & 1 == 1 {
                let part = sector * 512..(sector + 1) * 512;
                bytes[part.clone()].copy_from_slice(&after[part]);
            }
        }
        fs::write(image.join("objects/log"), &bytes).unwrap();
        let stored = found(&image);
        assert!(
            stored == confirmed || stored == book.stored,
            "choice {choice:b}"
        );
    }
}

#[test]
fn damage_is_refused_and_never_rebuilt() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let mut disk = open(folder.path()).unwrap();
    let mut book = Book::new(100);
    (0..4).for_each(|_| book.write(&mut disk));
    drop(disk);
    // What was read is written as a new log: its one batch, and one more behind it.
    let mut disk = open(folder.path()).unwrap();
    book.write(&mut disk);
    let log = folder.path().join("objects/log");
    let bytes = fs::read(&log).unwrap();
    for at in (0..6000).step_by(41) {
        copy(folder.path(), &image);
        let mut changed = bytes.clone();
        changed[at] ^= 0x40;
        fs::write(image.join("objects/log"), &changed).unwrap();
        match open(&image) {
            Ok(mut disk) => {
                let stored = disk.load().unwrap();
                assert!(
                    stored.is_some_and(|stored| stored == book.stored),
                    "at {at}"
                );
            }
            Err(StoreError::Damaged { what, .. }) => assert!(!what.is_empty()),
            Err(other) => panic!("at {at}: {other}"),
        }
    }
    copy(folder.path(), &image);
    let short = &bytes[..bytes.len() - 4096];
    fs::write(image.join("objects/log"), short).unwrap();
    assert!(matches!(open(&image), Err(StoreError::Damaged { .. })));
    copy(folder.path(), &image);
    fs::remove_file(image.join("objects/log")).unwrap();
    let error = open(&image).unwrap_err().to_string();
    assert!(error.contains("missing"), "{error}");
    copy(folder.path(), &image);
    let other = ObjectDisk::open(&image, 2, "test");
    assert!(matches!(other, Err(StoreError::Damaged { .. })));
}
