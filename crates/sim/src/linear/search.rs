//! The search for an order.

use std::collections::HashSet;

use conclave_quorum::Prng;

use super::{Call, Model};

/// What a search has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is an order.
    Linearizable,
    /// There is none.
    Broken(Broken),
    /// The search was given up after so many steps.
    Unknown,
}

/// Why there is no order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The longest order found, as indices of calls.
    pub longest: Vec<usize>,
    /// The call that ended before it could be placed behind it.
    pub stuck: usize,
}

/// An event of the history: a call begins or ends.
#[derive(Clone, Copy)]
struct Event {
    call: usize,
    ends: bool,
}

/// Events in the order of their times, from which calls are taken out and put back.
struct List {
    events: Vec<Event>,
    next: Vec<usize>,
    back: Vec<usize>,
    /// Where each call begins and ends.
    places: Vec<(usize, Option<usize>)>,
}

/// The place before the first event; events follow it.
const HEAD: usize = 0;

impl List {
    fn new<O, R>(calls: &[Call<O, R>]) -> Self {
        let mut times = Vec::with_capacity(calls.len() * 2);
        for (call, one) in calls.iter().enumerate() {
            times.push((one.began, false, call));
            if let Some((end, _)) = &one.ended {
                times.push((*end.max(&one.began), true, call));
            }
        }
        // What begins when another ends may be concurrent with it.
        times.sort_unstable();
        let head = Event {
            call: usize::MAX,
            ends: false,
        };
        let mut events = vec![head];
        let mut places = vec![(0, None); calls.len()];
        for (_, ends, call) in times {
            if ends {
                places[call].1 = Some(events.len());
            } else {
                places[call].0 = events.len();
            }
            events.push(Event { call, ends });
        }
        let count = events.len();
        Self {
            events,
            next: (1..=count).collect(),
            back: (0..=count).map(|at| at.saturating_sub(1)).collect(),
            places,
        }
    }

    fn first(&self) -> usize {
        self.next[HEAD]
    }

    fn unlink(&mut self, at: usize) {
        let (back, next) = (self.back[at], self.next[at]);
        self.next[back] = next;
        self.back[next] = back;
    }

    fn link(&mut self, at: usize) {
        let (back, next) = (self.back[at], self.next[at]);
        self.next[back] = at;
        self.back[next] = at;
    }

    fn take(&mut self, call: usize) {
        let (begin, end) = self.places[call];
        self.unlink(begin);
        if let Some(end) = end {
            self.unlink(end);
        }
    }

    fn put_back(&mut self, call: usize) {
        let (begin, end) = self.places[call];
        if let Some(end) = end {
            self.link(end);
        }
        self.link(begin);
    }
}

/// A place in the order: where the object stands, and which calls can come here.
struct Level<S> {
    state: S,
    /// Calls that can come next, the most promising last.
    open: Vec<usize>,
    /// The call that ended first of those not placed.
    pressing: usize,
    /// The call that is placed here now.
    chosen: Option<usize>,
}

/// The search on its way.
struct Search<'a, M: Model> {
    model: &'a M,
    calls: &'a [Call<M::Op, M::Result>],
    list: List,
    /// A random number for each call; those of the calls placed so far are one in `done`.
    marks: Vec<u128>,
    turns: Vec<u64>,
    done: u128,
    /// Calls with a result that are not placed.
    left: usize,
    levels: Vec<Level<M::State>>,
}

/// Looks for an order that explains the history, for at most `steps_max` steps.
pub fn linearizable<M: Model>(
    model: &M,
    calls: &[Call<M::Op, M::Result>],
    steps_max: u64,
) -> Verdict {
    let mut search = Search::new(model, calls);
    let mut seen = HashSet::new();
    let mut broken: Option<Broken> = None;
    for _ in 0..steps_max {
        if search.left == 0 {
            return Verdict::Linearizable;
        }
        let depth = search.levels.len() - 1;
        search.take_back();
        let Some(next) = search.levels[depth].open.pop() else {
            // Nothing fits here: what came before must have been otherwise.
            if broken
                .as_ref()
                .is_none_or(|broken| broken.longest.len() < depth)
            {
                broken = Some(search.stuck());
            }
            search.levels.pop();
            if search.levels.is_empty() {
                return broken.map_or(Verdict::Unknown, Verdict::Broken);
            }
            continue;
        };
        let Some(after) = search.step(&search.levels[depth].state, next) else {
            continue;
        };
        let print = model.print(&after);
        if search.is_idle(depth, next, print) {
            continue;
        }
        let mark = search.done ^ search.marks[next];
        if seen.insert(mark.wrapping_mul(MIX) ^ print) {
            search.place(next, after, print);
        }
    }
    Verdict::Unknown
}

