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
        let (slot, guard) = match taken {
            Ok(taken) => taken,
            Err(SlotError::Acquire(AcquireError::TimedOut { .. })) => {
                return Err(timed_out(&slots));
            }
            Err(error) => return Err(error.into()),
        };
        let mut party = Party::new(&guard);
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
    fn new(guard: &Guard) -> Self {
        let me = match guard.group() {
            Group::Request(session, request) => Some((session, request)),
            _ => None,
        };
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
