//! Checks with counterexamples: does a system keep the promises of its kind, and what else holds?
//!
//! Small families are checked in full. Where there are too many quorums to list, intersection is
//! searched for the worst partner of many quorums and otherwise rests on the construction's proof;
//! the report says which it was.

use std::fmt;

use crate::family::{list, pick, shrink};
use crate::{Apart, Family, NodeSet, Odds, Prng, System};

/// Families with at most this many quorums are compared pair by pair.
const LISTED_MAX: usize = 2_000;
/// Systems of at most this many nodes are checked on every set of nodes.
const SUBSETS_NODES_MAX: usize = 16;
/// Sites' own quorums are looked at in systems of at most this many nodes.
const OWN_NODES_MAX: usize = 5_000;
/// Nodes times nodes up to which sets are shrunk node by node.
const SHRINK_WORK_MAX: usize = 10_000_000;
/// Random tries where a search replaces a full check.
const TRIES: usize = 200;

/// What a check found.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It holds.
    Holds,
    /// It does not, and this shows it.
    Fails(Counterexample),
    /// Neither proved nor refuted.
    Unknown,
}

/// What refutes a property.
#[derive(Clone, Debug, PartialEq)]
pub enum Counterexample {
    /// Two quorums share fewer nodes than needed.
    Apart {
        /// The two quorums.
        pair: Apart,
        /// How many nodes they must share.
        needed: usize,
    },
    /// A quorum holds a smaller one.
    Contained {
        /// The smaller quorum.
        small: NodeSet,
        /// The larger one.
        large: NodeSet,
    },
    /// Neither this set nor its complement holds a quorum: adding it would dominate the coterie.
    Undecided(NodeSet),
    /// Two quorums of different sizes.
    Sizes(usize, usize),
    /// Two nodes are in different numbers of quorums.
    Responsibility {
        /// A node, from 0, and in how many quorums it is.
        least: (usize, usize),
        /// Another, and in how many it is.
        most: (usize, usize),
    },
    /// A site that is not in its own quorum, or has none.
    Excluded {
        /// The site, from 0.
        site: usize,
        /// Its quorum.
        quorum: Option<NodeSet>,
    },
    /// A set of nodes that no quorum avoids although it is small enough to be tolerated.
    Blocking(NodeSet),
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Apart { pair, needed } => {
                let Apart { left, right } = pair;
                match left.common(right) {
                    0 => write!(f, "{left} and {right} share no node"),
                    common => {
                        write!(f, "{left} and {right} share {common} nodes, not {needed}")
                    }
                }
            }
            Self::Contained { small, large } if small == large => {
                write!(f, "{large} is listed twice")
            }
            Self::Contained { small, large } => write!(f, "{large} contains the quorum {small}"),
            Self::Undecided(set) => {
                write!(
                    f,
                    "neither {set} nor the rest of the nodes contains a quorum"
                )
            }
            Self::Sizes(a, b) => write!(f, "quorums of {a} and of {b} nodes"),
            Self::Responsibility { least, most } => write!(
                f,
                "node {} is in {} quorums, node {} in {}",
                least.0 + 1,
                least.1,
                most.0 + 1,
                most.1
            ),
            Self::Excluded { site, quorum } => match quorum {
                Some(quorum) => write!(f, "site {} is not in its quorum {quorum}", site + 1),
                None => write!(f, "site {} has no quorum of its own", site + 1),
            },
            Self::Blocking(set) => write!(f, "with {set} down no quorum is left"),
        }
    }
}

/// One property of a system.
#[derive(Clone, Debug, PartialEq)]
pub struct Property {
    /// Its name, as in reports.
    pub name: &'static str,
    /// Whether the system's kind promises it. A promise that fails makes the system unsafe.
    pub required: bool,
    /// What was found.
    pub verdict: Verdict,
    /// How it was found.
    pub how: String,
}

/// All properties of a system.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The properties, the required ones first.
    pub properties: Vec<Property>,
    /// The most pairwise disjoint quorums of a cartel, over the cartel that has fewest; a system
    /// of degree k tolerates k-1 crashes by disjoint quorums alone. At least this many.
    pub degree: usize,
}

impl Report {
    /// Whether no required property fails.
    pub fn ok(&self) -> bool {
        self.failure().is_none()
    }

    /// The first required property that fails, with what refutes it.
    pub fn failure(&self) -> Option<(&Property, &Counterexample)> {
        self.properties
            .iter()
            .filter(|property| property.required)
            .find_map(|property| match &property.verdict {
                Verdict::Fails(example) => Some((property, example)),
                Verdict::Holds | Verdict::Unknown => None,
            })
    }
}

