//! Billiard quorums against the paper's listing, known vectors and brute force.

use std::collections::BTreeSet;

use conclave_quorum::construct::billiard::{Billiard, Board, Tier, Tiers};
use conclave_quorum::family::{cost_of, list};
use conclave_quorum::{Family, NodeSet, Odds, Prng, pick};

fn full(q: usize) -> Board {
    Board::with_side(q).expect("an odd side")
}

fn family(board: Board, tiers: &[Tier]) -> Billiard {
    Billiard::new(board, Tiers::of(tiers.iter().copied()).expect("a tier"))
}

fn subsets(nodes: usize) -> impl Iterator<Item = NodeSet> {
    (0..1u64 << nodes).map(move |mask| NodeSet::from_mask(nodes, mask))
}

fn random_subset(nodes: usize, share: f64, rng: &mut Prng) -> NodeSet {
    NodeSet::of(nodes, (0..nodes).filter(|_| rng.chance(share)))
}

/// Whether all pairs of sets meet.
fn all_meet(sets: &[NodeSet]) -> bool {
    sets.iter()
        .enumerate()
        .all(|(place, set)| sets[..place].iter().all(|other| set.intersects(other)))
}

fn path_numbers(board: &Board, site: usize) -> Vec<usize> {
    board
        .own_path(site - 1)
        .into_iter()
        .filter_map(|(row, column)| board.site_at(row, column))
        .map(|site| site + 1)
        .collect()
}

#[test]
fn figure_7_is_reproduced() {
    fn check<const Q: usize>(listing: &[[usize; Q]]) {
        let board = full(Q);
        assert_eq!(board.nodes(), listing.len());
        for (site, members) in listing.iter().enumerate() {
            let expected = NodeSet::of_numbers(board.nodes(), members.iter().copied());
            assert_eq!(board.own(site), Some(expected), "S{} of q = {Q}", site + 1);
        }
    }
    check(&FIGURE_7_Q3);
    check(&FIGURE_7_Q5);
    check(&FIGURE_7_Q7);
}

#[test]
fn paths_run_in_the_order_of_the_paper() {
    let board = full(7);
    assert_eq!(path_numbers(&board, 1), [4, 1, 5, 9, 13, 17, 21]);
    assert_eq!(path_numbers(&board, 12), [18, 15, 12, 16, 13, 10, 7]);
    assert_eq!(path_numbers(&board, 24), [24, 20, 16, 12, 8, 4, 1]);
    // Figure 5.
    let board = full(9);
    let set = |numbers: [usize; 9]| Some(NodeSet::of_numbers(40, numbers));
    assert_eq!(board.own(10), set([11, 15, 16, 18, 19, 21, 22, 23, 26]));
    assert_eq!(board.own(33), set([3, 7, 11, 15, 19, 24, 29, 34, 38]));
    assert_eq!(path_numbers(&board, 11)[0], 23);
    assert_eq!(path_numbers(&board, 34)[0], 38);
    assert_eq!(board.own(40), None);
    assert!(board.own_path(40).is_empty());
}

#[test]
fn all_own_quorums_have_the_known_hash() {
    let known = [
        (3, 0x2873_c882_19b8_b121),
        (5, 0xf51b_0801_bded_fc19),
        (7, 0xa8e1_7e4e_1c89_7b5d),
        (9, 0x036f_8b10_be52_ca6d),
        (21, 0xed4f_ce44_8f27_99c9),
        (41, 0xb40f_ce07_995c_b014),
    ];
    for (q, expected) in known {
        let board = full(q);
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for site in 0..board.nodes() {
            for number in board.own(site).unwrap().numbers() {
                for byte in u32::try_from(number).unwrap().to_le_bytes() {
                    hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
                }
            }
        }
        assert_eq!(hash, expected, "q = {q}");
    }
}

