//! What a thin client holds instead of a connection.

use std::sync::Arc;
use std::time::Duration;

use super::message::ConfigId;
use super::mode::Ask;
use crate::id::{GrantNo, Incarnation, NodeId, Token};

/// A held lock of a detached session: whoever has it may renew or release the lock through any
/// gateway, twice or late. The service seals it; it is never logged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    /// The configuration it was made under.
    pub config: ConfigId,
    /// What was asked.
    pub ask: Arc<Ask>,
    /// The token in use.
    pub token: Token,
    /// How long the session lives without being renewed.
    pub ttl: Duration,
    /// The grants that make up the hold.
    pub grants: Vec<(NodeId, Incarnation, GrantNo)>,
}
