//! `conclave sim replay`.

use std::io::{self, BufWriter, Write};
use std::str::FromStr;

use clap::Args;
use conclave_protocol::id::NodeId;
use conclave_sim::fact::{True, Violation};
use conclave_sim::trace::{Filter, Line};
use conclave_sim::{Options, Outcome, invariants};
use serde_json::{Value, json};

use super::{checked, guarded, quiet_panics, thousands, violation_json};
use crate::cli::Failure;
use crate::output;

#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// What a failing run printed, in quotes: options as key=value, separated by ';'
    token: String,
    /// Nothing before this second
    #[arg(long, value_name = "SECONDS")]
    from: Option<Moment>,
    /// Nothing after this second
    #[arg(long, value_name = "SECONDS")]
    to: Option<Moment>,
    /// Only what concerns this node, from 1
    #[arg(long, value_name = "NODE")]
    node: Option<usize>,
    /// Only the result, no trace
    #[arg(long)]
    quiet: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A moment of a run, in seconds.
#[derive(Clone, Copy, Debug)]
struct Moment(True);

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let seconds = text.trim_end_matches('s').parse::<f64>().ok();
        let seconds = seconds.filter(|seconds| (0.0..=1e9).contains(seconds));
        let seconds = seconds.ok_or("give seconds, for example 1.25")?;
        Ok(Self(True((seconds * 1e9).round() as u64)))
    }
}

/// Takes the options out of what people paste: the token itself, or the whole command.
fn token(text: &str) -> &str {
    let text = text.trim();
    let text = text.strip_prefix("conclave sim replay").unwrap_or(text);
    text.trim().trim_matches(|mark| mark == '\'' || mark == '"')
}

impl Replay {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let text = token(&self.token);
        quiet_panics();
        if let Some(options) = super::lease::token(text) {
            let options = options?;
            let filter = self.filter(options.nodes as usize)?;
            return self.show(filter, "leases", |tracer| {
                Ok(super::lease::replayed(&options, tracer))
            });
        }
        if let Some(options) = super::object::token(text) {
            let options = options?;
            let filter = self.filter(options.nodes as usize)?;
            return self.show(filter, "operations", |tracer| {
                Ok(super::object::replayed(&options, tracer))
            });
        }
        if let Some(options) = super::multilevel::token(text) {
            let options = options?;
            let nodes = options.topology().map_err(Failure::input)?.nodes();
            let filter = self.filter(nodes)?;
            return self.show(filter, "locks entered", |tracer| {
                Ok(super::multilevel::replayed(&options, tracer))
            });
        }
        let options: Options = text.parse().map_err(|error| {
            Failure::Input(format!("the token is not one that a run prints: {error}"))
        })?;
        checked(&options)?;
        let nodes = options.build_system().map_err(Failure::input)?.nodes();
        let filter = self.filter(nodes)?;
        self.show(filter, "locks entered", |tracer| replayed(&options, tracer))
    }

    /// Lets the world happen and prints it; `got` says what it was about.
    fn show(
        &self,
        filter: Filter,
        got: &str,
        play: impl FnOnce(&mut dyn FnMut(&Line)) -> Result<Outcome, Failure>,
    ) -> Result<(), Failure> {
        if self.json {
            return self.print_json(filter, play);
        }
        let mut out = BufWriter::new(io::stdout().lock());
        let mut broken = Ok(());
        let outcome = play(&mut |line| {
            if broken.is_ok() && !self.quiet && filter.shows(line) {
                broken = writeln!(out, "{line}");
            }
        })?;
        broken.and_then(|()| out.flush())?;
        drop(out);
        let (events, grants) = (thousands(outcome.events), thousands(outcome.grants));
        let result = match &outcome.violation {
            Some(Violation { property, what, .. }) => format!("{property} is BROKEN: {what}"),
            None => "no property was broken".to_owned(),
        };
        output::line(format!("{events} events, {grants} {got}: {result}"))?;
        ended(&outcome)
    }

    fn filter(&self, nodes: usize) -> Result<Filter, Failure> {
        let node = match self.node {
            Some(node) => Some(NodeId(crate::quorum::node(node, nodes)? as u32)),
            None => None,
        };
        if let (Some(from), Some(to)) = (self.from, self.to)
            && from.0 > to.0
        {
            return Err(Failure::input("--from is later than --to: nothing to show"));
        }
        Ok(Filter {
            from: self.from.map(|moment| moment.0),
            to: self.to.map(|moment| moment.0),
            node,
        })
    }

    fn print_json(
        &self,
        filter: Filter,
        play: impl FnOnce(&mut dyn FnMut(&Line)) -> Result<Outcome, Failure>,
    ) -> Result<(), Failure> {
        let mut lines: Vec<Value> = Vec::new();
        let outcome = play(&mut |line| {
            if !self.quiet && filter.shows(line) {
                lines.push(json!({
                    "at": line.at.0 as f64 / 1e9,
                    "node": line.node.map(|node| node.index() + 1),
                    "client": line.client.map(|client| client + 1),
                    "what": line.text,
                }));
            }
        })?;
        output::json(&json!({
            "events": outcome.events,
            "grants": outcome.grants,
            "violation": violation_json(&outcome),
            "lines": lines,
        }))?;
        ended(&outcome)
    }
}

fn ended(outcome: &Outcome) -> Result<(), Failure> {
    if outcome.violation.is_some() {
        return Err(Failure::Violation);
    }
    Ok(())
}

/// Runs the world with all checkers.
fn replayed(options: &Options, tracer: &mut dyn FnMut(&Line)) -> Result<Outcome, Failure> {
    let config = options.config(true).map_err(Failure::input)?;
    let mut checkers = invariants::all(&config);
    guarded(
        options,
        &mut checkers,
        Some(&mut |line: &Line| tracer(line)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_may_come_with_its_command() {
        assert_eq!(
            token(" conclave sim replay 'seed=1;clients=2'\n"),
            "seed=1;clients=2"
        );
        assert_eq!(token("seed=1"), "seed=1");
    }

    #[test]
    fn moments_are_seconds() {
        assert_eq!("1.5s".parse::<Moment>().unwrap().0, True(1_500_000_000));
        assert!("-1".parse::<Moment>().is_err());
        assert!("NaN".parse::<Moment>().is_err());
    }
}
