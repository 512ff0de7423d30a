//! The front of a hierarchy: what it lets in, for how long, and with which tokens.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod harness;

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::{ClientId, Name, NodeId, RequestNo, SessionId, Token};
use conclave_protocol::lock::{
    Ask, Bond, Claim, Config, Entered, Gate, GrantRef, LockNode, Message, Mode, NodeEffects,
    NodeEvent, NodeInput, Priority, Quorums, Record, Refusal, Restart, Resume, SessionInfo, Start,
    Stored,
};
use conclave_protocol::multilevel::Block;
use harness::EPOCH;
use harness::raw::{Raw, ask, done, open, refused, request};

const TTL: Duration = Duration::from_secs(10);
const MS: Duration = Duration::from_millis(1);

fn config() -> Config {
    Config {
        gate: Some(Gate::default()),
        ..Config::new(Quorums::any_one(1))
    }
}

/// A front with a client on link 1 and its session 1.
fn front() -> Raw {
    let mut raw = Raw::new(config());
    raw.hello(1, 1, 1);
    raw.say(1, open(1, TTL, false));
    raw
}

/// What it wants, newest last, and forgets it.
fn wants(raw: &mut Raw) -> Vec<(u64, Mode, Duration)> {
    let events = std::mem::take(&mut raw.events).into_iter();
    let wants = events.filter_map(|event| match event {
        NodeEvent::Want {
            wish, mode, span, ..
        } => Some((wish, mode, span)),
        other => {
            raw.events.push(other);
            None
        }
    });
    wants.collect()
}

/// What it gave back, and forgets it.
fn leaves(raw: &mut Raw) -> Vec<(u64, u64)> {
    let events = std::mem::take(&mut raw.events).into_iter();
    let leaves = events.filter_map(|event| match event {
        NodeEvent::Leave { wish, used, .. } => Some((wish, used.0)),
        other => {
            raw.events.push(other);
            None
        }
    });
    leaves.collect()
}

fn consent(raw: &mut Raw, wish: u64, from: u64, to: u64, span: Duration) -> Vec<Message> {
    raw.said.clear();
    let until = raw.now.mono + span;
    raw.input(NodeInput::Consent {
        name: Name::new("a"),
        wish,
        block: Block {
            from: Token(from),
            to: Token(to),
        },
        until,
    });
    raw.said.drain(..).map(|(_, message)| message).collect()
}

fn extend(raw: &mut Raw, wish: u64, span: Duration) {
    let until = raw.now.mono + span;
    let name = Name::new("a");
    raw.input(NodeInput::Extended { name, wish, until });
}

fn locked(answers: &[Message]) -> Vec<(GrantRef, u64, u64)> {
    let grants = answers.iter().filter_map(|answer| match answer {
        Message::Locked {
            grant,
            floor,
            limit,
            ..
        } => Some((*grant, floor.0, limit.0)),
        _ => None,
    });
    grants.collect()
}

fn is_dead(answers: &[Message], request: u64) -> bool {
    let mut dead = answers.iter().filter_map(|answer| match answer {
        Message::Dead { request, .. } => *request,
        _ => None,
    });
    dead.any(|number| number.0 == request)
}

fn beat(raw: &mut Raw, number: u64) -> Vec<Message> {
    let heartbeat = Message::Heartbeat {
        beat: number,
        entered: Vec::new(),
    };
    raw.say(1, heartbeat)
}

fn is_answered(answers: &[Message]) -> bool {
    let beat = |answer: &Message| matches!(answer, Message::Beat { .. });
    answers.iter().any(beat)
}

fn entered(grant: GrantRef, token: u64) -> Message {
    Message::Entered(Box::new(Entered {
        grant,
        token: Token(token),
        note: None,
        edition: 0,
    }))
}

fn group_ask(mode: Mode, request: u64) -> Arc<Ask> {
    let mut one = (*ask("a", 1, request)).clone();
    one.mode = mode;
    Arc::new(one)
}

