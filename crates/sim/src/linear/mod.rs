//! Is there one order of all operations that explains every result?
//!
//! A history is what clients saw: when each operation began, when it ended and what came of it. It
//! is linearizable if every operation can be given one moment between its beginning and its end so
//! that, done at these moments one after the other, they give these results. An operation without
//! an end may have been done at any time after its beginning, or never.
//!
//! The search is that of Wing and Gong with Lowe's memory of what was tried: a set of operations
//! done and the state that they led to are visited once. Maps are taken apart by key first.
//! Histories come from simulated and from real runs alike.

mod models;
mod search;
#[cfg(test)]
mod tests;

pub use models::{Action, Bytes, Counter, Log, Map, Queue, Register, Reply, check, history_of};
pub use models::{Entries, Held, Line, Lines, Sum};
pub use search::{Broken, Verdict, linearizable};

/// How a kind of object behaves when operations come one at a time.
pub trait Model {
    /// An operation.
    type Op;
    /// What came of one.
    type Result;
    /// Where the object stands. Copies should be cheap.
    type State: Clone;

    /// Where it starts.
    fn start(&self) -> Self::State;

    /// The state after an operation; none if this result could not have come of it. An unknown
    /// result fits always.
    fn step(
        &self,
        state: &Self::State,
        op: &Self::Op,
        result: Option<&Self::Result>,
    ) -> Option<Self::State>;

    /// For each call, when it probably took place: of several that may come next the smallest is
    /// tried first. A good guess makes the search quick.
    fn turns(&self, calls: &[Call<Self::Op, Self::Result>]) -> Vec<u64> {
        let end = |call: &Call<_, _>| call.ended.as_ref().map_or(u64::MAX, |(end, _)| *end);
        calls.iter().map(end).collect()
    }

    /// A number that equal states share and others do not.
    fn print(&self, state: &Self::State) -> u128;
}

/// An operation of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call<O, R> {
    /// Whose, for messages.
    pub client: u64,
    /// When it began, on a clock that all share.
    pub began: u64,
    /// What it was.
    pub op: O,
    /// When it ended and what came of it; none if nobody knows.
    pub ended: Option<(u64, R)>,
}
