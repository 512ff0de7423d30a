//! A state on its way to a quorum: proposed, then committed.

use std::collections::{BTreeMap, BTreeSet};

use super::known::page_after;
use super::round::{Attempt, Holding, PHASES_MAX, Stage};
use super::{Orderer, Refresh, fail, run};
use crate::id::NodeId;
use crate::keeper::client::{ClientEffects, ClientEvent, Failure};
use crate::object::message::{Carry, ObjectAsk, Phase, Proof, Rank};
use crate::object::plant::Plant;
use crate::object::state::{Stamp, State};
use crate::time::Now;

impl Orderer {
    pub(super) fn propose(
        &mut self,
        now: Now,
        attempt: Attempt,
        state: State,
        out: &mut ClientEffects,
    ) {
        self.known.keep(state.clone());
        self.counters.proposes += 1;
        let holding = self.holding(now, attempt, state);
        self.stage = Stage::Proposing(holding);
        for node in self.open.clone() {
            self.send_round_to(node, out);
        }
        if self.config.rules.has(Plant::CommitBeforeProposed) {
            self.commit(now, out);
        }
    }

    pub(super) fn commit(&mut self, now: Now, out: &mut ClientEffects) {
        let Stage::Proposing(holding) = std::mem::replace(&mut self.stage, Stage::Idle) else {
            return;
        };
        self.counters.commits += 1;
        let holding = self.holding(now, holding.attempt, holding.state);
        self.stage = Stage::Committing(holding);
        for node in self.open.clone() {
            self.send_round_to(node, out);
        }
    }

    pub(super) fn holding(&self, now: Now, mut attempt: Attempt, state: State) -> Holding {
        attempt.resend = now.mono + 2 * self.config.delay;
        attempt.deadline = now.mono + self.phase_time();
        attempt.last = now.mono + PHASES_MAX * self.phase_time();
        Holding {
            attempt,
            state,
            taken: BTreeSet::new(),
            more: BTreeSet::new(),
            uploads: BTreeMap::new(),
            helped: BTreeSet::new(),
        }
    }

    /// The state that is proposed or committed, if it is this one.
    pub(super) fn held(&mut self, rank: Rank, phase: Phase, stamp: Stamp) -> Option<&mut Holding> {
        let ((Stage::Proposing(holding), Phase::Propose)
        | (Stage::Committing(holding), Phase::Commit)) = (&mut self.stage, phase)
        else {
            return None;
        };
        let same = holding.attempt.rank == rank && holding.state.stamp() == stamp;
        same.then_some(holding)
    }

    /// A node holds the state.
    pub(super) fn taken(
        &mut self,
        now: Now,
        node: NodeId,
        (rank, phase, stamp): (Rank, Phase, Stamp),
        waiting: u32,
        out: &mut ClientEffects,
    ) {
        let quorum = self.config.quorum;
        let Some(holding) = self.held(rank, phase, stamp) else {
            return;
        };
        holding.taken.insert(node);
        if waiting > 0 {
            holding.more.insert(node);
        }
        if holding.taken.len() < quorum {
            return;
        }
        match phase {
            Phase::Get => {}
            Phase::Propose => self.commit(now, out),
            Phase::Commit => self.committed(now, out),
        }
    }

    /// A quorum holds the state as committed.
    pub(super) fn committed(&mut self, now: Now, out: &mut ClientEffects) {
        let Stage::Committing(holding) = std::mem::replace(&mut self.stage, Stage::Idle) else {
            return;
        };
        let (attempt, state) = (holding.attempt, holding.state);
        self.completed = self.completed.max(state.version());
        self.known.committed(state.stamp());
        for node in &holding.taken {
            self.seen.insert(*node, state.stamp());
        }
        self.aborts = 0;
        self.settle_from(now, &state, out);
        self.serve(&attempt, &state, out);
        let more = holding.more.len() >= self.config.vouch();
        self.next_round(now, more, out);
    }

    /// Another round in the same lease, or the lease goes back.
    pub(super) fn next_round(&mut self, now: Now, more: bool, out: &mut ClientEffects) {
        let wanted = self.wants_order() || more;
        if wanted && self.may_order(now) && !self.config.rules.is_paper() {
            self.begin_get(now, out);
        } else {
            self.leave(now, out);
        }
    }

