//! Watches: whom to ask, whom to hear, and what to tell the caller.
//!
//! A watch asks the nodes of one exclusive quorum, which meets every quorum of every mode: whoever
//! is inside has told one of them. It follows them over new connections and asks others when they
//! are in trouble. While the nodes heard do not meet every quorum it holds its tongue for a short
//! time, and then says that it is partial.
//!
//! All callers that watch the same share one watch at the nodes, under the key of the first of
//! them: however many there are, a change is told to this client once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use conclave_quorum::NodeSet;

use super::link::Link;
use super::sight::Known;
use super::{LockClient, Timer};
use crate::id::{Key, Name, NodeId, WatchNo};
use crate::lock::api::{ClientEffects, ClientEvent, Ended};
use crate::lock::floor::Floors;
use crate::lock::message::{GrantRef, Message, Refusal};
use crate::lock::mode::Mode;
use crate::lock::plant::Plant;
use crate::lock::watch::{Report, Sight, Watch};
use crate::time::Instant;

/// Of how many locks that are over a watch of a prefix remembers what it has shown.
const PAST_MAX: usize = 16_384;

/// All watches of a client.
#[derive(Clone, Debug, Default)]
pub(super) struct Watches {
    /// What is asked of the nodes, by the key under which they know it.
    shared: BTreeMap<Key, Watching>,
    /// The key under which the nodes know what is watched.
    by_what: BTreeMap<Watch, Key>,
    /// The same for the key of each caller.
    of_caller: BTreeMap<Key, Key>,
}

impl Watches {
    /// Whether a caller watches under this key, or nodes know one.
    pub(super) fn knows(&self, key: Key) -> bool {
        self.of_caller.contains_key(&key) || self.shared.contains_key(&key)
    }

    pub(super) fn get(&self, key: Key) -> Option<&Watching> {
        self.shared.get(&key)
    }

    fn get_mut(&mut self, key: Key) -> Option<&mut Watching> {
        self.shared.get_mut(&key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &Watching)> {
        self.shared.iter()
    }

    /// How many are asked of the nodes.
    pub(super) fn len(&self) -> usize {
        self.shared.len()
    }

    fn begin(&mut self, key: Key, what: Watch) {
        self.by_what.insert(what.clone(), key);
        self.of_caller.insert(key, key);
        self.shared.insert(key, Watching::new(key, what));
    }

    fn join(&mut self, key: Key, shared: Key) {
        self.of_caller.insert(key, shared);
        if let Some(watching) = self.shared.get_mut(&shared) {
            watching.callers.insert(key);
        }
    }

    /// A caller leaves; gives what nobody watches any more.
    fn leave(&mut self, key: Key) -> Option<(Key, Option<Watching>)> {
        let shared = self.of_caller.remove(&key)?;
        let watching = self.shared.get_mut(&shared)?;
        watching.callers.remove(&key);
        let over = watching.callers.is_empty();
        Some((shared, over.then(|| self.remove(shared)).flatten()))
    }

    fn remove(&mut self, shared: Key) -> Option<Watching> {
        let watching = self.shared.remove(&shared)?;
        self.by_what.remove(&watching.what);
        for caller in &watching.callers {
            self.of_caller.remove(caller);
        }
        Some(watching)
    }
}

/// One watch at the nodes.
#[derive(Clone, Debug)]
pub(super) struct Watching {
    what: Watch,
    /// Who is told.
    callers: BTreeSet<Key>,
    members: BTreeMap<NodeId, Member>,
    names: BTreeMap<Name, Known>,
    /// What was shown of locks that are over, oldest first.
    past: BTreeMap<Name, Floors>,
    past_by_age: VecDeque<Name>,
    /// Locks that may look different from what was told.
    changed: BTreeSet<Name>,
    /// Nodes that refuse it.
    refused: BTreeMap<NodeId, Refusal>,
    /// Whether the caller was told that it is partial; none if nothing was told yet.
    told: Option<bool>,
    /// Since when too few nodes are heard.
    deaf: Option<Instant>,
    armed: Option<Instant>,
}

/// A node that was asked.
#[derive(Clone, Debug, Default)]
struct Member {
    /// Whether it has told everything, on the present connection.
    synced: bool,
    /// The locks that its present list has named.
    list: Option<BTreeSet<Name>>,
}

impl Watching {
    fn new(key: Key, what: Watch) -> Self {
        Self {
            what,
            callers: BTreeSet::from([key]),
            members: BTreeMap::new(),
            names: BTreeMap::new(),
            past: BTreeMap::new(),
            past_by_age: VecDeque::new(),
            changed: BTreeSet::new(),
            refused: BTreeMap::new(),
            told: None,
            deaf: None,
            armed: None,
        }
    }

