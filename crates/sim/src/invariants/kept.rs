//! A hold that a quorum could keep lasts.
//!
//! While a quorum serves a client, each of its holds lasts for at least half a TTL without another
//! word of any node, whatever happened to the nodes that it rested on, and is not lost before that
//! time is over: whoever works under a lock is not told to stop because one node of many went.

use std::collections::BTreeMap;

use super::book::{broken, name_of};
use crate::fact::{Checker, Eyes, Fact, Holder, True, Violation};

/// Checks that holds last while a quorum serves.
#[derive(Debug, Default)]
pub struct Kept {
    /// When each hold began: it lasts for a TTL only once its nodes know of it.
    entered: BTreeMap<Holder, True>,
    /// Until when each hold lasted when it was last looked at.
    lasts: BTreeMap<Holder, True>,
}

impl Kept {
    fn is_young(&self, holder: &Holder, at: True, eyes: &dyn Eyes) -> bool {
        let since = self.entered.get(holder).copied().unwrap_or_default();
        since.0.saturating_add(eyes.patience()) > at.0
    }
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
            Fact::Lost { holder } => {
                let young = self.is_young(holder, at, eyes);
                self.entered.remove(holder);
                let until = self.lasts.remove(holder).unwrap_or_default();
                if until > at && !young && eyes.keepable(holder) {
                    let (who, left) = (name_of(holder), (until.0 - at.0) / 1000);
                    let what = format!("{who} lost its hold, which had {left} us to go");
                    return broken(self.property(), at, what);
                }
            }
            Fact::Released { holder } | Fact::Vanished { holder } => {
                self.entered.remove(holder);
                self.lasts.remove(holder);
            }
            _ => {}
        }
        if !matches!(fact, Fact::Tick | Fact::Moved { .. }) {
            return Ok(());
        }
        let holds = eyes.kept_holds();
        self.lasts.clear();
        for (holder, lasts, least) in holds {
            self.lasts.insert(holder.clone(), True(at.0 + lasts));
            if lasts < least && !self.is_young(&holder, at, eyes) {
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

    #[test]
    fn a_hold_that_goes_while_a_quorum_serves_is_named() {
        let mut story = Story::new(|_| vec![Box::<Kept>::default()]);
        story.eyes.patience = 0;
        story.eyes.kept_holds = vec![(holder(1), 5000, 500), (holder(2), 5000, 500)];
        story.holds(Fact::Tick);
        story.holds(Fact::Lost { holder: holder(1) });
        story.eyes.keepable = true;
        let lost = Fact::Lost { holder: holder(2) };
        let what = story.breaks("kept", lost);
        assert!(what.contains("client 2"), "{what}");
        // One that had run out before is another matter.
        story.holds(Fact::Tick);
        story.at += 5000;
        story.holds(Fact::Lost { holder: holder(2) });
    }
}
