//! No node lets more requests of a lock in at once than its policy allows.
//!
//! The limit (`max` in Joung 2003, section 4) is one per node: disjoint quorums may hold more in
//! sum. Grants whose promise was broken on purpose are not counted, since their holder may come
//! back to a node that restarted.

use std::sync::Arc;

use conclave_protocol::id::{GrantNo, NodeId};
use conclave_protocol::lock::{Ask, Config};

use super::book::{Book, broken};
use crate::fact::{Checker, Eyes, Fact, True, Violation};

/// Checks the number of granted requests per node and lock.
#[derive(Debug)]
pub struct MaxInside {
    book: Book,
    config: Arc<Config>,
}

impl MaxInside {
    /// A checker that reads this book and these policies.
    pub fn new(book: Book, config: Arc<Config>) -> Self {
        Self { book, config }
    }

    fn look(&self, at: True, node: NodeId, ask: &Ask, eyes: &dyn Eyes) -> Result<(), Violation> {
        let policy = self.config.policy(&ask.name);
        if policy.max_inside == u32::MAX {
            return Ok(());
        }
        let mut book = self.book.borrow_mut();
        let Some(view) = book.view(node, &ask.name, eyes) else {
            return Ok(());
        };
        let granted = view.entries.iter().filter(|entry| {
            let waived = || {
                let place = book.look_up(node, &entry.ask, entry.grant);
                place.is_some_and(|place| book.given(place).waived)
            };
            entry.grant != GrantNo(0) && !waived()
        });
        let (count, limit) = (granted.count(), policy.max_inside);
        if count > limit as usize {
            let name = &ask.name;
            let what = format!("{node} has granted lock {name} {count} times, allowed are {limit}");
            return broken(self.property(), at, what);
        }
        Ok(())
    }
}

impl Checker for MaxInside {
    fn property(&self) -> &'static str {
        "max-inside"
    }

    fn watch(&mut self, at: True, fact: &Fact, eyes: &dyn Eyes) -> Result<(), Violation> {
        match fact {
            Fact::Granted { node, ask, .. } | Fact::Reclaimed { node, ask, .. } => {
                self.look(at, *node, ask, eyes)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Story, ask, entry, granted, mode, spite};
    use super::super::tests::config;
    use super::*;

    fn story(max_inside: u32) -> Story {
        let config = config(|policy| policy.max_inside = max_inside);
        Story::new(|book| vec![Box::new(MaxInside::new(book.clone(), config))])
    }

    #[test]
    fn waiting_requests_do_not_count() {
        let mut story = story(1);
        let (a, b) = (ask(1, &mode("x")), ask(2, &mode("x")));
        story.shows(0, true, vec![entry(&a, 1), entry(&b, 0)]);
        story.holds(granted(0, &a, 1));
        story.shows(0, true, vec![entry(&a, 1), entry(&b, 2)]);
        let what = story.breaks("max-inside", granted(0, &b, 2));
        assert!(
            what.contains("granted lock lock 2 times, allowed are 1"),
            "{what}"
        );
    }

    #[test]
    fn a_grant_broken_by_spite_may_come_back() {
        let mut story = story(1);
        let (a, b) = (ask(1, &mode("x")), ask(2, &mode("x")));
        story.shows(0, true, vec![entry(&a, 1)]);
        story.holds(granted(0, &a, 1));
        story.holds(spite(0, 1));
        story.shows(0, true, vec![entry(&a, 1), entry(&b, 2)]);
        story.holds(granted(0, &b, 2));
    }

    #[test]
    fn no_limit_is_no_limit() {
        let mut story = story(u32::MAX);
        let (a, b) = (ask(1, &mode("x")), ask(2, &mode("x")));
        story.shows(0, true, vec![entry(&a, 1), entry(&b, 2)]);
        story.holds(granted(0, &b, 2));
    }
}
