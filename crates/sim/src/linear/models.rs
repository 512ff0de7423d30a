//! How the kinds of objects behave, and histories of their operations.

use std::collections::BTreeMap;
use std::sync::Arc;

use rpds::RedBlackTreeMap;

use super::{Call, Model, Verdict, linearizable};

/// A value or a key.
pub type Bytes = Arc<[u8]>;

/// An operation on an object of one of the usual kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Sets a register.
    Set(Bytes),
    /// Reads a register.
    Get,
    /// Adds to a counter and tells the sum.
    Add(i64),
    /// Reads a counter.
    Count,
    /// Sets a key of a map.
    Put(Bytes, Bytes),
    /// Sets a key if it holds this (none: if it is not there).
    Swap(Bytes, Option<Bytes>, Bytes),
    /// Takes a key away.
    Remove(Bytes),
    /// Reads a key.
    Look(Bytes),
    /// Reads a whole map.
    List,
    /// Adds to the end of a queue.
    Push(Bytes),
    /// Takes the first of a queue.
    Pop,
    /// Adds to the end of a log and tells at which place, from 0.
    Append(Bytes),
    /// Reads a log from a place on, at most so many.
    Read(u64, usize),
    /// Forgets what is before a place.
    Trim(u64),
}

/// What came of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It is done.
    Done,
    /// What is there.
    Value(Option<Bytes>),
    /// A sum, or a place in a log.
    Number(i64),
    /// Whether it was done.
    Was(bool),
    /// The entries of a map.
    Entries(Vec<(Bytes, Bytes)>),
    /// The entries of a log, with their places.
    Items(Vec<(u64, Bytes)>),
}

/// One kind as a model. A result that is no answer to its operation fits nothing.
macro_rules! model {
    ($(#[$doc:meta])* $name:ident $state:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name;

        impl Model for $name {
            type Op = Action;
            type Result = Reply;
            type State = $state;

            fn start(&self) -> $state {
                <$state>::default()
            }

            fn step(
                &self,
                state: &$state,
                op: &Action,
                result: Option<&Reply>,
            ) -> Option<$state> {
                let (after, expected) = state.act(op)?;
                result.is_none_or(|result| *result == expected).then_some(after)
            }

            fn print(&self, state: &$state) -> u128 {
                state.print()
            }
        }
    };
}

model! {
    /// A register: the last value set.
    Register Held
}
model! {
    /// A counter.
    Counter Sum
}
model! {
    /// A map with compare-and-set.
    Map Entries
}
model! {
    /// A queue.
    Queue Line
}
model! {
    /// A log that can be trimmed.
    Log Lines
}

/// The state of a register.
#[derive(Clone, Debug, Default)]
pub struct Held(Option<Bytes>);

impl Held {
    fn act(&self, op: &Action) -> Option<(Self, Reply)> {
        match op {
            Action::Set(value) => Some((Self(Some(value.clone())), Reply::Done)),
            Action::Get => Some((self.clone(), Reply::Value(self.0.clone()))),
            _ => None,
        }
    }

    fn print(&self) -> u128 {
        self.0.as_ref().map_or(0, |value| print_of(&[value]))
    }
}

/// The state of a counter.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(i64);

impl Sum {
    fn act(self, op: &Action) -> Option<(Self, Reply)> {
        let after = match op {
            Action::Add(more) => self.0.wrapping_add(*more),
            Action::Count => self.0,
            _ => return None,
        };
        Some((Self(after), Reply::Number(after)))
    }

    fn print(self) -> u128 {
        print_of(&[&self.0.to_le_bytes()])
    }
}

/// The state of a map, with the sum of its entries' prints.
#[derive(Clone, Debug, Default)]
pub struct Entries {
    entries: RedBlackTreeMap<Bytes, Bytes>,
    print: u128,
}

impl Entries {
    fn act(&self, op: &Action) -> Option<(Self, Reply)> {
        let same = |reply| Some((self.clone(), reply));
        match op {
            Action::Put(key, value) => Some((self.with(key, Some(value)), Reply::Done)),
            Action::Swap(key, expected, value) => {
                if self.entries.get(key) == expected.as_ref() {
                    Some((self.with(key, Some(value)), Reply::Was(true)))
                } else {
                    same(Reply::Was(false))
                }
            }
            Action::Remove(key) => {
                let was = self.entries.contains_key(key);
                Some((self.with(key, None), Reply::Was(was)))
            }
            Action::Look(key) => same(Reply::Value(self.entries.get(key).cloned())),
            Action::List => {
                let entries = self.entries.iter();
                let entries = entries.map(|(key, value)| (key.clone(), value.clone()));
                same(Reply::Entries(entries.collect()))
            }
            _ => None,
        }
    }

    fn with(&self, key: &Bytes, value: Option<&Bytes>) -> Self {
        let mut after = self.clone();
        if let Some(old) = after.entries.get(key) {
            after.print = after.print.wrapping_sub(print_of(&[key, old]));
        }
        if let Some(value) = value {
            after.print = after.print.wrapping_add(print_of(&[key, value]));
            after.entries.insert_mut(key.clone(), value.clone());
        } else {
            after.entries.remove_mut(key);
        }
        after
    }

    fn print(&self) -> u128 {
        self.print
    }
}

/// The state of a queue: items by number, with the sum of their prints.
#[derive(Clone, Debug, Default)]
pub struct Line {
    items: rpds::Queue<Bytes>,
    pushed: u64,
    popped: u64,
    print: u128,
}

impl Line {
    fn act(&self, op: &Action) -> Option<(Self, Reply)> {
        let mut after = self.clone();
        let reply = match op {
            Action::Push(value) => {
                let number = after.pushed.to_le_bytes();
                after.print = after.print.wrapping_add(print_of(&[&number, value]));
                after.pushed += 1;
                after.items.enqueue_mut(value.clone());
                Reply::Done
            }
            Action::Pop => {
                let first = after.items.peek().cloned();
                if let Some(value) = &first {
                    let number = after.popped.to_le_bytes();
                    after.print = after.print.wrapping_sub(print_of(&[&number, value]));
                    after.popped += 1;
                    after.items.dequeue_mut();
                }
                Reply::Value(first)
            }
            _ => return None,
        };
        Some((after, reply))
    }

    fn print(&self) -> u128 {
        // An empty queue is an empty queue, however many have passed through it.
        if self.pushed == self.popped {
            0
        } else {
            self.print ^ u128::from(self.popped)
        }
    }
}

/// The state of a log: all items ever, and how many are trimmed.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    items: rpds::Vector<Bytes>,
    trimmed: u64,
    print: u128,
}

