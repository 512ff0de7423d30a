//! Group systems, their exclusive quorums and fallbacks: the published examples, the promised
//! intersections, and every method against going through all sets.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

use std::sync::Arc;

use conclave_quorum::construct::affine::{AffineError, affine, affine_cartels};
use conclave_quorum::construct::explicit::Explicit;
use conclave_quorum::construct::fallback::{balanced, completion, nondominated};
use conclave_quorum::construct::groups::{GroupsError, checked, degree, same};
use conclave_quorum::construct::plane::Plane;
use conclave_quorum::construct::surficial::{Surficial, SurficialError, literal_figure_4};
use conclave_quorum::family::{cost_of, list};
use conclave_quorum::system::RegisterError;
use conclave_quorum::{Coterie, Family, GroupSystem, NodeSet, Odds, Prng};

fn quorums(family: &dyn Family) -> Vec<NodeSet> {
    list(family, 100_000).expect("the family can be listed")
}

fn texts(family: &dyn Family) -> Vec<String> {
    quorums(family).iter().map(NodeSet::to_string).collect()
}

fn subsets(nodes: usize) -> impl Iterator<Item = NodeSet> {
    (0..1u64 << nodes).map(move |mask| NodeSet::from_mask(nodes, mask))
}

fn same_number(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-12 * a.abs().max(b.abs())
}

/// Holds every answer of a family against going through all sets of its nodes.
fn check_against_all_sets(family: &dyn Family, rng: &mut Prng) {
    let nodes = family.nodes();
    let listed = quorums(family);
    for quorum in &listed {
        for node in quorum.iter() {
            let mut less = quorum.clone();
            less.remove(node);
            assert!(!family.contains_quorum(&less), "{quorum} is not minimal");
        }
    }
    let odds: Vec<Odds> = (0..nodes).map(|_| Odds::down(rng.unit())).collect();
    let circuit = family.circuit();
    let (mut live, mut dead, mut transversal) = (0.0, 0.0, nodes);
    for set in subsets(nodes) {
        let holds = listed.iter().any(|quorum| quorum.is_subset(&set));
        assert_eq!(family.contains_quorum(&set), holds, "{set} of {family:?}");
        if let Some(circuit) = &circuit {
            assert_eq!(circuit.eval(&set), holds, "circuit of {set}");
        }
        let weight: f64 = (0..nodes)
            .map(|node| {
                let Odds { up, down } = odds[node];
                if set.contains(node) { up } else { down }
            })
            .product();
        *if holds { &mut live } else { &mut dead } += weight;
        if listed.iter().all(|quorum| quorum.intersects(&set)) {
            transversal = transversal.min(set.len());
        }
    }
    if let Some(mass) = family.mass(&odds) {
        assert!(same_number(mass.live, live) && same_number(mass.dead, dead));
    }
    assert!(
        family
            .transversal()
            .is_none_or(|known| known == transversal)
    );
    let count = listed.len() as f64;
    assert!(family.count().is_none_or(|known| known == count));
    let sizes = listed.iter().map(NodeSet::len);
    let (min, max) = (sizes.clone().min().unwrap(), sizes.max().unwrap());
    let told = family.sizes();
    assert!(
        !told.exact || (told.min, told.max) == (min, max),
        "{told:?}"
    );
    check_choices(family, &listed, rng);
    check_plan(family, &listed, rng);
}

fn check_choices(family: &dyn Family, listed: &[NodeSet], rng: &mut Prng) {
    for _ in 0..20 {
        let sampled = family.sample(rng);
        assert!(listed.contains(&sampled), "{sampled} of {family:?}");
        let cost: Vec<f64> = (0..family.nodes())
            .map(|_| {
                if rng.chance(0.2) {
                    f64::INFINITY
                } else {
                    rng.unit()
                }
            })
            .collect();
        let best = listed
            .iter()
            .map(|quorum| cost_of(quorum, &cost))
            .fold(f64::INFINITY, f64::min);
        match family.cheapest(&cost) {
            None => assert!(best.is_infinite()),
            Some(quorum) => {
                let total = cost_of(&quorum, &cost);
                assert!(listed.contains(&quorum) && total.is_finite());
                assert!(!family.cheapest_is_exact() || same_number(total, best));
            }
        }
    }
}

