//! A node's part in objects: it remembers ranks, keeps a proposed and a committed state of each
//! object, and tells clients what became of their operations. It never runs an operation.
//!
//! Every answer that rests on a record leaves once that is on disk; operations that wait are not
//! on disk, since their clients send them again.

mod entry;
mod mend;
mod ranked;
mod read;
mod submit;
mod upload;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::acl::{self, Want};
use super::config::ObjectConfig;
use super::message::{ObjectAsk, ObjectRefusal, ObjectTell, Phase, Rank};
use super::plant::Plant;
use super::record::StoredObject;
use super::sign::RankVerifier;
use super::state::{Stamp, State};
use crate::id::{LinkId, Name};
use crate::keeper::{Caller, KeeperRecord};
use crate::lock::{Access, Action};
use crate::time::{Instant, Now, Wake};

use entry::Entry;
pub use mend::Remedy;
pub use read::ObjectView;
use upload::Upload;

/// So far ahead of the largest rank seen a node's may be.
const RANKS_AHEAD: u64 = 1 << 20;

/// What a step of the server leads to.
#[derive(Clone, Debug, Default)]
pub struct ObjectOut {
    /// Records to write, in order.
    pub records: Vec<KeeperRecord>,
    /// What to tell whom about which object; after the records are on disk if it
    /// [`ObjectTell::rests`] on any.
    pub tells: Vec<(LinkId, Name, ObjectTell)>,
    /// Objects that have a new committed state.
    pub committed: Vec<(Name, Stamp)>,
}

impl ObjectOut {
    fn tell(&mut self, link: LinkId, object: &Name, tell: ObjectTell) {
        self.tells.push((link, object.clone(), tell));
    }
}

/// A node's objects.
#[derive(Debug)]
pub struct ObjectServer {
    config: Arc<ObjectConfig>,
    access: Arc<Access>,
    verifier: Option<Arc<dyn RankVerifier>>,
    empty: State,
    entries: BTreeMap<Name, Entry>,
    /// Bytes of all states.
    bytes: usize,
    ports: BTreeMap<LinkId, Port>,
    /// Bytes of all states that are being given.
    uploaded: usize,
    watchers: BTreeMap<Name, BTreeSet<(LinkId, u64)>>,
    /// The objects with operations that wait.
    busy: BTreeSet<Name>,
    /// When to look next for what nobody asks for any more.
    sweep: Instant,
}

/// One connection.
#[derive(Debug)]
struct Port {
    caller: Caller,
    /// A state that it gives.
    upload: Option<Upload>,
    /// A state that it fetches, so that it stays while it is fetched.
    pin: Option<(Name, State, Instant)>,
    watches: BTreeMap<u64, Name>,
}

impl ObjectServer {
    /// The server of these objects.
    pub fn new(
        config: Arc<ObjectConfig>,
        access: Arc<Access>,
        verifier: Option<Arc<dyn RankVerifier>>,
        objects: BTreeMap<Name, StoredObject>,
    ) -> Self {
        let mut server = Self {
            config,
            access,
            verifier,
            empty: State::new(),
            entries: BTreeMap::new(),
            bytes: 0,
            ports: BTreeMap::new(),
            uploaded: 0,
            watchers: BTreeMap::new(),
            busy: BTreeSet::new(),
            sweep: Instant::ZERO,
        };
        for (name, kept) in objects {
            let entry = Entry::new(kept);
            server.bytes += entry.bytes();
            server.entries.insert(name, entry);
        }
        server
    }

    /// What is kept of every object, for a snapshot. States are shared, not copied.
    pub fn stored(&self) -> BTreeMap<Name, StoredObject> {
        let kept = self.entries.iter().filter(|(_, entry)| entry.is_kept());
        kept.map(|(name, entry)| (name.clone(), entry.kept.clone()))
            .collect()
    }

    /// The cluster's permissions from now on.
    pub fn set_access(&mut self, access: Arc<Access>) {
        self.access = access;
    }

    /// A connection is open.
    pub fn opened(&mut self, link: LinkId, caller: Caller) {
        let port = Port {
            caller,
            upload: None,
            pin: None,
            watches: BTreeMap::new(),
        };
        self.ports.insert(link, port);
    }

