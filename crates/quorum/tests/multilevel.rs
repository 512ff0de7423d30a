//! Hierarchies of clusters: Rahman and Akbar, "A Permission based Multilevel Parallel Solution for
//! Distributed Mutual Exclusion". Fast answers are held against brute force on small systems, and
//! closed forms against published figures.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use conclave_quorum::construct::multilevel::{Clusters, Multilevel, MultilevelError};
use conclave_quorum::family::{self, cost_of};
use conclave_quorum::measure::hierarchy::{self, lambert_w0};
use conclave_quorum::{Circuit, Family, GateId, LoadPlan, Mass, NodeSet, Odds, Prng, Sizes};

/// The tree coterie over a heap: a node without a right child stands alone, any other one is a
/// two-of-three vote of itself and its subtrees.
#[derive(Debug)]
struct Tree(usize);

impl Tree {
    fn sides(&self, node: usize) -> Option<(usize, usize)> {
        (2 * node + 2 < self.0).then_some((2 * node + 1, 2 * node + 2))
    }

    fn holds(&self, node: usize, set: &NodeSet) -> bool {
        let own = set.contains(node);
        self.sides(node).map_or(own, |(left, right)| {
            let (left, right) = (self.holds(left, set), self.holds(right, set));
            u8::from(own) + u8::from(left) + u8::from(right) >= 2
        })
    }

    fn quorums(&self, node: usize) -> Vec<Vec<usize>> {
        let Some((left, right)) = self.sides(node) else {
            return vec![vec![node]];
        };
        let (left, right) = (self.quorums(left), self.quorums(right));
        let with_node = left
            .iter()
            .chain(&right)
            .map(|q| [&[node], &q[..]].concat());
        let mut all: Vec<_> = with_node.collect();
        for l in &left {
            all.extend(right.iter().map(|r| [&l[..], &r[..]].concat()));
        }
        all
    }

    fn best(&self, node: usize, cost: &[f64]) -> (f64, Vec<usize>) {
        let Some((left, right)) = self.sides(node) else {
            return (cost[node], vec![node]);
        };
        let mut three = [
            (cost[node], vec![node]),
            self.best(left, cost),
            self.best(right, cost),
        ];
        three.sort_by(|a, b| a.0.total_cmp(&b.0));
        let [a, b, _] = three;
        (a.0 + b.0, [a.1, b.1].concat())
    }

    fn odds(&self, node: usize, odds: &[Odds]) -> Odds {
        let own = odds[node];
        self.sides(node).map_or(own, |(left, right)| {
            let (l, r) = (self.odds(left, odds), self.odds(right, odds));
            let one = l.up * r.down + l.down * r.up;
            let total = own.up + own.down;
            Odds {
                up: own.up * one + total * l.up * r.up,
                down: own.down * one + total * l.down * r.down,
            }
        })
    }

    /// The inverse of a subtree's load.
    fn spread(&self, node: usize) -> f64 {
        self.sides(node).map_or(1.0, |(left, right)| {
            f64::midpoint(1.0, self.spread(left) + self.spread(right))
        })
    }

    fn plan(&self, node: usize, reach: f64, share: f64, plan: &mut LoadPlan) {
        let Some((left, right)) = self.sides(node) else {
            (plan.loads[node], plan.weights[node]) = (reach, share);
            return;
        };
        let here = self.spread(node);
        let (to_left, to_right) = (self.spread(left) / here, self.spread(right) / here);
        plan.loads[node] = reach / here;
        plan.weights[node] = share / 2.0;
        self.plan(left, reach * to_left, share / 2.0, plan);
        self.plan(right, reach * to_right, share / 2.0, plan);
    }

    fn draw(&self, node: usize, rng: &mut Prng, set: &mut NodeSet) {
        let Some((left, right)) = self.sides(node) else {
            set.insert(node);
            return;
        };
        let here = self.spread(node);
        let (no_left, no_right) = (
            1.0 - self.spread(left) / here,
            1.0 - self.spread(right) / here,
        );
        let drawn = rng.unit();
        if drawn < no_left + no_right {
            set.insert(node);
            self.draw(if drawn < no_left { right } else { left }, rng, set);
        } else {
            self.draw(left, rng, set);
            self.draw(right, rng, set);
        }
    }