/// A plan's two sides must agree, and sampling must give its loads.
fn check_plan(family: &dyn Family, listed: &[NodeSet], rng: &mut Prng) {
    let nodes = family.nodes();
    let Some(plan) = family.load_plan(&vec![1.0; nodes]) else {
        return;
    };
    let load = plan.loads.iter().copied().fold(0.0, f64::max);
    let least = listed
        .iter()
        .map(|quorum| cost_of(quorum, &plan.weights))
        .fold(f64::INFINITY, f64::min);
    assert!(same_number(load, least / plan.weights.iter().sum::<f64>()));
    let mut used = vec![0.0; nodes];
    for _ in 0..4000 {
        for node in family.sample(rng).iter() {
            used[node] += 1.0 / 4000.0;
        }
    }
    for (used, load) in used.iter().zip(&plan.loads) {
        assert!((used - load).abs() < 0.05, "{used} against {load}");
    }
}

/// Quorums of different cartels meet; exclusive quorums meet each other and all cartels.
fn check_groups(groups: &GroupSystem) {
    let lists: Vec<Vec<NodeSet>> = groups
        .cartels()
        .iter()
        .map(|cartel| quorums(cartel.as_ref()))
        .collect();
    let meets = |left: &[NodeSet], right: &[NodeSet]| {
        left.iter().all(|a| right.iter().all(|b| a.intersects(b)))
    };
    for (index, cartel) in lists.iter().enumerate() {
        assert!(lists[..index].iter().all(|other| meets(cartel, other)));
    }
    if let Some(exclusive) = list(groups.exclusive().family().as_ref(), 10_000) {
        assert!(meets(&exclusive, &exclusive));
        assert!(lists.iter().all(|cartel| meets(cartel, &exclusive)));
    }
}

/// Joung, Figure 4 as corrected: the quorums for m=3 and k=2, m=2 and k=3, m=4 and k=2.
#[test]
fn surficial_systems_have_the_published_quorums() {
    let cartel = |m, k, index| {
        let system = Surficial::with_widths(None, &vec![k; m]).unwrap();
        texts(&system.cartel(index).unwrap())
    };
    assert_eq!(cartel(3, 2, 0), ["{1, 2, 5, 6}", "{3, 4, 7, 8}"]);
    assert_eq!(cartel(3, 2, 1), ["{1, 3, 9, 10}", "{2, 4, 11, 12}"]);
    assert_eq!(cartel(3, 2, 2), ["{5, 7, 9, 11}", "{6, 8, 10, 12}"]);
    assert_eq!(cartel(2, 3, 0), ["{1, 2, 3}", "{4, 5, 6}", "{7, 8, 9}"]);
    assert_eq!(cartel(2, 3, 1), ["{1, 4, 7}", "{2, 5, 8}", "{3, 6, 9}"]);
    assert_eq!(
        cartel(4, 2, 2),
        ["{5, 7, 13, 15, 21, 22}", "{6, 8, 14, 16, 23, 24}"]
    );
}

/// Joung, Theorem 3.1: k disjoint quorums per cartel, all of size (m-1)k, each node in two
/// quorums, and exactly one common node across cartels.
#[test]
fn surficial_systems_have_the_published_properties() {
    for m in 2..=7 {
        for k in 1..=6 {
            let geometry = Surficial::new(k * k * m * (m - 1) / 2, m).unwrap();
            assert_eq!(geometry.widths(), vec![k; m]);
            assert!(geometry.spares().is_empty());
            let cartels: Vec<Explicit> = (0..m).map(|i| geometry.cartel(i).unwrap()).collect();
            let mut uses = vec![0; geometry.nodes()];
            for (index, cartel) in cartels.iter().enumerate() {
                assert!(cartel.is_disjoint());
                assert_eq!(cartel.degree(), Some(k));
                for quorum in cartel.quorums() {
                    assert_eq!(quorum.len(), (m - 1) * k);
                    quorum.iter().for_each(|node| uses[node] += 1);
                    let others = cartels[..index].iter().flat_map(Explicit::quorums);
                    others.for_each(|other| assert_eq!(quorum.common(&other), 1));
                }
            }
            assert!(uses.iter().all(|times| *times == 2));
            check_groups(&geometry.system());
        }
    }
}

