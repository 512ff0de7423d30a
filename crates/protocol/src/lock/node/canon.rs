//! The canonical form of a node.

use super::LockNode;
use crate::id::{ClientId, GrantNo, RequestNo, SessionId};
use crate::lock::arbiter::Entry;
use crate::lock::canon::{Canon, carried, session, whole};
use crate::lock::plant::Plant;

impl LockNode {
    /// Whether it knows a session.
    pub fn knows(&self, session: SessionId) -> bool {
        self.by_session.get(&session).is_some()
    }

    /// The last grant number it gave. The canonical form leaves it out: the next one is larger than
    /// all others, whatever it is.
    pub fn last_grant(&self) -> GrantNo {
        self.last_grant
    }

    /// Its canonical form while time stands still and all its writes are on disk.
    pub fn canon<C: Canon>(&self, canon: &mut C) {
        canon.plain(self.incarnation.0);
        canon.plain(u64::from(self.is_serving()));
        canon.plain(self.default_floor.0);
        canon.plain(self.disk.ceiling().0);
        self.canon_peers(canon);
        self.canon_sessions(canon);
        let mut locks: Vec<_> = self.locks.iter().map(|(_, lock)| lock).collect();
        locks.sort_by(|a, b| a.name.cmp(&b.name));
        canon.plain(locks.len() as u64);
        for lock in locks {
            whole(&lock.name, canon);
            whole(&lock.arbiter.floors, canon);
            let (has_priority, bypassed) = lock.arbiter.door();
            canon.plain(u64::from(has_priority));
            canon.plain(u64::from(bypassed));
            canon.plain(lock.arbiter.len() as u64);
            for entry in lock.arbiter.entries() {
                self.canon_entry(entry, canon);
            }
        }
        canon.plain(self.tombs.len() as u64);
        for (id, request) in self.tombs.keys() {
            session(*id, canon);
            canon.plain(request.0);
        }
        canon.plain(self.checks.len() as u64);
        for ((id, request), check) in &self.checks {
            session(*id, canon);
            canon.plain(request.0);
            check.canon(canon);
        }
        canon.plain(self.revoked.len() as u64);
        for id in self.revoked.keys() {
            session(*id, canon);
        }
    }

    fn canon_peers<C: Canon>(&self, canon: &mut C) {
        let mut peers: Vec<_> = self.peers.iter().map(|(_, peer)| peer).collect();
        peers.sort_by_key(|peer| peer.id);
        canon.plain(peers.len() as u64);
        for peer in peers {
            whole(&peer.id, canon);
            canon.plain(peer.conn.0);
            canon.plain(u64::from(peer.link.is_some()));
            canon.plain(u64::from(peer.resumed));
            whole(&peer.partial, canon);
        }
    }

    fn canon_sessions<C: Canon>(&self, canon: &mut C) {
        let mark = self.config.rules.has(Plant::FinishedMark);
        let mut sessions: Vec<_> = self.sessions.iter().map(|(_, session)| session).collect();
        sessions.sort_by_key(|session| session.id);
        canon.plain(sessions.len() as u64);
        for kept in sessions {
            session(kept.id, canon);
            let client = self.peers.get(kept.peer).map(|peer| peer.id);
            whole(&client, canon);
            canon.plain(u64::from(kept.detached));
            canon.plain(u64::from(kept.entered));
            canon.plain(u64::from(kept.revoked.is_some()));
            let finished = if mark { kept.finished } else { RequestNo(0) };
            canon.plain(finished.0);
        }
    }

    fn canon_entry<C: Canon>(&self, entry: &Entry, canon: &mut C) {
        session(entry.ask.session, canon);
        canon.plain(entry.ask.request.0);
        whole(&entry.ask.priority.t, canon);
        canon.plain(u64::from(entry.inside()));
        canon.plain(entry.hint.0);
        canon.plain(u64::from(entry.reference));
        canon.plain(u64::from(entry.way.is_some()));
        if let Some(way) = &entry.way {
            whole(&way.route, canon);
            carried(entry.ask.session, &way.before, canon);
        }
        let client: Option<ClientId> = self.peers.get(entry.peer).map(|peer| peer.id);
        whole(&client, canon);
        let Some(grant) = &entry.grant else {
            canon.plain(0);
            return;
        };
        canon.plain(1);
        canon.grant(self.id, entry.ask.session, grant.number);
        canon.plain(grant.floor.0);
        canon.plain(grant.limit.0);
        canon.plain(grant.named.0);
        canon.plain(u64::from(grant.inquired));
        canon.plain(u64::from(grant.entered));
    }
}
