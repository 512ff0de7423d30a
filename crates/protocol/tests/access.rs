//! Who may do what at a node, whatever is claimed; and sessions that an operator revokes.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod harness;

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::{Key, LinkId, Name, SessionId, Token, WatchNo};
use conclave_protocol::lock::{
    Access, Action, Ask, Bond, Claim, Ended, Entered, GrantRef, Message, Mode, NodeInput, Refusal,
    Restart, Resume, Rule, SessionInfo, Sight, Watch, Who,
};
use harness::raw::{Raw, ask, done, open, refused, request};
use harness::{Cluster, config};

const TTL: Duration = Duration::from_secs(2);

fn node() -> Raw {
    Raw::new(config("majority(3)", &[]))
}

/// Connects as somebody.
fn arrive(raw: &mut Raw, link: u64, principal: &str, gateway: bool) -> Vec<Message> {
    let who = Who {
        principal: principal.into(),
        gateway,
    };
    raw.input(NodeInput::Opened(LinkId(link), who));
    raw.hello(link, u128::from(link), 1)
}

fn rules(raw: &mut Raw, rules: &[(&str, &str, Action)]) {
    let rules = rules.iter().map(|(who, prefix, may)| Rule {
        who: (*who).into(),
        prefix: prefix.as_bytes().into(),
        may: vec![*may],
    });
    let access = Arc::new(Access::new(rules).unwrap());
    raw.input(NodeInput::Access(access));
}

fn open_as(session: u128, principal: &str, detached: bool) -> Message {
    Message::Open(SessionInfo {
        session: SessionId(session),
        ttl: TTL,
        detached,
        owner: "test".into(),
        principal: principal.into(),
    })
}

fn detached(name: &str, session: u128) -> Arc<Ask> {
    let mut ask = (*ask(name, session, 1)).clone();
    ask.bond = Bond::Detached;
    Arc::new(ask)
}

fn entered(grant: GrantRef, token: Token) -> Message {
    Message::Entered(Box::new(Entered {
        grant,
        token,
        note: None,
        edition: 0,
    }))
}

fn revoke(raw: &mut Raw, session: u128, by: &str, force: bool) -> Vec<(LinkId, Message)> {
    raw.said.clear();
    raw.input(NodeInput::Revoke {
        session: SessionId(session),
        by: by.into(),
        force,
    });
    std::mem::take(&mut raw.said)
}

#[test]
fn a_client_asks_in_its_own_name_whatever_it_claims() {
    let mut raw = node();
    rules(&mut raw, &[("alice", "a/", Action::Acquire)]);
    arrive(&mut raw, 1, "bob", false);
    raw.say(1, open_as(1, "alice", false));
    let answers = raw.say(1, request(&ask("a/1", 1, 1)));
    assert_eq!(refused(&answers), Some(Refusal::NotPermitted));
    assert_eq!(raw.node.kept()[0], 0, "nothing is kept");
    arrive(&mut raw, 2, "alice", false);
    raw.say(2, open(2, TTL, false));
    assert!(raw.grant(2, &ask("a/1", 2, 1)).is_some());
    let answers = raw.say(2, request(&ask("b/1", 2, 2)));
    assert_eq!(refused(&answers), Some(Refusal::NotPermitted));
}

#[test]
fn a_gateway_says_in_whose_name_and_the_node_looks_for_itself() {
    let mut raw = node();
    rules(&mut raw, &[("alice", "a/", Action::Acquire)]);
    arrive(&mut raw, 1, "node/2", true);
    raw.say(1, open_as(1, "alice", true));
    raw.say(1, open_as(2, "bob", true));
    assert!(raw.grant(1, &detached("a/1", 1)).is_some());
    let answers = raw.say(1, request(&detached("a/2", 2)));
    assert_eq!(refused(&answers), Some(Refusal::NotPermitted));
    // The same session cannot become somebody else's.
    let answers = raw.say(1, open_as(1, "bob", true));
    assert_eq!(refused(&answers), Some(Refusal::NotPermitted));
}

