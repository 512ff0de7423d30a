//! Antipodal paths: all `2^(q-1)` paths of `q` cells that join a border cell to its mirror image.
//!
//! Every billiard path that enters from the left joins `(b, 1)` to `(q+1-b, q)`. Take all paths
//! that do, moving one column on and one row up or down at each step, and their transposes: they
//! all have `q` cells, billiard paths are among them, and any two share a cell. *Proof.* For two
//! left-right paths with `b < b'` the difference of rows is even in each column, changes by at
//! most 2 per step, starts positive and ends negative, so it is zero somewhere. With equal `b`
//! the first cell is common. A left-right and a bottom-top path have ends that interleave on the
//! border of the planar graph of diagonal neighbours, so they share a cell.
//!
//! Column `c` has `t` cells if `c` is odd and `t + 1` if it is even. Its cell in row `r` has the
//! rank `(r-1) / 2`: a step from an odd column keeps the rank or adds 1, a step from an even
//! column keeps it or takes 1 away, and the mirror image of rank `e` in the first column is rank
//! `t-1-e` in the last. Bottom-top paths are left-right paths of the transposed board.

use crate::NodeSet;

use super::Board;

/// The antipodal paths of a board, ready for search.
#[derive(Clone, Debug)]
pub(super) struct Paths {
    q: usize,
    t: usize,
    /// Left-right, then bottom-top.
    lanes: [Lane; 2],
}

/// The board as seen by paths of one direction.
#[derive(Clone, Debug)]
struct Lane {
    /// The cell of each column and rank, `t + 1` ranks per column; `NONE` where there is none.
    cell: Vec<u32>,
    /// The site of each column and rank.
    site: Vec<u32>,
    /// Steps `(column, from rank, to rank)` into a column that stay on one site.
    same: Vec<(usize, usize, usize)>,
}

/// A cheapest path.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// What it costs; a site is paid once.
    pub(super) cost: f64,
    /// Its cells in path order.
    pub(super) cells: Vec<usize>,
}

/// Costs of one direction, laid out as the search reads them.
struct Priced {
    lane: usize,
    cost: Vec<f64>,
}

const NONE: u32 = u32::MAX;

impl Paths {
    pub(super) fn new(board: &Board) -> Self {
        let lane = |transposed: bool| Lane::new(board, transposed);
        Self {
            q: board.q(),
            t: board.t(),
            lanes: [lane(false), lane(true)],
        }
    }

    /// Whether all cells of some antipodal path are on sites of `set`.
    pub(super) fn contained_in(&self, board: &Board, set: &NodeSet) -> bool {
        let words = (self.t + 1).div_ceil(64);
        let mut columns = vec![0u64; 2 * self.q * words];
        let (left_right, bottom_top) = columns.split_at_mut(self.q * words);
        for site in set.iter() {
            for cell in board.cells_at(site) {
                let (row, column) = board.place(*cell);
                let (by_row, by_column) = ((row - 1) / 2, (column - 1) / 2);
                left_right[(column - 1) * words + by_row / 64] |= 1 << (by_row % 64);
                bottom_top[(row - 1) * words + by_column / 64] |= 1 << (by_column % 64);
            }
        }
        [left_right, bottom_top].into_iter().any(|columns| {
            if columns
                .chunks_exact(words)
                .any(|column| column.iter().all(|word| *word == 0))
            {
                return false;
            }
            if words == 1 {
                self.crosses(columns)
            } else {
                self.crosses_wide(columns, words)
            }
        })
    }

    /// Whether a path runs through the marked ranks of all columns, one word per column.
    fn crosses(&self, columns: &[u64]) -> bool {
        (0..self.t).any(|start| {
            let mut reached = columns[0] & (1 << start);
            for pair in columns[1..].chunks_exact(2) {
                reached = (reached | reached << 1) & pair[0];
                reached = (reached | reached >> 1) & pair[1];
                if reached == 0 {
                    return false;
                }
            }
            reached >> (self.t - 1 - start) & 1 == 1
        })
    }

    /// The same for boards whose columns need several words.
    fn crosses_wide(&self, columns: &[u64], words: usize) -> bool {
        let mut reached = vec![0u64; words];
        (0..self.t).any(|start| {
            reached.fill(0);
            reached[start / 64] = columns[start / 64] & (1 << (start % 64));
            for (step, column) in columns.chunks_exact(words).enumerate().skip(1) {
                let mut carry = 0;
                if step % 2 == 1 {
                    for (word, live) in reached.iter_mut().zip(column) {
                        let next = *word >> 63;
                        *word = (*word | *word << 1 | carry) & live;
                        carry = next;
                    }
                } else {
                    for (word, live) in reached.iter_mut().zip(column).rev() {
                        let next = *word << 63;
                        *word = (*word | *word >> 1 | carry) & live;
                        carry = next;
                    }
                }
            }
            let end = self.t - 1 - start;
            reached[end / 64] >> (end % 64) & 1 == 1
        })
    }

    /// The cheapest antipodal path for these site costs, or `None` if all are infinite. Exact:
    /// the cells of one site that lie on one path always follow each other, so paying a site
    /// when it is entered pays it once.
    pub(super) fn cheapest(&self, cost: &[f64]) -> Option<Found> {
        let mut best: Option<(f64, usize, usize)> = None;
        let priced = [self.price(0, cost), self.price(1, cost)];
        let mut buffers = [vec![f64::INFINITY; self.t + 3], vec![0.0; self.t + 3]];
        for (lane, priced) in priced.iter().enumerate() {
            for start in 0..self.t {
                let value = self.value(priced, start, &mut buffers);
                if value < best.map_or(f64::INFINITY, |(least, _, _)| least) {
                    best = Some((value, lane, start));
                }
            }
        }
        let (cost, lane, start) = best?;
        let cells = self.trace(&priced[lane], start);
        Some(Found { cost, cells })
    }

