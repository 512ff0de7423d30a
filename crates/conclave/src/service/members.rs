//! The nodes of a cluster that one process started: as threads, or as processes.

use std::ffi::OsString;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::daemon::Daemon;
use super::layout::Layout;
use crate::cli::Failure;

/// How long a stopping process has before it is killed.
const PATIENCE: Duration = Duration::from_secs(15);

/// The variables that override node files: not for all nodes at once.
pub(crate) const SETTINGS: [&str; 13] = [
    "CONCLAVE_CONFIG",
    "CONCLAVE_ID",
    "CONCLAVE_DATA",
    "CONCLAVE_CLUSTER",
    "CONCLAVE_SECRET_FILE",
    "CONCLAVE_LISTEN_PEER",
    "CONCLAVE_LISTEN_API",
    "CONCLAVE_INSECURE",
    "CONCLAVE_TLS_CA",
    "CONCLAVE_TLS_CERT",
    "CONCLAVE_TLS_KEY",
    "CONCLAVE_LOG",
    "CONCLAVE_LOG_FORMAT",
];

/// The nodes of a cluster.
#[derive(Debug)]
pub(crate) enum Members {
    /// On threads of this process.
    Threads(Vec<Daemon>),
    /// Each a process.
    Processes(Family),
}

/// Processes, and what they report when they end.
#[derive(Debug)]
pub(crate) struct Family {
    kids: Vec<Kid>,
    report: mpsc::UnboundedSender<(u32, String)>,
    reports: mpsc::UnboundedReceiver<(u32, String)>,
}

/// A node in a process of its own.
#[derive(Debug)]
pub(crate) struct Kid {
    id: u32,
    pid: u32,
    tell: mpsc::UnboundedSender<Signal>,
    alive: bool,
}

impl Members {
    /// Starts all nodes; they may not be ready yet.
    pub(crate) fn start(layout: &mut Layout, processes: bool) -> Result<Self, Failure> {
        let listeners = layout.take_listeners();
        let ids: Vec<u32> = layout.cluster.nodes.iter().map(|node| node.id).collect();
        if processes {
            // The processes take the addresses themselves.
            drop(listeners);
            return Self::spawn_all(layout, &ids);
        }
        let mut daemons = Vec::new();
        for (id, listeners) in ids.into_iter().zip(listeners) {
            let (settings, liar) = (layout.settings(id)?, layout.liar(id));
            daemons.push(Daemon::start(
                settings,
                (layout.new, None),
                liar,
                listeners,
            )?);
        }
        Ok(Self::Threads(daemons))
    }

    fn spawn_all(layout: &Layout, ids: &[u32]) -> Result<Self, Failure> {
        let (report, reports) = mpsc::unbounded_channel();
        let mut kids = Vec::new();
        for id in ids {
            kids.push(Kid::spawn(layout, *id, layout.new, &report)?);
        }
        Ok(Self::Processes(Family {
            kids,
            report,
            reports,
        }))
    }

    /// Sends a signal to the process of one node.
    pub(crate) fn signal_one(&self, id: u32, signal: Signal) {
        if let Self::Processes(family) = self {
            for kid in family.kids.iter().filter(|kid| kid.alive && kid.id == id) {
                let _ = kid.tell.send(signal);
            }
        }
    }

    /// Starts the process of a node again, on the data it left.
    pub(crate) fn start_again(&mut self, layout: &Layout, id: u32) -> Result<(), Failure> {
        if let Self::Processes(family) = self {
            let kid = Kid::spawn(layout, id, false, &family.report)?;
            family.kids.retain(|kid| kid.id != id);
            family.kids.push(kid);
        }
        Ok(())
    }

    /// The process of each node, in the order of the cluster file.
    pub(crate) fn pids(&self) -> Vec<u32> {
        match self {
            Self::Threads(daemons) => vec![std::process::id(); daemons.len()],
            Self::Processes(family) => family.kids.iter().map(|kid| kid.pid).collect(),
        }
    }

    /// The next node that ended by itself, and how.
    pub(crate) async fn ended(&mut self) -> (u32, String) {
        match self {
            Self::Threads(daemons) => any_ended(daemons).await,
            Self::Processes(family) => {
                let Some((id, how)) = family.reports.recv().await else {
                    return std::future::pending().await;
                };
                for kid in family.kids.iter_mut().filter(|kid| kid.id == id) {
                    kid.alive = false;
                }
                (id, how)
            }
        }
    }

