//! A request that the cluster could serve is served soon, also while faults go on elsewhere.
//!
//! If a quorum has served a client and been reachable for two lives of a connection, and for as
//! long nobody conflicting was inside or ahead, its request is inside. [`NoForgotten`] asks only
//! for the end of all waiting once all faults are over; this bounds it.
//!
//! [`NoForgotten`]: super::NoForgotten

use std::collections::BTreeMap;

use super::book::{broken, name_of};
use super::no_forgotten::queues;
use crate::fact::{Checker, Eyes, Fact, Holder, True, Violation};

/// Checks that nobody waits for what is to be had.
#[derive(Debug, Default)]
pub struct ServedInTime {
    /// Since when each request could have been served.
    since: BTreeMap<Holder, True>,
}

impl Checker for ServedInTime {
    fn property(&self) -> &'static str {
        "served-in-time"
    }

    fn watch(&mut self, at: True, fact: &Fact, eyes: &dyn Eyes) -> Result<(), Violation> {
        match fact {
            // Somebody came in and may be out again before the next look.
            Fact::Entered { holder, .. } => {
                self.since.retain(|other, _| other.name != holder.name);
            }
            Fact::Tick => {
                let servable = eyes.waiting().into_iter().filter(|it| eyes.servable(it));
                let since = servable.map(|holder| {
                    let since = self.since.get(&holder).copied().unwrap_or(at);
                    (holder, since)
                });
                self.since = since.collect();
                let patience = eyes.patience();
                let late = |since: &True| since.0.saturating_add(patience) < at.0;
                if let Some((holder, since)) = self.since.iter().find(|(_, since)| late(since)) {
                    let (who, waited) = (name_of(holder), (at.0 - since.0) / 1_000_000);
                    let seen = queues(&holder.name, eyes);
                    let what = format!("{who} could have been served for {waited} ms; {seen}");
                    return broken(self.property(), at, what);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Story, ask, entered, granted, holder, mode};
    use super::*;

    fn story() -> Story {
        let mut story = Story::new(|_| vec![Box::new(ServedInTime::default())]);
        story.eyes.waiting = vec![holder(2)];
        story.eyes.servable = true;
        story.eyes.patience = 100;
        story
    }

    #[test]
    fn a_request_that_waits_too_long_is_named() {
        let mut story = story();
        story.holds(Fact::Tick);
        story.at += 100;
        story.holds(Fact::Tick);
        story.at += 1;
        let what = story.breaks("served-in-time", Fact::Tick);
        assert!(what.contains("client 2"), "{what}");
    }

    #[test]
    fn time_counts_only_while_it_could_be_served_and_nobody_enters() {
        let mut story = story();
        let a = ask(1, &mode("x"));
        for turn in 0..6 {
            story.eyes.servable = turn != 3;
            story.holds(Fact::Tick);
            story.at += 60;
            if turn % 2 == 0 {
                story.holds(granted(0, &a, 1 + turn));
                story.holds(entered(&holder(1), &a, turn, &[(0, 1 + turn)]));
            }
        }
    }
}
