//! Clusters of clusters: a hierarchy in which a quorum takes one quorum per level.
//!
//! Rahman and Akbar, "A Permission based Multilevel Parallel Solution for Distributed Mutual
//! Exclusion". A requester gathers a quorum in its own small cluster, then its cluster's
//! representative one level up, and so on to the root cluster, which decides. Only the root's
//! intersection matters for exclusion; the levels below thin and order the traffic. The paper
//! runs the tree quorums of Agrawal and El Abbadi in every cluster; here each cluster size may
//! have any coterie.
//!
//! | paper | here |
//! |---|---|
//! | Level k cluster, `C_{k,j}` | [`ClusterId`] of level k, index j - 1 |
//! | bottommost level, Level l | leaf clusters, level [`Clusters::levels`] |
//! | member delegated to the level above | [`Clusters::delegate`] |
//! | represented and representing node | child and parent cluster on a chain |
//! | participating clusters of a request | [`Clusters::chain`] of the requester's leaf cluster |
//!
//! A delegate is a member of its cluster and of the parent cluster, so the quorums of two levels
//! may share it; two clusters of one chain share no other node, and clusters side by side share
//! none. That makes the cheapest quorum and the failure probability exact by recurrences.

mod clusters;
mod plan;
mod recurrence;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

pub use clusters::{ClusterId, Clusters, LEVELS_MAX, MultilevelError, NODES_MAX};

use crate::family;
use crate::{Circuit, Family, GateId, LoadPlan, Mass, NodeSet, Odds, Prng, Sizes};

/// Up to how many ways to join one quorum per level the quorums are listed.
const LIST_MAX: usize = 1 << 14;

/// Up to how many gates a circuit is made.
const GATES_MAX: usize = 1 << 22;

/// The quorums of a hierarchy: for some leaf cluster, the union of one quorum of each cluster on
/// the chain from the root down to it.
///
/// Two quorums meet in the root cluster if the root's family is a coterie. With `levels() == 0`
/// this is the family of the only cluster.
#[derive(Clone, Debug)]
pub struct Multilevel {
    clusters: Clusters,
    /// The coterie of each level and cluster size; clusters alike in both share it.
    parts: BTreeMap<Key, Arc<Part>>,
    listed: OnceLock<Option<Vec<NodeSet>>>,
}

/// The level and the size of a cluster: all that its coterie depends on.
type Key = (usize, usize);

/// The coterie of one cluster size.
#[derive(Clone, Debug)]
struct Part {
    family: Arc<dyn Family>,
    /// Its load certificate for equal capacities, found when it is first needed.
    weights: OnceLock<Option<Vec<f64>>>,
}

impl Multilevel {
    /// Puts a coterie into every cluster. `coterie_for` gets a level and a cluster size, once per
    /// pair, and gives a family over that many nodes.
    pub fn new<E: From<MultilevelError>>(
        clusters: Clusters,
        coterie_for: &dyn Fn(usize, usize) -> Result<Arc<dyn Family>, E>,
    ) -> Result<Self, E> {
        clusters.validate()?;
        let mut parts: BTreeMap<Key, Arc<Part>> = BTreeMap::new();
        for id in (0..=clusters.levels()).flat_map(|level| clusters.at(level)) {
            let size = clusters.size(id);
            let key = (id.level(), size);
            if parts.contains_key(&key) {
                continue;
            }
            let family = coterie_for(id.level(), size)?;
            let found = family.nodes();
            if found != size {
                return Err(MultilevelError::WrongSize { size, found }.into());
            }
            // Levels that share a coterie share what is found out about it, too.
            let same = |part: &&Arc<Part>| Arc::ptr_eq(&part.family, &family);
            let part = parts.values().find(same).cloned().unwrap_or_else(|| {
                let weights = OnceLock::new();
                Arc::new(Part { family, weights })
            });
            parts.insert(key, part);
        }
        Ok(Self {
            clusters,
            parts,
            listed: OnceLock::new(),
        })
    }

    /// The clusters.
    pub fn clusters(&self) -> &Clusters {
        &self.clusters
    }

    /// The coterie of a cluster, over the places of its members.
    pub fn coterie(&self, id: ClusterId) -> &dyn Family {
        self.part(id).family.as_ref()
    }

    /// The coterie of a cluster, to be kept.
    pub fn shared_coterie(&self, id: ClusterId) -> Arc<dyn Family> {
        self.part(id).family.clone()
    }

    fn part(&self, id: ClusterId) -> &Part {
        let part = self.parts.get(&self.key(id));
        part.expect("invariant: every cluster size has its coterie")
    }

    fn key(&self, id: ClusterId) -> Key {
        (id.level(), self.clusters.size(id))
    }

