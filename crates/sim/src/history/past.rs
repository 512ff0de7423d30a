//! The state that a history has reached: what the checkers look at in place of a world.
//!
//! A history does not tell which grants a holder counts as fresh. But it tells until when the
//! holder believes, and which grants its request has at the nodes. A holder that believes rests on
//! a quorum of those, so every grant without which they hold no quorum is surely fresh to it. That
//! is what [`Eyes::fresh_members`] answers here: never too much.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use conclave_protocol::Wall;
use conclave_protocol::id::{GrantNo, Key, Name, NodeId, RequestNo, SessionId, Token};
use conclave_protocol::lock::{Ask, Bond, Config, End, EntryView, Group, LockView, Mode};
use conclave_quorum::NodeSet;

use super::line::{ClientLine, ClientWord};
use crate::fact::{Eyes, Fact, Holder, True, Violation};

type RequestKey = (SessionId, RequestNo);
type Granted = BTreeMap<RequestKey, (Arc<Ask>, GrantNo)>;

/// What one holder believes.
#[derive(Clone, Debug)]
struct Belief {
    until: u64,
    token: Token,
    mode: Mode,
    members: Vec<(NodeId, GrantNo)>,
    /// Its request, if its members tell.
    request: Option<RequestKey>,
    /// It gave back so much that it no longer holds; its caller was not told yet.
    gave_up: bool,
}

/// What is known at one point of a history.
#[derive(Debug)]
pub(super) struct Past {
    config: Arc<Config>,
    at: u64,
    beliefs: BTreeMap<Holder, Belief>,
    /// The group of everyone who ever entered.
    groups: BTreeMap<Holder, Group>,
    waiting: BTreeSet<Holder>,
    asks: BTreeMap<(NodeId, GrantNo), Arc<Ask>>,
    /// The grants that each request has and that no node ended.
    live: BTreeMap<RequestKey, BTreeMap<NodeId, GrantNo>>,
    holders: BTreeMap<RequestKey, Vec<Holder>>,
    /// What each running node has granted, by lock.
    granted: BTreeMap<(NodeId, Name), Granted>,
    serving: BTreeMap<NodeId, bool>,
    /// Requests that somebody else ended at some node: their holders hear of it later.
    excused: BTreeSet<RequestKey>,
    /// The grant being told passed a better request of another group.
    passing: Option<NodeId>,
}

impl Past {
    pub(super) fn new(config: Arc<Config>) -> Self {
        Self {
            config,
            at: 0,
            beliefs: BTreeMap::new(),
            groups: BTreeMap::new(),
            waiting: BTreeSet::new(),
            asks: BTreeMap::new(),
            live: BTreeMap::new(),
            holders: BTreeMap::new(),
            granted: BTreeMap::new(),
            serving: BTreeMap::new(),
            excused: BTreeSet::new(),
            passing: None,
        }
    }

    /// Whether a node has run before.
    pub(super) fn knows(&self, node: NodeId) -> bool {
        self.serving.contains_key(&node)
    }

