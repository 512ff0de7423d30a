//! The serial arbiter in a world of its own: nodes, plain requesters and channels that keep their
//! order, driven by hand or through every interleaving.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use conclave_quorum::NodeSet;

use super::arbiter::{Arbiter, Entry, Reserve, Scope, Step};
use super::config::{Policy, Protocol};
use super::floor::Floors;
use super::message::{Message, Travel};
use super::mode::{Ask, Bond, Mode, Priority};
use super::plant::{Plant, Rules};
use super::serial::{Onward, Way, is_route};
use crate::id::{ClientId, GrantNo, Incarnation, Name, NodeId, RequestNo, SessionId, Token};

const NODES: usize = 16;
const LIFE: Incarnation = Incarnation(7);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Place {
    Client(usize),
    Node(usize),
}

#[derive(Clone, Debug, Hash)]
struct Node {
    lock: Arbiter,
    ended: BTreeSet<(SessionId, RequestNo)>,
    last: GrantNo,
}

impl Node {
    fn new() -> Self {
        Self {
            lock: Arbiter::new(Floors::default()),
            ended: BTreeSet::new(),
            last: GrantNo(0),
        }
    }

    fn travel(&mut self, travel: Travel) -> bool {
        let Travel {
            ask,
            hint,
            route,
            grants,
        } = travel;
        let before = grants;
        if self.ended.contains(&(ask.session, ask.request)) {
            return false;
        }
        if let Some(entry) = self.lock.get_mut(ask.session, ask.request) {
            entry.way.as_mut().unwrap().before = before;
            return entry.grant.is_some();
        }
        let mut entry = Entry::new(ask, hint, false, 0);
        entry.way = Some(Box::new(Way {
            route,
            before,
            seen: false,
        }));
        self.lock.insert(entry);
        false
    }

    fn done(&mut self, key: (SessionId, RequestNo), token: Option<Token>, rules: Rules) {
        let literal = rules.has(Plant::SerialUnlockWithoutRequest);
        let entries = self.lock.entries().iter();
        let mut keys = vec![key];
        if literal {
            let own = entries.filter(|entry| entry.ask.session == key.0);
            keys = own.map(|entry| (key.0, entry.ask.request)).collect();
        } else {
            self.ended.insert(key);
        }
        for (session, request) in keys {
            let removed = self.lock.remove(session, request);
            if let (Some(entry), Some(token)) = (removed, token) {
                self.lock.floors.record(&entry.ask.group(), token);
            }
        }
    }
}

#[derive(Clone, Debug, Hash)]
struct Client {
    quorum: NodeSet,
    mode: Mode,
    requests: u64,
    request: Option<Request>,
    inside: bool,
    /// How often it may still ask, and cancel.
    asks: u32,
    cancels: u32,
}

#[derive(Clone, Debug, Hash)]
struct Request {
    ask: Arc<Ask>,
    route: Arc<[NodeId]>,
    token: Option<Token>,
}

impl Request {
    fn travel(&self) -> (NodeId, Message) {
        let travel = Travel {
            ask: self.ask.clone(),
            hint: Token(0),
            route: self.route.clone(),
            grants: Vec::new(),
        };
        (self.route[0], Message::Travel(Box::new(travel)))
    }
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Ask(usize),
    Leave(usize),
    Cancel(usize),
    Deliver(Place, Place),
}

#[derive(Clone, Debug)]
struct World {
    nodes: Vec<Node>,
    clients: Vec<Client>,
    wires: BTreeMap<(Place, Place), VecDeque<Message>>,
    policy: Policy,
    rules: Rules,
    /// All requests of a client have the same number, as if there were none.
    unnumbered: bool,
}

