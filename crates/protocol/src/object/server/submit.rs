//! Operations that wait to be ordered, and those who wait for them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::entry::Wait;
use super::{ObjectOut, ObjectServer};
use crate::id::{LinkId, Name};
use crate::object::author::{self, Known};
use crate::object::message::{ObjectRefusal, ObjectTell, OpId};
use crate::object::plant::Plant;
use crate::time::Now;

/// The most connections that wait for one operation.
const WAITERS_MAX: usize = 8;

impl ObjectServer {
    /// An operation that was done is answered; another one waits, and its client with it.
    pub(super) fn submit(
        &mut self,
        now: Now,
        link: LinkId,
        object: &Name,
        op: OpId,
        body: Arc<[u8]>,
        out: &mut ObjectOut,
    ) {
        if body.len() > self.config.op_size_max {
            return deny(link, object, op, ObjectRefusal::TooLarge, out);
        }
        let known = author::known(self.committed(object), op);
        let known = match known {
            Known::Done(_) | Known::Past if self.config.rules.has(Plant::RunAgain) => Known::New,
            known => known,
        };
        match known {
            Known::New => match self.hold(now, link, object, op, body) {
                Ok(principal) => out.tell(link, object, ObjectTell::Held { op, principal }),
                Err(why) => deny(link, object, op, why, out),
            },
            Known::Done(result) => out.tell(link, object, ObjectTell::Done { op, result }),
            Known::Past | Known::Forgotten => {
                deny(link, object, op, ObjectRefusal::Forgotten, out);
            }
        }
    }

    fn hold(
        &mut self,
        now: Now,
        link: LinkId,
        object: &Name,
        op: OpId,
        body: Arc<[u8]>,
    ) -> Result<Arc<str>, ObjectRefusal> {
        let port = self.ports.get(&link).ok_or(ObjectRefusal::NotPermitted)?;
        let mut wait = Wait {
            op,
            principal: port.caller.who.principal.clone(),
            body,
            since: now.mono,
            sent: now.mono,
            waiters: BTreeSet::from([link]),
        };
        let config = self.config.clone();
        let entry = self.room(object).ok_or(ObjectRefusal::Full)?;
        let mut freed = 0;
        if let Some(held) = entry.pending.get_mut(&op.author) {
            if held.principal != wait.principal {
                return Err(ObjectRefusal::NotPermitted);
            }
            if held.op.number > op.number {
                return Err(ObjectRefusal::Forgotten);
            }
            if held.op == op {
                held.sent = now.mono;
                if held.waiters.len() >= WAITERS_MAX {
                    held.waiters.pop_first();
                }
                held.waiters.insert(link);
                return Ok(wait.principal);
            }
            // An author that goes on has given up on the one before.
            wait.since = held.since;
            freed = held.bytes();
        }
        let bytes = entry.pending_bytes - freed + wait.bytes();
        let full = freed == 0 && entry.pending.len() >= config.pending_per_object;
        if full || bytes > config.pending_bytes {
            return Err(ObjectRefusal::Full);
        }
        entry.pending_bytes = bytes;
        let principal = wait.principal.clone();
        entry.pending.insert(op.author, wait);
        self.busy.insert(object.clone());
        self.sweep_soon(now);
        Ok(principal)
    }

    /// The committed state is a new one: tells whoever waits for what it contains, and whoever
    /// watches.
    pub(super) fn changed(&mut self, object: &Name, out: &mut ObjectOut) {
        let Some(entry) = self.entries.get_mut(object) else {
            return;
        };
        let state = &entry.kept.committed;
        let (bytes, ports) = (&mut entry.pending_bytes, &self.ports);
        entry.pending.retain(|_, wait| {
            let op = wait.op;
            let tell = match author::known(state, op) {
                Known::New => return true,
                Known::Done(result) => ObjectTell::Done { op, result },
                Known::Past | Known::Forgotten => ObjectTell::Denied {
                    op,
                    why: ObjectRefusal::Forgotten,
                },
            };
            *bytes -= wait.bytes();
            for link in wait.waiters.iter().filter(|link| ports.contains_key(link)) {
                out.tell(*link, object, tell.clone());
            }
            false
        });
        if entry.pending.is_empty() {
            self.busy.remove(object);
        }
        let stamp = entry.kept.committed.stamp();
        out.committed.push((object.clone(), stamp));
        self.notify(object, stamp, out);
    }
}

fn deny(link: LinkId, object: &Name, op: OpId, why: ObjectRefusal, out: &mut ObjectOut) {
    out.tell(link, object, ObjectTell::Denied { op, why });
}
