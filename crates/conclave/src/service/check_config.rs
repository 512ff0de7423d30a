//! `conclave check-config`: what a node would run with, and where each value comes from.

use std::path::PathBuf;

use clap::Args;
use conclave_quorum::analyze::{Inputs, Measures, analyze};
use conclave_wire::Cluster;
use serde_json::{Value, json};

use super::place::Text;
use super::settings::{Overrides, Settings};
use crate::cli::Failure;
use crate::output::{self, number, span};

#[derive(Debug, Args)]
pub(crate) struct CheckConfig {
    /// A node file or a cluster file
    file: PathBuf,
    #[command(flatten)]
    flags: Overrides,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl CheckConfig {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let text = Text::read(&self.file)?;
        // A file that lists nodes is a cluster file; a node's own has none at the top.
        if text.has("nodes") {
            let cluster = text.cluster()?;
            return self.tell(&cluster, None);
        }
        let settings = Settings::load(Some(&self.file), &self.flags)?;
        self.tell(&settings.cluster, Some(&settings))
    }

    fn tell(&self, cluster: &Cluster, settings: Option<&Settings>) -> Result<(), Failure> {
        let quorum = Quorum::of(cluster)?;
        let mut warnings = settings.map_or(Vec::new(), |known| known.warnings.clone());
        warnings.extend(quorum.warnings());
        if self.json {
            return output::json(&json!({
                "file": self.file.display().to_string(),
                "kind": if settings.is_some() { "node" } else { "cluster" },
                "settings": settings.map(settings_json),
                "cluster": cluster_json(cluster),
                "hierarchy": levels_json(cluster),
                "quorum": quorum.as_json(),
                "warnings": warnings,
            }));
        }
        if let Some(settings) = settings {
            let mut table = output::table(&["SETTING", "VALUE", "FROM"]);
            for (name, value, from) in settings.listed() {
                table.add_row([name, &value, &from]);
            }
            output::print(&table)?;
            output::line("")?;
        }
        print_cluster(cluster, &quorum)?;
        for warning in &warnings {
            output::line(format!("\nwarning: {warning}"))?;
        }
        output::line("\nok")
    }
}

fn settings_json(settings: &Settings) -> Value {
    let rows = settings.listed().into_iter();
    let rows =
        rows.map(|(name, value, from)| json!({ "name": name, "value": value, "from": from }));
    rows.collect()
}

fn cluster_json(cluster: &Cluster) -> Value {
    json!({
        "name": cluster.name,
        "epoch": cluster.epoch,
        "digest": hex(&cluster.digest()),
        "nodes": cluster.nodes,
        "facts": cluster.facts(),
    })
}

fn print_cluster(cluster: &Cluster, quorum: &Quorum) -> Result<(), Failure> {
    let mut table = output::table(&["CLUSTER", ""]);
    for (field, value) in cluster.facts() {
        if !value.is_empty() {
            table.add_row([field, value]);
        }
    }
    table.add_row(["digest".to_owned(), hex(&cluster.digest())]);
    table.add_row(["quorum size".to_owned(), quorum.size.clone()]);
    table.add_row(["load per node".to_owned(), number(quorum.load)]);
    let left = format!("any {} of {} nodes", quorum.crashes, cluster.nodes.len());
    table.add_row(["crashes survived".to_owned(), left]);
    table.add_row(["liars survived by locks", "none"]);
    output::print(&table)?;
    output::line("")?;
    let mut table = output::table(&["LEASES AND OBJECTS", ""]);
    let lease = cluster.lease_config().map_err(Failure::input)?;
    let nodes = cluster.nodes.len();
    let liars = format!("{} of {nodes} nodes", lease.faults.liars());
    table.add_row(["liars survived".to_owned(), liars]);
    let votes = format!("{} of {nodes} nodes", lease.faults.free());
    table.add_row(["votes of a lease".to_owned(), votes]);
    let objects = cluster.object_config().map_err(Failure::input)?;
    let objects = objects.map_or("off".to_owned(), |objects| {
        format!("{} of {nodes} nodes", objects.quorum)
    });
    table.add_row(["quorum of an object".to_owned(), objects]);
    output::print(&table)?;
    output::line("")?;
    print_levels(cluster)?;
    let mut table = output::table(&["NODE", "API", "PEERS AND CLIENTS", "PLACE"]);
    for node in &cluster.nodes {
        let place = node.place.clone().unwrap_or_default();
        table.add_row([
            node.id.to_string(),
            node.api.clone(),
            node.peer.clone(),
            place,
        ]);
    }
    output::print(&table)
}

