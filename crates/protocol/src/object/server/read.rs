//! What is told without a rank: committed cells, whole states, changes.

use super::{Entry, ObjectOut, ObjectServer};
use crate::id::{LinkId, Name};
use crate::object::acl::Want;
use crate::object::message::{ObjectRefusal, ObjectTell, Rank, Span};
use crate::object::state::{CELL_COST, Cell, Stamp, State, Value};
use crate::time::{Now, Wall};

/// The most spans in one question.
const SPANS_MAX: usize = 64;
/// The most objects in one part of a survey.
const SURVEY_MAX: usize = 1024;
/// The most bytes of names in one part of a survey.
const SURVEY_BYTES: usize = 128 << 10;

/// An object as a node shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectView {
    /// Its name.
    pub name: Name,
    /// The committed state.
    pub committed: Stamp,
    /// The proposed state.
    pub proposed: Stamp,
    /// The largest rank seen.
    pub rank: Rank,
    /// How many bytes it has.
    pub bytes: usize,
    /// How many operations wait.
    pub pending: usize,
    /// When it was last committed, if in this life of the node.
    pub changed: Option<Wall>,
}

impl ObjectServer {
    /// Tells what is committed, and how far proposals have gone.
    pub(super) fn peek(
        &mut self,
        (link, object): (LinkId, &Name),
        ticket: u64,
        have: Option<Stamp>,
        spans: &[Span],
        out: &mut ObjectOut,
    ) {
        let entry = self.entries.get(object);
        let state = entry.map_or(&self.empty, |entry| &entry.kept.committed);
        let mut left = self.config.page_bytes;
        let mut cells = Vec::with_capacity(spans.len().min(SPANS_MAX));
        for span in spans.iter().take(SPANS_MAX) {
            cells.extend(span_of(state, span, &mut left));
        }
        let tell = if cells.len() < spans.len() {
            // All nodes cut at the same place, but a cut answer cannot be told from a whole one.
            let why = ObjectRefusal::TooLarge;
            ObjectTell::Gone { ticket, why }
        } else {
            ObjectTell::Peeked {
                ticket,
                committed: state.stamp(),
                proposed: entry.map_or(0, |entry| entry.kept.proposed.version()),
                suffix: entry.map_or_else(Vec::new, |entry| {
                    entry.suffix(have, self.config.delta_size_max)
                }),
                cells,
            }
        };
        out.tell(link, object, tell);
    }

    /// Tells a part of a state. A state that is fetched stays until its last part was told.
    pub(super) fn fetch(
        &mut self,
        now: Now,
        (link, object): (LinkId, &Name),
        ticket: u64,
        stamp: Stamp,
        after: Option<&[u8]>,
        out: &mut ObjectOut,
    ) {
        let Some(port) = self.ports.get_mut(&link) else {
            return;
        };
        let pinned = |pin: &(Name, State, crate::Instant)| {
            (pin.0 == *object && pin.1.stamp() == stamp).then(|| pin.1.clone())
        };
        let held = self
            .entries
            .get(object)
            .and_then(|entry| entry.held(stamp).cloned())
            .or_else(|| port.pin.as_ref().and_then(pinned))
            .or_else(|| (self.empty.stamp() == stamp).then(|| self.empty.clone()));
        let Some(state) = held else {
            let why = ObjectRefusal::Unknown;
            return out.tell(link, object, ObjectTell::Gone { ticket, why });
        };
        let page = state.page(after, self.config.page_bytes);
        port.pin = (!page.last).then(|| (object.clone(), state, now.mono));
        let tell = ObjectTell::Page {
            ticket,
            stamp,
            page,
        };
        out.tell(link, object, tell);
        self.sweep_soon(now);
    }

    pub(super) fn sweep_soon(&mut self, now: Now) {
        let soon = now.mono + self.config.pending_keep / 4;
        self.sweep = if self.sweep < now.mono {
            soon
        } else {
            self.sweep.min(soon)
        };
    }

    /// Tells the committed state now and whenever it changes.
    pub(super) fn watch(&mut self, link: LinkId, object: &Name, ticket: u64, out: &mut ObjectOut) {
        let stamp = self.committed(object).stamp();
        let Some(port) = self.ports.get_mut(&link) else {
            return;
        };
        let known = port.watches.get(&ticket).is_some_and(|name| name != object);
        if known || port.watches.len() >= self.config.watches_max {
            let why = ObjectRefusal::Full;
            return out.tell(link, object, ObjectTell::Gone { ticket, why });
        }
        port.watches.insert(ticket, object.clone());
        let watchers = self.watchers.entry(object.clone()).or_default();
        watchers.insert((link, ticket));
        out.tell(link, object, ObjectTell::Changed { ticket, stamp });
    }

