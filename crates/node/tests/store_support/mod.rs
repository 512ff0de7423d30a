//! Records to write, and directories to write them to.
#![allow(dead_code, unreachable_pub)]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use conclave_node::store::{Store, StoreError, open};
use conclave_protocol::Wall;
use conclave_protocol::id::{ClientId, GrantNo, Incarnation, Name, RequestNo, SessionId, Token};
use conclave_protocol::lock::{
    Ask, Bond, Mode, Priority, Record, SessionInfo, Snapshot, Stored, StoredGrant,
};
use tempfile::TempDir;

/// The node and cluster of the tests.
pub const NODE: u32 = 2;
pub const CLUSTER: &str = "test";

/// A directory in memory where there is one: these tests open stores by the thousand.
pub fn quick_dir() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

pub fn open_here(path: &Path) -> Result<Box<dyn Store>, StoreError> {
    open(path, NODE, CLUSTER)
}

/// What a directory holds, or why it is refused.
pub fn contents(path: &Path) -> Result<Option<Stored>, StoreError> {
    open_here(path)?.load()
}

pub fn copy_dir(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// What these records add up to.
pub fn sum(records: &[Record]) -> Option<Stored> {
    let mut stored = None::<Stored>;
    for record in records {
        stored.get_or_insert_default().apply(record.clone());
    }
    stored
}

pub fn grant(session: u128, request: u64, owner: &str) -> StoredGrant {
    StoredGrant {
        ask: Arc::new(Ask {
            name: Name::new(format!("lock/{session}")),
            mode: Mode::group("g"),
            session: SessionId(session),
            request: RequestNo(request),
            priority: Priority {
                t: session as u64,
                client: ClientId(7),
                request: RequestNo(request),
            },
            bond: Bond::Detached,
        }),
        session: SessionInfo {
            session: SessionId(session),
            ttl: Duration::from_millis(1500),
            detached: true,
            owner: owner.into(),
            principal: Arc::default(),
        },
        client: ClientId(9),
        grant: GrantNo(request + 1),
        floor: Token(3),
        limit: Token(5),
        named: Token(4),
        entered: request.is_multiple_of(2),
    }
}

/// Record number `index` of an endless mix in which every kind comes up, ceilings grow and the
/// last [`WINDOW`] records decide everything.
pub fn record(index: u64) -> Record {
    let place = index % 110;
    match index % 11 {
        0 => Record::Incarnation(Incarnation(index)),
        1 | 5 => Record::Ceiling {
            ceiling: Token(index),
            clock: Wall(index),
        },
        2 => Record::LongestTtl(Duration::from_millis(index)),
        3 => Record::DefaultFloor(Token(index)),
        4 => Record::Clean(Box::new(Snapshot {
            grants: vec![grant(u128::from(index), index, "snapshot")],
            floor: Token(index),
            grant: GrantNo(index),
        })),
        6 => Record::Unclean,
        10 => Record::GrantEnded(SessionId(u128::from(place - 1)), RequestNo(place - 1)),
        _ => {
            let owner = format!("owner {index}");
            Record::Grant(Box::new(grant(u128::from(place), place, &owner)))
        }
    }
}

/// How many records decide the state.
pub const WINDOW: u64 = 220;

/// What the first `count` records add up to.
pub fn sum_of_first(count: u64) -> Option<Stored> {
    sum(&records(count.saturating_sub(WINDOW)..count))
}

pub fn records(range: std::ops::Range<u64>) -> Vec<Record> {
    range.map(record).collect()
}

/// Numbers that only look random.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}
