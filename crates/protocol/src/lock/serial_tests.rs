//! The serial arbiter and requester in a world of their own: nodes, requesters and channels that
//! keep their order, driven by hand or through every interleaving.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use conclave_quorum::NodeSet;

use super::api::End;
use super::config::{Policy, Protocol};
use super::message::{GrantRef, Message, Refusal, Travel};
use super::mode::{Ask, Bond, Mode, Priority};
use super::plant::{Plant, Rules};
use super::serial::{Desk, Graves, Held, Ref, Serial, Step};
use super::serial_requester::{Outcome, SerialRequest};
use crate::id::{ClientId, GrantNo, Incarnation, Name, NodeId, RequestNo, SessionId, Token};
use crate::time::Instant;

const NODES: usize = 16;
const LIFE: Incarnation = Incarnation(7);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Place {
    Client(usize),
    Node(usize),
}

#[derive(Clone, Debug, Default, Hash)]
struct Node {
    lock: Serial,
    graves: Graves,
    grants: u64,
}

#[derive(Clone, Debug, Hash)]
struct Client {
    quorum: NodeSet,
    mode: Mode,
    requests: u64,
    request: Option<SerialRequest>,
    inside: bool,
    /// How often it may still ask, and cancel.
    asks: u32,
    cancels: u32,
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
            nodes: vec![Node::default(); NODES],
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
        let request = SerialRequest::new(ask, &client.quorum, Token(0));
        let (first, message) = request.travel().unwrap();
        client.request = Some(request);
        client.asks -= 1;
        self.send(Place::Client(who), Place::Node(first.index()), message);
    }

    fn end(&mut self, who: usize) {
        let client = &mut self.clients[who];
        let request = client.request.take().unwrap();
        let token = request.token();
        assert_eq!(token.is_some(), client.inside);
        client.inside = false;
        for node in request.route().iter() {
            let message = Message::Done {
                session: request.ask().session,
                request: request.ask().request,
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
        let current = current.filter(|current| current.ask().request == *request);
        let Some(current) = current else {
            return;
        };
        if let Outcome::Enter(_) = current.carried(grants, |_| Some(LIFE)) {
            client.inside = true;
        }
    }

    fn node_hears(&mut self, at: usize, message: Message) {
        let (policy, rules) = (self.policy, self.rules);
        let node = &mut self.nodes[at];
        let mut mint = |above: Token| {
            node.grants += 1;
            (GrantNo(node.grants), Token(above.0 + 1024))
        };
        let mut desk = Desk {
            node: NodeId::at(at),
            incarnation: LIFE,
            policy,
            rules,
            queue: 64,
            mint: &mut mint,
        };
        let mut steps = Vec::new();
        match message {
            Message::Travel(travel) => {
                let key = (travel.ask.session, travel.ask.request);
                if !node.graves.has(key) {
                    node.lock.travel(&mut desk, *travel, &mut steps).unwrap();
                }
            }
            Message::Done {
                session,
                request,
                token,
            } => {
                let key = (session, request);
                node.lock.done(&mut desk, key, token, &mut steps);
                if !rules.has(Plant::SerialUnlockWithoutRequest) {
                    node.graves
                        .bury(Instant::ZERO, key, Duration::from_mins(1), 1024);
                }
            }
            other => panic!("{other:?}"),
        }
        for step in steps {
            match step {
                Step::Forward(next, travel) => {
                    let message = Message::Travel(travel);
                    self.send(Place::Node(at), Place::Node(next.index()), message);
                }
                Step::Carried(ask, grants) => {
                    let message = Message::Carried {
                        session: ask.session,
                        request: ask.request,
                        grants,
                    };
                    let who = ask.session.0 as usize;
                    self.send(Place::Node(at), Place::Client(who), message);
                }
                _ => {}
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
        let (first, message) = world.clients[0].request.as_ref().unwrap().travel().unwrap();
        world.send(Place::Client(0), Place::Node(first.index()), message);
    }
    world.drain();
    assert_eq!(world.inside(), [0]);
    let grants: Vec<u64> = world.nodes.iter().map(|node| node.grants).collect();
    assert_eq!(grants[..3], [1, 1, 1]);
}

fn single(lock: &mut Serial, run: impl FnOnce(&mut Serial, &mut Desk<'_>, &mut Vec<Step>)) {
    let mut mint = |above: Token| (GrantNo(above.0 + 1), Token(above.0 + 10));
    let mut desk = Desk {
        node: NodeId(0),
        incarnation: LIFE,
        policy: Policy::default(),
        rules: Rules::default(),
        queue: 3,
        mint: &mut mint,
    };
    run(lock, &mut desk, &mut Vec::new());
}

fn travel_of(who: usize, mode: Mode) -> (Ref, Travel) {
    let ask = ask_of(who, RequestNo(1), mode);
    let key = (ask.session, ask.request);
    let travel = Travel {
        ask: Arc::new(ask),
        hint: Token(0),
        route: Arc::from([NodeId(0)]),
        grants: Vec::new(),
    };
    (key, travel)
}

#[test]
fn floors_rise_by_use_and_expiry_and_not_by_cancel() {
    for (why, floor) in [
        (End::Done(Token(4)), 4),
        (End::Cancelled, 0),
        (End::Expired, 10),
        (End::Lapsed, 10),
        (End::Forgotten, 10),
        (End::Revoked, 10),
    ] {
        let mut lock = Serial::default();
        let (key, travel) = travel_of(1, Mode::Exclusive);
        single(&mut lock, |lock, desk, steps| {
            lock.travel(desk, travel, steps).unwrap();
            lock.end(desk, key, why, steps);
        });
        assert_eq!(lock.floors().highest(), Token(floor), "{why:?}");
        let (next, travel) = travel_of(2, Mode::Exclusive);
        single(&mut lock, |lock, desk, steps| {
            lock.travel(desk, travel, steps).unwrap();
        });
        assert_eq!(lock.held(next).unwrap().floor, Token(floor), "{why:?}");
    }
}

#[test]
fn a_raise_counts_for_the_present_grant_only_and_is_never_taken_back() {
    let mut lock = Serial::default();
    let (key, travel) = travel_of(1, Mode::Exclusive);
    single(&mut lock, |lock, desk, steps| {
        lock.travel(desk, travel, steps).unwrap();
    });
    let grant = lock.held(key).unwrap().grant;
    let named = |number: u64| GrantRef {
        session: key.0,
        request: key.1,
        grant: GrantNo(number),
    };
    assert_eq!(lock.raise(named(grant.0 + 1), Token(30)), None);
    assert_eq!(lock.raise(named(grant.0), Token(30)), Some(Token(30)));
    assert_eq!(lock.limit(), Token(30));
    let above = lock.entered(named(grant.0), Token(31));
    assert_eq!(above, Err(Refusal::TokenAboveLimit));
    lock.entered(named(grant.0), Token(5)).unwrap();
    assert_eq!(lock.limit(), Token(30), "named by the raise");
    single(&mut lock, |lock, desk, steps| {
        lock.done(desk, key, Some(Token(5)), steps);
    });
    assert_eq!(lock.floors().highest(), Token(30));
}

#[test]
fn an_expired_session_frees_the_lock_for_the_next() {
    let mut lock = Serial::default();
    let (one, first) = travel_of(1, Mode::Exclusive);
    let (two, second) = travel_of(2, Mode::Exclusive);
    let (_, third) = travel_of(3, Mode::Exclusive);
    let (_, fourth) = travel_of(4, Mode::Exclusive);
    single(&mut lock, |lock, desk, steps| {
        lock.travel(desk, first, steps).unwrap();
        lock.travel(desk, second, steps).unwrap();
        lock.travel(desk, third, steps).unwrap();
        let full = lock.travel(desk, fourth, steps);
        assert_eq!(full, Err(Refusal::QueueFull));
        assert_eq!(lock.held(two), None);
        lock.drop_session(desk, one.0, End::Expired, steps);
    });
    assert!(lock.held(one).is_none());
    assert_eq!(lock.held(two).unwrap().floor, Token(10));
}

#[test]
fn an_unfit_route_is_refused() {
    for route in [vec![], vec![NodeId(1)], vec![NodeId(1), NodeId(0)]] {
        let mut lock = Serial::default();
        let (_, mut travel) = travel_of(1, Mode::Exclusive);
        travel.route = route.into();
        single(&mut lock, |lock, desk, steps| {
            assert_eq!(lock.travel(desk, travel, steps), Err(Refusal::Unfit));
        });
        assert!(lock.is_empty());
    }
}

#[test]
fn a_restored_grant_keeps_others_out() {
    let mut lock = Serial::default();
    let held = Held {
        grant: GrantNo(3),
        floor: Token(0),
        limit: Token(5),
        named: Token(5),
        entered: Some(Token(5)),
    };
    assert!(lock.restore(&travel_of(1, group("g")).1.ask, held));
    assert!(lock.restore(&travel_of(2, group("g")).1.ask, held));
    assert!(!lock.restore(&travel_of(3, group("h")).1.ask, held));
    let (key, travel) = travel_of(3, group("h"));
    single(&mut lock, |lock, desk, steps| {
        lock.travel(desk, travel, steps).unwrap();
        assert_eq!(lock.held(key), None);
        lock.drop_session(desk, SessionId(1), End::Expired, steps);
        assert_eq!(lock.held(key), None);
        lock.drop_session(desk, SessionId(2), End::Expired, steps);
        assert_eq!(lock.held(key).unwrap().floor, Token(5));
    });
}

#[test]
fn graves_are_bounded_in_number_and_time() {
    let mut graves = Graves::default();
    let key = |number: u64| (SessionId(1), RequestNo(number));
    let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
    for number in 0..5 {
        graves.bury(at(number), key(number), Duration::from_mins(1), 3);
    }
    assert_eq!(graves.len(), 3);
    assert!(!graves.has(key(1)) && graves.has(key(2)) && graves.has(key(4)));
    graves.sweep(at(63));
    assert!(!graves.has(key(3)) && graves.has(key(4)));
}
