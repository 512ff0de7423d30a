//! The ways to find a failure probability, prepared once for many probabilities.

use std::collections::BTreeMap;

use crate::measure::Progress;
use crate::measure::diagram::{Diagram, circuit_of};
use crate::{Circuit, Family, GateId, Mass, NodeSet, Odds, Prng};

use super::{Domain, Failure, FailureOptions};

/// A family with its domains, and what has been prepared for it.
pub(super) struct Model<'a> {
    family: &'a dyn Family,
    domains: &'a [Domain],
    options: &'a FailureOptions,
    /// The sets of nodes that the domains can take down together, with their probabilities;
    /// `None` if there are too many.
    forced: Option<Vec<(NodeSet, f64)>>,
    prepared: Prepared,
}

/// Up to this many nodes a decision diagram may use its whole limit.
const DIAGRAM_NODES_FULL: usize = 150;

/// What was prepared. Nothing is, until the construction's own recurrence has failed.
enum Prepared {
    Nothing,
    /// For each live set, as a number, whether it lacks a quorum.
    Enumerated(Vec<bool>),
    Diagram(Diagram),
    /// No exact way is open.
    Simulation,
}

impl<'a> Model<'a> {
    pub(super) fn new(
        family: &'a dyn Family,
        domains: &'a [Domain],
        options: &'a FailureOptions,
    ) -> Self {
        Self {
            family,
            domains,
            options,
            forced: forced(family.nodes(), domains),
            prepared: Prepared::Nothing,
        }
    }

    /// The failure probability for nodes that are down with these probabilities by themselves.
    pub(super) fn failure(&mut self, down: &[f64], progress: &mut dyn FnMut(Progress)) -> Failure {
        if let Prepared::Nothing = self.prepared {
            if let Some(mass) = self.recurrence(down) {
                return exactly(mass, "recurrence");
            }
            self.prepared = self.prepare(progress);
        }
        match &self.prepared {
            Prepared::Enumerated(dead) => {
                exactly(enumerated(dead, down, self.domains), "enumeration")
            }
            Prepared::Diagram(diagram) => {
                let domains = self.domains.iter().map(|domain| domain.down);
                let odds: Vec<Odds> = down
                    .iter()
                    .copied()
                    .chain(domains)
                    .map(Odds::down)
                    .collect();
                exactly(diagram.mass(&odds), "decision diagram")
            }
            Prepared::Nothing | Prepared::Simulation => self.simulate(down, progress),
        }
    }

    /// By the construction's recurrence, once for each set that the domains can take down.
    fn recurrence(&self, down: &[f64]) -> Option<Mass> {
        let mut total = Mass {
            live: 0.0,
            dead: 0.0,
        };
        for (set, probability) in self.forced.as_ref()? {
            let odds: Vec<Odds> = down
                .iter()
                .enumerate()
                .map(|(node, down)| Odds::down(if set.contains(node) { 1.0 } else { *down }))
                .collect();
            let mass = self.family.mass(&odds)?;
            total.live += probability * mass.live;
            total.dead += probability * mass.dead;
        }
        Some(total)
    }

    /// Large systems without a recurrence rarely have a small diagram: the larger they are, the
    /// sooner the attempt ends.
    fn diagram_limit(&self) -> usize {
        let nodes = self.family.nodes().max(1);
        let limit = self.options.diagram_nodes;
        if nodes <= DIAGRAM_NODES_FULL {
            return limit;
        }
        let share = DIAGRAM_NODES_FULL as f64 / nodes as f64;
        (limit as f64 * share * share) as usize
    }

    fn prepare(&self, progress: &mut dyn FnMut(Progress)) -> Prepared {
        let nodes = self.family.nodes();
        if nodes <= ENUMERATED_MAX {
            let total = 1u64 << nodes;
            let dead = (0..total).map(|mask| {
                if mask % (1 << 16) == 0 {
                    progress(Progress {
                        stage: "failure: enumerating",
                        done: mask,
                        total,
                    });
                }
                !self
                    .family
                    .contains_quorum(&NodeSet::from_mask(nodes, mask))
            });
            return Prepared::Enumerated(dead.collect());
        }
        progress(Progress {
            stage: "failure: building a decision diagram",
            done: 0,
            total: 1,
        });
        circuit_of(self.family)
            .map(|circuit| with_domains(&circuit, self.domains))
            .and_then(|circuit| Diagram::build(&circuit, self.diagram_limit()))
            .map_or(Prepared::Simulation, Prepared::Diagram)
    }

    fn simulate(&self, down: &[f64], progress: &mut dyn FnMut(Progress)) -> Failure {
        let samples = self.options.samples.max(1);
        let mut rng = Prng::new(self.options.seed);
        let mut failures = 0u64;
        let mut live = NodeSet::new(down.len());
        for sample in 0..samples {
            live.fill_with(|node| !rng.chance(down[node]));
            for domain in self.domains {
                if rng.chance(domain.down) {
                    live = live.difference(&domain.nodes);
                }
            }
            failures += u64::from(!self.family.contains_quorum(&live));
            if sample % 4096 == 0 {
                progress(Progress {
                    stage: "failure: simulating",
                    done: sample,
                    total: samples,
                });
            }
        }
        let (low, high) = interval(failures, samples, self.options.confidence);
        Failure {
            value: failures as f64 / samples as f64,
            exact: false,
            low,
            high,
            method: "simulation",
            samples,
        }
    }
}

fn exactly(mass: Mass, method: &'static str) -> Failure {
    // Rounding may leave a sum of probabilities a hair above 1.
    let value = mass.dead.clamp(0.0, 1.0);
    Failure {
        value,
        exact: true,
        low: value,
        high: value,
        method,
        samples: 0,
    }
}

