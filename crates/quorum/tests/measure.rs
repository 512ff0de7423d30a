//! The measures against known values, closed forms and brute force.

#[path = "measure/families.rs"]
mod families;

use conclave_quorum::family::cost_of;
use conclave_quorum::measure::failure::{
    Domain, Failure, FailureOptions, Faults, FaultsError, curve, failure,
};
use conclave_quorum::measure::latency::{LatencyError, LatencyMatrix, latency};
use conclave_quorum::measure::load::{Load, load};
use conclave_quorum::measure::messages::{messages, messages_of, multilevel};
use conclave_quorum::measure::quiet;
use conclave_quorum::measure::resilience::resilience;
use conclave_quorum::measure::tables::{
    TableError, check_capacities, parse_capacities, parse_domains, parse_down,
};
use conclave_quorum::{Family, LoadPlan, NodeSet, Prng};
use families::{Explicit, Threshold, Tree};

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
        near(load.upper, (2.0f64 / 3.0).powi(depth as i32));
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
    // A threshold with one strong node: it takes part always, the others share the rest.
    let majority = Threshold { nodes: 5, votes: 3 };
    let load = load_of(&majority, Some(&[10.0, 1.0, 1.0, 1.0, 1.0]));
    assert!(load.exact);
    near(load.upper, 0.5);
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
    let wrong = [
        // Loads that no strategy has, below what the weights prove.
        plan(vec![0.1; 7], vec![1.0; 7]),
        // The same, with weights that prove little.
        plan(vec![0.4; 7], vec![1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
        // One node spared for nothing.
        plan(skewed, vec![1.0; 7]),
        // Not numbers, not probabilities, not of this size.
        plan(vec![f64::NAN; 7], vec![1.0; 7]),
        plan(vec![share; 6], vec![1.0; 3]),
        plan(vec![share; 7], vec![-1.0; 7]),
        // True loads, but weights that prove nothing.
        plan(vec![share; 7], vec![0.0; 7]),
    ];
    for plan in wrong {
        for mut family in [fano.clone(), fano.unlisted()] {
            family.plan.clone_from(&plan);
            let load = load_of(&family, None);
            assert!(load.exact && !load.strategy.is_empty(), "{plan:?} {load:?}");
            near(load.upper, share);
        }
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
    failure(family, faults, &FailureOptions::default(), &mut quiet).unwrap()
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
        .unwrap()
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

#[test]
fn messages_follow_the_quorum_size() {
    let plane = load_of(&Explicit::shifts(13, &[0, 1, 3, 9]), None);
    let counts = messages_of(&plane);
    near(counts.quorum_size, 4.0);
    near(counts.maekawa_m, 12.0);
    near(counts.maekawa_m_worst, 24.0);
    near(counts.maekawa_s, 9.0);
    near(counts.maekawa_s_delay, 5.0);
    near(counts.ricart_agrawala, 24.0);
    near(counts.lease_try, 26.0);
    near(counts.lease_release, 13.0);
    near(messages(1, 1.0).central, 3.0);
    assert_eq!(messages(0, 0.0).ricart_agrawala, 0.0);
    near(multilevel(&[3.0, 2.0]), 23.0);
}

#[test]
fn latency_takes_the_nearest_or_the_balanced_quorum() {
    let majority = Explicit::new(3, [vec![0, 1], vec![0, 2], vec![1, 2]]);
    let text = "client,1,2,3\nhere,1,5,9\nthere,inf,inf,2\n";
    let matrix = LatencyMatrix::parse(text, 3).unwrap();
    let load = load_of(&majority, None);
    let report = latency(&majority, &matrix, &load, 2000, 1).unwrap();
    assert_eq!(report.nearest, vec![5.0, f64::INFINITY]);
    assert_eq!(report.nearest_p50, 5.0);
    assert!(report.nearest_p99.is_infinite());
    assert!(report.balanced_p99.is_infinite());
    // One client alone: two of its three quorums need the far node.
    let one = LatencyMatrix::new(vec!["here".into()], 3, vec![vec![1.0, 5.0, 9.0]]).unwrap();
    let report = latency(&majority, &one, &load, 2000, 1).unwrap();
    assert_eq!((report.balanced_p50, report.balanced_p99), (9.0, 9.0));
    assert_eq!((report.nearest_p50, report.nearest_p99), (5.0, 5.0));
}

#[test]
fn latencies_are_validated() {
    let new = |row: Vec<f64>| LatencyMatrix::new(vec!["a".into()], 2, vec![row]);
    assert!(matches!(
        new(vec![1.0]),
        Err(LatencyError::Width { width: 1, .. })
    ));
    for value in [f64::NAN, -1.0] {
        assert!(matches!(
            new(vec![1.0, value]),
            Err(LatencyError::Time { node: 2, .. })
        ));
    }
    assert!(new(vec![1.0, f64::INFINITY]).is_ok());
    assert!(matches!(
        LatencyMatrix::new(vec![], 2, vec![]),
        Err(LatencyError::NoClients)
    ));
    let rows = LatencyMatrix::new(vec!["a".into()], 2, vec![]);
    assert!(matches!(
        rows,
        Err(LatencyError::Rows {
            clients: 1,
            rows: 0
        })
    ));
    let family = Threshold { nodes: 3, votes: 2 };
    let load = load_of(&family, None);
    let matrix = new(vec![1.0, 1.0]).unwrap();
    let error = latency(&family, &matrix, &load, 10, 1).unwrap_err();
    assert_eq!(error, LatencyError::Nodes { given: 2, nodes: 3 });
}

#[test]
fn tables_are_read() {
    let capacities = "# cores\nnode,capacity\n2, 4 # big\n\n1,1.5\r\n3,2\n";
    assert_eq!(
        parse_capacities(capacities, 3).unwrap(),
        vec![1.5, 4.0, 2.0]
    );
    assert_eq!(parse_down("1,0\n2,1\n", 2).unwrap(), vec![0.0, 1.0]);
    let domains = parse_domains("domain,p,nodes\nrack-a,0.01,1 2\nrack-b,0.5,3\n", 3).unwrap();
    assert_eq!(domains.len(), 2);
    assert_eq!(domains[0].nodes, NodeSet::of(3, [0, 1]));
    assert_eq!(domains[1].down, 0.5);
    assert_eq!(parse_domains("# none\n", 3).unwrap(), vec![]);
    let matrix = LatencyMatrix::parse("paris,1,2.5\nrome,inf,0\n", 2).unwrap();
    assert_eq!(matrix.clients(), ["paris", "rome"]);
    assert_eq!(matrix.ms()[1], vec![f64::INFINITY, 0.0]);
}

#[test]
fn tables_say_what_is_wrong_and_where() {
    let capacity = |text| parse_capacities(text, 3).unwrap_err().to_string();
    let cases = [
        (
            "1,1\n2,0\n3,1",
            "line 2: expected a positive capacity, found '0'",
        ),
        (
            "1,1\n2,NaN\n3,1",
            "line 2: expected a positive capacity, found 'NaN'",
        ),
        (
            "1,1\n2,inf\n3,1",
            "line 2: expected a positive capacity, found 'inf'",
        ),
        ("1,1\n4,1", "line 2: expected a node from 1 to 3, found '4'"),
        ("0,1", "line 1: expected a node from 1 to 3, found '0'"),
        ("1", "line 1: expected node,capacity, found '1'"),
        ("1,1,1", "line 1: expected node,capacity, found '1,1,1'"),
        (
            "1,1\n#\n1,2",
            "line 3: node 1 is already on line 1: give it one line only",
        ),
        (
            "1,1\n3,1",
            "node 2 has no line: expected one line for each of the nodes 1 to 3",
        ),
        (
            "1,1\nnode,capacity",
            "line 2: expected a node from 1 to 3, found 'node'",
        ),
    ];
    for (text, wanted) in cases {
        assert_eq!(capacity(text), wanted);
    }
    let down = parse_down("1,1.5", 1).unwrap_err().to_string();
    assert_eq!(
        down,
        "line 1: expected a probability from 0 to 1, found '1.5'"
    );
    let domain = |text| parse_domains(text, 3).unwrap_err().to_string();
    let cases = [
        (
            "a,0.1",
            "line 1: expected domain,p,nodes such as 'rack-a,0.001,1 2 3', found 'a,0.1'",
        ),
        (
            "a,2,1",
            "line 1: expected a probability from 0 to 1, found '2'",
        ),
        ("a,0.1,9", "line 1: expected a node from 1 to 3, found '9'"),
        (
            "a,0.1,",
            "line 1: expected the domain's nodes apart by spaces, found ''",
        ),
        (
            "a,0.1,1\na,0.1,2",
            "line 2: domain 'a' is already on line 1: give it one line only",
        ),
    ];
    for (text, wanted) in cases {
        assert_eq!(domain(text), wanted);
    }
    let latency = |text| LatencyMatrix::parse(text, 2).unwrap_err().to_string();
    let cases = [
        (
            "a,1",
            "line 1: expected a client's name and 2 latencies in ms, found 'a,1'",
        ),
        (
            ",1,2",
            "line 1: expected a client's name and 2 latencies in ms, found ',1,2'",
        ),
        (
            "a,1,-2",
            "line 1: expected a time in ms that is not negative, or inf, found '-2'",
        ),
        (
            "a,1,x",
            "line 1: expected a time in ms that is not negative, or inf, found 'x'",
        ),
        (
            "a,1,2\na,1,2",
            "line 2: client 'a' is already on line 1: give it one line only",
        ),
        (
            "",
            "the latency table has no client: give a line per client",
        ),
    ];
    for (text, wanted) in cases {
        assert_eq!(latency(text), wanted);
    }
    assert_eq!(check_capacities(&[1.0, 2.0], 2), Ok(()));
    let short = check_capacities(&[1.0], 2);
    assert_eq!(short, Err(TableError::Length { given: 1, nodes: 2 }));
    let none = check_capacities(&[1.0, 0.0], 2);
    assert!(matches!(none, Err(TableError::Capacity { node: 2, .. })));
}
