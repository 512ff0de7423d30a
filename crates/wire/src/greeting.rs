//! The first frame in each direction of a connection: who speaks, which version, which
//! configuration. A greeting is answered by a reply before anything else is taken.

use conclave_protocol::id::NodeId;
use thiserror::Error;

use crate::cluster::Facts;
use crate::codec::WireError;

/// The version of the peer protocol that this build speaks.
pub const VERSION: u32 = 1;

/// Who opens a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A client or gateway.
    Client,
    /// Another node.
    Node(NodeId),
}

/// What the opening side says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The version of the protocol it speaks.
    pub version: u32,
    /// Who opens.
    pub role: Role,
    /// Whom it wants to reach.
    pub target: NodeId,
    /// Its process: random, so that two processes with one id are told apart.
    pub process: u128,
    /// The digest of its configuration.
    pub digest: [u8; 16],
    /// Its configuration, for telling what differs.
    pub facts: Facts,
}

/// What the accepting side answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The version it speaks.
    pub version: u32,
    /// Which node it is.
    pub node: NodeId,
    /// Its process.
    pub process: u128,
    /// Why it refuses the connection, which it then closes.
    pub refusal: Option<Rejection>,
}

/// Why a connection is refused before any message.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Rejection {
    /// The other end speaks another version.
    #[error("the node speaks version {node} of the peer protocol; update the older side")]
    Version {
        /// The node's version.
        node: u32,
    },
    /// It reached another node than it wanted.
    #[error("this is {node}; the address in the cluster file is wrong")]
    OtherNode {
        /// Which node this is.
        node: NodeId,
    },
    /// Two processes claim the same id.
    #[error("another process already serves as {node}; stop one of them")]
    Twin {
        /// Which id.
        node: NodeId,
    },
    /// The configurations differ.
    #[error("the configurations differ; use the same cluster file and epoch everywhere")]
    Config {
        /// The node's configuration.
        facts: Facts,
    },
    /// The node has as many connections as it may.
    #[error("the node has too many connections; try again later")]
    Full,
}

/// Appends a greeting as a frame.
pub fn encode_greeting(greeting: &Greeting, out: &mut Vec<u8>) {
    let _ = (greeting, out);
}

/// The greeting at the start of `bytes` and its length; none if it is not whole yet.
pub fn decode_greeting(bytes: &[u8]) -> Result<Option<(Greeting, usize)>, WireError> {
    let _ = bytes;
    Ok(None)
}

/// Appends a reply as a frame.
pub fn encode_reply(reply: &Reply, out: &mut Vec<u8>) {
    let _ = (reply, out);
}

/// The reply at the start of `bytes` and its length; none if it is not whole yet.
pub fn decode_reply(bytes: &[u8]) -> Result<Option<(Reply, usize)>, WireError> {
    let _ = bytes;
    Ok(None)
}
