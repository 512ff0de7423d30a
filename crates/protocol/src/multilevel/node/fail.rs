//! Nodes that fail, seem to fail, and come back.

use super::state::{Answer, At, Child, Stage};
use super::{Due, LevelNode};
use crate::id::{Incarnation, NodeId, Token};
use crate::lock::Mode;
use crate::multilevel::api::LevelEffects;
use crate::multilevel::message::{GrantId, Id, LockKey, Place, UNKNOWN, Word};
use crate::multilevel::plant::LevelPlant;
use crate::multilevel::sight::Sight;

/// Lives of a node that are over, or seem to be.
#[derive(Clone, Copy)]
struct Gone {
    node: NodeId,
    life: Incarnation,
}

impl Gone {
    fn has(self, id: Id) -> bool {
        id.node == self.node && id.life <= self.life
    }
}

impl<L: LockKey, S: Sight> LevelNode<L, S> {
    /// A life of a node has ended.
    pub(super) fn failed(&mut self, node: NodeId, life: Incarnation, out: &mut LevelEffects<L>) {
        if node == self.id {
            return;
        }
        self.sight.fails(node, life);
        self.all_gone(Gone { node, life }, out);
    }

    /// A node cannot be reached.
    pub(super) fn suspected(&mut self, node: NodeId, out: &mut LevelEffects<L>) {
        if node == self.id {
            return;
        }
        self.sight.suspect(node);
        let life = Incarnation(u64::MAX);
        self.all_gone(Gone { node, life }, out);
    }

    /// A message shows that a node lives in a life that is new here.
    pub(super) fn lives(&mut self, node: NodeId, life: Incarnation, out: &mut LevelEffects<L>) {
        self.sight.lives(node, life);
        let before = Incarnation(life.0.saturating_sub(1));
        self.sight.fails(node, before);
        self.all_gone(Gone { node, life: before }, out);
        self.retry(out);
    }

    /// A node can be reached.
    pub(super) fn alive(&mut self, node: NodeId, life: Incarnation, out: &mut LevelEffects<L>) {
        if node == self.id || life <= self.sight.ended(node) {
            return;
        }
        self.lives(node, life, out);
        if self.leases() {
            for lock in self.locks.places() {
                self.repeat(lock, node, out);
                self.rest(lock);
            }
        }
    }

    fn all_gone(&mut self, gone: Gone, out: &mut LevelEffects<L>) {
        for lock in self.locks.places() {
            if self.locks.get(lock).is_none() {
                continue;
            }
            for level in self.top()..=self.levels() {
                let at = At { lock, level };
                self.arbiter_loses(at, gone, out);
                self.children_lost(at, gone, out);
                self.permissions_lost(at, gone, out);
                self.parent_lost(at, gone, out);
            }
            self.wishes_gone(lock, gone.node, gone.life, out);
            self.rest(lock);
        }
    }

    /// Requests of the dead wait no more, and hold nothing. The queue comes first: nobody in it
    /// may be granted what the dead holder had.
    fn arbiter_loses(&mut self, at: At, gone: Gone, out: &mut LevelEffects<L>) {
        let keeps_queue = self.breaks(LevelPlant::QueueOfTheDead);
        let keeps_holder = self.breaks(LevelPlant::HolderOfTheDead);
        let arbiter = self.arbiter(at);
        if !keeps_queue {
            arbiter.queue.retain(|waiting| !gone.has(waiting.rid));
        }
        if let Some(holder) = arbiter.holder
            && gone.has(holder.rid)
            && !(keeps_holder && holder.inquiring)
        {
            self.holder_gone(at, holder.rid, out);
        }
    }

