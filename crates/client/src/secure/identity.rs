//! Who a certificate speaks for.
//!
//! A certificate of ours names one node or one client of one cluster in a URI among its
//! alternative names: `conclave://CLUSTER/node/3` or `conclave://CLUSTER/client/ci`. A node's also
//! has the host name `node-3.CLUSTER.conclave.internal`, which whoever dials its peer port asks
//! for: so it is the right node, wherever it listens.

use std::fmt::{self, Write};

use rustls::pki_types::{DnsName, ServerName};
use thiserror::Error;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The most bytes of a client's name.
pub const CLIENT_NAME_MAX: usize = 64;
/// The longest label that a cluster's name becomes without being shortened.
const LABEL_MAX: usize = 40;

/// Who a certificate speaks for, within its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Identity {
    /// A node, from 1.
    Node(u32),
    /// A client.
    Client(String),
}

impl fmt::Display for Identity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(id) => write!(out, "node/{id}"),
            Self::Client(name) => write!(out, "client/{name}"),
        }
    }
}

/// An identity and the cluster in which it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certified {
    /// The cluster's name.
    pub cluster: String,
    /// Who in it.
    pub who: Identity,
}

impl fmt::Display for Certified {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} of cluster '{}'", self.who, self.cluster)
    }
}

/// Why a certificate speaks for nobody in this cluster.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StrangerError {
    /// It has no name of ours, or several.
    #[error("the certificate names no node or client of a cluster; make one with 'conclave certs'")]
    Nobody,
    /// It is for another cluster.
    #[error("the certificate is that of {0}; this is cluster '{1}'")]
    OtherCluster(Certified, String),
}

impl Identity {
    /// The URI that names it in a certificate.
    pub fn uri(&self, cluster: &str) -> String {
        let cluster = escaped(cluster);
        match self {
            Self::Node(id) => format!("conclave://{cluster}/node/{id}"),
            Self::Client(name) => format!("conclave://{cluster}/client/{}", escaped(name)),
        }
    }

    /// Whom a certificate speaks for in this cluster.
    pub fn in_cluster(certificate: &[u8], cluster: &str) -> Result<Self, StrangerError> {
        match certified(certificate) {
            None => Err(StrangerError::Nobody),
            Some(found) if found.cluster == cluster => Ok(found.who),
            Some(found) => Err(StrangerError::OtherCluster(found, cluster.to_owned())),
        }
    }
}

/// Whom a certificate speaks for; none if it names nobody, or several.
pub fn certified(certificate: &[u8]) -> Option<Certified> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let names = parsed.subject_alternative_name().ok()??;
    let uris = names.value.general_names.iter().filter_map(|name| {
        if let GeneralName::URI(uri) = name {
            parse(uri)
        } else {
            None
        }
    });
    let mut found: Vec<Certified> = uris.take(2).collect();
    if found.len() == 1 { found.pop() } else { None }
}

fn parse(uri: &str) -> Option<Certified> {
    let rest = uri.strip_prefix("conclave://")?;
    let mut parts = rest.split('/');
    let (cluster, kind, name) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    let who = match kind {
        "node" => Identity::Node(plain_number(name)?),
        "client" => Identity::Client(unescaped(name).filter(|name| is_client_name(name))?),
        _ => return None,
    };
    let cluster = unescaped(cluster).filter(|name| !name.is_empty())?;
    Some(Certified { cluster, who })
}

/// A number from 1 as this program writes it: one node has one name.
fn plain_number(text: &str) -> Option<u32> {
    let number: u32 = text.parse().ok()?;
    (number > 0 && number.to_string() == text).then_some(number)
}

/// Whether a client may be called so: it stands in rules, in logs and in file names.
pub fn is_client_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
    let begins = name
        .bytes()
        .next()
        .is_some_and(|b| b.is_ascii_alphanumeric());
    begins && name.len() <= CLIENT_NAME_MAX && name.bytes().all(plain)
}

/// The URI in the certificate of a cluster's own authority: it speaks for nobody, but says which
/// cluster it is for.
pub fn authority_uri(cluster: &str) -> String {
    format!("conclave://{}/ca", escaped(cluster))
}

