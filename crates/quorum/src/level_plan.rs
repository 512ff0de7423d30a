//! How many levels a hierarchy should have: cost, messages, delay and availability of each.
//!
//! For tree coteries the sizes of quorums under failures are exact, and so is the best number of
//! levels by the published cost (Lambert's W, see [`crate::measure::hierarchy`]). Any other
//! coterie is measured: exactly where all its quorums have one size, else over random states.

use std::collections::BTreeMap;
use std::sync::Arc;

use thiserror::Error;

use crate::build::{BuildError, Shape, build};
use crate::construct::multilevel::{ClusterId, Clusters, LEVELS_MAX, Multilevel};
use crate::measure::hierarchy::{
    best_levels, cost, exact_k, paper_availability, paper_delay, paper_levels, real_levels,
    tree_figures,
};
use crate::measure::{Progress, hierarchy};
use crate::text::{ClustersSize, Spec};
use crate::{Family, NodeSet, Odds, Prng, pick};

/// What is asked for.
#[derive(Clone, Debug)]
pub struct LevelRequest {
    /// How many nodes there are.
    pub nodes: usize,
    /// The probability that a node is up, above 0.
    pub up: f64,
    /// The coterie of every cluster; it has no size of its own.
    pub coterie: Spec,
    /// Another coterie for the root cluster.
    pub root: Option<Spec>,
    /// Hierarchies with up to so many levels below the root are compared.
    pub levels_max: usize,
    /// How long sending one message takes.
    pub send: f64,
    /// How long a message is on its way.
    pub way: f64,
    /// The seed of random states, where a coterie needs them.
    pub seed: u64,
}

impl LevelRequest {
    /// Trees in every cluster, up to six levels, and the times of the published simulation.
    pub fn new(nodes: usize, up: f64) -> Self {
        Self {
            nodes,
            up,
            coterie: Spec::Tree { n: None },
            root: None,
            levels_max: 6,
            send: 8.0,
            way: 12.0,
            seed: 1,
        }
    }

    /// Whether the published formulas are about this request: trees everywhere.
    fn is_published(&self) -> bool {
        let tree = |spec: &Spec| matches!(spec, Spec::Tree { .. });
        tree(&self.coterie) && self.root.as_ref().is_none_or(tree)
    }

    /// The system with so many levels, as a text.
    fn system(&self, levels: usize) -> Spec {
        let root = self.root.clone().unwrap_or_else(|| self.coterie.clone());
        let mut inner = vec![root];
        if levels > 0 && inner[0] != self.coterie {
            inner.extend((0..levels).map(|_| self.coterie.clone()));
        }
        let n = Some(self.nodes);
        let clusters = ClustersSize::Even { n, levels };
        Spec::Multilevel { inner, clusters }
    }
}

/// A hierarchy with some number of levels, measured.
#[derive(Clone, Debug, PartialEq)]
pub struct LevelChoice {
    /// How many levels there are below the root.
    pub levels: usize,
    /// The system's text form.
    pub system: String,
    /// Of each level from the root: how many clusters, and their smallest and largest size.
    pub clusters: Vec<(usize, usize, usize)>,
    /// The published cost `c`; for trees only.
    pub cost: Option<f64>,
    /// The expected sizes of the quorums along a requester's chain, added up.
    pub quorums: f64,
    /// Predicted messages per entry: three for each member of a quorum, four for each level.
    pub messages: f64,
    /// The published minimum delay.
    pub paper_delay: f64,
    /// The minimum delay of a run.
    pub delay: f64,
    /// The published availability of a chain; for trees only.
    pub paper_availability: Option<f64>,
    /// The availability of a requester's chain over these clusters, taken as independent.
    pub availability: f64,
    /// The probability that some chain can be served, exactly; none where it is not known.
    pub some_chain: Option<f64>,
    /// In which share of all entries the busiest node gives its permission, where each lock lays
    /// out its clusters in an order of its own. A node that gives it at several levels of one
    /// entry counts as often, so this may be above 1.
    pub busiest: f64,
    /// Whether sizes and availability are exact rather than means over random states.
    pub exact: bool,
}

/// What the published estimate would have said, and its price.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The real number of levels by the estimate of `k`.
    pub real: f64,
    /// The nearest whole number.
    pub levels: usize,
    /// The cost `c` there.
    pub cost: f64,
    /// By which factor that is above the least cost.
    pub cost_ratio: f64,
    /// The predicted messages there; none if such clusters cannot be made.
    pub messages: Option<f64>,
}

