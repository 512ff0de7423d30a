//! The billiard family of a board and its enabled tiers.

use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use crate::family::{cost_of, shrink};
use crate::{Circuit, Family, LoadPlan, Mass, NodeSet, Odds, Prng, Sizes};

use super::load::Strategy;
use super::paths::Paths;
use super::reach::{self, Steps, Way};
use super::{Board, Tier, Tiers, circuits, listing, load};

/// The quorums of the enabled tiers on one board: a coterie, and a nondominated one if T4 is
/// enabled (of any set and its complement, exactly one contains a quorum).
///
/// Any two tiers meet: a diagonal path across the board meets every diagonal and every star path
/// the other way; the row of a T3' quorum meets every top-bottom and its column every left-right
/// diagonal path, and two T3' quorums meet where the odd row of one crosses the even column of
/// the other; T4 quorums meet the others by definition, and each other by their votes.
///
/// [`Family::cheapest`] tries the tiers in order and answers from the first that has a quorum of
/// finite cost; within T0, T1 and T2 it is then the cheapest.
///
/// [`Family::sample`] draws T0 quorums evenly, and T1 quorums by a strategy that is load-optimal on
/// full boards. On folded boards, and for unequal capacities, [`Family::load_plan`] spends more
/// work on its strategy than `sample` may, and its loads are then a little more even.
#[derive(Debug)]
pub struct Billiard {
    board: Arc<Board>,
    paths: Arc<Paths>,
    tiers: Tiers,
    primary: Option<Box<Self>>,
    strategy: OnceLock<Strategy>,
}

/// Up to this many nodes, the mass is summed over all sets.
const MASS_MAX: usize = 12;

impl Billiard {
    /// The quorums of these tiers on this board.
    pub fn new(board: Board, tiers: Tiers) -> Self {
        let paths = Arc::new(Paths::new(&board));
        Self::build(Arc::new(board), paths, tiers)
    }

    fn build(board: Arc<Board>, paths: Arc<Paths>, tiers: Tiers) -> Self {
        let base = base(tiers).and_then(|tier| Tiers::of([tier]));
        let primary = base
            .filter(|base| *base != tiers && !tiers.only(&[Tier::T0, Tier::T1]))
            .map(|base| Box::new(Self::build(Arc::clone(&board), Arc::clone(&paths), base)));
        Self {
            board,
            paths,
            tiers,
            primary,
            strategy: OnceLock::new(),
        }
    }

    /// The board.
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// The enabled tiers.
    pub fn tiers(&self) -> Tiers {
        self.tiers
    }

    /// The cells, as (row, column) in path order, of the cheapest T1 quorum for these site
    /// costs, whatever tiers are enabled. `None` if every T1 quorum has a site of infinite cost,
    /// or if there is not one cost per site.
    pub fn cheapest_path(&self, cost: &[f64]) -> Option<Vec<(usize, usize)>> {
        if cost.len() != self.board.nodes() {
            return None;
        }
        let found = self.paths.cheapest(cost)?;
        Some(
            found
                .cells
                .iter()
                .map(|cell| self.board.place(*cell))
                .collect(),
        )
    }

    pub(super) fn paths(&self) -> &Paths {
        &self.paths
    }

    /// Whether every quorum of the family is a T1 quorum.
    fn is_t1(&self) -> bool {
        self.tiers.contains(Tier::T1) && self.tiers.only(&[Tier::T0, Tier::T1])
    }

    fn is_t0(&self) -> bool {
        self.tiers.only(&[Tier::T0])
    }

    /// Whether the set contains a quorum of an enabled tier other than T4.
    fn contains_path(&self, set: &NodeSet) -> bool {
        let on = |tier| self.tiers.contains(tier);
        if on(Tier::T1) && !on(Tier::T2) && self.paths.contained_in(&self.board, set) {
            return true;
        }
        if on(Tier::T0) && !on(Tier::T1) && !on(Tier::T2) && self.contains_own(set) {
            return true;
        }
        if on(Tier::T3Prime) && self.contains_cross(set) {
            return true;
        }
        (on(Tier::T2) || on(Tier::T3)) && self.contains_crossing(set)
    }

    /// T0. An own quorum contains its owner, so only members need a look.
    fn contains_own(&self, set: &NodeSet) -> bool {
        set.len() > 2
            && set.iter().any(|site| {
                self.board.own_cell(site).is_some_and(|cell| {
                    self.board
                        .walk(cell)
                        .all(|cell| set.contains(self.board.site(cell)))
                })
            })
    }

