//! How a client reaches the peer port of a node: plain or over TLS, with a greeting.

use std::io;

use conclave_protocol::id::NodeId;
use conclave_wire::cluster::{Facts, differences};
use conclave_wire::greeting::{
    Credential, Greeting, Rejection, Reply, Role, Service, encode_greeting,
};
use conclave_wire::version::SPOKEN;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::secure::{Secret, Security, Stream, Tls};

/// Connects to a node; over TLS the node has shown by then that it is the one that was meant.
pub(crate) async fn dial(
    peer: &str,
    security: &Security,
    cluster: &str,
    node: NodeId,
) -> io::Result<Stream> {
    security.check_bearers().map_err(io::Error::other)?;
    let stream = TcpStream::connect(peer).await?;
    stream.set_nodelay(true)?;
    let Some(tls) = security.tls() else {
        return Ok(Stream::Plain(stream));
    };
    let name = Tls::peer_name(cluster, node.0 + 1);
    let connector = TlsConnector::from(tls.client_config());
    let stream = connector.connect(name, stream).await?;
    Ok(Stream::Tls(Box::new(stream.into())))
}

/// What a client says of itself when it connects.
#[derive(Debug)]
pub(crate) struct Hello {
    process: u128,
    digest: [u8; 16],
    facts: Facts,
    /// What shows who this is.
    credential: Option<Credential>,
}

impl Hello {
    pub(crate) fn new(
        process: u128,
        digest: [u8; 16],
        facts: Facts,
        bearer: Option<&Secret>,
    ) -> Self {
        let credential = bearer.and_then(|bearer| Credential::new(bearer.reveal().as_bytes()));
        Self {
            process,
            digest,
            facts,
            credential,
        }
    }

    /// The configuration that it belongs to.
    pub(crate) fn digest(&self) -> [u8; 16] {
        self.digest
    }

    /// The name of the cluster.
    pub(crate) fn cluster(&self) -> String {
        self.facts.get("name").cloned().unwrap_or_default()
    }

    /// The first bytes on a connection.
    pub(crate) fn bytes(&self, target: NodeId, service: Service) -> Vec<u8> {
        let greeting = Greeting {
            versions: SPOKEN,
            role: Role::Client,
            target,
            process: self.process,
            digest: self.digest,
            facts: self.facts.clone(),
            credential: self.credential.clone(),
            service,
        };
        let mut bytes = Vec::new();
        encode_greeting(&greeting, &mut bytes);
        bytes
    }

    /// Whether we may go on with this node; if not, why, and whether trying again is of no use.
    pub(crate) fn judge(&self, wanted: NodeId, reply: &Reply) -> Result<(), (String, bool)> {
        match reply.accepted_by(wanted) {
            Err(Rejection::Config { facts }) => {
                let differing = differences(&self.facts, &facts);
                let text = Rejection::Config {
                    facts: Facts::new(),
                };
                let told = differing.map_or_else(|| text.to_string(), |d| format!("{text}: {d}"));
                Err((told, true))
            }
            Err(
                why @ (Rejection::Version(_)
                | Rejection::Credential
                | Rejection::Identity { .. }
                | Rejection::Service { .. }),
            ) => Err((why.to_string(), true)),
            Err(why) => Err((why.to_string(), false)),
            Ok(_) => Ok(()),
        }
    }
}

/// Whether a reply says that the cluster is not what this client knows: another configuration, or
/// another node at the address.
pub(crate) fn is_stranger(wanted: NodeId, reply: &Reply) -> bool {
    match &reply.refusal {
        Some(Rejection::Config { .. } | Rejection::OtherNode { .. }) => true,
        Some(_) => false,
        None => reply.node != wanted,
    }
}
