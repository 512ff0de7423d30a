//! The measures against known values, closed forms and brute force.

#[path = "measure/families.rs"]
mod families;
#[path = "measure/tables.rs"]
mod tables;

use std::ops::ControlFlow;

use conclave_quorum::family::cost_of;
use conclave_quorum::measure::failure::{
    Domain, Failure, FailureOptions, Faults, FaultsError, curve, failure,
};
use conclave_quorum::measure::load::{Load, load};
use conclave_quorum::measure::quiet;
use conclave_quorum::measure::resilience::resilience;
use conclave_quorum::{Family, LoadPlan, NodeSet, Prng, Sizes};
use families::{Explicit, Spare, Threshold, Tree, Voting};

fn load_of(family: &dyn Family, capacity: Option<&[f64]>) -> Load {
    load(family, capacity, &mut quiet)
}

fn near(found: f64, wanted: f64) {
    let scale = wanted.abs().max(1e-300);
    assert!(
        (found - wanted).abs() <= 1e-9 * scale,
        "{found} is not {wanted}"
    );
}

/// Recomputes both sides of a load from its parts alone.
fn recheck(family: &Explicit, capacity: &[f64], load: &Load) {
    let mut loads = vec![0.0; family.nodes];
    let mut total = 0.0;
    for (quorum, share) in &load.strategy {
        assert!(family.contains_quorum(quorum) && *share > 0.0);
        total += share;
        for node in quorum.iter() {
            loads[node] += share;
        }
    }
    near(total, 1.0);
    let upper = loads
        .iter()
        .zip(capacity)
        .map(|(l, c)| l / c)
        .fold(0.0, f64::max);
    near(load.upper, upper);
    let scale: f64 = load.weights.iter().zip(capacity).map(|(w, c)| w * c).sum();
    near(scale, 1.0);
    let lightest = family
        .quorums
        .iter()
        .map(|quorum| cost_of(quorum, &load.weights))
        .fold(f64::INFINITY, f64::min);
    assert!(
        lightest >= load.lower * (1.0 - 1e-9),
        "{lightest} < {}",
        load.lower
    );
}

#[test]
fn loads_of_known_systems() {
    let fano = Explicit::shifts(7, &[0, 1, 3]);
    let plane = Explicit::shifts(13, &[0, 1, 3, 9]);
    let grid = Explicit::grid(4);
    for (family, wanted) in [
        (&fano, 3.0 / 7.0),
        (&plane, 4.0 / 13.0),
        (&grid, 7.0 / 16.0),
    ] {
        for family in [family.clone(), family.unlisted()] {
            let load = load_of(&family, None);
            assert!(load.exact, "{load:?}");
            near(load.upper, wanted);
            recheck(&family, &vec![1.0; family.nodes], &load);
        }
    }
    for k in 1..20 {
        let majority = Threshold {
            nodes: 2 * k + 1,
            votes: k + 1,
        };
        let load = load_of(&majority, None);
        assert!(load.exact);
        near(load.upper, (k + 1) as f64 / (2 * k + 1) as f64);
        near(load.capacity(), (2 * k + 1) as f64 / (k + 1) as f64);
        near(load.mean_size(), (k + 1) as f64);
    }
    for depth in 1..5 {
        let load = load_of(&Tree { depth }, None);
        assert!(load.exact);
        near(load.upper, (2.0f64 / 3.0).powi(depth.cast_signed()));
    }
}

#[test]
fn column_generation_agrees_with_the_whole_program() {
    let mut rng = Prng::new(5);
    for round in 0..60 {
        let nodes = 6 + rng.below(15);
        let count = 5 + rng.below(60);
        let family = Explicit::random(nodes, count, &mut rng);
        let capacity: Vec<f64> = match round % 3 {
            0 => vec![1.0; nodes],
            1 => (0..nodes).map(|_| 0.25 + 4.0 * rng.unit()).collect(),
            _ => (0..nodes).map(|_| 1000.0 * (1.0 + rng.unit())).collect(),
        };
        let whole = load_of(&family, Some(&capacity));
        let generated = load_of(&family.unlisted(), Some(&capacity));
        assert!(whole.exact && generated.exact, "{whole:?} {generated:?}");
        assert_eq!(whole.method, "linear program");
        assert_eq!(generated.method, "column generation");
        near(whole.upper, generated.upper);
        recheck(&family, &capacity, &whole);
        recheck(&family, &capacity, &generated);
    }
}

