//! `conclave up`: a whole cluster on this machine.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use conclave_client::Security;
use conclave_wire::Span;
use conclave_wire::cluster::{RestartText, Times};
use serde::Serialize;
use serde_json::json;

use super::find::Target;
use super::layout::{Layout, Wish, quoted};
use super::members::Members;
use super::settings::LogFormat;
use super::shape::Shape;
use super::signals::{Stops, code_of_signal};
use super::{http, logs, registry, runtime, traces};
use crate::cli::Failure;
use crate::output;

/// After so long it is told what a node that is not ready waits for.
const QUIET: Duration = Duration::from_secs(3);

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct Up {
    #[command(flatten)]
    shape: Shape,
    /// Each node is a process that can be killed and started again by hand
    #[arg(long)]
    processes: bool,
    /// Keep everything in this directory and use it again; without it nothing is left
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// The longest TTL of a lock; 60s without it
    #[arg(long, value_name = "SPAN")]
    ttl_max: Option<Span>,
    /// What is logged: error, warn, info, debug, trace, or directives by module
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    log: String,
    /// The access file: bearer tokens, and who may do what. Callers then show a token; needs
    /// TLS, as --tls makes it
    #[arg(long, value_name = "FILE")]
    access: Option<PathBuf>,
    /// Make a token that only this user's commands find, and refuse everybody else on the machine
    #[arg(long, conflicts_with = "access")]
    private: bool,
    /// Nodes write who was granted, lost and refused what into the data directory
    #[arg(long)]
    audit: bool,
    /// Nodes write histories for the checkers into the data directory
    #[arg(long, hide = true)]
    history: bool,
    /// Print JSON, once all nodes are ready: the nodes in the first line
    #[arg(long)]
    json: bool,
}

/// The first line of JSON, its fields in this order.
#[derive(Debug, Serialize)]
struct Ready<'a> {
    ready: bool,
    nodes: Vec<Member<'a>>,
}

/// A node of that line.
#[derive(Debug, Serialize)]
struct Member<'a> {
    id: u32,
    api: &'a str,
    peer: &'a str,
    pid: u32,
}

/// What nodes keep on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Restart {
    /// A few numbers; a node that crashed waits before it serves again
    Pause,
    /// Every grant, before it is sent
    Durable,
}

impl From<Restart> for RestartText {
    fn from(restart: Restart) -> Self {
        match restart {
            Restart::Pause => Self::Pause,
            Restart::Durable => Self::Durable,
        }
    }
}

