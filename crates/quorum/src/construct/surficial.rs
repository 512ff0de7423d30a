//! Surficial group systems.
//!
//! After Joung, "Quorum-Based Algorithms for Group Mutual Exclusion", section 3. Every two cartels
//! share a rectangle of nodes; a quorum of one cartel takes a row of it, a quorum of the other a
//! column, and so they meet in exactly one node. A quorum of cartel `i` takes one line of each
//! rectangle of `i`. Each node is in exactly two quorums; the quorums of one cartel are disjoint.
//!
//! | Joung | here |
//! |---|---|
//! | m groups, cartel `C_i` | [`Surficial::groups`], [`Surficial::cartel`], from 0 |
//! | k, the width of a square | [`Surficial::widths`], one per cartel |
//! | square `P^{i,j}`, `1 <= i <= j <= m-1` | rectangle of cartels `i` and `j+1` (from 1) |
//! | node `p^{i,j}_{r,s}` | in quorum r of cartel i and quorum s of cartel j+1 |
//!
//! The paper has squares; unequal widths use nodes better when n is not `k²m(m-1)/2`. Nodes that
//! are left over are *spares*: no quorum has them, only fallback quorums do.
//!
//! Figure 4 of the paper prints the cartel's index where the quorum's index is meant; see
//! [`literal_figure_4`].

use thiserror::Error;

use super::explicit::{Explicit, NODES_MAX};
use super::groups::from_cartels;
use crate::{GroupSystem, NodeSet};

/// A surficial group system: its geometry, from which cartels are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Surficial {
    nodes: usize,
    widths: Vec<usize>,
}

impl Surficial {
    /// The system for `groups` groups on `nodes` nodes. All widths are `k` or `k+1` with `k` as
    /// large as the nodes allow; lower-numbered groups are the wider ones.
    pub fn new(nodes: usize, groups: usize) -> Result<Self, SurficialError> {
        check_nodes(nodes)?;
        if groups == 0 {
            return Err(SurficialError::NoGroup);
        }
        if groups == 1 {
            return Self::with_widths(Some(nodes), &[nodes]);
        }
        let least = groups.saturating_mul(groups - 1) / 2;
        if least > nodes {
            return Err(SurficialError::TooManyGroups {
                nodes,
                groups,
                least,
            });
        }
        let width = (nodes / least).isqrt();
        let mut widths = vec![width; groups];
        for group in 0..groups {
            widths[group] += 1;
            if needed(&widths) > Some(nodes) {
                widths[group] -= 1;
                break;
            }
        }
        Ok(Self { nodes, widths })
    }

    /// The system whose cartel `i` has `widths[i]` quorums, on `nodes` nodes or else as few as it
    /// needs.
    pub fn with_widths(nodes: Option<usize>, widths: &[usize]) -> Result<Self, SurficialError> {
        if widths.is_empty() {
            return Err(SurficialError::NoGroup);
        }
        if let Some(group) = widths.iter().position(|width| *width == 0) {
            return Err(SurficialError::ZeroWidth { group: group + 1 });
        }
        let needed = needed(widths).ok_or(SurficialError::TooManyNodes { nodes: usize::MAX })?;
        let nodes = nodes.unwrap_or(needed);
        check_nodes(nodes)?;
        if needed > nodes {
            return Err(SurficialError::TooWide { nodes, needed });
        }
        Ok(Self {
            nodes,
            widths: widths.to_vec(),
        })
    }

    /// How many nodes there are, spares included.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// How many groups there are.
    pub fn groups(&self) -> usize {
        self.widths.len()
    }

    /// How many quorums each cartel has: so many members of its group can hold one at once.
    pub fn widths(&self) -> &[usize] {
        &self.widths
    }

    /// The nodes that no quorum has.
    pub fn spares(&self) -> std::ops::Range<usize> {
        needed(&self.widths).unwrap_or(self.nodes)..self.nodes
    }

    /// The rectangle of the cartels `upper < lower` (from 0): its rows are the parts of the quorums
    /// of `upper`, its columns those of the quorums of `lower`. `None` if there is no such pair.
    pub fn rectangle(&self, upper: usize, lower: usize) -> Option<Vec<Vec<usize>>> {
        if upper >= lower || lower >= self.groups() {
            return None;
        }
        let (start, rows, columns) = self.place(upper, lower);
        let row = |row: usize| (0..columns).map(move |column| start + row * columns + column);
        Some((0..rows).map(|r| row(r).collect()).collect())
    }

