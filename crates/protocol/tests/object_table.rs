//! What nodes do with ranks, proposals, commits and operations, case by case.

mod keep;

use conclave_protocol::keeper::{Ask, KeeperInput};
use conclave_protocol::lock::Access;
use conclave_protocol::object::{
    ObjectAsk, ObjectRefusal, ObjectTell, Phase, Plant, Rank, Rules, Stamp, State, View,
};

use keep::{Node, Proposal, config, done, object, only, op, rank, replay, submit};

/// Seven nodes, one of which may lie, with a connection each.
struct Seven {
    nodes: Vec<Node>,
    links: Vec<conclave_protocol::id::LinkId>,
}

const QUORUM: usize = 5;
const VOUCH: usize = 2;

impl Seven {
    fn new() -> Self {
        let config = config(7, 1, Rules::default());
        let mut nodes: Vec<Node> = (0..7)
            .map(|_| Node::new(&config, Access::default()))
            .collect();
        let links = nodes.iter_mut().map(|node| node.open(1, "ann")).collect();
        Self { nodes, links }
    }

    fn views(&mut self, rank: Rank, of: impl IntoIterator<Item = usize>) -> Vec<View> {
        let at = |at: usize| self.nodes[at].view(self.links[at], rank);
        of.into_iter().map(at).collect()
    }

    /// Proposes at some nodes; how many took it.
    fn propose(
        &mut self,
        rank: Rank,
        step: &Proposal,
        of: impl IntoIterator<Item = usize>,
    ) -> usize {
        let take = |at: usize| only(self.nodes[at].propose(self.links[at], rank, step));
        let taken = |tell: &ObjectTell| matches!(tell, ObjectTell::Taken { .. });
        of.into_iter().map(take).filter(taken).count()
    }

    fn commit(
        &mut self,
        rank: Rank,
        step: &Proposal,
        of: impl IntoIterator<Item = usize>,
    ) -> usize {
        let take = |at: usize| self.nodes[at].commit(self.links[at], rank, step);
        let taken = |tells: &Vec<ObjectTell>| matches!(tells[0], ObjectTell::Taken { .. });
        of.into_iter().map(take).filter(taken).count()
    }
}

/// What a client that orders goes on with.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// A state that another client left unfinished.
    Finish(Stamp),
    /// A new version after this committed state.
    After(Stamp),
}

/// How a client that knows nothing decides by the views of a quorum.
fn decide(views: &[View]) -> Next {
    assert!(views.len() >= QUORUM);
    let vouched = |stamp: Stamp| views.iter().filter(|view| view.committed == stamp).count();
    let committed = views.iter().map(|view| view.committed);
    let committed = committed.filter(|stamp| vouched(*stamp) >= VOUCH).max();
    let mut order: Vec<(u64, Rank, Stamp)> = views
        .iter()
        .map(|view| (view.proposed.version, view.proposer, view.proposed))
        .collect();
    order.sort_by(|a, b| b.cmp(a));
    let mut counts: Vec<(Stamp, usize)> = Vec::new();
    let mut proposed = None;
    for (_, _, stamp) in &order {
        match counts.iter_mut().find(|(other, _)| other == stamp) {
            Some((_, count)) => *count += 1,
            None => counts.push((*stamp, 1)),
        }
        proposed = counts.iter().find(|(_, count)| *count >= VOUCH);
        if proposed.is_some() {
            break;
        }
    }
    let completed = order[VOUCH - 1].0.saturating_sub(1);
    let committed = committed.expect("the empty state at least");
    let all_same = views.iter().all(|view| view.committed == committed);
    let completed = if all_same {
        completed.max(committed.version)
    } else {
        completed
    };
    if committed.version > completed {
        return Next::Finish(committed);
    }
    match proposed {
        Some((stamp, _)) if stamp.version > completed => Next::Finish(*stamp),
        _ => Next::After(committed),
    }
}

#[test]
fn a_client_that_dies_after_one_proposal_leaves_it_to_the_next_one_to_take_or_leave() {
    let mut seven = Seven::new();
    let first = rank(1, 1);
    seven.views(first, 0..7);
    let step = done(&State::new(), op(1, 1), "one");
    assert_eq!(seven.propose(first, &step, [3]), 1);
    let views = seven.views(rank(2, 2), 0..7);
    assert_eq!(decide(&views), Next::After(State::new().stamp()));
    let other = done(&State::new(), op(2, 1), "two");
    assert_eq!(seven.propose(rank(2, 2), &other, 0..7), 7);
    assert_eq!(seven.commit(rank(2, 2), &other, 0..7), 7);
    // The first client wakes up, and is refused everywhere.
    assert_eq!(seven.propose(first, &step, 0..7), 0);
    assert_eq!(seven.commit(first, &step, 0..7), 0);
    let views = seven.views(rank(3, 3), 0..7);
    assert!(views.iter().all(|view| view.committed == other.stamp()));
}