    /// The node ended in order, so its next start is no crash.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.serving.remove(&node);
    }

    pub(super) fn serves(&mut self, node: NodeId, serves: bool) {
        self.serving.insert(node, serves);
    }

    /// Takes in what the checkers must see when they are told the fact.
    pub(super) fn before(&mut self, at: u64, fact: &Fact) {
        self.at = at;
        self.passing = None;
        match fact {
            Fact::Granted {
                node,
                ask,
                grant,
                bypass,
                ..
            } => {
                self.passing = bypass.then_some(*node);
                self.grant(*node, ask, *grant);
            }
            Fact::Reclaimed {
                node, ask, grant, ..
            } => self.grant(*node, ask, *grant),
            Fact::NodeEnded {
                node,
                ask,
                grant,
                why,
            } => {
                let entries = self.granted.get_mut(&(*node, ask.name.clone()));
                if let Some(entries) = entries {
                    entries.remove(&request_of(ask));
                }
                match why {
                    End::Expired | End::Lapsed => {}
                    End::Revoked => self.excuse(ask),
                    // One attempt of a session that its caller named releases all of them.
                    End::Done(_) | End::Cancelled if ask.bond == Bond::Named => self.excuse(ask),
                    _ => self.give_back(*node, ask, *grant),
                }
            }
            Fact::NodeDown { node, .. } => {
                self.granted.retain(|(other, _), _| other != node);
                self.serves(*node, false);
            }
            Fact::Asked { holder } => {
                self.waiting.insert(holder.clone());
            }
            Fact::Entered { holder, .. } => {
                self.waiting.remove(holder);
            }
            Fact::Released { holder }
            | Fact::Lost { holder }
            | Fact::Ended { holder }
            | Fact::Vanished { holder } => self.leave(holder),
            _ => {}
        }
    }

    /// Takes in what the checkers must not yet see when they are told the fact.
    pub(super) fn after(&mut self, fact: &Fact) {
        if let Fact::NodeEnded {
            node, ask, grant, ..
        } = fact
        {
            self.end(*node, ask, *grant);
        }
    }

    fn grant(&mut self, node: NodeId, ask: &Arc<Ask>, grant: GrantNo) {
        let request = request_of(ask);
        self.asks.insert((node, grant), ask.clone());
        self.live.entry(request).or_default().insert(node, grant);
        let entries = self.granted.entry((node, ask.name.clone())).or_default();
        entries.insert(request, (ask.clone(), grant));
    }

    fn end(&mut self, node: NodeId, ask: &Ask, grant: GrantNo) {
        let request = request_of(ask);
        let Some(live) = self.live.get_mut(&request) else {
            return;
        };
        if live.get(&node) == Some(&grant) {
            live.remove(&node);
        }
        if live.is_empty() {
            self.live.remove(&request);
        }
    }

    /// A holder gave a grant back. One that is left without a quorum knows it is outside, even if
    /// its caller is told a moment later.
    fn give_back(&mut self, node: NodeId, ask: &Ask, grant: GrantNo) {
        self.end(node, ask, grant);
        let request = request_of(ask);
        if self.suffice(request, &ask.mode, None) {
            return;
        }
        for holder in self.holders.get(&request).into_iter().flatten() {
            if let Some(belief) = self.beliefs.get_mut(holder) {
                belief.gave_up = true;
            }
        }
    }

    /// Somebody else ended a request on purpose.
    fn excuse(&mut self, ask: &Ask) {
        self.excused.insert(request_of(ask));
    }

    fn leave(&mut self, holder: &Holder) {
        self.waiting.remove(holder);
        let Some(belief) = self.beliefs.remove(holder) else {
            return;
        };
        if let Some(request) = belief.request
            && let Some(holders) = self.holders.get_mut(&request)
        {
            holders.retain(|other| other != holder);
            if holders.is_empty() {
                self.holders.remove(&request);
            }
        }
    }

    /// Whether the live grants of a request, without one node, contain a quorum.
    fn suffice(&self, request: RequestKey, mode: &Mode, without: Option<NodeId>) -> bool {
        let live = self.live.get(&request).into_iter().flatten();
        let nodes = live.map(|(node, _)| *node);
        self.quorum(mode, nodes.filter(|node| Some(*node) != without))
    }

    fn quorum(&self, mode: &Mode, nodes: impl Iterator<Item = NodeId>) -> bool {
        let capacity = self.config.quorums.nodes();
        let known = nodes.map(NodeId::index).filter(|index| *index < capacity);
        let set = NodeSet::of(capacity, known);
        self.config.quorums.family(mode).contains_quorum(&set)
    }

    /// Takes in what a client says about its hold; the fact that follows from it, and what is
    /// wrong with it by itself.
    pub(super) fn client(
        &mut self,
        line: &ClientLine,
        holder: Holder,
    ) -> (Option<Fact>, Option<Violation>) {
        self.at = line.at;
        let fact = match line.event {
            ClientWord::Asked => Fact::Asked { holder },
            ClientWord::Released => Fact::Released { holder },
            ClientWord::Lost => Fact::Lost { holder },
            ClientWord::Ended => Fact::Ended { holder },
            ClientWord::Vanished => Fact::Vanished { holder },
            ClientWord::Acted => Fact::Acted {
                group: self.group_of(&holder),
                token: token_of(line),
                admitted: line.admitted.unwrap_or_default(),
                holder,
            },
            ClientWord::Entered => self.entered(line, &holder),
            ClientWord::Moved => {
                let Some(fact) = self.moved(line, &holder) else {
                    // It was told of a loss before it could say this.
                    return (None, None);
                };
                fact
            }
        };
        let wrong = match &fact {
            Fact::Entered { holder, .. } | Fact::Moved { holder, .. } => {
                self.without_quorum(holder)
            }
            _ => None,
        };
        (Some(fact), wrong)
    }

    fn entered(&mut self, line: &ClientLine, holder: &Holder) -> Fact {
        self.leave(holder);
        let members = members_of(line);
        let mode = line.wants().unwrap_or(Mode::Exclusive);
        let asks = members.iter().filter_map(|member| self.asks.get(member));
        let mut own = asks.filter(|ask| ask.name == holder.name && ask.mode == mode);
        let ask = own.next().cloned();
        let group = match (&mode, &ask) {
            (Mode::Shared, _) => Group::Shared,
            (Mode::Group(name), _) => Group::Named(name.clone()),
            (Mode::Exclusive, Some(ask)) => ask.group(),
            (Mode::Exclusive, None) => own_group(holder),
        };
        let request = ask.as_deref().map(request_of);
        if let Some(request) = request {
            let holders = self.holders.entry(request).or_default();
            holders.push(holder.clone());
        }
        let belief = Belief {
            until: line.until.unwrap_or_default(),
            token: token_of(line),
            mode,
            members: members.clone(),
            request,
            gave_up: false,
        };
        self.beliefs.insert(holder.clone(), belief);
        self.groups.insert(holder.clone(), group.clone());
        Fact::Entered {
            holder: holder.clone(),
            group,
            token: token_of(line),
            members,
        }
    }

    fn moved(&mut self, line: &ClientLine, holder: &Holder) -> Option<Fact> {
        let belief = self.beliefs.get_mut(holder)?;
        if let Some(until) = line.until {
            belief.until = until;
            belief.gave_up = false;
        }
        if !line.members.is_empty() {
            belief.members = members_of(line);
        }
        if let Some(token) = line.token {
            belief.token = Token(token);
        }
        Some(Fact::Moved {
            holder: holder.clone(),
            token: belief.token,
            members: belief.members.clone(),
        })
    }

    /// What is wrong if a holder believes although its request has no quorum of grants.
    fn without_quorum(&self, holder: &Holder) -> Option<Violation> {
        let belief = self.beliefs.get(holder)?;
        if belief.until <= self.at || belief.members.is_empty() {
            return None;
        }
        let named = self.quorum(&belief.mode, belief.members.iter().map(|(node, _)| *node));
        let live = belief.request.is_none_or(|request| {
            self.excused.contains(&request) || self.suffice(request, &belief.mode, None)
        });
        if named && live {
            return None;
        }
        let grants = if named {
            "the grants it still has"
        } else {
            "its members"
        };
        let Holder {
            client,
            life,
            key,
            name,
        } = holder;
        Some(Violation {
            property: super::QUORUM,
            at: True(self.at),
            what: format!(
                "client {client} (life {life}, key {key}, lock {name}) holds on, but {grants} \
                 contain no quorum"
            ),
        })
    }

    fn group_of(&self, holder: &Holder) -> Group {
        let known = self.groups.get(holder).cloned();
        known.unwrap_or_else(|| own_group(holder))
    }

    /// The acquisitions of one life of a client that are not over.
    pub(super) fn open(&self, client: u32, life: u32) -> Vec<Holder> {
        let held = self.beliefs.keys();
        let all = held.chain(self.waiting.iter());
        all.filter(|holder| holder.client == client && holder.life == life)
            .cloned()
            .collect()
    }

    fn belief(&self, holder: &Holder) -> Option<&Belief> {
        self.beliefs
            .get(holder)
            .filter(|belief| !belief.gave_up && belief.until > 0)
    }
}

