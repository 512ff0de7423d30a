//! What a node writes to disk, and what it finds there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::message::{ConfigId, SessionInfo};
use super::mode::Ask;
use crate::id::{ClientId, GrantNo, Incarnation, Name, RequestNo, SessionId, Token};
use crate::multilevel::{LevelRecord, LevelStored};
use crate::time::Wall;

/// One write. Writes reach the disk in order; a crash loses those not yet on disk, from some
/// point on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Record {
    /// The node's present life.
    Incarnation(Incarnation),
    /// No limit above the ceiling leaves the node, and the ceiling is not further ahead of this
    /// reading of the token clock than tokens may be.
    Ceiling {
        /// The ceiling.
        ceiling: Token,
        /// The token clock, kept a little ahead.
        clock: Wall,
    },
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
    /// An operator revoked a session.
    Revoked(Box<StoredRevocation>),
    /// A revocation is not remembered any more: what it was about has ended.
    RevocationEnded(SessionId),
    /// What an arbiter of a hierarchy's root keeps; the node that is its front has no part in it.
    Level(Box<LevelRecord<Name>>),
    /// The configuration that the node serves from now on.
    Config(Box<StoredConfig>),
    /// The node serves nothing but this configuration from now on, and not before every node of
    /// the one in force has said the same.
    Adopting(Box<StoredConfig>),
}

/// A configuration on disk.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoredConfig {
    /// Its number and digest.
    pub id: ConfigId,
    /// The whole cluster file.
    pub text: Arc<str>,
    /// How many nodes the configuration before it had; 0 if there was none.
    pub before: u32,
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

/// A revocation on disk.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoredRevocation {
    /// The session.
    pub session: SessionId,
    /// Who said so.
    pub by: Arc<str>,
    /// Whether the node knew the session: then all of it is revoked. Otherwise what may still
    /// come of it is refused where whoever said so may administer.
    pub known: bool,
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
    /// The token clock; zero on a disk of an earlier version.
    pub clock: Wall,
    /// The longest TTL.
    pub longest_ttl: Duration,
    /// The default floor.
    pub default_floor: Token,
    /// The state of a clean stop.
    pub clean: Option<Box<Snapshot>>,
    /// Outstanding grants of a durable node.
    pub grants: BTreeMap<(SessionId, RequestNo), StoredGrant>,
    /// Sessions that operators revoked lately.
    pub revoked: BTreeMap<SessionId, StoredRevocation>,
    /// What the arbiters of a hierarchy's root kept.
    pub levels: LevelStored<Name>,
    /// The configuration that the node serves.
    pub config: Option<Box<StoredConfig>>,
    /// The configuration that it is about to serve instead.
    pub adopting: Option<Box<StoredConfig>>,
}

impl Stored {
    /// No token above this one was ever given away.
    pub fn highest(&self) -> Token {
        let clean = self.clean.as_ref().map_or(Token(0), |clean| clean.floor);
        let own = self.ceiling.max(self.default_floor).max(clean);
        own.max(self.levels.ceiling)
    }

    /// Applies the next record.
    pub fn apply(&mut self, record: Record) {
        match record {
            Record::Incarnation(incarnation) => self.incarnation = Some(incarnation),
            Record::Ceiling { ceiling, clock } => {
                self.ceiling = ceiling;
                self.clock = clock;
            }
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
            Record::Revoked(revocation) => {
                self.revoked.insert(revocation.session, *revocation);
            }
            Record::RevocationEnded(session) => {
                self.revoked.remove(&session);
            }
            Record::Level(record) => self.levels.apply(&record),
            Record::Config(config) => {
                self.config = Some(config);
                self.adopting = None;
            }
            Record::Adopting(config) => self.adopting = Some(config),
        }
    }
}