    /// When its next timer comes.
    pub(super) fn armed(&self) -> Option<Instant> {
        self.armed
    }

    /// What is known of a lock; made if it is new.
    fn known(&mut self, name: &Name) -> &mut Known {
        let past = &mut self.past;
        self.names
            .entry(name.clone())
            .or_insert_with(|| past.remove(name).map_or_else(Known::default, Known::again))
    }

    /// A lock is over: what was shown is remembered for a while.
    fn retire(&mut self, name: &Name) {
        let Some(known) = self.names.remove(name) else {
            return;
        };
        let floors = known.floors();
        if floors.highest().0 == 0 {
            return;
        }
        self.past.insert(name.clone(), floors);
        self.past_by_age.push_back(name.clone());
        // A name that came back has left a stale note behind; it only shortens the memory.
        while self.past_by_age.len() > PAST_MAX {
            if let Some(oldest) = self.past_by_age.pop_front() {
                self.past.remove(&oldest);
            }
        }
    }
}

fn tell_all(callers: &BTreeSet<Key>, out: &mut ClientEffects, event: impl Fn(Key) -> ClientEvent) {
    out.events.extend(callers.iter().map(|key| event(*key)));
}

impl LockClient {
    /// How many watches callers have.
    pub fn watches(&self) -> usize {
        self.watches.of_caller.len()
    }

    pub(super) fn watch(&mut self, key: Key, what: Watch, out: &mut ClientEffects) {
        if self.knows(key) {
            return;
        }
        let size = what.bytes().len();
        let empty = size == 0 && matches!(what, Watch::Name(_));
        if empty || size > self.config.limits.name_bytes {
            let ended = Ended::Refused(Refusal::Size);
            out.events.push(ClientEvent::Ended(key, ended));
            return;
        }
        if let Some(shared) = self.watches.by_what.get(&what).copied() {
            self.join_watch(key, shared, out);
            return;
        }
        self.look_after_troubled(out);
        self.watches.begin(key, what);
        self.choose_watched(key, out);
        self.weigh_watch(key, out);
    }

    /// Another caller watches the same: it is told what the others were told.
    fn join_watch(&mut self, key: Key, shared: Key, out: &mut ClientEffects) {
        self.watches.join(key, shared);
        let Some(watching) = self.watches.get(shared) else {
            return;
        };
        let Some(partial) = watching.told else {
            return;
        };
        for state in watching.names.values().filter_map(Known::shown) {
            let state = Box::new(state.clone());
            out.events.push(ClientEvent::Seen(key, state));
        }
        out.events.push(ClientEvent::Synced(key, partial));
    }

    /// Ends a watch at its caller's word.
    pub(super) fn end_watch(&mut self, key: Key, ended: Ended, out: &mut ClientEffects) {
        let Some((shared, over)) = self.watches.leave(key) else {
            return;
        };
        self.leave_members(shared, over, out);
        out.events.push(ClientEvent::Ended(key, ended));
    }

    /// Ends a watch for all its callers.
    fn fail_watch(&mut self, shared: Key, ended: &Ended, out: &mut ClientEffects) {
        let watching = self.watches.remove(shared);
        let callers = watching.as_ref().map(|watching| watching.callers.clone());
        self.leave_members(shared, watching, out);
        for caller in callers.into_iter().flatten() {
            out.events.push(ClientEvent::Ended(caller, ended.clone()));
        }
    }

    fn leave_members(&mut self, shared: Key, over: Option<Watching>, out: &mut ClientEffects) {
        for node in over.into_iter().flat_map(|over| over.members.into_keys()) {
            self.leave_watched(shared, node, out);
        }
    }

    fn leave_watched(&mut self, key: Key, node: NodeId, out: &mut ClientEffects) {
        if let Some(link) = self.link_mut(node) {
            link.watches.remove(&key);
        }
        let watch = WatchNo(key.0);
        self.tell(node, Message::Unwatch { watch }, out);
    }

    /// Asks the nodes of a quorum that is not in trouble, as far as they are not asked yet.
    fn choose_watched(&mut self, key: Key, out: &mut ClientEffects) {
        let Some(watching) = self.watches.get(key) else {
            return;
        };
        let mut avoid = self.avoid_set(None);
        for node in watching.refused.keys() {
            avoid.insert(node.index());
        }
        let seed = Name::new(watching.what.bytes()).seed();
        // Nobody has to meet others there: near nodes tell sooner.
        let near = self.near_quorum(&Mode::Exclusive, seed, &avoid);
        let quorums = &self.config.quorums;
        let quorum = near.unwrap_or_else(|| quorums.pick(&Mode::Exclusive, seed, &avoid));
        let what = watching.what.clone();
        let new = quorum.iter().map(NodeId::at);
        let new: Vec<NodeId> = new
            .filter(|node| !watching.members.contains_key(node))
            .filter(|node| !watching.refused.contains_key(node))
            .collect();
        for node in new {
            let link = self.want_link(node, out);
            link.watches.insert(key);
            let open = link.is_open();
            if open {
                let (watch, what) = (WatchNo(key.0), what.clone());
                out.send(node, Message::Watch { watch, what });
            }
            if let Some(watching) = self.watches.get_mut(key) {
                watching.members.insert(node, Member::default());
            }
        }
    }