#[test]
fn own_quorums_keep_the_promises_of_the_paper_up_to_side_61() {
    for q in (3..=61).step_by(2) {
        let board = full(q);
        let nodes = board.nodes();
        let own: Vec<NodeSet> = (0..nodes).map(|site| board.own(site).unwrap()).collect();
        assert!(own.iter().all(|set| set.len() == q));
        assert!(own.iter().enumerate().all(|(site, set)| set.contains(site)));
        assert_eq!(own.iter().collect::<BTreeSet<_>>().len(), nodes);
        assert!(all_meet(&own), "q = {q}");
        let mut uses = vec![0; nodes];
        for site in own.iter().flat_map(NodeSet::iter) {
            uses[site] += 1;
        }
        assert_eq!(uses.iter().min(), Some(&3));
        assert_eq!(uses.iter().max(), Some(&(2 * q - 3)));
        let middle: Vec<usize> = (1..=q)
            .filter_map(|column| board.site_at(q / 2 + 1, column))
            .collect();
        assert_eq!(middle.len(), 2 * (q - 1).div_ceil(4));
        let middle = NodeSet::of(nodes, middle);
        assert!(own.iter().all(|set| set.intersects(&middle)));
        for site in 0..nodes {
            let path = board.own_path(site);
            let ((row, column), (last_row, last_column)) = (path[0], path[q - 1]);
            let mirrored = if column == 1 {
                (q + 1 - row, q)
            } else {
                (1, q + 1 - column)
            };
            assert_eq!((last_row, last_column), mirrored);
        }
    }
}

#[test]
fn antipodal_paths_are_two_to_the_q_minus_1_and_all_meet() {
    for q in [3, 5, 7, 9] {
        let paths = family(full(q), &[Tier::T1]);
        let quorums = list(&paths, 1 << 12).unwrap();
        assert_eq!(quorums.len(), 1 << (q - 1));
        assert_eq!(paths.count(), Some(quorums.len() as f64));
        assert!(quorums.iter().all(|quorum| quorum.len() == q));
        assert!(all_meet(&quorums));
        let distinct: BTreeSet<&NodeSet> = quorums.iter().collect();
        assert_eq!(distinct.len(), quorums.len());
        let own = list(&family(full(q), &[Tier::T0]), 1000).unwrap();
        assert!(own.iter().all(|quorum| distinct.contains(quorum)));
    }
    let paths = family(full(15), &[Tier::T1]);
    assert_eq!(list(&paths, 1 << 15).unwrap().len(), 1 << 14);
    // Larger boards: drawn at random, and with failures.
    let mut rng = Prng::new(11);
    for q in [21, 41, 131] {
        let paths = family(full(q), &[Tier::T1]);
        let drawn: Vec<NodeSet> = (0..12)
            .map(|_| {
                let avoid = random_subset(paths.nodes(), 0.05, &mut rng);
                pick(&paths, &avoid, None, &mut rng).unwrap()
            })
            .collect();
        assert!(all_meet(&drawn));
        assert!(drawn.iter().all(|set| paths.contains_quorum(set)));
        for set in &drawn {
            let mut less = set.clone();
            less.remove(set.iter().next().unwrap());
            assert!(!paths.contains_quorum(&less));
        }
    }
}

#[test]
fn live_sets_are_as_many_as_counted_by_size() {
    let expected = [
        (Tier::T0, [0, 0, 0, 0, 0, 12, 74, 192, 262, 184, 64, 12, 1]),
        (Tier::T1, [0, 0, 0, 0, 0, 16, 96, 236, 294, 188, 64, 12, 1]),
    ];
    for (tier, expected) in expected {
        let family = family(full(5), &[tier]);
        let mut counts = [0; 13];
        for set in subsets(12).filter(|set| family.contains_quorum(set)) {
            counts[set.len()] += 1;
        }
        assert_eq!(counts, expected);
    }
}

const BEFORE_T4: [Tier; 5] = [Tier::T0, Tier::T1, Tier::T2, Tier::T3, Tier::T3Prime];

#[test]
fn no_two_quorums_of_any_tiers_are_disjoint() {
    for board in [
        full(3),
        full(5),
        Board::new(10).unwrap(),
        Board::new(11).unwrap(),
    ] {
        let nodes = board.nodes();
        let before = family(board.clone(), &BEFORE_T4);
        let all = family(board.clone(), &Tier::ALL);
        let product = Billiard::new(board, Tiers::default());
        for set in subsets(nodes) {
            let rest = set.complement();
            assert!(!(before.contains_quorum(&set) && before.contains_quorum(&rest)));
            assert_ne!(all.contains_quorum(&set), all.contains_quorum(&rest));
            assert_ne!(
                product.contains_quorum(&set),
                product.contains_quorum(&rest)
            );
        }
    }
    let mut rng = Prng::new(5);
    for nodes in [16, 24, 40, 50, 144, 220] {
        let board = Board::new(nodes).unwrap();
        let before = family(board.clone(), &BEFORE_T4);
        let all = family(board, &Tier::ALL);
        let (mut held, mut rounds) = (0, 0);
        while rounds < 2000 {
            let set = random_subset(nodes, 0.5, &mut rng);
            let rest = set.complement();
            assert!(!(before.contains_quorum(&set) && before.contains_quorum(&rest)));
            assert_ne!(all.contains_quorum(&set), all.contains_quorum(&rest));
            held += usize::from(before.contains_quorum(&set));
            rounds += 1;
        }
        assert!(held > 0 || nodes > 100, "the test saw no quorum at {nodes}");
    }
}

