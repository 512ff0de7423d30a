//! Clusters of clusters, with a coterie in each.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use conclave_quorum::build::{BuildError, Shape, build};
use conclave_quorum::construct::multilevel::{ClusterId, Clusters, Multilevel};
use conclave_quorum::text::{self, Spec, TextError};
use conclave_quorum::{Family, NodeSet, Prng};
use thiserror::Error;

use crate::id::NodeId;

/// A member of a cluster by its place in the cluster's list.
pub type Seat = u32;

/// How a cluster chooses the members whose permissions a run needs.
///
/// Only intersection inside a cluster is used, and only the root's keeps holders apart.
pub trait Choose: Debug + Send + Sync {
    /// How many members the cluster has.
    fn seats(&self) -> usize;

    /// A quorum of members that are not down, for the first choice of a run; drawn at random.
    fn first(&self, is_down: &dyn Fn(Seat) -> bool, rng: &mut Prng) -> Option<Vec<Seat>>;

    /// The cheapest quorum, where a member of infinite cost cannot be used; for later choices.
    fn again(&self, cost: &dyn Fn(Seat) -> f64) -> Option<Vec<Seat>>;

    /// Whether these members contain a quorum.
    fn is_quorum(&self, holds: &dyn Fn(Seat) -> bool) -> bool;

    /// The mean size of a first choice where each member is up with this probability, if a
    /// formula gives it.
    fn mean_size(&self, _up: f64) -> Option<f64> {
        None
    }
}

/// The tree quorums of Agrawal and El Abbadi over members laid out as a heap.
///
/// A quorum of the tree below a member is the member and a quorum of one side, or quorums of both
/// sides. A member without a right child counts as a leaf, so of an even number of members the
/// last one never votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapTree {
    seats: usize,
}

impl HeapTree {
    /// The tree over this many members.
    pub fn new(seats: usize) -> Self {
        Self { seats }
    }

    fn is_leaf(self, seat: usize) -> bool {
        2 * seat + 2 >= self.seats
    }

    fn walk(
        self,
        seat: usize,
        is_down: &dyn Fn(Seat) -> bool,
        rng: &mut Prng,
        chosen: &mut Vec<Seat>,
    ) -> bool {
        let down = is_down(seat as Seat);
        if self.is_leaf(seat) {
            if !down {
                chosen.push(seat as Seat);
            }
            return !down;
        }
        let before = chosen.len();
        let sides = if rng.next_u64() & 1 == 0 {
            [2 * seat + 1, 2 * seat + 2]
        } else {
            [2 * seat + 2, 2 * seat + 1]
        };
        if down {
            let both = sides
                .into_iter()
                .all(|side| self.walk(side, is_down, rng, chosen));
            if !both {
                chosen.truncate(before);
            }
            return both;
        }
        chosen.push(seat as Seat);
        for side in sides {
            if self.walk(side, is_down, rng, chosen) {
                return true;
            }
        }
        chosen.truncate(before);
        false
    }

    fn cheapest(self, seat: usize, cost: &dyn Fn(Seat) -> f64) -> (f64, Vec<Seat>) {
        let own = cost(seat as Seat);
        if self.is_leaf(seat) {
            return (own, vec![seat as Seat]);
        }
        let (left, mut of_left) = self.cheapest(2 * seat + 1, cost);
        let (right, of_right) = self.cheapest(2 * seat + 2, cost);
        let one = own + left.min(right);
        if left + right < one {
            of_left.extend(of_right);
            return (left + right, of_left);
        }
        let mut side = if left <= right { of_left } else { of_right };
        side.push(seat as Seat);
        (one, side)
    }

    fn holds(self, seat: usize, holds: &dyn Fn(Seat) -> bool) -> bool {
        if self.is_leaf(seat) {
            return holds(seat as Seat);
        }
        let own = holds(seat as Seat);
        let left = self.holds(2 * seat + 1, holds);
        if own && left {
            return true;
        }
        (own || left) && self.holds(2 * seat + 2, holds)
    }
}

impl Choose for HeapTree {
    fn seats(&self) -> usize {
        self.seats
    }