    /// A connection is gone, with what it was giving and watching.
    pub fn closed(&mut self, link: LinkId) {
        let Some(port) = self.ports.remove(&link) else {
            return;
        };
        self.uploaded -= port.upload.map_or(0, |upload| upload.bytes());
        for (ticket, object) in port.watches {
            self.unwatched(link, ticket, &object);
        }
    }

    /// The largest rank seen for an object.
    pub fn rank(&self, object: &Name) -> Rank {
        self.entries
            .get(object)
            .map_or_else(Rank::default, |entry| entry.kept.max)
    }

    /// Whether a connection may do this with an object.
    pub fn may(&self, link: LinkId, object: &Name, want: Want) -> bool {
        let Some(port) = self.ports.get(&link) else {
            return false;
        };
        let principal = &port.caller.who.principal;
        let (state, name) = (self.committed(object), object.bytes());
        if self.config.rules.has(Plant::AclIgnored) {
            let action = match want {
                Want::Read => Action::Read,
                Want::Write => Action::Acquire,
            };
            return self.access.may(principal, action, name);
        }
        acl::may(&self.access, state, name, principal, want)
    }

    fn committed(&self, object: &Name) -> &State {
        self.entries
            .get(object)
            .map_or(&self.empty, |entry| &entry.kept.committed)
    }

    /// Takes one question of a connection.
    pub fn ask(
        &mut self,
        now: Now,
        link: LinkId,
        object: &Name,
        ask: ObjectAsk,
        out: &mut ObjectOut,
    ) {
        if !self.ports.contains_key(&link) {
            return;
        }
        if let Some(why) = self.refusal(link, object, &ask) {
            if let Some(tell) = refused(&ask, why) {
                out.tell(link, object, tell);
            }
            return;
        }
        match ask {
            ObjectAsk::Submit { op, body } => self.submit(now, link, object, op, body, out),
            ObjectAsk::Get {
                rank,
                nonce,
                have,
                proof,
            } => self.get((link, object), (rank, nonce), have, &proof, out),
            ObjectAsk::Propose {
                rank,
                stamp,
                carry,
                proof,
            } => self.propose((link, object), rank, stamp, carry, &proof, out),
            ObjectAsk::Commit {
                rank,
                stamp,
                carry,
                proof,
            } => self.commit(now, (link, object), rank, (stamp, carry), &proof, out),
            ObjectAsk::Fetch {
                ticket,
                stamp,
                after,
            } => self.fetch(now, (link, object), ticket, stamp, after.as_deref(), out),
            ObjectAsk::Give {
                ticket,
                stamp,
                page,
            } => self.give(now, (link, object), ticket, stamp, &page, out),
            ObjectAsk::Peek {
                ticket,
                have,
                spans,
            } => self.peek((link, object), ticket, have, &spans, out),
            ObjectAsk::Watch { ticket } => self.watch(link, object, ticket, out),
            ObjectAsk::Unwatch { ticket } => self.unwatch(link, ticket),
        }
        self.tidy(object);
    }

    /// Forgets an object of which there is nothing to remember.
    fn tidy(&mut self, object: &Name) {
        let nothing = |entry: &Entry| entry.pending.is_empty() && !entry.is_kept();
        if self.entries.get(object).is_some_and(nothing) {
            self.entries.remove(object);
        }
    }