    /// T2 and T3.
    fn contains_crossing(&self, set: &NodeSet) -> bool {
        let board = &self.board;
        let q = board.q();
        let mut live = vec![false; board.cells()];
        let (mut columns, mut rows) = (vec![false; q], vec![false; q]);
        for cell in set.iter().flat_map(|site| board.cells_at(site)) {
            live[*cell] = true;
            let (row, column) = board.place(*cell);
            rows[row - 1] = true;
            columns[column - 1] = true;
        }
        let all = |lines: &[bool]| lines.iter().all(|line| *line);
        // A diagonal path across the board has a cell in every line that it crosses.
        let ways: Vec<Way> = [
            (Way::LeftRight, all(&columns)),
            (Way::TopBottom, all(&rows)),
        ]
        .into_iter()
        .filter_map(|(way, possible)| possible.then_some(way))
        .collect();
        if ways.is_empty() {
            return false;
        }
        let label = reach::components(board, &live, Steps::Diagonal);
        if self.tiers.contains(Tier::T2)
            && ways.iter().any(|way| {
                way.mirrored(board)
                    .any(|(start, end)| label[start] != 0 && label[start] == label[end])
            })
        {
            return true;
        }
        if !self.tiers.contains(Tier::T3) {
            return false;
        }
        let across = |way: Way, steps, label: &[usize]| {
            reach::joins(label, &way.starts(board, steps), &way.ends(board, steps))
        };
        let stars = reach::components(board, &live, Steps::Star);
        ways.into_iter().any(|way| {
            across(way, Steps::Diagonal, &label) && across(way.other(), Steps::Star, &stars)
        })
    }

    /// T3'.
    fn contains_cross(&self, set: &NodeSet) -> bool {
        let full = |way: Way, line| {
            way.line(&self.board, line)
                .all(|cell| set.contains(self.board.site(cell)))
        };
        let q = self.board.q();
        (1..=q).step_by(2).any(|row| full(Way::TopBottom, row))
            && (2..q).step_by(2).any(|column| full(Way::LeftRight, column))
    }

    /// Whether the set has more than half of the votes. With an even number of sites the first
    /// one has two, so that of two complementary sets always one has the majority.
    fn has_majority(&self, set: &NodeSet) -> bool {
        let nodes = self.board.nodes();
        let extra = usize::from(nodes.is_multiple_of(2));
        let votes = set.len() + if set.contains(0) { extra } else { 0 };
        2 * votes > nodes + extra
    }

    fn cheapest_in(&self, tier: Tier, cost: &[f64]) -> Option<NodeSet> {
        match tier {
            Tier::T0 => self.cheapest_own(cost),
            Tier::T1 => {
                let found = self.paths.cheapest(cost)?;
                Some(self.board.image(found.cells))
            }
            Tier::T2 => self.cheapest_antipodal(cost),
            Tier::T3 => self.cheapest_crossing(cost),
            Tier::T3Prime => self.cheapest_cross(cost),
            Tier::T4 => {
                let live = (0..cost.len()).filter(|site| cost[*site].is_finite());
                let live = NodeSet::of(self.board.nodes(), live);
                self.contains_quorum(&live).then_some(live)
            }
        }
    }

    fn cheapest_own(&self, cost: &[f64]) -> Option<NodeSet> {
        let mut best: Option<(f64, usize)> = None;
        for site in 0..self.board.nodes() {
            let cell = self.board.own_cell(site)?;
            let price = if self.board.is_full() {
                self.board.walk(cell).map(|cell| cost[cell]).sum()
            } else {
                cost_of(&self.board.image(self.board.walk(cell)), cost)
            };
            if price < best.map_or(f64::INFINITY, |(least, _)| least) {
                best = Some((price, cell));
            }
        }
        let (_, cell) = best?;
        Some(self.board.image(self.board.walk(cell)))
    }

    fn cheapest_antipodal(&self, cost: &[f64]) -> Option<NodeSet> {
        let board = &self.board;
        let mut best: Option<(f64, Vec<usize>)> = None;
        for way in [Way::LeftRight, Way::TopBottom] {
            for (start, end) in way.mirrored(board) {
                let found = reach::cheapest(board, cost, Steps::Diagonal, &[start], &[end]);
                let least = best.as_ref().map_or(f64::INFINITY, |(least, _)| *least);
                best = found.filter(|(price, _)| *price < least).or(best);
            }
        }
        Some(board.image(best?.1))
    }

