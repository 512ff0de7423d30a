//! Paths of any length across the board: which cells hang together, and the cheapest way over.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Board;

/// How a path may step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Steps {
    /// To the four diagonal neighbours.
    Diagonal,
    /// Also two cells along the row or column. A star path one way and a diagonal path the
    /// other way always share a cell: the star graph is the diagonal graph plus both diagonals
    /// of each of its faces, the usual pair of matching graphs.
    Star,
}

/// Across the board from side to side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From the left side to the right.
    LeftRight,
    /// From the top to the bottom.
    TopBottom,
}

const OFFSETS: [(isize, isize); 8] = [
    (-1, -1),
    (-1, 1),
    (1, -1),
    (1, 1),
    (-2, 0),
    (2, 0),
    (0, -2),
    (0, 2),
];

impl Steps {
    /// The neighbours of a cell.
    pub(super) fn from(self, board: &Board, cell: usize) -> impl Iterator<Item = usize> {
        let (row, column) = board.place(cell);
        let count = if self == Self::Star { 8 } else { 4 };
        OFFSETS[..count].iter().filter_map(move |(down, right)| {
            let row = row.checked_add_signed(*down)?;
            let column = column.checked_add_signed(*right)?;
            let inside = (1..=board.q()).contains(&row) && (1..=board.q()).contains(&column);
            inside.then(|| board.cell(row, column))
        })
    }
}

impl Way {
    /// The way across this one.
    pub(super) fn other(self) -> Self {
        match self {
            Self::LeftRight => Self::TopBottom,
            Self::TopBottom => Self::LeftRight,
        }
    }

    /// The cells where such a path may begin: the first line, for star paths the first two.
    pub(super) fn starts(self, board: &Board, steps: Steps) -> Vec<usize> {
        self.lines(board, if steps == Steps::Star { 1..=2 } else { 1..=1 })
    }

    /// The cells where it may end.
    pub(super) fn ends(self, board: &Board, steps: Steps) -> Vec<usize> {
        let q = board.q();
        self.lines(
            board,
            if steps == Steps::Star {
                q - 1..=q
            } else {
                q..=q
            },
        )
    }

    fn lines(self, board: &Board, lines: std::ops::RangeInclusive<usize>) -> Vec<usize> {
        lines.flat_map(|line| self.line(board, line)).collect()
    }

    /// The cells of one column (for left-right paths) or row.
    pub(super) fn line(self, board: &Board, line: usize) -> impl Iterator<Item = usize> {
        let first = if line % 2 == 1 { 2 } else { 1 };
        (first..=board.q()).step_by(2).map(move |at| match self {
            Self::LeftRight => board.cell(at, line),
            Self::TopBottom => board.cell(line, at),
        })
    }

    /// The pairs of mirrored border cells that an antipodal path joins.
    pub(super) fn mirrored(self, board: &Board) -> impl Iterator<Item = (usize, usize)> {
        let last: Vec<usize> = self.line(board, board.q()).collect();
        self.line(board, 1).zip(last.into_iter().rev())
    }
}

/// For each cell the number of its component among the live cells, from 1; 0 for dead cells.
pub(super) fn components(board: &Board, live: &[bool], steps: Steps) -> Vec<usize> {
    let mut label = vec![0; live.len()];
    let mut next = 0;
    let mut pending = Vec::new();
    for cell in 0..live.len() {
        if !live[cell] || label[cell] != 0 {
            continue;
        }
        next += 1;
        label[cell] = next;
        pending.push(cell);
        while let Some(at) = pending.pop() {
            for neighbour in steps.from(board, at) {
                if live[neighbour] && label[neighbour] == 0 {
                    label[neighbour] = next;
                    pending.push(neighbour);
                }
            }
        }
    }
    label
}

/// Whether some component has a cell in both lists.
pub(super) fn joins(label: &[usize], starts: &[usize], ends: &[usize]) -> bool {
    let mut touched = vec![false; label.iter().max().map_or(1, |most| most + 1)];
    for start in starts {
        touched[label[*start]] = true;
    }
    ends.iter()
        .any(|end| label[*end] != 0 && touched[label[*end]])
}

/// The cheapest path from one of the starts to one of the ends: its cost, where a site is paid
/// once, and its cells. `None` if every path has a site of infinite cost.
///
/// Exact on folded boards too: cells of one site are neighbours, directly or through the
/// innermost of them, so some cheapest path visits them one after the other.
pub(super) fn cheapest(
    board: &Board,
    cost: &[f64],
    steps: Steps,
    starts: &[usize],
    ends: &[usize],
) -> Option<(f64, Vec<usize>)> {
    let cells = board.cells();
    let mut least = vec![f64::INFINITY; cells];
    let mut before = vec![cells; cells];
    let mut is_end = vec![false; cells];
    for end in ends {
        is_end[*end] = true;
    }
    // Costs are not negative, so their bit patterns are in the same order as they are.
    let mut heap = BinaryHeap::new();
    for start in starts {
        // Adding 0 turns a negative zero into a positive one.
        let price = cost[board.site(*start)] + 0.0;
        if price < least[*start] {
            least[*start] = price;
            heap.push(Reverse((price.to_bits(), *start)));
        }
    }
    while let Some(Reverse((bits, cell))) = heap.pop() {
        let paid = f64::from_bits(bits);
        if paid > least[cell] {
            continue;
        }
        if is_end[cell] {
            let mut path = vec![cell];
            let mut at = cell;
            while before[at] < cells {
                at = before[at];
                path.push(at);
            }
            path.reverse();
            return Some((paid, path));
        }
        for neighbour in steps.from(board, cell) {
            let same = board.site(neighbour) == board.site(cell);
            let price = paid
                + if same {
                    0.0
                } else {
                    cost[board.site(neighbour)]
                };
            if price < least[neighbour] {
                least[neighbour] = price;
                before[neighbour] = cell;
                heap.push(Reverse((price.to_bits(), neighbour)));
            }
        }
    }
    None
}
