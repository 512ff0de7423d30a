//! Every limit is reached once, refused by its name, and leaves the rest unharmed.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod harness;

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::Wall;
use conclave_protocol::id::{
    ClientId, ConnNo, Key, LinkId, Name, NodeId, RequestNo, SessionId, Token,
};
use conclave_protocol::lock::{
    Acquire, Ask, Bond, Claim, ClientInput, Config, ConfigId, Ended, Entered, Limits, Message,
    Mode, NodeInput, Policy, Protocol, Refusal, Resume, SessionInfo, Start,
};
use harness::raw::{Raw, ask, done, no_grant, open, refused, request};
use harness::{Cluster, EPOCH, config};

const TTL: Duration = Duration::from_secs(10);

/// A node with these limits, a client connected on link 1, and its session 1.
fn node(limits: Limits) -> Raw {
    let mut shared = config("singleton(1)", &[]);
    shared.limits = limits;
    let mut raw = Raw::new(shared);
    raw.hello(1, 1, 1);
    raw.say(1, open(1, TTL, false));
    raw
}

#[test]
fn a_full_queue_is_refused_and_takes_again_when_one_leaves() {
    let mut raw = node(Limits {
        queue: 2,
        ..Limits::default()
    });
    let asks: Vec<Arc<Ask>> = (1..=3).map(|number| ask("a", 1, number)).collect();
    for ask in &asks[..2] {
        assert_eq!(refused(&raw.say(1, request(ask))), None);
    }
    let full = raw.say(1, request(&asks[2]));
    assert_eq!(refused(&full), Some(Refusal::QueueFull));
    raw.say(1, done(&asks[1], None));
    assert_eq!(refused(&raw.say(1, request(&asks[2]))), None);
}

#[test]
fn sessions_requests_locks_and_clients_are_limited() {
    let mut raw = node(Limits {
        sessions_per_client: 2,
        requests_per_client: 3,
        locks: 1,
        idle_locks: 1,
        clients: 2,
        ..Limits::default()
    });
    assert_eq!(refused(&raw.say(1, open(2, TTL, false))), None);
    let third = raw.say(1, open(3, TTL, false));
    assert_eq!(refused(&third), Some(Refusal::SessionLimit));
    assert_eq!(refused(&raw.say(1, request(&ask("a", 1, 1)))), None);
    assert_eq!(refused(&raw.say(1, request(&ask("b", 1, 2)))), None);
    let another = raw.say(1, request(&ask("c", 1, 3)));
    assert_eq!(refused(&another), Some(Refusal::LockLimit));
    assert_eq!(refused(&raw.say(1, request(&ask("a", 1, 4)))), None);
    let fourth = raw.say(1, request(&ask("a", 1, 5)));
    assert_eq!(refused(&fourth), Some(Refusal::RequestLimit));
    assert_eq!(refused(&raw.hello(2, 2, 1)), None);
    assert_eq!(refused(&raw.hello(3, 3, 1)), Some(Refusal::ClientLimit));
    assert_eq!(raw.closed, [LinkId(3)]);
}

#[test]
fn detached_sessions_without_requests_are_limited_too() {
    let mut raw = node(Limits {
        sessions_per_client: 3,
        ..Limits::default()
    });
    for session in 100..200 {
        raw.say(1, open(session, TTL, true));
    }
    assert!(raw.node.kept()[1] <= 4, "{:?}", raw.node.kept());
}

#[test]
fn stale_configurations_and_old_connections_are_turned_away() {
    let mut raw = node(Limits::default());
    let stale = Message::Hello {
        client: ClientId(9),
        conn: ConnNo(1),
        config: ConfigId {
            epoch: 7,
            ..ConfigId::default()
        },
    };
    let node = ConfigId::default();
    let answer = raw.say(2, stale);
    assert_eq!(refused(&answer), Some(Refusal::StaleConfig { node }));
    assert_eq!(refused(&raw.hello(3, 1, 1)), Some(Refusal::OldConnection));
    assert_eq!(raw.closed, [LinkId(2), LinkId(3)]);
    // The newer one replaces the old one, whose late bytes are not read.
    assert_eq!(refused(&raw.hello(4, 1, 2)), None);
    assert_eq!(raw.say(1, request(&ask("a", 1, 1))), []);
    assert_eq!(raw.node.kept()[0], 0);
}