#[test]
fn nobody_speaks_for_the_session_of_another() {
    let mut raw = node();
    arrive(&mut raw, 1, "node/2", true);
    raw.say(1, open_as(1, "alice", true));
    let of = detached("a", 1);
    let (grant, _, limit) = raw.grant(1, &of).unwrap();
    raw.say(1, entered(grant, limit));
    arrive(&mut raw, 2, "bob", false);
    let (session, request_no, token) = (of.session, of.request, Some(limit));
    let finish = Message::Finish {
        session,
        request: request_no,
        token,
    };
    for message in [
        request(&of),
        Message::Yield(grant),
        done(&of, Some(limit.0)),
        Message::Raise {
            grant,
            token: limit,
        },
        entered(grant, limit),
        Message::Keepalive {
            grant,
            token: limit,
        },
        finish,
    ] {
        let kind = message.kind();
        let answers = raw.say(2, message);
        assert_eq!(refused(&answers), Some(Refusal::NotPermitted), "{kind}");
    }
    let beat = Message::Heartbeat {
        beat: 1,
        entered: vec![Entered {
            grant,
            token: limit,
            note: None,
            edition: 0,
        }],
    };
    assert_eq!(refused(&raw.say(2, beat)), Some(Refusal::NotPermitted));
    let view = raw.node.view(&of.name).unwrap();
    assert_eq!(view.entries.len(), 1, "it is still held");
    // Its owner through another gateway may.
    arrive(&mut raw, 3, "node/3", true);
    let kept = raw.say(
        3,
        Message::Keepalive {
            grant,
            token: limit,
        },
    );
    assert_eq!(kept, [Message::Kept(grant)]);
}

#[test]
fn a_stranger_does_not_take_the_id_of_a_client() {
    let mut raw = node();
    arrive(&mut raw, 1, "alice", false);
    raw.say(1, open(1, TTL, false));
    raw.grant(1, &ask("a", 1, 1)).unwrap();
    let who = Who {
        principal: "bob".into(),
        gateway: false,
    };
    raw.input(NodeInput::Opened(LinkId(2), who));
    let answers = raw.hello(2, 1, 2);
    assert_eq!(refused(&answers), Some(Refusal::NotPermitted));
    assert!(raw.closed.contains(&LinkId(2)) && !raw.closed.contains(&LinkId(1)));
}

#[test]
fn a_claim_is_looked_at_like_a_request() {
    let mut raw = node();
    rules(&mut raw, &[("alice", "a/", Action::Acquire)]);
    arrive(&mut raw, 1, "bob", false);
    let info = SessionInfo {
        session: SessionId(1),
        ttl: TTL,
        detached: false,
        owner: "test".into(),
        principal: "alice".into(),
    };
    let claim = |holding: bool| Claim {
        ask: ask("a/1", 1, 1),
        hint: Token(0),
        seen: conclave_protocol::id::GrantNo(9),
        holding,
        inside: holding.then_some(Token(5)),
        raising: None,
        fresh: true,
        members: Vec::new(),
    };
    for holding in [false, true] {
        let resume = Resume {
            sessions: vec![info.clone()],
            live: vec![claim(holding)],
            done: Vec::new(),
            last: true,
        };
        let answers = raw.say(1, Message::Resume(Box::new(resume)));
        assert_eq!(refused(&answers), Some(Refusal::NotPermitted), "{holding}");
        assert_eq!(raw.node.kept()[0], 0);
    }
}

#[test]
fn new_rules_leave_what_is_held() {
    let mut raw = node();
    arrive(&mut raw, 1, "alice", false);
    raw.say(1, open(1, TTL, false));
    let of = ask("a", 1, 1);
    let (grant, _, limit) = raw.grant(1, &of).unwrap();
    rules(&mut raw, &[("bob", "", Action::Acquire)]);
    let beat = |beat| Message::Heartbeat {
        beat,
        entered: Vec::new(),
    };
    raw.say(1, entered(grant, limit));
    for number in 1..=8 {
        raw.say(1, beat(number));
        raw.pass(TTL / 4);
    }
    assert_eq!(raw.node.view(&of.name).unwrap().entries.len(), 1);
    let answers = raw.say(1, request(&ask("b", 1, 2)));
    assert_eq!(refused(&answers), Some(Refusal::NotPermitted));
}

