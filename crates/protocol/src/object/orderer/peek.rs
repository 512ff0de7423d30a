//! Reads without a rank, and watches.
//!
//! If a quorum has committed the same state and at most b nodes hold a later proposal, that state
//! is the latest: nothing newer can have been acknowledged to anybody. Otherwise somebody is in
//! the middle of a change; the client asks again, and at last orders a round of its own.

use std::collections::BTreeMap;

use super::{Orderer, Refresh, fail};
use crate::id::{Key, NodeId};
use crate::keeper::client::{ClientEffects, ClientEvent, Failure};
use crate::object::cells;
use crate::object::kind::{DATA, data, data_name};
use crate::object::message::{ObjectAsk, ObjectRefusal, ObjectTell, Span};
use crate::object::plant::Plant;
use crate::object::state::{Cell, Stamp, State, Value};
use crate::time::{Instant, Now};

/// So many times nodes are asked before a reader orders a round of its own.
const TRIES_MAX: u32 = 3;
/// The most reads and watches of one object under way.
pub(super) const READS_MAX: usize = 65_536;

/// Cells by span.
type Spans = Vec<Vec<(Cell, Value)>>;

/// A read under way.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) key: Key,
    /// The spans as nodes know them, the object's kind first.
    spans: Vec<Span>,
    tries: u32,
    replies: BTreeMap<NodeId, Reply>,
    gone: BTreeMap<NodeId, ObjectRefusal>,
    /// Then it is decided, or asked again.
    due: Instant,
}

#[derive(Clone, Debug)]
struct Reply {
    committed: Stamp,
    proposed: u64,
    cells: Spans,
}

/// A watch.
#[derive(Clone, Debug)]
pub(super) struct Watching {
    pub(super) key: Key,
    versions: BTreeMap<NodeId, u64>,
    gone: BTreeMap<NodeId, ObjectRefusal>,
    told: Option<u64>,
}

impl Orderer {
    /// A caller's read; the cells are told under the key.
    pub fn read(&mut self, now: Now, key: Key, spans: Vec<Span>, out: &mut ClientEffects) {
        if self.reads.len() >= READS_MAX {
            fail(out, key, Failure::Busy);
            return;
        }
        let ticket = self.ticket();
        let read = Reading {
            key,
            spans: outer(spans),
            tries: 1,
            replies: BTreeMap::new(),
            gone: BTreeMap::new(),
            due: now.mono + 2 * self.config.delay,
        };
        self.reads.insert(ticket, read);
        for node in self.open.clone() {
            self.send_read(ticket, node, out);
        }
    }

    /// A caller's watch; changes are told under the key.
    pub fn watch(&mut self, key: Key, out: &mut ClientEffects) {
        if self.watches.len() >= self.config.watches_max {
            fail(out, key, Failure::Busy);
            return;
        }
        let ticket = self.ticket();
        let watch = Watching {
            key,
            versions: BTreeMap::new(),
            gone: BTreeMap::new(),
            told: None,
        };
        self.watches.insert(ticket, watch);
        for node in self.open.clone() {
            self.ask(out, node, ObjectAsk::Watch { ticket });
        }
    }

    pub(super) fn end_watch(&mut self, key: Key, out: &mut ClientEffects) {
        let mine = self.watches.iter().filter(|(_, watch)| watch.key == key);
        let tickets: Vec<u64> = mine.map(|(ticket, _)| *ticket).collect();
        for ticket in tickets {
            self.watches.remove(&ticket);
            for node in self.open.clone() {
                self.ask(out, node, ObjectAsk::Unwatch { ticket });
            }
        }
    }

    fn send_read(&self, ticket: u64, node: NodeId, out: &mut ClientEffects) {
        if let Some(read) = self.reads.get(&ticket)
            && !read.replies.contains_key(&node)
        {
            let peek = ObjectAsk::Peek {
                ticket,
                have: None,
                spans: read.spans.clone(),
            };
            self.ask(out, node, peek);
        }
    }

    pub(super) fn send_reads_to(&self, node: NodeId, out: &mut ClientEffects) {
        for ticket in self.reads.keys() {
            self.send_read(*ticket, node, out);
        }
        for ticket in self.watches.keys() {
            self.ask(out, node, ObjectAsk::Watch { ticket: *ticket });
        }
    }