#[test]
fn unequal_widths_keep_the_intersections() {
    let sizes = |widths: &[usize]| {
        let geometry = Surficial::with_widths(None, widths).unwrap();
        let cartels = (0..widths.len()).map(|i| geometry.cartel(i).unwrap().sizes());
        let sizes: Vec<usize> = cartels.map(|size| size.max).collect();
        (geometry.nodes(), sizes)
    };
    assert_eq!(sizes(&[3, 3, 2]), (21, vec![5, 5, 6]));
    assert_eq!(sizes(&[4, 3, 3, 3]), (63, vec![9, 10, 10, 10]));
    let mut rng = Prng::new(2);
    for _ in 0..60 {
        let widths: Vec<usize> = (0..2 + rng.below(5)).map(|_| 1 + rng.below(4)).collect();
        let geometry = Surficial::with_widths(None, &widths).unwrap();
        for (index, width) in widths.iter().enumerate() {
            let cartel = geometry.cartel(index).unwrap();
            assert_eq!((cartel.len(), cartel.is_disjoint()), (*width, true));
        }
        check_groups(&geometry.system());
    }
}

/// Rows of a rectangle belong to the quorums of one cartel, columns to those of the other, and
/// rectangles share no node.
#[test]
fn the_geometry_is_that_of_the_quorums() {
    let geometry = Surficial::with_widths(Some(30), &[3, 1, 2, 2]).unwrap();
    let cartels: Vec<Vec<NodeSet>> = (0..4)
        .map(|index| geometry.cartel(index).unwrap().quorums().collect())
        .collect();
    let mut seen = NodeSet::new(30);
    for upper in 0..4 {
        for lower in upper + 1..4 {
            let rectangle = geometry.rectangle(upper, lower).unwrap();
            assert_eq!(rectangle.len(), geometry.widths()[upper]);
            for (row, nodes) in rectangle.iter().enumerate() {
                assert_eq!(nodes.len(), geometry.widths()[lower]);
                for (column, node) in nodes.iter().enumerate() {
                    assert!(cartels[upper][row].contains(*node));
                    assert!(cartels[lower][column].contains(*node));
                    assert!(seen.insert(*node));
                }
            }
        }
    }
    assert_eq!(geometry.spares(), seen.len()..30);
    assert_eq!(geometry.rectangle(1, 1), None);
    assert_eq!(geometry.rectangle(0, 4), None);
}

/// The widths are k or k+1, k is as large as it can be, and the next group could not be wider.
#[test]
fn surficial_widths_use_the_nodes_there_are() {
    let needed = |widths: &[usize]| {
        let sum: usize = widths.iter().sum();
        let squares: usize = widths.iter().map(|width| width * width).sum();
        (sum * sum - squares) / 2
    };
    for groups in 2..=7 {
        for nodes in groups * (groups - 1) / 2..150 {
            let widths = Surficial::new(nodes, groups).unwrap().widths().to_vec();
            let least = *widths.last().unwrap();
            assert!(needed(&widths) <= nodes);
            assert!(needed(&vec![least + 1; groups]) > nodes);
            assert!(widths.is_sorted_by(|a, b| a >= b) && widths[0] <= least + 1);
            let mut wider = widths.clone();
            let next = widths.iter().position(|width| *width == least).unwrap();
            wider[next] += 1;
            assert!(needed(&wider) > nodes);
        }
    }
}

