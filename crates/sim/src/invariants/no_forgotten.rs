//! Once all faults have ended, every request ends.
//!
//! No deadlock and no lockout: Maekawa 1985, and for groups Joung 2003. When the run is
//! over after the healing, no request of a live process still waits. If nobody is inside the lock
//! it waits for, that is a deadlock, and the message says who waits for what.

use conclave_protocol::id::{GrantNo, Name, NodeId};
use conclave_protocol::lock::{EntryView, LockView};

use super::book::{Book, broken, name_of};
use crate::fact::{Checker, Eyes, Fact, True, Violation};

/// How many nodes a message shows.
const SHOWN: usize = 8;

/// Checks that nobody waits for ever.
#[derive(Debug)]
pub struct NoForgotten {
    book: Book,
    healed: bool,
}

impl NoForgotten {
    /// A checker that reads this book.
    pub fn new(book: Book) -> Self {
        Self {
            book,
            healed: false,
        }
    }
}

impl Checker for NoForgotten {
    fn property(&self) -> &'static str {
        "no-forgotten"
    }

    fn watch(&mut self, at: True, fact: &Fact, eyes: &dyn Eyes) -> Result<(), Violation> {
        self.healed |= matches!(fact, Fact::Healed);
        if !self.healed || !matches!(fact, Fact::Over) {
            return Ok(());
        }
        let waiting = eyes.waiting();
        let Some(first) = waiting.first() else {
            return Ok(());
        };
        let book = self.book.borrow();
        let inside = book.holds().find(|hold| hold.holder.name == first.name);
        let how = match inside {
            Some(hold) => format!("forgotten: {} is inside", name_of(&hold.holder)),
            None => "deadlock: nobody is inside".to_owned(),
        };
        let (count, who) = (waiting.len(), name_of(first));
        let seen = queues(&first.name, eyes);
        let what = format!("{count} requests wait, first {who}; {how}; {seen}");
        broken(self.property(), at, what)
    }
}

/// Who holds and who waits for a lock, node by node.
pub(super) fn queues(name: &Name, eyes: &dyn Eyes) -> String {
    let nodes = (0..eyes.nodes()).map(NodeId::at);
    let views = nodes.filter_map(|node| Some((node, eyes.view(node, name)?)));
    let busy = views.filter(|(_, view)| !view.entries.is_empty());
    let lines: Vec<String> = busy
        .take(SHOWN)
        .map(|(node, view)| {
            let serving = if eyes.serving(node) { "" } else { " (silent)" };
            let granted = list(&view, |entry| entry.grant != GrantNo(0));
            let waiting = list(&view, |entry| entry.grant == GrantNo(0));
            format!("{node}{serving}: granted {granted}, waiting {waiting}")
        })
        .collect();
    if lines.is_empty() {
        return "no node knows a request for it".to_owned();
    }
    lines.join("; ")
}

fn list(view: &LockView, which: impl Fn(&EntryView) -> bool) -> String {
    let some = view.entries.iter().filter(|entry| which(entry));
    let names: Vec<String> = some
        .map(|entry| {
            let asked_back = if entry.inquired { "?" } else { "" };
            let (client, request) = (entry.ask.priority.client, entry.ask.request);
            format!("{client:x}/{request}{asked_back}")
        })
        .collect();
    if names.is_empty() {
        return "none".to_owned();
    }
    names.join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Story, ask, entered, entry, granted, holder, mode};
    use super::*;

    fn story() -> Story {
        Story::new(|book| vec![Box::new(NoForgotten::new(book.clone()))])
    }

    #[test]
    fn a_quiet_world_is_fine() {
        let mut story = story();
        story.holds(Fact::Healed);
        story.holds(Fact::Over);
    }

    #[test]
    fn waiting_is_fine_before_the_end_and_in_a_world_that_never_heals() {
        let mut story = story();
        story.eyes.waiting = vec![holder(1)];
        story.holds(Fact::Over);
        story.holds(Fact::Healed);
        story.breaks("no-forgotten", Fact::Over);
    }

    #[test]
    fn a_deadlock_is_named_and_drawn() {
        let mut story = story();
        let (a, b) = (ask(1, &mode("x")), ask(2, &mode("y")));
        story.shows(0, true, vec![entry(&a, 1), entry(&b, 0)]);
        story.shows(1, true, vec![entry(&b, 1), entry(&a, 0)]);
        story.eyes.waiting = vec![holder(1), holder(2)];
        story.holds(Fact::Healed);
        let what = story.breaks("no-forgotten", Fact::Over);
        assert!(what.contains("2 requests wait"), "{what}");
        assert!(what.contains("deadlock: nobody is inside"), "{what}");
        assert!(what.contains("n1: granted 1/1, waiting 2/1; n2: granted 2/1, waiting 1/1"));
    }

    #[test]
    fn somebody_inside_makes_it_no_deadlock() {
        let mut story = story();
        let a = ask(1, &mode("x"));
        story.holds(granted(0, &a, 1));
        story.holds(entered(&holder(1), &a, 5, &[(0, 1)]));
        story.eyes.waiting = vec![holder(2)];
        story.holds(Fact::Healed);
        let what = story.breaks("no-forgotten", Fact::Over);
        assert!(what.contains("forgotten: client 1"), "{what}");
        assert!(what.contains("no node knows"), "{what}");
    }
}