impl World {
    fn new(clients: &[(&[usize], Mode)]) -> Self {
        let clients = clients.iter().map(|(quorum, mode)| Client {
            quorum: NodeSet::of_numbers(NODES, quorum.iter().copied()),
            mode: mode.clone(),
            requests: 0,
            request: None,
            inside: false,
            asks: u32::MAX,
            cancels: 0,
        });
        Self {
            nodes: vec![Node::new(); NODES],
            clients: clients.collect(),
            wires: BTreeMap::new(),
            policy: Policy {
                protocol: Protocol::Serial,
                ..Policy::default()
            },
            rules: Rules::default(),
            unnumbered: false,
        }
    }

    fn ask(&mut self, who: usize) {
        let unnumbered = self.unnumbered;
        let client = &mut self.clients[who];
        client.requests += 1;
        let number = if unnumbered { 1 } else { client.requests };
        let request = RequestNo(number);
        let ask = Arc::new(ask_of(who, request, client.mode.clone()));
        let request = Request {
            ask,
            route: client.quorum.iter().map(NodeId::at).collect(),
            token: None,
        };
        let (first, message) = request.travel();
        client.request = Some(request);
        client.asks -= 1;
        self.send(Place::Client(who), Place::Node(first.index()), message);
    }

    fn end(&mut self, who: usize) {
        let client = &mut self.clients[who];
        let request = client.request.take().unwrap();
        let token = request.token;
        assert_eq!(token.is_some(), client.inside);
        client.inside = false;
        for node in request.route.iter() {
            let message = Message::Done {
                session: request.ask.session,
                request: request.ask.request,
                token,
            };
            self.send(Place::Client(who), Place::Node(node.index()), message);
        }
    }

    fn send(&mut self, from: Place, to: Place, message: Message) {
        self.wires.entry((from, to)).or_default().push_back(message);
    }

    fn deliver(&mut self, from: Place, to: Place) {
        let wire = self.wires.get_mut(&(from, to)).unwrap();
        let message = wire.pop_front().unwrap();
        if wire.is_empty() {
            self.wires.remove(&(from, to));
        }
        match to {
            Place::Client(who) => self.client_hears(who, &message),
            Place::Node(at) => self.node_hears(at, message),
        }
    }

    fn client_hears(&mut self, who: usize, message: &Message) {
        let Message::Carried {
            request, grants, ..
        } = message
        else {
            panic!("{message:?}")
        };
        let client = &mut self.clients[who];
        let current = client.request.as_mut();
        let current = current.filter(|current| current.ask.request == *request);
        let Some(current) = current else {
            return;
        };
        let floor = grants.iter().map(|grant| grant.floor.0).max().unwrap();
        let limit = grants.iter().map(|grant| grant.limit.0).min().unwrap();
        assert!(floor < limit);
        current.token = Some(Token(floor + 1));
        client.inside = true;
    }

    fn node_hears(&mut self, at: usize, message: Message) {
        let node = &mut self.nodes[at];
        let mut granted = Vec::new();
        match message {
            Message::Travel(travel) => {
                let ask = travel.ask.clone();
                if node.travel(*travel) {
                    granted.push(ask);
                }
            }
            Message::Done {
                session,
                request,
                token,
            } => node.done((session, request), token, self.rules),
            other => panic!("{other:?}"),
        }
        let mut steps = Vec::new();
        node.lock.schedule(&mut Scope {
            policy: self.policy,
            rules: self.rules,
            reserve: Reserve {
                reach: Token(0),
                margin: 1024,
                ceiling: Token(0),
                bound: Token(u64::MAX),
            },
            last: &mut node.last,
            steps: &mut steps,
            now: crate::Instant::ZERO,
            removed: false,
        });
        for step in steps {
            let Step::Grant { ask, travels, .. } = step else {
                panic!("{step:?}")
            };
            assert!(travels);
            granted.push(ask);
        }
        for ask in granted {
            let entry = self.nodes[at].lock.get(ask.session, ask.request);
            match entry.unwrap().onward(NodeId::at(at), LIFE).unwrap() {
                Onward::Node(next, travel) => {
                    let message = Message::Travel(travel);
                    self.send(Place::Node(at), Place::Node(next.index()), message);
                }
                Onward::Home(grants) => {
                    let message = Message::Carried {
                        session: ask.session,
                        request: ask.request,
                        grants,
                    };
                    let who = ask.session.0 as usize;
                    self.send(Place::Node(at), Place::Client(who), message);
                }
            }
        }
    }

