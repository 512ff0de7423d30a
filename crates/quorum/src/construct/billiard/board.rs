//! The board: which cells carry sites, and the path that the paper gives to each of them.

use std::iter;

use thiserror::Error;

use crate::NodeSet;

/// The most sites a board may have.
pub const SITES_MAX: usize = 100_000;

/// A checkerboard of odd side `q = 2t + 1` whose cells carry the sites.
///
/// Cells are written `(row, column)`, both from 1, row 1 on top; a cell exists iff
/// `row + column` is odd, so there are `(q*q - 1) / 2` of them and none in a corner. Sites are
/// counted from 0 (the paper's site `n` is our site `n - 1`).
///
/// A *full* board has one site per cell. For any other number of sites the smallest board that
/// has enough cells is *folded*: some cells on the border have no site of their own and take
/// that of their diagonal neighbour further in. A quorum is then the set of the sites on a path
/// of cells. Two paths that share a cell share its site, so folding keeps intersection, and a
/// path through a border cell and its neighbour loses a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Board {
    side: usize,
    /// The site of each cell, cells in row-major order.
    site_of: Vec<usize>,
    /// The cells of each site, in ascending order.
    cells_of: Vec<Vec<usize>>,
}

/// Why there is no board.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BoardError {
    /// Too few sites for a board to be worth it.
    #[error(
        "no billiard board has {nodes} sites: use a majority, which is smaller and more \
         available up to 9 sites, or take 4 sites or at least 10"
    )]
    TooFew {
        /// The sites asked for.
        nodes: usize,
    },
    /// Too many sites.
    #[error("a billiard board has at most {SITES_MAX} sites, but this one needs {nodes}")]
    TooMany {
        /// The sites asked for.
        nodes: usize,
    },
    /// The side is not an odd number from 3 on.
    #[error("the side of a billiard board is an odd number from 3 on, but {side} was given")]
    Side {
        /// The side asked for.
        side: usize,
    },
}

impl Board {
    /// The board of `nodes` sites, folded unless `nodes` is 4, 12, 24, 40 or any other
    /// `(q*q - 1) / 2`.
    pub fn new(nodes: usize) -> Result<Self, BoardError> {
        if nodes < 10 && nodes != 4 {
            return Err(BoardError::TooFew { nodes });
        }
        if nodes > SITES_MAX {
            return Err(BoardError::TooMany { nodes });
        }
        let mut side = 3;
        while (side * side - 1) / 2 < nodes {
            side += 2;
        }
        let cells = (side * side - 1) / 2;
        let mut inward: Vec<Option<usize>> = vec![None; cells];
        for (border, inner) in drop_order(side).take(cells - nodes) {
            inward[index_of(side, border)] = Some(index_of(side, inner));
        }
        let mut site_of = vec![0; cells];
        let kept = (0..cells).filter(|cell| inward[*cell].is_none());
        for (site, cell) in kept.enumerate() {
            site_of[cell] = site;
        }
        let mut cells_of = vec![Vec::with_capacity(1); nodes];
        for cell in 0..cells {
            if let Some(inner) = inward[cell] {
                site_of[cell] = site_of[inner];
            }
            cells_of[site_of[cell]].push(cell);
        }
        Ok(Self {
            side,
            site_of,
            cells_of,
        })
    }

    /// The full board of side `q`: odd, at least 3.
    pub fn with_side(side: usize) -> Result<Self, BoardError> {
        if side < 3 || side.is_multiple_of(2) {
            return Err(BoardError::Side { side });
        }
        let nodes = side.saturating_mul(side) / 2;
        if nodes > SITES_MAX {
            return Err(BoardError::TooMany { nodes });
        }
        Self::new(nodes)
    }

    /// The side `q`.
    pub fn q(&self) -> usize {
        self.side
    }

    /// Half the side, rounded down: the paper's `t` with `q = 2t + 1`.
    pub fn t(&self) -> usize {
        self.side / 2
    }

    /// How many sites there are.
    pub fn nodes(&self) -> usize {
        self.cells_of.len()
    }

    /// Whether every cell has a site of its own.
    pub fn is_full(&self) -> bool {
        self.site_of.len() == self.cells_of.len()
    }

    /// The site of the cell, or `None` if the board has no such cell.
    pub fn site_at(&self, row: usize, column: usize) -> Option<usize> {
        let inside = (1..=self.side).contains(&row) && (1..=self.side).contains(&column);
        (inside && (row + column) % 2 == 1)
            .then(|| self.site_of[index_of(self.side, (row, column))])
    }

    /// The cells of a site in row-major order: one, or up to three on a folded board. None for
    /// a site that does not exist.
    pub fn cells_of(&self, site: usize) -> Vec<(usize, usize)> {
        self.cells_of.get(site).map_or_else(Vec::new, |cells| {
            cells.iter().map(|cell| self.place(*cell)).collect()
        })
    }

    /// The billiard path of a cell, from the left side or from the bottom on. It has `q` cells,
    /// the given one among them. `None` if the board has no such cell.
    pub fn cell_path(&self, row: usize, column: usize) -> Option<Vec<(usize, usize)>> {
        self.site_at(row, column)?;
        let path = self.walk(index_of(self.side, (row, column)));
        Some(path.map(|cell| self.place(cell)).collect())
    }

    /// The billiard path behind [`Board::own`], in path order. Empty for a site that does not
    /// exist.
    pub fn own_path(&self, site: usize) -> Vec<(usize, usize)> {
        self.own_cell(site).map_or_else(Vec::new, |cell| {
            self.walk(cell).map(|cell| self.place(cell)).collect()
        })
    }

