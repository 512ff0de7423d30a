//! How a process shows who it is, and whom it believes.
//!
//! [`Security`] is what a client or node is given: nothing (plain TCP), or TLS 1.3 with the
//! authorities it believes and a certificate of its own. Everything comes from PEM files. Files
//! that are renewed on disk are taken up without a restart: they are looked at again, every
//! [`LOOK`] at the most, when a connection is made. New files that make no sense are told in the
//! log, and the old ones stay in use.

mod files;
pub mod http;
mod identity;
mod inspect;
mod session;
mod stream;
#[cfg(test)]
mod tests;
mod words;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use conclave_protocol::id::NodeId;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};

pub use files::SecurityError;
pub use identity::{
    CLIENT_NAME_MAX, Certified, Identity, StrangerError, authority_of, authority_uri, certified,
    is_client_name, node_name,
};
pub use inspect::{Inspected, inspect};
pub use session::{Fed, Session};
pub use stream::{Connector, Pooled, Stream, open};
pub use words::{NO_TLS_ALERT, Side, explain, explain_below, is_client_hello, is_lasting};

use files::{Loaded, Stamp};

/// How often files are looked at for changes at the most.
pub const LOOK: Duration = Duration::from_secs(2);

/// How a process shows who it is, and whom it believes. The default is plain TCP.
#[derive(Clone, Debug, Default)]
pub struct Security {
    tls: Option<Arc<Tls>>,
    bearer: Option<Secret>,
    /// A secret for each of some nodes.
    bearers: Arc<BTreeMap<NodeId, Secret>>,
}

impl Security {
    /// TLS: believes who is certified by an authority in the file `ca`, and shows the certificate
    /// of the files `own`, if given: certificate and key.
    pub fn from_files(ca: &Path, own: Option<(&Path, &Path)>) -> Result<Self, SecurityError> {
        let files = Files {
            ca: ca.to_owned(),
            own: own.map(|(cert, key)| (cert.to_owned(), key.to_owned())),
        };
        Ok(Self {
            tls: Some(Arc::new(Tls::new(files)?)),
            bearer: None,
            bearers: Arc::default(),
        })
    }

    /// The same, and shows this secret, over TLS alone.
    #[must_use]
    pub fn with_bearer(mut self, bearer: Secret) -> Self {
        self.bearer = Some(bearer);
        self
    }

    /// The same, and shows each of these nodes a secret of its own when it asks about leases and
    /// objects: a node that lies can then not use it at the others.
    #[must_use]
    pub fn with_bearers(mut self, bearers: impl IntoIterator<Item = (NodeId, Secret)>) -> Self {
        self.bearers = Arc::new(bearers.into_iter().collect());
        self
    }

    /// The secret that it shows to this node when it asks about leases and objects.
    pub fn bearer_for(&self, node: NodeId) -> Option<&Secret> {
        self.bearers.get(&node).or(self.bearer.as_ref())
    }

    /// Whether several nodes are shown the same secret.
    pub fn shares_bearer(&self, nodes: usize) -> bool {
        let mut shown: Vec<&str> = (0..nodes)
            .filter_map(|node| self.bearer_for(NodeId::at(node)))
            .map(Secret::reveal)
            .collect();
        let all = shown.len();
        shown.sort_unstable();
        shown.dedup();
        shown.len() < all
    }

    /// Makes sure that no secret is handed to whoever listens: it is shown over TLS alone.
    pub fn check_bearers(&self) -> Result<(), SecurityError> {
        let shows = self.bearer.is_some() || !self.bearers.is_empty();
        if shows && self.tls.is_none() {
            return Err(SecurityError::PlainBearer);
        }
        Ok(())
    }

    /// How it speaks TLS; none if it speaks plainly.
    pub fn tls(&self) -> Option<&Arc<Tls>> {
        self.tls.as_ref()
    }

    /// The secret that it shows.
    pub fn bearer(&self) -> Option<&Secret> {
        self.bearer.as_ref()
    }
}