/// Checks a system. `given` holds the quorums as they were written, where they were (one list
/// per family), so that a list with a needless quorum is told.
pub fn check(system: &System, given: Option<&[Vec<NodeSet>]>) -> Report {
    let mut properties = vec![intersection(system)];
    if let System::Masking(masking) = system {
        properties.push(avoidance(masking.family().as_ref(), masking.spared()));
    }
    properties.push(minimality(system, given));
    let families = system.families();
    if let [family] = families.as_slice()
        && !matches!(system, System::Groups(_))
    {
        if matches!(system, System::Coterie(_)) {
            properties.push(domination(family.as_ref()));
        }
        properties.push(inclusion(family.as_ref()));
    }
    let plain: Vec<&dyn Family> = families.iter().map(AsRef::as_ref).collect();
    properties.push(effort(&plain));
    properties.push(responsibility(&plain));
    let degree = families.iter().map(|family| degree(family.as_ref())).min();
    Report {
        properties,
        degree: degree.unwrap_or(0),
    }
}

/// Finds two quorums, one of each family, that share fewer than `needed` nodes.
/// The flag says whether all pairs were compared.
pub fn find_apart(left: &dyn Family, right: &dyn Family, needed: usize) -> (Option<Apart>, bool) {
    if let (Some(a), Some(b)) = (list(left, LISTED_MAX), list(right, LISTED_MAX)) {
        let apart = a.iter().find_map(|x| {
            let y = b.iter().find(|y| x.common(y) < needed)?;
            Some(Apart {
                left: x.clone(),
                right: y.clone(),
            })
        });
        return (apart, true);
    }
    let mut prng = Prng::new(1);
    let tries = (4_000_000 / left.nodes().max(1)).clamp(20, TRIES);
    for round in 0..tries {
        let quorum = varied(left, round, &mut prng);
        let cost: Vec<f64> = (0..right.nodes())
            .map(|node| {
                let shared = f64::from(u8::from(quorum.contains(node)));
                shared + (1.0 + prng.unit()) * 1e-6
            })
            .collect();
        let worst = right
            .cheapest(&cost)
            .expect("invariant: some quorum has finite cost");
        if quorum.common(&worst) < needed {
            let pair = Apart {
                left: quorum,
                right: worst,
            };
            return (Some(pair), false);
        }
    }
    (None, false)
}

/// A quorum of the family: samples, quorums of random costs, and quorums around failures.
fn varied(family: &dyn Family, round: usize, prng: &mut Prng) -> NodeSet {
    let n = family.nodes();
    let rate = [0.0, 0.05, 0.2, 0.35][round % 4];
    let down = NodeSet::of(n, (0..n).filter(|_| prng.chance(rate)));
    pick(family, &down, None, prng).unwrap_or_else(|| family.sample(prng))
}

fn intersection(system: &System) -> Property {
    let mut how = "every pair of quorums compared".to_owned();
    let mut verdict = Verdict::Holds;
    let pairs: Vec<(&dyn Family, &dyn Family)> = match system {
        System::Groups(groups) => {
            let exclusive = groups.exclusive().family().as_ref();
            let cartels: Vec<&dyn Family> = groups.cartels().iter().map(AsRef::as_ref).collect();
            let across = (0..cartels.len())
                .flat_map(|a| (a + 1..cartels.len()).map(move |b| (a, b)))
                .map(|(a, b)| (cartels[a], cartels[b]));
            let apart = cartels.iter().map(|cartel| (*cartel, exclusive));
            across
                .chain(apart)
                .chain([(exclusive, exclusive)])
                .collect()
        }
        System::Coterie(_) | System::Masking(_) | System::Loose(_) => {
            let family = system.families()[0].as_ref();
            vec![(family, family)]
        }
    };
    let needed = match system {
        System::Masking(masking) => masking.overlap(),
        System::Coterie(_) | System::Groups(_) | System::Loose(_) => 1,
    };
    let mut compared: Vec<(*const (), *const ())> = Vec::new();
    for (left, right) in pairs {
        // Groups that share one coterie are compared once.
        let place = (address(left), address(right));
        if compared.contains(&place) {
            continue;
        }
        compared.push(place);
        let (apart, complete) = find_apart(left, right, needed);
        if let Some(pair) = apart {
            verdict = Verdict::Fails(Counterexample::Apart { pair, needed });
            "two quorums compared".clone_into(&mut how);
            break;
        }
        if !complete {
            how =
                format!("by construction; no worse partner found for up to {TRIES} varied quorums");
            if matches!(system, System::Loose(_)) {
                how = format!("no disjoint partner found for up to {TRIES} varied quorums");
                verdict = Verdict::Unknown;
            }
        }
    }
    Property {
        name: "intersection",
        required: true,
        verdict,
        how,
    }
}

