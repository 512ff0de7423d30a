//! Nodes that lie about leases and objects, for tests of those who must survive it.
//!
//! The machine underneath is honest and so is its disk; only what is said is twisted. No
//! configuration and no flag of a node in service leads here: `conclave up` and `conclave chaos`
//! make such nodes, on this machine alone.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::{ClientId, LinkId, Name, Token};
use conclave_protocol::keeper::Answer;
use conclave_protocol::lease::{LeaseAnswer, LeaseReply};
use conclave_protocol::object::{
    Author, Digest, ObjectTell, OpId, Pending, Phase, Rank, Stamp, View,
};

/// How a node lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It says nothing.
    Silent,
    /// It tells of the first state that it ever told of.
    Stale,
    /// It invents states, operations and results.
    Forge,
    /// It tells every other connection something else.
    Equivocate,
    /// It names ranks and tokens that nobody can exceed.
    Huge,
    /// It never gives its vote.
    Locked,
    /// It gives its vote to everybody.
    Free,
    /// All of these in turn.
    Mix,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Silent,
        Self::Stale,
        Self::Forge,
        Self::Equivocate,
        Self::Huge,
        Self::Locked,
        Self::Free,
        Self::Mix,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Stale => "stale",
            Self::Forge => "forge",
            Self::Equivocate => "equivocate",
            Self::Huge => "huge",
            Self::Locked => "locked",
            Self::Free => "free",
            Self::Mix => "mix",
        }
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|mode| mode.name() == text);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("'{text}' is no way to lie; give one of {names}")
        })
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.name())
    }
}

/// Twists what a node says.
#[derive(Debug)]
pub(super) struct Liar {
    mode: Mode,
    count: u64,
    /// The first state told of each object.
    first: BTreeMap<Name, Stamp>,
}

/// So many objects are lied about from memory.
const FIRST_MAX: usize = 1000;

impl Liar {
    pub(super) fn new(mode: Mode) -> Self {
        Self {
            mode,
            count: 0,
            first: BTreeMap::new(),
        }
    }

    /// What is said instead; none says nothing.
    pub(super) fn twist(&mut self, link: LinkId, answer: Answer) -> Option<Answer> {
        self.count += 1;
        let mode = match self.mode {
            // A mix that changes with every answer, and not in step with any client.
            Mode::Mix => Mode::ALL[(self.count.wrapping_mul(0x9e37_79b9) >> 7) as usize % 7],
            Mode::Equivocate if link.0.is_multiple_of(2) => return Some(answer),
            Mode::Equivocate => Mode::Forge,
            mode => mode,
        };
        if mode == Mode::Silent {
            return None;
        }
        Some(match answer {
            Answer::Lease(key, reply) => Answer::Lease(key, lease(mode, reply)),
            Answer::Object(object, tell) => {
                let tell = self.object(mode, &object, tell);
                Answer::Object(object, tell)
            }
            Answer::Surveyed {
                ticket,
                objects,
                token,
                last,
                lost,
                new,
            } => {
                let forge = |(name, stamp): (Name, Stamp)| (name, forged(stamp));
                let objects = match mode {
                    Mode::Forge => objects.into_iter().map(forge).collect(),
                    _ => objects,
                };
                let token = if mode == Mode::Huge {
                    Token(u64::MAX)
                } else {
                    token
                };
                Answer::Surveyed {
                    ticket,
                    objects,
                    token,
                    last,
                    lost,
                    new,
                }
            }
        })
    }

    fn object(&mut self, mode: Mode, object: &Name, tell: ObjectTell) -> ObjectTell {
        match mode {
            Mode::Stale => self.stale(object, tell),
            Mode::Forge => forge(tell),
            Mode::Huge => huge(tell),
            _ => tell,
        }
    }

