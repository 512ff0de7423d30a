//! Rows with columns as extra quorums: which may be added to the billiard quorums of a board.
//!
//! The paper says that a row together with a column may serve as one more quorum. One such set
//! does meet every billiard quorum, but two of them may be disjoint: where the row of one would
//! cross the column of the other there may be no cell. Row 1 with column 1 and row 3 with column
//! 3 share nothing, nor do row 1 with column 2 and row 2 with column 1. Only one parity class is
//! safe, odd rows with even columns: every such row crosses every such column in a cell.

use thiserror::Error;

use crate::NodeSet;

use super::Board;

/// The sets of row `i` and column `j` for the given pairs `(i, j)`, counted from 1, if all of
/// them may be added to the billiard quorums of the board: odd rows with even columns only. On a
/// full board each has `q - 1` sites.
pub fn row_plus_column(
    board: &Board,
    pairs: &[(usize, usize)],
) -> Result<Vec<NodeSet>, CrossError> {
    for pair in pairs {
        let inside = |line| (1..=board.q()).contains(&line);
        if !inside(pair.0) || !inside(pair.1) {
            return Err(CrossError::Outside {
                row: pair.0,
                column: pair.1,
                q: board.q(),
            });
        }
        if pair.0 % 2 == 0 || pair.1 % 2 == 1 {
            let other = disjoint_from(board, *pair);
            return Err(CrossError::Disjoint {
                row: pair.0,
                column: pair.1,
                other_row: other.0,
                other_column: other.1,
            });
        }
    }
    Ok(pairs.iter().map(|pair| cross(board, *pair)).collect())
}

/// The sites of a row and a column.
fn cross(board: &Board, (row, column): (usize, usize)) -> NodeSet {
    let q = board.q();
    let in_row = (1..=q).filter_map(|column| board.site_at(row, column));
    let in_column = (1..=q).filter_map(|row| board.site_at(row, column));
    NodeSet::of(board.nodes(), in_row.chain(in_column))
}

/// A row and a column that share no cell with those of a pair outside the safe class.
fn disjoint_from(board: &Board, (row, column): (usize, usize)) -> (usize, usize) {
    // The rows must differ and so must the columns, and each row must have the parity of the
    // column that it would cross.
    let other = |line: usize, parity: usize| {
        let first = if parity == 0 { 2 } else { 1 };
        (first..=board.q())
            .step_by(2)
            .find(|candidate| *candidate != line)
    };
    (
        other(row, column % 2).unwrap_or(row),
        other(column, row % 2).unwrap_or(column),
    )
}

/// Why a row and a column may not be added as a quorum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CrossError {
    /// Outside the safe class.
    #[error(
        "row {row} with column {column} is disjoint from row {other_row} with column \
         {other_column}: only odd rows with even columns may be added"
    )]
    Disjoint {
        /// The row asked for.
        row: usize,
        /// The column asked for.
        column: usize,
        /// The row of a set that it misses.
        other_row: usize,
        /// The column of a set that it misses.
        other_column: usize,
    },
    /// Not on the board.
    #[error("row {row} with column {column} is not on a board of side {q}")]
    Outside {
        /// The row asked for.
        row: usize,
        /// The column asked for.
        column: usize,
        /// The side of the board.
        q: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_odd_rows_with_even_columns_are_safe() {
        for q in [5, 7, 9] {
            let board = Board::with_side(q).unwrap();
            for row in 1..=q {
                for column in 1..=q {
                    let answer = row_plus_column(&board, &[(1, 2), (row, column)]);
                    if row % 2 == 1 && column % 2 == 0 {
                        assert!(answer.unwrap().iter().all(|set| set.len() == q - 1));
                        continue;
                    }
                    let Err(CrossError::Disjoint {
                        other_row,
                        other_column,
                        ..
                    }) = answer
                    else {
                        panic!("row {row} with column {column} was accepted");
                    };
                    let (left, right) = (
                        cross(&board, (row, column)),
                        cross(&board, (other_row, other_column)),
                    );
                    assert!(!left.intersects(&right), "{row} {column}");
                }
            }
        }
    }

    /// Of all pairs of a row and a column of side 5, 56 pairs of sets are disjoint; 672 of side 9.
    #[test]
    fn disjoint_pairs_are_as_many_as_counted() {
        for (q, expected) in [(5, 56), (9, 672)] {
            let board = Board::with_side(q).unwrap();
            let all: Vec<NodeSet> = (1..=q)
                .flat_map(|row| (1..=q).map(move |column| (row, column)))
                .map(|pair| cross(&board, pair))
                .collect();
            let apart = (0..all.len())
                .flat_map(|a| (0..a).map(move |b| (a, b)))
                .filter(|(a, b)| !all[*a].intersects(&all[*b]))
                .count();
            assert_eq!(apart, expected);
        }
    }

    #[test]
    fn safe_sets_meet_each_other_and_every_billiard_quorum() {
        let board = Board::with_side(9).unwrap();
        let pairs: Vec<(usize, usize)> = (1..=9)
            .step_by(2)
            .flat_map(|row| (2..9).step_by(2).map(move |column| (row, column)))
            .collect();
        let sets = row_plus_column(&board, &pairs).unwrap();
        for set in &sets {
            assert!(sets.iter().all(|other| set.intersects(other)));
            assert!((0..40).all(|site| set.intersects(&board.own(site).unwrap())));
        }
        assert!(row_plus_column(&board, &[(1, 10)]).is_err());
    }
}
