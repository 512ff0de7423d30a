//! The tree of clusters: which nodes form a cluster at which level, and who stands for whom.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use thiserror::Error;

use crate::NodeSet;

/// The largest network that [`Clusters::build`] takes.
pub const NODES_MAX: usize = 10_000_000;

/// The deepest hierarchy that [`Clusters::build`] takes.
pub const LEVELS_MAX: usize = 20;

/// Why a hierarchy could not be built.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MultilevelError {
    /// There is nothing to cluster; give at least one node.
    #[error("a hierarchy needs at least one node")]
    Empty,
    /// The network is larger than [`NODES_MAX`].
    #[error("a hierarchy has at most {NODES_MAX} nodes, not {nodes}")]
    TooManyNodes {
        /// How many nodes were asked for.
        nodes: usize,
    },
    /// The hierarchy is deeper than [`LEVELS_MAX`].
    #[error("a hierarchy has at most {LEVELS_MAX} levels, not {levels}")]
    TooManyLevels {
        /// How many levels were asked for.
        levels: usize,
    },
    /// The coterie given for a cluster is over another number of nodes.
    #[error("the coterie of a cluster of {size} nodes is over {found} nodes")]
    WrongSize {
        /// How many nodes the cluster has.
        size: usize,
        /// How many nodes its coterie is over.
        found: usize,
    },
    /// A place has another number of parts than the first one, or none.
    #[error(
        "node {node} is at a place of {found} parts and node 1 at one of {expected}; \
         give every node as many, such as eu/rack-1"
    )]
    Uneven {
        /// The node, from 1.
        node: usize,
        /// How many parts its place has.
        found: usize,
        /// How many parts the first place has.
        expected: usize,
    },
    /// The nodes of a place are not numbered one after the other.
    #[error(
        "node {node} is in '{place}' again after nodes elsewhere; \
         number the nodes of one place one after the other"
    )]
    Scattered {
        /// The node, from 1.
        node: usize,
        /// The part of its place that comes back.
        place: String,
    },
    /// The sizes do not describe a hierarchy: see [`Clusters::of_sizes`].
    #[error("the sizes at level {level} do not fit: {rule}")]
    Sizes {
        /// The level.
        level: usize,
        /// What is wrong there.
        rule: &'static str,
    },
    /// A rule of the network model does not hold.
    #[error("at level {level}, {rule}")]
    Broken {
        /// The level at which it fails.
        level: usize,
        /// What is wrong there.
        rule: &'static str,
    },
}

/// One cluster of a [`Clusters`]: its level (0 is the root's) and its place in the level, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClusterId {
    level: usize,
    index: usize,
}

impl ClusterId {
    /// The level of the cluster; the root cluster is at level 0.
    pub fn level(self) -> usize {
        self.level
    }

    /// The place of the cluster in its level, from 0.
    pub fn index(self) -> usize {
        self.index
    }
}

/// The network model: levels `0..=levels()` of clusters over nodes `0..nodes()`.
///
/// The clusters of the last level share out all nodes. A cluster of a level above consists of one
/// delegate of each of its child clusters, in their order. Level 0 is one cluster, the root.
///
/// Every cluster stands for a run of consecutive nodes, its span, and its delegate is the first
/// node of that run; so two numbers per cluster describe everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clusters {
    nodes: usize,
    rows: Vec<Row>,
}

/// The clusters of one level.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    /// The first node of each cluster's span, and after them the number of nodes.
    first: Vec<usize>,
    /// The index of each cluster's first child in the next row, and after them how many children
    /// there are. Empty in the last row.
    kids: Vec<usize>,
}