fn address(family: &dyn Family) -> *const () {
    std::ptr::from_ref(family).cast()
}

/// Whether some quorum avoids any `spared` nodes.
fn avoidance(family: &dyn Family, spared: usize) -> Property {
    let (verdict, how) = match family.transversal() {
        Some(least) if least > spared => (
            Verdict::Holds,
            format!("the smallest set that meets every quorum has {least} nodes"),
        ),
        known => {
            // Kill greedily what stands in the way.
            let mut killed = NodeSet::new(family.nodes());
            let mut prng = Prng::new(1);
            while killed.len() < spared {
                match pick(family, &killed, None, &mut prng) {
                    Some(quorum) => killed.insert(quorum.iter().next().unwrap_or(0)),
                    None => break,
                };
            }
            match (family.contains_quorum(&killed.complement()), known) {
                (false, _) => (
                    Verdict::Fails(Counterexample::Blocking(killed)),
                    "a set of nodes to avoid".to_owned(),
                ),
                (true, _) => (Verdict::Unknown, "searched greedily".to_owned()),
            }
        }
    };
    Property {
        name: "avoidance",
        required: true,
        verdict,
        how,
    }
}

fn minimality(system: &System, given: Option<&[Vec<NodeSet>]>) -> Property {
    let mut how = "quorums are listed and picked minimal by construction".to_owned();
    let mut verdict = Verdict::Holds;
    let families = system.families();
    for (place, family) in families.iter().enumerate() {
        let listed = match given.and_then(|lists| lists.get(place)) {
            Some(quorums) => Some(quorums.clone()),
            None => list(family.as_ref(), LISTED_MAX),
        };
        if let Some(quorums) = listed {
            "every pair of quorums compared".clone_into(&mut how);
            if let Some(example) = contained(&quorums) {
                verdict = Verdict::Fails(example);
                break;
            }
        } else if let Some(example) = not_lean(family.as_ref()) {
            verdict = Verdict::Fails(example);
            break;
        }
    }
    Property {
        name: "minimal",
        required: true,
        verdict,
        how,
    }
}

fn contained(quorums: &[NodeSet]) -> Option<Counterexample> {
    quorums.iter().enumerate().find_map(|(place, large)| {
        let inside = |(other, small): &(usize, &NodeSet)| {
            *other != place
                && small.is_subset(large)
                && (small.len() < large.len() || *other < place)
        };
        let (_, small) = quorums.iter().enumerate().find(inside)?;
        Some(Counterexample::Contained {
            small: small.clone(),
            large: large.clone(),
        })
    })
}

/// A picked quorum from which a node can be taken.
fn not_lean(family: &dyn Family) -> Option<Counterexample> {
    let mut prng = Prng::new(2);
    let even = vec![1.0; family.nodes()];
    (0..20).find_map(|round| {
        let large = varied(family, round, &mut prng);
        if large.len().saturating_mul(family.nodes()) > SHRINK_WORK_MAX {
            return None;
        }
        let small = shrink(&large, &even, &|set| family.contains_quorum(set));
        (small != large).then_some(Counterexample::Contained { small, large })
    })
}

/// A coterie is dominated iff some set meets every quorum and contains none.
fn domination(family: &dyn Family) -> Property {
    let n = family.nodes();
    let undecided =
        |set: &NodeSet| !family.contains_quorum(set) && !family.contains_quorum(&set.complement());
    let found = |set: NodeSet| Verdict::Fails(Counterexample::Undecided(set));
    let (verdict, how) = if n <= SUBSETS_NODES_MAX {
        let half = 1u64 << (n - 1);
        let set = (0..half)
            .map(|mask| NodeSet::from_mask(n, mask))
            .find(undecided);
        (
            set.map_or(Verdict::Holds, found),
            "every set of nodes".to_owned(),
        )
    } else if family.is_self_dual() {
        (Verdict::Holds, "by construction".to_owned())
    } else if let Some(set) = undecided_by_search(family) {
        (
            found(set),
            "a search among sets that meet every quorum".to_owned(),
        )
    } else if let Some(live) = half_mass(family) {
        // Of a set and its complement at most one has a quorum; both halves have mass 1/2.
        let even = (live - 0.5).abs() < 2f64.powi(-(n as i32)) / 2.0;
        let verdict = if even {
            Verdict::Holds
        } else {
            Verdict::Unknown
        };
        (
            verdict,
            "exactly half of all sets contain a quorum".to_owned(),
        )
    } else {
        (Verdict::Unknown, format!("not refuted in {TRIES} tries"))
    };
    Property {
        name: "nondominated",
        required: false,
        verdict,
        how,
    }
}

