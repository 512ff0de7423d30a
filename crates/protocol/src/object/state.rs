//! The state of an object: numbered cells and their digest.
//!
//! Two states are the same if their digests are. A digest covers the version, every cell and all
//! that went before, yet follows from the last one and the cells that change: the cells are summed
//! up by a hash that does not depend on their order (1024 sums of 16 bits over BLAKE3's output, a
//! homomorphic hash that nobody knows how to collide), and the digests of all versions are a chain.

use std::fmt;
use std::sync::Arc;

use rpds::RedBlackTreeMapSync;
use thiserror::Error;

use super::message::Page;

/// The name of a cell.
pub type Cell = Arc<[u8]>;
/// What is in a cell.
pub type Value = Arc<[u8]>;

/// Says which state it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl fmt::Debug for Digest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in &self.0[..4] {
            write!(out, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// A version and the digest of its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// The version; 0 is the empty state.
    pub version: u64,
    /// The digest.
    pub digest: Digest,
}

/// The cells that change from one version to the next: what they hold then, or that they go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    writes: Vec<(Cell, Option<Value>)>,
}

impl Delta {
    /// A delta of these writes; of several to one cell the last counts.
    pub fn new(mut writes: Vec<(Cell, Option<Value>)>) -> Self {
        writes.reverse();
        writes.sort_by(|a, b| a.0.cmp(&b.0));
        writes.dedup_by(|later, kept| later.0 == kept.0);
        Self { writes }
    }

    /// The writes, ordered by cell, one for each.
    pub fn writes(&self) -> &[(Cell, Option<Value>)] {
        &self.writes
    }

    /// How many bytes it is about.
    pub fn bytes(&self) -> usize {
        let size = |(cell, value): &(Cell, Option<Value>)| {
            CELL_COST + cell.len() + value.as_ref().map_or(0, |value| value.len())
        };
        self.writes.iter().map(size).sum()
    }
}

/// What a cell costs beside its name and contents.
pub(crate) const CELL_COST: usize = 8;
/// The most cells in one page.
pub const PAGE_CELLS: usize = 16_384;

/// A state. Cloning is cheap: versions share what they have in common.
#[derive(Clone)]
pub struct State {
    version: u64,
    previous: Digest,
    digest: Digest,
    cells: RedBlackTreeMapSync<Cell, Value>,
    bytes: usize,
    sum: Arc<Sum>,
}

