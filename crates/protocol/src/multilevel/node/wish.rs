//! What this node itself wants: a child of the agent at the last level.

use std::sync::Arc;
use std::time::Duration;

use super::agent::hash_of;
use super::state::{At, Child, Line, Wish};
use super::{Due, LevelNode};
use crate::id::{Incarnation, NodeId, Token};
use crate::lock::Mode;
use crate::multilevel::api::{LevelEffects, LevelEvent};
use crate::multilevel::message::{Block, Id, LockKey, UNKNOWN, Until, Word};
use crate::multilevel::plant::LevelPlant;
use crate::multilevel::sight::Sight;
use crate::time::Instant;

impl<L: LockKey, S: Sight> LevelNode<L, S> {
    pub(super) fn want(
        &mut self,
        key: &L,
        wish: u64,
        mode: Mode,
        span: Duration,
        out: &mut LevelEffects<L>,
    ) {
        let lock = self.lock_of(key);
        let room = |lock: &u32| {
            let kept = self.locks.get(*lock);
            kept.is_some_and(|kept| kept.wishes.len() < self.config.queue_max)
        };
        let Some(lock) = lock.filter(room) else {
            let lock = key.clone();
            out.events.push(LevelEvent::Refused { lock, wish });
            return;
        };
        if self
            .lock(lock)
            .wishes
            .iter()
            .any(|other| other.number == wish)
        {
            return;
        }
        let cid = self.fresh_id();
        let span = span.min(self.config.lease_max);
        self.lock(lock).wishes.push(Wish {
            number: wish,
            cid,
            mode,
            span,
            at: None,
            life: Incarnation(0),
            line: Line::default(),
            inside: None,
        });
        self.wish_asks(lock, cid, out);
        self.rest(lock);
    }

    fn wish(&mut self, lock: u32, cid: Id) -> Option<&mut Wish> {
        let kept = self.locks.get_mut(lock)?;
        kept.wishes.iter_mut().find(|wish| wish.cid == cid)
    }

    /// Asks an agent: a wish to be alone the own one, a wish for a group the one where the
    /// cluster's members of the group meet.
    pub(super) fn wish_asks(&mut self, lock: u32, cid: Id, out: &mut LevelEffects<L>) {
        let (now, level, own) = (self.now.mono, self.levels(), self.id);
        let spread = self.lock(lock).spread;
        let Some(wish) = self.wish(lock, cid) else {
            return;
        };
        let (mode, span) = (wish.mode.clone(), wish.span);
        let node = if mode == Mode::Exclusive {
            Some(self.id)
        } else {
            let topology = Arc::clone(&self.config.topology);
            let members = topology.clusters().members(self.cluster(level));
            self.rendezvous(members, spread ^ hash_of(&mode))
        };
        let life = node.map_or(Incarnation(0), |node| self.sight.newest(node));
        let Some(wish) = self.wish(lock, cid) else {
            return;
        };
        wish.at = node;
        wish.life = life;
        let Some(node) = node else { return };
        if node == own {
            let child = Child {
                cid,
                mode,
                span,
                echo: 0,
                given: None,
            };
            self.welcome(At { lock, level }, child, out);
            return;
        }
        wish.line.asked(now);
        self.send(lock, level + 1, node, Word::Ask { cid, mode, span }, out);
        self.arm_wishes(lock);
    }

    fn arm_wishes(&mut self, lock: u32) {
        if !self.leases() || std::mem::replace(&mut self.lock(lock).upkeep, true) {
            return;
        }
        let spans = self.lock(lock).wishes.iter().map(|wish| wish.span);
        let span = spans.max().unwrap_or_default().max(self.config.lease);
        let level = self.levels() + 1;
        let when = self.now.mono + self.interval(span);
        self.arm(when, At { lock, level }, Due::Upkeep);
    }

    pub(super) fn wish_upkeep(&mut self, lock: u32, out: &mut LevelEffects<L>) {
        let own = self.id;
        self.lock(lock).upkeep = false;
        let wishes = self.lock(lock).wishes.iter();
        let away = wishes.filter(|wish| wish.at.is_some_and(|at| at != own));
        let away: Vec<Id> = away.map(|wish| wish.cid).collect();
        for cid in &away {
            self.wish_keeps(lock, *cid, out);
        }
        if !away.is_empty() {
            self.arm_wishes(lock);
        }
    }

