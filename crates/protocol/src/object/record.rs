//! What a node keeps of one object on disk.

use super::message::{Carry, Page, Proof, Rank};
use super::state::{Builder, Cell, Delta, Stamp, State};
use thiserror::Error;

/// How a state is put down on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// It is one of the two that the records before have led to.
    Held,
    /// It follows from one of those.
    Carry(Carry),
    /// It is what the pages of this object add up to that were written just before.
    Pages,
}

/// The way from one version to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The state it starts from.
    pub base: Stamp,
    /// What changes.
    pub delta: Delta,
}

/// Why a record cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "a record does not follow from those before it; the store is damaged, so start the node with \
     an empty one and let it rejoin"
)]
pub struct RecordError;

/// What a node keeps of one object through restarts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredObject {
    /// The largest rank seen: nothing of a smaller one is taken.
    pub max: Rank,
    /// The number of the get that had it, which is answered again.
    pub nonce: Option<u64>,
    /// Its signature.
    pub proof: Proof,
    /// The rank under which `proposed` was proposed.
    pub proposer: Rank,
    /// The proposed state.
    pub proposed: State,
    /// The rank of the last commit.
    pub committer: Rank,
    /// The committed state.
    pub committed: State,
}

impl StoredObject {
    /// An object that nobody has asked for: the empty state, proposed and committed by rank 0.
    pub fn new(empty: &State) -> Self {
        Self {
            max: Rank::default(),
            nonce: None,
            proof: None,
            proposer: Rank::default(),
            proposed: empty.clone(),
            committer: Rank::default(),
            committed: empty.clone(),
        }
    }

    /// The state of this stamp, if it is one of the two.
    pub fn held(&self, stamp: Stamp) -> Option<&State> {
        [&self.committed, &self.proposed]
            .into_iter()
            .find(|state| state.stamp() == stamp)
    }

    /// Where a carry leads to and by which steps, if it starts from one of the two states. What
    /// is larger than `bytes` on the way is none.
    pub fn carried(&self, carry: &Carry, bytes: usize) -> Option<(State, Vec<Step>)> {
        let mut state = self.held(carry.base)?.clone();
        let mut steps = Vec::with_capacity(carry.deltas.len());
        for delta in &carry.deltas {
            let base = state.stamp();
            state = state.next(delta).ok()?;
            if state.bytes() > bytes {
                return None;
            }
            let delta = delta.clone();
            steps.push(Step { base, delta });
        }
        Some((state, steps))
    }

    /// Takes a larger rank. Another get's number does not count for it.
    pub fn raise(&mut self, rank: Rank, proof: &Proof) {
        if rank > self.max {
            self.max = rank;
            self.nonce = None;
            self.proof.clone_from(proof);
        }
    }

    /// Takes a proposal.
    pub fn propose(&mut self, rank: Rank, state: State, proof: &Proof) {
        self.raise(rank, proof);
        self.proposer = rank;
        self.proposed = state;
    }

    /// Takes a commit.
    pub fn commit(&mut self, rank: Rank, state: State, proof: &Proof) {
        self.raise(rank, proof);
        self.committer = rank;
        self.committed = state;
    }

    /// Takes what was ordered anew.
    pub fn restore(&mut self, rank: Rank, state: State, proof: &Proof) {
        self.commit(rank, state.clone(), proof);
        self.propose(rank, state, proof);
    }
}

/// A state that comes in pages, each after the one before.
#[derive(Clone, Debug)]
pub struct Assembly {
    stamp: Stamp,
    builder: Builder,
    end: End,
}

/// How far an assembly is.
#[derive(Clone, Debug)]
enum End {
    Open,
    Whole(State),
    False,
}

/// What became of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assembled {
    /// More pages must come.
    More,
    /// The state is whole.
    Whole,
    /// The cells are not the state that they were said to be, or too many.
    False,
}

impl Assembly {
    /// Nothing yet of the state with this stamp.
    pub fn new(stamp: Stamp) -> Self {
        Self {
            stamp,
            builder: Builder::new(),
            end: End::Open,
        }
    }

    /// Which state it will be.
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// The last cell that is there, while there are more to come.
    pub fn last(&self) -> Option<&Cell> {
        self.builder.last()
    }

    /// How many bytes are there.
    pub fn bytes(&self) -> usize {
        match &self.end {
            End::Open => self.builder.bytes(),
            End::Whole(state) => state.bytes(),
            End::False => 0,
        }
    }

    /// Whether this page can only be the first one.
    pub fn restarts(&self, page: &Page) -> bool {
        let first = page.cells.first().map(|(cell, _)| cell);
        self.is_done() || self.builder.last().is_some() && first <= self.builder.last()
    }

    /// Adds a page, if all would not be larger than `bytes`.
    pub fn add(&mut self, page: &Page, bytes: usize) -> Assembled {
        if self.is_done() {
            return self.fail();
        }
        for (cell, value) in &page.cells {
            if self.builder.last().is_some_and(|last| last >= cell) {
                return self.fail();
            }
            self.builder.put(cell, value);
            if self.builder.bytes() > bytes {
                return self.fail();
            }
        }
        if !page.last {
            // A page without cells that is not the last one would go on for ever.
            return if page.cells.is_empty() {
                self.fail()
            } else {
                Assembled::More
            };
        }
        let builder = std::mem::take(&mut self.builder);
        let state = builder.finish(self.stamp.version, page.previous);
        if state.stamp() != self.stamp {
            return self.fail();
        }
        self.end = End::Whole(state);
        Assembled::Whole
    }

    fn fail(&mut self) -> Assembled {
        self.builder = Builder::new();
        self.end = End::False;
        Assembled::False
    }

    /// The state, once it is whole.
    pub fn whole(&self) -> Option<&State> {
        match &self.end {
            End::Whole(state) => Some(state),
            End::Open | End::False => None,
        }
    }

    fn is_done(&self) -> bool {
        !matches!(self.end, End::Open)
    }
}
