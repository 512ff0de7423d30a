//! The canonical form of a machine: what of its state can still make a difference while time
//! stands still, for a model checker that must know when two states are the same.
//!
//! Left out are timers, round trips, counters that only number things, caches and everything
//! that only a later time or a new connection would read. Grant numbers are told apart, because
//! only their order matters: a model checker replaces them by their ranks. Tokens are told as they
//! are: a token one above another is not the same as one far above it.

use std::hash::{Hash, Hasher};

use super::message::{Carried, GrantRef, Message};
use crate::id::{GrantNo, NodeId, SessionId};

/// Who is told the canonical form.
pub trait Canon {
    /// A number that counts as it is.
    fn plain(&mut self, word: u64);

    /// A grant number of a node for a session. It is only ever compared with others of that node
    /// for that session.
    fn grant(&mut self, node: NodeId, session: SessionId, grant: GrantNo);

    /// The last grant number that a client saw of a node: grants up to it are not looked at. What
    /// matters is only which of the other grant numbers are larger.
    fn seen(&mut self, node: NodeId, session: SessionId, grant: GrantNo);
}

/// Tells everything of a value as it is.
pub(super) fn whole<C: Canon>(value: &impl Hash, canon: &mut C) {
    value.hash(&mut Words(canon));
}

pub(super) fn session<C: Canon>(session: SessionId, canon: &mut C) {
    canon.plain(session.0 as u64);
    canon.plain((session.0 >> 64) as u64);
}

struct Words<'a, C>(&'a mut C);

impl<C: Canon> Hasher for Words<'_, C> {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0.plain(u64::from_le_bytes(word));
        }
    }

    fn finish(&self) -> u64 {
        0
    }
}

pub(super) fn carried<C: Canon>(session: SessionId, grants: &[Carried], canon: &mut C) {
    canon.plain(grants.len() as u64);
    for carried in grants {
        canon.plain(u64::from(carried.node.0));
        canon.plain(carried.incarnation.0);
        canon.grant(carried.node, session, carried.grant);
        canon.plain(carried.floor.0);
        canon.plain(carried.limit.0);
    }
}

impl Message {
    /// Its canonical form on a connection with this node.
    pub fn canon<C: Canon>(&self, node: NodeId, canon: &mut C) {
        // The kinds that name a grant; all others are told whole.
        let reference = |kind: u64, grant: &GrantRef, canon: &mut C| {
            canon.plain(kind);
            session(grant.session, canon);
            canon.plain(grant.request.0);
            canon.grant(node, grant.session, grant.grant);
        };
        match self {
            Self::Yield(grant) => reference(1, grant, canon),
            Self::Inquire(grant) => reference(2, grant, canon),
            Self::Noted(grant) => reference(3, grant, canon),
            Self::Kept(grant) => reference(4, grant, canon),
            Self::Raise { grant, token } => {
                reference(5, grant, canon);
                canon.plain(token.0);
            }
            Self::Raised { grant, token } => {
                reference(6, grant, canon);
                canon.plain(token.0);
            }
            Self::Locked {
                grant,
                floor,
                limit,
                incarnation,
                ..
            } => {
                reference(7, grant, canon);
                canon.plain(floor.0);
                canon.plain(limit.0);
                canon.plain(incarnation.0);
            }
            Self::Entered(entered) => {
                reference(8, &entered.grant, canon);
                canon.plain(entered.token.0);
                whole(&entered.note, canon);
                canon.plain(u64::from(entered.edition));
            }
            Self::Keepalive { grant, token } => {
                reference(9, grant, canon);
                canon.plain(token.0);
            }
            Self::Travel(travel) => {
                canon.plain(10);
                let ask = &travel.ask;
                session(ask.session, canon);
                canon.plain(ask.request.0);
                canon.plain(travel.hint.0);
                whole(&travel.route, canon);
                carried(ask.session, &travel.grants, canon);
            }
            Self::Carried {
                session: id,
                request,
                grants,
            } => {
                canon.plain(11);
                session(*id, canon);
                canon.plain(request.0);
                carried(*id, grants, canon);
            }
            other => {
                canon.plain(12);
                whole(other, canon);
            }
        }
    }
}
