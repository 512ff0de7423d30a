//! Who may do what, at every node: tokens, permissions, handles, revoked sessions, the audit log.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use conclave_client::Security;
use conclave_client::secure::Secret;
use rustix::process::Signal;
use rustls::{ClientConnection, StreamOwned};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cluster::{Cluster, Kid, PATIENCE, conclave, ran, signal, until};
use crate::tls::{Shown, raw_config};

/// A cluster with an access file, and the tokens of its principals in files.
struct Guarded {
    cluster: Cluster,
    tokens: Vec<(String, String)>,
}

const NAMES: [&str; 4] = ["ci", "dev", "ops", "late"];

const RULES: &str = "
[[permission]]
who = \"ci\"
prefix = \"ci/\"
may = [\"acquire\", \"read\"]
[[permission]]
who = \"dev\"
prefix = \"dev/\"
may = [\"acquire\"]
[[permission]]
who = \"ops\"
prefix = \"\"
may = [\"administer\"]
[[permission]]
who = \"*\"
prefix = \"open/\"
may = [\"acquire\", \"read\"]
";

fn file(home: &Path, principal: &str) -> PathBuf {
    home.join(format!("{principal}.token"))
}

impl Guarded {
    fn start(more: &[&str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let (mut text, mut tokens) = (String::new(), Vec::new());
        for principal in NAMES {
            let token = new_token(&home, principal);
            fs::write(
                file(home.path(), principal),
                token["token"].as_str().unwrap(),
            )
            .unwrap();
            let _ = writeln!(text, "{}", token["access_toml"].as_str().unwrap());
            let secret = token["token"].as_str().unwrap().to_owned();
            tokens.push((principal.to_owned(), secret));
        }
        text.push_str(RULES);
        fs::write(home.path().join("wrong.token"), "cct_this-is-nobodys").unwrap();
        let access = home.path().join("access.toml");
        fs::write(&access, text).unwrap();
        let access = access.display().to_string();
        let words = [&["--nodes", "3", "--access", &access], more].concat();
        let log = fs::File::create(home.path().join("log")).unwrap();
        let cluster = Cluster::start_logged(home, &words, &[], log.into());
        Self { cluster, tokens }
    }

    fn token(&self, principal: &str) -> &str {
        let mut all = self.tokens.iter();
        let found = all.find(|(name, _)| name == principal);
        found.map_or("cct_this-is-nobodys", |(_, token)| token)
    }

    /// A command that shows a token.
    fn command(&self, principal: &str, words: &[&str]) -> Command {
        let mut command = self.cluster.command(words);
        command.env(
            "CONCLAVE_BEARER_FILE",
            file(self.cluster.home.path(), principal),
        );
        command
    }

    fn run(&self, principal: &str, words: &[&str]) -> (i32, String, String) {
        ran(&mut self.command(principal, words))
    }

    fn tls(&self) -> PathBuf {
        self.cluster.data().join("tls")
    }

    /// Asks one node over HTTP, without a certificate.
    fn ask(&self, node: usize, who: Option<&str>, method: &str, path: &str, body: &Value) -> Told {
        let token = who.map(|principal| self.token(principal));
        let shown = token.map_or(String::new(), |token| {
            format!("authorization: Bearer {token}\r\n")
        });
        self.ask_as(node, None, &shown, &format!("{method} {path}"), body)
    }

    /// Asks one node over HTTP, with a certificate and more lines in the head.
    fn ask_as(
        &self,
        node: usize,
        shown: Option<&Shown>,
        lines: &str,
        what: &str,
        body: &Value,
    ) -> Told {
        let host = self.cluster.nodes[node].api.strip_prefix("https://");
        let host = host.unwrap();
        let socket = TcpStream::connect(host).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let config = raw_config(&self.tls().join("ca.pem"), shown);
        let name = host.split(':').next().unwrap().to_owned();
        let session = ClientConnection::new(config, name.try_into().unwrap()).unwrap();
        let mut stream = StreamOwned::new(session, socket);
        let body = body.to_string();
        let request = format!(
            "{what} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{lines}\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        told(stream)
    }

    fn post(&self, node: usize, principal: &str, path: &str, body: &Value) -> Told {
        self.ask(node, Some(principal), "POST", path, body)
    }
}

/// An answer: status, and the code of its error or its body.
type Told = (u16, String, Value);

/// Reads an answer to the end of its connection, which may come without a farewell.
fn told(mut stream: impl Read) -> Told {
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{error}");
    }
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_default();
    let status = head
        .split(' ')
        .nth(1)
        .map_or(0, |word| word.parse().unwrap());
    let json: Value = serde_json::from_str(body).unwrap_or(Value::Null);
    let code = json["error"]["code"].as_str().unwrap_or_default();
    (status, code.to_owned(), json)
}

fn new_token(home: &TempDir, principal: &str) -> Value {
    let mut command = conclave(home.path());
    command.args(["token", "new", "--principal", principal, "--json"]);
    let (code, out, err) = ran(&mut command);
    assert_eq!(code, 0, "{err}");
    serde_json::from_str(&out).unwrap()
}

fn expect(told: &Told, status: u16, code: &str, what: &str) {
    assert_eq!(
        (told.0, told.1.as_str()),
        (status, code),
        "{what}: {}",
        told.2
    );
}

#[test]
fn whoever_is_not_known_or_not_permitted_is_refused_by_name_at_every_node() {
    let it = Guarded::start(&[]);
    let none = json!({ "wait_ms": 0 });
    for node in 0..3 {
        for path in [
            "/v1/locks/ci/a",
            "/v1/locks",
            "/v1/sessions",
            "/v1/status",
            "/v1/cluster",
        ] {
            let nobody = it.ask(node, None, "GET", path, &Value::Null);
            expect(&nobody, 401, "no_certificate", path);
            let wrong = it.ask(node, Some("wrong"), "GET", path, &Value::Null);
            expect(&wrong, 401, "unauthenticated", path);
        }
        for path in ["/healthz", "/readyz"] {
            assert_eq!(it.ask(node, None, "GET", path, &Value::Null).0, 200);
        }
        let nobody = it.ask(node, None, "POST", "/v1/locks/ci/a/acquire", &none);
        expect(&nobody, 401, "no_certificate", "acquire");
        let dev = it.post(node, "dev", "/v1/locks/ci/a/acquire", &none);
        expect(&dev, 403, "not_permitted", "another's prefix");
        let ops = it.post(node, "ops", "/v1/locks/ci/a/acquire", &none);
        expect(
            &ops,
            403,
            "not_permitted",
            "whoever administers does not acquire",
        );
        let read = it.ask(node, Some("dev"), "GET", "/v1/locks/dev/a", &Value::Null);
        expect(&read, 403, "not_permitted", "acquire is not read");
        let name = format!("/v1/locks/open/{node}/acquire");
        let held = it.post(node, "late", &name, &none);
        assert_eq!(held.0, 200, "{}", held.2);
    }
    // The same around any gateway: a client that talks to the nodes itself.
    let lock = |who: &str, name: &str| it.run(who, &["lock", name, "--try", "--", "echo", "in"]);
    let (code, out, err) = lock("ci", "ci/a");
    assert_eq!((code, out.as_str()), (0, "in\n"), "{err}");
    let (code, out, err) = lock("ci", "dev/a");
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    assert!(err.contains("not permitted"), "{err}");
    let (code, _, err) = lock("wrong", "ci/a");
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("not authenticated"), "{err}");
    // Without a token it is the client that its certificate names.
    let (code, _, err) = ran(&mut it.cluster.command(&["lock", "ci/a", "--try", "--", "true"]));
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("not permitted"), "{err}");
}

/// A client that has the cluster's description needs no API at all: the peer port refuses it.
#[test]
fn the_peer_port_of_every_node_asks_who_it_is() {
    let it = Guarded::start(&[]);
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.enable_all().worker_threads(1).build().unwrap();
    let text = fs::read_to_string(it.cluster.data().join("cluster.toml")).unwrap();
    let cluster = conclave_wire::Cluster::parse(&text).unwrap();
    let nodes: Vec<u32> = cluster.nodes.iter().map(|node| node.id).collect();
    let ca = it.tls().join("ca.pem");
    for (who, fits) in [(None, false), (Some("wrong"), false), (Some("ci"), true)] {
        let mut security = Security::from_files(&ca, None).unwrap();
        if let Some(who) = who {
            security = security.with_bearer(Secret::new(it.token(who)));
        }
        let client = conclave_client::Client::builder().cluster(cluster.clone());
        let taken = runtime.block_on(async {
            let client = client.security(security).connect().await.unwrap();
            let taken = client.lock("ci/peer").try_acquire().await;
            let troubles = client.driver().troubles();
            let taken = taken.map(|guard| guard.is_some());
            client.close().await;
            (taken, troubles)
        });
        if fits {
            assert_eq!(taken.0, Ok(true), "{:?}", taken.1);
            continue;
        }
        let refused = conclave_client::AcquireError::NotAuthenticated;
        assert!(who.is_none() || taken.0 == Err(refused), "{:?}", taken.0);
        let words = who.map_or("nothing was shown", |_| "not authenticated");
        let named = taken.1.iter().filter(|(_, why)| why.contains(words));
        assert!(
            named.count() >= 2,
            "a quorum of {nodes:?} says so: {:?}",
            taken.1
        );
    }
}

#[test]
fn a_handle_counts_in_the_hands_of_its_principal_alone() {
    let it = Guarded::start(&["--audit", "--log", "trace"]);
    let body = json!({ "ttl_ms": 20_000, "wait_ms": 0 });
    let (status, _, held) = it.post(0, "ci", "/v1/locks/open/h/acquire", &body);
    assert_eq!(status, 200, "{held}");
    let handle = json!({ "handle": held["handle"] });
    for node in 0..3 {
        for path in ["/v1/locks/keepalive", "/v1/locks/release"] {
            let stolen = it.post(node, "dev", path, &handle);
            expect(&stolen, 403, "foreign_handle", path);
        }
    }
    let (status, _, kept) = it.post(2, "ci", "/v1/locks/keepalive", &handle);
    assert_eq!(status, 200, "{kept}");
    // Others see that it is held only if they may read it.
    let (_, _, seen) = it.ask(1, Some("dev"), "GET", "/v1/locks/open/h", &Value::Null);
    assert_eq!(seen["holders"].as_array().map(Vec::len), Some(1), "{seen}");
    let (_, _, all) = it.ask(1, Some("ci"), "GET", "/v1/locks", &Value::Null);
    assert_eq!(all["locks"].as_array().map(Vec::len), Some(1), "{all}");
    let gone = it.post(
        1,
        "ci",
        "/v1/locks/release",
        &json!({ "handle": kept["handle"] }),
    );
    assert_eq!(gone.0, 200, "{}", gone.2);
    let secrets = [
        held["handle"].as_str().unwrap(),
        kept["handle"].as_str().unwrap(),
    ];
    audited(&it, &secrets);
}

#[test]
fn a_lease_counts_in_the_hands_of_its_principal_alone() {
    let it = Guarded::start(&[]);
    let wish = json!({ "for_ms": 20_000, "wait_ms": 20_000 });
    let (status, _, held) = it.post(0, "ci", "/v1/leases/open/h/acquire", &wish);
    assert_eq!(status, 200, "{held}");
    let handle = json!({ "handle": held["handle"] });
    for node in 0..3 {
        for path in ["/v1/leases/renew", "/v1/leases/release"] {
            let stolen = it.post(node, "dev", path, &handle);
            expect(&stolen, 403, "foreign_handle", path);
            let nobody = it.ask(node, None, "POST", path, &handle);
            assert_eq!(nobody.0, 401, "{path}: {nobody:?}");
        }
        let (status, _, renewed) = it.post(node, "ci", "/v1/leases/renew", &handle);
        assert_eq!(status, 200, "{renewed}");
    }
    let (status, _, released) = it.post(2, "ci", "/v1/leases/release", &handle);
    assert_eq!(status, 200, "{released}");
    let (status, _, taken) = it.post(1, "dev", "/v1/leases/open/h/acquire", &wish);
    assert_eq!(status, 200, "{taken}");
}

/// What happened stands in the audit logs, and nothing secret does.
fn audited(it: &Guarded, handles: &[&str]) {
    let data = it.cluster.data().to_owned();
    let mut logs = String::new();
    until("the refusals are written", || {
        logs = (1..=3)
            .filter_map(|id| fs::read_to_string(data.join(format!("node{id}.audit"))).ok())
            .collect();
        logs.matches("foreign_handle").count() == 6 && logs.contains("\"released\"")
    });
    let lines: Vec<Value> = logs
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let granted = lines
        .iter()
        .find(|line| line["event"] == "granted")
        .unwrap();
    assert_eq!(granted["name"], "open/h", "{granted}");
    assert_eq!(granted["principal"], "ci", "{granted}");
    assert!(granted["session"].is_string() && granted["time"].is_string());
    let foreign = lines.iter().find(|line| line["reason"] == "foreign_handle");
    assert_eq!(foreign.unwrap()["principal"], "dev");
    let secret = fs::read_to_string(data.join("secret")).unwrap();
    for secret in handles.iter().copied().chain([secret.trim()]) {
        assert!(!logs.contains(secret), "a secret is in the audit log");
    }
    for (_, token) in &it.tokens {
        assert!(
            !logs.contains(token.as_str()),
            "a token is in the audit log"
        );
    }
}

#[test]
fn a_revoked_session_is_over_at_every_node() {
    let it = Guarded::start(&[]);
    let mut holder = it.command(
        "ci",
        &[
            "lock",
            "ci/r",
            "--ttl",
            "20s",
            "--",
            "sh",
            "-c",
            "echo in; exec sleep 60",
        ],
    );
    let mut holder = Kid::spawn(&mut holder);
    let mut line = String::new();
    holder.output().read_line(&mut line).unwrap();
    assert_eq!(line, "in\n");
    let session = |who: &str| {
        let (code, out, err) = it.run(who, &["sessions", "--json"]);
        assert_eq!(code, 0, "{err}");
        let told: Value = serde_json::from_str(&out).unwrap();
        let all = told["sessions"].as_array().unwrap().clone();
        let found = all.into_iter().find(|one| one["principal"] == "ci");
        found.map(|one| one["session"].as_str().unwrap().to_owned())
    };
    let id = session("ops").expect("the operator sees it");
    assert_eq!(session("ci").as_ref(), Some(&id), "its owner sees it");
    assert_eq!(session("dev"), None, "others do not");
    for node in 0..3 {
        let path = format!("/v1/sessions/{id}/revoke?local=true");
        let told = it.post(node, "dev", &path, &Value::Null);
        let refused = told.1 == "not_permitted" || told.2["outcome"] == "not_permitted";
        assert!(refused, "{}", told.2);
    }
    let (code, _, err) = it.run("dev", &["revoke", &id]);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("not permitted"), "{err}");
    let (code, out, err) = it.run("ops", &["revoke", &id, "--json"]);
    assert_eq!(code, 0, "{err}");
    let told: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(told["enough"], true, "{told}");
    assert_eq!(told["nodes"].as_array().map(Vec::len), Some(3));
    // Long before its TTL the command is ended, and the lock is free: its holder left.
    assert_eq!(holder.code(), 4);
    let words = ["lock", "ci/r", "--wait", "10s", "--", "echo", "in"];
    let (code, out, err) = it.run("ci", &words);
    assert_eq!((code, out.as_str()), (0, "in\n"), "{err}");
}

#[test]
fn a_revoked_handle_is_refused_by_name_and_force_frees_at_once() {
    let it = Guarded::start(&[]);
    let body = json!({ "ttl_ms": 30_000, "wait_ms": 0 });
    for force in [false, true] {
        let name = format!("/v1/locks/open/force-{force}/acquire");
        let (status, _, held) = it.post(0, "ci", &name, &body);
        assert_eq!(status, 200, "{held}");
        let group = held["group"].as_str().unwrap();
        let id = group
            .strip_prefix("own:")
            .unwrap()
            .split('/')
            .next()
            .unwrap()
            .to_owned();
        let words = ["revoke", id.as_str(), "--force"];
        let (code, out, err) = it.run("ops", if force { &words } else { &words[..2] });
        assert_eq!(code, 0, "{err}");
        assert!(out.contains("revoked"), "{out}");
        let handle = json!({ "handle": held["handle"] });
        for node in 0..3 {
            let kept = it.post(node, "ci", "/v1/locks/keepalive", &handle);
            let told = (kept.0, kept.1.as_str());
            assert!(
                told == (410, "revoked") || force && told == (410, "lost"),
                "{}",
                kept.2
            );
        }
        let again = it.post(1, "ci", &name, &body);
        if force {
            assert_eq!(again.0, 200, "{}", again.2);
        } else {
            expect(&again, 409, "not_acquired", "its TTL has not run out");
            let release = it.post(1, "ci", "/v1/locks/release", &handle);
            assert_eq!(release.0, 200, "its holder may still leave");
            until("it is free", || it.post(1, "ci", &name, &body).0 == 200);
        }
    }
}

#[test]
fn a_changed_access_file_counts_without_a_restart() {
    let it = Guarded::start(&[]);
    let access = it.cluster.home.path().join("access.toml");
    let text = fs::read_to_string(&access).unwrap();
    let body = json!({ "wait_ms": 0 });
    let lock = |name: &str| {
        let statuses = (0..3).map(|node| {
            let path = format!("/v1/locks/{name}{node}/acquire");
            it.post(node, "late", &path, &body).0
        });
        statuses.collect::<Vec<_>>()
    };
    assert_eq!(lock("new/a"), [403; 3]);
    fs::write(&access, "this is broken").unwrap();
    assert_eq!(lock("open/a"), [200; 3], "the old file stays in use");
    let more = "\n[[permission]]\nwho = \"late\"\nprefix = \"new/\"\nmay = [\"acquire\"]\n";
    fs::write(&access, format!("{text}{more}")).unwrap();
    until("the new rule counts everywhere", || {
        lock("new/b") != [403; 3]
    });
    until("the new rule counts everywhere", || {
        let all = (0..3).map(|node| it.post(node, "late", "/v1/locks/new/c/acquire", &body).0);
        all.into_iter().all(|status| status != 403)
    });
}

/// Records what comes to the address of a node that is gone.
fn squat(address: &str, heard: &Arc<Mutex<Vec<Vec<u8>>>>) {
    let listener = TcpListener::bind(address).unwrap();
    let heard = heard.clone();
    std::thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let heard = heard.clone();
            std::thread::spawn(move || {
                // It answers nothing: what is sent before that is what it has.
                let _ = socket.set_read_timeout(Some(Duration::from_millis(500)));
                let (mut all, mut chunk) = (Vec::new(), [0; 4096]);
                while let Ok(count @ 1..) = socket.read(&mut chunk) {
                    all.extend_from_slice(&chunk[..count]);
                }
                heard.lock().unwrap().push(all);
            });
        }
    });
}

