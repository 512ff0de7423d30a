//! The server processes of another system: own ports and data, ended when the value is dropped.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::site::{Fleet, Place};
use crate::cli::Failure;
use crate::output;
use crate::service::usage;

/// Where packages put programs and archives, beside the search path.
const FOLDERS: [&str; 5] = [
    "/usr/bin",
    "/usr/sbin",
    "/usr/local/bin",
    "/usr/share/java",
    "/usr/share/zookeeper",
];
/// How often a question is asked.
const ASKED: usize = 3;
/// The longest answer to a question in plain text.
const ANSWER_MAX: u64 = 1 << 20;

/// Where a program or archive is: in the folder that was given, else where packages put it.
pub(super) fn find(name: &str, place: &Place) -> Option<PathBuf> {
    if let Some(folder) = &place.programs {
        return Some(folder.join(name)).filter(|file| file.is_file());
    }
    find_usual(name)
}

/// Where a program or archive is, on the search path or where packages put it.
pub(super) fn find_usual(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let usual = FOLDERS.iter().map(PathBuf::from);
    let mut files = path
        .into_iter()
        .chain(usual)
        .map(|folder| folder.join(name));
    files.find(|file| file.is_file())
}

/// Processes with data in a folder of their own.
#[derive(Debug)]
pub(super) struct Servers {
    folder: TempDir,
    children: Vec<Option<Child>>,
    /// CPU seconds of those that were killed.
    spent: f64,
}

impl Servers {
    pub(super) fn new() -> Result<Self, Failure> {
        let folder = tempfile::Builder::new()
            .prefix("conclave-peer-")
            .tempdir()?;
        Ok(Self {
            folder,
            children: Vec::new(),
            spent: 0.0,
        })
    }

    /// The folder of a server, made if it is not there.
    pub(super) fn folder(&self, server: usize) -> Result<PathBuf, Failure> {
        let folder = self.folder.path().join(format!("server{}", server + 1));
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// Starts the next server; what it says goes to a log in its folder.
    pub(super) fn spawn(&mut self, mut command: Command) -> Result<(), Failure> {
        let folder = self.folder(self.children.len())?;
        let log = File::create(log_of(&folder))?;
        command
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = command.spawn().map_err(|error| {
            let program = Path::new(command.get_program()).display();
            Failure::Input(format!("cannot start {program}: {error}"))
        })?;
        self.children.push(Some(child));
        Ok(())
    }

    fn words_of(&self, server: usize) -> String {
        let folder = self.folder.path().join(format!("server{}", server + 1));
        let log = fs::read(log_of(&folder)).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = &lines[lines.len().saturating_sub(3)..];
        output::clip(&last.join(" | "), 600)
    }

    fn pids(&self) -> impl Iterator<Item = u32> {
        self.children.iter().flatten().map(Child::id)
    }
}

impl Fleet for Servers {
    fn ended(&mut self) -> Option<String> {
        let mut children = self.children.iter_mut();
        let ended = children.position(|child| {
            let child = child.as_mut();
            child.is_some_and(|child| !matches!(child.try_wait(), Ok(None)))
        })?;
        Some(self.words_of(ended))
    }

    fn last_words(&self) -> String {
        let words = (0..self.children.len()).map(|server| self.words_of(server));
        let words: Vec<String> = words.filter(|words| !words.is_empty()).collect();
        words
            .last()
            .cloned()
            .unwrap_or_else(|| "nothing".to_owned())
    }

    fn cpu_seconds(&self) -> f64 {
        self.spent + self.pids().map(usage::cpu_seconds).sum::<f64>()
    }

    fn resident_mb(&self) -> f64 {
        self.pids().map(usage::resident_mb).sum()
    }

    fn hit(&mut self, server: usize, signal: Signal) {
        let Some(place) = self.children.get_mut(server) else {
            return;
        };
        if signal == Signal::KILL {
            if let Some(mut child) = place.take() {
                self.spent += usage::cpu_seconds(child.id());
                let _ = child.kill();
                let _ = child.wait();
            }
        } else if let Some(child) = place {
            let pid = Pid::from_raw(child.id().cast_signed());
            let _ = pid.map(|pid| kill_process(pid, signal));
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            let _ = child.kill();
        }
        for child in self.children.iter_mut().flatten() {
            let _ = child.wait();
        }
    }
}

fn log_of(folder: &Path) -> PathBuf {
    folder.join("log")
}

/// So many ports of the loopback interface that nobody has right now.
pub(super) fn free_ports(count: usize) -> Result<Vec<u16>, Failure> {
    // All are kept until the last was found, so that they differ.
    let mut listeners = Vec::new();
    for _ in 0..count {
        listeners.push(TcpListener::bind("127.0.0.1:0")?);
    }
    let ports = listeners.iter().map(TcpListener::local_addr);
    let ports = ports.map(|address| Ok(address?.port()));
    ports.collect()
}

/// Says something in plain text to a port and reads until the other side is done. A server under
/// load may drop a question: it is asked again.
pub(super) async fn ask(port: u16, words: &str) -> Result<String, String> {
    let mut answer = ask_once(port, words).await;
    for _ in 1..ASKED {
        if answer.as_ref().is_ok_and(|text| !text.is_empty()) {
            break;
        }
        answer = ask_once(port, words).await;
    }
    answer
}

async fn ask_once(port: u16, words: &str) -> Result<String, String> {
    let exchange = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(words.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(ANSWER_MAX).read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer = timeout(Duration::from_secs(2), exchange).await;
    let answer = answer.map_err(|_| format!("no answer from port {port}"))?;
    answer.map_err(|error| format!("port {port}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers() -> Servers {
        Servers::new().unwrap_or_else(|_| panic!("a temporary folder"))
    }

    fn shell(text: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", text]);
        command
    }

    #[test]
    fn servers_are_gone_when_they_are_dropped() {
        let mut servers = servers();
        let folder = servers.folder.path().to_owned();
        for _ in 0..2 {
            assert!(servers.spawn(shell("exec sleep 60")).is_ok());
        }
        let pids: Vec<u32> = servers.pids().collect();
        assert!(servers.ended().is_none());
        servers.hit(0, Signal::KILL);
        servers.hit(1, Signal::STOP);
        servers.hit(7, Signal::KILL);
        assert!(!Path::new(&format!("/proc/{}", pids[0])).exists());
        assert!(
            servers.ended().is_none(),
            "one that we killed did not end by itself"
        );
        drop(servers);
        assert!(!Path::new(&format!("/proc/{}", pids[1])).exists());
        assert!(!folder.exists());
    }

    #[test]
    fn a_server_that_ends_is_quoted() {
        let mut servers = servers();
        assert!(servers.spawn(shell("exec sleep 60")).is_ok());
        assert!(servers.spawn(shell("echo bad luck >&2; exit 3")).is_ok());
        let words = loop {
            if let Some(words) = servers.ended() {
                break words;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(words, "bad luck");
        assert_eq!(servers.last_words(), "bad luck");
    }

    #[test]
    fn ports_differ() {
        let mut ports = free_ports(20).unwrap_or_else(|_| panic!("there are ports"));
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 20);
    }
}
