//! The records that still count, as bytes: what a fresh journal begins with.

use std::collections::BTreeMap;

use conclave_protocol::id::{Name, RequestNo, SessionId};
use conclave_protocol::lock::{Record, Stored};
use conclave_protocol::multilevel::LevelRecord;
use conclave_wire::codec::WireError;
use conclave_wire::record;

/// The last record of each kind and one per outstanding grant. Bytes, because a journal is
/// rewritten far more often than it is read.
#[derive(Debug, Default)]
pub(super) struct Live {
    /// Whether there ever was a record.
    touched: bool,
    incarnation: Option<Vec<u8>>,
    ceiling: Option<Vec<u8>>,
    longest_ttl: Option<Vec<u8>>,
    default_floor: Option<Vec<u8>>,
    clean: Option<Vec<u8>>,
    /// Says that there is no clean mark, so that a journal of nothing else is still not new.
    unclean: Vec<u8>,
    grants: BTreeMap<(SessionId, RequestNo), Vec<u8>>,
    revoked: BTreeMap<SessionId, Vec<u8>>,
    /// Of the root of a hierarchy: what it promised, and what it has given away.
    promise: Option<Vec<u8>>,
    levels: BTreeMap<Name, Vec<u8>>,
    /// The configuration in force, and the one that is about to replace it.
    config: Option<Vec<u8>>,
    adopting: Option<Vec<u8>>,
}

impl Live {
    /// Applies the next record, given with its bytes.
    pub(super) fn apply(&mut self, record: &Record, bytes: Vec<u8>) {
        if !self.touched {
            self.touched = true;
            self.unclean = record::encode(&Record::Unclean);
        }
        match record {
            Record::Incarnation(_) => self.incarnation = Some(bytes),
            Record::Ceiling { .. } => self.ceiling = Some(bytes),
            Record::LongestTtl(_) => self.longest_ttl = Some(bytes),
            Record::DefaultFloor(_) => self.default_floor = Some(bytes),
            Record::Clean(_) => self.clean = Some(bytes),
            Record::Unclean => self.clean = None,
            Record::Grant(grant) => {
                let key = (grant.ask.session, grant.ask.request);
                self.grants.insert(key, bytes);
            }
            Record::GrantEnded(session, request) => {
                self.grants.remove(&(*session, *request));
            }
            Record::Revoked(revocation) => {
                self.revoked.insert(revocation.session, bytes);
            }
            Record::RevocationEnded(session) => {
                self.revoked.remove(session);
            }
            Record::Level(record) => match &**record {
                LevelRecord::Promise { .. } => self.promise = Some(bytes),
                LevelRecord::Grant(lock, _) => {
                    self.levels.insert(lock.clone(), bytes);
                }
                LevelRecord::Free(lock) => {
                    self.levels.remove(lock);
                }
            },
            Record::Config(_) => {
                self.config = Some(bytes);
                self.adopting = None;
            }
            Record::Adopting(_) => self.adopting = Some(bytes),
        }
    }

    /// Whether there never was a record.
    pub(super) fn is_new(&self) -> bool {
        !self.touched
    }

    /// The records that add up to this state.
    pub(super) fn records(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let mark = match &self.clean {
            Some(clean) => Some(clean),
            None => self.touched.then_some(&self.unclean),
        };
        [
            self.config.as_ref(),
            self.adopting.as_ref(),
            self.incarnation.as_ref(),
            self.ceiling.as_ref(),
            self.longest_ttl.as_ref(),
            self.default_floor.as_ref(),
            mark,
        ]
        .into_iter()
        .flatten()
        .chain(&self.promise)
        .chain(self.grants.values())
        .chain(self.revoked.values())
        .chain(self.levels.values())
        .map(Vec::as_slice)
    }

    /// The state, none if there never was a record.
    pub(super) fn stored(&self) -> Result<Option<Stored>, WireError> {
        if self.is_new() {
            return Ok(None);
        }
        let mut stored = Stored::default();
        for bytes in self.records() {
            stored.apply(record::decode(bytes)?);
        }
        Ok(Some(stored))
    }
}
