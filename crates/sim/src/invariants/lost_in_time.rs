//! A holder knows that a grant is lost before the node gives it to anybody else.
//!
//! On true time, with clocks that drift within their margin (leases: Gray and Cheriton 1989):
//!
//! - when a node ends a grant, the hold that rests on it no longer counts that grant as fresh;
//! - when a node grants a request, no conflicting holder counts a grant of that node as fresh;
//! - a process that is awake is told *lost* when its deadline passes, not later.
//!
//! Together: no conflicting holder enters before the last one was told *lost* or, if its process
//! is paused, before its own deadline passed. Grants whose promise was broken on purpose are
//! excused from the first two.

use conclave_protocol::id::{GrantNo, NodeId};
use conclave_protocol::lock::Ask;

use super::book::{Book, Hold, Ledger, broken, name_of};
use crate::fact::{Checker, Eyes, Fact, True, Violation};

/// How much later than its deadline, in nanoseconds of true time, an awake process may hear of a
/// loss: what the rounding of clocks and the order of events at one time may cost.
const SLACK: u64 = 1_000;

/// Checks that losses are known in time.
#[derive(Debug)]
pub struct LostInTime {
    book: Book,
}

impl LostInTime {
    /// A checker that reads this book.
    pub fn new(book: Book) -> Self {
        Self { book }
    }
}

impl Checker for LostInTime {
    fn property(&self) -> &'static str {
        "lost-in-time"
    }

    fn watch(&mut self, at: True, fact: &Fact, eyes: &dyn Eyes) -> Result<(), Violation> {
        let book = self.book.borrow();
        let what = match fact {
            Fact::NodeEnded {
                node, ask, grant, ..
            } if *grant != GrantNo(0) => ended_under(&book, *node, ask, *grant, eyes),
            Fact::Granted { node, ask, .. } | Fact::Reclaimed { node, ask, .. } => {
                granted_over(&book, *node, ask, eyes)
            }
            Fact::Entered { holder, group, .. } => {
                let mut rivals = book.rivals(&holder.name, group);
                rivals.find_map(|rival| told_late(rival, at, eyes))
            }
            Fact::Acted { holder, .. } | Fact::Moved { holder, .. } => {
                book.hold(holder).and_then(|hold| told_late(hold, at, eyes))
            }
            Fact::Healed | Fact::Over => book.holds().find_map(|hold| told_late(hold, at, eyes)),
            _ => None,
        };
        what.map_or(Ok(()), |what| broken(self.property(), at, what))
    }
}

/// A grant that ended although its holder counts on it.
fn ended_under(
    book: &Ledger,
    node: NodeId,
    ask: &Ask,
    grant: GrantNo,
    eyes: &dyn Eyes,
) -> Option<String> {
    let place = book.look_up(node, ask, grant)?;
    let given = book.given(place);
    if given.waived {
        return None;
    }
    let hold = book.rests_on(place)?;
    let counted = eyes.fresh_members(&hold.holder).contains(&(node, grant));
    counted.then(|| {
        let who = name_of(&hold.holder);
        let why = given.ended;
        format!("{node} ended grant {grant} ({why:?}) while {who} counts it as fresh")
    })
}

/// A grant to a rival of a holder that counts on the node.
fn granted_over(book: &Ledger, node: NodeId, ask: &Ask, eyes: &dyn Eyes) -> Option<String> {
    let group = ask.group();
    let rests = |hold: &&Hold| {
        let mut members = hold.members.iter().map(|&place| book.given(place));
        members.any(|given| given.node == node && !given.waived)
    };
    let mut rivals = book.rivals(&ask.name, &group).filter(rests);
    let rival = rivals.find(|rival| {
        let fresh = eyes.fresh_members(&rival.holder);
        fresh.iter().any(|(member, _)| *member == node)
    })?;
    let who = name_of(&rival.holder);
    Some(format!(
        "{node} granted to {group} while {who} counts it as fresh"
    ))
}