impl Clusters {
    /// Cuts `nodes` nodes into a hierarchy with `levels` levels below the root.
    ///
    /// A run of `s` nodes with `m` levels of clusters still to make is cut into
    /// `round(s^(1/m))` consecutive parts whose sizes differ by at most one, larger parts first.
    /// Neighbours in the order of nodes therefore share clusters: order nodes by locality.
    pub fn build(nodes: usize, levels: usize) -> Result<Self, MultilevelError> {
        if nodes == 0 {
            return Err(MultilevelError::Empty);
        }
        if nodes > NODES_MAX {
            return Err(MultilevelError::TooManyNodes { nodes });
        }
        if levels > LEVELS_MAX {
            return Err(MultilevelError::TooManyLevels { levels });
        }
        let mut rows = Vec::with_capacity(levels + 1);
        let mut first = vec![0, nodes];
        for level in 0..levels {
            let (kids, below) = cut(&first, levels - level + 1);
            rows.push(Row { first, kids });
            first = below;
        }
        let kids = Vec::new();
        rows.push(Row { first, kids });
        Ok(Self { nodes, rows })
    }

    /// The hierarchy with clusters of these sizes: first the size of the root alone, then the
    /// sizes of the clusters of each level in order, down to the leaf clusters. A level has as
    /// many clusters as the level above has members.
    pub fn of_sizes(sizes: &[Vec<usize>]) -> Result<Self, MultilevelError> {
        let Some((leaves, above)) = sizes.split_last() else {
            return Err(MultilevelError::Empty);
        };
        let levels = above.len();
        if levels > LEVELS_MAX {
            return Err(MultilevelError::TooManyLevels { levels });
        }
        let mut count = 1;
        for (level, row) in sizes.iter().enumerate() {
            let fail = |rule| Err(MultilevelError::Sizes { level, rule });
            if row.len() != count {
                return fail("there must be as many clusters as the level above has members");
            }
            if row.contains(&0) {
                return fail("a cluster has at least one member");
            }
            count = row.iter().copied().fold(0, usize::saturating_add);
            if count > NODES_MAX {
                return Err(MultilevelError::TooManyNodes { nodes: count });
            }
        }
        let mut first = closed_sums(leaves);
        let mut rows = vec![Row {
            first: first.clone(),
            kids: Vec::new(),
        }];
        for row in above.iter().rev() {
            let kids = closed_sums(row);
            first = kids.iter().map(|kid| first[*kid]).collect();
            rows.push(Row {
                first: first.clone(),
                kids,
            });
        }
        rows.reverse();
        Ok(Self { nodes: count, rows })
    }

    /// The hierarchy of nodes at places such as `["eu", "rack-1"]`, in the order of the nodes.
    ///
    /// The nodes of one place form a leaf cluster; the delegates of the places that share all but
    /// the last part form a cluster of the level above, and so on to the root. Every place has as
    /// many parts, which is the number of levels below the root; and the nodes of one place, and
    /// of every larger place around it, stand one after the other.
    pub fn of_places<P: AsRef<str>>(places: &[Vec<P>]) -> Result<Self, MultilevelError> {
        let Some(expected) = places.first().map(Vec::len) else {
            return Err(MultilevelError::Empty);
        };
        if expected > LEVELS_MAX {
            return Err(MultilevelError::TooManyLevels { levels: expected });
        }
        let mut sizes = vec![Vec::new(); expected + 1];
        let mut seen: BTreeSet<Vec<&str>> = BTreeSet::new();
        let mut last: Option<Vec<&str>> = None;
        for (index, place) in places.iter().enumerate() {
            let node = index + 1;
            let here: Vec<&str> = place.iter().map(AsRef::as_ref).collect();
            let found = here.len();
            if found != expected {
                return Err(MultilevelError::Uneven {
                    node,
                    found,
                    expected,
                });
            }
            let common = last.as_ref().map_or(0, |last| {
                let pairs = last.iter().zip(&here);
                pairs.take_while(|(last, here)| last == here).count()
            });
            // The node opens a new cluster below every part that it shares with the last node.
            for parts in common + 1..=expected {
                if !seen.insert(here[..parts].to_vec()) {
                    let place = here[..parts].join("/");
                    return Err(MultilevelError::Scattered { node, place });
                }
            }
            let opened = if last.is_none() { 0 } else { common + 1 };
            sizes[opened..].iter_mut().for_each(|row| row.push(0));
            for size in sizes[common..].iter_mut().filter_map(|row| row.last_mut()) {
                *size += 1;
            }
            last = Some(here);
        }
        Self::of_sizes(&sizes)
    }

