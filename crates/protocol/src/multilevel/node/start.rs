//! The start of a life.

use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use conclave_quorum::Prng;

use super::state::{At, Holder};
use super::{Due, LevelNode};
use crate::id::{Incarnation, NodeId};
use crate::lock::Restart;
use crate::multilevel::api::LevelEffects;
use crate::multilevel::config::LevelConfig;
use crate::multilevel::message::{LockKey, Word};
use crate::multilevel::plant::LevelPlant;
use crate::multilevel::record::{Kept, LevelStored};
use crate::multilevel::sight::Sight;
use crate::table::{Slab, Table};
use crate::time::{Instant, Now};

impl<L: LockKey, S: Sight> LevelNode<L, S> {
    /// Starts a node in a new life, with what its disk has. `seed` draws quorums and
    /// representing nodes. It takes part at once; only an arbiter of the root whose grants are
    /// not on disk waits until every lease of its earlier life has ended.
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
        let topology = &config.topology;
        let levels = (0..=topology.levels()).filter_map(|level| topology.cluster_of(id, level));
        let clusters = levels.collect();
        let mut node = Self {
            id,
            life,
            sight,
            now,
            clock: 0,
            counter: 0,
            rng: Prng::new(seed ^ u64::from(id.0).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            clusters,
            by_key: Table::new(seed),
            locks: Slab::default(),
            idle: VecDeque::new(),
            timers: BinaryHeap::new(),
            default_floor: stored.ceiling,
            ceiling: stored.ceiling,
            lease: stored.lease,
            pause: Instant::ZERO,
            written: 0,
            hold: 0,
            synced: 0,
            config,
        };
        if node.has_level(0) {
            node.restore(stored, out);
        }
        node
    }

    fn restore(&mut self, stored: LevelStored<L>, out: &mut LevelEffects<L>) {
        if self.breaks(LevelPlant::ForgetGrants) {
            return;
        }
        for (key, kept) in stored.grants {
            let Some(lock) = self.lock_of(&key) else {
                continue;
            };
            // A renewal may have made it as long as any lease that was promised.
            let span = kept.span.max(stored.lease);
            let kept = Kept { span, ..kept };
            self.restore_grant(At { lock, level: 0 }, kept, out);
        }
        let unknown = self.config.restart == Restart::Pause || stored.lost;
        let silent = unknown && !stored.lease.is_zero();
        if silent && !self.breaks(LevelPlant::NoPause) {
            self.pause = self.now.mono + self.stretch(stored.lease);
        }
    }

    fn restore_grant(&mut self, at: At, kept: Kept, out: &mut LevelEffects<L>) {
        let Kept {
            rid,
            place,
            grant,
            block,
            span,
        } = kept;
        let until = self.now.mono + self.stretch(span);
        self.clock = self.clock.max(place.clock);
        self.arbiter(at).holder = Some(Holder {
            place,
            rid,
            grant,
            inquiring: true,
            block,
            span,
            until,
        });
        if self.leases() {
            self.arm(until, at, Due::Holder(rid));
        }
        let owner = rid.node;
        let gone =
            owner == self.id || self.sight.newest(owner) > rid.life || self.sight.is_down(owner);
        if gone {
            self.holder_gone(at, rid, out);
        } else {
            self.send(at.lock, 0, owner, Word::Recovered { rid, grant }, out);
        }
    }
}
