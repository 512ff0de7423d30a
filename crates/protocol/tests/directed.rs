//! Schedules that were written to break the protocol, and the bounds that it must meet exactly.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod harness;

use std::time::Duration;

use conclave_protocol::id::{Key, Name};
use conclave_protocol::lock::{Fence, Group, Mode, NodeInput, Policy};
use conclave_quorum::Prng;
use harness::{CHARGED, Cluster, config};

fn with_policy(system: &str, max_inside: u32, max_bypass: u32, clients: usize) -> Cluster {
    let mut shared = config(system, &[]);
    let policy = Policy {
        max_inside,
        max_bypass,
        ..Policy::default()
    };
    shared.policies = vec![(Vec::new(), policy)];
    Cluster::new(shared, clients)
}

fn group_of(cluster: &Cluster, client: usize, key: u64) -> Group {
    let ask = cluster.clients[client].ask(Key(key), &Name::new("a"));
    ask.unwrap().group()
}

/// Nobody in the way: three messages per member, two delays, whatever the quorums are.
#[test]
fn an_uncontended_entry_costs_three_messages_per_member_and_two_delays() {
    for (system, groups) in [
        ("singleton(3)", &[] as &[&str]),
        ("majority(5)", &[]),
        ("threshold(5, 4)", &[]),
        ("weighted(3,1,1,1)", &[]),
        ("grid(9)", &[]),
        ("rect(3, 4)", &[]),
        ("plane(13)", &[]),
        ("tree(7)", &[]),
        ("wheel(6)", &[]),
        ("walls(1,2,3)", &[]),
        ("triangular(10)", &[]),
        ("hierarchical(3,3,3)", &[]),
        ("hgrid(3x3, 2x2)", &[]),
        ("billiard(4)", &[]),
        ("billiard(24)", &[]),
        ("hbilliard(3,3)", &[]),
        ("compose(majority(3), grid(4))", &[]),
        ("multilevel(tree, 21, levels=2)", &[]),
        ("complete(grid(9))", &[]),
        ("expr(choose(2, a, b, c))", &[]),
        ("masking(9, b=2)", &[]),
        ("mgrid(25, b=1)", &[]),
        ("surficial(groups=3, n=12)", &["g", "h", "i"]),
        ("affine(9, groups=3)", &["g", "h", "i"]),
        ("groups(majority(5), 3)", &["g", "h"]),
    ] {
        let mut modes = vec![Mode::Exclusive, Mode::Shared, Mode::group("other")];
        modes.extend(groups.iter().map(Mode::group));
        for mode in modes {
            let mut cluster = Cluster::new(config(system, groups), 1);
            // The first entry opens the connections.
            cluster.acquire(0, 1, "a", mode.clone());
            cluster.drain();
            cluster.release(0, 1);
            cluster.drain();
            let before = cluster.count(&CHARGED);
            cluster.acquire(0, 2, "a", mode.clone());
            cluster.round();
            assert_eq!(cluster.entered(0, 2), None, "{system} {mode}");
            cluster.round();
            assert!(cluster.entered(0, 2).is_some(), "{system} {mode}");
            let held = cluster.clients[0].held(Key(2), &Name::new("a"), cluster.now.mono);
            let members = held.unwrap().1.len();
            cluster.release(0, 2);
            cluster.drain();
            let messages = cluster.count(&CHARGED) - before;
            assert_eq!(messages, 3 * members, "{system} {mode}");
        }
    }
}

/// The dearest schedule known: 6 c max messages for one entry, here with c = 2.
#[test]
fn the_bound_schedule_costs_exactly_twelve_max_messages_per_entry() {
    for max in [1, 2, 3, 10] {
        let mut cluster = with_policy("majority(2)", max as u32, u32::MAX, 2 * max);
        // Client 0 comes and goes; then `max` members of g, then the rest of h.
        let (g, h) = (1..=max, max + 1..2 * max);
        for client in 1..2 * max {
            let group = if g.contains(&client) { "g" } else { "h" };
            cluster.acquire(client, 1, "a", Mode::group(group));
            cluster.settle();
        }
        for node in 0..2 {
            for client in 1..2 * max {
                cluster.deliver_all(client, node, true);
            }
        }
        for client in g.clone() {
            cluster.deliver_all(client, 0, false);
        }
        for client in h.clone() {
            cluster.deliver_all(client, 0, false);
            cluster.deliver_all(client, 1, false);
        }
        for entry in 1..=3 {
            let before = cluster.count(&CHARGED);
            bound_round(&mut cluster, entry, g.clone(), h.clone());
            assert!(cluster.entered(0, entry).is_some());
            let messages = cluster.count(&CHARGED) - before;
            assert_eq!(messages, 12 * max, "max {max}, entry {entry}");
        }
        for client in 1..2 * max {
            assert_eq!(cluster.entered(client, 1), None);
        }
    }
}