    /// The cheapest diagonal path one way with what a star path the other way then still costs.
    fn cheapest_crossing(&self, cost: &[f64]) -> Option<NodeSet> {
        let board = &self.board;
        let way_over = |cost: &[f64], way: Way, steps| {
            let (starts, ends) = (way.starts(board, steps), way.ends(board, steps));
            let (_, path) = reach::cheapest(board, cost, steps, &starts, &ends)?;
            Some(board.image(path))
        };
        let options = [Way::LeftRight, Way::TopBottom]
            .into_iter()
            .filter_map(|way| {
                let straight = way_over(cost, way, Steps::Diagonal)?;
                let mut rest = cost.to_vec();
                for site in straight.iter() {
                    rest[site] = 0.0;
                }
                Some(straight.union(&way_over(&rest, way.other(), Steps::Star)?))
            });
        options.min_by(|a, b| cost_of(a, cost).total_cmp(&cost_of(b, cost)))
    }

    fn cheapest_cross(&self, cost: &[f64]) -> Option<NodeSet> {
        let q = self.board.q();
        let line = |way: Way, line| self.board.image(way.line(&self.board, line));
        let finite = |set: &NodeSet| cost_of(set, cost).is_finite();
        let lines = |way: Way, first: usize| -> Vec<NodeSet> {
            (first..=q)
                .step_by(2)
                .map(|at| line(way, at))
                .filter(finite)
                .collect()
        };
        let columns = lines(Way::LeftRight, 2);
        let mut best: Option<(f64, NodeSet)> = None;
        for row in lines(Way::TopBottom, 1) {
            for column in &columns {
                let set = row.union(column);
                let price = cost_of(&set, cost);
                if best.as_ref().is_none_or(|(least, _)| price < *least) {
                    best = Some((price, set));
                }
            }
        }
        best.map(|(_, set)| set)
    }

    /// The quorum, without sites that the family does not need. Paths of `q` sites on full boards
    /// of side 5 and more contain no other quorum; on folded boards they may.
    fn minimal(&self, quorum: NodeSet, tier: Tier, cost: &[f64]) -> NodeSet {
        if tier <= Tier::T1 && self.board.is_full() && (self.board.q() > 3 || self.is_t1()) {
            return quorum;
        }
        shrink(&quorum, cost, &|set| self.contains_quorum(set))
    }

    /// The strategy that [`Family::sample`] draws T1 quorums from.
    fn strategy(&self) -> &Strategy {
        self.strategy
            .get_or_init(|| Strategy::quick(&self.board, &self.paths))
    }

    /// The size of the smallest quorum of the enabled tiers, if that is certain.
    fn least_size(&self) -> (usize, bool) {
        let (q, unit) = (self.board.q(), vec![1.0; self.board.nodes()]);
        let size = |tier| self.cheapest_in(tier, &unit).map_or(q, |set| set.len());
        let mut least = usize::MAX;
        let mut certain = true;
        for tier in self.tiers.iter() {
            match tier {
                Tier::T0 | Tier::T1 | Tier::T2 if self.board.is_full() => least = least.min(q),
                Tier::T0 | Tier::T1 | Tier::T2 | Tier::T3Prime => least = least.min(size(tier)),
                Tier::T3 => {
                    let found = size(tier);
                    least = least.min(found);
                    // On a full board T3 has more sites than the path across that is part of it.
                    certain &= self.board.is_full() && least <= q;
                }
                Tier::T4 => {
                    // Half of the sites, one of them with two votes, or one more than half.
                    let majority = self.board.nodes().div_ceil(2);
                    certain &= least <= majority;
                    least = least.min(majority.max(1));
                }
            }
        }
        (least, certain)
    }
}

/// The tier whose strategy is used while every site is up.
fn base(tiers: Tiers) -> Option<Tier> {
    if tiers.contains(Tier::T1) {
        Some(Tier::T1)
    } else if tiers.contains(Tier::T0) {
        Some(Tier::T0)
    } else {
        // Every T1 quorum is a T2 quorum.
        tiers.contains(Tier::T2).then_some(Tier::T1)
    }
}

impl Family for Billiard {
    fn nodes(&self) -> usize {
        self.board.nodes()
    }

    fn contains_quorum(&self, set: &NodeSet) -> bool {
        self.contains_path(set)
            || (self.tiers.contains(Tier::T4)
                && self.has_majority(set)
                && !self.contains_path(&set.complement()))
    }

    fn cheapest(&self, cost: &[f64]) -> Option<NodeSet> {
        if cost.len() != self.nodes() {
            return None;
        }
        let tried = self
            .tiers
            .iter()
            .filter(|tier| *tier != Tier::T0 || !self.tiers.contains(Tier::T1));
        for tier in tried {
            if let Some(quorum) = self.cheapest_in(tier, cost) {
                return Some(self.minimal(quorum, tier, cost));
            }
        }
        None
    }

