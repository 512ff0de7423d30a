//! The baselines under schedules that no clock would produce, and by hand.

#![allow(clippy::unwrap_used, reason = "tests may unwrap")]

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt::Debug;

use conclave_protocol::baseline::{
    BaselineEffects, Event, GroupNo, Input, Named, Peer, backup, maekawa, ricart,
};
use conclave_protocol::{Machine, Now};
use conclave_quorum::Prng;
use proptest::prelude::*;

#[path = "baseline/net.rs"]
mod net;

use net::{Net, alone, everybody, one_group, pair, quorums, server};

/// The lines of the plane of order 2: any two of them share one node.
const FANO: [&[u32]; 7] = [
    &[0, 1, 2],
    &[0, 3, 4],
    &[0, 5, 6],
    &[1, 3, 5],
    &[1, 4, 6],
    &[2, 3, 6],
    &[2, 4, 5],
];

/// Sanders 1987: who was the best waiting request and is beaten must hear of it.
///
/// C, B, D, A ask with stamps in this order, best first. A holds i, D holds k (so A fails there),
/// B holds j. B comes to i, which inquires A; then C comes to i. A gives i back, to C. C now
/// needs j, which B holds, and B waits for i.
fn beaten_while_best(variant: maekawa::Variant) -> Net<maekawa::Site, maekawa::Message> {
    let (c, b, d, a) = (0, 1, 2, 3);
    let (i, j, k) = (4, 5, 6);
    let mut net = quorums(variant, 3, &[&[0, 1], &[0, 1], &[1, 2], &[0, 2]]);
    // All clocks are at zero: the stamps differ only in the process.
    for process in [a, b, c, d] {
        net.ask(process, 0);
    }
    for (process, node) in [(a, i), (d, k), (b, j)] {
        net.deliver(process, node);
        net.deliver(node, process);
    }
    net.deliver(b, i);
    net.deliver(c, i);
    net.deliver_all();
    net
}

/// Lets everybody leave who is inside until nobody is, and says who still waits.
fn run_out(net: &mut Net<maekawa::Site, maekawa::Message>) -> Vec<u32> {
    net.deliver_all();
    while let Some(who) = net.inside().first().copied() {
        alone(&net.inside);
        net.leave(who);
        net.deliver_all();
    }
    net.asked.keys().map(|peer| peer.0).collect()
}

#[test]
fn sanders_schedule_stops_as_published_and_ends_as_corrected() {
    let mut published = beaten_while_best(maekawa::Variant::Published);
    assert_eq!(run_out(&mut published), [0, 1, 2, 3]);
    assert_eq!(published.entries, 0);
    for variant in [maekawa::Variant::Corrected, maekawa::Variant::AtOnce] {
        let mut net = beaten_while_best(variant);
        assert_eq!(net.inside(), [0], "the best request enters first");
        assert_eq!(run_out(&mut net), [0; 0]);
        assert_eq!(net.entries, 4);
    }
}

#[test]
fn maekawa_alone_costs_three_messages_per_node() {
    for variant in [
        maekawa::Variant::Published,
        maekawa::Variant::Corrected,
        maekawa::Variant::AtOnce,
    ] {
        let mut net = quorums(variant, 7, &FANO);
        for round in 1..=5 {
            net.ask(3, 0);
            net.deliver_all();
            assert_eq!(net.inside(), [3]);
            net.leave(3);
            net.deliver_all();
            assert_eq!(net.total(), 9 * round);
        }
        for site in &net.sites {
            if let maekawa::Site::Node(node) = site {
                assert_eq!(node.kept(), 0);
            }
        }
    }
}

/// One run of 30 entries at seven processes that share no quorum; whether it ended, and its
/// messages per entry.
fn shaken(variant: maekawa::Variant, seed: u64) -> (bool, f64) {
    let mut net = quorums(variant, 7, &FANO);
    let ended = net.shake(7, 1, 30, &mut Prng::new(seed), alone);
    (ended, net.total() as f64 / net.entries.max(1) as f64)
}

/// How many of 400 random schedules stop for good, and the mean messages per entry of the rest.
fn four_hundred(variant: maekawa::Variant) -> (usize, f64) {
    let runs: Vec<(bool, f64)> = (0..400).map(|seed| shaken(variant, seed)).collect();
    let ended: Vec<f64> = runs.iter().filter(|run| run.0).map(|run| run.1).collect();
    let mean = ended.iter().sum::<f64>() / ended.len() as f64;
    (400 - ended.len(), mean)
}

