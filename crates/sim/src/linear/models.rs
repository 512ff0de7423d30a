//! How the kinds of objects behave, and histories of their operations.

use std::collections::BTreeMap;
use std::sync::Arc;

use rpds::RedBlackTreeMap;

use super::{Broken, Call, Model, Verdict, linearizable};

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

            fn turns(&self, calls: &[Call<Action, Reply>]) -> Vec<u64> {
                turns(calls)
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

/// Calls are tried in the order of their ends, but pushes in the order in which they are popped.
fn turns(calls: &[Call<Action, Reply>]) -> Vec<u64> {
    let popped = popped(calls);
    let end = |call: &Call<Action, Reply>| call.ended.as_ref().map_or(u64::MAX, |(end, _)| *end);
    let mut turns: Vec<u64> = calls.iter().map(end).collect();
    let mut order = Vec::new();
    for (at, call) in calls.iter().enumerate() {
        if let Action::Push(value) = &call.op {
            let seen = popped.get(value).and_then(|at| at.first());
            turns[at] = seen.map_or(u64::MAX, |at| end(&calls[*at]));
            order.push((at, call.began));
        }
    }
    order.sort_by_key(|(_, began)| *began);
    // What was pushed before another comes out before it, whenever its pop was answered.
    let mut least = vec![u64::MAX; order.len() + 1];
    for (place, (at, _)) in order.iter().enumerate().rev() {
        least[place] = least[place + 1].min(turns[*at]);
    }
    for (at, _) in &order {
        let after = order.partition_point(|(_, began)| *began <= end(&calls[*at]));
        turns[*at] = turns[*at].min(least[after]);
    }
    turns
}

/// Which calls have popped each value.
fn popped(calls: &[Call<Action, Reply>]) -> BTreeMap<&Bytes, Vec<usize>> {
    let mut popped: BTreeMap<&Bytes, Vec<usize>> = BTreeMap::new();
    for (at, call) in calls.iter().enumerate() {
        if let (Action::Pop, Some((_, Reply::Value(Some(value))))) = (&call.op, &call.ended) {
            popped.entry(value).or_default().push(at);
        }
    }
    popped
}

/// A pop that no order explains, found without a search if every value is pushed once: of what was
/// never pushed, of what was popped before, or of what was pushed behind another that was popped
/// behind it.
fn wrong_pop(calls: &[Call<Action, Reply>]) -> Option<usize> {
    let mut pushed: BTreeMap<&Bytes, &Call<Action, Reply>> = BTreeMap::new();
    for call in calls {
        if let Action::Push(value) = &call.op
            && pushed.insert(value, call).is_some()
        {
            return None;
        }
    }
    let end = |call: &Call<Action, Reply>| call.ended.as_ref().map_or(u64::MAX, |(end, _)| *end);
    // Pairs of a push and its pop.
    let mut pairs = Vec::new();
    for (value, pops) in popped(calls) {
        let push = pushed.get(value);
        let Some(push) = push.filter(|push| push.began <= end(&calls[pops[0]])) else {
            return pops.first().copied();
        };
        if let Some(again) = pops.get(1) {
            return Some(*again);
        }
        pairs.push((*push, pops[0]));
    }
    for (push, pop) in &pairs {
        let overtaken = pairs.iter().any(|(other, first)| {
            end(other) < push.began && end(&calls[*pop]) < calls[*first].began
        });
        if overtaken {
            return Some(*pop);
        }
    }
    None
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
        Action::Push(_) | Action::Pop => check_queue(calls, steps_max),
        Action::Append(_) | Action::Read(..) | Action::Trim(_) => {
            linearizable(&SeenLog::new(calls), calls, steps_max)
        }
        _ => check_map(calls, steps_max),
    }
}

/// A log of which it is known, from what was read, what stands at some places: so an append
/// without an answer is tried where it was seen, and nowhere else.
struct SeenLog {
    items: BTreeMap<u64, Bytes>,
    /// Where each value stands, if every value is appended once.
    places: BTreeMap<Bytes, u64>,
}

impl SeenLog {
    fn new(calls: &[Call<Action, Reply>]) -> Self {
        let mut items = BTreeMap::new();
        let mut values: BTreeMap<&Bytes, u32> = BTreeMap::new();
        for call in calls {
            if let Action::Append(value) = &call.op {
                *values.entry(value).or_default() += 1;
            }
            if let Some((_, Reply::Items(read))) = &call.ended {
                items.extend(read.iter().cloned());
            }
        }
        let once = |(_, value): &(&u64, &Bytes)| values.get(*value) == Some(&1);
        let places = items.iter().filter(once);
        let places = places.map(|(place, value)| (value.clone(), *place));
        Self {
            places: places.collect(),
            items,
        }
    }
}

impl Model for SeenLog {
    type Op = Action;
    type Result = Reply;
    type State = Lines;

    fn start(&self) -> Lines {
        Log.start()
    }

    fn step(&self, state: &Lines, op: &Action, result: Option<&Reply>) -> Option<Lines> {
        if let Action::Append(value) = op {
            let place = state.items.len() as u64;
            let here = self.items.get(&place).is_none_or(|seen| seen == value);
            if !here || self.places.get(value).is_some_and(|seen| *seen != place) {
                return None;
            }
        }
        Log.step(state, op, result)
    }

    fn print(&self, state: &Lines) -> u128 {
        state.print()
    }
}

/// A push without an end whose value nobody has popped need not have been.
fn check_queue(calls: &[Call<Action, Reply>], steps_max: u64) -> Verdict {
    if let Some(stuck) = wrong_pop(calls) {
        let longest = Vec::new();
        return Verdict::Broken(Broken { longest, stuck });
    }
    let popped = popped(calls);
    let matters = |call: &Call<Action, Reply>| match &call.op {
        Action::Push(value) => call.ended.is_some() || popped.contains_key(value),
        _ => true,
    };
    let kept: Vec<usize> = (0..calls.len()).filter(|at| matters(&calls[*at])).collect();
    let own: Vec<_> = kept.iter().map(|at| calls[*at].clone()).collect();
    of_whole(linearizable(&Queue, &own, steps_max), &kept)
}

/// A verdict about some calls, as one about the history that they are part of.
fn of_whole(verdict: Verdict, indices: &[usize]) -> Verdict {
    match verdict {
        Verdict::Broken(mut broken) => {
            let whole = |call: usize| indices[call];
            broken.longest = broken.longest.into_iter().map(whole).collect();
            broken.stuck = whole(broken.stuck);
            Verdict::Broken(broken)
        }
        other => other,
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
        match of_whole(linearizable(&Map, &own, steps_max), indices) {
            Verdict::Linearizable => {}
            Verdict::Unknown => unknown = true,
            broken @ Verdict::Broken(_) => return broken,
        }
    }
    if unknown {
        Verdict::Unknown
    } else {
        Verdict::Linearizable
    }
}