impl Eyes for Past {
    fn believes_until(&self, holder: &Holder) -> Option<True> {
        self.belief(holder).map(|belief| True(belief.until))
    }

    fn view(&self, node: NodeId, name: &Name) -> Option<LockView> {
        let entries = self.granted.get(&(node, name.clone()))?;
        let mut view = LockView::default();
        if self.passing == Some(node)
            && let Some((ask, _)) = entries.values().next()
        {
            view.entries.push(entry(&somebody_else(ask), GrantNo(0)));
        }
        let granted = entries.values().map(|(ask, grant)| entry(ask, *grant));
        view.entries.extend(granted);
        Some(view)
    }

    fn fresh_members(&self, holder: &Holder) -> Vec<(NodeId, GrantNo)> {
        let Some(belief) = self.belief(holder) else {
            return Vec::new();
        };
        let Some(request) = belief.request.filter(|_| belief.until > self.at) else {
            return Vec::new();
        };
        let live = self.live.get(&request).into_iter().flatten();
        live.map(|(node, grant)| (*node, *grant))
            .filter(|(node, _)| !self.suffice(request, &belief.mode, Some(*node)))
            .collect()
    }

    fn awake_since(&self, _: &Holder) -> Option<True> {
        // The system may keep any process waiting, so nobody can be blamed for hearing late.
        None
    }

