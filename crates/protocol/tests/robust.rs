//! Whatever is said to a machine, in whatever state and at whatever time: it does not fall over,
//! and what it keeps stays within its limits.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod harness;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::{
    ClientId, ConnNo, GrantNo, Incarnation, Key, LinkId, Name, NodeId, RequestNo, SessionId, Token,
    WatchNo,
};
use conclave_protocol::lock::{
    Access, Acquire, Action, Ask, Bond, Carried, Claim, ClientEffects, ClientEvent, ClientInput,
    Config, ConfigId, Entered, Finished, GrantRef, Handle, Holder, Limits, LockClient, LockNode,
    Message, Mode, NodeEffects, NodeInput, NotNow, Priority, Protocol, Recovered, Refusal, Report,
    Resume, Rule, SessionInfo, Sight, Start, Stored, Travel, Watch, Who,
};
use conclave_protocol::{Instant, Machine, Now, Wall};
use harness::{EPOCH, config};
use proptest::prelude::*;

/// Numbers out of bytes: small ones mostly, so that they meet.
struct Dice<'a> {
    bytes: &'a [u8],
    /// Sessions that are known, the likeliest first.
    sessions: &'a [SessionId],
    /// Grants that were heard of.
    grants: &'a [GrantRef],
}

impl Dice<'_> {
    fn roll(&mut self, below: u8) -> u8 {
        let Some((first, rest)) = self.bytes.split_first() else {
            return 0;
        };
        self.bytes = rest;
        first % below
    }

    fn flip(&mut self) -> bool {
        self.roll(2) == 1
    }

    /// A moment, a token, a life or a grant: near the start of the test, or far off.
    fn large(&mut self) -> u64 {
        match self.roll(10) {
            0 => 0,
            1 => u64::MAX,
            2 => EPOCH + 1_000_000_000 * u64::from(self.roll(200)),
            _ => EPOCH + u64::from(self.roll(12)),
        }
    }

    fn token(&mut self) -> Token {
        Token(self.large())
    }

    fn span(&mut self) -> Duration {
        match self.roll(8) {
            0 => Duration::ZERO,
            1 => Duration::MAX,
            2 => Duration::from_mins(1),
            3 => Duration::from_millis(100),
            _ => Duration::from_secs(10),
        }
    }

    fn session(&mut self) -> SessionId {
        let count = self.sessions.len() as u8;
        match self.roll(8) {
            0 => SessionId(u128::from(self.roll(6))),
            1..=5 if count > 0 => self.sessions[0],
            _ if count > 0 => self.sessions[usize::from(self.roll(count))],
            _ => SessionId(u128::from(self.roll(4))),
        }
    }

    /// Whether a session lives by handles: one of the few known ones does.
    fn detached(&mut self, session: SessionId) -> bool {
        (session.0 == DETACHED) != (self.roll(12) == 0)
    }

    fn mode(&mut self) -> Mode {
        match self.roll(4) {
            0 | 1 => Mode::Exclusive,
            2 => Mode::Shared,
            _ => Mode::group([self.roll(2)]),
        }
    }

    fn name(&mut self) -> Name {
        match self.roll(12) {
            0 => Name::new(""),
            1 => Name::new("n".repeat(2000)),
            _ => Name::new([b'a' + self.roll(3)]),
        }
    }

    fn request(&mut self) -> RequestNo {
        RequestNo(u64::from(self.roll(5)))
    }

    fn ask(&mut self) -> Arc<Ask> {
        let (name, mode, session) = (self.name(), self.mode(), self.session());
        let request = self.request();
        let same = self.roll(10) > 0;
        Arc::new(Ask {
            name,
            mode,
            session,
            request,
            priority: Priority {
                t: self.large(),
                client: ClientId(u128::from(self.roll(4))),
                request: if same { request } else { self.request() },
            },
            bond: match self.detached(session) {
                false => Bond::Attached,
                true if self.flip() => Bond::Detached,
                true => Bond::Named,
            },
        })
    }

    fn grant(&mut self) -> GrantRef {
        let count = self.grants.len().min(255) as u8;
        if count > 0 && self.roll(8) > 0 {
            let last = self.grants.len() - 1;
            return self.grants[last - usize::from(self.roll(count))];
        }
        GrantRef {
            session: self.session(),
            request: self.request(),
            grant: GrantNo(self.large()),
        }
    }

    fn note(&mut self) -> Option<Arc<[u8]>> {
        let size = [0, 1, 5000][usize::from(self.roll(3))];
        self.flip().then(|| vec![7; size].into())
    }

    fn entered(&mut self) -> Entered {
        Entered {
            grant: self.grant(),
            token: self.token(),
            note: self.note(),
            edition: u32::from(self.roll(3)),
        }
    }

    fn who(&mut self) -> Who {
        Who {
            principal: ["", "other"][usize::from(self.roll(2))].into(),
            gateway: self.roll(2) == 0,
        }
    }

    fn access(&mut self) -> Arc<Access> {
        let rule = Rule {
            who: ["*", "other"][usize::from(self.roll(2))].into(),
            prefix: Box::default(),
            may: vec![Action::Acquire],
        };
        let rules = (self.roll(3) > 0).then_some(rule);
        Arc::new(Access::new(rules).unwrap())
    }

    fn info(&mut self) -> SessionInfo {
        let session = self.session();
        SessionInfo {
            session,
            ttl: self.span(),
            detached: self.detached(session),
            principal: if self.roll(9) == 0 {
                "other".into()
            } else {
                Arc::default()
            },
            owner: if self.roll(9) == 0 {
                "o".repeat(999)
            } else {
                String::new()
            }
            .into(),
        }
    }

    fn claim(&mut self) -> Claim {
        Claim {
            ask: self.ask(),
            hint: self.token(),
            seen: GrantNo(self.large()),
            holding: self.flip(),
            inside: self.flip().then(|| self.token()),
            raising: self.flip().then(|| self.token()),
            fresh: self.flip(),
            members: self.nodes(),
        }
    }

    fn nodes(&mut self) -> Vec<NodeId> {
        (0..self.roll(4)).map(|_| self.node()).collect()
    }

    fn resume(&mut self) -> Resume {
        let mut resume = Resume::default();
        for _ in 0..self.roll(4) {
            resume.sessions.push(self.info());
        }
        for _ in 0..self.roll(4) {
            resume.live.push(self.claim());
        }
        for _ in 0..self.roll(3) {
            resume.done.push(Finished {
                session: self.session(),
                request: self.request(),
                token: self.flip().then(|| self.token()),
            });
        }
        resume.last = self.roll(4) > 0;
        resume
    }

    fn node(&mut self) -> NodeId {
        NodeId(u32::from(self.roll(5)))
    }

    fn carried(&mut self) -> Carried {
        Carried {
            node: self.node(),
            incarnation: Incarnation(self.large()),
            grant: GrantNo(self.large()),
            floor: self.token(),
            limit: self.token(),
        }
    }

    fn refusal(&mut self) -> Refusal {
        match self.roll(5) {
            0 => Refusal::QueueFull,
            1 => Refusal::PriorityAhead {
                clock: Wall(self.large()),
            },
            2 => Refusal::TokenAhead {
                clock: Wall(self.large()),
            },
            3 => Refusal::OldConnection,
            _ => Refusal::Unfit,
        }
    }

    fn watch(&mut self) -> Watch {
        let name = self.name();
        if self.flip() {
            Watch::Name(name)
        } else {
            Watch::Prefix(name.bytes().into())
        }
    }

    fn sight(&mut self) -> Sight {
        match self.roll(5) {
            0 => Sight::Begin,
            1 => Sight::Synced,
            2 => Sight::Refused(self.refusal()),
            _ => Sight::State(Report {
                name: self.name(),
                holders: (0..self.roll(3)).map(|_| self.holder()).collect(),
                more: u32::from(self.roll(2)),
                waiting: u32::from(self.roll(3)),
            }),
        }
    }

    fn holder(&mut self) -> Holder {
        let ask = self.ask();
        Holder {
            session: ask.session,
            request: ask.request,
            group: ask.group(),
            token: self.token(),
            asked: Wall(self.large()),
            owner: "".into(),
            note: self.note(),
            edition: u32::from(self.roll(3)),
        }
    }

    /// What clients say.
    fn upward(&mut self) -> Message {
        let (session, request) = (self.session(), self.request());
        let token = self.flip().then(|| self.token());
        match self.roll(16) {
            14 => Message::Watch {
                watch: WatchNo(u64::from(self.roll(3))),
                what: self.watch(),
            },
            15 => Message::Unwatch {
                watch: WatchNo(u64::from(self.roll(3))),
            },
            0 => Message::Hello {
                client: ClientId(self.session().0),
                conn: ConnNo(u64::from(self.roll(60))),
                config: ConfigId {
                    epoch: u64::from(self.roll(20) == 0),
                    ..ConfigId::default()
                },
            },
            1 => Message::Resume(Box::new(self.resume())),
            2..=4 => Message::Open(self.info()),
            5 | 6 => Message::Request {
                ask: self.ask(),
                hint: self.token(),
                inside: (self.roll(4) == 0).then(|| self.nodes()),
            },
            7 => Message::Yield(self.grant()),
            8 => Message::Done {
                session,
                request,
                token,
            },
            9 => Message::Raise {
                grant: self.grant(),
                token: self.token(),
            },
            10 => Message::Entered(Box::new(self.entered())),
            11 => Message::Heartbeat {
                beat: u64::from(self.roll(9)),
                entered: (0..self.roll(3)).map(|_| self.entered()).collect(),
            },
            12 => Message::Keepalive {
                grant: self.grant(),
                token: self.token(),
            },
            _ => Message::Finish {
                session,
                request,
                token,
            },
        }
    }

    /// What nodes say to clients.
    fn downward(&mut self) -> Message {
        let (session, request) = (self.session(), self.request());
        let clock = Wall(self.large());
        match self.roll(15) {
            14 => Message::Revoked(session),
            0 | 1 => Message::Welcome {
                node: self.node(),
                incarnation: Incarnation(self.large()),
                clock,
            },
            2 => Message::Refused(self.refusal()),
            3..=5 => Message::Locked {
                grant: self.grant(),
                floor: self.token(),
                limit: self.token(),
                incarnation: Incarnation(self.large()),
                clock,
            },
            6 => Message::Queued {
                session,
                request,
                position: u32::from(self.roll(9)),
            },
            7 => Message::NotNow {
                session,
                request,
                why: NotNow::Pausing,
                retry: self.span(),
            },
            8 => Message::Inquire(self.grant()),
            9 => Message::Raised {
                grant: self.grant(),
                token: self.token(),
            },
            10 => Message::Beat {
                beat: u64::from(self.roll(9)),
                clock,
                noted: (0..self.roll(3)).map(|_| self.grant()).collect(),
            },
            11 => Message::Dead {
                session,
                request: self.flip().then_some(request),
            },
            12 => Message::Denied {
                session,
                request: self.flip().then_some(request),
                why: self.refusal(),
            },
            _ => match self.roll(5) {
                0 => Message::Noted(self.grant()),
                1 => Message::Kept(self.grant()),
                2 => Message::Watched(self.grant()),
                3 => Message::Seen {
                    watch: WatchNo(u64::from(self.roll(9))),
                    sight: Box::new(self.sight()),
                },
                _ => Message::Draining,
            },
        }
    }

    /// What nodes say to each other.
    fn sideways(&mut self) -> Message {
        match self.roll(8) {
            5 => Message::ConfirmGrant(self.ask()),
            6 => Message::GrantConfirmed {
                session: self.session(),
                request: RequestNo(self.large()),
                granted: self.flip().then(|| self.flip()),
            },
            3 => Message::Alive {
                node: self.node(),
                incarnation: Incarnation(self.large()),
            },
            0 => Message::Recover {
                node: self.node(),
                incarnation: Incarnation(self.large()),
            },
            1 => Message::Recovered(Recovered {
                node: self.node(),
                recovering: self.flip(),
                served: self.flip(),
                floor: self.token(),
                limit: self.token(),
                incarnation: Incarnation(self.large()),
                clock: Wall(self.large()),
            }),
            4 => Message::TokenClock {
                clock: Wall(self.large()),
                asks: self.flip(),
            },
            2 => Message::Travel(Box::new(Travel {
                ask: self.ask(),
                hint: self.token(),
                route: (0..self.roll(4)).map(|_| self.node()).collect(),
                grants: (0..self.roll(4)).map(|_| self.carried()).collect(),
            })),
            _ => Message::Carried {
                session: self.session(),
                request: self.request(),
                grants: (0..self.roll(4)).map(|_| self.carried()).collect(),
            },
        }
    }

    fn any_message(&mut self) -> Message {
        match self.roll(3) {
            0 => self.upward(),
            1 => self.downward(),
            _ => self.sideways(),
        }
    }

    /// Moves the clocks: mostly a little, sometimes far; the wall clock may jump either way.
    fn time(&mut self, now: &mut Now) {
        let step = match self.roll(100) {
            0 => Duration::from_secs(70),
            1 | 2 => Duration::from_secs(1),
            3..=8 => Duration::from_millis(250),
            _ => Duration::from_micros(1),
        };
        now.mono = now.mono + step;
        now.wall = match self.roll(100) {
            0 => Wall(self.large()),
            _ => now.wall.plus(step),
        };
    }

    fn wish(&mut self) -> Acquire {
        let mut wish = Acquire::new(self.name(), self.mode(), self.span());
        wish.attempt = self.roll(5) == 0;
        wish.note = self.note();
        wish.detach = (self.roll(4) == 0).then(|| (self.session(), self.flip()));
        wish
    }

    fn handle(&mut self) -> Handle {
        Handle {
            config: ConfigId::default(),
            ask: self.ask(),
            token: self.token(),
            ttl: self.span(),
            grants: (0..self.roll(4))
                .map(|_| {
                    let node = self.node();
                    (node, Incarnation(self.large()), GrantNo(self.large()))
                })
                .collect(),
        }
    }
}

