//! A set of nodes of one cluster, as a bit set.

use std::fmt;

use fixedbitset::FixedBitSet;

/// A set of nodes out of `0..capacity`.
///
/// Nodes are counted from 0 in code and from 1 wherever a person sees them: [`fmt::Display`] and
/// [`NodeSet::numbers`] speak in numbers from 1. All sets of one system have the system's size as
/// their capacity; mixing capacities in one operation is a bug of the caller.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeSet {
    bits: FixedBitSet,
}

impl NodeSet {
    /// The empty set over `capacity` nodes.
    pub fn new(capacity: usize) -> Self {
        Self {
            bits: FixedBitSet::with_capacity(capacity),
        }
    }

    /// All `capacity` nodes.
    pub fn full(capacity: usize) -> Self {
        let mut set = Self::new(capacity);
        set.bits.insert_range(..);
        set
    }

    /// The set of the given node indices (from 0).
    pub fn of(capacity: usize, nodes: impl IntoIterator<Item = usize>) -> Self {
        let mut set = Self::new(capacity);
        for node in nodes {
            set.insert(node);
        }
        set
    }

    /// The set of the given node numbers (from 1), as people and the papers write them.
    pub fn of_numbers(capacity: usize, numbers: impl IntoIterator<Item = usize>) -> Self {
        Self::of(capacity, numbers.into_iter().map(|number| number - 1))
    }

    /// The set whose members are the one bits of `mask`; for exhaustive tests on small systems.
    pub fn from_mask(capacity: usize, mask: u64) -> Self {
        Self::of(
            capacity,
            (0..capacity.min(64)).filter(|i| mask >> i & 1 == 1),
        )
    }

    /// How many nodes the set could hold.
    pub fn capacity(&self) -> usize {
        self.bits.len()
    }

    /// How many nodes the set holds.
    pub fn len(&self) -> usize {
        self.bits.count_ones(..)
    }

    /// Whether the set holds no node.
    pub fn is_empty(&self) -> bool {
        self.bits.is_clear()
    }

    /// Whether `node` is in the set. A node past the capacity is not.
    pub fn contains(&self, node: usize) -> bool {
        self.bits.contains(node)
    }

    /// Whether every node of this set is in `other`.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.bits.is_subset(&other.bits)
    }

    /// Whether the two sets share a node.
    pub fn intersects(&self, other: &Self) -> bool {
        !self.bits.is_disjoint(&other.bits)
    }

    /// How many nodes the two sets share.
    pub fn common(&self, other: &Self) -> usize {
        self.bits.intersection_count(&other.bits)
    }

    /// The members in ascending order, counted from 0.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.bits.ones()
    }

    /// The members in ascending order, counted from 1.
    pub fn numbers(&self) -> impl Iterator<Item = usize> + '_ {
        self.iter().map(|node| node + 1)
    }

    /// All nodes that are not in this set.
    #[must_use]
    pub fn complement(&self) -> Self {
        let mut set = self.clone();
        set.bits.toggle_range(..);
        set
    }

    /// The nodes in either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut set = self.clone();
        set.union_with(other);
        set
    }

    /// The nodes in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let mut set = self.clone();
        set.bits.intersect_with(&other.bits);
        set
    }

    /// The nodes of this set that are not in `other`.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let mut set = self.clone();
        set.bits.difference_with(&other.bits);
        set
    }

    /// Adds a node; `true` if it was not there.
    pub fn insert(&mut self, node: usize) -> bool {
        !self.bits.put(node)
    }

    /// Takes a node out; `true` if it was there.
    pub fn remove(&mut self, node: usize) -> bool {
        let was = self.bits.contains(node);
        self.bits.set(node, false);
        was
    }

    /// Adds every node of `other`.
    pub fn union_with(&mut self, other: &Self) {
        self.bits.union_with(&other.bits);
    }

    /// Makes this the set of the nodes that `member` says yes to, asked in ascending order.
    pub fn fill_with(&mut self, mut member: impl FnMut(usize) -> bool) {
        let capacity = self.capacity();
        let width = usize::BITS as usize;
        for (place, block) in self.bits.as_mut_slice().iter_mut().enumerate() {
            let first = place * width;
            let mut word = 0;
            for bit in 0..width.min(capacity - first) {
                word |= usize::from(member(first + bit)) << bit;
            }
            *block = word;
        }
    }

    /// Empties the set.
    pub fn clear(&mut self) {
        self.bits.clear();
    }
}

impl fmt::Display for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (place, number) in self.numbers().enumerate() {
            if place > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{number}")?;
        }
        f.write_str("}")
    }
}

impl fmt::Debug for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}/{}", self.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn algebra_agrees_with_machine_words() {
        for a in 0..64u64 {
            for b in 0..64u64 {
                let (x, y) = (NodeSet::from_mask(6, a), NodeSet::from_mask(6, b));
                assert_eq!(x.union(&y), NodeSet::from_mask(6, a | b));
                assert_eq!(x.intersection(&y), NodeSet::from_mask(6, a & b));
                assert_eq!(x.difference(&y), NodeSet::from_mask(6, a & !b));
                assert_eq!(x.complement(), NodeSet::from_mask(6, !a & 63));
                assert_eq!(x.intersects(&y), a & b != 0);
                assert_eq!(x.is_subset(&y), a & !b == 0);
                assert_eq!(x.common(&y), (a & b).count_ones() as usize);
                assert_eq!(x.len(), a.count_ones() as usize);
            }
        }
    }

    #[test]
    fn filling_asks_every_node_once_in_order() {
        for capacity in [0, 1, 63, 64, 65, 200] {
            let mut asked = Vec::new();
            let mut set = NodeSet::full(capacity);
            set.fill_with(|node| {
                asked.push(node);
                node % 3 == 1
            });
            assert_eq!(asked, (0..capacity).collect::<Vec<_>>());
            assert_eq!(
                set,
                NodeSet::of(capacity, (0..capacity).filter(|node| node % 3 == 1))
            );
        }
    }

    #[test]
    fn people_count_from_one() {
        let set = NodeSet::of(70, [0, 64, 69]);
        assert_eq!(set.to_string(), "{1, 65, 70}");
        assert_eq!(NodeSet::of_numbers(70, [1, 65, 70]), set);
        assert_eq!(NodeSet::full(70).len(), 70);
    }
}