impl<'a, M: Model> Search<'a, M> {
    fn new(model: &'a M, calls: &'a [Call<M::Op, M::Result>]) -> Self {
        let mut rng = Prng::new(0x6c69_6e65_6172);
        let mark = |_| u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64());
        let mut search = Self {
            model,
            calls,
            list: List::new(calls),
            marks: calls.iter().map(mark).collect(),
            turns: model.turns(calls),
            done: 0,
            left: calls.iter().filter(|call| call.ended.is_some()).count(),
            levels: Vec::new(),
        };
        let start = model.start();
        let print = model.print(&start);
        search.levels.push(search.level(start, print));
        search
    }

    fn step(&self, state: &M::State, call: usize) -> Option<M::State> {
        let call = &self.calls[call];
        let result = call.ended.as_ref().map(|(_, result)| result);
        self.model.step(state, &call.op, result)
    }

    /// What can come next: every call that begins before the first end of one that is left.
    fn level(&self, state: M::State, print: u128) -> Level<M::State> {
        let mut open = Vec::new();
        let mut at = self.list.first();
        let mut pressing = usize::MAX;
        while let Some(event) = self.list.events.get(at) {
            if event.ends {
                pressing = event.call;
                break;
            }
            open.push(event.call);
            at = self.list.next[at];
        }
        // What fits and changes nothing may as well come at once.
        let read = open.iter().copied().find(|call| {
            let after = self.calls[*call].ended.as_ref();
            let after = after.and_then(|_| self.step(&state, *call));
            after.is_some_and(|after| self.model.print(&after) == print)
        });
        if let Some(read) = read {
            open = vec![read];
        }
        open.sort_by_key(|call| std::cmp::Reverse((self.turns[*call], *call)));
        Level {
            state,
            open,
            pressing,
            chosen: None,
        }
    }

    /// Takes back the call that the last level has chosen.
    fn take_back(&mut self) {
        let chosen = self.levels.last_mut().and_then(|level| level.chosen.take());
        if let Some(call) = chosen {
            self.done ^= self.marks[call];
            self.left += usize::from(self.calls[call].ended.is_some());
            self.list.put_back(call);
        }
    }

    fn place(&mut self, call: usize, after: M::State, print: u128) {
        if let Some(level) = self.levels.last_mut() {
            level.chosen = Some(call);
        }
        self.done ^= self.marks[call];
        self.left -= usize::from(self.calls[call].ended.is_some());
        self.list.take(call);
        self.levels.push(self.level(after, print));
    }

    /// Whether the call before this one has no result and could as well have come later, or not at
    /// all: then it is not tried here.
    fn is_idle(&self, depth: usize, next: usize, print: u128) -> bool {
        let Some(before) = depth.checked_sub(1).map(|depth| &self.levels[depth]) else {
            return false;
        };
        let Some(idle) = before.chosen else {
            return false;
        };
        if self.calls[idle].ended.is_some() {
            return false;
        }
        let Some(without) = self.step(&before.state, next) else {
            return false;
        };
        if self.model.print(&without) == print {
            return true;
        }
        // Of two that are both without a result only one order is left out.
        let ordered = self.calls[next].ended.is_some() || idle > next;
        let later = self.step(&without, idle);
        ordered && later.is_some_and(|later| self.model.print(&later) == print)
    }

    fn stuck(&self) -> Broken {
        Broken {
            longest: self
                .levels
                .iter()
                .filter_map(|level| level.chosen)
                .collect(),
            stuck: self
                .levels
                .last()
                .map_or(usize::MAX, |level| level.pressing),
        }
    }
}

/// Spreads the marks of calls over all bits, apart from the prints of states.
const MIX: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
