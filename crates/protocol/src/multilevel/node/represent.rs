//! The representing node's part of an agent: it wants consent for children, and hands it on.

use std::time::Duration;

use super::arbiter::TOMBS_MAX;
use super::state::{At, Child, Stage};
use super::{Due, LevelNode};
use crate::id::Token;
use crate::lock::Mode;
use crate::multilevel::api::LevelEffects;
use crate::multilevel::message::{Block, Id, LockKey, UNKNOWN};
use crate::multilevel::plant::LevelPlant;
use crate::multilevel::sight::Sight;

impl<L: LockKey, S: Sight> LevelNode<L, S> {
    pub(super) fn announce(&mut self, at: At, cid: Id, mode: Mode, out: &mut LevelEffects<L>) {
        let restarts = self.breaks(LevelPlant::AnnounceRestarts);
        let queue_max = self.config.queue_max;
        let agent = self.agent(at);
        let known = agent.knows(cid) || agent.pre.iter().any(|(other, _)| *other == cid);
        if known || agent.tombs.contains(&cid) || agent.pre.len() >= queue_max {
            return;
        }
        agent.pre.push((cid, mode));
        if agent.stage == Stage::Idle || restarts && agent.stage == Stage::Waiting {
            self.start_run(at, out);
        }
    }

    pub(super) fn ask(
        &mut self,
        at: At,
        cid: Id,
        mode: Mode,
        span: Duration,
        out: &mut LevelEffects<L>,
    ) {
        let queue_max = self.config.queue_max;
        let span = span.min(self.config.lease_max);
        let agent = self.agent(at);
        agent.pre.retain(|(other, _)| *other != cid);
        if agent.tombs.contains(&cid) || agent.fifo.len() >= queue_max {
            return;
        }
        if agent.knows(cid) {
            let mut all = agent.children.iter_mut().chain(&mut agent.fifo);
            if let Some(child) = all.find(|child| child.cid == cid) {
                child.span = child.span.max(span);
            }
            self.repeat_consent(at, cid, out);
            return;
        }
        let child = Child {
            cid,
            mode,
            span,
            echo: 0,
            given: None,
        };
        self.welcome(at, child, out);
    }

    /// Serves a child at once if nobody else is served, or if it may join; else it waits.
    pub(super) fn welcome(&mut self, at: At, child: Child, out: &mut LevelEffects<L>) {
        let at_once = self.breaks(LevelPlant::ConsentAtOnce);
        if self.joins(at, &child) {
            let agent = self.agent(at);
            agent.children.push(child);
            if agent.stage == Stage::Busy {
                agent.passes += 1;
                self.give(at, out);
            } else {
                self.ask_longer(at, out);
            }
            return;
        }
        let agent = self.agent(at);
        if !agent.children.is_empty() {
            agent.fifo.push_back(child);
            return;
        }
        agent.mode = Some(child.mode.clone());
        agent.children.push(child);
        match agent.stage {
            Stage::Idle => self.start_run(at, out),
            Stage::Asking | Stage::Rising if at_once => self.give_at_once(at, out),
            // The run that is under way now belongs to this child.
            Stage::Asking => {}
            Stage::Rising => self.ask_for_mode(at, out),
            Stage::Waiting => self.consented(at, out),
            Stage::Busy => self.child_next(at, out),
        }
    }

    /// Gives consent that is not there, as the published text does: it knows neither tokens nor
    /// ends of a consent that would betray it.
    fn give_at_once(&mut self, at: At, out: &mut LevelEffects<L>) {
        let deadline = self.now.mono + self.config.lease;
        let agent = self.agent(at);
        agent.deadline = deadline;
        agent.block = Block {
            from: Token(0),
            to: UNKNOWN,
        };
        self.give(at, out);
    }