/// The best number of levels by the published cost, exactly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Formula {
    /// `k`, by Lambert's W.
    pub k: f64,
    /// The real number of levels of least cost.
    pub real: f64,
    /// The whole number of levels of least cost: the better one beside the real number.
    pub levels: usize,
}

/// The numbers of levels compared.
#[derive(Clone, Debug, PartialEq)]
pub struct LevelPlan {
    /// Each number of levels that can be, from 0.
    pub choices: Vec<LevelChoice>,
    /// Numbers of levels that cannot be, with the reason.
    pub refused: Vec<(usize, String)>,
    /// The place in `choices` of the fewest messages: what to take.
    pub best: usize,
    /// The best by the published cost; for trees only.
    pub formula: Option<Formula>,
    /// What the published estimate would have taken; for trees only.
    pub estimate: Option<Estimate>,
}

impl LevelPlan {
    /// What to take.
    pub fn recommended(&self) -> &LevelChoice {
        &self.choices[self.best]
    }
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum LevelPlanError {
    /// Nobody is up.
    #[error("the probability that a node is up must be above 0 and at most 1")]
    Up,
    /// Too many levels.
    #[error("at most {LEVELS_MAX} levels are compared, not {levels}")]
    Levels {
        /// How many were asked for.
        levels: usize,
    },
    /// Times that are no times.
    #[error("sending and way must be times, not negative")]
    Times,
    /// No hierarchy can be built.
    #[error("no hierarchy serves {nodes} nodes: {why}")]
    Nothing {
        /// How many nodes were given.
        nodes: usize,
        /// The reason for a flat one.
        why: String,
    },
}

/// Compares hierarchies with 0, 1, 2, … levels below the root, as long as clusters have at least
/// two nodes on average.
pub fn level_plan(
    request: &LevelRequest,
    progress: &mut dyn FnMut(Progress),
) -> Result<LevelPlan, LevelPlanError> {
    if !(request.up > 0.0 && request.up <= 1.0) {
        return Err(LevelPlanError::Up);
    }
    if request.levels_max > LEVELS_MAX {
        let levels = request.levels_max;
        return Err(LevelPlanError::Levels { levels });
    }
    let time = |span: f64| span.is_finite() && span >= 0.0;
    if !time(request.send) || !time(request.way) {
        return Err(LevelPlanError::Times);
    }
    let sensible = |levels: &usize| *levels == 0 || request.nodes >> (levels + 1) > 0;
    let (mut choices, mut refused) = (Vec::new(), Vec::new());
    let mut known = Known::new(request);
    for levels in (0..=request.levels_max).take_while(sensible) {
        progress(Progress {
            stage: "measuring levels",
            done: levels as u64,
            total: request.levels_max as u64 + 1,
        });
        match choice(request, levels, &mut known) {
            Ok(choice) => choices.push(choice),
            Err(error) => refused.push((levels, error.to_string())),
        }
    }
    let by_messages = |a: &usize, b: &usize| {
        let messages = |place: usize| choices[place].messages;
        messages(*a).total_cmp(&messages(*b))
    };
    let Some(best) = (0..choices.len()).min_by(by_messages) else {
        let why = refused.first().map_or("", |(_, why)| why.as_str());
        return Err(LevelPlanError::Nothing {
            nodes: request.nodes,
            why: why.to_owned(),
        });
    };
    Ok(LevelPlan {
        choices,
        refused,
        best,
        formula: request.is_published().then(|| formula(request)),
        estimate: request.is_published().then(|| estimate(request)),
    })
}

fn formula(request: &LevelRequest) -> Formula {
    Formula {
        k: exact_k(request.up),
        real: real_levels(request.nodes, request.up),
        levels: best_levels(request.nodes, request.up),
    }
}

fn estimate(request: &LevelRequest) -> Estimate {
    let LevelRequest { nodes, up, .. } = *request;
    let real = paper_levels(nodes, up);
    // Near a failure probability of 1 the estimate runs away; no hierarchy is that deep.
    let levels = real.round().min(LEVELS_MAX as f64) as usize;
    let least = cost(nodes, up, best_levels(nodes, up));
    let clusters = Clusters::build(nodes, levels).ok();
    let messages = clusters
        .map(|clusters| hierarchy::chain_figures(&clusters, up).messages(clusters.levels()));
    Estimate {
        real,
        levels,
        cost: cost(nodes, up, levels),
        cost_ratio: cost(nodes, up, levels) / least,
        messages,
    }
}

fn choice(
    request: &LevelRequest,
    levels: usize,
    known: &mut Known<'_>,
) -> Result<LevelChoice, BuildError> {
    let spec = request.system(levels);
    let no_files = |_: &str| Err("a hierarchy cannot name a file".to_owned());
    let built = build(&spec, Some(request.nodes), &no_files)?;
    let Shape::Multilevel(system) = &built.shape else {
        unreachable!("invariant: a multilevel text builds a hierarchy");
    };
    let clusters = system.clusters();
    let chains = Chains::of(system, known);
    let published = request.is_published();
    let LevelRequest {
        nodes,
        up,
        send,
        way,
        ..
    } = *request;
    let row = |level: usize| {
        let sizes = || clusters.at(level).map(|id| clusters.size(id));
        let (least, most) = (sizes().min(), sizes().max());
        (clusters.count(level), least.unwrap_or(0), most.unwrap_or(0))
    };
    let some_chain = system.mass(&vec![Odds::down(1.0 - up); nodes]);
    Ok(LevelChoice {
        levels,
        system: built.text.clone(),
        clusters: (0..=levels).map(row).collect(),
        cost: published.then(|| cost(nodes, up, levels)),
        quorums: chains.size,
        messages: 3.0 * chains.size + 4.0 * levels as f64,
        paper_delay: paper_delay(levels, chains.least[0], send, way),
        delay: delay(&chains.least, send, way),
        paper_availability: published.then(|| paper_availability(nodes, up, levels)),
        availability: chains.live,
        some_chain: some_chain.map(|mass| mass.live),
        busiest: chains.busiest,
        exact: chains.exact,
    })
}

/// The time from a request to its entry if nothing disturbs it, with a quorum of `least[k]` at
/// each level `k`: messages leave one after the other, each after `send`, and travel for `way`.
///
/// A level begins when the announcement from below is there. It announces itself upwards first,
/// then asks its quorum. Once that has answered it asks for consent, which comes down the levels.
fn delay(least: &[usize], send: f64, way: f64) -> f64 {
    let step = send + way;
    let deepest = least.len() - 1;
    // When a level has the permissions of its quorum.
    let gathered = |level: usize| {
        let began = (deepest - level) as f64 * step;
        let announced = if level > 0 { send } else { 0.0 };
        began + announced + least[level] as f64 * send + way + step
    };
    let mut consent = gathered(0);
    for level in 1..=deepest {
        let asked = gathered(level) + step;
        consent = consent.max(asked) + step;
    }
    consent
}

/// What is known of one coterie of some size.
#[derive(Clone, Copy, Debug)]
struct Figures {
    live: f64,
    size: f64,
    least: usize,
    exact: bool,
}

/// The figures found so far, by root or not and by size.
struct Known<'a> {
    request: &'a LevelRequest,
    figures: BTreeMap<(bool, usize), Figures>,
    rng: Prng,
}

