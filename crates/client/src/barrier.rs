//! Barriers: parties that start together.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use conclave_protocol::id::{Name, RequestNo, SessionId};
use conclave_protocol::lock::{Group, Holder};
use thiserror::Error;
use tokio::time::Instant;

use crate::client::Client;
use crate::error::{AcquireError, LostError};
use crate::guard::Guard;
use crate::slots::{SLOTS_MAX, SlotError, Slots};
use crate::watch::WatchError;

/// A place where parties wait for each other: nobody goes on before so many have come.
///
/// # How it works, and why
///
/// Each party takes one of N slots, which are exclusive locks, and watches all of them. Who is in
/// a slot is known by its request, which nobody else ever has. What a party says, it says in the
/// note of its slot:
///
/// 1. When it sees all N slots taken it says `go F`, where F stands for exactly these N requests.
/// 2. When it sees all parties of F say `go F` while it says so itself, or anyone say `done F` for
///    an F that it has said `go` to, it says `done F`. From here on it has passed.
/// 3. It leaves its slot and returns when it has seen that every other party of F says `done F`
///    or is gone.
///
/// *Nobody passes alone.* Whoever says `done F` rests on a party that saw all N requests of F say
/// `go F`, each while it waited here. What a watch shows may be old, but none of it is invented: a
/// party of an earlier round that is still seen in its slot never says `go` to a set of this
/// round, and so does no harm.
///
/// *Nobody passes twice, and no two sets that share a party both pass.* If R has passed with F it
/// never says `go` again. Any other full set that shares a party P with F has R's slot in it too.
/// If R is there, that set never has all its `go`s. If another is in R's slot, R has left, so P
/// has said `done F` or is gone.
///
/// *Nobody is left behind.* Whoever has passed stays in its slot until all others of F have said
/// `done` or are gone, so a party that is slow to see finds at least one `done F`. Only if all
/// who passed die within that moment does it wait on, for a new set.
///
/// *A party that dies before it passed* leaves its slot when its TTL has run out; then another
/// may take its place, and the others say `go` to the new set. A party whose time is up, or that
/// lost its slot, leaves; if it had said `go` the others may have counted it.
#[must_use = "nothing happens before wait is awaited"]
#[derive(Debug)]
pub struct Barrier {
    client: Client,
    name: Vec<u8>,
    parties: u32,
    ttl: Option<Duration>,
    wait: Option<Duration>,
}

/// Why a party did not pass a barrier.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BarrierError {
    /// A barrier has at least one party, and not too many.
    #[error("a barrier or latch has 1 to {SLOTS_MAX} parties, not {0}")]
    Parties(u32),
    /// Its time was up. If all others had come it may have been counted.
    #[error("not all parties came in time: {there} of {parties} are there; wait longer")]
    TimedOut {
        /// How many were seen.
        there: usize,
        /// How many it takes.
        parties: u32,
    },
    /// It could not take a slot.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// Its slot was lost.
    #[error(transparent)]
    Lost(#[from] LostError),
    /// The other slots cannot be watched.
    #[error(transparent)]
    Watch(#[from] WatchError),
}

impl From<SlotError> for BarrierError {
    fn from(error: SlotError) -> Self {
        match error {
            SlotError::Acquire(error) => Self::Acquire(error),
            SlotError::Watch(error) => Self::Watch(error),
        }
    }
}

impl Barrier {
    pub(crate) fn new(client: &Client, name: &[u8], parties: u32) -> Self {
        Self {
            client: client.clone(),
            name: name.to_vec(),
            parties,
            ttl: None,
            wait: None,
        }
    }

    /// How long a party that died is waited for.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// How long to wait for the others; for ever unless said otherwise.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.wait = Some(limit);
        self
    }

    /// Waits until all parties are there, and returns when all of them know it. The number is
    /// that of the slot, from 1: each party of a round has another. Dropping the future leaves.
    pub async fn wait(self) -> Result<u32, BarrierError> {
        if !(1..=SLOTS_MAX).contains(&self.parties) {
            return Err(BarrierError::Parties(self.parties));
        }
        let until = self.wait.map(|limit| Instant::now() + limit);
        let mut slots = Slots::new(&self.client, &self.name, self.parties);
        let timed_out = |slots: &Slots| BarrierError::TimedOut {
            there: slots.holders().len(),
            parties: self.parties,
        };
        let taken = slots.take(self.ttl, b"here", until).await;
        let guard = match taken {
            Ok(guard) => guard,
            Err(SlotError::Acquire(AcquireError::TimedOut { .. })) => {
                return Err(timed_out(&slots));
            }
            Err(error) => return Err(error.into()),
        };
        let slot = guard.slot();
        let mut party = Party::new(match guard.group() {
            Group::Request(session, request) => Some((session, request)),
            _ => None,
        });
        let lost = guard.lost();
        tokio::pin!(lost);
        let far = Duration::from_hours(24 * 365);
        let end = tokio::time::sleep_until(until.unwrap_or_else(|| Instant::now() + far));
        tokio::pin!(end);
        while !party.look(slots.holders(), slots.is_full(), &guard) {
            tokio::select! {
                changed = slots.change() => changed?,
                () = &mut lost => {
                    // Whoever has passed is done, with or without its slot.
                    if party.passed.is_some() {
                        return Ok(slot);
                    }
                    return Err(LostError { name: guard.name().clone() }.into());
                }
                () = &mut end, if until.is_some() && party.passed.is_none() => {
                    return Err(timed_out(&slots));
                }
            }
        }
        // What was passed stays passed.
        let _ = guard.release().await;
        Ok(slot)
    }
}