    /// Delivers everything, oldest wire first, and says how many messages and how many rounds
    /// of messages that took.
    fn drain(&mut self) -> (usize, usize) {
        let (mut messages, mut rounds) = (0, 0);
        while !self.wires.is_empty() {
            rounds += 1;
            for (from, to) in self.wires.keys().copied().collect::<Vec<_>>() {
                let many = self.wires[&(from, to)].len();
                for _ in 0..many {
                    messages += 1;
                    self.deliver(from, to);
                }
            }
        }
        (messages, rounds)
    }

    fn inside(&self) -> Vec<usize> {
        let who = 0..self.clients.len();
        who.filter(|who| self.clients[*who].inside).collect()
    }

    fn actions(&self) -> Vec<Action> {
        let mut all: Vec<Action> = Vec::new();
        for (who, client) in self.clients.iter().enumerate() {
            match (&client.request, client.inside) {
                (None, _) if client.asks > 0 => all.push(Action::Ask(who)),
                (Some(_), true) => all.push(Action::Leave(who)),
                (Some(_), false) if client.cancels > 0 => all.push(Action::Cancel(who)),
                _ => {}
            }
        }
        let wires = self.wires.keys();
        all.extend(wires.map(|(from, to)| Action::Deliver(*from, *to)));
        all
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Ask(who) => self.ask(who),
            Action::Leave(who) => self.end(who),
            Action::Cancel(who) => {
                self.clients[who].cancels -= 1;
                self.end(who);
            }
            Action::Deliver(from, to) => self.deliver(from, to),
        }
    }

    /// What is wrong with this state, if anything.
    fn wrong(&self) -> Option<&'static str> {
        let inside = self.inside();
        let modes: Vec<&Mode> = inside.iter().map(|who| &self.clients[*who].mode).collect();
        let alone = modes.contains(&&Mode::Exclusive) && modes.len() > 1;
        if alone || modes.windows(2).any(|pair| pair[0] != pair[1]) {
            return Some("exclusion");
        }
        if !self.actions().is_empty() {
            return None;
        }
        if self.clients.iter().any(|client| client.request.is_some()) {
            return Some("deadlock");
        }
        let left = self.nodes.iter().any(|node| !node.lock.is_empty());
        left.then_some("a lock is left behind")
    }

    fn print(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.nodes, &self.clients, &self.wires).hash(&mut hasher);
        hasher.finish()
    }
}

fn ask_of(who: usize, request: RequestNo, mode: Mode) -> Ask {
    Ask {
        name: Name::new("a"),
        mode,
        session: SessionId(who as u128),
        request,
        priority: Priority {
            t: request.0,
            client: ClientId(who as u128),
            request,
        },
        bond: Bond::Attached,
    }
}

/// Walks every interleaving; gives the number of states and all that went wrong.
fn explore(start: &World) -> (usize, BTreeSet<&'static str>) {
    let mut seen = BTreeSet::from([start.print()]);
    let mut open = vec![start.clone()];
    let mut wrong = BTreeSet::new();
    while let Some(world) = open.pop() {
        if let Some(what) = world.wrong() {
            wrong.insert(what);
            continue;
        }
        for action in world.actions() {
            let mut next = world.clone();
            next.act(action);
            if seen.insert(next.print()) {
                open.push(next);
            }
        }
    }
    (seen.len(), wrong)
}

/// Two requesters that share only their last member, each asking twice.
fn pair(modes: [Mode; 2], cancels: u32) -> World {
    let [one, two] = modes;
    let mut world = World::new(&[(&[1, 3], one), (&[2, 3], two)]);
    world.nodes.truncate(3);
    for client in &mut world.clients {
        client.asks = 2;
        client.cancels = cancels;
    }
    world
}