    /// Why a question is not even looked at.
    fn refusal(&self, link: LinkId, object: &Name, ask: &ObjectAsk) -> Option<ObjectRefusal> {
        let length = object.bytes().len();
        if length == 0 || length > self.config.lease.name_max {
            return Some(ObjectRefusal::Name);
        }
        if self.ports.get(&link)?.caller.node.is_some() {
            let may = match ask {
                ObjectAsk::Fetch { .. } => true,
                ObjectAsk::Peek { spans, .. } => spans.is_empty(),
                ObjectAsk::Get { rank, .. } => self.is_near(object, *rank),
                ObjectAsk::Propose { rank, stamp, .. } | ObjectAsk::Commit { rank, stamp, .. } => {
                    self.is_near(object, *rank) && self.committed(object).stamp() == *stamp
                }
                _ => false,
            };
            return (!may).then_some(ObjectRefusal::NotPermitted);
        }
        let want = match ask {
            ObjectAsk::Submit { .. }
            | ObjectAsk::Get { .. }
            | ObjectAsk::Propose { .. }
            | ObjectAsk::Commit { .. }
            | ObjectAsk::Give { .. } => Want::Write,
            ObjectAsk::Fetch { .. } | ObjectAsk::Peek { .. } | ObjectAsk::Watch { .. } => {
                Want::Read
            }
            ObjectAsk::Unwatch { .. } => return None,
        };
        (!self.may(link, object, want)).then_some(ObjectRefusal::NotPermitted)
    }

    /// Whether there is such an object here.
    pub fn has(&self, object: &Name) -> bool {
        self.entries.get(object).is_some_and(Entry::is_kept)
    }

    /// Whether a node may use this rank: one that lies could otherwise take the largest there is,
    /// and nobody would ever have a larger one.
    fn is_near(&self, object: &Name, rank: Rank) -> bool {
        let most = self.rank(object).round.saturating_add(RANKS_AHEAD);
        self.has(object) && rank.round <= most
    }

    /// The entry of an object, if there is one or room for another.
    fn room(&mut self, object: &Name) -> Option<&mut Entry> {
        let full = self.entries.len() >= self.config.objects_max;
        if full && !self.entries.contains_key(object) {
            return None;
        }
        let empty = &self.empty;
        let fresh = || Entry::new(StoredObject::new(empty));
        Some(self.entries.entry(object.clone()).or_insert_with(fresh))
    }

    /// Forgets what nobody asks for any more: operations that are not sent again, states that
    /// are neither given nor fetched any further.
    pub fn wake(&mut self, now: Now) {
        if now.mono < self.sweep {
            return;
        }
        let keep = self.config.pending_keep;
        self.sweep = now.mono + keep / 4;
        let entries = &mut self.entries;
        self.busy.retain(|name| {
            let Some(entry) = entries.get_mut(name) else {
                return false;
            };
            entry.expire(now.mono, keep);
            let waits = !entry.pending.is_empty();
            if !waits && !entry.is_kept() {
                entries.remove(name);
            }
            waits
        });
        for port in self.ports.values_mut() {
            let over = |used: Instant| now.mono.since(used) > keep;
            if port.pin.as_ref().is_some_and(|pin| over(pin.2)) {
                port.pin = None;
            }
            if let Some(upload) = port.upload.take_if(|upload| over(upload.used)) {
                self.uploaded -= upload.bytes();
            }
        }
    }

    /// When to be woken at the latest.
    pub fn next_wake(&self) -> Option<Wake> {
        let holds = |port: &Port| port.pin.is_some() || port.upload.is_some();
        let waits = !self.busy.is_empty() || self.ports.values().any(holds);
        waits.then_some(Wake {
            at: self.sweep,
            reason: "what nobody asks for any more",
        })
    }
}

/// The answer to a question that is refused.
pub(crate) fn refused(ask: &ObjectAsk, why: ObjectRefusal) -> Option<ObjectTell> {
    let ranked = |rank, phase| ObjectTell::Refused { rank, phase, why };
    Some(match ask {
        ObjectAsk::Submit { op, .. } => ObjectTell::Denied { op: *op, why },
        ObjectAsk::Get { rank, .. } => ranked(*rank, Phase::Get),
        ObjectAsk::Propose { rank, .. } => ranked(*rank, Phase::Propose),
        ObjectAsk::Commit { rank, .. } => ranked(*rank, Phase::Commit),
        ObjectAsk::Fetch { ticket, .. }
        | ObjectAsk::Give { ticket, .. }
        | ObjectAsk::Peek { ticket, .. }
        | ObjectAsk::Watch { ticket } => ObjectTell::Gone {
            ticket: *ticket,
            why,
        },
        ObjectAsk::Unwatch { .. } => return None,
    })
}