    /// Whether the consent that was asked for may be given to whoever is served now. Consent for
    /// a group is shared with others of the group. Consent for one alone is good for anybody if
    /// it is a lease; else it is believed to end with whom it was given to, and others of a group
    /// are inside at other nodes.
    pub(super) fn mode_fits(&mut self, at: At, mode: &Mode) -> bool {
        let leases = self.leases();
        let agent = self.agent(at);
        if *mode != Mode::Exclusive && at.level == 0 && !leases {
            return agent.asked.iter().all(|asked| !asked.span.is_zero());
        }
        let held = agent.up.as_ref().and_then(|up| up.mode.as_ref());
        held.is_none_or(|held| leases && *held == Mode::Exclusive || held == mode)
    }

    /// Asks again if consent was asked for another group than it is needed for.
    fn ask_for_mode(&mut self, at: At, out: &mut LevelEffects<L>) {
        let mode = self.agent(at).mode.clone().unwrap_or(Mode::Exclusive);
        if self.mode_fits(at, &mode) {
            self.ask_longer(at, out);
        } else {
            self.pick_up(at, out);
        }
    }

    /// Whether a child may be served together with those that are served.
    fn joins(&mut self, at: At, child: &Child) -> bool {
        let any = self.breaks(LevelPlant::AnyGroup);
        let bound = self.passes_max(at).saturating_mul(4);
        let longer = self.leases() && child.span > self.wanted_span(at);
        let fits = self.lease_fits(at) && !longer;
        let mode = &child.mode;
        let agent = self.agent(at);
        let Some(first) = agent.children.first() else {
            return false;
        };
        let same = first.mode == *mode && *mode != Mode::Exclusive;
        let open = agent.fifo.is_empty() && !agent.orphan && agent.passes < bound;
        (same || any && agent.stage == Stage::Busy)
            && open
            && (agent.stage != Stage::Busy || fits && !agent.block.is_empty())
    }

    /// Serves those at the head of the queue that may join the child that is served.
    pub(super) fn join_waiting(&mut self, at: At) {
        let agent = self.agent(at);
        let Some(mode) = agent.children.first().map(|child| child.mode.clone()) else {
            return;
        };
        if mode == Mode::Exclusive {
            return;
        }
        while agent.fifo.front().is_some_and(|next| next.mode == mode) {
            agent.children.extend(agent.fifo.pop_front());
        }
    }

    pub(super) fn done(&mut self, at: At, cid: Id, used: Token, out: &mut LevelEffects<L>) {
        let any = self.breaks(LevelPlant::AnyDone);
        let tombstones = self.config.tombstones;
        let agent = self.agent(at);
        let served = agent.children.iter().any(|child| child.cid == cid);
        if served || any && !agent.children.is_empty() {
            let cid = if served { cid } else { agent.children[0].cid };
            let used = used.min(agent.block.to);
            self.child_done(at, cid, used, out);
            return;
        }
        let before = agent.fifo.len() + agent.pre.len();
        agent.fifo.retain(|child| child.cid != cid);
        agent.pre.retain(|(other, _)| *other != cid);
        if tombstones && before == agent.fifo.len() + agent.pre.len() {
            if agent.tombs.len() == TOMBS_MAX {
                agent.tombs.pop_front();
            }
            agent.tombs.push_back(cid);
        }
    }

    /// A child that is served is done, or has given up.
    pub(super) fn child_done(&mut self, at: At, cid: Id, used: Token, out: &mut LevelEffects<L>) {
        let agent = self.agent(at);
        agent.used = agent.used.max(used);
        agent.block.from = agent.block.from.max(used);
        agent.children.retain(|child| child.cid != cid);
        if agent.children.is_empty() && agent.stage != Stage::Idle {
            self.child_next(at, out);
        }
    }

