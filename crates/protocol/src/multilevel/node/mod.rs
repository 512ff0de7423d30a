//! The machine of one node: arbiters and agents of every lock, at every level where the node is
//! a member.

mod agent;
mod arbiter;
mod consent;
mod fail;
mod lease;
mod represent;
mod start;
mod state;
mod wish;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use conclave_quorum::Prng;
use conclave_quorum::construct::multilevel::ClusterId;

use self::state::{Agent, Arbiter, At, Level, Lock, Stage};
use super::api::{LevelEffects, LevelEvent, LevelInput};
use super::config::{LevelConfig, Trust};
use super::message::{Id, LevelMessage, LockKey, Word};
use super::plant::LevelPlant;
use super::record::LevelRecord;
use super::sight::{Seen, Sight};
use crate::id::{Incarnation, NodeId, Token};
use crate::machine::{Envelope, Machine};
use crate::table::{Slab, Table};
use crate::time::{Instant, Now, Wake};

/// One node of a hierarchy.
///
/// What it guarantees, whatever its clients, other nodes' crashes and (with leases) wrong
/// suspicions and lost connections do: two wishes of conflicting modes are never inside at the
/// same time, as long as each leaves by the end it was told; and every wish of a node that lives
/// is granted at last, if quorums of the clusters on its way live.
#[derive(Clone, Debug)]
pub struct LevelNode<L, S = Seen> {
    config: Arc<LevelConfig>,
    id: NodeId,
    life: Incarnation,
    sight: S,
    /// The time of the present step.
    now: Now,
    /// The logical clock.
    clock: u64,
    /// The last number given to a request, pairing, grant or timer.
    counter: u64,
    rng: Prng,
    /// Its clusters, from the highest level where it is a member down to the last.
    clusters: Vec<ClusterId>,
    by_key: Table<L, u32>,
    locks: Slab<Lock<L>>,
    /// Idle locks, oldest first, with the stamp they became idle at.
    idle: VecDeque<(u32, u64)>,
    timers: BinaryHeap<Reverse<(Instant, Timer)>>,
    /// Tokens up to this one may have been used in every lock that is not kept.
    default_floor: Token,
    /// What may be promised without a write.
    ceiling: Token,
    lease: Duration,
    /// Until then the root's arbiter grants nothing.
    pause: Instant,
    /// How many records were written, how many must be on disk before anything leaves, and how
    /// many are.
    written: u64,
    hold: u64,
    synced: u64,
}

/// What is due at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Timer {
    at: At,
    born: u64,
    what: Due,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// A representing node has waited for a child long enough.
    Wait(u64),
    /// The permission of a holder that is gone, or whose lease ran out.
    Holder(Id),
    /// The consent of a child that is gone, or whose lease ran out.
    Child(Id),
    /// A run's own consent has ended.
    Deadline,
    /// A wish's consent has ended.
    Wish(Id),
    /// What is held must be renewed.
    Upkeep,
    /// The root's arbiter may grant again.
    Pause,
}

/// What an agent is doing, for those who look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelView {
    /// The level.
    pub level: u8,
    /// Locks whose permission this node has given away.
    pub permissions: usize,
    /// Locks for which it runs as a requester or representing node.
    pub runs: usize,
    /// Locks for which it has consent.
    pub consents: usize,
    /// Requests and children that wait here.
    pub waiting: usize,
}

