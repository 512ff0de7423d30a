//! Nodes that pass a travelling request on, driven by hand.
#![allow(
    clippy::unwrap_used,
    reason = "a test helper that fails is a failed test"
)]

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::{ClientId, ConnNo, LinkId, Name, NodeId, RequestNo, SessionId, Token};
use conclave_protocol::lock::{
    Ask, Bond, Carried, Config, ConfigId, End, Entered, GrantRef, LockNode, Message, Mode,
    NodeEffects, NodeEvent, NodeInput, Policy, Priority, Protocol, Quorums, Refusal, Resume,
    SessionInfo, Start, Stored, To, Travel,
};
use conclave_protocol::{Effects, Instant, Machine, Now, Wall};
use conclave_quorum::build::build;

const TTL: Duration = Duration::from_secs(10);

struct Nodes {
    all: Vec<LockNode>,
    disks: Vec<Stored>,
    records: Vec<u64>,
    now: Now,
    /// What was said to each client, in order, by which node.
    heard: Vec<(usize, Message)>,
    events: Vec<(usize, NodeEvent)>,
    /// What is on its way between nodes.
    between: Vec<(usize, usize, Message)>,
}

impl Nodes {
    fn new() -> Self {
        let now = Now {
            mono: Instant::from_nanos(0),
            wall: Wall(1_000_000_000),
        };
        let mut nodes = Self {
            all: Vec::new(),
            disks: vec![Stored::default(); 3],
            records: vec![0; 3],
            now,
            heard: Vec::new(),
            events: Vec::new(),
            between: Vec::new(),
        };
        for at in 0..3 {
            let mut out = Effects::new();
            let id = NodeId::at(at);
            let node = LockNode::start(config(), id, 1, Start::Init, now, &mut out);
            nodes.all.push(node);
            nodes.take(at, out);
        }
        nodes
    }

    fn give(&mut self, at: usize, input: NodeInput) {
        let mut out = Effects::new();
        self.all[at].handle(self.now, input, &mut out);
        self.take(at, out);
    }

    fn take(&mut self, at: usize, out: NodeEffects) {
        let wrote = !out.persist.is_empty();
        self.records[at] += out.persist.len() as u64;
        for record in out.persist {
            self.disks[at].apply(record);
        }
        for envelope in out.send_now.into_iter().chain(out.send_durable) {
            match envelope.to {
                To::Link(_) => self.heard.push((at, envelope.message)),
                To::Node(to) => self.between.push((at, to.index(), envelope.message)),
            }
        }
        self.events
            .extend(out.events.into_iter().map(|event| (at, event)));
        if wrote {
            let records = self.records[at];
            self.give(at, NodeInput::Durable(records));
        }
    }

    fn pass(&mut self) {
        while !self.between.is_empty() {
            let (from, to, message) = self.between.remove(0);
            self.give(to, NodeInput::Peer(NodeId::at(from), message));
        }
    }

    /// A client connects to a node and says what it has.
    fn connect(&mut self, at: usize, client: u64, conn: u64, resume: Resume) {
        let hello = Message::Hello {
            client: ClientId(u128::from(client)),
            conn: ConnNo(conn),
            config: ConfigId::default(),
        };
        self.say(at, client, conn, hello);
        self.say(at, client, conn, Message::Resume(Box::new(resume)));
    }

    fn say(&mut self, at: usize, client: u64, conn: u64, message: Message) {
        self.give(at, NodeInput::Receive(LinkId(client * 100 + conn), message));
    }

    fn sent(&mut self, kind: &str) -> Vec<(usize, Message)> {
        let (now, later) = std::mem::take(&mut self.heard)
            .into_iter()
            .partition(|(_, message)| message.kind() == kind);
        self.heard = later;
        now
    }

    fn carried(&mut self) -> Vec<Carried> {
        let mut all = self.sent("CARRIED");
        assert_eq!(all.len(), 1, "{all:?}");
        let (_, Message::Carried { grants, .. }) = all.remove(0) else {
            unreachable!("its kind was looked at")
        };
        grants
    }

    fn kept(&self, at: usize) -> usize {
        let view = self.all[at].view(&Name::new("s/a"));
        view.map_or(0, |view| view.entries.len())
    }
}

fn config() -> Arc<Config> {
    let spec = conclave_quorum::text::parse("majority(3)").unwrap();
    let built = build(&spec, None, &|_| Err("no files here".to_owned())).unwrap();
    let mut config = Config::new(Quorums::new(&built.system, &[]).unwrap());
    let serial = Policy {
        protocol: Protocol::Serial,
        ..Policy::default()
    };
    config.policies.push((b"s/".to_vec(), serial));
    Arc::new(config)
}