    /// Children of the dead wait no more. One that has consent may still have somebody inside
    /// below it: its promise must run out first.
    fn children_lost(&mut self, at: At, gone: Gone, out: &mut LevelEffects<L>) {
        if self.breaks(LevelPlant::DeadChild) {
            return;
        }
        let (leases, levels) = (self.leases(), self.levels());
        let no_wait = self.breaks(LevelPlant::NoWaitForChild);
        let again = self.breaks(LevelPlant::TokensAgain);
        let agent = self.agent(at);
        agent.fifo.retain(|child| !gone.has(child.cid));
        agent.pre.retain(|(cid, _)| !gone.has(*cid));
        let deadline = agent.deadline;
        let used = if again { Token(0) } else { agent.block.to };
        let lost: Vec<Child> = agent
            .children
            .iter()
            .filter(|child| gone.has(child.cid))
            .cloned()
            .collect();
        for child in lost {
            // Members of a group are inside at other nodes than the agent that serves them.
            let group = child.mode != Mode::Exclusive;
            let below = leases || at.level + u8::from(!group) < levels;
            if child.given.is_none() {
                self.child_done(at, child.cid, Token(0), out);
            } else if !below || no_wait {
                self.child_done(at, child.cid, used, out);
            } else if !leases {
                self.arm(deadline, at, Due::Child(child.cid));
            }
        }
    }

    /// Arbiters that died before they answered are replaced. A permission that was given counts
    /// on, except at the root if it must be renewed.
    fn permissions_lost(&mut self, at: At, gone: Gone, out: &mut LevelEffects<L>) {
        if self.breaks(LevelPlant::LostArbiter) {
            return;
        }
        let renews = at.level == 0 && self.leases();
        let down = self.sight.is_down(gone.node);
        let agent = self.agent(at);
        let stage = agent.stage;
        let asked = agent.asked.iter_mut().find(|asked| asked.node == gone.node);
        let Some(asked) = asked else {
            return;
        };
        if stage == Stage::Asking && std::mem::take(&mut asked.renewing) {
            // More tokens were asked for, and the answer will not come.
            if down {
                asked.answer = Answer::Open;
            } else {
                self.check(at, out);
                return;
            }
        }
        let given = matches!(asked.answer, Answer::Given(_));
        let rid = asked.rid;
        match agent.stage {
            Stage::Asking if down && (!given || renews) => {
                agent.moving = renews;
                self.choose(at, false, out);
            }
            Stage::Asking if !down && !given => self.ask_again(at, gone.node, rid, out),
            Stage::Waiting | Stage::Busy if renews && down => self.mend(at, out),
            _ => {}
        }
    }

    /// Repeats a request: the arbiter knows it by its number if it came.
    fn ask_again(&mut self, at: At, node: NodeId, rid: u64, out: &mut LevelEffects<L>) {
        let (hint, span) = self.request_terms(at);
        let agent = self.agent(at);
        let inside = !matches!(agent.stage, Stage::Asking);
        let clock = if inside { 0 } else { agent.clock };
        let place = Place {
            clock,
            node: self.id,
        };
        let word = Word::Request {
            place,
            rid: self.own_id(rid),
            hint,
            span,
        };
        self.send(at.lock, at.level, node, word, out);
    }

    /// A run without consent takes another representing node; one with consent that nobody has
    /// ends; one that serves a child never hands consent on.
    fn parent_lost(&mut self, at: At, gone: Gone, out: &mut LevelEffects<L>) {
        let stays = self.breaks(LevelPlant::LostParent);
        let agent = self.agent(at);
        let Some(up) = &agent.up else { return };
        if up.node != gone.node || up.life > gone.life {
            return;
        }
        match agent.stage {
            Stage::Asking | Stage::Rising if stays => {}
            Stage::Asking | Stage::Rising => self.pick_up(at, out),
            Stage::Waiting => self.end_run(at, out),
            Stage::Busy => agent.orphan = true,
            Stage::Idle => {}
        }
    }

    /// What found no quorum, or nobody to ask, tries again.
    fn retry(&mut self, out: &mut LevelEffects<L>) {
        for lock in self.locks.places() {
            if self.locks.get(lock).is_none() {
                continue;
            }
            for level in self.top()..=self.levels() {
                let at = At { lock, level };
                let announce = self.config.announce;
                let agent = self.agent(at);
                let (stage, alone) = (agent.stage, agent.up.is_none());
                if agent.blocked && stage == Stage::Asking {
                    self.choose(at, false, out);
                } else if agent.blocked {
                    self.mend(at, out);
                }
                let wants = stage == Stage::Rising || announce && stage == Stage::Asking;
                if wants && alone && level > 0 && self.agent(at).stage == stage {
                    self.pick_up(at, out);
                }
            }
            self.wishes_retry(lock, out);
            self.rest(lock);
        }
    }

