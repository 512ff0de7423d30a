//! The serial requester of one lock: one request that travels through one quorum.
//!
//! It never changes its quorum. What goes wrong before it is inside ends it everywhere, and its
//! client starts again with a new request number and the old time of asking; a hold ends when one
//! member of its quorum is no longer fresh.

use std::sync::Arc;

use conclave_quorum::NodeSet;

use super::message::{Carried, GrantRef, Message, Travel};
use super::mode::Ask;
use crate::id::{GrantNo, Incarnation, NodeId, Token};

/// What a carried or raised grant leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It does not concern this request, or not any more.
    Ignore,
    /// The lock is held with this token.
    Enter(Token),
    /// Every member must register this token first.
    Raise(Token),
    /// A member is not fresh or its grant is of another life: cancel and start again.
    Again,
}

/// One request on its way through its quorum.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SerialRequest {
    ask: Arc<Ask>,
    route: Arc<[NodeId]>,
    hint: Token,
    grants: Vec<Carried>,
    state: State,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    Travelling,
    /// With the token, and who has not registered it.
    Raising(Token, Vec<NodeId>),
    Inside(Token),
}

impl SerialRequest {
    /// A request through this quorum. Its members are asked in the one order of all nodes.
    pub(super) fn new(ask: Arc<Ask>, quorum: &NodeSet, hint: Token) -> Self {
        let mut route: Vec<NodeId> = quorum.iter().map(NodeId::at).collect();
        route.sort_unstable();
        route.dedup();
        Self {
            ask,
            route: route.into(),
            hint,
            grants: Vec::new(),
            state: State::Travelling,
        }
    }

    /// The members, in order. All of them are told when it ends: it may be anywhere.
    pub(super) fn route(&self) -> &Arc<[NodeId]> {
        &self.route
    }

    /// What was asked.
    pub(super) fn ask(&self) -> &Arc<Ask> {
        &self.ask
    }

    /// Whether it waits for the members' grants.
    pub(super) fn is_travelling(&self) -> bool {
        self.state == State::Travelling
    }

    /// The token, once inside.
    pub(super) fn token(&self) -> Option<Token> {
        match self.state {
            State::Inside(token) => Some(token),
            _ => None,
        }
    }

    /// The grants of all members, once carried.
    pub(super) fn grants(&self) -> &[Carried] {
        &self.grants
    }

    /// The largest floor seen.
    pub(super) fn hint(&self) -> Token {
        let floors = self.grants.iter().map(|grant| grant.floor);
        floors.fold(self.hint, Token::max)
    }

    /// The first message, and whom it goes to. Sent again it mends a loss between the nodes.
    pub(super) fn travel(&self) -> Option<(NodeId, Message)> {
        let travel = Travel {
            ask: self.ask.clone(),
            hint: self.hint,
            route: self.route.clone(),
            grants: Vec::new(),
        };
        let first = *self.route.first()?;
        Some((first, Message::Travel(Box::new(travel))))
    }

    /// All members have granted. `fresh` says in which life a member is known, if what it
    /// granted would be fresh now.
    pub(super) fn carried(
        &mut self,
        grants: &[Carried],
        fresh: impl Fn(NodeId) -> Option<Incarnation>,
    ) -> Outcome {
        if !self.is_travelling() {
            return Outcome::Ignore;
        }
        let members = grants.iter().map(|grant| grant.node);
        if !members.eq(self.route.iter().copied()) || grants.is_empty() {
            return Outcome::Again;
        }
        self.grants = grants.to_vec();
        let same = |grant: &Carried| fresh(grant.node) == Some(grant.incarnation);
        if !grants.iter().all(same) {
            return Outcome::Again;
        }
        let floor = grants.iter().map(|grant| grant.floor).max();
        let limit = grants.iter().map(|grant| grant.limit).min();
        let (Some(floor), Some(limit)) = (floor, limit) else {
            return Outcome::Again;
        };
        let Some(token) = floor.0.checked_add(1).map(Token) else {
            return Outcome::Again;
        };
        if token <= limit {
            self.state = State::Inside(token);
            return Outcome::Enter(token);
        }
        self.state = State::Raising(token, self.route.to_vec());
        Outcome::Raise(token)
    }

