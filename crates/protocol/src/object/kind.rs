//! What an object is: how operations change its cells.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use thiserror::Error;

use super::message::Span;
use super::state::{Cell, State, Value};
use crate::time::Wall;

/// A kind of object. Operations run at whichever client orders them, perhaps at several of whose
/// results all but one vanish: they may be as undetermined as they like, but must do nothing
/// outside the draft.
pub trait Kind: fmt::Debug + Send + Sync {
    /// Its name; an object keeps the kind that it was made with. At most 64 bytes count.
    fn name(&self) -> &str;

    /// The version of its code; clients with an older one than an object's leave it alone.
    fn code(&self) -> u32 {
        1
    }

    /// Does an operation: changes the draft and says what came of it. What it cannot read or do
    /// it answers with a result that says so, without changes. If the draft refused a write,
    /// nothing of the operation counts, and its caller is told that it was too large.
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

/// Why an operation was not done, for kinds that say it in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum KindError {
    /// The operation makes no sense to the kind.
    #[error("the operation cannot be read; are all clients of the same version?")]
    Unreadable,
    /// The operation would make the object larger than allowed.
    #[error("the operation is too large, or the object would be larger than allowed")]
    TooLarge,
    /// It was to happen only at another version.
    #[error("it has version {found}, not the one that was asked for; read it again")]
    VersionMismatch {
        /// The version that was found; 0 if there is nothing.
        found: u64,
    },
    /// There is nothing to take.
    #[error("there is nothing in it")]
    Empty,
    /// The number would leave its range.
    #[error("the number would be out of range")]
    Overflow,
}

/// The first byte of the cells that say what the object is.
pub const META: u8 = 0;
/// The first byte of the cells that say what each author did last.
pub const AUTHORS: u8 = 1;
/// The first byte of the kind's own cells; kinds do not see it.
pub const DATA: u8 = 2;

/// The cell of the kind's own with this name.
pub fn data(name: &[u8]) -> Cell {
    let mut cell = Vec::with_capacity(1 + name.len());
    cell.push(DATA);
    cell.extend_from_slice(name);
    cell.into()
}

/// The name that the kind knows a cell by, if it is the kind's own.
pub fn data_name(cell: &[u8]) -> Option<&[u8]> {
    cell.strip_prefix(&[DATA])
}

/// An object on its way to its next version: reads see what was written. A kind sees its own cells
/// only.
pub struct Draft<'a> {
    base: &'a State,
    writes: BTreeMap<Cell, Option<Value>>,
    /// How many more bytes may be written.
    budget: usize,
    /// How many more reads and writes may be made.
    steps: u64,
    refused: bool,
    /// What was written there before, for going back.
    undo: Vec<(Cell, Before)>,
    marked: (usize, u64),
    noted: usize,
}

/// What a draft had for a cell.
enum Before {
    /// Nothing: the base counts.
    Nothing,
    /// This, or that it goes.
    Written(Option<Value>),
}

impl fmt::Debug for Draft<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Draft({:?} + {})", self.base, self.writes.len())
    }
}

/// How many reads and writes one operation may make.
pub const STEPS_MAX: u64 = 1 << 20;

/// What a write costs beside its bytes.
const WRITE_COST: usize = 8;

impl<'a> Draft<'a> {
    /// A draft upon a state, which may write so many bytes.
    pub fn new(base: &'a State, budget: usize) -> Self {
        Self {
            base,
            writes: BTreeMap::new(),
            budget,
            steps: STEPS_MAX,
            refused: false,
            undo: Vec::new(),
            marked: (budget, STEPS_MAX),
            noted: 0,
        }
    }

    /// What a cell holds.
    pub fn get(&mut self, cell: &[u8]) -> Option<Value> {
        self.step();
        self.raw_get(&data(cell))
    }

    /// Writes a cell. `false`, and nothing changes, if it would be too much.
    pub fn set(&mut self, cell: &[u8], value: &[u8]) -> bool {
        self.raw_set(&data(cell), Some(value))
    }

    /// Takes a cell away. `false`, and nothing changes, if it would be too much.
    pub fn remove(&mut self, cell: &[u8]) -> bool {
        self.raw_set(&data(cell), None)
    }

    /// The first cell from `from` on (after it if `after`) whose name starts with `prefix`.
    pub fn first(&mut self, prefix: &[u8], from: &[u8], after: bool) -> Option<(Cell, Value)> {
        self.step();
        let (cell, value) = self.raw_first(&data(prefix), &data(from), after)?;
        Some((cell[1..].into(), value))
    }

