//! Certificates: everything works with the right ones, and each wrong one is refused by name, at
//! every node.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use conclave_client::secure::http::send;
use conclave_client::secure::{Identity, Security, Side, Tls, explain};
use conclave_client::{AcquireError, Client};
use conclave_protocol::id::NodeId;
use conclave_wire::greeting::{
    Greeting, Rejection, Reply, Role, Service, decode_reply, encode_greeting,
};
use conclave_wire::version::SPOKEN;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

use crate::cluster::{Cluster, PATIENCE, conclave, ran, until};

/// A certificate with its key.
pub(crate) struct Shown {
    cert: PathBuf,
    key: PathBuf,
}

impl Shown {
    pub(crate) fn of(folder: &Path, stem: &str) -> Self {
        Self {
            cert: folder.join(format!("{stem}.pem")),
            key: folder.join(format!("{stem}.key")),
        }
    }

    fn security(&self, ca: &Path) -> Security {
        Security::from_files(ca, Some((&self.cert, &self.key))).unwrap()
    }
}

fn certs(words: &[&str]) {
    let home = tempfile::tempdir().unwrap();
    let (code, _, err) = ran(conclave(home.path()).arg("certs").args(words));
    assert_eq!(code, 0, "{words:?}: {err}");
}

/// TLS without any check of our own: what is refused is refused by the node.
pub(crate) fn raw_config(ca: &Path, shown: Option<&Shown>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_file(ca).unwrap();
    roots.add(root).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots);
    Arc::new(match shown {
        None => builder.with_no_client_auth(),
        Some(shown) => {
            let cert = CertificateDer::from_pem_file(&shown.cert).unwrap();
            let key = PrivateKeyDer::from_pem_file(&shown.key).unwrap();
            builder.with_client_auth_cert(vec![cert], key).unwrap()
        }
    })
}

/// What the node of this number answers to a greeting: its reply, or how the connection ended.
fn greet(
    cluster: &Cluster,
    id: u32,
    role: Role,
    tls: Option<Arc<ClientConfig>>,
) -> Result<Reply, String> {
    let file = fs::read_to_string(cluster.data().join("cluster.toml")).unwrap();
    let described = conclave_wire::Cluster::parse(&file).unwrap();
    let greeting = Greeting {
        versions: SPOKEN,
        role,
        target: NodeId(id - 1),
        process: 77,
        digest: described.digest(),
        facts: described.facts(),
        credential: None,
        service: Service::Locks,
    };
    let mut bytes = Vec::new();
    encode_greeting(&greeting, &mut bytes);
    let socket = TcpStream::connect(&cluster.nodes[id as usize - 1].peer).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    match tls {
        None => answer(socket, &bytes),
        Some(config) => {
            let name = Tls::peer_name(&described.name, id);
            let session = ClientConnection::new(config, name).unwrap();
            answer(StreamOwned::new(session, socket), &bytes)
        }
    }
}

fn answer(mut stream: impl Read + Write, greeting: &[u8]) -> Result<Reply, String> {
    let told = |error: std::io::Error| explain(&error, Side::Node);
    stream.write_all(greeting).map_err(told)?;
    stream.flush().map_err(told)?;
    let mut came = Vec::new();
    loop {
        let mut chunk = [0; 4096];
        let count = stream.read(&mut chunk).map_err(told)?;
        if count == 0 {
            return Err("closed".to_owned());
        }
        came.extend_from_slice(&chunk[..count]);
        if let Some((reply, _)) = decode_reply(&came).unwrap() {
            return Ok(reply);
        }
    }
}

/// Why a greeting was refused for its identity.
fn refused(answered: Result<Reply, String>) -> String {
    match answered {
        Ok(Reply {
            refusal: Some(Rejection::Identity { why }),
            ..
        }) => why,
        Ok(reply) => panic!("not refused for its identity: {reply:?}"),
        Err(why) => panic!("no answer: {why}"),
    }
}

/// The status and the JSON of an answer of the API.
async fn call(url: &str, security: &Security, body: &str) -> Result<(u16, Value), String> {
    let url: hyper::Uri = url.parse().unwrap();
    let method = if body.is_empty() { "GET" } else { "POST" };
    let request = Request::builder()
        .method(method)
        .body(Full::new(Bytes::from(body.to_owned())))
        .unwrap();
    let answer = send(&url, security, request).await?;
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
}

