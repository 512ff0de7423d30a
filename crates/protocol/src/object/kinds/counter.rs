//! A counter: a whole number that is added to and read.

use super::{Cells, Code, Model, Reader, Writer, one, only, wrote};
use crate::object::kind::{Context, Draft, KindError};
use crate::object::message::Span;
use crate::object::state::Value;

/// The cell of the number.
const NUMBER: &[u8] = b"n";

/// A counter.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counter;

/// What a counter can do. It answers with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Adds this.
    Add(i64),
    /// Tells the number.
    Get,
}

impl Model for Counter {
    type Op = Op;
    type Answer = i64;

    fn name(&self) -> &'static str {
        "counter"
    }

    fn apply(
        &self,
        op: Op,
        draft: &mut Draft<'_>,
        _context: &mut Context,
    ) -> Result<i64, KindError> {
        let found = parse(draft.get(NUMBER).as_ref())?;
        let Op::Add(amount) = op else {
            return Ok(found);
        };
        let sum = found.checked_add(amount).ok_or(KindError::Overflow)?;
        wrote(draft.set(NUMBER, &sum.to_be_bytes()))?;
        Ok(sum)
    }

    fn reads(&self, op: &Op) -> Option<Vec<Span>> {
        matches!(op, Op::Get).then(|| vec![one(NUMBER)])
    }

    fn answer(&self, _op: &Op, cells: &Cells) -> Result<i64, KindError> {
        parse(only(cells, 0))
    }
}

fn parse(cell: Option<&Value>) -> Result<i64, KindError> {
    let Some(cell) = cell else { return Ok(0) };
    let bytes = cell[..].try_into().map_err(|_| KindError::Unreadable)?;
    Ok(i64::from_be_bytes(bytes))
}

impl Code for Op {
    fn write(&self, out: &mut Writer) {
        match self {
            Self::Add(amount) => out.tag(0).put(amount),
            Self::Get => out.tag(1),
        };
    }

    fn read(input: &mut Reader<'_>) -> Option<Self> {
        Some(match input.tag()? {
            0 => Self::Add(input.get()?),
            1 => Self::Get,
            _ => return None,
        })
    }
}