/// A holder that is awake and was not told that its deadline has passed.
fn told_late(hold: &Hold, at: True, eyes: &dyn Eyes) -> Option<String> {
    let until = eyes.believes_until(&hold.holder)?;
    if until > at {
        return None;
    }
    let due = until.max(eyes.awake_since(&hold.holder)?);
    (due.0.saturating_add(SLACK) < at.0).then(|| {
        let who = name_of(&hold.holder);
        let late = at.0 - due.0;
        format!("{who} is awake and was not told for {late} ns that its lock is lost")
    })
}

#[cfg(test)]
mod tests {
    use conclave_protocol::id::Token;
    use conclave_protocol::lock::{End, Mode};

    use super::super::fake::{
        Story, acted, ask, ended, entered, granted, holder, members, released, spite,
    };
    use super::*;

    const OTHER: &[(u32, u64)] = &[(1, 1)];

    /// Client 1 is inside on nodes 0 and 1, which it counts as fresh until 100.
    fn inside() -> Story {
        let mut story = Story::new(|book| vec![Box::new(LostInTime::new(book.clone()))]);
        let a = ask(1, &Mode::Exclusive);
        story.holds(granted(0, &a, 1));
        story.holds(granted(1, &a, 1));
        story.believes(1, 100);
        story.eyes.awake.insert(holder(1), 0);
        let both = &[(0, 1), (1, 1)];
        story.eyes.fresh.insert(holder(1), members(both));
        story.holds(entered(&holder(1), &a, 5, both));
        story
    }

    #[test]
    fn a_node_may_end_what_is_no_longer_counted() {
        let mut story = inside();
        story.eyes.fresh.insert(holder(1), members(OTHER));
        story.holds(ended(0, &ask(1, &Mode::Exclusive), 1, End::Expired));
        story.holds(granted(0, &ask(2, &Mode::Exclusive), 2));
        let mut story = inside();
        story.holds(released(1));
        story.holds(ended(0, &ask(1, &Mode::Exclusive), 1, End::Done(Token(5))));
    }

    #[test]
    fn a_node_must_not_end_what_is_counted() {
        for why in [End::Expired, End::Lapsed, End::Forgotten, End::Yielded] {
            let mut story = inside();
            story.breaks("lost-in-time", ended(0, &ask(1, &Mode::Exclusive), 1, why));
        }
    }

    #[test]
    fn nor_grant_over_it() {
        let mut story = inside();
        story.breaks("lost-in-time", granted(0, &ask(2, &Mode::Exclusive), 2));
        let mut story = inside();
        story.holds(granted(2, &ask(2, &Mode::Exclusive), 2));
    }

    #[test]
    fn spite_and_revocation_are_excused() {
        let mut story = inside();
        story.holds(spite(0, 1));
        story.holds(ended(0, &ask(1, &Mode::Exclusive), 1, End::Expired));
        story.holds(granted(0, &ask(2, &Mode::Exclusive), 2));
        story.breaks("lost-in-time", granted(1, &ask(2, &Mode::Exclusive), 2));
        let mut story = inside();
        story.holds(ended(0, &ask(1, &Mode::Exclusive), 1, End::Revoked));
    }

    #[test]
    fn an_awake_holder_hears_of_its_deadline() {
        let own = ask(1, &Mode::Exclusive).group();
        let mut story = inside();
        story.at = 100;
        story.holds(acted(1, own.clone(), 5, true));
        story.at = 100 + SLACK;
        story.holds(acted(1, own.clone(), 5, true));
        story.at = 101 + SLACK;
        story.breaks("lost-in-time", acted(1, own.clone(), 5, true));
        story.breaks("lost-in-time", Fact::Over);
        story.eyes.awake.insert(holder(1), 50 + SLACK);
        story.holds(acted(1, own.clone(), 5, true));
        story.eyes.awake.clear();
        story.holds(acted(1, own, 5, true));
    }

    #[test]
    fn a_rival_that_enters_finds_the_late_one() {
        let mut story = inside();
        let b = ask(2, &Mode::Exclusive);
        story.at = 5 * SLACK;
        story.eyes.fresh.clear();
        story.holds(granted(0, &b, 2));
        story.breaks("lost-in-time", entered(&holder(2), &b, 6, &[(0, 2)]));
    }
}