impl<L: LockKey, S: Sight> LevelNode<L, S> {
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
        self.locks.iter().all(|(_, lock)| lock.is_idle())
    }

    /// Whether it believes a node to be down.
    pub fn is_down(&self, node: NodeId) -> bool {
        self.sight.is_down(node)
    }

    /// What it does at each level where it is a member.
    pub fn view(&self) -> Vec<LevelView> {
        let levels = self.top()..=self.levels();
        let view = levels.map(|level| {
            let index = usize::from(level - self.top());
            let all = || self.locks.iter().map(|(_, lock)| &lock.levels[index]);
            let consents =
                |level: &&Level| matches!(level.agent.stage, Stage::Waiting | Stage::Busy);
            LevelView {
                level,
                permissions: all().filter(|level| level.arbiter.holder.is_some()).count(),
                runs: all()
                    .filter(|level| level.agent.stage != Stage::Idle)
                    .count(),
                consents: all().filter(consents).count(),
                waiting: all()
                    .map(|level| level.arbiter.queue.len() + level.agent.fifo.len())
                    .sum(),
            }
        });
        view.collect()
    }

    fn levels(&self) -> u8 {
        self.config.topology.levels()
    }

    /// The highest level where this node is a member.
    fn top(&self) -> u8 {
        self.levels() + 1 - self.clusters.len() as u8
    }

    fn breaks(&self, plant: LevelPlant) -> bool {
        self.config.rules.has(plant)
    }

    fn leases(&self) -> bool {
        self.config.trust == Trust::Leases
    }

    fn cluster(&self, level: u8) -> ClusterId {
        self.clusters[usize::from(level - self.top())]
    }

    fn has_level(&self, level: u8) -> bool {
        level >= self.top() && level <= self.levels()
    }

    fn lock(&mut self, lock: u32) -> &mut Lock<L> {
        self.locks
            .get_mut(lock)
            .expect("invariant: a lock in use is kept")
    }

    fn level(&mut self, at: At) -> &mut Level {
        let index = usize::from(at.level - self.top());
        &mut self.lock(at.lock).levels[index]
    }

    fn agent(&mut self, at: At) -> &mut Agent {
        &mut self.level(at).agent
    }

    fn arbiter(&mut self, at: At) -> &mut Arbiter {
        &mut self.level(at).arbiter
    }

    fn fresh_id(&mut self) -> Id {
        self.counter += 1;
        Id {
            node: self.id,
            life: self.life,
            counter: self.counter,
        }
    }

    fn own_id(&self, counter: u64) -> Id {
        Id {
            node: self.id,
            life: self.life,
            counter,
        }
    }

    /// Sends a word about a lock; `level` is the level the word is about.
    fn send(&mut self, lock: u32, level: u8, to: NodeId, word: Word, out: &mut LevelEffects<L>) {
        self.clock += 1;
        let message = LevelMessage {
            lock: self.lock(lock).key.clone(),
            level,
            life: self.life,
            clock: self.clock,
            word,
        };
        if self.hold > self.synced {
            out.send_durable.push(Envelope { to, message });
        } else {
            out.send(to, message);
        }
    }

    fn persist(&mut self, record: LevelRecord<L>, out: &mut LevelEffects<L>) {
        out.persist.push(record);
        self.written += 1;
    }

    fn arm(&mut self, when: Instant, at: At, what: Due) {
        let born = self.lock(at.lock).born;
        self.timers.push(Reverse((when, Timer { at, born, what })));
    }

    /// The place of a lock, made if it is new; none if there are too many.
    fn lock_of(&mut self, key: &L) -> Option<u32> {
        if let Some(place) = self.by_key.get(key).copied() {
            return Some(place);
        }
        if self.locks.len() >= self.config.locks_max.saturating_add(self.config.idle_locks) {
            return None;
        }
        self.counter += 1;
        let spread = key.spread();
        let levels = self.clusters.iter().map(|cluster| {
            let size = self.config.topology.clusters().size(*cluster) as u64;
            let (mul, add) = if self.config.spread {
                layout(
                    size,
                    spread ^ (cluster.index() as u64) << 32 ^ cluster.level() as u64,
                )
            } else {
                (1, 0)
            };
            let arbiter = Arbiter {
                floor: self.default_floor,
                ..Arbiter::default()
            };
            Level {
                arbiter,
                agent: Agent::default(),
                mul,
                add,
            }
        });
        let place = self.locks.insert(Lock {
            key: key.clone(),
            spread,
            born: self.counter,
            idle: 0,
            seen: self.default_floor,
            levels: levels.collect(),
            wishes: Vec::new(),
            upkeep: false,
        });
        self.by_key.insert(key.clone(), place);
        Some(place)
    }

    /// Takes note of an idle lock; the oldest are forgotten.
    fn rest(&mut self, lock: u32) {
        let Some(kept) = self.locks.get_mut(lock) else {
            return;
        };
        if !kept.is_idle() {
            kept.idle = 0;
            return;
        }
        if kept.idle != 0 {
            return;
        }
        self.counter += 1;
        kept.idle = self.counter;
        self.idle.push_back((lock, self.counter));
        while self.idle.len() > self.config.idle_locks.max(1) {
            let Some((lock, stamp)) = self.idle.pop_front() else {
                break;
            };
            if self.locks.get(lock).is_some_and(|kept| kept.idle == stamp) {
                let kept = self.locks.remove(lock).expect("invariant: just seen");
                self.by_key.remove(&kept.key);
                let floors = kept.levels.iter().map(|level| level.arbiter.floor);
                let floor = floors.chain([kept.seen]).max().unwrap_or_default();
                self.default_floor = self.default_floor.max(floor);
            }
        }
    }

    fn receive(&mut self, from: NodeId, message: LevelMessage<L>, out: &mut LevelEffects<L>) {
        if from.index() >= self.config.topology.nodes() {
            return;
        }
        if from != self.id {
            if message.life <= self.sight.ended(from) && !self.breaks(LevelPlant::OldLives) {
                return;
            }
            if message.life > self.sight.newest(from) {
                self.lives(from, message.life, out);
            }
        }
        self.clock = self.clock.max(message.clock).saturating_add(1);
        let upward = matches!(
            message.word,
            Word::Announce { .. } | Word::Ask { .. } | Word::Keep { .. } | Word::Done { .. }
        );
        // A child speaks of its own level to an agent of the level above.
        let level = if upward {
            message.level.checked_sub(1)
        } else {
            Some(message.level)
        };
        let Some(level) = level else { return };
        let of_wish = !upward && message.level == self.levels() + 1;
        if !of_wish && !self.has_level(level) {
            return;
        }
        let Some(lock) = self.lock_of(&message.lock) else {
            return;
        };
        let at = At { lock, level };
        self.said(at, from, of_wish, message.word, out);
        self.rest(lock);
    }

    fn said(&mut self, at: At, from: NodeId, of_wish: bool, word: Word, out: &mut LevelEffects<L>) {
        match word {
            Word::Request {
                place,
                rid,
                hint,
                span,
            } if rid.node == from => self.request(at, place, rid, hint, span, out),
            Word::Release { rid, used } if rid.node == from => self.release(at, rid, used, out),
            Word::Yield { rid, grant } if rid.node == from => self.yielded(at, rid, grant, out),
            Word::Renew {
                rid,
                number,
                hint,
                span,
            } if rid.node == from => self.renewal(at, rid, number, hint, span, out),
            Word::Reply { rid, grant, block } if !of_wish => {
                self.reply(at, from, rid, grant, block, out);
            }
            Word::Inquire { rid, grant } if !of_wish => self.inquire(at, from, rid, grant, out),
            Word::Renewed { rid, number, block } if !of_wish => {
                self.renewed(at, from, rid, number, block, out);
            }
            Word::Recovered { rid, grant } if !of_wish => self.recovered(at, from, rid, grant, out),
            Word::Announce { cid, mode } if cid.node == from => self.announce(at, cid, mode, out),
            Word::Ask { cid, mode, span } if cid.node == from => {
                self.ask(at, cid, mode, span, out);
            }
            Word::Keep { cid, number } if cid.node == from => self.keep(at, cid, number, out),
            Word::Done { cid, used } if cid.node == from => self.done(at, cid, used, out),
            Word::Consent { cid, until, block } if of_wish => {
                self.wish_consent(at.lock, from, cid, until, block, out);
            }
            Word::Consent { cid, until, block } => self.consent(at, from, cid, until, block, out),
            Word::Rejoined { cid } if of_wish => self.wish_rejoined(at.lock, from, cid, out),
            Word::Rejoined { cid } => self.rejoined(at, from, cid, out),
            // Somebody speaks for another node.
            _ => {}
        }
    }

    fn wake(&mut self, out: &mut LevelEffects<L>) {
        while let Some(Reverse((when, timer))) = self.timers.peek().copied() {
            if when > self.now.mono {
                break;
            }
            self.timers.pop();
            let lock = timer.at.lock;
            let kept = self.locks.get(lock);
            if kept.is_none_or(|lock| lock.born != timer.born) {
                continue;
            }
            match timer.what {
                Due::Wait(epoch) => self.waited(timer.at, epoch, out),
                Due::Holder(rid) => self.holder_ends(timer.at, rid, out),
                Due::Child(cid) => self.child_ends(timer.at, cid, out),
                Due::Deadline => self.deadline(timer.at, out),
                Due::Wish(cid) => self.wish_ends(lock, cid, out),
                Due::Upkeep => self.upkeep(timer.at, out),
                Due::Pause => self.pause_over(timer.at, out),
            }
            self.rest(lock);
        }
    }
}

