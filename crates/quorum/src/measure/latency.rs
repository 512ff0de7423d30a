//! Latency of quorums from a client-by-node matrix.
//!
//! A client waits for the slowest member of its quorum. Nearest: it takes the quorum that is
//! ready first. Balanced: it draws quorums by the strategy that spreads the load best.

use thiserror::Error;

use crate::{Family, NodeSet, Prng};

use super::load::Load;

/// The time from each client to each node and back, in milliseconds. An infinite time is a node
/// out of the client's reach.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyMatrix {
    clients: Vec<String>,
    nodes: usize,
    ms: Vec<Vec<f64>>,
}

impl LatencyMatrix {
    /// One row per client, one column per node.
    pub fn new(
        clients: Vec<String>,
        nodes: usize,
        ms: Vec<Vec<f64>>,
    ) -> Result<Self, LatencyError> {
        if clients.is_empty() {
            return Err(LatencyError::NoClients);
        }
        if clients.len() != ms.len() {
            return Err(LatencyError::Rows {
                clients: clients.len(),
                rows: ms.len(),
            });
        }
        for (client, row) in clients.iter().zip(&ms) {
            if row.len() != nodes {
                return Err(LatencyError::Width {
                    client: client.clone(),
                    width: row.len(),
                    nodes,
                });
            }
            if let Some(node) = row.iter().position(|time| time.is_nan() || *time < 0.0) {
                return Err(LatencyError::Time {
                    client: client.clone(),
                    node: node + 1,
                    value: row[node],
                });
            }
        }
        Ok(Self { clients, nodes, ms })
    }

    /// The clients' names.
    pub fn clients(&self) -> &[String] {
        &self.clients
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// The times, one row per client.
    pub fn ms(&self) -> &[Vec<f64>] {
        &self.ms
    }
}

/// Why latencies were refused.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum LatencyError {
    /// There is no row.
    #[error("the latency table has no client: give a line per client")]
    NoClients,
    /// Names and rows differ in number.
    #[error("there are {rows} rows of latencies for {clients} clients: give one row for each")]
    Rows {
        /// How many names there are.
        clients: usize,
        /// How many rows there are.
        rows: usize,
    },
    /// A row has the wrong width.
    #[error("client '{client}' has {width} latencies for {nodes} nodes: give one for each node")]
    Width {
        /// The client.
        client: String,
        /// How many values its row has.
        width: usize,
        /// How many nodes there are.
        nodes: usize,
    },
    /// A value is no time.
    #[error(
        "client '{client}' reaches node {node} in {value} ms: give a time that is not negative, \
         or inf for a node out of reach"
    )]
    Time {
        /// The client.
        client: String,
        /// The node, from 1.
        node: usize,
        /// The value given.
        value: f64,
    },
    /// The matrix is for another number of nodes.
    #[error("the latency table has {given} nodes, but the system has {nodes}")]
    Nodes {
        /// How many the table has.
        given: usize,
        /// How many the system has.
        nodes: usize,
    },
}

/// Waiting times for quorums, in milliseconds; infinite where none is in reach.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyReport {
    /// Each client's time to its nearest quorum.
    pub nearest: Vec<f64>,
    /// Median of `nearest` over the clients.
    pub nearest_p50: f64,
    /// The time within which 99% of the clients have their nearest quorum.
    pub nearest_p99: f64,
    /// Median over clients and quorums drawn by the strategy.
    pub balanced_p50: f64,
    /// The time within which 99% of those draws are ready.
    pub balanced_p99: f64,
}

/// The latencies of `family` for the clients of `matrix`. Balanced quorums are drawn from the
/// strategy of `load`, `samples` for each client; where that is the family's own, from its
/// sampler.
pub fn latency(
    family: &dyn Family,
    matrix: &LatencyMatrix,
    load: &Load,
    samples: usize,
    seed: u64,
) -> Result<LatencyReport, LatencyError> {
    if matrix.nodes != family.nodes() {
        return Err(LatencyError::Nodes {
            given: matrix.nodes,
            nodes: family.nodes(),
        });
    }
    let nearest: Vec<f64> = matrix.ms.iter().map(|row| nearest(family, row)).collect();
    let balanced = balanced(family, matrix, load, samples, seed);
    Ok(LatencyReport {
        nearest_p50: percentile(&nearest, 0.5),
        nearest_p99: percentile(&nearest, 0.99),
        nearest,
        balanced_p50: percentile(&balanced, 0.5),
        balanced_p99: percentile(&balanced, 0.99),
    })
}

/// The least time within which the nodes that have answered contain a quorum.
fn nearest(family: &dyn Family, row: &[f64]) -> f64 {
    let mut times: Vec<f64> = row
        .iter()
        .copied()
        .filter(|time| time.is_finite())
        .collect();
    times.sort_by(f64::total_cmp);
    times.dedup();
    let within = |limit: f64| {
        let ready = (0..row.len()).filter(|node| row[*node] <= limit);
        family.contains_quorum(&NodeSet::of(row.len(), ready))
    };
    let place = times.partition_point(|time| !within(*time));
    times.get(place).copied().unwrap_or(f64::INFINITY)
}

fn balanced(
    family: &dyn Family,
    matrix: &LatencyMatrix,
    load: &Load,
    samples: usize,
    seed: u64,
) -> Vec<f64> {
    let family = family.primary().unwrap_or(family);
    let shares: Vec<f64> = load.strategy.iter().map(|(_, share)| *share).collect();
    let mut rng = Prng::new(seed);
    let mut times = Vec::with_capacity(matrix.ms.len() * samples);
    for row in &matrix.ms {
        for _ in 0..samples.max(1) {
            let time = match rng.weighted(&shares) {
                Some(index) => slowest(&load.strategy[index].0, row),
                None => slowest(&family.sample(&mut rng), row),
            };
            times.push(time);
        }
    }
    times
}

fn slowest(quorum: &NodeSet, row: &[f64]) -> f64 {
    quorum
        .iter()
        .filter_map(|node| row.get(node).copied())
        .fold(0.0, f64::max)
}

/// The smallest value that at least this share of the values does not exceed.
fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted.get(rank - 1).copied().unwrap_or(f64::INFINITY)
}