/// The cluster of such a URI.
pub fn authority_of(uri: &str) -> Option<String> {
    let cluster = uri.strip_prefix("conclave://")?.strip_suffix("/ca")?;
    let plain = !cluster.is_empty() && !cluster.contains('/');
    plain.then(|| unescaped(cluster))?
}

/// The host name in a node's certificate that stands for the node itself.
pub fn node_name(cluster: &str, id: u32) -> String {
    format!("node-{id}.{}.conclave.internal", label(cluster))
}

/// The same, as the name that a dialler asks for.
pub(crate) fn server_name(cluster: &str, id: u32) -> ServerName<'static> {
    let name = DnsName::try_from(node_name(cluster, id));
    ServerName::DnsName(name.expect("invariant: a node's name is made of letters and dashes"))
}

/// A cluster's name as a part of a host name. One that cannot stand there as it is gets a hash at
/// its end, so that two clusters have two names.
fn label(cluster: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let fits = !cluster.is_empty()
        && cluster.len() <= LABEL_MAX
        && cluster.bytes().all(plain)
        && !cluster.starts_with('-')
        && !cluster.ends_with('-');
    if fits {
        return cluster.to_owned();
    }
    let letters = cluster.bytes().map(|byte| byte.to_ascii_lowercase());
    let letters = letters.map(|byte| if plain(byte) { byte as char } else { '-' });
    let short: String = letters.take(LABEL_MAX / 2).collect();
    let hash = blake3::hash(cluster.as_bytes()).to_hex();
    let short = short.trim_matches('-');
    format!(
        "{}{}{}",
        short,
        if short.is_empty() { "x" } else { "-x" },
        &hash[..16]
    )
}

/// The text with everything but letters, digits and `-._~` as `%XX`.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte as char);
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

fn unescaped(text: &str) -> Option<String> {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digits = [bytes.next()?, bytes.next()?];
            let digits = str::from_utf8(&digits).ok()?;
            out.push(u8::from_str_radix(digits, 16).ok()?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_written_and_read() {
        for cluster in ["prod", "Prod 1", "a/b", "größe", "%41"] {
            for who in [
                Identity::Node(1),
                Identity::Node(10_000),
                Identity::Client("ci".to_owned()),
                Identity::Client("a.b@c-d_e".to_owned()),
            ] {
                let uri = who.uri(cluster);
                assert!(uri.is_ascii(), "{uri}");
                let cluster = cluster.to_owned();
                assert_eq!(parse(&uri), Some(Certified { cluster, who }), "{uri}");
            }
        }
    }

    #[test]
    fn what_is_not_a_name_of_ours_names_nobody() {
        for uri in [
            "conclave://prod/node/0",
            "conclave://prod/node/01",
            "conclave://prod/node/+1",
            "conclave://prod/node/4294967296",
            "conclave://prod/node/3/x",
            "conclave://prod/node",
            "conclave:///node/3",
            "conclave://prod/client/",
            "conclave://prod/client/a%2Fb",
            "conclave://prod/client/node%2F3",
            "conclave://prod/client/%zz",
            "conclave://prod/client/%4",
            "conclave://prod/admin/x",
            "https://prod/node/3",
        ] {
            assert_eq!(parse(uri), None, "{uri}");
        }
        assert_eq!(certified(b"no certificate"), None);
    }

    #[test]
    fn every_cluster_has_a_host_name_of_its_own() {
        assert_eq!(node_name("prod", 3), "node-3.prod.conclave.internal");
        let long = "x".repeat(100);
        let names = [
            "prod", "Prod", "prod ", "-prod", "p.r.o.d", "größe", "日本", &long,
        ];
        let all: std::collections::BTreeSet<String> =
            names.iter().map(|name| node_name(name, 1)).collect();
        assert_eq!(all.len(), names.len(), "{all:?}");
        for name in names {
            let asked = server_name(name, 10_000);
            assert_eq!(asked.to_str(), node_name(name, 10_000));
        }
    }
}
