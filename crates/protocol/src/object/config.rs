//! What all who deal with objects agree on.

use std::sync::Arc;
use std::time::Duration;

use super::plant::{Plant, Rules};
use crate::fault::{Aborts, FaultError, Faults};
use crate::lease::LeaseConfig;

/// What nodes and clients of a cluster agree on about objects. The sizes that add up to one
/// message (an operation, a delta, a page) must stay well below the largest frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectConfig {
    /// The nodes, and how many may lie.
    pub faults: Faults,
    /// How an attempt gives up.
    pub aborts: Aborts,
    /// So many nodes must hold a state.
    pub quorum: usize,
    /// The leases under which operations are ordered.
    pub lease: Arc<LeaseConfig>,
    /// How long a message takes at most when all is well.
    pub delay: Duration,
    /// How long the lease is under which operations are ordered.
    pub order_span: Duration,
    /// Most bytes of an object: all its cells, names included.
    pub object_size_max: usize,
    /// Most bytes of an operation.
    pub op_size_max: usize,
    /// Most bytes of a result.
    pub result_size_max: usize,
    /// Most bytes of what changes from one version to the next.
    pub delta_size_max: usize,
    /// Most objects at a node.
    pub objects_max: usize,
    /// Most bytes of all objects at a node.
    pub objects_bytes: usize,
    /// Most operations that wait for one object at a node.
    pub pending_per_object: usize,
    /// Most bytes of operations that wait for one object at a node.
    pub pending_bytes: usize,
    /// How long a node keeps an operation that its client does not send again.
    pub pending_keep: Duration,
    /// Most authors that an object remembers.
    pub authors_max: usize,
    /// An author that was away for longer may be forgotten.
    pub author_idle: Duration,
    /// Most bytes of past changes that a node keeps for one object, to bring clients up to date.
    pub recent_bytes: usize,
    /// Most bytes of cells in one message.
    pub page_bytes: usize,
    /// Most bytes of states that clients are in the middle of giving to a node.
    pub uploads_bytes: usize,
    /// Most watches of one connection.
    pub watches_max: usize,
    /// Whether ranks must be signed.
    pub signed: bool,
    /// Which rules are broken on purpose, if any.
    pub rules: Rules,
}

impl ObjectConfig {
    /// The usual values upon these leases; refused if the nodes are too few for objects.
    pub fn new(lease: Arc<LeaseConfig>, aborts: Aborts) -> Result<Self, FaultError> {
        let faults = lease.faults;
        Ok(Self {
            faults,
            aborts,
            quorum: faults.ordering(aborts)?,
            delay: lease.delay,
            lease,
            order_span: Duration::from_millis(500),
            object_size_max: 16 << 20,
            op_size_max: 256 << 10,
            result_size_max: 64 << 10,
            delta_size_max: 384 << 10,
            objects_max: 100_000,
            objects_bytes: 1 << 30,
            pending_per_object: 1024,
            pending_bytes: 4 << 20,
            pending_keep: Duration::from_secs(30),
            authors_max: 4096,
            author_idle: Duration::from_hours(1),
            recent_bytes: 4 << 20,
            page_bytes: 512 << 10,
            uploads_bytes: 256 << 20,
            watches_max: 1024,
            signed: false,
            rules: Rules::default(),
        })
    }

    /// The same with other rules. Quorums shrink if that is the bug: they then meet in
    /// too few nodes.
    #[must_use]
    pub fn ruled(mut self, rules: Rules) -> Self {
        if rules.has(Plant::SmallQuorum) {
            self.quorum = usize::midpoint(self.faults.nodes(), 2 * self.faults.liars());
        }
        self.rules = rules;
        self
    }

    /// So many equal words have one that is true among them, or one fewer if that is the bug.
    pub fn vouch(&self) -> usize {
        let fewer = self.rules.has(Plant::LessSupport) && self.faults.liars() > 0;
        self.faults.vouch() - usize::from(fewer)
    }
}