    /// A member has registered a raised token. Entry is again a matter of freshness.
    pub(super) fn raised(
        &mut self,
        node: NodeId,
        grant: GrantNo,
        token: Token,
        fresh: impl Fn(NodeId) -> Option<Incarnation>,
    ) -> Outcome {
        let State::Raising(raising, missing) = &mut self.state else {
            return Outcome::Ignore;
        };
        let known = self.grants.iter_mut().find(|known| known.node == node);
        let Some(known) = known.filter(|known| known.grant == grant && *raising == token) else {
            return Outcome::Ignore;
        };
        known.limit = known.limit.max(token);
        missing.retain(|member| *member != node);
        if !missing.is_empty() {
            return Outcome::Ignore;
        }
        let same = |grant: &Carried| fresh(grant.node) == Some(grant.incarnation);
        if !self.grants.iter().all(same) {
            return Outcome::Again;
        }
        self.state = State::Inside(token);
        Outcome::Enter(token)
    }

    /// The grant of one member, as messages name it.
    pub(super) fn grant_of(&self, node: NodeId) -> Option<GrantRef> {
        let grant = self.grants.iter().find(|grant| grant.node == node)?;
        Some(GrantRef {
            session: self.ask.session,
            request: self.ask.request,
            grant: grant.grant,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::mode::{Bond, Mode, Priority};
    use super::*;
    use crate::id::{ClientId, Name, RequestNo, SessionId};

    const LIFE: Incarnation = Incarnation(2);

    fn request() -> SerialRequest {
        let ask = Ask {
            name: Name::new("a"),
            mode: Mode::Exclusive,
            session: SessionId(1),
            request: RequestNo(1),
            priority: Priority {
                t: 1,
                client: ClientId(1),
                request: RequestNo(1),
            },
            bond: Bond::Attached,
        };
        SerialRequest::new(Arc::new(ask), &NodeSet::of(8, [5, 2]), Token(0))
    }

    fn carried(floors: [u64; 2], limits: [u64; 2]) -> Vec<Carried> {
        let nodes = [NodeId(2), NodeId(5)].into_iter().enumerate();
        nodes
            .map(|(place, node)| Carried {
                node,
                incarnation: LIFE,
                grant: GrantNo(9),
                floor: Token(floors[place]),
                limit: Token(limits[place]),
            })
            .collect()
    }

    fn known(_: NodeId) -> Option<Incarnation> {
        Some(LIFE)
    }

    #[test]
    fn enters_with_the_smallest_token_above_all_floors() {
        let mut request = request();
        assert_eq!(request.travel().map(|(to, _)| to), Some(NodeId(2)));
        let grants = carried([3, 7], [8, 20]);
        let outcome = request.carried(&grants, known);
        assert_eq!(outcome, Outcome::Enter(Token(8)));
        assert_eq!(request.token(), Some(Token(8)));
        assert_eq!(request.hint(), Token(7));
        assert_eq!(request.carried(&grants, known), Outcome::Ignore);
    }

    #[test]
    fn raises_above_the_smallest_limit_and_waits_for_all() {
        let mut request = request();
        let grants = carried([3, 7], [7, 20]);
        let outcome = request.carried(&grants, known);
        assert_eq!(outcome, Outcome::Raise(Token(8)));
        assert_eq!(request.token(), None);
        let mut raised = |node: u32, grant: u64, token: u64| {
            request.raised(NodeId(node), GrantNo(grant), Token(token), known)
        };
        assert_eq!(raised(2, 9, 8), Outcome::Ignore);
        assert_eq!(raised(2, 9, 8), Outcome::Ignore, "said twice");
        assert_eq!(raised(5, 8, 8), Outcome::Ignore, "an older grant");
        assert_eq!(raised(5, 9, 7), Outcome::Ignore, "an older token");
        assert_eq!(raised(5, 9, 8), Outcome::Enter(Token(8)));
    }

    #[test]
    fn does_not_enter_on_a_member_that_is_not_fresh() {
        let stale = |node| (node == NodeId(2)).then_some(LIFE);
        let restarted = |node: NodeId| Some(Incarnation(u64::from(node.0)));
        let fits = carried([3, 7], [8, 20]);
        assert_eq!(request().carried(&fits, stale), Outcome::Again);
        assert_eq!(request().carried(&fits, restarted), Outcome::Again);
        assert_eq!(request().carried(&fits[..1], known), Outcome::Again);
        let mut raising = request();
        raising.carried(&carried([3, 7], [7, 20]), known);
        raising.raised(NodeId(2), GrantNo(9), Token(8), known);
        let last = raising.raised(NodeId(5), GrantNo(9), Token(8), stale);
        assert_eq!(last, Outcome::Again);
        let top = carried([3, u64::MAX], [8, u64::MAX]);
        assert_eq!(request().carried(&top, known), Outcome::Again);
    }
}
