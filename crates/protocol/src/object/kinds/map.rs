//! A map from keys to values. Every entry has the version at which it was written.

use super::{
    Bytes, Cells, Code, Entry, KEY_MAX, LIST_MAX, Model, Reader, VALUE_MAX, When, Writer,
    after_all, fill, fits, number, one, only, walk, wrote,
};
use crate::object::kind::{Context, Draft, KindError};
use crate::object::message::Span;
use crate::object::state::{Cell, Value};

/// The cell of the last version that was given to an entry.
const LAST: &[u8] = b"n";
/// The first byte of the cells of entries.
const ENTRY: u8 = b"k"[0];

/// A map.
#[derive(Clone, Copy, Debug, Default)]
pub struct Map;

/// What a map can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sets a key, if the condition is met.
    Set {
        /// The key.
        key: Bytes,
        /// The value.
        value: Bytes,
        /// The condition.
        when: When,
    },
    /// Takes a key away, if the condition is met.
    Remove {
        /// The key.
        key: Bytes,
        /// The condition.
        when: When,
    },
    /// Tells what a key has.
    Get(Bytes),
    /// Tells keys and what they have, in the order of the keys' bytes.
    List {
        /// Only keys that start with this.
        prefix: Bytes,
        /// Only keys after this one.
        after: Option<Bytes>,
        /// At most so many.
        limit: u32,
    },
}

/// What a map answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The key was set at this version.
    Set(u64),
    /// What the key had.
    Removed(Option<Entry>),
    /// What the key has.
    Got(Option<Entry>),
    /// Keys and what they have.
    Listed(List),
}

/// A part of a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct List {
    /// Keys and what they have, in the order of the keys' bytes.
    pub entries: Vec<(Bytes, Entry)>,
    /// Whether there are more after them.
    pub more: bool,
}

impl Model for Map {
    type Op = Op;
    type Answer = Answer;

    fn name(&self) -> &'static str {
        "map"
    }

    fn apply(
        &self,
        op: Op,
        draft: &mut Draft<'_>,
        context: &mut Context,
    ) -> Result<Answer, KindError> {
        match op {
            Op::Set { key, value, when } => set(&key, value, &when, draft, context),
            Op::Remove { key, when } => remove(&key, &when, draft),
            Op::Get(key) => {
                fits(&key, KEY_MAX)?;
                Ok(Answer::Got(entry(draft, &key)?))
            }
            Op::List {
                prefix,
                after,
                limit,
            } => {
                let span = span(&prefix, after.as_deref(), limit);
                let to = span.to.map(|to| to.to_vec());
                listed(limit, walk(draft, &span.from, to))
            }
        }
    }

    fn reads(&self, op: &Op) -> Option<Vec<Span>> {
        match op {
            Op::Set { .. } | Op::Remove { .. } => None,
            Op::Get(key) => Some(vec![one(&cell_of(key))]),
            Op::List {
                prefix,
                after,
                limit,
            } => Some(vec![span(prefix, after.as_deref(), *limit)]),
        }
    }

    fn answer(&self, op: &Op, cells: &Cells) -> Result<Answer, KindError> {
        match op {
            Op::Set { .. } | Op::Remove { .. } => Err(KindError::Unreadable),
            Op::Get(key) => {
                fits(key, KEY_MAX)?;
                let found = only(cells, 0).map(|cell| Entry::parse(cell));
                Ok(Answer::Got(found.transpose()?))
            }
            Op::List { limit, .. } => {
                let found = cells.first().ok_or(KindError::Unreadable)?;
                listed(*limit, found.iter().cloned())
            }
        }
    }
}