/// Somebody who listens where a node was is sent nothing that lets him in anywhere.
#[test]
fn whoever_listens_in_the_place_of_a_node_gets_nothing_to_use() {
    let it = Guarded::start(&["--processes"]);
    let gone = &it.cluster.nodes[2];
    signal(gone.pid, Signal::KILL);
    until("the node is gone", || {
        TcpStream::connect(&gone.peer).is_err()
    });
    let (peers, apis) = <(Arc<Mutex<Vec<_>>>, Arc<Mutex<Vec<_>>>)>::default();
    let api = gone.api.split_once("://").unwrap().1;
    squat(&gone.peer, &peers);
    squat(api, &apis);
    let body = json!({ "wait_ms": 20_000 });
    let mut number = 0;
    until("a gateway, a node and clients have called", || {
        number += 1;
        let name = format!("/v1/locks/ci/{number}/acquire");
        assert_eq!(it.post(0, "ci", &name, &body).0, 200);
        let looked = it.ask(1, Some("ci"), "GET", "/v1/locks", &Value::Null);
        assert_eq!(looked.0, 200, "{}", looked.2);
        let name = format!("ci/smart{number}");
        let (code, _, err) = it.run("ci", &["lock", &name, "--", "true"]);
        assert_eq!(code, 0, "{err}");
        peers.lock().unwrap().len() > 2 && apis.lock().unwrap().len() > 1
    });
    let honest = &it.cluster.nodes[0];
    let (peers, apis) = (peers.lock().unwrap(), apis.lock().unwrap());
    let honest_api = honest.api.split_once("://").unwrap().1;
    let all = peers.iter().map(|heard| (honest.peer.as_str(), heard));
    for (address, heard) in all.chain(apis.iter().map(|heard| (honest_api, heard))) {
        let has = |word: &str| {
            heard
                .windows(word.len())
                .any(|part| part == word.as_bytes())
        };
        assert!(!has(it.token("ci")), "a token was handed out");
        assert!(!has("conclave-node:"), "a node's proof was handed out");
        // Said again to a node that lives it begins a handshake that its author cannot end.
        let mut socket = TcpStream::connect(address).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(1)))
            .unwrap();
        socket.write_all(heard).unwrap();
        let mut first = [0];
        if let Ok(1) = socket.read(&mut first) {
            assert!(
                [0x15, 0x16].contains(&first[0]),
                "a node answers: {first:?}"
            );
        }
    }
}

