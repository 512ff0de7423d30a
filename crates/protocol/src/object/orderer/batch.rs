//! The batch under way: what callers of this client wish for, submitted as one operation.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Flight, NOBODY, Orderer, RESEND_MAX, fail, failure, lied};
use crate::fault::Lie;
use crate::id::NodeId;
use crate::keeper::client::{ClientEffects, ClientEvent, Failure};
use crate::object::author::{self, Known as Told};
use crate::object::envelope::{Batch, Fault, KIND_NAME_MAX, Outcome, WISHES_MAX, decode_outcomes};
use crate::object::message::{Author, ObjectAsk, ObjectRefusal, OpId};
use crate::object::plant::Plant;
use crate::object::state::State;
use crate::time::Now;

impl Orderer {
    /// Makes a batch of what waits, unless one is under way.
    pub(super) fn take_off(&mut self, now: Now, out: &mut ClientEffects) {
        if self.flight.is_some() || self.waiting.is_empty() {
            return;
        }
        if self.number == 0 {
            let chance = u128::from(self.chance.next_u64()) << 64;
            let began = (now.wall.0 / 1000).max(author::floor(self.known.base()).unwrap_or(0) + 1);
            self.author = Author::new(began, chance | u128::from(self.chance.next_u64()));
        }
        self.number += 1;
        let mut batch = Batch {
            kind: self.kind.name().to_owned(),
            code: self.kind.code(),
            wishes: Vec::new(),
        };
        let mut room = self.config.op_size_max - KIND_NAME_MAX - 8;
        let mut callers = Vec::new();
        // The published protocol orders one operation of a client at a time.
        let most = if self.config.rules.is_paper() {
            1
        } else {
            WISHES_MAX
        };
        while callers.len() < most
            && let Some((_, wish)) = self.waiting.front()
            && wish.bytes() <= room
            && let Some((key, wish)) = self.waiting.pop_front()
        {
            room -= wish.bytes();
            callers.push(key);
            batch.wishes.push(wish);
        }
        self.flight = Some(Flight {
            op: OpId {
                author: self.author,
                number: self.number,
            },
            body: batch.encode().into(),
            callers,
            sent: false,
            results: BTreeMap::new(),
            denied: BTreeMap::new(),
            resend: now.mono,
            pause: 4 * self.config.delay,
        });
        // Whoever is ordering takes its own along.
        if !self.may_order(now) || self.principal.is_none() || self.config.rules.is_paper() {
            self.send_flight(now, out);
        }
    }

    pub(super) fn send_flight(&mut self, now: Now, out: &mut ClientEffects) {
        let Some(flight) = &mut self.flight else {
            return;
        };
        flight.sent = true;
        flight.resend = now.mono + flight.pause;
        flight.pause = (flight.pause * 2).min(RESEND_MAX);
        let (op, body) = (flight.op, flight.body.clone());
        let told: Vec<NodeId> = flight.results.keys().copied().collect();
        for node in self.open.clone() {
            if !told.contains(&node) {
                let body = body.clone();
                self.ask(out, node, ObjectAsk::Submit { op, body });
            }
        }
    }

    pub(super) fn resend(&mut self, now: Now, out: &mut ClientEffects) {
        let due = |flight: &Flight| flight.sent && flight.resend <= now.mono;
        if self.flight.as_ref().is_some_and(due) {
            self.send_flight(now, out);
        }
    }

    /// A node says what came of an operation.
    pub(super) fn told(
        &mut self,
        now: Now,
        node: NodeId,
        op: OpId,
        result: &Arc<[u8]>,
        out: &mut ClientEffects,
    ) {
        let Some(flight) = self.flight.as_mut().filter(|flight| flight.op == op) else {
            return;
        };
        flight.results.insert(node, result.clone());
        let needed = if self.config.rules.has(Plant::OneResponse) {
            1
        } else {
            self.config.vouch()
        };
        let same = |(_, other): &(&NodeId, &Arc<[u8]>)| *other == result;
        if flight.results.iter().filter(same).count() >= needed {
            self.settle(now, &result.clone(), None, out);
            self.rest(now, out);
            self.go(now, out);
        }
    }

