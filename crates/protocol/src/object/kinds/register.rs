//! A register: one value, which is set, read, and compared and set.

use super::{
    Bytes, Cells, Code, Entry, Model, Reader, VALUE_MAX, When, Writer, fits, one, only, wrote,
};
use crate::object::kind::{Context, Draft, KindError};
use crate::object::message::Span;

/// The cell of the value.
const VALUE: &[u8] = b"v";

/// A register.
#[derive(Clone, Copy, Debug, Default)]
pub struct Register;

/// What a register can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Takes a value, if the condition is met.
    Set {
        /// The value.
        value: Bytes,
        /// The condition.
        when: When,
    },
    /// Tells its value.
    Get,
}

/// What a register answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The value was set at this version.
    Set(u64),
    /// The value; none if it never had one.
    Got(Option<Entry>),
}

impl Model for Register {
    type Op = Op;
    type Answer = Answer;

    fn name(&self) -> &'static str {
        "register"
    }

    fn apply(
        &self,
        op: Op,
        draft: &mut Draft<'_>,
        context: &mut Context,
    ) -> Result<Answer, KindError> {
        let found = draft
            .get(VALUE)
            .map(|cell| Entry::parse(&cell))
            .transpose()?;
        let Op::Set { value, when } = op else {
            return Ok(Answer::Got(found));
        };
        fits(&value, VALUE_MAX)?;
        when.check(found.as_ref())?;
        let last = found.map_or(0, |entry| entry.version);
        let next = last.checked_add(1).ok_or(KindError::Overflow)?;
        let version = next.max(context.version);
        wrote(draft.set(VALUE, &Entry { version, value }.cell()))?;
        Ok(Answer::Set(version))
    }

    fn reads(&self, op: &Op) -> Option<Vec<Span>> {
        matches!(op, Op::Get).then(|| vec![one(VALUE)])
    }

    fn answer(&self, _op: &Op, cells: &Cells) -> Result<Answer, KindError> {
        let found = only(cells, 0).map(|cell| Entry::parse(cell));
        Ok(Answer::Got(found.transpose()?))
    }
}

impl Code for Op {
    fn write(&self, out: &mut Writer) {
        match self {
            Self::Set { value, when } => out.tag(0).put(value).put(when),
            Self::Get => out.tag(1),
        };
    }

    fn read(input: &mut Reader<'_>) -> Option<Self> {
        Some(match input.tag()? {
            0 => Self::Set {
                value: input.get()?,
                when: input.get()?,
            },
            1 => Self::Get,
            _ => return None,
        })
    }
}

impl Code for Answer {
    fn write(&self, out: &mut Writer) {
        match self {
            Self::Set(version) => out.tag(0).put(version),
            Self::Got(entry) => out.tag(1).put(entry),
        };
    }

    fn read(input: &mut Reader<'_>) -> Option<Self> {
        Some(match input.tag()? {
            0 => Self::Set(input.get()?),
            1 => Self::Got(input.get()?),
            _ => return None,
        })
    }
}
