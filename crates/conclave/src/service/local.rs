//! A cluster of real processes on this machine, for benchmarks and chaos: started, killed, paused
//! and restarted one by one, and gone when the value is dropped.

use std::ffi::OsString;
use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use conclave_wire::cluster::{Cluster, Node, Times};
use rustix::process::{Pid, Signal, kill_process};

use super::find::{Target, TlsFiles};
use super::http;
use super::layout::{Layout, Wish};
use super::members::SETTINGS;
use super::shape::Shape;
use super::usage;
use crate::cli::Failure;

/// What kind of cluster to start.
#[derive(Clone, Debug)]
pub(crate) struct LocalOptions {
    pub(crate) shape: Shape,
    /// Whether nodes write histories.
    pub(crate) history: bool,
}

/// What a node has done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// Grants given.
    pub(crate) grants: u64,
    /// Messages of the lock protocol, in and out, without heartbeats and their answers.
    pub(crate) messages: u64,
}

impl Work {
    fn read(metrics: &str) -> Self {
        let lines = metrics.lines().filter(|line| !line.contains("BEAT\""));
        let counted: String = lines.flat_map(|line| [line, "\n"]).collect();
        let sum = |name: &str| usage::metric(&counted, name);
        Self {
            grants: sum("conclave_grants_total"),
            messages: sum("conclave_messages_in_total") + sum("conclave_messages_out_total"),
        }
    }

    /// What was done after `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            grants: self.grants.saturating_sub(before.grants),
            messages: self.messages.saturating_sub(before.messages),
        }
    }
}

/// A cluster of processes.
#[derive(Debug)]
pub(crate) struct Local {
    layout: Layout,
    children: Vec<Option<Child>>,
    target: Target,
    /// What starts a program where a node is, if that is not here.
    prefixes: Vec<Vec<OsString>>,
}

/// How long nodes may take to be ready.
const PATIENCE: Duration = Duration::from_mins(1);

impl Local {
    /// Writes the files of a cluster that does not run yet.
    pub(crate) fn prepare(options: &LocalOptions) -> Result<Self, Failure> {
        let wish = Wish {
            shape: options.shape.clone(),
            times: Times::default(),
            log: Some("warn".to_owned()),
            history: options.history,
            access: None,
            private: false,
            audit: false,
        };
        let mut layout = Layout::open(None, &wish)?;
        // The processes take the addresses themselves.
        drop(layout.take_listeners());
        Ok(Self {
            target: layout.target()?,
            children: layout.cluster.nodes.iter().map(|_| None).collect(),
            prefixes: layout.cluster.nodes.iter().map(|_| Vec::new()).collect(),
            layout,
        })
    }

    /// Starts all nodes and waits until they serve.
    pub(crate) async fn start(options: &LocalOptions) -> Result<Self, Failure> {
        let mut local = Self::prepare(options)?;
        local.launch().await?;
        Ok(local)
    }

    /// Where the nodes listen for peers.
    pub(crate) fn peers(&self) -> Result<Vec<SocketAddr>, Failure> {
        let nodes = self.cluster().nodes.iter();
        let peers = nodes.map(|node| node.peer.parse().map_err(Failure::input));
        peers.collect()
    }

    /// Tells everybody to reach the nodes at these addresses instead of their own.
    pub(crate) fn advertise(&mut self, told: &[SocketAddr]) -> Result<(), Failure> {
        let peers = self.peers()?;
        for ((node, peer), told) in self.layout.cluster.nodes.iter_mut().zip(peers).zip(told) {
            node.peer = told.to_string();
            let file = self.layout.folder.join(format!("node{}.toml", node.id));
            let text = fs::read_to_string(&file)?;
            fs::write(&file, format!("{text}listen_peer = \"{peer}\"\n"))?;
        }
        let cluster = self.layout.cluster.to_toml();
        fs::write(self.folder().join("cluster.toml"), cluster)?;
        Ok(())
    }

    /// Gives the nodes these addresses, on which they speak plainly.
    pub(crate) fn settle(&mut self, addresses: &[IpAddr]) -> Result<(), Failure> {
        let peers = self.peers()?;
        let nodes = self.layout.cluster.nodes.iter_mut();
        for ((node, peer), address) in nodes.zip(peers).zip(addresses) {
            let api: Option<u16> = node
                .api
                .rsplit(':')
                .next()
                .and_then(|port| port.parse().ok());
            let api = api.ok_or_else(|| Failure::input(format!("no port in {}", node.api)))?;
            node.peer = SocketAddr::new(*address, peer.port()).to_string();
            node.api = format!("http://{}", SocketAddr::new(*address, api));
            let file = self.layout.folder.join(format!("node{}.toml", node.id));
            let text = fs::read_to_string(&file)?;
            fs::write(&file, format!("{text}insecure = true\n"))?;
        }
        let cluster = self.layout.cluster.to_toml();
        fs::write(self.folder().join("cluster.toml"), cluster)?;
        self.target = self.layout.target()?;
        Ok(())
    }

    /// From now on a node is started by this.
    pub(crate) fn start_by(&mut self, id: u32, prefix: Vec<OsString>) {
        self.prefixes[id as usize - 1] = prefix;
    }

    /// Starts all nodes and waits until they serve.
    pub(crate) async fn launch(&mut self) -> Result<(), Failure> {
        let nodes = self.len() as u32;
        for id in 1..=nodes {
            self.spawn(id)?;
        }
        for id in 1..=nodes {
            self.ready(id).await?;
        }
        Ok(())
    }

    /// Where everything is kept.
    pub(crate) fn folder(&self) -> &Path {
        &self.layout.folder
    }