    fn step(&mut self) {
        match self.steps.checked_sub(1) {
            Some(left) => self.steps = left,
            None => self.refused = true,
        }
    }

    pub(crate) fn raw_get(&self, cell: &[u8]) -> Option<Value> {
        match self.writes.get(cell) {
            Some(written) => written.clone(),
            None => self.base.get(cell).cloned(),
        }
    }

    pub(crate) fn raw_set(&mut self, cell: &[u8], value: Option<&[u8]>) -> bool {
        self.step();
        let cost = cost(cell, value);
        let Some(left) = self.budget.checked_sub(cost).filter(|_| !self.refused) else {
            self.refused = true;
            return false;
        };
        self.budget = left;
        self.put(cell, value);
        true
    }

    /// Writes a cell that no budget counts: what was done is noted whatever it was.
    pub(crate) fn note(&mut self, cell: &[u8], value: &[u8]) {
        self.noted += cost(cell, Some(value));
        self.put(cell, Some(value));
    }

    /// How many bytes of notes there are.
    pub(crate) fn noted(&self) -> usize {
        self.noted
    }

    fn put(&mut self, cell: &[u8], value: Option<&[u8]>) {
        let cell = Cell::from(cell);
        let old = self.writes.insert(cell.clone(), value.map(Value::from));
        self.undo
            .push((cell, old.map_or(Before::Nothing, Before::Written)));
    }

    pub(crate) fn raw_first(
        &self,
        prefix: &[u8],
        from: &[u8],
        after: bool,
    ) -> Option<(Cell, Value)> {
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
            .take_while(|(cell, _)| cell.starts_with(prefix))
            .filter(|(cell, _)| !self.writes.contains_key(*cell));
        let first = match (written.next(), kept.next()) {
            (Some(a), Some(b)) => Some(if a.0 <= b.0 { a } else { b }),
            (a, b) => a.or(b),
        };
        first
            .filter(|(cell, _)| cell.starts_with(prefix))
            .map(|(cell, value)| (cell.clone(), value.clone()))
    }

    /// The next operation begins: it can be undone, and has its own count of steps.
    pub(crate) fn begin(&mut self) {
        self.undo.clear();
        self.steps = STEPS_MAX;
        self.refused = false;
        self.marked = (self.budget, self.steps);
    }

    /// Whether something was refused since the operation began.
    pub(crate) fn refused(&self) -> bool {
        self.refused
    }

    /// Everything is as it was when the operation began.
    pub(crate) fn undo(&mut self) {
        while let Some((cell, old)) = self.undo.pop() {
            match old {
                Before::Written(old) => self.writes.insert(cell, old),
                Before::Nothing => self.writes.remove(&cell),
            };
        }
        (self.budget, self.steps) = self.marked;
        self.refused = false;
    }

    /// The writes so far, ordered by cell.
    pub(crate) fn finish(self) -> Vec<(Cell, Option<Value>)> {
        self.writes.into_iter().collect()
    }
}

fn cost(cell: &[u8], value: Option<&[u8]>) -> usize {
    cell.len() + value.map_or(0, <[u8]>::len) + WRITE_COST
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::state::Delta;

    #[test]
    fn a_draft_reads_what_it_wrote_and_can_go_back() {
        let base = State::new();
        let mut draft = Draft::new(&base, 100);
        draft.begin();
        assert!(draft.set(b"b", b"1") && draft.set(b"c", b"2"));
        let writes = draft.finish();
        let base = base.next(&Delta::new(writes)).expect("a version");

        let mut draft = Draft::new(&base, 100);
        draft.begin();
        assert!(draft.set(b"a", b"0") && draft.remove(b"b"));
        assert_eq!(draft.get(b"b"), None);
        let (first, _) = draft.first(b"", b"", false).expect("a cell");
        assert_eq!(*first, *b"a");
        let (next, _) = draft.first(b"", &first, true).expect("a cell");
        assert_eq!(*next, *b"c");
        draft.begin();
        assert!(!draft.set(b"d", &[0; 200]) && draft.refused());
        assert!(!draft.set(b"e", b""), "after a refusal nothing is taken");
        draft.undo();
        assert!(draft.set(b"e", b"5"));
        draft.undo();
        assert_eq!(draft.finish().len(), 2);
    }

    #[test]
    fn an_operation_has_so_many_steps() {
        let base = State::new();
        let mut draft = Draft::new(&base, 100);
        draft.begin();
        for _ in 0..=STEPS_MAX {
            let _ = draft.get(b"a");
        }
        assert!(draft.refused());
    }
}