type Id = (SessionId, RequestNo);
type Set = BTreeMap<u32, Id>;

/// One party on its way through the barrier.
#[derive(Debug)]
struct Party {
    me: Option<Id>,
    /// The set that it says `go` to, and its mark.
    current: Option<(String, Set)>,
    /// All sets that it ever said `go` to.
    sets: BTreeMap<String, Set>,
    /// The set that it has passed with.
    passed: Option<Set>,
    mark: String,
}

impl Party {
    fn new(me: Option<Id>) -> Self {
        Self {
            me,
            current: None,
            sets: BTreeMap::new(),
            passed: None,
            mark: String::new(),
        }
    }

    /// Looks at the slots and says what follows; `true` when it may leave.
    fn look(&mut self, holders: &BTreeMap<u32, Holder>, full: bool, guard: &Guard) -> bool {
        let before = self.says();
        let leaves = self.step(holders, full);
        let says = self.says();
        if says != before {
            guard.set_note(says);
        }
        leaves
    }

    fn says(&self) -> String {
        match (&self.passed, &self.current) {
            (Some(_), _) => format!("done {}", self.mark),
            (None, Some((mark, _))) => format!("go {mark}"),
            (None, None) => "here".to_owned(),
        }
    }

    fn step(&mut self, holders: &BTreeMap<u32, Holder>, full: bool) -> bool {
        if self.passed.is_none() {
            self.go(holders, full);
            self.pass(holders);
        }
        let Some(passed) = &self.passed else {
            return false;
        };
        let done = format!("done {}", self.mark);
        passed.iter().all(|(slot, id)| {
            let holder = holders.get(slot).filter(|holder| id_of(holder) == *id);
            Some(*id) == self.me || holder.is_none_or(|holder| note(holder) == done)
        })
    }

    /// Says `go` to a set that is full and has this party in it.
    fn go(&mut self, holders: &BTreeMap<u32, Holder>, full: bool) {
        if !full {
            return;
        }
        let set: Set = holders
            .iter()
            .map(|(slot, holder)| (*slot, id_of(holder)))
            .collect();
        if !set.values().any(|id| Some(*id) == self.me) {
            return;
        }
        let mark = mark(&set);
        if self.current.as_ref().is_some_and(|(same, _)| *same == mark) {
            return;
        }
        self.sets.insert(mark.clone(), set.clone());
        self.current = Some((mark, set));
    }

    fn pass(&mut self, holders: &BTreeMap<u32, Holder>) {
        let told = holders.values().find_map(|holder| {
            let mark = note(holder).strip_prefix("done ")?.to_owned();
            self.sets.contains_key(&mark).then_some(mark)
        });
        let agreed = self.current.as_ref().filter(|(mark, set)| {
            let go = format!("go {mark}");
            set.iter().all(|(slot, id)| {
                let holder = holders.get(slot).filter(|holder| id_of(holder) == *id);
                Some(*id) == self.me || holder.is_some_and(|holder| note(holder) == go)
            })
        });
        let mark = told.or_else(|| agreed.map(|(mark, _)| mark.clone()));
        if let Some(mark) = mark {
            self.passed = self.sets.get(&mark).cloned();
            self.mark = mark;
        }
    }
}

fn id_of(holder: &Holder) -> Id {
    (holder.session, holder.request)
}

fn note(holder: &Holder) -> &str {
    let note = holder.note.as_deref().unwrap_or_default();
    std::str::from_utf8(note).unwrap_or_default()
}

