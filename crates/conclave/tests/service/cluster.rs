//! Clusters and commands as child processes that are gone after the test.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Long enough for anything that does happen, on any machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// A `conclave` command whose registry of running clusters is in this directory.
pub(crate) fn conclave(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_conclave"));
    command
        .env("XDG_RUNTIME_DIR", home)
        .env_remove("CONCLAVE_ENDPOINTS")
        .stdin(Stdio::null());
    command
}

/// Sends a signal to a process.
pub(crate) fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let _ = kill_process(pid, signal);
}

/// Whether a process is there and not a zombie.
pub(crate) fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default().trim();
    !state.is_empty() && !state.starts_with('Z')
}

/// Waits until something holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A child process that does not outlive the test.
pub(crate) struct Kid(pub(crate) Child);

impl Kid {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self(command.spawn().expect("the command starts"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn signal(&self, what: Signal) {
        signal(self.pid(), what);
    }

    pub(crate) fn output(&mut self) -> BufReader<ChildStdout> {
        BufReader::new(self.0.stdout.take().expect("its output is piped"))
    }

    /// Waits for its end.
    pub(crate) fn end(&mut self) -> ExitStatus {
        let mut status = None;
        until("the process ends", || {
            status = self.0.try_wait().expect("it can be waited for");
            status.is_some()
        });
        status.unwrap()
    }

    /// Waits for its end and gives the exit code, or 1000 + the signal that ended it.
    pub(crate) fn code(&mut self) -> i32 {
        let status = self.end();
        let signal = || 1000 + status.signal().unwrap_or(0);
        status.code().unwrap_or_else(signal)
    }

    /// What it has written to standard error, once it has ended.
    pub(crate) fn errors(&mut self) -> String {
        let mut text = String::new();
        let from = self.0.stderr.take().expect("its errors are piped");
        BufReader::new(from).read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Kid {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            // A process that was stopped must go on to be ended.
            self.signal(Signal::CONT);
            self.signal(Signal::TERM);
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(20) {
                if let Ok(Some(_)) = self.0.try_wait() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A node as `up --json` tells it.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) id: u64,
    pub(crate) api: String,
    pub(crate) peer: String,
    pub(crate) pid: u32,
}

/// A running `conclave up`.
pub(crate) struct Cluster {
    pub(crate) up: Kid,
    pub(crate) nodes: Vec<Node>,
    /// The first line.
    pub(crate) first: String,
    /// The second line.
    pub(crate) second: Value,
    pub(crate) home: TempDir,
    /// What its commands find in their environment.
    environment: Vec<(String, String)>,
}

impl Cluster {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), arguments)
    }

    pub(crate) fn start_in(home: TempDir, arguments: &[&str]) -> Self {
        Self::start_with(home, arguments, &[])
    }

    /// Starts it, and its commands later on, with this environment.
    pub(crate) fn start_with(
        home: TempDir,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        Self::start_logged(home, arguments, environment, Stdio::inherit())
    }

    /// The same, with its log going somewhere.
    pub(crate) fn start_logged(
        home: TempDir,
        arguments: &[&str],
        environment: &[(&str, &str)],
        log: Stdio,
    ) -> Self {
        let mut command = conclave(home.path());
        command
            .envs(environment.iter().copied())
            .arg("up")
            .args(arguments)
            .arg("--json")
            .stdout(Stdio::piped())
            .stderr(log);
        let mut up = Kid::spawn(&mut command);
        let mut output = up.output();
        let mut line = || {
            let mut text = String::new();
            output.read_line(&mut text).unwrap();
            text
        };
        let (first, second) = (line(), line());
        let parsed = |text: &str| {
            let parsed = serde_json::from_str::<Value>(text);
            parsed.unwrap_or_else(|error| panic!("'{text}' is not JSON: {error}"))
        };
        let text = |node: &Value, field: &str| node[field].as_str().unwrap().to_owned();
        let node = |node: &Value| Node {
            id: node["id"].as_u64().unwrap(),
            api: text(node, "api"),
            peer: text(node, "peer"),
            pid: u32::try_from(node["pid"].as_u64().unwrap()).unwrap(),
        };
        let nodes = parsed(&first)["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .map(node)
            .collect();
        Self {
            up,
            nodes,
            second: parsed(&second),
            first,
            home,
            environment: environment
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
        }
    }

    pub(crate) fn data(&self) -> &Path {
        Path::new(self.second["data"].as_str().unwrap())
    }

    /// A command that finds this cluster by its registry.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = conclave(self.home.path());
        command.envs(self.environment.clone()).args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a command to its end: code, output, errors.
    pub(crate) fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        ran(&mut self.command(arguments))
    }

    /// Runs a command whose output is JSON.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let (code, out, err) = self.run(arguments);
        assert_eq!(code, 0, "{arguments:?}: {err}");
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
    }

    /// Somebody who is inside until told to leave.
    pub(crate) fn holder(&self, lock: &[&str]) -> Holder {
        let words = [&["lock"], lock, &["--", "sh", "-c", "echo in; cat"]].concat();
        let mut command = self.command(&words);
        let mut kid = Kid::spawn(command.stdin(Stdio::piped()).stderr(Stdio::inherit()));
        let mut output = kid.output();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "in\n", "{lock:?} does not get inside");
        Holder { kid }
    }
}

/// A command that holds a lock.
pub(crate) struct Holder {
    pub(crate) kid: Kid,
}

impl Holder {
    /// Lets the command end, and gives its code.
    pub(crate) fn leave(mut self) -> i32 {
        drop(self.kid.0.stdin.take());
        self.kid.code()
    }
}

/// Runs a command to its end: code, output, errors.
pub(crate) fn ran(command: &mut Command) -> (i32, String, String) {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut kid = Kid::spawn(command);
    let (mut output, errors) = (kid.output(), kid.0.stderr.take().unwrap());
    let errors = std::thread::spawn(move || {
        let mut text = String::new();
        BufReader::new(errors).read_to_string(&mut text).unwrap();
        text
    });
    let mut out = String::new();
    output.read_to_string(&mut out).unwrap();
    let code = kid.code();
    (code, out, errors.join().unwrap())
}

/// The status of a GET request, if it is answered.
pub(crate) fn get(url: &str) -> Option<u16> {
    page(url).map(|(status, _)| status)
}

/// The status of a GET request and the body, if it is answered.
pub(crate) fn page(url: &str) -> Option<(u16, String)> {
    let rest = url.strip_prefix("http://")?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let mut stream = TcpStream::connect(host).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let request = format!("GET /{path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let (mut line, mut rest) = (String::new(), String::new());
    let mut stream = BufReader::new(stream);
    stream.read_line(&mut line).ok()?;
    stream.read_to_string(&mut rest).ok()?;
    let (_, body) = rest.split_once("\r\n\r\n")?;
    Some((line.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}
