//! Everything that is measured of a system, in one place: what `analyze`, `compare` and the
//! planner show.

use crate::build::{Built, Shape};
use crate::measure::failure::{Failure, FailureOptions, Faults, FaultsError, failure};
use crate::measure::hierarchy;
use crate::measure::latency::{LatencyError, LatencyMatrix, LatencyReport, latency};
use crate::measure::load::{Load, load};
use crate::measure::messages::{Messages, messages};
use crate::measure::resilience::{Resilience, resilience};
use crate::measure::{Progress, messages};
use crate::{Family, Sizes, System};
use thiserror::Error;

/// What to measure beside sizes, load, resilience and messages.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// How often nodes and failure domains are down.
    pub faults: Option<Faults>,
    /// How much each node can carry; all 1 by default.
    pub capacity: Option<Vec<f64>>,
    /// Round trips from clients to nodes.
    pub latency: Option<LatencyMatrix>,
    /// Limits of the failure probability's computation.
    pub options: FailureOptions,
}

/// Why a system cannot be measured with these inputs.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum AnalyzeError {
    /// The failure probabilities do not fit.
    #[error(transparent)]
    Faults(#[from] FaultsError),
    /// The latencies do not fit.
    #[error(transparent)]
    Latency(#[from] LatencyError),
    /// The capacities do not fit.
    #[error("{given} capacities for {nodes} nodes: give one per node")]
    Capacity {
        /// How many are given.
        given: usize,
        /// How many nodes there are.
        nodes: usize,
    },
}

/// The measures of one family of quorums.
#[derive(Clone, Debug, PartialEq)]
pub struct Measures {
    /// Smallest and largest minimal quorum.
    pub sizes: Sizes,
    /// How many minimal quorums there are, where that is known.
    pub count: Option<f64>,
    /// The load, with a strategy and its certificate.
    pub load: Load,
    /// How many crashes are survived.
    pub resilience: Resilience,
    /// The probability that no quorum is left.
    pub failure: Option<Failure>,
    /// Messages per entry of each lock protocol.
    pub messages: Messages,
    /// Waiting times for quorums.
    pub latency: Option<LatencyReport>,
}

/// The measures of a system.
#[derive(Clone, Debug, PartialEq)]
pub struct Analysis {
    /// How many nodes there are.
    pub nodes: usize,
    /// The system as a whole. For a group system: all groups equally busy; failure, resilience
    /// and latency of the worst cartel.
    pub whole: Measures,
    /// The cartels of a group system, one each.
    pub cartels: Vec<Measures>,
    /// The exclusive quorums of a group system.
    pub exclusive: Option<Measures>,
    /// Which part of the system each value is of, where it is not of all: for example the tiers
    /// of billiard quorums.
    pub scope: Option<Scope>,
    /// Messages per entry of the multilevel protocol, for multilevel systems.
    pub multilevel_messages: Option<f64>,
}

/// The parts of a system that were measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The part that load, sizes and messages are of: what is used while every node is up.
    pub load: String,
    /// The part that failure probability and resilience are of.
    pub failure: String,
}

/// Measures a system.
pub fn analyze(
    built: &Built,
    inputs: &Inputs,
    progress: &mut dyn FnMut(Progress),
) -> Result<Analysis, AnalyzeError> {
    let nodes = built.system.nodes();
    if let Some(capacity) = &inputs.capacity
        && capacity.len() != nodes
    {
        return Err(AnalyzeError::Capacity {
            given: capacity.len(),
            nodes,
        });
    }
    let mut each = |family: &dyn Family| measure(family, inputs, progress);
    let (whole, cartels, exclusive) = match &built.system {
        System::Groups(groups) => {
            let mut cartels: Vec<Measures> = Vec::new();
            for (place, cartel) in groups.cartels().iter().enumerate() {
                // Groups that share one coterie are measured once.
                let first = &groups.cartels()[0];
                let same = place > 0 && std::sync::Arc::ptr_eq(cartel, first);
                cartels.push(if same {
                    cartels[0].clone()
                } else {
                    each(cartel.as_ref())?
                });
            }
            let exclusive = each(groups.exclusive().family().as_ref())?;
            (together(nodes, &cartels, inputs), cartels, Some(exclusive))
        }
        System::Coterie(_) | System::Masking(_) | System::Loose(_) => {
            let family = built.system.families()[0];
            (each(family.as_ref())?, Vec::new(), None)
        }
    };
    let up = inputs.faults.as_ref().and_then(even_up).unwrap_or(1.0);
    let multilevel_messages = match &built.shape {
        Shape::Multilevel(multilevel) => {
            let clusters = multilevel.clusters();
            let figures = hierarchy::chain_figures(clusters, up);
            let tree = built.text.starts_with("multilevel(tree");
            tree.then(|| figures.messages(clusters.levels()))
        }
        _ => None,
    };
    Ok(Analysis {
        nodes,
        whole,
        cartels,
        exclusive,
        scope: scope(built),
        multilevel_messages,
    })
}