/// All 2^24 sets of side 7: minutes. Run with `--ignored`.
#[test]
#[ignore = "slow: all 2^24 sets"]
fn no_two_quorums_of_side_7_are_disjoint() {
    let before = family(full(7), &BEFORE_T4);
    let all = family(full(7), &Tier::ALL);
    for mask in 0..1u64 << 23 {
        let set = NodeSet::from_mask(24, mask);
        let rest = set.complement();
        assert!(!(before.contains_quorum(&set) && before.contains_quorum(&rest)));
        assert_ne!(all.contains_quorum(&set), all.contains_quorum(&rest));
    }
}

/// The smallest quorums of each tier meet pairwise at side 7, a smaller argument than all sets.
#[test]
fn cheapest_quorums_of_all_tiers_meet() {
    let mut rng = Prng::new(3);
    for nodes in [24, 30, 60, 112] {
        let families: Vec<Billiard> = Tier::ALL
            .iter()
            .map(|tier| {
                let mut tiers = vec![*tier];
                if *tier == Tier::T4 {
                    tiers.extend(BEFORE_T4);
                }
                family(Board::new(nodes).unwrap(), &tiers)
            })
            .collect();
        let mut found: Vec<NodeSet> = Vec::new();
        for round in 0..60 {
            let family = &families[round % families.len()];
            let cost: Vec<f64> = (0..nodes).map(|_| rng.unit()).collect();
            found.push(family.cheapest(&cost).unwrap());
        }
        assert!(all_meet(&found));
    }
}

#[test]
fn tiers_contain_a_quorum_iff_a_listed_one_is_inside() {
    let sets: Vec<Vec<Tier>> = vec![
        vec![Tier::T0],
        vec![Tier::T1],
        vec![Tier::T2],
        vec![Tier::T3],
        vec![Tier::T3Prime],
        vec![Tier::T1, Tier::T2, Tier::T4],
        vec![Tier::T0, Tier::T4],
        Tier::ALL.to_vec(),
    ];
    for nodes in [4, 10, 11, 12] {
        for tiers in &sets {
            let family = family(Board::new(nodes).unwrap(), tiers);
            let quorums = list(&family, 5000).unwrap();
            assert!(!quorums.is_empty());
            let circuit = family.circuit().unwrap();
            for set in subsets(nodes) {
                let inside = quorums.iter().any(|quorum| quorum.is_subset(&set));
                assert_eq!(family.contains_quorum(&set), inside, "{tiers:?} {set:?}");
                assert_eq!(circuit.eval(&set), inside, "{tiers:?} {set:?}");
            }
            for quorum in &quorums {
                let others = quorums.iter().filter(|other| *other != quorum);
                assert!(others.clone().count() == quorums.len() - 1);
                assert!(others.into_iter().all(|other| !other.is_subset(quorum)));
            }
            let sizes = family.sizes();
            assert!(sizes.exact);
            assert_eq!(Some(sizes.min), quorums.iter().map(NodeSet::len).min());
            assert_eq!(Some(sizes.max), quorums.iter().map(NodeSet::len).max());
        }
    }
}

#[test]
fn larger_boards_contain_a_quorum_iff_a_listed_one_is_inside() {
    let mut rng = Prng::new(21);
    for nodes in [16, 24, 30, 40] {
        for tier in [Tier::T0, Tier::T1] {
            let family = family(Board::new(nodes).unwrap(), &[tier]);
            let quorums = list(&family, 5000).unwrap();
            let circuit = family.circuit().unwrap();
            let mut hits = 0;
            for round in 0..400 {
                let share = 0.5 + 0.001 * f64::from(round);
                let set = random_subset(nodes, share, &mut rng);
                let inside = quorums.iter().any(|quorum| quorum.is_subset(&set));
                assert_eq!(family.contains_quorum(&set), inside);
                assert_eq!(circuit.eval(&set), inside);
                hits += usize::from(inside);
            }
            assert!((20..400).contains(&hits));
        }
        let long = family(Board::new(nodes).unwrap(), &Tier::ALL);
        let circuit = long.circuit().unwrap();
        for _ in 0..40 {
            let set = random_subset(nodes, 0.5, &mut rng);
            assert_eq!(circuit.eval(&set), long.contains_quorum(&set));
        }
    }
}

