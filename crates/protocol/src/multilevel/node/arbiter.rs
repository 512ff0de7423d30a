//! The arbiter of a cluster's member: one permission, given to one request at a time.

use std::time::Duration;

use super::state::{At, Holder, Waiting};
use super::{Due, LevelNode};
use crate::id::Token;
use crate::lock::Restart;
use crate::multilevel::api::LevelEffects;
use crate::multilevel::message::{Block, GrantId, Id, LockKey, Place, Word};
use crate::multilevel::plant::LevelPlant;
use crate::multilevel::record::{Kept, LevelRecord};
use crate::multilevel::sight::Sight;
use crate::time::Wall;

/// How far above its wall clock an arbiter of the root reserves tokens: time itself moves all
/// arbiters on, so that one that was not asked for long has tokens in common with the others.
const LEAD: u64 = 1 << 20;
/// How many tokens a grant of the root reserves at least.
pub(super) const BLOCK: u64 = 1 << 10;
/// How far ahead of its need a root's arbiter promises tokens on disk, if grants are not there.
const CEILING_STEP: u64 = 1 << 22;
/// A wish for tokens further ahead than this is not followed.
const AHEAD_MAX: u64 = 1 << 40;
/// Ends that came before their beginnings, remembered per lock and level.
pub(super) const TOMBS_MAX: usize = 64;

impl<L: LockKey, S: Sight> LevelNode<L, S> {
    pub(super) fn request(
        &mut self,
        at: At,
        place: Place,
        rid: Id,
        hint: Token,
        span: Duration,
        out: &mut LevelEffects<L>,
    ) {
        let queue_max = self.config.queue_max;
        let span = span.min(self.config.lease_max);
        let arbiter = self.arbiter(at);
        if let Some(tomb) = arbiter.tombs.iter().position(|tomb| *tomb == rid) {
            arbiter.tombs.remove(tomb);
            return;
        }
        if arbiter.queue.iter().any(|other| other.rid == rid) {
            return;
        }
        if let Some(holder) = &arbiter.holder
            && holder.rid == rid
        {
            // It was asked again because the answer may be lost.
            let (grant, block) = (holder.grant, holder.block);
            self.send(
                at.lock,
                at.level,
                rid.node,
                Word::Reply { rid, grant, block },
                out,
            );
            return;
        }
        if arbiter.queue.len() >= queue_max {
            return;
        }
        let waiting = Waiting {
            place,
            rid,
            hint,
            span,
        };
        let before = |other: &Waiting| other.place > place;
        let spot = arbiter.queue.partition_point(before);
        arbiter.queue.insert(spot, waiting);
        let Some(holder) = &mut arbiter.holder else {
            self.grant_next(at, out);
            return;
        };
        if place < holder.place && !holder.inquiring {
            holder.inquiring = true;
            let (rid, grant) = (holder.rid, holder.grant);
            let word = Word::Inquire { rid, grant };
            self.send(at.lock, at.level, rid.node, word, out);
        }
    }

    /// Gives the permission to the best request, if it is free.
    pub(super) fn grant_next(&mut self, at: At, out: &mut LevelEffects<L>) {
        let root = at.level == 0;
        if root && self.now.mono < self.pause {
            let pause = self.pause;
            self.arm(pause, at, Due::Pause);
            return;
        }
        self.counter += 1;
        let grant = GrantId {
            life: self.life,
            counter: self.counter,
        };
        let wall = self.now.wall;
        let arbiter = self.arbiter(at);
        if arbiter.holder.is_some() {
            return;
        }
        let Some(best) = arbiter.queue.pop() else {
            return;
        };
        let (rid, place, span) = (best.rid, best.place, best.span);
        let block = if root {
            reserve(arbiter.floor, best.hint, wall)
        } else {
            Block::default()
        };
        let until = self.now.mono + self.stretch(span);
        self.arbiter(at).holder = Some(Holder {
            place,
            rid,
            grant,
            inquiring: false,
            block,
            span,
            until,
        });
        if root {
            self.keep_grant(at, out);
            if self.leases() {
                self.arm(until, at, Due::Holder(rid));
            }
        }
        let word = Word::Reply { rid, grant, block };
        self.send(at.lock, at.level, rid.node, word, out);
    }

    /// Writes what must be on disk before the root's permission leaves.
    fn keep_grant(&mut self, at: At, out: &mut LevelEffects<L>) {
        let Some(holder) = self.arbiter(at).holder else {
            return;
        };
        let durable = self.config.restart == Restart::Durable;
        if durable {
            // The record of the grant says it.
            self.ceiling = self.ceiling.max(holder.block.to);
        }
        if holder.block.to > self.ceiling || holder.span > self.lease {
            let step = if durable { 0 } else { CEILING_STEP };
            let ceiling = Token(holder.block.to.0.saturating_add(step));
            self.ceiling = self.ceiling.max(ceiling);
            self.lease = self.lease.max(holder.span);
            let (ceiling, lease) = (self.ceiling, self.lease);
            self.persist(LevelRecord::Promise { ceiling, lease }, out);
            self.hold = self.written;
        }
        if durable {
            let kept = Kept {
                rid: holder.rid,
                place: holder.place,
                grant: holder.grant,
                block: holder.block,
                span: holder.span,
            };
            let key = self.lock(at.lock).key.clone();
            self.persist(LevelRecord::Grant(key, kept), out);
            self.hold = self.written;
        }
    }