#[test]
fn a_proposal_of_a_quorum_and_a_single_commit_are_finished_by_the_next_client() {
    for commits in [0, 1] {
        for quorum in [[0, 1, 2, 3, 4], [2, 3, 4, 5, 6], [0, 1, 2, 5, 6]] {
            let mut seven = Seven::new();
            let first = rank(1, 1);
            seven.views(first, 0..7);
            let step = done(&State::new(), op(1, 1), "one");
            assert_eq!(seven.propose(first, &step, 0..QUORUM), QUORUM);
            assert_eq!(seven.commit(first, &step, 0..commits), commits);
            let views = seven.views(rank(2, 2), quorum);
            assert_eq!(decide(&views), Next::Finish(step.stamp()));
        }
    }
}

#[test]
fn one_node_at_a_larger_rank_and_one_silent_one_do_not_stop_a_client() {
    let mut seven = Seven::new();
    let mine = rank(5, 1);
    seven.views(rank(9, 9), [0]);
    assert!(matches!(
        seven.nodes[0].get(seven.links[0], mine, 1),
        ObjectTell::Outranked { max, phase: Phase::Get, .. } if max == rank(9, 9)
    ));
    let views = seven.views(mine, 1..6);
    assert_eq!(decide(&views), Next::After(State::new().stamp()));
    let step = done(&State::new(), op(1, 1), "one");
    assert_eq!(seven.propose(mine, &step, 0..6), QUORUM);
    assert_eq!(seven.commit(mine, &step, 0..6), QUORUM);
}

#[test]
fn a_node_that_has_seen_more_refuses_all_three_phases_and_says_what_it_saw() {
    let mut seven = Seven::new();
    let (link, node) = (seven.links[0], &mut seven.nodes[0]);
    node.view(link, rank(7, 2));
    let step = done(&State::new(), op(1, 1), "one");
    let low = rank(7, 1);
    let refusals = [
        node.get(link, low, 1),
        only(node.propose(link, low, &step)),
        only(node.commit(link, low, &step)),
    ];
    for tell in refusals {
        assert!(matches!(tell, ObjectTell::Outranked { rank, max, .. }
                if rank == low && max == keep::rank(7, 2)));
    }
    assert!(node.keeper.views(None, 9)[0].committed.version == 0);
}

#[test]
fn a_get_is_answered_again_to_the_same_attempt_only_and_after_a_restart_too() {
    let mut seven = Seven::new();
    let (link, node) = (seven.links[0], &mut seven.nodes[0]);
    let mine = rank(3, 1);
    let first = node.get(link, mine, 77);
    assert!(matches!(first, ObjectTell::Got { .. }));
    assert_eq!(node.get(link, mine, 77), first);
    assert!(matches!(
        node.get(link, mine, 78),
        ObjectTell::Outranked { max, .. } if max == mine
    ));
    node.restart();
    let link = node.open(2, "ann");
    assert_eq!(node.get(link, mine, 77), first);
    assert!(matches!(
        node.get(link, mine, 78),
        ObjectTell::Outranked { .. }
    ));
}

#[test]
fn two_states_under_one_rank_are_a_contradiction_and_an_older_one_is_refused() {
    let mut seven = Seven::new();
    let (link, node) = (seven.links[0], &mut seven.nodes[0]);
    let one = done(&State::new(), op(1, 1), "one");
    let other = done(&State::new(), op(1, 1), "other");
    let refused = |tell: ObjectTell| match tell {
        ObjectTell::Refused { why, .. } => why,
        other => panic!("taken: {other:?}"),
    };
    node.view(link, rank(1, 1));
    node.propose(link, rank(1, 1), &one);
    let tell = only(node.propose(link, rank(1, 1), &other));
    assert_eq!(refused(tell), ObjectRefusal::Contradiction);
    assert!(matches!(
        only(node.propose(link, rank(1, 1), &one)),
        ObjectTell::Taken { .. }
    ));
    node.commit(link, rank(1, 1), &one);
    let two = done(&one.state, op(1, 2), "two");
    node.propose(link, rank(2, 1), &two);
    node.commit(link, rank(2, 1), &two);
    let tell = only(node.propose(link, rank(3, 1), &one));
    assert_eq!(refused(tell), ObjectRefusal::Older);
    // A proposal that is older than the one before is legal as long as it is not too old.
    let three = done(&two.state, op(1, 3), "three");
    node.propose(link, rank(4, 1), &three);
    assert!(matches!(
        only(node.propose(link, rank(5, 1), &two)),
        ObjectTell::Taken { .. }
    ));
}