    /// The quorum that the paper assigns to a site: the sites on its cell's path. Where a site
    /// has several cells it is the smallest of their sets, and the first of those in
    /// lexicographic order. It contains the site. `None` for a site that does not exist.
    pub fn own(&self, site: usize) -> Option<NodeSet> {
        let path = self.walk(self.own_cell(site)?);
        Some(NodeSet::of(
            self.nodes(),
            path.map(|cell| self.site_of[cell]),
        ))
    }

    /// How many cells there are.
    pub(super) fn cells(&self) -> usize {
        self.site_of.len()
    }

    /// The site of a cell, cells in row-major order.
    pub(super) fn site(&self, cell: usize) -> usize {
        self.site_of[cell]
    }

    /// The cells of a site.
    pub(super) fn cells_at(&self, site: usize) -> &[usize] {
        &self.cells_of[site]
    }

    /// Row and column of a cell, both from 1.
    pub(super) fn place(&self, cell: usize) -> (usize, usize) {
        let twice = 2 * (cell + 1) - 1;
        (twice / self.side + 1, twice % self.side + 1)
    }

    /// The cell at a row and column that carry one.
    pub(super) fn cell(&self, row: usize, column: usize) -> usize {
        index_of(self.side, (row, column))
    }

    /// The sites of some cells.
    pub(super) fn image(&self, cells: impl IntoIterator<Item = usize>) -> NodeSet {
        NodeSet::of(
            self.nodes(),
            cells.into_iter().map(|cell| self.site_of[cell]),
        )
    }

    /// The cells of a cell's billiard path, in path order.
    ///
    /// Above the falling diagonal the path enters from the left, else from the bottom. It runs
    /// to the cell itself, is thrown back there, and once more at the mirror image of the cell.
    pub(super) fn walk(&self, cell: usize) -> impl Iterator<Item = usize> + use<> {
        let side = self.side;
        let (row, column) = self.place(cell);
        let low = isize::try_from(side / 2).expect("invariant: the side is small");
        let (north_east, south_east, north_west) = (-low, low + 1, -low - 1);
        let (start, legs) = if row + column <= side {
            let legs = [
                (column - 1, north_east),
                (side + 1 - row - column, south_east),
                (row - 1, north_east),
            ];
            ((row + column - 1, 1), legs)
        } else {
            let legs = [
                (side - row, north_east),
                (row + column - side - 1, north_west),
                (side - column, north_east),
            ];
            ((side, row + column - side), legs)
        };
        let start = index_of(side, start);
        let steps = legs
            .into_iter()
            .flat_map(|(count, step)| iter::repeat_n(step, count));
        iter::once(start).chain(steps.scan(start, |at, step| {
            *at = at.wrapping_add_signed(step);
            Some(*at)
        }))
    }

    /// The cell whose path gives the site's own quorum.
    pub(super) fn own_cell(&self, site: usize) -> Option<usize> {
        let cells = self.cells_of.get(site)?;
        if let [only] = cells.as_slice() {
            return Some(*only);
        }
        cells.iter().copied().min_by_key(|cell| {
            let mut sites: Vec<usize> = self.walk(*cell).map(|cell| self.site_of[cell]).collect();
            sites.sort_unstable();
            sites.dedup();
            (sites.len(), sites)
        })
    }
}

/// The number of a cell in row-major order, from 0.
fn index_of(side: usize, (row, column): (usize, usize)) -> usize {
    ((row - 1) * side + column - 2) / 2
}

/// The cells that lose their site when a board is folded, in order, each with the cell whose
/// site it takes: one cell from each side in turn, around the board.
fn drop_order(q: usize) -> impl Iterator<Item = ((usize, usize), (usize, usize))> {
    (1..=q / 2).flat_map(move |k| {
        let up = 2 * k;
        let down = q + 1 - 2 * k;
        let after = if up + 1 == q { up - 1 } else { up + 1 };
        let before = if down == 2 { down + 1 } else { down - 1 };
        [
            ((1, up), (2, after)),
            ((q, down), (q - 1, before)),
            ((down, 1), (before, 2)),
            ((up, q), (after, q - 1)),
        ]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_cells_are_inverse() {
        for q in [3, 5, 7, 9, 21] {
            let board = Board::with_side(q).unwrap();
            let mut next = 0;
            for row in 1..=q {
                for column in 1..=q {
                    let site = board.site_at(row, column);
                    assert_eq!(site, ((row + column) % 2 == 1).then_some(next));
                    if site.is_some() {
                        assert_eq!(board.place(next), (row, column));
                        assert_eq!(board.cells_of(next), vec![(row, column)]);
                        next += 1;
                    }
                }
            }
            assert_eq!(next, board.nodes());
            assert_eq!(board.site_at(0, 1), None);
            assert_eq!(board.site_at(q + 1, 2), None);
        }
        assert_eq!(Board::with_side(9).unwrap().cells_of(26), vec![(6, 9)]);
    }

    #[test]
    fn sizes_without_a_board_are_refused() {
        for nodes in [0, 1, 3, 5, 9] {
            assert_eq!(Board::new(nodes), Err(BoardError::TooFew { nodes }));
        }
        for side in [0, 1, 2, 10] {
            assert_eq!(Board::with_side(side), Err(BoardError::Side { side }));
        }
        assert!(Board::new(SITES_MAX).is_ok());
        assert!(matches!(
            Board::new(SITES_MAX + 1),
            Err(BoardError::TooMany { .. })
        ));
        assert!(Board::with_side(447).is_ok());
        for side in [449, usize::MAX] {
            assert!(matches!(
                Board::with_side(side),
                Err(BoardError::TooMany { .. })
            ));
        }
    }
}