/// Something that must not be seen in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Keeps a secret.
    pub fn new(secret: impl Into<Arc<str>>) -> Self {
        Self(secret.into())
    }

    /// Gives it away.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secret(…)")
    }
}

/// The files that TLS is made of.
#[derive(Clone, Debug)]
struct Files {
    ca: PathBuf,
    /// Certificate and key.
    own: Option<(PathBuf, PathBuf)>,
}

/// TLS 1.3 from files.
pub struct Tls {
    files: Files,
    state: Mutex<State>,
}

struct State {
    now: Arc<Loaded>,
    stamp: Stamp,
    /// Files that were found wrong: they are told once.
    wrong: Option<Stamp>,
    looked: Instant,
}

impl fmt::Debug for Tls {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = out.debug_struct("Tls");
        out.field("files", &self.files).finish_non_exhaustive()
    }
}

impl Tls {
    fn new(files: Files) -> Result<Self, SecurityError> {
        // Read before the files: what changes in between is taken up at the next look.
        let stamp = files.stamp();
        let state = State {
            now: Arc::new(files.load()?),
            stamp,
            wrong: None,
            looked: Instant::now(),
        };
        Ok(Self {
            files,
            state: Mutex::new(state),
        })
    }

    /// Looks at the files if that has not been done for a while, and takes up what is new.
    pub fn refresh(&self) {
        let due = {
            let mut state = self.lock();
            let due = state.looked.elapsed() >= LOOK;
            if due {
                state.looked = Instant::now();
            }
            due
        };
        if due {
            self.reload();
        }
    }

    /// Looks at the files now; says whether new ones are in use.
    pub fn reload(&self) -> bool {
        let stamp = self.files.stamp();
        {
            let state = self.lock();
            if state.stamp == stamp || state.wrong.as_ref() == Some(&stamp) {
                return false;
            }
        }
        // Nobody waits for the disk meanwhile.
        let loaded = self.files.load();
        let mut state = self.lock();
        match loaded {
            Ok(loaded) => {
                tracing::info!(until = %loaded.until(), "new certificates are in use");
                state.now = Arc::new(loaded);
                state.stamp = stamp;
                state.wrong = None;
                true
            }
            Err(error) => {
                tracing::warn!(%error, "new certificates are not used; the old ones stay");
                state.wrong = Some(stamp);
                false
            }
        }
    }

    /// What a dialler of the peer port uses. Looks at the files now and then.
    pub fn client_config(&self) -> Arc<ClientConfig> {
        self.refresh();
        self.now().client.clone()
    }

    /// The same without looking at the files, for whoever must not wait for a disk.
    pub fn current_client_config(&self) -> Arc<ClientConfig> {
        self.now().client.clone()
    }

    /// What a caller of the API uses. Looks at the files now and then.
    pub fn http_config(&self) -> Arc<ClientConfig> {
        self.refresh();
        self.now().http.clone()
    }

    /// What a listener uses; none without a certificate of its own. Never looks at the files, so
    /// that no disk holds up who calls it: whoever listens calls [`Tls::refresh`] elsewhere.
    pub fn server_config(&self, port: Port) -> Option<Arc<ServerConfig>> {
        let loaded = self.now();
        let (peer, api) = loaded.server.as_ref()?;
        Some(match port {
            Port::Peer => peer.clone(),
            Port::Api => api.clone(),
        })
    }

    /// Whom our own certificate speaks for.
    pub fn certified(&self) -> Option<Certified> {
        self.now().certified.clone()
    }

    /// The name to ask for when dialling a node's peer port.
    pub fn peer_name(cluster: &str, id: u32) -> ServerName<'static> {
        identity::server_name(cluster, id)
    }

    fn now(&self) -> Arc<Loaded> {
        self.lock().now.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a listener is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// Nodes and smart clients.
    Peer,
    /// HTTP and gRPC.
    Api,
}
