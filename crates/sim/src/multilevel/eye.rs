//! What simulated nodes believe about each other: each for itself, or all of them together.

use std::cell::Cell;
use std::rc::Rc;

use conclave_protocol::id::{Incarnation, NodeId};
use conclave_protocol::multilevel::{Seen, Sight};

/// What all nodes know together: one small entry for every node, and none for a pair.
#[derive(Debug)]
pub(super) struct View {
    nodes: Vec<Cell<Known>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    newest: u32,
    ended: u32,
}

impl View {
    /// All live in their first life.
    pub(super) fn new(nodes: usize) -> Self {
        let known = Known {
            newest: 1,
            ended: 0,
        };
        Self {
            nodes: vec![Cell::new(known); nodes],
        }
    }

    fn get(&self, node: NodeId) -> Known {
        self.nodes
            .get(node.index())
            .map(Cell::get)
            .unwrap_or_default()
    }

    fn set(&self, node: NodeId, change: impl FnOnce(&mut Known)) {
        if let Some(cell) = self.nodes.get(node.index()) {
            let mut known = cell.get();
            change(&mut known);
            cell.set(known);
        }
    }

    /// A life of the node has ended.
    pub(super) fn fails(&self, node: NodeId, life: Incarnation) {
        self.set(node, |known| known.ended = known.ended.max(life.0 as u32));
    }

    /// The node lives in this life.
    pub(super) fn lives(&self, node: NodeId, life: Incarnation) {
        self.set(node, |known| known.newest = known.newest.max(life.0 as u32));
    }
}

/// One node's sight.
#[derive(Clone, Debug)]
pub(super) enum Eye {
    /// Its own.
    Own(Seen),
    /// That of all nodes.
    Shared(Rc<View>),
}

impl Sight for Eye {
    fn is_down(&self, node: NodeId) -> bool {
        match self {
            Self::Own(seen) => seen.is_down(node),
            Self::Shared(view) => {
                let known = view.get(node);
                known.ended > 0 && known.newest <= known.ended
            }
        }
    }

    fn ended(&self, node: NodeId) -> Incarnation {
        match self {
            Self::Own(seen) => seen.ended(node),
            Self::Shared(view) => Incarnation(view.get(node).ended.into()),
        }
    }

    fn newest(&self, node: NodeId) -> Incarnation {
        match self {
            Self::Own(seen) => seen.newest(node),
            Self::Shared(view) => Incarnation(view.get(node).newest.into()),
        }
    }

    fn fails(&mut self, node: NodeId, life: Incarnation) {
        match self {
            Self::Own(seen) => seen.fails(node, life),
            Self::Shared(view) => view.fails(node, life),
        }
    }

    fn suspect(&mut self, node: NodeId) {
        // Where all share one view nobody is suspected wrongly.
        if let Self::Own(seen) = self {
            seen.suspect(node);
        }
    }

    fn lives(&mut self, node: NodeId, life: Incarnation) {
        match self {
            Self::Own(seen) => seen.lives(node, life),
            Self::Shared(view) => view.lives(node, life),
        }
    }
}
