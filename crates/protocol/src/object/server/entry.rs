//! What a node holds of one object: what is on disk, and what may be lost.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::id::LinkId;
use crate::object::author::{self, Known};
use crate::object::config::ObjectConfig;
use crate::object::message::{Author, OpId, Pending, Rank, View};
use crate::object::record::{Step, StoredObject};
use crate::object::state::{Delta, Stamp, State};
use crate::time::{Instant, Now};

/// One object at a node.
#[derive(Debug)]
pub(super) struct Entry {
    /// What is on disk, or on its way there.
    pub(super) kept: StoredObject,
    /// The way from the committed state to the proposed one, if it is known.
    pub(super) way: Option<Vec<Step>>,
    /// The last steps to the committed state, without a gap.
    recent: VecDeque<Step>,
    recent_bytes: usize,
    /// The operations that wait, one of each author.
    pub(super) pending: BTreeMap<Author, Wait>,
    pub(super) pending_bytes: usize,
    /// When the committed state was last replaced in this life of the node.
    pub(super) changed: Option<Now>,
}

/// An operation that waits.
#[derive(Debug)]
pub(super) struct Wait {
    pub(super) op: OpId,
    pub(super) principal: Arc<str>,
    pub(super) body: Arc<[u8]>,
    /// Since when, which decides who is told first.
    pub(super) since: Instant,
    /// When it was last sent.
    pub(super) sent: Instant,
    /// Who wants to know what comes of it.
    pub(super) waiters: BTreeSet<LinkId>,
}

/// What an operation that waits costs beside its body.
const PENDING_COST: usize = 64;

impl Wait {
    pub(super) fn bytes(&self) -> usize {
        PENDING_COST + self.principal.len() + self.body.len()
    }
}

impl Entry {
    pub(super) fn new(kept: StoredObject) -> Self {
        let way = (kept.proposed == kept.committed).then(Vec::new);
        Self {
            kept,
            way,
            recent: VecDeque::new(),
            recent_bytes: 0,
            pending: BTreeMap::new(),
            pending_bytes: 0,
            changed: None,
        }
    }

    /// Whether there is anything that must not be forgotten.
    pub(super) fn is_kept(&self) -> bool {
        self.kept.max > Rank::default()
            || self.kept.committed.version() > 0
            || self.kept.proposed.version() > 0
    }

    /// How many bytes its states have, one on the other.
    pub(super) fn bytes(&self) -> usize {
        let (committed, proposed) = (&self.kept.committed, &self.kept.proposed);
        committed.bytes().max(proposed.bytes())
    }

    /// Replaces the committed state, to which this way leads from the last one, if it is known.
    pub(super) fn committed(&mut self, now: Now, way: Option<Vec<Step>>, config: &ObjectConfig) {
        self.changed = Some(now);
        match way {
            Some(steps) => {
                self.recent_bytes += steps.iter().map(|step| step.delta.bytes()).sum::<usize>();
                self.recent.extend(steps);
            }
            None => self.forget_recent(),
        }
        // A way that is longer than the state itself helps nobody.
        let worth = self.kept.committed.bytes().max(config.page_bytes);
        self.trim(config.recent_bytes.min(worth));
        self.way = (self.kept.proposed == self.kept.committed).then(Vec::new);
    }

    /// Forgets how the committed state came about, but for the last so many bytes.
    pub(super) fn trim(&mut self, most: usize) {
        while self.recent_bytes > most {
            let Some(step) = self.recent.pop_front() else {
                break;
            };
            self.recent_bytes -= step.delta.bytes();
        }
    }

    fn forget_recent(&mut self) {
        self.recent.clear();
        self.recent_bytes = 0;
    }

    /// The way from a state that a client has to the committed one, if it has at most so many
    /// bytes.
    pub(super) fn suffix(&self, have: Option<Stamp>, bytes: usize) -> Vec<Delta> {
        let Some(have) = have else {
            return Vec::new();
        };
        let mut left = bytes;
        let mut from = self.recent.len();
        for (at, step) in self.recent.iter().enumerate().rev() {
            let Some(rest) = left.checked_sub(step.delta.bytes()) else {
                return Vec::new();
            };
            left = rest;
            from = at;
            if step.base.version <= have.version {
                break;
            }
        }
        if self.recent.get(from).is_none_or(|step| step.base != have) {
            return Vec::new();
        }
        let steps = self.recent.range(from..);
        steps.map(|step| step.delta.clone()).collect()
    }

    /// What a get is answered with.
    pub(super) fn view(&self, have: Option<Stamp>, config: &ObjectConfig) -> View {
        let suffix = self.suffix(have, config.page_bytes / 2);
        let used: usize = suffix.iter().map(Delta::bytes).sum();
        let step = match self.way.as_deref() {
            Some([step]) => Some(step.delta.clone()),
            _ => None,
        };
        View {
            committed: self.kept.committed.stamp(),
            proposed: self.kept.proposed.stamp(),
            proposer: self.kept.proposer,
            pending: self.oldest(config.page_bytes - used),
            suffix,
            step,
        }
    }

    /// The operations that wait, the oldest first, as many as fit.
    fn oldest(&self, bytes: usize) -> Vec<Pending> {
        let mut waits: Vec<&Wait> = self.pending.values().collect();
        waits.sort_by_key(|wait| (wait.since, wait.op));
        let mut left = bytes;
        let mut pending = Vec::new();
        for wait in waits {
            let Some(rest) = left.checked_sub(wait.bytes()) else {
                break;
            };
            left = rest;
            pending.push(Pending {
                op: wait.op,
                principal: wait.principal.clone(),
                body: wait.body.clone(),
            });
        }
        pending
    }

    /// How many operations wait that a state does not contain.
    pub(super) fn waiting(&self, state: &State) -> u32 {
        let waits = self.pending.values();
        let left = waits.filter(|wait| author::known(state, wait.op) == Known::New);
        u32::try_from(left.count()).unwrap_or(u32::MAX)
    }

    /// Forgets operations that were not sent again for this long.
    pub(super) fn expire(&mut self, now: Instant, keep: Duration) {
        let bytes = &mut self.pending_bytes;
        self.pending.retain(|_, wait| {
            let stays = now.since(wait.sent) <= keep;
            if !stays {
                *bytes -= wait.bytes();
            }
            stays
        });
    }

    /// One of the two states.
    pub(super) fn held(&self, stamp: Stamp) -> Option<&State> {
        self.kept.held(stamp)
    }
}