#[test]
fn a_priority_from_the_future_is_refused_with_the_clock() {
    let mut raw = node(Limits::default());
    let mut far = (*ask("a", 1, 1)).clone();
    far.priority.t = EPOCH + 60_000_001;
    let answer = raw.say(1, request(&Arc::new(far.clone())));
    let clock = raw.now.wall;
    assert_eq!(refused(&answer), Some(Refusal::PriorityAhead { clock }));
    far.priority.t = EPOCH + 60_000_000;
    assert_eq!(refused(&raw.say(1, request(&Arc::new(far)))), None);
}

#[test]
fn a_requester_recovers_from_a_node_that_lags_behind() {
    for lagging in 0..2 {
        let mut cluster = Cluster::new(config("majority(2)", &[]), 1);
        cluster.stall_nodes(0, 1, true);
        cluster.stall_nodes(1, 0, true);
        cluster.lags[lagging] = Duration::from_mins(5);
        cluster.start_node(lagging, Start::Init);
        // It hears the other clock first, and asks by it.
        cluster.wires.stall(0, lagging, true, true);
        cluster.acquire(0, 1, "a", Mode::Exclusive);
        cluster.settle();
        cluster.wires.stall(0, lagging, true, false);
        cluster.pass(Duration::from_secs(3));
        assert_eq!(cluster.count(&["DENIED"]), 1);
        assert!(cluster.is_inside(0, 1, "a"), "node {lagging} lags");
        let ask = cluster.clients[0].ask(Key(1), &Name::new("a"));
        assert_eq!(ask.unwrap().request, RequestNo(2), "a new request");
    }
}

#[test]
fn tokens_far_ahead_are_refused() {
    let mut raw = node(Limits::default());
    let (grant, floor, limit) = raw.grant(1, &ask("a", 1, 1)).unwrap();
    let day = 24 * 3600 * 1_000_000;
    let raise = |token| Message::Raise { grant, token };
    // The bound lies a day above the clock, and no raise lifts it.
    let clock = raw.now.wall;
    let bound = Token(clock.0 + day);
    for token in [bound.0 + 1, limit.0 + 2 * day, u64::MAX] {
        let far = raw.say(1, raise(Token(token)));
        assert_eq!(refused(&far), Some(Refusal::TokenAhead { clock }));
        assert_eq!(refused(&raw.say(1, raise(bound))), None);
    }
    assert!(floor < limit);
    assert_eq!(raw.node.highest_token(), bound);
}

/// The clock that bounds tokens runs on when the wall clock is set back, and hears other nodes.
#[test]
fn the_token_clock_never_goes_back() {
    let mut raw = Raw::new(config("majority(3)", &[]));
    raw.now.mono = raw.now.mono + Duration::from_secs(3);
    raw.now.wall = Wall(0);
    raw.input(NodeInput::Wake);
    assert_eq!(raw.node.token_clock(), Wall(EPOCH + 3_000_000));
    for (clock, shown) in [
        (5, EPOCH + 3_000_000),
        (EPOCH + 9_000_000, EPOCH + 9_000_000),
        ((1 << 62) + 1, EPOCH + 9_000_000),
    ] {
        let told = Message::TokenClock {
            clock: Wall(clock),
            asks: false,
        };
        raw.input(NodeInput::Peer(NodeId(1), told));
        assert_eq!(raw.node.token_clock(), Wall(shown), "{clock}");
    }
    raw.now.wall = Wall(u64::MAX);
    raw.input(NodeInput::Wake);
    assert!(raw.node.ignores_wall_clock());
    assert_eq!(raw.node.token_clock(), Wall(EPOCH + 9_000_000));
}