/// The session that lives by handles.
const DETACHED: u128 = 3;

fn shared(serial: bool) -> Config {
    let mut shared = config("majority(3)", &[]);
    shared.limits = Limits {
        queue: 4,
        sessions_per_client: 3,
        requests_per_client: 6,
        clients: 3,
        locks: 2,
        idle_locks: 1,
        tombstones: 5,
        resume_part: 2,
        unacknowledged: 4,
        ..Limits::default()
    };
    if serial {
        let policy = conclave_protocol::lock::Policy {
            protocol: Protocol::Serial,
            ..conclave_protocol::lock::Policy::default()
        };
        shared.policies = vec![(b"b".to_vec(), policy)];
    }
    shared
}

fn start() -> Now {
    Now {
        mono: Instant::from_nanos(1_000_000_000),
        wall: Wall(EPOCH),
    }
}

/// Three clients connect, each with a session; the last opens one that lives by handles too.
fn prelude() -> Vec<(LinkId, Message)> {
    let mut all = Vec::new();
    for client in 0..3 {
        let hello = Message::Hello {
            client: ClientId(u128::from(client)),
            conn: ConnNo(1),
            config: ConfigId::default(),
        };
        all.push((LinkId(client), hello));
        let mut info = SessionInfo {
            session: SessionId(u128::from(client)),
            ttl: Duration::from_secs(10),
            detached: false,
            owner: "".into(),
            principal: Arc::default(),
        };
        all.push((LinkId(client), Message::Open(info.clone())));
        if client == 2 {
            info.session = SessionId(DETACHED);
            info.detached = true;
            all.push((LinkId(client), Message::Open(info)));
        }
    }
    all
}