    fn stale(&mut self, object: &Name, mut tell: ObjectTell) -> ObjectTell {
        let committed = match &tell {
            ObjectTell::Got { view, .. } => view.committed,
            ObjectTell::Peeked { committed, .. } => *committed,
            _ => return tell,
        };
        if self.first.len() < FIRST_MAX {
            self.first.entry(object.clone()).or_insert(committed);
        }
        let first = self.first.get(object).copied().unwrap_or(committed);
        match &mut tell {
            ObjectTell::Got { view, .. } => {
                **view = View {
                    committed: first,
                    proposed: first,
                    proposer: Rank::default(),
                    pending: Vec::new(),
                    suffix: Vec::new(),
                    step: None,
                };
            }
            ObjectTell::Peeked {
                committed,
                proposed,
                suffix,
                ..
            } => {
                *committed = first;
                *proposed = first.version;
                suffix.clear();
            }
            _ => {}
        }
        tell
    }
}

fn lease(mode: Mode, mut reply: LeaseReply) -> LeaseReply {
    if matches!(reply.answer, LeaseAnswer::Released) {
        return reply;
    }
    let free = LeaseAnswer::Free {
        held: Duration::ZERO,
        rank: None,
    };
    match mode {
        Mode::Locked => {
            reply.answer = LeaseAnswer::Locked {
                queued: false,
                remaining: Duration::from_hours(1),
                token: Token(0),
                rank: None,
            };
        }
        Mode::Free | Mode::Forge => reply.answer = free,
        Mode::Huge => {
            reply.answer = LeaseAnswer::Stale {
                token: Token(u64::MAX),
            };
        }
        _ => {}
    }
    reply
}

fn forged(stamp: Stamp) -> Stamp {
    let mut digest = stamp.digest;
    digest.0[0] ^= 0xff;
    Stamp {
        version: stamp.version.saturating_add(1),
        digest,
    }
}

const STRANGER: ClientId = ClientId(u128::MAX);

fn forge(mut tell: ObjectTell) -> ObjectTell {
    match &mut tell {
        ObjectTell::Done { result, .. } => {
            let mut other = result.to_vec();
            other.push(b'!');
            *result = other.into();
        }
        ObjectTell::Got { view, .. } => {
            view.committed = forged(view.committed);
            view.proposed = forged(view.committed);
            view.proposer = Rank {
                round: view.proposer.round.saturating_add(1),
                client: STRANGER,
            };
            view.pending.push(Pending {
                op: OpId {
                    author: Author(u128::MAX),
                    number: 1,
                },
                principal: Arc::from("user/nobody"),
                body: Arc::from(&b"\x01\x02forged"[..]),
            });
        }
        ObjectTell::Peeked {
            committed, cells, ..
        } => {
            *committed = forged(*committed);
            cells.iter_mut().for_each(Vec::clear);
        }
        ObjectTell::Page { page, .. } => {
            page.previous = Digest([7; 32]);
            page.cells.truncate(1);
        }
        ObjectTell::Held { op, .. } => {
            let (op, result) = (*op, Arc::from(&b"forged"[..]));
            return ObjectTell::Done { op, result };
        }
        ObjectTell::Changed { stamp, .. } => *stamp = forged(*stamp),
        _ => {}
    }
    tell
}

fn huge(tell: ObjectTell) -> ObjectTell {
    let (rank, phase) = match &tell {
        ObjectTell::Got { rank, .. } => (*rank, Phase::Get),
        ObjectTell::Taken { rank, phase, .. } | ObjectTell::NeedState { rank, phase, .. } => {
            (*rank, *phase)
        }
        _ => return tell,
    };
    ObjectTell::Outranked {
        rank,
        phase,
        max: Rank {
            round: u64::MAX,
            client: STRANGER,
        },
        proof: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_has_a_name_that_is_read_again() {
        for mode in Mode::ALL {
            assert_eq!(mode.name().parse(), Ok(mode));
        }
        assert!("honest".parse::<Mode>().unwrap_err().contains("silent"));
    }

    #[test]
    fn a_liar_says_something_else() {
        let held = ObjectTell::Held {
            op: OpId::default(),
            principal: Arc::from(""),
        };
        let honest = Answer::Object(Name::new("o"), held);
        let says = |mode, link| Liar::new(mode).twist(LinkId(link), honest.clone());
        assert_eq!(says(Mode::Silent, 1), None);
        assert_ne!(says(Mode::Forge, 1), Some(honest.clone()));
        assert_eq!(says(Mode::Equivocate, 2), Some(honest.clone()));
        assert_ne!(says(Mode::Equivocate, 3), Some(honest.clone()));
    }
}