#[test]
fn impossible_surficial_systems_say_what_to_do() {
    assert_eq!(
        Surficial::new(9, 5).unwrap_err().to_string(),
        "a surficial system of 5 groups needs at least 10 nodes, one for each pair of groups, but \
         there are 9: use groups(majority(9), 5) instead"
    );
    assert_eq!(Surficial::new(5, 0), Err(SurficialError::NoGroup));
    assert_eq!(Surficial::new(0, 1), Err(SurficialError::NoNode));
    assert!(Surficial::new(usize::MAX, 2).is_err());
    assert!(Surficial::new(10, usize::MAX).is_err());
    assert!(Surficial::with_widths(None, &[usize::MAX, usize::MAX]).is_err());
    assert!(Surficial::with_widths(None, &[usize::MAX]).is_err());
    assert_eq!(
        Surficial::with_widths(None, &[2, 0]),
        Err(SurficialError::ZeroWidth { group: 2 })
    );
    assert_eq!(
        Surficial::with_widths(Some(20), &[3, 3, 2]),
        Err(SurficialError::TooWide {
            nodes: 20,
            needed: 21
        })
    );
    assert!(Surficial::with_widths(Some(20), &[]).is_err());
}

/// Joung, Figure 4 as printed: the sets of a cartel coincide, so its degree is 1; with more
/// groups than the square is wide, sets of different cartels no longer meet.
#[test]
fn the_printed_formula_is_wrong() {
    for (m, k) in [(2, 2), (2, 3), (3, 3), (3, 4), (4, 5)] {
        for cartel in literal_figure_4(m, k) {
            assert_eq!(cartel.len(), k);
            let family = Explicit::new(cartel[0].capacity(), cartel).unwrap();
            assert_eq!((family.len(), degree(&family)), (1, Some(1)));
        }
    }
    for (m, k) in [(3, 2), (4, 2), (4, 3), (5, 1)] {
        let cartels = literal_figure_4(m, k);
        let apart = cartels.iter().enumerate().any(|(index, cartel)| {
            let mut others = cartels[..index].iter();
            others.any(|other| !cartel[0].intersects(&other[0]))
        });
        assert!(apart, "m={m} k={k}");
    }
    assert!(literal_figure_4(usize::MAX, 1).is_empty());
    assert!(literal_figure_4(1, 4).is_empty());
}

#[test]
fn affine_systems_have_the_known_lines() {
    let cartels = affine_cartels(9, 4).unwrap();
    let lines: Vec<Vec<String>> = cartels.iter().map(|cartel| texts(cartel)).collect();
    assert_eq!(
        lines,
        [
            ["{1, 4, 7}", "{2, 5, 8}", "{3, 6, 9}"],
            ["{1, 5, 9}", "{2, 6, 7}", "{3, 4, 8}"],
            ["{1, 6, 8}", "{2, 4, 9}", "{3, 5, 7}"],
            ["{1, 2, 3}", "{4, 5, 6}", "{7, 8, 9}"],
        ]
    );
    let cartels = affine_cartels(16, 5).unwrap();
    assert_eq!(
        texts(&cartels[2]),
        [
            "{1, 7, 12, 14}",
            "{2, 8, 11, 13}",
            "{3, 5, 10, 16}",
            "{4, 6, 9, 15}"
        ]
    );
}

#[test]
fn affine_lines_meet_once_or_are_parallel() {
    for s in [2, 3, 4, 5, 7, 8, 9, 11] {
        let cartels = affine_cartels(s * s, s + 1).unwrap();
        assert_eq!(cartels.len(), s + 1);
        for (index, cartel) in cartels.iter().enumerate() {
            assert!(cartel.is_disjoint());
            assert_eq!(cartel.len(), s);
            for line in cartel.quorums() {
                assert_eq!(line.len(), s);
                let others = cartels[..index].iter().flat_map(Explicit::quorums);
                others.for_each(|other| assert_eq!(line.common(&other), 1));
            }
        }
    }
}

