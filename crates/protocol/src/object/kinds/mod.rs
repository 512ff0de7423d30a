//! Kinds of objects: a register, a counter, a map, a queue and a log, and how to make others.
//!
//! A [`Model`] says in types what a kind of object can do; [`Typed`] makes a [`Kind`] of it, which
//! reads and writes bytes. Operations that change nothing name the cells that they read, so that
//! they can be answered from those cells alone, with the same answer as if they were ordered.

mod code;
pub mod counter;
pub mod log;
pub mod map;
pub mod queue;
pub mod register;

use std::fmt;
use std::sync::Arc;

pub use code::{Code, Reader, Writer};
pub use counter::Counter;
pub use log::Log;
pub use map::Map;
pub use queue::Queue;
pub use register::Register;

use super::kind::{Context, Draft, Kind, KindError};
use super::message::Span;
use super::state::{Cell, Value};

/// Most bytes of a key.
pub const KEY_MAX: usize = 1024;
/// Most bytes of a value: an answer has room for one.
pub const VALUE_MAX: usize = 60 << 10;
/// Most entries of one answer.
pub const LIST_MAX: u32 = 1000;
/// Most bytes of entries of one answer.
pub const LIST_BYTES: usize = 62 << 10;
/// What an entry costs beside its key and value.
const ENTRY_COST: usize = 16;

/// Bytes of a user: a key or a value.
pub type Bytes = Arc<[u8]>;
/// The cells of some spans.
pub type Cells = [Vec<(Cell, Value)>];

/// A kind of object in types. What holds for [`Kind`] holds here: operations may depend on the
/// clock and on chance, and must do nothing outside the draft.
pub trait Model: fmt::Debug + Send + Sync + 'static {
    /// What can be asked for.
    type Op: Code;
    /// What comes of it.
    type Answer: Code;

    /// The kind's name; an object keeps the kind that it was made with.
    fn name(&self) -> &str;

    /// The version of the kind's code; clients with an older one leave an object alone.
    fn code(&self) -> u32 {
        1
    }

    /// Does an operation. After an error the draft is as it was before.
    fn apply(
        &self,
        op: Self::Op,
        draft: &mut Draft<'_>,
        context: &mut Context,
    ) -> Result<Self::Answer, KindError>;

    /// The cells that an operation reads, if it changes nothing and reads no others.
    fn reads(&self, _op: &Self::Op) -> Option<Vec<Span>> {
        None
    }

    /// The answer to an operation from the cells that it reads; the same as from `apply`.
    fn answer(&self, _op: &Self::Op, _cells: &Cells) -> Result<Self::Answer, KindError> {
        Err(KindError::Unreadable)
    }
}

/// A kind made of a model.
#[derive(Clone, Copy, Debug, Default)]
pub struct Typed<M>(pub M);

impl<M: Model> Kind for Typed<M> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn code(&self) -> u32 {
        self.0.code()
    }

    fn apply(&self, body: &[u8], draft: &mut Draft<'_>, context: &mut Context) -> Vec<u8> {
        let done = match M::Op::decode(body) {
            Some(op) => self.0.apply(op, draft, context),
            None => Err(KindError::Unreadable),
        };
        if done.is_err() && !draft.refused() {
            draft.undo();
        }
        done.encode()
    }

    fn reads(&self, body: &[u8]) -> Option<Vec<Span>> {
        self.0.reads(&M::Op::decode(body)?)
    }
}

/// What the result of an operation says.
pub fn result<A: Code>(bytes: &[u8]) -> Result<A, KindError> {
    Result::decode(bytes).unwrap_or(Err(KindError::Unreadable))
}

impl<A: Code> Code for Result<A, KindError> {
    fn write(&self, out: &mut Writer) {
        match self {
            Ok(answer) => out.tag(0).put(answer),
            Err(KindError::Unreadable) => out.tag(1),
            Err(KindError::TooLarge) => out.tag(2),
            Err(KindError::VersionMismatch { found }) => out.tag(3).put(found),
            Err(KindError::Empty) => out.tag(4),
            Err(KindError::Overflow) => out.tag(5),
        };
    }

    fn read(input: &mut Reader<'_>) -> Option<Self> {
        Some(match input.tag()? {
            0 => Ok(input.get()?),
            1 => Err(KindError::Unreadable),
            2 => Err(KindError::TooLarge),
            3 => Err(KindError::VersionMismatch {
                found: input.get()?,
            }),
            4 => Err(KindError::Empty),
            5 => Err(KindError::Overflow),
            _ => return None,
        })
    }
}

/// When a write may happen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum When {
    /// In any case.
    #[default]
    Always,
    /// If nothing is there.
    Absent,
    /// If what is there was written at this version.
    Version(u64),
    /// If this is there.
    Value(Bytes),
}

impl When {
    /// Whether it may happen when this is there.
    fn check(&self, found: Option<&Entry>) -> Result<(), KindError> {
        let met = match self {
            Self::Always => true,
            Self::Absent => found.is_none(),
            Self::Version(version) => found.is_some_and(|entry| entry.version == *version),
            Self::Value(value) => found.is_some_and(|entry| entry.value == *value),
        };
        let found = found.map_or(0, |entry| entry.version);
        met.then_some(())
            .ok_or(KindError::VersionMismatch { found })
    }
}