/// A cluster of the hierarchy: its level, the place of its nodes, and its members from 1.
struct Part {
    level: usize,
    place: Option<String>,
    members: Vec<usize>,
}

/// The clusters of the hierarchy from the root down; none in a flat cluster.
fn parts(cluster: &Cluster) -> Option<Vec<Part>> {
    let topology = cluster.topology()?;
    let clusters = topology.clusters();
    let mut parts = Vec::new();
    for level in 0..=clusters.levels() {
        for id in clusters.at(level) {
            let members: Vec<usize> = clusters.members(id).map(|node| node + 1).collect();
            let first = clusters.span(id).start as u32 + 1;
            let place = cluster.node(first).and_then(|node| node.place.as_ref());
            let place = place.filter(|_| level > 0).map(|place| {
                let names: Vec<&str> = place.split('/').take(level).collect();
                names.join("/")
            });
            parts.push(Part {
                level,
                place,
                members,
            });
        }
    }
    Some(parts)
}

fn levels_json(cluster: &Cluster) -> Option<Value> {
    let clusters = parts(cluster)?.into_iter().map(|part| {
        let Part {
            level,
            place,
            members,
        } = part;
        json!({ "level": level, "place": place, "members": members })
    });
    Some(json!({ "clusters": clusters.collect::<Vec<_>>() }))
}

fn print_levels(cluster: &Cluster) -> Result<(), Failure> {
    let Some(parts) = parts(cluster) else {
        return Ok(());
    };
    let mut table = output::table(&["LEVEL", "CLUSTER", "MEMBERS"]);
    for part in parts.iter().take(PARTS_SHOWN) {
        let place = match (&part.place, part.level) {
            (Some(place), _) => place.clone(),
            (None, 0) => "root".to_owned(),
            (None, _) => String::new(),
        };
        let members: Vec<String> = part.members.iter().map(usize::to_string).collect();
        let members = output::clip(&members.join(" "), MEMBERS_SHOWN);
        table.add_row([part.level.to_string(), place, members]);
    }
    output::print(&table)?;
    if parts.len() > PARTS_SHOWN {
        let more = parts.len() - PARTS_SHOWN;
        output::line(format!("and {more} more clusters: see --json"))?;
    }
    output::line("")
}

/// How many clusters of a hierarchy are shown to a person.
const PARTS_SHOWN: usize = 50;
/// How many characters of a cluster's members are shown to a person.
const MEMBERS_SHOWN: usize = 60;

/// What the quorum system means for an operator.
struct Quorum {
    nodes: usize,
    size: String,
    sizes: (usize, usize),
    load: f64,
    crashes: usize,
}

impl Quorum {
    fn of(cluster: &Cluster) -> Result<Self, Failure> {
        let nodes = cluster.nodes.len();
        let built = crate::quorum::system(&cluster.quorum, Some(nodes))?;
        let analysis = analyze(&built, &Inputs::default(), &mut |_| ()).map_err(Failure::input)?;
        let Measures {
            sizes,
            load,
            resilience,
            ..
        } = &analysis.whole;
        Ok(Self {
            nodes,
            size: span(sizes.min, sizes.max),
            sizes: (sizes.min, sizes.max),
            load: load.upper,
            crashes: resilience.value,
        })
    }

    fn warnings(&self) -> Vec<String> {
        if self.crashes > 0 {
            return Vec::new();
        }
        vec![format!(
            "no crash is survived: with {} nodes and this quorum system one stopped node can \
             block every lock",
            self.nodes
        )]
    }

    fn as_json(&self) -> Value {
        json!({
            "size": { "min": self.sizes.0, "max": self.sizes.1 },
            "load": self.load,
            "crashes_survived": self.crashes,
        })
    }
}

/// Bytes as lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
