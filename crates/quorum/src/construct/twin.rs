//! The brute-force twin: every construction is compared with the plain reading of its own list
//! of quorums, on every set of nodes of a small system.

use crate::family::{Family, cost_of, list};
use crate::{NodeSet, Odds, Prng};

/// Compares everything the family says with its listed quorums. Panics where they differ.
pub(crate) fn check(name: &str, family: &dyn Family) {
    let quorums = list(family, 100_000).expect("a small family lists its quorums");
    assert!(!quorums.is_empty(), "{name}: no quorum");
    sets(name, family, &quorums);
    choices(name, family, &quorums);
    loads(name, family, &quorums);
    if family.is_self_dual() {
        let full = NodeSet::full(family.nodes());
        for mask in 0..1u64 << (family.nodes() - 1) {
            let set = NodeSet::from_mask(family.nodes(), mask);
            let other = full.difference(&set);
            let sides = [&set, &other].map(|side| family.contains_quorum(side));
            assert!(
                sides[0] != sides[1],
                "{name}: both or neither of {set} and its rest"
            );
        }
    }
    if let Some(count) = family.count() {
        assert_eq!(count, quorums.len() as f64, "{name}: count");
    }
    if let Some(transversal) = family.transversal() {
        let least = (0..1u64 << family.nodes())
            .map(|mask| NodeSet::from_mask(family.nodes(), mask))
            .filter(|set| quorums.iter().all(|quorum| quorum.intersects(set)))
            .map(|set| set.len())
            .min();
        assert_eq!(Some(transversal), least, "{name}: transversal");
    }
}

/// No two listed quorums are disjoint.
pub(crate) fn check_coterie(name: &str, family: &dyn Family) {
    check(name, family);
    let quorums = list(family, 100_000).expect("a small family lists its quorums");
    for a in &quorums {
        for b in &quorums {
            assert!(a.intersects(b), "{name}: {a} and {b} are disjoint");
        }
    }
}

fn sets(name: &str, family: &dyn Family, quorums: &[NodeSet]) {
    let n = family.nodes();
    let mut prng = Prng::new(n as u64);
    let odds: Vec<Odds> = (0..n).map(|_| Odds::down(prng.unit())).collect();
    let even = vec![Odds::down(0.3); n];
    let circuit = family.circuit();
    let (mut live, mut live_even) = (0.0, 0.0);
    let mut minimal = 0;
    for mask in 0..1u64 << n {
        let set = NodeSet::from_mask(n, mask);
        let twin = quorums.iter().any(|quorum| quorum.is_subset(&set));
        assert_eq!(family.contains_quorum(&set), twin, "{name}: {set}");
        if let Some(circuit) = &circuit {
            assert_eq!(circuit.eval(&set), twin, "{name}: circuit of {set}");
        }
        if !twin {
            continue;
        }
        let weight = |odds: &[Odds]| -> f64 {
            let each = |i: usize| {
                if set.contains(i) {
                    odds[i].up
                } else {
                    odds[i].down
                }
            };
            (0..n).map(each).product()
        };
        live += weight(&odds);
        live_even += weight(&even);
        let lean = set.iter().all(|node| {
            let mut less = set.clone();
            less.remove(node);
            !family.contains_quorum(&less)
        });
        minimal += usize::from(lean);
    }
    assert_eq!(
        minimal,
        quorums.len(),
        "{name}: listed quorums are the minimal sets, once each"
    );
    for (odds, live) in [(odds, live), (even, live_even)] {
        if let Some(mass) = family.mass(&odds) {
            assert!(
                (mass.live - live).abs() < 1e-9,
                "{name}: {mass:?}, summed {live}"
            );
            assert!(
                (mass.live + mass.dead - 1.0).abs() < 1e-9,
                "{name}: {mass:?}"
            );
        }
    }
}

fn choices(name: &str, family: &dyn Family, quorums: &[NodeSet]) {
    let n = family.nodes();
    let mut prng = Prng::new(77);
    for round in 0..40 {
        let cost: Vec<f64> = (0..n)
            .map(|_| match (round % 4, prng.below(4)) {
                (0, dice) => dice as f64,
                (1, 0) => f64::INFINITY,
                _ => prng.unit(),
            })
            .collect();
        let least = quorums
            .iter()
            .map(|q| cost_of(q, &cost))
            .fold(f64::INFINITY, f64::min);
        let Some(cheapest) = family.cheapest(&cost) else {
            assert!(
                least.is_infinite(),
                "{name}: a quorum of cost {least} was missed"
            );
            continue;
        };
        assert!(
            quorums.contains(&cheapest),
            "{name}: {cheapest} is not a minimal quorum"
        );
        assert!(
            cost_of(&cheapest, &cost).is_finite(),
            "{name}: uses a node to avoid"
        );
        if family.cheapest_is_exact() {
            let found = cost_of(&cheapest, &cost);
            assert!(
                (found - least).abs() < 1e-9,
                "{name}: {found} is not the least, {least}"
            );
        }
        let sample = family.sample(&mut prng);
        assert!(quorums.contains(&sample), "{name}: sampled {sample}");
    }
    let sizes = family.sizes();
    if sizes.exact {
        assert_eq!(
            Some(sizes.min),
            quorums.iter().map(NodeSet::len).min(),
            "{name}"
        );
        assert_eq!(
            Some(sizes.max),
            quorums.iter().map(NodeSet::len).max(),
            "{name}"
        );
    }
    for site in 0..n {
        if let Some(own) = family.own(site) {
            assert!(
                family.contains_quorum(&own),
                "{name}: own set {own} has no quorum"
            );
        }
    }
}

fn loads(name: &str, family: &dyn Family, quorums: &[NodeSet]) {
    let n = family.nodes();
    let Some(plan) = family.load_plan(&vec![1.0; n]) else {
        return;
    };
    let upper = plan.loads.iter().copied().fold(0.0, f64::max);
    let scale: f64 = plan.weights.iter().sum();
    let lower = quorums
        .iter()
        .map(|quorum| cost_of(quorum, &plan.weights) / scale)
        .fold(f64::INFINITY, f64::min);
    assert!(
        upper > lower - 1e-9 && upper - lower < 0.02 * upper,
        "{name}: load between {lower} and {upper}"
    );
    let rounds = 4000;
    let mut prng = Prng::new(5);
    let mut seen = vec![0.0; n];
    for _ in 0..rounds {
        for node in family.sample(&mut prng).iter() {
            seen[node] += 1.0 / f64::from(rounds);
        }
    }
    for (node, seen) in seen.iter().enumerate() {
        assert!(
            seen - upper < 0.05,
            "{name}: node {node} is sampled {seen}, more than the load {upper}"
        );
    }
}
