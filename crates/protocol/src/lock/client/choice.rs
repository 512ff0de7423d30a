//! Which quorum a request asks: what the lock's name decides, and what round trips decide.
//!
//! All requesters of a lock draw their first quorum from a seed that is made of its name, so that
//! they meet at the same nodes. Round trips only break what that leaves open: which quorum is
//! asked instead when nodes must be avoided, where a hold moves, and, for locks whose policy is
//! [`Choice::Near`], the first quorum too. Distances are coarse, so that clients which are about
//! equally far from all nodes still choose alike.

use std::time::Duration;

use conclave_quorum::NodeSet;

use super::LockClient;
use crate::id::NodeId;
use crate::lock::api::{ClientEffects, NodeHealth};
use crate::lock::config::Choice;
use crate::lock::mode::{Ask, Mode};

/// Round trips that differ by no more than this are equal.
const NOISE: Duration = Duration::from_millis(2);
/// A node is slow if its round trip is so many times that of the next slowest, and
const SLOW_TIMES: u32 = 4;
/// longer by this.
const SLOW_MORE: Duration = Duration::from_millis(20);
/// The largest distance.
const DISTANCE_MAX: f64 = 64.0;

/// How far the nodes are from this client.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Distances {
    /// What a node costs: 1 if it is near or unknown, twice as much for every doubling.
    costs: Vec<f64>,
    /// Nodes far slower than all others: better not asked first.
    slow: Vec<NodeId>,
}

impl Distances {
    pub(super) fn unknown(nodes: usize) -> Self {
        Self {
            costs: vec![1.0; nodes],
            slow: Vec::new(),
        }
    }

    /// From the round trips that are known.
    fn of(trips: &[Option<Duration>]) -> Self {
        let mut known: Vec<Duration> = trips.iter().flatten().copied().collect();
        known.sort_unstable();
        let near = known.first().copied().unwrap_or_default() * 2 + NOISE;
        let cost = |trip: &Option<Duration>| match trip {
            Some(trip) if *trip > near => {
                let times = trip.as_secs_f64() / near.as_secs_f64();
                times.log2().ceil().exp2().clamp(2.0, DISTANCE_MAX)
            }
            _ => 1.0,
        };
        let bar = slow_bar(&known);
        let slow = trips.iter().enumerate().filter_map(|(node, trip)| {
            let slow = trip.zip(bar).is_some_and(|(trip, bar)| trip >= bar);
            slow.then(|| NodeId::at(node))
        });
        Self {
            costs: trips.iter().map(cost).collect(),
            slow: slow.collect(),
        }
    }
}

/// From which round trip on nodes are slow, if some are: at most a quarter of those known, with a
/// wide gap to the others. A region of its own is not slow, it is far.
fn slow_bar(sorted: &[Duration]) -> Option<Duration> {
    let few = (sorted.len() / 4).max(1);
    if sorted.len() < 3 {
        return None;
    }
    (1..=few).rev().find_map(|count| {
        let bar = sorted[sorted.len() - count];
        let next = sorted[sorted.len() - count - 1];
        (bar >= next * SLOW_TIMES && bar >= next + SLOW_MORE).then_some(bar)
    })
}

impl LockClient {
    /// How the nodes look from here.
    pub fn nodes(&self) -> Vec<NodeHealth> {
        let all = self.config.quorums.all();
        let one = |node: NodeId| NodeHealth {
            node,
            round_trip: self.trip(node),
            connected: self.link(node).is_some_and(super::link::Link::is_open),
            avoided: self.avoided(node),
            slow: self.distances.slow.contains(&node),
            refuses_tokens: self.behind.get(&node).copied(),
        };
        all.map(one).collect()
    }

    /// The smoothed round trip to a node that is connected.
    fn trip(&self, node: NodeId) -> Option<Duration> {
        let link = self.link(node).filter(|link| link.is_open())?;
        Some(link.rtt).filter(|trip| !trip.is_zero())
    }

    /// A round trip was measured.
    pub(super) fn measure_distances(&mut self) {
        let trips: Vec<_> = self
            .config
            .quorums
            .all()
            .map(|node| self.trip(node))
            .collect();
        let distances = Distances::of(&trips);
        if distances != self.distances {
            self.distances = distances;
            // First quorums were chosen by the old ones.
            self.forget_picks();
        }
    }

