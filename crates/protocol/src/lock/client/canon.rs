//! The canonical form of a client.

use super::LockClient;
use super::link::{Link, LinkState};
use super::request::{Member, Phase, Requester};
use super::serial::Journey;
use crate::id::{NodeId, SessionId, Token};
use crate::lock::canon::{Canon, session, whole};
use crate::lock::plant::Plant;

impl LockClient {
    /// Its canonical form while time stands still. It must not be renewing a handle.
    pub fn canon<C: Canon>(&self, canon: &mut C) {
        canon.plain(self.last_request.0);
        for (index, link) in self.links.iter().enumerate() {
            self.canon_link(NodeId::at(index), link.as_deref(), canon);
        }
        let mut requests: Vec<&Requester> = self.requests.iter().map(|(_, one)| one).collect();
        requests.sort_by_key(|request| request.ask.request);
        canon.plain(requests.len() as u64);
        for request in requests {
            self.canon_request(request, canon);
        }
    }

    fn canon_link<C: Canon>(&self, node: NodeId, link: Option<&Link>, canon: &mut C) {
        let Some(link) = link else {
            canon.plain(0);
            return;
        };
        let state = match link.state {
            LinkState::Idle => 1,
            LinkState::Connecting => 2,
            LinkState::Open => 3,
            LinkState::Waiting(_) => 4,
        };
        canon.plain(state);
        canon.plain(u64::from(self.avoided(node)));
        canon.plain(u64::from(
            link.base.is_some_and(|base| base >= self.now.mono),
        ));
        link.canon_lists(canon);
    }

    fn canon_request<C: Canon>(&self, request: &Requester, canon: &mut C) {
        canon.plain(request.key.0);
        session(request.ask.session, canon);
        canon.plain(request.ask.request.0);
        canon.plain(request.ask.priority.t);
        canon.plain(request.hint.0);
        canon.plain(u64::from(request.wants_fresh));
        canon.plain(u64::from(request.refusal.is_some()));
        // Only a planted bug reads it; without the bug it would double the states.
        let told = self.config.rules.has(Plant::FailedRule) && request.was_told_to_wait();
        canon.plain(u64::from(told));
        whole(&request.target, canon);
        let journey = match request.journey {
            Journey::None => 0,
            Journey::Prepared => 1,
            Journey::OnItsWay => 2,
        };
        canon.plain(journey);
        match &request.phase {
            Phase::Starting => canon.plain(0),
            Phase::Trying => canon.plain(1),
            Phase::Raising { token, quorum } => {
                canon.plain(2);
                raise(*token, quorum, canon);
            }
            Phase::Inside(inside) => {
                canon.plain(3);
                canon.plain(inside.token.0);
                canon.plain(u64::from(inside.raise.is_some()));
                if let Some(under_way) = &inside.raise {
                    raise(under_way.token, &under_way.quorum, canon);
                }
            }
            Phase::Keeping(_) => canon.plain(4),
        }
        canon.plain(request.members.len() as u64);
        for member in &request.members {
            canon_member(request.ask.session, member, canon);
        }
    }
}

fn raise<C: Canon>(token: Token, quorum: &[NodeId], canon: &mut C) {
    canon.plain(token.0);
    whole(&quorum, canon);
}

fn canon_member<C: Canon>(session: SessionId, member: &Member, canon: &mut C) {
    canon.plain(u64::from(member.node.0));
    canon.seen(member.node, session, member.seen);
    canon.plain(u64::from(member.denied));
    canon.plain(u64::from(member.retry.is_some()));
    let Some(grant) = &member.grant else {
        canon.plain(0);
        return;
    };
    canon.plain(1);
    canon.grant(member.node, session, grant.number);
    canon.plain(grant.floor.0);
    canon.plain(grant.limit.0);
    canon.plain(grant.incarnation.0);
    canon.plain(grant.raised.0);
    canon.plain(u64::from(grant.inquired));
    canon.plain(u64::from(grant.counted));
    canon.plain(u64::from(grant.acked));
}
