//! Maekawa's grid: a quorum is a full row and a full column.

use std::ops::ControlFlow;

use thiserror::Error;

use crate::{Circuit, Family, LoadPlan, Mass, NodeSet, Odds, Prng, Sizes};

use super::{SizeError, check_nodes};

/// With unequal odds the recurrence keeps a weight for every set of columns.
const COLUMN_SETS_MAX: usize = 14;

/// Why a grid cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GridError {
    /// The number of nodes is out of range.
    #[error(transparent)]
    Size(#[from] SizeError),
}

/// A grid of nodes, numbered row by row. The last row may be short: its nodes stand in columns,
/// but it is no row of a quorum. Any two quorums meet where the row of one crosses the column of
/// the other.
#[derive(Clone, Debug)]
pub struct Grid {
    nodes: usize,
    cols: usize,
}

impl Grid {
    /// The grid for any number of nodes: as square as it can be, at least as wide as high.
    pub fn new(nodes: usize) -> Result<Self, GridError> {
        check_nodes(nodes)?;
        let side = nodes.isqrt();
        let cols = if side * side == nodes { side } else { side + 1 };
        Ok(Self { nodes, cols })
    }

    /// A full rectangle.
    pub fn rect(rows: usize, cols: usize) -> Result<Self, GridError> {
        let nodes = rows.saturating_mul(cols);
        check_nodes(nodes)?;
        Ok(Self { nodes, cols })
    }

    /// How many columns there are.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// How many rows there are, a short last one included.
    pub fn rows(&self) -> usize {
        self.nodes.div_ceil(self.cols)
    }

    /// How many rows are as wide as the grid.
    fn full_rows(&self) -> usize {
        self.nodes / self.cols
    }

    /// The nodes of a row, counted from 0.
    pub fn row(&self, row: usize) -> std::ops::Range<usize> {
        row * self.cols..((row + 1) * self.cols).min(self.nodes)
    }

    /// The nodes of a column, counted from 0.
    pub fn col(&self, col: usize) -> impl Iterator<Item = usize> + use<> {
        (col..self.nodes).step_by(self.cols)
    }

    fn quorum(&self, row: usize, col: usize) -> NodeSet {
        NodeSet::of(self.nodes, self.row(row).chain(self.col(col)))
    }

