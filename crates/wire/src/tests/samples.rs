//! One value or more of every kind, the same for ever: the golden files are made of them.

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::Wall;
use conclave_protocol::id::{
    ClientId, ConnNo, GrantNo, Incarnation, Name, NodeId, RequestNo, SessionId, Token, WatchNo,
};
use conclave_protocol::lock::{
    Ask, Bond, Carried, Claim, ConfigId, Entered, Finished, GrantRef, Group, Handle, Holder,
    Message, Mode, NotNow, Priority, Record, Recovered, Refusal, Report, Resume, SessionInfo,
    Sight, Snapshot, StoredGrant, Travel, Watch,
};

use crate::cluster::Facts;
use crate::greeting::{Credential, Greeting, Rejection, Reply, Role, Service};

const CLIENT: ClientId = ClientId(0x000c_11e4_0000_0000_0000_0000_0000_0007);
const SESSION: SessionId = SessionId(0x5e55_1040_0000_0000_0000_0000_0000_0001);
const CLOCK: Wall = Wall(1_767_225_600_000_000);

fn grant() -> GrantRef {
    GrantRef {
        session: SESSION,
        request: RequestNo(300),
        grant: GrantNo(70_000),
    }
}

fn ask(mode: Mode, bond: Bond) -> Arc<Ask> {
    Arc::new(Ask {
        name: Name::new("jobs/nightly"),
        mode,
        session: SESSION,
        request: RequestNo(300),
        priority: Priority {
            t: CLOCK.0,
            client: CLIENT,
            request: RequestNo(300),
        },
        bond,
    })
}

fn other_ask() -> Arc<Ask> {
    let mut ask = ask(Mode::group([0xff, 0, 7]), Bond::Named).as_ref().clone();
    ask.name = Name::new([0, 0x80, b'/']);
    ask.priority.request = RequestNo(0);
    Arc::new(ask)
}

fn info() -> SessionInfo {
    SessionInfo {
        session: SESSION,
        ttl: Duration::from_secs(10),
        detached: true,
        owner: "héctor@host:42".into(),
        principal: Arc::default(),
    }
}

fn info_of(principal: &str) -> SessionInfo {
    SessionInfo {
        principal: principal.into(),
        ..info()
    }
}

fn entered(note: Option<&[u8]>) -> Entered {
    Entered {
        grant: grant(),
        token: Token(CLOCK.0 + 1),
        note: note.map(Into::into),
        edition: 0,
    }
}

fn seen(sight: Sight) -> Message {
    let (watch, sight) = (WatchNo(7), Box::new(sight));
    Message::Seen { watch, sight }
}

/// What watchers and nodes say.
fn of_watches() -> Vec<(&'static str, Message)> {
    let watch = WatchNo(7);
    let holder = |group, note: Option<&[u8]>| Holder {
        session: SESSION,
        request: RequestNo(300),
        group,
        token: Token(CLOCK.0 + 1),
        asked: CLOCK,
        owner: "héctor@host:42".into(),
        note: note.map(Into::into),
        edition: 2,
    };
    let report = Report {
        name: Name::new("jobs/nightly"),
        holders: vec![
            holder(Group::Request(SESSION, RequestNo(300)), Some(b"host:80")),
            holder(Group::Session(SESSION), Some(b"")),
            holder(Group::Shared, None),
            holder(Group::Named([0xff, 0].into()), None),
        ],
        more: 3,
        waiting: 70_000,
    };
    let mut edited = entered(Some(b"note"));
    edited.edition = 4;
    let name = Watch::Name(Name::new("jobs/nightly"));
    let prefix = Watch::Prefix(b"jobs/".as_slice().into());
    vec![
        ("entered-edited", Message::Entered(Box::new(edited))),
        ("watch", Message::Watch { watch, what: name }),
        (
            "watch-prefix",
            Message::Watch {
                watch,
                what: prefix,
            },
        ),
        ("unwatch", Message::Unwatch { watch }),
        ("seen", seen(Sight::State(report))),
        ("seen-begin", seen(Sight::Begin)),
        ("seen-synced", seen(Sight::Synced)),
        ("seen-refused", seen(Sight::Refused(Refusal::WatchLimit))),
        ("watched", Message::Watched(grant())),
    ]
}

fn config() -> ConfigId {
    ConfigId {
        epoch: 3,
        digest: *b"0123456789abcdef",
    }
}

fn carried(node: u32) -> Carried {
    Carried {
        node: NodeId(node),
        incarnation: Incarnation(CLOCK.0),
        grant: GrantNo(5),
        floor: Token(6),
        limit: Token(7),
    }
}

fn claim() -> Claim {
    Claim {
        ask: other_ask(),
        hint: Token(1),
        seen: GrantNo(2),
        holding: true,
        inside: Some(Token(0)),
        raising: Some(Token(4)),
        fresh: true,
    }
}

fn resume() -> Message {
    let finished = Finished {
        session: SESSION,
        request: RequestNo(0),
        token: Some(Token(0)),
    };
    Message::Resume(Box::new(Resume {
        sessions: vec![info()],
        live: vec![claim()],
        done: vec![finished],
        last: true,
    }))
}