/// Plays the steps and counts the messages of each kind that the node sent.
fn play_node(steps: &[Vec<u8>], from: Start) -> BTreeMap<&'static str, usize> {
    let mut sent = BTreeMap::new();
    let mut now = start();
    let mut out = NodeEffects::new();
    let shared = Arc::new(shared(steps.len().is_multiple_of(2)));
    let limits = shared.limits;
    let mut node = LockNode::start(shared, NodeId(0), 1, from, now, &mut out);
    let mut written = out.persist.len() as u64;
    let mut grants = Vec::new();
    node.handle(now, NodeInput::Durable(written), &mut out);
    if !steps[0][0].is_multiple_of(5) {
        for (link, message) in prelude() {
            node.handle(now, NodeInput::Receive(link, message), &mut out);
        }
    }
    for step in steps {
        let link = step[0] % 4;
        let sessions = [u128::from(link), DETACHED].map(SessionId);
        let mut dice = Dice {
            bytes: &step[1..],
            sessions: &sessions,
            grants: &grants,
        };
        dice.time(&mut now);
        let link = LinkId(u64::from(link));
        let input = match dice.roll(24) {
            0 => NodeInput::Closed(link),
            1 | 2 => NodeInput::Wake,
            3 => match dice.roll(4) {
                0 => NodeInput::Opened(link, dice.who()),
                1 => NodeInput::Access(dice.access()),
                2 => NodeInput::Revoke {
                    session: dice.session(),
                    by: Arc::default(),
                    force: dice.roll(2) == 0,
                },
                _ => NodeInput::Expire(dice.session()),
            },
            4 => NodeInput::Peer(dice.node(), dice.any_message()),
            5 => match dice.roll(30) {
                0 => NodeInput::Stop,
                1 => NodeInput::Drain,
                _ => NodeInput::Durable(written),
            },
            6 => NodeInput::Receive(link, dice.any_message()),
            7..=9 => NodeInput::Durable(written),
            _ => NodeInput::Receive(link, dice.upward()),
        };
        out.clear();
        node.handle(now, input, &mut out);
        written += out.persist.len() as u64;
        let _ = node.next_wake();
        let [locks, sessions, clients, tombs] = node.kept();
        assert!(locks <= limits.locks + limits.idle_locks);
        assert!(clients <= limits.clients + limits.locks * limits.queue);
        assert!(sessions <= clients * limits.sessions_per_client + locks * limits.queue);
        assert!(tombs <= limits.tombstones);
        for envelope in out.send_now.iter().chain(&out.send_durable) {
            *sent.entry(envelope.message.kind()).or_default() += 1;
            if let Message::Locked { grant, .. } = envelope.message {
                grants.push(grant);
            }
        }
    }
    sent
}

