//! Failure probability: how likely it is that no quorum is left.
//!
//! | way | when | answer |
//! |---|---|---|
//! | recurrence | the construction knows one ([`Family::mass`]) | exact |
//! | enumeration | at most 20 nodes | exact |
//! | decision diagram | the family's circuit has a small enough one | exact |
//! | simulation | otherwise | an interval |
//!
//! Exact ways only add and multiply numbers that are not negative, so that tiny probabilities
//! keep their digits: nothing is found as one minus something close to one.

mod model;

use thiserror::Error;

use crate::{Family, NodeSet};

use super::Progress;
use model::Model;

/// The probability that no quorum is left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Failure {
    /// The probability, or the best guess at it.
    pub value: f64,
    /// Whether `value` is exact but for rounding.
    pub exact: bool,
    /// Low end of the confidence interval; `value` if that is exact.
    pub low: f64,
    /// High end of the confidence interval; `value` if that is exact.
    pub high: f64,
    /// How it was found, in a word or two.
    pub method: &'static str,
    /// How many random states were tried; 0 if the value is exact.
    pub samples: u64,
}

/// Which nodes are down how often. Nodes and domains fail independently of each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Faults {
    down: Vec<f64>,
    domains: Vec<Domain>,
}

/// Nodes that go down together: a rack, a zone, a power feed. A node may be in several.
#[derive(Clone, Debug, PartialEq)]
pub struct Domain {
    /// The nodes that are down whenever the domain is.
    pub nodes: NodeSet,
    /// The probability that the domain is down.
    pub down: f64,
}

impl Faults {
    /// Each node down with its own probability, and domains on top.
    pub fn new(down: Vec<f64>, domains: Vec<Domain>) -> Result<Self, FaultsError> {
        for (node, probability) in down.iter().enumerate() {
            if !is_probability(*probability) {
                return Err(FaultsError::Node {
                    node: node + 1,
                    value: *probability,
                });
            }
        }
        for (index, domain) in domains.iter().enumerate() {
            if !is_probability(domain.down) {
                return Err(FaultsError::Domain {
                    domain: index + 1,
                    value: domain.down,
                });
            }
            if let Some(node) = domain.nodes.iter().find(|node| *node >= down.len()) {
                return Err(FaultsError::DomainNode {
                    domain: index + 1,
                    node: node + 1,
                    nodes: down.len(),
                });
            }
        }
        let domains = domains
            .into_iter()
            .map(|domain| Domain {
                nodes: NodeSet::of(down.len(), domain.nodes.iter()),
                down: domain.down,
            })
            .collect();
        Ok(Self { down, domains })
    }

    /// Every one of `nodes` nodes down with the same probability, and no domains.
    pub fn uniform(nodes: usize, down: f64) -> Result<Self, FaultsError> {
        Self::new(vec![down; nodes], Vec::new())
    }

    /// The probability that each node is down by itself.
    pub fn down(&self) -> &[f64] {
        &self.down
    }

    /// The domains.
    pub fn domains(&self) -> &[Domain] {
        &self.domains
    }
}

/// Why fault probabilities were refused.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum FaultsError {
    /// A node's probability is not one.
    #[error(
        "node {node} is down with probability {value}: give a number from 0 to 1, such as 0.01"
    )]
    Node {
        /// The node, from 1.
        node: usize,
        /// The value given.
        value: f64,
    },
    /// A domain's probability is not one.
    #[error(
        "domain {domain} is down with probability {value}: give a number from 0 to 1, such as 0.01"
    )]
    Domain {
        /// The domain, from 1.
        domain: usize,
        /// The value given.
        value: f64,
    },
    /// A domain holds a node that does not exist.
    #[error("domain {domain} has node {node}, but the nodes are 1 to {nodes}")]
    DomainNode {
        /// The domain, from 1.
        domain: usize,
        /// The node, from 1.
        node: usize,
        /// How many nodes there are.
        nodes: usize,
    },
    /// The probabilities are for another number of nodes.
    #[error("there are {given} node probabilities for {nodes} nodes: give one for each node")]
    Length {
        /// How many were given.
        given: usize,
        /// How many nodes the family has.
        nodes: usize,
    },
}

/// Limits of the computation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FailureOptions {
    /// How many nodes a decision diagram may have.
    pub diagram_nodes: usize,
    /// How many random states to try where no exact way is open.
    pub samples: u64,
    /// Seed of the random states.
    pub seed: u64,
    /// How likely the interval of a simulation is to hold the true value, such as 0.95.
    pub confidence: f64,
}

impl Default for FailureOptions {
    fn default() -> Self {
        Self {
            diagram_nodes: 2_000_000,
            samples: 100_000,
            seed: 1,
            confidence: 0.95,
        }
    }
}

/// The failure probability of `family` under `faults`.
pub fn failure(
    family: &dyn Family,
    faults: &Faults,
    options: &FailureOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Failure, FaultsError> {
    if faults.down.len() != family.nodes() {
        return Err(FaultsError::Length {
            given: faults.down.len(),
            nodes: family.nodes(),
        });
    }
    Ok(Model::new(family, faults.domains(), options).failure(faults.down(), progress))
}

/// The failure probability for each of `probabilities`, with every node down alike and no
/// domains: the points of a curve. Diagrams are built once for all points, and simulations use
/// the same random numbers for each, so that the curve is smooth.
pub fn curve(
    family: &dyn Family,
    probabilities: &[f64],
    options: &FailureOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<Failure>, FaultsError> {
    let mut model = Model::new(family, &[], options);
    probabilities
        .iter()
        .map(|down| {
            let faults = Faults::uniform(family.nodes(), *down)?;
            Ok(model.failure(faults.down(), progress))
        })
        .collect()
}

fn is_probability(value: f64) -> bool {
    (0.0..=1.0).contains(&value)
}
