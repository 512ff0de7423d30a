//! Two holders of different groups never believe at the same true time that they are inside.
//!
//! Mutual exclusion of Maekawa 1985, by groups as in Joung 2003, on the world's own
//! clock: a holder counts until it released, was told *lost*, died, or its own deadline passed on
//! its own drifting clock. A pause does not end a belief before the deadline does.
//!
//! Excused are holders with a grant whose promise was broken on purpose (expired by spite,
//! revoked): no lock service can keep both sides of that. A heartbeat may move a deadline, so
//! pairs are looked at again whenever one of the two moves or acts, and at the end.

use super::book::{Book, Hold, Ledger, broken, name_of};
use crate::fact::{Checker, Eyes, Fact, True, Violation};

/// Checks exclusion by group on true time.
#[derive(Debug)]
pub struct Exclusion {
    book: Book,
}

impl Exclusion {
    /// A checker that reads this book.
    pub fn new(book: Book) -> Self {
        Self { book }
    }
}

impl Checker for Exclusion {
    fn property(&self) -> &'static str {
        "exclusion"
    }

    fn watch(&mut self, at: True, fact: &Fact, eyes: &dyn Eyes) -> Result<(), Violation> {
        let book = self.book.borrow();
        let pair = match fact {
            Fact::Entered { holder, .. }
            | Fact::Moved { holder, .. }
            | Fact::Acted { holder, .. } => {
                let hold = book.hold(holder);
                hold.and_then(|hold| Some((hold, overlapped(&book, hold, at, eyes)?)))
            }
            Fact::Healed | Fact::Over => book
                .holds()
                .find_map(|hold| Some((hold, overlapped(&book, hold, at, eyes)?))),
            _ => None,
        };
        let Some((hold, rival)) = pair else {
            return Ok(());
        };
        let what = format!(
            "{} ({}, token {}) and {} ({}, token {}) are inside at once",
            name_of(&hold.holder),
            hold.group,
            hold.token,
            name_of(&rival.holder),
            rival.group,
            rival.token,
        );
        broken(self.property(), at, what)
    }
}

/// A rival that believes at the same time, if neither of the two is excused.
fn overlapped<'a>(book: &'a Ledger, hold: &'a Hold, at: True, eyes: &dyn Eyes) -> Option<&'a Hold> {
    let mut rivals = book.rivals(&hold.holder.name, &hold.group).peekable();
    rivals.peek()?;
    let counts = |hold: &Hold| {
        let until = eyes.believes_until(&hold.holder);
        until.is_some_and(|until| until > at) && !book.waived(hold)
    };
    if !counts(hold) {
        return None;
    }
    rivals.find(|rival| counts(rival))
}

#[cfg(test)]
mod tests {
    use conclave_protocol::lock::{End, Mode};

    use super::super::fake::{
        Story, acted, ask, ended, entered, granted, holder, mode, moved, released, spite,
    };
    use super::*;

    fn story() -> Story {
        Story::new(|book| vec![Box::new(Exclusion::new(book.clone()))])
    }

    /// Clients 1 and 2 of these modes: 1 is inside on node 0 until 100, 2 has a grant there.
    fn first_inside(one: &Mode, two: &Mode) -> Story {
        let mut story = story();
        let (a, b) = (ask(1, one), ask(2, two));
        story.holds(granted(0, &a, 1));
        story.believes(1, 100);
        story.holds(entered(&holder(1), &a, 5, &[(0, 1)]));
        story.holds(granted(0, &b, 2));
        story.believes(2, 100);
        story.at = 10;
        story
    }

    fn second_enters(two: &Mode) -> Fact {
        entered(&holder(2), &ask(2, two), 6, &[(0, 2)])
    }

    #[test]
    fn members_of_a_group_share() {
        for shared in [mode("x"), Mode::Shared] {
            let mut story = first_inside(&shared, &shared);
            story.holds(second_enters(&shared));
            story.holds(Fact::Over);
        }
    }

    #[test]
    fn rivals_exclude_each_other() {
        let modes = [
            (Mode::Exclusive, Mode::Exclusive),
            (Mode::Shared, Mode::Exclusive),
            (mode("shared"), Mode::Shared),
            (mode("x"), mode("y")),
        ];
        for (one, two) in modes {
            let mut story = first_inside(&one, &two);
            story.breaks("exclusion", second_enters(&two));
        }
    }

    #[test]
    fn whoever_left_or_let_its_deadline_pass_is_outside() {
        let mut story = first_inside(&Mode::Exclusive, &Mode::Exclusive);
        story.holds(released(1));
        story.holds(second_enters(&Mode::Exclusive));

        let mut story = first_inside(&Mode::Exclusive, &Mode::Exclusive);
        story.at = 100;
        story.believes(2, 200);
        story.holds(second_enters(&Mode::Exclusive));
        story.holds(Fact::Over);
    }

    #[test]
    fn a_deadline_that_moves_on_later_is_found() {
        let late = [
            acted(1, ask(1, &Mode::Exclusive).group(), 5, true),
            acted(2, ask(2, &Mode::Exclusive).group(), 6, true),
            moved(&holder(1), 5, &[(0, 1)]),
            Fact::Over,
        ];
        for fact in late {
            let mut story = first_inside(&Mode::Exclusive, &Mode::Exclusive);
            story.at = 100;
            story.believes(2, 200);
            story.holds(second_enters(&Mode::Exclusive));
            story.believes(1, 150);
            story.breaks("exclusion", fact);
        }
    }

    #[test]
    fn spite_excuses_as_long_as_the_holder_rests_on_it() {
        let mut story = story();
        let (a, b) = (ask(1, &Mode::Exclusive), ask(2, &Mode::Exclusive));
        story.holds(granted(0, &a, 1));
        story.holds(granted(1, &a, 1));
        story.believes(1, 100);
        story.holds(entered(&holder(1), &a, 5, &[(0, 1)]));
        story.holds(spite(0, 1));
        story.holds(ended(0, &a, 1, End::Expired));
        story.holds(granted(0, &b, 2));
        story.believes(2, 100);
        story.holds(entered(&holder(2), &b, 6, &[(0, 2)]));
        story.holds(acted(1, a.group(), 5, true));
        story.breaks("exclusion", moved(&holder(1), 5, &[(1, 1)]));
    }

    #[test]
    fn spite_elsewhere_or_against_an_earlier_grant_excuses_nothing() {
        let mut story = first_inside(&Mode::Exclusive, &Mode::Exclusive);
        story.holds(spite(1, 1));
        story.holds(spite(0, 3));
        story.breaks("exclusion", second_enters(&Mode::Exclusive));

        let mut story = self::story();
        let (a, b) = (ask(1, &Mode::Exclusive), ask(2, &Mode::Exclusive));
        story.holds(granted(0, &a, 1));
        story.holds(spite(0, 1));
        story.holds(ended(0, &a, 1, End::Expired));
        story.holds(granted(0, &a, 2));
        story.believes(1, 100);
        story.holds(entered(&holder(1), &a, 5, &[(0, 2)]));
        story.holds(granted(0, &b, 3));
        story.believes(2, 100);
        story.breaks("exclusion", entered(&holder(2), &b, 6, &[(0, 3)]));
    }

    #[test]
    fn a_revoked_holder_is_excused() {
        let mut story = first_inside(&Mode::Exclusive, &Mode::Exclusive);
        story.holds(ended(0, &ask(1, &Mode::Exclusive), 1, End::Revoked));
        story.holds(second_enters(&Mode::Exclusive));
    }
}
