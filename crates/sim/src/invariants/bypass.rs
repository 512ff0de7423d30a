//! Late members of the group inside pass a waiting request of another group only so often.
//!
//! Counted at each node and for each lock, from the moment a group took the lock over there: the
//! grants to requests that come after a waiting request of another group in the node's order.
//! A holder that moves (its request says it is inside) is served first and not counted. The
//! checker counts by itself and does not look at the node's own counter.

use std::sync::Arc;

use conclave_protocol::id::{GrantNo, Name, NodeId, RequestNo, SessionId};
use conclave_protocol::lock::{Ask, Config, LockView};
use conclave_protocol::table::Table;

use super::book::{Book, broken};
use crate::fact::{Checker, Eyes, Fact, True, Violation};

/// Checks the bound of bypasses.
#[derive(Debug)]
pub struct Bypass {
    book: Book,
    config: Arc<Config>,
    nodes: Vec<Table<Name, Turn>>,
}

/// The time since a group took a lock over at a node.
#[derive(Debug, Default)]
struct Turn {
    granted: Vec<(SessionId, RequestNo)>,
    passed: u32,
}

impl Bypass {
    /// A checker that reads this book and these policies.
    pub fn new(book: Book, config: Arc<Config>) -> Self {
        Self {
            book,
            config,
            nodes: Vec::new(),
        }
    }

    fn turns(&mut self, node: NodeId) -> &mut Table<Name, Turn> {
        while self.nodes.len() <= node.index() {
            self.nodes.push(Table::new(7));
        }
        &mut self.nodes[node.index()]
    }

    fn granted(
        &mut self,
        at: True,
        node: NodeId,
        ask: &Ask,
        inside: bool,
        eyes: &dyn Eyes,
    ) -> Result<(), Violation> {
        let policy = self.config.policy(&ask.name);
        let view = self.book.borrow_mut().view(node, &ask.name, eyes);
        let Some(view) = view else {
            return Ok(());
        };
        let turns = self.turns(node);
        if turns.get(&ask.name).is_none() {
            // The first fact of this life of the node: it may have taken grants from its disk.
            let granted = view
                .entries
                .iter()
                .filter(|entry| entry.grant != GrantNo(0));
            let others = granted.filter(|entry| !same(&entry.ask, ask));
            let turn = Turn {
                granted: others.map(|entry| key(&entry.ask)).collect(),
                passed: 0,
            };
            turns.insert(ask.name.clone(), turn);
        }
        let Some(turn) = turns.get_mut(&ask.name) else {
            return Ok(());
        };
        if turn.granted.is_empty() {
            turn.passed = 0;
        }
        if !turn.granted.contains(&key(ask)) {
            turn.granted.push(key(ask));
        }
        if inside || !passes(&view, ask) {
            return Ok(());
        }
        turn.passed += 1;
        let (passed, limit) = (turn.passed, policy.max_bypass);
        if passed > limit {
            let name = &ask.name;
            let what = format!(
                "{node} let {passed} late members of one group pass in lock {name}, allowed are \
                 {limit}",
            );
            return broken(self.property(), at, what);
        }
        Ok(())
    }
}

fn key(ask: &Ask) -> (SessionId, RequestNo) {
    (ask.session, ask.request)
}

fn same(one: &Ask, two: &Ask) -> bool {
    key(one) == key(two)
}

/// Whether a request of another group waits before this one.
fn passes(view: &LockView, ask: &Ask) -> bool {
    let before = view
        .entries
        .iter()
        .take_while(|entry| !same(&entry.ask, ask));
    let mut waiting = before.filter(|entry| entry.grant == GrantNo(0));
    waiting.any(|entry| !entry.ask.joins(ask))
}