    pub(super) fn wish_keeps(&mut self, lock: u32, cid: Id, out: &mut LevelEffects<L>) {
        let (now, level) = (self.now.mono, self.levels());
        let Some(wish) = self.wish(lock, cid) else {
            return;
        };
        let Some(node) = wish.at else { return };
        let number = wish.line.next(now);
        self.send(lock, level + 1, node, Word::Keep { cid, number }, out);
    }

    pub(super) fn leave(&mut self, key: &L, wish: u64, used: Token, out: &mut LevelEffects<L>) {
        let Some(lock) = self.by_key.get(key).copied() else {
            return;
        };
        let wishes = &mut self.lock(lock).wishes;
        let Some(place) = wishes.iter().position(|other| other.number == wish) else {
            return;
        };
        let wish = wishes.remove(place);
        self.wish_leaves(lock, &wish, used, out);
        self.rest(lock);
    }

    fn wish_leaves(&mut self, lock: u32, wish: &Wish, used: Token, out: &mut LevelEffects<L>) {
        let level = self.levels();
        let kept = self.lock(lock);
        if used < UNKNOWN {
            kept.seen = kept.seen.max(used);
        }
        let cid = wish.cid;
        match wish.at {
            Some(node) if node == self.id => self.done(At { lock, level }, cid, used, out),
            Some(node) => self.send(lock, level + 1, node, Word::Done { cid, used }, out),
            None => {}
        }
    }

    /// The own agent gives consent.
    pub(super) fn wish_granted(
        &mut self,
        lock: u32,
        cid: Id,
        block: Block,
        until: Instant,
        out: &mut LevelEffects<L>,
    ) {
        let leases = self.leases();
        let key = self.lock(lock).key.clone();
        let level = self.levels();
        let Some(wish) = self.wish(lock, cid) else {
            return;
        };
        if wish.inside.is_some() {
            return;
        }
        wish.inside = Some(until);
        let wish = wish.number;
        out.events.push(LevelEvent::Granted {
            lock: key,
            wish,
            block,
            until,
        });
        if leases {
            self.arm(until, At { lock, level }, Due::Wish(cid));
        }
    }

    pub(super) fn wish_extended(
        &mut self,
        lock: u32,
        cid: Id,
        until: Instant,
        out: &mut LevelEffects<L>,
    ) {
        let key = self.lock(lock).key.clone();
        let Some(wish) = self.wish(lock, cid) else {
            return;
        };
        if wish.inside.is_none_or(|inside| inside >= until) {
            return;
        }
        wish.inside = Some(until);
        let wish = wish.number;
        out.events.push(LevelEvent::Extended {
            lock: key,
            wish,
            until,
        });
    }

    /// Consent of an agent at another node, or a longer one.
    pub(super) fn wish_consent(
        &mut self,
        lock: u32,
        from: NodeId,
        cid: Id,
        until: Until,
        block: Block,
        out: &mut LevelEffects<L>,
    ) {
        let (now, level, leases) = (self.now.mono, self.levels(), self.leases());
        let counted_late = self.breaks(LevelPlant::LeaseFromAnswer);
        let (unknown, least) = (UNKNOWN, self.config.lease);
        let wish = self.wish(lock, cid).filter(|wish| wish.at == Some(from));
        let Some(wish) = wish else {
            if self.may_disown(cid) {
                let used = unknown;
                self.send(lock, level + 1, from, Word::Done { cid, used }, out);
            }
            return;
        };
        let inside = wish.inside.is_some();
        if !inside && block.is_empty() {
            // Others of the group were lost meanwhile, and no token is left.
            self.wish_again(lock, cid, from, out);
            return;
        }
        let Some(wish) = self.wish(lock, cid) else {
            return;
        };
        let need = wish.span.max(least) / 2;
        let until = match until {
            Until::At(until) => until,
            Until::For { span, .. } if counted_late => now + span,
            Until::For { echo, span } => {
                let sent = wish.line.sent(echo);
                let span = self.shrink(span);
                sent.map_or(Instant::ZERO, |sent| sent + span)
            }
        };
        if inside {
            self.wish_extended(lock, cid, until, out);
        } else if !leases && now + self.config.inside_max > until {
            // It came too late to be of use: another is asked for.
            self.wish_again(lock, cid, from, out);
        } else if !leases || now + need <= until {
            self.wish_granted(lock, cid, block, until, out);
        }
    }

