//! Who is at the other end of a connection or call: one place decides, for both ports.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

use conclave_client::secure::Identity;
use conclave_protocol::lock::{Access, Who};
use conclave_wire::greeting::Rejection;
use conclave_wire::handle::Key;
use jiff::Timestamp;

use crate::access::{AccessFile, AccessFileError};

/// When a file was written last, and how long it is: what differs is read again.
type Stamp = Option<(SystemTime, u64)>;

/// What is believed about callers: certificates, tokens of the access file, and that whoever has
/// the cluster's key is a node.
#[derive(Debug)]
pub struct Gate {
    key: Key,
    path: Option<PathBuf>,
    file: RwLock<Arc<AccessFile>>,
    stamp: Mutex<Stamp>,
}

impl Gate {
    /// Nobody has to show who they are.
    pub fn open(key: Key) -> Self {
        Self {
            key,
            path: None,
            file: RwLock::default(),
            stamp: Mutex::new(None),
        }
    }

    /// Everyone has to show who they are, and may do what this file says.
    pub fn of_file(path: &Path, key: Key) -> Result<Self, AccessFileError> {
        let stamp = stamp(path);
        let file = AccessFile::read(path)?;
        Ok(Self {
            key,
            path: Some(path.to_owned()),
            file: RwLock::new(Arc::new(file)),
            stamp: Mutex::new(stamp),
        })
    }

    /// Whether nobody has to show who they are.
    pub fn is_open(&self) -> bool {
        self.path.is_none()
    }

    /// The key of the cluster.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Who may do what.
    pub fn rules(&self) -> Arc<Access> {
        self.file().rules().clone()
    }

    fn file(&self) -> Arc<AccessFile> {
        let file = self.file.read().unwrap_or_else(PoisonError::into_inner);
        file.clone()
    }

    /// Reads the access file again if it has changed, and gives the new rules. A file that makes
    /// no sense is told in the log, and the old one stays in use.
    pub fn reload(&self) -> Option<Arc<Access>> {
        let path = self.path.as_deref()?;
        let found = stamp(path);
        let mut known = self.stamp.lock().unwrap_or_else(PoisonError::into_inner);
        if *known == found {
            return None;
        }
        *known = found;
        match AccessFile::read(path) {
            Ok(file) => {
                tracing::info!(path = %path.display(), "new tokens and permissions are in use");
                let rules = file.rules().clone();
                let mut kept = self.file.write().unwrap_or_else(PoisonError::into_inner);
                *kept = Arc::new(file);
                Some(rules)
            }
            Err(error) => {
                tracing::warn!(%error, "the new access file is not used; the old one stays");
                None
            }
        }
    }

    /// Who it is, by certificate and by what they show besides. None if nobody has to say and
    /// nobody did: then everything is believed.
    ///
    /// A token says more than a certificate: it may belong to one job of many on a machine. A
    /// node's own proof says most.
    pub fn who(
        &self,
        identity: Option<&Identity>,
        credential: Option<&[u8]>,
    ) -> Result<Option<Who>, Rejection> {
        let node = |id: u32| Who {
            principal: node_principal(id),
            gateway: true,
        };
        if let Some(shown) = credential {
            if let Some(found) = self.key.node_of(shown) {
                return Ok(Some(node(found.0 + 1)));
            }
            if !self.is_open() {
                let principal = self.file().principal(shown, Timestamp::now());
                let principal = principal.ok_or(Rejection::Credential)?;
                return Ok(Some(Who {
                    principal,
                    gateway: false,
                }));
            }
        }
        match identity {
            Some(Identity::Node(id)) => Ok(Some(node(*id))),
            Some(Identity::Client(name)) => Ok(Some(Who {
                principal: name.as_str().into(),
                gateway: false,
            })),
            None if self.is_open() => Ok(None),
            None => Err(Rejection::Credential),
        }
    }
}

/// The principal that a node is, when it speaks for itself. No token or certificate of a client
/// is of such a name.
pub fn node_principal(id: u32) -> Arc<str> {
    format!("node/{id}").into()
}

fn stamp(path: &Path) -> Stamp {
    let found = std::fs::metadata(path).ok()?;
    Some((found.modified().ok()?, found.len()))
}

#[cfg(test)]
mod tests {
    use conclave_protocol::id::NodeId;

    use super::*;
    use crate::access::hash_of;

    fn text(principal: &str, token: &str) -> String {
        let hash = hash_of(token);
        format!("[[token]]\nprincipal = \"{principal}\"\nsha256 = \"{hash}\"\n")
    }

    fn name(who: Result<Option<Who>, Rejection>) -> (String, bool) {
        let who = who.unwrap().unwrap();
        (who.principal.to_string(), who.gateway)
    }

    #[test]
    fn a_token_a_certificate_or_the_key_shows_who_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access.toml");
        std::fs::write(&path, text("ci", "t0ken")).unwrap();
        let key = Key::new(b"the secret of a cluster");
        let gate = Gate::of_file(&path, key.clone()).unwrap();
        let client = Identity::Client("ops".to_owned());
        let ci = ("ci".to_owned(), false);
        assert_eq!(name(gate.who(None, Some(b"t0ken"))), ci);
        assert_eq!(name(gate.who(Some(&client), Some(b"t0ken"))), ci);
        assert_eq!(
            name(gate.who(Some(&client), None)),
            ("ops".to_owned(), false)
        );
        let node = ("node/3".to_owned(), true);
        assert_eq!(name(gate.who(Some(&Identity::Node(3)), None)), node);
        let proof = key.credential_of(NodeId(2));
        assert_eq!(name(gate.who(None, Some(proof.as_bytes()))), node);
        for wrong in [None, Some(&b"other"[..]), Some(b"conclave-node:2:AAAA")] {
            assert_eq!(gate.who(None, wrong), Err(Rejection::Credential));
        }
        // A wrong token is refused although the certificate would do.
        let wrong = gate.who(Some(&client), Some(b"other"));
        assert_eq!(wrong, Err(Rejection::Credential));
        let open = Gate::open(key);
        assert_eq!(open.who(None, Some(b"whatever")), Ok(None));
        assert_eq!(open.who(None, None), Ok(None));
    }

    #[test]
    fn a_changed_file_counts_and_a_broken_one_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access.toml");
        std::fs::write(&path, text("a", "one")).unwrap();
        let gate = Gate::of_file(&path, Key::new(b"the secret of a cluster")).unwrap();
        assert!(gate.reload().is_none());
        std::fs::write(&path, text("bob", "two")).unwrap();
        assert!(gate.reload().is_some());
        assert_eq!(gate.who(None, Some(b"one")), Err(Rejection::Credential));
        assert_eq!(name(gate.who(None, Some(b"two"))).0, "bob");
        std::fs::write(&path, "broken").unwrap();
        assert!(gate.reload().is_none());
        assert_eq!(name(gate.who(None, Some(b"two"))).0, "bob");
        std::fs::remove_file(&path).unwrap();
        assert!(gate.reload().is_none());
        assert_eq!(name(gate.who(None, Some(b"two"))).0, "bob");
    }
}