    fn gates(&self, node: usize, circuit: &mut Circuit) -> GateId {
        let own = circuit.node(node);
        self.sides(node).map_or(own, |(left, right)| {
            let (left, right) = (self.gates(left, circuit), self.gates(right, circuit));
            circuit.at_least(2, [own, left, right])
        })
    }
}

impl Family for Tree {
    fn nodes(&self) -> usize {
        self.0
    }

    fn contains_quorum(&self, set: &NodeSet) -> bool {
        self.holds(0, set)
    }

    fn cheapest(&self, cost: &[f64]) -> Option<NodeSet> {
        let (total, nodes) = self.best(0, cost);
        total.is_finite().then(|| NodeSet::of(self.0, nodes))
    }

    fn sample(&self, rng: &mut Prng) -> NodeSet {
        let mut set = NodeSet::new(self.0);
        self.draw(0, rng, &mut set);
        set
    }

    fn sizes(&self) -> Sizes {
        let min = self.best(0, &vec![1.0; self.0]).1.len();
        Sizes::exact(min, self.0.div_ceil(2))
    }

    fn visit(&self, visit: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>) -> Option<ControlFlow<()>> {
        let mut quorums = self.quorums(0).into_iter();
        Some(quorums.try_for_each(|quorum| visit(&NodeSet::of(self.0, quorum))))
    }

    fn count(&self) -> Option<f64> {
        Some(2f64.powi(i32::try_from(self.0.div_ceil(2)).ok()?) - 1.0)
    }

    fn mass(&self, odds: &[Odds]) -> Option<Mass> {
        // A node that never votes still carries its weight.
        let idle = self.0.is_multiple_of(2).then(|| odds[self.0 - 1]);
        let scale = idle.map_or(1.0, |idle| idle.up + idle.down);
        let Odds { up, down } = self.odds(0, odds);
        Some(Mass {
            live: up * scale,
            dead: down * scale,
        })
    }

    fn circuit(&self) -> Option<Circuit> {
        let mut circuit = Circuit::new(self.0);
        self.gates(0, &mut circuit);
        Some(circuit)
    }

    fn load_plan(&self, capacity: &[f64]) -> Option<LoadPlan> {
        let mut plan = LoadPlan {
            loads: vec![0.0; self.0],
            weights: vec![0.0; self.0],
        };
        self.plan(0, 1.0, 1.0, &mut plan);
        capacity.iter().all(|c| *c == capacity[0]).then_some(plan)
    }

    fn transversal(&self) -> Option<usize> {
        // A vote of two in three is its own dual, and so is the tree.
        Some(self.sizes().min)
    }
}

fn trees(nodes: usize, levels: usize) -> Multilevel {
    let tree = |_, size| Ok::<_, MultilevelError>(Arc::new(Tree(size)) as Arc<dyn Family>);
    let clusters = Clusters::build(nodes, levels).expect("a small hierarchy");
    Multilevel::new(clusters, &tree).expect("trees of every size")
}

/// A coterie that knows nothing but its quorum: the first node alone.
#[derive(Debug)]
struct Monarchy(usize);

impl Family for Monarchy {
    fn nodes(&self) -> usize {
        self.0
    }

    fn contains_quorum(&self, set: &NodeSet) -> bool {
        set.contains(0)
    }

    fn cheapest(&self, cost: &[f64]) -> Option<NodeSet> {
        cost[0].is_finite().then(|| NodeSet::of(self.0, [0]))
    }

    fn cheapest_is_exact(&self) -> bool {
        false
    }

    fn sample(&self, _: &mut Prng) -> NodeSet {
        NodeSet::of(self.0, [0])
    }

    fn sizes(&self) -> Sizes {
        Sizes::exact(1, 1)
    }

    fn visit(&self, _: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>) -> Option<ControlFlow<()>> {
        None
    }
}

