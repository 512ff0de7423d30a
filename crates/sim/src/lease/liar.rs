//! Nodes that lie about leases. They know everything that happens in the world.

use std::time::Duration;

use conclave_protocol::id::Token;
use conclave_protocol::lease::{Attempt, LeaseAnswer, LeaseAsk, LeaseReply};
use conclave_quorum::Prng;

/// How a node lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// It gives its vote to nobody.
    Locked,
    /// It gives its vote to everybody.
    Free,
    /// It says nothing.
    Silent,
    /// It says this to one and that to another.
    Equivocate,
    /// It names tokens that nobody has used.
    Huge,
    /// It gives its vote to everybody and lies about how long it has kept the request.
    Held,
    /// It helps whoever must not win and hinders whoever may.
    Collude,
    /// A new lie for every question.
    Any,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Locked,
        Self::Free,
        Self::Silent,
        Self::Equivocate,
        Self::Huge,
        Self::Held,
        Self::Collude,
        Self::Any,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Locked => "locked",
            Self::Free => "free",
            Self::Silent => "silent",
            Self::Equivocate => "equivocate",
            Self::Huge => "huge",
            Self::Held => "held",
            Self::Collude => "collude",
            Self::Any => "any",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|lie| lie.name() == name)
    }
}

/// What a liar may look at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sight {
    /// Whether somebody else than the asker holds the lease.
    pub(super) held_by_other: bool,
    /// How long votes last.
    pub(super) vote: Duration,
    /// How long a message takes at most.
    pub(super) delay: Duration,
    /// The wall clock, in microseconds.
    pub(super) wall: u64,
}

/// A liar's words: what it answers, and when, beyond the way there.
pub(super) type Words = Vec<(Duration, LeaseReply)>;

fn free(held: Duration) -> LeaseAnswer {
    LeaseAnswer::Free { held, rank: None }
}

fn locked(token: u64) -> LeaseAnswer {
    LeaseAnswer::Locked {
        queued: false,
        remaining: Duration::ZERO,
        token: Token(token),
        rank: None,
    }
}

/// What a liar makes of a question.
pub(super) fn lie(strategy: Strategy, ask: &LeaseAsk, sight: Sight, rng: &mut Prng) -> Words {
    let (attempt, sub) = match ask {
        LeaseAsk::Try(asked) => (asked.attempt, asked.sub),
        LeaseAsk::Renew { attempt, sub, .. } => (*attempt, *sub),
        LeaseAsk::Release { .. } => return Vec::new(),
    };
    let at_once = |answer| vec![(Duration::ZERO, reply(attempt, sub, answer))];
    let early = |answer| at_once(answer);
    match strategy {
        Strategy::Locked => at_once(locked(0)),
        Strategy::Free => at_once(free(Duration::ZERO)),
        Strategy::Silent => Vec::new(),
        Strategy::Equivocate => {
            if attempt.client.0 & 1 == u128::from(rng.chance(0.2)) {
                early(free(Duration::ZERO))
            } else {
                early(locked(0))
            }
        }
        Strategy::Huge => {
            let token = match rng.below(4) {
                0 => u64::MAX,
                1 => sight.wall + 86_000_000_000,
                2 => sight.wall + (1 << 20),
                _ => 0,
            };
            if rng.chance(0.5) {
                at_once(locked(token))
            } else {
                let token = Token(token);
                at_once(LeaseAnswer::Stale { token })
            }
        }
        Strategy::Held => held_lie(attempt, sub, sight, rng),
        Strategy::Collude => {
            if sight.held_by_other {
                free_twice(attempt, sub, sight, rng)
            } else if rng.chance(0.8) {
                at_once(locked(0))
            } else {
                Vec::new()
            }
        }
        Strategy::Any => {
            let strategy = Strategy::ALL[rng.below(Strategy::ALL.len() - 1)];
            lie(strategy, ask, sight, rng)
        }
    }
}

fn reply(attempt: Attempt, sub: u32, answer: LeaseAnswer) -> LeaseReply {
    LeaseReply {
        attempt,
        sub,
        answer,
    }
}

/// A vote that claims to have been given later than it could have been.
fn held_lie(attempt: Attempt, sub: u32, sight: Sight, rng: &mut Prng) -> Words {
    let held = match rng.below(4) {
        0 => Duration::MAX,
        1 => sight.vote,
        2 => sight.vote / 2,
        _ => Duration::ZERO,
    };
    let queued = LeaseAnswer::Locked {
        queued: true,
        remaining: Duration::ZERO,
        token: Token(0),
        rank: None,
    };
    let late = sight.delay * rng.below(12) as u32;
    vec![
        (Duration::ZERO, reply(attempt, sub, queued)),
        (late, reply(attempt, sub, free(held))),
    ]
}

/// A vote now, once more later, and one for an attempt that is yet to come.
fn free_twice(attempt: Attempt, sub: u32, sight: Sight, rng: &mut Prng) -> Words {
    let next = Attempt {
        number: attempt.number + 1,
        ..attempt
    };
    let late = sight.delay * rng.below(20) as u32;
    vec![
        (Duration::ZERO, reply(attempt, sub, free(Duration::ZERO))),
        (late, reply(attempt, sub, free(late))),
        (late, reply(next, 0, free(Duration::ZERO))),
    ]
}
