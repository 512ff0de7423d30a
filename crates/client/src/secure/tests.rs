//! Files good and bad, files that change, and two ends that talk.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
    date_time_ymd,
};
use tempfile::TempDir;

use super::*;

/// An authority, and a place for files.
struct Place {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let cert = params.self_signed(&key).unwrap();
        fs::write(folder.path().join("ca.pem"), cert.pem()).unwrap();
        Self {
            folder,
            issuer: Issuer::new(params, key),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a certificate of this identity, valid in these years, and its key.
    fn put(&self, stem: &str, who: &Identity, (from, to): (i32, i32)) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(to, 1, 1);
        let uri = Ia5String::try_from(who.uri("prod")).unwrap();
        params.subject_alt_names = vec![SanType::URI(uri)];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if let Identity::Node(id) = who {
            let name = Ia5String::try_from(node_name("prod", *id)).unwrap();
            params.subject_alt_names.push(SanType::DnsName(name));
            let purposes = &mut params.extended_key_usages;
            purposes.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(self.path(&format!("{stem}.pem")), cert.pem()).unwrap();
        fs::write(self.path(&format!("{stem}.key")), key.serialize_pem()).unwrap();
    }

    fn load(&self, cert: &str, key: &str) -> Result<Security, SecurityError> {
        let (cert, key) = (self.path(cert), self.path(key));
        Security::from_files(&self.path("ca.pem"), Some((&cert, &key)))
    }

    fn good(&self, stem: &str) -> Security {
        self.load(&format!("{stem}.pem"), &format!("{stem}.key"))
            .unwrap()
    }
}

fn years() -> (i32, i32) {
    (2000, 4000)
}

fn client() -> Identity {
    Identity::Client("ci".to_owned())
}

#[test]
fn bad_files_are_told_in_one_line() {
    let place = Place::new();
    place.put("a", &client(), years());
    place.put("b", &client(), years());
    place.put("old", &client(), (2000, 2001));
    place.put("early", &client(), (3000, 3001));
    fs::write(place.path("text"), "hello").unwrap();
    fs::write(place.path("bad.pem"), broken_pem()).unwrap();
    for (cert, key, says) in [
        ("none.pem", "a.key", "No such file"),
        ("a.pem", "none.key", "No such file"),
        ("text", "a.key", "no certificate in PEM"),
        ("a.pem", "text", "no private key in PEM"),
        ("a.key", "a.key", "no certificate in PEM"),
        ("a.pem", "a.pem", "no private key in PEM"),
        ("bad.pem", "a.key", "cannot be read"),
        ("a.pem", "b.key", "does not fit"),
        ("old.pem", "old.key", "valid until 2001-01-01 00:00 UTC"),
        ("early.pem", "early.key", "not valid before 3000-01-01"),
    ] {
        let text = place.load(cert, key).unwrap_err().to_string();
        assert!(text.contains(says), "{cert} {key}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    let text = Security::from_files(&place.path("text"), None).unwrap_err();
    assert!(text.to_string().contains("no certificate"), "{text}");
    let shown = place.good("a").with_bearer(Secret::new("hush"));
    assert!(!format!("{shown:?}").contains("hush"));
}

fn broken_pem() -> &'static str {
    "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
}

#[test]
fn renewed_files_are_taken_up_and_broken_ones_are_not() {
    let place = Place::new();
    place.put("node", &Identity::Node(1), years());
    let security = place.good("node");
    let tls = security.tls().unwrap();
    assert!(!tls.reload(), "nothing has changed");
    let first = tls.client_config();
    place.put("node", &Identity::Node(2), years());
    assert!(tls.reload());
    assert_eq!(tls.certified().unwrap().who, Identity::Node(2));
    assert!(!Arc::ptr_eq(&first, &tls.current_client_config()));
    let good = fs::read(place.path("node.key")).unwrap();
    fs::write(place.path("node.key"), "half a key").unwrap();
    assert!(!tls.reload());
    assert!(!tls.reload(), "told once");
    assert_eq!(tls.certified().unwrap().who, Identity::Node(2));
    place.put("node", &Identity::Node(3), years());
    assert!(tls.reload(), "a good one is taken up again");
    assert_eq!(tls.certified().unwrap().who, Identity::Node(3));
    fs::write(place.path("node.key"), good).unwrap();
    assert!(!tls.reload(), "the key of another certificate");
    assert!(tls.server_config(Port::Peer).is_some());
}

/// Lets both ends talk until they have nothing to say; what each has read.
fn talk(ends: &mut [Session; 2], piece: usize) -> std::io::Result<[Vec<u8>; 2]> {
    let mut read = [Vec::new(), Vec::new()];
    let mut plain = vec![0; 2 * Session::FEED_MAX];
    loop {
        let mut idle = true;
        for (from, to) in [(0, 1), (1, 0)] {
            let mut wire = Vec::new();
            while ends[from].wants_write() {
                ends[from].send(&mut wire)?;
            }
            for piece in wire.chunks(piece) {
                idle = false;
                let fed = ends[to].feed(piece, &mut plain)?;
                read[to].extend_from_slice(&plain[..fed.plain]);
            }
        }
        if idle {
            return Ok(read);
        }
    }
}

fn ends(dialler: &Security, node: &Security, id: u32) -> [Session; 2] {
    let config = dialler.tls().unwrap().client_config();
    let dial = Session::dial(config, Tls::peer_name("prod", id)).unwrap();
    let config = node.tls().unwrap().server_config(Port::Peer).unwrap();
    [dial, Session::accept(config).unwrap()]
}

#[test]
fn two_ends_know_each_other_and_lose_nothing() {
    let place = Place::new();
    place.put("node", &Identity::Node(3), years());
    place.put("ci", &client(), years());
    let (node, ci) = (place.good("node"), place.good("ci"));
    for piece in [1, 1000, Session::FEED_MAX] {
        let mut pair = ends(&ci, &node, 3);
        assert_eq!(
            pair[0].push(b"early").unwrap(),
            0,
            "not before they know each other"
        );
        talk(&mut pair, piece).unwrap();
        assert!(!pair[0].is_handshaking() && !pair[1].is_handshaking());
        let shown = pair[1].certificate().unwrap();
        assert_eq!(Identity::in_cluster(shown, "prod"), Ok(client()));
        let other = Identity::in_cluster(shown, "test").unwrap_err().to_string();
        assert!(
            other.contains("'prod'") && other.contains("'test'"),
            "{other}"
        );
        let said: Vec<u8> = (0..300_000_u32).map(|place| place as u8).collect();
        let (mut at, mut heard) = (0, Vec::new());
        while at < said.len() {
            at += pair[0].push(&said[at..]).unwrap();
            let [_, more] = talk(&mut pair, piece.max(100)).unwrap();
            heard.extend(more);
        }
        assert!(heard == said, "everything arrives in order");
    }
}

#[test]
fn whoever_is_not_the_right_one_is_refused() {
    let (place, other) = (Place::new(), Place::new());
    place.put("node", &Identity::Node(3), years());
    place.put("ci", &client(), years());
    other.put("ci", &client(), years());
    let (node, ci) = (place.good("node"), place.good("ci"));
    let why = |mut pair: [Session; 2]| {
        let error = talk(&mut pair, 1000).unwrap_err();
        assert!(is_lasting(&error));
        explain(&error, Side::Node)
    };
    let wrong = why(ends(&ci, &node, 2));
    assert!(
        wrong.contains("node-2.prod") && wrong.contains("node-3.prod"),
        "{wrong}"
    );
    let wrong = why(ends(&other.good("ci"), &node, 3));
    assert!(wrong.contains("unknown issuer"), "{wrong}");
    // A client's certificate serves no node.
    let wrong = why(ends(&ci, &ci, 3));
    assert!(wrong.contains("serves no node"), "{wrong}");
    // Its authority believes the node, but the node does not believe it.
    let ca = other.path("both.pem");
    fs::copy(place.path("ca.pem"), &ca).unwrap();
    let (cert, key) = (other.path("ci.pem"), other.path("ci.key"));
    let stranger = Security::from_files(&ca, Some((&cert, &key))).unwrap();
    let mut pair = ends(&stranger, &node, 3);
    let error = talk(&mut pair, 1000).unwrap_err();
    let text = explain(&error, Side::Caller);
    assert!(text.contains("does not vouch"), "{text}");
}

#[test]
fn plain_and_tls_do_not_understand_each_other() {
    let place = Place::new();
    place.put("node", &Identity::Node(3), years());
    let node = place.good("node");
    let mut pair = ends(&node, &node, 3);
    let mut plain = vec![0; 2 * Session::FEED_MAX];
    let mut hello = Vec::new();
    pair[0].send(&mut hello).unwrap();
    assert!(is_client_hello(&hello));
    assert!(!is_client_hello(b"\x40\x01\x00\x00 a greeting"));
    let error = pair[0].feed(&NO_TLS_ALERT, &mut plain).unwrap_err();
    let text = explain(&error, Side::Node);
    assert!(text.contains("without TLS"), "{text}");
    let [mut dial, _] = ends(&node, &node, 3);
    let error = dial.feed(b"HTTP/1.1 400 Bad Request\r\n", &mut plain);
    let text = explain(&error.unwrap_err(), Side::Node);
    assert!(text.contains("does not speak TLS"), "{text}");
}

#[test]
fn certificates_are_read_for_people() {
    let place = Place::new();
    place.put("node", &Identity::Node(3), years());
    let found = inspect(&place.path("node.pem")).unwrap();
    assert_eq!(
        found.certified.unwrap().to_string(),
        "node/3 of cluster 'prod'"
    );
    assert_eq!(found.hosts, ["node-3.prod.conclave.internal"]);
    assert!(inspect(&place.path("ca.pem")).unwrap().is_ca);
    assert!(inspect(Path::new("nowhere.pem")).is_err());
}