/// The status of a gRPC call without arguments.
async fn grpc(url: &str, path: &str, security: &Security) -> String {
    let url: hyper::Uri = url.parse().unwrap();
    let mut config = (*security.tls().unwrap().http_config()).clone();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = tokio::net::TcpStream::connect(url.authority().unwrap().as_str());
    let stream = stream.await.unwrap();
    let name = url.host().unwrap().to_owned().try_into().unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = connector.connect(name, stream).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let shaken = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = shaken.await.unwrap();
    tokio::spawn(connection);
    let request = Request::builder()
        .method("POST")
        .uri(format!("https://node{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(Bytes::from_static(&[0; 5])))
        .unwrap();
    let answer = sender.send_request(request).await.unwrap();
    let early = answer.headers().get("grpc-status").cloned();
    let body = answer.into_body().collect().await.unwrap();
    let late = body.trailers().and_then(|all| all.get("grpc-status"));
    let status = early.or(late.cloned()).unwrap();
    status.to_str().unwrap().to_owned()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, future).await.unwrap() })
}

#[test]
fn everything_works_over_tls_and_strangers_are_refused_by_name() {
    let serial = ["--policy", "jobs/:protocol=serial"];
    let cluster = Cluster::start(&[&["--nodes", "3", "--tls"], &serial[..]].concat());
    let folder = cluster.data().join("tls");
    let ca = folder.join("ca.pem");
    works(&cluster, &folder);
    let other = tempfile::tempdir().unwrap();
    let theirs = other.path().to_str().unwrap();
    certs(&["init", "--dir", theirs, "--cluster", "local"]);
    certs(&["client", "--dir", theirs, "--name", "ci"]);
    let ours = folder.to_str().unwrap();
    let past = "2020-01-01T00:00:00Z";
    certs(&["client", "--dir", ours, "--name", "old", "--expires", past]);
    foreign(&folder, &other.path().join("foreign"));
    let stranger = Shown::of(other.path(), "client-ci");
    let expired = Shown::of(&folder, "client-old");
    let foreigner = Shown::of(other.path(), "foreign");
    for node in &cluster.nodes {
        let id = u32::try_from(node.id).unwrap();
        let next = id % 3 + 1;
        let as_client = |shown| greet(&cluster, id, Role::Client, Some(raw_config(&ca, shown)));
        let why = as_client(Some(&stranger)).unwrap_err();
        assert!(why.contains("does not believe who signed"), "{why}");
        let why = as_client(Some(&expired)).unwrap_err();
        assert!(why.contains("has expired"), "{why}");
        let why = refused(as_client(Some(&foreigner)));
        assert!(why.contains("client/ci of cluster 'elsewhere'"), "{why}");
        assert!(why.contains("this is cluster 'local'"), "{why}");
        let why = refused(as_client(None));
        assert!(why.contains("no certificate"), "{why}");
        let why = refused(greet(&cluster, id, Role::Client, None));
        assert!(why.contains("speaks TLS; give --ca"), "{why}");
        // The next node's certificate, shown by one who claims to be the one after that.
        let shown = Shown::of(&folder, &format!("node-{next}"));
        let claimed = Role::Node(NodeId(next % 3));
        let config = raw_config(&ca, Some(&shown));
        let why = refused(greet(&cluster, id, claimed, Some(config.clone())));
        let says = format!("node/{next}, not of node/{}", next % 3 + 1);
        assert!(why.contains(&says), "{why}");
        let right = Role::Node(NodeId(next - 1));
        let shown = Shown::of(&folder, "client-local");
        let why = refused(greet(
            &cluster,
            id,
            right,
            Some(raw_config(&ca, Some(&shown))),
        ));
        assert!(why.contains("client/local, not of node/"), "{why}");
        let gateway = greet(&cluster, id, Role::Client, Some(config)).unwrap();
        assert_eq!(gateway.refusal, None, "a node may be a gateway");
        api_refuses(&node.api, &ca, [&stranger, &foreigner]);
    }
}