    fn first(&self, is_down: &dyn Fn(Seat) -> bool, rng: &mut Prng) -> Option<Vec<Seat>> {
        let mut chosen = Vec::new();
        (self.seats > 0 && self.walk(0, is_down, rng, &mut chosen)).then_some(chosen)
    }

    fn again(&self, cost: &dyn Fn(Seat) -> f64) -> Option<Vec<Seat>> {
        if self.seats == 0 {
            return None;
        }
        let (cost, chosen) = self.cheapest(0, cost);
        cost.is_finite().then_some(chosen)
    }

    fn is_quorum(&self, holds: &dyn Fn(Seat) -> bool) -> bool {
        self.seats > 0 && self.holds(0, holds)
    }

    fn mean_size(&self, up: f64) -> Option<f64> {
        Some(conclave_quorum::measure::hierarchy::tree_figures(self.seats, up).size)
    }
}

/// Any coterie as the way of a cluster to choose.
#[derive(Clone, Debug)]
pub struct Any(pub Arc<dyn Family>);

impl Choose for Any {
    fn seats(&self) -> usize {
        self.0.nodes()
    }

    fn first(&self, is_down: &dyn Fn(Seat) -> bool, rng: &mut Prng) -> Option<Vec<Seat>> {
        let nodes = self.0.nodes();
        let down = NodeSet::of(nodes, (0..nodes).filter(|seat| is_down(*seat as Seat)));
        let chosen = conclave_quorum::pick(self.0.as_ref(), &down, None, rng)?;
        Some(chosen.iter().map(|seat| seat as Seat).collect())
    }

    fn again(&self, cost: &dyn Fn(Seat) -> f64) -> Option<Vec<Seat>> {
        let cost: Vec<f64> = (0..self.0.nodes()).map(|seat| cost(seat as Seat)).collect();
        let chosen = self.0.cheapest(&cost)?;
        Some(chosen.iter().map(|seat| seat as Seat).collect())
    }

    fn is_quorum(&self, holds: &dyn Fn(Seat) -> bool) -> bool {
        let nodes = self.0.nodes();
        let set = NodeSet::of(nodes, (0..nodes).filter(|seat| holds(*seat as Seat)));
        self.0.contains_quorum(&set)
    }
}