#[test]
fn only_the_published_rule_stops_under_random_schedules() {
    let (stopped, _) = four_hundred(maekawa::Variant::Published);
    assert!(stopped > 0, "the deadlock was not found");
    let (corrected, with_failed) = four_hundred(maekawa::Variant::Corrected);
    let (at_once, without) = four_hundred(maekawa::Variant::AtOnce);
    println!("published stops in {stopped} of 400");
    println!("messages per entry: {with_failed:.1} with FAILED, {without:.1} without");
    assert_eq!((corrected, at_once), (0, 0));
    // What FAILED saves in locks given back, it costs more in messages of its own.
    assert!(without < with_failed, "{without} {with_failed}");
    assert!(without <= 18.0, "more than 6c: {without}");
}

#[test]
fn permission_of_everybody_costs_two_messages_per_other() {
    use ricart::Variant::{Capture, Exclusive, Groups};
    for variant in [Exclusive, Groups, Capture] {
        let mut net = everybody(9, variant);
        net.ask(4, 0);
        net.deliver_all();
        assert_eq!(net.inside(), [4]);
        net.leave(4);
        net.deliver_all();
        assert_eq!(net.total(), 16);
    }
    for (variant, groups) in [(Exclusive, 3), (Groups, 1), (Groups, 3)] {
        for seed in 0..50 {
            let mut net = everybody(5, variant);
            assert!(net.shake(5, groups, 40, &mut Prng::new(seed), one_group));
            assert_eq!(net.total(), 40 * 8, "contended or not");
        }
    }
}

#[test]
fn servers_cost_three_and_five() {
    let mut one = server(4, 16);
    let mut two = pair(4, 16);
    for who in [0, 3, 1] {
        one.ask(who, who);
        one.deliver_all();
        assert_eq!(one.inside(), [who]);
        one.leave(who);
        one.deliver_all();
        two.ask(who, who);
        two.deliver_all();
        assert_eq!(two.inside(), [who]);
        two.leave(who);
        two.deliver_all();
    }
    assert_eq!((one.total(), two.total()), (9, 15));
}

/// All that know groups: members share if nobody else asks.
#[test]
fn a_group_enters_together_when_nobody_else_asks() {
    fn check<T, M>(mut net: Net<T, M>)
    where
        T: Machine<
                Input = Input<M>,
                Address = Peer,
                Message = M,
                Record = Infallible,
                Event = Event,
            >,
        M: Named + Debug,
    {
        for who in 0..8 {
            net.ask(who, 5);
        }
        net.deliver_all();
        assert_eq!(net.inside(), [0, 1, 2, 3, 4, 5, 6, 7]);
        // One leaves and comes back while the others stay.
        net.leave(3);
        net.ask(3, 5);
        net.deliver_all();
        assert_eq!(net.inside().len(), 8);
    }
    check(everybody(8, ricart::Variant::Groups));
    check(everybody(8, ricart::Variant::Capture));
    check(server(8, 0));
    check(pair(8, 0));
}

/// Stamps of two groups alternate: RA1 serves one process at a time, RA2 brings the group in.
#[test]
fn capture_gathers_a_group_that_strangers_split() {
    for (variant, first, together) in [
        (ricart::Variant::Groups, vec![0], 1),
        (ricart::Variant::Capture, vec![0, 2, 4], 3),
    ] {
        let mut net = everybody(6, variant);
        for who in 0..6 {
            net.ask(who, who % 2);
        }
        net.deliver_all();
        assert_eq!(net.inside(), first);
        while let Some(who) = net.inside().first().copied() {
            one_group(&net.inside);
            net.leave(who);
            net.deliver_all();
        }
        assert_eq!((net.entries, net.inside_max), (6, together));
        let starts = net.sent.get("START").copied().unwrap_or(0);
        let overs = net.sent.get("OVER").copied().unwrap_or(0);
        assert_eq!(starts, overs, "each start is answered");
    }
}

