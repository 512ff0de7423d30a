//! The requester's part of an agent: a run gathers the permissions of a quorum of its cluster.

use std::sync::Arc;
use std::time::Duration;

use super::LevelNode;
use super::state::{Answer, Asked, At, Line, Stage, Up};
use crate::id::{NodeId, Token};
use crate::lock::Mode;
use crate::multilevel::api::LevelEffects;
use crate::multilevel::config::Representation;
use crate::multilevel::message::{Block, GrantId, Id, LockKey, Place, UNKNOWN, Word};
use crate::multilevel::plant::LevelPlant;
use crate::multilevel::sight::Sight;
use crate::multilevel::topology::Seat;
use crate::time::Instant;

/// What a member costs that was asked and has not answered: a little, so that it is preferred to
/// a new one.
const ASKED: f64 = 1e-3;

impl<L: LockKey, S: Sight> LevelNode<L, S> {
    /// Begins a run for the children that are served, or else for the oldest announcement.
    pub(super) fn start_run(&mut self, at: At, out: &mut LevelEffects<L>) {
        self.clock += 1;
        let clock = self.clock;
        let agent = self.agent(at);
        agent.stage = Stage::Asking;
        agent.clock = clock;
        agent.asked.clear();
        agent.up = None;
        agent.passes = 0;
        agent.lingers = 0;
        agent.deadline = Instant::ZERO;
        agent.block = Block::default();
        agent.used = Token(0);
        agent.orphan = false;
        agent.blocked = false;
        agent.moving = false;
        agent.mode = if let Some(child) = agent.children.first() {
            Some(child.mode.clone())
        } else if agent.pre.is_empty() {
            None
        } else {
            Some(agent.pre.remove(0).1)
        };
        if at.level > 0 && self.config.announce {
            self.pick_up(at, out);
        }
        self.choose(at, true, out);
        self.arm_upkeep(at);
    }

    /// Chooses a representing node and tells it what this run is about.
    pub(super) fn pick_up(&mut self, at: At, out: &mut LevelEffects<L>) {
        let now = self.now.mono;
        if let Some(old) = self.agent(at).up.take()
            && !self.sight.is_down(old.node)
        {
            let word = Word::Done {
                cid: old.cid,
                used: Token(0),
            };
            self.send(at.lock, at.level, old.node, word, out);
        }
        let mode = self.agent(at).mode.clone().unwrap_or(Mode::Exclusive);
        let cluster = self.cluster(at.level);
        let topology = Arc::clone(&self.config.topology);
        let clusters = topology.clusters();
        let Some(parent) = clusters.parent(cluster) else {
            return;
        };
        let spread = self.lock(at.lock).spread;
        let node = match (&mode, self.config.choice) {
            (Mode::Exclusive, Representation::Random) => {
                let size = clusters.size(parent);
                let first = self.rng.below(size);
                let mut seats = (0..size).map(|step| (first + step) % size);
                let up = |seat: &usize| {
                    !self
                        .sight
                        .is_down(NodeId::at(clusters.member(parent, *seat)))
                };
                if up(&first) {
                    Some(NodeId::at(clusters.member(parent, first)))
                } else {
                    // Another draw among those that are up.
                    let live: Vec<usize> = seats.by_ref().filter(up).collect();
                    (!live.is_empty()).then(|| {
                        NodeId::at(clusters.member(parent, live[self.rng.below(live.len())]))
                    })
                }
            }
            (Mode::Exclusive, Representation::Sticky) => {
                let hash = spread ^ (cluster.index() as u64 + 1).wrapping_mul(0x9e37_79b9);
                self.rendezvous(clusters.members(parent), hash)
            }
            (mode, _) => self.rendezvous(clusters.members(parent), spread ^ hash_of(mode)),
        };
        let Some(node) = node else {
            return;
        };
        let cid = self.fresh_id();
        let life = self.sight.newest(node);
        let stage = self.agent(at).stage;
        let mut line = Line::default();
        let mut held = None;
        let span = self.wanted_span(at);
        let word = if stage == Stage::Asking {
            Word::Announce { cid, mode }
        } else {
            line.asked(now);
            held = Some(mode.clone());
            Word::Ask { cid, mode, span }
        };
        self.agent(at).up = Some(Up {
            node,
            life,
            cid,
            mode: held,
            span,
            line,
        });
        self.send(at.lock, at.level, node, word, out);
    }