    /// Whether this row and column make a minimal quorum. In a grid of one column or of one full
    /// row only one pair does.
    fn is_lean(&self, row: usize, col: usize) -> bool {
        if self.cols == 1 {
            return row == 0;
        }
        // One full row: a column that ends in it adds nothing, and the first that does is taken.
        let short = self.nodes - self.full_rows() * self.cols;
        self.full_rows() > 1 || col == short
    }

    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        (0..self.full_rows())
            .flat_map(|row| (0..self.cols).map(move |col| (row, col)))
            .filter(|(row, col)| self.is_lean(*row, *col))
    }

    /// Equal odds: how many columns are whole so far is all that matters of the rows so far.
    fn even_mass(&self, Odds { up, down }: Odds) -> Mass {
        let cols = self.cols;
        let binomial = |n: usize| -> Vec<f64> {
            // terms[k]: the weight of exactly k of n nodes being up.
            let mut terms = vec![0.0; n + 1];
            terms[0] = 1.0;
            for _ in 0..n {
                for k in (0..n).rev() {
                    terms[k + 1] = terms[k + 1] * down + terms[k] * up;
                }
                terms[0] *= down;
            }
            terms
        };
        let terms: Vec<Vec<f64>> = (0..=cols).map(binomial).collect();
        let any = |n: usize| (up + down).powi(n as i32);
        // whole[seen][k]: weight of k whole columns, with or without a full row seen.
        let mut whole = [vec![0.0; cols + 1], vec![0.0; cols + 1]];
        whole[0][cols] = 1.0;
        for _ in 0..self.full_rows() {
            let mut next = [vec![0.0; cols + 1], vec![0.0; cols + 1]];
            for k in 0..=cols {
                let rest = cols - k;
                let full = terms[cols][cols];
                for left in 0..k {
                    let moved = terms[k][left] * any(rest);
                    next[0][left] += whole[0][k] * moved;
                    next[1][left] += whole[1][k] * moved;
                }
                let not_full = terms[k][k] * terms[rest][..rest].iter().sum::<f64>();
                next[0][k] += whole[0][k] * not_full;
                next[1][k] += whole[1][k] * (not_full + full) + whole[0][k] * full;
            }
            whole = next;
        }
        self.finish_even(&whole, down, any)
    }

    /// Adds the short last row: it breaks a column where it holds a dead node.
    fn finish_even(&self, whole: &[Vec<f64>; 2], down: f64, any: impl Fn(usize) -> f64) -> Mass {
        let cols = self.cols;
        let short = self.nodes - self.full_rows() * cols;
        let mut mass = Mass {
            live: 0.0,
            dead: whole[0].iter().sum::<f64>() * any(short),
        };
        // The whole columns are any k of the columns alike: all of them within the short row
        // with probability C(short, k) / C(cols, k).
        let mut inside = 1.0;
        for (k, weight) in whole[1].iter().enumerate() {
            let broken = if k <= short {
                inside * down.powi(k as i32) * any(short - k)
            } else {
                0.0
            };
            mass.dead += weight * broken;
            mass.live += weight * (any(short) - broken);
            inside *= (short as f64 - k as f64).max(0.0) / (cols as f64 - k as f64).max(1.0);
        }
        mass
    }

    /// Any odds: a weight for every set of whole columns, node by node.
    fn uneven_mass(&self, odds: &[Odds]) -> Mass {
        let sets = 1usize << self.cols;
        // By whether a full row was seen and whether the current row is still unbroken.
        let mut weight = vec![[[0.0f64; 2]; 2]; sets];
        weight[sets - 1][0][1] = 1.0;
        for (node, Odds { up, down }) in odds.iter().enumerate() {
            let bit = 1 << (node % self.cols);
            let mut next = vec![[[0.0f64; 2]; 2]; sets];
            for (set, by) in weight.iter().enumerate() {
                for seen in 0..2 {
                    for unbroken in 0..2 {
                        let mass = by[seen][unbroken];
                        next[set][seen][unbroken] += mass * up;
                        next[set & !bit][seen][0] += mass * down;
                    }
                }
            }
            weight = next;
            if (node + 1).is_multiple_of(self.cols) {
                for by in &mut weight {
                    let [[broken, full], [after, again]] = *by;
                    *by = [[0.0, broken], [0.0, full + after + again]];
                }
            }
        }
        let mut mass = Mass {
            live: 0.0,
            dead: 0.0,
        };
        for (set, by) in weight.iter().enumerate() {
            mass.dead += by[0][0] + by[0][1];
            let side = if set == 0 {
                &mut mass.dead
            } else {
                &mut mass.live
            };
            *side += by[1][0] + by[1][1];
        }
        mass
    }
}

impl Family for Grid {
    fn nodes(&self) -> usize {
        self.nodes
    }

    fn contains_quorum(&self, set: &NodeSet) -> bool {
        (0..self.full_rows()).any(|row| self.row(row).all(|node| set.contains(node)))
            && (0..self.cols).any(|col| self.col(col).all(|node| set.contains(node)))
    }

    fn cheapest(&self, cost: &[f64]) -> Option<NodeSet> {
        let rows: Vec<f64> = (0..self.full_rows())
            .map(|row| cost[self.row(row)].iter().sum())
            .collect();
        let cols: Vec<f64> = (0..self.cols)
            .map(|col| self.col(col).map(|node| cost[node]).sum())
            .collect();
        let price =
            |(row, col): &(usize, usize)| rows[*row] + cols[*col] - cost[row * self.cols + col];
        let finite = |(row, col): &(usize, usize)| rows[*row].is_finite() && cols[*col].is_finite();
        let best = self
            .pairs()
            .filter(finite)
            .min_by(|a, b| price(a).total_cmp(&price(b)))?;
        Some(self.quorum(best.0, best.1))
    }

    fn sample(&self, rng: &mut Prng) -> NodeSet {
        if self.full_rows() == 1 || self.cols == 1 {
            let pairs: Vec<_> = self.pairs().collect();
            let (row, col) = pairs[rng.below(pairs.len())];
            return self.quorum(row, col);
        }
        self.quorum(rng.below(self.full_rows()), rng.below(self.cols))
    }

    fn sizes(&self) -> Sizes {
        let size = |(row, col): (usize, usize)| self.row(row).len() + self.col(col).count() - 1;
        let sizes: Vec<usize> = self.pairs().map(size).collect();
        let min = sizes.iter().min().copied().unwrap_or(0);
        let max = sizes.iter().max().copied().unwrap_or(0);
        Sizes::exact(min, max)
    }

