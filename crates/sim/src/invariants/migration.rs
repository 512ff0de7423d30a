//! Nobody is served first for a claim to be inside who was never granted a quorum.

use std::collections::BTreeMap;
use std::sync::Arc;

use conclave_protocol::id::{NodeId, RequestNo, SessionId};
use conclave_protocol::lock::{Ask, Config};

use super::book::broken;
use crate::fact::{Checker, Eyes, Fact, True, Violation};

/// Checks that requests which are served first as those of holders that migrate are just that.
#[derive(Debug)]
pub struct Migration {
    config: Arc<Config>,
    /// The nodes that have granted each request, ever.
    granted: BTreeMap<(SessionId, RequestNo), Vec<NodeId>>,
}

impl Migration {
    /// A checker for this configuration.
    pub fn new(config: Arc<Config>) -> Self {
        Self {
            config,
            granted: BTreeMap::new(),
        }
    }

    fn granted(
        &mut self,
        at: True,
        node: NodeId,
        ask: &Ask,
        inside: bool,
    ) -> Result<(), Violation> {
        let before = self.granted.entry((ask.session, ask.request)).or_default();
        let nodes = before.iter().copied();
        let held = self.config.quorums.served_by(&ask.mode, nodes);
        if !before.contains(&node) {
            before.push(node);
        }
        if inside && !held {
            let what = format!(
                "{node} served request {} for lock {} as that of a holder, which was never granted \
                 a quorum",
                ask.request, ask.name
            );
            return broken(self.property(), at, what);
        }
        Ok(())
    }
}

impl Checker for Migration {
    fn property(&self) -> &'static str {
        "migration"
    }

    fn watch(&mut self, at: True, fact: &Fact, _: &dyn Eyes) -> Result<(), Violation> {
        match fact {
            Fact::Granted {
                node, ask, inside, ..
            } => self.granted(at, *node, ask, *inside),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use conclave_protocol::lock::Mode;

    use super::super::fake::{Story, ask, granted};
    use super::super::tests::config;
    use super::*;

    fn moves(node: u32, ask: &Arc<Ask>) -> Fact {
        let mut fact = granted(node, ask, 9);
        if let Fact::Granted { inside, .. } = &mut fact {
            *inside = true;
        }
        fact
    }

    #[test]
    fn whoever_had_a_quorum_may_migrate_and_nobody_else() {
        let config = config(|_| {});
        let mut story = Story::new(|_| vec![Box::new(Migration::new(config))]);
        let (one, two) = (ask(1, &Mode::Exclusive), ask(2, &Mode::Exclusive));
        for node in 0..2 {
            story.holds(granted(node, &one, 1));
        }
        story.holds(moves(2, &one));
        story.holds(granted(0, &two, 1));
        story.breaks("migration", moves(1, &two));
    }
}
