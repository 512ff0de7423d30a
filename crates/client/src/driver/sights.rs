//! What a watch was told and its caller has not read: per lock only the newest.

use std::collections::{HashMap, VecDeque};

use conclave_protocol::id::{Key, Name};
use conclave_protocol::lock::{ClientEvent, LockState};

/// Unread states, the lock that changed longest ago first.
#[derive(Debug, Default)]
pub(super) struct Sights {
    order: VecDeque<Item>,
    newest: HashMap<Name, Box<LockState>>,
}

#[derive(Debug)]
enum Item {
    Lock(Name),
    /// All was told up to here; whether it is partial.
    Synced(bool),
}

impl Sights {
    pub(super) fn state(&mut self, state: Box<LockState>) {
        let name = state.name.clone();
        if self.newest.insert(name.clone(), state).is_none() {
            self.order.push_back(Item::Lock(name));
        }
    }

    pub(super) fn synced(&mut self, partial: bool) {
        if let Some(Item::Synced(_)) = self.order.back() {
            self.order.pop_back();
        }
        self.order.push_back(Item::Synced(partial));
    }

    pub(super) fn next(&mut self, key: Key) -> Option<ClientEvent> {
        match self.order.pop_front()? {
            Item::Synced(partial) => Some(ClientEvent::Synced(key, partial)),
            Item::Lock(name) => {
                let state = self.newest.remove(&name)?;
                Some(ClientEvent::Seen(key, state))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_waits() {
        let state = |name: &str, waiting| {
            Box::new(LockState {
                name: Name::new(name),
                holders: Vec::new(),
                more: 0,
                waiting,
                partial: false,
            })
        };
        let mut sights = Sights::default();
        sights.state(state("a", 1));
        sights.synced(true);
        sights.synced(false);
        sights.state(state("b", 1));
        sights.state(state("a", 2));
        let key = Key(1);
        let all: Vec<_> = std::iter::from_fn(|| sights.next(key)).collect();
        assert_eq!(
            all,
            [
                ClientEvent::Seen(key, state("a", 2)),
                ClientEvent::Synced(key, false),
                ClientEvent::Seen(key, state("b", 1)),
            ]
        );
    }
}