#[test]
fn affine_systems_leave_spares_and_refuse_too_many_groups() {
    let system = affine(43, 6).unwrap();
    assert_eq!(system.nodes(), 43);
    for cartel in system.cartels() {
        assert_eq!((cartel.sizes().max, cartel.count()), (5, Some(5.0)));
    }
    assert_eq!(
        affine(43, 7).unwrap_err(),
        AffineError::Groups {
            nodes: 43,
            groups: 7,
            order: 5,
            most: 6
        }
    );
    assert!(affine(43, 7).unwrap_err().to_string().contains("1 to 6"));
    assert!(affine(9, 0).is_err());
    assert_eq!(
        affine(3, 1).unwrap_err(),
        AffineError::TooFewNodes { nodes: 3 }
    );
    assert!(affine(usize::MAX, 2).is_err());
    assert!(affine(9, usize::MAX).is_err());
    assert!(matches!(
        affine(100_000, 300),
        Err(AffineError::TooLarge { .. })
    ));
}

/// Small group systems of every kind.
fn small_systems() -> Vec<GroupSystem> {
    let surficial = |nodes, groups| Surficial::new(nodes, groups).unwrap().system();
    let widths = |nodes, widths: &[usize]| {
        let geometry = Surficial::with_widths(nodes, widths).unwrap();
        geometry.system()
    };
    let fano = Plane::new(7).unwrap().coterie();
    vec![
        surficial(4, 1),
        surficial(1, 2),
        surficial(9, 2),
        surficial(11, 2),
        surficial(3, 3),
        surficial(9, 3),
        surficial(12, 3),
        surficial(6, 4),
        widths(Some(9), &[4, 1]),
        widths(None, &[1, 3, 2]),
        widths(None, &[1, 1, 3]),
        affine(4, 1).unwrap(),
        affine(4, 3).unwrap(),
        affine(9, 1).unwrap(),
        affine(10, 2).unwrap(),
        affine(9, 4).unwrap(),
        same(&fano, 1).unwrap(),
        same(&fano, 3).unwrap(),
        // One cartel: disjoint quorums of different sizes, and quorums that overlap.
        given(5, &[&[&[1], &[2, 3, 4]]]),
        given(7, &[&[&[1, 2], &[3, 4, 5]]]),
        given(6, &[&[&[1, 2], &[2, 3, 4], &[4, 5]]]),
        // Two cartels whose quorums overlap, some by two nodes.
        given(
            7,
            &[
                &[&[1, 2, 3], &[3, 4], &[2, 4, 5]],
                &[&[1, 2, 4], &[2, 3, 4, 6], &[3, 4, 5]],
            ],
        ),
    ]
}

/// A group system of listed cartels, with node numbers from 1.
fn given(nodes: usize, cartels: &[&[&[usize]]]) -> GroupSystem {
    let set = |numbers: &[usize]| NodeSet::of_numbers(nodes, numbers.iter().copied());
    let cartel = |quorums: &[&[usize]]| {
        Explicit::new(nodes, quorums.iter().map(|quorum| set(quorum)).collect()).unwrap()
    };
    checked(cartels.iter().map(|quorums| cartel(quorums)).collect()).unwrap()
}

#[test]
fn every_family_agrees_with_going_through_all_sets() {
    let mut rng = Prng::new(4);
    for system in small_systems() {
        check_groups(&system);
        check_against_all_sets(system.exclusive().family().as_ref(), &mut rng);
        for cartel in system.cartels() {
            check_against_all_sets(cartel.as_ref(), &mut rng);
        }
    }
}

#[test]
fn fallbacks_agree_with_going_through_all_sets() {
    let mut rng = Prng::new(9);
    for base in small_systems() {
        if base.nodes() > 9 {
            continue;
        }
        for system in [balanced(&base), nondominated(&base)] {
            check_groups(&system);
            for (cartel, base) in system.cartels().iter().zip(base.cartels()) {
                assert!(
                    quorums(base.as_ref())
                        .iter()
                        .all(|quorum| cartel.contains_quorum(quorum))
                );
                check_against_all_sets(cartel.as_ref(), &mut rng);
                assert_eq!(cartel.primary().map(Family::nodes), Some(base.nodes()));
            }
        }
    }
}

