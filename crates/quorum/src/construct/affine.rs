//! Lines of an affine plane as cartels.
//!
//! The group system of degree √n that Joung's "Quorum-Based Algorithms for Group Mutual Exclusion"
//! mentions as optimal. The nodes are the points `(x, y)` over a field of order `s`; a cartel is
//! a class of parallel lines: `y = a·x + b` for one slope `a`, or for the last class `x = b`.
//! Parallel lines are disjoint, all others meet in exactly one point. So there are up to `s+1`
//! cartels of `s` disjoint quorums of `s` nodes each.
//!
//! Point `(x, y)` is node `x·s + y` (from 0). With `n` nodes, `s` is the largest prime power with
//! `s² <= n`; the nodes from `s²` on are *spares*: no quorum has them, only fallback quorums do.

use thiserror::Error;

use super::explicit::{Explicit, NODES_MAX};
use super::field::{Field, prime_power};
use super::groups::from_cartels;
use crate::{Family, GroupSystem};

/// The group system of `groups` classes of parallel lines on `nodes` nodes.
pub fn affine(nodes: usize, groups: usize) -> Result<GroupSystem, AffineError> {
    Ok(from_cartels(affine_cartels(nodes, groups)?))
}

/// The cartels of [`affine`]: slopes 0, 1, .. in order, and then the lines `x = b`.
pub fn affine_cartels(nodes: usize, groups: usize) -> Result<Vec<Explicit>, AffineError> {
    if nodes > NODES_MAX {
        return Err(AffineError::TooManyNodes { nodes });
    }
    let order = (2..=nodes.isqrt())
        .rev()
        .find(|order| prime_power(*order).is_some());
    let Some((order, field)) = order.and_then(|order| Some((order, Field::new(order)?))) else {
        return Err(AffineError::TooFewNodes { nodes });
    };
    if groups == 0 || groups > order + 1 {
        return Err(AffineError::Groups {
            nodes,
            groups,
            order,
            most: order + 1,
        });
    }
    let members = groups * order * order;
    if members > MEMBERS_MAX {
        return Err(AffineError::TooLarge {
            most: MEMBERS_MAX / (order * order),
            nodes,
            groups,
        });
    }
    let line = |slope: usize, shift: usize| {
        let field = &field;
        (0..order).map(move |t| {
            if slope == order {
                shift * order + t
            } else {
                t * order + field.add(field.mul(slope, t), shift)
            }
        })
    };
    let cartel = |slope| {
        let lines = (0..order).map(|shift| line(slope, shift));
        Explicit::from_antichain(nodes, lines)
    };
    let cartels: Vec<Explicit> = (0..groups).map(cartel).collect();
    assert!(
        cartels.iter().all(|cartel| cartel.sizes().max == order),
        "invariant: a line has as many points as the field"
    );
    Ok(cartels)
}

/// Why there is no such affine group system.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AffineError {
    /// No plane is that small.
    #[error("an affine system needs at least 4 nodes, but there are {nodes}")]
    TooFewNodes {
        /// The nodes there are.
        nodes: usize,
    },
    /// No groups, or more than the plane has classes of parallel lines.
    #[error(
        "an affine system on {nodes} nodes (s={order}) has 1 to {most} groups, not {groups}: take \
         that many, more nodes, or surficial or groups(majority({nodes}), {groups})"
    )]
    Groups {
        /// The nodes there are.
        nodes: usize,
        /// The groups asked for.
        groups: usize,
        /// The order of the plane.
        order: usize,
        /// The most groups it has room for.
        most: usize,
    },
    /// The lines would take too much memory.
    #[error(
        "an affine system of {nodes} nodes and {groups} groups is too large: take at most {most} \
         groups"
    )]
    TooLarge {
        /// The nodes there are.
        nodes: usize,
        /// The groups asked for.
        groups: usize,
        /// The most groups that are allowed.
        most: usize,
    },
    /// More nodes than this library takes.
    #[error("{nodes} nodes are too many: at most {NODES_MAX} are allowed")]
    TooManyNodes {
        /// How many were asked for.
        nodes: usize,
    },
}

/// The most members of all lines together.
const MEMBERS_MAX: usize = 1 << 24;
