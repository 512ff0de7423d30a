//! Raises that a node refuses because its token clock is behind that of another node.
//!
//! The node that refuses asks the others for their clocks at once, so the same raise succeeds a
//! moment later: the floors that ask for it stand still while the grants are held. A node that goes
//! on refusing cannot hear the others; it is left, avoided for a while, and named.

use super::LockClient;
use super::request::{Phase, Requester};
use crate::id::{NodeId, Token};
use crate::lock::api::ClientEffects;
use crate::lock::plant::Plant;
use crate::time::{Instant, Wall};

/// So often a raise is repeated before a node that refuses it is left.
const REPEATS_MAX: u32 = 10;

/// A raise that some node has refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Repeat {
    token: Token,
    count: u32,
    /// When it is sent again.
    pub(super) at: Option<Instant>,
}

impl Requester {
    /// The token that is being registered, and the nodes that have not registered it yet.
    fn open_raise(&self) -> Option<(Token, Vec<NodeId>)> {
        let token = self.raising()?;
        let all = matches!(self.phase, Phase::Keeping(_));
        let open = self.members.iter().filter(|member| {
            let grant = member.grant.as_ref();
            let open = grant.is_some_and(|grant| grant.raised < token);
            open && (all || self.raises_at(member.node))
        });
        Some((token, open.map(|member| member.node).collect()))
    }
}

impl LockClient {
    /// A node refused a raise, and told its clock. `true` if the raise is repeated a moment later.
    pub(super) fn raise_refused(&mut self, place: u32, node: NodeId, clock: Wall) -> bool {
        let (now, pause) = (self.now.mono, self.config.times.raise_again);
        let once = self.config.rules.has(Plant::RaiseOnce);
        let Some(request) = self.requests.get_mut(place) else {
            return false;
        };
        let Some(token) = request.raising() else {
            return false;
        };
        if request.repeat.token != token {
            request.repeat = Repeat {
                token,
                ..Repeat::default()
            };
        }
        if request.repeat.count < REPEATS_MAX && !once {
            let at = *request.repeat.at.get_or_insert(now + pause);
            self.arm_request(place, at);
            return true;
        }
        let avoid_until = now + self.config.times.reconnect_max;
        if let Some(link) = self.link_mut(node) {
            link.avoid_until = link.avoid_until.max(avoid_until);
            self.troubled.insert(node);
        }
        self.behind.insert(node, clock);
        false
    }

    /// Sends a raise again where it was refused, if it is time and the grants are still fresh.
    pub(super) fn repeat_raise(&mut self, place: u32, out: &mut ClientEffects) {
        let now = self.now.mono;
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        if request.repeat.at.is_none_or(|at| at > now) {
            return;
        }
        request.repeat.at = None;
        request.repeat.count += 1;
        let (refused, outside) = (request.repeat.token, request.token().is_none());
        let Some((token, open)) = request.open_raise().filter(|(token, _)| *token == refused)
        else {
            return;
        };
        if outside && !self.all_fresh(place, &open) {
            self.abort_raise(place, out);
            return;
        }
        self.send_raises(place, token, &open, out);
    }

    /// A node has registered a token: it does not keep refusing.
    pub(super) fn raise_taken(&mut self, node: NodeId) {
        if !self.behind.is_empty() {
            self.behind.remove(&node);
        }
    }
}