impl<'a> Known<'a> {
    fn new(request: &'a LevelRequest) -> Self {
        Self {
            request,
            figures: BTreeMap::new(),
            rng: Prng::new(request.seed),
        }
    }

    fn of(&mut self, system: &Multilevel, id: ClusterId) -> Figures {
        let own = id.level() == 0 && self.request.root.is_some();
        let size = system.clusters().size(id);
        if let Some(figures) = self.figures.get(&(own, size)) {
            return *figures;
        }
        let spec = self.request.root.as_ref().filter(|_| own);
        let tree = matches!(spec.unwrap_or(&self.request.coterie), Spec::Tree { .. });
        let family = system.shared_coterie(id);
        let figures = if tree {
            let figures = tree_figures(size, self.request.up);
            Figures {
                live: figures.live,
                size: figures.size,
                least: least(&family),
                exact: true,
            }
        } else {
            measured(&family, self.request.up, &mut self.rng)
        };
        self.figures.insert((own, size), figures);
        figures
    }
}

fn least(family: &Arc<dyn Family>) -> usize {
    let cheapest = family.cheapest(&vec![1.0; family.nodes()]);
    cheapest.map_or(0, |quorum| quorum.len())
}

/// A coterie's availability and mean quorum size: exact where the recurrence of the one is known
/// and quorums of but one size leave nothing to choose, else over random states.
fn measured(family: &Arc<dyn Family>, up: f64, rng: &mut Prng) -> Figures {
    let nodes = family.nodes();
    let least = least(family);
    let sizes = family.sizes();
    let live = family.mass(&vec![Odds::down(1.0 - up); nodes]);
    let live = live.map(|mass| mass.live);
    if let Some(live) = live
        && sizes.exact
        && sizes.min == sizes.max
    {
        return Figures {
            live,
            size: sizes.min as f64,
            least,
            exact: true,
        };
    }
    let states = (STATES / nodes.max(1)).clamp(STATES_MIN, STATES_MAX);
    let (mut found, mut members) = (0_usize, 0_usize);
    for _ in 0..states {
        let down = NodeSet::of(nodes, (0..nodes).filter(|_| rng.unit() >= up));
        if let Some(quorum) = pick(family.as_ref(), &down, None, rng) {
            found += 1;
            members += quorum.len();
        }
    }
    let size = if found > 0 {
        members as f64 / found as f64
    } else {
        least as f64
    };
    Figures {
        live: live.unwrap_or(found as f64 / states as f64),
        size,
        least,
        exact: false,
    }
}

