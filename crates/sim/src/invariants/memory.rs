//! What a node keeps is bounded by what is live.
//!
//! During the run a node never keeps more locks, sessions, clients and tombstones than it may. When
//! the run is over and every promise has had time to end, no node keeps a request that belongs to
//! nobody: not one that waits, and not a grant that no holder rests on.

use std::collections::BTreeMap;

use conclave_protocol::id::{GrantNo, Name, NodeId};
use conclave_protocol::lock::{Ask, Config, EntryView};

use super::book::{Book, Ledger, broken};
use crate::fact::{Checker, Eyes, Fact, True, Violation};

/// What a node calls its counts, in their order.
const KINDS: [&str; 4] = ["locks", "sessions", "clients", "tombstones"];

/// A node's counts are looked at after this many changes of its locks, since counting takes it
/// a walk over what it keeps.
const EVERY: u32 = 64;

/// Checks the memory of the nodes.
#[derive(Debug)]
pub struct Memory {
    book: Book,
    bound: [usize; 4],
    grace: u64,
    healed: Option<True>,
    nodes: Vec<Touched>,
}

/// What happened at a node.
#[derive(Debug, Default)]
struct Touched {
    changes: u32,
    /// When each of its locks last changed.
    locks: BTreeMap<Name, True>,
}

impl Memory {
    /// A checker that reads this book. A node may keep `bound` locks, sessions, clients and
    /// tombstones; `grace` nanoseconds after the last change every promise has ended.
    pub fn new(book: Book, bound: [usize; 4], grace: u64) -> Self {
        Self {
            book,
            bound,
            grace,
            healed: None,
            nodes: Vec::new(),
        }
    }

    /// What the limits of this configuration allow a node to keep.
    pub fn bound(config: &Config) -> [usize; 4] {
        let limits = &config.limits;
        [
            limits.locks.saturating_add(limits.idle_locks),
            limits.clients.saturating_mul(limits.sessions_per_client),
            limits.clients,
            limits.tombstones,
        ]
    }

    /// How long after its last renewal a promise may live, in nanoseconds on any clock of the
    /// world, with a connection's life to spare for what is on its way.
    pub fn grace(config: &Config) -> u64 {
        let times = &config.times;
        let longest = times.stretch(times.stretch(times.ttl_max.max(times.link_ttl)));
        let spare = times.stretch(times.link_ttl) * 4;
        u64::try_from((longest + spare).as_nanos()).unwrap_or(u64::MAX)
    }

    fn changed(
        &mut self,
        at: True,
        node: NodeId,
        ask: &Ask,
        eyes: &dyn Eyes,
    ) -> Result<(), Violation> {
        if self.nodes.len() <= node.index() {
            self.nodes.resize_with(node.index() + 1, Touched::default);
        }
        let touched = &mut self.nodes[node.index()];
        if let Some(last) = touched.locks.get_mut(&ask.name) {
            *last = at;
        } else {
            touched.locks.insert(ask.name.clone(), at);
        }
        touched.changes = touched.changes.wrapping_add(1);
        if touched.changes % EVERY != 1 {
            return Ok(());
        }
        self.counts(at, node, eyes)
    }

    fn counts(&self, at: True, node: NodeId, eyes: &dyn Eyes) -> Result<(), Violation> {
        let kept = eyes.kept(node).unwrap_or_default();
        let counts = kept.iter().zip(self.bound).zip(KINDS);
        for ((&count, bound), kind) in counts {
            if count > bound {
                let what = format!("{node} keeps {count} {kind}, allowed are {bound}");
                return broken(self.property(), at, what);
            }
        }
        Ok(())
    }

    /// Whether something that last changed then had time to end, faults being over.
    fn old(&self, at: True, last: True) -> bool {
        let since = self.healed.map(|healed| healed.max(last));
        since.is_some_and(|since| since.0.saturating_add(self.grace) < at.0)
    }

    fn left_behind(&self, at: True, eyes: &dyn Eyes) -> Option<String> {
        let book = self.book.borrow();
        let idle = eyes.waiting().is_empty();
        for (node, touched) in self.nodes.iter().enumerate() {
            let node = NodeId::at(node);
            if !eyes.serving(node) {
                continue;
            }
            for (name, &last) in touched
                .locks
                .iter()
                .filter(|(_, last)| self.old(at, **last))
            {
                let view = eyes.view(node, name).unwrap_or_default();
                let stray = view.entries.iter().find(|entry| {
                    // What waiting requests hold is theirs; if they wait for ever, that is
                    // another property.
                    if entry.grant == GrantNo(0) || entry.entered.is_none() {
                        idle && !used(&book, node, entry)
                    } else {
                        !used(&book, node, entry)
                    }
                });
                if let Some(entry) = stray {
                    let grant = entry.grant;
                    let who = entry.ask.group();
                    return Some(format!(
                        "{node} still keeps a request of {who} for lock {name} (grant {grant}), \
                         unchanged since {} ns",
                        last.0
                    ));
                }
            }
        }
        None
    }
}