/// Without force nothing is free before its holder must have left, however often it asks.
#[test]
fn a_revoked_session_ends_in_its_time_and_not_before() {
    let mut raw = node();
    raw.hello(1, 1, 1);
    raw.hello(2, 2, 1);
    raw.say(1, open(1, TTL, false));
    raw.say(2, open(2, TTL, false));
    let of = ask("a", 1, 1);
    let (grant, _, limit) = raw.grant(1, &of).unwrap();
    raw.say(1, entered(grant, limit));
    assert!(raw.grant(2, &ask("a", 2, 1)).is_none());
    raw.grant(2, &ask("b", 2, 2)).unwrap();
    assert!(raw.grant(1, &ask("b", 1, 2)).is_none(), "it waits");
    let said = revoke(&mut raw, 1, "", false);
    assert_eq!(said, [(LinkId(1), Message::Revoked(SessionId(1)))]);
    let waiting = raw.node.view(&ask("b", 1, 2).name).unwrap();
    assert_eq!(waiting.entries.len(), 1, "what waited is gone");
    for message in [
        Message::Raise {
            grant,
            token: limit,
        },
        entered(grant, limit),
        request(&of),
        open(1, TTL, false),
    ] {
        let kind = message.kind();
        let answers = raw.say(1, message);
        assert_eq!(refused(&answers), Some(Refusal::Revoked), "{kind}");
    }
    let beat = |link: u64, beat| {
        let entered = Vec::new();
        (link, Message::Heartbeat { beat, entered })
    };
    // Heartbeats go on: they renew the connection, and no longer the session.
    for number in 1..=19 {
        for (link, message) in [beat(1, number), beat(2, number)] {
            raw.say(link, message);
        }
        let view = raw.node.view(&of.name).unwrap();
        assert!(view.entries.iter().any(|entry| entry.ask == of), "{number}");
        raw.pass(TTL / 20);
    }
    raw.said.clear();
    raw.pass(TTL / 20);
    let granted = |(link, message): &(LinkId, Message)| {
        *link == LinkId(2) && matches!(message, Message::Locked { floor, .. } if *floor >= limit)
    };
    assert!(raw.said.iter().any(granted), "{:?}", raw.said);
    // It does not come back while it is remembered; another one does.
    raw.say(1, open(1, TTL, false));
    let answers = raw.say(1, request(&ask("c", 1, 3)));
    assert_eq!(refused(&answers), Some(Refusal::Revoked));
    raw.say(1, open(7, TTL, false));
    assert!(raw.grant(1, &ask("c", 7, 1)).is_some());
}

#[test]
fn its_holder_may_leave_at_once_and_force_does_not_wait() {
    for force in [false, true] {
        let mut raw = node();
        raw.hello(1, 1, 1);
        raw.hello(2, 2, 1);
        raw.say(1, open(1, TTL, false));
        raw.say(2, open(2, TTL, false));
        let of = ask("a", 1, 1);
        let (grant, _, limit) = raw.grant(1, &of).unwrap();
        raw.say(1, entered(grant, limit));
        raw.say(2, request(&ask("a", 2, 1)));
        let said = revoke(&mut raw, 1, "", force);
        let given = |said: &[(LinkId, Message)]| {
            let locked = |message: &Message| matches!(message, Message::Locked { .. });
            said.iter()
                .any(|(to, message)| to.0 == 2 && locked(message))
        };
        assert!(said.contains(&(LinkId(1), Message::Revoked(SessionId(1)))));
        assert_eq!(given(&said), force);
        raw.said.clear();
        raw.input(NodeInput::Receive(LinkId(1), done(&of, Some(limit.0))));
        assert_eq!(given(&raw.said), !force);
    }
}

/// What a revocation planted where the session is unknown does is bounded by who planted it.
#[test]
fn a_session_that_comes_later_is_refused_where_its_revoker_administers() {
    let mut raw = node();
    rules(
        &mut raw,
        &[
            ("*", "", Action::Acquire),
            ("ops", "a/", Action::Administer),
        ],
    );
    assert!(revoke(&mut raw, 1, "ops", false).is_empty());
    arrive(&mut raw, 1, "alice", false);
    raw.say(1, open(1, TTL, false));
    let answers = raw.say(1, request(&ask("a/1", 1, 1)));
    assert_eq!(refused(&answers), Some(Refusal::Revoked));
    assert!(raw.grant(1, &ask("b/1", 1, 2)).is_some());
    assert_eq!(raw.node.may_administer("ops", SessionId(1)), Some(false));
    assert_eq!(raw.node.may_administer("ops", SessionId(5)), None);
}