/// What a friendly node would say, so that a client comes further than chance would take it.
fn answer(message: &Message, mood: u8, clock: Wall) -> Option<Message> {
    if mood == 0 {
        return None;
    }
    match message {
        Message::Hello { .. } => Some(Message::Welcome {
            node: NodeId(0),
            incarnation: Incarnation(EPOCH),
            clock,
        }),
        Message::Heartbeat { beat, entered } => Some(Message::Beat {
            beat: *beat,
            clock,
            noted: entered.iter().map(|entered| entered.grant).collect(),
        }),
        Message::Request { ask, .. } if mood > 4 => Some(Message::Locked {
            grant: GrantRef {
                session: ask.session,
                request: ask.request,
                grant: GrantNo(1),
            },
            floor: Token(EPOCH),
            limit: Token(EPOCH + u64::from(mood) - 5),
            incarnation: Incarnation(EPOCH),
            clock,
        }),
        _ => None,
    }
}

/// Plays the steps and counts the messages of each kind that the client sent.
fn play_client(steps: &[Vec<u8>]) -> BTreeMap<&'static str, usize> {
    let mut sent = BTreeMap::new();
    let mut now = start();
    let shared = Arc::new(shared(steps.len().is_multiple_of(2)));
    let mut client = LockClient::new(shared, ClientId(1), 1);
    let mut sessions: Vec<SessionId> = Vec::new();
    let mut conns = [ConnNo(0); 5];
    let mut grants: Vec<GrantRef> = Vec::new();
    let mut keys = 0;
    for step in steps {
        let mut dice = Dice {
            bytes: step,
            sessions: &sessions,
            grants: &grants,
        };
        dice.time(&mut now);
        let node = dice.node();
        let conn = match dice.roll(8) {
            0 => ConnNo(u64::from(dice.roll(4))),
            _ => conns[node.index()],
        };
        let key = Key(u64::from(dice.roll(6)));
        let input = match dice.roll(20) {
            0 | 1 => ClientInput::Opened(node, conn),
            2 => ClientInput::Closed(node, conn),
            3 | 4 => ClientInput::Wake,
            5 | 6 => ClientInput::Acquire(key, dice.wish()),
            7 => {
                let wishes = (0..dice.roll(4)).map(|_| dice.wish()).collect();
                if dice.roll(2) == 0 {
                    ClientInput::AcquireAll(key, wishes)
                } else {
                    ClientInput::AcquireAny(key, wishes)
                }
            }
            8 => ClientInput::Cancel(key),
            9 if dice.flip() => ClientInput::Watch(key, dice.watch()),
            9 => ClientInput::Release(key),
            10 => ClientInput::Keep(key, Box::new(dice.handle()), Arc::default()),
            11 => ClientInput::Finish(key, Box::new(dice.handle())),
            12 => ClientInput::Note(key, vec![1; 3].into()),
            13 => ClientInput::Receive(node, conn, dice.any_message()),
            _ => ClientInput::Receive(node, conn, dice.downward()),
        };
        keys += usize::from(matches!(
            input,
            ClientInput::Acquire(..)
                | ClientInput::AcquireAll(..)
                | ClientInput::AcquireAny(..)
                | ClientInput::Keep(..)
        ));
        let mut todo = vec![input];
        while let Some(input) = todo.pop() {
            let mut out = ClientEffects::new();
            client.handle(now, input, &mut out);
            for event in out.events {
                if let ClientEvent::Connect(node, conn) = event {
                    conns[node.index()] = conn;
                    todo.push(ClientInput::Opened(node, conn));
                }
            }
            for envelope in out.send_now {
                assert!(envelope.to.index() < 3, "no such node");
                *sent.entry(envelope.message.kind()).or_default() += 1;
                let kind = step[step.len() - 1] % 8;
                if let Some(answer) = answer(&envelope.message, kind, now.wall) {
                    let conn = conns[envelope.to.index()];
                    todo.push(ClientInput::Receive(envelope.to, conn, answer));
                }
                if let Message::Request { ask, .. } = &envelope.message {
                    grants.extend((1..3).map(|grant| GrantRef {
                        session: ask.session,
                        request: ask.request,
                        grant: GrantNo(grant),
                    }));
                    grants.drain(..grants.len().saturating_sub(8));
                }
                if let Message::Open(info) = envelope.message
                    && !sessions.contains(&info.session)
                    && sessions.len() < 6
                {
                    sessions.push(info.session);
                }
            }
        }
        let _ = client.next_wake();
        assert!(client.live() <= 4 * keys, "more requests than asked for");
    }
    sent
}

