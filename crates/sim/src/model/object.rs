//! Every order in which a few attempts to change one object can go, at nodes of which one may lie.
//!
//! Nodes and decisions are the very code of the service: a step of a node runs its machine, and an
//! attempt decides by the answers that it has. An attempt is a client of its own that may stop
//! anywhere. Every message of it may come at any time or never, which also covers refusals and
//! lost answers: whoever is refused or not heard might as well not have asked. The liar says
//! whatever helps: any state that there is, or one that nobody made, with the smallest or the
//! largest rank, and agrees to everything.

use conclave_protocol::object::Plant;
use conclave_protocol::table::Table;

use super::options::{ModelError, ModelProgress, ModelReport, ModelViolation};
use super::rooms::{EMPTY, FALSE_ONE, FALSE_TWO, HUGE, Held, Rooms, Seen};

/// What the model checker explores of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectModel {
    /// How many nodes there are.
    pub nodes: usize,
    /// How many of them lie: none or one.
    pub liars: usize,
    /// How many attempts to change the object, each with a larger rank than the one before.
    pub attempts: usize,
    /// How many times honest nodes restart, in all.
    pub restarts: u8,
    /// The search gives up after so many states.
    pub states_max: usize,
    /// A bug to plant.
    pub plant: Option<Plant>,
}

impl Default for ObjectModel {
    fn default() -> Self {
        Self {
            nodes: 3,
            liars: 0,
            attempts: 3,
            restarts: 0,
            states_max: 20_000_000,
            plant: None,
        }
    }
}

const NODES_MAX: usize = 7;
const ATTEMPTS_MAX: usize = 4;
/// A search tells how far it is after so many states.
const REPORT_EVERY: usize = 1 << 14;

/// One attempt at one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Part {
    seen: Option<Seen>,
    proposed: bool,
    committed: bool,
}

/// An honest node, with what it has heard of each attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Column {
    held: Held,
    parts: Vec<Part>,
}

/// One moment.
#[derive(Clone, Debug)]
struct World {
    columns: Vec<Column>,
    /// The state that each attempt proposes, once it has decided.
    goals: Vec<Option<u8>>,
    /// The states that an honest node has ever committed, as bits.
    ever: u64,
    restarts: u8,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Get(u8, u8),
    Decide(u8, Option<Seen>),
    Propose(u8, u8),
    Commit(u8, u8),
    Restart(u8),
}

impl World {
    fn new(options: &ObjectModel) -> Self {
        let column = Column {
            held: Held::default(),
            parts: vec![Part::default(); options.attempts],
        };
        Self {
            columns: vec![column; options.nodes - options.liars],
            goals: vec![None; options.attempts],
            ever: 1,
            restarts: options.restarts,
        }
    }

    /// The same for all orders of the nodes, which have no names to each other.
    fn digest(&self) -> u128 {
        let mut columns: Vec<&Column> = self.columns.iter().collect();
        columns.sort_unstable();
        let mut hasher = blake3::Hasher::new();
        for column in columns {
            let held = column.held;
            let ranks = [held.max, held.proposer, held.committer];
            hasher.update(&ranks);
            hasher.update(&[held.proposed, held.committed]);
            for part in &column.parts {
                let seen = part.seen.map_or([HUGE; 3], |seen| {
                    [seen.committed, seen.proposed, seen.proposer]
                });
                hasher.update(&seen);
                hasher.update(&[u8::from(part.proposed), u8::from(part.committed)]);
            }
        }
        for goal in &self.goals {
            hasher.update(&[goal.unwrap_or(HUGE)]);
        }
        hasher.update(&self.ever.to_le_bytes());
        hasher.update(&[self.restarts]);
        let mut first = [0; 16];
        first.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        u128::from_le_bytes(first)
    }

    fn actions(&self, options: &ObjectModel, rooms: &Rooms) -> Vec<Action> {
        let mut actions = Vec::new();
        let quorum = rooms.config.quorum;
        for (attempt, goal) in self.goals.iter().enumerate() {
            let parts = || self.columns.iter().map(|column| column.parts[attempt]);
            let proposed = parts().filter(|part| part.proposed).count() + options.liars;
            let hasty = options.plant == Some(Plant::CommitBeforeProposed);
            for (node, part) in parts().enumerate() {
                let (a, n) = (attempt as u8, node as u8);
                match goal {
                    None if part.seen.is_none() => actions.push(Action::Get(a, n)),
                    Some(_) if !part.proposed => actions.push(Action::Propose(a, n)),
                    _ => {}
                }
                if goal.is_some() && !part.committed && (proposed >= quorum || hasty) {
                    actions.push(Action::Commit(a, n));
                }
            }
            if goal.is_none() {
                let heard = parts().filter(|part| part.seen.is_some()).count();
                if heard >= quorum {
                    actions.push(Action::Decide(attempt as u8, None));
                }
                if options.liars > 0 && heard + 1 >= quorum {
                    self.lies(attempt as u8, rooms, &mut actions);
                }
            }
        }
        if self.restarts > 0 {
            let nodes = 0..self.columns.len() as u8;
            actions.extend(nodes.map(Action::Restart));
        }
        actions
    }

