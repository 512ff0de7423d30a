//! Handshakes of the API port: whoever sends half a hello, or a whole one and no more, keeps
//! nobody else out.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use conclave_client::Security;
use conclave_client::secure::{Identity, node_name};
use conclave_node::api::{ApiHandle, ApiLimits};
use rcgen::string::Ia5String;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rcgen::{SanType, date_time_ymd};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::TempDir;

use super::harness::{Answer, Nodes, connect};
use super::limits::narrow;

/// An API that speaks TLS, beside that of a node, and whom its callers believe.
struct Secured {
    api: ApiHandle,
    config: Arc<ClientConfig>,
    _nodes: Nodes,
    _files: TempDir,
}

impl Secured {
    fn start(limits: ApiLimits) -> Self {
        let nodes = Nodes::start(1);
        let files = tempfile::tempdir().unwrap();
        let security = certify(files.path());
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_file(files.path().join("ca.pem")).unwrap();
        roots.add(root).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self {
            api: narrow(&nodes, limits, security),
            config: Arc::new(config),
            _nodes: nodes,
            _files: files,
        }
    }

    fn session(&self) -> ClientConnection {
        let name = ServerName::try_from(node_name("test", 1)).unwrap();
        ClientConnection::new(self.config.clone(), name).unwrap()
    }

    /// A probe as Kubernetes sends it, without a certificate.
    fn probe(&self) -> Answer {
        let mut stream = StreamOwned::new(self.session(), connect(self.api.addr()));
        let text = "GET /healthz HTTP/1.1\r\nhost: probe\r\nconnection: close\r\n\r\n";
        stream.write_all(text.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        Answer::parse(&bytes)
    }

    /// The bytes of a whole hello.
    fn hello(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut session = self.session();
        while session.wants_write() {
            session.write_tls(&mut bytes).unwrap();
        }
        bytes
    }
}

/// Writes an authority and the certificate of node 1.
fn certify(folder: &Path) -> Security {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.not_before = date_time_ymd(2000, 1, 1);
    params.not_after = date_time_ymd(4000, 1, 1);
    let uri = Ia5String::try_from(Identity::Node(1).uri("test")).unwrap();
    let name = Ia5String::try_from(node_name("test", 1)).unwrap();
    params.subject_alt_names = vec![SanType::URI(uri), SanType::DnsName(name)];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ClientAuth,
        ExtendedKeyUsagePurpose::ServerAuth,
    ];
    let cert = params.signed_by(&key, &issuer).unwrap();
    let [ca_file, cert_file, key_file] =
        ["ca.pem", "node.pem", "node.key"].map(|name| folder.join(name));
    fs::write(&ca_file, ca.pem()).unwrap();
    fs::write(&cert_file, cert.pem()).unwrap();
    fs::write(&key_file, key.serialize_pem()).unwrap();
    Security::from_files(&ca_file, Some((&cert_file, &key_file))).unwrap()
}

/// Few handshakes at once, none of which ends by itself.
fn few() -> ApiLimits {
    ApiLimits {
        handshake: Duration::from_hours(1),
        handshakes: 64,
        handshakes_per_address: 64,
        ..ApiLimits::default()
    }
}

/// Connects so often, and sends these bytes and nothing else.
fn flood(at: SocketAddr, count: usize, bytes: &[u8]) -> Vec<TcpStream> {
    let begun = (0..count).map(|_| {
        let mut stream = connect(at);
        stream.write_all(bytes).unwrap();
        stream
    });
    begun.collect()
}

#[test]
fn a_flood_of_half_hellos_keeps_no_probe_out() {
    let secured = Secured::start(few());
    let at = secured.api.addr();
    assert_eq!(secured.probe().status, 200);
    let hello = secured.hello();
    let mut held = flood(at, 70, &[0x16]);
    held.extend(flood(at, 70, &hello[..hello.len() - 1]));
    for _ in 0..5 {
        held.extend(flood(at, 20, &[0x16]));
        assert_eq!(secured.probe().status, 200);
    }
    secured.api.stop();
}

#[test]
fn a_flood_of_hellos_without_an_end_keeps_no_probe_out() {
    let secured = Secured::start(few());
    let at = secured.api.addr();
    let hello = secured.hello();
    let mut held = flood(at, 70, &hello);
    for _ in 0..5 {
        held.extend(flood(at, 20, &hello));
        assert_eq!(secured.probe().status, 200);
    }
    secured.api.stop();
}

#[test]
fn beyond_the_limit_of_an_address_its_oldest_handshake_is_closed() {
    let limits = ApiLimits {
        handshakes_per_address: 3,
        ..few()
    };
    let secured = Secured::start(limits);
    let mut held = flood(secured.api.addr(), 4, &[0x16]);
    assert!(is_closed(&mut held.remove(0)));
    for stream in &mut held {
        stream.set_nonblocking(true).unwrap();
        let open = stream.read(&mut [0]).unwrap_err();
        assert_eq!(open.kind(), std::io::ErrorKind::WouldBlock);
    }
    secured.api.stop();
}

#[test]
fn a_hello_without_measure_is_not_waited_for() {
    let secured = Secured::start(few());
    let mut stream = connect(secured.api.addr());
    // A record as long as they come, the first part of a hello that is longer still.
    let mut record = vec![0x16, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff];
    record.resize(5 + 0x4000, 0);
    stream.write_all(&record).unwrap();
    assert!(is_closed(&mut stream));
    secured.api.stop();
}

/// Whether the node closes a connection, with or without an error.
fn is_closed(stream: &mut TcpStream) -> bool {
    let read = stream.read_to_end(&mut Vec::new());
    !read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}