    /// Tells those who asked before the attempt began.
    pub(super) fn serve(&mut self, attempt: &Attempt, state: &State, out: &mut ClientEffects) {
        if !run::fits(state, &*self.kind) {
            self.other_kind(out);
        }
        self.serve_reads(attempt, state, out);
    }

    pub(super) fn serve_reads(
        &mut self,
        attempt: &Attempt,
        state: &State,
        out: &mut ClientEffects,
    ) {
        for refresh in &attempt.refreshes {
            match refresh {
                Refresh::Read(key, _) if !run::fits(state, &*self.kind) => {
                    fail(out, *key, Failure::OtherKind);
                }
                Refresh::Read(key, spans) => out.events.push(ClientEvent::Read {
                    key: *key,
                    version: state.version(),
                    cells: super::peek::cells_of(state, spans),
                }),
                Refresh::Rejoin(key) => out.events.push(ClientEvent::Refreshed {
                    key: *key,
                    state: state.clone(),
                    rank: attempt.rank,
                    proof: attempt.proof.clone(),
                }),
            }
        }
    }

    /// A node cannot make the state from what it has: it is helped once per phase.
    pub(super) fn needs(
        &mut self,
        now: Now,
        node: NodeId,
        (rank, phase, stamp): (Rank, Phase, Stamp),
        has: [Stamp; 2],
        out: &mut ClientEffects,
    ) {
        let ticket = self.ticket();
        let most = self.config.delta_size_max;
        let carry = self.known.carry(&has, stamp, most);
        let (time, page_bytes) = (self.phase_time(), self.config.page_bytes);
        let Some(holding) = self.held(rank, phase, stamp) else {
            return;
        };
        let again = !holding.helped.insert(node);
        if let Some(carry) = carry.filter(|_| !again) {
            let proof = holding.attempt.proof.clone();
            self.counters.stepped += bytes_of(&carry);
            self.ask(out, node, hold(phase, (rank, proof), stamp, Some(carry)));
            return;
        }
        if holding.uploads.contains_key(&node) {
            return;
        }
        let page = page_after(&holding.state, None, page_bytes);
        let last = page.cells.last().map(|(cell, _)| cell.clone());
        holding.uploads.insert(node, (ticket, last));
        holding.attempt.deadline = holding.attempt.last.min(now.mono + time);
        let give = ObjectAsk::Give {
            ticket,
            stamp,
            page,
        };
        self.ask(out, node, give);
    }

    /// A node has taken a page of the state.
    pub(super) fn given(
        &mut self,
        now: Now,
        node: NodeId,
        ticket: u64,
        whole: bool,
        out: &mut ClientEffects,
    ) {
        let (time, page_bytes) = (self.phase_time(), self.config.page_bytes);
        let (phase, holding) = match &mut self.stage {
            Stage::Proposing(holding) => (Phase::Propose, holding),
            Stage::Committing(holding) => (Phase::Commit, holding),
            _ => return,
        };
        let Some((known, after)) = holding.uploads.get(&node).cloned() else {
            return;
        };
        if known != ticket {
            return;
        }
        holding.attempt.deadline = holding.attempt.last.min(now.mono + time);
        let (rank, stamp) = (holding.attempt.rank, holding.state.stamp());
        if whole {
            holding.uploads.remove(&node);
            let proof = holding.attempt.proof.clone();
            self.ask(out, node, hold(phase, (rank, proof), stamp, None));
            return;
        }
        let Some(after) = after else {
            return;
        };
        let page = page_after(&holding.state, Some(&after), page_bytes);
        let last = page.cells.last().map(|(cell, _)| cell.clone());
        holding.uploads.insert(node, (ticket, last));
        let give = ObjectAsk::Give {
            ticket,
            stamp,
            page,
        };
        self.ask(out, node, give);
    }
}

pub(super) fn hold(
    phase: Phase,
    (rank, proof): (Rank, Proof),
    stamp: Stamp,
    carry: Option<Carry>,
) -> ObjectAsk {
    match phase {
        Phase::Commit => ObjectAsk::Commit {
            rank,
            stamp,
            carry,
            proof,
        },
        Phase::Get | Phase::Propose => ObjectAsk::Propose {
            rank,
            stamp,
            carry,
            proof,
        },
    }
}

pub(super) fn bytes_of(carry: &Carry) -> u64 {
    carry.deltas.iter().map(|delta| delta.bytes() as u64).sum()
}
