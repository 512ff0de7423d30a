//! Whether the nodes that can be reached suffice.

use conclave_quorum::NodeSet;

use super::config::Quorums;
use super::mode::Mode;
use crate::id::NodeId;

impl Quorums {
    /// Whether these nodes alone can serve a request of this mode.
    pub fn served_by(&self, mode: &Mode, nodes: impl IntoIterator<Item = NodeId>) -> bool {
        let known = nodes.into_iter().map(NodeId::index);
        let known = known.filter(|index| *index < self.nodes());
        let set = NodeSet::of(self.nodes(), known);
        self.family(mode).contains_quorum(&set)
    }

    /// Whether these nodes together know of every hold: no quorum of any mode avoids them all.
    pub fn informed_by(&self, nodes: impl IntoIterator<Item = NodeId>) -> bool {
        let known = nodes.into_iter().map(NodeId::index);
        let known = known.filter(|index| *index < self.nodes());
        self.informs(&NodeSet::of(self.nodes(), known))
    }
}
