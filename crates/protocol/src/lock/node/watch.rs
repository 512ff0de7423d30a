//! Who watches which locks, and what they are told.
//!
//! Watches are level-triggered: per watch and lock at most one change waits to be told, and what
//! is told is how the lock looks at that moment. A connection is told so much at a time; the rest
//! waits for the next time. If too many changes wait, the watch starts over with a list of all
//! its locks, so nothing grows with the number of changes. Watches end with their connection.
//!
//! What a change costs is bounded too: a connection watches the same thing once, and prefixes of
//! few lengths, so that few of its watches are about one lock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::quota::Item;
use super::{LockNode, State, Timer};
use crate::id::{ClientId, Name, WatchNo};
use crate::lock::api::{NodeEffects, NodeEvent};
use crate::lock::message::{Message, Refusal};
use crate::lock::watch::{Holder, Report, Sight, Watch};
use crate::time::Instant;

/// A connection is told of changes at most this often; what is new after a pause, at once.
const PACE: Duration = Duration::from_millis(10);
/// About how many bytes it is told at a time.
const BYTES: usize = 128 << 10;
/// Prefixes of so many lengths are watched on one connection: no lock has more of them.
const LENGTHS_MAX: usize = 16;
/// How many places of a list are looked at each time.
const SCAN_MAX: u32 = 4096;

/// All watches of a node, by what they watch.
#[derive(Clone, Debug, Default)]
pub(super) struct Watchers {
    names: BTreeMap<Name, BTreeSet<(u32, WatchNo)>>,
    prefixes: BTreeMap<Arc<[u8]>, BTreeSet<(u32, WatchNo)>>,
    /// The lengths of watched prefixes, and how many prefixes have each.
    lengths: BTreeMap<usize, usize>,
    count: usize,
    /// Clients that have something to be told.
    ready: BTreeSet<u32>,
}

impl Watchers {
    fn add(&mut self, what: &Watch, who: (u32, WatchNo)) {
        self.count += 1;
        match what {
            Watch::Name(name) => {
                self.names.entry(name.clone()).or_default().insert(who);
            }
            Watch::Prefix(prefix) => {
                let watches = self.prefixes.entry(prefix.clone()).or_default();
                if watches.is_empty() {
                    *self.lengths.entry(prefix.len()).or_default() += 1;
                }
                watches.insert(who);
            }
        }
    }

    fn remove(&mut self, what: &Watch, who: (u32, WatchNo)) {
        self.count -= 1;
        match what {
            Watch::Name(name) => {
                if let Some(watches) = self.names.get_mut(name) {
                    watches.remove(&who);
                    if watches.is_empty() {
                        self.names.remove(name);
                    }
                }
            }
            Watch::Prefix(prefix) => {
                let Some(watches) = self.prefixes.get_mut(prefix) else {
                    return;
                };
                watches.remove(&who);
                if watches.is_empty() {
                    self.prefixes.remove(prefix);
                    if let Some(count) = self.lengths.get_mut(&prefix.len()) {
                        *count -= 1;
                        if *count == 0 {
                            self.lengths.remove(&prefix.len());
                        }
                    }
                }
            }
        }
    }

    /// Who watches a lock. One look per length of a watched prefix, however many there are.
    fn of<'a>(&'a self, name: &'a Name) -> impl Iterator<Item = (u32, WatchNo)> + 'a {
        let bytes = name.bytes();
        let lengths = self.lengths.range(..=bytes.len());
        let prefixes = lengths.filter_map(|(length, _)| self.prefixes.get(&bytes[..*length]));
        let all = self.names.get(name).into_iter().chain(prefixes);
        all.flatten().copied()
    }
}

/// The watches of one connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Lookout {
    watches: BTreeMap<WatchNo, Watching>,
    /// What is watched.
    all: BTreeSet<Watch>,
    /// The lengths of watched prefixes, and how many prefixes have each.
    lengths: BTreeMap<usize, usize>,
    /// Locks that changed since they were told, oldest change first.
    changed: VecDeque<(WatchNo, Name)>,
    /// The same, to have each once.
    waiting: BTreeSet<(WatchNo, Name)>,
    /// Nothing is told before this.
    next: Instant,
    armed: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Watching {
    what: Watch,
    /// Where its list of all locks goes on, if it is not complete.
    list: Option<u32>,
}

