//! The client's machine against the nodes': how much an operation costs when all is well, and
//! that operations of many clients come out in one order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::fault::{Aborts, Faults};
use conclave_protocol::id::{ClientId, Key, LinkId, Name, NodeId};
use conclave_protocol::keeper::client::{ClientEvent, ClientInput, Command};
use conclave_protocol::keeper::{
    Answer, Ask, Caller, Keeper, KeeperClient, KeeperConfig, KeeperInput, KeeperStart,
};
use conclave_protocol::lease::{LeaseConfig, Terms};
use conclave_protocol::lock::{Access, Who};
use conclave_protocol::object::kinds::{Code, Typed, counter, result};
use conclave_protocol::object::{Kind, ObjectAsk, ObjectConfig, ObjectRefusal, ObjectTell, Wish};
use conclave_protocol::{Effects, Instant, Machine, Now, Wall};

/// Nodes and clients that hear each other after a while.
struct Pair {
    now: u64,
    lag: Duration,
    nodes: Vec<Keeper>,
    clients: Vec<KeeperClient>,
    /// What is on its way, by the time of its arrival and the order of sending.
    mail: BTreeMap<(u64, u64), Mail>,
    sent: u64,
    durable: Vec<u64>,
    events: Vec<(usize, u64, ClientEvent)>,
}

enum Mail {
    ToNode(usize, usize, Ask),
    ToClient(usize, usize, Answer),
}

impl Pair {
    fn new(nodes: usize, liars: usize, clients: usize) -> Self {
        let faults = Faults::new(nodes, liars).expect("enough nodes");
        let mut lease = LeaseConfig::new(faults);
        lease.delay = Duration::from_millis(50);
        let lease = Arc::new(lease);
        let objects = ObjectConfig::new(lease.clone(), Aborts::Vouched).ok();
        let objects = objects.map(Arc::new);
        let config = KeeperConfig {
            lease: lease.clone(),
            objects: objects.clone(),
            access: Arc::new(Access::default()),
            verifier: None,
            seed: 7,
        };
        let mut pair = Self {
            now: 1_000_000_000_000,
            lag: Duration::from_millis(1),
            nodes: Vec::new(),
            clients: Vec::new(),
            mail: BTreeMap::new(),
            sent: 0,
            durable: vec![0; nodes],
            events: Vec::new(),
        };
        for _ in 0..nodes {
            let mut out = Effects::new();
            let now = pair.clock();
            let keeper = Keeper::new(config.clone(), KeeperStart::Fresh, now, &mut out);
            pair.nodes.push(keeper);
        }
        for client in 0..clients {
            let id = ClientId(client as u128 + 1);
            let seed = [client as u8 + 1; 32];
            let machine = KeeperClient::new(lease.clone(), objects.clone(), id, seed);
            pair.clients.push(machine);
            for node in 0..nodes {
                let who = Who {
                    principal: "ann".into(),
                    gateway: false,
                };
                let opened = KeeperInput::Opened(LinkId(client as u64), Caller { who, node: None });
                pair.node(node, opened);
                pair.tell(client, ClientInput::Opened(NodeId::at(node)));
            }
        }
        pair
    }

    fn clock(&self) -> Now {
        Now {
            mono: Instant::from_nanos(self.now),
            wall: Wall(self.now / 1000),
        }
    }

    fn post(&mut self, mail: Mail) {
        self.sent += 1;
        let at = self.now + self.lag.as_nanos() as u64;
        self.mail.insert((at, self.sent), mail);
    }

    fn node(&mut self, node: usize, input: KeeperInput) {
        let mut out = Effects::new();
        let now = self.clock();
        self.nodes[node].handle(now, input, &mut out);
        let written = out.persist.len() as u64;
        for envelope in out.send_now.drain(..).chain(out.send_durable.drain(..)) {
            self.post(Mail::ToClient(
                node,
                envelope.to.0 as usize,
                envelope.message,
            ));
        }
        if written > 0 {
            self.durable[node] += written;
            let durable = self.durable[node];
            self.node(node, KeeperInput::Durable(durable));
        }
    }