    /// What the liar may say: any state that there is by now, with the smallest or the largest
    /// rank.
    fn lies(&self, attempt: u8, rooms: &Rooms, actions: &mut Vec<Action>) {
        let mut states: Vec<u8> = vec![EMPTY, FALSE_ONE, FALSE_TWO];
        states.extend(self.goals.iter().flatten());
        states.sort_unstable();
        states.dedup();
        for committed in &states {
            for proposed in &states {
                for proposer in [0, HUGE] {
                    let lie = Seen {
                        committed: *committed,
                        proposed: *proposed,
                        proposer,
                    };
                    actions.push(Action::Decide(attempt, Some(lie)));
                }
            }
        }
        debug_assert!(
            states
                .iter()
                .all(|at| usize::from(*at) < rooms.states.len())
        );
    }

    /// Takes a step; `false` if it changes nothing, or what it breaks.
    fn apply(&mut self, action: Action, rooms: &mut Rooms) -> Result<bool, Broken> {
        match action {
            Action::Get(attempt, node) => {
                let column = &mut self.columns[usize::from(node)];
                let before = column.held;
                let Some(held) = rooms.step(before, attempt, 0, EMPTY) else {
                    return Ok(false);
                };
                column.held = held;
                column.parts[usize::from(attempt)].seen = Some(Seen {
                    committed: before.committed,
                    proposed: before.proposed,
                    proposer: before.proposer,
                });
            }
            Action::Decide(attempt, lie) => return self.decide(attempt, lie, rooms),
            Action::Propose(attempt, node) => {
                let Some(goal) = self.goals[usize::from(attempt)] else {
                    return Ok(false);
                };
                let column = &mut self.columns[usize::from(node)];
                let Some(held) = rooms.step(column.held, attempt, 1, goal) else {
                    return Ok(false);
                };
                column.held = held;
                column.parts[usize::from(attempt)].proposed = true;
            }
            Action::Commit(attempt, node) => {
                let Some(goal) = self.goals[usize::from(attempt)] else {
                    return Ok(false);
                };
                let column = &mut self.columns[usize::from(node)];
                let Some(held) = rooms.step(column.held, attempt, 2, goal) else {
                    return Ok(false);
                };
                column.held = held;
                column.parts[usize::from(attempt)].committed = true;
                return self.committed(goal, rooms).map(|()| true);
            }
            Action::Restart(node) => {
                let column = &mut self.columns[usize::from(node)];
                column.held = rooms.restarted(column.held);
                self.restarts -= 1;
            }
        }
        Ok(true)
    }

    fn decide(
        &mut self,
        attempt: u8,
        lie: Option<Seen>,
        rooms: &mut Rooms,
    ) -> Result<bool, Broken> {
        let at = usize::from(attempt);
        let seen = self
            .columns
            .iter()
            .filter_map(|column| column.parts[at].seen);
        let seen = seen.chain(lie).collect();
        let Some((builds, state)) = rooms.verdict(seen) else {
            let what = "what a quorum says cannot be, so it was built upon a stale state";
            return Err(("stale-base", what.to_owned()));
        };
        let goal = if builds {
            rooms.built(state, attempt)
        } else {
            state
        };
        self.goals[at] = Some(goal);
        for column in &mut self.columns {
            // What was heard no longer matters, so it need not tell states apart.
            column.parts[at].seen = None;
        }
        Ok(true)
    }

    /// Whether all states that were ever committed are one line.
    fn committed(&mut self, goal: u8, rooms: &Rooms) -> Result<(), Broken> {
        self.ever |= 1 << goal;
        if rooms.states[usize::from(goal)].by.is_none() && goal != EMPTY {
            let what = "a node has committed a state that no client made".to_owned();
            return Err(("invented", what));
        }
        let known = (0..64u8).filter(|at| self.ever & (1 << at) != 0);
        for other in known {
            if !rooms.leads_to(other, goal) && !rooms.leads_to(goal, other) {
                let what = format!(
                    "version {} and version {} were committed, and neither follows from the other",
                    rooms.state(other).version(),
                    rooms.state(goal).version()
                );
                return Err(("order", what));
            }
        }
        Ok(())
    }
}

