//! Who is at the other end of a connection or call: one place decides, for both ports.

use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use conclave_client::secure::Identity;
use conclave_protocol::lock::{ADDRESS_MARK, Access, Who};
use conclave_wire::greeting::Rejection;
use jiff::Timestamp;
use tokio::sync::watch as signal;

use crate::access::{AccessFile, AccessFileError, TokenHash};

/// What is believed about callers: certificates, and tokens of the access file. Only a certificate
/// makes a node.
#[derive(Debug)]
pub struct Gate {
    path: Option<PathBuf>,
    file: RwLock<Arc<AccessFile>>,
    /// What was read last, and until when tokens were looked at.
    seen: Mutex<(blake3::Hash, Timestamp)>,
    /// Counts changes: whoever was let in by a token looks again.
    changes: signal::Sender<u64>,
}

impl Gate {
    /// Nobody has to show who they are.
    pub fn open() -> Self {
        Self {
            path: None,
            file: RwLock::default(),
            seen: Mutex::new((blake3::hash(b""), Timestamp::now())),
            changes: signal::Sender::default(),
        }
    }

    /// Everyone has to show who they are, and may do what this file says.
    pub fn of_file(path: &Path) -> Result<Self, AccessFileError> {
        let text = AccessFile::text(path)?;
        let file = AccessFile::parse(&text)?;
        Ok(Self {
            path: Some(path.to_owned()),
            file: RwLock::new(Arc::new(file)),
            seen: Mutex::new((blake3::hash(text.as_bytes()), Timestamp::now())),
            changes: signal::Sender::default(),
        })
    }

    /// Whether nobody has to show who they are.
    pub fn is_open(&self) -> bool {
        self.path.is_none()
    }

    /// Who may do what.
    pub fn rules(&self) -> Arc<Access> {
        self.file().rules().clone()
    }

    fn file(&self) -> Arc<AccessFile> {
        let file = self.file.read().unwrap_or_else(PoisonError::into_inner);
        file.clone()
    }

    /// Reads the access file again, and gives the rules if it says something else or a token's
    /// time is over: whoever was let in by a token must be looked at again. A file that makes no
    /// sense is told in the log once, and the old one stays in use.
    pub fn reload(&self) -> Option<Arc<Access>> {
        let path = self.path.as_deref()?;
        let now = Timestamp::now();
        let text = AccessFile::text(path);
        // Not its time is compared: a file may be exchanged with the time of the old one.
        let hash = match &text {
            Ok(text) => blake3::hash(text.as_bytes()),
            Err(error) => blake3::hash(error.to_string().as_bytes()),
        };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, looked) = std::mem::replace(&mut *seen, (hash, now));
        drop(seen);
        let mut changed = self.file().has_expired(looked, now);
        if known != hash {
            match text.and_then(|text| AccessFile::parse(&text)) {
                Ok(file) => {
                    tracing::info!(path = %path.display(), "new tokens and permissions are in use");
                    let mut kept = self.file.write().unwrap_or_else(PoisonError::into_inner);
                    *kept = Arc::new(file);
                    changed = true;
                }
                Err(error) => {
                    tracing::warn!(%error, "the new access file is not used; the old one stays");
                }
            }
        }
        if !changed {
            return None;
        }
        self.changes.send_modify(|count| *count += 1);
        Some(self.rules())
    }

    /// Tells of changes.
    pub fn changes(&self) -> signal::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Whether a token still is that of this principal.
    pub fn counts(&self, token: &TokenHash, principal: &str) -> bool {
        let found = self.file().principal_of(token, Timestamp::now());
        found.is_some_and(|found| *found == *principal)
    }

    /// Who it is, by certificate and by what they show besides. None if nobody has to say and
    /// nobody did: then everything is believed.
    ///
    /// A token says more than a certificate: it may belong to one job of many on a machine.
    pub fn who(
        &self,
        identity: Option<&Identity>,
        credential: Option<&[u8]>,
    ) -> Result<Option<Who>, Rejection> {
        if let Some(shown) = credential.filter(|_| !self.is_open()) {
            let principal = self.file().principal(shown, Timestamp::now());
            let principal = principal.ok_or(Rejection::Credential)?;
            return Ok(Some(Who {
                principal,
                gateway: false,
            }));
        }
        match identity {
            Some(Identity::Node(id)) => Ok(Some(Who {
                principal: node_principal(*id),
                gateway: true,
            })),
            Some(Identity::Client(name)) => Ok(Some(Who {
                principal: name.as_str().into(),
                gateway: false,
            })),
            None if self.is_open() => Ok(None),
            None => Err(Rejection::Credential),
        }
    }
}

