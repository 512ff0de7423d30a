//! Any one of several locks: the slots of a semaphore.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod harness;

use std::time::Duration;

use conclave_protocol::id::{Key, Name, SessionId};
use conclave_protocol::lock::{Acquire, ClientEvent, ClientInput, Ended, Mode, Refusal};
use conclave_quorum::Prng;

use harness::{Cluster, config};

const TTL: Duration = Duration::from_secs(10);

fn slots(count: usize) -> Vec<Acquire> {
    let names = (1..=count).map(|slot| Name::new(format!("s~{slot}")));
    let wish = |name| Acquire::new(name, Mode::Exclusive, TTL);
    names.map(wish).collect()
}

fn take(cluster: &mut Cluster, client: usize, key: u64, wishes: Vec<Acquire>) {
    cluster.client(client, ClientInput::AcquireAny(Key(key), wishes));
}

/// The slots that a key holds.
fn held(cluster: &Cluster, client: usize, key: u64, count: usize) -> Vec<usize> {
    let names = 1..=count;
    names
        .filter(|slot| cluster.is_inside(client, key, &format!("s~{slot}")))
        .collect()
}

/// How many requests the nodes keep for any slot.
fn kept(cluster: &Cluster, count: usize) -> usize {
    let mut kept = 0;
    for slot in 1..=count {
        let name = Name::new(format!("s~{slot}"));
        let nodes = cluster.nodes.iter().flatten();
        let views = nodes.filter_map(|node| node.view(&name));
        kept += views.map(|view| view.entries.len()).sum::<usize>();
    }
    kept
}

#[test]
fn a_free_slot_costs_one_request() {
    let mut cluster = Cluster::new(config("majority(5)", &[]), 1);
    take(&mut cluster, 0, 1, slots(8));
    cluster.drain();
    assert_eq!(held(&cluster, 0, 1, 8).len(), 1);
    assert_eq!(cluster.count(&["REQUEST"]), 3);
    cluster.release(0, 1);
    cluster.drain();
    assert_eq!(cluster.ended(0, 1), Some(Ended::Released));
    assert_eq!(kept(&cluster, 8), 0);
}

#[test]
fn as_many_enter_as_there_are_slots_and_the_next_when_one_leaves() {
    for seed in 0..60 {
        let mut rng = Prng::new(seed);
        let mut cluster = Cluster::new(config("majority(3)", &[]), 5);
        for client in 0..5 {
            take(&mut cluster, client, 1, slots(3));
        }
        let mut most = 0;
        loop {
            let ready = cluster.wires.ready();
            if ready.is_empty() {
                break;
            }
            let (link, up) = ready[rng.below(ready.len())];
            cluster.deliver(link, up);
            let mut taken: Vec<usize> = Vec::new();
            for client in 0..5 {
                let own = held(&cluster, client, 1, 3);
                assert!(own.len() <= 1, "seed {seed}: {client} holds {own:?}");
                taken.extend(own);
            }
            taken.sort_unstable();
            let inside = taken.len();
            taken.dedup();
            assert_eq!(taken.len(), inside, "seed {seed}: a slot has two holders");
            most = most.max(inside);
        }
        assert_eq!(most, 3, "seed {seed}");
        let mut entered: Vec<usize> = (0..5)
            .filter(|client| !held(&cluster, *client, 1, 3).is_empty())
            .collect();
        for _ in 0..2 {
            cluster.release(entered.remove(0), 1);
            cluster.drain();
        }
        let inside = (0..5).filter(|client| !held(&cluster, *client, 1, 3).is_empty());
        assert_eq!(inside.count(), 3, "seed {seed}");
        assert!((0..5).all(|client| cluster.entered(client, 1).is_some()));
    }
}

#[test]
fn whoever_only_tries_finds_the_last_free_slot_or_is_told_at_once() {
    let mut cluster = Cluster::new(config("majority(3)", &[]), 4);
    let tries = |cluster: &mut Cluster, client| {
        let mut wishes = slots(3);
        for wish in &mut wishes {
            wish.attempt = true;
        }
        take(cluster, client, 1, wishes);
        cluster.drain();
    };
    for client in 0..3 {
        tries(&mut cluster, client);
        assert_eq!(held(&cluster, client, 1, 3).len(), 1);
    }
    tries(&mut cluster, 3);
    assert_eq!(cluster.ended(3, 1), Some(Ended::Busy));
    cluster.pass(Duration::from_secs(1));
    assert_eq!(kept(&cluster, 3), 3 * 2, "nothing of it stays behind");
}