#[test]
fn nothing_is_granted_without_consent_and_it_goes_back_when_unused() {
    let mut raw = front();
    let one = ask("a", 1, 1);
    let answers = raw.say(1, request(&one));
    assert_eq!(locked(&answers), []);
    let first = |answer: &Message| matches!(answer, Message::Queued { position: 0, .. });
    assert!(answers.iter().any(first), "{answers:?}");
    let (wish, mode, span) = wants(&mut raw).pop().unwrap();
    assert_eq!(mode, Mode::Exclusive);
    assert!(span >= TTL * 2, "{span:?}");
    // A word about another wish changes nothing.
    assert_eq!(locked(&consent(&mut raw, wish + 7, 0, 99, span)), []);
    let granted = locked(&consent(&mut raw, wish, 100, 200, span));
    assert_eq!(granted.len(), 1);
    let (_, floor, limit) = granted[0];
    assert_eq!(floor, 100, "all below may have been used");
    assert!(limit > 100 && limit <= 200);
    raw.say(1, done(&one, Some(101)));
    assert_eq!(leaves(&mut raw), [(wish, 101)]);
    assert_eq!(wants(&mut raw), []);
    assert_eq!(raw.node.consents(), [0, 0]);
    // One that is cancelled is wanted no more.
    let two = ask("a", 1, 2);
    raw.say(1, request(&two));
    let (wish, ..) = wants(&mut raw).pop().unwrap();
    raw.say(1, done(&two, None));
    assert_eq!(leaves(&mut raw), [(wish, 0)]);
    assert_eq!(locked(&consent(&mut raw, wish, 200, 300, span)), []);
    assert_eq!(raw.node.kept()[0], 0);
}

#[test]
fn consent_serves_a_bounded_number_with_growing_tokens() {
    let mut raw = front();
    let asks: Vec<_> = (1..=20).map(|number| ask("a", 1, number)).collect();
    for ask in &asks {
        raw.say(1, request(ask));
    }
    let all = wants(&mut raw);
    assert_eq!(all.len(), 1, "one wish for all");
    let mut granted = locked(&consent(&mut raw, all[0].0, 10, 10_000, TTL * 4));
    let (mut last, mut served) = (10, 0);
    while let Some((grant, floor, limit)) = granted.pop() {
        assert!(granted.is_empty(), "one at a time");
        assert!(floor >= last && limit > floor);
        last = floor + 1;
        served += 1;
        let one = &asks[grant.request.0 as usize - 1];
        raw.said.clear();
        raw.input(NodeInput::Receive(
            conclave_protocol::id::LinkId(1),
            done(one, Some(last)),
        ));
        let said: Vec<_> = raw.said.drain(..).map(|(_, message)| message).collect();
        granted = locked(&said);
    }
    assert_eq!(served, 16);
    assert_eq!(leaves(&mut raw), [(all[0].0, last)]);
    let again = wants(&mut raw);
    assert_eq!(again.len(), 1, "the other four still wait");
    let granted = locked(&consent(&mut raw, again[0].0, last, 20_000, TTL * 4));
    assert_eq!(granted[0].1, last);
}

