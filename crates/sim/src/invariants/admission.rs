//! The resource refuses only the past.
//!
//! A holder that still believes, and from which no node has taken a grant that it rests on, is
//! never refused by the fence. And the fence never admits a token that is not above every admitted
//! token of another group.

use conclave_protocol::id::Name;
use conclave_protocol::lock::Floors;
use conclave_protocol::table::Table;

use super::book::{Book, broken, name_of};
use crate::fact::{Checker, Eyes, Fact, True, Violation};

/// Checks what the resource admits and refuses.
#[derive(Debug)]
pub struct Admission {
    book: Book,
    admitted: Table<Name, Floors>,
}

impl Admission {
    /// A checker that reads this book.
    pub fn new(book: Book) -> Self {
        Self {
            book,
            admitted: Table::new(6),
        }
    }
}

impl Checker for Admission {
    fn property(&self) -> &'static str {
        "admission"
    }

    fn watch(&mut self, at: True, fact: &Fact, eyes: &dyn Eyes) -> Result<(), Violation> {
        let Fact::Acted {
            holder,
            group,
            token,
            admitted,
        } = fact
        else {
            return Ok(());
        };
        if !admitted {
            let book = self.book.borrow();
            let Some(hold) = book.hold(holder) else {
                return Ok(());
            };
            let until = eyes.believes_until(holder);
            let taken = hold.members.iter().any(|&place| book.given(place).taken());
            if taken || until.is_none_or(|until| until <= at) {
                return Ok(());
            }
            let who = name_of(holder);
            let what = format!("{who} was refused with token {token}, although no node expired it");
            return broken(self.property(), at, what);
        }
        let floor = self.admitted.get(&holder.name);
        let floor = floor.map(|seen| seen.other(group)).unwrap_or_default();
        if let Some(seen) = self.admitted.get_mut(&holder.name) {
            seen.record(group, *token);
        } else {
            let mut seen = Floors::default();
            seen.record(group, *token);
            self.admitted.insert(holder.name.clone(), seen);
        }
        // A token of zero was never given out; the first holder has at least one.
        if *token <= floor {
            let who = name_of(holder);
            let what = format!("{who} was admitted with token {token}, a rival with {floor}");
            return broken(self.property(), at, what);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use conclave_protocol::lock::End;

    use super::super::fake::{Story, acted, ask, ended, entered, granted, holder, mode, spite};
    use super::*;

    fn inside() -> Story {
        let mut story = Story::new(|book| vec![Box::new(Admission::new(book.clone()))]);
        let a = ask(1, &mode("x"));
        story.holds(granted(0, &a, 1));
        story.holds(entered(&holder(1), &a, 5, &[(0, 1)]));
        story.believes(1, 100);
        story.at = 10;
        story
    }

    #[test]
    fn a_holder_is_admitted() {
        let mut story = inside();
        let own = ask(1, &mode("x")).group();
        story.holds(acted(1, own.clone(), 5, true));
        story.breaks("admission", acted(1, own, 5, false));
    }

    #[test]
    fn whoever_lost_it_may_be_refused() {
        let a = ask(1, &mode("x"));
        for why in [End::Expired, End::Lapsed, End::Forgotten, End::Revoked] {
            let mut story = inside();
            story.holds(ended(0, &a, 1, why));
            story.holds(acted(1, a.group(), 5, false));
        }
        let mut story = inside();
        story.holds(spite(0, 1));
        story.holds(acted(1, a.group(), 5, false));
        let mut story = inside();
        story.at = 100;
        story.holds(acted(1, a.group(), 5, false));
    }

    #[test]
    fn a_grant_given_back_by_mistake_is_no_excuse() {
        let a = ask(1, &mode("x"));
        for why in [
            End::Yielded,
            End::Cancelled,
            End::Done(conclave_protocol::id::Token(5)),
        ] {
            let mut story = inside();
            story.holds(ended(0, &a, 1, why));
            story.breaks("admission", acted(1, a.group(), 5, false));
        }
    }

    #[test]
    fn the_fence_itself_is_watched() {
        let mut story = inside();
        let (x, y) = (ask(1, &mode("x")).group(), ask(2, &mode("y")).group());
        story.holds(acted(1, x.clone(), 5, true));
        story.holds(acted(3, x.clone(), 4, true));
        story.holds(acted(2, y.clone(), 6, true));
        story.breaks("admission", acted(1, x, 6, true));
        story.breaks("admission", acted(2, y, 6, true));
    }
}