    pub(super) fn release(&mut self, at: At, rid: Id, used: Token, out: &mut LevelEffects<L>) {
        let tombstones = self.config.tombstones;
        let arbiter = self.arbiter(at);
        match &arbiter.holder {
            Some(holder) if holder.rid == rid => {
                let used = used.min(holder.block.to);
                self.free(at, used, out);
            }
            _ => {
                let before = arbiter.queue.len();
                arbiter.queue.retain(|other| other.rid != rid);
                if tombstones && before == arbiter.queue.len() {
                    if arbiter.tombs.len() == TOMBS_MAX {
                        arbiter.tombs.pop_front();
                    }
                    arbiter.tombs.push_back(rid);
                }
            }
        }
    }

    pub(super) fn yielded(&mut self, at: At, rid: Id, grant: GrantId, out: &mut LevelEffects<L>) {
        let any = self.breaks(LevelPlant::AnyYield);
        let arbiter = self.arbiter(at);
        let Some(holder) = arbiter.holder else {
            return;
        };
        if !any && (holder.rid != rid || holder.grant != grant) {
            return;
        }
        let waiting = Waiting {
            place: holder.place,
            rid: holder.rid,
            hint: Token(0),
            span: holder.span,
        };
        let before = |other: &Waiting| other.place > waiting.place;
        let spot = arbiter.queue.partition_point(before);
        arbiter.queue.insert(spot, waiting);
        self.free(at, Token(0), out);
    }

    /// Takes the permission back and gives it to the next.
    pub(super) fn free(&mut self, at: At, used: Token, out: &mut LevelEffects<L>) {
        let arbiter = self.arbiter(at);
        if arbiter.holder.take().is_none() {
            return;
        }
        arbiter.floor = arbiter.floor.max(used);
        if at.level == 0 && self.config.restart == Restart::Durable {
            let key = self.lock(at.lock).key.clone();
            self.persist(LevelRecord::Free(key), out);
        }
        self.grant_next(at, out);
    }

    /// The holder is gone for certain, or suspected: the permission is free, at the root only
    /// when nobody below can still be inside.
    pub(super) fn holder_gone(&mut self, at: At, rid: Id, out: &mut LevelEffects<L>) {
        if at.level > 0 {
            self.free(at, Token(0), out);
        } else if self.leases() {
            // Its lease ends by itself.
        } else if self.ends_with_requester(at) || self.breaks(LevelPlant::NoWaitAtRoot) {
            self.free_unknown(at, out);
        } else {
            let when = self.now.mono + self.config.lease;
            self.arm(when, at, Due::Holder(rid));
        }
    }

    /// Whether the holder itself is the only one inside: then nobody is once it is dead.
    fn ends_with_requester(&mut self, at: At) -> bool {
        let holder = self.arbiter(at).holder;
        holder.is_some_and(|holder| holder.span.is_zero())
    }

    pub(super) fn holder_ends(&mut self, at: At, rid: Id, out: &mut LevelEffects<L>) {
        let (now, leases) = (self.now.mono, self.leases());
        let Some(holder) = self.arbiter(at).holder else {
            return;
        };
        if holder.rid != rid {
            return;
        }
        if leases && holder.until > now {
            self.arm(holder.until, at, Due::Holder(rid));
            return;
        }
        self.free_unknown(at, out);
    }

    /// Frees a permission under which any of its tokens may have been used.
    fn free_unknown(&mut self, at: At, out: &mut LevelEffects<L>) {
        let holder = self.arbiter(at).holder;
        let used = holder.map_or(Token(0), |holder| holder.block.to);
        let again = self.breaks(LevelPlant::TokensAgain);
        self.free(at, if again { Token(0) } else { used }, out);
    }

    /// A requester renews its lease, or wants more tokens.
    pub(super) fn renewal(
        &mut self,
        at: At,
        rid: Id,
        number: u64,
        hint: Token,
        span: Duration,
        out: &mut LevelEffects<L>,
    ) {
        let span = span.min(self.config.lease_max);
        let until = self.now.mono + self.stretch(span);
        let root = at.level == 0;
        let (longest, wall) = (self.lease, self.now.wall);
        let holder = self.arbiter(at).holder.as_mut();
        let mut block = None;
        if let Some(holder) = holder.filter(|holder| holder.rid == rid && root) {
            holder.until = holder.until.max(until);
            holder.span = holder.span.max(span);
            let wanted = reserve(holder.block.from, hint, wall).to;
            let grows = wanted > holder.block.to && hint > holder.block.to;
            if grows {
                holder.block.to = wanted;
            }
            block = Some(holder.block);
            if grows || holder.span > longest {
                self.keep_grant(at, out);
            }
        }
        let word = Word::Renewed { rid, number, block };
        self.send(at.lock, at.level, rid.node, word, out);
    }

    /// The root's arbiter may grant again.
    pub(super) fn pause_over(&mut self, at: At, out: &mut LevelEffects<L>) {
        self.grant_next(at, out);
    }
}

/// The tokens reserved for a new holder.
fn reserve(floor: Token, hint: Token, wall: Wall) -> Block {
    let hint = if hint.0 > floor.0.max(wall.0).saturating_add(AHEAD_MAX) {
        Token(0)
    } else {
        hint
    };
    let least = floor.max(hint).0.saturating_add(BLOCK);
    Block {
        from: floor,
        to: Token(least.max(wall.0.saturating_add(LEAD))),
    }
}