    fn own(&self, site: usize) -> Option<NodeSet> {
        if site >= self.nodes {
            return None;
        }
        let (row, col) = (site / self.cols, site % self.cols);
        // A site of the short last row takes a row in turn.
        let row = if row < self.full_rows() {
            row
        } else {
            col % self.full_rows()
        };
        if self.is_lean(row, col) {
            return Some(self.quorum(row, col));
        }
        // A narrow grid has one quorum; a site in it has no other.
        let (row, col) = self.pairs().next()?;
        Some(self.quorum(row, col)).filter(|quorum| quorum.contains(site))
    }

    fn visit(&self, visit: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>) -> Option<ControlFlow<()>> {
        Some(
            self.pairs()
                .try_for_each(|(row, col)| visit(&self.quorum(row, col))),
        )
    }

    fn count(&self) -> Option<f64> {
        Some(self.pairs().count() as f64)
    }

    fn mass(&self, odds: &[Odds]) -> Option<Mass> {
        if odds.iter().all(|each| *each == odds[0]) {
            return Some(self.even_mass(odds[0]));
        }
        (self.cols <= COLUMN_SETS_MAX).then(|| self.uneven_mass(odds))
    }

    fn circuit(&self) -> Option<Circuit> {
        let mut circuit = Circuit::new(self.nodes);
        let gates: Vec<_> = (0..self.nodes).map(|node| circuit.node(node)).collect();
        let rows: Vec<_> = (0..self.full_rows())
            .map(|row| circuit.all(self.row(row).map(|node| gates[node])))
            .collect();
        let cols: Vec<_> = (0..self.cols)
            .map(|col| circuit.all(self.col(col).map(|node| gates[node])))
            .collect();
        let row = circuit.any(rows);
        let col = circuit.any(cols);
        circuit.all([row, col]);
        Some(circuit)
    }

    fn load_plan(&self, capacity: &[f64]) -> Option<LoadPlan> {
        let narrow = self.full_rows() == 1 || self.cols == 1;
        if narrow || capacity.iter().any(|c| *c != capacity[0]) {
            return None;
        }
        let (rows, cols) = (self.full_rows() as f64, self.cols as f64);
        let full = self.full_rows() * self.cols;
        let mut loads = vec![1.0 / cols; self.nodes];
        loads[..full].fill(1.0 / rows + 1.0 / cols - 1.0 / (rows * cols));
        // Every quorum has at least rows + cols - 1 nodes in the full part.
        let mut weights = vec![0.0; self.nodes];
        weights[..full].fill(1.0);
        Some(LoadPlan { loads, weights })
    }

    fn transversal(&self) -> Option<usize> {
        Some(self.full_rows().min(self.cols))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::construct::twin;

    #[test]
    fn agrees_with_its_brute_force_twin() {
        for nodes in 1..=14 {
            twin::check_coterie(&format!("grid({nodes})"), &Grid::new(nodes).unwrap());
        }
        for (rows, cols) in [
            (1, 1),
            (1, 4),
            (4, 1),
            (2, 3),
            (3, 2),
            (2, 6),
            (3, 4),
            (5, 2),
        ] {
            let grid = Grid::rect(rows, cols).unwrap();
            twin::check_coterie(&format!("rect({rows},{cols})"), &grid);
        }
    }

    #[test]
    fn both_recurrences_agree() {
        for nodes in [9, 16, 23, 36, 50] {
            let grid = Grid::new(nodes).unwrap();
            let odds = vec![Odds::down(0.07); nodes];
            let (even, uneven) = (grid.even_mass(odds[0]), grid.uneven_mass(&odds));
            assert!(
                (even.dead / uneven.dead - 1.0).abs() < 1e-9,
                "{even:?} {uneven:?}"
            );
        }
    }

    #[test]
    fn known_values() {
        let grid = Grid::new(16).unwrap();
        let plan = grid.load_plan(&[1.0; 16]).unwrap();
        assert!((plan.loads[3] - 7.0 / 16.0).abs() < 1e-12);
        assert!(matches!(Grid::new(0), Err(GridError::Size(_))));
        assert!(matches!(Grid::rect(usize::MAX, 3), Err(GridError::Size(_))));
        assert!(matches!(Grid::rect(0, 3), Err(GridError::Size(_))));
    }
}