#[test]
fn tokens_stay_inside_the_block_and_what_is_lost_is_counted_as_used() {
    let mut raw = front();
    let (one, two) = (ask("a", 1, 1), ask("a", 1, 2));
    raw.say(1, request(&one));
    raw.say(1, request(&two));
    let (wish, _, span) = wants(&mut raw).pop().unwrap();
    let (grant, floor, limit) = locked(&consent(&mut raw, wish, 50, 53, span))[0];
    assert_eq!((floor, limit), (50, 53));
    let raise = |token| Message::Raise {
        grant,
        token: Token(token),
    };
    let within = raw.say(1, raise(53));
    assert!(
        within
            .iter()
            .any(|one| matches!(one, Message::Raised { .. }))
    );
    let beyond = raw.say(1, raise(54));
    assert_eq!(refused(&beyond), Some(Refusal::TokenAboveLimit));
    // The first is lost with all its tokens: nothing is left for the second.
    raw.input(NodeInput::Expire(SessionId(1)));
    assert_eq!(leaves(&mut raw), [(wish, 53)]);
    // A block that is used up lets nobody in.
    raw.say(1, open(2, TTL, false));
    let three = ask("a", 2, 3);
    raw.say(1, request(&three));
    let (wish, ..) = wants(&mut raw).pop().unwrap();
    assert_eq!(locked(&consent(&mut raw, wish, 53, 53, span)), []);
    assert_eq!(leaves(&mut raw), [(wish, 0)]);
    let (wish, ..) = wants(&mut raw).pop().unwrap();
    assert_eq!(locked(&consent(&mut raw, wish, 53, 60, span)).len(), 1);
}

#[test]
fn a_group_is_let_in_together_and_nobody_passes_an_older_rival() {
    let mut raw = front();
    let blue = |number| group_ask(Mode::group("blue"), number);
    raw.say(1, request(&blue(1)));
    raw.say(1, request(&blue(2)));
    let all = wants(&mut raw);
    assert_eq!((all.len(), &all[0].1), (1, &Mode::group("blue")));
    let granted = locked(&consent(&mut raw, all[0].0, 10, 99, TTL * 4));
    assert_eq!(granted.len(), 2, "together");
    assert_eq!(granted[0].1, granted[1].1, "and with one token");
    assert_eq!(locked(&raw.say(1, request(&blue(3)))).len(), 1, "joins");
    assert_eq!(locked(&raw.say(1, request(&ask("a", 1, 4)))), []);
    assert_eq!(locked(&raw.say(1, request(&blue(5)))), [], "too late");
    for number in [1, 2] {
        raw.say(1, done(&blue(number), Some(11)));
    }
    assert_eq!(leaves(&mut raw), [], "one is still inside");
    raw.say(1, done(&blue(3), Some(11)));
    assert_eq!(leaves(&mut raw), [(all[0].0, 11)]);
    let next = wants(&mut raw);
    assert_eq!(next[0].1, Mode::Exclusive);
    let granted = locked(&consent(&mut raw, next[0].0, 11, 99, TTL * 4));
    assert_eq!(granted.len(), 1);
    assert_eq!((granted[0].0.request, granted[0].1), (RequestNo(4), 11));
}

#[test]
fn a_group_is_bounded_too() {
    let mut raw = front();
    let blue = |number| group_ask(Mode::Shared, number);
    for number in 1..=70 {
        raw.say(1, request(&blue(number)));
    }
    let (wish, ..) = wants(&mut raw).pop().unwrap();
    let granted = locked(&consent(&mut raw, wish, 10, 99, TTL * 4));
    assert_eq!(granted.len(), 64);
    for number in 1..=63 {
        assert_eq!(locked(&raw.say(1, done(&blue(number), Some(11)))), []);
    }
    raw.say(1, done(&blue(64), Some(11)));
    assert_eq!(leaves(&mut raw), [(wish, 11)]);
    assert_eq!(wants(&mut raw).len(), 1);
}

#[test]
fn consent_for_a_class_that_is_no_longer_the_best_goes_back() {
    let mut raw = front();
    let late = group_ask(Mode::Shared, 9);
    raw.say(1, request(&late));
    let (wish, ..) = wants(&mut raw).pop().unwrap();
    // One with an earlier priority comes while consent is on its way.
    raw.say(1, request(&ask("a", 1, 3)));
    assert_eq!(wants(&mut raw), [], "one wish at a time");
    assert_eq!(locked(&consent(&mut raw, wish, 10, 99, TTL * 4)), []);
    assert_eq!(leaves(&mut raw), [(wish, 0)]);
    assert_eq!(wants(&mut raw)[0].1, Mode::Exclusive);
}