impl Up {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        logs::start(&self.log, LogFormat::Text)?;
        if !self.processes {
            traces::start(traces::NODE, None);
        }
        let wish = Wish {
            shape: self.shape.clone(),
            times: Times {
                ttl_max: self.ttl_max,
                ..Times::default()
            },
            log: Some(self.log.clone()),
            history: self.history,
            access: self.access.clone(),
            private: self.private,
            audit: self.audit,
        };
        let mut layout = Layout::open(self.data.as_deref(), &wish)?;
        runtime()?.block_on(self.hold(&mut layout))
    }

    async fn hold(&self, layout: &mut Layout) -> Result<(), Failure> {
        let mut stops = Stops::new()?;
        let mut members = Members::start(layout, self.processes)?;
        let begun = tokio::select! {
            ready = all_ready(layout, &mut members) => ready,
            signal = stops.next() => Err(Failure::Exit(code_of_signal(signal))),
        };
        if let Err(failure) = begun {
            members.kill().await;
            return Err(failure);
        }
        let endpoints = layout.cluster.nodes.iter().map(|node| node.api.clone());
        let bearer_file = layout.bearer_file();
        let entry = registry::enter(endpoints.collect(), layout.tls_files(), bearer_file.clone());
        if let Err(error) = &entry {
            tracing::warn!("other commands need --endpoints to find this cluster: {error}");
        }
        let open = layout.tls_files().is_none() && self.access.is_none() && bearer_file.is_none();
        if layout.cluster.faults.byzantine() > 0 && open {
            anstream::eprintln!(
                "on this machine nobody has to show who they are, and one endpoint is believed \
                 about the cluster; elsewhere clients need certificates, or a token for each node"
            );
        }
        self.announce(layout, &members.pids())?;
        loop {
            tokio::select! {
                _ = stops.next() => break,
                (id, how) = members.ended() => {
                    let again = if self.processes {
                        format!("; start it again: {}", layout.serve_command(id))
                    } else {
                        String::new()
                    };
                    anstream::eprintln!("node {id} is gone ({how}){again}");
                }
            }
        }
        drop(entry);
        tokio::select! {
            troubles = members.stop() => {
                for trouble in troubles {
                    tracing::warn!("{trouble}");
                }
            }
            signal = stops.next() => {
                members.kill().await;
                return Err(Failure::Exit(code_of_signal(signal)));
            }
        }
        left_behind(layout).await;
        Ok(())
    }

    fn announce(&self, layout: &Layout, pids: &[u32]) -> Result<(), Failure> {
        let nodes = &layout.cluster.nodes;
        let by_hand = || nodes.iter().map(|node| layout.serve_command(node.id));
        if self.json {
            let nodes = nodes.iter().zip(pids).map(|(node, pid)| Member {
                id: node.id,
                api: &node.api,
                peer: &node.peer,
                pid: *pid,
            });
            let ready = Ready {
                ready: true,
                nodes: nodes.collect(),
            };
            output::line(serde_json::to_string(&ready).map_err(Failure::input)?)?;
            let more = json!({
                "data": layout.folder.display().to_string(),
                "tls": layout.tls_files(),
                "bearer_file": layout.bearer_file(),
                "serve": self.processes.then(|| by_hand().collect::<Vec<_>>()),
            });
            return output::line(more.to_string());
        }
        let mut table = output::table(&["NODE", "API", "PEERS AND CLIENTS", "PROCESS"]);
        for (node, pid) in nodes.iter().zip(pids) {
            let (api, peer) = (node.api.clone(), node.peer.clone());
            table.add_row([node.id.to_string(), api, peer, pid.to_string()]);
        }
        output::line(format!(
            "A cluster of {} nodes is ready; its quorum system is {}.\n",
            nodes.len(),
            layout.cluster.quorum
        ))?;
        output::print(&table)?;
        output::line(
            "\nIn another terminal:\n  conclave lock hello -- echo inside\n  conclave status\n  \
             conclave locks",
        )?;
        if let Some(path) = layout.bearer_file() {
            output::line(format!(
                "\nNobody else on this machine may use it: your commands find the token by \
                 themselves; for curl:\n  -H \"Authorization: Bearer $(cat {})\"",
                quoted(&path.display().to_string())
            ))?;
        }
        if self.processes {
            let first = layout.serve_command(1);
            output::line(format!(
                "\nKill any process, and start its node again by hand:\n  {first}"
            ))?;
        }
        let kept = self.data.as_ref().map_or("; nothing is kept", |_| "");
        output::line(format!("\nCtrl-C stops the cluster{kept}."))
    }
}

/// Waits until all nodes are ready.
pub(crate) async fn all_ready(layout: &Layout, members: &mut Members) -> Result<(), Failure> {
    let security = layout.target()?.security;
    tokio::select! {
        () = poll_all(layout, &security) => Ok(()),
        (id, how) = members.ended() => Err(Failure::Failed(format!(
            "node {id} ended before it was ready ({how}); what it said is above"
        ))),
    }
}

async fn poll_all(layout: &Layout, security: &Security) {
    let begun = Instant::now();
    for node in &layout.cluster.nodes {
        let url = format!("{}/readyz", node.api);
        let mut told = false;
        loop {
            let answer = http::get(&url, security, Duration::from_secs(2)).await;
            let why = match &answer {
                Ok(answer) if answer.status == 200 => break,
                Ok(answer) => answer.trouble(),
                Err(error) => error.clone(),
            };
            if !told && begun.elapsed() > QUIET {
                told = true;
                anstream::eprintln!("node {} is not ready yet: {why}", node.id);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Tells of nodes that somebody started by hand and that outlive us, and leaves them their files.
async fn left_behind(layout: &mut Layout) {
    let mut left = Vec::new();
    let Ok(Target { security, .. }) = layout.target() else {
        return;
    };
    for node in &layout.cluster.nodes {
        let url = format!("{}/healthz", node.api);
        let patience = Duration::from_millis(500);
        if http::get(&url, &security, patience).await.is_ok() {
            left.push(node.id.to_string());
        }
    }
    if !left.is_empty() {
        layout.keep();
        anstream::eprintln!(
            "still running, for they were started by hand: node {}; their files are in {}",
            left.join(", "),
            layout.folder.display()
        );
    }
}