fn session(client: u64) -> SessionInfo {
    SessionInfo {
        session: SessionId(u128::from(client)),
        ttl: TTL,
        detached: false,
        owner: "test".into(),
        principal: Arc::default(),
    }
}

fn announced(client: u64) -> Resume {
    Resume {
        sessions: vec![session(client)],
        last: true,
        ..Resume::default()
    }
}

fn ask(name: &str, client: u64, request: u64) -> Arc<Ask> {
    Arc::new(Ask {
        name: Name::new(name),
        mode: Mode::Exclusive,
        session: SessionId(u128::from(client)),
        request: RequestNo(request),
        priority: Priority {
            t: 1_000_000_000 + request,
            client: ClientId(u128::from(client)),
            request: RequestNo(request),
        },
        bond: Bond::Attached,
    })
}

fn travel(name: &str, client: u64, request: u64, route: &[u32]) -> Message {
    Message::Travel(Box::new(Travel {
        ask: ask(name, client, request),
        hint: Token(0),
        route: route.iter().copied().map(NodeId).collect(),
        grants: Vec::new(),
    }))
}

fn done(client: u64, request: u64, token: Option<u64>) -> Message {
    Message::Done {
        session: SessionId(u128::from(client)),
        request: RequestNo(request),
        token: token.map(Token),
    }
}

/// Three nodes and two clients, each known at every node.
fn world() -> Nodes {
    let mut nodes = Nodes::new();
    for client in [1, 2] {
        for at in 0..3 {
            nodes.connect(at, client, 1, announced(client));
        }
    }
    nodes.heard.clear();
    nodes.events.clear();
    // What nodes ask each other when they start is not looked at here.
    nodes.between.clear();
    nodes
}

#[test]
fn a_request_travels_home_and_its_end_lets_the_next_in() {
    let mut nodes = world();
    nodes.say(0, 1, 1, travel("s/a", 1, 1, &[0, 1, 2]));
    assert_eq!(nodes.between.len(), 1);
    nodes.pass();
    let grants = nodes.carried();
    let members: Vec<u32> = grants.iter().map(|grant| grant.node.0).collect();
    assert_eq!(members, [0, 1, 2]);
    let token = grants.iter().map(|grant| grant.floor.0).max().unwrap() + 1;
    nodes.say(1, 2, 1, travel("s/a", 2, 1, &[1, 2]));
    assert_eq!(nodes.sent("QUEUED").len(), 1);
    for at in 0..3 {
        nodes.say(at, 1, 1, done(1, 1, Some(token)));
    }
    nodes.pass();
    let grants = nodes.carried();
    assert!(grants.iter().all(|grant| grant.floor == Token(token)));
}

#[test]
fn a_cancel_that_comes_first_leaves_no_lock() {
    let mut nodes = world();
    nodes.say(0, 1, 1, travel("s/a", 1, 1, &[0, 1, 2]));
    for at in 0..3 {
        nodes.say(at, 1, 1, done(1, 1, None));
    }
    nodes.pass();
    assert_eq!([0, 1, 2].map(|at| nodes.kept(at)), [0; 3]);
    assert!(nodes.sent("CARRIED").is_empty());
}

/// A request that comes after its end was forgotten is nobody's: its node asks its client, and
/// takes no for an answer unless the request is inside.
#[test]
fn a_node_asks_after_what_it_granted_and_never_heard_of() {
    let mut nodes = world();
    nodes.say(0, 1, 1, travel("s/a", 1, 1, &[0, 1]));
    nodes.pass();
    let grants = nodes.carried();
    for beat in 1..20 {
        nodes.now.mono = nodes.now.mono + Duration::from_millis(250);
        let entered = Vec::new();
        nodes.say(0, 1, 1, Message::Heartbeat { beat, entered });
        nodes.give(0, NodeInput::Wake);
    }
    assert!(!nodes.sent("QUEUED").is_empty());
    nodes.say(1, 1, 1, done(1, 1, None));
    assert_eq!(nodes.kept(1), 0);
    let entered = Message::Entered(Box::new(Entered {
        grant: GrantRef {
            session: SessionId(1),
            request: RequestNo(1),
            grant: grants[0].grant,
        },
        token: grants[0].limit,
        note: None,
        edition: 0,
    }));
    nodes.say(0, 1, 1, entered);
    nodes.say(0, 1, 1, done(1, 1, None));
    assert_eq!(nodes.kept(0), 1);
    nodes.say(0, 1, 1, done(1, 1, Some(grants[0].limit.0)));
    assert_eq!(nodes.kept(0), 0);
}