#[test]
fn a_deadline_or_a_cancel_ends_the_wait_for_all_slots() {
    let mut cluster = Cluster::new(config("majority(3)", &[]), 3);
    for client in 0..2 {
        take(&mut cluster, client, 1, slots(2));
        cluster.drain();
    }
    let mut wishes = slots(2);
    let deadline = cluster.now.mono + Duration::from_millis(50);
    for wish in &mut wishes {
        wish.deadline = Some(deadline);
    }
    take(&mut cluster, 2, 1, wishes);
    cluster.drain();
    let waits = ClientEvent::Position(Key(1), 1);
    assert!(cluster.told.contains(&(2, waits)), "{:?}", cluster.told);
    cluster.pass(Duration::from_millis(100));
    assert_eq!(cluster.ended(2, 1), Some(Ended::TimedOut));
    take(&mut cluster, 2, 2, slots(2));
    cluster.drain();
    cluster.client(2, ClientInput::Cancel(Key(2)));
    cluster.drain();
    assert_eq!(cluster.ended(2, 2), Some(Ended::Cancelled));
    assert_eq!(kept(&cluster, 2), 2 * 2);
    cluster.release(0, 1);
    cluster.drain();
    assert_eq!(kept(&cluster, 2), 2, "nobody waits for what was cancelled");
}

#[test]
fn a_handle_names_the_slot_and_no_other_stays_behind() {
    let mut cluster = Cluster::new(config("majority(3)", &[]), 2);
    let detached = |from: u128| {
        let mut wishes = slots(3);
        for (place, wish) in wishes.iter_mut().enumerate() {
            wish.detach = Some((SessionId(from + place as u128), false));
        }
        wishes
    };
    let mut names = Vec::new();
    for key in 1..=3 {
        take(&mut cluster, 0, key, detached(u128::from(key) * 10));
        cluster.drain();
        let handle = cluster.handle(0, key).expect("a slot was free");
        names.push(handle.ask.name.clone());
    }
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 3, "three handles, three slots");
    take(&mut cluster, 1, 9, detached(90));
    cluster.drain();
    assert!(cluster.handle(1, 9).is_none());
    let handle = Box::new(cluster.handle(0, 2).unwrap());
    let freed = handle.ask.name.clone();
    cluster.client(1, ClientInput::Finish(Key(10), handle));
    cluster.drain();
    let next = cluster.handle(1, 9).expect("a slot became free");
    assert_eq!(next.ask.name, freed);
    assert_eq!(kept(&cluster, 3), 3 * 2);
}

#[test]
fn whoever_comes_back_under_its_own_name_finds_its_slot() {
    let mut cluster = Cluster::new(config("majority(3)", &[]), 3);
    let named = || {
        let mut wishes = slots(4);
        for (place, wish) in wishes.iter_mut().enumerate() {
            wish.detach = Some((SessionId(70 + place as u128), true));
        }
        wishes
    };
    let mut slots = Vec::new();
    for client in 0..3 {
        take(&mut cluster, client, 1, named());
        cluster.drain();
        slots.push(cluster.handle(client, 1).unwrap().ask.name.clone());
    }
    assert_eq!(slots[0], slots[1]);
    assert_eq!(slots[0], slots[2]);
}

#[test]
fn what_is_wrong_is_refused() {
    let mut cluster = Cluster::new(config("majority(3)", &[]), 1);
    take(&mut cluster, 0, 1, slots(65));
    let refused = |why| Some(Ended::Refused(why));
    assert_eq!(cluster.ended(0, 1), refused(Refusal::Size));
    take(&mut cluster, 0, 2, Vec::new());
    assert_eq!(cluster.ended(0, 2), refused(Refusal::Size));
    let mut twice = slots(1);
    twice.extend(slots(1));
    twice[1].mode = Mode::Shared;
    take(&mut cluster, 0, 3, twice);
    assert_eq!(cluster.ended(0, 3), refused(Refusal::Unfit));
    take(&mut cluster, 0, 4, slots(64));
    cluster.drain();
    assert_eq!(held(&cluster, 0, 4, 64).len(), 1);
}