    /// What all nodes share.
    pub(crate) fn cluster(&self) -> &Cluster {
        &self.layout.cluster
    }

    /// How many nodes there are.
    pub(crate) fn len(&self) -> usize {
        self.children.len()
    }

    /// The URLs of all nodes.
    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.cluster()
            .nodes
            .iter()
            .map(|node| node.api.clone())
            .collect()
    }

    /// How to talk to the nodes.
    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// The files with which a client shows who it is; none if everybody speaks plainly.
    pub(crate) fn tls_files(&self) -> Option<TlsFiles> {
        self.layout.tls_files()
    }

    /// The history files of the nodes.
    pub(crate) fn histories(&self) -> Vec<PathBuf> {
        let file = |node: &Node| self.folder().join(format!("node{}.history", node.id));
        self.cluster().nodes.iter().map(file).collect()
    }

    /// The process of a node, while it runs.
    pub(crate) fn pid(&self, id: u32) -> Option<u32> {
        let child = self.children.get(id.checked_sub(1)? as usize)?;
        child.as_ref().map(Child::id)
    }

    /// Starts a node that does not run.
    pub(crate) fn spawn(&mut self, id: u32) -> Result<(), Failure> {
        self.spawn_with(id, &["--init"])
    }

    /// Starts a node whose data directory was removed: to it that is a lost disk.
    pub(crate) fn spawn_after_loss(&mut self, id: u32) -> Result<(), Failure> {
        self.spawn_with(id, &[])
    }

    fn spawn_with(&mut self, id: u32, more: &[&str]) -> Result<(), Failure> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.folder().join(format!("node{id}.log")))?;
        let mut words = self.prefixes[id as usize - 1].clone();
        words.push(std::env::current_exe()?.into());
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .args(self.layout.serve_args(id))
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        for name in SETTINGS {
            command.env_remove(name);
        }
        let child = command.spawn()?;
        self.children[id as usize - 1] = Some(child);
        Ok(())
    }

    /// Waits until a node serves; what it said last is told if it does not.
    pub(crate) async fn ready(&mut self, id: u32) -> Result<(), Failure> {
        let start = Instant::now();
        let url = format!("{}/readyz", self.cluster().nodes[id as usize - 1].api);
        let patience = Duration::from_secs(1);
        loop {
            if let Ok(answer) = http::get(&url, &self.target.security, patience).await
                && answer.status == 200
            {
                return Ok(());
            }
            let ended = self.children[id as usize - 1]
                .as_mut()
                .is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
            if ended || start.elapsed() > PATIENCE {
                let log = self.folder().join(format!("node{id}.log"));
                let log = fs::read_to_string(log).unwrap_or_default();
                let last = log.lines().last().unwrap_or("it said nothing").to_owned();
                let problem = format!("node {id} did not become ready: {last}");
                return Err(Failure::Input(problem));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Sends a signal to a node.
    pub(crate) fn signal(&self, id: u32, signal: Signal) {
        let pid = self
            .pid(id)
            .and_then(|pid| Pid::from_raw(pid.cast_signed()));
        if let Some(pid) = pid {
            let _ = kill_process(pid, signal);
        }
    }

    /// Kills a node, as a crash would.
    pub(crate) fn kill(&mut self, id: u32) {
        if let Some(mut child) = self.children[id as usize - 1].take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Asks a node to stop and waits until it has.
    pub(crate) async fn stop(&mut self, id: u32) {
        self.signal(id, Signal::TERM);
        if let Some(mut child) = self.children[id as usize - 1].take() {
            let start = Instant::now();
            while matches!(child.try_wait(), Ok(None)) {
                if start.elapsed() > PATIENCE {
                    let _ = child.kill();
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }

    /// Restarts a node, by force or gracefully, and tells how long it took from its start until
    /// it served again.
    pub(crate) async fn restart(&mut self, id: u32, force: bool) -> Result<Duration, Failure> {
        if force {
            self.kill(id);
        } else {
            self.stop(id).await;
        }
        let start = Instant::now();
        self.spawn(id)?;
        self.ready(id).await?;
        Ok(start.elapsed())
    }

    /// CPU seconds of all nodes so far.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        self.pids().into_iter().map(usage::cpu_seconds).sum()
    }

    /// Resident memory of a node in MiB, on average.
    pub(crate) fn resident_mb(&self) -> f64 {
        let pids = self.pids();
        let all: f64 = pids.iter().map(|pid| usage::resident_mb(*pid)).sum();
        all / pids.len().max(1) as f64
    }

    /// What each node has done so far, as its metrics tell; nothing if it is silent. All are asked
    /// at once: nodes work on meanwhile, and what is compared shall be of one moment.
    pub(crate) async fn work(&self) -> Vec<Work> {
        let asked: Vec<_> = self
            .endpoints()
            .into_iter()
            .map(|endpoint| {
                let security = self.target.security.clone();
                let url = format!("{endpoint}/metrics");
                tokio::spawn(
                    async move { http::get(&url, &security, Duration::from_secs(2)).await },
                )
            })
            .collect();
        let mut work = Vec::new();
        for answer in asked {
            let answer = answer.await.ok().and_then(Result::ok);
            let text = answer.map(|answer| String::from_utf8_lossy(&answer.body).into_owned());
            work.push(text.map_or_else(Work::default, |text| Work::read(&text)));
        }
        work
    }

    /// The pids of all running nodes.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.children.iter().flatten().map(Child::id).collect()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        for id in 1..=self.children.len() as u32 {
            self.signal(id, Signal::CONT);
            self.kill(id);
        }
    }
}
