//! One value or more of every kind, the same for ever: the golden files are made of them.

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::Wall;
use conclave_protocol::id::{
    ClientId, ConnNo, GrantNo, Incarnation, Name, NodeId, RequestNo, SessionId, Token, WatchNo,
};
use conclave_protocol::lease::{Attempt, LeaseHandle, Secret};
use conclave_protocol::lock::{
    Ask, Bond, Carried, Claim, ConfigId, Entered, Finished, GrantRef, Group, Handle, Holder,
    Message, Mode, NotNow, Priority, Record, Recovered, Refusal, Report, Resume, SessionInfo,
    Sight, Snapshot, StoredConfig, StoredGrant, StoredRevocation, Travel, Watch,
};
use conclave_protocol::membership::{Stage, Standing};

use crate::cluster::Facts;
use crate::greeting::{Credential, Greeting, Rejection, Reply, Role, Service};
use crate::version::{SPOKEN, VersionMismatch, VersionRange};

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
        members: Vec::new(),
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
        inside: None,
    };
    let grouped = Message::Request {
        ask: other_ask(),
        hint: Token(0),
        inside: Some(Vec::new()),
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

/// Messages, and fields of messages, that came after the first conversation was written.
pub(super) fn later_messages() -> Vec<(&'static str, Message)> {
    let clock = CLOCK;
    let mut answer = recovered();
    answer.clock = clock;
    let mut moves = claim();
    moves.members = vec![NodeId(0), NodeId(9_999)];
    let moves = Resume {
        live: vec![moves],
        last: true,
        ..Resume::default()
    };
    vec![
        (
            "request-members",
            Message::Request {
                ask: other_ask(),
                hint: Token(0),
                inside: Some(vec![NodeId(0), NodeId(9_999)]),
            },
        ),
        ("resume-members", Message::Resume(Box::new(moves))),
        ("confirm-grant", Message::ConfirmGrant(other_ask())),
        ("grant-confirmed", confirmed(Some(true))),
        ("grant-confirmed-not", confirmed(Some(false))),
        ("grant-confirmed-unsure", confirmed(None)),
        ("token-clock", Message::TokenClock { clock, asks: true }),
        ("recovered-clock", Message::Recovered(answer)),
        (
            "denied-token-ahead-clock",
            Message::Denied {
                session: SESSION,
                request: Some(RequestNo(300)),
                why: Refusal::TokenAhead { clock },
            },
        ),
    ]
}

fn confirmed(granted: Option<bool>) -> Message {
    Message::GrantConfirmed {
        session: SESSION,
        request: RequestNo(300),
        granted,
    }
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
        clock: Wall(0),
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
        ("denied-token-ahead", Refusal::TokenAhead { clock: Wall(0) }),
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
        versions: VersionRange::only(1),
        role: Role::Client,
        target: NodeId(0),
        process: 0x0102_0304,
        digest: config().digest,
        facts: facts(),
        credential: None,
        service: Service::Locks,
    };
    let range = Greeting {
        versions: VersionRange::new(1, 9),
        ..client.clone()
    };
    let keeper = Greeting {
        service: Service::Keeper,
        ..client.clone()
    };
    let change = Greeting {
        role: Role::Node(NodeId(2)),
        service: Service::Change,
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
        ("greeting-versions", range),
        ("greeting-credential", credential),
        ("greeting-node", node),
        ("greeting-keeper", keeper),
        ("greeting-change", change),
    ]
}

/// Replies with every rejection and with none.
pub(super) fn replies() -> Vec<(&'static str, Reply)> {
    let reply = |refusal| Reply {
        version: 1,
        node: NodeId(3),
        process: 0x0102_0304,
        refusal,
        standing: None,
    };
    let standing = Reply {
        standing: Some(Standing {
            config: config(),
            stage: Stage::Waited,
            floor: Token(CLOCK.0),
            mark: Token(8),
            objects: 2,
            before: 3,
            life: Incarnation(CLOCK.0),
        }),
        ..reply(None)
    };
    let node = NodeId(0);
    let facts = facts();
    vec![
        ("reply-accepted", reply(None)),
        ("reply-standing", standing),
        (
            "reply-version",
            reply(Some(Rejection::Version(VersionMismatch {
                opener: SPOKEN,
                node: VersionRange::only(2),
            }))),
        ),
        (
            "reply-versions",
            reply(Some(Rejection::Version(VersionMismatch {
                opener: SPOKEN,
                node: VersionRange::new(2, 9),
            }))),
        ),
        (
            "reply-later-reason",
            reply(Some(Rejection::Other {
                code: 99,
                why: "a reason of later builds".to_owned(),
            })),
        ),
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

/// A revocation.
fn revocation() -> StoredRevocation {
    StoredRevocation {
        session: SESSION,
        by: "ops".into(),
        known: true,
    }
}

fn stored_config() -> StoredConfig {
    StoredConfig {
        id: config(),
        text: "name = \"one\"\n".into(),
        before: 3,
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
        (
            "record-ceiling",
            Record::Ceiling {
                ceiling: Token(0),
                clock: Wall(0),
            },
        ),
        (
            "record-ceiling-clock",
            Record::Ceiling {
                ceiling: Token(CLOCK.0 + 1),
                clock: CLOCK,
            },
        ),
        (
            "record-longest-ttl",
            Record::LongestTtl(Duration::from_mins(1)),
        ),
        ("record-default-floor", Record::DefaultFloor(Token(CLOCK.0))),
        ("record-clean", Record::Clean(Box::new(snapshot))),
        ("record-clean-empty", Record::Clean(Box::default())),
        ("record-revoked", Record::Revoked(Box::new(revocation()))),
        ("record-revocation-ended", Record::RevocationEnded(SESSION)),
        ("record-unclean", Record::Unclean),
        ("record-grant", Record::Grant(Box::new(stored(true)))),
        (
            "record-grant-ended",
            Record::GrantEnded(SESSION, RequestNo(300)),
        ),
        ("record-config", Record::Config(Box::new(stored_config()))),
        (
            "record-adopting",
            Record::Adopting(Box::new(stored_config())),
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

/// A handle of a lease, and the configuration that it is of.
pub(super) fn lease_handle() -> (ConfigId, LeaseHandle) {
    let secret = |node: u32| (NodeId(node), Secret([node as u8 + 1; 32]));
    let handle = LeaseHandle {
        name: Name::new("reports/daily"),
        attempt: Attempt {
            client: ClientId(77),
            number: 1 << 40,
        },
        token: Token(CLOCK.0 + 1),
        span: Duration::from_secs(5),
        attempts: 2,
        secrets: vec![secret(0), secret(2), secret(3)],
    };
    (config(), handle)
}