    fn tell(&mut self, client: usize, input: ClientInput) {
        let mut out = Effects::new();
        let now = self.clock();
        self.clients[client].handle(now, input, &mut out);
        for envelope in out.send_now.drain(..) {
            self.post(Mail::ToNode(client, envelope.to.index(), envelope.message));
        }
        for event in out.events.drain(..) {
            self.events.push((client, self.now, event));
        }
    }

    /// Lets everything happen until nothing is left to do, or the time is over.
    fn run(&mut self, limit: Duration) {
        let end = self.now + limit.as_nanos() as u64;
        loop {
            let mail = self.mail.first_key_value().map(|((at, _), _)| *at);
            let wakes = self.clients.iter().map(Machine::next_wake);
            let wakes = wakes.chain(self.nodes.iter().map(Machine::next_wake));
            let wake = wakes.flatten().map(|wake| wake.at.nanos()).min();
            let Some(next) = mail.into_iter().chain(wake).min() else {
                return;
            };
            if next > end {
                return;
            }
            self.now = self.now.max(next);
            if mail == Some(next)
                && let Some((_, mail)) = self.mail.pop_first()
            {
                match mail {
                    Mail::ToNode(client, node, ask) => {
                        self.node(node, KeeperInput::Receive(LinkId(client as u64), ask));
                    }
                    Mail::ToClient(node, client, answer) => {
                        self.tell(client, ClientInput::Heard(NodeId::at(node), answer));
                    }
                }
                continue;
            }
            for client in 0..self.clients.len() {
                self.tell(client, ClientInput::Wake);
            }
            for node in 0..self.nodes.len() {
                self.node(node, KeeperInput::Wake);
            }
        }
    }

    fn add(&mut self, client: usize, key: u64, number: i64) {
        let kind: Arc<dyn Kind> = Arc::new(Typed(counter::Counter));
        let command = Command::Submit {
            object: Name::new("hits"),
            kind,
            wish: Wish::Operation(counter::Op::Add(number).encode().into()),
        };
        self.tell(client, ClientInput::Do(Key(key), command));
    }
}

fn results(pair: &Pair) -> Vec<i64> {
    let done = pair.events.iter().filter_map(|(_, _, event)| match event {
        ClientEvent::Done { result: bytes, .. } => {
            Some(result::<i64>(bytes).expect("a counter's answer"))
        }
        ClientEvent::Failed { .. } => panic!("{event:?}"),
        _ => None,
    });
    done.collect()
}

fn round_trips(pair: &Pair, began: u64) -> f64 {
    let done = pair.events.iter().rev();
    let mut done = done.filter(|(_, _, event)| matches!(event, ClientEvent::Done { .. }));
    let (_, at, _) = done.next().expect("something was done");
    (*at - began) as f64 / (2.0 * pair.lag.as_nanos() as f64)
}

#[test]
fn an_operation_of_a_fresh_client_takes_one_contend_and_four_round_trips() {
    let mut pair = Pair::new(7, 1, 2);
    for (client, key) in [(0, 1), (1, 2), (0, 3)] {
        let began = pair.now;
        let contends = pair.clients[client].counters().contends;
        pair.add(client, key, 1);
        pair.run(Duration::from_secs(5));
        assert_eq!(results(&pair).len(), key as usize);
        assert!(
            (round_trips(&pair, began) - 4.0).abs() < 0.01,
            "{}",
            round_trips(&pair, began)
        );
        let counters = pair.clients[client].counters();
        assert_eq!(counters.contends - contends, 1);
        assert_eq!(
            (counters.outranked, counters.timeouts, counters.alarms),
            (0, 0, 0)
        );
    }
    assert_eq!(results(&pair), [1, 2, 3]);
}

#[test]
fn one_winner_serves_all_who_wait() {
    let clients = 20;
    let mut pair = Pair::new(7, 1, clients);
    for client in 0..clients {
        pair.add(client, client as u64, 1);
    }
    pair.run(Duration::from_mins(1));
    let mut sums = results(&pair);
    sums.sort_unstable();
    assert_eq!(sums, (1..=clients as i64).collect::<Vec<_>>());
    let commits = pair.clients.iter().map(|client| client.counters().commits);
    let commits: u64 = commits.sum();
    assert!(commits <= 2, "{commits} commits");
}

