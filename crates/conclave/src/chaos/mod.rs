//! `conclave chaos run`: a cluster of real processes under load while nodes are killed, stopped,
//! cut off and restarted, and clients are paused and killed. What everybody believed goes through
//! the same checkers as the simulator's runs.

mod all;
mod client;
mod commands;
mod faults;
mod fence;
mod hosts;
mod objects;
mod proxy;
mod report;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Child, Command as Process, Stdio};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use conclave_client::clock;
use conclave_node::keeper::liar::Mode;
use conclave_protocol::id::Name;
use conclave_protocol::lock::Protocol;
use conclave_quorum::Prng;
use conclave_wire::Span;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::cli::Failure;
use crate::service::local::{Local, LocalOptions};
use crate::service::serve::Serve;
use crate::service::shape::Shape;
use crate::service::up::Restart;
use crate::sim::Seeds;

use all::All;
pub(crate) use client::ChaosClient;
use commands::Commands;
use faults::Fault;
use hosts::Hosts;
use proxy::Proxy;

/// Break a real cluster on purpose
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Put a cluster of processes under load through faults, and check what everybody believed
    #[command(after_help = "Examples:
  conclave chaos run
  conclave chaos run --seconds 600 --seed 7 --faults kill,cut,pause
  conclave chaos run --quorum 'billiard' --nodes 12 --json
  conclave chaos run --hosts --faults link,one-way,relocate,kill,stop,rolling
  conclave chaos run --seed 1..20 --seconds 30 --restart durable
  conclave chaos run --quorum 'multilevel(tree, levels=1)' --nodes 9 --faults kill,kill-root,cut")]
    Run(Box<Run>),
    /// The same over several quorum systems and both protocols, one after the other
    #[command(after_help = "Examples:
  conclave chaos all
  conclave chaos all --seconds 300 --seed 7 --keep /tmp/chaos --json")]
    All(All),
    /// Clients of counters, maps and registers while nodes are killed, stopped, robbed of their
    /// disks and lie; what they saw must have one order
    #[command(after_help = "Examples:
  conclave chaos objects
  conclave chaos objects --nodes 7 --byzantine 1 --liar 3=mix --seconds 60 --seed 7
  conclave chaos objects --faults kill,power --json")]
    Objects(Box<objects::Objects>),
    /// One node that lies about leases and objects; only in a cluster on this machine
    #[command(after_help = "Examples:
  conclave chaos node --lie forge --config node3.toml")]
    Node(Box<LyingNode>),
}

/// A node that lies.
#[derive(Debug, Args)]
pub(crate) struct LyingNode {
    #[command(flatten)]
    serve: Serve,
    /// How: silent, stale, forge, equivocate, huge, locked, free or mix
    #[arg(long, value_name = "MODE")]
    lie: Mode,
}