#[test]
fn coteries_that_know_little_make_systems_that_say_so() {
    let monarchy = |_, size| Ok::<_, MultilevelError>(Arc::new(Monarchy(size)) as Arc<dyn Family>);
    let system = Multilevel::new(Clusters::build(20, 2).unwrap(), &monarchy).unwrap();
    assert!(!system.cheapest_is_exact());
    assert_eq!(system.load_lower(), None);
    assert_eq!(system.load_plan(&[1.0; 20]), None);
    assert_eq!(system.mass(&[Odds::down(0.1); 20]), None);
    assert_eq!(system.circuit(), None);
    assert_eq!(system.transversal(), None);
    assert_eq!(system.visit(&mut |_| ControlFlow::Continue(())), None);
    let (min, max, exact) = (1, 3, false);
    assert_eq!(system.sizes(), Sizes { min, max, exact });
    let first = NodeSet::of(20, [0]);
    assert_eq!(system.sample(&mut Prng::new(1)), first);
    assert_eq!(system.cheapest(&[1.0; 20]), Some(first));
    assert_eq!(system.own(19), Some(NodeSet::of(20, [0, 14, 17])));
    let wrong = |_, _| Ok::<_, MultilevelError>(Arc::new(Tree(3)) as Arc<dyn Family>);
    assert_eq!(
        Multilevel::new(Clusters::build(10, 1).unwrap(), &wrong).unwrap_err(),
        MultilevelError::WrongSize { size: 4, found: 3 }
    );
}

/// The dumb twin: is there a leaf cluster with a tree quorum in each cluster of its chain?
fn twin_contains(system: &Multilevel, set: &NodeSet) -> bool {
    let clusters = system.clusters();
    clusters.at(clusters.levels()).any(|leaf| {
        clusters.chain(leaf).into_iter().all(|id| {
            let members: Vec<usize> = clusters.members(id).collect();
            let quorums = Tree(members.len()).quorums(0);
            let mut quorums = quorums.iter();
            quorums.any(|quorum| quorum.iter().all(|place| set.contains(members[*place])))
        })
    })
}

fn unequal_odds(nodes: usize) -> Vec<Odds> {
    (0..nodes)
        .map(|node| Odds::down(0.05 + 0.9 * ((node * 7 + 3) % 11) as f64 / 11.0))
        .collect()
}

/// Agrawal and El Abbadi: the number of tree quorums, and trees with failures.
#[test]
fn tree_quorums_have_the_known_counts_and_figures() {
    for (nodes, count) in [(1, 1), (3, 3), (5, 7), (7, 15), (9, 31), (15, 255)] {
        assert_eq!(Tree(nodes).quorums(0).len(), count);
        assert_eq!(Tree(nodes + 1).quorums(0).len(), count);
    }
    let seven = |down: &[usize]| {
        let mut cost = [1.0; 7];
        for node in down {
            cost[*node] = f64::INFINITY;
        }
        Tree(7).cheapest(&cost).map(|quorum| quorum.len())
    };
    assert_eq!(seven(&[]), Some(3));
    assert_eq!(seven(&[0]), Some(4));
    assert_eq!(seven(&[0, 1]), Some(4));
    assert_eq!(seven(&[0, 1, 3]), None);
    let figures: [(f64, usize, f64, f64); 10] = [
        (0.8, 3, 0.896, 2.0),
        (0.8, 5, 0.92672, 2.6188),
        (0.8, 7, 0.95191, 3.1687),
        (0.8, 11, 0.96658, 3.891),
        (0.8, 15, 0.97938, 4.57),
        (0.8, 35, 0.99221, 6.5246),
        (0.8, 1200, 0.99992, 22.355),
        (0.9, 7, 0.99377, 3.0951),
        (0.9, 35, 0.99977, 5.8178),
        (0.9, 1200, 1.0, 14.9691),
    ];
    for (up, nodes, live, size) in figures {
        let found = hierarchy::tree_figures(nodes, up);
        assert!((found.live - live).abs() <= 5.1e-6, "{nodes} {found:?}");
        assert!((found.size - size).abs() <= 5.1e-5, "{nodes} {found:?}");
        assert!((found.live + found.dead - 1.0).abs() < 1e-12);
        let mass = Tree(nodes)
            .mass(&vec![Odds::down(1.0 - up); nodes])
            .unwrap();
        assert!((found.dead - mass.dead).abs() <= 1e-12 * mass.dead);
    }
}

