//! `conclave serve`: one node.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Args;
use conclave_node::keeper::liar::Mode;
use conclave_node::{Change, Pulse};
use conclave_wire::Cluster;
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use serde_json::json;

use super::daemon::Daemon;
use super::settings::{Given, Overrides, Settings};
use super::signals::{Stops, code_of_signal};
use super::{guard, logs, runtime, system, traces};
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
    /// Change to the configuration of the cluster file: stop all nodes, give all of them the new
    /// file with a larger epoch, and start each with this. Nothing is served until every node of
    /// the old file has done so and all old grants have run out; held locks are lost
    #[arg(long, conflicts_with = "init")]
    reconfigure: bool,
    /// With --reconfigure: go on without this node of the old file. If it still runs, or comes
    /// back with the old file, two may hold one lock; objects that only it and few others kept may
    /// be lost. Give the same on all nodes
    #[arg(long, value_name = "ID", requires = "reconfigure")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    abandon: Vec<u32>,
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
            guard::end_with(parent)?;
        }
        let config = std::env::var_os("CONCLAVE_CONFIG").filter(|path| !path.is_empty());
        let config = self.config.clone().or(config.map(PathBuf::from));
        let mut flags = self.flags.clone();
        flags.leaves = self.reconfigure;
        let settings = Settings::load(config.as_deref(), &flags)?;
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
        let listeners = (bind(&settings.listen_peer)?, reserve(&settings.listen_api)?);
        let scheme = settings.security.tls().map_or("http", |_| "https");
        let Some(mut node) = self.start(settings, liar, listeners, &mut stops).await? else {
            return Ok(());
        };
        let failed = |id: u32, why: &str| Failure::Failed(format!("node {id} stopped: {why}"));
        let every = system::watchdog();
        let mut fed = tokio::spawn(feed(node.pulse(), every));
        let mut feeds = true;
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
                ended = &mut fed, if feeds => {
                    feeds = false;
                    ended.map_err(|error| failed(id, &error.to_string()))?;
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

    /// Starts the node; none if it is told to stop while it waits for others.
    async fn start(
        &self,
        settings: Settings,
        liar: Option<Mode>,
        listeners: (TcpListener, TcpListener),
        stops: &mut Stops,
    ) -> Result<Option<Daemon>, Failure> {
        if !self.reconfigure {
            return Daemon::start(settings, (self.init, None), liar, listeners).map(Some);
        }
        for id in &self.abandon {
            tracing::warn!(
                "node {id} is abandoned: if it still runs, or comes back with the old file, two \
                 may hold one lock"
            );
        }
        let change = Change {
            abandon: self.abandon.clone(),
            halt: Arc::default(),
        };
        let halt = change.halt.clone();
        let mut starting = tokio::task::spawn_blocking(move || {
            Daemon::start(settings, (false, Some(change)), liar, listeners)
        });
        let gone = |error: tokio::task::JoinError| Failure::Failed(error.to_string());
        tokio::select! {
            started = &mut starting => started.map_err(gone)?.map(Some),
            _ = stops.next() => {
                halt.store(true, Ordering::Relaxed);
                match starting.await.map_err(gone)? {
                    Ok(node) => Ok(Some(node)),
                    Err(_) => Ok(None),
                }
            }
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

/// Feeds the service manager's watchdog as long as the threads of the node go on.
async fn feed(pulse: Pulse, every: Option<Duration>) {
    let Some(every) = every else { return };
    while pulse.beat().await {
        system::tell_manager("WATCHDOG=1");
        tokio::time::sleep(every).await;
    }
}

/// Whether all nodes are on this machine and reached only from it.
fn is_local(cluster: &Cluster) -> bool {
    let local = |peer: &str| {
        let address = peer.parse::<SocketAddr>();
        address.is_ok_and(|address| address.ip().is_loopback())
    };
    cluster.nodes.iter().all(|node| local(&node.peer))
}

fn bind(address: &Given<String>) -> Result<TcpListener, Failure> {
    TcpListener::bind(&address.value).map_err(|error| cannot_listen(address, &error))
}

/// Takes the address of the API without listening there. Until the node serves, whoever calls it
/// is refused at once and asks another one, instead of waiting in a queue that nobody looks at.
fn reserve(address: &Given<String>) -> Result<TcpListener, Failure> {
    let failed = |error: io::Error| cannot_listen(address, &error);
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in address.value.to_socket_addrs().map_err(failed)? {
        match bound(address) {
            Ok(socket) => return Ok(TcpListener::from(socket)),
            Err(error) => last = error.into(),
        }
    }
    Err(failed(last))
}

fn bound(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // As `TcpListener::bind`: a node that restarts finds its address free.
    set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}

fn cannot_listen(address: &Given<String>, error: &io::Error) -> Failure {
    let shown = super::place::shown(&address.value);
    // The address may come late at boot: not bad input, but a reason to try again.
    Failure::Failed(format!(
        "cannot listen on {shown} (from {}): {error}; stop what uses it, or choose another",
        address.from
    ))
}