/// A node whose clock is days behind and that hears nobody refuses what others gave out. It is
/// tried for a while, then left, avoided and named; the lock is had without it.
#[test]
fn a_node_that_goes_on_refusing_tokens_is_avoided_and_named() {
    let mut cluster = Cluster::new(config("majority(3)", &[]), 1);
    for other in [1, 2] {
        cluster.stall_nodes(0, other, true);
        cluster.stall_nodes(other, 0, true);
    }
    cluster.lags[0] = Duration::from_hours(48);
    cluster.start_node(0, Start::Init);
    let mut refused = 0;
    for key in 1..=6 {
        let name = format!("lock {key}");
        cluster.acquire(0, key, &name, Mode::Exclusive);
        cluster.pass(Duration::from_millis(400));
        assert!(cluster.is_inside(0, key, &name), "{name}");
        let denied = cluster.count(&["DENIED"]);
        refused = refused.max(denied);
    }
    assert!(refused >= 10, "it was tried {refused} times");
    let health = cluster.clients[0].nodes();
    let named: Vec<_> = health.iter().map(|node| node.refuses_tokens).collect();
    assert!(named[0].is_some(), "{named:?}");
    assert_eq!(named[1..], [None, None]);
    // Once it hears the others it takes part again.
    for other in [1, 2] {
        cluster.stall_nodes(0, other, false);
        cluster.stall_nodes(other, 0, false);
    }
    cluster.pass(Duration::from_secs(3));
    for key in 11..=16 {
        cluster.acquire(0, key, &format!("late {key}"), Mode::Exclusive);
        cluster.pass(Duration::from_millis(100));
    }
    assert_eq!(cluster.clients[0].nodes()[0].refuses_tokens, None);
}

#[test]
fn a_done_above_its_limit_counts_as_the_limit() {
    let mut raw = node(Limits::default());
    let first = ask("a", 1, 1);
    let (_, _, limit) = raw.grant(1, &first).unwrap();
    let answer = raw.say(1, done(&first, Some(limit.0 + 5)));
    assert_eq!(refused(&answer), Some(Refusal::TokenAboveLimit));
    let (_, floor, _) = raw.grant(1, &ask("a", 1, 2)).unwrap();
    assert_eq!(floor, limit);
}

#[test]
fn an_entered_above_its_limit_is_refused() {
    let mut raw = node(Limits::default());
    let (grant, _, limit) = raw.grant(1, &ask("a", 1, 1)).unwrap();
    let entered = |token| {
        Message::Entered(Box::new(Entered {
            grant,
            token,
            note: None,
            edition: 0,
        }))
    };
    let answer = raw.say(1, entered(Token(limit.0 + 1)));
    assert_eq!(refused(&answer), Some(Refusal::TokenAboveLimit));
    assert_eq!(raw.say(1, entered(limit)), [Message::Noted(grant)]);
}

#[test]
fn a_poisoned_hint_is_ignored_and_an_honest_one_is_not() {
    let mut raw = node(Limits::default());
    let limit_with = |raw: &mut Raw, number: u64, hint: u64| {
        let ask = ask(format!("lock {number}"), 1, number);
        let request = Message::Request {
            ask,
            hint: Token(hint),
            inside: None,
        };
        raw.say(1, request).into_iter().find_map(|one| match one {
            Message::Locked { limit, .. } => Some(limit.0),
            _ => None,
        })
    };
    let plain = limit_with(&mut raw, 1, 0).unwrap();
    assert_eq!(limit_with(&mut raw, 2, u64::MAX), Some(plain));
    let honest = plain + 3_600_000_000;
    assert!(limit_with(&mut raw, 3, honest).unwrap() > honest);
}