    /// A connection is open: its watches begin again there.
    pub(super) fn watch_again(&mut self, node: NodeId, out: &mut ClientEffects) {
        let keys = self.link(node).map(|link| link.watches.clone());
        for key in keys.into_iter().flatten() {
            if let Some(watching) = self.watches.get(key) {
                let (watch, what) = (WatchNo(key.0), watching.what.clone());
                out.send(node, Message::Watch { watch, what });
            }
        }
    }

    /// A node is in trouble: those who watch through it ask others, and stop counting on it if
    /// its connection is gone.
    pub(super) fn watch_elsewhere(&mut self, node: NodeId, out: &mut ClientEffects) {
        let open = self.link(node).is_some_and(Link::is_open);
        let keys = self.link(node).map(|link| link.watches.clone());
        for key in keys.into_iter().flatten() {
            let member = self
                .watches
                .get_mut(key)
                .and_then(|watching| watching.members.get_mut(&node));
            if let Some(member) = member.filter(|_| !open) {
                *member = Member::default();
            }
            self.choose_watched(key, out);
            self.weigh_watch(key, out);
        }
    }

    pub(super) fn seen(
        &mut self,
        node: NodeId,
        watch: WatchNo,
        sight: Sight,
        out: &mut ClientEffects,
    ) {
        let key = Key(watch.0);
        let Some(watching) = self.watches.get_mut(key) else {
            return;
        };
        let Some(member) = watching.members.get_mut(&node) else {
            return;
        };
        match sight {
            Sight::Begin => member.list = Some(BTreeSet::new()),
            Sight::State(report) => self.seen_state(key, node, report, out),
            Sight::Synced => self.seen_all(key, node, out),
            Sight::Refused(why) => self.watch_refused(key, node, why, out),
        }
    }

    fn seen_state(&mut self, key: Key, node: NodeId, mut report: Report, out: &mut ClientEffects) {
        let limits = self.config.limits;
        let Some(watching) = self.watches.get_mut(key) else {
            return;
        };
        if !watching.what.covers(&report.name) {
            return;
        }
        let name = report.name.clone();
        let new = !watching.names.contains_key(&name);
        if new && report.is_idle() && matches!(watching.what, Watch::Prefix(_)) {
            return;
        }
        if new && watching.names.len() >= limits.watched_locks {
            self.fail_watch(key, &Ended::Refused(Refusal::WatchLimit), out);
            return;
        }
        report.holders.truncate(limits.watch_holders);
        let member = watching.members.get_mut(&node);
        if let Some(list) = member.and_then(|member| member.list.as_mut()) {
            list.insert(name.clone());
        }
        watching.known(&name).hear(node, report);
        watching.changed.insert(name);
        self.tell_watch(key, out);
    }

    /// A node has told everything: what it did not name is over there.
    fn seen_all(&mut self, key: Key, node: NodeId, out: &mut ClientEffects) {
        let Some(watching) = self.watches.get_mut(key) else {
            return;
        };
        let Some(member) = watching.members.get_mut(&node) else {
            return;
        };
        member.synced = true;
        if let Some(list) = member.list.take() {
            for (name, known) in &mut watching.names {
                if !list.contains(name) && known.forget(|other| other != node) {
                    watching.changed.insert(name.clone());
                }
            }
        }
        self.weigh_watch(key, out);
    }

    fn watch_refused(&mut self, key: Key, node: NodeId, why: Refusal, out: &mut ClientEffects) {
        let Some(watching) = self.watches.get_mut(key) else {
            return;
        };
        watching.members.remove(&node);
        watching.refused.insert(node, why);
        if let Some(link) = self.link_mut(node) {
            link.watches.remove(&key);
        }
        let refused = self.watches.get(key).map(|watching| &watching.refused);
        let others = self.config.quorums.all();
        let others = others.filter(|node| refused.is_none_or(|list| !list.contains_key(node)));
        if why != Refusal::WatchLimit || !self.config.quorums.informed_by(others) {
            self.fail_watch(key, &Ended::Refused(why), out);
            return;
        }
        self.choose_watched(key, out);
        self.weigh_watch(key, out);
    }

