//! Who is at the other end of a connection: what its certificate says, and what it claims.

use conclave_client::secure::Identity;
use conclave_protocol::id::NodeId;
use conclave_wire::greeting::{Greeting, Rejection, Role};

use super::conn::Way;
use super::run::Loop;

/// Who is at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Who {
    /// In whose name it asks.
    pub(super) principal: String,
    /// Whether it is another node, which asks in the name of its own callers.
    pub(super) gateway: bool,
}

/// What the other end has shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Badge {
    /// Nothing: this node speaks plainly with everybody.
    Open,
    /// Nothing, for it speaks plainly and this node does not.
    Plain,
    /// TLS without a certificate.
    None,
    /// A certificate that an authority of ours has signed, and whom it speaks for in this cluster;
    /// if for nobody, why.
    Shown(Result<Identity, String>),
}

impl Loop {
    /// Who has greeted on this connection, or why it is refused.
    pub(super) fn who(&mut self, id: u64, greeting: &Greeting) -> Result<Who, Rejection> {
        let cluster = &self.door.cluster;
        let badge = match self.conns.get_mut(id).map(|conn| conn.way()) {
            None | Some(Way::Plain) => Badge::Open,
            Some(Way::Unknown(_) | Way::Mistaken) => Badge::Plain,
            Some(Way::Tls(session)) => match session.certificate() {
                None => Badge::None,
                Some(shown) => {
                    let found = Identity::in_cluster(shown, cluster);
                    Badge::Shown(found.map_err(|stranger| stranger.to_string()))
                }
            },
        };
        decide(&badge, greeting.role)
    }
}

/// Who it is, from what it has shown and what it says of itself.
fn decide(badge: &Badge, role: Role) -> Result<Who, Rejection> {
    let refuse = |why: &str| {
        Err(Rejection::Identity {
            why: why.to_owned(),
        })
    };
    match (badge, role) {
        (Badge::Open, _) => Ok(Who {
            principal: "anonymous".to_owned(),
            gateway: matches!(role, Role::Node(_)),
        }),
        (Badge::Plain, _) => refuse("the node speaks TLS; give --ca, and --cert and --key"),
        (Badge::None, _) => refuse("no certificate was shown; give --cert and --key"),
        (Badge::Shown(Err(why)), _) => refuse(why),
        (Badge::Shown(Ok(Identity::Node(shown))), Role::Node(claimed))
            if NodeId(shown.wrapping_sub(1)) != claimed =>
        {
            let claimed = claimed.0.saturating_add(1);
            refuse(&format!(
                "the certificate is that of node/{shown}, not of node/{claimed}"
            ))
        }
        (Badge::Shown(Ok(client @ Identity::Client(_))), Role::Node(claimed)) => {
            let claimed = claimed.0.saturating_add(1);
            refuse(&format!(
                "the certificate is that of {client}, not of node/{claimed}"
            ))
        }
        (Badge::Shown(Ok(node @ Identity::Node(_))), _) => Ok(Who {
            principal: node.to_string(),
            gateway: true,
        }),
        (Badge::Shown(Ok(Identity::Client(name))), Role::Client) => Ok(Who {
            principal: name.clone(),
            gateway: false,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(badge: &Badge, role: Role) -> String {
        match decide(badge, role) {
            Err(Rejection::Identity { why }) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_certificate_is_for_one_node_or_client() {
        let node = Badge::Shown(Ok(Identity::Node(2)));
        let client = Badge::Shown(Ok(Identity::Client("ci".to_owned())));
        let second = Role::Node(NodeId(1));
        let third = Role::Node(NodeId(2));
        assert!(decide(&node, second).unwrap().gateway);
        assert!(refused(&node, third).contains("node/2, not of node/3"));
        assert!(refused(&client, third).contains("client/ci, not of node/3"));
        let gateway = decide(&node, Role::Client).unwrap();
        assert_eq!(
            (gateway.principal.as_str(), gateway.gateway),
            ("node/2", true)
        );
        let ci = decide(&client, Role::Client).unwrap();
        assert_eq!((ci.principal.as_str(), ci.gateway), ("ci", false));
    }

    #[test]
    fn without_a_certificate_nobody_comes_in_where_tls_is_spoken() {
        for role in [Role::Client, Role::Node(NodeId(0))] {
            assert!(decide(&Badge::Open, role).is_ok());
            assert!(refused(&Badge::Plain, role).contains("speaks TLS"));
            assert!(refused(&Badge::None, role).contains("no certificate"));
            let stranger = Badge::Shown(Err("of another cluster".to_owned()));
            assert!(refused(&stranger, role).contains("another cluster"));
        }
    }
}