    /// The family of the only cluster, where there is but one.
    fn flat(&self) -> Option<&dyn Family> {
        (self.clusters.levels() == 0).then(|| self.coterie(self.clusters.root()))
    }

    /// The places of the cluster's members that are in `set`.
    fn local(&self, id: ClusterId, set: &NodeSet) -> NodeSet {
        let members = self.clusters.members(id).enumerate();
        let places = members.filter(|(_, node)| set.contains(*node));
        NodeSet::of(self.clusters.size(id), places.map(|(place, _)| place))
    }

    /// Adds the members at the given places.
    fn insert_places(&self, id: ClusterId, places: &NodeSet, set: &mut NodeSet) {
        for place in places.iter() {
            set.insert(self.clusters.member(id, place));
        }
    }

    /// Whether the cluster and some chain below it have quorums in `set`.
    fn chain_in(&self, id: ClusterId, set: &NodeSet) -> bool {
        self.coterie(id).contains_quorum(&self.local(id, set))
            && (self.clusters.is_leaf(id)
                || self
                    .clusters
                    .children(id)
                    .any(|child| self.chain_in(child, set)))
    }

    /// The quorum of a cluster for the member at `place`: the one its coterie assigns, else a
    /// smallest one that takes this member where that costs nothing.
    fn own_place(&self, id: ClusterId, place: usize) -> Option<NodeSet> {
        let coterie = self.coterie(id);
        coterie.own(place).or_else(|| {
            let mut cost = vec![1.0; coterie.nodes()];
            cost[place] = 0.0;
            let mut quorum = coterie.cheapest(&cost)?;
            // A minimal quorum may leave out a free member; the requester then adds itself only
            // where that still replaces another one.
            if !quorum.contains(place) {
                quorum.insert(place);
                let keeps = |set: &NodeSet| coterie.contains_quorum(set);
                quorum = family::shrink(&quorum, &cost, &keeps);
            }
            Some(quorum)
        })
    }

    /// The minimal quorums, where the system is small.
    fn listing(&self) -> Option<&[NodeSet]> {
        self.listed.get_or_init(|| self.find_all()).as_deref()
    }

    fn find_all(&self) -> Option<Vec<NodeSet>> {
        let mut lists = BTreeMap::new();
        for (key, part) in &self.parts {
            lists.insert(*key, family::list(part.family.as_ref(), LIST_MAX)?);
        }
        let root = self.clusters.root();
        if self.joins(root, &lists) > LIST_MAX as f64 {
            return None;
        }
        let mut found = BTreeSet::new();
        self.join(root, &lists, &NodeSet::new(self.nodes()), &mut found);
        let minimal = |quorum: &NodeSet| {
            let mut rest = quorum.clone();
            quorum.iter().all(|node| {
                rest.remove(node);
                let needed = !self.contains_quorum(&rest);
                rest.insert(node);
                needed
            })
        };
        Some(found.into_iter().filter(minimal).collect())
    }

    /// In how many ways one quorum per level can be joined from this cluster down.
    fn joins(&self, id: ClusterId, lists: &BTreeMap<Key, Vec<NodeSet>>) -> f64 {
        let here = lists[&self.key(id)].len() as f64;
        if self.clusters.is_leaf(id) {
            return here;
        }
        let children = self.clusters.children(id);
        here * children.map(|child| self.joins(child, lists)).sum::<f64>()
    }

    /// Collects the unions of `above` with one quorum per level from this cluster down.
    fn join(
        &self,
        id: ClusterId,
        lists: &BTreeMap<Key, Vec<NodeSet>>,
        above: &NodeSet,
        found: &mut BTreeSet<NodeSet>,
    ) {
        for places in &lists[&self.key(id)] {
            let mut union = above.clone();
            self.insert_places(id, places, &mut union);
            for child in self.clusters.children(id) {
                self.join(child, lists, &union, found);
            }
            if self.clusters.is_leaf(id) {
                found.insert(union);
            }
        }
    }

    /// Adds the gates of the chains from this cluster down. Children come first, so that the
    /// variables of one child are all met before those of the next: a decision diagram then only
    /// has to carry the state of the clusters above from child to child.
    fn add_gates(
        &self,
        id: ClusterId,
        circuits: &BTreeMap<Key, Circuit>,
        circuit: &mut Circuit,
    ) -> GateId {
        let children = self.clusters.children(id);
        let below: Vec<GateId> = children
            .map(|child| self.add_gates(child, circuits, circuit))
            .collect();
        let here = circuit.append_at(&circuits[&self.key(id)], |circuit, place| {
            circuit.node(self.clusters.member(id, place))
        });
        if below.is_empty() {
            return here;
        }
        let some = circuit.any(below);
        circuit.all([here, some])
    }

