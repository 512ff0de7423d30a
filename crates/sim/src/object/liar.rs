//! Nodes that lie. They know everything, and all of them tell the same tale.

use std::sync::Arc;

use conclave_protocol::id::{ClientId, Name, Token};
use conclave_protocol::lease::{Attempt, LeaseAnswer, LeaseAsk, LeaseRefusal, LeaseReply};
use conclave_protocol::object::{Author, OpId};
use conclave_protocol::object::{
    Delta, ObjectAsk, ObjectRefusal, ObjectTell, Page, Pending, Phase, Rank, Stamp, State, View,
};
use conclave_quorum::Prng;

use super::kinds::forged_body;
use super::known::{Known, KnownObject, cells_of};

/// A way to lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Habit {
    /// Tells the truth.
    Honest,
    /// Says nothing.
    Silent,
    /// Takes everything and remembers nothing.
    Forget,
    /// Tells of an older state, and takes everything.
    Stale,
    /// Backs proposals that lost, under ranks that nobody has reached.
    Back,
    /// Invents states, operations and results.
    Forge,
    /// Tells some clients the truth and others something else.
    Equivocate,
    /// Names the largest ranks and tokens there are.
    Huge,
    /// Refuses everything, for some reason or other.
    Deny,
    /// Does one or the other.
    Mix,
}

impl Habit {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Honest,
        Self::Silent,
        Self::Forget,
        Self::Stale,
        Self::Back,
        Self::Forge,
        Self::Equivocate,
        Self::Huge,
        Self::Deny,
        Self::Mix,
    ];

    /// Its name in options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Honest => "honest",
            Self::Silent => "silent",
            Self::Forget => "forget",
            Self::Stale => "stale",
            Self::Back => "back",
            Self::Forge => "forge",
            Self::Equivocate => "equivocate",
            Self::Huge => "huge",
            Self::Deny => "deny",
            Self::Mix => "mix",
        }
    }
}

/// What a liar does with a question.
#[derive(Debug)]
pub enum Reaction<T> {
    /// What an honest node would.
    Honest,
    /// Says this, and forgets the question.
    Say(Vec<T>),
}

/// Picks how to lie to this client this time.
fn today(habit: Habit, client: u32, rng: &mut Prng) -> Habit {
    match habit {
        Habit::Mix => Habit::ALL[rng.below(Habit::ALL.len() - 1)],
        Habit::Equivocate if client.is_multiple_of(2) => Habit::Honest,
        Habit::Equivocate => Habit::Back,
        other => other,
    }
}

/// How a liar answers a question about an object.
pub fn object(
    habit: Habit,
    client: u32,
    name: &Name,
    ask: &ObjectAsk,
    known: &mut Known,
    rng: &mut Prng,
) -> Reaction<ObjectTell> {
    let known = known.object(name);
    match today(habit, client, rng) {
        Habit::Honest | Habit::Mix | Habit::Equivocate => Reaction::Honest,
        Habit::Silent => Reaction::Say(Vec::new()),
        Habit::Deny => Reaction::Say(deny(ask, rng)),
        Habit::Huge => Reaction::Say(huge(ask, known, rng)),
        habit => Reaction::Say(tale(habit, ask, known, rng)),
    }
}

/// What a liar holds out as the truth.
struct Tale {
    committed: State,
    proposed: State,
    proposer: Rank,
    pending: Vec<Pending>,
}

