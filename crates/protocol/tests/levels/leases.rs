//! Suspicions that may be wrong, connections that break, and promises that end by themselves.

use conclave_protocol::lock::{Mode, Restart};
use conclave_protocol::multilevel::{LevelConfig, LevelPlant, LevelRules};

use super::net::{Net, Said, Wire, ensure, leased, shows};
use super::rules::{TWO, target};

/// A lock for which node 3 represents node 1, and node 0 represents node 4.
fn two_parents(config: LevelConfig) -> Net {
    let lock = Net::find(&config, |net| {
        net.want(1, 1);
        let first = target(net, "PreCRequest", 1);
        net.flying.clear();
        net.want(4, 4);
        let away = net.flies(|wire| wire.is("PreCRequest", 1) && wire.to == 0);
        first == Some(3) && away
    });
    Net::seeded(config, lock, 1)
}

/// Whether a message goes between the nodes of a part and the others.
fn crosses(part: &[usize]) -> impl Fn(&Wire) -> bool {
    let part = part.to_vec();
    move |wire| part.contains(&wire.from) != part.contains(&wire.to)
}

/// Nobody hears of these nodes any more, nor they of the others; all suspect each other.
fn part_off(net: &mut Net, part: &[usize]) {
    for one in part {
        for other in (0..6).filter(|other| !part.contains(other)) {
            net.cut(*one, other);
        }
    }
}

/// While connections hold, so does a lock, for as long as anybody wants.
#[test]
fn a_lock_is_kept_while_its_holder_is_heard_of() {
    let mut net = two_parents(leased(TWO, LevelRules::default()));
    net.want(1, 1);
    net.live(1_000);
    net.want(4, 4);
    for _ in 0..50 {
        net.live(5_000);
        assert!(net.is_inside(1) && !net.is_inside(4));
        assert!(net.inside[&1].until > net.now + 3_000);
    }
    net.leave(1, 1);
    net.live(1_000);
    assert!(net.is_inside(4));
    net.leave(4, 4);
    net.live(50_000);
    assert_eq!(net.all_idle(), Ok(()));
}

/// A holder and its representing node that all others wrongly take for dead keep the lock until
/// their lease ends; then somebody else has it.
#[test]
fn a_suspected_holder_is_not_replaced_before_its_lease_ends() {
    for part in [&[1, 3][..], &[1], &[3]] {
        let mut net = two_parents(leased(TWO, LevelRules::default()));
        net.want(1, 1);
        net.live(2_000);
        let until = net.inside[&1].until;
        part_off(&mut net, part);
        net.want(4, 4);
        net.live_but(until - net.now - 1, crosses(part));
        assert!(net.is_inside(1) && !net.is_inside(4), "{part:?}");
        net.live_but(40_000, crosses(part));
        assert_eq!(net.apart(), Ok(()), "{part:?}");
        assert!(!net.is_inside(1) && net.is_inside(4), "{part:?}");
    }
}

/// A root arbiter that keeps no grants on disk grants nothing after a restart until every lease
/// that it may have given has ended.
#[test]
fn a_restarted_arbiter_waits_for_the_leases_of_its_earlier_life() {
    shows(LevelPlant::NoPause, |rules| {
        let mut config = leased(TWO, rules);
        config.restart = Restart::Pause;
        let mut net = two_parents(config);
        net.want(1, 1);
        net.live(2_000);
        ensure(net.is_inside(1), "node 1 is not let in")?;
        net.crash(0);
        net.suspect(0);
        net.restart(0);
        net.tell_alive(0);
        // The old holder is slow to hear of it.
        let slow = |wire: &Wire| wire.from + wire.to == 3 && wire.from * wire.to == 0;
        net.want(4, 4);
        net.live_but(5_000, slow);
        net.apart()?;
        ensure(!net.is_inside(4), "node 4 is let in during the pause")?;
        net.live_but(40_000, slow);
        net.apart()?;
        ensure(net.is_inside(4), "node 4 is not served after the pause")
    });
}

/// A consent that was long on its way has less left: it counts from when it was asked for.
#[test]
fn a_lease_is_counted_from_the_question() {
    shows(LevelPlant::LeaseFromAnswer, |rules| {
        let mut net = two_parents(leased(TWO, rules));
        net.want(1, 1);
        let slow = |wire: &Wire| wire.is("CReply", 1) && wire.to == 1;
        net.settle_but(slow);
        ensure(net.flies(slow), "no consent is on its way")?;
        net.live_but(3_000, crosses(&[1]));
        net.deliver(slow)?;
        ensure(net.is_inside(1), "node 1 is not let in")?;
        net.want(4, 4);
        net.live_but(40_000, crosses(&[1]));
        ensure(net.is_inside(4), "node 4 is not served")?;
        net.apart()
    });
}