fn bound_round(
    cluster: &mut Cluster,
    entry: u64,
    g: std::ops::RangeInclusive<usize>,
    h: std::ops::Range<usize>,
) {
    cluster.acquire(0, entry, "a", Mode::group("h"));
    cluster.settle();
    // Node by node: g is asked back, yields, and h is granted.
    for node in 0..2 {
        cluster.deliver_all(0, node, true);
        for client in g.clone() {
            cluster.deliver_all(client, node, false);
            cluster.deliver_all(client, node, true);
        }
        cluster.deliver_all(0, node, false);
        if node == 0 {
            for client in h.clone() {
                cluster.deliver_all(client, node, false);
            }
        }
    }
    // It leaves before the second node's grants reach the rest of h.
    cluster.release(0, entry);
    for node in 0..2 {
        cluster.deliver_all(0, node, true);
        for client in h.clone() {
            cluster.deliver_all(client, node, false);
            cluster.deliver_all(client, node, true);
        }
    }
    for client in g {
        cluster.deliver_all(client, 0, false);
    }
}

/// Any schedule without faults: at most 6 c messages per entry, times `max` for groups.
#[test]
fn contention_never_costs_more_than_the_bound() {
    for seed in 0..60 {
        let mut rng = Prng::new(seed);
        let max = 1 + rng.below(3);
        let exclusive = rng.chance(0.5);
        let system = ["majority(3)", "billiard(4)", "grid(9)"][rng.below(3)];
        let mut cluster = with_policy(system, max as u32, u32::MAX, 5);
        let members = cluster.config.quorums.family(&Mode::Exclusive).sizes().max;
        let (mut keys, mut entries) = ([0_u64; 5], 0);
        while entries < 60 {
            cluster.jump(Duration::from_nanos(1));
            let client = rng.below(5);
            if rng.chance(0.2) {
                let key = keys[client];
                if key > 0 && cluster.is_inside(client, key, "a") {
                    cluster.release(client, key);
                } else if key == 0 || cluster.ended(client, key).is_some() {
                    keys[client] += 1;
                    let mode = match rng.below(2) {
                        _ if exclusive => Mode::Exclusive,
                        0 => Mode::group("g"),
                        _ => Mode::group("h"),
                    };
                    cluster.acquire(client, keys[client], "a", mode);
                    entries += 1;
                }
            } else if let ready = cluster.wires.ready()
                && !ready.is_empty()
            {
                let (link, up) = ready[rng.below(ready.len())];
                cluster.deliver(link, up);
            }
        }
        finish_all(&mut cluster, &keys);
        let bound = 6 * members * if exclusive { 1 } else { max } * entries;
        let messages = cluster.count(&CHARGED);
        assert!(messages <= bound, "seed {seed}: {messages} of {bound}");
    }
}

/// Everybody who waits gets in, one after the other.
fn finish_all(cluster: &mut Cluster, keys: &[u64]) {
    for _ in 0..2 * keys.len() {
        cluster.drain();
        for (client, key) in keys.iter().enumerate() {
            if *key > 0 && cluster.is_inside(client, *key, "a") {
                cluster.release(client, *key);
            }
        }
    }
    for (client, key) in keys.iter().enumerate() {
        assert!(*key == 0 || cluster.ended(client, *key).is_some());
    }
}

#[test]
fn ten_members_of_one_group_are_inside_together() {
    for system in ["majority(5)", "billiard(4)", "surficial(groups=2, n=4)"] {
        let mut cluster = Cluster::new(config(system, &[]), 10);
        for client in 0..10 {
            cluster.acquire(client, 1, "a", Mode::group("g"));
        }
        cluster.drain();
        for client in 0..10 {
            assert!(cluster.is_inside(client, 1, "a"), "{system}: {client}");
        }
    }
}

/// While the oldest member stays, others of its group pass a waiting request `max_bypass` times.
#[test]
fn overtaking_stops_exactly_at_its_bound() {
    for bound in [0, 1, 2, 3, 16] {
        let mut cluster = with_policy("majority(2)", u32::MAX, bound, 3);
        cluster.acquire(0, 1, "a", Mode::group("g"));
        cluster.drain();
        cluster.jump(Duration::from_millis(1));
        cluster.acquire(1, 1, "a", Mode::Exclusive);
        cluster.drain();
        let mut passed = 0;
        for key in 1..=40 {
            cluster.jump(Duration::from_micros(1));
            cluster.acquire(2, key, "a", Mode::group("g"));
            cluster.drain();
            passed += u32::from(cluster.is_inside(2, key, "a"));
            cluster.release(2, key);
            cluster.drain();
        }
        assert_eq!(passed, bound);
        cluster.release(0, 1);
        cluster.drain();
        assert!(cluster.is_inside(1, 1, "a"));
    }
}