    /// The quorums of cartel `index` (from 0). `None` if there is no such cartel.
    pub fn cartel(&self, index: usize) -> Option<Explicit> {
        let width = *self.widths.get(index)?;
        if self.groups() == 1 {
            let singles = (0..width).map(|node| [node]);
            return Some(Explicit::from_antichain(self.nodes, singles));
        }
        let mut quorums = vec![Vec::new(); width];
        for upper in 0..index {
            let (start, rows, columns) = self.place(upper, index);
            for (column, quorum) in quorums.iter_mut().enumerate() {
                quorum.extend((0..rows).map(|row| start + row * columns + column));
            }
        }
        for lower in index + 1..self.groups() {
            let (start, _, columns) = self.place(index, lower);
            for (row, quorum) in quorums.iter_mut().enumerate() {
                quorum.extend((0..columns).map(|column| start + row * columns + column));
            }
        }
        Some(Explicit::from_antichain(self.nodes, quorums))
    }

    /// The group system: quorums of different cartels share exactly one node.
    pub fn system(&self) -> GroupSystem {
        let cartels = (0..self.groups()).filter_map(|index| self.cartel(index));
        from_cartels(cartels.collect())
    }

    /// First node, rows and columns of a rectangle. Rectangles follow each other in the order of
    /// their cartels, nodes within one row by row.
    fn place(&self, upper: usize, lower: usize) -> (usize, usize, usize) {
        let mut after: usize = self.widths.iter().sum();
        let mut start = 0;
        for width in &self.widths[..upper] {
            after -= width;
            start += width * after;
        }
        let rows = self.widths[upper];
        start += rows * self.widths[upper + 1..lower].iter().sum::<usize>();
        (start, rows, self.widths[lower])
    }
}

/// The formula of the paper's Figure 4 taken literally: for each cartel its `k` sets.
///
/// It is a misprint, and no group system comes out: the subscript that should be the quorum's
/// index `j` is printed as the cartel's index `i`, so all `k` sets of a cartel are one set, and
/// where `i > k` the subscript leaves the square. Such nodes do not exist and are left out here;
/// different cartels then need not meet. Nodes are numbered as in [`Surficial`]. Empty for sizes
/// that [`Surficial::with_widths`] refuses, and for `m < 2`.
pub fn literal_figure_4(m: usize, k: usize) -> Vec<Vec<NodeSet>> {
    if m > NODES_MAX {
        return Vec::new();
    }
    let Ok(geometry) = Surficial::with_widths(None, &vec![k; m]) else {
        return Vec::new();
    };
    if m < 2 {
        return Vec::new();
    }
    // The place of p^{square}_{row,column}, square (i, j) being that of cartels i and j+1.
    let node = |square: (usize, usize), row: usize, column: usize| {
        let rows = geometry.rectangle(square.0 - 1, square.1)?;
        rows.get(row - 1)?.get(column - 1).copied()
    };
    (1..=m)
        .map(|i| {
            let columns = (1..i).flat_map(|s| (1..=k).filter_map(move |r| node((s, i - 1), r, i)));
            let rows = (i..m).flat_map(|s| (1..=k).filter_map(move |r| node((i, s), i, r)));
            let set = NodeSet::of(geometry.nodes(), columns.chain(rows));
            vec![set; k]
        })
        .collect()
}

/// Why there is no such surficial system.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SurficialError {
    /// There are no groups.
    #[error(
        "a surficial system needs at least one group: give the number of groups or their widths"
    )]
    NoGroup,
    /// There are no nodes.
    #[error("a surficial system needs at least one node: give the number of nodes")]
    NoNode,
    /// Not even one node for each pair of groups.
    #[error(
        "a surficial system of {groups} groups needs at least {least} nodes, one for each pair of \
         groups, but there are {nodes}: use groups(majority({nodes}), {groups}) instead"
    )]
    TooManyGroups {
        /// The nodes there are.
        nodes: usize,
        /// The groups asked for.
        groups: usize,
        /// The nodes that so many groups need.
        least: usize,
    },
    /// A cartel would have no quorum.
    #[error("group {group} has width 0: give each group a width of at least 1")]
    ZeroWidth {
        /// The group, from 1.
        group: usize,
    },
    /// The rectangles do not fit.
    #[error("these widths need {needed} nodes, but there are {nodes}: take smaller widths")]
    TooWide {
        /// The nodes there are.
        nodes: usize,
        /// The nodes that the widths need.
        needed: usize,
    },
    /// More nodes than this library takes.
    #[error("{nodes} nodes are too many: at most {NODES_MAX} are allowed")]
    TooManyNodes {
        /// How many were asked for.
        nodes: usize,
    },
}

fn check_nodes(nodes: usize) -> Result<(), SurficialError> {
    match nodes {
        0 => Err(SurficialError::NoNode),
        1..=NODES_MAX => Ok(()),
        _ => Err(SurficialError::TooManyNodes { nodes }),
    }
}

/// The nodes that these widths need: one rectangle for each pair, or for one group a line. `None`
/// if the number does not fit a machine word.
fn needed(widths: &[usize]) -> Option<usize> {
    if let [width] = widths {
        return Some(*width);
    }
    let mut before = 0usize;
    let mut needed = 0usize;
    for width in widths {
        needed = needed.checked_add(before.checked_mul(*width)?)?;
        before = before.checked_add(*width)?;
    }
    Some(needed)
}
