//! The machine of one node: arbiters and agents of every lock, at every level where the node is
//! a member.

use std::sync::Arc;

use super::api::{LevelEffects, LevelEvent, LevelInput};
use super::config::LevelConfig;
use super::message::{LevelMessage, LockKey};
use super::record::{LevelRecord, LevelStored};
use super::sight::{Seen, Sight};
use crate::id::{Incarnation, NodeId};
use crate::machine::Machine;
use crate::time::{Now, Wake};

/// One node of a hierarchy.
#[derive(Clone, Debug)]
pub struct LevelNode<L, S = Seen> {
    config: Arc<LevelConfig>,
    id: NodeId,
    life: Incarnation,
    sight: S,
    lock: std::marker::PhantomData<L>,
}

impl<L: LockKey, S: Sight> LevelNode<L, S> {
    /// Starts a node in a new life, with what its disk has. `seed` draws quorums and
    /// representing nodes.
    #[allow(clippy::too_many_arguments)]
    pub fn start(
        config: Arc<LevelConfig>,
        id: NodeId,
        life: Incarnation,
        seed: u64,
        stored: LevelStored<L>,
        sight: S,
        now: Now,
        out: &mut LevelEffects<L>,
    ) -> Self {
        let _ = (seed, stored, now, out);
        Self {
            config,
            id,
            life,
            sight,
            lock: std::marker::PhantomData,
        }
    }

    /// Which node this is.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Its present life.
    pub fn life(&self) -> Incarnation {
        self.life
    }

    /// Whether nothing is going on here: no permission given or asked for, no child, no wish.
    pub fn is_idle(&self) -> bool {
        let _ = (&self.config, &self.sight);
        true
    }
}

impl<L: LockKey, S: Sight> Machine for LevelNode<L, S> {
    type Input = LevelInput<L>;
    type Address = NodeId;
    type Message = LevelMessage<L>;
    type Record = LevelRecord<L>;
    type Event = LevelEvent<L>;

    fn handle(&mut self, now: Now, input: LevelInput<L>, out: &mut LevelEffects<L>) {
        let _ = (now, input, out);
    }

    fn next_wake(&self) -> Option<Wake> {
        None
    }
}
