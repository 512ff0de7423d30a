//! The heart of every simulated run: events in the order of true time.
//!
//! The queue orders small keys and keeps the events themselves in numbered places, so that a large
//! message is moved twice and not once per level of the heap. Events of the same time come out in
//! the order in which they were put in: a run is a function of its seed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::fact::True;

/// Bits of a key that say where the event lies.
const PLACE_BITS: u32 = 24;
/// Bits of a key that keep events of one time in order.
const ORDER_BITS: u32 = 40;
/// How many events may wait at once.
pub const PENDING_MAX: usize = 1 << PLACE_BITS;

/// Events that will happen, ordered by true time and then by when they were put in.
#[derive(Debug)]
pub struct Queue<T> {
    heap: BinaryHeap<Reverse<u128>>,
    /// Events that were put in by the order of their times.
    lane: VecDeque<(u128, T)>,
    places: Vec<Option<T>>,
    free: Vec<u32>,
    now: u64,
    order: u64,
    popped: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Queue<T> {
    /// An empty queue at time zero.
    pub fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            lane: VecDeque::new(),
            places: Vec::new(),
            free: Vec::new(),
            now: 0,
            order: 0,
            popped: 0,
        }
    }

    /// The time of the event taken last.
    pub fn now(&self) -> True {
        True(self.now)
    }

    /// How many events were taken.
    pub fn taken(&self) -> u64 {
        self.popped
    }

    /// How many events wait.
    pub fn len(&self) -> usize {
        self.heap.len() + self.lane.len()
    }

    /// Whether no event waits.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty() && self.lane.is_empty()
    }

    /// Lets `event` happen at `at`, or now if that has passed.
    pub fn push(&mut self, at: True, event: T) {
        let key = self.next_key(at);
        let place = if let Some(place) = self.free.pop() {
            self.places[place as usize] = Some(event);
            place
        } else {
            assert!(
                self.places.len() < PENDING_MAX,
                "too many events wait at once"
            );
            self.places.push(Some(event));
            (self.places.len() - 1) as u32
        };
        self.heap.push(Reverse(key | u128::from(place)));
    }

    /// As [`Queue::push`], and cheap if the events pushed this way come in the order of their
    /// times, like messages that all take equally long.
    pub fn push_in_order(&mut self, at: True, event: T) {
        let key = self.next_key(at);
        if self.lane.back().is_none_or(|(last, _)| *last < key) {
            self.lane.push_back((key, event));
        } else {
            self.push(at, event);
        }
    }

    /// The key of the next event put in, without its place.
    fn next_key(&mut self, at: True) -> u128 {
        assert!(self.order < 1 << ORDER_BITS, "the run is too long");
        let time = at.0.max(self.now);
        let key = u128::from(time) << 64 | u128::from(self.order) << PLACE_BITS;
        self.order += 1;
        key
    }

    /// Lets `event` happen this many nanoseconds from now.
    pub fn push_in(&mut self, nanos: u64, event: T) {
        self.push(True(self.now.saturating_add(nanos)), event);
    }

    /// When the next event happens.
    pub fn next_at(&self) -> Option<True> {
        let heap = self.heap.peek().map(|Reverse(key)| *key);
        let lane = self.lane.front().map(|(key, _)| *key);
        let next = heap.into_iter().chain(lane).min()?;
        Some(True((next >> 64) as u64))
    }

    /// Takes the next event; time moves on to it.
    pub fn pop(&mut self) -> Option<(True, T)> {
        let heap = self.heap.peek().map_or(u128::MAX, |Reverse(key)| *key);
        if self.lane.front().is_some_and(|(key, _)| *key < heap) {
            let (key, event) = self.lane.pop_front()?;
            self.now = (key >> 64) as u64;
            self.popped += 1;
            return Some((True(self.now), event));
        }
        let Reverse(key) = self.heap.pop()?;
        let place = (key as u32) & (PENDING_MAX as u32 - 1);
        self.now = (key >> 64) as u64;
        self.popped += 1;
        self.free.push(place);
        let event = self.places[place as usize].take();
        Some((
            True(self.now),
            event.expect("invariant: a key points at its event"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use conclave_quorum::Prng;

    use super::*;

    /// The queue gives what a sorted list would.
    #[test]
    fn equals_its_dumb_twin() {
        let mut rng = Prng::new(3);
        for _ in 0..200 {
            let mut queue = Queue::new();
            let mut dumb: Vec<(u64, u32)> = Vec::new();
            let mut next = 0;
            for _ in 0..300 {
                if rng.chance(0.6) {
                    let at = queue.now().0 + rng.below(5) as u64;
                    if rng.chance(0.5) {
                        queue.push(True(at), next);
                    } else {
                        queue.push_in_order(True(at), next);
                    }
                    dumb.push((at, next));
                    next += 1;
                } else {
                    // A stable sort keeps the order of insertion.
                    dumb.sort_by_key(|(at, _)| *at);
                    let first = (!dumb.is_empty()).then(|| dumb.remove(0));
                    assert_eq!(queue.pop().map(|(at, event)| (at.0, event)), first);
                }
                assert_eq!(queue.len(), dumb.len());
            }
        }
    }

    #[test]
    fn the_past_happens_now() {
        let mut queue = Queue::new();
        queue.push(True(10), "a");
        assert_eq!(queue.next_at(), Some(True(10)));
        assert_eq!(queue.pop(), Some((True(10), "a")));
        queue.push(True(4), "late");
        queue.push_in(0, "now");
        assert_eq!(queue.pop(), Some((True(10), "late")));
        assert_eq!(queue.pop(), Some((True(10), "now")));
        assert_eq!(queue.pop(), None);
        assert_eq!(queue.taken(), 3);
    }
}