fn tale(habit: Habit, ask: &ObjectAsk, known: &mut KnownObject, rng: &mut Prng) -> Vec<ObjectTell> {
    match ask {
        ObjectAsk::Submit { op, .. } => vec![submitted(habit, *op)],
        ObjectAsk::Propose { rank, stamp, .. } => vec![taken(*rank, Phase::Propose, *stamp)],
        ObjectAsk::Commit { rank, stamp, .. } => vec![taken(*rank, Phase::Commit, *stamp)],
        ObjectAsk::Get {
            rank, nonce, have, ..
        } => {
            let tale = told(habit, known, rng);
            let view = View {
                committed: tale.committed.stamp(),
                proposed: tale.proposed.stamp(),
                proposer: tale.proposer,
                pending: tale.pending,
                suffix: known.suffix(*have, &tale.committed),
                step: known.step(tale.committed.stamp(), &tale.proposed),
            };
            vec![ObjectTell::Got {
                rank: *rank,
                nonce: *nonce,
                view: Box::new(view),
            }]
        }
        ObjectAsk::Peek {
            ticket,
            have,
            spans,
        } => {
            let tale = told(habit, known, rng);
            let cells = spans.iter().map(|span| cells_of(&tale.committed, span));
            vec![ObjectTell::Peeked {
                ticket: *ticket,
                committed: tale.committed.stamp(),
                proposed: tale.proposed.version().min(tale.committed.version()),
                suffix: known.suffix(*have, &tale.committed),
                cells: cells.collect(),
            }]
        }
        ObjectAsk::Fetch { ticket, stamp, .. } => vec![page(*ticket, *stamp, known)],
        ObjectAsk::Give { ticket, .. } => vec![ObjectTell::Given {
            ticket: *ticket,
            whole: true,
        }],
        ObjectAsk::Watch { ticket } => {
            let stamp = told(habit, known, rng).committed.stamp();
            let ticket = *ticket;
            vec![ObjectTell::Changed { ticket, stamp }]
        }
        ObjectAsk::Unwatch { .. } => Vec::new(),
    }
}

fn submitted(habit: Habit, op: OpId) -> ObjectTell {
    if habit == Habit::Forge {
        let result = super::kinds::forged_result();
        return ObjectTell::Done { op, result };
    }
    ObjectTell::Held {
        op,
        principal: Arc::from("somebody else"),
    }
}

fn taken(rank: Rank, phase: Phase, stamp: Stamp) -> ObjectTell {
    ObjectTell::Taken {
        rank,
        phase,
        stamp,
        waiting: 0,
    }
}

fn told(habit: Habit, known: &mut KnownObject, rng: &mut Prng) -> Tale {
    let plain = |state: State, proposer| Tale {
        committed: state.clone(),
        proposed: state,
        proposer,
        pending: Vec::new(),
    };
    let top = known.chosen(0).cloned().unwrap_or_default();
    match habit {
        Habit::Stale => {
            let back = 1 + rng.below(3) as u64;
            let old = known.chosen(back).cloned().unwrap_or_default();
            plain(old, known.top)
        }
        Habit::Back => {
            let losers = known.losers();
            let pick = rng.below(losers.len().min(3));
            let proposed = losers
                .get(pick)
                .map_or(top.clone(), |state| (*state).clone());
            let committed = match rng.below(4) {
                0 => known.chosen(1).cloned().unwrap_or_default(),
                1 => proposed.clone(),
                _ => top,
            };
            let round = match rng.below(3) {
                0 => u64::MAX,
                1 => known.top.round,
                _ => known.top.round.saturating_add(1),
            };
            let client = ClientId(u128::MAX);
            Tale {
                committed,
                proposed,
                proposer: Rank { round, client },
                pending: Vec::new(),
            }
        }
        Habit::Forge => {
            let delta = Delta::new(super::kinds::forged_cells(&top));
            let forged = known.add(&top, &delta).unwrap_or_else(|| top.clone());
            let op = OpId {
                author: Author::new(1 << 40, 7),
                number: 1,
            };
            let pending = Pending {
                op,
                principal: Arc::from(""),
                body: forged_body(),
            };
            Tale {
                committed: if rng.chance(0.5) { forged.clone() } else { top },
                proposed: forged,
                proposer: Rank {
                    round: u64::MAX,
                    ..known.top
                },
                pending: vec![pending],
            }
        }
        _ => plain(State::new(), Rank::default()),
    }
}

fn page(ticket: u64, stamp: Stamp, known: &KnownObject) -> ObjectTell {
    let Some(state) = known.state(stamp.digest) else {
        let why = ObjectRefusal::Unknown;
        return ObjectTell::Gone { ticket, why };
    };
    let cells = state.cells(&[], false);
    let page = Page {
        previous: state.previous(),
        cells: cells
            .map(|(cell, value)| (cell.clone(), value.clone()))
            .collect(),
        last: true,
    };
    ObjectTell::Page {
        ticket,
        stamp,
        page,
    }
}

