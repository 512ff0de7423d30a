//! Holds that move to other nodes, some at a time.
//!
//! When a node drains or is lost, all holds that rest on it want to move. Thousands at once would
//! keep the nodes busy for so long that they look dead, and then everything would move again.

use std::collections::{BTreeSet, VecDeque};

use super::LockClient;
use crate::id::{RequestNo, SessionId};
use crate::lock::api::ClientEffects;

type Ref = (SessionId, RequestNo);

/// After so many rounds without success a move makes room for others, and queues again.
const ROUNDS_MAX: u32 = 3;

/// The holds that move, and those that wait for their turn.
#[derive(Clone, Debug)]
pub(super) struct Moves {
    /// So many move at the same time.
    most: usize,
    going: BTreeSet<Ref>,
    queue: VecDeque<Ref>,
    queued: BTreeSet<Ref>,
}

impl Moves {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most: most.max(1),
            going: BTreeSet::new(),
            queue: VecDeque::new(),
            queued: BTreeSet::new(),
        }
    }

    /// Whether this hold may move now; if not it has its turn later.
    pub(super) fn admit(&mut self, reference: Ref) -> bool {
        if self.going.contains(&reference) {
            return true;
        }
        if self.going.len() < self.most {
            self.going.insert(reference);
            return true;
        }
        if self.queued.insert(reference) {
            self.queue.push_back(reference);
        }
        false
    }

    /// This hold moves no longer.
    pub(super) fn finish(&mut self, reference: Ref) {
        self.going.remove(&reference);
    }

    /// A round of this hold brought nothing.
    pub(super) fn tired(&mut self, reference: Ref, rounds: u32) {
        if rounds >= ROUNDS_MAX && !self.queue.is_empty() {
            self.finish(reference);
        }
    }

    /// Who has its turn.
    fn next(&mut self) -> Option<Ref> {
        if self.going.len() >= self.most {
            return None;
        }
        let next = self.queue.pop_front()?;
        self.queued.remove(&next);
        Some(next)
    }
}

impl LockClient {
    /// Lets those move whose turn it is.
    pub(super) fn go_on_moving(&mut self, out: &mut ClientEffects) {
        // Each is looked at once per step: one that cannot move is put back at the end.
        for _ in 0..self.moves.queue.len() {
            let Some(reference) = self.moves.next() else {
                return;
            };
            if let Some(place) = self.by_ref.get(&reference).copied() {
                self.migrate(place, out);
            }
        }
    }

    /// Forgets moves of holds that have ended meanwhile.
    pub(super) fn tidy_moves(&mut self) {
        if self.moves.going.is_empty() {
            return;
        }
        let (requests, by_ref) = (&self.requests, &self.by_ref);
        self.moves.going.retain(|reference| {
            let place = by_ref.get(reference).copied();
            let request = place.and_then(|place| requests.get(place));
            request.is_some_and(|request| request.token().is_some())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_move_and_the_others_have_their_turn_in_order() {
        let reference = |number: u64| (SessionId(1), RequestNo(number));
        let mut moves = Moves::new(8);
        for number in 0..8 {
            assert!(moves.admit(reference(number)));
        }
        assert!(moves.admit(reference(0)), "it moves already");
        for number in [900, 901, 900] {
            assert!(!moves.admit(reference(number)));
        }
        assert_eq!(moves.next(), None);
        moves.finish(reference(3));
        assert_eq!(moves.next(), Some(reference(900)));
        assert!(moves.admit(reference(900)));
        moves.tired(reference(4), ROUNDS_MAX - 1);
        assert_eq!(moves.next(), None);
        moves.tired(reference(4), ROUNDS_MAX);
        assert_eq!(moves.next(), Some(reference(901)));
        moves.tired(reference(5), ROUNDS_MAX);
        assert!(moves.going.contains(&reference(5)), "nobody waits for it");
    }
}
