//! Crashes and restarts, with a detector that is never wrong.

use conclave_protocol::multilevel::{LevelPlant, LevelRules};

use super::net::{Net, Said, ensure, published, shows};
use super::rules::{ONE_VOTE, TWO, inquired, represented_by_3, target};

/// How long the root waits after the death of a holder, and then some.
const LEASE: u64 = 1_000;

/// An arbiter that restarts while it asks its permission back still knows whose it is.
#[test]
fn an_arbiter_remembers_a_grant_that_it_asks_back() {
    shows(LevelPlant::ForgetGrants, |rules| {
        let mut net = inquired(published(ONE_VOTE, rules))?;
        net.crash(0);
        net.tell_failed(0);
        net.restart(0);
        net.tell_alive(0);
        net.settle();
        ensure(
            net.is_inside(1) && !net.is_inside(2),
            "node 2 is let in beside node 1",
        )?;
        net.leave(1, 1);
        net.settle();
        ensure(net.is_inside(2), "node 2 is not served")?;
        net.apart()
    });
}

/// An arbiter that dies before it answers is replaced by others that make a quorum.
#[test]
fn an_arbiter_that_dies_is_replaced() {
    shows(LevelPlant::LostArbiter, |rules| {
        let mut net = Net::new(published("multilevel(tree, 3, levels=0)", rules));
        net.want(1, 1);
        ensure(net.flies(|wire| wire.to == 0), "node 0 is not asked")?;
        net.crash(0);
        net.tell_failed(0);
        net.settle();
        ensure(net.is_inside(1), "node 1 waits for the dead")?;
        net.finish(LEASE);
        net.all_idle()
    });
}

/// An arbiter whose holder dies while it is asked for its permission goes on.
#[test]
fn the_permission_of_a_dead_holder_is_free() {
    shows(LevelPlant::HolderOfTheDead, |rules| {
        let mut net = inquired(published(ONE_VOTE, rules))?;
        net.crash(1);
        net.tell_failed(1);
        net.live(2 * LEASE);
        ensure(net.is_inside(2), "node 2 waits for the dead")
    });
}

/// The representing node at the root dies while the node it represents is inside: nobody else is
/// let in before the longest time that the other can stay.
#[test]
fn the_root_waits_for_whoever_may_be_inside() {
    shows(LevelPlant::NoWaitAtRoot, |rules| {
        let mut net = represented_by_3(&published(TWO, rules));
        net.want(1, 1);
        net.settle();
        let until = net.inside.get(&1).ok_or("node 1 is not let in")?.until;
        net.pass(50);
        net.crash(3);
        net.tell_failed(3);
        net.want(4, 4);
        net.live(until - net.now - 1);
        ensure(!net.is_inside(4), "node 4 is let in beside node 1")?;
        net.apart()?;
        net.leave(1, 1);
        net.live(100);
        ensure(net.is_inside(4), "node 4 is not served after the wait")
    });
}

/// Twelve nodes in three levels: leaf clusters of two, where the first votes.
const THREE: &str = "multilevel(tree, sizes=[[2,2],[2,2],[2,2]])";

/// Nodes 1 and 3 are represented by one node of the middle level, which another node represents
/// at the root; node 1 is inside and node 3 waits. The net, and both representing nodes.
fn handover(rules: LevelRules) -> Result<(Net, usize, usize), String> {
    let config = published(THREE, rules);
    let parents = |net: &mut Net| {
        net.want(1, 1);
        let middle = target(net, "PreCRequest", 2)?;
        net.flying.clear();
        net.want(3, 3);
        if target(net, "PreCRequest", 2) != Some(middle) {
            return None;
        }
        net.deliver(|wire| wire.is("PreCRequest", 2)).ok()?;
        let root = target(net, "PreCRequest", 1)?;
        (root != middle).then_some((middle, root))
    };
    let lock = Net::find(&config, |net| parents(net).is_some());
    let found = parents(&mut Net::seeded(config.clone(), lock, 1));
    let (middle, root) = found.ok_or("no such lock")?;
    let mut net = Net::seeded(config, lock, 1);
    net.want(1, 1);
    net.settle();
    net.want(3, 3);
    net.settle();
    ensure(
        net.is_inside(1) && !net.is_inside(3),
        "node 1 is not inside alone",
    )?;
    Ok((net, middle, root))
}