#[test]
fn many_listed_quorums_are_generated_as_needed() {
    let mut rng = Prng::new(6);
    let family = Explicit::random(40, 900, &mut rng);
    assert!(family.quorums.len() > 300);
    let load = load_of(&family, None);
    assert!(load.exact && load.method == "column generation");
    recheck(&family, &[1.0; 40], &load);
}

#[test]
fn capacities_shift_the_load() {
    // Any one of two nodes: the shares follow the capacities.
    let any = Explicit::new(2, [vec![0], vec![1]]);
    let load = load_of(&any, Some(&[3.0, 1.0]));
    near(load.upper, 0.25);
    near(load.loads[0], 0.75);
    // All nodes: the weakest decides.
    let all = Explicit::new(3, [vec![0, 1, 2]]);
    near(load_of(&all, Some(&[5.0, 0.5, 2.0])).upper, 2.0);
    // Many nodes of all capacities: the last steps to the optimum are small ones.
    let mut rng = Prng::new(3);
    let capacity: Vec<f64> = (0..51).map(|_| 0.5 + 2.0 * rng.unit()).collect();
    let majority = Threshold {
        nodes: 51,
        votes: 26,
    };
    assert!(load_of(&majority, Some(&capacity)).exact);
    // A threshold with one strong node: it takes part always, the others share the rest.
    let majority = Threshold { nodes: 5, votes: 3 };
    let load = load_of(&majority, Some(&[10.0, 1.0, 1.0, 1.0, 1.0]));
    assert!(load.exact);
    near(load.upper, 0.5);
}

#[test]
fn load_is_measured_on_the_primary_part_and_failure_on_the_whole() {
    let spare = Spare {
        main: Explicit::new(3, [vec![0]]),
        whole: Threshold { nodes: 3, votes: 1 },
    };
    near(load_of(&spare, None).upper, 1.0);
    near(
        failure_of(&spare, &Faults::uniform(3, 0.5).unwrap()).value,
        0.125,
    );
    assert_eq!(resilience(&spare, &mut quiet).value, 2);
}