impl Lookout {
    /// Why this is not watched beside what is watched already, if so.
    fn refuses(&self, no: WatchNo, what: &Watch) -> Option<Refusal> {
        if self.watches.contains_key(&no) || self.all.contains(what) {
            return Some(Refusal::Unfit);
        }
        let new = match what {
            Watch::Name(_) => false,
            Watch::Prefix(prefix) => !self.lengths.contains_key(&prefix.len()),
        };
        (new && self.lengths.len() >= LENGTHS_MAX).then_some(Refusal::WatchLimit)
    }

    fn add(&mut self, no: WatchNo, what: Watch) {
        if let Watch::Prefix(prefix) = &what {
            *self.lengths.entry(prefix.len()).or_default() += 1;
        }
        self.all.insert(what.clone());
        let list = Some(0);
        self.watches.insert(no, Watching { what, list });
    }

    fn remove(&mut self, no: WatchNo) -> Option<Watch> {
        let Watching { what, .. } = self.watches.remove(&no)?;
        self.all.remove(&what);
        if let Watch::Prefix(prefix) = &what
            && let Some(count) = self.lengths.get_mut(&prefix.len())
        {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&prefix.len());
            }
        }
        self.forget_changes(no);
        Some(what)
    }

    /// Takes note of a change, or lets the watch start over if too many wait.
    fn change(&mut self, no: WatchNo, name: &Name, most: usize) {
        if !self.waiting.insert((no, name.clone())) {
            return;
        }
        self.changed.push_back((no, name.clone()));
        if self.waiting.len() > most
            && let Some(watching) = self.watches.get_mut(&no)
        {
            watching.list = Some(0);
            self.forget_changes(no);
        }
    }

    fn forget_changes(&mut self, no: WatchNo) {
        self.changed.retain(|(of, _)| *of != no);
        self.waiting.retain(|(of, _)| *of != no);
    }

    fn is_done(&self) -> bool {
        self.changed.is_empty() && self.watches.values().all(|watch| watch.list.is_none())
    }
}

impl LockNode {
    /// How many watches it keeps.
    pub fn watches(&self) -> usize {
        self.watchers.count
    }

    pub(super) fn watch(&mut self, place: u32, no: WatchNo, what: Watch, out: &mut NodeEffects) {
        let barred = !self.may_watch(place, &what);
        let limits = &self.config.limits;
        let size = what.bytes().len();
        let payer = self.payer(place, &Arc::default());
        let (account, item) = (self.accounts.find(&payer), Item::watch(size));
        let full =
            self.watchers.count >= limits.watches || !self.accounts.has_room(account, item, limits);
        let Some(peer) = self.peers.get_mut(place) else {
            return;
        };
        let look = peer.lookout.as_ref();
        let refusal = if barred {
            Some(Refusal::NotPermitted)
        } else if let Some(why) = look.and_then(|look| look.refuses(no, &what)) {
            Some(why)
        } else if size > limits.name_bytes || size == 0 && matches!(what, Watch::Name(_)) {
            Some(Refusal::Size)
        } else {
            full.then_some(Refusal::WatchLimit)
        };
        if let Some(why) = refusal {
            self.event(NodeEvent::Refused(why), out);
            let sight = Box::new(Sight::Refused(why));
            self.send(place, Message::Seen { watch: no, sight }, out);
            return;
        }
        self.watchers.add(&what, (place, no));
        peer.lookout.get_or_insert_default().add(no, what);
        let account = self.accounts.open(payer);
        self.accounts.charge(account, item);
        peer.pays = Some(account);
        self.watchers.ready.insert(place);
    }

    pub(super) fn unwatch(&mut self, place: u32, no: WatchNo) {
        let Some(peer) = self.peers.get_mut(place) else {
            return;
        };
        let Some(look) = &mut peer.lookout else {
            return;
        };
        let removed = look.remove(no);
        if look.watches.is_empty() {
            peer.lookout = None;
        }
        let pays = peer.pays;
        if let Some(what) = removed {
            self.forget_watch(place, pays, no, &what);
        }
    }

