//! Sessions that an operator revoked.

use super::LockClient;
use crate::id::{NodeId, SessionId};
use crate::lock::api::{ClientEffects, Ended};
use crate::lock::message::Refusal;

impl LockClient {
    /// A node renews a session no more: everything of it that speaks to this node is over. One
    /// node's word is enough, as the operator's word goes to all of them.
    pub(super) fn revoked(&mut self, node: NodeId, session: SessionId, out: &mut ClientEffects) {
        self.forsake(session);
        self.unannounce(node, session);
        let Some(link) = self.link(node) else { return };
        let refs = link.requests.sorted(|reference| reference.0 == session);
        for reference in refs {
            if let Some(place) = self.by_ref.get(&reference).copied() {
                self.end_revoked(place, out);
            }
        }
    }

    /// What is asked for from now on gets another session.
    pub(super) fn forsake(&mut self, session: SessionId) {
        self.sessions.retain(|_, kept| *kept != session);
    }

    /// A request of a revoked session is lost, or refused if it was not inside.
    pub(super) fn end_revoked(&mut self, place: u32, out: &mut ClientEffects) {
        let Some(request) = self.requests.get(place) else {
            return;
        };
        let key = request.key;
        // The caller of a gateway has not been told yet that it is inside.
        if request.token().is_some() && !request.info.detached {
            self.lose(place, out);
        } else {
            self.fail(key, Ended::Refused(Refusal::Revoked), out);
        }
    }
}