/// Consent whose giver is dead serves whoever has it, and nobody else.
#[test]
fn consent_of_the_dead_is_not_handed_on() {
    shows(LevelPlant::OrphanPasses, |rules| {
        let (mut net, _, root) = handover(rules)?;
        let until = net.inside[&1].until;
        net.crash(root);
        net.tell_failed(root);
        net.leave(1, 1);
        net.settle();
        ensure(!net.is_inside(3), "consent of the dead is handed on")?;
        net.live(until.saturating_sub(net.now) + LEASE);
        ensure(net.is_inside(3), "node 3 is not served in the end")
    });
}

/// Consent that holds too short for another child goes back to the root.
#[test]
fn consent_is_not_handed_on_past_its_end() {
    let (mut net, _, _) = handover(LevelRules::default()).unwrap();
    let until = net.inside[&1].until;
    net.pass(until - net.now - 5);
    net.leave(1, 1);
    net.settle();
    assert!(net.inside[&3].until > until, "node 3 has no time left");
}

/// Consent goes to the next child at once while its giver lives.
#[test]
fn consent_of_the_living_is_handed_on() {
    let (mut net, _, _) = handover(LevelRules::default()).unwrap();
    let until = net.inside[&1].until;
    net.leave(1, 1);
    net.settle();
    assert_eq!(net.inside.get(&3).map(|inside| inside.until), Some(until));
}

/// A child that dies with consent may have somebody inside below it: its promise must run out.
#[test]
fn a_dead_child_may_have_somebody_inside() {
    shows(LevelPlant::NoWaitForChild, |rules| {
        let (mut net, middle, _) = handover(rules)?;
        let until = net.inside[&1].until;
        if middle == net.inside[&1].node {
            return Err("the scenario is another one".to_owned());
        }
        net.crash(middle);
        net.tell_failed(middle);
        net.want(9, 9);
        net.live(until - net.now - 1);
        ensure(
            !net.is_inside(9) && !net.is_inside(3),
            "somebody is let in beside node 1",
        )?;
        net.apart()?;
        net.leave(1, 1);
        net.finish(4 * LEASE);
        net.apart()?;
        ensure(net.granted.contains(&9), "node 9 is not served")
    });
}

/// A child that dies is not waited for for ever.
#[test]
fn a_dead_child_is_forgotten() {
    shows(LevelPlant::DeadChild, |rules| {
        let mut net = represented_by_3(&published(TWO, rules));
        net.want(1, 1);
        net.settle();
        net.crash(1);
        net.tell_failed(1);
        net.want(4, 4);
        net.live(2 * LEASE);
        ensure(net.is_inside(4), "node 4 waits for the dead")
    });
}

/// A representing node that dies before its consent is replaced.
#[test]
fn a_dead_representing_node_is_replaced() {
    shows(LevelPlant::LostParent, |rules| {
        for held in ["PreCRequest", "CRequest", "CReply"] {
            let mut net = represented_by_3(&published(TWO, rules));
            net.want(1, 1);
            net.settle_but(|wire| wire.is(held, 1));
            net.crash(3);
            net.tell_failed(3);
            net.live(2 * LEASE);
            ensure(net.is_inside(1), "node 1 waits for the dead")?;
        }
        Ok(())
    });
}

/// Holder and arbiter both restart while somebody is inside by their word. The holder does not
/// know any more: it must not say that it is done.
#[test]
fn a_restarted_holder_does_not_answer_for_its_earlier_life() {
    shows(LevelPlant::ReleaseAfterRestart, |rules| {
        let mut net = represented_by_3(&published(TWO, rules));
        net.want(1, 1);
        net.settle();
        let until = net.inside.get(&1).ok_or("node 1 is not let in")?.until;
        net.crash(0);
        net.crash(3);
        net.tell_failed(0);
        net.tell_failed(3);
        // The arbiter is back first and asks a holder that it takes to be alive.
        net.restart(0);
        ensure(
            net.flies(|wire| wire.is("NodeRecovery", 0)),
            "the holder is not asked",
        )?;
        net.restart(3);
        net.tell_alive(0);
        net.tell_alive(3);
        net.want(4, 4);
        net.live(until - net.now - 1);
        ensure(!net.is_inside(4), "node 4 is let in beside node 1")?;
        net.apart()?;
        net.leave(1, 1);
        net.finish(4 * LEASE);
        ensure(net.granted.contains(&4), "node 4 is not served")?;
        net.apart()
    });
}

