//! `conclave bench --against`: other systems and Conclave under the same loads, one after the
//! other on this machine, and one table of what was seen.

mod conclave;
mod measure;
mod rows;
#[cfg(feature = "peers")]
mod servers;
mod site;
mod targets;
mod visit;

#[cfg(feature = "peers")]
mod etcd;
#[cfg(feature = "peers")]
mod redis;
#[cfg(feature = "peers")]
mod redlock;
#[cfg(feature = "peers")]
mod zookeeper;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::load::Load;
use crate::cli::Failure;
use crate::output;
use crate::service::shape::Shape;
use crate::service::signals::{Stops, code_of_signal};

use rows::Row;
#[cfg(feature = "peers")]
use site::installed;
use site::{Place, System};

/// The flags of a comparison.
#[derive(Debug, Args)]
pub(super) struct Flags {
    /// Measure Conclave beside other systems, all started on this machine; 'conclave' alone
    /// measures no others
    #[arg(long, value_name = "SYSTEM,..", value_delimiter = ',')]
    #[arg(conflicts_with_all = [
        "held", "used", "objects", "beside", "rate", "restart", "connections"
    ])]
    against: Vec<Peer>,
    /// Write the result as a page with plots, and the plots beside it
    #[arg(long, value_name = "FILE", requires = "against")]
    html: Option<PathBuf>,
    /// Where etcd, redis-server and zookeeper.jar are; without it where packages put them
    #[arg(long, value_name = "DIR", requires = "against")]
    peers_path: Option<PathBuf>,
}

impl Flags {
    /// Whether a comparison was asked for.
    pub(super) fn wanted(&self) -> bool {
        !self.against.is_empty()
    }
}

/// What can be named beside Conclave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Peer {
    /// Nothing else
    Conclave,
    /// etcd's lock service, with a lease per client
    Etcd,
    /// ZooKeeper's lock recipe
    Zookeeper,
    /// One Redis, which survives nothing
    Redis,
    /// Redlock over as many Redis as there are nodes
    Redlock,
}

/// What shall be measured.
pub(super) struct Plan<'a> {
    pub(super) flags: &'a Flags,
    pub(super) shape: &'a Shape,
    pub(super) clients: &'a [usize],
    pub(super) loads: &'a [Load],
    pub(super) names: usize,
    pub(super) span: Duration,
    pub(super) rounds: u32,
    pub(super) json: bool,
}

/// What was not measured, and why.
#[derive(Default)]
struct Left {
    /// Systems that are not here or failed.
    skipped: Vec<Value>,
    /// Loads that a system cannot do.
    impossible: Vec<Value>,
}

impl Left {
    fn skip(&mut self, system: System, why: &str) {
        anstream::eprintln!("{} is skipped: {why}", system.name());
        let entry = json!({"system": system.name(), "why": why});
        if !self.skipped.contains(&entry) {
            self.skipped.push(entry);
        }
    }

    fn cannot(&mut self, system: System, load: Load, why: &str) {
        let entry = json!({"system": system.name(), "load": load.name(), "why": why});
        if !self.impossible.contains(&entry) {
            self.impossible.push(entry);
        }
    }
}

/// Measures and reports.
pub(super) fn run(plan: &Plan<'_>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .worker_threads(2)
        .build()?;
    let result: Result<(Vec<Row>, Value), Failure> = runtime.block_on(async {
        let mut stops = Stops::new()?;
        tokio::select! {
            // Whatever runs is ended when the other side is dropped.
            signal = stops.next() => Err(Failure::Exit(code_of_signal(signal))),
            result = measured(plan) => result,
        }
    });
    // A client that waits for a server which is gone must not keep us.
    runtime.shutdown_timeout(Duration::from_secs(1));
    let (rows, result) = result?;
    if let Some(file) = &plan.flags.html {
        super::html::write(file, &result)?;
    }
    if plan.json {
        output::line(result.to_string())?;
    } else {
        rows::print(&rows)?;
        targets::print(&result)?;
    }
    if rows.iter().any(|row| row.violations > 0) {
        return Err(Failure::Violation);
    }
    Ok(())
}

async fn measured(plan: &Plan<'_>) -> Result<(Vec<Row>, Value), Failure> {
    let mut left = Left::default();
    let place = Place::new(plan)?;
    let systems = systems(plan, &place, &mut left)?;
    let mut rows = Vec::new();
    let mut fsync = super::histogram();
    for round in 0..plan.rounds {
        let mut order = systems.clone();
        order.rotate_left(round as usize % systems.len());
        fsync
            .add(measure::fsync_times(plan.span.min(Duration::from_secs(1)))?)
            .map_err(Failure::input)?;
        rows.push(visit::echo(place.members, plan.span)?);
        for &load in plan.loads {
            for &system in &order {
                if let Some(why) = system.cannot(load) {
                    left.cannot(system, load, why);
                    continue;
                }
                let seen = visit::all(system, &place, plan, load, round).await;
                match seen {
                    Ok(seen) => rows.extend(seen),
                    Err(Failure::Input(why)) if !system.is_ours() => {
                        let why = format!("{} in round {}: {why}", load.name(), round + 1);
                        left.skip(system, &why);
                    }
                    Err(failure) => return Err(failure),
                }
            }
        }
    }
    let rows = rows::medians(&rows);
    let result = json!({
        "machine": measure::machine(&fsync),
        "command": std::env::args().collect::<Vec<String>>().join(" "),
        "seconds": plan.span.as_secs_f64(),
        "rounds": plan.rounds,
        "nodes": place.nodes,
        "quorum": place.quorum,
        "skipped": left.skipped,
        "impossible": left.impossible,
        "targets": targets::judge(&rows),
        "rows": rows.iter().map(Row::json).collect::<Vec<Value>>(),
    });
    Ok((rows, result))
}

/// The systems that are measured: Conclave in both modes, and every peer that is here.
fn systems(plan: &Plan<'_>, place: &Place, left: &mut Left) -> Result<Vec<System>, Failure> {
    let mut systems = vec![System::Conclave, System::Durable];
    for peer in &plan.flags.against {
        let system = match peer {
            Peer::Conclave => continue,
            Peer::Etcd => System::Etcd,
            Peer::Zookeeper => System::Zookeeper,
            Peer::Redis => System::Redis,
            Peer::Redlock => System::Redlock,
        };
        if systems.contains(&system) {
            continue;
        }
        match installed(system, place) {
            Ok(()) => systems.push(system),
            Err(why) if cfg!(feature = "peers") => left.skip(system, &why),
            Err(why) => return Err(Failure::Input(why)),
        }
    }
    Ok(systems)
}

#[cfg(not(feature = "peers"))]
fn installed(_: System, _: &Place) -> Result<(), String> {
    Err(
        "this build cannot talk to other systems: build it with the feature 'peers', \
         which is on by default, or use --against conclave"
            .to_owned(),
    )
}
