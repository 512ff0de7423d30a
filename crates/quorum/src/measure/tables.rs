//! Tables of node properties as comma-separated text.
//!
//! One entry per line; blank lines and everything after `#` are left out; a header line is
//! optional. Nodes are counted from 1.
//!
//! | table | line | header |
//! |---|---|---|
//! | capacities | `node,capacity` | `node,capacity` |
//! | failure probabilities | `node,p` | `node,p` |
//! | failure domains | `domain,p,nodes`, the nodes apart by spaces | `domain,p,nodes` |
//! | latencies | `client,ms,ms,...`, one for each node | `client,1,2,...` |

use thiserror::Error;

use crate::NodeSet;

use super::failure::Domain;
use super::latency::{LatencyError, LatencyMatrix};

/// Why a table was refused.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum TableError {
    /// A line is not of the expected form.
    #[error("line {line}: expected {expected}, found '{found}'")]
    Line {
        /// The line, from 1.
        line: usize,
        /// What was expected, in words.
        expected: String,
        /// What was there.
        found: String,
    },
    /// A node, domain or client has two lines.
    #[error("line {line}: {what} is already on line {first}: give it one line only")]
    Twice {
        /// The second line, from 1.
        line: usize,
        /// What is repeated.
        what: String,
        /// The first line.
        first: usize,
    },
    /// A node has no line.
    #[error("node {node} has no line: expected one line for each of the nodes 1 to {nodes}")]
    Missing {
        /// The node, from 1.
        node: usize,
        /// How many nodes there are.
        nodes: usize,
    },
    /// Values given for another number of nodes.
    #[error("there are {given} values for {nodes} nodes: give one for each node")]
    Length {
        /// How many were given.
        given: usize,
        /// How many nodes there are.
        nodes: usize,
    },
    /// A capacity is not positive.
    #[error("node {node} has capacity {value}: give a positive number")]
    Capacity {
        /// The node, from 1.
        node: usize,
        /// The value given.
        value: f64,
    },
    /// The latencies do not form a table.
    #[error(transparent)]
    Latency(#[from] LatencyError),
}

/// Whether `capacity` has one positive, finite value for each of `nodes` nodes.
pub fn check_capacities(capacity: &[f64], nodes: usize) -> Result<(), TableError> {
    if capacity.len() != nodes {
        return Err(TableError::Length {
            given: capacity.len(),
            nodes,
        });
    }
    match capacity.iter().position(|value| !is_capacity(*value)) {
        Some(node) => Err(TableError::Capacity {
            node: node + 1,
            value: capacity[node],
        }),
        None => Ok(()),
    }
}

/// Capacities, one `node,capacity` line for each node.
pub fn parse_capacities(text: &str, nodes: usize) -> Result<Vec<f64>, TableError> {
    per_node(text, nodes, "capacity", "a positive capacity", is_capacity)
}

/// Probabilities of being down, one `node,p` line for each node.
pub fn parse_down(text: &str, nodes: usize) -> Result<Vec<f64>, TableError> {
    let expected = "a probability from 0 to 1";
    per_node(text, nodes, "p", expected, is_probability)
}

/// Failure domains, one `domain,p,nodes` line for each, such as `rack-a,0.001,1 2 3`.
pub fn parse_domains(text: &str, nodes: usize) -> Result<Vec<Domain>, TableError> {
    let mut domains = Vec::new();
    let mut names: Vec<(String, usize)> = Vec::new();
    for line in lines(text, |first| first.eq_ignore_ascii_case("domain")) {
        let [name, down, members] = line.fields.as_slice() else {
            return Err(line.error("domain,p,nodes such as 'rack-a,0.001,1 2 3'", line.text));
        };
        if name.is_empty() {
            return Err(line.error("a name for the domain", line.text));
        }
        line.unique(format!("domain '{name}'"), name, &mut names)?;
        let down = line.number(down, "a probability from 0 to 1", is_probability)?;
        let mut set = NodeSet::new(nodes);
        for member in members.split_whitespace() {
            if !set.insert(line.node(member, nodes)?) {
                return Err(line.error("each node of a domain once", member));
            }
        }
        if set.is_empty() {
            return Err(line.error("the domain's nodes apart by spaces", members));
        }
        domains.push(Domain { nodes: set, down });
    }
    Ok(domains)
}

