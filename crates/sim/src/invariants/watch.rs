//! A watch never goes back, and shows nothing that never was.
//!
//! Whoever is shown as a holder was inside with that token at some time before. A holder is never
//! shown after a conflicting one with a larger token was, nor together with one, and its note
//! never goes back. States may be skipped, and may be old: only the fence at the resource knows
//! the present. Of a hold that lives by a handle only the order is checked: its gateway is inside
//! before its caller has the handle, and may die in between.

use std::collections::BTreeMap;

use conclave_protocol::id::{Key, Name, RequestNo, SessionId, Token};
use conclave_protocol::lock::{Bond, Floors, LockState};
use conclave_protocol::table::Table;

use super::book::broken;
use crate::fact::{Checker, Eyes, Fact, True, Violation};

/// Checks what watchers are shown.
#[derive(Debug)]
pub struct Watching {
    /// The tokens that somebody was inside with.
    used: Table<(Name, Token), ()>,
    /// Requests whose holds live by handles.
    by_handle: Table<(SessionId, RequestNo), ()>,
    watches: BTreeMap<(u32, u32, Key), BTreeMap<Name, Shown>>,
}

/// What a watch has shown of a lock.
#[derive(Debug, Default)]
struct Shown {
    floors: Floors,
    editions: BTreeMap<(SessionId, RequestNo), u32>,
}

impl Watching {
    /// A checker that has seen nothing.
    pub fn new() -> Self {
        Self {
            used: Table::new(6),
            by_handle: Table::new(7),
            watches: BTreeMap::new(),
        }
    }

    fn seen(&mut self, watch: (u32, u32, Key), state: &LockState) -> Result<(), String> {
        let names = self.watches.entry(watch).or_default();
        let shown = names.entry(state.name.clone()).or_default();
        let name = &state.name;
        for holder in &state.holders {
            let token = holder.token;
            let id = (holder.session, holder.request);
            let by_handle = self.by_handle.get(&id).is_some();
            if !by_handle && self.used.get(&(name.clone(), token)).is_none() {
                return Err(format!("shows token {token} of {name}, which never was"));
            }
            let other = shown.floors.other(&holder.group);
            if token <= other {
                return Err(format!(
                    "goes back to token {token} of {name} after {other}"
                ));
            }
            if holder.group != state.holders[0].group {
                return Err(format!("shows holders of {name} that exclude each other"));
            }
            let edition = shown.editions.entry(id).or_default();
            if holder.edition < *edition {
                return Err(format!("goes back to an older note of {name}"));
            }
            *edition = holder.edition;
        }
        for holder in &state.holders {
            shown.floors.record(&holder.group, holder.token);
        }
        Ok(())
    }
}

impl Default for Watching {
    fn default() -> Self {
        Self::new()
    }
}

impl Checker for Watching {
    fn property(&self) -> &'static str {
        "watch"
    }

    fn watch(&mut self, at: True, fact: &Fact, _: &dyn Eyes) -> Result<(), Violation> {
        match fact {
            Fact::Entered { holder, token, .. } | Fact::Moved { holder, token, .. } => {
                self.used.insert((holder.name.clone(), *token), ());
                Ok(())
            }
            Fact::Granted { ask, .. } if ask.bond != Bond::Attached => {
                self.by_handle.insert((ask.session, ask.request), ());
                Ok(())
            }
            Fact::Seen {
                client,
                life,
                key,
                state,
            } => match self.seen((*client, *life, *key), state) {
                Ok(()) => Ok(()),
                Err(what) => broken(self.property(), at, format!("a watch {what}")),
            },
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use conclave_protocol::Wall;
    use conclave_protocol::lock::{Holder, Mode};

    use super::super::fake::{Story, ask, entered, holder};
    use super::*;

    fn story() -> Story {
        Story::new(|_| vec![Box::new(Watching::new())])
    }

    fn seen(holders: &[(u32, u64, u32)]) -> Fact {
        let one = |(client, token, edition): &(u32, u64, u32)| {
            let ask = ask(*client, &Mode::Exclusive);
            Holder {
                session: ask.session,
                request: ask.request,
                group: ask.group(),
                token: Token(*token),
                asked: Wall(0),
                owner: "".into(),
                note: None,
                edition: *edition,
            }
        };
        Fact::Seen {
            client: 9,
            life: 1,
            key: Key(1),
            state: Box::new(LockState {
                name: holder(1).name,
                holders: holders.iter().map(one).collect(),
                more: 0,
                waiting: 0,
                partial: false,
            }),
        }
    }

    fn enters(story: &mut Story, client: u32, token: u64) {
        let ask = ask(client, &Mode::Exclusive);
        story.holds(entered(&holder(client), &ask, token, &[]));
    }

    #[test]
    fn what_goes_forward_is_fine() {
        let mut story = story();
        enters(&mut story, 1, 5);
        story.holds(seen(&[(1, 5, 0)]));
        enters(&mut story, 2, 7);
        story.holds(seen(&[]));
        story.holds(seen(&[(2, 7, 0)]));
        story.holds(seen(&[(2, 7, 3)]));
    }

    #[test]
    fn going_back_is_found() {
        let mut story = story();
        enters(&mut story, 1, 5);
        enters(&mut story, 2, 7);
        story.holds(seen(&[(2, 7, 1)]));
        let what = story.breaks("watch", seen(&[(1, 5, 0)]));
        assert!(what.contains("goes back to token 5"), "{what}");
        let what = story.breaks("watch", seen(&[(2, 7, 0)]));
        assert!(what.contains("an older note"), "{what}");
    }

    #[test]
    fn inventions_and_contradictions_are_found() {
        let mut story = story();
        let what = story.breaks("watch", seen(&[(1, 5, 0)]));
        assert!(what.contains("never was"), "{what}");
        enters(&mut story, 1, 5);
        enters(&mut story, 2, 7);
        let what = story.breaks("watch", seen(&[(2, 7, 0), (1, 5, 0)]));
        assert!(what.contains("exclude each other"), "{what}");
    }
}