#[test]
fn an_end_told_on_a_new_connection_counts() {
    let mut nodes = world();
    nodes.say(0, 1, 1, travel("s/a", 1, 1, &[0, 1]));
    let gone = LinkId(101);
    nodes.give(1, NodeInput::Closed(gone));
    let mut resume = announced(1);
    resume.done.push(conclave_protocol::lock::Finished {
        session: SessionId(1),
        request: RequestNo(1),
        token: None,
    });
    nodes.connect(1, 1, 2, resume);
    nodes.pass();
    assert_eq!(nodes.kept(1), 0);
}

#[test]
fn a_request_of_an_absent_client_is_dropped() {
    let mut nodes = world();
    nodes.say(0, 1, 1, travel("s/a", 1, 1, &[0, 1]));
    nodes.give(1, NodeInput::Closed(LinkId(101)));
    nodes.pass();
    assert_eq!(nodes.kept(1), 0);
    // An unknown session is dead to its client, and unknown to other nodes.
    nodes.say(0, 1, 1, travel("s/a", 9, 1, &[0, 1]));
    let dead = nodes.sent("DEAD");
    assert_eq!(dead.len(), 1);
    assert!(nodes.between.is_empty());
}

#[test]
fn a_lock_is_served_by_its_own_protocol_only() {
    let mut nodes = world();
    nodes.say(0, 1, 1, travel("p/a", 1, 1, &[0, 1]));
    let request = Message::Request {
        ask: ask("s/a", 1, 2),
        hint: Token(0),
        inside: None,
    };
    nodes.say(0, 1, 1, request);
    nodes.say(0, 1, 1, travel("s/a", 1, 3, &[1, 0]));
    nodes.say(0, 1, 1, travel("s/a", 1, 4, &[0, 7]));
    nodes.say(1, 1, 1, travel("s/a", 1, 5, &[0, 1]));
    let denied = nodes.sent("DENIED");
    assert_eq!(denied.len(), 5);
    for (_, message) in denied {
        let Message::Denied { why, .. } = message else {
            unreachable!("its kind was looked at")
        };
        assert_eq!(why, Refusal::Unfit);
    }
    assert_eq!(nodes.kept(0) + nodes.kept(1), 0);
}

#[test]
fn an_expired_holder_leaves_its_limit_as_floor() {
    let mut nodes = world();
    nodes.say(0, 1, 1, travel("s/a", 1, 1, &[0, 1]));
    nodes.pass();
    let limits = nodes.carried();
    nodes.say(0, 2, 1, travel("s/a", 2, 1, &[0, 2]));
    nodes.give(0, NodeInput::Expire(SessionId(1)));
    nodes.pass();
    let grants = nodes.carried();
    assert_eq!(grants[0].floor, limits[0].limit);
    let why = nodes.events.iter().find_map(|(_, event)| match event {
        NodeEvent::Ended { why, .. } => Some(*why),
        _ => None,
    });
    assert_eq!(why, Some(End::Revoked));
    assert_eq!(nodes.sent("DEAD").len(), 1);
}

#[test]
fn a_node_that_pauses_says_so_to_the_client() {
    let mut nodes = world();
    let mut out = Effects::new();
    let disk = Start::Disk(nodes.disks[1].clone());
    nodes.all[1] = LockNode::start(config(), NodeId(1), 1, disk, nodes.now, &mut out);
    nodes.records[1] = 0;
    nodes.take(1, out);
    nodes.connect(1, 1, 2, announced(1));
    nodes.say(0, 1, 1, travel("s/a", 1, 1, &[0, 1]));
    nodes.pass();
    assert_eq!(nodes.sent("NOT_NOW").len(), 1);
    assert_eq!(nodes.kept(1), 0);
}

/// No limit leaves a node before the disk covers it, not even towards another node.
#[test]
fn a_request_travels_on_once_the_disk_covers_its_limit() {
    let mut nodes = world();
    nodes.now.wall = nodes.now.wall.plus(Duration::from_mins(1));
    let mut out = Effects::new();
    let message = travel("s/a", 1, 1, &[0, 1]);
    nodes.all[0].handle(
        nodes.now,
        NodeInput::Receive(LinkId(101), message),
        &mut out,
    );
    assert!(!out.persist.is_empty());
    // Nodes tell each other the time as soon as it jumps; that rests on nothing.
    out.send_now
        .retain(|envelope| !matches!(envelope.message, Message::TokenClock { .. }));
    let to_node = |to: &To| matches!(to, To::Node(_));
    assert!(!out.send_now.iter().any(|envelope| to_node(&envelope.to)));
    assert!(
        out.send_durable
            .iter()
            .any(|envelope| to_node(&envelope.to))
    );
}
