//! States that a client has, and how it gets at others.

use std::collections::{BTreeMap, VecDeque};

use crate::object::message::{Carry, View};
use crate::object::state::{Delta, Stamp, State};

/// So many states beside the latest committed one are kept.
const STATES_MAX: usize = 4;

/// States that were checked against their digests.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// The latest that is known to be committed.
    base: State,
    others: VecDeque<State>,
    /// The last steps from state to state, the latest last.
    steps: VecDeque<(Stamp, Delta, Stamp)>,
    steps_bytes: usize,
}

impl Known {
    pub(super) fn base(&self) -> &State {
        &self.base
    }

    pub(super) fn get(&self, stamp: Stamp) -> Option<&State> {
        let states = std::iter::once(&self.base).chain(&self.others);
        states.into_iter().find(|state| state.stamp() == stamp)
    }

    pub(super) fn keep(&mut self, state: State) {
        if self.get(state.stamp()).is_some() {
            return;
        }
        if self.others.len() == STATES_MAX {
            self.others.pop_front();
        }
        self.others.push_back(state);
    }

    /// The step from a state to the next, kept for those who need to be brought up to date.
    pub(super) fn stepped(&mut self, from: Stamp, delta: Delta, to: Stamp, most: usize) {
        if self.steps.iter().any(|(_, _, known)| *known == to) {
            return;
        }
        self.steps_bytes += delta.bytes();
        self.steps.push_back((from, delta, to));
        while self.steps_bytes > most
            && let Some((_, delta, _)) = self.steps.pop_front()
        {
            self.steps_bytes -= delta.bytes();
        }
    }

    /// This state is committed.
    pub(super) fn committed(&mut self, stamp: Stamp) {
        if stamp.version < self.base.version() {
            return;
        }
        if let Some(state) = self.get(stamp).cloned() {
            let old = std::mem::replace(&mut self.base, state);
            self.others.retain(|other| other.stamp() != stamp);
            self.keep(old);
        }
    }

    /// Takes from a node's answer what it brings and what can be checked.
    pub(super) fn learn(&mut self, view: &View, most: usize) {
        self.follow(&view.suffix, view.committed, most);
        let from = self.get(view.committed).cloned();
        if let (Some(from), Some(step)) = (from, &view.step)
            && self.get(view.proposed).is_none()
            && let Ok(next) = from.next(step)
            && next.stamp() == view.proposed
        {
            self.stepped(from.stamp(), step.clone(), view.proposed, most);
            self.keep(next);
        }
    }

    /// Follows steps from the latest committed state to the one that is meant.
    pub(super) fn follow(&mut self, suffix: &[Delta], to: Stamp, most: usize) {
        let steps = to.version.checked_sub(self.base.version());
        if steps != Some(suffix.len() as u64) || suffix.is_empty() || self.get(to).is_some() {
            return;
        }
        let mut path = Vec::with_capacity(suffix.len());
        let mut state = self.base.clone();
        for delta in suffix {
            let Ok(next) = state.next(delta) else {
                return;
            };
            path.push((state.stamp(), delta.clone(), next.stamp()));
            state = next;
        }
        // Only the end is vouched for; the steps are right if they lead there.
        if state.stamp() == to {
            for (from, delta, to) in path {
                self.stepped(from, delta, to, most);
            }
            self.keep(state);
        }
    }

    /// The way from one of these states to another one, if it is known and not too long.
    pub(super) fn carry(&self, from: &[Stamp], to: Stamp, most: usize) -> Option<Carry> {
        let mut deltas = VecDeque::new();
        let (mut at, mut bytes) = (to, 0);
        loop {
            let (before, delta, _) = self.steps.iter().rev().find(|(_, _, end)| *end == at)?;
            bytes += delta.bytes();
            if bytes > most {
                return None;
            }
            deltas.push_front(delta.clone());
            if from.contains(before) {
                return Some(Carry {
                    base: *before,
                    deltas: deltas.into(),
                });
            }
            at = *before;
        }
    }
}

/// A state on its way from a node, page by page.
#[derive(Clone, Debug)]
pub(super) struct Incoming {
    pub(super) stamp: Stamp,
    pub(super) ticket: u64,
    cells: BTreeMap<crate::object::state::Cell, crate::object::state::Value>,
    bytes: usize,
}

/// What a page leads to.
#[derive(Debug)]
pub(super) enum Got {
    /// The next page, after this cell.
    More(crate::object::state::Cell),
    /// The state is there.
    Whole(State),
    /// What came is not the state.
    False,
}

impl Incoming {
    pub(super) fn new(stamp: Stamp, ticket: u64) -> Self {
        Self {
            stamp,
            ticket,
            cells: BTreeMap::new(),
            bytes: 0,
        }
    }

    pub(super) fn page(&mut self, page: &crate::object::message::Page, most: usize) -> Got {
        for (cell, value) in &page.cells {
            self.bytes += cell.len() + value.len() + 8;
            let later = self
                .cells
                .last_key_value()
                .is_none_or(|(last, _)| last < cell);
            if !later || self.bytes > most {
                return Got::False;
            }
            self.cells.insert(cell.clone(), value.clone());
        }
        if !page.last {
            let last = page.cells.last().map(|(cell, _)| cell.clone());
            return last.map_or(Got::False, Got::More);
        }
        let cells = std::mem::take(&mut self.cells);
        let state = State::rebuild(self.stamp.version, page.previous, cells);
        if state.stamp() == self.stamp {
            Got::Whole(state)
        } else {
            Got::False
        }
    }
}

/// The page of a state after a cell.
pub(super) fn page_after(
    state: &State,
    after: Option<&[u8]>,
    most: usize,
) -> crate::object::message::Page {
    let mut bytes = 0;
    let mut cells = Vec::new();
    let mut last = true;
    for (cell, value) in state.cells(after.unwrap_or_default(), after.is_some()) {
        bytes += cell.len() + value.len() + 8;
        if bytes > most && !cells.is_empty() {
            last = false;
            break;
        }
        cells.push((cell.clone(), value.clone()));
    }
    crate::object::message::Page {
        previous: state.previous(),
        cells,
        last,
    }
}