impl LatencyMatrix {
    /// Latencies in milliseconds, one `client,ms,ms,...` line for each client with one value for
    /// each node; `inf` for a node out of reach.
    pub fn parse(text: &str, nodes: usize) -> Result<Self, TableError> {
        let expected = format!("a client's name and {nodes} latencies in ms");
        let mut clients: Vec<(String, usize)> = Vec::new();
        let mut ms = Vec::new();
        for line in lines(text, |first| first.eq_ignore_ascii_case("client")) {
            let (name, values) = match line.fields.split_first() {
                Some((name, values)) if values.len() == nodes && !name.is_empty() => (name, values),
                _ => return Err(line.error(&expected, line.text)),
            };
            line.unique(format!("client '{name}'"), name, &mut clients)?;
            let time = "a time in ms that is not negative, or inf";
            let row: Result<Vec<f64>, TableError> = values
                .iter()
                .map(|value| line.number(value, time, |ms| ms >= 0.0))
                .collect();
            ms.push(row?);
        }
        let clients = clients.into_iter().map(|(name, _)| name).collect();
        Ok(Self::new(clients, nodes, ms)?)
    }
}

/// A table with one value for each node.
fn per_node(
    text: &str,
    nodes: usize,
    column: &str,
    expected: &str,
    valid: fn(f64) -> bool,
) -> Result<Vec<f64>, TableError> {
    let mut values: Vec<Option<(f64, usize)>> = vec![None; nodes];
    for line in lines(text, |first| first.eq_ignore_ascii_case("node")) {
        let [node, value] = line.fields.as_slice() else {
            return Err(line.error(&format!("node,{column}"), line.text));
        };
        let node = line.node(node, nodes)?;
        let value = line.number(value, expected, valid)?;
        if let Some((_, first)) = values[node] {
            return Err(TableError::Twice {
                line: line.number,
                what: format!("node {}", node + 1),
                first,
            });
        }
        values[node] = Some((value, line.number));
    }
    values
        .iter()
        .enumerate()
        .map(|(node, value)| match value {
            Some((value, _)) => Ok(*value),
            None => Err(TableError::Missing {
                node: node + 1,
                nodes,
            }),
        })
        .collect()
}

/// A line with content.
struct Line<'a> {
    number: usize,
    text: &'a str,
    fields: Vec<&'a str>,
}

/// The lines with content, without the header if the first of them is one.
fn lines(text: &str, is_header: impl Fn(&str) -> bool) -> impl Iterator<Item = Line<'_>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.lines().enumerate().filter_map(|(index, line)| {
        let text = line.split('#').next().unwrap_or("").trim();
        (!text.is_empty()).then(|| Line {
            number: index + 1,
            text,
            fields: text.split(',').map(str::trim).collect(),
        })
    });
    lines
        .enumerate()
        .filter(move |(place, line)| *place > 0 || !is_header(line.fields[0]))
        .map(|(_, line)| line)
}

impl Line<'_> {
    fn error(&self, expected: &str, found: &str) -> TableError {
        TableError::Line {
            line: self.number,
            expected: expected.to_owned(),
            found: found.to_owned(),
        }
    }

    /// A node number from 1 as an index from 0.
    fn node(&self, text: &str, nodes: usize) -> Result<usize, TableError> {
        text.parse::<usize>()
            .ok()
            .and_then(|number| number.checked_sub(1))
            .filter(|node| *node < nodes)
            .ok_or_else(|| self.error(&format!("a node from 1 to {nodes}"), text))
    }

    fn number(
        &self,
        text: &str,
        expected: &str,
        valid: impl Fn(f64) -> bool,
    ) -> Result<f64, TableError> {
        text.parse::<f64>()
            .ok()
            .filter(|value| valid(*value))
            .ok_or_else(|| self.error(expected, text))
    }

    fn unique(
        &self,
        what: String,
        name: &str,
        names: &mut Vec<(String, usize)>,
    ) -> Result<(), TableError> {
        if let Some((_, first)) = names.iter().find(|(other, _)| other == name) {
            return Err(TableError::Twice {
                line: self.number,
                what,
                first: *first,
            });
        }
        names.push((name.to_owned(), self.number));
        Ok(())
    }
}

fn is_capacity(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

fn is_probability(value: f64) -> bool {
    (0.0..=1.0).contains(&value)
}
