//! Load: how evenly antipodal paths can be drawn.
//!
//! **On a full board the load of T1 is exactly `1/t`.** Both sides have a short proof.
//!
//! *A strategy.* Look at a left-right path in every other column: it is a walk on the ranks
//! `0..t`, one step up or down or none per two columns, that must lead from `e` to `t-1-e` in `t`
//! rounds. Let all `t` walkers move at once like an odd-even transposition network: in each round
//! neighbours swap, in turn the pairs that begin at even and those that begin at odd ranks; who
//! has no partner at the border stays. After `t` rounds the order is reversed. So pick the
//! walker at random, and at random whether even or odd pairs begin. In an odd column each of the
//! `t` cells is then used with probability `1/t`. In an even column an inner cell lies between
//! two ranks; it is used by both if they swap, half of the time: `1/t` again; the two cells on
//! the border by one walker half of the time. Drawing the direction at random too leaves `1/t`
//! on inner cells and `3/(4t)` on border cells. (The walkers move like billiard balls.)
//!
//! *A certificate.* For even `t`, the middle row has `t` cells and every path meets it. For odd
//! `t >= 3`, the two rows beside the middle row have `t` cells each, with half a weight each:
//! bottom-top paths have a cell in both; left-right paths cross both, or begin and end in the
//! middle row and enter one of them in column 2 and in column `q-1`. So node weights of total
//! `t` give every path a weight of 1, and no strategy is below `1/t`. For `q = 3` the paths are
//! all sets of 3 of 4 sites, and the load is 3/4.
//!
//! On folded boards the same certificate holds, but the image of the strategy may use a site
//! with probability up to `1.5/t`. There, and for sites of unequal capacity, the site player of
//! the load game learns by multiplicative weights and the path player replies with the exact
//! search for paths. It gives a strategy and a certificate whose gap falls with the work spent,
//! to about 1 % up to a thousand sites.

use crate::{LoadPlan, Prng};

use super::Board;
use super::paths::Paths;
use super::reach::Way;

/// Column steps that the search for a sampling strategy may take: some ten milliseconds.
const SAMPLE_WORK: usize = 20_000_000;

/// Column steps that the search for a load plan may take: about a second.
const PLAN_WORK: usize = 500_000_000;

/// The most rounds of the load game.
const ROUNDS_MAX: usize = 100_000;

/// The most rounds of which a strategy keeps the paths.
const KEPT_MAX: usize = 4000;

/// A way to draw antipodal paths.
#[derive(Clone, Debug)]
pub(super) struct Strategy {
    /// The probability with which each site is used.
    loads: Vec<f64>,
    /// Paths to draw from, `q` cells each; without any, walkers of the transposition network.
    cells: Vec<u32>,
    /// For each path the total share of those up to it.
    shares: Vec<f64>,
}

impl Strategy {
    /// A good strategy that is quick to find: optimal on full boards; on folded ones the better
    /// of the transposition network and a short load game.
    pub(super) fn quick(board: &Board, paths: &Paths) -> Self {
        let network = Self {
            loads: network_loads(board, paths),
            cells: Vec::new(),
            shares: Vec::new(),
        };
        if board.is_full() {
            return network;
        }
        let capacity = vec![1.0; board.nodes()];
        let mut game = Game::new(board, paths, &capacity);
        let rounds = rounds_for(board, SAMPLE_WORK).min(KEPT_MAX);
        let (mut cells, mut shares, mut total) = (Vec::new(), Vec::new(), 0.0);
        for round in 1..=rounds {
            let path = game.play();
            cells.extend(path.into_iter().map(|cell| cell as u32));
            total += round as f64;
            shares.push(total);
        }
        let played = Self {
            loads: game.loads(),
            cells,
            shares,
        };
        if played.load() < network.load() {
            played
        } else {
            network
        }
    }

    /// The cells of a path drawn at random.
    pub(super) fn draw(&self, board: &Board, paths: &Paths, rng: &mut Prng) -> Vec<usize> {
        let Some(total) = self.shares.last() else {
            let (lane, parity) = (rng.below(2), rng.below(2));
            return network_path(board, paths, lane, parity, rng.below(board.t()));
        };
        let mark = rng.unit() * total;
        let place = self.shares.partition_point(|share| *share <= mark);
        let place = place.min(self.shares.len() - 1);
        let cells = &self.cells[place * board.q()..(place + 1) * board.q()];
        cells.iter().map(|cell| *cell as usize).collect()
    }

    /// The probability with which the busiest site is used.
    pub(super) fn load(&self) -> f64 {
        self.loads.iter().fold(0.0, |most, load| load.max(most))
    }
}

