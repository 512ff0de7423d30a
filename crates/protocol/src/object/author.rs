//! What an object remembers of those who submit to it.
//!
//! Each author has one cell: its last operation, when that was ordered and what came of it. So an
//! operation that is sent again is answered and not done again. Cells of authors that were away
//! for long are taken out; the floor says when the latest of those began, and an author without a
//! cell that is no younger must begin anew.

use std::sync::Arc;

use super::cells;
use super::message::{Author, OpId};
use super::state::{Cell, State, Value};

/// What an author did last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastOp<'a> {
    /// The number of its operation.
    pub number: u64,
    /// When that was ordered, by the clock of the client that did, in milliseconds.
    pub millis: u64,
    /// What came of it.
    pub result: &'a [u8],
}

impl<'a> LastOp<'a> {
    /// What a cell says, if it is one.
    pub fn read(value: &'a [u8]) -> Option<Self> {
        let (number, rest) = value.split_first_chunk()?;
        let (millis, result) = rest.split_first_chunk()?;
        Some(Self {
            number: u64::from_be_bytes(*number),
            millis: u64::from_be_bytes(*millis),
            result,
        })
    }

    /// What the cell holds then.
    pub fn write(&self) -> Value {
        let mut value = Vec::with_capacity(16 + self.result.len());
        value.extend_from_slice(&self.number.to_be_bytes());
        value.extend_from_slice(&self.millis.to_be_bytes());
        value.extend_from_slice(self.result);
        Arc::from(value)
    }
}

/// What a state says about an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// Nothing: it may be done.
    New,
    /// It was done, and this came of it.
    Done(Arc<[u8]>),
    /// Its author has gone on to a later one since.
    Past,
    /// Its author may have been forgotten.
    Forgotten,
}

/// The cell of an author.
pub fn cell(author: Author) -> Cell {
    let mut cell = [cells::AUTHORS; 17];
    cell[1..].copy_from_slice(&author.0.to_be_bytes());
    Arc::from(cell.as_slice())
}

/// Whose cell it is, if it is an author's.
pub fn of_cell(cell: &[u8]) -> Option<Author> {
    let number = cell.strip_prefix(&[cells::AUTHORS])?;
    Some(Author(u128::from_be_bytes(number.try_into().ok()?)))
}

/// What the floor cell holds, if it is one.
pub fn floor(state: &State) -> Option<u64> {
    let value = state.get(cells::FLOOR)?;
    Some(u64::from_be_bytes(value.as_ref().try_into().ok()?))
}

/// What the floor cell holds then.
pub fn floor_value(millis: u64) -> Value {
    Arc::from(millis.to_be_bytes().as_slice())
}

/// What the state says about an operation.
pub fn known(state: &State, op: OpId) -> Known {
    let Some(last) = state.get(&cell(op.author)) else {
        let forgotten = floor(state).is_some_and(|floor| op.author.began() <= floor);
        return if forgotten {
            Known::Forgotten
        } else {
            Known::New
        };
    };
    // A cell that cannot be read is no reason to do anything twice.
    let Some(last) = LastOp::read(last) else {
        return Known::Past;
    };
    match last.number.cmp(&op.number) {
        std::cmp::Ordering::Less => Known::New,
        std::cmp::Ordering::Equal => Known::Done(Arc::from(last.result)),
        std::cmp::Ordering::Greater => Known::Past,
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::Delta;
    use super::*;

    #[test]
    fn an_operation_is_new_then_done_then_past_and_at_last_forgotten() {
        let author = Author::new(1000, u128::MAX);
        let op = |number| OpId { author, number };
        let empty = State::new();
        assert_eq!(known(&empty, op(1)), Known::New);
        let last = LastOp {
            number: 2,
            millis: 7,
            result: b"two",
        };
        assert_eq!(LastOp::read(&last.write()), Some(last));
        let write = (cell(author), Some(last.write()));
        let held = empty.next(&Delta::new(vec![write])).expect("a version");
        assert_eq!(known(&held, op(1)), Known::Past);
        assert_eq!(known(&held, op(2)), Known::Done(Arc::from(&b"two"[..])));
        assert_eq!(known(&held, op(3)), Known::New);
        let floor = (Cell::from(cells::FLOOR), Some(floor_value(1000)));
        let gone = Delta::new(vec![(cell(author), None), floor]);
        let gone = held.next(&gone).expect("a version");
        assert_eq!(known(&gone, op(3)), Known::Forgotten);
        let younger = OpId {
            author: Author::new(1001, 0),
            number: 1,
        };
        assert_eq!(known(&gone, younger), Known::New);
        assert_eq!(of_cell(&cell(author)), Some(author));
    }

    #[test]
    fn what_is_no_record_is_not_read() {
        assert_eq!(LastOp::read(&[0; 15]), None);
        assert_eq!(of_cell(&[cells::AUTHORS; 16]), None);
        assert_eq!(of_cell(&[cells::META; 17]), None);
    }
}