type Broken = (&'static str, String);

/// Visits every reachable state and checks every property there.
pub fn check_object(
    options: &ObjectModel,
    progress: &mut dyn FnMut(ModelProgress),
) -> Result<ModelReport, ModelError> {
    let sizes = options.nodes <= NODES_MAX && options.liars <= 1;
    if !sizes || !(1..=ATTEMPTS_MAX).contains(&options.attempts) {
        return Err(ModelError::Object);
    }
    let mut rooms = Rooms::new(options)?;
    let start = World::new(options);
    let mut seen: Table<u128, ()> = Table::new(0);
    seen.insert(start.digest(), ());
    let mut ways: Vec<(u32, Option<Action>)> = vec![(0, None)];
    let mut level = vec![(0_u32, start)];
    let mut report = ModelReport {
        states: 1,
        ..ModelReport::default()
    };
    while !level.is_empty() {
        let mut next_level = Vec::new();
        for (id, world) in level {
            for action in world.actions(options, &rooms) {
                let mut next = world.clone();
                report.transitions += 1;
                match next.apply(action, &mut rooms) {
                    Ok(false) => continue,
                    Ok(true) => {}
                    Err((property, what)) => {
                        let trace = trace(&ways, id, action, &rooms);
                        report.violations.push(ModelViolation {
                            property,
                            what,
                            trace,
                        });
                        return Ok(report);
                    }
                }
                let digest = next.digest();
                if seen.get(&digest).is_some() {
                    continue;
                }
                seen.insert(digest, ());
                ways.push((id, Some(action)));
                next_level.push(((ways.len() - 1) as u32, next));
                report.states += 1;
                if report.states.is_multiple_of(REPORT_EVERY) {
                    progress(ModelProgress {
                        states: report.states,
                        transitions: report.transitions,
                        depth: report.depth,
                        frontier: next_level.len(),
                    });
                }
                if report.states >= options.states_max {
                    return Ok(report);
                }
            }
        }
        report.depth += usize::from(!next_level.is_empty());
        level = next_level;
    }
    report.exhausted = true;
    Ok(report)
}

/// The steps to a violation, in words.
fn trace(ways: &[(u32, Option<Action>)], id: u32, last: Action, rooms: &Rooms) -> Vec<String> {
    let mut actions = vec![last];
    let mut at = id;
    while let (from, Some(action)) = ways[at as usize] {
        actions.push(action);
        at = from;
    }
    actions.reverse();
    let state = |at: u8| {
        let made = &rooms.states[usize::from(at)];
        if at == EMPTY {
            return "nothing".to_owned();
        }
        let by = made
            .by
            .map_or("nobody".to_owned(), |by| format!("a{}", by + 1));
        format!("version {} by {by}", made.state.version())
    };
    let word = |action: Action| match action {
        Action::Get(a, n) => format!("a{} asks n{} what is there", a + 1, n + 1),
        Action::Decide(a, None) => format!("a{} decides", a + 1),
        Action::Decide(a, Some(lie)) => format!(
            "a{} decides, the liar having said: committed {}, proposed {}",
            a + 1,
            state(lie.committed),
            state(lie.proposed)
        ),
        Action::Propose(a, n) => format!("n{} holds what a{} proposes", n + 1, a + 1),
        Action::Commit(a, n) => format!("n{} commits what a{} proposes", n + 1, a + 1),
        Action::Restart(n) => format!("n{} restarts", n + 1),
    };
    actions.into_iter().map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(nodes: usize, liars: usize, attempts: usize, plant: Option<Plant>) -> ModelReport {
        let options = ObjectModel {
            nodes,
            liars,
            attempts,
            plant,
            restarts: u8::from(plant == Some(Plant::ForgetRank)),
            ..ObjectModel::default()
        };
        check_object(&options, &mut |_| {}).unwrap()
    }

    #[test]
    fn all_orders_of_small_systems_are_right() {
        for (nodes, liars, attempts) in [(3, 0, 3), (5, 1, 2)] {
            let report = search(nodes, liars, attempts, None);
            assert!(report.exhausted, "{report:?}");
            assert_eq!(report.violations, []);
            assert!(report.states > 1000, "{}", report.states);
        }
    }

    #[test]
    fn broken_rules_are_found() {
        for (nodes, liars, attempts, plant) in [
            (3, 0, 2, Plant::SmallQuorum),
            (3, 0, 2, Plant::CommitBeforeProposed),
            (3, 0, 2, Plant::ProposeUnranked),
            (3, 0, 2, Plant::GetAtEqualRank),
            (3, 0, 2, Plant::ForgetRank),
            (5, 1, 2, Plant::CompletedFromLargest),
            (5, 1, 2, Plant::LessSupport),
        ] {
            let report = search(nodes, liars, attempts, Some(plant));
            assert!(!report.violations.is_empty(), "{plant:?} {report:?}");
        }
    }

    #[test]
    fn what_cannot_be_explored_is_refused() {
        let many = ObjectModel {
            attempts: 9,
            ..ObjectModel::default()
        };
        assert!(check_object(&many, &mut |_| {}).is_err());
        let few = ObjectModel {
            nodes: 4,
            liars: 1,
            ..ObjectModel::default()
        };
        assert!(check_object(&few, &mut |_| {}).is_err());
    }
}
