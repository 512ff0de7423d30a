//! A damaged data directory is refused by name, or nothing is lost; never a silent step back.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod store_support;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use conclave_node::store::{StoreError, open};
use conclave_protocol::lock::Stored;
use store_support::{
    CLUSTER, Dice, NODE, contents, copy_dir, open_here, quick_dir, record, records, sum,
};
use tempfile::TempDir;

/// Bytes of the journal's header, of a sector, and of each copy of the batches in a new journal.
const HEADER: u64 = 4096;
const SECTOR: u64 = 512;
const SIDE: u64 = 1 << 20;
/// Batches written after the one that a journal begins with; each takes one sector.
const BATCHES: u64 = 8;

/// A directory with some batches, what they add up to, and room for a copy.
struct Sample {
    root: TempDir,
    stored: Option<Stored>,
}

impl Sample {
    fn new() -> Self {
        let root = quick_dir();
        let mut store = open_here(&root.path().join("whole")).unwrap();
        for batch in 0..BATCHES {
            store.write(&[record(batch)]).unwrap();
        }
        let stored = store.load().unwrap();
        Self { root, stored }
    }

    fn whole(&self) -> PathBuf {
        self.root.path().join("whole")
    }

    fn copy(&self) -> PathBuf {
        let path = self.root.path().join("copy");
        copy_dir(&self.whole(), &path);
        path
    }

    /// Where the last batch stands in a side.
    fn last() -> u64 {
        BATCHES * SECTOR
    }
}

fn refused(path: &Path) -> StoreError {
    let error = contents(path).expect_err("this must be refused");
    let shown = error.to_string();
    assert!(shown.contains(&path.display().to_string()), "{shown}");
    assert!(!shown.contains('\n'), "one line: {shown}");
    error
}

fn refused_as_damaged(path: &Path) {
    let before = fs::read(path.join("journal")).ok();
    let error = refused(path);
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains("remove the directory"));
    assert_eq!(
        fs::read(path.join("journal")).ok(),
        before,
        "nothing is rebuilt"
    );
}

fn change(path: &Path, at: u64, change: impl FnOnce(&mut [u8]), length: usize) {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, at).unwrap();
    change(&mut bytes);
    file.write_all_at(&bytes, at).unwrap();
}

#[test]
fn a_flipped_bit_anywhere_is_refused_or_loses_nothing() {
    let sample = Sample::new();
    let mut dice = Dice(11);
    let used = (BATCHES + 1) * SECTOR;
    let header = (0..64).chain((64..HEADER).step_by(509));
    let sides = [HEADER, HEADER + SIDE];
    let batches = sides
        .map(|side| (side..side + used).step_by(13))
        .into_iter()
        .flatten();
    let (mut refusals, mut unharmed) = (0, 0);
    for at in header.chain(batches) {
        let copy = sample.copy();
        let bit = 1 << dice.roll(8);
        change(&copy.join("journal"), at, |bytes| bytes[0] ^= bit, 1);
        if at >= HEADER && (at - HEADER) % SIDE >= Sample::last() {
            assert_eq!(contents(&copy), Ok(sample.stored.clone()), "byte {at}");
            unharmed += 1;
            continue;
        }
        refused_as_damaged(&copy);
        refusals += 1;
    }
    assert!(
        refusals > 600 && unharmed > 70,
        "{refusals} refused, {unharmed} unharmed"
    );
}

#[test]
fn a_lost_sector_is_refused_or_loses_nothing() {
    let sample = Sample::new();
    for side in [HEADER, HEADER + SIDE] {
        for sector in 0..=BATCHES {
            let copy = sample.copy();
            let at = side + sector * SECTOR;
            change(
                &copy.join("journal"),
                at,
                |bytes| bytes.fill(0),
                SECTOR as usize,
            );
            if sector == BATCHES {
                assert_eq!(contents(&copy), Ok(sample.stored.clone()));
            } else {
                refused_as_damaged(&copy);
            }
        }
    }
}

#[test]
fn both_copies_of_a_confirmed_batch_lost_are_refused() {
    let sample = Sample::new();
    for sector in 0..BATCHES {
        let copy = sample.copy();
        for side in [HEADER, HEADER + SIDE] {
            let at = side + sector * SECTOR;
            change(
                &copy.join("journal"),
                at,
                |bytes| bytes.fill(0),
                SECTOR as usize,
            );
        }
        refused_as_damaged(&copy);
    }
}

#[test]
fn a_truncated_file_is_refused() {
    let sample = Sample::new();
    let whole = HEADER + 2 * SIDE;
    let cuts = [
        0,
        1,
        55,
        56,
        HEADER - 1,
        HEADER,
        HEADER + 700,
        HEADER + SIDE,
        whole - 1,
    ];
    for length in cuts.into_iter().chain([whole + 1, whole + HEADER]) {
        let copy = sample.copy();
        let file = OpenOptions::new().write(true).open(copy.join("journal"));
        file.unwrap().set_len(length).unwrap();
        refused_as_damaged(&copy);
    }
    let identity = fs::read(sample.whole().join("identity")).unwrap();
    for length in 0..identity.len() - 1 {
        let copy = sample.copy();
        fs::write(copy.join("identity"), &identity[..length]).unwrap();
        refused_as_damaged(&copy);
    }
}

