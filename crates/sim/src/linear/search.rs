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

/// Looks for an order that explains the history, for at most `steps_max` steps.
pub fn linearizable<M: Model>(
    model: &M,
    calls: &[Call<M::Op, M::Result>],
    steps_max: u64,
) -> Verdict {
    let mut list = List::new(calls);
    let mut rng = Prng::new(0x006c_696e_6561_72);
    let marks: Vec<u128> = calls
        .iter()
        .map(|_| u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64()))
        .collect();
    let mut left = calls.iter().filter(|call| call.ended.is_some()).count();
    let mut state = model.start();
    let mut done = 0u128;
    let mut order: Vec<(usize, M::State)> = Vec::new();
    let mut seen = HashSet::new();
    let mut broken: Option<Broken> = None;
    let mut at = list.first();
    for _ in 0..steps_max {
        if left == 0 {
            return Verdict::Linearizable;
        }
        let event = list.events[at];
        if !event.ends {
            let call = &calls[event.call];
            let result = call.ended.as_ref().map(|(_, result)| result);
            let after = model.step(&state, &call.op, result);
            let mark = done ^ marks[event.call];
            if let Some(after) = after
                && seen.insert(mark.wrapping_mul(MIX) ^ model.print(&after))
            {
                order.push((event.call, std::mem::replace(&mut state, after)));
                done = mark;
                left -= usize::from(result.is_some());
                list.take(event.call);
                at = list.first();
            } else {
                at = list.next[at];
            }
            continue;
        }
        // This call has ended without a place: something before it must go elsewhere.
        if broken
            .as_ref()
            .is_none_or(|broken| broken.longest.len() < order.len())
        {
            broken = Some(Broken {
                longest: order.iter().map(|(call, _)| *call).collect(),
                stuck: event.call,
            });
        }
        let Some((call, before)) = order.pop() else {
            let broken = broken.unwrap_or(Broken {
                longest: Vec::new(),
                stuck: event.call,
            });
            return Verdict::Broken(broken);
        };
        state = before;
        done ^= marks[call];
        left += usize::from(calls[call].ended.is_some());
        list.put_back(call);
        at = list.next[list.places[call].0];
    }
    Verdict::Unknown
}

/// Spreads the marks of calls over all bits, apart from the prints of states.
const MIX: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