fn travel() -> Message {
    Message::Travel(Box::new(Travel {
        ask: ask(Mode::Shared, Bond::Attached),
        hint: Token(9),
        route: [NodeId(0), NodeId(1), NodeId(9_999)].into(),
        grants: vec![carried(0), carried(9_999)],
    }))
}

/// Messages of every kind.
pub(super) fn messages() -> Vec<(&'static str, Message)> {
    let (session, request, token) = (SESSION, RequestNo(300), Token(CLOCK.0 + 1));
    let plain = Message::Request {
        ask: ask(Mode::Exclusive, Bond::Attached),
        hint: token,
        inside: false,
    };
    let grouped = Message::Request {
        ask: other_ask(),
        hint: Token(0),
        inside: true,
    };
    let hello = Message::Hello {
        client: CLIENT,
        conn: ConnNo(2),
        config: config(),
    };
    let mut all = vec![
        ("hello", hello),
        ("resume", resume()),
        ("resume-empty", Message::Resume(Box::default())),
        ("open", Message::Open(info())),
        ("open-principal", Message::Open(info_of("alice"))),
        ("request", plain),
        ("request-group", grouped),
        ("yield", Message::Yield(grant())),
        ("done", done(Some(token))),
        ("done-unused", done(None)),
        ("raise", raise(token)),
        (
            "entered",
            Message::Entered(Box::new(entered(Some(b"note")))),
        ),
        ("heartbeat", heartbeat(vec![])),
        (
            "heartbeat-entered",
            heartbeat(vec![entered(None), entered(Some(b""))]),
        ),
    ];
    all.extend(of_nodes());
    for (name, why) in refusals() {
        all.push((
            name,
            Message::Denied {
                session,
                request: Some(request),
                why,
            },
        ));
    }
    all.push((
        "refused",
        Message::Refused(Refusal::StaleConfig { node: config() }),
    ));
    all.extend(of_watches());
    all
}

fn of_nodes() -> Vec<(&'static str, Message)> {
    let (session, request, token) = (SESSION, RequestNo(300), Token(CLOCK.0 + 1));
    let (node, incarnation, clock) = (NodeId(4), Incarnation(CLOCK.0), CLOCK);
    vec![
        ("keepalive", keepalive(token)),
        ("finish", finish(Some(token))),
        (
            "welcome",
            Message::Welcome {
                node,
                incarnation,
                clock,
            },
        ),
        ("locked", locked(token)),
        (
            "queued",
            Message::Queued {
                session,
                request,
                position: 4,
            },
        ),
        ("not-now", not_now()),
        ("inquire", Message::Inquire(grant())),
        (
            "raised",
            Message::Raised {
                grant: grant(),
                token,
            },
        ),
        ("noted", Message::Noted(grant())),
        (
            "beat",
            Message::Beat {
                beat: 9,
                clock,
                noted: vec![grant(), grant()],
            },
        ),
        ("kept", Message::Kept(grant())),
        (
            "dead",
            Message::Dead {
                session,
                request: Some(RequestNo(0)),
            },
        ),
        (
            "dead-session",
            Message::Dead {
                session,
                request: None,
            },
        ),
        ("draining", Message::Draining),
        ("revoked", Message::Revoked(session)),
        ("recover", Message::Recover { node, incarnation }),
        ("recovered", Message::Recovered(recovered())),
        ("alive", Message::Alive { node, incarnation }),
        ("travel", travel()),
        (
            "carried",
            Message::Carried {
                session,
                request,
                grants: vec![carried(3)],
            },
        ),
    ]
}

fn done(token: Option<Token>) -> Message {
    Message::Done {
        session: SESSION,
        request: RequestNo(300),
        token,
    }
}

fn finish(token: Option<Token>) -> Message {
    Message::Finish {
        session: SESSION,
        request: RequestNo(300),
        token,
    }
}

fn raise(token: Token) -> Message {
    let grant = grant();
    Message::Raise { grant, token }
}

fn keepalive(token: Token) -> Message {
    let grant = grant();
    Message::Keepalive { grant, token }
}

fn heartbeat(entered: Vec<Entered>) -> Message {
    Message::Heartbeat { beat: 9, entered }
}

fn locked(token: Token) -> Message {
    Message::Locked {
        grant: grant(),
        floor: token,
        limit: Token(token.0 + 1_000_000),
        incarnation: Incarnation(CLOCK.0),
        clock: CLOCK,
    }
}

fn not_now() -> Message {
    Message::NotNow {
        session: SESSION,
        request: RequestNo(300),
        why: NotNow::Pausing,
        retry: Duration::from_millis(1500),
    }
}

fn recovered() -> Recovered {
    Recovered {
        node: NodeId(2),
        recovering: true,
        served: true,
        floor: Token(1),
        limit: Token(2),
        incarnation: Incarnation(3),
    }
}

