//! What a picture of a run needs: who was inside when, and how long everybody waited.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use conclave_sim::fact::{Checker, Eyes, Fact, Holder, True, Violation};

/// The history of a run, as far as a picture shows it.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// How many were inside from which second on.
    pub(crate) inside: Vec<(f64, f64)>,
    /// Waiting times in milliseconds, in the order of entry.
    pub(crate) waits: Vec<f64>,
    /// When faults ended.
    pub(crate) healed: Option<f64>,
    asked: BTreeMap<Holder, True>,
    holders: BTreeSet<Holder>,
}

/// Watches a run and never objects.
pub(crate) struct Recorder(Rc<RefCell<History>>);

impl Recorder {
    /// A recorder, and the history that it writes.
    pub(crate) fn new() -> (Self, Rc<RefCell<History>>) {
        let history = Rc::new(RefCell::new(History::default()));
        (Self(history.clone()), history)
    }
}

impl History {
    fn see(&mut self, at: True, fact: &Fact) {
        let second = at.0 as f64 / 1e9;
        match fact {
            Fact::Asked { holder } => {
                self.asked.insert(holder.clone(), at);
            }
            Fact::Entered { holder, .. } => {
                if let Some(asked) = self.asked.remove(holder) {
                    self.waits.push((at.0 - asked.0) as f64 / 1e6);
                }
                self.holders.insert(holder.clone());
                self.note(second);
            }
            Fact::Released { holder } | Fact::Lost { holder } | Fact::Vanished { holder } => {
                self.asked.remove(holder);
                if self.holders.remove(holder) {
                    self.note(second);
                }
            }
            Fact::Ended { holder } => {
                self.asked.remove(holder);
            }
            Fact::Healed => self.healed = Some(second),
            Fact::Over => self.note(second),
            _ => {}
        }
    }

    fn note(&mut self, second: f64) {
        self.inside.push((second, self.holders.len() as f64));
    }
}

impl Checker for Recorder {
    fn property(&self) -> &'static str {
        "recorder"
    }

    fn watch(&mut self, at: True, fact: &Fact, _: &dyn Eyes) -> Result<(), Violation> {
        self.0.borrow_mut().see(at, fact);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conclave_protocol::id::{Key, Name, Token};
    use conclave_protocol::lock::Group;

    #[test]
    fn entries_and_exits_make_steps() {
        let holder = Holder {
            client: 0,
            life: 0,
            key: Key(1),
            name: Name::new("a"),
        };
        let mut history = History::default();
        let of = |holder: &Holder| holder.clone();
        history.see(
            True(0),
            &Fact::Asked {
                holder: of(&holder),
            },
        );
        let entered = Fact::Entered {
            holder: of(&holder),
            group: Group::Shared,
            token: Token(1),
            members: Vec::new(),
        };
        history.see(True(2_000_000), &entered);
        history.see(
            True(3_000_000),
            &Fact::Released {
                holder: of(&holder),
            },
        );
        history.see(True(4_000_000), &Fact::Lost { holder });
        assert_eq!(history.waits, [2.0]);
        assert_eq!(history.inside, [(0.002, 1.0), (0.003, 0.0)]);
    }
}
