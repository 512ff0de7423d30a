//! Formulas under construction, and why some are refused.

use thiserror::Error;

use crate::NodeSet;
use crate::construct::{NODES_MAX, SizeError};

/// The most votes that weighted gates may need together, so that the tables over votes stay small.
pub const VOTES_MAX: u64 = 1_000_000;

/// The most cells of the table over inputs and votes of one weighted gate.
const TABLE_MAX: u64 = 20_000_000;

/// Why a formula of votes cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FormulaError {
    /// The number of nodes is out of range.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// More votes are asked for than there are.
    #[error("{votes} votes are needed but all nodes together have {total}: lower the votes")]
    Unreachable {
        /// The votes asked for.
        votes: u64,
        /// All votes.
        total: u64,
    },
    /// No votes are asked for: the empty set would be a quorum.
    #[error("a quorum needs at least 1 vote")]
    NoVotes,
    /// The votes are too large for the tables over votes.
    #[error(
        "{votes} votes are too many: divide all weights (at most {VOTES_MAX} votes in all, and \
         fewer the more nodes there are)"
    )]
    TooManyVotes {
        /// The votes asked for.
        votes: u64,
    },
}

/// A part of a formula under construction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A node, counted from 0.
    Node(usize),
    /// At least `votes` votes of the parts, each with its votes.
    Vote(u64, Vec<(Part, u64)>),
}

impl Part {
    /// At least `votes` of the parts, one vote each.
    pub fn at_least(votes: usize, parts: Vec<Self>) -> Self {
        Self::Vote(
            votes as u64,
            parts.into_iter().map(|part| (part, 1)).collect(),
        )
    }

    /// More than half of the parts.
    pub fn majority(parts: Vec<Self>) -> Self {
        Self::at_least(parts.len() / 2 + 1, parts)
    }
}

/// Refuses gates out of reach and finds out whether every node stands once.
pub(super) fn check_part(part: &Part, seen: &mut NodeSet) -> Result<bool, FormulaError> {
    match part {
        Part::Node(node) => {
            if *node >= seen.capacity() {
                return Err(SizeError::TooMany {
                    nodes: *node + 1,
                    most: NODES_MAX,
                }
                .into());
            }
            Ok(seen.insert(*node))
        }
        Part::Vote(votes, parts) => {
            let total = parts
                .iter()
                .try_fold(0u64, |sum, (_, weight)| sum.checked_add(*weight))
                .ok_or(FormulaError::TooManyVotes { votes: u64::MAX })?;
            if *votes == 0 {
                return Err(FormulaError::NoVotes);
            }
            if *votes > total {
                return Err(FormulaError::Unreachable {
                    votes: *votes,
                    total,
                });
            }
            let plain = total == parts.len() as u64;
            let table = total.saturating_mul(parts.len() as u64);
            if total > VOTES_MAX || (!plain && table > TABLE_MAX) {
                return Err(FormulaError::TooManyVotes { votes: total });
            }
            let mut once = true;
            for (part, _) in parts {
                once &= check_part(part, seen)?;
            }
            Ok(once)
        }
    }
}

pub(super) fn tree_part(index: usize, nodes: usize) -> Part {
    if 2 * index + 2 >= nodes {
        return Part::Node(index);
    }
    Part::at_least(
        2,
        vec![
            Part::Node(index),
            tree_part(2 * index + 1, nodes),
            tree_part(2 * index + 2, nodes),
        ],
    )
}

pub(super) fn hierarchy_part(fanouts: &[usize], fresh: &mut impl Iterator<Item = usize>) -> Part {
    match fanouts {
        [] => Part::Node(fresh.next().expect("invariant: one number per leaf")),
        [fanout, below @ ..] => {
            Part::majority((0..*fanout).map(|_| hierarchy_part(below, fresh)).collect())
        }
    }
}