/// The one probability of being up that all nodes share, if they do.
pub fn even_up(faults: &Faults) -> Option<f64> {
    let down = *faults.down().first()?;
    faults
        .down()
        .iter()
        .all(|other| *other == down)
        .then_some(1.0 - down)
}

fn measure(
    family: &dyn Family,
    inputs: &Inputs,
    progress: &mut dyn FnMut(Progress),
) -> Result<Measures, AnalyzeError> {
    let load = load(family, inputs.capacity.as_deref(), progress);
    let failure = match &inputs.faults {
        Some(faults) => Some(failure(family, faults, &inputs.options, progress)?),
        None => None,
    };
    let latency = match &inputs.latency {
        Some(matrix) => Some(latency(family, matrix, &load, 1000, inputs.options.seed)?),
        None => None,
    };
    let mut sizes = family.primary().unwrap_or(family).sizes();
    if !sizes.exact {
        let used = load.strategy.iter().map(|(quorum, _)| quorum.len());
        sizes.min = used.fold(sizes.min, usize::min);
    }
    Ok(Measures {
        sizes,
        count: family.primary().unwrap_or(family).count(),
        resilience: resilience(family, progress),
        failure,
        messages: messages(family.nodes(), load.mean_size()),
        latency,
        load,
    })
}

/// A group system with all groups equally busy.
fn together(nodes: usize, cartels: &[Measures], inputs: &Inputs) -> Measures {
    let share = 1.0 / cartels.len() as f64;
    let mut loads = vec![0.0; nodes];
    let mut strategy = Vec::new();
    for cartel in cartels {
        for (load, own) in loads.iter_mut().zip(&cartel.load.loads) {
            *load += own * share;
        }
        strategy.extend(
            cartel
                .load
                .strategy
                .iter()
                .map(|(set, p)| (set.clone(), p * share)),
        );
    }
    let units = vec![1.0; nodes];
    let capacity = inputs.capacity.as_ref().unwrap_or(&units);
    let over = loads
        .iter()
        .zip(capacity)
        .map(|(load, capacity)| load / capacity);
    let upper = over.fold(0.0, f64::max);
    // Whatever the strategies, the groups' smallest quorums must be carried by all nodes.
    let smallest: f64 = cartels
        .iter()
        .map(|cartel| cartel.sizes.min as f64 * share)
        .sum();
    let lower = smallest / capacity.iter().sum::<f64>();
    let worst = |a: &&Measures, b: &&Measures| {
        let value = |measures: &Measures| measures.failure.map_or(0.0, |failure| failure.value);
        value(a).total_cmp(&value(b))
    };
    let failure = cartels
        .iter()
        .max_by(worst)
        .and_then(|cartel| cartel.failure);
    let weakest = cartels.iter().min_by_key(|cartel| cartel.resilience.value);
    let load = Load {
        lower: lower.min(upper),
        upper,
        weights: vec![1.0 / nodes as f64; nodes],
        exact: (upper - lower).abs() <= 1e-9 * upper,
        loads,
        strategy,
        method: "each group by its own strategy",
    };
    let latencies = cartels.iter().filter_map(|cartel| cartel.latency.as_ref());
    let farthest = latencies.max_by(|a, b| a.nearest_p50.total_cmp(&b.nearest_p50));
    let pairs = |f: fn(&Measures) -> Option<f64>| cartels.iter().map(f).sum::<Option<f64>>();
    Measures {
        sizes: Sizes {
            min: cartels
                .iter()
                .map(|cartel| cartel.sizes.min)
                .min()
                .unwrap_or(0),
            max: cartels
                .iter()
                .map(|cartel| cartel.sizes.max)
                .max()
                .unwrap_or(0),
            exact: cartels.iter().all(|cartel| cartel.sizes.exact),
        },
        count: pairs(|cartel| cartel.count),
        resilience: weakest.map_or(
            Resilience {
                value: 0,
                upper: 0,
                exact: true,
                witness: None,
            },
            |cartel| cartel.resilience.clone(),
        ),
        failure,
        messages: messages::messages_of(&load),
        latency: farthest.cloned(),
        load,
    }
}

fn scope(built: &Built) -> Option<Scope> {
    if let Shape::Billiard(billiard) = &built.shape {
        let all = billiard.tiers().to_string();
        let used = if all.contains("T1") { "T1" } else { "T0" };
        let first = billiard.primary().is_some();
        return Some(Scope {
            load: if first { used.to_owned() } else { all.clone() },
            failure: all,
        });
    }
    let families = built.system.families();
    let fallback = families.iter().any(|family| family.primary().is_some());
    fallback.then(|| Scope {
        load: "base quorums".to_owned(),
        failure: "base and fallback quorums".to_owned(),
    })
}
