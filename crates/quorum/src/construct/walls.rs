//! Crumbling walls (Peleg and Wool): rows of bricks; a quorum is one full row and one brick of
//! every row below it.
//!
//! `walls(1, n-1)` is the wheel, `walls(1, 2, 3, …)` the triangular system of Lovász.

use std::ops::ControlFlow;

use thiserror::Error;

use crate::{Circuit, Family, LoadPlan, Mass, NodeSet, Odds, Prng, Sizes};

use super::{SizeError, check_nodes};

/// Why a wall cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WallsError {
    /// The number of nodes is out of range.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// A row without bricks.
    #[error("row {row} has no node: every row of a wall needs at least 1")]
    EmptyRow {
        /// The row, from 1.
        row: usize,
    },
    /// Too few nodes for a wheel.
    #[error("a wheel needs at least 3 nodes (a hub and a rim), not {nodes}: use majority({nodes})")]
    SmallWheel {
        /// The nodes asked for.
        nodes: usize,
    },
}

/// A wall. Nodes are numbered row by row from the top. Serves any rows; any two quorums meet,
/// because the lower of their two full rows holds a brick of the other quorum.
#[derive(Clone, Debug)]
pub struct Walls {
    nodes: usize,
    /// First node of each row, and the end of the last.
    starts: Vec<usize>,
    /// How likely the strategy takes each row as the full one.
    choice: Vec<f64>,
    /// Whether `choice` is load-optimal.
    optimal: bool,
}

impl Walls {
    /// The wall with rows of these widths, from the top.
    pub fn new(widths: &[usize]) -> Result<Self, WallsError> {
        let nodes = widths
            .iter()
            .try_fold(0usize, |sum, width| sum.checked_add(*width))
            .unwrap_or(usize::MAX);
        check_nodes(nodes)?;
        if let Some(row) = widths.iter().position(|width| *width == 0) {
            return Err(WallsError::EmptyRow { row: row + 1 });
        }
        let mut starts = vec![0];
        for width in widths {
            starts.push(starts[starts.len() - 1] + width);
        }
        let (choice, optimal) = row_choice(widths);
        Ok(Self {
            nodes,
            starts,
            choice,
            optimal,
        })
    }

    /// A hub and a rim: the hub with any rim node, or the whole rim.
    pub fn wheel(nodes: usize) -> Result<Self, WallsError> {
        check_nodes(nodes)?;
        if nodes < 3 {
            return Err(WallsError::SmallWheel { nodes });
        }
        Self::new(&[1, nodes - 1])
    }

    /// Rows of 1, 2, 3, … nodes; what is left over widens the lowest rows, one node each, as far
    /// as it goes.
    pub fn triangular(nodes: usize) -> Result<Self, WallsError> {
        check_nodes(nodes)?;
        let mut rows = 1;
        while (rows + 1) * (rows + 2) / 2 <= nodes {
            rows += 1;
        }
        let spare = nodes - rows * (rows + 1) / 2;
        let widths: Vec<usize> = (1..=rows)
            .map(|row| row + usize::from(row > rows - spare.min(rows)))
            .collect();
        Self::new(&widths)
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.starts.len() - 1
    }

    /// The nodes of a row, counted from 0 at the top.
    pub fn row(&self, row: usize) -> std::ops::Range<usize> {
        self.starts[row]..self.starts[row + 1]
    }

    fn width(&self, row: usize) -> usize {
        self.row(row).len()
    }

    /// Whether quorums with this full row are minimal: a row of one brick below would be a full
    /// row itself.
    fn leads(&self, row: usize) -> bool {
        (row + 1..self.rows()).all(|below| self.width(below) > 1)
    }

    fn visit_below(
        &self,
        row: usize,
        set: &mut NodeSet,
        visit: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if row == self.rows() {
            return visit(set);
        }
        for node in self.row(row) {
            set.insert(node);
            let end = self.visit_below(row + 1, set, visit);
            set.remove(node);
            end?;
        }
        ControlFlow::Continue(())
    }
}