#[test]
fn lifetimes_and_sizes_are_checked_by_node_and_client() {
    let mut raw = node(Limits::default());
    let times = config("singleton(1)", &[]).times;
    let max = times.ttl_max;
    let long = raw.say(1, open(2, max + Duration::from_millis(1), false));
    assert_eq!(refused(&long), Some(Refusal::TtlTooLong { max }));
    let min = times.ttl_min;
    let short = raw.say(
        1,
        open(2, min.checked_sub(Duration::from_millis(1)).unwrap(), false),
    );
    assert_eq!(refused(&short), Some(Refusal::TtlTooShort { min }));
    let owner = Message::Open(SessionInfo {
        session: SessionId(2),
        ttl: TTL,
        detached: false,
        owner: "o".repeat(257).into(),
        principal: Arc::default(),
    });
    assert_eq!(refused(&raw.say(1, owner)), Some(Refusal::Size));
    for name in [String::new(), "n".repeat(1025)] {
        let answer = raw.say(1, request(&ask(name, 1, 1)));
        assert_eq!(refused(&answer), Some(Refusal::Size));
    }
    let mut wide = (*ask("a", 1, 1)).clone();
    wide.mode = Mode::group(vec![7; 257]);
    assert_eq!(
        refused(&raw.say(1, request(&Arc::new(wide)))),
        Some(Refusal::Size)
    );
    let (grant, ..) = raw.grant(1, &ask("a", 1, 1)).unwrap();
    let entered = Entered {
        grant,
        token: Token(0),
        note: Some(vec![1; 4097].into()),
        edition: 0,
    };
    let noted = raw.say(1, Message::Entered(Box::new(entered)));
    assert_eq!(refused(&noted), Some(Refusal::Size));

    let mut cluster = Cluster::new(config("majority(3)", &[]), 1);
    let wish = |name: &str, ttl| Acquire::new(Name::new(name), Mode::Exclusive, ttl);
    for (key, wish, why) in [
        (1, wish("", TTL), Refusal::Size),
        (2, wish(&"n".repeat(1025), TTL), Refusal::Size),
        (3, wish("a", max * 2), Refusal::TtlTooLong { max }),
        (4, wish("a", min / 2), Refusal::TtlTooShort { min }),
    ] {
        cluster.client(0, ClientInput::Acquire(Key(key), wish));
        assert_eq!(cluster.ended(0, key), Some(Ended::Refused(why)));
    }
}

#[test]
fn more_locks_at_once_than_allowed_are_refused() {
    let mut cluster = Cluster::new(config("majority(3)", &[]), 1);
    let wishes = |count: u32| {
        let name = |number: u32| Name::new(format!("{number}"));
        let wish = |number| Acquire::new(name(number), Mode::Exclusive, TTL);
        (0..count).map(wish).collect::<Vec<_>>()
    };
    cluster.client(0, ClientInput::AcquireAll(Key(1), wishes(65)));
    let size = Ended::Refused(Refusal::Size);
    assert_eq!(cluster.ended(0, 1), Some(size));
    cluster.client(0, ClientInput::AcquireAll(Key(2), wishes(64)));
    cluster.drain();
    assert_eq!(cluster.ended(0, 2), None);
    assert!(cluster.is_inside(0, 2, "63"));
}

#[test]
fn tombstones_are_bounded_in_number_and_time() {
    let mut raw = node(Limits {
        tombstones: 10,
        ..Limits::default()
    });
    for session in 0..100 {
        let finish = Message::Finish {
            session: SessionId(session),
            request: RequestNo(1),
            token: None,
        };
        raw.say(1, finish);
        assert!(raw.node.kept()[3] <= 10);
    }
    assert_eq!(raw.node.kept()[3], 10);
    raw.pass(Duration::from_mins(2));
    assert_eq!(raw.node.kept()[3], 0);
}

#[test]
fn a_resume_larger_than_allowed_ends_the_connection() {
    let limits = Limits {
        requests_per_client: 2,
        ..Limits::default()
    };
    let mut raw = node(limits);
    raw.grant(1, &ask("a", 1, 1)).unwrap();
    raw.hello(2, 1, 2);
    let claim = |number| Claim {
        ask: ask("b", 1, number),
        hint: Token(0),
        seen: no_grant(&ask("b", 1, 1)).grant,
        holding: false,
        inside: None,
        raising: None,
        fresh: false,
        members: Vec::new(),
    };
    let part = |numbers: &[u64]| {
        Message::Resume(Box::new(Resume {
            live: numbers.iter().map(|number| claim(*number)).collect(),
            ..Resume::default()
        }))
    };
    assert_eq!(raw.say(2, part(&[2, 3])), [], "a part is not an answer");
    let answer = raw.say(2, part(&[4]));
    assert_eq!(refused(&answer), Some(Refusal::RequestLimit));
    assert_eq!(raw.closed, [LinkId(1), LinkId(2)]);
}