/// A captain that has left keeps strangers out until its crew is out, and starts nobody more.
#[test]
fn a_captain_waits_for_its_crew_and_closes_the_door() {
    let mut net = everybody(4, ricart::Variant::Capture);
    net.ask(0, 0);
    net.deliver_all();
    net.ask(1, 1);
    net.deliver_all();
    net.ask(2, 0);
    net.deliver_all();
    assert_eq!(net.inside(), [0, 2], "2 is captured past 1");
    net.leave(2);
    net.deliver_all();
    net.ask(2, 0);
    net.deliver_all();
    assert_eq!(
        net.inside(),
        [0, 2],
        "and again, while the captain is inside"
    );
    net.leave(0);
    net.deliver_all();
    assert_eq!(net.inside(), [2], "1 still waits for 2");
    net.ask(3, 0);
    net.ask(0, 2);
    net.deliver_all();
    assert_eq!(net.inside(), [2], "the door is closed");
    // 0 and 3 asked with equal counters: the smaller process comes first.
    for next in [1, 0, 3] {
        let inside = net.inside();
        net.leave(inside[0]);
        net.deliver_all();
        assert!(net.inside().contains(&next), "{next} after {inside:?}");
    }
}

/// START goes to those that need it: not to one that no stranger hinders, and not because of a
/// stranger that was served long ago.
#[test]
fn a_captain_starts_only_who_is_hindered() {
    let (first, late, stranger, captured) = (0, 1, 2, 3);
    let mut net = everybody(4, ricart::Variant::Capture);
    net.ask(first, 0);
    net.deliver_all();
    // These two do not know of each other; the stranger's stamp is the better one.
    net.ask(stranger, 1);
    net.ask(captured, 0);
    net.deliver(stranger, first);
    net.deliver(captured, first);
    while net.inside() == [first] {
        net.deliver(first, captured);
    }
    assert_eq!(net.inside(), [first, captured]);
    net.deliver_all();
    net.leave(captured);
    net.leave(first);
    net.deliver_all();
    assert_eq!(net.inside(), [stranger]);
    net.ask(late, 1);
    net.deliver_all();
    assert_eq!(net.inside(), [late, stranger]);
    assert_eq!(net.sent["START"], 1);

    let mut net = everybody(3, ricart::Variant::Capture);
    for (who, group) in [(0, 0), (1, 0), (2, 1)] {
        net.ask(who, group);
    }
    net.deliver_all();
    assert_eq!(net.inside(), [0, 1]);
    assert_eq!(net.sent.get("START"), None);
}

#[test]
fn a_server_lets_members_pass_strangers_only_so_often() {
    for (max_bypass, joined) in [(0, 0), (2, 2), (9, 4)] {
        let mut net = server(6, max_bypass);
        for round in 0..2 {
            net.ask(0, 0);
            net.deliver_all();
            net.ask(1, 1);
            net.deliver_all();
            for who in 2..6 {
                net.ask(who, 0);
                net.deliver_all();
            }
            assert_eq!(net.inside().len(), 1 + joined, "round {round}");
            for who in net.inside() {
                net.leave(who);
            }
            net.deliver_all();
            assert_eq!(net.inside(), [1], "the stranger has its turn");
            while let Some(who) = net.inside().first().copied() {
                net.leave(who);
                net.deliver_all();
            }
            assert!(net.asked.is_empty());
        }
    }
}

/// Maekawa 1985: a node that has inquired and has no answer yet does not inquire again.
#[test]
fn a_node_inquires_once_per_lock() {
    for variant in [maekawa::Variant::Corrected, maekawa::Variant::AtOnce] {
        let mut net = quorums(variant, 1, &[&[0], &[0], &[0], &[0]]);
        for who in [3, 2, 1, 0] {
            net.ask(who, 0);
            net.deliver(who, 4);
        }
        assert_eq!(net.sent["INQUIRE"], 1);
        assert_eq!(run_out(&mut net), [0; 0]);
        assert_eq!(net.entries, 4);
    }
}