/// Twelve nodes, three groups, 20 % failures: every group goes from .651 to about .985 with
/// balanced fallback (the groups differ a little, as node 1 has two votes); without balance the
/// first group takes nearly all of the gain.
#[test]
fn fallbacks_have_the_known_availability() {
    let base = Surficial::new(12, 3).unwrap().system();
    let live = |system: &GroupSystem| -> Vec<String> {
        let odds = [Odds::down(0.2); 12];
        let mass = |cartel: &Arc<dyn Family>| cartel.mass(&odds).unwrap().live;
        let cartels = system.cartels().iter();
        cartels
            .map(|cartel| format!("{:.4}", mass(cartel)))
            .collect()
    };
    assert_eq!(live(&base), ["0.6514"; 3]);
    assert_eq!(live(&balanced(&base)), ["0.9845", "0.9845", "0.9852"]);
    assert_eq!(live(&nondominated(&base)), ["0.9937", "0.8235", "0.8235"]);
    check_groups(&balanced(&base));
}

/// A cartel of the result has every set that meets all quorums of all others.
#[test]
fn one_pass_gives_a_nondominated_group_system() {
    for (m, k) in [(2, 2), (2, 3), (3, 1), (3, 2)] {
        let base = Surficial::with_widths(None, &vec![k; m]).unwrap().system();
        let system = nondominated(&base);
        for set in subsets(base.nodes()) {
            let other = set.complement();
            let held: Vec<[bool; 2]> = system
                .cartels()
                .iter()
                .map(|cartel| [&set, &other].map(|set| cartel.contains_quorum(set)))
                .collect();
            for (index, [holds, _]) in held.iter().enumerate() {
                let mut others = held.iter().enumerate().filter(|(place, _)| *place != index);
                assert_eq!(*holds, others.all(|(_, [_, apart])| !apart));
            }
        }
    }
}

fn is_self_dual(coterie: &Coterie) -> bool {
    let family = coterie.family();
    subsets(family.nodes())
        .all(|set| family.contains_quorum(&set) != family.contains_quorum(&set.complement()))
}

/// All coteries on up to four nodes, and random ones on up to eight.
#[test]
fn completions_are_nondominated_and_keep_every_quorum() {
    let mut families: Vec<(usize, Vec<NodeSet>)> = Vec::new();
    for nodes in 1..=4usize {
        let sets = (1u64 << nodes) - 1;
        for chosen in 1u64..1 << sets {
            let places = (0..sets).filter(|place| chosen >> place & 1 == 1);
            let quorums = places.map(|place| NodeSet::from_mask(nodes, place + 1));
            families.push((nodes, quorums.collect()));
        }
    }
    let mut rng = Prng::new(12);
    for _ in 0..300 {
        let nodes = 5 + rng.below(4);
        let mut quorums: Vec<NodeSet> = Vec::new();
        for _ in 0..12 {
            let set = NodeSet::from_mask(nodes, 1 + rng.next_u64() % ((1 << nodes) - 1));
            if quorums.iter().all(|other| other.intersects(&set)) {
                quorums.push(set);
            }
        }
        families.push((nodes, quorums));
    }
    let mut dominated = 0;
    for (nodes, quorums) in families {
        let Ok(listed) = Explicit::new(nodes, quorums.clone()) else {
            continue;
        };
        // A group system of twice the same cartel exists exactly if the quorums all meet.
        let meets = quorums
            .iter()
            .all(|a| quorums.iter().all(|b| a.intersects(b)));
        assert_eq!(checked(vec![listed.clone(), listed.clone()]).is_ok(), meets);
        assert_eq!(listed.clone().coterie().is_ok(), meets);
        if !meets {
            continue;
        }
        let coterie = listed.coterie().unwrap();
        let completed = completion(&coterie);
        dominated += usize::from(!is_self_dual(&coterie));
        if (5..=6).contains(&nodes) {
            check_against_all_sets(completed.family().as_ref(), &mut rng);
        }
        assert!(is_self_dual(&completed), "{quorums:?}");
        assert!(
            quorums
                .iter()
                .all(|quorum| completed.family().contains_quorum(quorum))
        );
    }
    assert!(dominated > 100);
}

