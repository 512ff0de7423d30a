//! What both ends of one direction of a connection remember, so that it is said only once: the
//! ids of sessions and the client that said hello.

use std::collections::HashMap;

use conclave_protocol::id::{ClientId, SessionId};

use crate::pb::{self, Bad};

/// How many sessions have numbers at a time; the next one takes the oldest number again.
pub(crate) const SESSIONS_MAX: usize = 4096;

/// The writing end.
#[derive(Debug, Default)]
pub(crate) struct Writing {
    /// Of the session written last, which mostly is the next one too.
    last: Option<(SessionId, u32)>,
    /// The sessions by number.
    sessions: Vec<SessionId>,
    numbers: HashMap<SessionId, u32>,
    /// Where the next number is taken from once all are in use.
    next: usize,
    /// Who said hello.
    pub(crate) client: Option<ClientId>,
    /// Whether every id is written in full, as on disk.
    plain: bool,
}

impl Writing {
    /// One that remembers nothing: every id is written in full.
    pub(crate) fn plain() -> Self {
        Self {
            plain: true,
            ..Self::default()
        }
    }

    /// Forgets the sessions; they get numbers anew.
    pub(crate) fn reset(&mut self) {
        self.last = None;
        self.sessions.clear();
        self.numbers.clear();
        self.next = 0;
    }

    /// Writes a session as fields 1 and 2.
    #[inline]
    pub(crate) fn session(&mut self, out: &mut Vec<u8>, session: SessionId) {
        if let Some((last, number)) = self.last
            && last == session
        {
            pb::uint(out, 1, u64::from(number));
            return;
        }
        self.other_session(out, session);
    }

    fn other_session(&mut self, out: &mut Vec<u8>, session: SessionId) {
        if self.plain {
            pb::id(out, 2, session.0);
            return;
        }
        if let Some(&number) = self.numbers.get(&session) {
            self.last = Some((session, number));
            pb::uint(out, 1, u64::from(number));
            return;
        }
        if self.sessions.len() < SESSIONS_MAX {
            self.next = self.sessions.len();
            self.sessions.push(session);
        } else {
            let old = std::mem::replace(&mut self.sessions[self.next], session);
            self.numbers.remove(&old);
        }
        let number = self.next as u32 + 1;
        self.next = (self.next + 1) % SESSIONS_MAX;
        self.numbers.insert(session, number);
        self.last = Some((session, number));
        pb::uint(out, 1, u64::from(number));
        pb::id(out, 2, session.0);
    }
}

/// The reading end.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    sessions: Vec<SessionId>,
    /// Who said hello.
    pub(crate) client: Option<ClientId>,
}

impl Reading {
    /// The session that fields 1 and 2 say.
    #[inline]
    pub(crate) fn session(&mut self, number: u32, id: Option<u128>) -> Result<SessionId, Bad> {
        let place = number.wrapping_sub(1) as usize;
        match (number, id) {
            (0, Some(id)) => Ok(SessionId(id)),
            (0, None) => Err(Bad("a session is missing")),
            (_, None) => {
                let known = self.sessions.get(place).copied();
                known.ok_or(Bad("a session's number was never given"))
            }
            (_, Some(id)) => self.learn(place, SessionId(id)),
        }
    }

    fn learn(&mut self, place: usize, session: SessionId) -> Result<SessionId, Bad> {
        if let Some(known) = self.sessions.get_mut(place) {
            *known = session;
        } else if place == self.sessions.len() && place < SESSIONS_MAX {
            self.sessions.push(session);
        } else {
            return Err(Bad("a session's number is out of order"));
        }
        Ok(session)
    }
}