    /// A node says what it has committed.
    pub(super) fn peeked(
        &mut self,
        now: Now,
        node: NodeId,
        ticket: u64,
        tell: &ObjectTell,
        out: &mut ClientEffects,
    ) {
        let ObjectTell::Peeked {
            committed,
            proposed,
            cells,
            ..
        } = tell
        else {
            return;
        };
        self.compare(node, *committed, out);
        let Some(read) = self.reads.get_mut(&ticket) else {
            return;
        };
        let reply = Reply {
            committed: *committed,
            proposed: *proposed,
            cells: cells.clone(),
        };
        read.replies.insert(node, reply);
        self.look_at_read(now, ticket, out);
    }

    /// Whether a read can be answered, or must be asked anew.
    fn look_at_read(&mut self, now: Now, ticket: u64, out: &mut ClientEffects) {
        let Some(read) = self.reads.get(&ticket) else {
            return;
        };
        if let Some((stamp, cells)) = self.settled(read) {
            let key = read.key;
            self.reads.remove(&ticket);
            self.counters.peeks += 1;
            self.answer(key, stamp.version, cells, out);
            return;
        }
        let all = read.replies.len() + read.gone.len() >= self.config.faults.nodes();
        if all || read.due <= now.mono {
            self.ask_again(now, ticket, out);
        }
    }

    /// The state that is the latest, and its cells, if the replies show both.
    fn settled(&self, read: &Reading) -> Option<(Stamp, Spans)> {
        let loose = self.config.rules.has(Plant::ReadFromVouched);
        let needed = if loose {
            self.config.vouch()
        } else {
            self.config.quorum
        };
        let mut counts: BTreeMap<Stamp, usize> = BTreeMap::new();
        for reply in read.replies.values() {
            *counts.entry(reply.committed).or_default() += 1;
        }
        let (stamp, _) = counts
            .into_iter()
            .rev()
            .find(|(_, count)| *count >= needed)?;
        let later = read
            .replies
            .values()
            .filter(|reply| reply.proposed > stamp.version);
        if later.count() > self.config.faults.liars() && !loose {
            return None;
        }
        let same = read
            .replies
            .values()
            .filter(|reply| reply.committed == stamp);
        let cells: Vec<&Spans> = same.map(|reply| &reply.cells).collect();
        let vouched = |one: &&&Spans| {
            cells.iter().filter(|other| *other == *one).count() >= self.config.vouch()
        };
        let cells = (*cells.iter().find(vouched)?).clone();
        Some((stamp, cells))
    }

    /// A change is under way: asks once more, and in the end orders a round.
    fn ask_again(&mut self, now: Now, ticket: u64, out: &mut ClientEffects) {
        let Some(mut read) = self.reads.remove(&ticket) else {
            return;
        };
        let enough = read.replies.len() >= self.config.quorum;
        if enough && read.tries >= TRIES_MAX {
            self.counters.refreshes += 1;
            self.refreshes.push(Refresh::Read(read.key, read.spans));
            self.go(now, out);
            return;
        }
        let again = self.ticket();
        if enough {
            read.tries += 1;
        }
        read.replies.clear();
        read.gone.clear();
        read.due = now.mono + 2 * self.config.delay;
        self.reads.insert(again, read);
        for node in self.open.clone() {
            self.send_read(again, node, out);
        }
    }

    fn answer(&mut self, key: Key, version: u64, mut cells: Spans, out: &mut ClientEffects) {
        let kind = if cells.is_empty() {
            Vec::new()
        } else {
            cells.remove(0)
        };
        let other = kind
            .first()
            .is_some_and(|(_, name)| **name != *self.kind.name().as_bytes());
        if other {
            fail(out, key, Failure::OtherKind);
            return;
        }
        out.events.push(ClientEvent::Read {
            key,
            version,
            cells: cells.into_iter().map(inner).collect(),
        });
    }

    /// A node does not answer a question.
    pub(super) fn gone(
        &mut self,
        now: Now,
        node: NodeId,
        ticket: u64,
        why: ObjectRefusal,
        out: &mut ClientEffects,
    ) {
        if self.is_fetch(node, ticket) {
            self.fetch_elsewhere(now, out);
            return;
        }
        let vouch = self.config.faults.vouch();
        if let Some(watch) = self.watches.get_mut(&ticket) {
            watch.gone.insert(node, why);
            let same = watch.gone.values().filter(|other| **other == why);
            if same.count() >= vouch {
                let key = watch.key;
                self.watches.remove(&ticket);
                fail(out, key, Failure::Object(why));
            }
        }
        let Some(read) = self.reads.get_mut(&ticket) else {
            return;
        };
        read.gone.insert(node, why);
        let same = read.gone.values().filter(|other| **other == why).count();
        let passing = matches!(why, ObjectRefusal::Full | ObjectRefusal::NotServing);
        if same >= vouch && !passing {
            let key = read.key;
            self.reads.remove(&ticket);
            fail(out, key, Failure::Object(why));
        } else {
            self.look_at_read(now, ticket, out);
        }
    }

