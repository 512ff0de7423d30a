//! What a node believes about the others: which live, and in which life.

use std::collections::BTreeMap;

use crate::id::{Incarnation, NodeId};

/// What a node believes about the others. The machine only asks and tells; who keeps the
/// knowledge is the driver's choice: each node for itself ([`Seen`]), or, in large simulations,
/// all nodes together.
pub trait Sight {
    /// Whether the node is believed to be down.
    fn is_down(&self, node: NodeId) -> bool;
    /// The newest life of the node that is known to have ended.
    fn ended(&self, node: NodeId) -> Incarnation;
    /// The newest life of the node that was heard of.
    fn newest(&self, node: NodeId) -> Incarnation;
    /// Takes note that a life of the node has ended.
    fn fails(&mut self, node: NodeId, life: Incarnation);
    /// Takes note that the node is suspected: it may be wrong.
    fn suspect(&mut self, node: NodeId);
    /// Takes note that the node lives in this life.
    fn lives(&mut self, node: NodeId, life: Incarnation);
}

/// What one node has seen of the others.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    others: BTreeMap<NodeId, Other>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Other {
    newest: Incarnation,
    ended: Incarnation,
    down: bool,
}

impl Seen {
    /// A view of nodes that live, each in the given life.
    pub fn of(lives: impl IntoIterator<Item = (NodeId, Incarnation)>) -> Self {
        let mut seen = Self::default();
        for (node, life) in lives {
            seen.lives(node, life);
        }
        seen
    }
}

impl Sight for Seen {
    fn is_down(&self, node: NodeId) -> bool {
        self.others.get(&node).is_some_and(|other| other.down)
    }

    fn ended(&self, node: NodeId) -> Incarnation {
        let other = self.others.get(&node);
        other.map_or(Incarnation(0), |other| other.ended)
    }

    fn newest(&self, node: NodeId) -> Incarnation {
        let other = self.others.get(&node);
        other.map_or(Incarnation(0), |other| other.newest)
    }

    fn fails(&mut self, node: NodeId, life: Incarnation) {
        let other = self.others.entry(node).or_default();
        other.ended = other.ended.max(life);
        if other.newest <= life {
            other.down = true;
        }
    }

    fn suspect(&mut self, node: NodeId) {
        self.others.entry(node).or_default().down = true;
    }

    fn lives(&mut self, node: NodeId, life: Incarnation) {
        let other = self.others.entry(node).or_default();
        other.newest = other.newest.max(life);
        if life > other.ended {
            other.down = false;
        }
    }
}