    /// The member that is up and comes first in an order that depends on a hash alone.
    pub(super) fn rendezvous(
        &self,
        members: impl Iterator<Item = usize>,
        hash: u64,
    ) -> Option<NodeId> {
        let up = members
            .map(NodeId::at)
            .filter(|node| *node == self.id || !self.sight.is_down(*node));
        up.max_by_key(
            |node| mix(hash ^ (u64::from(node.0) + 1).wrapping_mul(0xd6e8_feb8_6659_fd93)),
        )
    }

    /// Chooses a quorum: at first at random, later one that costs the fewest new questions.
    pub(super) fn choose(&mut self, at: At, first: bool, out: &mut LevelEffects<L>) {
        let Some(chosen) = self.chosen(at, first) else {
            self.agent(at).blocked = true;
            return;
        };
        self.agent(at).blocked = false;
        let asked = std::mem::take(&mut self.agent(at).asked);
        let (kept, dropped): (Vec<Asked>, Vec<Asked>) = asked
            .into_iter()
            .partition(|asked| chosen.contains(&asked.node));
        self.agent(at).asked = kept;
        for old in dropped {
            let rid = self.own_id(old.rid);
            let used = Token(0);
            self.send(
                at.lock,
                at.level,
                old.node,
                Word::Release { rid, used },
                out,
            );
        }
        let clock = self.agent(at).clock;
        let place = Place {
            clock,
            node: self.id,
        };
        self.ask_members(at, &chosen, place, true, out);
        self.check(at, out);
    }

    /// Asks those members that were not asked yet.
    pub(super) fn ask_members(
        &mut self,
        at: At,
        chosen: &[NodeId],
        place: Place,
        counts: bool,
        out: &mut LevelEffects<L>,
    ) {
        let now = self.now.mono;
        let (hint, span) = self.request_terms(at);
        let mut new = Vec::new();
        for node in chosen {
            if self.agent(at).asked.iter().any(|asked| asked.node == *node) {
                continue;
            }
            let rid = self.fresh_id();
            self.agent(at).asked.push(Asked {
                node: *node,
                rid: rid.counter,
                answer: Answer::Open,
                yielded: GrantId::default(),
                block: Block::default(),
                fresh: now,
                span,
                renewal_span: span,
                renewal: 0,
                renewal_at: now,
                renewing: false,
                counts,
                next: false,
            });
            new.push((*node, rid));
        }
        for (node, rid) in new {
            let word = Word::Request {
                place,
                rid,
                hint,
                span,
            };
            self.send(at.lock, at.level, node, word, out);
        }
    }

    /// What a request says about tokens and leases: only the root cares.
    pub(super) fn request_terms(&mut self, at: At) -> (Token, Duration) {
        if at.level > 0 {
            return (Token(0), Duration::ZERO);
        }
        let alone = self.mode_of(at) == Mode::Exclusive;
        let span = if alone && self.levels() == 0 && !self.leases() {
            // Whoever asks is the one who will be inside.
            Duration::ZERO
        } else {
            self.lease_span(at)
        };
        (self.lock(at.lock).seen, span)
    }

    /// For how long permissions of the root shall last: as long as a consent is wanted, and at
    /// least as long as one was promised already.
    pub(super) fn lease_span(&mut self, at: At) -> Duration {
        let (now, wanted) = (self.now.mono, self.wanted_span(at));
        let promised = self.agent(at).deadline.since(now);
        let most = self.config.lease_max;
        wanted.max(self.unshrink(promised).min(most))
    }

    /// For how long a consent shall hold.
    pub(super) fn wanted_span(&mut self, at: At) -> Duration {
        let least = self.config.lease;
        self.agent(at).span().max(least).min(self.config.lease_max)
    }