    /// What was said to a node and by it may be lost: says it again, and asks about everything
    /// of it that is kept here.
    fn repeat(&mut self, lock: u32, node: NodeId, out: &mut LevelEffects<L>) {
        if self.locks.get(lock).is_none() {
            return;
        }
        for level in self.top()..=self.levels() {
            let at = At { lock, level };
            self.repeat_requests(at, node, out);
            self.repeat_asks(at, node, out);
            let arbiter = self.arbiter(at);
            let mut words = Vec::new();
            if let Some(holder) = arbiter.holder.as_mut()
                && holder.rid.node == node
            {
                holder.inquiring = true;
                words.push((level, holder.rid, Some(holder.grant)));
            }
            for waiting in arbiter.queue.iter().filter(|other| other.rid.node == node) {
                words.push((level, waiting.rid, Some(GrantId::default())));
            }
            let agent = self.agent(at);
            let children = agent.children.iter().chain(&agent.fifo);
            let cids = children.map(|child| child.cid);
            let cids = cids.chain(agent.pre.iter().map(|(cid, _)| *cid));
            for cid in cids.filter(|cid| cid.node == node) {
                words.push((level + 1, cid, None));
            }
            for (level, id, grant) in words {
                let word = match grant {
                    Some(grant) => Word::Recovered { rid: id, grant },
                    None => Word::Rejoined { cid: id },
                };
                self.send(lock, level, node, word, out);
            }
        }
        self.wishes_repeat(lock, node, out);
    }

    fn repeat_requests(&mut self, at: At, node: NodeId, out: &mut LevelEffects<L>) {
        let agent = self.agent(at);
        let open = |answer: Answer| !matches!(answer, Answer::Given(_));
        let asked = agent.asked.iter();
        let asked = asked
            .into_iter()
            .find(|asked| asked.node == node && open(asked.answer));
        if let Some(rid) = asked.map(|asked| asked.rid)
            && agent.stage != Stage::Idle
        {
            self.ask_again(at, node, rid, out);
        }
    }

    fn repeat_asks(&mut self, at: At, node: NodeId, out: &mut LevelEffects<L>) {
        let mode = self.mode_of(at);
        let agent = self.agent(at);
        let stage = agent.stage;
        let Some(up) = agent.up.as_ref().filter(|up| up.node == node) else {
            return;
        };
        let cid = up.cid;
        match stage {
            Stage::Asking => {
                self.send(at.lock, at.level, node, Word::Announce { cid, mode }, out);
            }
            Stage::Rising => {
                self.ask_up(at, out);
                self.keep_up(at, out);
            }
            Stage::Waiting | Stage::Busy => self.keep_up(at, out),
            Stage::Idle => {}
        }
    }

    /// An arbiter restarted, or lost touch, and asks about a request of this node.
    pub(super) fn recovered(
        &mut self,
        at: At,
        from: NodeId,
        rid: Id,
        grant: GrantId,
        out: &mut LevelEffects<L>,
    ) {
        if rid.node != self.id {
            return;
        }
        let releases = self.breaks(LevelPlant::ReleaseAfterRestart);
        let used = UNKNOWN;
        if rid.life != self.life {
            // Somebody below may be inside by a consent of that life: the permission must run
            // out by itself.
            if releases {
                self.send(at.lock, at.level, from, Word::Release { rid, used }, out);
            }
            return;
        }
        let agent = self.agent(at);
        let stage = agent.stage;
        let asked = agent.asked.iter_mut();
        let asked = asked
            .into_iter()
            .find(|asked| asked.node == from && asked.rid == rid.counter);
        let Some(asked) = asked.filter(|_| stage != Stage::Idle) else {
            self.send(at.lock, at.level, from, Word::Release { rid, used }, out);
            return;
        };
        if stage != Stage::Asking || grant == GrantId::default() {
            return;
        }
        if let Answer::Given(given) = asked.answer
            && given > grant
        {
            return;
        }
        asked.answer = Answer::Open;
        asked.yielded = asked.yielded.max(grant);
        self.send(at.lock, at.level, from, Word::Yield { rid, grant }, out);
    }
}
