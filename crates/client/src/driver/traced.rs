//! Lets the spans of jobs see what is sent and told. Nothing is done while no traces are made.

use std::sync::Arc;

use conclave_protocol::id::{Key, NodeId};
use conclave_protocol::lock::{Ask, ClientEvent, Message};

use super::Work;
use super::core::{Core, locked};
use crate::trace::{self, Acquisition, Caller};

/// The spans of a job that begins.
pub(super) fn begin(work: &Work, caller: Caller) -> Option<Box<Acquisition>> {
    if !trace::on() {
        return None;
    }
    match work {
        Work::Acquire(_) | Work::AcquireAll(_) | Work::AcquireAny(_) => {
            Some(Box::new(Acquisition::begin(caller)))
        }
        Work::Finish(handle) => Acquisition::release(&handle.ask).map(Box::new),
        Work::Keep(..) | Work::Abandon(_) | Work::Watch(_) => None,
    }
}

impl Core {
    pub(super) fn trace_sent(&mut self, node: NodeId, message: &Message) {
        if !trace::on() {
            return;
        }
        match message {
            Message::Request { ask, .. } => self.trace_asked(node, ask),
            Message::Travel(travel) => self.trace_asked(node, &travel.ask),
            // What was asked before the connection was there.
            Message::Resume(resume) => {
                for claim in &resume.live {
                    self.trace_asked(node, &claim.ask);
                }
            }
            _ => {}
        }
    }

    fn trace_asked(&mut self, node: NodeId, ask: &Arc<Ask>) {
        let key = self.machine.key_of(ask.session, ask.request);
        if let Some(cell) = key.and_then(|key| self.jobs.get(&key))
            && let Some(trace) = &mut locked(cell).trace
        {
            trace.asked(node, ask);
        }
    }

    pub(super) fn trace_told(&mut self, key: Key, event: &ClientEvent) {
        if !trace::on() {
            return;
        }
        let machine = &self.machine;
        let lives = |it: trace::Origin| machine.key_of(it.session, it.request).is_some();
        if let Some(cell) = self.jobs.get(&key)
            && let Some(trace) = &mut locked(cell).trace
        {
            trace.told(event, lives);
        }
    }
}
