//! What nodes tell, to whom, and how states come to them that they cannot make by themselves.

mod keep;

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::{ClientId, LinkId, NodeId, Token};
use conclave_protocol::keeper::{Answer, Ask, KeeperInput};
use conclave_protocol::lease::{
    Attempt, LeaseAnswer, LeaseAsk, LeaseKey, LeaseRefusal, Secret, Space, Try,
};
use conclave_protocol::lock::{Access, Action, Rule};
use conclave_protocol::object::acl::Acl;
use conclave_protocol::object::{
    Cell, Delta, ObjectAsk, ObjectRefusal, ObjectTell, Phase, Plant, Rules, Span, State, Value,
    cells,
};

use conclave_protocol::Machine;
use keep::{Node, Proposal, caller, config, done, object, only, op, rank, submit};

fn node() -> (Node, LinkId) {
    let mut node = Node::new(&config(7, 1, Rules::default()), Access::default());
    let link = node.open(1, "ann");
    (node, link)
}

/// Commits a step under a rank of its version.
fn take(node: &mut Node, link: LinkId, step: &Proposal) {
    let rank = rank(step.stamp().version, 1);
    node.view(link, rank);
    let told = node.propose(link, rank, step);
    assert!(matches!(told[0], ObjectTell::Taken { .. }), "{told:?}");
    let told = node.commit(link, rank, step);
    assert!(matches!(told[0], ObjectTell::Taken { .. }), "{told:?}");
}

fn peek(have: &State, spans: Vec<Span>) -> ObjectAsk {
    ObjectAsk::Peek {
        ticket: 5,
        have: Some(have.stamp()),
        spans,
    }
}

#[test]
fn a_peek_tells_the_way_from_what_the_client_has_and_the_cells_it_names() {
    let (mut node, link) = node();
    let one = done(&State::new(), op(1, 1), "one");
    let two = done(&one.state, op(1, 2), "two");
    let three = done(&two.state, op(1, 3), "three");
    for step in [&one, &two, &three] {
        take(&mut node, link, step);
    }
    let span = |backwards| Span {
        from: Cell::from(&b"\x02"[..]),
        to: None,
        limit: 5,
        backwards,
    };
    let told = only(node.ask(link, peek(&one.state, vec![span(false), span(true)])));
    let ObjectTell::Peeked {
        committed,
        proposed,
        suffix,
        cells,
        ..
    } = told
    else {
        panic!("{told:?}");
    };
    assert_eq!((committed, proposed), (three.stamp(), 3));
    assert_eq!(suffix, [two.delta.clone(), three.delta.clone()]);
    let last = (Cell::from(&b"\x02last"[..]), Value::from(&b"three"[..]));
    assert_eq!(cells, [vec![last.clone()], vec![last]]);
    // A state that the node never had leads nowhere.
    let other = done(&State::new(), op(9, 9), "other");
    let told = only(node.ask(link, peek(&other.state, Vec::new())));
    assert!(matches!(told, ObjectTell::Peeked { suffix, .. } if suffix.is_empty()));
}

#[test]
fn a_state_that_is_fetched_stays_until_it_is_told_although_others_follow() {
    let mut small = (*config(7, 1, Rules::default())).clone();
    small.page_bytes = 60;
    let mut node = Node::new(&Arc::new(small), Access::default());
    let link = node.open(1, "ann");
    let one = done(&State::new(), op(1, 1), &"x".repeat(50));
    take(&mut node, link, &one);
    let (stamp, mut after, mut got) = (one.stamp(), None, Vec::new());
    let mut step = one.clone();
    loop {
        let fetch = ObjectAsk::Fetch {
            ticket: 1,
            stamp,
            after: after.clone(),
        };
        let told = only(node.ask(link, fetch));
        let ObjectTell::Page { page, .. } = told else {
            panic!("{told:?}");
        };
        after = page.cells.last().map(|(cell, _)| cell.clone());
        got.extend(page.cells);
        if page.last {
            let state = State::rebuild(stamp.version, page.previous, got);
            assert_eq!(state.stamp(), stamp);
            break;
        }
        step = done(&step.state, op(1, step.stamp().version + 1), "y");
        take(&mut node, link, &step);
    }
    assert!(step.stamp().version > 1, "more than one page");
    let fetch = ObjectAsk::Fetch {
        ticket: 2,
        stamp,
        after: None,
    };
    let told = only(node.ask(link, fetch));
    let why = ObjectRefusal::Unknown;
    assert_eq!(told, ObjectTell::Gone { ticket: 2, why });
}

