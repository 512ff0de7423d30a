//! Nodes as an operator runs them: one `conclave serve` each, with files of its own.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Long enough for anything that does happen, on any machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// Times that make a test short.
const TIMES: &str =
    "\n[times]\nttl_max = \"2s\"\nttl_min = \"500ms\"\n\n[faults]\nspan_max = \"2s\"\n";

/// Waits until something holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A child process that does not outlive the test.
pub(crate) struct Kid(Child);

impl Kid {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self(command.spawn().expect("the command starts"))
    }

    pub(crate) fn lives(&mut self) -> bool {
        self.0.try_wait().expect("it can be waited for").is_none()
    }

    /// Lets it end by itself or by this signal, and gives its code.
    pub(crate) fn end(mut self, signal: Option<Signal>) -> Option<i32> {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        if let (Some(signal), Some(pid)) = (signal, pid) {
            let _ = kill_process(pid, signal);
        }
        drop(self.0.stdin.take());
        let mut status = None;
        until("the process ends", || {
            status = self.0.try_wait().expect("it can be waited for");
            status.is_some()
        });
        status.and_then(|status| status.code())
    }
}

impl Drop for Kid {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Hosts of a cluster, all of them on this machine.
pub(crate) struct Hosts {
    home: TempDir,
    ports: Vec<(u16, u16)>,
    tls: bool,
    pub(crate) nodes: Vec<Option<Kid>>,
}

impl Hosts {
    pub(crate) fn new(count: usize, tls: bool) -> Self {
        let home = tempfile::tempdir().unwrap();
        // All are open at once, so that no port is given twice.
        let open: Vec<TcpListener> = (0..2 * count)
            .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let port = |at: usize| open[at].local_addr().unwrap().port();
        let ports = (0..count).map(|at| (port(2 * at), port(2 * at + 1)));
        let hosts = Self {
            ports: ports.collect(),
            nodes: (0..count).map(|_| None).collect(),
            home,
            tls,
        };
        fs::write(hosts.path("secret"), "0123456789abcdef0123456789").unwrap();
        if tls {
            hosts.make_certificates(count);
        }
        hosts
    }

    fn make_certificates(&self, count: usize) {
        let dir = self.path("certs");
        let dir = dir.to_str().unwrap();
        let certs = |words: &[&str]| {
            let (code, _, err) = self.run(&[&["certs"], words].concat());
            assert_eq!(code, Some(0), "{words:?}: {err}");
        };
        certs(&["init", "--dir", dir, "--cluster", "prod"]);
        for id in 1..=count {
            let id = id.to_string();
            certs(&["node", "--dir", dir, "--id", &id, "--host", "127.0.0.1"]);
        }
        certs(&["client", "--dir", dir, "--name", "ci"]);
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.home.path().join(name)
    }

    pub(crate) fn data(&self, id: usize) -> PathBuf {
        self.path(format!("data-{id}"))
    }

    /// Writes a cluster file over the first so many hosts, with more lines at its top.
    pub(crate) fn file(&self, name: &str, epoch: u64, quorum: &str, count: usize) -> PathBuf {
        self.file_with(name, epoch, quorum, count, TIMES)
    }

    pub(crate) fn file_with(
        &self,
        name: &str,
        epoch: u64,
        quorum: &str,
        count: usize,
        more: &str,
    ) -> PathBuf {
        let mut text = format!("name = \"prod\"\nepoch = {epoch}\nquorum = \"{quorum}\"\n{more}");
        for (at, (peer, _)) in self.ports.iter().enumerate().take(count) {
            let (id, api) = (at + 1, self.api(at + 1));
            let peer = format!("127.0.0.1:{peer}");
            writeln!(
                text,
                "\n[[nodes]]\nid = {id}\npeer = \"{peer}\"\napi = \"{api}\""
            )
            .unwrap();
        }
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn peer(&self, id: usize) -> String {
        format!("127.0.0.1:{}", self.ports[id - 1].0)
    }

    pub(crate) fn api(&self, id: usize) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.ports[id - 1].1)
    }

    fn log(&self, id: usize) -> PathBuf {
        self.path(format!("log-{id}"))
    }

    /// What the node of this number last logged.
    pub(crate) fn said(&self, id: usize) -> String {
        fs::read_to_string(self.log(id)).unwrap_or_default()
    }