/// Why a text names no hierarchy.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum TopologyError {
    /// It is not a text of the toolbox.
    #[error(transparent)]
    Text(#[from] TextError),
    /// It names a system that cannot be.
    #[error(transparent)]
    Build(#[from] BuildError),
}

/// Clusters of clusters, with a way to choose quorums in each.
#[derive(Clone, Debug)]
pub struct Topology {
    clusters: Clusters,
    /// By level and size of the cluster.
    choosers: BTreeMap<(usize, usize), Arc<dyn Choose>>,
}

impl Topology {
    /// Gives every cluster a way to choose; `chooser` gets a level and a size.
    pub fn new(clusters: Clusters, chooser: &dyn Fn(usize, usize) -> Arc<dyn Choose>) -> Self {
        let mut choosers = BTreeMap::new();
        for level in 0..=clusters.levels() {
            for cluster in clusters.at(level) {
                let size = clusters.size(cluster);
                choosers
                    .entry((level, size))
                    .or_insert_with(|| chooser(level, size));
            }
        }
        Self { clusters, choosers }
    }

    /// Tree quorums in every cluster.
    pub fn trees(clusters: Clusters) -> Self {
        Self::new(clusters, &|_, size| Arc::new(HeapTree::new(size)))
    }

    /// The coteries of a system in the toolbox; where they are trees, chosen by walking them.
    pub fn of(system: &Multilevel, trees: bool) -> Self {
        Self::by_level(system, &|_| trees)
    }

    fn by_level(system: &Multilevel, is_tree: &dyn Fn(usize) -> bool) -> Self {
        let clusters = system.clusters().clone();
        let mut choosers: BTreeMap<(usize, usize), Arc<dyn Choose>> = BTreeMap::new();
        for level in 0..=clusters.levels() {
            for cluster in clusters.at(level) {
                let size = clusters.size(cluster);
                choosers.entry((level, size)).or_insert_with(|| {
                    if is_tree(level) {
                        Arc::new(HeapTree::new(size))
                    } else {
                        Arc::new(Any(system.shared_coterie(cluster)))
                    }
                });
            }
        }
        Self { clusters, choosers }
    }

    /// The hierarchy that a text of the toolbox names, such as `multilevel(tree, 27, levels=2)`;
    /// none if it names another system. A text without a size takes `nodes`.
    pub fn parse(text: &str, nodes: Option<usize>) -> Result<Option<Self>, TopologyError> {
        let spec = text::parse(text)?;
        let Spec::Multilevel { inner, .. } = &spec else {
            return Ok(None);
        };
        let no_files = |_: &str| Err("a hierarchy cannot name a file".to_owned());
        let built = build(&spec, nodes, &no_files)?;
        let Shape::Multilevel(system) = &built.shape else {
            return Ok(None);
        };
        let is_tree = |level: usize| {
            let coterie = inner.get(level).or(inner.last());
            matches!(coterie, Some(Spec::Tree { .. }))
        };
        Ok(Some(Self::by_level(system, &is_tree)))
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.clusters.nodes()
    }

    /// How many levels there are below the root.
    pub fn levels(&self) -> u8 {
        self.clusters.levels() as u8
    }

    /// The clusters.
    pub fn clusters(&self) -> &Clusters {
        &self.clusters
    }

    /// How a cluster chooses.
    pub fn chooser(&self, cluster: ClusterId) -> &dyn Choose {
        let key = (cluster.level(), self.clusters.size(cluster));
        let chooser = self.choosers.get(&key);
        chooser
            .expect("invariant: every size has its chooser")
            .as_ref()
    }

    /// The cluster of a node at a level, if it is a member of one there.
    pub fn cluster_of(&self, node: NodeId, level: u8) -> Option<ClusterId> {
        let mut cluster = self.clusters.leaf_of(node.index())?;
        while cluster.level() > usize::from(level) {
            if self.clusters.delegate(cluster) != node.index() {
                return None;
            }
            cluster = self.clusters.parent(cluster)?;
        }
        (cluster.level() == usize::from(level)).then_some(cluster)
    }

    /// Whether the node is a member of the cluster.
    pub fn is_member(&self, cluster: ClusterId, node: NodeId) -> bool {
        self.cluster_of(node, cluster.level() as u8) == Some(cluster)
    }

    /// Whether the nodes that are up can serve somebody: quorums of all clusters on the way from
    /// some leaf to the root are among them.
    pub fn serves(&self, is_up: &dyn Fn(NodeId) -> bool) -> bool {
        let clusters = &self.clusters;
        let whole = |cluster: &ClusterId| {
            let members: Vec<usize> = clusters.members(*cluster).collect();
            let up = |seat: Seat| is_up(NodeId::at(members[seat as usize]));
            self.chooser(*cluster).is_quorum(&up)
        };
        let mut leaves = clusters.at(clusters.levels());
        whole(&clusters.root()) && leaves.any(|leaf| clusters.chain(leaf).iter().all(whole))
    }

    /// All nodes that share a cluster with this node, or are in a cluster that one of its own
    /// asks or is asked by: those whose failure it must hear of.
    pub fn neighbours(&self, node: NodeId) -> Vec<NodeId> {
        let mut near: Vec<usize> = Vec::new();
        let Some(leaf) = self.clusters.leaf_of(node.index()) else {
            return Vec::new();
        };
        let mut own = Some(leaf);
        while let Some(cluster) = own {
            near.extend(self.clusters.members(cluster));
            let parent = self.clusters.parent(cluster);
            if let Some(parent) = parent {
                near.extend(self.clusters.members(parent));
            }
            for child in self.clusters.children(cluster) {
                near.extend(self.clusters.members(child));
            }
            own = parent.filter(|_| self.clusters.delegate(cluster) == node.index());
        }
        near.sort_unstable();
        near.dedup();
        near.retain(|other| *other != node.index());
        near.into_iter().map(NodeId::at).collect()
    }
}
