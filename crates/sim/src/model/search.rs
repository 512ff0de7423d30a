//! The search: breadth first, so that the first violation found is one of the nearest.

use conclave_protocol::lock::Config;
use conclave_protocol::table::Table;
use conclave_quorum::{NodeSet, System};
use std::sync::Arc;

use super::options::{ModelError, ModelOptions, ModelProgress, ModelReport, ModelViolation};
use super::properties::{self, Broken};
use super::space::Space;
use super::state::{Action, Scratch, State};

/// A search tells how far it is after so many states.
const REPORT_EVERY: usize = 1 << 16;

/// Rounds of preparation at most; each connects every client to one more quorum.
const WARM_ROUNDS: u16 = 16;

/// Visits every reachable state and checks every property there.
pub fn check(
    options: &ModelOptions,
    progress: &mut dyn FnMut(ModelProgress),
) -> Result<ModelReport, ModelError> {
    if options.requesters == 0 || options.requesters > ModelOptions::REQUESTERS_MAX {
        return Err(ModelError::Requesters);
    }
    let system = options.build_system()?;
    let config = options.config(&system)?;
    if config.quorums.nodes() > ModelOptions::NODES_MAX {
        return Err(ModelError::Nodes);
    }
    let (start, space) = prepare(options, &config)?;
    let mut search = Search::new(start, space);
    search.run(options.states_max, progress);
    Ok(search.report)
}

/// Nodes and clients, connected and welcomed, with every client's first request on its way.
///
/// That all ask at once loses nothing: nothing can happen at a client before it asks, so asking
/// later is the same as its messages taking longer.
fn prepare(options: &ModelOptions, config: &Arc<Config>) -> Result<(State, Space), ModelError> {
    let width = config.quorums.nodes();
    let mut space = Space::new(options, width);
    let nodes = (0..width)
        .map(|node| space.start_node(config, node))
        .collect();
    let mut clients = Vec::new();
    for client in 0..options.requesters {
        let own = if options.spread {
            own_config(options, config, client)?
        } else {
            config.clone()
        };
        clients.push(space.start_client(&own, client));
    }
    let mut state = State::new(nodes, clients, options);
    for client in 0..options.requesters {
        for round in 0..WARM_ROUNDS {
            state.warm_up(client, round, &mut space);
        }
    }
    space.let_beats_be_due();
    state.beat(&mut space);
    for client in 0..options.requesters {
        state.apply(Action::Ask(client as u8), &mut space);
        space.learn_session(state.clients[client]);
    }
    Ok((state, space))
}

/// The configuration of a client that knows one quorum only, not the same as its neighbour's.
fn own_config(
    options: &ModelOptions,
    config: &Arc<Config>,
    client: usize,
) -> Result<Arc<Config>, ModelError> {
    let mode = options.mode(client);
    let none = NodeSet::new(config.quorums.nodes());
    let mut quorums: Vec<Vec<usize>> = (0..256)
        .map(|seed| config.quorums.pick(&mode, seed, &none).iter().collect())
        .collect();
    quorums.sort();
    quorums.dedup();
    let nodes = quorums[client % quorums.len()].iter();
    let nodes: Vec<String> = nodes.map(|node| (node + 1).to_string()).collect();
    let only = ModelOptions {
        system: format!("expr({})", nodes.join("*")),
        ..options.clone()
    };
    let system: System = only.build_system()?;
    only.config(&system)
}

struct Search {
    space: Space,
    start: State,
    seen: Table<u128, u32>,
    /// How each state was first reached.
    ways: Vec<(u32, Action)>,
    frontier: Vec<(u32, State)>,
    /// Steps that happen by themselves: from a state to a state.
    edges: Vec<(u32, u32)>,
    /// States at rest.
    resting: Vec<u32>,
    scratch: Scratch,
    report: ModelReport,
}

impl Search {
    fn new(start: State, space: Space) -> Self {
        Self {
            frontier: vec![(0, start.clone())],
            start,
            space,
            seen: Table::new(0),
            ways: vec![(0, Action::Ask(0))],
            edges: Vec::new(),
            resting: Vec::new(),
            scratch: Scratch::default(),
            report: ModelReport::default(),
        }
    }

    fn run(&mut self, states_max: usize, progress: &mut dyn FnMut(ModelProgress)) {
        let first = self.start.digest(&self.space, &mut self.scratch);
        self.seen.insert(first, 0);
        self.report.states = 1;
        if let Some(broken) = properties::state(&self.start, &self.space) {
            self.violation(broken, 0, None);
            return;
        }
        while !self.frontier.is_empty() {
            let level = std::mem::take(&mut self.frontier);
            for (id, state) in level {
                self.expand(id, &state, progress);
                if self.report.states >= states_max {
                    return;
                }
            }
            if !self.report.violations.is_empty() {
                return;
            }
            if !self.frontier.is_empty() {
                self.report.depth += 1;
            }
        }
        self.report.exhausted = true;
        self.find_traps();
    }

    /// Looks for states from which no rest can be reached without faults: whoever waits there may
    /// wait for ever although something always moves.
    fn find_traps(&mut self) {
        let mut edges = std::mem::take(&mut self.edges);
        edges.sort_unstable_by_key(|(_, to)| *to);
        let mut safe = vec![false; self.ways.len()];
        let mut open = std::mem::take(&mut self.resting);
        while let Some(state) = open.pop() {
            if std::mem::replace(&mut safe[state as usize], true) {
                continue;
            }
            let first = edges.partition_point(|(_, to)| *to < state);
            let sources = edges[first..].iter().take_while(|(_, to)| *to == state);
            open.extend(sources.map(|(from, _)| *from));
        }
        if let Some(trap) = safe.iter().position(|safe| !safe) {
            let what = "messages go to and fro for ever: no rest can be reached".to_owned();
            self.violation(("livelock", what), trap as u32, None);
        }
    }