    fn chosen(&mut self, at: At, first: bool) -> Option<Vec<NodeId>> {
        let cluster = self.cluster(at.level);
        let topology = Arc::clone(&self.config.topology);
        let clusters = topology.clusters();
        let size = clusters.size(cluster) as u64;
        let level = self.level(at);
        let (mul, add) = (u64::from(level.mul), u64::from(level.add));
        let member = |seat: Seat| {
            let place = (mul * u64::from(seat) + add) % size;
            NodeId::at(clusters.member(cluster, place as usize))
        };
        let chooser = topology.chooser(cluster);
        let own = self.id;
        let down = |node: NodeId| node != own && self.sight.is_down(node);
        let seats = if first {
            let mut rng = self.rng.clone();
            let seats = chooser.first(&|seat| down(member(seat)), &mut rng);
            self.rng = rng;
            seats
        } else {
            let index = usize::from(at.level - self.top());
            let lock = self.locks.get(at.lock)?;
            let asked = &lock.levels[index].agent.asked;
            let moving = lock.levels[index].agent.moving;
            let inside = lock.levels[index].agent.stage != Stage::Asking;
            chooser.again(&|seat| {
                let node = member(seat);
                let known = asked.iter().find(|asked| asked.node == node);
                match known {
                    // A permission outlives its giver, unless it must be renewed.
                    Some(asked) if matches!(asked.answer, Answer::Given(_)) => {
                        if moving && down(node) {
                            f64::INFINITY
                        } else {
                            0.0
                        }
                    }
                    _ if down(node) => f64::INFINITY,
                    // It gave its permission and knows nothing of it any more.
                    Some(asked) if inside && asked.counts => f64::INFINITY,
                    Some(_) => ASKED,
                    None => 1.0,
                }
            })
        };
        Some(seats?.into_iter().map(member).collect())
    }

    /// The members of a quorum that avoids what is gone, to take the place of the present one.
    pub(super) fn chosen_next(&mut self, at: At) -> Option<Vec<NodeId>> {
        self.chosen(at, false)
    }

    pub(super) fn reply(
        &mut self,
        at: At,
        from: NodeId,
        rid: Id,
        grant: GrantId,
        block: Block,
        out: &mut LevelEffects<L>,
    ) {
        let any = self.breaks(LevelPlant::AnyReply);
        let current = self.is_own(rid);
        let agent = self.agent(at);
        let stage = agent.stage;
        let asked = agent.asked.iter_mut();
        let asked = asked
            .into_iter()
            .find(|asked| asked.node == from && (any || current && asked.rid == rid.counter));
        let Some(asked) = asked.filter(|_| stage != Stage::Idle) else {
            if self.may_disown(rid) {
                let used = UNKNOWN;
                self.send(at.lock, at.level, from, Word::Release { rid, used }, out);
            }
            return;
        };
        if stage != Stage::Asking && asked.counts {
            return;
        }
        if grant <= asked.yielded && !any {
            return;
        }
        if asked.answer == Answer::Early(grant) {
            asked.answer = Answer::Open;
            asked.yielded = grant;
            self.send(at.lock, at.level, from, Word::Yield { rid, grant }, out);
            return;
        }
        if matches!(asked.answer, Answer::Given(_)) {
            return;
        }
        asked.answer = Answer::Given(grant);
        asked.renewing = false;
        asked.block = block;
        // A renewal of an earlier grant is not answered any more.
        asked.renewing = false;
        let seen = block.from;
        let lock = self.lock(at.lock);
        lock.seen = lock.seen.max(seen);
        if stage == Stage::Asking {
            self.check(at, out);
        } else {
            self.check_move(at, out);
        }
    }

    fn is_own(&self, id: Id) -> bool {
        id.node == self.id && id.life == self.life
    }

    /// Whether this node may say that it does not use what it does not know. What an earlier
    /// life had may still be in use below: that must run out by itself.
    pub(super) fn may_disown(&self, id: Id) -> bool {
        self.is_own(id) || self.breaks(LevelPlant::ReleaseAfterRestart)
    }

    pub(super) fn inquire(
        &mut self,
        at: At,
        from: NodeId,
        rid: Id,
        grant: GrantId,
        out: &mut LevelEffects<L>,
    ) {
        let any = self.breaks(LevelPlant::AnyYield);
        let current = self.is_own(rid);
        let agent = self.agent(at);
        if agent.stage != Stage::Asking {
            return;
        }
        let asked = agent.asked.iter_mut();
        let asked = asked
            .into_iter()
            .find(|asked| asked.node == from && (any || current && asked.rid == rid.counter));
        let Some(asked) = asked else {
            return;
        };
        match asked.answer {
            Answer::Given(given) if given == grant || any => {
                asked.answer = Answer::Open;
                asked.yielded = grant;
                self.send(at.lock, at.level, from, Word::Yield { rid, grant }, out);
            }
            Answer::Given(_) => {}
            _ if any => self.send(at.lock, at.level, from, Word::Yield { rid, grant }, out),
            _ => asked.answer = Answer::Early(grant),
        }
    }