/// Random states per coterie, times its nodes.
const STATES: usize = 1_000_000;
const STATES_MIN: usize = 300;
const STATES_MAX: usize = 4_000;

/// What the chains of a hierarchy are like, over all nodes as requesters.
struct Chains {
    live: f64,
    size: f64,
    /// The smallest quorum of each level's largest cluster.
    least: Vec<usize>,
    busiest: f64,
    exact: bool,
}

impl Chains {
    fn of(system: &Multilevel, known: &mut Known<'_>) -> Self {
        let clusters = system.clusters();
        let nodes = clusters.nodes() as f64;
        let mut above = vec![(1.0, 0.0)];
        let mut votes = vec![0.0; clusters.nodes()];
        let mut least = Vec::new();
        let mut exact = true;
        for level in 0..=clusters.levels() {
            let mut here = Vec::with_capacity(clusters.count(level));
            let mut most = 0;
            for id in clusters.at(level) {
                let figures = known.of(system, id);
                let (live, size) = above[clusters.parent(id).map_or(0, ClusterId::index)];
                here.push((live * figures.live, size + figures.size));
                let share = clusters.span(id).len() as f64 / nodes;
                let each = share * figures.size / clusters.size(id) as f64;
                clusters.members(id).for_each(|node| votes[node] += each);
                most = most.max(figures.least);
                exact &= figures.exact;
            }
            least.push(most);
            above = here;
        }
        let (mut live, mut size) = (0.0, 0.0);
        for (leaf, chain) in clusters.at(clusters.levels()).zip(above) {
            let share = clusters.size(leaf) as f64 / nodes;
            live += share * chain.0;
            size += share * chain.1;
        }
        Self {
            live,
            size,
            least,
            busiest: votes.into_iter().fold(0.0, f64::max),
            exact,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::hierarchy::true_delay;
    use crate::text::parse;

    #[test]
    fn the_delay_is_the_known_one_where_quorums_are_alike() {
        for (levels, quorum) in [(0, 3), (1, 3), (2, 3), (3, 3), (1, 4), (0, 4)] {
            let found = delay(&vec![quorum; levels + 1], 8.0, 12.0);
            assert!((found - true_delay(levels, quorum, 8.0, 12.0)).abs() < 1e-9);
        }
        // A larger quorum below holds the request up even if the root is ready.
        assert!(delay(&[3, 9], 8.0, 12.0) > delay(&[3, 3], 8.0, 12.0));
    }

    #[test]
    fn sampled_sizes_agree_with_exact_ones() {
        let no_files = |_: &str| Err(String::new());
        let tree = build(&parse("tree(15)").unwrap(), None, &no_files).unwrap();
        let family = tree.system.family(None).unwrap().clone();
        let found = measured(&family, 0.8, &mut Prng::new(3));
        assert!(!found.exact && (found.live - 0.97938).abs() < 1e-5);
        // The cheapest quorum is a little smaller than the one that the published rule takes.
        assert!(found.size > 4.0 && found.size < 4.57);
    }
}