fn detached(session: u128, number: u64) -> Arc<Ask> {
    let mut ask = (*ask("a", session, number)).clone();
    ask.bond = Bond::Detached;
    Arc::new(ask)
}

#[test]
fn a_tombstone_stops_a_late_request() {
    let mut raw = node(Limits::default());
    let late = detached(77, 1);
    let finish = Message::Finish {
        session: late.session,
        request: late.request,
        token: None,
    };
    assert_eq!(raw.say(1, finish), []);
    raw.say(1, open(77, TTL, true));
    let answers = raw.say(1, request(&late));
    assert!(
        !answers.iter().any(|one| one.kind() == "LOCKED"),
        "{answers:?}"
    );
    assert_eq!(raw.node.kept()[0], 0);
    // Another attempt of the same session is another request.
    assert!(raw.grant(1, &detached(77, 2)).is_some());
}

/// A cluster of three nodes and three gateways; gateway 0 has handed out a handle.
fn with_handle() -> Cluster {
    let mut cluster = Cluster::new(config("majority(3)", &[]), 3);
    cluster.acquire_detached(0, 1, "a", Mode::Exclusive, 5);
    cluster.drain();
    assert!(cluster.handle(0, 1).is_some());
    cluster
}

fn keep(cluster: &mut Cluster, gateway: usize, key: u64, handle: &conclave_protocol::lock::Handle) {
    let input = ClientInput::Keep(Key(key), Box::new(handle.clone()), Arc::default());
    cluster.client(gateway, input);
}

fn finish(
    cluster: &mut Cluster,
    gateway: usize,
    key: u64,
    handle: &conclave_protocol::lock::Handle,
) {
    let input = ClientInput::Finish(Key(key), Box::new(handle.clone()));
    cluster.client(gateway, input);
}

fn free(cluster: &Cluster) -> bool {
    cluster
        .nodes
        .iter()
        .flatten()
        .all(|node| node.kept()[0] == 0)
}

/// A gateway takes a lock and stands still before it has said so. Its caller asks another one
/// under the same name, and is granted by other nodes. The release reaches them all.
#[test]
fn a_release_ends_what_a_gateway_took_that_stands_still() {
    let mut differed = 0;
    for victim in 0..3 {
        let mut cluster = Cluster::new(config("majority(3)", &[]), 3);
        let named = |cluster: &mut Cluster, gateway: usize| {
            let mut wish = Acquire::new(Name::new("a"), Mode::Exclusive, Duration::from_secs(10));
            wish.detach = Some((SessionId(7), true));
            cluster.client(gateway, ClientInput::Acquire(Key(1), wish));
            cluster.pass(Duration::from_secs(2));
            let handle = cluster.handle(gateway, 1).expect("the lock");
            let nodes: Vec<_> = handle.grants.iter().map(|(node, ..)| *node).collect();
            (handle, nodes)
        };
        cluster.crash(victim);
        let (_, first) = named(&mut cluster, 0);
        cluster.restart(victim);
        cluster.pass(Duration::from_secs(2));
        let (handle, second) = named(&mut cluster, 1);
        differed += usize::from(first != second);
        finish(&mut cluster, 2, 2, &handle);
        cluster.drain();
        assert!(free(&cluster), "{first:?} is not in {second:?}");
    }
    assert!(differed > 0, "the attempts rest on different nodes");
}

