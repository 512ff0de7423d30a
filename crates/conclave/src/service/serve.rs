//! `conclave serve`: one node.

use std::net::TcpListener;
use std::path::PathBuf;

use clap::Args;
use conclave_node::keeper::liar::Mode;
use conclave_wire::Cluster;
use serde_json::json;

use super::daemon::Daemon;
use super::settings::{Given, Overrides, Settings};
use super::signals::{Stops, code_of_signal};
use super::{guarded, logs, runtime, system, traces};
use crate::cli::Failure;
use crate::output;

#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[arg(
        long,
        value_name = "FILE",
        help = "The node file; CONCLAVE_CONFIG without it"
    )]
    config: Option<PathBuf>,
    #[command(flatten)]
    flags: Overrides,
    /// This node is new: its empty data directory is not a lost disk
    #[arg(long)]
    init: bool,
    /// Print a line of JSON once the node is ready
    #[arg(long)]
    json: bool,
    /// End when this process, which must be the parent, ends
    #[arg(long, value_name = "PID", hide = true)]
    #[arg(value_parser = clap::value_parser!(i32).range(1..))]
    parent: Option<i32>,
}

impl Serve {
    /// Serves, honestly.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        self.run_as(None)
    }

    /// Serves as a liar does, or honestly. No flag of `serve` leads to the former.
    pub(crate) fn run_as(&self, liar: Option<Mode>) -> Result<(), Failure> {
        if let Some(parent) = self.parent {
            guarded::end_with(parent)?;
        }
        let config = std::env::var_os("CONCLAVE_CONFIG").filter(|path| !path.is_empty());
        let config = self.config.clone().or(config.map(PathBuf::from));
        let settings = Settings::load(config.as_deref(), &self.flags)?;
        if liar.is_some() && !is_local(&settings.cluster) {
            let problem = "a node lies only in a cluster that is on this machine alone";
            return Err(Failure::Input(problem.to_owned()));
        }
        logs::start(&settings.log.value, settings.log_format.value)?;
        for warning in &settings.warnings {
            tracing::warn!("{warning}");
        }
        match system::raise_open_files() {
            Ok((before, now)) => tracing::info!(before, now, "open files allowed"),
            Err(error) => tracing::warn!("cannot raise the number of open files: {error}"),
        }
        traces::start(traces::NODE, Some(&format!("n{}", settings.id.value)));
        runtime()?.block_on(self.serve(settings, liar))
    }

    async fn serve(&self, settings: Settings, liar: Option<Mode>) -> Result<(), Failure> {
        let mut stops = Stops::new()?;
        let listeners = (bind(&settings.listen_peer)?, bind(&settings.listen_api)?);
        let scheme = settings.security.tls().map_or("http", |_| "https");
        let mut node = Daemon::start(settings, self.init, liar, listeners)?;
        let failed = |id: u32, why: &str| Failure::Failed(format!("node {id} stopped: {why}"));
        let mut waiting = std::pin::pin!(node.ready());
        let mut is_ready = false;
        let id = node.id;
        loop {
            tokio::select! {
                ended = node.ended() => {
                    return Err(failed(id, &ended.err().unwrap_or("for no reason".to_owned())));
                }
                () = &mut waiting, if !is_ready => {
                    is_ready = true;
                    self.announce(&node, scheme)?;
                }
                _ = stops.next() => break,
            }
        }
        system::tell_manager("STOPPING=1");
        tracing::info!(node = %format_args!("n{id}"), "stopping; a second signal ends at once");
        tokio::select! {
            stopped = node.stop() => stopped.map_err(|why| failed(id, &why)),
            signal = stops.next() => Err(Failure::Exit(code_of_signal(signal))),
        }
    }

    fn announce(&self, node: &Daemon, scheme: &str) -> Result<(), Failure> {
        let (id, api, peer) = (node.id, node.api, node.peer);
        tracing::info!(node = %format_args!("n{id}"), %api, %peer, "ready");
        system::tell_manager("READY=1");
        if !self.json {
            return Ok(());
        }
        let line = json!({
            "ready": true,
            "id": id,
            "api": format!("{scheme}://{api}"),
            "peer": peer.to_string(),
            "pid": std::process::id(),
        });
        output::line(line.to_string())
    }
}

/// Whether all nodes are on this machine and reached only from it.
fn is_local(cluster: &Cluster) -> bool {
    let local = |peer: &str| {
        let address = peer.parse::<std::net::SocketAddr>();
        address.is_ok_and(|address| address.ip().is_loopback())
    };
    cluster.nodes.iter().all(|node| local(&node.peer))
}

fn bind(address: &Given<String>) -> Result<TcpListener, Failure> {
    TcpListener::bind(&address.value).map_err(|error| {
        let shown = super::place::shown(&address.value);
        Failure::Input(format!(
            "cannot listen on {shown} (from {}): {error}; stop what uses it, or choose another",
            address.from
        ))
    })
}
