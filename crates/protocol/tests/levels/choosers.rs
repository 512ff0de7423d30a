//! How clusters choose quorums: trees, and any coterie of the toolbox.

use conclave_protocol::multilevel::{Any, Choose, HeapTree, Seat, Topology};
use conclave_quorum::Prng;
use conclave_quorum::build::build;
use conclave_quorum::text::parse;

/// Whether the seats of a mask contain a quorum.
fn has(chooser: &dyn Choose, mask: u32) -> bool {
    chooser.is_quorum(&|seat| mask >> seat & 1 == 1)
}

/// The quorums none of which contains another.
fn minimal(chooser: &dyn Choose) -> Vec<u32> {
    let seats = chooser.seats() as u32;
    let least = |mask: &u32| {
        let without = (0..seats).filter(|seat| mask >> seat & 1 == 1);
        has(chooser, *mask)
            && without
                .into_iter()
                .all(|seat| !has(chooser, mask & !(1 << seat)))
    };
    (0..1_u32 << seats).filter(least).collect()
}

fn family(text: &str) -> Any {
    let no_files = |_: &str| Err(String::new());
    let spec = parse(text).expect("a text of the toolbox");
    let built = build(&spec, None, &no_files).expect("it can be built");
    Any(built.system.family(None).expect("one family").clone())
}

#[test]
fn trees_have_the_known_quorums() {
    for (seats, count) in [(1, 1), (3, 3), (5, 7), (7, 15), (9, 31), (15, 255)] {
        let tree = HeapTree::new(seats);
        let quorums = minimal(&tree);
        assert_eq!(quorums.len(), count, "{seats} seats");
        for one in &quorums {
            assert!(
                quorums.iter().all(|other| one & other != 0),
                "{seats} seats"
            );
        }
        let largest = quorums.iter().map(|quorum| quorum.count_ones()).max();
        assert_eq!(largest, Some(seats.div_ceil(2) as u32));
        // Of an even number of members the last never votes.
        let even = minimal(&HeapTree::new(seats + 1));
        if seats > 1 {
            assert_eq!(even, quorums, "{seats} seats and one more");
        }
    }
}

#[test]
fn trees_agree_with_the_toolbox() {
    for seats in 1..=11 {
        let (tree, other) = (HeapTree::new(seats), family(&format!("tree({seats})")));
        for mask in 0..1 << seats {
            assert_eq!(
                has(&tree, mask),
                has(&other, mask),
                "{seats} seats, {mask:b}"
            );
        }
    }
}

#[test]
fn the_first_choice_goes_round_the_dead() {
    let tree = HeapTree::new(7);
    let mut rng = Prng::new(1);
    let mut choose = |down: &[Seat]| {
        let chosen = tree.first(&|seat| down.contains(&seat), &mut rng)?;
        assert!(tree.is_quorum(&|seat| chosen.contains(&seat)));
        assert!(chosen.iter().all(|seat| !down.contains(seat)));
        Some(chosen)
    };
    for _ in 0..50 {
        assert_eq!(choose(&[]).map(|chosen| chosen.len()), Some(3));
        assert_eq!(choose(&[0]).map(|chosen| chosen.len()), Some(4));
        let without = choose(&[0, 1]).unwrap();
        assert_eq!(without.len(), 4);
        assert!(without.contains(&3) && without.contains(&4));
        assert_eq!(choose(&[0, 1, 3]), None);
    }
    // Both sides are taken, each about as often.
    let left = (0..1000)
        .filter(|_| choose(&[]).unwrap().contains(&1))
        .count();
    assert!((400..600).contains(&left), "{left} of 1000");
}

#[test]
fn a_later_choice_keeps_what_it_has() {
    let tree = HeapTree::new(7);
    // Members 0 and 2 have answered; 5 is asked, 6 would be new: 5 is kept.
    let cost = |seat: Seat| match seat {
        0 | 2 => 0.0,
        5 => 1e-3,
        _ => 1.0,
    };
    let mut chosen = tree.again(&cost).unwrap();
    chosen.sort_unstable();
    assert_eq!(chosen, [0, 2, 5]);
    // Member 0 is dead: what was answered by 2 and asked of 5 still counts.
    let without = |seat: Seat| if seat == 0 { f64::INFINITY } else { cost(seat) };
    let chosen = tree.again(&without).unwrap();
    assert!(chosen.contains(&2) && chosen.contains(&5) && !chosen.contains(&0));
    assert_eq!(tree.again(&|_| f64::INFINITY), None);
    assert_eq!(HeapTree::new(0).again(&cost), None);
}

#[test]
fn any_coterie_can_choose() {
    for text in ["majority(5)", "grid(9)", "billiard(12)", "wheel(6)"] {
        let any = family(text);
        let mut rng = Prng::new(4);
        for _ in 0..50 {
            let down = rng.below(any.seats()) as Seat;
            let chosen = any.first(&|seat| seat == down, &mut rng).unwrap();
            assert!(!chosen.contains(&down), "{text}");
            assert!(any.is_quorum(&|seat| chosen.contains(&seat)), "{text}");
            let again = any.again(&|seat| if seat == down { f64::INFINITY } else { 1.0 });
            assert!(again.is_some_and(|again| !again.contains(&down)), "{text}");
        }
    }
}

#[test]
fn every_level_has_its_own_coterie() {
    let text = "multilevel([majority,tree,grid], sizes=[[4,4,4],[4,4,4],[4,4,4]])";
    let topology = Topology::parse(text, None).unwrap().unwrap();
    assert_eq!((topology.nodes(), topology.levels()), (36, 2));
    let clusters = topology.clusters();
    let sizes = |level: usize| {
        let chooser = topology.chooser(clusters.get(level, 0).unwrap());
        let quorums = minimal(chooser);
        quorums.iter().map(|quorum| quorum.count_ones()).max()
    };
    assert_eq!(sizes(0), Some(2), "a majority of three");
    assert_eq!(sizes(1), Some(2), "a path of a tree of three");
    assert_eq!(sizes(2), Some(3), "a row and a column of two by two");
    assert!(Topology::parse("majority(3)", None).unwrap().is_none());
    assert!(Topology::parse("multilevel(tree, 9)", Some(10)).is_err());
    assert!(Topology::parse("multilevel(", None).is_err());
}