/// Why cells are not the state that they are said to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StateError {
    /// Its digest is another one.
    #[error("the cells do not match their digest")]
    Digest,
    /// It is larger than allowed.
    #[error("the object would be larger than allowed")]
    TooLarge,
    /// There is no next version.
    #[error("the object has no more versions")]
    Spent,
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    /// Version 0: no cells. Every node holds it as committed and proposed from the start.
    pub fn new() -> Self {
        let sum = Sum::new();
        let previous = Digest([0; 32]);
        Self {
            version: 0,
            previous,
            digest: chain(previous, 0, &sum),
            cells: RedBlackTreeMapSync::new_sync(),
            bytes: 0,
            sum: Arc::new(sum),
        }
    }

    /// The state of these cells at a version, after the one with the digest `previous`.
    pub fn rebuild(
        version: u64,
        previous: Digest,
        cells: impl IntoIterator<Item = (Cell, Value)>,
    ) -> Self {
        let mut builder = Builder::new();
        for (cell, value) in cells {
            builder.put(&cell, &value);
        }
        builder.finish(version, previous)
    }

    /// The next version.
    pub fn next(&self, delta: &Delta) -> Result<Self, StateError> {
        let version = self.version.checked_add(1).ok_or(StateError::Spent)?;
        let mut next = self.clone();
        let mut sum = (*self.sum).clone();
        for (cell, value) in delta.writes() {
            set(
                &mut next.cells,
                &mut next.bytes,
                &mut sum,
                cell,
                value.as_ref(),
            );
        }
        next.version = version;
        next.previous = self.digest;
        next.digest = chain(self.digest, version, &sum);
        next.sum = Arc::new(sum);
        Ok(next)
    }

    /// Its version and digest.
    pub fn stamp(&self) -> Stamp {
        Stamp {
            version: self.version,
            digest: self.digest,
        }
    }

    /// Its version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Its digest.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The digest of the version before it.
    pub fn previous(&self) -> Digest {
        self.previous
    }

    /// What a cell holds.
    pub fn get(&self, cell: &[u8]) -> Option<&Value> {
        self.cells.get(cell)
    }

    /// How many cells there are.
    pub fn len(&self) -> usize {
        self.cells.size()
    }

    /// Whether there is no cell.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// How many bytes its cells have, names included.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Cells from `from` on, in the order of their names; excluding `from` itself if `after`.
    pub fn cells<'a>(
        &'a self,
        from: &'a [u8],
        after: bool,
    ) -> impl Iterator<Item = (&'a Cell, &'a Value)> + use<'a> {
        use std::ops::Bound;
        let start = if after {
            Bound::Excluded(from)
        } else {
            Bound::Included(from)
        };
        self.cells.range::<[u8], _>((start, Bound::Unbounded))
    }

    /// Cells before `to` (none is the end) and from `from` on, the last one first.
    pub fn cells_back<'a>(
        &'a self,
        from: &'a [u8],
        to: Option<&'a [u8]>,
    ) -> impl Iterator<Item = (&'a Cell, &'a Value)> + use<'a> {
        use std::ops::Bound;
        let end = to.map_or(Bound::Unbounded, Bound::Excluded);
        // A range that ends before it begins is empty, which the map does not say by itself.
        let some = to.is_none_or(|to| from < to);
        let start = if some {
            Bound::Included(from)
        } else {
            Bound::Unbounded
        };
        let end = if some { end } else { Bound::Excluded(&[][..]) };
        self.cells.range::<[u8], _>((start, end)).rev()
    }

    /// A part of the state after a cell, of about so many bytes: at least one cell if there is.
    pub fn page(&self, after: Option<&[u8]>, bytes: usize) -> Page {
        let mut left = bytes;
        let mut cells = Vec::new();
        let mut last = true;
        for (cell, value) in self.cells(after.unwrap_or_default(), after.is_some()) {
            let cost = CELL_COST + cell.len() + value.len();
            if cost > left && !cells.is_empty() || cells.len() >= PAGE_CELLS {
                last = false;
                break;
            }
            left = left.saturating_sub(cost);
            cells.push((cell.clone(), value.clone()));
        }
        Page {
            previous: self.previous,
            cells,
            last,
        }
    }

    /// All of it, part by part, each of about so many bytes.
    pub fn pages(&self, bytes: usize) -> impl Iterator<Item = Page> + use<> {
        let state = self.clone();
        let mut after = Some(None);
        std::iter::from_fn(move || {
            let page = state.page(after.take()?.as_deref(), bytes);
            let end = page
                .cells
                .last()
                .map(|(cell, _): &(Cell, Value)| cell.clone());
            after = (!page.last).then_some(end);
            Some(page)
        })
    }
}

/// A state in the making, cell by cell.
#[derive(Clone)]
pub struct Builder {
    cells: RedBlackTreeMapSync<Cell, Value>,
    bytes: usize,
    sum: Sum,
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl Builder {
    /// No cells yet.
    pub fn new() -> Self {
        Self {
            cells: RedBlackTreeMapSync::new_sync(),
            bytes: 0,
            sum: Sum::new(),
        }
    }

    /// Sets a cell.
    pub fn put(&mut self, cell: &Cell, value: &Value) {
        set(
            &mut self.cells,
            &mut self.bytes,
            &mut self.sum,
            cell,
            Some(value),
        );
    }

    /// How many bytes its cells have, names included.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The last cell so far.
    pub fn last(&self) -> Option<&Cell> {
        self.cells.last().map(|(cell, _)| cell)
    }

    /// The state of these cells at a version, after the one with the digest `previous`.
    pub fn finish(self, version: u64, previous: Digest) -> State {
        State {
            version,
            previous,
            digest: chain(previous, version, &self.sum),
            cells: self.cells,
            bytes: self.bytes,
            sum: Arc::new(self.sum),
        }
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Builder({} cells)", self.cells.size())
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.stamp() == other.stamp()
    }
}

impl Eq for State {}

impl fmt::Debug for State {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (version, digest, cells) = (self.version, self.digest, self.len());
        write!(out, "State({version} {digest:?}, {cells} cells)")
    }
}