    fn forget_watch(&mut self, place: u32, pays: Option<u32>, no: WatchNo, what: &Watch) {
        self.watchers.remove(what, (place, no));
        if let Some(account) = pays {
            let item = Item::watch(what.bytes().len());
            self.accounts.refund(account, item);
        }
    }

    /// New rules count for watches too: those that they do not allow end.
    pub(super) fn end_barred_watches(&mut self, out: &mut NodeEffects) {
        for place in self.peers.places() {
            let look = self.peers.get(place).and_then(|peer| peer.lookout.as_ref());
            let watches = look.into_iter().flat_map(|look| &look.watches);
            let barred = watches.filter(|(_, watching)| !self.may_watch(place, &watching.what));
            for no in barred.map(|(no, _)| *no).collect::<Vec<_>>() {
                self.unwatch(place, no);
                self.say_seen(place, no, Sight::Refused(Refusal::NotPermitted), out);
            }
        }
    }

    /// The connection is gone, and its watches with it.
    pub(super) fn unwatch_all(&mut self, place: u32) {
        let Some(peer) = self.peers.get_mut(place) else {
            return;
        };
        let (look, pays) = (peer.lookout.take(), peer.pays.take());
        for (no, watching) in look.into_iter().flat_map(|look| look.watches) {
            self.forget_watch(place, pays, no, &watching.what);
        }
        self.watchers.ready.remove(&place);
    }

    /// Something that watchers see has changed in a lock.
    pub(super) fn touch(&mut self, lock: u32) {
        if self.watchers.count == 0 {
            return;
        }
        let Some(lock) = self.locks.get(lock) else {
            return;
        };
        let most = self.config.limits.watch_changes;
        let watches: Vec<_> = self.watchers.of(&lock.name).collect();
        for (place, no) in watches {
            let look = self.peers.get_mut(place);
            if let Some(look) = look.and_then(|peer| peer.lookout.as_mut()) {
                look.change(no, &lock.name, most);
                self.watchers.ready.insert(place);
            }
        }
    }

    /// Whether somebody watches a lock: then its holder is asked to say at once that it entered.
    pub(super) fn is_watched(&self, name: &Name) -> bool {
        self.watchers.count > 0 && self.watchers.of(name).next().is_some()
    }

    /// Tells watchers what they have not been told, at the end of a step. A node that does not
    /// serve yet knows too little to tell.
    pub(super) fn tell_watchers(&mut self, out: &mut NodeEffects) {
        if self.watchers.ready.is_empty() || !matches!(self.state, State::Serving | State::Draining)
        {
            return;
        }
        for place in std::mem::take(&mut self.watchers.ready) {
            let look = self.peers.get_mut(place);
            let Some(mut look) = look.and_then(|peer| peer.lookout.take()) else {
                continue;
            };
            self.tell_watcher(place, &mut look, out);
            if let Some(peer) = self.peers.get_mut(place) {
                peer.lookout = Some(look);
            }
        }
    }

    fn tell_watcher(&mut self, place: u32, look: &mut Lookout, out: &mut NodeEffects) {
        let now = self.now.mono;
        if look.next <= now {
            let mut left = BYTES;
            while left > 0
                && let Some((no, name)) = look.changed.pop_front()
            {
                let report = self.report(&name);
                look.waiting.remove(&(no, name));
                left = left.saturating_sub(size(&report));
                self.say_seen(place, no, Sight::State(report), out);
            }
            self.tell_lists(place, look, left, out);
            look.next = now + PACE;
        }
        if !look.is_done() && look.armed.is_none_or(|armed| armed <= now) {
            let at = look.next;
            look.armed = Some(at);
            if let Some(peer) = self.peers.get(place) {
                let client = peer.id;
                self.arm(at, Timer::Watch(client));
            }
        }
    }