#[test]
fn containment_circuit_listing_and_transversal_agree_with_the_twin_on_every_set() {
    for nodes in 1..=12 {
        for levels in 0..=3 {
            let system = trees(nodes, levels);
            let circuit = system.circuit().unwrap();
            let quorums = family::list(&system, usize::MAX).unwrap();
            let mut transversal = nodes;
            for mask in 0..1u64 << nodes {
                let set = NodeSet::from_mask(nodes, mask);
                let expected = twin_contains(&system, &set);
                assert_eq!(system.contains_quorum(&set), expected, "{set} l={levels}");
                assert_eq!(circuit.eval(&set), expected, "{set} l={levels}");
                let minimal = expected
                    && set.iter().all(|node| {
                        let mut rest = set.clone();
                        rest.remove(node);
                        !twin_contains(&system, &rest)
                    });
                assert_eq!(quorums.contains(&set), minimal, "{set} l={levels}");
                if !expected {
                    transversal = transversal.min(nodes - set.len());
                }
            }
            assert_eq!(system.transversal(), Some(transversal));
        }
    }
}

#[test]
fn any_two_quorums_meet_in_the_root() {
    for nodes in 1..=20 {
        for levels in 0..=3 {
            let system = trees(nodes, levels);
            let clusters = system.clusters();
            let root = NodeSet::of(nodes, clusters.members(clusters.root()));
            let quorums = family::list(&system, 1 << 14).unwrap();
            let distinct: BTreeSet<_> = quorums.iter().collect();
            assert_eq!(distinct.len(), quorums.len());
            let cores: BTreeSet<_> = quorums.iter().map(|q| q.intersection(&root)).collect();
            for a in &cores {
                assert!(
                    cores.iter().all(|b| a.intersects(b)),
                    "n={nodes} l={levels}"
                );
            }
            let sizes = quorums.iter().map(NodeSet::len);
            assert_eq!(system.sizes().min, sizes.clone().min().unwrap());
            assert_eq!(system.sizes().max, sizes.max().unwrap());
        }
    }
}

#[test]
fn mass_agrees_with_adding_up_every_set() {
    for nodes in 1..=12 {
        for levels in 0..=3 {
            let system = trees(nodes, levels);
            let mut odds = unequal_odds(nodes);
            // Weights that do not add up to 1 are as good.
            odds[nodes / 2].up *= 3.0;
            let mut expected = Mass {
                live: 0.0,
                dead: 0.0,
            };
            for mask in 0..1u64 << nodes {
                let set = NodeSet::from_mask(nodes, mask);
                let weight = |(node, odds): (usize, &Odds)| {
                    if set.contains(node) {
                        odds.up
                    } else {
                        odds.down
                    }
                };
                let weight: f64 = odds.iter().enumerate().map(weight).product();
                if system.contains_quorum(&set) {
                    expected.live += weight;
                } else {
                    expected.dead += weight;
                }
            }
            let mass = system.mass(&odds).unwrap();
            assert!(
                (mass.live / expected.live - 1.0).abs() < 1e-12,
                "{nodes} {levels}"
            );
            assert!(
                (mass.dead / expected.dead - 1.0).abs() < 1e-12,
                "{nodes} {levels}"
            );
        }
    }
}

