//! The serial way of one lock: requests travel through their quorum node by node (`Maekawa_S`).
//!
//! | paper | here |
//! |---|---|
//! | REQUEST | [`Travel`], from the requester to the first member and on from member to member |
//! | GRANT | [`Onward::Home`], from the last member |
//! | UNLOCK | DONE, to all members |
//! | requester | a session *and* a request number, which is never used twice |
//! | `lock_ps` | entries with a grant |
//! | `reference` | [`Entry::reference`]: while it holds, members of its group join freely |
//! | `deferred` | entries without a grant |
//!
//! All routes follow one order of all nodes, so requests that hold some members never wait for
//! each other in a circle. The arbiter differs from the published one where that forgets cancels:
//!
//! - An unlock names its request, and the node remembers it for a while: a travelling request that
//!   comes after its own end is dropped. A requester's next request is another entry, so it needs
//!   no special place (`early`) while the unlock of the last one is still on its way.
//! - Waiting requests stand in order of priority, not of arrival: one that had to start again
//!   keeps its place.
//! - The door is looked at after every change. It opens again when the last conflicting request
//!   has gone, and closes once `max_bypass` late members have passed one that waits.
//! - A request that comes again while it is here is sent on again with the same grant, so a
//!   requester mends a message lost between nodes by starting its request once more.

use std::sync::Arc;

use super::arbiter::{Arbiter, Entry, Scope};
use super::message::{Carried, Travel};
use crate::id::{Incarnation, NodeId, Token};

/// How a travelling request came here, and where it goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Way {
    /// Its quorum, in the one order of all nodes.
    pub(super) route: Arc<[NodeId]>,
    /// What the members before this one have granted.
    pub(super) before: Vec<Carried>,
    /// Whether it was granted already when its client was last looked at.
    pub(super) seen: bool,
}

/// Where a granted request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Onward {
    /// To the next member.
    Node(NodeId, Box<Travel>),
    /// To its client: every member has granted.
    Home(Vec<Carried>),
}

/// Whether a route can be travelled through this node.
pub(super) fn is_route(route: &[NodeId], node: NodeId) -> bool {
    route.is_sorted_by(|a, b| a < b) && route.binary_search(&node).is_ok()
}

impl Entry {
    /// Where the request goes once it is granted here; nowhere if it did not travel.
    pub(super) fn onward(&self, node: NodeId, incarnation: Incarnation) -> Option<Onward> {
        let (way, held) = (self.way.as_ref()?, self.grant.as_ref()?);
        let mut grants = way.before.clone();
        grants.push(Carried {
            node,
            incarnation,
            grant: held.number,
            floor: held.floor,
            limit: held.limit,
        });
        let Some(next) = way.route.iter().find(|other| **other > node) else {
            return Some(Onward::Home(grants));
        };
        let travel = Travel {
            ask: self.ask.clone(),
            // Whoever comes later reserves above what the members before have seen.
            hint: grants
                .iter()
                .map(|grant| grant.floor)
                .fold(self.hint, Token::max),
            route: way.route.clone(),
            grants,
        };
        Some(Onward::Node(*next, Box::new(travel)))
    }
}

impl Arbiter {
    /// Grants what may be granted; nothing is ever asked back.
    pub(super) fn schedule_serial(&mut self, scope: &mut Scope<'_>) {
        if self.entries.is_empty() {
            (self.bypassed, self.has_priority) = (0, true);
            return;
        }
        if self.granted == 0 {
            self.bypassed = 0;
        }
        let held = self.entries.iter().position(|entry| entry.grant.is_some());
        let leader = held.unwrap_or(0);
        let group = self.entries[leader].ask.clone();
        self.has_priority = self.entries[0].ask.joins(&group);
        // The best request of another group that waits: who joins from behind it passes it.
        let rival = self
            .entries
            .iter()
            .position(|entry| entry.grant.is_none() && !entry.ask.joins(&group));
        let open = |entry: &Entry| entry.reference && entry.grant.is_some();
        if !self.entries.iter().any(open) {
            if held.is_some() && rival.is_some() {
                return;
            }
            self.entries[leader].reference = true;
        }
        let max = scope.policy.max_inside.max(1);
        for place in 0..self.entries.len() {
            if self.granted >= max {
                break;
            }
            let entry = &self.entries[place];
            if entry.grant.is_some() || !entry.ask.joins(&group) {
                continue;
            }
            let bypass = rival.is_some_and(|rival| rival < place);
            if bypass && self.bypassed >= scope.policy.max_bypass {
                for entry in &mut self.entries {
                    entry.reference = false;
                }
                break;
            }
            self.bypassed += u32::from(bypass);
            self.grant(place, bypass, scope);
        }
    }
}
