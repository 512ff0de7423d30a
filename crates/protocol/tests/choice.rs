//! Which quorum is asked: that of the lock's name, and what round trips may change about it.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod harness;

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::{ClientId, Incarnation, Key, Name, NodeId};
use conclave_protocol::lock::{
    Acquire, Choice, ClientEffects, ClientEvent, ClientInput, Config, LockClient, Message, Mode,
    Policy,
};
use conclave_protocol::{Instant, Machine, Now, Wall};
use conclave_quorum::NodeSet;

/// A client whose connections to the nodes have these round trips, in milliseconds.
struct Traveller {
    client: LockClient,
    config: Arc<Config>,
    now: Now,
    key: u64,
}

impl Traveller {
    fn new(choice: Choice, trips: &[u64]) -> Self {
        let mut config = harness::config("majority(5)", &[]);
        // One lock that is chosen by distance makes the client look around.
        let near = |choice| Policy {
            choice,
            ..Policy::default()
        };
        config.policies.push((Vec::new(), near(choice)));
        config
            .policies
            .push((b"first".to_vec(), near(Choice::Near)));
        let config = Arc::new(config);
        let mut it = Self {
            client: LockClient::new(config.clone(), ClientId(1), 7),
            config,
            now: Now {
                mono: Instant::from_nanos(1_000_000_000),
                wall: Wall(1_000_000_000_000),
            },
            key: 0,
        };
        let out = it.ask("first");
        let mut conns = Vec::new();
        for event in out.events {
            if let ClientEvent::Connect(node, conn) = event {
                it.step(ClientInput::Opened(node, conn));
                conns.push((trips[node.index()], node, conn));
            }
        }
        assert_eq!(conns.len(), trips.len(), "it looks at all nodes");
        conns.sort_unstable();
        let begun = it.now.mono;
        for (trip, node, conn) in conns {
            it.now.mono = begun + Duration::from_millis(trip);
            let welcome = Message::Welcome {
                node,
                incarnation: Incarnation(1),
                clock: it.now.wall,
            };
            it.step(ClientInput::Receive(node, conn, welcome));
        }
        it
    }

    fn step(&mut self, input: ClientInput) -> ClientEffects {
        let mut out = ClientEffects::new();
        self.client.handle(self.now, input, &mut out);
        out
    }

    fn ask(&mut self, name: &str) -> ClientEffects {
        self.key += 1;
        let wish = Acquire::new(Name::new(name), Mode::Exclusive, Duration::from_secs(10));
        self.step(ClientInput::Acquire(Key(self.key), wish))
    }

    /// The nodes that a request for this lock asks.
    fn asks(&mut self, name: &str) -> Vec<u32> {
        let sent = self.ask(name).send_now;
        let asked = sent
            .iter()
            .filter(|envelope| matches!(envelope.message, Message::Request { .. }));
        let mut asked: Vec<u32> = asked.map(|envelope| envelope.to.0).collect();
        asked.sort_unstable();
        asked
    }

    /// The quorum of the lock's name.
    fn named(&self, name: &str) -> Vec<u32> {
        let nobody = NodeSet::new(self.config.quorums.nodes());
        let seed = Name::new(name).seed();
        let quorum = self.config.quorums.pick(&Mode::Exclusive, seed, &nobody);
        quorum.iter().map(|node| node as u32).collect()
    }
}

fn names() -> impl Iterator<Item = String> {
    (0..40).map(|number| format!("lock {number}"))
}

#[test]
fn the_name_decides_whatever_the_distance() {
    let mut here = Traveller::new(Choice::Shared, &[1, 1, 1, 30, 30]);
    let mut there = Traveller::new(Choice::Shared, &[30, 30, 30, 1, 1]);
    for name in names() {
        let named = here.named(&name);
        assert_eq!(here.asks(&name), named);
        assert_eq!(there.asks(&name), named);
    }
}

#[test]
fn near_nodes_are_asked_first_where_the_policy_says_so() {
    let mut here = Traveller::new(Choice::Near, &[1, 1, 1, 30, 30]);
    let mut there = Traveller::new(Choice::Near, &[30, 30, 30, 1, 1]);
    let mut thirds = Vec::new();
    for name in names() {
        assert_eq!(here.asks(&name), [0, 1, 2]);
        let asked = there.asks(&name);
        assert_eq!(asked[1..], [3, 4]);
        thirds.push(asked[0]);
    }
    thirds.sort_unstable();
    thirds.dedup();
    assert_eq!(thirds, [0, 1, 2], "equal nodes share the load");
    let mut even = [1, 2].map(|trip| Traveller::new(Choice::Near, &[1, trip, 2, 1, trip]));
    for name in names() {
        let [one, other] = &mut even;
        assert_eq!(one.asks(&name), other.asks(&name), "near enough is equal");
    }
}

#[test]
fn a_slow_node_is_left_out_and_the_others_keep_their_quorums() {
    let mut client = Traveller::new(Choice::Shared, &[1, 1, 200, 1, 1]);
    let health = client.client.nodes();
    assert!(health[2].slow && health[2].connected && !health[2].avoided);
    assert_eq!(health[2].round_trip, Some(Duration::from_millis(200)));
    let (mut kept, mut left) = (0, 0);
    for name in names() {
        let (named, asked) = (client.named(&name), client.asks(&name));
        if named.contains(&2) {
            assert!(!asked.contains(&2), "{name}: {asked:?}");
            left += 1;
        } else {
            assert_eq!(asked, named);
            kept += 1;
        }
    }
    assert!(kept > 5 && left > 5, "{kept} {left}");
}

#[test]
fn a_replacement_is_near() {
    // Far nodes are asked as the name says, until one is in trouble.
    let mut client = Traveller::new(Choice::Shared, &[1, 1, 1, 30, 30]);
    let conn = conclave_protocol::id::ConnNo(1);
    client.step(ClientInput::Closed(NodeId(3), conn));
    for name in names() {
        let (named, asked) = (client.named(&name), client.asks(&name));
        if named.contains(&3) {
            assert_eq!(asked, [0, 1, 2], "{name}");
        } else {
            assert_eq!(asked, named, "{name}");
        }
    }
}