    pub(super) fn unwatch(&mut self, link: LinkId, ticket: u64) {
        let watches = self.ports.get_mut(&link).map(|port| &mut port.watches);
        if let Some(object) = watches.and_then(|watches| watches.remove(&ticket)) {
            self.unwatched(link, ticket, &object);
        }
    }

    pub(super) fn unwatched(&mut self, link: LinkId, ticket: u64, object: &Name) {
        if let Some(watchers) = self.watchers.get_mut(object) {
            watchers.remove(&(link, ticket));
            if watchers.is_empty() {
                self.watchers.remove(object);
            }
        }
    }

    /// Tells those who watch, as far as they still may.
    pub(super) fn notify(&mut self, object: &Name, stamp: Stamp, out: &mut ObjectOut) {
        let Some(watchers) = self.watchers.get(object) else {
            return;
        };
        for (link, ticket) in watchers {
            let tell = if self.may(*link, object, Want::Read) {
                let ticket = *ticket;
                ObjectTell::Changed { ticket, stamp }
            } else {
                ObjectTell::Gone {
                    ticket: *ticket,
                    why: ObjectRefusal::NotPermitted,
                }
            };
            out.tell(*link, object, tell);
        }
    }

    /// Some objects after a name, with what is committed, and whether they are the last. Nodes
    /// see all of them, others those that they may read.
    pub fn survey(&self, link: LinkId, after: Option<&Name>) -> (Vec<(Name, Stamp)>, bool) {
        use std::ops::Bound;
        let Some(port) = self.ports.get(&link) else {
            return (Vec::new(), true);
        };
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut bytes = 0;
        let mut objects = Vec::new();
        for (name, entry) in self.entries.range((start, Bound::Unbounded)) {
            let seen = port.caller.node.is_some() || self.may(link, name, Want::Read);
            if !entry.is_kept() || !seen {
                continue;
            }
            if objects.len() >= SURVEY_MAX || bytes > SURVEY_BYTES {
                return (objects, false);
            }
            bytes += name.bytes().len();
            objects.push((name.clone(), entry.kept.committed.stamp()));
        }
        (objects, true)
    }

    /// Objects after a name, at most so many, for those who look after the node.
    pub fn views(
        &self,
        after: Option<&Name>,
        limit: usize,
    ) -> impl Iterator<Item = ObjectView> + use<'_> {
        use std::ops::Bound;
        let start = after.map_or(Bound::Unbounded, |name| Bound::Excluded(name.clone()));
        let entries = self.entries.range((start, Bound::Unbounded)).take(limit);
        entries.map(|(name, entry)| view_of(name, entry))
    }

    /// How many objects there are, and how many bytes they have.
    pub fn size(&self) -> (usize, usize) {
        (self.entries.len(), self.bytes)
    }
}

fn view_of(name: &Name, entry: &Entry) -> ObjectView {
    ObjectView {
        name: name.clone(),
        committed: entry.kept.committed.stamp(),
        proposed: entry.kept.proposed.stamp(),
        rank: entry.kept.max,
        bytes: entry.bytes(),
        pending: entry.pending.len(),
        changed: entry.changed.map(|now| now.wall),
    }
}

/// The cells of a span; none if they are more than `left` bytes.
fn span_of(state: &State, span: &Span, left: &mut usize) -> Option<Vec<(Cell, Value)>> {
    let limit = span.limit as usize;
    let to = span.to.as_deref();
    let mut take = |cells: &mut dyn Iterator<Item = (&Cell, &Value)>| {
        let mut taken = Vec::new();
        for (cell, value) in cells.take(limit) {
            *left = left.checked_sub(CELL_COST + cell.len() + value.len())?;
            taken.push((cell.clone(), value.clone()));
        }
        Some(taken)
    };
    if span.backwards {
        take(&mut state.cells_back(&span.from, to))
    } else {
        let inside = |(cell, _): &(&Cell, &Value)| to.is_none_or(|to| cell.as_ref() < to);
        take(&mut state.cells(&span.from, false).take_while(inside))
    }
}