    /// Something was committed at a node.
    pub(super) fn changed(
        &mut self,
        node: NodeId,
        ticket: u64,
        stamp: Stamp,
        out: &mut ClientEffects,
    ) {
        let vouch = self.config.faults.vouch();
        let Some(watch) = self.watches.get_mut(&ticket) else {
            return;
        };
        let known = watch.versions.entry(node).or_insert(stamp.version);
        *known = stamp.version.max(*known);
        let versions = watch.versions.values().copied();
        let version = super::judge::nth_largest(versions, vouch);
        if let Some(version) = version
            && watch.told.is_none_or(|told| told < version)
        {
            watch.told = Some(version);
            let key = watch.key;
            out.events.push(ClientEvent::Changed { key, version });
        }
    }

    pub(super) fn reads_wake(&self) -> Option<Instant> {
        self.reads.values().map(|read| read.due).min()
    }

    pub(super) fn wake_reads(&mut self, now: Now, out: &mut ClientEffects) {
        let due = self.reads.iter().filter(|(_, read)| read.due <= now.mono);
        let due: Vec<u64> = due.map(|(ticket, _)| *ticket).collect();
        for ticket in due {
            self.look_at_read(now, ticket, out);
        }
    }
}

/// Spans as nodes know them, with the object's kind first.
fn outer(spans: Vec<Span>) -> Vec<Span> {
    let kind = Span {
        from: cells::KIND.into(),
        to: Some([cells::KIND, &[0]].concat().into()),
        limit: 1,
        backwards: false,
    };
    let own = spans.into_iter().map(|span| Span {
        from: data(&span.from),
        to: Some(match &span.to {
            Some(to) => data(to),
            None => [DATA + 1].as_slice().into(),
        }),
        ..span
    });
    std::iter::once(kind).chain(own).collect()
}

/// Cells by the names that the kind gives them.
fn inner(cells: Vec<(Cell, Value)>) -> Vec<(Cell, Value)> {
    let own = cells.into_iter().filter_map(|(cell, value)| {
        let name = data_name(&cell)?;
        Some((name.into(), value))
    });
    own.collect()
}

/// The cells of spans, the object's kind left out.
pub(super) fn cells_of(state: &State, spans: &[Span]) -> Spans {
    spans
        .iter()
        .skip(1)
        .map(|span| inner(in_span(state, span)))
        .collect()
}

/// The cells of a span.
pub(super) fn in_span(state: &State, span: &Span) -> Vec<(Cell, Value)> {
    let limit = span.limit as usize;
    let within = |cell: &Cell| span.to.as_ref().is_none_or(|to| cell < to);
    let cells = state.cells(&span.from, false);
    let cells = cells.take_while(|(cell, _)| within(cell));
    let cells = cells.map(|(cell, value)| (cell.clone(), value.clone()));
    if span.backwards {
        let mut all: Vec<(Cell, Value)> = cells.collect();
        all.reverse();
        all.truncate(limit);
        return all;
    }
    cells.take(limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::state::Delta;

    #[test]
    fn spans_of_a_kind_are_its_own_cells_alone() {
        let writes = [
            (cells::KIND.to_vec(), b"map".to_vec()),
            (data(b"a").to_vec(), b"1".to_vec()),
            (data(b"b").to_vec(), b"2".to_vec()),
            (vec![DATA + 1], b"beyond".to_vec()),
        ];
        let writes = writes
            .into_iter()
            .map(|(cell, value)| (cell.into(), Some(value.into())));
        let state = State::new()
            .next(&Delta::new(writes.collect()))
            .expect("a version");
        let span = |limit, backwards| Span {
            from: b"".as_slice().into(),
            to: None,
            limit,
            backwards,
        };
        let names = |spans: Vec<Span>| -> Vec<Vec<u8>> {
            let cells = cells_of(&state, &outer(spans));
            cells[0].iter().map(|(cell, _)| cell.to_vec()).collect()
        };
        assert_eq!(names(vec![span(9, false)]), [b"a".to_vec(), b"b".to_vec()]);
        assert_eq!(names(vec![span(1, true)]), [b"b".to_vec()]);
    }
}