    /// Looks whether the nodes heard meet every quorum, leaves those that are not needed, and
    /// tells what may be told.
    fn weigh_watch(&mut self, key: Key, out: &mut ClientEffects) {
        let now = self.now.mono;
        let Some(watching) = self.watches.get_mut(key) else {
            return;
        };
        let nodes = self.config.quorums.nodes();
        let synced = watching.members.iter().filter(|(_, member)| member.synced);
        let heard = NodeSet::of(nodes, synced.map(|(node, _)| node.index()));
        if self.config.quorums.informs(&heard) {
            watching.deaf = None;
            // Those who are heard know of everyone: what others said before is old.
            let members = &watching.members;
            for (name, known) in &mut watching.names {
                let listed = |node: &NodeId| {
                    let list = members.get(node).and_then(|member| member.list.as_ref());
                    list.is_some_and(|list| list.contains(name))
                };
                if known.forget(|node| heard.contains(node.index()) || listed(&node)) {
                    watching.changed.insert(name.clone());
                }
            }
            self.leave_unneeded(key, &heard, out);
        } else {
            watching.deaf = watching.deaf.or(Some(now));
            self.arm_watch(key, now + self.config.times.link_ttl);
        }
        self.tell_watch(key, out);
    }

    fn leave_unneeded(&mut self, key: Key, heard: &NodeSet, out: &mut ClientEffects) {
        let nodes = self.config.quorums.nodes();
        let well = heard.iter().filter(|node| !self.avoided(NodeId::at(*node)));
        let well = NodeSet::of(nodes, well);
        if !self.config.quorums.informs(&well) {
            return;
        }
        let Some(watching) = self.watches.get_mut(key) else {
            return;
        };
        let members = watching.members.keys().copied();
        let left: Vec<NodeId> = members
            .filter(|node| !well.contains(node.index()))
            .collect();
        for node in &left {
            watching.members.remove(node);
            for (name, known) in &mut watching.names {
                if known.forget(|other| other != *node) {
                    watching.changed.insert(name.clone());
                }
            }
        }
        for node in left {
            self.leave_watched(key, node, out);
        }
    }

    /// Tells what has changed, unless too few nodes are heard and nobody has waited for it yet.
    fn tell_watch(&mut self, key: Key, out: &mut ClientEffects) {
        let forgets = self.config.rules.has(Plant::WatchForgets);
        let grace = self.config.times.link_ttl;
        let now = self.now.mono;
        let Some(watching) = self.watches.get_mut(key) else {
            return;
        };
        let partial = watching.deaf.is_some();
        let patient = watching.deaf.is_some_and(|since| since + grace > now);
        if patient && watching.told != Some(true) {
            return;
        }
        let flips = watching.told != Some(partial);
        if flips && let Watch::Name(name) = &watching.what {
            watching.changed.insert(name.clone());
        }
        for name in std::mem::take(&mut watching.changed) {
            let whole = matches!(watching.what, Watch::Prefix(_));
            let known = watching.known(&name);
            let (news, over) = (known.look(&name, partial, forgets), known.is_over());
            if let Some(state) = news {
                tell_all(&watching.callers, out, |key| {
                    ClientEvent::Seen(key, Box::new(state.clone()))
                });
            }
            if whole && over {
                watching.retire(&name);
            }
        }
        if flips {
            watching.told = Some(partial);
            tell_all(&watching.callers, out, |key| {
                ClientEvent::Synced(key, partial)
            });
        }
    }

    fn arm_watch(&mut self, key: Key, at: Instant) {
        let Some(watching) = self.watches.get_mut(key) else {
            return;
        };
        if watching.armed.is_none_or(|armed| armed > at) {
            watching.armed = Some(at);
            self.arm(at, Timer::Watch(key));
        }
    }

    /// Too few nodes were heard for a while: says so, and asks again.
    pub(super) fn watch_timer(&mut self, key: Key, out: &mut ClientEffects) {
        let now = self.now.mono;
        let Some(watching) = self.watches.get_mut(key) else {
            return;
        };
        if watching.armed.is_some_and(|armed| armed > now) {
            return;
        }
        watching.armed = None;
        if watching.deaf.is_none() {
            return;
        }
        self.choose_watched(key, out);
        self.weigh_watch(key, out);
    }

    /// Somebody watches a lock that was granted to us: it is told at once when we are inside.
    pub(super) fn watched(&mut self, node: NodeId, grant: GrantRef, out: &mut ClientEffects) {
        let reference = (grant.session, grant.request);
        let Some(place) = self.by_ref.get(&reference).copied() else {
            return;
        };
        let Some(request) = self.requests.get_mut(place) else {
            return;
        };
        request.watched = true;
        let waits = self
            .link(node)
            .is_some_and(|link| link.to_note.contains(&reference));
        if waits && let Some(entered) = self.entered_notice(reference, node) {
            self.tell(node, Message::Entered(Box::new(entered)), out);
        }
    }
}