/// Every refusal.
pub(super) fn refusals() -> [(&'static str, Refusal); 19] {
    let (max, min) = (Duration::from_mins(1), Duration::from_millis(100));
    [
        ("denied-queue-full", Refusal::QueueFull),
        ("denied-session-limit", Refusal::SessionLimit),
        ("denied-request-limit", Refusal::RequestLimit),
        ("denied-lock-limit", Refusal::LockLimit),
        ("denied-client-limit", Refusal::ClientLimit),
        (
            "denied-stale-config",
            Refusal::StaleConfig { node: config() },
        ),
        ("denied-old-connection", Refusal::OldConnection),
        (
            "denied-priority-ahead",
            Refusal::PriorityAhead { clock: CLOCK },
        ),
        ("denied-token-ahead", Refusal::TokenAhead),
        ("denied-token-above-limit", Refusal::TokenAboveLimit),
        ("denied-ttl-too-long", Refusal::TtlTooLong { max }),
        ("denied-ttl-too-short", Refusal::TtlTooShort { min }),
        ("denied-size", Refusal::Size),
        ("denied-finished", Refusal::Finished),
        ("denied-no-handles", Refusal::NoHandles),
        ("denied-unfit", Refusal::Unfit),
        ("denied-not-permitted", Refusal::NotPermitted),
        ("denied-revoked", Refusal::Revoked),
        ("denied-watch-limit", Refusal::WatchLimit),
    ]
}

fn facts() -> Facts {
    let pairs = [("epoch", "3"), ("quorum", "majority"), ("groups", "")];
    let pairs = pairs.map(|(field, value)| (field.to_owned(), value.to_owned()));
    Facts::from(pairs)
}

/// Greetings of a client and of a node.
pub(super) fn greetings() -> Vec<(&'static str, Greeting)> {
    let client = Greeting {
        version: 1,
        role: Role::Client,
        target: NodeId(0),
        process: 0x0102_0304,
        digest: config().digest,
        facts: facts(),
        credential: None,
        service: Service::Locks,
    };
    let keeper = Greeting {
        service: Service::Keeper,
        ..client.clone()
    };
    let credential = Greeting {
        credential: Credential::new(b"cct_0123456789abcdef"),
        ..client.clone()
    };
    let node = Greeting {
        role: Role::Node(NodeId(0)),
        target: NodeId(4),
        facts: Facts::new(),
        ..client.clone()
    };
    vec![
        ("greeting-client", client),
        ("greeting-credential", credential),
        ("greeting-node", node),
        ("greeting-keeper", keeper),
    ]
}

/// Replies with every rejection and with none.
pub(super) fn replies() -> Vec<(&'static str, Reply)> {
    let reply = |refusal| Reply {
        version: 1,
        node: NodeId(3),
        process: 0x0102_0304,
        refusal,
    };
    let node = NodeId(0);
    let facts = facts();
    vec![
        ("reply-accepted", reply(None)),
        ("reply-version", reply(Some(Rejection::Version { node: 2 }))),
        (
            "reply-other-node",
            reply(Some(Rejection::OtherNode { node })),
        ),
        ("reply-twin", reply(Some(Rejection::Twin { node }))),
        ("reply-config", reply(Some(Rejection::Config { facts }))),
        ("reply-full", reply(Some(Rejection::Full))),
        ("reply-credential", reply(Some(Rejection::Credential))),
        (
            "reply-identity",
            reply(Some(Rejection::Identity {
                why: "the certificate is that of node/2".to_owned(),
            })),
        ),
        (
            "reply-service",
            reply(Some(Rejection::Service {
                why: "it keeps no objects".to_owned(),
            })),
        ),
    ]
}

fn stored(entered: bool) -> StoredGrant {
    StoredGrant {
        ask: other_ask(),
        session: info(),
        client: CLIENT,
        grant: GrantNo(5),
        floor: Token(6),
        limit: Token(7),
        named: Token(8),
        entered,
    }
}

/// Records of every kind.
pub(super) fn records() -> Vec<(&'static str, Record)> {
    let snapshot = Snapshot {
        grants: vec![stored(true), stored(false)],
        floor: Token(10),
        grant: GrantNo(11),
    };
    vec![
        (
            "record-incarnation",
            Record::Incarnation(Incarnation(CLOCK.0)),
        ),
        ("record-ceiling", Record::Ceiling(Token(0))),
        (
            "record-longest-ttl",
            Record::LongestTtl(Duration::from_mins(1)),
        ),
        ("record-default-floor", Record::DefaultFloor(Token(CLOCK.0))),
        ("record-clean", Record::Clean(Box::new(snapshot))),
        ("record-clean-empty", Record::Clean(Box::default())),
        ("record-unclean", Record::Unclean),
        ("record-grant", Record::Grant(Box::new(stored(true)))),
        (
            "record-grant-ended",
            Record::GrantEnded(SESSION, RequestNo(300)),
        ),
    ]
}

/// A handle.
pub(super) fn handle() -> Handle {
    let member = |node| {
        (
            NodeId(node),
            Incarnation(CLOCK.0),
            GrantNo(u64::from(node) * 1000),
        )
    };
    Handle {
        config: config(),
        ask: ask(Mode::group("gpu"), Bond::Detached),
        token: Token(CLOCK.0 + 1),
        ttl: Duration::from_secs(10),
        grants: vec![member(0), member(2), member(4)],
    }
}