/// The backup knows of everybody who is inside, at each step of any schedule.
#[test]
fn the_backup_never_misses_a_holder() {
    let mut rng = Prng::new(11);
    let mut net = pair(4, 2);
    for _ in 0..4000 {
        let ready = net.ready();
        match rng.below(6) {
            0 => {
                let who = rng.below(4) as u32;
                let busy = net.inside.contains_key(&Peer(who));
                if !busy && !net.asked.contains_key(&Peer(who)) {
                    net.ask(who, rng.below(2) as u32);
                }
            }
            1 if !net.inside.is_empty() => net.leave(net.inside()[0]),
            2.. if !ready.is_empty() => {
                let (from, to) = ready[rng.below(ready.len())];
                net.deliver(from.0, to.0);
            }
            _ => {}
        }
        let Some(backup::Site::Backup(backup)) = net.sites.last() else {
            panic!("the backup is last");
        };
        assert!(net.inside.keys().all(|peer| backup.inside().contains(peer)));
    }
    assert!(net.entries > 200);
    // Once all are out, the next grant tells the backup so.
    while !net.asked.is_empty() || !net.inside.is_empty() {
        net.deliver_all();
        for who in net.inside() {
            net.leave(who);
        }
    }
    net.deliver_all();
    net.ask(1, 0);
    net.deliver_all();
    let Some(backup::Site::Backup(backup)) = net.sites.last() else {
        panic!("the backup is last");
    };
    assert_eq!(backup.inside(), &BTreeSet::from([Peer(1)]));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Any schedule: members of one group share, others exclude, and everybody gets in.
    #[test]
    fn groups_share_and_others_exclude(
        seed in any::<u64>(),
        processes in 2u32..7,
        groups in 1usize..4,
        bypass in 0u32..4,
    ) {
        let rng = Prng::new(seed);
        for variant in [ricart::Variant::Groups, ricart::Variant::Capture] {
            let mut net = everybody(processes, variant);
            prop_assert!(net.shake(processes, groups, 40, &mut rng.clone(), one_group));
            prop_assert_eq!(net.entries, 40);
        }
        let mut one = server(processes, bypass);
        prop_assert!(one.shake(processes, groups, 40, &mut rng.clone(), one_group));
        let mut two = pair(processes, bypass);
        prop_assert!(two.shake(processes, groups, 40, &mut rng.clone(), one_group));
        prop_assert_eq!((one.entries, two.entries), (40, 40));
    }

    /// Any schedule: one at a time, and everybody gets in.
    #[test]
    fn exclusive_protocols_exclude(seed in any::<u64>(), processes in 2u32..7) {
        let rng = Prng::new(seed);
        let mut all = everybody(processes, ricart::Variant::Exclusive);
        prop_assert!(all.shake(processes, 3, 40, &mut rng.clone(), alone));
        for variant in [maekawa::Variant::Corrected, maekawa::Variant::AtOnce] {
            let mut net = quorums(variant, 7, &FANO[..processes as usize]);
            prop_assert!(net.shake(processes, 3, 40, &mut rng.clone(), alone));
            prop_assert_eq!(net.entries, 40);
        }
    }

    /// Whatever comes from outside: no panic, and what is kept does not grow.
    #[test]
    fn nonsense_is_harmless(
        letters in prop::collection::vec((0u32..12, 0u64..5, 0u32..12, 0u32..4, 0u8..6), 0..200),
    ) {
        let mut process = ricart::Process::new(Peer(2), 5, ricart::Variant::Capture);
        let mut node = maekawa::Site::Node(
            maekawa::Arbiter::new(maekawa::Variant::Corrected, 5),
        );
        let mut out = BaselineEffects::new();
        let mut votes = BaselineEffects::new();
        process.handle(Now::default(), Input::Ask { group: GroupNo(1) }, &mut out);
        for (from, counter, peer, group, kind) in letters {
            let stamp = conclave_protocol::baseline::Stamp { counter, peer: Peer(peer) };
            let (from, group) = (Peer(from), GroupNo(group));
            let message = match kind {
                0 | 1 => ricart::Message::Request { stamp, group },
                2 => ricart::Message::Reply { stamp, ended: counter },
                3 => ricart::Message::Start { stamp },
                _ => ricart::Message::Over { stamp },
            };
            process.handle(Now::default(), Input::Receive { from, message }, &mut out);
            let message = match kind {
                0..3 => maekawa::Message::Request { stamp },
                3 => maekawa::Message::Relinquish { stamp, grant: counter },
                4 => maekawa::Message::Release { stamp },
                _ => maekawa::Message::Failed { stamp, clock: counter },
            };
            node.handle(Now::default(), Input::Receive { from, message }, &mut votes);
            let maekawa::Site::Node(arbiter) = &node else { unreachable!() };
            prop_assert!(process.kept() <= 16 && arbiter.kept() <= 5);
        }
    }
}