/// The share of all sets of nodes that contain a quorum, where it is exact enough to decide.
fn half_mass(family: &dyn Family) -> Option<f64> {
    let n = family.nodes();
    let exact = n <= 40;
    exact
        .then(|| family.mass(&vec![Odds::down(0.5); n]))?
        .map(|mass| mass.live)
}

fn undecided_by_search(family: &dyn Family) -> Option<NodeSet> {
    let n = family.nodes();
    if n.saturating_mul(n) > SHRINK_WORK_MAX {
        return None;
    }
    let mut prng = Prng::new(3);
    let tries = (2_000_000 / (n * n)).clamp(4, TRIES);
    (0..tries).find_map(|_| {
        let cost: Vec<f64> = (0..n).map(|_| prng.unit()).collect();
        let meets_all = |set: &NodeSet| !family.contains_quorum(&set.complement());
        let set = shrink(&NodeSet::full(n), &cost, &meets_all);
        (!family.contains_quorum(&set)).then_some(set)
    })
}

fn inclusion(family: &dyn Family) -> Property {
    let n = family.nodes();
    if n > OWN_NODES_MAX {
        return Property {
            name: "inclusion",
            required: false,
            verdict: Verdict::Unknown,
            how: format!("not looked at above {OWN_NODES_MAX} nodes"),
        };
    }
    let own: Vec<Option<NodeSet>> = (0..n).map(|site| family.own(site)).collect();
    let outside = own.iter().position(Option::is_none).or_else(|| {
        let outside = |(site, own): (usize, &Option<NodeSet>)| {
            own.as_ref().is_some_and(|own| !own.contains(site))
        };
        own.iter().enumerate().position(outside)
    });
    let (verdict, how) = match outside {
        _ if own.iter().all(Option::is_none) => (
            Verdict::Unknown,
            "the construction assigns no quorums to sites".to_owned(),
        ),
        Some(site) => (
            Verdict::Fails(Counterexample::Excluded {
                site,
                quorum: own[site].clone(),
            }),
            "every site's own quorum".to_owned(),
        ),
        None => (Verdict::Holds, "every site's own quorum".to_owned()),
    };
    Property {
        name: "inclusion",
        required: false,
        verdict,
        how,
    }
}

fn effort(families: &[&dyn Family]) -> Property {
    let sizes: Vec<_> = families.iter().map(|family| family.sizes()).collect();
    let min = sizes.iter().map(|sizes| sizes.min).min().unwrap_or(0);
    let max = sizes.iter().map(|sizes| sizes.max).max().unwrap_or(0);
    let exact = sizes.iter().all(|sizes| sizes.exact);
    let verdict = match (exact, min == max) {
        (_, true) => Verdict::Holds,
        (true, false) => Verdict::Fails(Counterexample::Sizes(min, max)),
        // The largest size is a bound only.
        (false, false) => Verdict::Unknown,
    };
    Property {
        name: "equal_effort",
        required: false,
        verdict,
        how: "smallest and largest minimal quorum".to_owned(),
    }
}

/// Whether every node is in equally many quorums: of the sites' own where there are such, else of
/// all listed ones.
fn responsibility(families: &[&dyn Family]) -> Property {
    let n = families.first().map_or(0, |family| family.nodes());
    let mut counts = vec![0usize; n];
    let mut how = "all quorums".to_owned();
    let mut known = true;
    for family in families {
        let sites = if n <= OWN_NODES_MAX { n } else { 0 };
        let own: Option<Vec<NodeSet>> = (0..sites).map(|site| family.own(site)).collect();
        let own = own.filter(|own| !own.is_empty());
        let quorums = match own {
            Some(own) => {
                "every site's own quorum".clone_into(&mut how);
                Some(own)
            }
            None => list(*family, 100_000),
        };
        known &= quorums.is_some();
        for node in quorums.iter().flatten().flat_map(NodeSet::iter) {
            counts[node] += 1;
        }
    }
    let least = (0..n).min_by_key(|node| counts[*node]).unwrap_or(0);
    let most = (0..n).max_by_key(|node| counts[*node]).unwrap_or(0);
    let verdict = match (known, counts.get(least) == counts.get(most)) {
        (false, _) => {
            "too many quorums to list".clone_into(&mut how);
            Verdict::Unknown
        }
        (true, true) => Verdict::Holds,
        (true, false) => Verdict::Fails(Counterexample::Responsibility {
            least: (least, counts[least]),
            most: (most, counts[most]),
        }),
    };
    Property {
        name: "equal_responsibility",
        required: false,
        verdict,
        how,
    }
}