    /// The sizes of the clusters by level, as [`Clusters::of_sizes`] takes them.
    pub fn sizes(&self) -> Vec<Vec<usize>> {
        (0..=self.levels())
            .map(|level| self.at(level).map(|id| self.size(id)).collect())
            .collect()
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// How many levels there are below the root: 0 is a flat network.
    pub fn levels(&self) -> usize {
        self.rows.len() - 1
    }

    /// How many clusters a level has; none past the last level.
    pub fn count(&self, level: usize) -> usize {
        self.rows.get(level).map_or(0, |row| row.first.len() - 1)
    }

    /// The root cluster.
    pub fn root(&self) -> ClusterId {
        ClusterId { level: 0, index: 0 }
    }

    /// The cluster at a place, if there is one.
    pub fn get(&self, level: usize, index: usize) -> Option<ClusterId> {
        (index < self.count(level)).then_some(ClusterId { level, index })
    }

    /// The clusters of a level, in order.
    pub fn at(&self, level: usize) -> impl ExactSizeIterator<Item = ClusterId> + use<> {
        (0..self.count(level)).map(move |index| ClusterId { level, index })
    }

    /// Whether the cluster is at the last level: its members are its whole span.
    pub fn is_leaf(&self, id: ClusterId) -> bool {
        id.level == self.levels()
    }

    /// All nodes that the cluster stands for: those of the leaf clusters below it.
    pub fn span(&self, id: ClusterId) -> Range<usize> {
        let first = &self.rows[id.level].first;
        first[id.index]..first[id.index + 1]
    }

    /// How many members the cluster has.
    pub fn size(&self, id: ClusterId) -> usize {
        if self.is_leaf(id) {
            self.span(id).len()
        } else {
            self.kids(id).len()
        }
    }

    /// The member at a place below [`Clusters::size`].
    pub fn member(&self, id: ClusterId, place: usize) -> usize {
        if self.is_leaf(id) {
            self.span(id).start + place
        } else {
            self.rows[id.level + 1].first[self.kids(id).start + place]
        }
    }

    /// The members in order.
    pub fn members(&self, id: ClusterId) -> impl ExactSizeIterator<Item = usize> + '_ {
        (0..self.size(id)).map(move |place| self.member(id, place))
    }

    /// The member that the cluster sends to its parent: its first one.
    pub fn delegate(&self, id: ClusterId) -> usize {
        self.span(id).start
    }

    /// The child clusters, in the order of the members that they send; none below a leaf cluster.
    pub fn children(&self, id: ClusterId) -> impl ExactSizeIterator<Item = ClusterId> + use<> {
        let level = id.level + 1;
        let kids = if self.is_leaf(id) {
            0..0
        } else {
            self.kids(id)
        };
        kids.map(move |index| ClusterId { level, index })
    }

    /// The cluster that this one sends its delegate to; the root has none.
    pub fn parent(&self, id: ClusterId) -> Option<ClusterId> {
        let level = id.level.checked_sub(1)?;
        let kids = &self.rows[level].kids;
        let index = kids.partition_point(|first| *first <= id.index) - 1;
        Some(ClusterId { level, index })
    }

    /// The place of the cluster's delegate among the members of its parent; 0 for the root.
    pub fn place_in_parent(&self, id: ClusterId) -> usize {
        self.parent(id)
            .map_or(0, |parent| id.index - self.kids(parent).start)
    }

    /// The leaf cluster of a node, if there is such a node.
    pub fn leaf_of(&self, node: usize) -> Option<ClusterId> {
        let level = self.levels();
        let first = &self.rows[level].first;
        let index = first
            .partition_point(|first| *first <= node)
            .checked_sub(1)?;
        self.get(level, index)
    }

    /// The clusters from the root down to `id`.
    pub fn chain(&self, id: ClusterId) -> Vec<ClusterId> {
        let mut chain = vec![id];
        let mut last = id;
        while let Some(parent) = self.parent(last) {
            chain.push(parent);
            last = parent;
        }
        chain.reverse();
        chain
    }