    fn conclave(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_conclave"));
        command
            .env("XDG_RUNTIME_DIR", self.home.path())
            .env_remove("CONCLAVE_ENDPOINTS")
            .stdin(Stdio::null());
        command
    }

    /// Starts a node with this cluster file.
    pub(crate) fn start(&mut self, id: usize, file: &Path, words: &[&str]) {
        let certs = self.path("certs");
        let mut command = self.conclave();
        command
            .arg("serve")
            .args(["--id", &id.to_string(), "--cluster"])
            .arg(file)
            .arg("--data")
            .arg(self.data(id))
            .arg("--secret-file")
            .arg(self.path("secret"))
            .args(words);
        if self.tls {
            let own = |end: &str| certs.join(format!("node-{id}.{end}"));
            command.arg("--tls-ca").arg(certs.join("ca.pem"));
            command.arg("--tls-cert").arg(own("pem"));
            command.arg("--tls-key").arg(own("key"));
        }
        let log = File::create(self.log(id)).unwrap();
        command.stdout(Stdio::null()).stderr(log);
        self.nodes[id - 1] = Some(Kid::spawn(&mut command));
    }

    /// Stops a node gracefully.
    pub(crate) fn stop(&mut self, id: usize) {
        if let Some(kid) = self.nodes[id - 1].take() {
            kid.end(Some(Signal::TERM));
        }
    }

    /// Waits until a node has ended by itself, and gives its code.
    pub(crate) fn ended(&mut self, id: usize) -> Option<i32> {
        self.nodes[id - 1].take().and_then(|kid| kid.end(None))
    }

    /// Whether a node says that it serves.
    pub(crate) fn serves(&self, id: usize) -> bool {
        self.said(id).contains("ready")
    }

    /// A command for the nodes of these numbers.
    pub(crate) fn command(&self, ids: &[usize], words: &[&str]) -> Command {
        let mut command = self.conclave();
        let urls: Vec<String> = ids.iter().map(|id| self.api(*id)).collect();
        command
            .env("CONCLAVE_ENDPOINTS", urls.join(","))
            .args(words);
        if self.tls {
            let certs = self.path("certs");
            command
                .env("CONCLAVE_CA", certs.join("ca.pem"))
                .env("CONCLAVE_CERT", certs.join("client-ci.pem"))
                .env("CONCLAVE_KEY", certs.join("client-ci.key"));
        }
        command
    }

    fn run(&self, words: &[&str]) -> (Option<i32>, String, String) {
        let done = self.conclave().args(words).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (done.status.code(), text(&done.stdout), text(&done.stderr))
    }

    /// Runs a command for these nodes: its code, output and errors.
    pub(crate) fn ask(&self, ids: &[usize], words: &[&str]) -> (Option<i32>, String, String) {
        let done = self.command(ids, words).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (done.status.code(), text(&done.stdout), text(&done.stderr))
    }

    /// Takes a lock for a moment and gives its token, however long that takes.
    pub(crate) fn token(&self, ids: &[usize]) -> u64 {
        let words = [
            "lock",
            "l",
            "--ttl",
            "2s",
            "--",
            "sh",
            "-c",
            "echo $CONCLAVE_TOKEN",
        ];
        let mut token = None;
        until("the lock is taken", || {
            let (code, out, _) = self.ask(ids, &words);
            token = out.trim().parse().ok().filter(|_| code == Some(0));
            token.is_some()
        });
        token.unwrap()
    }

    /// Whether somebody else gets the lock at once.
    pub(crate) fn gets_in(&self, ids: &[usize]) -> bool {
        let words = ["lock", "l", "--ttl", "2s", "--wait", "1s", "--", "true"];
        self.ask(ids, &words).0 == Some(0)
    }

    /// Somebody who is inside until told to leave.
    pub(crate) fn holder(&self, ids: &[usize]) -> Kid {
        let inside = self.path("inside");
        let script = format!("touch '{}'; cat", inside.display());
        let words = ["lock", "l", "--ttl", "2s", "--", "sh", "-c", &script];
        let mut command = self.command(ids, &words);
        let kid = Kid::spawn(command.stdin(Stdio::piped()).stderr(Stdio::inherit()));
        until("the holder is inside", || inside.exists());
        kid
    }
}
