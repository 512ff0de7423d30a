//! A hold that a quorum could keep lasts.
//!
//! While a quorum serves a client, each of its holds lasts for at least half a TTL without another
//! word of any node, whatever happened to the nodes that it rested on: whoever works under a lock
//! is not told to stop because one node of many went.

use std::collections::BTreeMap;

use super::book::{broken, name_of};
use crate::fact::{Checker, Eyes, Fact, Holder, True, Violation};

/// Checks that holds last while a quorum serves.
#[derive(Debug, Default)]
pub struct Kept {
    /// When each hold began: it lasts for a TTL only once its nodes know of it.
    entered: BTreeMap<Holder, True>,
}

impl Checker for Kept {
    fn property(&self) -> &'static str {
        "kept"
    }

    fn watch(&mut self, at: True, fact: &Fact, eyes: &dyn Eyes) -> Result<(), Violation> {
        match fact {
            Fact::Entered { holder, .. } => {
                self.entered.insert(holder.clone(), at);
            }
            Fact::Released { holder } | Fact::Lost { holder } | Fact::Vanished { holder } => {
                self.entered.remove(holder);
            }
            _ => {}
        }
        if !matches!(fact, Fact::Tick | Fact::Moved { .. }) {
            return Ok(());
        }
        let holds = eyes.kept_holds();
        for (holder, lasts, least) in holds {
            let since = self.entered.get(&holder).copied().unwrap_or_default();
            let young = since.0.saturating_add(eyes.patience()) > at.0;
            if lasts < least && !young {
                let (who, lasts, least) = (name_of(&holder), lasts / 1000, least / 1000);
                let what = format!("{who} holds for {lasts} us more, not for {least} us");
                return broken(self.property(), at, what);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Story, holder};
    use super::*;

    #[test]
    fn a_hold_that_is_about_to_end_is_named() {
        let mut story = Story::new(|_| vec![Box::<Kept>::default()]);
        story.eyes.patience = 0;
        story.eyes.kept_holds = vec![(holder(1), 500, 500)];
        story.holds(Fact::Tick);
        story.eyes.kept_holds.push((holder(2), 499, 500));
        let what = story.breaks("kept", Fact::Tick);
        assert!(what.contains("client 2"), "{what}");
    }
}