    /// Checks the rules of the network model:
    ///
    /// 1. every node is in exactly one leaf cluster and in at most one cluster per level;
    /// 2. a member at one level is a member at every level below;
    /// 3. a cluster above the last level has as many members as children, each child sends its
    ///    first member, and every cluster but the root has exactly one parent.
    pub fn validate(&self) -> Result<(), MultilevelError> {
        let mut below: Option<NodeSet> = None;
        for level in (0..=self.levels()).rev() {
            let here = self.members_of_level(level)?;
            let fail = |rule| Err(MultilevelError::Broken { level, rule });
            match &below {
                None if here.len() != self.nodes => {
                    return fail("some node is in no leaf cluster");
                }
                Some(below) if !here.is_subset(below) => {
                    return fail("a member is no member of the level below");
                }
                _ => {}
            }
            self.validate_links(level)?;
            below = Some(here);
        }
        Ok(())
    }

    /// The members of all clusters of a level, or an error if one is in two of them.
    fn members_of_level(&self, level: usize) -> Result<NodeSet, MultilevelError> {
        let mut here = NodeSet::new(self.nodes);
        for member in self.at(level).flat_map(|id| self.members(id)) {
            if member >= self.nodes || !here.insert(member) {
                let rule = "a node is in two clusters";
                return Err(MultilevelError::Broken { level, rule });
            }
        }
        Ok(here)
    }

    /// Checks the third rule for the clusters of one level and their children.
    fn validate_links(&self, level: usize) -> Result<(), MultilevelError> {
        let fail = |rule| Err(MultilevelError::Broken { level, rule });
        if level == 0 && self.count(0) != 1 {
            return fail("there is more than one root");
        }
        let mut next = 0;
        for id in self.at(level) {
            if self.size(id) == 0 {
                return fail("a cluster has no member");
            }
            for (place, child) in self.children(id).enumerate() {
                if child.index != next || self.parent(child) != Some(id) {
                    return fail("a child has not exactly one parent");
                }
                if self.member(child, 0) != self.member(id, place) {
                    return fail("a member is not the first member of the child that sends it");
                }
                next += 1;
            }
        }
        if next != self.count(level + 1) {
            return fail("a child has no parent");
        }
        Ok(())
    }

    fn kids(&self, id: ClusterId) -> Range<usize> {
        let kids = &self.rows[id.level].kids;
        kids[id.index]..kids[id.index + 1]
    }
}

/// The sums of the first numbers, from none of them to all.
fn closed_sums(sizes: &[usize]) -> Vec<usize> {
    let mut sums = vec![0];
    let mut sum = 0;
    for size in sizes {
        sum += size;
        sums.push(sum);
    }
    sums
}

/// Cuts every span of a level, with `steps` levels of clusters still to make: the first child of
/// each span and the first node of each child, both closed by their totals.
fn cut(first: &[usize], steps: usize) -> (Vec<usize>, Vec<usize>) {
    let mut kids = vec![0];
    let mut below = Vec::new();
    let mut roots = BTreeMap::new();
    for span in first.windows(2) {
        let size = span[1] - span[0];
        let parts = *roots
            .entry(size)
            .or_insert_with(|| rounded_root(size, steps));
        let (each, larger) = (size / parts, size % parts);
        let mut start = span[0];
        for part in 0..parts {
            below.push(start);
            start += each + usize::from(part < larger);
        }
        kids.push(below.len());
    }
    below.extend(first.last());
    (kids, below)
}