impl Lines {
    fn act(&self, op: &Action) -> Option<(Self, Reply)> {
        let mut after = self.clone();
        let len = self.items.len() as u64;
        let reply = match op {
            Action::Append(value) => {
                after.print = print_of(&[&after.print.to_le_bytes(), value]);
                after.items.push_back_mut(value.clone());
                Reply::Number(len as i64)
            }
            Action::Read(from, most) => {
                let places = (*from).max(self.trimmed)..len;
                let items = places.take(*most).filter_map(|place| {
                    let item = self.items.get(usize::try_from(place).ok()?)?;
                    Some((place, item.clone()))
                });
                Reply::Items(items.collect())
            }
            Action::Trim(before) => {
                after.trimmed = after.trimmed.max((*before).min(len));
                Reply::Done
            }
            _ => return None,
        };
        Some((after, reply))
    }

    fn print(&self) -> u128 {
        self.print ^ u128::from(self.trimmed)
    }
}

fn print_of(parts: &[&[u8]]) -> u128 {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let mut first = [0; 16];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    u128::from_le_bytes(first)
}

/// The calls of a history that are about one key each, by key; none if one is about all keys.
pub fn history_of(calls: &[Call<Action, Reply>]) -> Option<BTreeMap<Bytes, Vec<usize>>> {
    let mut keys: BTreeMap<Bytes, Vec<usize>> = BTreeMap::new();
    for (index, call) in calls.iter().enumerate() {
        let (Action::Put(key, _)
        | Action::Swap(key, _, _)
        | Action::Remove(key)
        | Action::Look(key)) = &call.op
        else {
            return None;
        };
        keys.entry(key.clone()).or_default().push(index);
    }
    Some(keys)
}

/// Checks a history of one object, whose kind its operations tell.
pub fn check(calls: &[Call<Action, Reply>], steps_max: u64) -> Verdict {
    let Some(first) = calls.first() else {
        return Verdict::Linearizable;
    };
    match &first.op {
        Action::Set(_) | Action::Get => linearizable(&Register, calls, steps_max),
        Action::Add(_) | Action::Count => linearizable(&Counter, calls, steps_max),
        Action::Push(_) | Action::Pop => linearizable(&Queue, calls, steps_max),
        Action::Append(_) | Action::Read(..) | Action::Trim(_) => {
            linearizable(&Log, calls, steps_max)
        }
        _ => check_map(calls, steps_max),
    }
}

/// A map is linearizable if each of its keys is.
fn check_map(calls: &[Call<Action, Reply>], steps_max: u64) -> Verdict {
    let Some(keys) = history_of(calls) else {
        return linearizable(&Map, calls, steps_max);
    };
    let mut unknown = false;
    for indices in keys.values() {
        let own: Vec<_> = indices.iter().map(|index| calls[*index].clone()).collect();
        match linearizable(&Map, &own, steps_max) {
            Verdict::Linearizable => {}
            Verdict::Unknown => unknown = true,
            Verdict::Broken(mut broken) => {
                let whole = |call: usize| indices[call];
                broken.longest = broken.longest.into_iter().map(whole).collect();
                broken.stuck = whole(broken.stuck);
                return Verdict::Broken(broken);
            }
        }
    }
    if unknown {
        Verdict::Unknown
    } else {
        Verdict::Linearizable
    }
}
