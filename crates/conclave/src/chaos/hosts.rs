//! Hosts of their own for the nodes of a chaos run: a network namespace each, joined by a bridge,
//! so that links go down, packets get lost one way and addresses move, as on real networks.
//!
//! The whole run lives in a namespace of its own too, which is gone with its last process: nothing
//! of it is seen on the machine. It needs `ip` (iproute2), `unshare` and `nsenter` (util-linux),
//! and root, or the right to make user namespaces.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::cli::Failure;
use crate::output;

/// Says to a process that it is in the namespace of the run already.
const INSIDE: &str = "CONCLAVE_CHAOS_INSIDE";
/// Where clients and the run itself are.
const OURS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 254);
/// All other addresses, in two halves: a route to half of a network comes before one to the whole.
const HALVES: [&str; 2] = ["10.77.0.0/25", "10.77.0.128/25"];
const BRIDGE: &str = "conclave";

/// The hosts, one more than there are nodes.
#[derive(Debug)]
pub(super) struct Hosts {
    /// A process in each, which keeps it.
    keepers: Vec<Child>,
    /// On which host each node is.
    places: Vec<usize>,
    /// The host that has no node.
    spare: usize,
}

/// Runs this very command again, in a namespace of its own, unless it is in one already. Where
/// that is not permitted it says so, and the run is skipped: false.
pub(super) fn enter() -> Result<bool, Failure> {
    if std::env::var_os(INSIDE).is_some() {
        return Ok(true);
    }
    let mut apart = vec!["--net"];
    if !rustix::process::geteuid().is_root() {
        apart.extend(["--user", "--map-root-user"]);
    }
    let probe = ["ip", "link", "add", BRIDGE, "type", "bridge"];
    let tried = Command::new("unshare").args(&apart).args(probe).output();
    let why = match tried {
        Ok(tried) if tried.status.success() => None,
        Ok(tried) => Some(String::from_utf8_lossy(&tried.stderr).trim().to_owned()),
        Err(error) => Some(format!("unshare: {error}")),
    };
    if let Some(why) = why {
        output::line(format!(
            "skipped: hosts of their own need network namespaces, ip, unshare and nsenter: {why}"
        ))?;
        return Ok(false);
    }
    let error = Command::new("unshare")
        .args(&apart)
        .arg("--")
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .exec();
    Err(Failure::Failed(format!("unshare: {error}")))
}

impl Hosts {
    /// Makes a host for each of so many nodes, and a spare one.
    pub(super) fn make(nodes: usize) -> Result<Self, Failure> {
        ip(None, "link set lo up")?;
        ip(None, &format!("link add {BRIDGE} type bridge"))?;
        ip(None, &format!("addr add {OURS}/24 dev {BRIDGE}"))?;
        ip(None, &format!("link set {BRIDGE} up"))?;
        let mut hosts = Self {
            keepers: Vec::new(),
            places: (0..nodes).collect(),
            spare: nodes,
        };
        for place in 0..=nodes {
            let keeper = keeper()?;
            let pid = keeper.id();
            hosts.keepers.push(keeper);
            until_apart(pid)?;
            ip(
                None,
                &format!("link add v{place} type veth peer name eth0 netns {pid}"),
            )?;
            ip(None, &format!("link set v{place} master {BRIDGE} up"))?;
            hosts.at(place, "link set lo up")?;
            hosts.at(place, "link set eth0 up")?;
        }
        for node in 0..nodes {
            hosts.at(
                node,
                &format!("addr add {}/24 dev eth0", Self::address(node)),
            )?;
        }
        Ok(hosts)
    }

    /// The address of a node, from 0.
    pub(super) fn address(node: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, u8::try_from(node + 1).unwrap_or(253))
    }

    /// What starts a program on the host of a node.
    pub(super) fn prefix(&self, node: usize) -> Vec<OsString> {
        let pid = self.keepers[self.places[node]].id();
        prefix(pid).map(OsString::from).to_vec()
    }

    /// Pulls the cable of a node, or plugs it in again.
    pub(super) fn link(&self, node: usize, up: bool) -> Result<(), Failure> {
        let state = if up { "up" } else { "down" };
        ip(None, &format!("link set v{} {state}", self.places[node]))
    }

    /// Nothing that a node sends arrives, though it hears everybody; or everything arrives again.
    pub(super) fn mute(&self, node: usize, mute: bool) -> Result<(), Failure> {
        let verb = if mute { "add" } else { "del" };
        for half in HALVES {
            self.at(self.places[node], &format!("route {verb} blackhole {half}"))?;
        }
        Ok(())
    }

    /// Moves a node's address to the spare host. The node must not run.
    pub(super) fn relocate(&mut self, node: usize) -> Result<(), Failure> {
        let (from, to) = (self.places[node], self.spare);
        let address = Self::address(node);
        self.at(from, &format!("addr del {address}/24 dev eth0"))?;
        self.at(to, &format!("addr add {address}/24 dev eth0"))?;
        (self.places[node], self.spare) = (to, from);
        // What the new host would announce: the address has another card now.
        for place in 0..self.keepers.len() {
            self.at(place, "neigh flush all")?;
        }
        ip(None, "neigh flush all")
    }

    /// Runs `ip` on a host.
    fn at(&self, place: usize, words: &str) -> Result<(), Failure> {
        ip(Some(self.keepers[place].id()), words)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for keeper in &mut self.keepers {
            let _ = keeper.kill();
            let _ = keeper.wait();
        }
        // The next run makes it anew.
        let _ = ip(None, &format!("link del {BRIDGE}"));
    }
}

/// What starts a program in the network namespace of a process.
fn prefix(pid: u32) -> [String; 3] {
    let namespace = format!("--net=/proc/{pid}/ns/net");
    ["nsenter".to_owned(), namespace, "--".to_owned()]
}

/// A process in a new network namespace; it ends with us.
fn keeper() -> Result<Child, Failure> {
    let started = Command::new(std::env::current_exe()?)
        .args(["exec-guarded", "--parent", &std::process::id().to_string()])
        .args(["--", "unshare", "--net", "sleep", "infinity"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    started.map_err(|error| Failure::Failed(format!("cannot start a host: {error}")))
}

/// Waits until a process is in a network namespace of its own.
fn until_apart(pid: u32) -> Result<(), Failure> {
    let ours = std::fs::read_link("/proc/self/ns/net")?;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(10) {
        if std::fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|theirs| theirs != ours) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Err(Failure::Failed("a host did not start".to_owned()))
}

/// Runs `ip` with these words, in the namespace of a process or in ours.
fn ip(at: Option<u32>, words: &str) -> Result<(), Failure> {
    let mut command = match at.map(prefix) {
        Some([program, namespace, dashes]) => {
            let mut command = Command::new(program);
            command.args([namespace, dashes, "ip".to_owned()]);
            command
        }
        None => Command::new("ip"),
    };
    let failed = |why: String| Failure::Failed(format!("ip {words}: {why}"));
    let done = command.args(words.split_whitespace()).output();
    let done = done.map_err(|error| failed(error.to_string()))?;
    if done.status.success() {
        return Ok(());
    }
    Err(failed(
        String::from_utf8_lossy(&done.stderr).trim().to_owned(),
    ))
}
