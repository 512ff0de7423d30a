//! The node's side (under construction in this commit).
use std::sync::Arc;

use super::api::{LockView, NodeEffects, NodeEvent, NodeInput, To};
use super::config::Config;
use super::message::Message;
use super::record::{Record, Stored};
use crate::id::{Incarnation, Name, NodeId};
use crate::machine::Machine;
use crate::time::{Now, Wake};

/// What a node finds when it starts.
#[derive(Clone, Debug)]
pub enum Start {
    /// A new node: its default floor is its clock.
    Init,
    /// Its disk.
    Disk(Stored),
    /// Nothing, although it should have been there: it asks the others first.
    Lost,
}

/// The arbiters of all locks at one node, with their sessions and connections.
#[derive(Clone, Debug)]
pub struct LockNode {
    config: Arc<Config>,
    id: NodeId,
}

impl LockNode {
    /// Starts a node. The records in `out` must be durable before the first message is given to
    /// it. `seed` only spreads its hash tables.
    pub fn start(
        config: Arc<Config>,
        id: NodeId,
        seed: u64,
        start: Start,
        now: Now,
        out: &mut NodeEffects,
    ) -> Self {
        let _ = (seed, start, now, out);
        Self { config, id }
    }

    /// Which node this is.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Its present life.
    pub fn incarnation(&self) -> Incarnation {
        Incarnation(0)
    }

    /// Whether it grants: it is neither starting, pausing, recovering, draining nor stopped.
    pub fn is_serving(&self) -> bool {
        !self.config.observe
    }

    /// A lock as this node sees it, if it keeps anything about it.
    pub fn view(&self, name: &Name) -> Option<LockView> {
        let _ = name;
        None
    }

    /// How many locks, sessions, clients and tombstones it keeps.
    pub fn kept(&self) -> [usize; 4] {
        [0; 4]
    }
}

impl Machine for LockNode {
    type Input = NodeInput;
    type Address = To;
    type Message = Message;
    type Record = Record;
    type Event = NodeEvent;

    fn handle(&mut self, now: Now, input: NodeInput, out: &mut NodeEffects) {
        let _ = (now, input, out);
    }

    fn next_wake(&self) -> Option<Wake> {
        None
    }
}