fn group(name: &str) -> Mode {
    Mode::group(name)
}

#[test]
fn costs_two_messages_per_member_and_one() {
    for quorum in [&[1][..], &[1, 3], &[2, 5, 7], &[1, 2, 3, 4, 9, 16]] {
        let size = quorum.len();
        let mut world = World::new(&[(quorum, Mode::Exclusive)]);
        world.ask(0);
        assert_eq!(world.drain(), (size + 1, size + 1));
        assert_eq!(world.inside(), [0]);
        world.end(0);
        assert_eq!(world.drain(), (size, 1));
        assert!(world.nodes.iter().all(|node| node.lock.is_empty()));
    }
}

#[test]
fn every_interleaving_keeps_exclusion_and_ends() {
    let pairs = [
        [group("g"), group("h")],
        [Mode::Exclusive, Mode::Exclusive],
        [group("g"), group("g")],
    ];
    for modes in pairs {
        for cancels in [0, 1] {
            let (states, wrong) = explore(&pair(modes.clone(), cancels));
            assert!(
                wrong.is_empty(),
                "{modes:?} with {cancels} cancels: {wrong:?}"
            );
            assert!(states > 100, "{states}");
        }
    }
}

/// Without request numbers a requester that asks again while its unlock is on its way counts as
/// locked, and then loses the lock to its own unlock.
#[test]
fn unnumbered_requests_break_exclusion() {
    let mut world = pair([group("g"), group("h")], 0);
    world.unnumbered = true;
    world.rules = Rules::planted(Plant::SerialUnlockWithoutRequest);
    let (_, wrong) = explore(&world);
    assert!(wrong.contains("exclusion"), "{wrong:?}");
}

/// With cancels an unlock may overtake the travelling request, and a late one ends the next.
#[test]
fn an_unlock_without_request_breaks_exclusion() {
    let mut world = pair([group("g"), group("h")], 1);
    world.rules = Rules::planted(Plant::SerialUnlockWithoutRequest);
    let (_, wrong) = explore(&world);
    assert!(wrong.contains("exclusion"), "{wrong:?}");
    assert!(wrong.contains("deadlock"), "{wrong:?}");
}

#[test]
fn a_request_that_comes_before_the_last_unlock_keeps_its_lock() {
    let mut world = World::new(&[(&[1, 3], group("g")), (&[2, 3], group("h"))]);
    world.ask(0);
    world.drain();
    world.end(0);
    world.ask(0);
    let (me, first, last) = (Place::Client(0), Place::Node(0), Place::Node(2));
    world.deliver(me, first);
    world.deliver(me, first);
    world.deliver(first, last);
    world.deliver(last, me);
    assert_eq!(world.inside(), [0], "the unlock is still on its way to n3");
    world.ask(1);
    world.drain();
    assert_eq!(world.inside(), [0]);
    world.end(0);
    world.drain();
    assert_eq!(world.inside(), [1]);
}

#[test]
fn a_cancel_that_overtakes_its_request_leaves_no_lock() {
    let mut world = World::new(&[(&[1, 3], group("g")), (&[2, 3], group("h"))]);
    world.ask(0);
    world.deliver(Place::Client(0), Place::Node(0));
    world.end(0);
    world.deliver(Place::Client(0), Place::Node(2));
    world.deliver(Place::Node(0), Place::Node(2));
    world.drain();
    assert!(world.nodes.iter().all(|node| node.lock.is_empty()));
    world.ask(1);
    world.drain();
    assert_eq!(world.inside(), [1]);
}

#[test]
fn all_members_enter_together_when_nobody_else_asks() {
    let many = vec![(&[1, 2, 3][..], group("g")); 10];
    let mut world = World::new(&many);
    for who in 0..10 {
        world.ask(who);
    }
    world.drain();
    assert_eq!(world.inside().len(), 10);
}