#[test]
fn the_cheapest_path_is_a_true_minimum() {
    let mut rng = Prng::new(8);
    for nodes in [4, 10, 11, 12, 13, 16, 20, 23, 24, 27, 33, 39, 40] {
        let mut families = vec![
            family(Board::new(nodes).unwrap(), &[Tier::T0]),
            family(Board::new(nodes).unwrap(), &[Tier::T1]),
        ];
        if nodes <= 12 {
            families.push(family(Board::new(nodes).unwrap(), &[Tier::T2]));
            families.push(family(Board::new(nodes).unwrap(), &[Tier::T3Prime]));
        }
        for family in families {
            assert!(family.cheapest_is_exact());
            let quorums = list(&family, 5000).unwrap();
            for round in 0..60 {
                let down = 0.01 * f64::from(round % 30);
                let cost: Vec<f64> = (0..nodes)
                    .map(|_| match rng.unit() {
                        chance if chance < down => f64::INFINITY,
                        chance if chance > 0.9 => 0.0,
                        _ => rng.unit(),
                    })
                    .collect();
                let least = quorums
                    .iter()
                    .map(|quorum| cost_of(quorum, &cost))
                    .fold(f64::INFINITY, f64::min);
                match family.cheapest(&cost) {
                    None => assert!(least.is_infinite()),
                    Some(quorum) => {
                        assert!((cost_of(&quorum, &cost) - least).abs() < 1e-9);
                        assert!(quorums.contains(&quorum), "not minimal");
                    }
                }
            }
        }
    }
}

#[test]
fn a_quorum_is_found_whenever_one_is_left_and_it_is_minimal() {
    let mut rng = Prng::new(9);
    for nodes in [4, 10, 12, 16, 24, 40, 60] {
        for tiers in [Tiers::default(), Tiers::of(Tier::ALL).unwrap()] {
            let family = Billiard::new(Board::new(nodes).unwrap(), tiers);
            for round in 0..100 {
                let down = random_subset(nodes, 0.006 * f64::from(round), &mut rng);
                let live = down.complement();
                let Some(quorum) = pick(&family, &down, None, &mut rng) else {
                    assert!(!family.contains_quorum(&live));
                    continue;
                };
                assert!(quorum.is_subset(&live) && family.contains_quorum(&quorum));
                for site in quorum.iter() {
                    let mut less = quorum.clone();
                    less.remove(site);
                    assert!(!family.contains_quorum(&less));
                }
            }
        }
    }
}

#[test]
fn folding_gives_the_known_cells_and_quorums() {
    let sites = |nodes: usize| -> Vec<usize> {
        let board = Board::new(nodes).unwrap();
        let q = board.q();
        (1..=q)
            .flat_map(|row| (1..=q).map(move |column| (row, column)))
            .filter_map(|(row, column)| board.site_at(row, column))
            .map(|site| site + 1)
            .collect()
    };
    assert_eq!(sites(10), [3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 8]);
    assert_eq!(
        sites(16),
        [
            3, 4, 1, 2, 3, 4, 7, 5, 6, 7, 5, 8, 9, 12, 10, 11, 12, 10, 13, 14, 15, 16, 13, 14
        ]
    );
    let board = Board::new(10).unwrap();
    let known: [(usize, &[usize]); 6] = [
        (1, &[1, 3, 4, 5, 7]),
        (2, &[2, 5, 8, 9]),
        (3, &[2, 3, 6, 9]),
        (5, &[4, 5, 6, 7, 8]),
        (9, &[3, 6, 8, 9]),
        (10, &[1, 3, 5, 7, 10]),
    ];
    for (site, members) in known {
        let expected = NodeSet::of_numbers(10, members.iter().copied());
        assert_eq!(board.own(site - 1), Some(expected));
    }
    assert!(!board.is_full());
    assert_eq!(board.cells_of(2), [(1, 2), (2, 3)]);
}