impl Code for When {
    fn write(&self, out: &mut Writer) {
        match self {
            Self::Always => out.tag(0),
            Self::Absent => out.tag(1),
            Self::Version(version) => out.tag(2).put(version),
            Self::Value(value) => out.tag(3).put(value),
        };
    }

    fn read(input: &mut Reader<'_>) -> Option<Self> {
        Some(match input.tag()? {
            0 => Self::Always,
            1 => Self::Absent,
            2 => Self::Version(input.get()?),
            3 => Self::Value(input.get()?),
            _ => return None,
        })
    }
}

/// A value and the version at which it was written. Of two writes to one register or map, the
/// later one has the larger version; several versions may lie within one of the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The version.
    pub version: u64,
    /// The value.
    pub value: Bytes,
}

impl Entry {
    /// What a cell holds.
    fn cell(&self) -> Vec<u8> {
        let mut cell = self.version.to_be_bytes().to_vec();
        cell.extend_from_slice(&self.value);
        cell
    }

    /// What a cell says.
    fn parse(cell: &[u8]) -> Result<Self, KindError> {
        let (version, value) = cell.split_first_chunk().ok_or(KindError::Unreadable)?;
        Ok(Self {
            version: u64::from_be_bytes(*version),
            value: value.into(),
        })
    }
}

impl Code for Entry {
    fn write(&self, out: &mut Writer) {
        out.put(&self.version).put(&self.value);
    }

    fn read(input: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            version: input.get()?,
            value: input.get()?,
        })
    }
}

/// Refuses values that are too large.
fn fits(value: &[u8], max: usize) -> Result<(), KindError> {
    if value.len() <= max {
        Ok(())
    } else {
        Err(KindError::TooLarge)
    }
}

/// Turns a refusal of the draft into an error.
fn wrote(written: bool) -> Result<(), KindError> {
    written.then_some(()).ok_or(KindError::TooLarge)
}

/// The span of one cell.
fn one(cell: &[u8]) -> Span {
    let mut to = cell.to_vec();
    to.push(0);
    Span {
        from: cell.into(),
        to: Some(to.into()),
        limit: 1,
        backwards: false,
    }
}

/// The cell of a span that has one at most.
fn only(cells: &Cells, span: usize) -> Option<&Value> {
    Some(&cells.get(span)?.first()?.1)
}

/// A number that is alone in its cell.
fn number(value: Option<&Value>) -> Result<u64, KindError> {
    let Some(value) = value else { return Ok(0) };
    let bytes = value[..].try_into().map_err(|_| KindError::Unreadable)?;
    Ok(u64::from_be_bytes(bytes))
}

/// A pair of numbers in one cell, the first not larger than the second.
fn pair(value: Option<&Value>) -> Result<(u64, u64), KindError> {
    let Some(value) = value else {
        return Ok((0, 0));
    };
    let (first, rest) = value.split_first_chunk().ok_or(KindError::Unreadable)?;
    let second = rest.try_into().map_err(|_| KindError::Unreadable)?;
    let (first, second) = (u64::from_be_bytes(*first), u64::from_be_bytes(second));
    if first <= second {
        Ok((first, second))
    } else {
        Err(KindError::Unreadable)
    }
}

/// A pair of numbers for one cell.
fn paired(first: u64, second: u64) -> [u8; 16] {
    let mut cell = [0; 16];
    cell[..8].copy_from_slice(&first.to_be_bytes());
    cell[8..].copy_from_slice(&second.to_be_bytes());
    cell
}

/// The name of a numbered cell.
fn numbered(space: u8, number: u64) -> [u8; 9] {
    let mut cell = [space; 9];
    cell[1..].copy_from_slice(&number.to_be_bytes());
    cell
}

/// The number in the name of a numbered cell.
fn number_of(cell: &[u8]) -> Result<u64, KindError> {
    let bytes = cell.get(1..).ok_or(KindError::Unreadable)?;
    let bytes = bytes.try_into().map_err(|_| KindError::Unreadable)?;
    Ok(u64::from_be_bytes(bytes))
}

/// Takes entries into an answer until it is full; says whether any were left.
fn fill<T>(
    limit: u32,
    entries: impl Iterator<Item = Result<(T, usize), KindError>>,
) -> Result<(Vec<T>, bool), KindError> {
    let (mut taken, mut bytes) = (Vec::new(), 0);
    for entry in entries {
        let (entry, size) = entry?;
        bytes += size + ENTRY_COST;
        if taken.len() >= limit as usize || bytes > LIST_BYTES {
            return Ok((taken, true));
        }
        taken.push(entry);
    }
    Ok((taken, false))
}

/// The cells of a draft that one span names, from `from` up to `to`.
fn walk<'d, 'b>(
    draft: &'d mut Draft<'b>,
    from: &[u8],
    to: Option<Vec<u8>>,
) -> impl Iterator<Item = (Cell, Value)> + use<'d, 'b> {
    let mut next = draft.first(b"", from, false);
    std::iter::from_fn(move || {
        let found = next.take()?;
        if to.as_deref().is_some_and(|to| *found.0 >= *to) {
            return None;
        }
        next = draft.first(b"", &found.0, true);
        Some(found)
    })
}

/// The first name after all that start with these bytes; none if there is none.
fn after_all(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut name = prefix.to_vec();
    while let Some(last) = name.pop() {
        if last < u8::MAX {
            name.push(last + 1);
            return Some(name);
        }
    }
    None
}

#[cfg(test)]
mod tests;
