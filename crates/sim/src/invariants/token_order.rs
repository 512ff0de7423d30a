//! Tokens grow over conflicting holders, at every node and for every lock.
//!
//! At one node, of two conflicting grants that were both entered on, the later one was entered
//! with the larger token, whatever happened in between: expiry, spite, crash, lost disk. That is
//! what makes the fence at the resource work, so nothing is excused.
//!
//! Over the whole lock, whoever enters after a rival has left has a larger token than it; here a
//! hold on a grant whose promise was broken on purpose is left out, since then nothing orders the
//! two entries in time.
//!
//! The use of growing tokens as a fence is described in Kleppmann 2016.

use std::collections::VecDeque;

use conclave_protocol::id::{Name, NodeId, Token};
use conclave_protocol::lock::{Floors, Group};
use conclave_protocol::table::Table;

use super::book::{Book, Place, broken, name_of};
use crate::fact::{Checker, Eyes, Fact, Holder, True, Violation};

/// How many used grants per node and lock are compared one by one; older ones are kept as floors.
const WINDOW: usize = 16;

/// Checks the order of tokens.
#[derive(Debug)]
pub struct TokenOrder {
    book: Book,
    used: Table<(NodeId, Name), Used>,
    left: Table<Name, Floors>,
}

/// The grants of a node for a lock that somebody entered on.
#[derive(Debug, Default)]
struct Used {
    recent: VecDeque<Entry>,
    /// The entries that left the window.
    older: Floors,
    /// The largest place among them.
    older_place: Option<Place>,
}

#[derive(Debug)]
struct Entry {
    place: Place,
    group: Group,
    /// The token of the entry.
    smallest: Token,
    /// The token after the last raise.
    largest: Token,
}

impl Used {
    /// Takes note of an entry; the token that speaks against it, if one does.
    fn enter(&mut self, place: Place, group: &Group, token: Token) -> Option<Token> {
        let wrong = self.against(place, group, token);
        if let Some(known) = self.recent.iter_mut().find(|entry| entry.place == place) {
            known.largest = known.largest.max(token);
            return wrong;
        }
        let later = self.recent.partition_point(|entry| entry.place < place);
        let entry = Entry {
            place,
            group: group.clone(),
            smallest: token,
            largest: token,
        };
        self.recent.insert(later, entry);
        if self.recent.len() > WINDOW
            && let Some(oldest) = self.recent.pop_front()
        {
            self.older.record(&oldest.group, oldest.largest);
            self.older_place = self.older_place.max(Some(oldest.place));
        }
        wrong
    }

    fn against(&self, place: Place, group: &Group, token: Token) -> Option<Token> {
        let older = self.older.other(group);
        if self.older_place.is_some_and(|last| last < place) && token <= older {
            return Some(older);
        }
        let rivals = self.recent.iter().filter(|entry| entry.group != *group);
        rivals
            .map(|entry| {
                if entry.place < place {
                    (token > entry.largest, entry.largest)
                } else {
                    (token < entry.smallest, entry.smallest)
                }
            })
            .find_map(|(fine, other)| (!fine).then_some(other))
    }
}

impl TokenOrder {
    /// A checker that reads this book.
    pub fn new(book: Book) -> Self {
        Self {
            book,
            used: Table::new(4),
            left: Table::new(5),
        }
    }

    fn inside(&mut self, at: True, holder: &Holder, eyes: &dyn Eyes) -> Result<(), Violation> {
        let book = self.book.borrow();
        let Some(hold) = book.hold(holder) else {
            return Ok(());
        };
        let (token, group) = (hold.token, &hold.group);
        for &place in &hold.members {
            let node = book.given(place).node;
            if !eyes.reserves(holder, node) {
                continue;
            }
            let key = (node, holder.name.clone());
            let wrong = if let Some(used) = self.used.get_mut(&key) {
                used.enter(place, group, token)
            } else {
                let mut used = Used::default();
                let wrong = used.enter(place, group, token);
                self.used.insert(key, used);
                wrong
            };
            if let Some(other) = wrong {
                let who = name_of(holder);
                let what = format!(
                    "{who} ({group}) entered with token {token}, out of order at {node} with \
                     token {other} of another group",
                );
                return broken("token-order", at, what);
            }
        }
        let floor = self.left.get(&holder.name).map(|left| left.other(group));
        if let Some(floor) = floor
            && token <= floor
            && !book.waived(hold)
        {
            let who = name_of(holder);
            let what = format!(
                "{who} ({group}) entered with token {token} after a rival left with {floor}"
            );
            return broken("token-order", at, what);
        }
        Ok(())
    }

    fn leave(&mut self, holder: &Holder) {
        let book = self.book.borrow();
        let Some(hold) = book.hold(holder) else {
            return;
        };
        if book.waived(hold) {
            return;
        }
        if let Some(left) = self.left.get_mut(&holder.name) {
            left.record(&hold.group, hold.token);
        } else {
            let mut left = Floors::default();
            left.record(&hold.group, hold.token);
            self.left.insert(holder.name.clone(), left);
        }
    }
}

