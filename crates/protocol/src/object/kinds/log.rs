//! A log: values that are appended, read by their number, and cut off at the front.

use super::{
    Bytes, Cells, Code, LIST_MAX, Model, Reader, VALUE_MAX, Writer, fill, fits, number_of,
    numbered, one, only, pair, paired, walk, wrote,
};
use crate::object::kind::{Context, Draft, KindError};
use crate::object::message::Span;
use crate::object::state::{Cell, Value};

/// The cell with the number of the first entry that is kept, and that of the next one to come.
const ENDS: &[u8] = b"e";
/// The first byte of the cells of entries.
const ENTRY: u8 = b"i"[0];
/// Most entries that one operation cuts off.
pub const TRIM_MAX: u64 = 1000;

/// A log.
#[derive(Clone, Copy, Debug, Default)]
pub struct Log;

/// What a log can do. Its entries are numbered from 0 for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Appends an entry.
    Append(Bytes),
    /// Tells entries.
    Read {
        /// From this number on.
        from: u64,
        /// At most so many.
        limit: u32,
    },
    /// Cuts off entries below this number, at most [`TRIM_MAX`] of them.
    Trim(u64),
    /// Tells the numbers of the first entry and of the next one to come.
    Len,
}

/// What a log answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The entry has this number.
    Appended(u64),
    /// Entries by number.
    Read(Entries),
    /// The first entry that is kept.
    Trimmed(u64),
    /// The ends of the log.
    Len(Ends),
}

/// A part of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries {
    /// Entries and their numbers.
    pub entries: Vec<(u64, Bytes)>,
    /// Whether there are more after them.
    pub more: bool,
}

/// The ends of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// The number of the first entry that is kept.
    pub first: u64,
    /// The number that the next entry will have.
    pub next: u64,
}

impl Model for Log {
    type Op = Op;
    type Answer = Answer;

    fn name(&self) -> &'static str {
        "log"
    }

    fn apply(
        &self,
        op: Op,
        draft: &mut Draft<'_>,
        _context: &mut Context,
    ) -> Result<Answer, KindError> {
        let (first, next) = pair(draft.get(ENDS).as_ref())?;
        match op {
            Op::Append(value) => {
                fits(&value, VALUE_MAX)?;
                let after = next.checked_add(1).ok_or(KindError::Overflow)?;
                wrote(draft.set(ENDS, &paired(first, after)))?;
                wrote(draft.set(&numbered(ENTRY, next), &value))?;
                Ok(Answer::Appended(next))
            }
            Op::Read { from, limit } => {
                let cells = walk(draft, &numbered(ENTRY, from), Some(vec![ENTRY + 1]));
                read(limit, cells)
            }
            Op::Trim(to) => {
                let to = to.min(next).min(first.saturating_add(TRIM_MAX));
                if to > first {
                    wrote(draft.set(ENDS, &paired(to, next)))?;
                }
                for number in first..to {
                    wrote(draft.remove(&numbered(ENTRY, number)))?;
                }
                Ok(Answer::Trimmed(to.max(first)))
            }
            Op::Len => Ok(Answer::Len(Ends { first, next })),
        }
    }

    fn reads(&self, op: &Op) -> Option<Vec<Span>> {
        match op {
            Op::Append(_) | Op::Trim(_) => None,
            Op::Len => Some(vec![one(ENDS)]),
            Op::Read { from, limit } => Some(vec![Span {
                from: numbered(ENTRY, *from).as_slice().into(),
                to: Some([ENTRY + 1].as_slice().into()),
                limit: (*limit).min(LIST_MAX) + 1,
                backwards: false,
            }]),
        }
    }

    fn answer(&self, op: &Op, cells: &Cells) -> Result<Answer, KindError> {
        match op {
            Op::Append(_) | Op::Trim(_) => Err(KindError::Unreadable),
            Op::Read { limit, .. } => {
                let found = cells.first().ok_or(KindError::Unreadable)?;
                read(*limit, found.iter().cloned())
            }
            Op::Len => {
                let (first, next) = pair(only(cells, 0))?;
                Ok(Answer::Len(Ends { first, next }))
            }
        }
    }
}

fn read(limit: u32, cells: impl Iterator<Item = (Cell, Value)>) -> Result<Answer, KindError> {
    let entries = cells.map(|(cell, value)| {
        let size = cell.len() + value.len();
        Ok(((number_of(&cell)?, value), size))
    });
    let (entries, more) = fill(limit.min(LIST_MAX), entries)?;
    Ok(Answer::Read(Entries { entries, more }))
}

impl Code for Op {
    fn write(&self, out: &mut Writer) {
        match self {
            Self::Append(value) => out.tag(0).put(value),
            Self::Read { from, limit } => out.tag(1).put(from).put(limit),
            Self::Trim(to) => out.tag(2).put(to),
            Self::Len => out.tag(3),
        };
    }

    fn read(input: &mut Reader<'_>) -> Option<Self> {
        Some(match input.tag()? {
            0 => Self::Append(input.get()?),
            1 => Self::Read {
                from: input.get()?,
                limit: input.get()?,
            },
            2 => Self::Trim(input.get()?),
            3 => Self::Len,
            _ => return None,
        })
    }
}

impl Code for Answer {
    fn write(&self, out: &mut Writer) {
        match self {
            Self::Appended(number) => out.tag(0).put(number),
            Self::Read(found) => out.tag(1).put(&found.entries).put(&found.more),
            Self::Trimmed(first) => out.tag(2).put(first),
            Self::Len(ends) => out.tag(3).put(&ends.first).put(&ends.next),
        };
    }

    fn read(input: &mut Reader<'_>) -> Option<Self> {
        Some(match input.tag()? {
            0 => Self::Appended(input.get()?),
            1 => Self::Read(Entries {
                entries: input.get()?,
                more: input.get()?,
            }),
            2 => Self::Trimmed(input.get()?),
            3 => Self::Len(Ends {
                first: input.get()?,
                next: input.get()?,
            }),
            _ => return None,
        })
    }
}
