//! A request that claims to be inside is served first only if the nodes that it rests on say so.

mod harness;

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::{ClientId, GrantNo, NodeId, RequestNo, SessionId, Token};
use conclave_protocol::lock::{
    Ask, Claim, Config, Message, Mode, NodeInput, Plant, Priority, Resume, Rules,
};
use harness::raw::{Raw, ask, done, open};
use harness::{EPOCH, config};

const TTL: Duration = Duration::from_secs(30);

/// A request of its own client, made so many microseconds after the start.
fn asked(session: u128, after: u64) -> Arc<Ask> {
    let mut ask = (*ask("a", session, session as u64)).clone();
    ask.priority = Priority {
        t: EPOCH + after,
        client: ClientId(session),
        request: ask.request,
    };
    Arc::new(ask)
}

fn moves(ask: &Arc<Ask>, members: &[u32]) -> Message {
    Message::Request {
        ask: ask.clone(),
        hint: Token(0),
        inside: Some(members.iter().map(|node| NodeId(*node)).collect()),
    }
}

/// Node 0 of three: client 1 is inside, client 2 waits, client 3 will come later.
fn node(change: impl FnOnce(&mut Config)) -> Raw {
    let mut config = config("majority(3)", &[]);
    change(&mut config);
    let mut raw = Raw::new(config);
    for client in 1..=3 {
        raw.hello(client, u128::from(client), 1);
        raw.say(client, open(u128::from(client), TTL, false));
    }
    raw.grant(1, &asked(1, 0)).expect("it is free");
    assert!(raw.grant(2, &asked(2, 1)).is_none());
    raw.between.clear();
    raw
}

/// What another node answers about client 3.
fn answers(raw: &mut Raw, from: u32, granted: Option<bool>) {
    let answer = Message::GrantConfirmed {
        session: SessionId(3),
        request: RequestNo(3),
        granted,
    };
    raw.input(NodeInput::Peer(NodeId(from), answer));
}

/// Who is granted the lock when client 1 leaves.
fn next(raw: &mut Raw) -> u64 {
    raw.said.clear();
    let message = done(&asked(1, 0), Some(1));
    raw.input(NodeInput::Receive(
        conclave_protocol::id::LinkId(1),
        message,
    ));
    let granted = raw.said.iter().filter_map(|(link, message)| {
        let locked = matches!(message, Message::Locked { .. });
        locked.then_some(link.0)
    });
    let granted: Vec<u64> = granted.collect();
    assert_eq!(granted.len(), 1, "{:?}", raw.said);
    granted[0]
}

#[test]
fn nobody_passes_the_queue_by_claiming_to_be_inside() {
    let late = asked(3, 9);
    for named in [&[][..], &[1], &[0, 1], &[1, 2], &[1, 1, 77]] {
        let mut raw = node(|_| {});
        raw.say(3, moves(&late, named));
        for from in 1..3 {
            answers(&mut raw, from, Some(false));
        }
        assert_eq!(next(&mut raw), 2, "named {named:?}");
    }
}

#[test]
fn one_member_is_not_enough_and_silence_is_not_either() {
    let late = asked(3, 9);
    let mut raw = node(|_| {});
    raw.say(3, moves(&late, &[1, 2]));
    answers(&mut raw, 1, Some(true));
    answers(&mut raw, 1, Some(true));
    answers(&mut raw, 2, Some(false));
    assert_eq!(next(&mut raw), 2, "a lonely grant is no hold");

    let mut raw = node(|_| {});
    raw.say(3, moves(&late, &[1, 2]));
    raw.pass(Duration::from_millis(300));
    answers(&mut raw, 1, Some(true));
    assert_eq!(next(&mut raw), 2, "nobody has said anything in time");
}

#[test]
fn a_holder_that_migrates_is_served_first_also_without_its_lost_member() {
    let late = asked(3, 9);
    let mut raw = node(|_| {});
    raw.say(3, moves(&late, &[1, 2]));
    let asks: Vec<u32> = raw.between.iter().map(|(node, _)| node.0).collect();
    assert_eq!(asks, [1, 2]);
    assert!(
        raw.between
            .iter()
            .all(|(_, message)| *message == Message::ConfirmGrant(late.clone()))
    );
    answers(&mut raw, 1, Some(true));
    answers(&mut raw, 2, Some(true));
    assert_eq!(next(&mut raw), 3);

    for restarted in [false, true] {
        let mut raw = node(|_| {});
        raw.say(3, moves(&late, &[1, 2]));
        answers(&mut raw, 1, Some(true));
        if restarted {
            answers(&mut raw, 2, None);
        } else {
            raw.pass(Duration::from_millis(300));
        }
        assert_eq!(next(&mut raw), 3, "restarted: {restarted}");
    }
}

#[test]
fn a_claim_on_a_new_connection_is_checked_too() {
    for granted in [false, true] {
        let mut raw = node(|_| {});
        raw.hello(4, 3, 2);
        let claim = Claim {
            ask: asked(3, 9),
            hint: Token(0),
            seen: GrantNo(0),
            holding: false,
            inside: Some(Token(5)),
            raising: None,
            fresh: true,
            members: vec![NodeId(1), NodeId(2)],
        };
        let Message::Open(info) = open(3, TTL, false) else {
            unreachable!("just made");
        };
        let resume = Resume {
            sessions: vec![info],
            live: vec![claim],
            done: Vec::new(),
            last: true,
        };
        raw.say(4, Message::Resume(Box::new(resume)));
        for from in 1..3 {
            answers(&mut raw, from, Some(granted));
        }
        assert_eq!(next(&mut raw), if granted { 4 } else { 2 });
    }
}

#[test]
fn a_node_confirms_only_what_it_granted() {
    let mut raw = node(|_| {});
    let mut confirms = |ask: &Arc<Ask>| {
        raw.between.clear();
        let question = Message::ConfirmGrant(ask.clone());
        raw.input(NodeInput::Peer(NodeId(1), question));
        match raw.between.pop() {
            Some((NodeId(1), Message::GrantConfirmed { granted, .. })) => granted,
            other => panic!("{other:?}"),
        }
    };
    let inside = asked(1, 0);
    assert_eq!(confirms(&inside), Some(true));
    assert_eq!(confirms(&asked(2, 1)), Some(false), "it waits");
    assert_eq!(confirms(&asked(9, 1)), Some(false), "it is unknown");
    let change = |change: fn(&mut Ask)| {
        let mut other = (*inside).clone();
        change(&mut other);
        Arc::new(other)
    };
    let others = [
        change(|ask| ask.name = conclave_protocol::id::Name::new("b")),
        change(|ask| ask.mode = Mode::Shared),
        change(|ask| ask.priority.t -= 1),
    ];
    for other in others {
        assert_eq!(confirms(&other), Some(false), "another request: {other:?}");
    }
}

#[test]
fn the_planted_bug_believes_everybody() {
    let mut raw = node(|config| config.rules = Rules::planted(Plant::BelievesInside));
    raw.say(3, moves(&asked(3, 9), &[]));
    assert_eq!(next(&mut raw), 3);
}
