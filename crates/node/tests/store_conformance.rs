//! What every store must do, and what the journal's thread makes of it.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod store_support;

use std::sync::mpsc;
use std::time::Duration;

use conclave_node::journal::Journal;
use conclave_node::meters::Meters;
use conclave_node::store::faulty::{Fault, Faulty};
use conclave_node::store::{Memory, Store, StoreError};
use conclave_protocol::Wall;
use conclave_protocol::id::{GrantNo, Token};
use conclave_protocol::lock::{Record, Snapshot};
use store_support::{contents, grant, open_here, quick_dir, record, records, sum};

/// Runs all checks on the stores that `make` gives, each of them new.
fn conforms<S: Store>(mut make: impl FnMut() -> S) {
    new_holds_nothing(make());
    records_add_up(make());
    later_records_win(make());
    a_call_with_nothing_changes_nothing(make());
    a_large_snapshot_fits(make());
    many_writes_add_up(make());
}

fn new_holds_nothing(mut store: impl Store) {
    assert_eq!(store.load(), Ok(None));
}

fn records_add_up(mut store: impl Store) {
    let all = records(0..200);
    for size in [1, 2, 3, 5, 7, 11, 13] {
        for batch in all.chunks(size) {
            store.write(batch).unwrap();
        }
    }
    assert_eq!(store.load().unwrap(), sum(&all));
}

fn ceiling(token: u64) -> Record {
    Record::Ceiling {
        ceiling: Token(token),
        clock: Wall(0),
    }
}

fn later_records_win(mut store: impl Store) {
    store
        .write(&[
            ceiling(9),
            ceiling(5),
            Record::Grant(Box::new(grant(1, 1, "first"))),
            Record::GrantEnded(grant(1, 1, "").ask.session, grant(1, 1, "").ask.request),
            Record::Grant(Box::new(grant(1, 1, "second"))),
        ])
        .unwrap();
    let stored = store.load().unwrap().unwrap();
    assert_eq!(stored.ceiling, Token(5));
    assert_eq!(
        &*stored.grants.values().next().unwrap().session.owner,
        "second"
    );
}

fn a_call_with_nothing_changes_nothing(mut store: impl Store) {
    store.write(&[]).unwrap();
    assert_eq!(store.load(), Ok(None));
    store.write(&[Record::Unclean]).unwrap();
    assert!(
        store.load().unwrap().is_some(),
        "a first record was written"
    );
}

fn a_large_snapshot_fits(mut store: impl Store) {
    let snapshot = Snapshot {
        grants: (0..50_000).map(|n| grant(n, 1, "a large one")).collect(),
        floor: Token(1),
        grant: GrantNo(1),
    };
    let all = [record(0), Record::Clean(Box::new(snapshot)), record(1)];
    store.write(&all).unwrap();
    assert_eq!(store.load().unwrap(), sum(&all));
}

fn many_writes_add_up(mut store: impl Store) {
    // Enough to fill the first journal several times over.
    let all = records(0..10_000);
    for batch in all.chunks(2) {
        store.write(batch).unwrap();
    }
    assert_eq!(store.load().unwrap(), sum(&all));
}

#[test]
fn memory_conforms() {
    conforms(Memory::default);
}

#[test]
fn a_store_without_faults_conforms() {
    conforms(|| Faulty::new(Memory::default()).0);
}

#[test]
fn disk_conforms() {
    let dir = quick_dir();
    let mut count = 0;
    conforms(|| {
        count += 1;
        open_here(&dir.path().join(count.to_string())).unwrap()
    });
    for store in 1..=count {
        let path = dir.path().join(store.to_string());
        let first = contents(&path).unwrap();
        assert_eq!(contents(&path).unwrap(), first, "opening changes nothing");
        assert_eq!(
            first.is_none(),
            store == 1,
            "all but the first hold something"
        );
    }
}

#[test]
fn what_was_written_is_there_after_every_reopening() {
    let dir = quick_dir();
    let all = records(0..3_000);
    for (index, part) in all.chunks(300).enumerate() {
        let mut store = open_here(dir.path()).unwrap();
        assert_eq!(store.load().unwrap(), sum(&all[..index * 300]));
        part.chunks(7).for_each(|batch| store.write(batch).unwrap());
    }
    assert_eq!(contents(dir.path()).unwrap(), sum(&all));
}

#[test]
fn a_failed_store_stays_failed() {
    for fault in [Fault::NoSpace, Fault::Sync] {
        let (mut store, faults) = Faulty::new(Memory::default());
        faults.fail_after(2, fault);
        store.write(&records(0..1)).unwrap();
        store.write(&records(1..2)).unwrap();
        assert!(store.write(&records(2..3)).is_err());
        assert!(store.write(&records(3..4)).is_err());
        let kept = if fault == Fault::Sync { 4 } else { 2 };
        assert_eq!(store.load().unwrap(), sum(&records(0..kept)));
        assert_eq!(faults.written(), (2, 2));
    }
}

const PATIENCE: Duration = Duration::from_mins(1);

/// A journal on a faulty store, with what it reports.
fn journal() -> (
    Journal,
    conclave_node::store::faulty::Faults,
    mpsc::Receiver<Result<u64, StoreError>>,
) {
    let (store, faults) = Faulty::new(Memory::default());
    let (tell, told) = mpsc::channel();
    let done = move |result| {
        let _ = tell.send(result);
    };
    let journal = Journal::spawn(Box::new(store), done, Meters::new()).unwrap();
    (journal, faults, told)
}

#[test]
fn a_journal_shares_a_sync_among_what_waits() {
    let (journal, faults, told) = journal();
    faults.hold();
    journal.write(records(0..1));
    faults.await_waiting();
    for index in 1..100 {
        journal.write(records(index..index + 1));
    }
    assert!(told.try_recv().is_err(), "nothing is durable yet");
    assert_eq!(journal.behind(), 100);
    faults.let_go();
    assert_eq!(told.recv_timeout(PATIENCE), Ok(Ok(1)));
    assert_eq!(told.recv_timeout(PATIENCE), Ok(Ok(100)));
    assert_eq!(faults.written(), (2, 100));
    assert_eq!(journal.behind(), 0);
}

#[test]
fn a_journal_writes_nothing_after_an_error() {
    let (journal, faults, told) = journal();
    faults.fail_after(1, Fault::Sync);
    journal.write(records(0..3));
    assert_eq!(told.recv_timeout(PATIENCE), Ok(Ok(3)));
    journal.write(records(3..4));
    let failed = told.recv_timeout(PATIENCE).unwrap();
    assert!(
        matches!(failed, Err(StoreError::Write { .. })),
        "{failed:?}"
    );
    journal.write(records(4..5));
    drop(journal);
    assert!(
        told.recv_timeout(PATIENCE).is_err(),
        "the error is told once"
    );
    assert_eq!(faults.written(), (1, 3));
}

#[test]
fn dropping_a_journal_writes_what_is_queued() {
    let (journal, faults, told) = journal();
    for index in 0..50 {
        journal.write(records(index..index + 1));
    }
    drop(journal);
    assert_eq!(faults.written().1, 50);
    assert_eq!(told.try_iter().last(), Some(Ok(50)));
}