#[test]
fn tiny_failure_probabilities_keep_their_digits() {
    // With clusters of three, no quorum is left mainly when two of the root's three are down.
    let mass = trees(27, 2).mass(&[Odds::down(1e-12); 27]).unwrap();
    assert!((mass.dead / 3e-24 - 1.0).abs() < 1e-10, "{}", mass.dead);
    // With almost all nodes down, a quorum is one of the smallest and no other node is up.
    let system = trees(27, 2);
    let quorums = family::list(&system, usize::MAX).unwrap();
    let smallest = quorums.iter().filter(|quorum| quorum.len() == 4).count() as f64;
    let (up, down) = (1e-12, 1.0);
    let mass = system.mass(&[Odds { up, down }; 27]).unwrap();
    assert!((mass.live / (smallest * 1e-48) - 1.0).abs() < 1e-10);
    for levels in 0..=4 {
        let mass = trees(1200, levels)
            .mass(&vec![Odds::down(0.2); 1200])
            .unwrap();
        assert!((mass.live + mass.dead - 1.0).abs() < 1e-9);
    }
}

#[test]
fn cheapest_is_cheapest_and_minimal() {
    let mut rng = Prng::new(5);
    for nodes in 1..=14 {
        for levels in 0..=3 {
            let system = trees(nodes, levels);
            assert!(system.cheapest_is_exact());
            let quorums = family::list(&system, usize::MAX).unwrap();
            for _ in 0..30 {
                let price = |rng: &mut Prng| match rng.below(8) {
                    0 => f64::INFINITY,
                    1 => 0.0,
                    _ => rng.unit(),
                };
                let cost: Vec<f64> = (0..nodes).map(|_| price(&mut rng)).collect();
                let prices = quorums.iter().map(|quorum| cost_of(quorum, &cost));
                let best = prices.fold(f64::INFINITY, f64::min);
                match system.cheapest(&cost) {
                    None => assert_eq!(best, f64::INFINITY),
                    Some(found) => {
                        assert!(quorums.contains(&found), "{found} is not minimal");
                        assert!((cost_of(&found, &cost) - best).abs() < 1e-12);
                    }
                }
            }
        }
    }
}

#[test]
fn samples_are_minimal_quorums_with_the_planned_loads() {
    for (nodes, levels) in [(1, 2), (2, 3), (10, 1), (20, 2), (27, 2), (40, 3)] {
        let system = trees(nodes, levels);
        let quorums = family::list(&system, usize::MAX).unwrap();
        let plan = system.load_plan(&vec![1.0; nodes]).unwrap();
        let draws = 4000;
        let mut used = vec![0.0; nodes];
        let mut rng = Prng::new(11);
        for _ in 0..draws {
            let quorum = system.sample(&mut rng);
            assert!(quorums.binary_search(&quorum).is_ok(), "{quorum}");
            quorum
                .iter()
                .for_each(|node| used[node] += 1.0 / f64::from(draws));
        }
        let clusters = system.clusters();
        let root = NodeSet::of(nodes, clusters.members(clusters.root()));
        for (node, (used, load)) in used.iter().zip(&plan.loads).enumerate() {
            assert!(
                *used < load + 0.04,
                "n={nodes} node {node}: {used} > {load}"
            );
            if root.contains(node) {
                assert!(
                    *used > load - 0.04,
                    "n={nodes} node {node}: {used} < {load}"
                );
            }
        }
    }
}

#[test]
fn the_load_is_that_of_the_root() {
    for (nodes, levels) in [(10, 1), (27, 2), (100, 2), (1200, 1), (1200, 2), (1200, 4)] {
        let system = trees(nodes, levels);
        let plan = system.load_plan(&vec![1.0; nodes]).unwrap();
        let upper = plan.loads.iter().copied().fold(0.0, f64::max);
        let lower = system.load_lower().unwrap();
        assert!((upper - lower).abs() < 1e-12, "{upper} {lower}");
        let root = system.clusters().size(system.clusters().root());
        assert!((lower * Tree(root).spread(0) - 1.0).abs() < 1e-12);
        let least = system.cheapest(&plan.weights).unwrap();
        let total: f64 = plan.weights.iter().sum();
        assert!((cost_of(&least, &plan.weights) / total - lower).abs() < 1e-12);
        assert!(system.contains_quorum(&system.sample(&mut Prng::new(3))));
        assert!(system.expected_size().unwrap() >= system.sizes().min as f64);
    }
}

