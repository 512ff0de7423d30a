//! Whoever takes any one of several locks is never inside two of them.
//!
//! So the `k` slots of a semaphore have at most `k` holders, and each of them is another caller:
//! that no slot has two follows from exclusion.

use std::collections::BTreeMap;

use conclave_protocol::id::{Key, Name};

use super::book::{broken, name_of};
use crate::fact::{Checker, Eyes, Fact, Holder, True, Violation};

/// Checks that a choice ends with one lock.
#[derive(Debug, Default)]
pub struct OneSlot {
    choices: BTreeMap<(u32, u32, Key), Choice>,
}

/// What became of a choice so far.
#[derive(Debug)]
struct Choice {
    inside: Option<Name>,
    /// How many of its locks have not ended.
    left: usize,
}

impl OneSlot {
    fn entered(&mut self, at: True, holder: &Holder) -> Result<(), Violation> {
        let Some(choice) = self.choices.get_mut(&key_of(holder)) else {
            return Ok(());
        };
        match choice.inside.replace(holder.name.clone()) {
            Some(other) if other != holder.name => {
                let who = name_of(holder);
                let what = format!("{who} took any one of several, and is inside {other} too");
                broken("one-slot", at, what)
            }
            _ => Ok(()),
        }
    }

    fn ended(&mut self, holder: &Holder) {
        let key = key_of(holder);
        let Some(choice) = self.choices.get_mut(&key) else {
            return;
        };
        choice.left = choice.left.saturating_sub(1);
        if choice.left == 0 || choice.inside.as_ref() == Some(&holder.name) {
            self.choices.remove(&key);
        }
    }
}

fn key_of(holder: &Holder) -> (u32, u32, Key) {
    (holder.client, holder.life, holder.key)
}

impl Checker for OneSlot {
    fn property(&self) -> &'static str {
        "one-slot"
    }

    fn watch(&mut self, at: True, fact: &Fact, _: &dyn Eyes) -> Result<(), Violation> {
        match fact {
            Fact::AskedAny { holder, of } => {
                let choice = self.choices.entry(key_of(holder));
                choice.or_insert(Choice {
                    inside: None,
                    left: *of,
                });
                Ok(())
            }
            Fact::Entered { holder, .. } => self.entered(at, holder),
            Fact::Released { holder }
            | Fact::Lost { holder }
            | Fact::Ended { holder }
            | Fact::Vanished { holder } => {
                self.ended(holder);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use conclave_protocol::lock::Mode;

    use super::super::fake::{Story, ask, entered, granted, holder};
    use super::*;

    fn slot(client: u32, name: &str) -> Holder {
        let mut holder = holder(client);
        holder.name = Name::new(name);
        holder
    }

    fn story() -> Story {
        let mut story = Story::new(|_| vec![Box::new(OneSlot::default())]);
        for name in ["a", "b"] {
            let holder = slot(1, name);
            story.holds(Fact::AskedAny { holder, of: 2 });
        }
        story
    }

    fn enters(story: &mut Story, name: &str, grant: u64) -> Fact {
        let mut ask = (*ask(1, &Mode::Exclusive)).clone();
        ask.name = Name::new(name);
        let ask = std::sync::Arc::new(ask);
        story.holds(granted(0, &ask, grant));
        entered(&slot(1, name), &ask, grant, &[(0, grant)])
    }

    #[test]
    fn one_of_them_may_be_entered() {
        let mut story = story();
        let first = enters(&mut story, "a", 1);
        story.holds(first);
        let holder = slot(1, "b");
        story.holds(Fact::Ended { holder });
    }

    #[test]
    fn two_of_them_may_not() {
        let mut story = story();
        let first = enters(&mut story, "a", 1);
        story.holds(first);
        let holder = slot(1, "b");
        story.holds(Fact::Ended { holder });
        let second = enters(&mut story, "b", 2);
        let what = story.breaks("one-slot", second);
        assert!(what.contains("is inside a too"), "{what}");
    }
}