fn steps() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let step = proptest::collection::vec(any::<u8>(), 8..60);
    proptest::collection::vec(step, 1..150)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_node_stands_any_message(steps in steps()) {
        play_node(&steps, Start::Init);
    }

    #[test]
    fn a_node_that_pauses_or_recovers_stands_any_message(steps in steps(), lost: bool) {
        let stored = Stored {
            incarnation: Some(Incarnation(EPOCH)),
            ceiling: Token(EPOCH + 5),
            longest_ttl: Duration::from_secs(10),
            ..Stored::default()
        };
        play_node(&steps, if lost { Start::Lost } else { Start::Disk(stored) });
    }

    #[test]
    fn a_client_stands_any_message(steps in steps()) {
        play_client(&steps);
    }
}

/// Random steps must come far enough to mean something.
#[test]
fn random_steps_reach_every_answer() {
    let mut rng = conclave_quorum::Prng::new(1);
    let (mut node, mut client) = (BTreeMap::new(), BTreeMap::new());
    for _ in 0..600 {
        let steps: Vec<Vec<u8>> = (0..120)
            .map(|_| (0..60).map(|_| rng.below(256) as u8).collect())
            .collect();
        for (kind, count) in play_node(&steps, Start::Init) {
            *node.entry(kind).or_insert(0) += count;
        }
        for (kind, count) in play_client(&steps) {
            *client.entry(kind).or_insert(0) += count;
        }
    }
    for kind in [
        "WELCOME", "REFUSED", "LOCKED", "QUEUED", "INQUIRE", "RAISED", "NOTED", "BEAT", "KEPT",
        "DEAD", "DENIED", "NOT_NOW",
    ] {
        assert!(node.contains_key(kind), "no {kind}: {node:?}");
    }
    for kind in [
        "HELLO",
        "RESUME",
        "OPEN",
        "REQUEST",
        "YIELD",
        "DONE",
        "RAISE",
        "ENTERED",
        "HEARTBEAT",
        "KEEPALIVE",
        "FINISH",
    ] {
        assert!(client.contains_key(kind), "no {kind}: {client:?}");
    }
}