#[test]
fn callers_of_one_client_share_an_operation() {
    let mut pair = Pair::new(7, 1, 1);
    for key in 0..100 {
        pair.add(0, key, 1);
    }
    pair.run(Duration::from_secs(5));
    assert_eq!(results(&pair), (1..=100).collect::<Vec<_>>());
    assert_eq!(pair.clients[0].counters().commits, 2);
    assert_eq!(pair.clients[0].counters().contends, 1);
}

#[test]
fn a_read_takes_one_round_trip_when_nothing_changes() {
    let mut pair = Pair::new(7, 1, 2);
    pair.add(0, 1, 41);
    pair.run(Duration::from_secs(5));
    let began = pair.now;
    let kind: Arc<dyn Kind> = Arc::new(Typed(counter::Counter));
    let spans = kind.reads(&counter::Op::Get.encode()).expect("a read");
    let command = Command::Read {
        object: Name::new("hits"),
        kind,
        spans,
    };
    pair.tell(1, ClientInput::Do(Key(9), command));
    pair.run(Duration::from_secs(5));
    let read = pair.events.iter().find_map(|(_, at, event)| match event {
        ClientEvent::Read { version, cells, .. } => Some((*at, *version, cells.clone())),
        _ => None,
    });
    let (at, version, cells) = read.expect("an answer");
    assert_eq!(at - began, 2 * pair.lag.as_nanos() as u64);
    assert_eq!(version, 1);
    assert_eq!(cells[0][0].1[..], 41_i64.to_be_bytes());
}

#[test]
fn a_lease_takes_one_round_trip_and_goes_to_the_next_when_it_is_given_back() {
    let mut pair = Pair::new(4, 1, 2);
    let lease = |wait| Command::Lease {
        name: Name::new("job"),
        terms: Terms::new(Duration::from_secs(5)),
        wait,
    };
    let began = pair.now;
    pair.tell(0, ClientInput::Do(Key(1), lease(None)));
    pair.run(Duration::from_millis(10));
    pair.tell(1, ClientInput::Do(Key(2), lease(Some(Duration::ZERO))));
    pair.run(Duration::from_millis(200));
    let held = |pair: &Pair| -> Vec<(u64, u64)> {
        let held = pair.events.iter().filter_map(|(_, at, event)| match event {
            ClientEvent::Held { token, .. } => Some((*at, token.0)),
            _ => None,
        });
        held.collect()
    };
    let first = held(&pair);
    assert_eq!(first.len(), 1);
    assert_eq!(first[0].0 - began, 2 * pair.lag.as_nanos() as u64);
    let failed = |(_, _, event): &(usize, u64, ClientEvent)| {
        matches!(event, ClientEvent::Failed { key: Key(2), .. })
    };
    assert!(pair.events.iter().any(failed));
    pair.tell(0, ClientInput::End(Key(1)));
    pair.tell(1, ClientInput::Do(Key(3), lease(None)));
    pair.run(Duration::from_secs(2));
    let both = held(&pair);
    assert_eq!(both.len(), 2);
    assert!(both[1].1 > both[0].1, "tokens grow");
}

#[test]
fn one_node_alone_cannot_end_a_watch() {
    let mut pair = Pair::new(7, 1, 1);
    let command = Command::Watch {
        object: Name::new("hits"),
        kind: Arc::new(Typed(counter::Counter)),
    };
    pair.tell(0, ClientInput::Do(Key(1), command));
    let mut tickets = pair.mail.values().filter_map(|mail| match mail {
        Mail::ToNode(_, _, Ask::Object(_, ObjectAsk::Watch { ticket })) => Some(*ticket),
        _ => None,
    });
    let ticket = tickets.next().expect("a question");
    let gone = |node| {
        let why = ObjectRefusal::NotPermitted;
        let tell = ObjectTell::Gone { ticket, why };
        ClientInput::Heard(NodeId::at(node), Answer::Object(Name::new("hits"), tell))
    };
    let failed = |pair: &Pair| {
        let failed = |(_, _, event): &(_, _, ClientEvent)| {
            matches!(event, ClientEvent::Failed { key: Key(1), .. })
        };
        pair.events.iter().any(failed)
    };
    pair.tell(0, gone(3));
    pair.tell(0, gone(3));
    assert!(!failed(&pair), "b nodes may lie");
    pair.tell(0, gone(4));
    assert!(failed(&pair), "one of two tells the truth");
}