#[test]
fn a_heartbeat_is_answered_only_as_far_as_consent_lasts() {
    let mut raw = front();
    let one = ask("a", 1, 1);
    raw.say(1, request(&one));
    let (wish, ..) = wants(&mut raw).pop().unwrap();
    let (grant, floor, _) = locked(&consent(&mut raw, wish, 10, 99, TTL + 300 * MS))[0];
    raw.say(1, entered(grant, floor + 1));
    raw.pass(200 * MS);
    assert!(is_answered(&beat(&mut raw, 1)), "it lasts long enough");
    raw.pass(200 * MS);
    assert_eq!(beat(&mut raw, 2), [], "not answered: more may be coming");
    extend(&mut raw, wish, TTL * 2);
    assert!(is_answered(&beat(&mut raw, 3)));
    // From here on nothing comes any more.
    let last = raw.now.mono;
    raw.pass(100 * MS);
    let mut number = 4;
    let mut dead_at = None;
    for _ in 0..200 {
        raw.pass(100 * MS);
        let answers = beat(&mut raw, number);
        number += 1;
        if is_dead(&answers, 1) {
            dead_at = Some(raw.now.mono);
            let order: Vec<_> = answers.iter().map(Message::kind).collect();
            assert_eq!(order, ["DEAD", "BEAT"], "told before the answer");
            break;
        }
    }
    let dead_at = dead_at.unwrap();
    assert!(dead_at.since(last) + 200 * MS > TTL, "{dead_at:?}");
    assert_eq!(leaves(&mut raw), [], "whoever is not reached may believe");
    // Its client speaks of it no more; nothing renews it.
    let again = raw.say(1, entered(grant, floor + 1));
    assert!(is_dead(&again, 1), "{again:?}");
    let mut waited = Duration::ZERO;
    while leaves(&mut raw).is_empty() {
        raw.pass(100 * MS);
        beat(&mut raw, number);
        number += 1;
        waited += 100 * MS;
        assert!(waited <= TTL + 100 * MS, "the last promise has run out");
    }
    assert!(waited + 2_000 * MS > TTL, "{waited:?}");
    assert_eq!(raw.node.kept()[0], 0);
}

#[test]
fn what_cannot_be_covered_is_not_let_in() {
    let mut raw = front();
    raw.say(1, request(&ask("a", 1, 1)));
    let (wish, _, span) = wants(&mut raw).pop().unwrap();
    assert_eq!(locked(&consent(&mut raw, wish, 10, 99, TTL * 9 / 10)), []);
    assert_eq!(leaves(&mut raw), [(wish, 0)]);
    let (wish, ..) = wants(&mut raw).pop().unwrap();
    assert_eq!(locked(&consent(&mut raw, wish, 10, 99, span)).len(), 1);
}

#[test]
fn a_lost_consent_ends_its_holders_by_then_and_no_new_one_comes_before() {
    let mut raw = front();
    let (one, two) = (ask("a", 1, 1), ask("a", 1, 2));
    raw.say(1, request(&one));
    raw.say(1, request(&two));
    let (wish, ..) = wants(&mut raw).pop().unwrap();
    let until = TTL + Duration::from_secs(1);
    let (grant, ..) = locked(&consent(&mut raw, wish, 10, 99, until))[0];
    assert_eq!(grant.request, RequestNo(1));
    raw.pass(400 * MS);
    raw.said.clear();
    let name = Name::new("a");
    raw.input(NodeInput::ConsentLost { name, wish });
    let said: Vec<_> = raw.said.drain(..).map(|(_, message)| message).collect();
    assert!(is_dead(&said, 1), "{said:?}");
    assert_eq!((wants(&mut raw), leaves(&mut raw)), (vec![], vec![]));
    // The holder says that it has left: the next is wanted, and the lost one not left again.
    raw.say(1, done(&one, Some(11)));
    let next = wants(&mut raw);
    assert_eq!(next.len(), 1);
    assert_eq!(leaves(&mut raw), []);
    let granted = locked(&consent(&mut raw, next[0].0, 99, 199, TTL * 3));
    assert_eq!((granted[0].0.request, granted[0].1), (RequestNo(2), 99));
}

