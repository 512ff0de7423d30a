//! What a web page can make the browser of somebody on this machine do: nothing.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

use rustls::{ClientConnection, StreamOwned};
use serde_json::Value;

use crate::cluster::{Cluster, PATIENCE, conclave, ran};
use crate::tls::raw_config;

/// Sends a request with just these headers, besides those that every request has: its status, and
/// the code of its error or its body.
fn send(api: &str, method: &str, path: &str, headers: &[&str], body: &str) -> (u16, String) {
    let at = api.strip_prefix("http://").unwrap();
    let stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    sent(stream, at, &format!("{method} {path}"), headers, body)
}

/// Sends a GET over TLS, without a certificate.
fn get_privately(cluster: &Cluster, path: &str, headers: &[&str]) -> u16 {
    let at = cluster.nodes[0].api.strip_prefix("https://").unwrap();
    let socket = TcpStream::connect(at).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let config = raw_config(&cluster.data().join("tls").join("ca.pem"), None);
    let name = at.split(':').next().unwrap().to_owned();
    let session = ClientConnection::new(config, name.try_into().unwrap()).unwrap();
    let stream = StreamOwned::new(session, socket);
    sent(stream, at, &format!("GET {path}"), headers, "").0
}

fn sent(
    mut stream: impl Read + Write,
    at: &str,
    what: &str,
    headers: &[&str],
    body: &str,
) -> (u16, String) {
    let host = format!("host: {at}");
    let named = headers.iter().any(|header| header.starts_with("host:"));
    let mut head = vec![format!("{what} HTTP/1.1")];
    head.extend((!named).then_some(host));
    head.extend(headers.iter().map(|header| (*header).to_owned()));
    head.push("connection: close".to_owned());
    head.push(format!("content-length: {}", body.len()));
    let text = format!("{}\r\n\r\n{body}", head.join("\r\n"));
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        // TLS may end without a farewell.
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{error}");
    }
    let answer = String::from_utf8(answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    let json: Value = serde_json::from_str(body).unwrap_or_default();
    let code = json["error"]["code"].as_str();
    (status, code.unwrap_or(body).to_owned())
}

fn refused(told: (u16, String)) -> String {
    let (status, code) = told;
    assert!((400..500).contains(&status), "{status} {code}");
    code
}

#[test]
fn a_web_page_can_neither_take_nor_read_nor_free_locks() {
    let cluster = Cluster::start(&["--nodes", "3"]);
    let (api, other) = (&cluster.nodes[0].api, &cluster.nodes[1].api);
    let take = "/v1/locks/a/acquire";
    let body = r#"{"wait_ms":0,"ttl_ms":60000}"#;
    let post = |headers: &[&str]| send(api, "POST", take, headers, body);
    let get = |path: &str, headers: &[&str]| send(api, "GET", path, headers, "");

    // What a page of another site has a browser send: with fetch, a form, an older browser, and
    // from a name that was made to mean this machine.
    let evil = "origin: http://evil.example";
    let text = "content-type: text/plain";
    let form = "content-type: application/x-www-form-urlencoded";
    assert_eq!(refused(post(&[evil, text])), "foreign_origin");
    assert_eq!(refused(post(&["origin: null", form])), "foreign_origin");
    let site = "sec-fetch-site: same-site";
    assert_eq!(refused(post(&[site, form])), "foreign_origin");
    let page = "referer: http://evil.example/";
    assert_eq!(refused(post(&[page, form])), "not_json");
    let rebound = ["host: evil.example:80", "origin: http://evil.example"];
    assert_eq!(refused(post(&rebound)), "foreign_origin");
    assert_eq!(refused(post(&rebound[..1])), "foreign_host");
    assert_eq!(refused(get("/v1/locks", &[evil])), "foreign_origin");
    let across = "sec-fetch-site: cross-site";
    assert_eq!(refused(get("/v1/locks", &[across])), "foreign_origin");
    assert_eq!(refused(get("/v1/locks", &rebound[..1])), "foreign_host");

    // Nor can it end what others hold, with no body at all.
    let holder = cluster.holder(&["held"]);
    let sessions = cluster.json(&["sessions", "--json"]);
    let session = sessions["sessions"][0]["session"].as_str().unwrap();
    let revoke = format!("/v1/sessions/{session}/revoke?force=true");
    let free = |headers: &[&str]| refused(send(api, "POST", &revoke, headers, ""));
    assert_eq!(free(&["origin: null"]), "foreign_origin");
    assert_eq!(free(&[across]), "foreign_origin");
    assert_eq!(free(&[page]), "not_json");
    assert_eq!(free(&rebound[..1]), "foreign_host");
    assert_eq!(holder.leave(), 0, "it was not disturbed");

    // Probes have any name; curl, JSON and the members' own pages go on to work.
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(get(path, &rebound[..1]).0, 200, "{path}");
    }
    for own in [
        &[form][..],
        &[],
        &["content-type: application/json"],
        &[
            "content-type: application/json",
            &format!("origin: {other}"),
        ],
        &["host: localhost", form],
    ] {
        let (status, told) = post(own);
        assert_eq!(status, 200, "{own:?}: {told}");
        let held: Value = serde_json::from_str(&told).unwrap();
        let held = serde_json::json!({ "handle": held["handle"] }).to_string();
        assert_eq!(send(api, "POST", "/v1/locks/release", &[], &held).0, 200);
    }
}

