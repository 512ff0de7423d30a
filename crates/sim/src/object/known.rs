//! Everything that was ever proposed, for those who know more than any process can: the liars.

use std::collections::BTreeMap;

use conclave_protocol::id::Name;
use conclave_protocol::object::{
    Cell, Delta, Digest, ObjectAsk, OpId, Rank, Span, Stamp, State, Value,
};

/// All objects, as the world has seen them.
#[derive(Debug, Default)]
pub struct Known {
    objects: BTreeMap<Name, KnownObject>,
}

impl Known {
    /// An object.
    pub fn object(&mut self, name: &Name) -> &mut KnownObject {
        self.objects
            .entry(name.clone())
            .or_insert_with(KnownObject::new)
    }

    /// Learns from what a client asks.
    pub fn watch(&mut self, name: &Name, ask: &ObjectAsk) {
        let object = self.object(name);
        match ask {
            ObjectAsk::Get { rank, .. } => object.top = object.top.max(*rank),
            ObjectAsk::Propose { stamp, carry, .. } | ObjectAsk::Commit { stamp, carry, .. } => {
                if let Some(carry) = carry {
                    object.carried(carry.base, &carry.deltas);
                }
                if matches!(ask, ObjectAsk::Commit { .. }) {
                    object.chosen.entry(stamp.version).or_insert(stamp.digest);
                }
            }
            ObjectAsk::Submit { op, body } => {
                object.waiting.insert(*op, body.clone());
            }
            _ => {}
        }
    }
}

/// One object, as the world has seen it.
#[derive(Debug)]
pub struct KnownObject {
    states: BTreeMap<Digest, State>,
    /// How each state follows from the one before.
    steps: BTreeMap<Digest, Delta>,
    /// What somebody has begun to commit.
    chosen: BTreeMap<u64, Digest>,
    /// The largest rank of a question.
    pub top: Rank,
    /// Operations that were submitted.
    pub waiting: BTreeMap<OpId, std::sync::Arc<[u8]>>,
}

impl KnownObject {
    fn new() -> Self {
        let empty = State::new();
        Self {
            chosen: BTreeMap::from([(0, empty.digest())]),
            states: BTreeMap::from([(empty.digest(), empty)]),
            steps: BTreeMap::new(),
            top: Rank::default(),
            waiting: BTreeMap::new(),
        }
    }

    fn carried(&mut self, base: Stamp, deltas: &[Delta]) {
        let Some(mut state) = self.states.get(&base.digest).cloned() else {
            return;
        };
        for delta in deltas {
            let Some(next) = self.add(&state, delta) else {
                return;
            };
            state = next;
        }
    }

    /// Keeps the state that follows from another by this delta.
    pub fn add(&mut self, base: &State, delta: &Delta) -> Option<State> {
        let next = base.next(delta).ok()?;
        self.steps.insert(next.digest(), delta.clone());
        self.states.insert(next.digest(), next.clone());
        Some(next)
    }

    /// A state.
    pub fn state(&self, digest: Digest) -> Option<&State> {
        self.states.get(&digest)
    }

    /// The latest state that somebody has begun to commit, or one so many versions before it.
    pub fn chosen(&self, before: u64) -> Option<&State> {
        let (top, _) = self.chosen.last_key_value()?;
        let version = top.saturating_sub(before);
        self.states.get(self.chosen.get(&version)?)
    }

    /// States that lost, or that nobody has begun to commit yet: the latest versions first.
    pub fn losers(&self) -> Vec<&State> {
        let lost = |state: &&State| self.chosen.get(&state.version()) != Some(&state.digest());
        let mut states: Vec<&State> = self.states.values().filter(lost).collect();
        states.sort_by_key(|state| std::cmp::Reverse((state.version(), state.digest())));
        states
    }

    /// The one step from one state to the next.
    pub fn step(&self, from: Stamp, to: &State) -> Option<Delta> {
        let follows = to.previous() == from.digest && to.version() == from.version + 1;
        let delta = self.steps.get(&to.digest()).filter(|_| follows);
        delta.cloned()
    }

    /// The steps from one state to a later one; empty if there is no way.
    pub fn suffix(&self, from: Option<Stamp>, to: &State) -> Vec<Delta> {
        let Some(from) = from.filter(|from| from.version < to.version()) else {
            return Vec::new();
        };
        let mut deltas = Vec::new();
        let mut at = to;
        while at.version() > from.version {
            let Some(delta) = self.steps.get(&at.digest()) else {
                return Vec::new();
            };
            deltas.push(delta.clone());
            if at.previous() == from.digest {
                deltas.reverse();
                return deltas;
            }
            let Some(before) = self.states.get(&at.previous()) else {
                return Vec::new();
            };
            at = before;
        }
        Vec::new()
    }
}

/// The cells of a span, as an honest node would tell them.
pub fn cells_of(state: &State, span: &Span) -> Vec<(Cell, Value)> {
    let inside = |cell: &Cell| span.to.as_ref().is_none_or(|to| cell < to);
    let cells = state.cells(&span.from, false);
    let mut cells: Vec<_> = cells
        .take_while(|(cell, _)| inside(cell))
        .map(|(cell, value)| (cell.clone(), value.clone()))
        .collect();
    if span.backwards {
        cells.reverse();
    }
    cells.truncate(span.limit as usize);
    cells
}
