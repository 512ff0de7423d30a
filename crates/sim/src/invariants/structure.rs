//! The arbiter's own invariants, read from what a node shows of a lock.
//!
//! After every step of a node (`Maekawa_M` of Joung 2003, in a form that is scheduled anew after
//! each change):
//!
//! 1. all granted requests are of one group;
//! 2. requests are in order, best first, those of moving holders before all others;
//! 3. if there are requests, one is granted;
//! 4. the door is open exactly if the best request belongs to the group inside;
//! 5. if it is closed, every grant was asked back, except from requesters known to be inside.
//!
//! And when a holder enters or moves: each node that it counts as fresh has granted to it. The
//! last three of the list hold at nodes that serve, and a node that does not serve may have
//! forgotten its grants. Under the serial protocol a node knows no order and no asking back: only
//! 1 and 3 are checked there. Grants whose promise was broken on purpose are excused.

use std::sync::Arc;

use conclave_protocol::id::{GrantNo, NodeId};
use conclave_protocol::lock::{Ask, Config, EntryView, LockView, Protocol};

use super::book::{Book, broken, name_of};
use crate::fact::{Checker, Eyes, Fact, Holder, True, Violation};

/// Checks the state of the arbiters.
#[derive(Debug)]
pub struct Structure {
    book: Book,
    config: Arc<Config>,
}

impl Structure {
    /// A checker that reads this book and these policies.
    pub fn new(book: Book, config: Arc<Config>) -> Self {
        Self { book, config }
    }

    fn node(&self, node: NodeId, ask: &Ask, eyes: &dyn Eyes) -> Option<String> {
        let view = self.book.borrow_mut().view(node, &ask.name, eyes)?;
        let parallel = self.config.policy(&ask.name).protocol == Protocol::Parallel;
        let wrong = together(&view)
            .or_else(|| parallel.then(|| ordered(&view)).flatten())
            .or_else(|| {
                eyes.serving(node)
                    .then(|| served(&view, parallel))
                    .flatten()
            });
        wrong.map(|wrong| format!("{node}, lock {}: {wrong}", ask.name))
    }

    fn holder(&self, holder: &Holder, eyes: &dyn Eyes) -> Option<String> {
        let mut book = self.book.borrow_mut();
        for (node, grant) in eyes.fresh_members(holder) {
            let hold = book.hold(holder)?;
            let given = book.member(hold, node, grant);
            if given.is_some_and(|given| given.waived) || !eyes.serving(node) {
                continue;
            }
            let request = given.map(|given| (given.ask.session, given.ask.request));
            let view = book.view(node, &holder.name, eyes).unwrap_or_default();
            let mut all = view.entries.iter();
            let has = all.any(|entry| {
                let own = (entry.ask.session, entry.ask.request);
                entry.grant == grant && request.is_none_or(|request| request == own)
            });
            if !has {
                let who = name_of(holder);
                return Some(format!(
                    "{who} counts grant {grant} of {node} as fresh, but {node} does not have it"
                ));
            }
        }
        None
    }
}

/// The granted requests, best first.
fn all_granted(view: &LockView) -> impl Iterator<Item = &EntryView> + Clone {
    let all = view.entries.iter();
    all.filter(|entry| entry.grant != GrantNo(0))
}

/// One group. Whether each grant was told is not seen here: one step may give several.
fn together(view: &LockView) -> Option<String> {
    let mut all = all_granted(view);
    let first = all.next()?;
    let other = all.find(|entry| !entry.ask.joins(&first.ask))?;
    let (one, two) = (first.ask.group(), other.ask.group());
    Some(format!("granted to {one} and to {two}"))
}

/// Best first.
fn ordered(view: &LockView) -> Option<String> {
    let key = |entry: &EntryView| (!entry.inside, entry.ask.priority);
    let sorted = view.entries.is_sorted_by(|a, b| key(a) < key(b));
    (!sorted).then(|| "its requests are out of order".to_owned())
}

/// What a node that grants owes to its requests.
fn served(view: &LockView, parallel: bool) -> Option<String> {
    let best = view.entries.first()?;
    let mut all = all_granted(view);
    let Some(inside) = all.clone().next() else {
        return Some("requests wait and none is granted".to_owned());
    };
    if !parallel {
        return None;
    }
    let open = best.ask.joins(&inside.ask);
    if open != view.has_priority {
        let (best, inside) = (best.ask.group(), inside.ask.group());
        let door = if view.has_priority { "open" } else { "closed" };
        return Some(format!(
            "its door is {door} with {inside} inside and {best} best"
        ));
    }
    // Whoever said that it is inside would not answer; asking it is left to the node.
    let silent = |entry: &EntryView| entry.inquired || entry.inside || entry.entered.is_some();
    let kept = all.find(|entry| !open && !silent(entry))?;
    let (group, grant) = (kept.ask.group(), kept.grant);
    Some(format!(
        "its door is closed, but grant {grant} of {group} was not asked back"
    ))
}