#[test]
fn a_silent_holder_of_a_lost_consent_is_waited_for() {
    let mut raw = front();
    let (one, two) = (ask("a", 1, 1), ask("a", 1, 2));
    raw.say(1, request(&one));
    raw.say(1, request(&two));
    let (wish, ..) = wants(&mut raw).pop().unwrap();
    let (grant, floor, _) = locked(&consent(&mut raw, wish, 10, 99, TTL + MS))[0];
    raw.say(1, entered(grant, floor + 1));
    raw.input(NodeInput::ConsentLost {
        name: Name::new("a"),
        wish,
    });
    assert_eq!(wants(&mut raw), []);
    // While it lasts, whoever asks again for the lost one is told to wait.
    let again = raw.say(1, request(&one));
    let waits = |answer: &Message| matches!(answer, Message::Queued { position: 1.., .. });
    assert!(again.iter().all(waits) && !again.is_empty(), "{again:?}");
    let mut waited = Duration::ZERO;
    for beats in 0.. {
        let next = wants(&mut raw);
        if !next.is_empty() {
            break;
        }
        raw.pass(250 * MS);
        beat(&mut raw, beats);
        waited += 250 * MS;
        assert!(waited <= TTL + 250 * MS);
    }
    assert!(waited + 250 * MS >= TTL, "{waited:?}");
    assert_eq!(leaves(&mut raw), []);
}

#[test]
fn a_claim_for_what_is_doomed_is_dead() {
    let mut raw = front();
    let one = ask("a", 1, 1);
    raw.say(1, request(&one));
    let (wish, ..) = wants(&mut raw).pop().unwrap();
    let (grant, floor, _) = locked(&consent(&mut raw, wish, 10, 99, TTL + MS))[0];
    raw.say(1, entered(grant, floor + 1));
    raw.input(NodeInput::ConsentLost {
        name: Name::new("a"),
        wish,
    });
    raw.hello(2, 1, 2);
    let answers = raw.say(2, claim(&one, grant, floor + 1));
    assert!(is_dead(&answers, 1), "{answers:?}");
}

fn claim(one: &Arc<Ask>, grant: GrantRef, token: u64) -> Message {
    Message::Resume(Box::new(Resume {
        sessions: vec![SessionInfo {
            session: one.session,
            ttl: TTL,
            detached: false,
            owner: "test".into(),
            principal: Arc::default(),
        }],
        live: vec![Claim {
            ask: one.clone(),
            hint: Token(0),
            seen: grant.grant,
            holding: true,
            inside: Some(Token(token)),
            raising: None,
            fresh: true,
            members: Vec::new(),
        }],
        done: Vec::new(),
        last: true,
    }))
}

#[test]
fn a_handle_is_renewed_only_as_far_as_consent_lasts() {
    let mut raw = Raw::new(config());
    raw.hello(1, 1, 1);
    raw.say(1, open(5, TTL, true));
    let mut one = (*ask("a", 5, 1)).clone();
    one.bond = Bond::Detached;
    let one = Arc::new(one);
    raw.say(1, request(&one));
    let (wish, ..) = wants(&mut raw).pop().unwrap();
    let (grant, floor, _) = locked(&consent(&mut raw, wish, 10, 99, TTL + 500 * MS))[0];
    let token = Token(floor + 1);
    let noted = raw.say(1, entered(grant, token.0));
    assert!(noted.iter().any(|one| matches!(one, Message::Noted(_))));
    raw.pass(400 * MS);
    let kept = raw.say(1, Message::Keepalive { grant, token });
    assert!(matches!(kept[..], [Message::Kept(_)]), "{kept:?}");
    raw.pass(200 * MS);
    let gone = raw.say(1, Message::Keepalive { grant, token });
    assert!(is_dead(&gone, 1), "{gone:?}");
    extend(&mut raw, wish, TTL * 3);
    let gone = raw.say(1, Message::Keepalive { grant, token });
    assert!(is_dead(&gone, 1), "what was said stays said");
    raw.pass(TTL);
    assert_eq!(leaves(&mut raw).len(), 1);
}