    fn cheapest_is_exact(&self) -> bool {
        self.is_t1()
            || self.is_t0()
            || self.tiers.only(&[Tier::T2])
            || self.tiers.only(&[Tier::T3Prime])
    }

    fn sample(&self, rng: &mut Prng) -> NodeSet {
        if let Some(primary) = &self.primary {
            let quorum = primary.sample(rng);
            return self.minimal(quorum, Tier::T1, &vec![1.0; self.nodes()]);
        }
        if self.is_t0() {
            let own = self.board.own(rng.below(self.nodes()));
            let own = own.unwrap_or_else(|| NodeSet::full(self.nodes()));
            return self.minimal(own, Tier::T0, &vec![1.0; self.nodes()]);
        }
        if self.is_t1() {
            let cells = self.strategy().draw(&self.board, &self.paths, rng);
            return self.minimal(self.board.image(cells), Tier::T1, &vec![1.0; self.nodes()]);
        }
        let cost: Vec<f64> = (0..self.nodes()).map(|_| 1.0 + rng.unit()).collect();
        self.cheapest(&cost)
            .expect("invariant: with every site up there is a quorum")
    }

    fn sizes(&self) -> Sizes {
        let q = self.board.q();
        if self.board.is_full() && (self.is_t1() || self.is_t0()) {
            return Sizes::exact(q, q);
        }
        if let Some(sizes) = listing::sizes(self) {
            return sizes;
        }
        let (min, _) = self.least_size();
        let max = if self.tiers.only(&[Tier::T0, Tier::T1]) {
            q
        } else if self.tiers.contains(Tier::T4) {
            // Without a member of a minimal quorum, the rest holds a quorum with that member.
            self.nodes() + 1 - min
        } else {
            self.nodes()
        };
        Sizes {
            min,
            max,
            exact: false,
        }
    }

    fn own(&self, site: usize) -> Option<NodeSet> {
        self.board.own(site)
    }

    fn visit(&self, visit: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>) -> Option<ControlFlow<()>> {
        listing::visit(self, visit)
    }

    fn count(&self) -> Option<f64> {
        if !self.board.is_full() {
            None
        } else if self.is_t1() {
            Some(2f64.powf(self.board.q() as f64 - 1.0))
        } else {
            self.is_t0().then_some(self.nodes() as f64)
        }
    }

    fn mass(&self, odds: &[Odds]) -> Option<Mass> {
        if odds.len() != self.nodes() || odds.len() > MASS_MAX {
            return None;
        }
        let mut mass = Mass {
            live: 0.0,
            dead: 0.0,
        };
        for mask in 0..1u64 << odds.len() {
            let weight: f64 = odds
                .iter()
                .enumerate()
                .map(|(site, odds)| {
                    if mask >> site & 1 == 1 {
                        odds.up
                    } else {
                        odds.down
                    }
                })
                .product();
            if self.contains_quorum(&NodeSet::from_mask(odds.len(), mask)) {
                mass.live += weight;
            } else {
                mass.dead += weight;
            }
        }
        Some(mass)
    }

    fn circuit(&self) -> Option<Circuit> {
        circuits::of(self)
    }

    fn load_plan(&self, capacity: &[f64]) -> Option<LoadPlan> {
        if !self.is_t1() || capacity.len() != self.nodes() {
            return None;
        }
        let usable = |capacity: &f64| capacity.is_finite() && *capacity > 0.0;
        capacity
            .iter()
            .all(usable)
            .then(|| load::plan(&self.board, &self.paths, capacity))
    }

    fn transversal(&self) -> Option<usize> {
        if self.tiers.contains(Tier::T4) {
            // A nondominated coterie: its minimal transversals are its minimal quorums.
            if let (least, true) = self.least_size() {
                return Some(least);
            }
            let sizes = listing::sizes(self)?;
            return sizes.exact.then_some(sizes.min);
        }
        if !self.is_t1() {
            return None;
        }
        // Every antipodal path meets the middle row, so its sites are enough. A strategy that
        // uses no site with a probability above `load` shows that fewer than 1 / `load` are not.
        let middle: NodeSet = self
            .board
            .image(Way::TopBottom.line(&self.board, self.board.t() + 1));
        let load = self.strategy().load();
        ((1.0 / load - 1e-9).ceil() >= middle.len() as f64).then_some(middle.len())
    }

    fn is_self_dual(&self) -> bool {
        self.tiers.contains(Tier::T4)
    }

    fn primary(&self) -> Option<&dyn Family> {
        self.primary.as_deref().map(|family| family as &dyn Family)
    }
}