    fn serving(&self, node: NodeId) -> bool {
        self.serving.get(&node).copied().unwrap_or_default()
    }

    fn waiting(&self) -> Vec<Holder> {
        self.waiting.iter().cloned().collect()
    }

    fn kept(&self, _: NodeId) -> Option<[usize; 4]> {
        None
    }

    fn tokens(&self, _: NodeId) -> Option<(Token, Wall)> {
        None
    }

    fn wall(&self, _: NodeId) -> Option<Wall> {
        None
    }

    fn nodes(&self) -> usize {
        self.config.quorums.nodes()
    }
}

fn request_of(ask: &Ask) -> RequestKey {
    (ask.session, ask.request)
}

fn token_of(line: &ClientLine) -> Token {
    Token(line.token.unwrap_or_default())
}

fn members_of(line: &ClientLine) -> Vec<(NodeId, GrantNo)> {
    let members = line.members.iter();
    members
        .map(|(node, grant)| (NodeId(node.saturating_sub(1)), GrantNo(*grant)))
        .collect()
}

/// The acquisition that a line is about.
pub(super) fn holder_of(line: &ClientLine) -> Option<Holder> {
    Some(Holder {
        client: line.client,
        life: line.life,
        key: Key(line.key?),
        name: line.lock()?,
    })
}

/// A group that nobody else is in, for an exclusive holder of whom no grant is known.
fn own_group(holder: &Holder) -> Group {
    let client = u128::from(holder.client) << 32 | u128::from(holder.life);
    Group::Request(SessionId(1 << 127 | client), RequestNo(holder.key.0))
}

fn entry(ask: &Arc<Ask>, grant: GrantNo) -> EntryView {
    EntryView {
        ask: ask.clone(),
        grant,
        limit: Token(0),
        inquired: false,
        inside: false,
        entered: None,
    }
}

/// The better request of another group of which the node only said that it waits.
fn somebody_else(ask: &Ask) -> Arc<Ask> {
    Arc::new(Ask {
        mode: Mode::Exclusive,
        session: SessionId(u128::MAX),
        bond: Bond::Attached,
        ..ask.clone()
    })
}
