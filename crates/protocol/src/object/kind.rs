//! What an object is: how operations change its cells.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use super::message::Span;
use super::state::{Cell, State, Value};
use crate::time::Wall;

/// A kind of object. Operations run at whichever client orders them, perhaps at several of whose
/// results all but one vanish: they may be as undetermined as they like, but must do nothing
/// outside the draft.
pub trait Kind: fmt::Debug + Send + Sync {
    /// Its name; an object keeps the kind that it was made with.
    fn name(&self) -> &str;

    /// The version of its code; clients with an older one than an object's leave it alone.
    fn code(&self) -> u32 {
        1
    }

    /// Does an operation: changes the draft and says what came of it. What it cannot read or do
    /// it answers with a result that says so; the draft is then as it was.
    fn apply(&self, body: &[u8], draft: &mut Draft<'_>, context: &mut Context) -> Vec<u8>;

    /// The cells that an operation reads, if it changes nothing and reads no others.
    fn reads(&self, body: &[u8]) -> Option<Vec<Span>>;
}

/// What an operation may know beside the object.
#[derive(Clone, Debug)]
pub struct Context {
    /// In whose name.
    pub principal: Arc<str>,
    /// What the clock of the client that runs it says.
    pub wall: Wall,
    /// Chance: another number for every operation.
    pub chance: u64,
    /// The version that the object will have.
    pub version: u64,
}

/// Why an operation could not be done, for kinds that say it in one way.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KindError {
    /// The operation makes no sense to the kind.
    #[error("the operation cannot be read; are all clients of the same version?")]
    Unreadable,
    /// The operation would make the object larger than allowed.
    #[error("the object would be larger than allowed")]
    TooLarge,
}

/// An object on its way to its next version: reads see what was written.
pub struct Draft<'a> {
    base: &'a State,
    writes: std::collections::BTreeMap<Cell, Option<Value>>,
    budget: usize,
}

impl fmt::Debug for Draft<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Draft({:?} + {})", self.base, self.writes.len())
    }
}

impl<'a> Draft<'a> {
    /// A draft upon a state, which may write so many bytes.
    pub fn new(base: &'a State, budget: usize) -> Self {
        Self {
            base,
            writes: std::collections::BTreeMap::new(),
            budget,
        }
    }

    /// What a cell holds.
    pub fn get(&self, cell: &[u8]) -> Option<Value> {
        match self.writes.get(cell) {
            Some(written) => written.clone(),
            None => self.base.get(cell).cloned(),
        }
    }

    /// Writes a cell. `false`, and nothing changes, if it would be too much.
    #[must_use]
    pub fn set(&mut self, cell: &[u8], value: &[u8]) -> bool {
        let cost = cell.len() + value.len() + 8;
        let Some(left) = self.budget.checked_sub(cost) else {
            return false;
        };
        self.budget = left;
        self.writes.insert(cell.into(), Some(value.into()));
        true
    }

    /// Takes a cell away. `false`, and nothing changes, if it would be too much.
    #[must_use]
    pub fn remove(&mut self, cell: &[u8]) -> bool {
        let Some(left) = self.budget.checked_sub(cell.len() + 8) else {
            return false;
        };
        self.budget = left;
        self.writes.insert(cell.into(), None);
        true
    }

    /// The first cell from `from` on (after it if `after`) whose name starts with `prefix`.
    pub fn first(&self, prefix: &[u8], from: &[u8], after: bool) -> Option<(Cell, Value)> {
        use std::ops::Bound;
        let start = if after {
            Bound::Excluded(from)
        } else {
            Bound::Included(from)
        };
        let mut written = self
            .writes
            .range::<[u8], _>((start, Bound::Unbounded))
            .filter_map(|(cell, value)| value.as_ref().map(|value| (cell, value)));
        let mut kept = self
            .base
            .cells(from, after)
            .filter(|(cell, _)| !self.writes.contains_key(*cell));
        let first = match (written.next(), kept.next()) {
            (Some(a), Some(b)) => Some(if a.0 <= b.0 { a } else { b }),
            (a, b) => a.or(b),
        };
        first
            .filter(|(cell, _)| cell.starts_with(prefix))
            .map(|(cell, value)| (cell.clone(), value.clone()))
    }

    /// The writes so far, and how many bytes may still be written.
    pub fn finish(self) -> (Vec<(Cell, Option<Value>)>, usize) {
        (self.writes.into_iter().collect(), self.budget)
    }
}