#[test]
fn a_submit_waits_until_it_is_committed_and_is_never_done_twice() {
    let mut seven = Seven::new();
    let (link, node) = (seven.links[0], &mut seven.nodes[0]);
    let other = node.open(2, "bob");
    let mine = op(1, 1);
    assert_eq!(
        only(node.ask(other, submit(mine, "x"))),
        ObjectTell::Held {
            op: mine,
            principal: "bob".into(),
        }
    );
    let view = node.view(link, rank(1, 1));
    assert_eq!(view.pending.len(), 1);
    assert_eq!(
        (view.pending[0].op, &*view.pending[0].principal),
        (mine, "bob")
    );
    let step = done(&State::new(), mine, "one");
    node.propose(link, rank(1, 1), &step);
    assert!(node.heard(other).is_empty());
    node.commit(link, rank(1, 1), &step);
    let told = ObjectTell::Done {
        op: mine,
        result: b"one".as_slice().into(),
    };
    assert_eq!(only(node.heard(other)), told);
    // It comes once more, late: the answer is there, and nothing waits.
    assert_eq!(only(node.ask(other, submit(mine, "x"))), told);
    assert!(node.view(link, rank(2, 1)).pending.is_empty());
    node.restart();
    let again = node.open(3, "bob");
    assert_eq!(only(node.ask(again, submit(mine, "x"))), told);
}

#[test]
fn a_node_that_runs_operations_again_is_seen_to() {
    let config = config(7, 1, Rules::planted(Plant::RunAgain));
    let mut node = Node::new(&config, Access::default());
    let link = node.open(1, "ann");
    let step = done(&State::new(), op(1, 1), "one");
    node.view(link, rank(1, 1));
    node.propose(link, rank(1, 1), &step);
    node.commit(link, rank(1, 1), &step);
    node.ask(link, submit(op(1, 1), "x"));
    assert_eq!(node.view(link, rank(2, 1)).pending.len(), 1);
}

#[test]
fn after_a_crash_at_any_write_a_node_holds_what_it_said() {
    let config = config(7, 1, Rules::default());
    let empty = State::new();
    let one = done(&empty, op(1, 1), "one");
    let two = done(&one.state, op(2, 1), "two");
    let asks: Vec<ObjectAsk> = [(1, &one), (2, &two)]
        .into_iter()
        .flat_map(|(round, step)| {
            let (rank, stamp) = (rank(round, 1), step.stamp());
            let (nonce, have, proof) = (round, None, None);
            let carry = Some(step.carry());
            let get = ObjectAsk::Get {
                rank,
                nonce,
                have,
                proof: None,
            };
            let propose = ObjectAsk::Propose {
                rank,
                stamp,
                carry,
                proof: None,
            };
            let commit = ObjectAsk::Commit {
                rank,
                stamp,
                carry: None,
                proof,
            };
            [get, propose, commit]
        })
        .collect();
    for crash in 0..=asks.len() {
        for lost in [false, true] {
            let mut node = Node::new(&config, Access::default());
            let link = node.open(1, "ann");
            for ask in &asks[..crash] {
                node.ask(link, ask.clone());
            }
            let before = node.keeper.stored();
            if let Some(ask) = asks.get(crash).filter(|_| lost) {
                node.step(KeeperInput::Receive(
                    link,
                    Ask::Object(object(), ask.clone()),
                ));
                // Written, but not on disk: nothing was said yet.
                assert!(node.heard(link).is_empty());
            }
            node.restart();
            assert_eq!(node.keeper.stored(), before);
            let link = node.open(2, "ann");
            for ask in &asks[crash..] {
                let tell = node.ask(link, ask.clone()).remove(0);
                let good = matches!(tell, ObjectTell::Got { .. } | ObjectTell::Taken { .. });
                assert!(good, "{crash} {tell:?}");
            }
            let stored = node.keeper.stored();
            assert_eq!(stored.objects[&object()].committed, two.state);
            assert_eq!(replay(&node.disk), stored);
        }
    }
}

#[test]
fn a_node_that_forgets_ranks_takes_back_its_word() {
    let config = config(7, 1, Rules::planted(Plant::ForgetRank));
    let mut node = Node::new(&config, Access::default());
    let link = node.open(1, "ann");
    node.view(link, rank(5, 1));
    node.restart();
    let link = node.open(2, "ann");
    assert!(matches!(
        node.get(link, rank(4, 1), 1),
        ObjectTell::Got { .. }
    ));
    let step = done(&State::new(), op(1, 1), "one");
    node.propose(link, rank(4, 1), &step);
    node.commit(link, rank(4, 1), &step);
    node.restart();
    assert_eq!(node.keeper.views(None, 1)[0].committed, step.stamp());
}

#[test]
fn a_hasty_node_says_that_it_has_committed_too_early() {
    let config = config(7, 1, Rules::planted(Plant::CommitBeforeDisk));
    let mut node = Node::new(&config, Access::default());
    let link = node.open(1, "ann");
    let step = done(&State::new(), op(1, 1), "one");
    node.view(link, rank(1, 1));
    node.propose(link, rank(1, 1), &step);
    let ask = ObjectAsk::Commit {
        rank: rank(1, 1),
        stamp: step.stamp(),
        carry: None,
        proof: None,
    };
    node.step(KeeperInput::Receive(link, Ask::Object(object(), ask)));
    assert!(matches!(only(node.heard(link)), ObjectTell::Taken { .. }));
    node.restart();
    assert_eq!(node.keeper.views(None, 1)[0].committed.version, 0);
}