#[test]
fn wild_capacities_are_survived() {
    let grid = Explicit::grid(3);
    for family in [grid.clone(), grid.unlisted()] {
        for capacity in [
            [1e-300, 1.0, 1e300, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
            [f64::MIN_POSITIVE; 9],
            [f64::MAX; 9],
        ] {
            let load = load_of(&family, Some(&capacity));
            assert!(load.lower <= load.upper && !load.upper.is_nan(), "{load:?}");
        }
    }
}

#[test]
fn a_true_plan_is_taken_and_a_wrong_one_shows() {
    let plan = |loads: Vec<f64>, weights: Vec<f64>| Some(LoadPlan { loads, weights });
    let mut fano = Explicit::shifts(7, &[0, 1, 3]);
    let share = 3.0 / 7.0;
    fano.plan = plan(vec![share; 7], vec![2.0; 7]);
    let load = load_of(&fano, None);
    assert!(load.exact && load.strategy.is_empty(), "{load:?}");
    near(load.upper, share);
    assert_eq!(load.method, "the construction's strategy");

    let skewed = vec![share, share, share, share, share, share, 0.0];
    let line = vec![1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0];
    let wrong = [
        // Loads that no strategy has, below what the weights prove.
        plan(vec![0.1; 7], vec![1.0; 7]),
        // The same, with weights that prove just as little.
        plan(vec![1.0 / 3.0; 7], line),
        plan(vec![0.4; 7], vec![0.0; 7]),
        // One node spared for nothing.
        plan(skewed, vec![1.0; 7]),
        // Not numbers, not probabilities, not of this size.
        plan(vec![f64::NAN; 7], vec![1.0; 7]),
        plan(vec![2.0; 7], vec![1.0; 7]),
        plan(vec![share; 6], vec![1.0; 3]),
    ];
    for plan in wrong {
        for mut family in [fano.clone(), fano.unlisted()] {
            family.plan.clone_from(&plan);
            let load = load_of(&family, None);
            assert!(load.exact && !load.strategy.is_empty(), "{plan:?} {load:?}");
            near(load.upper, share);
            recheck(&family, &[1.0; 7], &load);
        }
    }
    // A wasteful plan with true loads is beaten; one with useless weights may still be right.
    for plan in [
        plan(vec![0.5; 7], vec![1.0; 7]),
        plan(vec![share; 7], vec![-1.0; 7]),
        plan(vec![share; 7], vec![0.0; 7]),
    ] {
        fano.plan = plan;
        let load = load_of(&fano, None);
        assert!(load.exact);
        near(load.upper, share);
    }
}

#[test]
fn a_vague_family_shows_a_gap() {
    let mut vague = Explicit::grid(4).unlisted();
    vague.vague = true;
    let load = load_of(&vague, None);
    assert!(!load.exact, "{load:?}");
    // What holds of any family with quorums of 7 nodes, and what some strategy has.
    assert!(load.lower <= 7.0 / 16.0 && load.lower > 0.4);
    assert!(load.upper >= 7.0 / 16.0 && load.upper <= 1.0);
    // Its own plan is taken for the upper bound only.
    vague.plan = Some(LoadPlan {
        loads: vec![0.5; 16],
        weights: vec![1.0; 16],
    });
    let planned = load_of(&vague, None);
    assert!(!planned.exact && planned.upper <= 0.5);
    // Weights prove nothing where the cheapest quorum is not known: here the true load is 1/3,
    // and the family takes its heaviest quorum for the lightest.
    let mut vague = Explicit::new(4, [vec![0, 1], vec![2], vec![3]]).unlisted();
    vague.vague = true;
    vague.plan = Some(LoadPlan {
        loads: vec![1.0 / 1.1; 4],
        weights: vec![0.5, 0.5, 0.05, 0.05],
    });
    let load = load_of(&vague, None);
    assert!(!load.exact && load.lower <= 1.0 / 3.0, "{load:?}");
}

#[test]
fn a_false_claim_to_know_the_cheapest_is_withdrawn() {
    /// Takes the first quorum for the cheapest and says that it is.
    #[derive(Debug)]
    struct Liar(Explicit);
    impl Family for Liar {
        fn nodes(&self) -> usize {
            self.0.nodes
        }
        fn contains_quorum(&self, set: &NodeSet) -> bool {
            self.0.contains_quorum(set)
        }
        fn cheapest(&self, cost: &[f64]) -> Option<NodeSet> {
            self.0.cheapest(cost)
        }
        fn sample(&self, rng: &mut Prng) -> NodeSet {
            self.0.sample(rng)
        }
        fn sizes(&self) -> Sizes {
            self.0.sizes()
        }
        fn visit(&self, _: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>) -> Option<ControlFlow<()>> {
            None
        }
    }
    let mut liar = Liar(Explicit::new(4, [vec![0, 1], vec![2], vec![3]]));
    liar.0.vague = true;
    let load = load_of(&liar, None);
    assert!(
        !load.exact || (load.upper - 1.0 / 3.0).abs() < 1e-9,
        "{load:?}"
    );
    assert!(load.lower <= 1.0 / 3.0 + 1e-9, "{load:?}");
}

#[test]
fn large_families_are_smoothed_with_honest_bounds() {
    let tree = Tree { depth: 7 };
    let mut told = 0;
    let load = load(&tree, None, &mut |progress| {
        assert!(progress.done <= progress.total);
        told += 1;
    });
    let wanted = (2.0f64 / 3.0).powi(7);
    assert!(told > 0);
    assert_eq!(load.method, "multiplicative weights");
    assert!(load.lower <= wanted * (1.0 + 1e-9) && load.upper >= wanted * (1.0 - 1e-9));
    assert!(
        load.gap() < 0.5 && !load.exact,
        "{} {}",
        load.lower,
        load.upper
    );
}

#[test]
fn a_family_without_quorums_has_no_load_and_always_fails() {
    let none = Explicit::new(3, []);
    let load = load_of(&none, None);
    assert!(load.upper.is_infinite() && !load.exact);
    near(
        failure_of(&none, &Faults::uniform(3, 0.1).unwrap()).value,
        1.0,
    );
    assert_eq!(resilience(&none, &mut quiet).value, 0);
}

fn failure_of(family: &dyn Family, faults: &Faults) -> Failure {
    failure(family, faults, &FailureOptions::default(), &mut quiet).expect("valid faults")
}

/// The failure probability by enumeration of nodes and domains.
fn brute_failure(family: &dyn Family, faults: &Faults) -> f64 {
    let nodes = family.nodes();
    let domains = faults.domains();
    let mut total = 0.0;
    for state in 0..1u64 << domains.len() {
        let mut chance_of_state = 1.0;
        let mut forced = NodeSet::new(nodes);
        for (index, domain) in domains.iter().enumerate() {
            if state >> index & 1 == 1 {
                chance_of_state *= domain.down;
                forced.union_with(&domain.nodes);
            } else {
                chance_of_state *= 1.0 - domain.down;
            }
        }
        for mask in 0..1u64 << nodes {
            let set = NodeSet::from_mask(nodes, mask);
            let mut chance = chance_of_state;
            for (node, down) in faults.down().iter().enumerate() {
                chance *= if set.contains(node) {
                    1.0 - down
                } else {
                    *down
                };
            }
            if !family.contains_quorum(&set.difference(&forced)) {
                total += chance;
            }
        }
    }
    total
}

#[test]
fn failures_of_known_systems() {
    let majority = Threshold { nodes: 5, votes: 3 };
    let five = failure_of(&majority, &Faults::uniform(5, 0.1).unwrap());
    assert!(five.exact && five.low == five.value && five.high == five.value);
    near(five.value, 0.00856);
    // Tiny probabilities keep their digits: all but the leading term is far below 1e-9.
    let tiny = failure_of(&majority, &Faults::uniform(5, 1e-12).unwrap());
    near(tiny.value, 1e-35);
    // Two of three of two of three: the polynomial 3p^2 - 2p^3, iterated.
    let tree = Tree { depth: 4 };
    let wanted = (0..4).fold(0.2, |p: f64, _| p * p * (3.0 - 2.0 * p));
    let found = failure_of(&tree, &Faults::uniform(81, 0.2).unwrap());
    assert_eq!(found.method, "decision diagram");
    near(found.value, wanted);
    for (down, wanted) in [(0.0, 0.0), (1.0, 1.0)] {
        assert_eq!(
            failure_of(&tree, &Faults::uniform(81, down).unwrap()).value,
            wanted
        );
    }
}

#[test]
fn nodes_and_domains_agree_with_brute_force() {
    let mut rng = Prng::new(9);
    for _ in 0..20 {
        let nodes = 5 + rng.below(4);
        let family = Explicit::random(nodes, 3 + rng.below(8), &mut rng);
        let down: Vec<f64> = (0..nodes).map(|_| rng.unit()).collect();
        let domains: Vec<Domain> = (0..rng.below(5))
            .map(|_| Domain {
                nodes: NodeSet::of(
                    nodes,
                    (0..nodes).filter(|_| rng.chance(0.4)).collect::<Vec<_>>(),
                ),
                down: rng.unit(),
            })
            .collect();
        let faults = Faults::new(down, domains).unwrap();
        let found = failure_of(&family, &faults);
        assert!(found.exact && found.method == "enumeration");
        near(found.value, brute_failure(&family, &faults));
    }
}

#[test]
fn recurrences_with_domains_agree_with_brute_force() {
    let mut rng = Prng::new(13);
    for domains in 0..6 {
        let voting = Voting(Threshold { nodes: 7, votes: 4 });
        let down: Vec<f64> = (0..7).map(|_| rng.unit()).collect();
        let domains: Vec<Domain> = (0..domains)
            .map(|first| Domain {
                nodes: NodeSet::of(7, [first, first + 1, (2 * first) % 7]),
                down: rng.unit(),
            })
            .collect();
        let faults = Faults::new(down, domains).unwrap();
        let found = failure_of(&voting, &faults);
        assert!(found.exact && found.method == "recurrence");
        near(found.value, brute_failure(&voting, &faults));
    }
}

#[test]
fn domains_in_diagrams_agree_with_the_sum_over_their_states() {
    // 25 nodes are too many to enumerate, so the diagram has to do it.
    let grid = Explicit::grid(5);
    let down: Vec<f64> = (0..25).map(|node| 0.02 + 0.01 * f64::from(node)).collect();
    let domains: Vec<Domain> = [(0..10, 0.05), (5..15, 0.1), (20..25, 0.2)]
        .into_iter()
        .map(|(range, down)| Domain {
            nodes: NodeSet::of(25, range),
            down,
        })
        .collect();
    let faults = Faults::new(down.clone(), domains.clone()).unwrap();
    let found = failure_of(&grid, &faults);
    assert_eq!(found.method, "decision diagram");
    let mut wanted = 0.0;
    for state in 0..8u32 {
        let mut chance = 1.0;
        let mut now = down.clone();
        for (index, domain) in domains.iter().enumerate() {
            if state >> index & 1 == 1 {
                chance *= domain.down;
                domain.nodes.iter().for_each(|node| now[node] = 1.0);
            } else {
                chance *= 1.0 - domain.down;
            }
        }
        wanted += chance * failure_of(&grid, &Faults::new(now, Vec::new()).unwrap()).value;
    }
    near(found.value, wanted);
}

#[test]
fn simulations_hold_the_exact_value() {
    let grid = Explicit::grid(5);
    let faults = Faults::uniform(25, 0.2).unwrap();
    let exact = failure_of(&grid, &faults);
    assert!(exact.exact);
    let mut missed = 0;
    for seed in 0..40 {
        let options = FailureOptions {
            diagram_nodes: 10,
            samples: 4000,
            seed,
            confidence: 0.95,
        };
        let found = failure(&grid, &faults, &options, &mut quiet).unwrap();
        assert!(!found.exact && found.method == "simulation" && found.samples == 4000);
        assert!(found.low <= found.value && found.value <= found.high);
        assert!(found.high - found.low < 0.04);
        missed += u32::from(exact.value < found.low || exact.value > found.high);
    }
    assert!(missed <= 6, "{missed} of 40 intervals of 95% missed");
    // Nothing seen is not nothing there.
    let rare = Faults::uniform(25, 1e-9).unwrap();
    let options = FailureOptions {
        diagram_nodes: 10,
        ..FailureOptions::default()
    };
    let found = failure(&grid, &rare, &options, &mut quiet).unwrap();
    assert!(found.value == 0.0 && found.low == 0.0 && found.high > 2e-5 && !found.exact);
}

#[test]
fn a_curve_is_its_points() {
    let points = [0.0, 0.1, 0.5, 0.9, 1.0];
    let options = FailureOptions::default();
    for family in [
        &Explicit::grid(3) as &dyn Family,
        &Explicit::grid(5),
        &Tree { depth: 3 },
    ] {
        let whole = curve(family, &points, &options, &mut quiet).unwrap();
        for (down, found) in points.iter().zip(whole) {
            let faults = Faults::uniform(family.nodes(), *down).unwrap();
            assert_eq!(found, failure_of(family, &faults));
        }
    }
    let bad = curve(&Tree { depth: 1 }, &[0.1, f64::NAN], &options, &mut quiet);
    assert!(matches!(bad, Err(FaultsError::Node { node: 1, .. })));
}

#[test]
fn faults_are_validated() {
    for value in [f64::NAN, -0.1, 1.1, f64::INFINITY] {
        assert!(matches!(
            Faults::new(vec![0.1, value], Vec::new()),
            Err(FaultsError::Node { node: 2, .. })
        ));
        let domain = Domain {
            nodes: NodeSet::of(2, [0]),
            down: value,
        };
        assert!(matches!(
            Faults::new(vec![0.1, 0.1], vec![domain]),
            Err(FaultsError::Domain { domain: 1, .. })
        ));
    }
    let far = Domain {
        nodes: NodeSet::of(5, [4]),
        down: 0.1,
    };
    let error = Faults::new(vec![0.1, 0.1], vec![far]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "domain 1 has node 5, but the nodes are 1 to 2"
    );
    let short = Faults::uniform(4, 0.1).unwrap();
    let majority = Threshold { nodes: 5, votes: 3 };
    let error = failure(&majority, &short, &FailureOptions::default(), &mut quiet).unwrap_err();
    assert_eq!(error, FaultsError::Length { given: 4, nodes: 5 });
}

/// The smallest killing set, by looking at every set.
fn brute_cut(family: &Explicit) -> usize {
    (0..1u64 << family.nodes)
        .filter(|mask| {
            let set = NodeSet::from_mask(family.nodes, *mask);
            family.quorums.iter().all(|quorum| quorum.intersects(&set))
        })
        .map(|mask| mask.count_ones() as usize)
        .min()
        .expect("all nodes kill")
}

#[test]
fn smallest_killing_sets_agree_with_brute_force() {
    let mut rng = Prng::new(3);
    for _ in 0..40 {
        let nodes = 6 + rng.below(6);
        let small = Explicit::random(nodes, 4 + rng.below(20), &mut rng);
        let wanted = brute_cut(&small) - 1;
        // The same quorums among more nodes than are enumerated, listed and not.
        let quorums: Vec<Vec<usize>> = small.quorums.iter().map(|q| q.iter().collect()).collect();
        let wide = Explicit::new(30, quorums);
        for family in [&small, &wide, &small.unlisted()] {
            let found = resilience(family, &mut quiet);
            assert!(found.exact && found.value == wanted && found.upper == wanted);
            let witness = found.witness.unwrap();
            assert_eq!(witness.len(), wanted + 1);
            assert!(!family.contains_quorum(&witness.complement()));
        }
        let bounded = resilience(&wide.unlisted(), &mut quiet);
        assert!(bounded.value <= wanted && wanted <= bounded.upper);
        assert!(!wide.contains_quorum(&bounded.witness.unwrap().complement()));
    }
}

#[test]
fn a_known_transversal_is_taken() {
    let voting = resilience(
        &Voting(Threshold {
            nodes: 30,
            votes: 20,
        }),
        &mut quiet,
    );
    assert!(voting.exact && voting.value == 10 && voting.upper == 10);
    assert_eq!(voting.witness.unwrap().len(), 11);
}

#[test]
fn resilience_of_known_systems() {
    // A plane of order q is met by its lines alone: q + 1 nodes.
    assert_eq!(
        resilience(&Explicit::shifts(13, &[0, 1, 3, 9]), &mut quiet).value,
        3
    );
    let majority = resilience(
        &Threshold {
            nodes: 51,
            votes: 26,
        },
        &mut quiet,
    );
    assert!(majority.exact && majority.value == 25);
    let tree = resilience(&Tree { depth: 4 }, &mut quiet);
    assert!(tree.exact && tree.value == 15);
    // One node from each row cuts the grid.
    let grid = resilience(&Explicit::grid(8), &mut quiet);
    assert!(grid.exact && grid.value == 7);
}