    /// What a node costs when a quorum is chosen among several.
    pub(super) fn distance(&self, node: usize) -> f64 {
        self.distances.costs.get(node).copied().unwrap_or(1.0)
    }

    /// Whether the first quorum of a lock is chosen by distance.
    pub(super) fn chooses_near(&self, ask: &Ask) -> bool {
        self.config.policy(&ask.name).choice == Choice::Near
    }

    /// Whoever chooses by distance must know all distances: connects to every node, once.
    pub(super) fn look_around(&mut self, out: &mut ClientEffects) {
        for node in self.config.quorums.all() {
            if self.link(node).is_none() {
                self.want_link(node, out);
            }
        }
    }

    /// Whether some node is slow.
    pub(super) fn finds_slow(&self) -> bool {
        !self.distances.slow.is_empty()
    }

    /// The quorum for a request: none of the nodes in `avoid`, no slow ones if possible. That of
    /// the lock's name, if it is such a quorum; otherwise, and for locks that are chosen by
    /// distance, near nodes first.
    pub(super) fn quorum_without(&self, ask: &Ask, avoid: &NodeSet) -> Option<NodeSet> {
        let quorums = &self.config.quorums;
        let seed = ask.name.seed();
        if !self.chooses_near(ask) {
            let first = quorums.pick(&ask.mode, seed, &NodeSet::new(quorums.nodes()));
            let shunned = |node: usize| {
                avoid.contains(node) || self.distances.slow.contains(&NodeId::at(node))
            };
            if !first.iter().any(shunned) {
                return Some(first);
            }
        }
        self.near_quorum(&ask.mode, seed, avoid)
    }

    /// A quorum without the nodes in `avoid`, near ones first, without slow ones if possible.
    pub(super) fn near_quorum(&self, mode: &Mode, seed: u64, avoid: &NodeSet) -> Option<NodeSet> {
        let (quorums, costs) = (&self.config.quorums, &self.distances.costs);
        let mut more = avoid.clone();
        for node in &self.distances.slow {
            more.insert(node.index());
        }
        let quick = quorums.pick_by(mode, seed, &more, costs);
        quick.or_else(|| quorums.pick_by(mode, seed, avoid, costs))
    }

    /// What nodes cost for a hold that moves: those it can keep nothing, others their distance.
    pub(super) fn moving_costs(&self, keeps: impl Fn(usize) -> bool) -> Vec<f64> {
        let nodes = 0..self.config.quorums.nodes();
        nodes
            .map(|node| {
                if keeps(node) {
                    0.001
                } else {
                    self.distance(node)
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::unnecessary_wraps, reason = "a round trip may be unknown")]
    fn ms(millis: u64) -> Option<Duration> {
        Some(Duration::from_millis(millis))
    }

    #[test]
    fn distances_are_coarse() {
        let even = Distances::of(&[ms(1), ms(2), ms(3), None, ms(1)]);
        assert_eq!(even, Distances::unknown(5));
        let regions = Distances::of(&[ms(1), ms(1), ms(30), ms(31), None]);
        assert_eq!(regions.costs, [1.0, 1.0, 8.0, 8.0, 1.0]);
        assert!(regions.slow.is_empty(), "another region is far, not slow");
        let end = Distances::of(&[ms(1), ms(60_000), ms(60_000)]);
        assert_eq!(end.costs, [1.0, 64.0, 64.0]);
    }

    #[test]
    fn a_node_far_slower_than_all_others_is_slow() {
        let one = |trips: &[u64]| {
            let trips: Vec<_> = trips.iter().map(|trip| ms(*trip)).collect();
            Distances::of(&trips).slow
        };
        assert_eq!(one(&[1, 2, 200, 1, 2]), [NodeId(2)]);
        assert_eq!(one(&[30, 31, 200, 29, 30]), [NodeId(2)]);
        assert_eq!(one(&[1, 2, 15, 1, 2]), [], "that is still quick");
        assert_eq!(
            one(&[100, 120, 300, 110, 100]),
            [],
            "that is not so far off"
        );
        assert_eq!(one(&[1, 200, 200, 1, 1]), [], "too many to be called slow");
        assert_eq!(one(&[1, 200]), [], "too few to tell");
    }
}