impl Checker for Structure {
    fn property(&self) -> &'static str {
        "structure"
    }

    fn watch(&mut self, at: True, fact: &Fact, eyes: &dyn Eyes) -> Result<(), Violation> {
        let what = match fact {
            Fact::Granted { node, ask, .. }
            | Fact::Reclaimed { node, ask, .. }
            | Fact::NodeEnded { node, ask, .. } => self.node(*node, ask, eyes),
            Fact::Entered { holder, .. } | Fact::Moved { holder, .. } => self.holder(holder, eyes),
            _ => None,
        };
        what.map_or(Ok(()), |what| broken(self.property(), at, what))
    }
}

#[cfg(test)]
mod tests {
    use conclave_protocol::id::Token;
    use conclave_protocol::lock::End;

    use super::super::fake::{
        Story, ask, ended, entered, entry, granted, holder, members, mode, spite,
    };
    use super::super::tests::config;
    use super::*;

    fn story() -> Story {
        let config = config(|_| {});
        Story::new(|book| vec![Box::new(Structure::new(book.clone(), config))])
    }

    /// What is said when node 0 shows this after it granted clients 1 and 3 of x.
    fn shown(serving: bool, open: bool, entries: Vec<EntryView>) -> Option<String> {
        let mut story = story();
        story.holds(granted(0, &ask(1, &mode("x")), 1));
        story.holds(granted(0, &ask(3, &mode("x")), 3));
        story.eyes.serving = serving;
        story.shows(0, open, entries);
        let fact = ended(0, &ask(9, &mode("x")), 0, End::Cancelled);
        story.tell(&fact).map(|(_, what)| what)
    }

    fn x(client: u32) -> EntryView {
        entry(&ask(client, &mode("x")), u64::from(client))
    }

    fn y(client: u32) -> EntryView {
        entry(&ask(client, &mode("y")), 0)
    }

    fn asked_back(mut entry: EntryView) -> EntryView {
        entry.inquired = true;
        entry
    }

    #[test]
    fn good_states() {
        assert_eq!(shown(true, true, vec![]), None);
        assert_eq!(shown(true, true, vec![x(1), y(2), x(3)]), None);
        assert_eq!(shown(true, false, vec![y(0), asked_back(x(1))]), None);
        let mut inside = x(1);
        inside.entered = Some(Token(5));
        assert_eq!(shown(true, false, vec![y(0), inside]), None);
        let mut moving = y(2);
        moving.inside = true;
        assert_eq!(shown(true, false, vec![moving, asked_back(x(1))]), None);
        assert_eq!(shown(false, false, vec![y(2)]), None);
    }

    #[test]
    fn bad_states() {
        let mut other = y(2);
        other.grant = GrantNo(2);
        let bad = [
            (true, vec![x(1), other], "granted to group:x and to group:y"),
            (true, vec![x(3), x(1)], "out of order"),
            (true, vec![x(1), x(1)], "out of order"),
            (true, vec![y(2)], "none is granted"),
            (false, vec![x(1)], "door is closed with"),
            (true, vec![y(0), asked_back(x(1))], "door is open with"),
            (false, vec![y(0), x(1)], "not asked back"),
        ];
        for (open, entries, expected) in bad {
            let what = shown(true, open, entries).unwrap_or_default();
            assert!(what.contains(expected), "{expected}: {what}");
        }
    }

    #[test]
    fn the_serial_protocol_has_less_structure() {
        let config = config(|policy| policy.protocol = Protocol::Serial);
        let make = |book: &Book| -> Vec<Box<dyn Checker>> {
            vec![Box::new(Structure::new(book.clone(), config))]
        };
        let mut story = Story::new(make);
        story.holds(granted(0, &ask(3, &mode("x")), 3));
        story.shows(0, false, vec![x(3), y(1)]);
        story.holds(granted(0, &ask(3, &mode("x")), 3));
        story.shows(0, false, vec![y(1)]);
        story.breaks("structure", granted(0, &ask(3, &mode("x")), 3));
    }

    /// Client 1 enters on node 0, which it counts as fresh.
    fn enters(story: &mut Story) -> Fact {
        let a = ask(1, &mode("x"));
        story.shows(0, true, vec![x(1)]);
        story.holds(granted(0, &a, 1));
        story.eyes.fresh.insert(holder(1), members(&[(0, 1)]));
        entered(&holder(1), &a, 5, &[(0, 1)])
    }

    #[test]
    fn a_holder_stands_on_nodes_that_know_it() {
        let mut story = story();
        let fact = enters(&mut story);
        story.holds(fact.clone());
        story.shows(0, true, Vec::new());
        let what = story.breaks("structure", fact.clone());
        assert!(what.contains("does not have it"), "{what}");
        story.eyes.serving = false;
        story.holds(fact.clone());
        story.eyes.serving = true;
        story.holds(spite(0, 1));
        story.holds(fact);
    }

    #[test]
    fn neither_another_grant_nor_another_request_will_do() {
        let mut renumbered = x(1);
        renumbered.grant = GrantNo(9);
        let mut other = x(2);
        other.grant = GrantNo(1);
        for shown in [renumbered, other] {
            let mut story = story();
            let fact = enters(&mut story);
            story.shows(0, true, vec![shown]);
            story.breaks("structure", fact);
        }
    }
}