fn set(
    key: &[u8],
    value: Bytes,
    when: &When,
    draft: &mut Draft<'_>,
    context: &Context,
) -> Result<Answer, KindError> {
    fits(key, KEY_MAX)?;
    fits(&value, VALUE_MAX)?;
    when.check(entry(draft, key)?.as_ref())?;
    // Two entries of one batch need two versions: else whoever wrote the first could change the
    // second by its version, without having seen it.
    let last = number(draft.get(LAST).as_ref())?;
    let next = last.checked_add(1).ok_or(KindError::Overflow)?;
    let version = next.max(context.version);
    wrote(draft.set(LAST, &version.to_be_bytes()))?;
    wrote(draft.set(&cell_of(key), &Entry { version, value }.cell()))?;
    Ok(Answer::Set(version))
}

fn remove(key: &[u8], when: &When, draft: &mut Draft<'_>) -> Result<Answer, KindError> {
    fits(key, KEY_MAX)?;
    let found = entry(draft, key)?;
    when.check(found.as_ref())?;
    if found.is_some() {
        wrote(draft.remove(&cell_of(key)))?;
    }
    Ok(Answer::Removed(found))
}

fn entry(draft: &mut Draft<'_>, key: &[u8]) -> Result<Option<Entry>, KindError> {
    let cell = draft.get(&cell_of(key));
    cell.map(|cell| Entry::parse(&cell)).transpose()
}

/// The cell of a key.
fn cell_of(key: &[u8]) -> Vec<u8> {
    let mut cell = vec![ENTRY];
    cell.extend_from_slice(key);
    cell
}

/// The cells of a list, and one more, which tells whether it goes on.
fn span(prefix: &[u8], after: Option<&[u8]>, limit: u32) -> Span {
    let prefix = cell_of(prefix);
    let to = after_all(&prefix);
    let mut from = prefix;
    if let Some(after) = after {
        let mut next = cell_of(after);
        next.push(0);
        from = from.max(next);
    }
    Span {
        from: from.into(),
        to: to.map(Into::into),
        limit: limit.min(LIST_MAX) + 1,
        backwards: false,
    }
}

fn listed(limit: u32, cells: impl Iterator<Item = (Cell, Value)>) -> Result<Answer, KindError> {
    let entries = cells.map(|(cell, value)| {
        let key = cell.get(1..).ok_or(KindError::Unreadable)?;
        let size = cell.len() + value.len();
        Ok(((key.into(), Entry::parse(&value)?), size))
    });
    let (entries, more) = fill(limit.min(LIST_MAX), entries)?;
    Ok(Answer::Listed(List { entries, more }))
}

impl Code for Op {
    fn write(&self, out: &mut Writer) {
        match self {
            Self::Set { key, value, when } => out.tag(0).put(key).put(value).put(when),
            Self::Remove { key, when } => out.tag(1).put(key).put(when),
            Self::Get(key) => out.tag(2).put(key),
            Self::List {
                prefix,
                after,
                limit,
            } => out.tag(3).put(prefix).put(after).put(limit),
        };
    }

    fn read(input: &mut Reader<'_>) -> Option<Self> {
        Some(match input.tag()? {
            0 => Self::Set {
                key: input.get()?,
                value: input.get()?,
                when: input.get()?,
            },
            1 => Self::Remove {
                key: input.get()?,
                when: input.get()?,
            },
            2 => Self::Get(input.get()?),
            3 => Self::List {
                prefix: input.get()?,
                after: input.get()?,
                limit: input.get()?,
            },
            _ => return None,
        })
    }
}

impl Code for Answer {
    fn write(&self, out: &mut Writer) {
        match self {
            Self::Set(version) => out.tag(0).put(version),
            Self::Removed(entry) => out.tag(1).put(entry),
            Self::Got(entry) => out.tag(2).put(entry),
            Self::Listed(list) => out.tag(3).put(&list.entries).put(&list.more),
        };
    }

    fn read(input: &mut Reader<'_>) -> Option<Self> {
        Some(match input.tag()? {
            0 => Self::Set(input.get()?),
            1 => Self::Removed(input.get()?),
            2 => Self::Got(input.get()?),
            3 => Self::Listed(List {
                entries: input.get()?,
                more: input.get()?,
            }),
            _ => return None,
        })
    }
}
