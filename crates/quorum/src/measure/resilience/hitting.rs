//! The smallest set that meets every listed quorum, by branch and bound.

use crate::NodeSet;

/// A smallest hitting set, at least as good as `known`, and a lower bound on its size. The bound
/// is the size itself unless the search was cut off.
pub(super) fn smallest(quorums: &[NodeSet], known: NodeSet) -> (usize, NodeSet) {
    let nodes = known.capacity();
    let mut search = Search {
        quorums,
        best: known,
        work: WORK_MAX,
    };
    let root = search.packing(&NodeSet::new(nodes), &NodeSet::new(nodes));
    let mut chosen = NodeSet::new(nodes);
    search.branch(&mut chosen, &NodeSet::new(nodes));
    if search.work > 0 {
        (search.best.len(), search.best)
    } else {
        (root.min(search.best.len()), search.best)
    }
}

struct Search<'a> {
    quorums: &'a [NodeSet],
    best: NodeSet,
    /// Set comparisons left; at 0 the search stops.
    work: usize,
}

impl Search<'_> {
    /// Extends `chosen` to hitting sets that avoid `excluded`, keeping the smallest.
    fn branch(&mut self, chosen: &mut NodeSet, excluded: &NodeSet) {
        let Some(open) = self.tightest(chosen, excluded) else {
            if chosen.len() < self.best.len() {
                self.best = chosen.clone();
            }
            return;
        };
        if self.work == 0 || chosen.len() + self.packing(chosen, excluded) >= self.best.len() {
            return;
        }
        let degrees = self.degrees(chosen);
        let mut choices: Vec<(usize, usize)> = open
            .difference(excluded)
            .iter()
            .map(|node| (degrees[node], node))
            .collect();
        choices.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        // A node tried and given up is excluded from then on: every set is met once.
        let mut excluded = excluded.clone();
        for (_, node) in choices {
            chosen.insert(node);
            self.branch(chosen, &excluded);
            chosen.remove(node);
            excluded.insert(node);
        }
    }

    /// The quorum that is not met yet and has the fewest nodes left to choose.
    fn tightest(&mut self, chosen: &NodeSet, excluded: &NodeSet) -> Option<NodeSet> {
        self.spend();
        self.quorums
            .iter()
            .filter(|quorum| !quorum.intersects(chosen))
            .min_by_key(|quorum| quorum.len() - quorum.common(excluded))
            .cloned()
    }

    /// How many more nodes are needed at least: that many open quorums have no node in common.
    fn packing(&mut self, chosen: &NodeSet, excluded: &NodeSet) -> usize {
        self.spend();
        let mut used = NodeSet::new(chosen.capacity());
        let mut count = 0;
        let mut open = 0;
        for quorum in self.quorums {
            if quorum.intersects(chosen) {
                continue;
            }
            open += 1;
            let rest = quorum.difference(excluded);
            if !rest.intersects(&used) {
                used.union_with(&rest);
                count += 1;
            }
        }
        let mut degrees = self.degrees(chosen);
        for node in excluded.iter() {
            degrees[node] = 0;
        }
        count.max(by_degrees(degrees, open))
    }

    /// How many open quorums have each node.
    fn degrees(&mut self, chosen: &NodeSet) -> Vec<usize> {
        self.spend();
        let mut degrees = vec![0; chosen.capacity()];
        for quorum in self.quorums {
            if !quorum.intersects(chosen) {
                for node in quorum.iter() {
                    degrees[node] += 1;
                }
            }
        }
        degrees
    }

    fn spend(&mut self) {
        self.work = self.work.saturating_sub(self.quorums.len().max(1));
    }
}

/// How many nodes of these degrees it takes at least to meet `open` quorums.
fn by_degrees(mut degrees: Vec<usize>, open: usize) -> usize {
    degrees.sort_unstable_by(|a, b| b.cmp(a));
    let mut met = 0;
    let mut count = 0;
    for degree in degrees {
        if met >= open {
            break;
        }
        met += degree;
        count += 1;
    }
    count
}

/// Quorums looked at before the search is cut off.
const WORK_MAX: usize = 4_000_000;