/// Sets or takes away a cell.
fn set(
    cells: &mut RedBlackTreeMapSync<Cell, Value>,
    bytes: &mut usize,
    sum: &mut Sum,
    cell: &Cell,
    value: Option<&Value>,
) {
    if let Some(old) = cells.get(cell) {
        sum.take(cell, old);
        *bytes -= CELL_COST + cell.len() + old.len();
    }
    if let Some(value) = value {
        sum.put(cell, value);
        *bytes += CELL_COST + cell.len() + value.len();
        cells.insert_mut(cell.clone(), value.clone());
    } else {
        cells.remove_mut(cell);
    }
}

const LANES: usize = 1024;

/// A hash of a set of cells that grows and shrinks with it.
#[derive(Clone, PartialEq, Eq)]
struct Sum(Box<[u16; LANES]>);

impl Sum {
    fn new() -> Self {
        Self(Box::new([0; LANES]))
    }

    fn put(&mut self, cell: &[u8], value: &[u8]) {
        self.each(cell, value, u16::wrapping_add);
    }

    fn take(&mut self, cell: &[u8], value: &[u8]) {
        self.each(cell, value, u16::wrapping_sub);
    }

    fn each(&mut self, cell: &[u8], value: &[u8], change: impl Fn(u16, u16) -> u16) {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(cell.len() as u64).to_le_bytes());
        hasher.update(cell);
        hasher.update(value);
        let mut stream = [0; 2 * LANES];
        hasher.finalize_xof().fill(&mut stream);
        for (lane, pair) in self.0.iter_mut().zip(stream.chunks_exact(2)) {
            *lane = change(*lane, u16::from_le_bytes([pair[0], pair[1]]));
        }
    }
}

fn chain(previous: Digest, version: u64, sum: &Sum) -> Digest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&previous.0);
    hasher.update(&version.to_le_bytes());
    let mut bytes = [0; 2 * LANES];
    for (pair, lane) in bytes.chunks_exact_mut(2).zip(sum.0.iter()) {
        pair.copy_from_slice(&lane.to_le_bytes());
    }
    hasher.update(&bytes);
    Digest(*hasher.finalize().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(cell: &str, value: Option<&str>) -> (Cell, Option<Value>) {
        (
            Cell::from(cell.as_bytes()),
            value.map(|value| Value::from(value.as_bytes())),
        )
    }

    #[test]
    fn a_state_is_the_same_however_it_was_reached() {
        let first = State::new()
            .next(&Delta::new(vec![
                write("a", Some("1")),
                write("b", Some("2")),
            ]))
            .expect("a version");
        let second = first
            .next(&Delta::new(vec![write("a", None), write("c", Some("3"))]))
            .expect("a version");
        let cells = second
            .cells(b"", false)
            .map(|(cell, value)| (cell.clone(), value.clone()));
        let again = State::rebuild(2, first.digest(), cells.collect::<Vec<_>>());
        assert_eq!(again.stamp(), second.stamp());
        assert_eq!(again.bytes(), second.bytes());
        let emptied = second
            .next(&Delta::new(vec![write("b", None), write("c", None)]))
            .expect("a version");
        assert!(emptied.is_empty() && emptied.bytes() == 0);
        assert!(*emptied.sum == Sum::new());
    }

    #[test]
    fn what_differs_has_another_digest() {
        let base = State::new();
        let next = |writes| base.next(&Delta::new(writes)).expect("a version").digest();
        let digests = [
            base.digest(),
            next(vec![]),
            next(vec![write("a", Some("b"))]),
            next(vec![write("ab", Some(""))]),
            next(vec![write("", Some("ab"))]),
            State::rebuild(2, base.digest(), []).digest(),
            State::rebuild(1, Digest([1; 32]), []).digest(),
        ];
        for (at, digest) in digests.iter().enumerate() {
            assert!(!digests[at + 1..].contains(digest), "{at}");
        }
    }

    #[test]
    fn the_last_write_to_a_cell_counts() {
        let delta = Delta::new(vec![
            write("a", Some("1")),
            write("a", None),
            write("a", Some("2")),
        ]);
        assert_eq!(delta.writes(), [write("a", Some("2"))]);
    }
}