    /// Goes on with the lists of all locks, as far as one turn may.
    fn tell_lists(
        &mut self,
        place: u32,
        look: &mut Lookout,
        mut left: usize,
        out: &mut NodeEffects,
    ) {
        let mut scan = SCAN_MAX;
        for (no, watching) in &mut look.watches {
            let Some(from) = watching.list else { continue };
            if left == 0 || scan == 0 {
                break;
            }
            let Watch::Prefix(prefix) = &watching.what else {
                let name = Name::new(watching.what.bytes());
                let report = self.report(&name);
                left = left.saturating_sub(size(&report));
                self.say_seen(place, *no, Sight::State(report), out);
                self.say_seen(place, *no, Sight::Synced, out);
                watching.list = None;
                continue;
            };
            if from == 0 {
                self.say_seen(place, *no, Sight::Begin, out);
            }
            let (names, next) = self.names_from(prefix, from, &mut scan, left);
            for name in names {
                let report = self.report(&name);
                left = left.saturating_sub(size(&report));
                self.say_seen(place, *no, Sight::State(report), out);
            }
            watching.list = next;
            if next.is_none() {
                self.say_seen(place, *no, Sight::Synced, out);
            }
        }
    }

    /// Names of locks with a request and this prefix, from a place on, and where to go on.
    fn names_from(
        &self,
        prefix: &[u8],
        from: u32,
        scan: &mut u32,
        bytes: usize,
    ) -> (Vec<Name>, Option<u32>) {
        let (mut names, mut left) = (Vec::new(), bytes);
        let last = from.saturating_add(*scan);
        for (place, lock) in self.locks.iter_from(from) {
            if place >= last || left == 0 {
                *scan = last.saturating_sub(place);
                return (names, Some(place));
            }
            if !lock.arbiter.is_empty() && lock.name.bytes().starts_with(prefix) {
                names.push(lock.name.clone());
                left = left.saturating_sub(lock.name.bytes().len() + LEAST);
            }
        }
        let looked = self.locks.last_place().saturating_sub(from);
        *scan = scan.saturating_sub(looked.max(1));
        (names, None)
    }

    pub(super) fn watch_timer(&mut self, client: ClientId) {
        let Some(place) = self.clients.get(&client).copied() else {
            return;
        };
        let look = self.peers.get_mut(place);
        if let Some(look) = look.and_then(|peer| peer.lookout.as_mut())
            && look.armed.is_some_and(|armed| armed <= self.now.mono)
        {
            look.armed = None;
            self.watchers.ready.insert(place);
        }
    }

    fn say_seen(&mut self, place: u32, watch: WatchNo, sight: Sight, out: &mut NodeEffects) {
        let sight = Box::new(sight);
        self.send(place, Message::Seen { watch, sight }, out);
    }

    /// A lock as this node sees it.
    fn report(&self, name: &Name) -> Report {
        let mut report = Report {
            name: name.clone(),
            holders: Vec::new(),
            more: 0,
            waiting: 0,
        };
        let place = self.by_name.get(name).copied();
        let Some(lock) = place.and_then(|place| self.locks.get(place)) else {
            return report;
        };
        for entry in lock.arbiter.entries() {
            let entered = entry.grant.as_ref().filter(|grant| grant.entered);
            if entered.is_none() && !entry.inside() {
                report.waiting += 1;
                continue;
            }
            if report.holders.len() >= self.config.limits.watch_holders {
                report.more += 1;
                continue;
            }
            let ask = &entry.ask;
            let session = self.by_session.get(&ask.session).copied();
            let session = session.and_then(|place| self.sessions.get(place));
            report.holders.push(Holder {
                session: ask.session,
                request: ask.request,
                group: ask.group(),
                token: entered.map_or_else(Default::default, |_| entry.used),
                asked: crate::time::Wall(ask.priority.t),
                owner: session.map_or_else(|| Arc::from(""), |session| session.owner.clone()),
                note: entry.note.clone(),
                edition: entry.edition,
            });
        }
        report
    }
}

/// The least that a report counts for.
const LEAST: usize = 64;

/// About how many bytes a report takes.
fn size(report: &Report) -> usize {
    let holder = |holder: &Holder| {
        let note = holder.note.as_ref().map_or(0, |note| note.len());
        LEAST + holder.owner.len() + note
    };
    LEAST + report.name.bytes().len() + report.holders.iter().map(holder).sum::<usize>()
}
