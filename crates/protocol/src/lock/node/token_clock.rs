//! The token clock: moved by nodes only, shared by all of them, and the bound of every token.
//!
//! A client may name any token it likes. What keeps one client from spoiling the tokens of
//! everybody is that no limit, floor or named token exceeds this clock by more than
//! [`Times::token_ahead`](crate::lock::Times::token_ahead), and that no client moves it. It is the
//! largest of the wall clock, of itself carried on by the steady clock, and of what other nodes
//! tell. So it never goes back, whatever wall clocks do, and a node that has heard from another
//! takes every token that the other one may have given out.

use std::time::Duration;

use super::{LockNode, Timer};
use crate::id::{NodeId, Token};
use crate::lock::api::{NodeEffects, To};
use crate::lock::message::Message;
use crate::lock::plant::Plant;
use crate::time::{Instant, Now, Wall, micros_of};

/// A wall clock or a told clock beyond this is not believed: it leaves no room for tokens.
const BELIEVED_MAX: u64 = 1 << 62;
/// Others are told at once of a jump by more than this.
const JUMP: Duration = Duration::from_secs(1);
/// A node that refuses tokens asks the others for their clocks, at most this often.
const ASK_PAUSE: Duration = Duration::from_millis(10);
/// The clock on disk is kept this far ahead, so that most ceilings need no clock of their own.
const DISK_LEAD: Duration = Duration::from_secs(2);

/// A clock that never goes back.
#[derive(Clone, Debug)]
pub(super) struct TokenClock {
    /// What it showed at `since`.
    base: u64,
    since: Instant,
    /// What it shows now.
    shown: u64,
    /// Others are not asked before this.
    ask_after: Instant,
    /// Whether the last reading of the wall clock was believed.
    believed: bool,
}

impl TokenClock {
    /// A clock that shows at least `known`.
    pub(super) fn new(now: Now, known: u64) -> Self {
        let mut clock = Self {
            base: known,
            since: now.mono,
            shown: known,
            ask_after: Instant::ZERO,
            believed: true,
        };
        clock.advance(now);
        clock
    }

    /// Reads both clocks of the process. `true` if it jumped, so that others should be told.
    pub(super) fn advance(&mut self, now: Now) -> bool {
        let run = micros_of(now.mono.since(self.since));
        self.shown = self.base.saturating_add(run).max(self.shown);
        self.believed = now.wall.0 <= BELIEVED_MAX;
        let wall = if self.believed { now.wall.0 } else { 0 };
        self.lift(wall, now.mono)
    }

    /// Shows at least `value` from now on. `true` if that is a jump.
    fn lift(&mut self, value: u64, now: Instant) -> bool {
        if value <= self.shown {
            return false;
        }
        let jumped = value - self.shown > micros_of(JUMP);
        self.base = value;
        self.since = now;
        self.shown = value;
        jumped
    }

    pub(super) fn shown(&self) -> u64 {
        self.shown
    }
}

impl LockNode {
    /// The token clock, in microseconds. It never goes back.
    pub fn token_clock(&self) -> Wall {
        Wall(self.tokens.shown())
    }

    /// Whether the wall clock is so far ahead that nothing is made of it.
    pub fn ignores_wall_clock(&self) -> bool {
        !self.tokens.believed
    }

    /// No limit, floor or named token is larger.
    pub fn token_bound(&self) -> Token {
        if self.config.rules.has(Plant::NoTokenBound) {
            return Token(u64::MAX >> 1);
        }
        let mut known = self.tokens.shown();
        if self.config.rules.has(Plant::BoundFromCeiling) {
            known = known.max(self.disk.ceiling().0);
        }
        Token(known.saturating_add(self.token_ahead()))
    }

    pub(super) fn token_ahead(&self) -> u64 {
        micros_of(self.config.times.token_ahead)
    }

    /// The clock that is written beside a ceiling.
    pub(super) fn clock_for_disk(&self) -> Wall {
        self.token_clock().plus(DISK_LEAD)
    }

    /// A hint of a client, if it could be meant honestly.
    pub(super) fn believable(&self, hint: Token) -> Token {
        if hint <= self.token_bound() {
            hint
        } else {
            Token(0)
        }
    }

    /// Reads the clocks of this step, and tells the others of a jump.
    pub(super) fn read_clocks(&mut self, out: &mut NodeEffects) {
        let rules = self.config.rules;
        if rules.has(Plant::TokenClockIsWall) {
            self.tokens.shown = self.now.wall.0;
            return;
        }
        if rules.has(Plant::TokenClockStands) {
            self.tokens.base = self.tokens.shown;
            self.tokens.since = self.now.mono;
        }
        if self.tokens.advance(self.now) {
            self.tell_clock(false, out);
        }
    }

    /// The clock must leave room for a floor that other nodes vouch for.
    pub(super) fn make_room_for(&mut self, floor: Token) {
        if !self.config.rules.has(Plant::TokenClockIsWall) {
            let least = floor.0.saturating_sub(self.token_ahead());
            self.tokens.lift(least, self.now.mono);
        }
    }

    /// Another node's clock.
    pub(super) fn hear_token_clock(&mut self, clock: Wall) -> bool {
        let rules = self.config.rules;
        let deaf = rules.has(Plant::TokenClockAlone) || rules.has(Plant::TokenClockIsWall);
        clock.0 <= BELIEVED_MAX && !deaf && self.tokens.lift(clock.0, self.now.mono)
    }

    /// Another node tells its clock, or asks for this one.
    pub(super) fn clock_told(
        &mut self,
        from: NodeId,
        clock: Wall,
        asks: bool,
        out: &mut NodeEffects,
    ) {
        let jumped = self.hear_token_clock(clock);
        if jumped {
            self.tell_clock(false, out);
        } else if asks {
            let clock = self.token_clock();
            out.send(To::Node(from), Message::TokenClock { clock, asks: false });
        }
    }

    /// Tells all others this node's clock, and asks for theirs if `asks`.
    pub(super) fn tell_clock(&self, asks: bool, out: &mut NodeEffects) {
        if self.config.gate.is_some() {
            // Consent brings the tokens.
            return;
        }
        let clock = self.token_clock();
        for node in self.config.quorums.all().filter(|node| *node != self.id) {
            out.send(To::Node(node), Message::TokenClock { clock, asks });
        }
    }

    /// A token was refused: it may be that another node's clock is ahead of this one.
    pub(super) fn ask_clocks(&mut self, out: &mut NodeEffects) {
        let now = self.now.mono;
        if self.tokens.ask_after <= now {
            self.tokens.ask_after = now + ASK_PAUSE;
            self.tell_clock(true, out);
        }
    }

    /// Starts to tell the others this node's clock, now and again.
    pub(super) fn begin_telling(&mut self, out: &mut NodeEffects) {
        if self.config.gate.is_none() && self.config.quorums.nodes() > 1 {
            self.tell_clock(true, out);
            self.arm(self.now.mono + self.config.times.clock_tell, Timer::Clock);
        }
    }

    /// It is time to tell the others again.
    pub(super) fn clock_timer(&mut self, out: &mut NodeEffects) {
        self.tell_clock(false, out);
        self.arm(self.now.mono + self.config.times.clock_tell, Timer::Clock);
    }
}