#[test]
fn own_quorums_follow_the_chain_of_the_site() {
    for (nodes, levels) in [(10, 1), (20, 2), (27, 2), (1200, 2)] {
        let system = trees(nodes, levels);
        let clusters = system.clusters();
        for site in 0..nodes {
            let own = system.own(site).unwrap();
            assert!(system.contains_quorum(&own));
            let leaf = clusters.leaf_of(site).unwrap();
            for id in clusters.chain(leaf) {
                let here = clusters.members(id).enumerate();
                let places = here.filter(|(_, node)| own.contains(*node));
                let places = NodeSet::of(clusters.size(id), places.map(|(place, _)| place));
                assert!(system.coterie(id).contains_quorum(&places));
            }
            // The last member of an even tree never votes; everyone else is in its own quorum.
            let span = clusters.span(leaf);
            let idle = span.len().is_multiple_of(2) && site + 1 == span.end;
            assert!(own.contains(site) != idle, "n={nodes} site {site}: {own}");
        }
        assert_eq!(system.own(nodes), None);
    }
}

#[test]
fn computed_tables_agree_with_the_published_ones_to_the_last_digit() {
    let tables = hierarchy::tables();
    for table in &tables {
        assert_eq!(table.deviations(), [], "{}", table.title);
        for row in &table.rows {
            assert_eq!(row.cells.len(), table.columns.len(), "{}", table.title);
        }
    }
    let mut wrong = tables[4].clone();
    wrong.rows[0].cells[3].computed += 2e-4;
    assert_eq!(wrong.deviations().len(), 1);
}

#[test]
fn lambert_w_inverts_its_definition() {
    for step in 0..=4000 {
        let w = -1.0 + f64::from(step) * 0.005;
        let x = w * w.exp();
        let found = lambert_w0(x).unwrap();
        assert!(
            (found * found.exp() - x).abs() <= 1e-14 * x.abs().max(0.1),
            "{x}"
        );
        // Near -1 the definition is flat, so x alone fixes only half the digits of w.
        let loss = if w < -0.9 { 1e-7 } else { 1e-12 };
        assert!((found - w).abs() <= loss * w.abs().max(1.0), "{w} {found}");
    }
    assert_eq!(lambert_w0(-0.37), None);
    assert_eq!(lambert_w0(f64::NAN), None);
    // 1 + k is 2 sqrt(d) - 4d/3 + .. for an availability of 1 - d: no digit is lost.
    for d in [1e-6, 1e-10, 1e-14] {
        let u: f64 = 1.0 + hierarchy::exact_k(1.0 - d);
        let root = (4.0 * (1.0 - (1.0 - d))).sqrt();
        let series = root - root * root / 3.0 + 11.0 * root.powi(3) / 72.0;
        assert!((u - series).abs() < 1e-11, "{d} {u} {series}");
    }
}

#[test]
fn the_closed_optimum_is_the_smallest_cost() {
    for nodes in [
        1, 2, 3, 7, 50, 100, 300, 700, 1200, 5000, 20_000, 10_000_000,
    ] {
        for step in 0..=100 {
            let up = f64::from(step) / 100.0;
            let best = hierarchy::best_levels(nodes, up);
            let trial = hierarchy::best_levels_by_trial(nodes, up);
            let (cost, least) = (
                hierarchy::cost(nodes, up, best),
                hierarchy::cost(nodes, up, trial),
            );
            assert!(
                cost <= least * (1.0 + 1e-12),
                "n={nodes} f={up}: {best} {trial}"
            );
        }
    }
    // Rounding the real optimum would take 1 here.
    assert_eq!(hierarchy::real_levels(700, 0.8).round(), 1.0);
    assert_eq!(hierarchy::best_levels(700, 0.8), 2);
    // The paper's estimate costs at least a quarter more than the optimum.
    for up in [0.75, 0.8, 0.85, 0.9, 0.95] {
        let estimate = hierarchy::paper_levels(1200, up).round() as usize;
        let least = hierarchy::cost(1200, up, hierarchy::best_levels(1200, up));
        assert!(hierarchy::cost(1200, up, estimate) > 1.25 * least, "{up}");
    }
}