fn deny(ask: &ObjectAsk, rng: &mut Prng) -> Vec<ObjectTell> {
    let reasons = [
        ObjectRefusal::NotPermitted,
        ObjectRefusal::Full,
        ObjectRefusal::Forgotten,
        ObjectRefusal::Contradiction,
        ObjectRefusal::NotServing,
        ObjectRefusal::Older,
        ObjectRefusal::Unknown,
    ];
    let why = reasons[rng.below(reasons.len())];
    let needs = rng.chance(0.3);
    let ranked = |rank: Rank, phase| ObjectTell::Refused { rank, phase, why };
    let need = |rank: Rank, phase, stamp: Stamp| ObjectTell::NeedState {
        rank,
        phase,
        stamp,
        committed: State::new().stamp(),
        proposed: State::new().stamp(),
    };
    vec![match ask {
        ObjectAsk::Submit { op, .. } => ObjectTell::Denied { op: *op, why },
        ObjectAsk::Get { rank, .. } => ranked(*rank, Phase::Get),
        ObjectAsk::Propose { rank, stamp, .. } if needs => need(*rank, Phase::Propose, *stamp),
        ObjectAsk::Commit { rank, stamp, .. } if needs => need(*rank, Phase::Commit, *stamp),
        ObjectAsk::Propose { rank, .. } => ranked(*rank, Phase::Propose),
        ObjectAsk::Commit { rank, .. } => ranked(*rank, Phase::Commit),
        ObjectAsk::Fetch { ticket, .. }
        | ObjectAsk::Give { ticket, .. }
        | ObjectAsk::Peek { ticket, .. }
        | ObjectAsk::Watch { ticket } => ObjectTell::Gone {
            ticket: *ticket,
            why,
        },
        ObjectAsk::Unwatch { .. } => return Vec::new(),
    }]
}

fn huge(ask: &ObjectAsk, known: &mut KnownObject, rng: &mut Prng) -> Vec<ObjectTell> {
    let max = Rank {
        round: u64::MAX,
        client: ClientId(u128::MAX),
    };
    let outranked = |rank: Rank, phase| ObjectTell::Outranked {
        rank,
        phase,
        max,
        proof: None,
    };
    let (rank, phase) = match ask {
        ObjectAsk::Get { rank, .. } => (*rank, Phase::Get),
        ObjectAsk::Propose { rank, .. } => (*rank, Phase::Propose),
        ObjectAsk::Commit { rank, .. } => (*rank, Phase::Commit),
        _ => return tale(Habit::Forget, ask, known, rng),
    };
    vec![outranked(rank, phase)]
}

/// How a liar answers a contender for an object's lease.
pub fn lease(habit: Habit, client: u32, ask: &LeaseAsk, rng: &mut Prng) -> Reaction<LeaseReply> {
    let reply = |attempt: Attempt, sub, answer| LeaseReply {
        attempt,
        sub,
        answer,
    };
    let max = Rank {
        round: u64::MAX,
        client: ClientId(u128::MAX),
    };
    let free = LeaseAnswer::Free {
        held: std::time::Duration::ZERO,
        rank: None,
    };
    let locked = LeaseAnswer::Locked {
        queued: false,
        remaining: std::time::Duration::from_hours(1),
        token: Token(u64::MAX),
        rank: Some(max),
    };
    let answer = match today(habit, client, rng) {
        Habit::Honest | Habit::Mix | Habit::Equivocate => return Reaction::Honest,
        Habit::Silent => return Reaction::Say(Vec::new()),
        Habit::Huge => LeaseAnswer::Stale {
            token: Token(u64::MAX),
        },
        Habit::Deny => LeaseAnswer::Refused(LeaseRefusal::NotPermitted),
        Habit::Stale => locked,
        Habit::Back => LeaseAnswer::Free {
            held: std::time::Duration::ZERO,
            rank: Some(max),
        },
        Habit::Forget | Habit::Forge => free,
    };
    Reaction::Say(match ask {
        LeaseAsk::Try(asked) => vec![reply(asked.attempt, asked.sub, answer)],
        LeaseAsk::Renew { attempt, sub, .. } => vec![reply(*attempt, *sub, answer)],
        LeaseAsk::Release { attempt, .. } => vec![reply(*attempt, 0, LeaseAnswer::Released)],
    })
}
