//! Consent: from the root down to whoever is served.

use std::time::Duration;

use super::state::{At, Stage};
use super::{Due, LevelNode};
use crate::id::{NodeId, Token};
use crate::lock::Mode;
use crate::multilevel::api::LevelEffects;
use crate::multilevel::message::{Block, Id, LockKey, UNKNOWN, Until, Word};
use crate::multilevel::plant::LevelPlant;
use crate::multilevel::sight::Sight;
use crate::time::Instant;

impl<L: LockKey, S: Sight> LevelNode<L, S> {
    /// The root's quorum has given its permissions: that is consent, once its tokens are
    /// registered and its lease is long enough.
    pub(super) fn root_consent(&mut self, at: At, out: &mut LevelEffects<L>) {
        let (now, leases) = (self.now.mono, self.leases());
        let deadline = if leases {
            self.root_deadline(at)
        } else {
            now + self.config.lease
        };
        let agent = self.agent(at);
        let block = common_block(agent.asked.iter().map(|asked| asked.block));
        agent.deadline = deadline;
        agent.block = block;
        let short = leases && now + self.need(at) > deadline;
        if block.is_empty() || short {
            self.renew_short(at, out);
            return;
        }
        self.consented(at, out);
    }

    /// When the root's consent ends, by the leases of the quorum that counts.
    pub(super) fn root_deadline(&mut self, at: At) -> Instant {
        let index = usize::from(at.level - self.top());
        let Some(lock) = self.locks.get(at.lock) else {
            return Instant::ZERO;
        };
        let asked = lock.levels[index].agent.asked.iter();
        let counted = asked.filter(|asked| asked.counts);
        let ends = counted.map(|asked| asked.fresh + self.shrink(asked.span));
        ends.min().unwrap_or(Instant::ZERO)
    }

    /// Consent of the level above, or a longer one.
    pub(super) fn consent(
        &mut self,
        at: At,
        from: NodeId,
        cid: Id,
        until: Until,
        block: Block,
        out: &mut LevelEffects<L>,
    ) {
        let now = self.now.mono;
        let counted_late = self.breaks(LevelPlant::LeaseFromAnswer);
        let agent = self.agent(at);
        let up = agent.up.as_ref();
        let Some(up) = up.filter(|up| up.node == from && up.cid == cid) else {
            if self.may_disown(cid) {
                let used = UNKNOWN;
                self.send(at.lock, at.level, from, Word::Done { cid, used }, out);
            }
            return;
        };
        let deadline = match until {
            Until::At(deadline) => Some(deadline),
            Until::For { span, .. } if counted_late => Some(now + span),
            Until::For { echo, span } => {
                let sent = up.line.sent(echo);
                let span = self.shrink(span);
                sent.map(|sent| sent + span)
            }
        };
        let agent = self.agent(at);
        let deadline = deadline.unwrap_or(Instant::ZERO);
        match agent.stage {
            Stage::Rising => {
                agent.deadline = deadline;
                agent.block = block;
                if self.leases() && now + self.need(at) > deadline {
                    // It waited for so long that it must be counted anew: the next message of
                    // the regular timer does that.
                    return;
                }
                self.consented(at, out);
            }
            Stage::Waiting | Stage::Busy => {
                agent.deadline = agent.deadline.max(deadline);
                self.extend(at, out);
            }
            Stage::Idle | Stage::Asking => {}
        }
    }

    /// There is consent: it goes to whoever is served, or waits for a child.
    pub(super) fn consented(&mut self, at: At, out: &mut LevelEffects<L>) {
        let fits = self.lease_fits(at);
        let agent = self.agent(at);
        agent.consents += 1;
        let empty = agent.block.is_empty();
        let Some(child) = agent.children.first() else {
            let span = self.config.threshold;
            self.wait(at, span);
            self.arm_deadline(at);
            return;
        };
        let mode = child.mode.clone();
        if fits && !empty && self.mode_fits(at, &mode) {
            self.give(at, out);
            self.arm_deadline(at);
        } else {
            self.end_run(at, out);
        }
    }

    /// For how long consent must still hold to be given on.
    pub(super) fn need(&mut self, at: At) -> Duration {
        if self.leases() {
            // Each level below loses a little of it.
            let span = self.wanted_span(at);
            return span / 2 + self.interval(span) * u32::from(self.levels() - at.level);
        }
        let mut below = u32::from(self.levels() - at.level);
        // Members of a group are served by an agent at another node.
        if self.mode_of(at) != Mode::Exclusive {
            below += 1;
        }
        self.config.inside_max + self.config.way_max * below
    }

    pub(super) fn lease_fits(&mut self, at: At) -> bool {
        let need = self.need(at);
        self.now.mono + need <= self.agent(at).deadline
    }

    /// Gives consent to all that are served and do not have it yet.
    pub(super) fn give(&mut self, at: At, out: &mut LevelEffects<L>) {
        let agent = self.agent(at);
        agent.stage = Stage::Busy;
        agent.epoch += 1;
        let open = agent.children.iter().filter(|child| child.given.is_none());
        let open: Vec<Id> = open.map(|child| child.cid).collect();
        for cid in open {
            self.say_consent(at, cid, out);
        }
    }

