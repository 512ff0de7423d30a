//! How a process shows who it is.

use std::fmt;
use std::sync::Arc;

/// How a process shows who it is, and whom it believes. The default is plain TCP and no name.
#[derive(Clone, Debug, Default)]
pub struct Security {
    bearer: Option<Secret>,
}

impl Security {
    /// The same, and shows this secret to whoever asks for one.
    #[must_use]
    pub fn with_bearer(mut self, bearer: Secret) -> Self {
        self.bearer = Some(bearer);
        self
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
        out.write_str("Secret(..)")
    }
}

/// Who a certificate speaks for, within its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Identity {
    /// A node, from 1.
    Node(u32),
    /// A client.
    Client(String),
}