    /// The batch under way is done.
    pub(super) fn settle(
        &mut self,
        now: Now,
        result: &[u8],
        version: Option<u64>,
        out: &mut ClientEffects,
    ) {
        let Some(flight) = self.flight.take() else {
            return;
        };
        for (node, told) in &flight.results {
            if **told != *result {
                lied(out, *node, Lie::Forged);
            }
        }
        let outcomes = decode_outcomes(result).unwrap_or_default();
        let failed = Outcome::Failed(Fault::Unreadable);
        for (at, key) in flight.callers.into_iter().enumerate() {
            let outcome = outcomes.get(at).or(outcomes.last()).unwrap_or(&failed);
            match outcome {
                _ if key == NOBODY => {}
                Outcome::Result(result) => out.events.push(ClientEvent::Done {
                    key,
                    result: result.clone(),
                    version,
                }),
                Outcome::Failed(fault) => fail(out, key, failure(*fault)),
            }
        }
        self.take_off(now, out);
    }

    pub(super) fn denied(
        &mut self,
        now: Now,
        node: NodeId,
        op: OpId,
        why: ObjectRefusal,
        out: &mut ClientEffects,
    ) {
        let nodes = self.config.faults.nodes();
        let (quorum, vouch) = (self.config.quorum, self.config.faults.vouch());
        let Some(flight) = self.flight.as_mut().filter(|flight| flight.op == op) else {
            return;
        };
        flight.denied.insert(node, why);
        let same = flight
            .denied
            .values()
            .filter(|other| **other == why)
            .count();
        // What may change by itself counts only when no quorum can hold the operation.
        let passing = matches!(why, ObjectRefusal::Full | ObjectRefusal::NotServing);
        let needed = if passing { nodes - quorum + 1 } else { vouch };
        if same >= needed.max(vouch) {
            self.give_up(why, out);
            self.rest(now, out);
            self.take_off(now, out);
            self.go(now, out);
        }
    }

    /// The batch under way fails; what came of it is not known. The author is not used again.
    pub(super) fn give_up(&mut self, why: ObjectRefusal, out: &mut ClientEffects) {
        if let Some(flight) = self.flight.take() {
            self.number = 0;
            for key in flight.callers.into_iter().filter(|key| *key != NOBODY) {
                fail(out, key, Failure::Object(why));
            }
        }
    }

    /// The object is of another kind: nobody's wish can be done here.
    pub(super) fn other_kind(&mut self, out: &mut ClientEffects) {
        let flight = self.flight.take();
        let flying = flight.into_iter().flat_map(|flight| flight.callers);
        let waiting = std::mem::take(&mut self.waiting);
        let waiting = waiting.into_iter().map(|(key, _)| key);
        let reads = self
            .refreshes
            .extract_if(.., |refresh| !refresh.is_rejoin());
        let keys = flying.chain(waiting).chain(reads.map(|read| read.key()));
        for key in keys.filter(|key| *key != NOBODY) {
            fail(out, key, Failure::OtherKind);
        }
        self.number = 0;
    }

    /// Whether the state shows what came of the batch under way; then it is done.
    pub(super) fn settle_from(&mut self, now: Now, state: &State, out: &mut ClientEffects) {
        let Some(op) = self.flight.as_ref().map(|flight| flight.op) else {
            return;
        };
        match author::known(state, op) {
            Told::New => {}
            Told::Done(result) => self.settle(now, &result, Some(state.version()), out),
            Told::Past | Told::Forgotten => {
                self.give_up(ObjectRefusal::Forgotten, out);
                self.take_off(now, out);
            }
        }
    }
}