    /// Tells a child that it has consent, and until when.
    pub(super) fn say_consent(&mut self, at: At, cid: Id, out: &mut LevelEffects<L>) {
        let (now, own, leases) = (self.now.mono, self.id, self.leases());
        let levels = self.levels();
        let agent = self.agent(at);
        let deadline = agent.deadline;
        let block = agent.block;
        let child = agent.children.iter_mut().find(|child| child.cid == cid);
        let Some(child) = child else { return };
        let first = child.given.is_none();
        if at.level == levels && cid.node == own {
            child.given = Some(deadline);
            self.wish_granted(at.lock, cid, block, deadline, out);
            return;
        }
        let until = if leases {
            let span = deadline.since(now);
            child.given = Some(child.given.unwrap_or(Instant::ZERO).max(now + span));
            let echo = child.echo;
            Until::For { echo, span }
        } else {
            child.given = Some(deadline);
            Until::At(deadline)
        };
        let given = child.given.unwrap_or(deadline);
        if first && leases {
            self.arm(given, at, Due::Child(cid));
        }
        let word = Word::Consent { cid, until, block };
        self.send(at.lock, at.level + 1, cid.node, word, out);
    }

    /// A child asked twice: if it has consent, it is told again.
    pub(super) fn repeat_consent(&mut self, at: At, cid: Id, out: &mut LevelEffects<L>) {
        let agent = self.agent(at);
        let given = |child: &&super::state::Child| child.cid == cid && child.given.is_some();
        if agent.stage == Stage::Busy && agent.children.iter().any(|child| given(&child)) {
            self.say_consent(at, cid, out);
        }
    }

    /// Consent holds longer: wishes of this node learn it now, other children when they ask.
    pub(super) fn extend(&mut self, at: At, out: &mut LevelEffects<L>) {
        let (own, levels) = (self.id, self.levels());
        let agent = self.agent(at);
        let deadline = agent.deadline;
        if at.level != levels || agent.stage != Stage::Busy {
            return;
        }
        let mut longer = Vec::new();
        for child in &mut agent.children {
            if child.cid.node == own && child.given.is_some_and(|given| given < deadline) {
                child.given = Some(deadline);
                longer.push(child.cid);
            }
        }
        for cid in longer {
            self.wish_extended(at.lock, cid, deadline, out);
        }
    }

    /// The promise to a child has ended, or its node is gone.
    pub(super) fn child_ends(&mut self, at: At, cid: Id, out: &mut LevelEffects<L>) {
        let (now, leases) = (self.now.mono, self.leases());
        let again = self.breaks(LevelPlant::TokensAgain);
        let agent = self.agent(at);
        let child = agent.children.iter().find(|child| child.cid == cid);
        let Some(until) = child.and_then(|child| child.given) else {
            return;
        };
        if leases && until > now {
            self.arm(until, at, Due::Child(cid));
            return;
        }
        // Nobody knows which of its tokens it has used.
        let used = if again { Token(0) } else { agent.block.to };
        self.child_done(at, cid, used, out);
    }

    /// The promise to this run has ended: whoever was served has been told so.
    pub(super) fn deadline(&mut self, at: At, out: &mut LevelEffects<L>) {
        let now = self.now.mono;
        let agent = self.agent(at);
        if !matches!(agent.stage, Stage::Waiting | Stage::Busy) {
            return;
        }
        if agent.deadline > now {
            let when = agent.deadline;
            self.arm(when, at, Due::Deadline);
            return;
        }
        agent.used = agent.block.to;
        agent.children.clear();
        self.end_run(at, out);
    }

    pub(super) fn arm_deadline(&mut self, at: At) {
        if self.leases() {
            let when = self.agent(at).deadline;
            self.arm(when, at, Due::Deadline);
        }
    }

    /// A representing node lost touch and asks whether this run still wants it.
    pub(super) fn rejoined(&mut self, at: At, from: NodeId, cid: Id, out: &mut LevelEffects<L>) {
        let agent = self.agent(at);
        let up = agent.up.as_ref();
        let current = up.is_some_and(|up| up.node == from && up.cid == cid);
        if !current || agent.stage == Stage::Idle {
            if self.may_disown(cid) {
                let used = UNKNOWN;
                self.send(at.lock, at.level, from, Word::Done { cid, used }, out);
            }
            return;
        }
        if agent.stage == Stage::Rising {
            self.ask_up(at, out);
            self.keep_up(at, out);
        }
    }

    /// What a run is for, if nothing else is known.
    pub(super) fn mode_of(&mut self, at: At) -> Mode {
        self.agent(at).mode.clone().unwrap_or(Mode::Exclusive)
    }
}

/// The tokens that all members of a quorum have reserved.
fn common_block(blocks: impl Iterator<Item = Block>) -> Block {
    let mut common = Block {
        from: Token(0),
        to: UNKNOWN,
    };
    for block in blocks {
        common.from = common.from.max(block.from);
        common.to = common.to.min(block.to);
    }
    common
}