/// The rows' probabilities under which all nodes carry the same load, if there are such; else
/// those numbers cut at 0 and scaled, which is a strategy but maybe not the best.
fn row_choice(widths: &[usize]) -> (Vec<f64>, bool) {
    // With load 1: row i carries choice[i] plus above / width[i], where above is the sum of the
    // choices of the rows above it.
    // Rows above a row of one brick are in no minimal quorum.
    let top = widths.iter().rposition(|width| *width == 1).unwrap_or(0);
    let mut above = 0.0;
    let mut choice = vec![0.0; top];
    let mut optimal = true;
    for width in &widths[top..] {
        let own: f64 = 1.0 - above / *width as f64;
        optimal &= own >= 0.0;
        choice.push(own.max(0.0));
        above += own.max(0.0);
    }
    for own in &mut choice {
        *own /= above;
    }
    (choice, optimal)
}

impl Family for Walls {
    fn nodes(&self) -> usize {
        self.nodes
    }

    fn contains_quorum(&self, set: &NodeSet) -> bool {
        for row in (0..self.rows()).rev() {
            let held = self.row(row).filter(|node| set.contains(*node)).count();
            if held == self.width(row) {
                return true;
            }
            if held == 0 {
                return false;
            }
        }
        false
    }

    fn cheapest(&self, cost: &[f64]) -> Option<NodeSet> {
        let mut best: Option<(f64, usize)> = None;
        let mut below = 0.0;
        for row in (0..self.rows()).rev() {
            let full: f64 = self.row(row).map(|node| cost[node]).sum::<f64>() + below;
            // On equal cost the lower row stays: it is the smaller quorum.
            if full < best.map_or(f64::INFINITY, |(cost, _)| cost) {
                best = Some((full, row));
            }
            below += cost[self.row(row)]
                .iter()
                .copied()
                .fold(f64::INFINITY, f64::min);
        }
        let (_, full) = best?;
        let mut set = NodeSet::of(self.nodes, self.row(full));
        for row in full + 1..self.rows() {
            let brick = self.row(row).min_by(|a, b| cost[*a].total_cmp(&cost[*b]));
            set.insert(brick.expect("invariant: no row is empty"));
        }
        Some(set)
    }

    fn sample(&self, rng: &mut Prng) -> NodeSet {
        let full = rng.weighted(&self.choice).unwrap_or(self.rows() - 1);
        let mut set = NodeSet::of(self.nodes, self.row(full));
        for row in full + 1..self.rows() {
            set.insert(self.starts[row] + rng.below(self.width(row)));
        }
        set
    }

    fn sizes(&self) -> Sizes {
        let sizes = (0..self.rows())
            .filter(|row| self.leads(*row))
            .map(|row| self.width(row) + self.rows() - row - 1);
        let (min, max) = sizes.fold((usize::MAX, 0), |(min, max), size| {
            (min.min(size), max.max(size))
        });
        Sizes::exact(min, max)
    }

    fn own(&self, site: usize) -> Option<NodeSet> {
        let row = (0..self.rows()).find(|row| self.row(*row).contains(&site))?;
        let full = if self.leads(row) { row } else { return None };
        let place = site - self.starts[row];
        let mut set = NodeSet::of(self.nodes, self.row(full));
        for below in full + 1..self.rows() {
            set.insert(self.starts[below] + place % self.width(below));
        }
        Some(set)
    }

    fn visit(&self, visit: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>) -> Option<ControlFlow<()>> {
        if self.rows() > 4096 {
            return None;
        }
        for full in (0..self.rows()).filter(|row| self.leads(*row)) {
            let mut set = NodeSet::of(self.nodes, self.row(full));
            if self.visit_below(full + 1, &mut set, visit).is_break() {
                return Some(ControlFlow::Break(()));
            }
        }
        Some(ControlFlow::Continue(()))
    }

    fn count(&self) -> Option<f64> {
        let mut below = 1.0;
        let mut count = 0.0;
        for row in (0..self.rows()).rev() {
            count += if self.leads(row) { below } else { 0.0 };
            below *= self.width(row) as f64;
        }
        Some(count)
    }