impl Checker for TokenOrder {
    fn property(&self) -> &'static str {
        "token-order"
    }

    fn watch(&mut self, at: True, fact: &Fact, eyes: &dyn Eyes) -> Result<(), Violation> {
        match fact {
            Fact::Entered { holder, .. } | Fact::Moved { holder, .. } => {
                self.inside(at, holder, eyes)
            }
            Fact::Released { holder } | Fact::Lost { holder } | Fact::Vanished { holder } => {
                self.leave(holder);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use conclave_protocol::lock::{End, Mode};

    use super::super::fake::{
        Story, ask, ended, entered, granted, holder, mode, moved, released, spite,
    };
    use super::*;

    fn story() -> Story {
        Story::new(|book| vec![Box::new(TokenOrder::new(book.clone()))])
    }

    #[test]
    fn rivals_need_larger_tokens_and_members_do_not() {
        let mut story = story();
        let (a, a2, b) = (ask(1, &mode("x")), ask(2, &mode("x")), ask(3, &mode("y")));
        story.holds(granted(0, &a, 1));
        story.holds(entered(&holder(1), &a, 5, &[(0, 1)]));
        story.holds(granted(0, &a2, 2));
        story.holds(entered(&holder(2), &a2, 4, &[(0, 2)]));
        story.holds(released(1));
        story.holds(released(2));
        story.holds(granted(0, &b, 3));
        story.breaks("token-order", entered(&holder(3), &b, 5, &[(0, 3)]));
        story.holds(moved(&holder(3), 6, &[(0, 3)]));
    }

    #[test]
    fn the_order_is_that_of_the_grants_even_under_spite() {
        let mut story = story();
        let (a, b) = (ask(1, &Mode::Exclusive), ask(2, &Mode::Exclusive));
        story.holds(granted(0, &a, 1));
        story.holds(spite(0, 1));
        story.holds(ended(0, &a, 1, End::Expired));
        story.holds(granted(0, &b, 2));
        story.holds(entered(&holder(2), &b, 9, &[(0, 2)]));
        story.holds(entered(&holder(1), &a, 5, &[(0, 1)]));
        story.breaks("token-order", moved(&holder(1), 9, &[(0, 1)]));
    }

    #[test]
    fn a_rival_that_left_elsewhere_counts_too() {
        let mut story = story();
        let (a, b) = (ask(1, &Mode::Exclusive), ask(2, &Mode::Exclusive));
        story.holds(granted(0, &a, 1));
        story.holds(entered(&holder(1), &a, 5, &[(0, 1)]));
        story.holds(released(1));
        story.holds(granted(1, &b, 1));
        story.breaks("token-order", entered(&holder(2), &b, 5, &[(1, 1)]));
    }

    #[test]
    fn the_past_beyond_the_window_is_not_forgotten() {
        for (last, fine) in [(1000, true), (119, false)] {
            let mut story = story();
            for client in 0..40 {
                let a = ask(client, &Mode::Exclusive);
                let grant = u64::from(client) + 1;
                story.holds(granted(0, &a, grant));
                let token = if client == 0 { 120 } else { 120 + grant };
                story.holds(entered(&holder(client), &a, token, &[(0, grant)]));
            }
            let z = ask(99, &Mode::Exclusive);
            story.holds(granted(0, &z, 50));
            let fact = entered(&holder(99), &z, last, &[(0, 50)]);
            if fine {
                story.holds(fact);
            } else {
                story.breaks("token-order", fact);
            }
        }
    }

    #[test]
    fn the_window_and_the_floors_answer_like_a_full_list() {
        let mut rng = conclave_quorum::Prng::new(7);
        let groups = ["a", "b", "c"].map(mode);
        for _ in 0..500 {
            let mut used = Used::default();
            let mut all: Vec<(Place, usize, u64)> = Vec::new();
            for place in 0..40 {
                let group = rng.below(3);
                let token = u64::from(place) / 4 + rng.below(3) as u64;
                let mut rivals = all.iter().filter(|(_, other, _)| *other != group);
                let wrong = rivals.any(|(_, _, other)| *other >= token);
                let own = ask(0, &groups[group]).group();
                let found = used.against(place, &own, Token(token));
                assert_eq!(found.is_some(), wrong, "{all:?} {place} {group} {token}");
                if !wrong {
                    assert_eq!(used.enter(place, &own, Token(token)), None);
                    all.push((place, group, token));
                }
            }
        }
    }

    #[test]
    fn what_left_the_window_must_be_exceeded_too() {
        let [x, y] = ["x", "y"].map(|name| ask(0, &mode(name)).group());
        let mut used = Used::default();
        used.enter(0, &x, Token(10));
        for place in 1..=WINDOW as Place {
            assert_eq!(used.enter(place, &y, Token(11)), None);
        }
        assert_eq!(used.against(99, &y, Token(10)), Some(Token(10)));
        assert_eq!(used.against(99, &y, Token(11)), None);
    }

    #[test]
    fn a_raised_token_counts_for_those_who_come_later() {
        let mut story = story();
        let (a, b) = (ask(1, &Mode::Exclusive), ask(2, &Mode::Exclusive));
        story.holds(granted(0, &a, 1));
        story.holds(entered(&holder(1), &a, 5, &[(0, 1)]));
        story.holds(moved(&holder(1), 9, &[(0, 1)]));
        story.holds(granted(0, &b, 2));
        story.breaks("token-order", entered(&holder(2), &b, 7, &[(0, 2)]));
    }

    #[test]
    fn over_the_whole_lock_spite_excuses_either_side() {
        let (a, b) = (ask(1, &Mode::Exclusive), ask(2, &Mode::Exclusive));
        for (node, client) in [(0, 1), (1, 2)] {
            let mut story = story();
            story.holds(granted(0, &a, 1));
            story.holds(granted(1, &b, 1));
            story.holds(spite(node, client));
            story.holds(entered(&holder(1), &a, 9, &[(0, 1)]));
            story.holds(released(1));
            story.holds(entered(&holder(2), &b, 5, &[(1, 1)]));
        }
    }
}
