//! Failure probabilities, capacities and latencies from the command line.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use conclave_quorum::analyze::Inputs;
use conclave_quorum::measure::failure::{FailureOptions, Faults};
use conclave_quorum::measure::latency::LatencyMatrix;
use conclave_quorum::measure::tables;

use crate::cli::Failure;

/// A probability.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probability(pub(crate) f64);

impl FromStr for Probability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(value) if (0.0..=1.0).contains(&value) => Ok(Self(value)),
            _ => Err("a probability is a number from 0 to 1".to_owned()),
        }
    }
}

/// A probability, or an inclusive range `A..B` of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) from: f64,
    pub(crate) to: f64,
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (from, to) = text.split_once("..").unwrap_or((text, text));
        let (Probability(from), Probability(to)) = (from.parse()?, to.parse()?);
        if from > to {
            return Err("a range A..B goes upwards".to_owned());
        }
        Ok(Self { from, to })
    }
}

/// How often nodes fail, and how failures are computed.
#[derive(Debug, Args)]
pub(crate) struct FaultArgs {
    /// The probability that a node is down
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    down: Option<Probability>,
    /// The probability that a node is up: the same as --down 1-P
    #[arg(
        long,
        value_name = "P",
        allow_negative_numbers = true,
        conflicts_with = "down"
    )]
    up: Option<Probability>,
    /// A file of 'node,p' lines: each node's own probability of being down
    #[arg(long, value_name = "FILE", conflicts_with_all = ["down", "up"])]
    down_file: Option<PathBuf>,
    /// A file of 'name,p,1 2 3' lines: nodes that go down together
    #[arg(long, value_name = "FILE")]
    domains: Option<PathBuf>,
    #[command(flatten)]
    effort: Effort,
}

/// How much work an answer may take.
#[derive(Debug, Args)]
pub(crate) struct Effort {
    /// Random states tried where no exact value can be had
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    samples: u64,
    /// The seed of those states
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Effort {
    pub(crate) fn options(&self) -> Result<FailureOptions, Failure> {
        if !(1..=1_000_000_000).contains(&self.samples) {
            return Err(Failure::input(
                "--samples takes a number from 1 to 1000000000",
            ));
        }
        Ok(FailureOptions {
            samples: self.samples,
            seed: self.seed,
            ..FailureOptions::default()
        })
    }
}

impl FaultArgs {
    fn faults(&self, nodes: usize) -> Result<Option<Faults>, Failure> {
        let down = match (&self.down, &self.up, &self.down_file) {
            (Some(Probability(down)), _, _) => vec![*down; nodes],
            (_, Some(Probability(up)), _) => vec![1.0 - up; nodes],
            (_, _, Some(path)) => parsed(path, |text| tables::parse_down(text, nodes))?,
            _ if self.domains.is_some() => vec![0.0; nodes],
            _ => return Ok(None),
        };
        let domains = match &self.domains {
            Some(path) => parsed(path, |text| tables::parse_domains(text, nodes))?,
            None => Vec::new(),
        };
        Faults::new(down, domains).map(Some).map_err(Failure::input)
    }
}

/// Everything that measures take as input.
#[derive(Debug, Args)]
pub(crate) struct InputArgs {
    #[command(flatten)]
    faults: FaultArgs,
    /// A file of 'node,capacity' lines; every node has capacity 1 without it
    #[arg(long, value_name = "FILE")]
    capacity: Option<PathBuf>,
    /// A file with a line per client: its name and its round trip to each node in milliseconds
    #[arg(long, value_name = "FILE")]
    latency: Option<PathBuf>,
}

impl InputArgs {
    pub(crate) fn read(&self, nodes: usize) -> Result<Inputs, Failure> {
        let capacity = match &self.capacity {
            Some(path) => Some(parsed(path, |text| tables::parse_capacities(text, nodes))?),
            None => None,
        };
        let latency = match &self.latency {
            Some(path) => Some(parsed(path, |text| LatencyMatrix::parse(text, nodes))?),
            None => None,
        };
        Ok(Inputs {
            faults: self.faults.faults(nodes)?,
            capacity,
            latency,
            options: self.faults.effort.options()?,
        })
    }
}

/// Reads a table from a file; what is wrong with it is told with the file's name.
fn parsed<T, E: Display>(path: &Path, parse: impl Fn(&str) -> Result<T, E>) -> Result<T, Failure> {
    let text = super::read_option(path)?;
    parse(&text).map_err(|error| Failure::Input(format!("file '{}': {error}", path.display())))
}
