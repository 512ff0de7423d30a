//! Listing the minimal quorums, where there are few enough.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use crate::{Family, NodeSet, Sizes};

use super::{Billiard, Board, Tier};

/// Up to this many nodes, families without structure are listed by trying all sets.
pub(super) const TABLE_MAX: usize = 16;

/// Up to this side the antipodal paths are listed: `2^20` of them.
const FULL_SIDE_MAX: usize = 21;

/// Up to this side those of a folded board are: each needs a look at what it contains.
const FOLDED_SIDE_MAX: usize = 15;

/// Up to this many own quorums of a folded board are compared with each other.
const OWN_MAX: usize = 1000;

type Visit<'a> = dyn FnMut(&NodeSet) -> ControlFlow<()> + 'a;

/// Calls `visit` with each minimal quorum of the family.
pub(super) fn visit(family: &Billiard, visit: &mut Visit<'_>) -> Option<ControlFlow<()>> {
    let (board, tiers) = (family.board(), family.tiers());
    if tiers.only(&[Tier::T0]) {
        return visit_own(family, visit);
    }
    if tiers.contains(Tier::T1) && tiers.only(&[Tier::T0, Tier::T1]) {
        if board.is_full() {
            return (board.q() <= FULL_SIDE_MAX)
                .then(|| each_path(family, &mut |cells| visit(&board.image(cells.to_vec()))));
        }
        return (board.q() <= FOLDED_SIDE_MAX).then(|| {
            let mut images = BTreeSet::new();
            let _ = each_path(family, &mut |cells| {
                images.insert(board.image(cells.to_vec()));
                ControlFlow::Continue(())
            });
            images.retain(|set| is_minimal(family, set));
            images.iter().try_for_each(visit)
        });
    }
    (family.nodes() <= TABLE_MAX).then(|| table(family).iter().try_for_each(visit))
}

/// The sizes of the minimal quorums, if they can be listed at once.
pub(super) fn sizes(family: &Billiard) -> Option<Sizes> {
    let mut sizes: Option<(usize, usize)> = None;
    let _ = visit(family, &mut |quorum| {
        let size = quorum.len();
        let (min, max) = sizes.unwrap_or((size, size));
        sizes = Some((min.min(size), max.max(size)));
        ControlFlow::Continue(())
    })?;
    sizes.map(|(min, max)| Sizes::exact(min, max))
}

fn visit_own(family: &Billiard, visit: &mut Visit<'_>) -> Option<ControlFlow<()>> {
    let board = family.board();
    if board.is_full() {
        let own = (0..board.nodes()).filter_map(|site| board.own(site));
        return Some(own.into_iter().try_for_each(|quorum| visit(&quorum)));
    }
    (board.nodes() <= OWN_MAX).then(|| {
        let own: BTreeSet<NodeSet> = (0..board.nodes())
            .filter_map(|site| board.own(site))
            .filter(|set| is_minimal(family, set))
            .collect();
        own.iter().try_for_each(visit)
    })
}

fn is_minimal(family: &Billiard, quorum: &NodeSet) -> bool {
    let mut rest = quorum.clone();
    quorum.iter().all(|node| {
        rest.remove(node);
        let needed = !family.contains_quorum(&rest);
        rest.insert(node);
        needed
    })
}

/// The minimal quorums of any family of up to [`TABLE_MAX`] nodes, by trying all sets.
pub(super) fn table(family: &dyn Family) -> Vec<NodeSet> {
    let nodes = family.nodes();
    let holds: Vec<bool> = (0..1u64 << nodes)
        .map(|mask| family.contains_quorum(&NodeSet::from_mask(nodes, mask)))
        .collect();
    (0..holds.len())
        .filter(|mask| {
            let mut members = (0..nodes).filter(|node| mask >> node & 1 == 1);
            holds[*mask] && members.all(|node| !holds[mask & !(1 << node)])
        })
        .map(|mask| NodeSet::from_mask(nodes, mask as u64))
        .collect()
}

/// Calls `visit` with the cells of each antipodal path, left-right ones first.
fn each_path(
    family: &Billiard,
    visit: &mut dyn FnMut(&[usize]) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let t = family.board().t();
    for lane in 0..2 {
        for start in 0..t {
            let mut walk = Walk {
                family,
                lane,
                end: t - 1 - start,
                cells: Vec::new(),
            };
            walk.extend(start, visit)?;
        }
    }
    ControlFlow::Continue(())
}

/// A path that is being extended column by column.
struct Walk<'a> {
    family: &'a Billiard,
    lane: usize,
    /// The rank in the last column.
    end: usize,
    cells: Vec<usize>,
}

impl Walk<'_> {
    fn extend(
        &mut self,
        rank: usize,
        visit: &mut dyn FnMut(&[usize]) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let column = self.cells.len();
        let board: &Board = self.family.board();
        let Some(cell) = self.family.paths().cell(self.lane, column, rank) else {
            return ControlFlow::Continue(());
        };
        // Rows from 0: even columns from 0 on hold the odd ones.
        let row = 2 * rank + usize::from(column.is_multiple_of(2));
        if row.abs_diff(2 * self.end + 1) > board.q() - 1 - column {
            return ControlFlow::Continue(());
        }
        self.cells.push(cell);
        let flow = if self.cells.len() == board.q() {
            visit(&self.cells)
        } else {
            self.forward(column, rank, visit)
        };
        self.cells.pop();
        flow
    }

    fn forward(
        &mut self,
        column: usize,
        rank: usize,
        visit: &mut dyn FnMut(&[usize]) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if column.is_multiple_of(2) {
            self.extend(rank, visit)?;
            self.extend(rank + 1, visit)
        } else {
            if let Some(above) = rank.checked_sub(1) {
                self.extend(above, visit)?;
            }
            self.extend(rank, visit)
        }
    }
}