    fn expand(&mut self, id: u32, state: &State, progress: &mut dyn FnMut(ModelProgress)) {
        let (actions, moves) = state.actions(&self.space);
        if !moves {
            self.resting.push(id);
            if let Some(broken) = properties::at_rest(state) {
                self.violation(broken, id, None);
            }
        }
        for action in actions {
            let mut next = state.clone();
            let mut broken = next.apply(action, &mut self.space);
            self.report.transitions += 1;
            let digest = next.digest(&self.space, &mut self.scratch);
            let whim = action.is_whim();
            if let Some(known) = self.seen.get(&digest)
                && broken.is_none()
            {
                self.edges.extend((!whim).then_some((id, *known)));
                continue;
            }
            broken = broken.or_else(|| properties::state(&next, &self.space));
            if let Some(broken) = broken {
                self.violation(broken, id, Some(action));
                continue;
            }
            let new = self.ways.len() as u32;
            self.seen.insert(digest, new);
            self.ways.push((id, action));
            self.edges.extend((!whim).then_some((id, new)));
            self.frontier.push((new, next));
            self.report.states += 1;
            if self.report.states.is_multiple_of(REPORT_EVERY) {
                progress(ModelProgress {
                    states: self.report.states,
                    transitions: self.report.transitions,
                    depth: self.report.depth,
                    frontier: self.frontier.len(),
                });
            }
        }
    }

    /// Keeps one violation of each property.
    fn violation(&mut self, broken: Broken, id: u32, last: Option<Action>) {
        let (property, what) = broken;
        let mut known = self.report.violations.iter();
        if known.any(|violation| violation.property == property) {
            return;
        }
        let trace = self.trace(id, last);
        self.report.violations.push(ModelViolation {
            property,
            what,
            trace,
        });
    }

    /// The steps to a state, and one more, in words.
    fn trace(&mut self, id: u32, last: Option<Action>) -> Vec<String> {
        let mut actions: Vec<Action> = last.into_iter().collect();
        let mut at = id;
        while at != 0 {
            let (from, action) = self.ways[at as usize];
            actions.push(action);
            at = from;
        }
        actions.reverse();
        let mut state = self.start.clone();
        let mut lines: Vec<String> = (1..=state.clients.len())
            .map(|client| format!("c{client} asks"))
            .collect();
        for action in actions {
            let said = state.describe(action, &self.space);
            let before = state.clone();
            state.apply(action, &mut self.space);
            lines.push(said + &state.news(&before, &self.space));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A state that cannot come to rest is seen, and the others are not blamed.
    #[test]
    fn a_trap_is_found() {
        let options = ModelOptions {
            requesters: 1,
            entries: 1,
            ..ModelOptions::default()
        };
        let config = options.config(&options.build_system().unwrap()).unwrap();
        let (start, space) = prepare(&options, &config).unwrap();
        let mut search = Search::new(start, space);
        search.run(1_000, &mut |_| {});
        assert_eq!(search.report.violations, []);
        // 0 -> 1 -> rest, 0 -> 2 <-> 3.
        search.ways.truncate(5);
        search.edges = vec![(0, 1), (1, 4), (0, 2), (2, 3), (3, 2)];
        search.resting = vec![4];
        search.ways[2] = search.ways[1];
        search.find_traps();
        assert_eq!(search.report.violations.len(), 1);
        assert_eq!(search.report.violations[0].property, "livelock");
        assert_eq!(search.report.violations[0].trace.len(), 2);
    }

    /// All states, told apart with grant numbers as they are or by their ranks; each by its
    /// rank digest.
    fn reachable(options: &ModelOptions, literal: bool) -> (usize, BTreeSet<u128>) {
        let config = options.config(&options.build_system().unwrap()).unwrap();
        let (start, mut space) = prepare(options, &config).unwrap();
        let (mut ranks, mut key) = (Scratch::default(), Scratch::default());
        key.literal = literal;
        let mut seen = BTreeSet::from([start.digest(&space, &mut key)]);
        let mut found = BTreeSet::from([start.digest(&space, &mut ranks)]);
        let mut open = vec![start];
        while let Some(state) = open.pop() {
            for action in state.actions(&space).0 {
                let mut next = state.clone();
                assert_eq!(next.apply(action, &mut space), None);
                if seen.insert(next.digest(&space, &mut key)) {
                    found.insert(next.digest(&space, &mut ranks));
                    open.push(next);
                }
            }
        }
        (seen.len(), found)
    }

    /// The dumb twin: a search that keeps all numbers apart finds the same states and no others.
    #[test]
    fn ranks_lose_and_invent_nothing() {
        let faults = [(1, 0, 0), (0, 1, 0), (0, 0, 1)];
        for (cancels, expiries, crashes) in faults {
            let options = ModelOptions {
                requesters: 2,
                entries: 1,
                cancels,
                expiries,
                crashes,
                ..ModelOptions::default()
            };
            let (ranked, by_rank) = reachable(&options, false);
            let (literal, by_number) = reachable(&options, true);
            assert_eq!(by_rank, by_number, "{options:?}");
            assert!(
                ranked < literal,
                "{ranked} {literal}: ranks merge something"
            );
        }
    }
}
