//! `conclave check-config`: what a node would run with, and where each value comes from.

use std::path::PathBuf;

use clap::Args;
use conclave_protocol::multilevel::Topology;
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
    if let Some(topology) = cluster.topology() {
        table.add_row(["clusters".to_owned(), clusters_text(&topology)]);
    }
    table.add_row(["quorum size".to_owned(), quorum.size.clone()]);
    table.add_row(["load per node".to_owned(), number(quorum.load)]);
    let left = format!("any {} of {} nodes", quorum.crashes, cluster.nodes.len());
    table.add_row(["crashes survived".to_owned(), left]);
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
    let mut table = output::table(&["NODE", "API", "PEERS AND CLIENTS"]);
    for node in &cluster.nodes {
        table.add_row([node.id.to_string(), node.api.clone(), node.peer.clone()]);
    }
    output::print(&table)
}

/// How many clusters of which sizes there are at each level.
fn clusters_text(topology: &Topology) -> String {
    let clusters = topology.clusters();
    let levels = (0..=clusters.levels()).map(|level| {
        let sizes = clusters.at(level).map(|cluster| clusters.size(cluster));
        let (least, most) = sizes.fold((usize::MAX, 0), |(least, most), size| {
            (least.min(size), most.max(size))
        });
        let size = if least == most {
            least.to_string()
        } else {
            format!("{least} to {most}")
        };
        match clusters.count(level) {
            1 => format!("level {level}: {size} nodes"),
            count => format!("level {level}: {count} of {size} nodes"),
        }
    });
    levels.collect::<Vec<_>>().join(", ")
}

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