/// `size^(1/degree)` rounded to the nearest whole number, between 1 and `size`: the largest `g`
/// with `(2g - 1)^degree <= size * 2^degree`.
fn rounded_root(size: usize, degree: usize) -> usize {
    let fits = |g: usize| {
        let (Ok(degree), Ok(odd)) = (u32::try_from(degree), u128::try_from(2 * g - 1)) else {
            return false;
        };
        let bound = (size as u128).checked_mul(1u128.checked_shl(degree).unwrap_or(u128::MAX));
        // A power past the range of u128 is past every bound that comes up here.
        odd.checked_pow(degree)
            .is_some_and(|power| power <= bound.unwrap_or(u128::MAX))
    };
    let (mut low, mut high) = (1, size.max(1));
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validate_finds_each_kind_of_damage() {
        let good = Clusters::build(20, 2).unwrap();
        assert_eq!(good.validate(), Ok(()));
        let broken = |change: &dyn Fn(&mut Clusters)| {
            let mut bad = good.clone();
            change(&mut bad);
            bad.validate().is_err()
        };
        assert!(broken(&|bad| bad.rows[2].first[0] = 1));
        assert!(broken(&|bad| bad.rows[2].first[1] = 0));
        assert!(broken(&|bad| bad.rows[1].first[1] = 8));
        assert!(broken(&|bad| bad.rows[1].kids[1] = 2));
        assert!(broken(&|bad| bad.rows[1].kids[3] = 7));
        assert!(broken(&|bad| bad.nodes = 21));
    }

    #[test]
    fn roots_are_rounded_to_the_nearest() {
        for size in 1..3000usize {
            for degree in 1..=LEVELS_MAX + 1 {
                let root = rounded_root(size, degree);
                let real = (size as f64).powf(1.0 / degree as f64);
                assert!((root as f64 - real).abs() <= 0.5 + 1e-9, "{size} {degree}");
            }
        }
    }

    fn sizes_of(clusters: &Clusters, level: usize) -> Vec<usize> {
        clusters.at(level).map(|id| clusters.size(id)).collect()
    }

    #[test]
    fn the_builder_gives_the_known_hierarchies() {
        let build = |n, l| Clusters::build(n, l).unwrap();
        let root = |c: &Clusters| c.members(c.root()).collect::<Vec<_>>();
        let ten = build(10, 1);
        assert_eq!(sizes_of(&ten, 1), [4, 3, 3]);
        assert_eq!(root(&ten), [0, 4, 7]);
        let thirteen = build(13, 1);
        assert_eq!(sizes_of(&thirteen, 1), [4, 3, 3, 3]);
        assert_eq!(root(&thirteen), [0, 4, 7, 10]);
        let twenty = build(20, 2);
        assert_eq!(sizes_of(&twenty, 2), [3, 2, 2, 3, 2, 2, 3, 3]);
        assert_eq!(sizes_of(&twenty, 1), [3, 3, 2]);
        assert_eq!(root(&twenty), [0, 7, 14]);
        let cube = build(27, 2);
        assert!((0..3).all(|level| sizes_of(&cube, level).iter().all(|size| *size == 3)));
        let hundred = build(100, 2);
        assert_eq!(sizes_of(&hundred, 0), [5]);
        assert_eq!(sizes_of(&hundred, 1), [4; 5]);
        assert_eq!(sizes_of(&hundred, 2), [5; 20]);
        let large: [&[(usize, usize)]; 4] = [
            &[(35, 35), (34, 35)],
            &[(11, 11), (10, 10), (10, 11)],
            &[(6, 6), (6, 6), (6, 6), (5, 6)],
            &[(4, 4), (4, 4), (4, 4), (4, 4), (4, 5)],
        ];
        for (levels, expected) in (1..).zip(large) {
            let clusters = build(1200, levels);
            for (level, (min, max)) in expected.iter().enumerate() {
                let sizes = sizes_of(&clusters, level);
                assert_eq!(sizes.iter().min(), Some(min), "l={levels} level {level}");
                assert_eq!(sizes.iter().max(), Some(max), "l={levels} level {level}");
            }
        }
    }

    #[test]
    fn every_hierarchy_obeys_the_network_model() {
        for nodes in 1..=120 {
            for levels in 0..=LEVELS_MAX {
                let clusters = Clusters::build(nodes, levels).unwrap();
                assert_eq!(clusters.validate(), Ok(()), "n={nodes} l={levels}");
                for node in 0..nodes {
                    let leaf = clusters.leaf_of(node).unwrap();
                    assert!(clusters.members(leaf).any(|member| member == node));
                    let chain = clusters.chain(leaf);
                    assert_eq!(chain.len(), levels + 1);
                    for pair in chain.windows(2) {
                        assert_eq!(clusters.parent(pair[1]), Some(pair[0]));
                        let place = clusters.place_in_parent(pair[1]);
                        assert_eq!(clusters.children(pair[0]).nth(place), Some(pair[1]));
                        let delegate = clusters.member(pair[0], place);
                        assert_eq!(clusters.delegate(pair[1]), delegate);
                    }
                }
                assert_eq!(clusters.leaf_of(nodes), None);
            }
        }
    }

    #[test]
    fn places_give_the_clusters_that_people_mean() {
        let split = |text: &str| text.split('/').map(str::to_owned).collect::<Vec<_>>();
        let of = |places: &[&str]| {
            let places: Vec<_> = places.iter().map(|place| split(place)).collect();
            Clusters::of_places(&places)
        };
        let clusters = of(&[
            "eu/fra", "eu/fra", "eu/fra", "eu/ams", "eu/ams", "us/nyc", "us/nyc", "us/nyc",
            "us/sfo",
        ])
        .unwrap();
        assert_eq!(clusters.validate(), Ok(()));
        assert_eq!(clusters.sizes(), [vec![2], vec![2, 2], vec![3, 2, 3, 1]]);
        assert_eq!(
            clusters.members(clusters.root()).collect::<Vec<_>>(),
            [0, 5]
        );
        let eu = clusters.get(1, 0).unwrap();
        assert_eq!(clusters.members(eu).collect::<Vec<_>>(), [0, 3]);
        // Racks of one name in two regions are two racks.
        let racks = of(&["eu/r1", "us/r1"]).unwrap();
        assert_eq!(racks.sizes(), [vec![2], vec![1, 1], vec![1, 1]]);
        let said = |places: &[&str]| of(places).unwrap_err().to_string();
        assert_eq!(
            said(&["eu/r1", "us/r1", "eu/r2"]),
            "node 3 is in 'eu' again after nodes elsewhere; \
             number the nodes of one place one after the other"
        );
        assert_eq!(
            said(&["eu/r1", "eu/r2", "eu/r1"]),
            "node 3 is in 'eu/r1' again after nodes elsewhere; \
             number the nodes of one place one after the other"
        );
        assert_eq!(
            said(&["eu/r1", "eu"]),
            "node 2 is at a place of 1 parts and node 1 at one of 2; \
             give every node as many, such as eu/rack-1"
        );
        let none: &[Vec<String>] = &[];
        assert_eq!(Clusters::of_places(none), Err(MultilevelError::Empty));
    }

    #[test]
    fn sizes_say_all_about_a_hierarchy() {
        for nodes in 1..=60 {
            for levels in 0..=4 {
                let clusters = Clusters::build(nodes, levels).unwrap();
                assert_eq!(Clusters::of_sizes(&clusters.sizes()), Ok(clusters));
            }
        }
        let bad = |sizes: &[Vec<usize>]| Clusters::of_sizes(sizes).unwrap_err().to_string();
        assert_eq!(
            bad(&[vec![2], vec![3]]),
            "the sizes at level 1 do not fit: \
             there must be as many clusters as the level above has members"
        );
        assert_eq!(
            bad(&[vec![2], vec![3, 0]]),
            "the sizes at level 1 do not fit: a cluster has at least one member"
        );
        assert_eq!(bad(&[]), "a hierarchy needs at least one node");
        assert!(Clusters::of_sizes(&[vec![2], vec![usize::MAX, usize::MAX]]).is_err());
    }

    #[test]
    fn the_limits_are_reached_and_named() {
        let largest = Clusters::build(NODES_MAX, LEVELS_MAX).unwrap();
        assert_eq!(largest.validate(), Ok(()));
        assert_eq!(Clusters::build(0, 1), Err(MultilevelError::Empty));
        assert_eq!(
            Clusters::build(10_000_001, 1).unwrap_err().to_string(),
            "a hierarchy has at most 10000000 nodes, not 10000001"
        );
        assert_eq!(
            Clusters::build(9, 21).unwrap_err(),
            MultilevelError::TooManyLevels { levels: 21 }
        );
    }
}
