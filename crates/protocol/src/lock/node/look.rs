//! What people may read about a node, in bounded pages.

use std::sync::Arc;
use std::time::Duration;

use super::{LockNode, Session, State};
use crate::id::{Name, RequestNo, SessionId};
use crate::lock::api::{Label, LockView, Reason, SessionView};
use crate::time::Instant;

/// The most places that one page looks at.
const SCAN_MAX: usize = 4096;
/// A page of locks ends once it has this many requests.
const ENTRIES_MAX: usize = 16_384;

impl LockNode {
    /// `starting`, `pausing`, `recovering`, `serving`, `draining` or `stopped`.
    pub fn state(&self) -> &'static str {
        match &self.state {
            State::Starting { .. } => "starting",
            State::Pausing { .. } => "pausing",
            State::Recovering(_) => "recovering",
            State::Serving => "serving",
            State::Draining => "draining",
            State::Stopped => "stopped",
        }
    }

    /// How many requests it keeps, waiting and granted.
    pub fn requests(&self) -> usize {
        self.accounts.requests()
    }

    /// Locks with a request whose name has this prefix, from a cursor on (0 at first), and the
    /// next cursor if there may be more. A page may be short, even empty, before the end.
    pub fn locks_from(
        &self,
        prefix: &[u8],
        from: u32,
        limit: usize,
    ) -> (Vec<(Name, LockView)>, Option<u32>) {
        let (mut page, mut entries) = (Vec::new(), 0);
        let last = from.saturating_add(SCAN_MAX as u32);
        for (place, lock) in self.locks.iter_from(from) {
            if place >= last || page.len() >= limit || entries >= ENTRIES_MAX {
                return (page, Some(place));
            }
            if !lock.arbiter.is_empty() && lock.name.bytes().starts_with(prefix) {
                entries += lock.arbiter.len();
                page.push((lock.name.clone(), lock.arbiter.view()));
            }
        }
        (page, None)
    }

    /// Sessions from a cursor on (0 at first), and the next cursor if there may be more. A reader
    /// sees its own and those it may administer; a page may be short, even empty, before the end.
    pub fn sessions_from(
        &self,
        from: u32,
        limit: usize,
        now: Instant,
        reader: Option<&str>,
    ) -> (Vec<SessionView>, Option<u32>) {
        let mut page = Vec::new();
        let last = from.saturating_add(SCAN_MAX as u32);
        for (place, session) in self.sessions.iter_from(from) {
            if place >= last || page.len() >= limit {
                return (page, Some(place));
            }
            let shown = |reader: &str| {
                let own = *session.principal == *reader && !reader.is_empty();
                own || self.may_administer(reader, session.id) == Some(true)
            };
            if !reader.is_none_or(shown) {
                continue;
            }
            page.push(SessionView {
                session: session.id,
                owner: session.owner.clone(),
                principal: session.principal.clone(),
                revoked: session.revoked.is_some(),
                ttl: session.ttl,
                detached: session.detached,
                requests: session.requests.len(),
                age: now.since(self.renewed(session)),
            });
        }
        (page, None)
    }

    /// How long it grants nothing yet, if it pauses or recovers.
    pub fn pauses_for(&self, now: Instant) -> Option<Duration> {
        match &self.state {
            State::Pausing { until } => Some(until.since(now)),
            State::Recovering(_) => Some(self.retry()),
            _ => None,
        }
    }

    /// The requests for a lock, best first, with why each waits and since when each is granted.
    pub fn reasons(&self, name: &Name, now: Instant) -> Vec<Reason> {
        let place = self.by_name.get(name).copied();
        let Some(lock) = place.and_then(|place| self.locks.get(place)) else {
            return Vec::new();
        };
        let whys = lock.arbiter.whys(&lock.policy);
        let entries = lock.arbiter.entries().iter().zip(whys);
        entries
            .take(ENTRIES_MAX)
            .map(|(entry, why)| Reason {
                session: entry.ask.session,
                request: entry.ask.request,
                why,
                granted: entry.grant.as_ref().map(|grant| now.since(grant.since)),
                expires: self.expires(entry.ask.session, now),
            })
            .collect()
    }

    /// When a session ends if it is not renewed.
    fn expires(&self, session: SessionId, now: Instant) -> Option<Duration> {
        let place = self.by_session.get(&session).copied()?;
        let session = self.sessions.get(place)?;
        Some((self.renewed(session) + session.ttl).since(now))
    }

    /// When a session was renewed: by its client's heartbeats or by its handle.
    fn renewed(&self, session: &Session) -> Instant {
        let peer = self.peers.get(session.peer);
        let by_link = peer.filter(|_| !session.detached).map(|peer| peer.renewed);
        by_link.map_or(session.renewed, |at| at.max(session.renewed))
    }

    /// Who made a request, and what its holder wants others to read.
    pub fn label(&self, session: SessionId, request: RequestNo) -> Option<Label> {
        let place = self.by_session.get(&session).copied()?;
        let kept = self.sessions.get(place)?;
        let (owner, principal): (Arc<str>, _) = (kept.owner.clone(), kept.principal.clone());
        let note = self.entry(place, request)?.note.clone();
        Some(Label {
            owner,
            principal,
            note,
        })
    }
}