    /// Nobody is served any more: hands consent on, waits for a child that announced itself, or
    /// ends the run.
    fn child_next(&mut self, at: At, out: &mut LevelEffects<L>) {
        let bound = self.passes_max(at);
        let fits = self.lease_fits(at);
        let orphan_passes = self.breaks(LevelPlant::OrphanPasses);
        let stale = self.now.mono + self.config.lease;
        let agent = self.agent(at);
        if orphan_passes && agent.orphan {
            // The published text knows no end of a consent.
            agent.deadline = stale;
        }
        if agent.stage != Stage::Busy {
            if let Some(next) = agent.fifo.pop_front() {
                agent.mode = Some(next.mode.clone());
                agent.children.push(next);
                self.join_waiting(at);
            } else if agent.pre.is_empty() {
                self.end_run(at, out);
                return;
            } else {
                agent.mode = Some(agent.pre.remove(0).1);
            }
            let mode = self.mode_of(at);
            if self.agent(at).stage == Stage::Rising {
                self.ask_for_mode(at, out);
            } else if at.level == 0 && !self.mode_fits(at, &mode) {
                self.end_run(at, out);
            }
            return;
        }
        let next = agent.children.first().or(agent.fifo.front());
        let mode = next.map(|next| next.mode.clone());
        let fits = fits && mode.is_none_or(|mode| self.mode_fits(at, &mode));
        let agent = self.agent(at);
        let may = (!agent.orphan || orphan_passes)
            && agent.passes < bound
            && (fits || orphan_passes)
            && !agent.block.is_empty();
        if may && !agent.children.is_empty() {
            agent.passes += 1;
            self.give(at, out);
        } else if may && let Some(next) = agent.fifo.pop_front() {
            agent.passes += 1;
            agent.mode = Some(next.mode.clone());
            agent.children.push(next);
            self.join_waiting(at);
            self.give(at, out);
            self.ask_longer(at, out);
        } else if may && !self.agent(at).pre.is_empty() && self.lingers(at) {
            let agent = self.agent(at);
            agent.passes += 1;
            agent.lingers += 1;
            let span = self.config.threshold2;
            self.wait(at, span);
        } else {
            self.end_run(at, out);
        }
    }

    /// How many more children one consent may serve.
    pub(super) fn passes_max(&self, at: At) -> u32 {
        if self.breaks(LevelPlant::NoBound) {
            return u32::MAX;
        }
        let size = self.config.topology.clusters().size(self.cluster(at.level));
        self.config.passes.unwrap_or(size as u32)
    }

    /// Whether to wait for a child that announced itself, instead of giving consent back: less
    /// likely near the root, for few announcements, and with every time in a run.
    fn lingers(&mut self, at: At) -> bool {
        let levels = self.levels();
        if self.config.linger <= 0.0 || at.level >= levels {
            return false;
        }
        let agent = self.agent(at);
        let announced = agent.pre.len() as f64;
        let times = agent.lingers.min(1000) as i32;
        let depth = f64::from(at.level + 1) / f64::from(levels);
        let chance =
            self.config.linger * depth * (announced / (announced + 1.0)) * 0.5_f64.powi(times);
        self.rng.chance(chance.clamp(0.0, 1.0))
    }

    /// Keeps consent for a child that is expected.
    pub(super) fn wait(&mut self, at: At, span: Duration) {
        let when = self.now.mono + span;
        let agent = self.agent(at);
        agent.stage = Stage::Waiting;
        agent.epoch += 1;
        let epoch = agent.epoch;
        self.arm(when, at, Due::Wait(epoch));
    }

    /// A child that was expected has not come in time.
    pub(super) fn waited(&mut self, at: At, epoch: u64, out: &mut LevelEffects<L>) {
        let stays = self.breaks(LevelPlant::TimerStays);
        let elsewhere = self.breaks(LevelPlant::TimeoutAtLeaf);
        let levels = self.levels();
        let agent = self.agent(at);
        let due = agent.stage == Stage::Waiting && agent.epoch == epoch;
        let late = stays && matches!(agent.stage, Stage::Waiting | Stage::Busy);
        if !(due || late) {
            return;
        }
        agent.pre.clear();
        if !due {
            agent.children.clear();
        }
        if elsewhere && at.level < levels {
            let asked = std::mem::take(&mut self.agent(at).asked);
            for old in asked {
                let rid = self.own_id(old.rid);
                let word = crate::multilevel::message::Word::Release {
                    rid,
                    used: Token(0),
                };
                self.send(at.lock, levels, old.node, word, out);
            }
        }
        self.end_run(at, out);
    }
}
