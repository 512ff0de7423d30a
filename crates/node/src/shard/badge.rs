//! Who is at the other end of a connection: what its certificate says, and what it claims.

use conclave_client::secure::Identity;
use conclave_protocol::lock::Who;
use conclave_wire::greeting::{Credential, Greeting, Rejection, Role};

use super::conn::Way;
use super::run::Loop;
use crate::who::{Gate, node_principal};

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
    /// None if nobody has to say.
    pub(super) fn who(&mut self, id: u64, greeting: &Greeting) -> Result<Option<Who>, Rejection> {
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
        decide(&badge, greeting, &self.gate)
    }
}

/// Who it is, from what it has shown and what it says of itself. Whoever claims to be a node must
/// show that it is this very node.
fn decide(badge: &Badge, greeting: &Greeting, gate: &Gate) -> Result<Option<Who>, Rejection> {
    let refuse = |why: &str| {
        Err(Rejection::Identity {
            why: why.to_owned(),
        })
    };
    let credential = greeting.credential.as_ref().map(Credential::bytes);
    let (role, tokens) = (greeting.role, !gate.is_open());
    let who = match badge {
        // A token that was sent over plain TCP may be known to others.
        Badge::Open if tokens => return refuse("tokens count over TLS alone; give --ca"),
        Badge::Open => gate.who(None, credential)?,
        Badge::Plain => return refuse("the node speaks TLS; give --ca, and --cert and --key"),
        // A token does instead of a certificate, where tokens are known.
        Badge::None if tokens && credential.is_some() => gate.who(None, credential)?,
        Badge::None if tokens => {
            return refuse("nothing was shown; give --cert and --key, or --bearer-file");
        }
        Badge::None => return refuse("no certificate was shown; give --cert and --key"),
        Badge::Shown(Err(why)) => return refuse(why),
        Badge::Shown(Ok(identity)) => {
            if let Role::Node(claimed) = role {
                let claimed = claimed.0.saturating_add(1);
                if *identity != Identity::Node(claimed) {
                    return refuse(&format!(
                        "the certificate is that of {identity}, not of node/{claimed}"
                    ));
                }
            }
            gate.who(Some(identity), credential)?
        }
    };
    match (role, &who) {
        (Role::Node(node), Some(who)) if who.principal != node_principal(node.0 + 1) => {
            Err(Rejection::Credential)
        }
        _ => Ok(who),
    }
}

#[cfg(test)]
mod tests {
    use conclave_protocol::id::NodeId;
    use conclave_wire::greeting::Service;
    use conclave_wire::version::SPOKEN;

    use super::*;

    fn greeting(role: Role, credential: Option<&str>) -> Greeting {
        Greeting {
            versions: SPOKEN,
            role,
            target: NodeId(0),
            process: 0,
            digest: [0; 16],
            facts: conclave_wire::cluster::Facts::new(),
            credential: credential.and_then(|shown| Credential::new(shown.as_bytes())),
            service: Service::Locks,
        }
    }

    fn gate() -> Gate {
        Gate::open()
    }

    fn asks(badge: &Badge, role: Role) -> Result<Option<Who>, Rejection> {
        decide(badge, &greeting(role, None), &gate())
    }

    fn refused(badge: &Badge, role: Role) -> String {
        match asks(badge, role) {
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
        assert!(asks(&node, second).unwrap().unwrap().gateway);
        assert!(refused(&node, third).contains("node/2, not of node/3"));
        assert!(refused(&client, third).contains("client/ci, not of node/3"));
        let gateway = asks(&node, Role::Client).unwrap().unwrap();
        assert_eq!((&*gateway.principal, gateway.gateway), ("node/2", true));
        let ci = asks(&client, Role::Client).unwrap().unwrap();
        assert_eq!((&*ci.principal, ci.gateway), ("ci", false));
    }

    #[test]
    fn without_a_certificate_nobody_comes_in_where_tls_is_spoken() {
        for role in [Role::Client, Role::Node(NodeId(0))] {
            assert_eq!(asks(&Badge::Open, role), Ok(None));
            assert!(refused(&Badge::Plain, role).contains("speaks TLS"));
            assert!(refused(&Badge::None, role).contains("no certificate"));
            let stranger = Badge::Shown(Err("of another cluster".to_owned()));
            assert!(refused(&stranger, role).contains("another cluster"));
        }
    }

    #[test]
    fn a_token_does_instead_of_a_certificate_and_does_not_make_a_node() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access.toml");
        let hash = crate::access::hash_of("t0ken");
        let text = format!("[[token]]\nprincipal = \"ci\"\nsha256 = \"{hash}\"\n");
        std::fs::write(&path, text).unwrap();
        let gate = Gate::of_file(&path).unwrap();
        let ask = |badge: &Badge, role, shown| decide(badge, &greeting(role, shown), &gate);
        let ci = ask(&Badge::None, Role::Client, Some("t0ken"));
        let ci = ci.unwrap().unwrap();
        assert_eq!((&*ci.principal, ci.gateway), ("ci", false));
        assert!(ask(&Badge::None, Role::Client, None).is_err());
        let refused = Err(Rejection::Credential);
        assert_eq!(ask(&Badge::None, Role::Client, Some("x")), refused);
        // Not even a node's own certificate makes a node of whoever shows a token.
        let node = Role::Node(NodeId(1));
        for badge in [Badge::None, Badge::Shown(Ok(Identity::Node(2)))] {
            assert_eq!(ask(&badge, node, Some("t0ken")), refused);
        }
        // What came over plain TCP is not believed.
        let plain = ask(&Badge::Open, Role::Client, Some("t0ken"));
        assert!(
            matches!(plain, Err(Rejection::Identity { .. })),
            "{plain:?}"
        );
    }
}