    /// Goes on if all members of the quorum have given their permissions.
    pub(super) fn check(&mut self, at: At, out: &mut LevelEffects<L>) {
        let agent = self.agent(at);
        let given = |asked: &Asked| matches!(asked.answer, Answer::Given(_));
        if agent.stage != Stage::Asking || agent.blocked || !agent.asked.iter().all(given) {
            return;
        }
        if at.level == 0 {
            self.root_consent(at, out);
            return;
        }
        agent.stage = Stage::Rising;
        let up = agent.up.as_ref().map(|up| up.node);
        match up {
            Some(up) if up == self.id || !self.sight.is_down(up) => self.ask_up(at, out),
            _ => self.pick_up(at, out),
        }
    }

    /// Asks the representing node for consent, for the first time or again.
    pub(super) fn ask_up(&mut self, at: At, out: &mut LevelEffects<L>) {
        let now = self.now.mono;
        let span = self.wanted_span(at);
        let agent = self.agent(at);
        let Some(up) = &mut agent.up else {
            return;
        };
        let mode = up.mode.clone().or_else(|| agent.mode.clone());
        let mode = mode.unwrap_or(Mode::Exclusive);
        up.line.asked(now);
        up.mode = Some(mode.clone());
        up.span = span;
        let (node, cid) = (up.node, up.cid);
        self.send(at.lock, at.level, node, Word::Ask { cid, mode, span }, out);
    }

    /// Asks for a longer lease, if whoever is served now needs one.
    pub(super) fn ask_longer(&mut self, at: At, out: &mut LevelEffects<L>) {
        if !self.leases() {
            return;
        }
        let span = self.wanted_span(at);
        let agent = self.agent(at);
        let asked = !matches!(agent.stage, Stage::Idle | Stage::Asking);
        if asked && agent.up.as_ref().is_some_and(|up| up.span < span) {
            self.ask_up(at, out);
        }
    }

    /// Ends a run: everything that it holds or waits for is given back. Whoever waits is next.
    pub(super) fn end_run(&mut self, at: At, out: &mut LevelEffects<L>) {
        let agent = self.agent(at);
        let used = agent.used;
        agent.stage = Stage::Idle;
        agent.epoch += 1;
        agent.blocked = false;
        agent.moving = false;
        let mut asked = std::mem::take(&mut agent.asked);
        let up = agent.up.take();
        for old in asked.drain(..) {
            let rid = self.own_id(old.rid);
            self.send(
                at.lock,
                at.level,
                old.node,
                Word::Release { rid, used },
                out,
            );
        }
        // The room is kept for the next run.
        self.agent(at).asked = asked;
        if let Some(up) = up {
            let word = Word::Done { cid: up.cid, used };
            self.send(at.lock, at.level, up.node, word, out);
        }
        let lock = self.lock(at.lock);
        lock.seen = lock.seen.max(used);
        self.next_run(at, out);
    }

    /// Starts a run for whoever waits.
    pub(super) fn next_run(&mut self, at: At, out: &mut LevelEffects<L>) {
        let agent = self.agent(at);
        if agent.children.is_empty()
            && let Some(next) = agent.fifo.pop_front()
        {
            agent.children.push(next);
            self.join_waiting(at);
        }
        let agent = self.agent(at);
        if !agent.children.is_empty() || !agent.pre.is_empty() {
            self.start_run(at, out);
        }
    }
}

/// A hash of a group.
pub(super) fn hash_of(mode: &Mode) -> u64 {
    match mode {
        Mode::Exclusive => 0,
        Mode::Shared => 0x5bd1_e995,
        Mode::Group(name) => name.iter().fold(0x9747_b28c, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        }),
    }
}

fn mix(mut value: u64) -> u64 {
    value ^= value >> 32;
    value = value.wrapping_mul(0xd6e8_feb8_6659_fd93);
    value ^= value >> 32;
    value = value.wrapping_mul(0xd6e8_feb8_6659_fd93);
    value ^ value >> 32
}