/// What once showed other nodes that a process is a node, made from the secret that all share.
fn old_proof(data: &Path) -> String {
    let secret = fs::read_to_string(data.join("secret")).unwrap();
    let key = blake3::derive_key("conclave 2026 handle seal v1", secret.trim().as_bytes());
    let key = blake3::derive_key("conclave 2026 node credential v1", &key);
    let proof = blake3::keyed_hash(&key, &0_u32.to_le_bytes());
    let proof = BASE64_URL_SAFE_NO_PAD.encode(proof.as_bytes());
    format!("conclave-node:0:{proof}")
}

/// In whose name a call is made is believed from a node's certificate alone.
#[test]
fn only_the_certificate_of_a_node_speaks_for_others() {
    let it = Guarded::start(&[]);
    let name = "conclave-principal: ops\r\n";
    let proof = format!(
        "authorization: Bearer {}\r\n{name}",
        old_proof(it.cluster.data())
    );
    let token = format!("authorization: Bearer {}\r\n{name}", it.token("ci"));
    let (node, client) = (
        Shown::of(&it.tls(), "node-1"),
        Shown::of(&it.tls(), "client-local"),
    );
    let held = it.post(0, "ci", "/v1/locks/ci/a/acquire", &json!({ "wait_ms": 0 }));
    assert_eq!(held.0, 200, "{}", held.2);
    // Whoever administers sees the sessions of others.
    let sessions = |shown: Option<&Shown>, lines: &str| {
        let (status, code, json) = it.ask_as(1, shown, lines, "GET /v1/sessions", &Value::Null);
        (
            status,
            code,
            json["sessions"].as_array().map_or(0, Vec::len),
        )
    };
    for shown in [None, Some(&client), Some(&node)] {
        let (status, code, _) = sessions(shown, &proof);
        assert_eq!((status, code.as_str()), (401, "unauthenticated"));
    }
    assert_eq!(sessions(Some(&node), name), (200, String::new(), 1));
    assert_eq!(sessions(Some(&client), name), (200, String::new(), 0));
    let dev = token.replace(it.token("ci"), it.token("dev"));
    assert_eq!(sessions(Some(&node), &dev), (200, String::new(), 0));
}