/// Runs a chaos command.
pub(crate) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Run(run) => run.run(),
        Command::All(all) => all.run(),
        Command::Objects(objects) => objects.run(),
        Command::Node(node) => node.serve.run_as(Some(node.lie)),
    }
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    shape: Shape,
    /// Clients that talk to the quorum themselves
    #[arg(long, value_name = "N", default_value_t = 6)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=200))]
    smart: u32,
    /// Clients that talk to gateways
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=200))]
    thin: u32,
    /// Over how many locks they contend
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=100_000))]
    names: u64,
    /// The TTL of their locks
    #[arg(long, value_name = "SPAN", default_value = "2s")]
    ttl: Span,
    /// How long the faults go on; every kind comes once at least
    #[arg(long, value_name = "S", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Which faults, and in which order when, come from this; a range A..B is a run for each
    #[arg(long, value_name = "SEED", default_value = "1")]
    seed: Seeds,
    /// The faults to draw from; all that fit without it
    #[arg(long, value_name = "FAULT,..", value_delimiter = ',', value_enum)]
    faults: Vec<Fault>,
    /// A host of its own for every node, in a network namespace
    #[arg(long)]
    hosts: bool,
    /// Keep the histories and logs in this folder
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Run {
    fn run(&self) -> Result<(), Failure> {
        self.check()?;
        if self.hosts && !hosts::enter()? {
            return Ok(());
        }
        let seeds = self.seed.all();
        let many = seeds.clone().count() > 1;
        let mut broken = Vec::new();
        let mut worst = report::Worst::default();
        for seed in seeds {
            let report = runtime()?.block_on(self.play(seed))?;
            report.print(self.json)?;
            worst.add(&report);
            if !report.holds() {
                broken.push(seed);
            }
        }
        if many && !self.json {
            worst.show(&broken)?;
        }
        if broken.is_empty() {
            return Ok(());
        }
        Err(Failure::Violation)
    }

    /// Whether the faults can be had.
    fn check(&self) -> Result<(), Failure> {
        if self.hosts && self.shape.tls {
            return Err(Failure::input(
                "--hosts: nodes on hosts of their own speak plainly here; leave --tls out",
            ));
        }
        let nodes = self.shape.size()?;
        if self.hosts && nodes > 200 {
            return Err(Failure::input("--hosts: at most 200 nodes"));
        }
        let wrong = self.faults.iter().find(|fault| !self.can_make(**fault));
        match wrong {
            Some(fault) if self.hosts => Err(Failure::input(format!(
                "--faults: '{}' needs proxies, which --hosts does without; take link or one-way",
                fault.name()
            ))),
            Some(fault) => Err(Failure::input(format!(
                "--faults: '{}' needs --hosts",
                fault.name()
            ))),
            None => Ok(()),
        }
    }

    /// The faults to draw from.
    fn faults(&self) -> Vec<Fault> {
        if !self.faults.is_empty() {
            return self.faults.clone();
        }
        let all = Fault::value_variants().iter().copied();
        all.filter(|fault| self.can_make(*fault)).collect()
    }

    /// Whether a fault can be made in this kind of cluster.
    fn can_make(&self, fault: Fault) -> bool {
        if self.hosts {
            !fault.needs_proxy()
        } else {
            !fault.needs_hosts()
        }
    }

    async fn play(&self, seed: u64) -> Result<report::Report, Failure> {
        let faults = self.faults();
        let mut stage = Stage::set(self, seed).await?;
        anstream::eprintln!(
            "{} nodes, {} smart and {} thin clients, {} commands, seed {seed}, in {}",
            stage.local.len(),
            self.smart,
            self.thin,
            stage.commands.as_ref().map_or(0, Commands::len),
            stage.local.folder().display()
        );
        tokio::time::sleep(Duration::from_secs(1)).await;
        let end = clock::now().mono + Duration::from_secs(self.seconds);
        let mut rng = Prng::new(seed);
        let mut marks = Vec::new();
        let mut turn = 0;
        while clock::now().mono < end || turn < faults.len() {
            // Every fault once, however long that takes, then by chance.
            let fault = match faults.get(turn) {
                Some(fault) => *fault,
                None => faults[rng.below(faults.len())],
            };
            turn += 1;
            let from = clock::now().mono.nanos();
            anstream::eprintln!("{}", fault.name());
            stage.inflict(fault, &mut rng).await?;
            marks.push((fault, from, clock::now().mono.nanos()));
            tokio::time::sleep(Duration::from_millis(300 + rng.below(1200) as u64)).await;
            stage.look_at_commands(Some(fault))?;
        }
        stage.heal().await?;
        stage.say_healed()?;
        tokio::time::sleep(Duration::from_secs(8)).await;
        stage.look_at_commands(None)?;
        stage.end()?;
        let report = report::Report::read(&stage, &marks)?;
        if let Some(folder) = &self.keep {
            stage.keep(folder)?;
        }
        Ok(report)
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    Ok(builder.enable_all().worker_threads(2).build()?)
}

/// Clients from this number on have a lock of their own that nobody else wants: how long they
/// wait for it is what a fault costs.
const PROBES: u32 = 1_000_000;

/// Everything that runs.
struct Stage {
    local: Local,
    /// In front of the nodes, unless they have hosts of their own.
    proxies: Vec<Proxy>,
    hosts: Option<Hosts>,
    commands: Option<Commands>,
    players: Vec<Player>,
    /// They are left alone.
    probes: Vec<Player>,
    options: Options,
    fence: String,
}

#[derive(Clone, Debug)]
struct Options {
    names: u64,
    ttl: Duration,
    seed: u64,
}

/// A client process.
struct Player {
    client: u32,
    kind: &'static str,
    life: u32,
    child: Child,
    history: PathBuf,
}

impl Stage {
    async fn set(run: &Run, seed: u64) -> Result<Self, Failure> {
        let mut local = Local::prepare(&LocalOptions {
            shape: run.shape.clone(),
            history: true,
        })?;
        let mut proxies = Vec::new();
        let mut hosts = None;
        if run.hosts {
            let made = Hosts::make(local.len())?;
            let addresses = (0..local.len()).map(|node| Hosts::address(node).into());
            local.settle(&addresses.collect::<Vec<_>>())?;
            for node in 0..local.len() {
                local.start_by(node as u32 + 1, made.prefix(node));
            }
            hosts = Some(made);
        } else {
            for peer in local.peers()? {
                proxies.push(Proxy::start(peer).await?);
            }
            let told: Vec<_> = proxies.iter().map(Proxy::address).collect();
            local.advertise(&told)?;
        }
        local.launch().await?;
        let mut stage = Self {
            fence: fence::serve(&local.folder().join("fence.history"))
                .await?
                .to_string(),
            options: Options {
                names: run.names,
                ttl: run.ttl.0,
                seed,
            },
            commands: None,
            hosts,
            players: Vec::new(),
            probes: Vec::new(),
            local,
            proxies,
        };
        for client in 0..run.smart + run.thin {
            let kind = if client < run.smart { "smart" } else { "thin" };
            let player = stage.player(client, kind, 1)?;
            stage.players.push(player);
        }
        for (client, kind) in [(PROBES, "smart"), (PROBES + 1, "thin")] {
            let probe = stage.player(client, kind, 1)?;
            stage.probes.push(probe);
        }
        if stage.keeps_holds()? {
            let durable = matches!(run.shape.restart, Some(Restart::Durable));
            let (folder, endpoints) = (stage.local.folder(), stage.local.endpoints());
            let commands = Commands::start(folder, &endpoints, stage.tls_flags(), durable)?;
            stage.commands = Some(commands);
        }
        Ok(stage)
    }

    /// Whether a hold lasts when one of its nodes goes. In a hierarchy it ends with its home, and
    /// by the serial protocol with any of its nodes.
    fn keeps_holds(&self) -> Result<bool, Failure> {
        let cluster = self.local.cluster();
        let config = cluster.shared_config().map_err(Failure::input)?;
        let policy = config.policy(&Name::new(commands::PREFIX));
        Ok(cluster.topology().is_none() && policy.protocol == Protocol::Parallel)
    }

    /// Looks which commands have ended.
    fn look_at_commands(&mut self, fault: Option<Fault>) -> Result<(), Failure> {
        match &mut self.commands {
            Some(commands) => commands.look(fault),
            None => Ok(()),
        }
    }

    fn player(&self, client: u32, kind: &'static str, life: u32) -> Result<Player, Failure> {
        let history = self.local.folder().join(format!("client{client}.history"));
        let seed = self.options.seed ^ u64::from(client) << 32 ^ u64::from(life) << 48;
        // In a hierarchy the first endpoint is a client's home: they shall differ.
        let mut endpoints = self.local.endpoints();
        let homes = endpoints.len().max(1);
        endpoints.rotate_left(client as usize * 5 % homes);
        let child = Process::new(std::env::current_exe()?)
            .args(["chaos-client", "--kind", kind])
            .args(["--endpoints", &endpoints.join(",")])
            .arg("--history")
            .arg(&history)
            .args(["--fence", &self.fence])
            .args(["--client", &client.to_string(), "--life", &life.to_string()])
            .args(["--names", &self.options.names.to_string()])
            .args(["--seed", &seed.to_string()])
            .args(["--ttl-ms", &self.options.ttl.as_millis().to_string()])
            .args((client >= PROBES).then_some("--probe"))
            .args(self.tls_flags())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Player {
            client,
            kind,
            life,
            child,
            history,
        })
    }

    fn tls_flags(&self) -> Vec<OsString> {
        let Some(files) = self.local.tls_files() else {
            return Vec::new();
        };
        let flags = [
            ("--ca", files.ca),
            ("--cert", files.cert),
            ("--key", files.key),
        ];
        let words = flags
            .into_iter()
            .flat_map(|(flag, path)| [flag.into(), path.into()]);
        words.collect()
    }

    fn signal_player(&self, place: usize, signal: Signal) {
        let pid = Pid::from_raw(self.players[place].child.id().cast_signed());
        if let Some(pid) = pid {
            let _ = kill_process(pid, signal);
        }
    }

    /// Ends all faults.
    async fn heal(&mut self) -> Result<(), Failure> {
        for proxy in &self.proxies {
            proxy.set(proxy::Line::Open);
        }
        for id in 1..=self.local.len() as u32 {
            self.local.signal(id, Signal::CONT);
            if self.local.pid(id).is_none() {
                self.local.spawn(id)?;
            }
            self.local.ready(id).await?;
        }
        Ok(())
    }

    /// Writes down that all faults have ended: from now on every request must end.
    fn say_healed(&self) -> Result<(), Failure> {
        let line = json!({"at": clock::now().mono.nanos(), "event": "healed"});
        std::fs::write(self.run_history(), format!("{line}\n"))?;
        Ok(())
    }

    fn run_history(&self) -> PathBuf {
        self.local.folder().join("run.history")
    }

    /// The histories of everybody.
    fn histories(&self) -> Vec<PathBuf> {
        let mut files = self.local.histories();
        let players = self.players.iter().chain(&self.probes);
        files.extend(players.map(|player| player.history.clone()));
        files.push(self.local.folder().join("fence.history"));
        files.push(self.run_history());
        files
    }

    /// Ends the clients, then the nodes.
    fn end(&mut self) -> Result<(), Failure> {
        if let Some(commands) = &mut self.commands {
            commands.end();
        }
        for player in self.players.iter_mut().chain(&mut self.probes) {
            player.kill()?;
        }
        for id in 1..=self.local.len() as u32 {
            self.local.kill(id);
        }
        Ok(())
    }

    fn keep(&self, folder: &std::path::Path) -> Result<(), Failure> {
        std::fs::create_dir_all(folder)?;
        for entry in std::fs::read_dir(self.local.folder())? {
            let path = entry?.path();
            if let (true, Some(name)) = (path.is_file(), path.file_name()) {
                std::fs::copy(&path, folder.join(name))?;
            }
        }
        Ok(())
    }
}

impl Player {
    /// Kills the process and writes down that it is gone.
    fn kill(&mut self) -> Result<(), Failure> {
        use std::io::Write;
        let _ = self.child.kill();
        let _ = self.child.wait();
        let line = json!({
            "at": clock::now().mono.nanos(),
            "client": self.client,
            "life": self.life,
            "event": "vanished",
        });
        let mut file = std::fs::OpenOptions::new()
            .append(true)
            .open(&self.history)?;
        cut_half_line(&self.history)?;
        writeln!(file, "{line}")?;
        Ok(())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for player in self.players.iter_mut().chain(&mut self.probes) {
            let _ = player.child.kill();
            let _ = player.child.wait();
        }
    }
}

/// Cuts off the half line that a killed process may have left.
fn cut_half_line(path: &std::path::Path) -> Result<(), Failure> {
    let bytes = std::fs::read(path)?;
    let whole = bytes
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |end| end + 1);
    let file = std::fs::OpenOptions::new().write(true).open(path)?;
    file.set_len(whole as u64)?;
    Ok(())
}
