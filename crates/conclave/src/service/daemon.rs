//! A node that runs in this process.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use conclave_node::keeper::liar::Mode;
use conclave_node::shard::{Query, Report};
use conclave_node::{Change, Node, Options, Pulse, StartError};

use super::settings::Settings;
use crate::cli::Failure;

/// A node that runs in this process, on threads of its own.
#[derive(Debug)]
pub(crate) struct Daemon {
    /// Its number.
    pub(crate) id: u32,
    /// Where its API is.
    pub(crate) api: SocketAddr,
    /// Where peers and clients connect.
    pub(crate) peer: SocketAddr,
    node: Node,
    /// How it ended was told.
    told: bool,
}

impl Daemon {
    /// Starts a node; it may not be ready yet. `init` says that an empty data directory is new; a
    /// change is waited for; a liar lies about leases and objects.
    pub(crate) fn start(
        settings: Settings,
        (init, change): (bool, Option<Change>),
        liar: Option<Mode>,
        (peer, api): (TcpListener, TcpListener),
    ) -> Result<Self, Failure> {
        let id = settings.id.value;
        let audit = settings.audit_options();
        let mut names = settings.api_names.value.0;
        names.push(super::system::host_name());
        let node = Node::start(Options {
            cluster: settings.cluster,
            id,
            data: settings.data.value,
            init,
            key: settings.key,
            peer,
            api,
            history: settings.history,
            access: settings.access.map(|given| given.value),
            audit,
            security: settings.security,
            liar,
            rejoin: settings.rejoin,
            change,
            api_names: names,
        })
        .map_err(|error| failure(id, &error))?;
        Ok(Self {
            id,
            api: node.api_addr(),
            peer: node.peer_addr(),
            node,
            told: false,
        })
    }

    /// Waits until it serves.
    pub(crate) fn ready(&self) -> impl Future<Output = ()> + use<> {
        let shard = self.node.shard().clone();
        async move {
            loop {
                let told = shard.inspect(Query::Overview).await;
                if let Some(Report::Overview { state, .. }) = told
                    && state == "serving"
                {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// By which the watchdog sees whether its threads go on.
    pub(crate) fn pulse(&self) -> Pulse {
        self.node.pulse()
    }

    /// How it ended; never, once that was told.
    pub(crate) async fn ended(&mut self) -> Result<(), String> {
        if self.told {
            return std::future::pending().await;
        }
        let how = self.node.wait().await;
        self.told = true;
        how.map_err(|error| error.to_string())
    }

    /// Asks holders to move, writes what must survive, and stops.
    pub(crate) async fn stop(&mut self) -> Result<(), String> {
        if self.told {
            return Ok(());
        }
        self.node.drain_and_stop();
        self.ended().await
    }
}

/// Whoever gives another configuration than the one that was served must do something about it.
fn failure(id: u32, error: &StartError) -> Failure {
    let told = format!("node {id}: {error}");
    match error {
        StartError::Changed { .. } | StartError::Change(_) => Failure::Input(told),
        _ => Failure::Failed(told),
    }
}