#[test]
fn a_private_cluster_serves_its_user_and_nobody_else() {
    let cluster = Cluster::start(&["--nodes", "3", "--private"]);
    let file = cluster.second["bearer_file"].as_str().unwrap();
    let mode = std::fs::metadata(file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // The commands of its user find the token by themselves.
    let words = ["lock", "a", "--", "echo", "inside"];
    let (code, out, err) = cluster.run(&words);
    assert_eq!((code, out.as_str()), (0, "inside\n"), "{err}");
    for words in [
        &["status"][..],
        &["locks"],
        &["object", "counter", "c", "add", "1"],
    ] {
        let (code, _, err) = cluster.run(words);
        assert_eq!(code, 0, "{words:?}: {err}");
    }
    // Others know the addresses and nothing else.
    let elsewhere = tempfile::tempdir().unwrap();
    let api = &cluster.nodes[0].api;
    let (code, _, err) = ran(conclave(elsewhere.path())
        .args(["--endpoints", api])
        .args(words));
    assert_eq!(code, 2, "{err}");
    for path in ["/v1/locks", "/v1/cluster", "/v1/status", "/metrics"] {
        assert_eq!(get_privately(&cluster, path, &[]), 401, "{path}");
    }
    assert_eq!(get_privately(&cluster, "/readyz", &[]), 200);
    let token = std::fs::read_to_string(file).unwrap();
    let shown = format!("authorization: Bearer {}", token.trim());
    assert_eq!(get_privately(&cluster, "/v1/locks", &[&shown]), 200);
}

#[test]
fn a_private_cluster_stays_private_when_it_is_started_again() {
    let data = tempfile::tempdir().unwrap();
    let folder = data.path().join("cluster");
    let folder = folder.to_str().unwrap();
    let first = Cluster::start(&["--nodes", "1", "--data", folder, "--private"]);
    drop(first);
    let again = Cluster::start(&["--data", folder]);
    assert_eq!(again.run(&["lock", "a", "--", "true"]).0, 0);
    assert_eq!(get_privately(&again, "/v1/locks", &[]), 401);
    drop(again);
    let open = data.path().join("open");
    let open = open.to_str().unwrap();
    drop(Cluster::start(&["--nodes", "1", "--data", open]));
    let home = tempfile::tempdir().unwrap();
    let mut command = conclave(home.path());
    let (code, _, err) = ran(command.args(["up", "--data", open, "--private"]));
    assert_eq!(code, 2);
    assert!(err.contains("--private: "), "{err}");
}
