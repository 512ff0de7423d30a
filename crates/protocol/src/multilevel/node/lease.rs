//! Promises that end by themselves: renewed by whoever needs them, counted from when it asked.

use std::time::Duration;

use super::state::{Answer, Asked, At, Stage};
use super::{Due, LevelNode};
use crate::id::{NodeId, Token};
use crate::multilevel::api::LevelEffects;
use crate::multilevel::message::{Block, Id, LockKey, Place, Word};
use crate::multilevel::sight::Sight;

use super::arbiter::BLOCK;

fn shrunk(span: Duration, drift_ppm: u32) -> Duration {
    let nanos = span.as_nanos() * u128::from(1_000_000 - drift_ppm.min(500_000));
    Duration::from_nanos(u64::try_from(nanos / 1_000_000).unwrap_or(u64::MAX))
}

impl<L: LockKey, S: Sight> LevelNode<L, S> {
    /// A span as whoever was promised it counts it.
    pub(super) fn shrink(&self, span: Duration) -> Duration {
        shrunk(span, self.config.drift_ppm)
    }

    /// The span of which this much is left for whoever was promised it.
    pub(super) fn unshrink(&self, span: Duration) -> Duration {
        let rest = u128::from(1_000_000 - self.config.drift_ppm.min(500_000));
        let nanos = (span.as_nanos() * 1_000_000).div_ceil(rest);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// A span as whoever promised it waits for it to end.
    pub(super) fn stretch(&self, span: Duration) -> Duration {
        let nanos = span.as_nanos() * u128::from(1_000_000 + self.config.drift_ppm);
        Duration::from_nanos(u64::try_from(nanos.div_ceil(1_000_000)).unwrap_or(u64::MAX))
    }

    /// How often promises are renewed: all levels together lose an eighth of the span.
    pub(super) fn interval(&self, span: Duration) -> Duration {
        span / (8 * (u32::from(self.levels()) + 1))
    }

    pub(super) fn arm_upkeep(&mut self, at: At) {
        if !self.leases() || self.agent(at).upkeep {
            return;
        }
        self.agent(at).upkeep = true;
        let span = self.wanted_span(at);
        let when = self.now.mono + self.interval(span);
        self.arm(when, at, Due::Upkeep);
    }

    pub(super) fn upkeep(&mut self, at: At, out: &mut LevelEffects<L>) {
        if at.level > self.levels() {
            self.wish_upkeep(at.lock, out);
            return;
        }
        let agent = self.agent(at);
        agent.upkeep = false;
        let stage = agent.stage;
        if stage == Stage::Idle {
            return;
        }
        if at.level == 0 {
            self.renew_all(at, out);
        } else if stage != Stage::Asking {
            self.keep_up(at, out);
        }
        self.arm_upkeep(at);
    }

    /// Renews the permissions of the root that this run has: those whose lease is too short, and
    /// those with too few tokens.
    pub(super) fn renew_short(&mut self, at: At, out: &mut LevelEffects<L>) {
        let until = self.now.mono + self.need(at);
        let leases = self.leases();
        let drift_ppm = self.config.drift_ppm;
        let from = self.agent(at).block.from;
        self.renew(
            at,
            &|asked| {
                let short = leases && asked.fresh + shrunk(asked.span, drift_ppm) < until;
                !asked.renewing && (short || asked.block.to <= from)
            },
            out,
        );
    }

    /// Renews all permissions of the root that this run has.
    pub(super) fn renew_all(&mut self, at: At, out: &mut LevelEffects<L>) {
        self.renew(at, &|_| true, out);
    }

    fn renew(&mut self, at: At, which: &dyn Fn(&Asked) -> bool, out: &mut LevelEffects<L>) {
        let now = self.now.mono;
        let span = self.lease_span(at);
        let block = self.agent(at).block;
        let hint = if block.is_empty() && block.to > Token(0) {
            Token(block.from.0.saturating_add(BLOCK))
        } else {
            Token(0)
        };
        let mut renewals = Vec::new();
        for asked in &mut self.agent(at).asked {
            if matches!(asked.answer, Answer::Given(_)) && which(asked) {
                asked.renewing = true;
                asked.renewal += 1;
                asked.renewal_at = now;
                asked.renewal_span = span;
                renewals.push((asked.node, asked.rid, asked.renewal));
            }
        }
        for (node, rid, number) in renewals {
            let rid = self.own_id(rid);
            let word = Word::Renew {
                rid,
                number,
                hint,
                span,
            };
            self.send(at.lock, at.level, node, word, out);
        }
    }

    /// An arbiter of the root has renewed a permission, or has none to renew.
    pub(super) fn renewed(
        &mut self,
        at: At,
        from: NodeId,
        rid: Id,
        number: u64,
        block: Option<Block>,
        out: &mut LevelEffects<L>,
    ) {
        let own = rid.node == self.id && rid.life == self.life;
        let agent = self.agent(at);
        let stage = agent.stage;
        let asked = agent.asked.iter_mut();
        let asked = asked
            .into_iter()
            .find(|asked| own && asked.node == from && asked.rid == rid.counter);
        let Some(asked) = asked.filter(|asked| asked.renewal == number) else {
            return;
        };
        let Some(block) = block else {
            if matches!(asked.answer, Answer::Given(_)) {
                self.permission_lost(at, from, out);
            }
            return;
        };
        asked.renewing = false;
        asked.fresh = asked.renewal_at;
        asked.span = asked.renewal_span;
        asked.block.to = asked.block.to.max(block.to);
        match stage {
            Stage::Asking => self.check(at, out),
            Stage::Waiting | Stage::Busy => {
                let deadline = self.root_deadline(at);
                let agent = self.agent(at);
                agent.deadline = agent.deadline.max(deadline);
                let moving = agent.moving;
                self.extend(at, out);
                if moving {
                    self.check_move(at, out);
                }
            }
            Stage::Idle | Stage::Rising => {}
        }
    }

    /// An arbiter of the root does not know a permission any more.
    fn permission_lost(&mut self, at: At, from: NodeId, out: &mut LevelEffects<L>) {
        let agent = self.agent(at);
        if agent.stage == Stage::Asking {
            agent.asked.retain(|asked| asked.node != from);
            self.choose(at, false, out);
        } else {
            agent
                .asked
                .retain(|asked| asked.node != from || asked.counts);
            let counts = agent.asked.iter_mut().find(|asked| asked.node == from);
            if let Some(asked) = counts {
                asked.answer = Answer::Open;
            }
            self.mend(at, out);
        }
    }

    /// A member of the root's quorum is gone while consent is used: another quorum shall take
    /// its place before the lease ends.
    pub(super) fn mend(&mut self, at: At, out: &mut LevelEffects<L>) {
        let agent = self.agent(at);
        if at.level != 0 || !matches!(agent.stage, Stage::Waiting | Stage::Busy) {
            return;
        }
        agent.moving = true;
        let Some(chosen) = self.chosen_next(at) else {
            self.agent(at).blocked = true;
            return;
        };
        let agent = self.agent(at);
        agent.blocked = false;
        let to = agent.block.to;
        let lock = self.lock(at.lock);
        lock.seen = lock.seen.max(to);
        // Whoever is inside goes first: others only wait, and yield.
        let place = Place {
            clock: 0,
            node: self.id,
        };
        self.ask_members(at, &chosen, place, false, out);
        for asked in &mut self.agent(at).asked {
            asked.next = chosen.contains(&asked.node);
        }
        self.check_move(at, out);
    }

    /// Takes the new quorum if all its members have given their permissions.
    pub(super) fn check_move(&mut self, at: At, out: &mut LevelEffects<L>) {
        let agent = self.agent(at);
        let (moving, to, used) = (agent.moving, agent.block.to, agent.used);
        let ready =
            |asked: &Asked| matches!(asked.answer, Answer::Given(_)) && asked.block.to >= to;
        let mut next = agent.asked.iter().filter(|asked| asked.next);
        if !moving || !agent.asked.iter().any(|asked| asked.next) || !next.all(ready) {
            return;
        }
        // What was promised by the old quorum must be covered by the new one alone.
        let (deadline, drift_ppm) = (agent.deadline, self.config.drift_ppm);
        let short = move |asked: &Asked| asked.fresh + shrunk(asked.span, drift_ppm) < deadline;
        let mut next = self.agent(at).asked.iter().filter(|asked| asked.next);
        if next.any(short) {
            let due = |asked: &Asked| asked.next && !asked.renewing && short(asked);
            self.renew(at, &due, out);
            return;
        }
        let agent = self.agent(at);
        agent.moving = false;
        let asked = std::mem::take(&mut agent.asked);
        let (mut kept, dropped): (Vec<Asked>, Vec<Asked>) =
            asked.into_iter().partition(|asked| asked.next);
        for asked in &mut kept {
            asked.counts = true;
            asked.next = false;
        }
        agent.asked = kept;
        for old in dropped {
            let rid = self.own_id(old.rid);
            self.send(
                at.lock,
                at.level,
                old.node,
                Word::Release { rid, used },
                out,
            );
        }
        self.renew_all(at, out);
    }

    /// A child is still there.
    pub(super) fn keep(&mut self, at: At, cid: Id, number: u64, out: &mut LevelEffects<L>) {
        let agent = self.agent(at);
        let mut all = agent.children.iter_mut().chain(&mut agent.fifo);
        let Some(child) = all.find(|child| child.cid == cid) else {
            self.send(at.lock, at.level + 1, cid.node, Word::Rejoined { cid }, out);
            return;
        };
        child.echo = child.echo.max(number);
        self.repeat_consent(at, cid, out);
    }

    /// Tells the representing node that this run is still there.
    pub(super) fn keep_up(&mut self, at: At, out: &mut LevelEffects<L>) {
        let now = self.now.mono;
        // A child that came since may want it for longer.
        self.ask_longer(at, out);
        let Some(up) = &mut self.agent(at).up else {
            return;
        };
        let (node, cid) = (up.node, up.cid);
        let number = up.line.next(now);
        self.send(at.lock, at.level, node, Word::Keep { cid, number }, out);
    }
}
