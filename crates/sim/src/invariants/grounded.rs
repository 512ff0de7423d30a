//! A holder rests only on grants that the nodes gave to its own request.
//!
//! Maekawa 1985 lets a node enter once all members of its set have locked *for it*. A
//! grant for another lock, for a request that was cancelled, or one that no node ever gave must
//! not count.
//!
//! This checker also keeps the [`Book`] that the others read, so it comes first.

use super::book::{Book, broken, name_of};
use crate::fact::{Checker, Eyes, Fact, True, Violation};

/// Checks that every member of a hold was granted to its request.
#[derive(Debug)]
pub struct Grounded {
    book: Book,
}

impl Grounded {
    /// A checker that writes into this book.
    pub fn new(book: Book) -> Self {
        Self { book }
    }
}

impl Checker for Grounded {
    fn property(&self) -> &'static str {
        "grounded"
    }

    fn watch(&mut self, at: True, fact: &Fact, _: &dyn Eyes) -> Result<(), Violation> {
        let mut book = self.book.borrow_mut();
        book.write(fact);
        let (Fact::Entered { holder, .. } | Fact::Moved { holder, .. }) = fact else {
            return Ok(());
        };
        let Some(hold) = book.hold(holder) else {
            let what = format!("{} moved without being inside", name_of(holder));
            return broken(self.property(), at, what);
        };
        let Some((node, grant)) = hold.groundless.first() else {
            return Ok(());
        };
        let who = name_of(holder);
        let what = format!("{who} rests on grant {grant} of {node}, which was not given to it");
        broken(self.property(), at, what)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Story, ask, entered, granted, holder, mode, moved};

    #[test]
    fn own_grants_are_ground_to_stand_on() {
        let mut story = Story::new(|_| Vec::new());
        let a = ask(1, &mode("x"));
        story.holds(granted(0, &a, 1));
        story.holds(granted(1, &a, 1));
        story.holds(entered(&holder(1), &a, 5, &[(0, 1), (1, 1)]));
        story.holds(granted(2, &a, 4));
        story.holds(moved(&holder(1), 6, &[(0, 1), (2, 4)]));
    }

    #[test]
    fn a_grant_for_an_older_request_is_found() {
        let mut story = Story::new(|_| Vec::new());
        let old = ask(1, &mode("x"));
        let mut new = (*old).clone();
        new.request.0 += 1;
        let new = new.into();
        story.holds(granted(0, &old, 1));
        story.holds(granted(1, &new, 1));
        story.breaks("grounded", entered(&holder(1), &new, 5, &[(0, 1), (1, 1)]));
    }

    #[test]
    fn a_number_used_again_in_another_life_is_no_excuse_and_no_fault() {
        let mut story = Story::new(|_| Vec::new());
        let (a, b) = (ask(1, &mode("x")), ask(2, &mode("x")));
        story.holds(granted(0, &a, 1));
        story.holds(granted(0, &b, 1));
        story.holds(granted(1, &b, 1));
        story.holds(granted(1, &a, 1));
        story.holds(entered(&holder(1), &a, 5, &[(0, 1), (1, 1)]));
        story.holds(entered(&holder(2), &b, 5, &[(0, 1), (1, 1)]));
        story.breaks("grounded", moved(&holder(2), 5, &[(0, 1), (1, 2)]));
        story.breaks("grounded", moved(&holder(3), 5, &[(0, 1)]));
    }

    #[test]
    fn a_grant_for_another_lock_is_found() {
        let mut story = Story::new(|_| Vec::new());
        let own = ask(1, &mode("x"));
        let mut other = (*own).clone();
        other.name = conclave_protocol::id::Name::new("other");
        story.holds(granted(0, &other.into(), 1));
        story.breaks("grounded", entered(&holder(1), &own, 5, &[(0, 1)]));
    }
}