#[test]
fn the_holder_is_told_at_once_and_takes_another_session() {
    let mut cluster = Cluster::new(config("majority(3)", &[]), 2);
    cluster.acquire(0, 1, "a", Mode::Exclusive);
    cluster.drain();
    assert!(cluster.entered(0, 1).is_some());
    let session = cluster.session(0, 1, "a").unwrap();
    for node in 0..3 {
        cluster.node(
            node,
            NodeInput::Revoke {
                session,
                by: "".into(),
                force: false,
            },
        );
    }
    cluster.drain();
    assert!(cluster.was_lost(0, 1));
    // It has left by itself: nobody waits for its TTL.
    cluster.acquire(1, 1, "a", Mode::Exclusive);
    cluster.drain();
    assert!(cluster.entered(1, 1).is_some());
    cluster.acquire(0, 2, "b", Mode::Exclusive);
    cluster.drain();
    assert!(cluster.entered(0, 2).is_some());
    assert_ne!(cluster.session(0, 2, "b"), Some(session));
}

#[test]
fn a_waiting_request_ends_by_name() {
    let mut cluster = Cluster::new(config("majority(3)", &[]), 2);
    cluster.acquire(0, 1, "a", Mode::Exclusive);
    cluster.drain();
    cluster.acquire(1, 1, "a", Mode::Exclusive);
    cluster.drain();
    let session = cluster.session(1, 1, "a").unwrap();
    let by: Arc<str> = "".into();
    let force = false;
    cluster.node(
        0,
        NodeInput::Revoke {
            session,
            by: by.clone(),
            force,
        },
    );
    cluster.node(1, NodeInput::Revoke { session, by, force });
    cluster.drain();
    assert_eq!(cluster.ended(1, 1), Some(Ended::Refused(Refusal::Revoked)));
}

#[test]
fn whoever_may_not_read_does_not_watch() {
    let mut raw = node();
    rules(&mut raw, &[("alice", "a/", Action::Read)]);
    arrive(&mut raw, 1, "alice", false);
    let barred = |answers: &[(LinkId, Message)]| {
        let all = answers.iter().filter(|(_, answer)| {
            let Message::Seen { sight, .. } = answer else {
                return false;
            };
            **sight == Sight::Refused(Refusal::NotPermitted)
        });
        all.count()
    };
    let mut watch = |no, what| {
        let watch = WatchNo(no);
        let answers = raw.say(1, Message::Watch { watch, what });
        let answers: Vec<_> = answers.into_iter().map(|it| (LinkId(1), it)).collect();
        barred(&answers)
    };
    assert_eq!(watch(1, Watch::Name(Name::new("a/1"))), 0);
    assert_eq!(watch(2, Watch::Prefix(b"a/"[..].into())), 0);
    assert_eq!(watch(3, Watch::Name(Name::new("b/1"))), 1);
    assert_eq!(watch(4, Watch::Prefix(b""[..].into())), 1);
    assert_eq!(raw.node.watches(), 2);
    // New rules count for watches under way.
    raw.said.clear();
    rules(&mut raw, &[("bob", "", Action::Read)]);
    assert_eq!(barred(&raw.said), 2);
    assert_eq!(raw.node.watches(), 0);
}

/// A holder that was cut off when its session was revoked does not get its lock back from a node
/// that started again, whether it had stopped cleanly or crashed, and nobody new may use the
/// session there.
#[test]
fn a_restart_undoes_no_revocation() {
    for (clean, restart) in [
        (false, Restart::Pause),
        (true, Restart::Pause),
        (false, Restart::Durable),
    ] {
        let mut shared = config("singleton(1)", &[]);
        shared.restart = restart;
        let mut cluster = Cluster::new(shared, 1);
        cluster.acquire(0, 1, "a", Mode::Exclusive);
        cluster.pass(Duration::from_secs(1));
        assert!(cluster.is_inside(0, 1, "a"));
        let ask = cluster.clients[0].ask(Key(1), &Name::new("a")).unwrap();
        let session = ask.session;
        cluster.wires.stall(0, 0, false, true);
        cluster.node(
            0,
            NodeInput::Revoke {
                session,
                by: "ops".into(),
                force: false,
            },
        );
        if clean {
            cluster.node(0, NodeInput::Stop);
        }
        cluster.crash(0);
        cluster.wires.stall(0, 0, false, false);
        assert!(cluster.is_inside(0, 1, "a"), "it has not heard of it");
        cluster.restart(0);
        cluster.pass(Duration::from_secs(3));
        assert!(!cluster.is_inside(0, 1, "a"), "clean {clean}, {restart:?}");
        // What nothing rests on any more is not kept for ever.
        assert_eq!(cluster.disks[0].revoked.len(), 1);
        cluster.pass(Duration::from_secs(70));
        assert_eq!(cluster.disks[0].revoked.len(), 0);
    }
}