#[test]
fn folded_quorums_have_the_known_sizes() {
    let known = [
        (10, 4, 4.6, 5),
        (16, 5, 5.6, 7),
        (20, 5, 6.3, 7),
        (30, 7, 7.9, 9),
        (50, 9, 10.1, 11),
        (64, 11, 11.7, 13),
        (100, 13, 14.2, 15),
        (128, 15, 16.1, 17),
    ];
    for (nodes, min, mean, max) in known {
        let board = Board::new(nodes).unwrap();
        let sizes: Vec<usize> = (0..nodes)
            .map(|site| board.own(site).unwrap().len())
            .collect();
        assert_eq!(sizes.iter().min(), Some(&min), "{nodes}");
        assert_eq!(sizes.iter().max(), Some(&max), "{nodes}");
        let found = sizes.iter().sum::<usize>() as f64 / nodes as f64;
        assert!((found - mean).abs() < 0.051, "{nodes}: {found}");
    }
}

/// With own quorums the busiest site of a folded board has a share of at most 4 % more than that
/// of the next smaller full board.
#[test]
fn folding_keeps_the_busiest_share() {
    for nodes in 10..=200 {
        let board = Board::new(nodes).unwrap();
        let mut uses = vec![0u32; nodes];
        for site in 0..nodes {
            for member in board.own(site).unwrap().iter() {
                uses[member] += 1;
            }
        }
        let share = f64::from(*uses.iter().max().unwrap()) / nodes as f64;
        let smaller = board.q() - 2;
        let bound = (2 * smaller - 3) as f64 / full(smaller).nodes() as f64;
        assert!(share <= 1.04 * bound, "{nodes}: {share} {bound}");
    }
}

#[test]
fn every_number_of_sites_up_to_1000_folds_into_a_coterie() {
    for nodes in 10..=1000 {
        let board = Board::new(nodes).unwrap();
        let own: Vec<NodeSet> = (0..nodes).map(|site| board.own(site).unwrap()).collect();
        for (site, set) in own.iter().enumerate() {
            assert!(
                set.contains(site) && set.len() <= board.q(),
                "{nodes} {site}"
            );
        }
        assert!((0..nodes).all(|site| (1..=3).contains(&board.cells_of(site).len())));
        assert!(all_meet(&own), "{nodes}");
    }
}

#[test]
fn availability_of_side_5_is_as_tabled() {
    let odds = vec![Odds::down(0.1); 12];
    let mut tiers = Vec::new();
    for (tier, expected) in [
        (Tier::T0, 0.965),
        (Tier::T1, 0.968),
        (Tier::T2, 0.968),
        (Tier::T3, 0.993),
        (Tier::T4, 0.999),
    ] {
        tiers.push(tier);
        let mass = family(full(5), &tiers).mass(&odds).unwrap();
        assert!(
            (mass.live - expected).abs() < 0.0015,
            "{tier}: {}",
            mass.live
        );
        assert!((mass.live + mass.dead - 1.0).abs() < 1e-12);
    }
    assert!(
        family(full(7), &[Tier::T1])
            .mass(&[Odds::down(0.1); 24])
            .is_none()
    );
}

#[test]
fn samples_are_minimal_quorums_of_the_family() {
    let mut rng = Prng::new(13);
    for nodes in [4, 10, 12, 16, 24, 50] {
        for tiers in
            Tier::ALL
                .map(|tier| vec![tier])
                .into_iter()
                .chain([vec![Tier::T1, Tier::T2, Tier::T4]])
        {
            let family = family(Board::new(nodes).unwrap(), &tiers);
            for _ in 0..20 {
                let quorum = family.sample(&mut rng);
                assert!(family.contains_quorum(&quorum));
                for site in quorum.iter() {
                    let mut less = quorum.clone();
                    less.remove(site);
                    assert!(!family.contains_quorum(&less), "{nodes} {tiers:?}");
                }
            }
        }
    }
}

#[test]
fn load_is_measured_on_paths_and_is_one_over_t() {
    for (q, t) in [(5, 2.0), (7, 3.0), (9, 4.0), (11, 5.0), (47, 23.0)] {
        let family = Billiard::new(full(q), Tiers::default());
        let primary = family.primary().unwrap();
        let nodes = family.nodes();
        let plan = primary.load_plan(&vec![1.0; nodes]).unwrap();
        let upper = plan.loads.iter().copied().fold(0.0, f64::max);
        assert!((upper - 1.0 / t).abs() < 1e-12, "{q}: {upper}");
        assert!((plan.loads.iter().sum::<f64>() - q as f64).abs() < 1e-9);
        let least = primary.cheapest(&plan.weights).unwrap();
        let lower = cost_of(&least, &plan.weights) / plan.weights.iter().sum::<f64>();
        assert!((lower - upper).abs() < 1e-12, "{q}: {lower}");
    }
    let own = family(full(5), &[Tier::T0, Tier::T2]);
    assert_eq!(own.primary().and_then(Family::count), Some(12.0));
    assert!(family(full(5), &[Tier::T0, Tier::T1]).primary().is_none());
    assert!(family(full(5), &[Tier::T1]).load_plan(&[0.0; 12]).is_none());
}