    /// Gives a consent back and asks anew.
    fn wish_again(&mut self, lock: u32, old: Id, from: NodeId, out: &mut LevelEffects<L>) {
        let level = self.levels();
        let cid = self.fresh_id();
        if let Some(wish) = self.wish(lock, old) {
            wish.cid = cid;
            wish.line = Line::default();
        }
        let used = Token(0);
        self.send(lock, level + 1, from, Word::Done { cid: old, used }, out);
        self.wish_asks(lock, cid, out);
    }

    /// A wish's time has run out.
    pub(super) fn wish_ends(&mut self, lock: u32, cid: Id, out: &mut LevelEffects<L>) {
        let (now, level) = (self.now.mono, self.levels());
        let Some(until) = self.wish(lock, cid).and_then(|wish| wish.inside) else {
            return;
        };
        if until > now {
            self.arm(until, At { lock, level }, Due::Wish(cid));
            return;
        }
        let kept = self.lock(lock);
        let key = kept.key.clone();
        let place = kept.wishes.iter().position(|wish| wish.cid == cid);
        let Some(place) = place else { return };
        let wish = kept.wishes.remove(place);
        out.events.push(LevelEvent::Lost {
            lock: key,
            wish: wish.number,
        });
        self.wish_leaves(lock, &wish, UNKNOWN, out);
    }

    /// The agent that a wish asked lost touch and asks whether it is still wanted.
    pub(super) fn wish_rejoined(
        &mut self,
        lock: u32,
        from: NodeId,
        cid: Id,
        out: &mut LevelEffects<L>,
    ) {
        let level = self.levels();
        let wish = self.wish(lock, cid).filter(|wish| wish.at == Some(from));
        if let Some(wish) = wish {
            if wish.inside.is_none() {
                let (mode, span) = (wish.mode.clone(), wish.span);
                self.send(lock, level + 1, from, Word::Ask { cid, mode, span }, out);
                self.wish_keeps(lock, cid, out);
            }
            return;
        }
        if self.may_disown(cid) {
            let used = UNKNOWN;
            self.send(lock, level + 1, from, Word::Done { cid, used }, out);
        }
    }

    /// The node that some wishes asked is gone: those that wait ask another, those inside are
    /// inside for the last time.
    pub(super) fn wishes_gone(
        &mut self,
        lock: u32,
        node: NodeId,
        life: Incarnation,
        out: &mut LevelEffects<L>,
    ) {
        if node == self.id {
            return;
        }
        let mut again = Vec::new();
        for wish in &self.lock(lock).wishes {
            if wish.at != Some(node) || wish.life > life {
                continue;
            }
            if wish.inside.is_none() {
                again.push(wish.cid);
            }
        }
        for old in again {
            // A new pairing: the old one may still be answered.
            let cid = self.fresh_id();
            if let Some(wish) = self.wish(lock, old) {
                wish.cid = cid;
                wish.line = Line::default();
            }
            self.wish_asks(lock, cid, out);
        }
    }

    /// Wishes that found nobody to ask try again.
    pub(super) fn wishes_retry(&mut self, lock: u32, out: &mut LevelEffects<L>) {
        let wishes = self.lock(lock).wishes.iter();
        let open = wishes.filter(|wish| wish.at.is_none());
        let open: Vec<Id> = open.map(|wish| wish.cid).collect();
        for cid in open {
            self.wish_asks(lock, cid, out);
        }
    }

    /// What wishes said to a node may be lost: they say it again.
    pub(super) fn wishes_repeat(&mut self, lock: u32, node: NodeId, out: &mut LevelEffects<L>) {
        let level = self.levels();
        let wishes = self.lock(lock).wishes.iter();
        let there = wishes.filter(|wish| wish.at == Some(node));
        let there: Vec<Id> = there.map(|wish| wish.cid).collect();
        for cid in there {
            let Some(wish) = self.wish(lock, cid) else {
                continue;
            };
            if wish.inside.is_none() {
                let (mode, span) = (wish.mode.clone(), wish.span);
                self.send(lock, level + 1, node, Word::Ask { cid, mode, span }, out);
            }
            self.wish_keeps(lock, cid, out);
        }
    }
}