/// Only the reference's exit closes the door.
#[test]
fn the_door_stays_open_when_another_member_leaves() {
    let g = (&[1][..], group("g"));
    let mut world = World::new(&[g.clone(), g.clone(), g, (&[1], group("h"))]);
    for who in [0, 1, 3] {
        world.ask(who);
        world.drain();
    }
    world.end(1);
    world.drain();
    world.ask(2);
    world.drain();
    assert_eq!(world.inside(), [0, 2], "the reference is still inside");
    world.ask(1);
    world.drain();
    world.end(0);
    world.drain();
    world.ask(0);
    world.drain();
    assert_eq!(world.inside(), [1, 2], "the reference has left and h waits");
    world.end(1);
    world.end(2);
    world.drain();
    assert_eq!(world.inside(), [3]);
}

#[test]
fn the_door_opens_again_when_the_last_rival_cancels() {
    let g = (&[1][..], group("g"));
    let mut world = World::new(&[g.clone(), g.clone(), g, (&[1], group("h"))]);
    for who in [0, 1, 3] {
        world.ask(who);
        world.drain();
    }
    world.end(0);
    world.drain();
    world.ask(2);
    world.drain();
    assert_eq!(world.inside(), [1], "the door is closed");
    world.end(3);
    world.drain();
    assert_eq!(world.inside(), [1, 2]);
}

#[test]
fn at_most_so_many_pass_a_waiting_rival() {
    for bypass in [0, 1, 3] {
        let mut clients = vec![(&[1][..], group("g")); 8];
        clients.push((&[1], group("h")));
        let mut world = World::new(&clients);
        world.policy.max_bypass = bypass;
        world.ask(0);
        world.drain();
        world.ask(8);
        world.drain();
        for who in 1..8 {
            // A later number is a later time.
            world.clients[who].requests = 10;
            world.ask(who);
            world.drain();
        }
        assert_eq!(world.inside().len(), 1 + bypass as usize);
        for who in world.inside() {
            world.end(who);
        }
        world.drain();
        assert_eq!(world.inside(), [8]);
    }
}

#[test]
fn no_more_than_max_inside_hold_at_a_node() {
    let mut world = World::new(&vec![(&[1, 2][..], group("g")); 5]);
    world.policy.max_inside = 2;
    for who in 0..5 {
        world.ask(who);
    }
    world.drain();
    let first = world.inside();
    assert_eq!(first.len(), 2);
    world.end(first[0]);
    world.drain();
    assert_eq!(world.inside().len(), 2);
    let waiting = (0..5).find(|who| !world.inside().contains(who) && *who != first[0]);
    world.end(waiting.unwrap());
    world.drain();
    assert_eq!(world.inside().len(), 2, "a cancel frees no slot of another");
}

/// The same request again changes nothing and is sent on with the same grants: this mends what
/// was lost between nodes.
#[test]
fn a_request_sent_again_mends_a_loss() {
    let mut world = World::new(&[(&[1, 2, 3], group("g"))]);
    world.ask(0);
    world.deliver(Place::Client(0), Place::Node(0));
    world.wires.clear();
    for _ in 0..2 {
        let (first, message) = world.clients[0].request.as_ref().unwrap().travel();
        world.send(Place::Client(0), Place::Node(first.index()), message);
    }
    world.drain();
    assert_eq!(world.inside(), [0]);
    let grants: Vec<u64> = world.nodes.iter().map(|node| node.last.0).collect();
    assert_eq!(grants[..3], [1, 1, 1]);
}

#[test]
fn a_route_is_in_the_order_of_all_nodes() {
    let route = |nodes: &[u32]| nodes.iter().copied().map(NodeId).collect::<Vec<_>>();
    assert!(is_route(&route(&[0, 2, 5]), NodeId(2)));
    for unfit in [&[][..], &[1], &[5, 2], &[2, 2]] {
        assert!(!is_route(&route(unfit), NodeId(2)), "{unfit:?}");
    }
}
