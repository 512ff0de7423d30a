//! The audit log of real nodes: a flood cannot fill it, and a full disk cannot stop a node.

use std::fs;
use std::io::{BufRead, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use rustls::{ClientConnection, StreamOwned};
use serde_json::Value;

use crate::cluster::{Cluster, Kid, PATIENCE, lives, page, signal, until};
use crate::tls::raw_config;

/// An access file that knows nobody.
const NOBODY: &str = "[[permission]]\nwho = \"*\"\nprefix = \"\"\nmay = [\"read\"]\n";

/// Requests at a time, how often on one connection, and connections.
const REQUESTS: (usize, usize, usize) = (50, 40, 4);

/// Sends requests with a token that nobody has, many at a time, and counts the refusals.
fn flood(api: &str, ca: &Path) -> usize {
    let host = api.strip_prefix("https://").unwrap();
    let socket = TcpStream::connect(host).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let name = host.split(':').next().unwrap().to_owned();
    let session = ClientConnection::new(raw_config(ca, None), name.try_into().unwrap()).unwrap();
    let mut stream = StreamOwned::new(session, socket);
    let shown = "authorization: Bearer cct_this-is-nobodys";
    let some = format!("GET /v1/locks HTTP/1.1\r\nhost: {host}\r\n{shown}\r\n\r\n");
    let some = some.repeat(REQUESTS.0);
    let mut refused = 0;
    for _ in 0..REQUESTS.1 {
        stream.write_all(some.as_bytes()).unwrap();
        let (mut text, mut bytes) = (String::new(), [0; 16 << 10]);
        while text.matches("HTTP/1.1 401").count() < REQUESTS.0 {
            let count = stream.read(&mut bytes).unwrap();
            assert!(count > 0, "{text}");
            text.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
        }
        refused += REQUESTS.0;
    }
    refused
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let whole = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    whole.collect()
}

/// The value of a metric.
fn metric(api: &str, name: &str) -> u64 {
    let (_, text) = page(&format!("{api}/metrics")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name}"))
        .trim()
        .parse()
        .unwrap()
}

#[test]
fn a_flood_of_refused_callers_leaves_a_bounded_log_and_an_honest_count() {
    let home = tempfile::tempdir().unwrap();
    let access = home.path().join("access.toml");
    fs::write(&access, NOBODY).unwrap();
    let access = access.display().to_string();
    let cluster = Cluster::start_in(home, &["--nodes", "1", "--access", &access, "--audit"]);
    let api = &cluster.nodes[0].api;
    let ca = cluster.data().join("tls").join("ca.pem");
    let floods: Vec<_> = (0..REQUESTS.2)
        .map(|_| {
            let (api, ca) = (api.clone(), ca.clone());
            std::thread::spawn(move || flood(&api, &ca))
        })
        .collect();
    let refused: usize = floods.into_iter().map(|flood| flood.join().unwrap()).sum();
    let path = cluster.data().join("node1.audit");
    let counted = |event: &str| -> u64 {
        let lines = lines(&path);
        let fits = lines.iter().filter(|line| line["event"] == event);
        fits.map(|line| line["count"].as_u64().unwrap_or(1)).sum()
    };
    until("every refusal is counted", || {
        counted("refused") + counted("dropped") >= refused as u64
    });
    assert_eq!(counted("refused") + counted("dropped"), refused as u64);
    let size = path.metadata().unwrap().len();
    assert!(size < 20_000, "{size} bytes for {refused} refusals");
}

/// A node whose process is gone and whose files are left.
fn stopped(more: &[&str]) -> Cluster {
    let cluster = Cluster::start(&[&["--nodes", "1", "--processes"], more].concat());
    let pid = cluster.nodes[0].pid;
    signal(pid, Signal::TERM);
    until("the first process is gone", || !lives(pid));
    cluster
}

/// Waits for the line that says that the node is ready.
fn ready(kid: &mut Kid) {
    let mut line = String::new();
    kid.output().read_line(&mut line).unwrap();
    assert!(line.contains("\"ready\":true"), "{line}");
}

#[test]
fn a_node_serves_and_counts_what_a_full_disk_does_not_take() {
    let cluster = stopped(&[]);
    let log = cluster.home.path().join("audit.log");
    std::os::unix::fs::symlink("/dev/full", &log).unwrap();
    let mut serve = cluster.command(&["serve", "--json", "--config"]);
    serve.arg(cluster.data().join("node1.toml"));
    serve.arg("--audit").arg(&log).stderr(Stdio::null());
    let mut serve = Kid::spawn(&mut serve);
    ready(&mut serve);
    for _ in 0..5 {
        let (code, _, errors) = cluster.run(&["lock", "a", "--", "true"]);
        assert_eq!(code, 0, "{errors}");
    }
    // Each run is granted and leaves; whether it said that it is inside is a matter of time.
    let api = &cluster.nodes[0].api;
    until("every line is counted", || {
        metric(api, "conclave_audit_dropped_total ") >= 10
    });
}

/// A folder on a disk without room for one file, in a mount namespace of the child's own.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_does_not_keep_a_node_from_starting() {
    let cluster = stopped(&[]);
    let folder = cluster.home.path().join("full");
    fs::create_dir(&folder).unwrap();
    let full = "mount -t tmpfs -o nr_inodes=1 none \"$0\" && exec \"$@\"";
    let inside = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--map-root-user", "sh", "-c", full]);
        command.arg(&folder).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    };
    if !inside(&["true"])
        .status()
        .is_ok_and(|status| status.success())
    {
        eprintln!("skipped: mount namespaces are not permitted here");
        return;
    }
    let program = env!("CARGO_BIN_EXE_conclave");
    let mut serve = inside(&[program, "serve", "--json", "--config"]);
    serve.arg(cluster.data().join("node1.toml"));
    serve.arg("--audit").arg(folder.join("audit.log"));
    let mut serve = Kid::spawn(&mut serve);
    ready(&mut serve);
    let (code, _, errors) = cluster.run(&["lock", "a", "--", "true"]);
    assert_eq!(code, 0, "{errors}");
    let api = &cluster.nodes[0].api;
    until("every line is counted", || {
        metric(api, "conclave_audit_dropped_total ") >= 2
    });
}