    fn mass(&self, odds: &[Odds]) -> Option<Mass> {
        let mut mass = Mass {
            live: 0.0,
            dead: 0.0,
        };
        // The weight of the rows so far, from the bottom, being broken but none of them gone.
        let mut open = 1.0;
        for row in (0..self.rows()).rev() {
            let (mut full, mut gone, mut broken, mut any) = (1.0, 1.0, 0.0, 1.0);
            for (place, Odds { up, down }) in odds[self.row(row)].iter().enumerate() {
                broken = if place == 0 {
                    0.0
                } else {
                    broken * (up + down) + full * down + gone * up
                };
                full *= up;
                gone *= down;
                any *= up + down;
            }
            mass.live = mass.live * any + open * full;
            mass.dead = mass.dead * any + open * gone;
            open *= broken;
        }
        mass.dead += open;
        Some(mass)
    }

    fn circuit(&self) -> Option<Circuit> {
        let mut circuit = Circuit::new(self.nodes);
        let mut found = None;
        let mut below = None;
        for row in (0..self.rows()).rev() {
            let bricks: Vec<_> = self.row(row).map(|node| circuit.node(node)).collect();
            let full = circuit.all(bricks.iter().copied().chain(below));
            found = Some(circuit.any([full].into_iter().chain(found)));
            let some = circuit.any(bricks);
            below = Some(circuit.all([some].into_iter().chain(below)));
        }
        circuit.any(found);
        Some(circuit)
    }

    fn load_plan(&self, capacity: &[f64]) -> Option<LoadPlan> {
        if !self.optimal || capacity.iter().any(|c| *c != capacity[0]) {
            return None;
        }
        let mut loads = vec![0.0; self.nodes];
        let mut above = 0.0;
        for row in 0..self.rows() {
            let load = self.choice[row] + above / self.width(row) as f64;
            loads[self.row(row)].fill(load);
            above += self.choice[row];
        }
        // Weights that make every quorum cost the same, row by row from the bottom.
        let mut weights = vec![0.0; self.nodes];
        let mut whole = 1.0;
        for row in (0..self.rows()).rev() {
            let brick = whole / self.width(row) as f64;
            weights[self.row(row)].fill(brick);
            whole -= brick;
        }
        Some(LoadPlan { loads, weights })
    }

    fn transversal(&self) -> Option<usize> {
        // Empty one row and break all rows below it, or break every row.
        let emptied = (0..self.rows()).map(|row| self.width(row) + self.rows() - row - 1);
        Some(emptied.fold(self.rows(), usize::min))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::construct::twin;

    #[test]
    fn agrees_with_its_brute_force_twin() {
        for widths in [
            &[1, 2, 3][..],
            &[1],
            &[4],
            &[3, 1, 2],
            &[1, 5],
            &[2, 2, 2, 2],
            &[1, 2, 2, 3, 4],
            &[4, 3, 1],
            &[2, 3, 4],
            &[1, 1, 3],
        ] {
            twin::check(&format!("walls({widths:?})"), &Walls::new(widths).unwrap());
        }
        for nodes in 1..=14 {
            twin::check("triangular", &Walls::triangular(nodes).unwrap());
        }
        for nodes in 3..=10 {
            twin::check("wheel", &Walls::wheel(nodes).unwrap());
        }
    }

    #[test]
    fn the_triangle_is_balanced() {
        let wall = Walls::triangular(15).unwrap();
        assert_eq!(wall.rows(), 5);
        let plan = wall.load_plan(&[1.0; 15]).unwrap();
        assert!(
            plan.loads
                .iter()
                .all(|load| (load - 1.0 / 3.0).abs() < 1e-12)
        );
        assert_eq!(Walls::triangular(17).unwrap().rows(), 5);
        assert_eq!(wall.transversal(), Some(5));
    }

    #[test]
    fn bad_walls_are_refused() {
        assert_eq!(
            Walls::new(&[2, 0]).unwrap_err(),
            WallsError::EmptyRow { row: 2 }
        );
        assert!(matches!(Walls::new(&[]), Err(WallsError::Size(_))));
        assert!(matches!(
            Walls::new(&[usize::MAX, 2]),
            Err(WallsError::Size(_))
        ));
        assert!(matches!(
            Walls::wheel(2),
            Err(WallsError::SmallWheel { .. })
        ));
    }
}