#[test]
fn a_handle_is_renewed_by_two_gateways_at_once_and_released_twice() {
    let mut cluster = with_handle();
    let handle = cluster.handle(0, 1).unwrap();
    for _ in 0..5 {
        cluster.pass(Duration::from_secs(4));
        let key = 10 + cluster.now.mono.nanos();
        keep(&mut cluster, 1, key, &handle);
        keep(&mut cluster, 2, key, &handle);
        cluster.pass(Duration::from_secs(1));
        assert_eq!(cluster.handle(1, key), Some(handle.clone()));
        assert_eq!(cluster.handle(2, key), Some(handle.clone()));
    }
    finish(&mut cluster, 1, 2, &handle);
    finish(&mut cluster, 2, 2, &handle);
    cluster.drain();
    assert_eq!(cluster.ended(1, 2), Some(Ended::Released));
    assert_eq!(cluster.ended(2, 2), Some(Ended::Released));
    assert!(free(&cluster));
    keep(&mut cluster, 1, 3, &handle);
    cluster.pass(Duration::from_secs(2));
    assert_eq!(cluster.handle(1, 3), None, "released is released");
    assert!(cluster.ended(1, 3).is_some());
    assert!(free(&cluster), "a late renewal brings nothing back");
}

/// A gateway whose answer never arrived gives up its own attempt; what a retry of the same caller
/// got elsewhere stays.
#[test]
fn an_abandoned_handle_ends_its_own_attempt_and_no_other() {
    for named in [true, false] {
        let mut cluster = Cluster::new(config("majority(3)", &[]), 3);
        for (gateway, session) in [(0, 5), (1, if named { 5 } else { 6 })] {
            let mode = if named { Mode::Exclusive } else { Mode::Shared };
            let ttl = Duration::from_secs(10);
            let mut wish = Acquire::new(Name::new("a"), mode, ttl);
            wish.detach = Some((SessionId(session), named));
            wish.owner = Some("thin".into());
            cluster.client(gateway, ClientInput::Acquire(Key(1), wish));
            cluster.drain();
        }
        let first = cluster.handle(0, 1).unwrap();
        let retry = cluster.handle(1, 1).unwrap();
        let abandon = ClientInput::Abandon(Key(2), Box::new(first.clone()));
        cluster.client(0, abandon);
        cluster.drain();
        assert_eq!(cluster.ended(0, 2), Some(Ended::Released));
        keep(&mut cluster, 2, 7, &retry);
        cluster.pass(Duration::from_secs(1));
        assert_eq!(cluster.handle(2, 7), Some(retry.clone()), "named: {named}");
        assert!(!free(&cluster));
        finish(&mut cluster, 2, 8, &retry);
        cluster.drain();
        assert!(
            free(&cluster),
            "named: {named}: the first was not held any more"
        );
    }
}

#[test]
fn a_handle_that_comes_too_late_does_not_hold_what_another_had() {
    let mut cluster = with_handle();
    let handle = cluster.handle(0, 1).unwrap();
    cluster.acquire(1, 1, "a", Mode::Exclusive);
    cluster.pass(Duration::from_secs(9));
    assert!(!cluster.is_inside(1, 1, "a"));
    cluster.pass(Duration::from_secs(2));
    assert!(cluster.is_inside(1, 1, "a"), "its time is over");
    assert!(cluster.entered(1, 1).unwrap() > handle.token);
    cluster.release(1, 1);
    cluster.drain();
    keep(&mut cluster, 2, 1, &handle);
    cluster.pass(Duration::from_secs(2));
    assert_eq!(cluster.handle(2, 1), None);
    assert_eq!(cluster.ended(2, 1), Some(Ended::NotHeld));
}

#[test]
fn a_handle_with_an_old_grant_number_is_refused_by_its_node() {
    let mut raw = node(Limits::default());
    raw.say(1, open(5, TTL, true));
    let ask = detached(5, 1);
    let (mut grant, _, limit) = raw.grant(1, &ask).unwrap();
    let entered = Entered {
        grant,
        token: limit,
        note: None,
        edition: 0,
    };
    raw.say(1, Message::Entered(Box::new(entered)));
    let keep = |grant| Message::Keepalive {
        grant,
        token: limit,
    };
    assert_eq!(raw.say(1, keep(grant)), [Message::Kept(grant)]);
    grant.grant.0 -= 1;
    let answers = raw.say(1, keep(grant));
    assert!(matches!(answers[..], [Message::Dead { .. }]), "{answers:?}");
}