/// A stream of short sessions, each of a new client, never passes a request that waits.
#[test]
fn fresh_sessions_overtake_nobody() {
    let mut cluster = Cluster::new(config("majority(2)", &[]), 1);
    cluster.acquire(0, 1, "a", Mode::Exclusive);
    cluster.drain();
    // Ids are compared last: the waiter has the largest of all.
    let fresh: Vec<usize> = (0..200).map(|_| cluster.add_client()).collect();
    let waiter = cluster.add_client();
    cluster.acquire(waiter, 1, "a", Mode::Exclusive);
    cluster.drain();
    for client in &fresh {
        cluster.jump(Duration::from_micros(1));
        cluster.acquire(*client, 1, "a", Mode::Exclusive);
        cluster.drain();
    }
    // From now on everybody is served in the order in which they came.
    let mut inside = 0;
    for next in [waiter].into_iter().chain(fresh) {
        cluster.release(inside, 1);
        cluster.drain();
        assert!(cluster.is_inside(next, 1, "a"), "{next} was passed");
        inside = next;
    }
}

#[test]
fn a_holder_that_sleeps_is_refused_once_its_successor_has_written() {
    let mut cluster = Cluster::new(config("majority(3)", &[]), 2);
    let mut resource = Fence::new();
    cluster.acquire(0, 1, "a", Mode::Exclusive);
    cluster.pass(Duration::from_secs(1));
    let (group, token) = (group_of(&cluster, 0, 1), cluster.entered(0, 1).unwrap());
    assert!(resource.admit(&group, token));
    cluster.acquire(1, 1, "a", Mode::Exclusive);
    cluster.pass_without(Duration::from_secs(9), &[0]);
    assert!(!cluster.is_inside(1, 1, "a"), "the TTL has not run out");
    cluster.pass_without(Duration::from_secs(2), &[0]);
    let next = cluster.entered(1, 1).unwrap();
    assert!(next > token);
    assert!(resource.admit(&group, token), "nobody else has written yet");
    assert!(resource.admit(&group_of(&cluster, 1, 1), next));
    assert!(!resource.admit(&group, token));
    cluster.pass(Duration::from_millis(1));
    assert!(cluster.was_lost(0, 1), "it learns at its next step");
}

/// The quorums of the two share one node, and only that one has given up on the first.
#[test]
fn one_shared_node_is_enough_to_fence() {
    let mut cluster = Cluster::new(config("majority(3)", &[]), 2);
    let mut resource = Fence::new();
    cluster.acquire(0, 1, "a", Mode::Exclusive);
    cluster.drain();
    let name = Name::new("a");
    let held = cluster.clients[0].held(Key(1), &name, cluster.now.mono);
    let (token, members) = held.unwrap();
    let (shared, other) = (members[0].0.index(), members[1].0.index());
    let group = group_of(&cluster, 0, 1);
    assert!(resource.admit(&group, token));
    let session = cluster.session(0, 1, "a").unwrap();
    cluster.wires.stall_client(0, true);
    cluster.node(shared, NodeInput::Expire(session));
    // The second cannot reach the other node: its quorum meets the first's in `shared` alone.
    cluster.wires.stall(1, other, true, true);
    cluster.acquire(1, 1, "a", Mode::Exclusive);
    cluster.pass_without(Duration::from_millis(100), &[0]);
    let held = cluster.clients[1].held(Key(1), &name, cluster.now.mono);
    let (next, members) = held.unwrap();
    assert!(members.iter().all(|(node, _)| node.index() != other));
    assert!(next > token);
    assert!(resource.admit(&group_of(&cluster, 1, 1), next));
    assert!(!resource.admit(&group, token));
}