/// Whether somebody inside rests on what this node granted.
fn used(book: &Ledger, node: NodeId, entry: &EntryView) -> bool {
    let place = book.look_up(node, &entry.ask, entry.grant);
    place.is_some_and(|place| book.rests_on(place).is_some())
}

impl Checker for Memory {
    fn property(&self) -> &'static str {
        "memory"
    }

    fn watch(&mut self, at: True, fact: &Fact, eyes: &dyn Eyes) -> Result<(), Violation> {
        match fact {
            Fact::Granted { node, ask, .. }
            | Fact::Reclaimed { node, ask, .. }
            | Fact::NodeEnded { node, ask, .. } => self.changed(at, *node, ask, eyes),
            Fact::NodeUp { node } => {
                // What a node finds on its disk starts with a full life.
                if let Some(touched) = self.nodes.get_mut(node.index()) {
                    touched.locks.values_mut().for_each(|last| *last = at);
                }
                Ok(())
            }
            Fact::Healed => {
                self.healed = Some(at);
                Ok(())
            }
            Fact::Over => {
                for node in 0..self.nodes.len() {
                    self.counts(at, NodeId::at(node), eyes)?;
                }
                let what = self.left_behind(at, eyes);
                what.map_or(Ok(()), |what| broken(self.property(), at, what))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Story, ask, entered, entry, granted, holder, mode};
    use super::*;

    fn story() -> Story {
        Story::new(|book| vec![Box::new(Memory::new(book.clone(), [2, 3, 4, 5], 100))])
    }

    #[test]
    fn each_count_has_its_bound() {
        for (place, kind) in KINDS.iter().enumerate() {
            let mut story = story();
            story.eyes.kept = [2, 3, 4, 5];
            story.holds(granted(0, &ask(1, &mode("x")), 1));
            story.eyes.kept[place] += 1;
            let what = story.breaks("memory", Fact::Over);
            assert!(what.contains(kind), "{what}");
        }
    }

    #[test]
    fn counts_are_looked_at_now_and_then() {
        let mut story = story();
        story.holds(granted(0, &ask(1, &mode("x")), 1));
        story.eyes.kept = [9; 4];
        for _ in 1..EVERY {
            story.holds(granted(0, &ask(1, &mode("x")), 1));
        }
        story.breaks("memory", granted(0, &ask(1, &mode("x")), 1));
    }

    /// A node has granted client 1 and shows it, and the world has healed at 50.
    fn granted_and_healed() -> Story {
        let mut story = story();
        let a = ask(1, &mode("x"));
        story.holds(granted(0, &a, 1));
        story.shows(0, true, vec![entry(&a, 1)]);
        story.at = 50;
        story.holds(Fact::Healed);
        story
    }

    #[test]
    fn a_grant_that_nobody_rests_on_is_found_once_its_time_is_up() {
        let mut story = granted_and_healed();
        story.at = 150;
        story.holds(Fact::Over);
        story.at = 151;
        story.breaks("memory", Fact::Over);
        story.shows(0, true, Vec::new());
        story.holds(Fact::Over);
    }

    #[test]
    fn what_changed_late_has_its_time_too() {
        let mut story = granted_and_healed();
        story.at = 100;
        story.holds(granted(0, &ask(1, &mode("x")), 1));
        story.at = 200;
        story.holds(Fact::Over);
        story.at = 201;
        story.breaks("memory", Fact::Over);
    }

    #[test]
    fn holders_may_stay_and_silent_nodes_may_keep() {
        let mut story = granted_and_healed();
        story.holds(entered(&holder(1), &ask(1, &mode("x")), 5, &[(0, 1)]));
        story.at = 151;
        story.holds(Fact::Over);
        let mut story = granted_and_healed();
        story.eyes.serving = false;
        story.at = 151;
        story.holds(Fact::Over);
    }

    #[test]
    fn an_entry_that_waits_for_nobody_is_found() {
        let mut story = granted_and_healed();
        story.holds(entered(&holder(1), &ask(1, &mode("x")), 5, &[(0, 1)]));
        let (a, b) = (ask(1, &mode("x")), ask(2, &mode("y")));
        story.shows(0, true, vec![entry(&a, 1), entry(&b, 0)]);
        story.at = 151;
        story.breaks("memory", Fact::Over);
        story.eyes.waiting = vec![holder(2)];
        story.holds(Fact::Over);
    }
}