/// A strategy and a certificate for sites of these capacities, one for each site.
pub(super) fn plan(board: &Board, paths: &Paths, capacity: &[f64]) -> LoadPlan {
    let proved = LoadPlan {
        loads: network_loads(board, paths),
        weights: middle_weights(board),
    };
    let equal = capacity.windows(2).all(|pair| pair[0] == pair[1]);
    if equal && board.is_full() {
        return proved;
    }
    let mut game = Game::new(board, paths, capacity);
    for _ in 0..rounds_for(board, PLAN_WORK) {
        game.play();
    }
    let played = LoadPlan {
        loads: game.loads(),
        weights: game.weights(),
    };
    let upper = |plan: &LoadPlan| {
        let shares = plan.loads.iter().zip(capacity);
        shares.fold(0.0, |most: f64, (load, capacity)| most.max(load / capacity))
    };
    let lower = |plan: &LoadPlan| {
        let weighed = plan.weights.iter().zip(capacity);
        let scale: f64 = weighed.map(|(weight, capacity)| weight * capacity).sum();
        paths
            .cheapest(&plan.weights)
            .map_or(0.0, |found| found.cost / scale)
    };
    LoadPlan {
        loads: if upper(&played) < upper(&proved) {
            played.loads.clone()
        } else {
            proved.loads.clone()
        },
        weights: if lower(&played) > lower(&proved) {
            played.weights
        } else {
            proved.weights
        },
    }
}

/// How many rounds of the load game this much work allows.
fn rounds_for(board: &Board, work: usize) -> usize {
    let round = 2 * board.t() * board.q() * (board.t() + 1);
    (work / round).min(ROUNDS_MAX)
}

/// The cells of the path of one walker of the transposition network.
fn network_path(
    board: &Board,
    paths: &Paths,
    lane: usize,
    parity: usize,
    start: usize,
) -> Vec<usize> {
    let t = board.t();
    let mut rank = start;
    let mut ranks = vec![start];
    for round in 0..t {
        let later = (rank + round + parity).is_multiple_of(2);
        ranks.push(if later { rank + 1 } else { rank });
        rank = match later {
            true if rank + 1 < t => rank + 1,
            false if rank > 0 => rank - 1,
            _ => rank,
        };
        ranks.push(rank);
    }
    ranks
        .into_iter()
        .enumerate()
        .filter_map(|(column, rank)| paths.cell(lane, column, rank))
        .collect()
}

/// The probability with which the transposition network uses each site.
fn network_loads(board: &Board, paths: &Paths) -> Vec<f64> {
    let mut uses = vec![0u32; board.nodes()];
    // A site is counted once per path: cells of one site on a path follow each other.
    for (lane, parity) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        for start in 0..board.t() {
            let mut last = None;
            for cell in network_path(board, paths, lane, parity, start) {
                let site = board.site(cell);
                if last != Some(site) {
                    uses[site] += 1;
                }
                last = Some(site);
            }
        }
    }
    let walkers = 4.0 * board.t() as f64;
    uses.into_iter()
        .map(|uses| f64::from(uses) / walkers)
        .collect()
}

/// The certificate for equal capacities: the middle row, or the rows beside it.
fn middle_weights(board: &Board) -> Vec<f64> {
    let t = board.t();
    let mut weights = vec![0.0; board.nodes()];
    let rows = match t {
        1 => return vec![1.0; board.nodes()],
        t if t.is_multiple_of(2) => vec![t + 1],
        t => vec![t, t + 2],
    };
    for row in &rows {
        for cell in Way::TopBottom.line(board, *row) {
            weights[board.site(cell)] = 1.0 / (rows.len() * t) as f64;
        }
    }
    weights
}

/// The load game: one player picks a path, the other a site, and wins if it is on the path (the
/// more the smaller the site's capacity is). Its value is the load. The site player prefers sites
/// that would have won much so far, ever less cautiously; the path player replies with the path
/// that is best for it. The averages of both, where later rounds weigh more, approach the best
/// strategies.
struct Game<'a> {
    board: &'a Board,
    paths: &'a Paths,
    capacity: &'a [f64],
    /// What a site wins: at most 1.
    prize: Vec<f64>,
    rounds: usize,
    /// What each site would have won so far.
    won: Vec<f64>,
    /// The site player's choice as costs for the path player, and its sum over rounds.
    cost: Vec<f64>,
    costs: Vec<f64>,
    uses: Vec<f64>,
}

impl<'a> Game<'a> {
    fn new(board: &'a Board, paths: &'a Paths, capacity: &'a [f64]) -> Self {
        let least = capacity.iter().copied().fold(f64::INFINITY, f64::min);
        let zero = vec![0.0; board.nodes()];
        Self {
            board,
            paths,
            capacity,
            prize: capacity.iter().map(|capacity| least / capacity).collect(),
            rounds: 0,
            won: zero.clone(),
            cost: zero.clone(),
            costs: zero.clone(),
            uses: zero,
        }
    }

    /// Plays a round and gives the cells of the path in it.
    fn play(&mut self) -> Vec<usize> {
        self.rounds += 1;
        self.weigh();
        let Some(found) = self.paths.cheapest(&self.cost) else {
            return Vec::new();
        };
        let weight = self.rounds as f64;
        for (sum, cost) in self.costs.iter_mut().zip(&self.cost) {
            *sum += weight * cost;
        }
        let mut last = None;
        for site in found.cells.iter().map(|cell| self.board.site(*cell)) {
            if last != Some(site) {
                self.won[site] += self.prize[site];
                self.uses[site] += weight;
            }
            last = Some(site);
        }
        found.cells
    }