#[test]
fn a_node_that_lacks_a_state_is_given_it_page_by_page() {
    let (mut node, link) = node();
    let one = done(&State::new(), op(1, 1), "one");
    let two = done(&one.state, op(2, 1), "two");
    let mine = rank(7, 1);
    let told = only(node.propose(link, mine, &two));
    let empty = State::new().stamp();
    assert!(
        matches!(told, ObjectTell::NeedState { committed, proposed, phase, .. }
        if committed == empty && proposed == empty && phase == Phase::Propose)
    );
    let pages: Vec<_> = two.state.pages(40).collect();
    assert!(pages.len() > 2);
    let give = |page| ObjectAsk::Give {
        ticket: 3,
        stamp: two.stamp(),
        page,
    };
    // A false page spoils it; from the beginning it goes well.
    let mut false_one = pages[0].clone();
    false_one.cells[0].1 = Value::from(&b"false"[..]);
    let mut whole = false;
    for round in [vec![false_one], vec![pages[0].clone()]] {
        for page in round.into_iter().chain(pages[1..].to_vec()) {
            match only(node.ask(link, give(page))) {
                ObjectTell::Given { whole: said, .. } => whole = said,
                ObjectTell::Gone { why, .. } => assert_eq!(why, ObjectRefusal::Contradiction),
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(whole);
    let told = only(node.propose(link, mine, &two));
    assert!(matches!(told, ObjectTell::Taken { .. }), "{told:?}");
    node.commit(link, mine, &two);
    node.restart();
    assert_eq!(node.keeper.views(None, 1)[0].committed, two.stamp());
}

#[test]
fn whoever_watches_is_told_at_once_and_at_every_change() {
    let (mut node, link) = node();
    let watcher = node.open(2, "bob");
    let told = only(node.ask(watcher, ObjectAsk::Watch { ticket: 8 }));
    let stamp = State::new().stamp();
    assert_eq!(told, ObjectTell::Changed { ticket: 8, stamp });
    let one = done(&State::new(), op(1, 1), "one");
    take(&mut node, link, &one);
    let stamp = one.stamp();
    assert_eq!(
        only(node.heard(watcher)),
        ObjectTell::Changed { ticket: 8, stamp }
    );
    node.ask(watcher, ObjectAsk::Unwatch { ticket: 8 });
    take(&mut node, link, &done(&one.state, op(1, 2), "two"));
    assert!(node.heard(watcher).is_empty());
}

#[test]
fn nodes_may_look_and_nothing_else() {
    let (mut node, link) = node();
    let one = done(&State::new(), op(1, 1), "one");
    take(&mut node, link, &one);
    let other = LinkId(7);
    node.step(KeeperInput::Opened(other, caller("n2", Some(NodeId(1)))));
    let told = only(node.ask(other, peek(&State::new(), Vec::new())));
    assert!(matches!(told, ObjectTell::Peeked { .. }));
    let fetch = ObjectAsk::Fetch {
        ticket: 1,
        stamp: one.stamp(),
        after: None,
    };
    assert!(matches!(
        only(node.ask(other, fetch)),
        ObjectTell::Page { .. }
    ));
    let why = ObjectRefusal::NotPermitted;
    let told = only(node.ask(other, submit(op(3, 1), "x")));
    assert_eq!(told, ObjectTell::Denied { op: op(3, 1), why });
    // What they may refresh, and what not, is tested beside new clusters (keeper_new).
    assert_eq!(node.keeper.views(None, 1)[0].rank, rank(1, 1));
}

/// A step that gives the object an owner and a list.
fn listed(write: &[&str], read: &[&str]) -> Proposal {
    let list = |names: &[&str]| names.iter().map(|name| Arc::from(*name)).collect();
    let acl = Acl {
        write: list(write),
        read: list(read),
    };
    let cell = acl.write_cell().expect("short");
    let writes = vec![
        (Cell::from(cells::ACL), Some(cell)),
        (Cell::from(cells::CREATOR), Some(Value::from(&b"ann"[..]))),
    ];
    let (base, delta) = (State::new(), Delta::new(writes));
    let state = base.next(&delta).expect("a version");
    Proposal {
        base: base.stamp(),
        delta,
        state,
    }
}

#[test]
fn an_objects_own_list_is_enforced_by_the_node() {
    for (rules, lets) in [
        (Rules::default(), false),
        (Rules::planted(Plant::AclIgnored), true),
    ] {
        let mut node = Node::new(&config(7, 1, rules), Access::default());
        let ann = node.open(1, "ann");
        take(&mut node, ann, &listed(&["bob"], &["eve"]));
        let (bob, eve, dan) = (
            node.open(2, "bob"),
            node.open(3, "eve"),
            node.open(4, "dan"),
        );
        let held = |tell: ObjectTell| matches!(tell, ObjectTell::Held { .. });
        assert!(held(only(node.ask(bob, submit(op(2, 1), "x")))));
        assert_eq!(held(only(node.ask(eve, submit(op(3, 1), "x")))), lets);
        let seen = |tell: ObjectTell| matches!(tell, ObjectTell::Peeked { .. });
        assert!(seen(only(node.ask(eve, peek(&State::new(), Vec::new())))));
        assert_eq!(
            seen(only(node.ask(dan, peek(&State::new(), Vec::new())))),
            lets
        );
    }
}

#[test]
fn operations_that_are_not_sent_again_are_forgotten_and_limits_hold() {
    let mut small = (*config(7, 1, Rules::default())).clone();
    small.pending_per_object = 2;
    small.op_size_max = 3;
    let keep = small.pending_keep;
    let mut node = Node::new(&Arc::new(small), Access::default());
    let link = node.open(1, "ann");
    let denied = |tell: ObjectTell| match tell {
        ObjectTell::Denied { why, .. } => Some(why),
        _ => None,
    };
    let large = only(node.ask(link, submit(op(1, 1), "four")));
    assert_eq!(denied(large), Some(ObjectRefusal::TooLarge));
    for author in 1..4 {
        let told = only(node.ask(link, submit(op(author, 1), "x")));
        let full = (author == 3).then_some(ObjectRefusal::Full);
        assert_eq!(denied(told), full);
    }
    node.pass(keep / 2);
    node.ask(link, submit(op(2, 1), "x"));
    node.pass(keep * 2 / 3);
    let wake = node.keeper.next_wake().expect("something waits");
    assert!(wake.at <= node.now.mono);
    node.step(KeeperInput::Wake);
    let pending = node.view(link, rank(1, 1)).pending;
    assert_eq!(pending.len(), 1);
    assert_eq!(pending[0].op, op(2, 1));
}

/// Asks for the lease of an object, and takes the answer.
fn contend(node: &mut Node, link: LinkId, number: u64, span: Duration) -> LeaseAnswer {
    let key = LeaseKey {
        space: Space::Object,
        name: object(),
    };
    let attempt = Attempt {
        client: ClientId(1),
        number,
    };
    let seal = Secret::new(&[1; 32], &key, attempt, NodeId(0)).seal();
    let ask = LeaseAsk::Try(Try {
        attempt,
        sub: 0,
        // After a restart tokens must be above a mark that lies a little ahead.
        token: Token(node.now.wall.0 + number * 30_000_000),
        span,
        seal,
        patience: Duration::ZERO,
        waited: Duration::ZERO,
    });
    node.step(KeeperInput::Receive(link, Ask::Lease(key, ask)));
    node.sync();
    match node.said.pop() {
        Some((_, Answer::Lease(_, reply))) => reply.answer,
        other => panic!("{other:?}"),
    }
}

#[test]
fn votes_carry_the_largest_rank_and_come_back_only_when_old_ones_have_lapsed() {
    let (mut node, link) = node();
    node.view(link, rank(41, 1));
    let short = Duration::from_millis(500);
    let answer = contend(&mut node, link, 1, short);
    assert!(matches!(answer, LeaseAnswer::Free { rank, .. } if rank == Some(keep::rank(41, 1))));
    node.restart();
    let link = node.open(2, "ann");
    let told = contend(&mut node, link, 2, short);
    assert!(matches!(told, LeaseAnswer::Locked { .. }), "{told:?}");
    // The longest vote was short, so the node need not wait for the longest there could be.
    node.pass(Duration::from_secs(2));
    let told = contend(&mut node, link, 3, Duration::from_secs(30));
    assert!(matches!(told, LeaseAnswer::Free { .. }), "{told:?}");
    node.restart();
    let link = node.open(3, "ann");
    node.pass(Duration::from_secs(30));
    let told = contend(&mut node, link, 4, short);
    assert!(matches!(told, LeaseAnswer::Locked { .. }), "{told:?}");
    node.pass(Duration::from_secs(3));
    let told = contend(&mut node, link, 5, short);
    assert!(matches!(told, LeaseAnswer::Free { .. }), "{told:?}");
    assert!(keep::replay(&node.disk).mark > Token(node.now.wall.0 + 150_000_000));
}

#[test]
fn leases_of_objects_go_to_those_who_may_write_them() {
    let rule = |who: &str, may: &[Action]| Rule {
        who: who.into(),
        prefix: b"sh".as_slice().into(),
        may: may.to_vec(),
    };
    let rules = [
        rule("ann", &[Action::Acquire, Action::Read]),
        rule("eve", &[Action::Read]),
    ];
    let access = Access::new(rules).expect("rules");
    let mut node = Node::new(&config(7, 1, Rules::default()), access);
    let (ann, eve) = (node.open(1, "ann"), node.open(2, "eve"));
    let span = Duration::from_millis(500);
    let refused = LeaseAnswer::Refused(LeaseRefusal::NotPermitted);
    assert_eq!(contend(&mut node, eve, 1, span), refused);
    assert!(matches!(
        contend(&mut node, ann, 2, span),
        LeaseAnswer::Free { .. }
    ));
    let told = only(node.ask(eve, submit(op(1, 1), "x")));
    assert!(matches!(told, ObjectTell::Denied { .. }));
}