/// How many disjoint quorums a greedy search finds, smallest first.
fn degree(family: &dyn Family) -> usize {
    let mut used = NodeSet::new(family.nodes());
    let mut found = 0;
    loop {
        let cost: Vec<f64> = (0..family.nodes())
            .map(|node| {
                if used.contains(node) {
                    f64::INFINITY
                } else {
                    1.0
                }
            })
            .collect();
        let Some(quorum) = family.cheapest(&cost) else {
            return found;
        };
        used.union_with(&quorum);
        found += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Coterie;
    use crate::construct::formula::Formula;
    use crate::construct::grid::Grid;

    fn verdict<'a>(report: &'a Report, name: &str) -> &'a Verdict {
        let found = report
            .properties
            .iter()
            .find(|property| property.name == name);
        &found.unwrap().verdict
    }

    fn coterie(family: impl Family + 'static) -> System {
        System::Coterie(Coterie::by_construction(Arc::new(family)))
    }

    #[test]
    fn a_majority_has_every_property() {
        let report = check(&coterie(Formula::majority(5).unwrap()), None);
        assert!(report.ok());
        for property in &report.properties {
            assert_eq!(property.verdict, Verdict::Holds, "{property:?}");
        }
        assert_eq!(report.degree, 1);
    }

    #[test]
    fn disjoint_quorums_are_found_small_and_large() {
        for (nodes, votes) in [(4, 2), (1000, 480), (61, 30)] {
            let system = System::Loose(Arc::new(Formula::threshold(nodes, votes).unwrap()));
            let report = check(&system, None);
            let (property, example) = report.failure().unwrap();
            assert_eq!(property.name, "intersection");
            let Counterexample::Apart { pair, .. } = example else {
                panic!("{example}");
            };
            assert!(!pair.left.intersects(&pair.right));
        }
    }

    #[test]
    fn dominated_coteries_are_told_with_a_set_that_dominates() {
        for system in [
            coterie(Formula::majority(4).unwrap()),
            coterie(Formula::majority(30).unwrap()),
            coterie(Grid::new(9).unwrap()),
            coterie(Grid::new(100).unwrap()),
        ] {
            let report = check(&system, None);
            let Verdict::Fails(Counterexample::Undecided(set)) = verdict(&report, "nondominated")
            else {
                panic!("{report:?}");
            };
            let family = system.families()[0];
            assert!(!family.contains_quorum(set) && !family.contains_quorum(&set.complement()));
        }
        for system in [
            coterie(Formula::tree(31).unwrap()),
            coterie(Formula::majority(31).unwrap()),
        ] {
            assert_eq!(
                *verdict(&check(&system, None), "nondominated"),
                Verdict::Holds
            );
        }
    }

    #[test]
    fn a_needless_quorum_is_told() {
        let system = coterie(Formula::majority(3).unwrap());
        let sets = [&[1, 2][..], &[2, 3], &[1, 2, 3]];
        let given = vec![
            sets.map(|set| NodeSet::of_numbers(3, set.iter().copied()))
                .to_vec(),
        ];
        let report = check(&system, Some(&given));
        assert_eq!(report.failure().unwrap().0.name, "minimal");
        assert_eq!(
            report.failure().unwrap().1.to_string(),
            "{1, 2, 3} contains the quorum {1, 2}"
        );
    }

    #[test]
    fn unequal_work_is_told() {
        let tree = check(&coterie(Formula::tree(7).unwrap()), None);
        assert!(matches!(
            verdict(&tree, "equal_effort"),
            Verdict::Fails(Counterexample::Sizes(3, 4))
        ));
        assert!(matches!(
            verdict(&tree, "equal_responsibility"),
            Verdict::Fails(_)
        ));
        let even = check(&coterie(Formula::tree(8).unwrap()), None);
        assert!(matches!(
            verdict(&even, "inclusion"),
            Verdict::Fails(Counterexample::Excluded {
                site: 7,
                quorum: None
            })
        ));
    }
}