#[test]
fn whoever_tries_hears_in_time_that_somebody_is_in_the_way() {
    let mut raw = front();
    raw.say(1, request(&ask("a", 1, 1)));
    raw.said.clear();
    raw.pass(300 * MS);
    let waits = |message: &Message| matches!(message, Message::Queued { position: 1, .. });
    assert!(raw.said.iter().any(|(_, message)| waits(message)));
    let second = raw.say(1, request(&ask("a", 1, 2)));
    assert!(second.iter().any(waits), "{second:?}");
}

#[test]
fn a_refused_wish_refuses_those_who_wait() {
    let mut raw = front();
    raw.say(1, request(&ask("a", 1, 1)));
    let (wish, ..) = wants(&mut raw).pop().unwrap();
    raw.said.clear();
    raw.input(NodeInput::ConsentRefused {
        name: Name::new("a"),
        wish,
    });
    let said: Vec<_> = raw.said.drain(..).map(|(_, message)| message).collect();
    assert_eq!(refused(&said), Some(Refusal::LockLimit));
    assert_eq!((wants(&mut raw), leaves(&mut raw)), (vec![], vec![]));
    assert_eq!(raw.node.kept()[0], 0);
}

/// Whatever is on its disk, a front starts at once and with nothing.
#[test]
fn a_front_that_starts_again_has_nothing_and_waits_for_nothing() {
    for restart in [Restart::Pause, Restart::Durable] {
        let mut raw = Raw::new(Config {
            restart,
            ..config()
        });
        raw.hello(1, 1, 1);
        raw.say(1, open(1, TTL, false));
        let one = ask("a", 1, 1);
        raw.say(1, request(&one));
        let (wish, ..) = wants(&mut raw).pop().unwrap();
        let (grant, floor, _) = locked(&consent(&mut raw, wish, 10, 99, TTL * 3))[0];
        let life = raw.node.incarnation();
        let stored = Stored {
            incarnation: Some(life),
            longest_ttl: TTL,
            ..Stored::default()
        };
        let mut out = NodeEffects::new();
        let shared = Arc::new(Config {
            restart,
            ..config()
        });
        let start = Start::Disk(stored);
        raw.node = LockNode::start(shared, NodeId(0), 7, start, raw.now, &mut out);
        let lives = |record: &Record| matches!(record, Record::Incarnation(next) if *next > life);
        assert!(out.persist.iter().any(lives));
        raw.input(NodeInput::Durable(out.persist.len() as u64));
        assert!(raw.node.is_serving(), "no pause");
        raw.hello(2, 1, 2);
        let answers = raw.say(2, claim(&one, grant, floor + 1));
        assert!(is_dead(&answers, 1), "no reclaim: {answers:?}");
    }
}

#[test]
fn whoever_says_it_is_inside_waits_for_consent_like_all() {
    let mut raw = front();
    let mut late = (*ask("a", 1, 9)).clone();
    late.priority = Priority {
        t: EPOCH + 5,
        client: ClientId(1),
        request: RequestNo(9),
    };
    let late = Arc::new(late);
    raw.say(1, request(&ask("a", 1, 1)));
    let moves = Message::Request {
        ask: late,
        hint: Token(77),
        inside: Some(Vec::new()),
    };
    assert_eq!(locked(&raw.say(1, moves)), []);
    let (wish, ..) = wants(&mut raw).pop().unwrap();
    let granted = locked(&consent(&mut raw, wish, 10, 99, TTL * 3));
    assert_eq!(
        granted[0].0.request,
        RequestNo(1),
        "in the order of requests"
    );
}