/// The sets of nodes that domains can take down together, with their probabilities.
fn forced(nodes: usize, domains: &[Domain]) -> Option<Vec<(NodeSet, f64)>> {
    let mut sets = BTreeMap::from([(NodeSet::new(nodes), 1.0)]);
    for domain in domains {
        let mut next: BTreeMap<NodeSet, f64> = BTreeMap::new();
        for (set, probability) in sets {
            if domain.down > 0.0 {
                let down = set.union(&domain.nodes);
                *next.entry(down).or_insert(0.0) += probability * domain.down;
            }
            if domain.down < 1.0 {
                *next.entry(set).or_insert(0.0) += probability * (1.0 - domain.down);
            }
        }
        sets = next;
        if sets.len() > FORCED_MAX {
            return None;
        }
    }
    Some(sets.into_iter().collect())
}

/// The mass over all live sets: first as nodes fail alone, then each domain in turn moves mass
/// from the sets with its nodes to those without.
fn enumerated(dead: &[bool], down: &[f64], domains: &[Domain]) -> Mass {
    let mut chance = vec![1.0];
    for down in down {
        let up: Vec<f64> = chance.iter().map(|mass| mass * (1.0 - down)).collect();
        for mass in &mut chance {
            *mass *= down;
        }
        chance.extend(up);
    }
    for domain in domains {
        let keep = domain
            .nodes
            .iter()
            .fold(usize::MAX, |mask, node| mask & !(1 << node));
        // A set loses members only to sets of a smaller number, so ascending order never moves
        // mass twice.
        for set in 0..chance.len() {
            let target = set & keep;
            if target != set {
                let moved = chance[set] * domain.down;
                chance[set] *= 1.0 - domain.down;
                chance[target] += moved;
            }
        }
    }
    let mut mass = Mass {
        live: 0.0,
        dead: 0.0,
    };
    for (chance, dead) in chance.iter().zip(dead) {
        if *dead {
            mass.dead += chance;
        } else {
            mass.live += chance;
        }
    }
    mass
}

/// The circuit in which a node is up iff it and all its domains are. Domain `d` is node
/// `nodes + d`, placed just before the first of its nodes.
fn with_domains(circuit: &Circuit, domains: &[Domain]) -> Circuit {
    if domains.is_empty() || circuit.gates().is_empty() {
        return circuit.clone();
    }
    let nodes = circuit.nodes();
    let mut whole = Circuit::new(nodes + domains.len());
    whole.append_at(circuit, |whole, node| {
        let mut inputs: Vec<GateId> = Vec::new();
        for (index, domain) in domains.iter().enumerate() {
            if domain.nodes.contains(node) {
                inputs.push(whole.node(nodes + index));
            }
        }
        inputs.push(whole.node(node));
        if inputs.len() == 1 {
            inputs[0]
        } else {
            whole.all(inputs)
        }
    });
    whole
}

/// The Wilson score interval for `failures` of `samples`. Its ends are 0 and 1 exactly where
/// nothing, or everything, failed; the other end is then still honest.
fn interval(failures: u64, samples: u64, confidence: f64) -> (f64, f64) {
    let z = quantile(confidence);
    let n = samples as f64;
    let share = failures as f64 / n;
    let spread = z * (share * (1.0 - share) / n + z * z / (4.0 * n * n)).sqrt();
    let middle = share + z * z / (2.0 * n);
    let scale = 1.0 + z * z / n;
    let low = if failures == 0 {
        0.0
    } else {
        (middle - spread) / scale
    };
    let high = if failures == samples {
        1.0
    } else {
        (middle + spread) / scale
    };
    (low.clamp(0.0, 1.0), high.clamp(0.0, 1.0))
}

/// The two-sided quantile of the normal distribution: how many standard deviations hold this
/// much of it. Found by bisection on [`tail`].
fn quantile(confidence: f64) -> f64 {
    let confidence = if confidence.is_nan() {
        0.95
    } else {
        confidence
    };
    let outside = (1.0 - confidence.clamp(0.0, 1.0 - 1e-12)) / 2.0;
    let (mut low, mut high) = (0.0, 8.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if tail(middle) > outside {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// The mass of the normal distribution above `z`, by Simpson's rule on its density.
fn tail(z: f64) -> f64 {
    let steps = 400;
    let (start, end) = (z, z + 10.0);
    let width = (end - start) / f64::from(steps);
    let density = |x: f64| (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
    let sum: f64 = (0..=steps)
        .map(|step| {
            let weight = match step {
                0 => 1.0,
                _ if step == steps => 1.0,
                _ if step % 2 == 1 => 4.0,
                _ => 2.0,
            };
            weight * density(start + f64::from(step) * width)
        })
        .sum();
    sum * width / 3.0
}

/// The most nodes whose live sets are enumerated.
const ENUMERATED_MAX: usize = 20;

/// The most different sets that domains may take down for the recurrence.
const FORCED_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_the_tabled_ones() {
        assert!((quantile(0.95) - 1.959_963_985).abs() < 1e-6);
        assert!((quantile(0.99) - 2.575_829_304).abs() < 1e-6);
        assert!((quantile(0.5) - 0.674_489_750).abs() < 1e-6);
    }

    #[test]
    fn no_failure_seen_is_not_no_failure() {
        let (low, high) = interval(0, 1000, 0.95);
        assert_eq!(low, 0.0);
        // The rule of three says 0.003.
        assert!(high > 0.003 && high < 0.006);
        let (low, high) = interval(1000, 1000, 0.95);
        assert!(low < 0.997 && low > 0.99 && high == 1.0);
    }
}
