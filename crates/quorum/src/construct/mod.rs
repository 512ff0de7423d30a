//! The constructions, one file each.

use thiserror::Error;

pub mod affine;
pub mod billiard;
pub mod compose;
pub mod explicit;
pub mod fallback;
pub mod field;
pub mod formula;
pub mod grid;
pub mod groups;
pub mod hgrid;
pub mod mgrid;
pub mod multilevel;
pub mod plane;
pub mod spare;
pub mod surficial;
#[cfg(test)]
pub(crate) mod twin;
pub mod walls;

/// The most nodes a system may have.
pub const NODES_MAX: usize = 100_000;

/// Why a number of nodes is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SizeError {
    /// No node at all.
    #[error("a quorum system needs at least 1 node")]
    None,
    /// More nodes than the library serves.
    #[error("{nodes} nodes are too many: a system has at most {most}")]
    TooMany {
        /// The nodes asked for.
        nodes: usize,
        /// The most that are served.
        most: usize,
    },
}

/// Refuses systems without nodes and systems that would not fit.
pub fn check_nodes(nodes: usize) -> Result<(), SizeError> {
    match nodes {
        0 => Err(SizeError::None),
        nodes if nodes > NODES_MAX => Err(SizeError::TooMany {
            nodes,
            most: NODES_MAX,
        }),
        _ => Ok(()),
    }
}