/// Self-dual families keep their size as transversal; the plane of seven nodes is one already.
#[test]
fn completing_planes_changes_only_what_can_be_better() {
    let mut rng = Prng::new(3);
    let fano = Plane::new(7).unwrap().coterie();
    let completed = completion(&fano);
    for set in subsets(7) {
        let (before, after) = (fano.family(), completed.family());
        assert_eq!(before.contains_quorum(&set), after.contains_quorum(&set));
    }
    check_against_all_sets(completed.family().as_ref(), &mut rng);
    let larger = completion(&Plane::new(13).unwrap().coterie());
    assert!(is_self_dual(&larger));
    assert_eq!(larger.family().transversal(), Some(4));
    let large = completion(&Plane::new(31).unwrap().coterie());
    assert_eq!(large.family().transversal(), Some(6));
    assert_eq!(large.family().own(30), Plane::new(31).unwrap().own(30));
}

/// Two groups hashed onto one cartel would own disjoint quorums, so registration refuses it.
#[test]
fn two_groups_never_share_a_cartel() {
    let system = Surficial::new(12, 3).unwrap().system();
    for cartel in system.cartels() {
        let quorums = quorums(cartel.as_ref());
        assert!(!quorums[0].intersects(&quorums[1]), "the hazard is real");
    }
    let names = |places: [(&str, usize); 2]| places.map(|(name, place)| (name.to_owned(), place));
    let shared = system.register(names([("red", 1), ("blue", 1)]));
    assert_eq!(
        shared.unwrap_err(),
        RegisterError::Shared {
            cartel: 2,
            first: "red".to_owned(),
            second: "blue".to_owned()
        }
    );
    let registry = system.register(names([("red", 1), ("blue", 0)])).unwrap();
    let unknown = quorums(registry.quorums("green").as_ref());
    for name in ["red", "blue", "green"] {
        for quorum in quorums(registry.quorums(name).as_ref()) {
            assert!(unknown.iter().all(|other| other.intersects(&quorum)));
        }
    }
}

#[test]
fn cartels_that_miss_each_other_are_refused() {
    let single = |nodes, node| Explicit::new(nodes, vec![NodeSet::of(nodes, [node])]).unwrap();
    let refused = checked(vec![single(2, 0), single(2, 1)]).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "quorum {1} of cartel 1 and quorum {2} of cartel 2 share no node: quorums of different \
         cartels must"
    );
    assert!(matches!(
        checked(vec![single(2, 0), single(3, 0)]),
        Err(GroupsError::Nodes { cartel: 2, .. })
    ));
    assert!(checked(vec![]).is_err());
    let fano = Plane::new(7).unwrap().coterie();
    assert!(same(&fano, 0).is_err());
    assert!(same(&fano, usize::MAX).is_err());
}

/// Systems too large to list: every answer is still within reach.
#[test]
fn large_systems_answer() {
    let mut rng = Prng::new(5);
    for system in [
        Surficial::new(20_000, 5).unwrap().system(),
        affine(10_000, 20).unwrap(),
        Surficial::new(100_000, 1).unwrap().system(),
        Surficial::new(100_000, 447).unwrap().system(),
    ] {
        let exclusive = system.exclusive().family();
        let nodes = system.nodes();
        let mut cost: Vec<f64> = (0..nodes).map(|_| 1.0 + rng.unit()).collect();
        for cartel in system.cartels() {
            let quorum = cartel.sample(&mut rng);
            assert!(cartel.contains_quorum(&quorum));
            assert!(exclusive.sample(&mut rng).intersects(&quorum));
        }
        if system.cartels().len() > 1 {
            (0..10).for_each(|_| cost[rng.below(nodes)] = f64::INFINITY);
        }
        let cheapest = exclusive.cheapest(&cost).unwrap();
        assert!(exclusive.contains_quorum(&cheapest) && exclusive.cheapest_is_exact());
        assert!(exclusive.sizes().exact);
        assert!((exclusive.sizes().min..=exclusive.sizes().max).contains(&cheapest.len()));
    }
}