/// A consent that was on its way for too long is not used; the next one is.
#[test]
fn a_lease_that_is_nearly_over_is_not_used() {
    let mut net = two_parents(leased(TWO, LevelRules::default()));
    net.want(1, 1);
    let slow = |wire: &Wire| wire.is("CReply", 1) && wire.to == 1;
    net.settle_but(slow);
    net.live_but(6_000, crosses(&[1]));
    net.deliver(slow).unwrap();
    assert!(!net.is_inside(1), "most of the lease is over");
    net.live(2_000);
    assert!(net.is_inside(1), "it is renewed");
    assert!(net.inside[&1].until > net.now + 5_000);
}

/// A wish for a longer lease than its run was begun with gets what the root has promised, not
/// what it wished for.
#[test]
fn a_longer_wish_waits_until_the_root_has_promised_it() {
    let mut net = two_parents(leased(TWO, LevelRules::default()));
    // The announcement begins a run with the usual lease; the ask then names its own.
    net.want_as(1, 1, Mode::Exclusive, 80_000);
    net.settle();
    net.live(100);
    part_off(&mut net, &[1, 3]);
    net.want(4, 4);
    net.live_but(200_000, crosses(&[1, 3]));
    assert_eq!(net.apart(), Ok(()));
    assert!(net.is_inside(4));
    // And with its connections it gets the longer lease.
    let mut net = two_parents(leased(TWO, LevelRules::default()));
    net.want_as(1, 1, Mode::Exclusive, 80_000);
    net.live(10_000);
    assert!(
        net.inside[&1].until > net.now + 40_000,
        "the lease is not longer"
    );
}

/// A quorum that takes the place of another keeps what the other has promised, also if nobody
/// would want so much now.
#[test]
fn a_new_quorum_keeps_the_promises_of_the_old_one() {
    let mut net = Net::new(leased(
        "multilevel(tree, 3, levels=0)",
        LevelRules::default(),
    ));
    net.want_as(0, 1, Mode::Exclusive, 80_000);
    let asks_1 = net.flies(|wire| wire.is("Request", 0) && wire.to == 1);
    let (old, new) = if asks_1 { (1, 2) } else { (2, 1) };
    net.live(100);
    net.want(0, 2);
    net.leave(0, 1);
    net.live(100);
    assert!(net.is_inside(2), "consent is not handed on");
    let until = net.inside[&2].until;
    assert!(until > net.now + 60_000, "its end is not that of the first");
    // The old member is suspected for a moment, and let go once the new one has answered.
    net.cut(0, old);
    net.join(0, old);
    net.settle();
    assert!(net.is_inside(2));
    for other in [old, new] {
        net.cut(0, other);
    }
    net.want(new, 4);
    net.live_but(until - net.now - 1, crosses(&[0]));
    assert_eq!(net.apart(), Ok(()));
    assert!(!net.is_inside(4), "node {new} enters before the end");
    net.live_but(100_000, crosses(&[0]));
    assert!(net.is_inside(4), "node {new} is not served");
    assert_eq!(net.apart(), Ok(()));
}

/// Whenever a connection breaks and comes back, nothing is lost: everybody is served, nobody
/// beside another, and nothing is left behind.
#[test]
fn a_broken_connection_loses_nothing() {
    for before in 0..26 {
        for one in 0..6 {
            for other in 0..one {
                for away in [0, 1_500, 12_000] {
                    let told = broken(before, one, other, away);
                    assert_eq!(told, Ok(()), "after {before}: {one} and {other} for {away}");
                }
            }
        }
    }
}

fn broken(before: usize, one: usize, other: usize, away: u64) -> Said {
    let mut net = Net::new(leased(TWO, LevelRules::default()));
    net.want(1, 1);
    net.want(4, 4);
    for _ in 0..before {
        if net.deliver(|_| true).is_err() {
            break;
        }
    }
    net.cut(one, other);
    let between = |wire: &Wire| {
        let ends = (wire.from, wire.to);
        ends == (one, other) || ends == (other, one)
    };
    net.live_but(away, between);
    net.flying.retain(|wire| !between(wire));
    net.join(one, other);
    net.finish(400_000);
    net.apart()?;
    ensure(net.granted.contains(&1), "node 1 is not served")?;
    ensure(net.granted.contains(&4), "node 4 is not served")?;
    net.all_idle()
}
