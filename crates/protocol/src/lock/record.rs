//! What a node writes to disk, and what it finds there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::message::SessionInfo;
use super::mode::Ask;
use crate::id::{ClientId, GrantNo, Incarnation, Name, RequestNo, SessionId, Token};
use crate::multilevel::{LevelRecord, LevelStored};

/// One write. Writes reach the disk in order; a crash loses those not yet on disk, from some
/// point on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Record {
    /// The node's present life.
    Incarnation(Incarnation),
    /// No limit above this leaves the node.
    Ceiling(Token),
    /// No live session has a longer TTL.
    LongestTtl(Duration),
    /// Tokens up to this one may have been used in any lock that is not listed.
    DefaultFloor(Token),
    /// The state at a clean stop; nothing leaves the node after it.
    Clean(Box<Snapshot>),
    /// The clean mark is gone.
    Unclean,
    /// A grant, before it is sent (durable nodes only).
    Grant(Box<StoredGrant>),
    /// A grant ended (durable nodes only).
    GrantEnded(SessionId, RequestNo),
    /// What an arbiter of a hierarchy's root keeps; the node that is its front has no part in it.
    Level(Box<LevelRecord<Name>>),
}

/// A grant on disk.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoredGrant {
    /// What was asked.
    pub ask: Arc<Ask>,
    /// Its session.
    pub session: SessionInfo,
    /// Whose session it is.
    pub client: ClientId,
    /// The grant.
    pub grant: GrantNo,
    /// What its requester was told about tokens of other groups.
    pub floor: Token,
    /// The largest token registered.
    pub limit: Token,
    /// The largest token named by its holder.
    pub named: Token,
    /// Whether its holder said that it entered.
    pub entered: bool,
}

/// The state of a node at a clean stop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Snapshot {
    /// Every outstanding grant.
    pub grants: Vec<StoredGrant>,
    /// The largest token that may have been used in any lock.
    pub floor: Token,
    /// The last grant number.
    pub grant: GrantNo,
}

/// The state that a node's records add up to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// The last life, none if the node never started.
    pub incarnation: Option<Incarnation>,
    /// The token ceiling.
    pub ceiling: Token,
    /// The longest TTL.
    pub longest_ttl: Duration,
    /// The default floor.
    pub default_floor: Token,
    /// The state of a clean stop.
    pub clean: Option<Box<Snapshot>>,
    /// Outstanding grants of a durable node.
    pub grants: BTreeMap<(SessionId, RequestNo), StoredGrant>,
    /// What the arbiters of a hierarchy's root kept.
    pub levels: LevelStored<Name>,
}

impl Stored {
    /// Applies the next record.
    pub fn apply(&mut self, record: Record) {
        match record {
            Record::Incarnation(incarnation) => self.incarnation = Some(incarnation),
            Record::Ceiling(ceiling) => self.ceiling = ceiling,
            Record::LongestTtl(ttl) => self.longest_ttl = ttl,
            Record::DefaultFloor(floor) => self.default_floor = floor,
            Record::Clean(snapshot) => self.clean = Some(snapshot),
            Record::Unclean => {
                self.clean = None;
            }
            Record::Grant(grant) => {
                self.grants
                    .insert((grant.ask.session, grant.ask.request), *grant);
            }
            Record::GrantEnded(session, request) => {
                self.grants.remove(&(session, request));
            }
            Record::Level(record) => self.levels.apply(&record),
        }
    }
}