/// A short name for a set of requests.
fn mark(set: &Set) -> String {
    let mut text = String::new();
    for (slot, (session, request)) in set {
        let _ = write!(text, "{slot}:{session:x}:{request};");
    }
    let (one, two) = (Name::new(&text), Name::new(format!("{text}.")));
    format!("{:016x}{:016x}", one.seed(), two.seed())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use conclave_protocol::Wall;
    use conclave_protocol::id::Token;

    use super::*;

    const PARTIES: u32 = 3;

    /// A small source of chance.
    struct Dice(u64);

    impl Dice {
        fn roll(&mut self, below: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % below as u64) as usize
        }
    }

    /// A party, with what it sees: of each slot some state of its past, never an older one.
    struct Actor {
        id: Id,
        slot: u32,
        party: Party,
        seen: BTreeMap<u32, usize>,
        gone: bool,
    }

    /// Slots with all states they ever had, and everything that was ever said.
    #[derive(Default)]
    struct World {
        slots: BTreeMap<u32, Vec<Option<Holder>>>,
        actors: Vec<Actor>,
        said: BTreeSet<(Id, String)>,
        passed: BTreeMap<Id, Set>,
        last: u64,
        deaths: u32,
    }

    fn holder(id: Id, note: &str) -> Holder {
        Holder {
            session: id.0,
            request: id.1,
            group: Group::Request(id.0, id.1),
            token: Token(1),
            asked: Wall(0),
            owner: "".into(),
            note: Some(note.as_bytes().into()),
            edition: 0,
        }
    }

    impl World {
        fn now(&self, slot: u32) -> Option<&Holder> {
            self.slots.get(&slot)?.last()?.as_ref()
        }

        fn set(&mut self, slot: u32, state: Option<Holder>) {
            self.slots
                .entry(slot)
                .or_insert_with(|| vec![None])
                .push(state);
        }

        fn arrive(&mut self) {
            let free = (1..=PARTIES).find(|slot| self.now(*slot).is_none());
            let Some(slot) = free else { return };
            self.last += 1;
            let id = (SessionId(1), RequestNo(self.last));
            self.set(slot, Some(holder(id, "here")));
            self.actors.push(Actor {
                id,
                slot,
                party: Party::new(Some(id)),
                seen: BTreeMap::new(),
                gone: false,
            });
        }

        fn leave(&mut self, actor: usize) {
            let slot = self.actors[actor].slot;
            self.actors[actor].gone = true;
            self.set(slot, None);
        }

        /// One party sees a little more of one slot and does what follows.
        fn step(&mut self, index: usize, dice: &mut Dice) {
            let slot = dice.roll(PARTIES as usize) as u32 + 1;
            let states = self.slots.get(&slot).map_or(0, Vec::len);
            let actor = &mut self.actors[index];
            let seen = actor.seen.entry(slot).or_default();
            if *seen + 1 < states {
                *seen += 1 + dice.roll(states - *seen - 1);
            }
            let view = |slot: &u32| {
                let states = self.slots.get(slot)?;
                let seen = actor.seen.get(slot).copied().unwrap_or(0);
                states.get(seen)?.clone()
            };
            let view = (1..=PARTIES).filter_map(|slot| Some((slot, view(&slot)?)));
            let view: BTreeMap<u32, Holder> = view.collect();
            let before = actor.party.says();
            let full = view.len() == PARTIES as usize;
            let leaves = actor.party.step(&view, full);
            let (id, slot, says) = (actor.id, actor.slot, actor.party.says());
            let passed = actor.party.passed.clone();
            if says != before {
                self.said.insert((id, says.clone()));
                self.set(slot, Some(holder(id, &says)));
            }
            if let Some(set) = passed {
                self.check(id, &set);
            }
            if leaves {
                // As long as nobody dies, nobody is left behind.
                let set = &self.passed[&id];
                let all = set.values().all(|member| self.passed.contains_key(member));
                assert!(all || self.deaths > 0, "{id:?} left too early");
                self.leave(index);
            }
        }

        /// Whoever passes does so with as many others, who all said that they go with it.
        fn check(&mut self, id: Id, set: &Set) {
            let known = self.passed.entry(id).or_insert_with(|| set.clone());
            assert_eq!(known, set, "it passes once");
            let members: BTreeSet<Id> = set.values().copied().collect();
            assert_eq!(members.len(), PARTIES as usize);
            assert!(members.contains(&id));
            let go = format!("go {}", mark(set));
            let done = format!("done {}", mark(set));
            for member in &members {
                let says = |what: &String| self.said.contains(&(*member, what.clone()));
                assert!(says(&go) || says(&done), "{member:?} never agreed");
                let other = self.passed.get(member);
                assert!(other.is_none_or(|other| other == set), "two sets pass");
            }
        }
    }

    #[test]
    fn parties_pass_together_whatever_they_see_late_and_whoever_dies() {
        let (mut passes, mut deaths) = (0, 0);
        for seed in 1..=60 {
            let mut dice = Dice(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
            let mut world = World::default();
            let deadly = dice.roll(3) > 0;
            for _ in 0..600 {
                if dice.roll(12) == 0 {
                    world.arrive();
                }
                let alive: Vec<usize> = (0..world.actors.len())
                    .filter(|actor| !world.actors[*actor].gone)
                    .collect();
                if alive.is_empty() {
                    continue;
                }
                let one = alive[dice.roll(alive.len())];
                if deadly && dice.roll(60) == 0 {
                    deaths += 1;
                    world.deaths += 1;
                    world.leave(one);
                } else {
                    world.step(one, &mut dice);
                }
            }
            // Nobody dies any more: everyone who passed ends, and no full house waits for ever.
            let before = world.passed.len();
            for _ in 0..20_000 {
                world.arrive();
                let alive: Vec<usize> = (0..world.actors.len())
                    .filter(|actor| !world.actors[*actor].gone)
                    .collect();
                let one = alive[dice.roll(alive.len())];
                world.step(one, &mut dice);
                if world.passed.len() > before + 30 {
                    break;
                }
            }
            let more = world.passed.len() - before;
            assert!(more > 30, "seed {seed}: {more} went on");
            passes += world.passed.len();
        }
        assert!(passes > 1000 && deaths > 50, "{passes} {deaths}");
    }
}
