//! A queue: values that leave in the order in which they came.

use super::{
    Bytes, Cells, Code, Model, Reader, VALUE_MAX, Writer, fits, numbered, one, only, pair, paired,
    wrote,
};
use crate::object::kind::{Context, Draft, KindError};
use crate::object::message::Span;

/// The cell with the number of the first item, and that of the next one to come.
const ENDS: &[u8] = b"e";
/// The first byte of the cells of items.
const ITEM: u8 = b"i"[0];

/// A queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Queue;

/// What a queue can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Appends an item.
    Push(Bytes),
    /// Takes the first item away and tells it.
    Pop,
    /// Tells the first item.
    Peek,
    /// Tells how many items there are.
    Len,
}

/// What a queue answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The item has this number; no two of a queue have the same.
    Pushed(u64),
    /// The first item.
    First(Bytes),
    /// So many items.
    Len(u64),
}

impl Model for Queue {
    type Op = Op;
    type Answer = Answer;

    fn name(&self) -> &'static str {
        "queue"
    }

    fn apply(
        &self,
        op: Op,
        draft: &mut Draft<'_>,
        _context: &mut Context,
    ) -> Result<Answer, KindError> {
        let (first, next) = pair(draft.get(ENDS).as_ref())?;
        match op {
            Op::Push(value) => {
                fits(&value, VALUE_MAX)?;
                let after = next.checked_add(1).ok_or(KindError::Overflow)?;
                wrote(draft.set(ENDS, &paired(first, after)))?;
                wrote(draft.set(&numbered(ITEM, next), &value))?;
                Ok(Answer::Pushed(next))
            }
            Op::Pop | Op::Peek if first == next => Err(KindError::Empty),
            Op::Pop | Op::Peek => {
                let cell = numbered(ITEM, first);
                let item = draft.get(&cell).ok_or(KindError::Unreadable)?;
                if op == Op::Pop {
                    wrote(draft.set(ENDS, &paired(first + 1, next)))?;
                    wrote(draft.remove(&cell))?;
                }
                Ok(Answer::First(item))
            }
            Op::Len => Ok(Answer::Len(next - first)),
        }
    }

    fn reads(&self, op: &Op) -> Option<Vec<Span>> {
        match op {
            Op::Push(_) | Op::Pop => None,
            Op::Len => Some(vec![one(ENDS)]),
            Op::Peek => Some(vec![Span {
                from: [ITEM].as_slice().into(),
                to: Some([ITEM + 1].as_slice().into()),
                limit: 1,
                backwards: false,
            }]),
        }
    }

    fn answer(&self, op: &Op, cells: &Cells) -> Result<Answer, KindError> {
        match op {
            Op::Push(_) | Op::Pop => Err(KindError::Unreadable),
            Op::Peek => {
                let item = only(cells, 0).ok_or(KindError::Empty)?;
                Ok(Answer::First(item.clone()))
            }
            Op::Len => {
                let (first, next) = pair(only(cells, 0))?;
                Ok(Answer::Len(next - first))
            }
        }
    }
}

impl Code for Op {
    fn write(&self, out: &mut Writer) {
        match self {
            Self::Push(value) => out.tag(0).put(value),
            Self::Pop => out.tag(1),
            Self::Peek => out.tag(2),
            Self::Len => out.tag(3),
        };
    }

    fn read(input: &mut Reader<'_>) -> Option<Self> {
        Some(match input.tag()? {
            0 => Self::Push(input.get()?),
            1 => Self::Pop,
            2 => Self::Peek,
            3 => Self::Len,
            _ => return None,
        })
    }
}

impl Code for Answer {
    fn write(&self, out: &mut Writer) {
        match self {
            Self::Pushed(number) => out.tag(0).put(number),
            Self::First(item) => out.tag(1).put(item),
            Self::Len(len) => out.tag(2).put(len),
        };
    }

    fn read(input: &mut Reader<'_>) -> Option<Self> {
        Some(match input.tag()? {
            0 => Self::Pushed(input.get()?),
            1 => Self::First(input.get()?),
            2 => Self::Len(input.get()?),
            _ => return None,
        })
    }
}