/// Two root arbiters that hold permissions of each other, one of them its own as well, restart
/// together: both go on.
#[test]
fn arbiters_that_wait_for_each_other_come_back() {
    let config = published("multilevel(tree, sizes=[3,3,3])", LevelRules::default());
    for lock in 1..40 {
        let mut net = Net::seeded(config.clone(), lock, u64::from(lock));
        net.want(1, 1);
        net.want(4, 4);
        net.want(7, 7);
        // Permissions of the root are given, and none arrives.
        net.settle_but(|wire| wire.is("Reply", 0));
        for node in [0, 3, 6] {
            net.crash(node);
            net.tell_failed(node);
        }
        for node in [0, 3, 6] {
            net.restart(node);
        }
        for node in [0, 3, 6] {
            net.tell_alive(node);
        }
        net.finish(10 * LEASE);
        assert_eq!(net.apart(), Ok(()), "lock {lock}");
        assert_eq!(net.granted.len(), 3, "lock {lock}");
        assert_eq!(net.all_idle(), Ok(()), "lock {lock}");
    }
}

/// A dead node's waiting request is forgotten before its permission is passed on.
#[test]
fn the_dead_do_not_inherit_from_themselves() {
    shows(LevelPlant::QueueOfTheDead, |rules| {
        let mut net = Net::new(published(ONE_VOTE, rules));
        net.want(1, 1);
        net.settle();
        // The end of its first request is slow: the second comes before it.
        net.leave(1, 1);
        net.want(1, 2);
        net.deliver(|wire| wire.is("Request", 0))?;
        net.say_clock(2, 100);
        net.want(2, 3);
        net.deliver(|wire| wire.from == 2)?;
        net.crash(1);
        net.flying.clear();
        net.tell_failed(1);
        net.live(2 * LEASE);
        ensure(net.is_inside(3), "the dead have the permission")
    });
}

/// Words of a life that is over are not believed.
#[test]
fn a_word_of_an_earlier_life_comes_too_late() {
    shows(LevelPlant::OldLives, |rules| {
        let mut net = Net::new(published(ONE_VOTE, rules));
        net.want(1, 1);
        // The request of the first life is slow, and its sender dies.
        let slow = net.flying.remove(0);
        net.crash(1);
        net.tell_failed(1);
        net.flying.push(slow);
        net.settle();
        net.want(2, 2);
        net.live(2 * LEASE);
        ensure(
            net.is_inside(2),
            "the permission went to a life that is over",
        )
    });
}

/// Whoever comes after a holder that died gets larger tokens than any that it may have used.
#[test]
fn tokens_of_the_dead_are_not_used_again() {
    shows(LevelPlant::TokensAgain, |rules| {
        tokens_after_death(rules, 1)
    });
    shows(LevelPlant::TokensAgain, |rules| {
        tokens_after_death(rules, 3)
    });
}

fn tokens_after_death(rules: LevelRules, dies: usize) -> Said {
    let mut net = represented_by_3(&published(TWO, rules));
    net.want(1, 1);
    net.settle();
    let block = net.inside.get(&1).ok_or("node 1 is not let in")?.block;
    net.crash(dies);
    net.tell_failed(dies);
    net.want(4, 4);
    net.want(2, 2);
    net.live(LEASE);
    if dies != 1 {
        net.leave_unknown(1, 1);
    }
    net.finish(10 * LEASE);
    let first = net.blocks.get(1).ok_or("nobody is served")?;
    ensure(first.from >= block.to, "its tokens are given again")
}

/// Tokens grow from holder to holder, through handovers, releases and restarts of the root.
#[test]
fn tokens_grow() {
    let mut net = Net::new(published(THREE, LevelRules::default()));
    let mut last = 0;
    for round in 0..30_u64 {
        let node = [1, 3, 5, 9, 11, 0][round as usize % 6];
        net.want(node, round);
        net.live(50);
        let inside = net.inside.get(&round).expect("nobody else wants it");
        assert!(
            inside.block.from.0 >= last && !inside.block.is_empty(),
            "round {round}"
        );
        last = inside.block.from.0 + 1;
        net.leave(node, round);
        net.settle();
        if round % 7 == 6 {
            let node = [0, 4, 8][round as usize % 3];
            net.crash(node);
            net.tell_failed(node);
            net.restart(node);
            net.tell_alive(node);
            net.live(3 * LEASE);
        }
    }
}