/// The claims that are proved, against all sets of that many nodes.
#[test]
fn transversals_are_the_smallest_sets_that_meet_every_quorum() {
    let smallest = |family: &Billiard| {
        let hitting = subsets(family.nodes())
            .filter(|set| !family.contains_quorum(&set.complement()))
            .map(|set| set.len());
        hitting.min()
    };
    for nodes in [4, 10, 11, 12, 16] {
        let board = Board::new(nodes).unwrap();
        for tiers in [
            vec![Tier::T1],
            vec![Tier::T1, Tier::T2, Tier::T4],
            Tier::ALL.to_vec(),
        ] {
            let family = family(board.clone(), &tiers);
            if let Some(claim) = family.transversal() {
                assert_eq!(Some(claim), smallest(&family), "{nodes} {tiers:?}");
            } else {
                assert!(nodes == 16, "{nodes} {tiers:?}");
            }
        }
    }
    // Without T4 nothing is claimed, but q - 1 failures are needed to stop T3.
    let crossing = family(full(5), &[Tier::T1, Tier::T2, Tier::T3]);
    assert_eq!(
        (crossing.transversal(), smallest(&crossing)),
        (None, Some(4))
    );
    for (q, t) in [(9, 4), (13, 6), (41, 20)] {
        assert_eq!(family(full(q), &[Tier::T1]).transversal(), Some(t));
        let product = Billiard::new(full(q), Tiers::default());
        assert_eq!(product.transversal(), Some(q));
        assert_eq!(product.sizes().min, q);
    }
    assert_eq!(family(full(9), &Tier::ALL).transversal(), Some(8));
}

#[test]
fn answers_to_bad_input_are_none() {
    let family = Billiard::new(full(5), Tiers::default());
    assert!(family.cheapest(&[1.0; 11]).is_none());
    assert!(family.cheapest_path(&[1.0; 11]).is_none());
    assert!(family.own(12).is_none());
    assert!(family.mass(&[]).is_none());
    assert!(family.cheapest(&[f64::INFINITY; 12]).is_none());
}

const FIGURE_7_Q3: [[usize; 3]; 4] = [[1, 2, 3], [2, 3, 4], [1, 3, 4], [1, 2, 4]];

const FIGURE_7_Q5: [[usize; 5]; 12] = [
    [1, 3, 4, 7, 10],
    [2, 4, 5, 6, 8],
    [3, 6, 9, 10, 12],
    [4, 5, 6, 7, 8],
    [2, 5, 7, 9, 11],
    [5, 6, 7, 8, 9],
    [2, 4, 7, 9, 11],
    [5, 7, 8, 9, 11],
    [2, 4, 6, 9, 11],
    [1, 4, 7, 10, 12],
    [2, 4, 6, 8, 11],
    [1, 3, 6, 9, 12],
];

const FIGURE_7_Q7: [[usize; 7]; 24] = [
    [1, 4, 5, 9, 13, 17, 21],
    [2, 5, 6, 8, 10, 11, 14],
    [3, 6, 7, 9, 12, 15, 18],
    [4, 8, 12, 16, 20, 21, 24],
    [5, 8, 9, 11, 13, 14, 17],
    [6, 7, 9, 10, 12, 15, 18],
    [3, 7, 10, 13, 16, 19, 22],
    [8, 11, 12, 14, 16, 17, 20],
    [7, 9, 10, 12, 13, 15, 18],
    [3, 6, 10, 13, 16, 19, 22],
    [11, 14, 15, 17, 19, 20, 23],
    [7, 10, 12, 13, 15, 16, 18],
    [3, 6, 9, 13, 16, 19, 22],
    [2, 6, 10, 14, 17, 20, 23],
    [7, 10, 13, 15, 16, 18, 19],
    [3, 6, 9, 12, 16, 19, 22],
    [2, 5, 9, 13, 17, 20, 23],
    [7, 10, 13, 16, 18, 19, 22],
    [3, 6, 9, 12, 15, 19, 22],
    [2, 5, 8, 12, 16, 20, 23],
    [1, 5, 9, 13, 17, 21, 24],
    [3, 6, 9, 12, 15, 18, 22],
    [2, 5, 8, 11, 15, 19, 23],
    [1, 4, 8, 12, 16, 20, 24],
];
