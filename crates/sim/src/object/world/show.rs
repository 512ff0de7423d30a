//! A run as people read it.

use conclave_protocol::id::{LinkId, NodeId};
use conclave_protocol::keeper::{Answer, Ask};

use super::World;
use crate::trace::Line;

impl World<'_> {
    pub(super) fn trace(
        &mut self,
        node: Option<usize>,
        client: Option<usize>,
        text: impl FnOnce() -> String,
    ) {
        let at = self.queue.now();
        if let Some(tracer) = &mut self.tracer {
            tracer(&Line {
                at,
                node: node.map(NodeId::at),
                client: client.map(|client| client as u32),
                text: text(),
            });
        }
    }

    pub(super) fn trace_ask(&mut self, client: usize, node: usize, ask: &Ask) {
        self.trace(Some(node), Some(client), || match ask {
            Ask::Lease(_, ask) => format!("-> {ask:?}"),
            Ask::Object(name, ask) => format!("-> {name} {ask:?}"),
            Ask::Survey { .. } => format!("-> {ask:?}"),
        });
    }

    pub(super) fn trace_answer(&mut self, node: usize, link: LinkId, answer: &Answer) {
        let client = self.nodes[node].links.get(&link).copied();
        self.trace(Some(node), client, || match answer {
            Answer::Lease(_, reply) => format!("<- {reply:?}"),
            Answer::Object(name, tell) => format!("<- {name} {tell:?}"),
            Answer::Surveyed { .. } => format!("<- {answer:?}"),
        });
    }
}