    /// Sends a signal to all processes that are left.
    fn signal(&self, signal: Signal) {
        if let Self::Processes(family) = self {
            for kid in family.kids.iter().filter(|kid| kid.alive) {
                let _ = kid.tell.send(signal);
            }
        }
    }

    fn left(&self) -> usize {
        match self {
            Self::Threads(_) => 0,
            Self::Processes(family) => family.kids.iter().filter(|kid| kid.alive).count(),
        }
    }

    /// Stops all gracefully, then by force, and tells what did not go well.
    pub(crate) async fn stop(&mut self) -> Vec<String> {
        let mut troubles = Vec::new();
        if let Self::Threads(daemons) = self {
            let mut all = tokio::task::JoinSet::new();
            for mut daemon in daemons.drain(..) {
                all.spawn(async move {
                    let stopped = daemon.stop().await;
                    stopped.map_err(|why| format!("node {}: {why}", daemon.id))
                });
            }
            while let Some(done) = all.join_next().await {
                troubles.extend(done.ok().and_then(Result::err));
            }
            return troubles;
        }
        self.signal(Signal::TERM);
        let gone = async {
            while self.left() > 0 {
                self.ended().await;
            }
        };
        if timeout(PATIENCE, gone).await.is_err() {
            troubles.push(format!("{} nodes did not stop and are killed", self.left()));
            self.kill().await;
        }
        troubles
    }

    /// Ends all at once.
    pub(crate) async fn kill(&mut self) {
        self.signal(Signal::KILL);
        while self.left() > 0 {
            self.ended().await;
        }
    }
}

async fn any_ended(daemons: &mut [Daemon]) -> (u32, String) {
    let mut futures: Vec<_> = daemons
        .iter_mut()
        .map(|daemon| {
            Box::pin(async {
                let how = daemon.ended().await;
                (daemon.id, how.err().unwrap_or_else(|| "stopped".to_owned()))
            })
        })
        .collect();
    std::future::poll_fn(|context| {
        for future in &mut futures {
            if let std::task::Poll::Ready(ended) = future.as_mut().poll(context) {
                return std::task::Poll::Ready(ended);
            }
        }
        std::task::Poll::Pending
    })
    .await
}

impl Kid {
    /// Starts a node as a process that ends with this one. It must be done by the main thread.
    fn spawn(
        layout: &Layout,
        id: u32,
        init: bool,
        report: &mpsc::UnboundedSender<(u32, String)>,
    ) -> Result<Self, Failure> {
        let mut words: Vec<OsString> = layout.serve_args(id);
        words.push("--parent".into());
        words.push(std::process::id().to_string().into());
        if init {
            words.push("--init".into());
        }
        let failed = |why: &dyn std::fmt::Display| {
            Failure::Failed(format!("cannot start a process for node {id}: {why}"))
        };
        let binary = std::env::current_exe().map_err(|error| failed(&error))?;
        let mut command = Command::new(binary);
        for name in SETTINGS {
            command.env_remove(name);
        }
        // A group of its own: Ctrl-C would reach it beside our TERM, and two signals end at once.
        let child = command
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|error| failed(&error))?;
        let pid = child.id().ok_or_else(|| failed(&"it ended at once"))?;
        let (tell, told) = mpsc::unbounded_channel();
        tokio::spawn(watch(id, child, told, report.clone()));
        Ok(Self {
            id,
            pid,
            tell,
            alive: true,
        })
    }
}

/// Passes signals to a process until it ends, and reports how.
async fn watch(
    id: u32,
    mut child: Child,
    mut told: mpsc::UnboundedReceiver<Signal>,
    report: mpsc::UnboundedSender<(u32, String)>,
) {
    let how = loop {
        tokio::select! {
            how = child.wait() => break how,
            Some(signal) = told.recv() => send(&child, signal),
        }
    };
    let how = how.map_or_else(|error| error.to_string(), ended);
    let _ = report.send((id, how));
}

/// Sends a signal to a child that was not waited for yet, so that its number is still its own.
pub(crate) fn send(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    if let Some(pid) = pid.and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// How a process ended, in words.
pub(crate) fn ended(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}