impl Checker for Bypass {
    fn property(&self) -> &'static str {
        "bypass"
    }

    fn watch(&mut self, at: True, fact: &Fact, eyes: &dyn Eyes) -> Result<(), Violation> {
        match fact {
            Fact::Granted {
                node, ask, inside, ..
            } => return self.granted(at, *node, ask, *inside, eyes),
            Fact::NodeEnded {
                node, ask, grant, ..
            } if *grant != GrantNo(0) => {
                if let Some(turn) = self.turns(*node).get_mut(&ask.name) {
                    turn.granted.retain(|other| *other != key(ask));
                }
            }
            Fact::NodeDown { node, .. } => *self.turns(*node) = Table::new(7),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use conclave_protocol::id::Token;
    use conclave_protocol::lock::End;

    use super::super::fake::{Story, ask, ended, entry, granted, mode};
    use super::super::tests::config;
    use super::*;

    fn story(max_bypass: u32) -> Story {
        let config = config(|policy| policy.max_bypass = max_bypass);
        Story::new(|book| vec![Box::new(Bypass::new(book.clone(), config))])
    }

    /// Client 1 of x is inside, client 2 of y waits, and these members of x were granted later.
    fn late(late: &[u32]) -> Vec<conclave_protocol::lock::EntryView> {
        let mut entries = vec![entry(&ask(1, &mode("x")), 1), entry(&ask(2, &mode("y")), 0)];
        let more = late
            .iter()
            .map(|&n| entry(&ask(n, &mode("x")), u64::from(n)));
        entries.extend(more);
        entries
    }

    fn first() -> Vec<conclave_protocol::lock::EntryView> {
        vec![entry(&ask(1, &mode("x")), 1)]
    }

    #[test]
    fn as_many_as_allowed_and_no_more() {
        let mut story = story(2);
        story.shows(0, true, first());
        story.holds(granted(0, &ask(1, &mode("x")), 1));
        story.shows(0, true, late(&[3]));
        story.holds(granted(0, &ask(3, &mode("x")), 3));
        story.holds(ended(0, &ask(3, &mode("x")), 3, End::Done(Token(1))));
        story.shows(0, true, late(&[4]));
        story.holds(granted(0, &ask(4, &mode("x")), 4));
        story.shows(0, true, late(&[4, 5]));
        story.breaks("bypass", granted(0, &ask(5, &mode("x")), 5));
    }

    #[test]
    fn strict_order_lets_nobody_pass() {
        let mut story = story(0);
        story.shows(0, true, late(&[3]));
        story.breaks("bypass", granted(0, &ask(3, &mode("x")), 3));
    }

    #[test]
    fn a_new_turn_counts_anew() {
        let mut story = story(1);
        for _ in 0..3 {
            story.shows(0, true, first());
            story.holds(granted(0, &ask(1, &mode("x")), 1));
            story.shows(0, true, late(&[3]));
            story.holds(granted(0, &ask(3, &mode("x")), 3));
            story.holds(ended(0, &ask(1, &mode("x")), 1, End::Expired));
            story.holds(ended(0, &ask(3, &mode("x")), 3, End::Expired));
        }
    }

    #[test]
    fn moving_holders_and_better_members_do_not_count() {
        let mut story = story(0);
        story.shows(0, true, late(&[3]));
        story.holds(granted(0, &ask(1, &mode("x")), 1));
        let mut fact = granted(0, &ask(3, &mode("x")), 3);
        if let Fact::Granted { inside, .. } = &mut fact {
            *inside = true;
        }
        story.holds(fact);
    }

    #[test]
    fn another_life_of_the_node_counts_anew() {
        let mut story = story(1);
        for _ in 0..3 {
            story.shows(0, true, late(&[3]));
            story.holds(granted(0, &ask(3, &mode("x")), 3));
            story.holds(Fact::NodeDown {
                node: NodeId(0),
                disk_lost: false,
            });
        }
        story.holds(granted(0, &ask(3, &mode("x")), 3));
        story.breaks("bypass", granted(0, &ask(3, &mode("x")), 3));
    }
}