/// Whom what comes from an address is charged to, where nobody says who they are. Of IPv6 all
/// addresses of a network count as one: whoever has one has them all.
pub fn account_of(address: IpAddr) -> Arc<str> {
    match address.to_canonical() {
        IpAddr::V4(address) => format!("{ADDRESS_MARK}{address}").into(),
        IpAddr::V6(address) if address.is_loopback() => format!("{ADDRESS_MARK}{address}").into(),
        IpAddr::V6(address) => {
            let network = address.to_bits() & !u128::from(u64::MAX);
            format!("{ADDRESS_MARK}{}/64", Ipv6Addr::from_bits(network)).into()
        }
    }
}

/// The principal that a node is, when it speaks for itself. No token or certificate of a client
/// is of such a name.
pub fn node_principal(id: u32) -> Arc<str> {
    format!("node/{id}").into()
}

#[cfg(test)]
mod tests {
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
    fn a_token_or_a_certificate_shows_who_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access.toml");
        std::fs::write(&path, text("ci", "t0ken")).unwrap();
        let gate = Gate::of_file(&path).unwrap();
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
        for wrong in [None, Some(&b"other"[..])] {
            assert_eq!(gate.who(None, wrong), Err(Rejection::Credential));
        }
        // A wrong token is refused although the certificate would do.
        let wrong = gate.who(Some(&client), Some(b"other"));
        assert_eq!(wrong, Err(Rejection::Credential));
        let open = Gate::open();
        assert_eq!(open.who(None, Some(b"whatever")), Ok(None));
        assert_eq!(open.who(None, None), Ok(None));
    }

    #[test]
    fn a_changed_file_counts_and_a_broken_one_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access.toml");
        std::fs::write(&path, text("a", "one")).unwrap();
        let gate = Gate::of_file(&path).unwrap();
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

    #[test]
    fn a_token_that_is_exchanged_under_the_same_time_counts_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access.toml");
        std::fs::write(&path, text("a", "one")).unwrap();
        let written = std::fs::metadata(&path).unwrap().modified().unwrap();
        let gate = Gate::of_file(&path).unwrap();
        let changes = gate.changes();
        std::fs::write(&path, text("a", "two")).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(written).unwrap();
        assert!(gate.reload().is_some());
        assert!(changes.has_changed().unwrap());
        assert_eq!(gate.who(None, Some(b"one")), Err(Rejection::Credential));
        assert!(!gate.counts(&TokenHash::of(b"one"), "a"));
        assert!(gate.counts(&TokenHash::of(b"two"), "a"));
        assert!(!gate.counts(&TokenHash::of(b"two"), "b"));
    }

    #[test]
    fn a_token_whose_time_is_over_is_a_change() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access.toml");
        let soon = Timestamp::now() + std::time::Duration::from_millis(50);
        std::fs::write(&path, format!("{}expires = \"{soon}\"\n", text("a", "one"))).unwrap();
        let gate = Gate::of_file(&path).unwrap();
        assert!(gate.counts(&TokenHash::of(b"one"), "a"));
        while Timestamp::now() < soon {
            std::thread::yield_now();
        }
        assert!(gate.reload().is_some());
        assert!(!gate.counts(&TokenHash::of(b"one"), "a"));
        assert!(gate.reload().is_none(), "it is told once");
    }
}