    /// The costs of one direction: 0 for left-right, 1 for bottom-top.
    fn price(&self, lane: usize, cost: &[f64]) -> Priced {
        let price = |site: &u32| cost.get(*site as usize).copied().unwrap_or(f64::INFINITY);
        Priced {
            lane,
            cost: self.lanes[lane].site.iter().map(price).collect(),
        }
    }

    /// The least cost of a path that starts at this rank. The buffers hold a column each, with
    /// a rank of padding on each side that keeps the inner loop free of cases.
    fn value(&self, priced: &Priced, start: usize, buffers: &mut [Vec<f64>; 2]) -> f64 {
        let ranks = self.t + 1;
        let [old, new] = buffers;
        old.fill(f64::INFINITY);
        new.fill(f64::INFINITY);
        old[start + 1] = priced.cost[start];
        let mut same = self.lanes[priced.lane].same.iter().peekable();
        for column in 1..self.q {
            let costs = &priced.cost[column * ranks..(column + 1) * ranks];
            step(old, &mut new[1..=ranks], costs, column);
            while let Some((_, from, to)) = same.next_if(|(at, _, _)| *at == column) {
                new[to + 1] = new[to + 1].min(old[from + 1]);
            }
            std::mem::swap(old, new);
        }
        old[self.t - start]
    }

    /// The cells of the path whose cost [`Paths::value`] gives, which must be finite.
    fn trace(&self, priced: &Priced, start: usize) -> Vec<usize> {
        let ranks = self.t + 1;
        let width = ranks + 2;
        let lane = &self.lanes[priced.lane];
        let mut table = vec![f64::INFINITY; width * self.q];
        table[start + 1] = priced.cost[start];
        let mut same = lane.same.iter().peekable();
        for column in 1..self.q {
            let (before, after) = table.split_at_mut(column * width);
            let old = &before[(column - 1) * width..];
            let costs = &priced.cost[column * ranks..(column + 1) * ranks];
            step(old, &mut after[1..=ranks], costs, column);
            while let Some((_, from, to)) = same.next_if(|(at, _, _)| *at == column) {
                after[to + 1] = after[to + 1].min(old[from + 1]);
            }
        }
        let mut rank = self.t - 1 - start;
        let mut cells = vec![0; self.q];
        for column in (0..self.q).rev() {
            cells[column] = lane.cell[column * ranks + rank] as usize;
            if column > 0 {
                rank = self.before(lane, priced, &table, column, rank);
            }
        }
        cells
    }

    /// The rank from which the cheapest path enters this rank of a column.
    fn before(
        &self,
        lane: &Lane,
        priced: &Priced,
        table: &[f64],
        column: usize,
        rank: usize,
    ) -> usize {
        let ranks = self.t + 1;
        let here = column * ranks + rank;
        let via = |from: usize| {
            let place = (column - 1) * ranks + from;
            let cost = table[(column - 1) * (ranks + 2) + from + 1];
            if lane.site[place] == lane.site[here] {
                cost
            } else {
                cost + priced.cost[here]
            }
        };
        let other = if column % 2 == 1 {
            rank.checked_sub(1)
        } else {
            Some(rank + 1)
        };
        match other {
            Some(other) if via(other) < via(rank) => other,
            _ => rank,
        }
    }

    /// The board cell at a column (from 0) and rank of a direction, if there is one.
    pub(super) fn cell(&self, lane: usize, column: usize, rank: usize) -> Option<usize> {
        if rank > self.t {
            return None;
        }
        let cell = *self.lanes[lane].cell.get(column * (self.t + 1) + rank)?;
        (cell != NONE).then_some(cell as usize)
    }
}

impl Lane {
    fn new(board: &Board, transposed: bool) -> Self {
        let (q, ranks) = (board.q(), board.t() + 1);
        let mut cell = vec![NONE; q * ranks];
        let mut site = cell.clone();
        for at in 0..board.cells() {
            let (row, column) = board.place(at);
            let (row, column) = if transposed {
                (column, row)
            } else {
                (row, column)
            };
            let place = (column - 1) * ranks + (row - 1) / 2;
            let small = |number| u32::try_from(number).expect("invariant: boards are small");
            cell[place] = small(at);
            site[place] = small(board.site(at));
        }
        let mut same = Vec::new();
        for column in 1..if board.is_full() { 1 } else { q } {
            for to in 0..ranks {
                let other = if column % 2 == 1 {
                    to.checked_sub(1)
                } else {
                    Some(to + 1)
                };
                for from in [Some(to), other].into_iter().flatten() {
                    let here = site[column * ranks + to];
                    let there = (from < ranks).then(|| site[(column - 1) * ranks + from]);
                    if here != NONE && there == Some(here) {
                        same.push((column, from, to));
                    }
                }
            }
        }
        Self { cell, site, same }
    }
}

/// One column of the search. `old` has a rank of padding before and after its ranks.
fn step(old: &[f64], new: &mut [f64], costs: &[f64], column: usize) {
    let old = if column % 2 == 1 { old } else { &old[1..] };
    for ((new, cost), pair) in new.iter_mut().zip(costs).zip(old.windows(2)) {
        *new = cost + if pair[0] < pair[1] { pair[0] } else { pair[1] };
    }
}
