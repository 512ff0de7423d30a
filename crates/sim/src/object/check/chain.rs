//! One state for each version: whatever correct nodes commit of an object is one chain.

use std::collections::BTreeMap;

use conclave_protocol::id::NodeId;
use conclave_protocol::object::{Digest, Stamp, State};

use super::broken;
use crate::fact::{True, Violation};

/// The committed states of one object.
#[derive(Debug)]
pub struct Chain {
    /// For each version its digest, and whom it was seen at first.
    versions: BTreeMap<u64, (Digest, Option<NodeId>)>,
    top: State,
}

impl Default for Chain {
    fn default() -> Self {
        let empty = State::new();
        Self {
            versions: BTreeMap::from([(0, (empty.digest(), None))]),
            top: empty,
        }
    }
}

impl Chain {
    /// A correct node has committed this state.
    pub fn committed(&mut self, at: True, node: NodeId, state: &State) -> Result<(), Violation> {
        if let Some(version) = state.version().checked_sub(1) {
            let before = Stamp {
                version,
                digest: state.previous(),
            };
            self.holds(at, Some(node), before)?;
        }
        self.holds(at, Some(node), state.stamp())?;
        if state.version() > self.top.version() {
            self.top = state.clone();
        }
        Ok(())
    }

    /// Somebody was told that this is committed.
    pub fn holds(&mut self, at: True, by: Option<NodeId>, stamp: Stamp) -> Result<(), Violation> {
        let entry = self.versions.entry(stamp.version);
        let (digest, first) = entry.or_insert((stamp.digest, by));
        if *digest == stamp.digest {
            return Ok(());
        }
        let who =
            |node: Option<NodeId>| node.map_or("a client".to_owned(), |node| node.to_string());
        let what = format!(
            "version {} is {:?} at {} and {:?} at {}",
            stamp.version,
            digest,
            who(*first),
            stamp.digest,
            who(by)
        );
        Err(broken("one-state", at, what))
    }

    /// The latest state that a correct node has committed.
    pub fn top(&self) -> &State {
        &self.top
    }
}

#[cfg(test)]
mod tests {
    use conclave_protocol::object::{Cell, Delta, Value};

    use super::*;

    fn after(state: &State, value: u8) -> State {
        let cell: Cell = [2].as_slice().into();
        let value: Value = [value].as_slice().into();
        state.next(&Delta::new(vec![(cell, Some(value))])).unwrap()
    }

    #[test]
    fn two_states_of_a_version_are_found() {
        let mut chain = Chain::default();
        let (one, other) = (after(&State::new(), 1), after(&State::new(), 2));
        let node = NodeId(1);
        assert!(chain.committed(True(1), node, &one).is_ok());
        assert!(chain.committed(True(2), node, &one).is_ok());
        let found = chain.committed(True(3), node, &other).unwrap_err();
        assert_eq!(found.property, "one-state");
        let fork = after(&other, 3);
        assert!(
            chain.committed(True(4), node, &fork).is_err(),
            "its past is another one"
        );
        assert!(chain.committed(True(5), node, &after(&one, 3)).is_ok());
        assert_eq!(chain.top().version(), 2);
    }
}
