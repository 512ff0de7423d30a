//! From PEM files to configurations of TLS.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use thiserror::Error;

use super::Files;
use super::identity::{Certified, certified};
use super::inspect::{Inspected, read};

/// The largest file that is read.
const FILE_MAX: u64 = 1 << 20;

/// Why files make no TLS.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SecurityError {
    /// A token would be handed to whoever listens.
    #[error("a bearer token is shown over TLS alone: give --ca (CONCLAVE_CA)")]
    PlainBearer,
    /// A file cannot be read.
    #[error("cannot read '{}': {problem}", .path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system said.
        problem: String,
    },
    /// A file has not what it should have.
    #[error("'{}' has no {what} in PEM; is it the right file?", .path.display())]
    NotPem {
        /// Which.
        path: PathBuf,
        /// What is missing.
        what: &'static str,
    },
    /// A certificate cannot be used.
    #[error("'{}': {problem}", .path.display())]
    Unfit {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The key is not that of the certificate.
    #[error("the key '{}' does not fit the certificate '{}'", .key.display(), .cert.display())]
    KeyDoesNotFit {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// The certificate's time is over.
    #[error(
        "the certificate '{}' has expired: it was valid until {until}; renew it with \
         'conclave certs renew'",
        .path.display()
    )]
    Expired {
        /// Which file.
        path: PathBuf,
        /// Until when.
        until: String,
    },
    /// The certificate's time has not come.
    #[error(
        "the certificate '{}' is not valid before {from}; is this machine's clock right?",
        .path.display()
    )]
    NotYet {
        /// Which file.
        path: PathBuf,
        /// From when.
        from: String,
    },
}

/// Everything made from the files.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) client: Arc<ClientConfig>,
    pub(super) http: Arc<ClientConfig>,
    /// For the peer port and the API.
    pub(super) server: Option<(Arc<ServerConfig>, Arc<ServerConfig>)>,
    pub(super) certified: Option<Certified>,
    until: Option<String>,
}

impl Loaded {
    /// Until when our own certificate is valid, for people.
    pub(super) fn until(&self) -> &str {
        self.until.as_deref().unwrap_or("no certificate of our own")
    }
}

/// What shows that files have changed: when each was written, how long it is, and which it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stamp(Vec<Option<(SystemTime, u64, u64)>>);

impl Files {
    pub(super) fn stamp(&self) -> Stamp {
        let own = self.own.iter().flat_map(|(cert, key)| [cert, key]);
        let all = std::iter::once(&self.ca).chain(own);
        let seen = all.map(|path| {
            let found = fs::metadata(path).ok()?;
            Some((found.modified().ok()?, found.len(), number(&found)))
        });
        Stamp(seen.collect())
    }

    pub(super) fn load(&self) -> Result<Loaded, SecurityError> {
        let roots = Arc::new(roots(&self.ca)?);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let own = match &self.own {
            None => None,
            Some((cert, key)) => Some(Own::load(cert, key)?),
        };
        let client = client(&provider, &roots, own.as_ref())?;
        let mut http = client.clone();
        http.alpn_protocols = vec![b"http/1.1".to_vec()];
        let server = match &own {
            None => None,
            Some(own) => Some(servers(&self.ca, &provider, &roots, own)?),
        };
        Ok(Loaded {
            client: Arc::new(client),
            http: Arc::new(http),
            server,
            certified: own.as_ref().and_then(|own| certified(&own.chain[0])),
            until: own.map(|own| own.shown.until_text()),
        })
    }
}

#[cfg(unix)]
fn number(found: &fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(found)
}

#[cfg(not(unix))]
fn number(_: &fs::Metadata) -> u64 {
    0
}

/// A certificate with its chain and key.
struct Own {
    cert: PathBuf,
    key: PathBuf,
    chain: Vec<CertificateDer<'static>>,
    private: PrivateKeyDer<'static>,
    shown: Inspected,
}

impl Own {
    fn load(cert: &Path, key: &Path) -> Result<Self, SecurityError> {
        let chain = certificates(cert)?;
        let private = PrivateKeyDer::from_pem_slice(&bytes(key)?);
        let private = private.map_err(|_| SecurityError::NotPem {
            path: key.to_owned(),
            what: "private key",
        })?;
        let shown = read(&chain[0]).ok_or_else(|| SecurityError::Unfit {
            path: cert.to_owned(),
            problem: "its certificate cannot be read".to_owned(),
        })?;
        shown.in_time(cert)?;
        Ok(Self {
            cert: cert.to_owned(),
            key: key.to_owned(),
            chain,
            private,
            shown,
        })
    }

    fn wrong(&self, error: rustls::Error) -> SecurityError {
        match error {
            rustls::Error::InconsistentKeys(_) => SecurityError::KeyDoesNotFit {
                cert: self.cert.clone(),
                key: self.key.clone(),
            },
            error => SecurityError::Unfit {
                path: self.cert.clone(),
                problem: error.to_string(),
            },
        }
    }
}

fn client(
    provider: &Arc<CryptoProvider>,
    roots: &Arc<RootCertStore>,
    own: Option<&Own>,
) -> Result<ClientConfig, SecurityError> {
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])
        .expect("invariant: the provider has suites of TLS 1.3")
        .with_root_certificates(roots.clone());
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => builder
            .with_client_auth_cert(own.chain.clone(), own.private.clone_key())
            .map_err(|error| own.wrong(error))?,
    };
    // Every connection proves anew who is there: a certificate that expired does not live on.
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn servers(
    ca: &Path,
    provider: &Arc<CryptoProvider>,
    roots: &Arc<RootCertStore>,
    own: &Own,
) -> Result<(Arc<ServerConfig>, Arc<ServerConfig>), SecurityError> {
    // Who comes without a certificate is judged later, by what else it shows.
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
        .allow_unauthenticated()
        .build()
        .map_err(|error| SecurityError::Unfit {
            path: ca.to_owned(),
            problem: error.to_string(),
        })?;
    let mut peer = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])
        .expect("invariant: the provider has suites of TLS 1.3")
        .with_client_cert_verifier(verifier)
        .with_single_cert(own.chain.clone(), own.private.clone_key())
        .map_err(|error| own.wrong(error))?;
    peer.send_tls13_tickets = 0;
    peer.session_storage = Arc::new(NoServerSessionStorage {});
    let mut api = peer.clone();
    api.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((Arc::new(peer), Arc::new(api)))
}

fn roots(path: &Path) -> Result<RootCertStore, SecurityError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| {
            let problem = error.to_string();
            SecurityError::Unfit {
                path: path.to_owned(),
                problem,
            }
        })?;
    }
    Ok(roots)
}

/// All certificates of a file, at least one.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, SecurityError> {
    let text = bytes(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(SecurityError::NotPem {
            path: path.to_owned(),
            what: "certificate",
        }),
    }
}

fn bytes(path: &Path) -> Result<Vec<u8>, SecurityError> {
    let wrong = |problem: String| SecurityError::Read {
        path: path.to_owned(),
        problem,
    };
    let file = fs::File::open(path).map_err(|error| wrong(error.to_string()))?;
    let mut bytes = Vec::new();
    let read = file.take(FILE_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| wrong(error.to_string()))?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(wrong(format!("more than {FILE_MAX} bytes")));
    }
    Ok(bytes)
}