    /// Sets the costs by what each site has won.
    fn weigh(&mut self) {
        let (nodes, t) = (self.board.nodes(), self.board.t() as f64);
        // The rate balances learning fast against learning exactly: sites win about once in t
        // rounds.
        let rate = (f64::from(nodes.ilog2()) * t / self.rounds as f64).sqrt();
        let most = self.won.iter().copied().fold(0.0, f64::max);
        let mut total = 0.0;
        for (cost, won) in self.cost.iter_mut().zip(&self.won) {
            *cost = falling(rate.min(1.0) * (won - most));
            total += *cost;
        }
        for (cost, capacity) in self.cost.iter_mut().zip(self.capacity) {
            *cost /= total * capacity;
        }
    }

    /// The probability with which the path player's average uses each site.
    fn loads(&self) -> Vec<f64> {
        let rounds = self.rounds as f64;
        let total = (rounds * (rounds + 1.0) / 2.0).max(1.0);
        self.uses.iter().map(|uses| uses / total).collect()
    }

    /// The site player's average as a certificate.
    fn weights(&self) -> Vec<f64> {
        let total: f64 = self.costs.iter().sum();
        if total > 0.0 {
            self.costs.iter().map(|cost| cost / total).collect()
        } else {
            vec![1.0; self.costs.len()]
        }
    }
}

/// About `e^x` for negative `x`, by plain arithmetic that is the same on every machine.
fn falling(x: f64) -> f64 {
    let mut value = (1.0 + x / 1024.0).max(0.0);
    for _ in 0..10 {
        value *= value;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(board: &Board, paths: &Paths, capacity: &[f64]) -> (f64, f64) {
        let plan = plan(board, paths, capacity);
        let scale: f64 = plan.weights.iter().zip(capacity).map(|(w, c)| w * c).sum();
        let lower = paths.cheapest(&plan.weights).unwrap().cost / scale;
        let upper = plan.loads.iter().zip(capacity).map(|(l, c)| l / c);
        (lower, upper.fold(0.0, f64::max))
    }

    #[test]
    fn walkers_are_antipodal_paths() {
        for q in (3..=41).step_by(2) {
            let board = Board::with_side(q).unwrap();
            let paths = Paths::new(&board);
            for (lane, parity) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                for start in 0..board.t() {
                    let path = network_path(&board, &paths, lane, parity, start);
                    assert_eq!(path.len(), q);
                    assert!(paths.contained_in(&board, &board.image(path)));
                }
            }
        }
    }

    #[test]
    fn full_boards_have_a_load_of_one_over_t() {
        for q in (5..=61).step_by(2).chain([101, 201]) {
            let board = Board::with_side(q).unwrap();
            let (lower, upper) = bounds(&board, &Paths::new(&board), &vec![1.0; board.nodes()]);
            assert!(
                (lower * board.t() as f64 - 1.0).abs() < 1e-9,
                "{q}: {lower}"
            );
            assert!(
                (upper * board.t() as f64 - 1.0).abs() < 1e-9,
                "{q}: {upper}"
            );
        }
        let board = Board::with_side(3).unwrap();
        let (lower, upper) = bounds(&board, &Paths::new(&board), &[1.0; 4]);
        assert!((lower - 0.75).abs() < 1e-9 && (upper - 0.75).abs() < 1e-9);
    }

    #[test]
    fn folded_boards_and_unequal_capacities_have_a_small_gap() {
        for nodes in [10, 13, 16, 30, 50] {
            let board = Board::new(nodes).unwrap();
            let (lower, upper) = bounds(&board, &Paths::new(&board), &vec![2.0; nodes]);
            assert!(
                lower <= upper + 1e-12 && upper <= lower * 1.01,
                "{nodes}: {lower} {upper}"
            );
        }
        let board = Board::with_side(7).unwrap();
        let capacity: Vec<f64> = (0..24).map(|site| 1.0 + f64::from(site % 3)).collect();
        let (lower, upper) = bounds(&board, &Paths::new(&board), &capacity);
        assert!(
            lower <= upper + 1e-12 && upper <= lower * 1.01,
            "{lower} {upper}"
        );
    }

    #[test]
    fn draws_follow_the_loads() {
        for nodes in [4, 12, 16, 24, 100] {
            let board = Board::new(nodes).unwrap();
            let paths = Paths::new(&board);
            let strategy = Strategy::quick(&board, &paths);
            let mut rng = Prng::new(4);
            let mut uses = vec![0u32; nodes];
            for _ in 0..40_000 {
                for site in board.image(strategy.draw(&board, &paths, &mut rng)).iter() {
                    uses[site] += 1;
                }
            }
            for (uses, load) in uses.iter().zip(&strategy.loads) {
                assert!(
                    (f64::from(*uses) / 40_000.0 - load).abs() < 0.015,
                    "{nodes}"
                );
            }
        }
    }
}