/// Locks, looks, HTTP and gRPC.
fn works(cluster: &Cluster, folder: &Path) {
    let holder = cluster.holder(&["held"]);
    let (code, out, err) = cluster.run(&["lock", "free", "--", "echo", "in"]);
    assert_eq!((code, out.as_str()), (0, "in\n"), "{err}");
    // Requests of the serial protocol go from node to node.
    let serial = ["lock", "jobs/a", "--wait", "20s", "--", "echo", "in"];
    let (code, out, err) = cluster.run(&serial);
    assert_eq!((code, out.as_str()), (0, "in\n"), "{err}");
    let status = cluster.json(&["status", "--json"]);
    for node in status["nodes"].as_array().unwrap() {
        assert_eq!(node["status"]["state"], "serving", "{node}");
    }
    let shown = cluster.json(&["show", "held", "--json"]);
    assert_eq!(shown["holders"].as_array().unwrap().len(), 1, "{shown}");
    assert_eq!(holder.leave(), 0);
    let ca = folder.join("ca.pem");
    let local = Shown::of(folder, "client-local").security(&ca);
    let nobody = Security::from_files(&ca, None).unwrap();
    for node in &cluster.nodes {
        let api = &node.api;
        assert!(api.starts_with("https://"), "{api}");
        block_on(async {
            let url = format!("{api}/v1/locks/over/http/acquire");
            let (status, taken) = call(&url, &local, "{}").await.unwrap();
            assert_eq!(status, 200, "{taken}");
            let handle = serde_json::json!({ "handle": taken["handle"] });
            let url = format!("{api}/v1/locks/release");
            let (status, _) = call(&url, &local, &handle.to_string()).await.unwrap();
            assert_eq!(status, 200);
            for path in ["/healthz", "/readyz"] {
                let (status, _) = call(&format!("{api}{path}"), &nobody, "").await.unwrap();
                assert_eq!(status, 200, "{path} needs no certificate");
            }
            let path = "/conclave.v1.Cluster/Status";
            assert_eq!(grpc(api, path, &local).await, "0");
            assert_eq!(grpc(api, path, &nobody).await, "16", "unauthenticated");
        });
    }
}

/// What the API says to those without the right certificate.
fn api_refuses(api: &str, ca: &Path, [stranger, foreigner]: [&Shown; 2]) {
    let nobody = Security::from_files(ca, None).unwrap();
    let url = format!("{api}/v1/status");
    block_on(async {
        let (status, body) = call(&url, &nobody, "").await.unwrap();
        assert_eq!(status, 401);
        assert_eq!(body["error"]["code"], "no_certificate");
        let (status, body) = call(&url, &foreigner.security(ca), "").await.unwrap();
        assert_eq!(status, 403);
        assert_eq!(body["error"]["code"], "foreign_certificate");
        let why = call(&url, &stranger.security(ca), "").await.unwrap_err();
        assert!(why.contains("does not believe"), "{why}");
        let plain = url.replace("https://", "http://");
        let (status, body) = call(&plain, &Security::default(), "").await.unwrap();
        assert_eq!((status, &body["error"]["code"]), (400, &"tls_only".into()));
    });
}

/// A certificate of a client of another cluster, signed by the authority in this directory.
fn foreign(folder: &Path, stem: &Path) {
    let key = KeyPair::from_pem(&fs::read_to_string(folder.join("ca.key")).unwrap()).unwrap();
    let ca = fs::read_to_string(folder.join("ca.pem")).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&ca, key).unwrap();
    let mut params = CertificateParams::default();
    let uri = Identity::Client("ci".to_owned()).uri("elsewhere");
    params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let own = KeyPair::generate().unwrap();
    let cert = params.signed_by(&own, &issuer).unwrap();
    fs::write(stem.with_extension("pem"), cert.pem()).unwrap();
    fs::write(stem.with_extension("key"), own.serialize_pem()).unwrap();
}

#[test]
fn commands_say_what_is_wrong_with_a_certificate() {
    let cluster = Cluster::start(&["--nodes", "1", "--tls", "--processes"]);
    let api = cluster.nodes[0].api.clone();
    let folder = cluster.data().join("tls");
    let ca = folder.join("ca.pem");
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let other = tempfile::tempdir().unwrap();
    let theirs = other.path().to_str().unwrap();
    certs(&["init", "--dir", theirs]);
    certs(&["client", "--dir", theirs, "--name", "ci"]);
    let past = "2020-01-01T00:00:00Z";
    let ours = folder.to_str().unwrap();
    certs(&["client", "--dir", ours, "--name", "old", "--expires", past]);
    let ca = ca.to_str().unwrap();
    let (cert, key) = (path("client-local.pem"), path("client-local.key"));
    let (old, old_key) = (path("client-old.pem"), path("client-old.key"));
    let stranger = Shown::of(other.path(), "client-ci");
    let (ci, ci_key) = (
        stranger.cert.to_str().unwrap(),
        stranger.key.to_str().unwrap(),
    );
    let their_ca = format!("{theirs}/ca.pem");
    let plain = api.replace("https://", "http://");
    let good = ["--ca", ca, "--cert", &cert, "--key", &key];
    for (endpoint, flags, code, says) in [
        (&api, &good[..], 0, ""),
        (&api, &[], 2, "give --ca"),
        (&plain, &[], 5, "write https://"),
        (&plain, &good[..], 2, "not safe where --ca is given"),
        (&api, &["--ca", ca], 5, "show a certificate"),
        (&api, &["--ca", &their_ca], 5, "unknown issuer"),
        (
            &api,
            &["--ca", ca, "--cert", ci, "--key", ci_key],
            5,
            "does not believe",
        ),
        (
            &api,
            &["--ca", ca, "--cert", &old, "--key", &old_key],
            2,
            "has expired",
        ),
        (
            &api,
            &["--ca", ca, "--cert", &cert, "--key", &old_key],
            2,
            "does not fit",
        ),
        (&api, &["--ca", ca, "--cert", &cert], 2, "--cert and --key"),
        (&api, &["--ca", &key], 2, "no certificate in PEM"),
    ] {
        let words = ["lock", "x", "--endpoints", endpoint];
        let words = [&words, flags, &["--", "true"]].concat();
        let (ended, _, err) = cluster.run(&words);
        assert_eq!(ended, code, "{words:?}: {err}");
        assert!(err.contains(says), "{words:?}: {err}");
        assert!(err.lines().count() <= 1, "{err}");
    }
    // The same from the environment.
    let mut command = cluster.command(&["status", "--endpoints", &api]);
    command.env("CONCLAVE_CA", ca);
    command
        .env("CONCLAVE_CERT", &cert)
        .env("CONCLAVE_KEY", &key);
    let (code, _, err) = ran(&mut command);
    assert_eq!(code, 0, "{err}");
    // Node 1 does not start with another's certificate.
    certs(&["node", "--dir", ours, "--id", "2", "--host", "127.0.0.1"]);
    let node = cluster.data().join("node1.toml");
    let (cert, key) = (path("node-2.pem"), path("node-2.key"));
    let words = ["serve", "--config", node.to_str().unwrap()];
    let words = [&words[..], &["--tls-cert", &cert, "--tls-key", &key]].concat();
    let (code, _, err) = cluster.run(&words);
    assert_eq!(code, 2, "{err}");
    assert!(
        err.contains("node/2 of cluster 'local', not of node/1"),
        "{err}"
    );
}

