//! Who pays for what a node keeps: principals and addresses, through whichever connections.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod harness;

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::{LinkId, SessionId, Token};
use conclave_protocol::lock::{
    Ask, Bond, Entered, Limits, Message, NodeInput, Refusal, SessionInfo, Who,
};
use harness::config;
use harness::raw::{Raw, ask, refused, request};

const TTL: Duration = Duration::from_secs(10);

fn node(limits: Limits) -> Raw {
    let mut shared = config("singleton(1)", &[]);
    shared.limits = limits;
    Raw::new(shared)
}

fn arrive(raw: &mut Raw, link: u64, principal: &str, gateway: bool) {
    let who = Who {
        principal: principal.into(),
        gateway,
    };
    raw.input(NodeInput::Opened(LinkId(link), who));
    assert_eq!(refused(&raw.hello(link, u128::from(link), 1)), None);
}

fn arrive_from(raw: &mut Raw, link: u64, address: &str, gateway: bool) {
    raw.input(NodeInput::OpenedFrom {
        link: LinkId(link),
        address: address.into(),
        gateway,
    });
    assert_eq!(refused(&raw.hello(link, u128::from(link), 1)), None);
}

fn detached(name: &str, session: u128) -> Arc<Ask> {
    let mut ask = (*ask(name, session, 1)).clone();
    ask.bond = Bond::Detached;
    Arc::new(ask)
}

/// A caller of a gateway opens a session and asks for a lock of its own; why not, if not.
fn take(raw: &mut Raw, link: u64, caller: &str, session: u128) -> Option<Refusal> {
    let open = Message::Open(SessionInfo {
        session: SessionId(session),
        ttl: TTL,
        detached: true,
        owner: "test".into(),
        principal: caller.into(),
    });
    let opened = refused(&raw.say(link, open));
    let lock = detached(&format!("lock/{session}"), session);
    opened.or_else(|| refused(&raw.say(link, request(&lock))))
}

fn leave(raw: &mut Raw, link: u64, session: u128) {
    let lock = detached(&format!("lock/{session}"), session);
    raw.say(
        link,
        Message::Done {
            session: lock.session,
            request: lock.request,
            token: None,
        },
    );
}

fn small() -> Limits {
    Limits {
        sessions_per_client: 3,
        requests_per_client: 3,
        ..Limits::default()
    }
}

#[test]
fn one_greedy_caller_of_a_gateway_leaves_room_for_the_others() {
    let mut raw = node(small());
    arrive(&mut raw, 1, "node/2", true);
    arrive(&mut raw, 2, "node/3", true);
    for session in 1..=3 {
        assert_eq!(take(&mut raw, 1, "greedy", session), None);
    }
    let full = Some(Refusal::SessionLimit);
    assert_eq!(take(&mut raw, 1, "greedy", 4), full);
    assert_eq!(take(&mut raw, 2, "greedy", 5), full, "the other gateway");
    for (session, caller) in [(10, "a"), (11, "b"), (12, "c"), (13, "d")] {
        assert_eq!(take(&mut raw, 1, caller, session), None, "{caller}");
    }
    // It has room again when something of it ends, through whichever gateway it came.
    leave(&mut raw, 1, 2);
    assert_eq!(take(&mut raw, 2, "greedy", 6), None);
    assert_eq!(take(&mut raw, 2, "greedy", 7), full);
}

#[test]
fn a_principal_has_one_account_on_all_its_connections() {
    let mut raw = node(small());
    for link in 1..=3 {
        arrive(&mut raw, link, "ci", false);
    }
    assert_eq!(take(&mut raw, 1, "", 1), None);
    assert_eq!(take(&mut raw, 2, "somebody else", 2), None, "not believed");
    assert_eq!(take(&mut raw, 3, "", 3), None);
    let full = Some(Refusal::SessionLimit);
    assert_eq!(take(&mut raw, 3, "another", 4), full);
    // What it holds stays charged when its connection is gone; what it waits for does not.
    arrive(&mut raw, 4, "dev", false);
    assert_eq!(take(&mut raw, 4, "", 5), None);
}

#[test]
fn where_nobody_says_who_they_are_addresses_pay() {
    let mut raw = node(small());
    arrive_from(&mut raw, 1, "@10.0.0.1", true);
    arrive_from(&mut raw, 2, "@10.0.0.9", false);
    let full = Some(Refusal::SessionLimit);
    for session in 1..=3 {
        assert_eq!(take(&mut raw, 1, "@10.0.0.7", session), None);
    }
    assert_eq!(take(&mut raw, 1, "@10.0.0.7", 4), full);
    assert_eq!(take(&mut raw, 1, "@10.0.0.8", 5), None);
    // Whoever cannot be a gateway pays itself, whatever it says.
    for session in 11..=13 {
        assert_eq!(
            take(&mut raw, 2, &format!("@10.0.1.{session}"), session),
            None
        );
    }
    assert_eq!(take(&mut raw, 2, "@10.0.2.1", 14), full);
}

/// Names of the largest size, and a note of the largest size on each: all accounts together stay
/// below the budget, and whoever comes next finds room.
#[test]
fn the_budget_is_kept_with_the_largest_names_and_notes() {
    let budget = 1 << 20;
    let mut raw = node(Limits {
        memory: budget,
        ..Limits::default()
    });
    arrive(&mut raw, 1, "node/2", true);
    let mut session = 0;
    let mut shares = Vec::new();
    for caller in ["a", "b", "c"] {
        let before = raw.node.charged_bytes();
        loop {
            session += 1;
            let open = Message::Open(SessionInfo {
                session: SessionId(session),
                ttl: TTL,
                detached: true,
                owner: "o".repeat(256).into(),
                principal: caller.into(),
            });
            if refused(&raw.say(1, open)).is_some() {
                break;
            }
            let name = format!("{session:0>1024}");
            let lock = detached(&name, session);
            let answers = raw.say(1, request(&lock));
            let granted = answers.iter().find_map(|answer| match answer {
                Message::Locked { grant, limit, .. } => Some((*grant, *limit)),
                _ => None,
            });
            let Some((grant, limit)) = granted else {
                assert_eq!(refused(&answers), Some(Refusal::RequestLimit));
                break;
            };
            let entered = Message::Entered(Box::new(Entered {
                grant,
                token: Token(limit.0),
                note: Some(vec![7; 4096].into()),
                edition: 1,
            }));
            if refused(&raw.say(1, entered)) == Some(Refusal::RequestLimit) {
                break;
            }
        }
        assert!(raw.node.charged_bytes() <= budget);
        shares.push(raw.node.charged_bytes() - before);
    }
    assert!(
        shares[0] > budget * 2 / 5,
        "one alone may have half: {shares:?}"
    );
    assert!(shares[0] <= budget / 2, "{shares:?}");
    assert!(
        shares[2] > budget / 16,
        "there is room for the next: {shares:?}"
    );
    // Everything is given back in the end.
    for _ in 0..30 {
        raw.pass(Duration::from_secs(1));
    }
    raw.input(NodeInput::Closed(LinkId(1)));
    assert_eq!(raw.node.kept()[1], 0);
    assert_eq!(raw.node.charged_bytes(), 0);
}