/// A member that forgets the requester while it registers its token ends the attempt.
#[test]
fn a_raise_is_given_up_when_a_member_expires_it() {
    let mut cluster = Cluster::new(config("majority(2)", &[]), 2);
    // An unclean end at node 0 lifts its floor to the limit that it had given out.
    cluster.acquire(0, 1, "a", Mode::Exclusive);
    cluster.drain();
    let session = cluster.session(0, 1, "a").unwrap();
    cluster.wires.stall_client(0, true);
    cluster.node(0, NodeInput::Expire(session));
    cluster.wires.stall(0, 0, false, true);
    cluster.wires.stall_client(0, false);
    cluster.release(0, 1);
    cluster.drain();
    cluster.acquire(1, 1, "a", Mode::Exclusive);
    cluster.settle();
    // The second grant comes, and with it the raise; node 0 gives up before it hears of it.
    for node in 0..2 {
        cluster.deliver_all(1, node, true);
        cluster.deliver_all(1, node, false);
    }
    let session = cluster.session(1, 1, "a").unwrap();
    cluster.node(0, NodeInput::Expire(session));
    let before = cluster.count(&["RAISE"]);
    cluster.deliver_all(1, 1, true);
    cluster.deliver_all(1, 1, false);
    assert_eq!(cluster.count(&["RAISE"]), before + 1);
    assert_eq!(cluster.count(&["RAISED"]), 1);
    cluster.deliver_all(1, 0, true);
    cluster.deliver_all(1, 0, false);
    assert_eq!(cluster.count(&["RAISED"]), 1);
    assert_eq!(cluster.entered(1, 1), None);
    cluster.drain();
    assert!(cluster.is_inside(1, 1, "a"), "it asked again");
    assert!(cluster.count(&["DEAD"]) > 0);
}

/// Members of a group may hold different tokens; a later holder of another group ends them all.
#[test]
fn a_group_shares_a_resource_until_another_has_written() {
    let mut cluster = Cluster::new(config("majority(3)", &[]), 4);
    let mut resource = Fence::new();
    let (near, far) = {
        cluster.acquire(3, 1, "a", Mode::Shared);
        cluster.drain();
        let held = cluster.clients[3].held(Key(1), &Name::new("a"), cluster.now.mono);
        let members = held.unwrap().1;
        let members: Vec<usize> = members.iter().map(|(node, _)| node.index()).collect();
        cluster.release(3, 1);
        cluster.drain();
        let other = (0..3).find(|node| !members.contains(node)).unwrap();
        (members[1], other)
    };
    // An unclean end lifts the floor of the far node only.
    cluster.wires.stall(0, near, true, true);
    cluster.acquire(0, 1, "a", Mode::Exclusive);
    cluster.pass(Duration::from_millis(20));
    let session = cluster.session(0, 1, "a").unwrap();
    cluster.node(far, NodeInput::Expire(session));
    cluster.release(0, 1);
    cluster.drain();
    cluster.acquire(1, 1, "a", Mode::group("g"));
    cluster.drain();
    cluster.wires.stall(2, near, true, true);
    cluster.acquire(2, 1, "a", Mode::group("g"));
    cluster.pass(Duration::from_millis(20));
    let tokens = [1, 2].map(|client| cluster.entered(client, 1).unwrap());
    assert!(tokens[0] < tokens[1], "{tokens:?}");
    let group = group_of(&cluster, 1, 1);
    assert!(resource.admit(&group, tokens[1]));
    assert!(resource.admit(&group, tokens[0]));
    for client in [1, 2] {
        cluster.release(client, 1);
    }
    cluster.wires.stall(2, near, true, false);
    cluster.acquire(3, 2, "a", Mode::Exclusive);
    cluster.pass(Duration::from_millis(100));
    let token = cluster.entered(3, 2).unwrap();
    assert!(resource.admit(&group_of(&cluster, 3, 2), token));
    assert!(!resource.admit(&group, tokens[0]));
    assert!(!resource.admit(&group, tokens[1]));
}

/// Sets are taken in one order, whatever the callers say.
#[test]
fn two_sets_in_opposite_orders_do_not_wait_for_each_other() {
    use conclave_protocol::lock::{Acquire, ClientEvent, ClientInput};
    for seed in 0..50 {
        let mut rng = Prng::new(seed);
        let mut cluster = Cluster::new(config("majority(3)", &[]), 2);
        let names = ["a", "b", "c"];
        let wish =
            |name: &str| Acquire::new(Name::new(name), Mode::Exclusive, Duration::from_secs(10));
        let forth: Vec<Acquire> = names.iter().map(|name| wish(name)).collect();
        let back: Vec<Acquire> = names.iter().rev().map(|name| wish(name)).collect();
        cluster.client(0, ClientInput::AcquireAll(Key(1), forth));
        cluster.client(1, ClientInput::AcquireAll(Key(1), back));
        let has_all = |cluster: &Cluster, client: usize| {
            let all = (client, ClientEvent::EnteredAll(Key(1)));
            cluster.told.contains(&all)
        };
        let mut first = None;
        while let ready = cluster.wires.ready()
            && !ready.is_empty()
        {
            let (link, up) = ready[rng.below(ready.len())];
            cluster.deliver(link, up);
            first = first.or_else(|| (0..2).find(|client| has_all(&cluster, *client)));
        }
        let first = first.expect("one of them has all");
        assert!(!has_all(&cluster, 1 - first));
        cluster.release(first, 1);
        cluster.drain();
        assert!(has_all(&cluster, 1 - first), "seed {seed}");
    }
}