/// A layout of `size` seats that depends on a hash: factors of a map of places that is one to
/// one.
fn layout(size: u64, hash: u64) -> (u32, u32) {
    let mut mixed = Prng::new(hash);
    let add = mixed.next_u64() % size.max(1);
    let mut mul = 1 + mixed.next_u64() % size.max(1);
    while gcd(mul, size) != 1 {
        mul += 1;
    }
    (mul as u32, add as u32)
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl<L: LockKey, S: Sight> Machine for LevelNode<L, S> {
    type Input = LevelInput<L>;
    type Address = NodeId;
    type Message = LevelMessage<L>;
    type Record = LevelRecord<L>;
    type Event = LevelEvent<L>;

    fn handle(&mut self, now: Now, input: LevelInput<L>, out: &mut LevelEffects<L>) {
        // A steady clock that seems to run backwards is read as standing still.
        self.now = Now {
            mono: now.mono.max(self.now.mono),
            wall: now.wall,
        };
        match input {
            LevelInput::Receive(from, message) => self.receive(from, message, out),
            LevelInput::Want {
                lock,
                wish,
                mode,
                span,
            } => self.want(&lock, wish, mode, span, out),
            LevelInput::Leave { lock, wish, used } => self.leave(&lock, wish, used, out),
            LevelInput::Failed(node, life) => self.failed(node, life, out),
            LevelInput::Suspected(node) => self.suspected(node, out),
            LevelInput::Alive(node, life) => self.alive(node, life, out),
            LevelInput::Durable(records) => {
                self.synced = self.synced.max(records.min(self.written));
            }
            LevelInput::Wake => self.wake(out),
        }
    }

    fn next_wake(&self) -> Option<Wake> {
        let Reverse((at, timer)) = self.timers.peek()?;
        let reason = match timer.what {
            Due::Wait(_) => "wait for a child",
            Due::Holder(_) => "permission of a lost holder",
            Due::Child(_) => "consent of a lost child",
            Due::Deadline | Due::Wish(_) => "end of a consent",
            Due::Upkeep => "renewal",
            Due::Pause => "pause",
        };
        Some(Wake { at: *at, reason })
    }
}
