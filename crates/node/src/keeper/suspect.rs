//! Whom a node sees to differ from itself: what others say in the background is compared with what
//! this node has committed. None of it is proof, for this node may be the one in error; but an
//! honest node that looks at honest ones sees nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use conclave_protocol::fault::Lie;
use conclave_protocol::id::{Name, NodeId, Token};
use conclave_protocol::keeper::Answer;
use conclave_protocol::object::Stamp;
use conclave_protocol::{Instant, Now};

/// So many claims of one node are remembered.
const CLAIMS_MAX: usize = 4096;
/// A node that is open and says nothing for so long is silent.
const SILENT: Duration = Duration::from_secs(15);
/// A state may be told of for so long after this node has a later one.
const STALE: Duration = Duration::from_secs(10);
/// No node gives a token further ahead than this.
const AHEAD: Duration = Duration::from_hours(48);

/// What this node has, and what others said.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    own: BTreeMap<Name, (Stamp, Instant)>,
    claims: BTreeMap<NodeId, BTreeMap<Name, Stamp>>,
    /// When each open node last said something.
    heard: BTreeMap<NodeId, Instant>,
}

impl Suspects {
    /// This node has committed a state.
    pub(super) fn own(&mut self, now: Now, object: Name, stamp: Stamp) -> Vec<(NodeId, Lie)> {
        let mut lies = Vec::new();
        for (node, claims) in &mut self.claims {
            let Some(claim) = claims.get(&object).copied() else {
                continue;
            };
            if claim.version <= stamp.version {
                claims.remove(&object);
            }
            if claim.version == stamp.version && claim.digest != stamp.digest {
                lies.push((*node, Lie::Forged));
            }
        }
        self.own.insert(object, (stamp, now.mono));
        lies
    }

    /// A connection to another node is open.
    pub(super) fn opened(&mut self, now: Now, node: NodeId) {
        self.heard.insert(node, now.mono);
    }

    /// A connection to another node is gone.
    pub(super) fn closed(&mut self, node: NodeId) {
        self.heard.remove(&node);
    }

    /// Another node says something.
    pub(super) fn heard(&mut self, now: Now, node: NodeId, answer: &Answer) -> Vec<(NodeId, Lie)> {
        let mut lies = Vec::new();
        self.heard.insert(node, now.mono);
        let Answer::Surveyed { objects, token, .. } = answer else {
            return lies;
        };
        let ahead = u64::try_from(AHEAD.as_micros()).unwrap_or(u64::MAX);
        if *token > Token(now.wall.0.saturating_add(ahead)) {
            lies.push((node, Lie::Huge));
        }
        let claims = self.claims.entry(node).or_default();
        for (object, stamp) in objects {
            match self.own.get(object) {
                Some((own, _)) if own.version == stamp.version && own.digest != stamp.digest => {
                    lies.push((node, Lie::Forged));
                }
                Some((own, since))
                    if own.version > stamp.version && now.mono.since(*since) > STALE =>
                {
                    lies.push((node, Lie::Stale));
                }
                Some((own, _)) if own.version >= stamp.version => {}
                _ if claims.len() < CLAIMS_MAX || claims.contains_key(object) => {
                    let before = claims.insert(object.clone(), *stamp);
                    if before.is_some_and(|before| {
                        before.version == stamp.version && before.digest != stamp.digest
                    }) {
                        lies.push((node, Lie::Equivocating));
                    }
                }
                _ => {}
            }
        }
        lies
    }

    /// Those that have said nothing for too long.
    pub(super) fn silent(&mut self, now: Now) -> Vec<(NodeId, Lie)> {
        let mut lies = Vec::new();
        for (node, heard) in &mut self.heard {
            if now.mono.since(*heard) > SILENT {
                *heard = now.mono;
                lies.push((*node, Lie::Silent));
            }
        }
        lies
    }
}

#[cfg(test)]
mod tests {
    use conclave_protocol::Wall;
    use conclave_protocol::object::Digest;

    use super::*;

    fn at(seconds: u64) -> Now {
        Now {
            mono: Instant::ZERO + Duration::from_secs(seconds),
            wall: Wall(seconds * 1_000_000),
        }
    }

    fn stamp(version: u64, digest: u8) -> Stamp {
        Stamp {
            version,
            digest: Digest([digest; 32]),
        }
    }

    fn says(stamp: Stamp, token: u64) -> Answer {
        Answer::Surveyed {
            ticket: 1,
            objects: vec![(Name::new("o"), stamp)],
            token: Token(token),
            last: true,
            lost: false,
            new: false,
        }
    }

    #[test]
    fn honest_nodes_are_not_suspected_and_liars_are() {
        let (node, name) = (NodeId(2), Name::new("o"));
        let mut suspects = Suspects::default();
        suspects.opened(at(0), node);
        assert_eq!(suspects.own(at(1), name.clone(), stamp(3, 3)), []);
        assert_eq!(suspects.heard(at(1), node, &says(stamp(3, 3), 0)), []);
        assert_eq!(suspects.heard(at(2), node, &says(stamp(2, 2), 0)), []);
        assert_eq!(suspects.heard(at(3), node, &says(stamp(4, 4), 0)), []);
        assert_eq!(suspects.own(at(4), name.clone(), stamp(4, 4)), []);
        assert_eq!(suspects.silent(at(10)), []);
        let forged = [(node, Lie::Forged)];
        assert_eq!(suspects.heard(at(5), node, &says(stamp(4, 9), 0)), forged);
        assert_eq!(suspects.heard(at(5), node, &says(stamp(5, 9), 0)), []);
        assert_eq!(suspects.own(at(6), name, stamp(5, 5)), forged);
        let stale = [(node, Lie::Stale)];
        assert_eq!(suspects.heard(at(30), node, &says(stamp(4, 4), 0)), stale);
        let huge = [(node, Lie::Huge)];
        let most = says(stamp(5, 5), u64::MAX);
        assert_eq!(suspects.heard(at(31), node, &most), huge);
        assert_eq!(suspects.silent(at(60)), [(node, Lie::Silent)]);
        suspects.closed(node);
        assert_eq!(suspects.silent(at(99)), []);
    }
}