#[test]
fn a_client_with_tls_is_told_that_a_node_speaks_plainly() {
    let cluster = Cluster::start(&["--nodes", "1"]);
    let other = tempfile::tempdir().unwrap();
    let folder = other.path().to_str().unwrap();
    certs(&["init", "--dir", folder]);
    certs(&["client", "--dir", folder, "--name", "ci"]);
    let security = Shown::of(other.path(), "client-ci").security(&other.path().join("ca.pem"));
    let file = fs::read_to_string(cluster.data().join("cluster.toml")).unwrap();
    let described = conclave_wire::Cluster::parse(&file).unwrap();
    block_on(async {
        let builder = Client::builder()
            .cluster(described)
            .security(security.clone());
        let client = builder.connect().await.unwrap();
        let error = client.lock("x").acquire().await.unwrap_err();
        assert!(matches!(error, AcquireError::NoQuorum { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("without TLS"), "{text}");
        let api = cluster.nodes[0].api.replace("http://", "https://");
        let why = call(&api, &security, "").await.unwrap_err();
        assert!(
            why.contains("does not speak TLS") || why.contains("handshake"),
            "{why}"
        );
    });
}

#[test]
fn renewed_certificates_are_taken_up_while_a_lock_is_held() {
    let cluster = Cluster::start(&["--nodes", "3", "--tls", "--processes"]);
    let folder = cluster.data().join("tls");
    let holder = cluster.holder(&["held", "--ttl", "3s"]);
    let shows = |id: u32| -> Vec<u8> {
        let config = raw_config(&folder.join("ca.pem"), None);
        let peer = &cluster.nodes[id as usize - 1].peer;
        let mut socket = TcpStream::connect(peer).unwrap();
        let mut session = ClientConnection::new(config, Tls::peer_name("local", id)).unwrap();
        while session.is_handshaking() {
            session.complete_io(&mut socket).unwrap();
        }
        session.peer_certificates().unwrap()[0].to_vec()
    };
    let before: Vec<Vec<u8>> = (1..=3).map(shows).collect();
    let path = |stem: &str| folder.join(stem).to_str().unwrap().to_owned();
    let files: Vec<String> = (1..=3).map(|id| path(&format!("node-{id}.pem"))).collect();
    let mut words = vec!["renew", "--new-key", "--days", "30"];
    words.extend(files.iter().map(String::as_str));
    certs(&words);
    until("all nodes show their new certificates", || {
        std::thread::sleep(Duration::from_millis(50));
        (1..=3).all(|id| shows(id) != before[id as usize - 1])
    });
    let (code, out, err) = cluster.run(&["lock", "free", "--", "echo", "in"]);
    assert_eq!((code, out.as_str()), (0, "in\n"), "{err}");
    let shown = cluster.json(&["show", "held", "--json"]);
    assert_eq!(shown["holders"].as_array().unwrap().len(), 1, "{shown}");
    assert_eq!(holder.leave(), 0, "the lock was held all the time");
}