    /// The largest sum of the largest quorum sizes along a chain.
    fn largest(&self, id: ClusterId) -> usize {
        let children = self.clusters.children(id);
        let below = children.map(|child| self.largest(child)).max();
        self.coterie(id).sizes().max + below.unwrap_or(0)
    }
}

impl Family for Multilevel {
    fn nodes(&self) -> usize {
        self.clusters.nodes()
    }

    fn contains_quorum(&self, set: &NodeSet) -> bool {
        self.chain_in(self.clusters.root(), set)
    }

    fn cheapest(&self, cost: &[f64]) -> Option<NodeSet> {
        match self.flat() {
            Some(flat) => flat.cheapest(cost),
            None => recurrence::cheapest(self, cost),
        }
    }

    /// It is if the coteries' own are.
    fn cheapest_is_exact(&self) -> bool {
        let mut parts = self.parts.values();
        parts.all(|part| part.family.cheapest_is_exact())
    }

    fn sample(&self, rng: &mut Prng) -> NodeSet {
        match self.flat() {
            Some(flat) => flat.sample(rng),
            None => plan::sample(self, rng),
        }
    }

    /// Exact where the quorums can be listed. Elsewhere `min` is what [`Family::cheapest`] gives
    /// and `max` is an upper bound: the sum of the levels' largest quorums.
    fn sizes(&self) -> Sizes {
        if let Some(flat) = self.flat() {
            return flat.sizes();
        }
        if let Some(quorums) = self.listing() {
            let sizes = || quorums.iter().map(NodeSet::len);
            return Sizes::exact(sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
        }
        let smallest = self.cheapest(&vec![1.0; self.nodes()]);
        Sizes {
            min: smallest.map_or(0, |quorum| quorum.len()),
            max: self.largest(self.clusters.root()),
            exact: false,
        }
    }

    /// The quorums of the chain of the site's own leaf cluster: in each cluster the quorum of the
    /// site, or of the delegate that the chain below sends.
    fn own(&self, site: usize) -> Option<NodeSet> {
        if let Some(flat) = self.flat() {
            return flat.own(site);
        }
        let leaf = self.clusters.leaf_of(site)?;
        let mut place = site - self.clusters.span(leaf).start;
        let mut union = NodeSet::new(self.nodes());
        for id in self.clusters.chain(leaf).into_iter().rev() {
            let quorum = self.own_place(id, place)?;
            self.insert_places(id, &quorum, &mut union);
            place = self.clusters.place_in_parent(id);
        }
        Some(union)
    }

    fn visit(&self, visit: &mut dyn FnMut(&NodeSet) -> ControlFlow<()>) -> Option<ControlFlow<()>> {
        match self.flat() {
            Some(flat) => flat.visit(visit),
            None => Some(self.listing()?.iter().try_for_each(visit)),
        }
    }

    fn count(&self) -> Option<f64> {
        self.flat()?.count()
    }

    fn mass(&self, odds: &[Odds]) -> Option<Mass> {
        match self.flat() {
            Some(flat) => flat.mass(odds),
            None => recurrence::mass(self, odds),
        }
    }

    fn circuit(&self) -> Option<Circuit> {
        if let Some(flat) = self.flat() {
            return flat.circuit();
        }
        let mut circuits = BTreeMap::new();
        for (key, part) in &self.parts {
            let circuit = part.family.circuit()?;
            if circuit.gates().is_empty() {
                return None;
            }
            circuits.insert(*key, circuit);
        }
        let all = (0..=self.clusters.levels()).flat_map(|level| self.clusters.at(level));
        let gates = all.map(|id| circuits[&self.key(id)].gates().len() + 2);
        if gates.sum::<usize>() > GATES_MAX {
            return None;
        }
        let mut circuit = Circuit::new(self.nodes());
        self.add_gates(self.clusters.root(), &circuits, &mut circuit);
        Some(circuit)
    }

    /// The delegates' loads are those of the root's plan, which are the largest; see
    /// [`Multilevel::load_lower`] for the proof that no strategy does better.
    fn load_plan(&self, capacity: &[f64]) -> Option<LoadPlan> {
        match self.flat() {
            Some(flat) => flat.load_plan(capacity),
            None => plan::load_plan(self, capacity),
        }
    }

    /// The root's: to stop every chain without stopping the root takes a node in each of the
    /// root's disjoint child chains, and there are as many of these as the root has members.
    fn transversal(&self) -> Option<usize> {
        self.coterie(self.clusters.root()).transversal()
    }

    fn primary(&self) -> Option<&dyn Family> {
        self.flat()?.primary()
    }
}