/// A token that is taken out of the access file ends what it opened, although the file looks as
/// old and as long as before.
#[test]
fn a_token_that_is_gone_ends_its_open_connections() {
    let it = Guarded::start(&[]);
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.enable_all().worker_threads(1).build().unwrap();
    let ca = it.tls().join("ca.pem");
    let security = |who: &str| {
        let security = Security::from_files(&ca, None).unwrap();
        security.with_bearer(Secret::new(it.token(who)))
    };
    let text = fs::read_to_string(it.cluster.data().join("cluster.toml")).unwrap();
    let cluster = conclave_wire::Cluster::parse(&text).unwrap();
    let connect = |who: &str| {
        let client = conclave_client::Client::builder().cluster(cluster.clone());
        let client = client.security(security(who));
        runtime.block_on(async {
            let client = client.connect().await.unwrap();
            let guard = client.lock(format!("open/{who}")).try_acquire().await;
            (client, guard.unwrap().expect("it is free"))
        })
    };
    let (late, _held) = connect("late");
    let (ci, _kept) = connect("ci");
    let host = it.cluster.nodes[0].api.strip_prefix("https://").unwrap();
    let session = ClientConnection::new(
        raw_config(&ca, None),
        "127.0.0.1".to_owned().try_into().unwrap(),
    );
    let socket = TcpStream::connect(host).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut watch = StreamOwned::new(session.unwrap(), socket);
    let request = format!(
        "GET /v1/watch?prefix=open/ HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\
         authorization: Bearer {}\r\n\r\n",
        it.token("late")
    );
    watch.write_all(request.as_bytes()).unwrap();
    let mut first = [0; 12];
    watch.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");

    let access = it.cluster.home.path().join("access.toml");
    let written = fs::metadata(&access).unwrap().modified().unwrap();
    let text = fs::read_to_string(&access).unwrap();
    let hash = conclave_node::access::hash_of(it.token("late"));
    assert!(text.contains(&hash));
    fs::write(&access, text.replace(&hash, &"0".repeat(64))).unwrap();
    let file = fs::File::options().write(true).open(&access).unwrap();
    file.set_modified(written).unwrap();

    let mut rest = Vec::new();
    if let Err(error) = watch.read_to_end(&mut rest) {
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{error}");
    }
    let refused = |client: &conclave_client::Client| {
        let troubles = client.driver().troubles();
        let named = troubles.iter();
        named
            .filter(|(_, why)| why.contains("not authenticated"))
            .count()
    };
    until("its connections end and are refused", || {
        refused(&late) >= 2
    });
    assert_eq!(refused(&ci), 0, "others go on");
}