#[test]
fn a_handle_moves_to_other_nodes_and_the_old_one_still_releases() {
    let mut cluster = with_handle();
    let old = cluster.handle(0, 1).unwrap();
    let gone = old.grants[0].0.index();
    cluster.crash(gone);
    keep(&mut cluster, 1, 1, &old);
    cluster.pass(Duration::from_secs(3));
    let new = cluster.handle(1, 1).expect("renewed");
    assert_ne!(new.grants, old.grants);
    assert_eq!(new.ask, old.ask);
    finish(&mut cluster, 2, 1, &old);
    cluster.drain();
    // The node that both handles name has let it go: the new handle holds no quorum any more.
    cluster.acquire(0, 2, "a", Mode::Exclusive);
    cluster.pass(Duration::from_secs(12));
    assert!(cluster.is_inside(0, 2, "a"));
    keep(&mut cluster, 1, 2, &new);
    cluster.pass(Duration::from_secs(2));
    assert_eq!(cluster.handle(1, 2), None);
}

#[test]
fn a_handle_of_another_configuration_is_not_held() {
    let mut cluster = with_handle();
    let mut handle = cluster.handle(0, 1).unwrap();
    handle.config.epoch += 1;
    keep(&mut cluster, 1, 1, &handle);
    assert_eq!(cluster.ended(1, 1), Some(Ended::NotHeld));
    // Nodes that do not exist are no reason to fall over.
    handle.config.epoch -= 1;
    handle.grants[0].0.0 = 1000;
    keep(&mut cluster, 1, 2, &handle);
    assert_eq!(cluster.ended(1, 2), Some(Ended::NotHeld));
    finish(&mut cluster, 1, 3, &handle);
    cluster.drain();
    assert_eq!(cluster.ended(1, 3), Some(Ended::Released));
}

/// What a node keeps is bounded by its limits, however many names were used.
#[test]
fn names_are_forgotten() {
    let mut shared: Config = config("singleton(1)", &[]);
    shared.limits.idle_locks = 100;
    shared.observe = false;
    let mut raw = Raw::new(shared);
    raw.hello(1, 1, 1);
    raw.say(1, open(1, TTL, false));
    let mut first = None;
    for number in 1..=200_000 {
        let ask = ask(format!("lock number {number}"), 1, number);
        let (_, floor, _) = raw.grant(1, &ask).unwrap();
        raw.say(1, done(&ask, Some(floor.0 + 1)));
        if number % 1000 == 0 {
            assert_eq!(raw.node.kept(), [0, 1, 1, 0]);
        }
        first.get_or_insert(floor);
    }
    // The names are gone, their tokens are not: the default floor has grown past them.
    let (_, floor, _) = raw.grant(1, &ask("lock number 1", 1, 300_000)).unwrap();
    assert!(floor > first.unwrap());
    let known = |number: u64| raw.node.view(&Name::new(format!("lock number {number}")));
    let kept = (2..=200_000).filter(|number| known(*number).is_some());
    assert!(kept.count() <= 100);
}

/// A serial hold cannot move, so it has no handle; the client says so before anything is sent.
#[test]
fn a_serial_lock_has_no_handles() {
    let mut shared: Config = config("majority(3)", &[]);
    let serial = Policy {
        protocol: Protocol::Serial,
        ..Policy::default()
    };
    shared.policies.push((b"serial/".to_vec(), serial));
    let mut cluster = Cluster::new(shared, 1);
    let mut wish = Acquire::new(Name::new("serial/a"), Mode::Exclusive, TTL);
    wish.detach = Some((SessionId(77), false));
    cluster.client(0, ClientInput::Acquire(Key(1), wish.clone()));
    assert_eq!(
        cluster.ended(0, 1),
        Some(Ended::Refused(Refusal::NoHandles))
    );
    wish.name = Name::new("parallel/a");
    cluster.client(0, ClientInput::Acquire(Key(2), wish));
    cluster.pass(Duration::from_secs(1));
    assert!(cluster.handle(0, 2).is_some());
}