#[test]
fn a_flipped_bit_in_the_identity_is_refused() {
    let sample = Sample::new();
    let identity = fs::read(sample.whole().join("identity")).unwrap();
    for at in 0..identity.len() {
        let copy = sample.copy();
        change(
            &copy.join("identity"),
            at as u64,
            |bytes| bytes[0] ^= 0x40,
            1,
        );
        refused_as_damaged(&copy);
    }
}

#[test]
fn a_missing_file_is_refused() {
    let sample = Sample::new();
    for name in ["journal", "identity"] {
        let copy = sample.copy();
        fs::remove_file(copy.join(name)).unwrap();
        refused_as_damaged(&copy);
    }
    let copy = sample.copy();
    fs::remove_file(copy.join("lock")).unwrap();
    assert_eq!(
        contents(&copy),
        Ok(sample.stored.clone()),
        "the lock file holds nothing"
    );
}

#[test]
fn something_else_in_place_of_a_file_is_refused() {
    let sample = Sample::new();
    for name in ["journal", "identity"] {
        let copy = sample.copy();
        fs::write(copy.join(name), b"#!/bin/sh\necho hello\n").unwrap();
        refused_as_damaged(&copy);
        let copy = sample.copy();
        fs::write(copy.join(name), vec![0xff; (HEADER + 2 * SIDE) as usize]).unwrap();
        refused_as_damaged(&copy);
        let copy = sample.copy();
        fs::remove_file(copy.join(name)).unwrap();
        fs::create_dir(copy.join(name)).unwrap();
        refused(&copy);
    }
    let other = sample.root.path().join("other");
    drop(open(&other, NODE + 1, CLUSTER).unwrap());
    let copy = sample.copy();
    fs::copy(other.join("journal"), copy.join("journal")).unwrap();
    refused_as_damaged(&copy);
}

#[test]
fn a_directory_of_something_else_is_refused() {
    let root = quick_dir();
    fs::write(root.path().join("letter.txt"), "dear").unwrap();
    let error = refused(root.path());
    assert!(matches!(error, StoreError::Foreign { .. }), "{error}");
    assert!(error.to_string().contains("letter.txt"));
    let file = root.path().join("letter.txt");
    assert!(matches!(refused(&file), StoreError::Open { .. }));
}

#[test]
fn another_nodes_directory_is_refused_by_name() {
    let root = quick_dir();
    drop(open(root.path(), 2, "here").unwrap());
    let error = open(root.path(), 3, "here").err().unwrap().to_string();
    assert!(
        error.contains("node 2") && error.contains("node 3"),
        "{error}"
    );
    let error = open(root.path(), 2, "there").err().unwrap().to_string();
    assert!(
        error.contains("\"here\"") && error.contains("\"there\""),
        "{error}"
    );
    assert!(open(root.path(), 2, "here").is_ok());
}

#[test]
fn a_directory_in_use_is_refused_with_the_pid() {
    let root = quick_dir();
    let path = root.path().join("a/b/data");
    let store = open_here(&path).unwrap();
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let error = refused(&path);
    assert!(matches!(error, StoreError::InUse { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains(&format!("pid {}", std::process::id()))
    );
    drop(store);
    assert_eq!(contents(&path), Ok(None));
}

#[test]
fn a_start_that_was_cut_short_is_taken_up() {
    let root = quick_dir();
    let path = root.path().join("data");
    drop(open_here(&path).unwrap());
    // The identity is the last file of a new directory.
    fs::remove_file(path.join("identity")).unwrap();
    assert_eq!(contents(&path), Ok(None));
    fs::remove_file(path.join("identity")).unwrap();
    fs::remove_file(path.join("journal")).unwrap();
    fs::write(path.join("journal.next"), "half a journal").unwrap();
    assert_eq!(contents(&path), Ok(None));
}

/// A power loss may leave any sectors of the last batch on either side.
#[test]
fn any_part_of_an_unconfirmed_batch_is_accepted() {
    let root = quick_dir();
    let (path, copy) = (root.path().join("data"), root.path().join("copy"));
    let mut store = open_here(&path).unwrap();
    store.write(&records(0..30)).unwrap();
    let before = fs::read(path.join("journal")).unwrap();
    store.write(&records(30..60)).unwrap();
    let after = fs::read(path.join("journal")).unwrap();
    drop(store);
    let changed: Vec<usize> = (0..before.len() / SECTOR as usize)
        .map(|sector| sector * SECTOR as usize)
        .filter(|at| before[*at..*at + 512] != after[*at..*at + 512])
        .collect();
    assert!(changed.len() > 8, "a batch of several sectors, twice");
    let (old, new) = (sum(&records(0..30)), sum(&records(0..60)));
    let mut dice = Dice(5);
    let mut seen = [0, 0];
    for trial in 0..400 {
        let mut image = before.clone();
        let share = 1 + trial % 16;
        for at in &changed {
            if dice.roll(16) < share {
                image[*at..*at + 512].copy_from_slice(&after[*at..*at + 512]);
            }
        }
        copy_dir(&path, &copy);
        fs::write(copy.join("journal"), &image).unwrap();
        let found = contents(&copy).unwrap();
        assert!(found == old || found == new, "the batch before is there");
        seen[usize::from(found == new)] += 1;
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
}
