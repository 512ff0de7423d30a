//! An attempt to order: get, propose, commit, under one rank.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::abort::Cause;
use super::hold::{bytes_of, hold};
use super::judge::{self, Verdict, Views};
use super::known::{Got, Incoming};
use super::{Orderer, Refresh, lied, run};
use crate::fault::Lie;
use crate::id::{Key, NodeId};
use crate::keeper::client::ClientEffects;
use crate::object::message::{
    Carry, ObjectAsk, ObjectRefusal, Page, Pending, Phase, Proof, Rank, View,
};
use crate::object::state::{Cell, Stamp, State};
use crate::time::{Instant, Now};

/// How far an attempt that took too long may raise its rank: a liar cannot use up all ranks.
pub(super) const JUMP_MAX: u64 = 1 << 20;
/// However much comes in, a phase ends after so many times its usual time.
pub(super) const PHASES_MAX: u32 = 64;

/// How far an attempt has come.
#[derive(Debug)]
pub(super) enum Stage {
    /// There is none.
    Idle,
    /// The nodes are asked what is there.
    Getting(Attempt),
    /// A state is fetched from one of those who hold it.
    Fetching(Attempt, Fetching),
    /// A state is proposed.
    Proposing(Holding),
    /// A state is committed.
    Committing(Holding),
}

/// What is common to the phases of an attempt.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) rank: Rank,
    pub(super) proof: Proof,
    pub(super) nonce: u64,
    pub(super) views: Views,
    /// Nodes that named a larger rank, and which.
    pub(super) refused: BTreeMap<NodeId, Rank>,
    /// Nodes that refuse whatever the rank.
    pub(super) barred: BTreeMap<NodeId, ObjectRefusal>,
    /// Who is served by this attempt.
    pub(super) refreshes: Vec<Refresh>,
    pub(super) began: Instant,
    /// Then what is missing is sent again.
    pub(super) resend: Instant,
    /// Then the attempt is given up.
    pub(super) deadline: Instant,
    /// It cannot be put off beyond this.
    pub(super) last: Instant,
}

/// A state that is fetched, and what for.
#[derive(Debug)]
pub(super) struct Fetching {
    pub(super) goal: Goal,
    pub(super) incoming: Incoming,
    pub(super) from: NodeId,
    /// Others who hold it.
    pub(super) others: Vec<NodeId>,
}

/// What an attempt will do with a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// Propose and commit it as it is.
    Finish(Stamp),
    /// Build the next one upon it.
    Build(Stamp),
}

impl Goal {
    pub(super) fn stamp(self) -> Stamp {
        match self {
            Self::Finish(stamp) | Self::Build(stamp) => stamp,
        }
    }
}

/// A state that is proposed or committed.
#[derive(Debug)]
pub(super) struct Holding {
    pub(super) attempt: Attempt,
    pub(super) state: State,
    pub(super) taken: BTreeSet<NodeId>,
    /// Nodes that say that more waits.
    pub(super) more: BTreeSet<NodeId>,
    /// Nodes to which the whole state is on its way: the question's number and the last cell.
    pub(super) uploads: BTreeMap<NodeId, (u64, Option<Cell>)>,
    /// Nodes that were helped once already.
    pub(super) helped: BTreeSet<NodeId>,
}

impl Orderer {
    pub(super) fn phase_time(&self) -> Duration {
        4 * self.config.delay
    }

    /// Begins an attempt: a new rank, and what is there is asked.
    pub(super) fn begin_get(&mut self, now: Now, out: &mut ClientEffects) {
        self.round = self.round.saturating_add(1);
        let rank = self.rank(self.round);
        let signed = self.signing.as_ref();
        let attempt = Attempt {
            rank,
            proof: signed.map(|signing| signing.signer.sign(&self.name, rank)),
            nonce: self.chance.next_u64(),
            views: Views::new(),
            refused: BTreeMap::new(),
            barred: BTreeMap::new(),
            refreshes: std::mem::take(&mut self.refreshes),
            began: now.mono,
            resend: now.mono + 2 * self.config.delay,
            deadline: now.mono + self.phase_time(),
            last: now.mono + PHASES_MAX * self.phase_time(),
        };
        self.counters.gets += 1;
        self.stage = Stage::Getting(attempt);
        for node in self.open.clone() {
            self.send_round_to(node, out);
        }
    }

    /// Sends a node the question of the present phase, unless it has answered.
    pub(super) fn send_round_to(&mut self, node: NodeId, out: &mut ClientEffects) {
        let have = Some(self.known.base().stamp());
        let (phase, holding) = match &self.stage {
            Stage::Getting(attempt) if !attempt.views.contains_key(&node) => {
                let (rank, nonce) = (attempt.rank, attempt.nonce);
                let get = ObjectAsk::Get {
                    rank,
                    nonce,
                    have,
                    proof: attempt.proof.clone(),
                };
                self.ask(out, node, get);
                return;
            }
            Stage::Proposing(holding) => (Phase::Propose, holding),
            Stage::Committing(holding) => (Phase::Commit, holding),
            _ => return,
        };
        if holding.taken.contains(&node) || holding.uploads.contains_key(&node) {
            return;
        }
        let (rank, stamp) = (holding.attempt.rank, holding.state.stamp());
        let carry = match phase {
            // Most nodes have the state before it, and whoever took the proposal has all.
            Phase::Propose => self.last_step(stamp),
            _ => None,
        };
        self.counters.stepped += carry.as_ref().map_or(0, bytes_of);
        let proof = holding.attempt.proof.clone();
        self.ask(out, node, hold(phase, (rank, proof), stamp, carry));
    }

    /// The step to a state from the one before it, if it is short enough to be sent along.
    pub(super) fn last_step(&self, stamp: Stamp) -> Option<Carry> {
        let base = self.known.base().stamp();
        self.known.carry(&[base], stamp, self.config.delta_size_max)
    }

    /// An answer to a get.
    pub(super) fn got(
        &mut self,
        now: Now,
        node: NodeId,
        rank: Rank,
        nonce: u64,
        view: &View,
        out: &mut ClientEffects,
    ) {
        self.compare(node, view.committed, out);
        let Stage::Getting(attempt) = &mut self.stage else {
            return;
        };
        if attempt.rank != rank || attempt.nonce != nonce {
            return;
        }
        attempt.views.insert(node, Box::new(view.clone()));
        self.look_at_views(now, out);
    }

    /// What a node says against what it said before: truthful ones never go back.
    pub(super) fn compare(&mut self, node: NodeId, stamp: Stamp, out: &mut ClientEffects) {
        let known = self.seen.insert(node, stamp);
        if let Some(known) = known
            && (stamp.version < known.version
                || stamp.version == known.version && stamp.digest != known.digest)
        {
            lied(out, node, Lie::Equivocating);
        }
        let base = self.known.base();
        if stamp.version == base.version() && stamp.digest != base.digest() {
            lied(out, node, Lie::Forged);
        }
    }

    /// Decides once enough have answered: at once if a quorum agrees, else when no more is to be
    /// expected.
    pub(super) fn look_at_views(&mut self, now: Now, out: &mut ClientEffects) {
        let Stage::Getting(attempt) = &self.stage else {
            return;
        };
        let (count, all) = (attempt.views.len(), self.config.faults.nodes());
        if count < self.config.quorum {
            return;
        }
        let patience = attempt.began + 2 * self.config.delay;
        let agreed = judge::held_by_quorum(&attempt.views, &self.config).is_some();
        let answered = count + attempt.refused.len() + attempt.barred.len() >= all;
        if agreed || answered || now.mono >= patience || self.config.rules.is_paper() {
            self.decide(now, out);
        }
    }

    /// Decides what to do from what is there.
    pub(super) fn decide(&mut self, now: Now, out: &mut ClientEffects) {
        let Stage::Getting(attempt) = std::mem::replace(&mut self.stage, Stage::Idle) else {
            return;
        };
        for view in attempt.views.values() {
            self.known.learn(view, self.config.recent_bytes);
        }
        let judged = judge::judge(&attempt.views, self.completed, &self.config);
        self.completed = judged.completed;
        self.look_for_lies(&attempt.views, &judged, out);
        let goal = match judged.verdict() {
            Verdict::Finish(stamp) => Goal::Finish(stamp),
            Verdict::Build(stamp) => Goal::Build(stamp),
            Verdict::Impossible => {
                self.counters.alarms += 1;
                self.stage = Stage::Getting(attempt);
                self.abort(now, Cause::Late, out);
                return;
            }
        };
        self.reach(now, attempt, goal, out);
    }

    /// Goes on with a state if it is there, else fetches it from those who named it.
    pub(super) fn reach(
        &mut self,
        now: Now,
        mut attempt: Attempt,
        goal: Goal,
        out: &mut ClientEffects,
    ) {
        let stamp = goal.stamp();
        if let Some(state) = self.known.get(stamp).cloned() {
            self.reached(now, attempt, goal, state, out);
            return;
        }
        let has = |view: &View| view.committed == stamp || view.proposed == stamp;
        let holders = attempt.views.iter().filter(|(_, view)| has(view));
        let mut others: Vec<NodeId> = holders.map(|(node, _)| *node).collect();
        self.chance.shuffle(&mut others);
        let Some(from) = others.pop() else {
            self.stage = Stage::Getting(attempt);
            self.abort(now, Cause::Late, out);
            return;
        };
        attempt.deadline = now.mono + self.phase_time();
        let incoming = Incoming::new(stamp, self.ticket());
        let fetching = Fetching {
            goal,
            incoming,
            from,
            others,
        };
        self.stage = Stage::Fetching(attempt, fetching);
        self.fetch(None, out);
    }

    pub(super) fn fetch(&mut self, after: Option<Cell>, out: &mut ClientEffects) {
        if let Stage::Fetching(_, fetching) = &self.stage {
            let fetch = ObjectAsk::Fetch {
                ticket: fetching.incoming.ticket,
                stamp: fetching.incoming.stamp,
                after,
            };
            self.ask(out, fetching.from, fetch);
        }
    }

    /// A part of a state.
    pub(super) fn page(
        &mut self,
        now: Now,
        node: NodeId,
        ticket: u64,
        stamp: Stamp,
        page: &Page,
        out: &mut ClientEffects,
    ) {
        let most = 2 * self.config.object_size_max;
        let time = self.phase_time();
        let Stage::Fetching(attempt, fetching) = &mut self.stage else {
            return;
        };
        let incoming = &mut fetching.incoming;
        if fetching.from != node || incoming.ticket != ticket || incoming.stamp != stamp {
            return;
        }
        attempt.deadline = attempt.last.min(now.mono + time);
        let bytes = page
            .cells
            .iter()
            .map(|(cell, value)| cell.len() + value.len());
        self.counters.fetched += bytes.sum::<usize>() as u64;
        match incoming.page(page, most) {
            Got::More(after) => self.fetch(Some(after), out),
            Got::Whole(state) => {
                let Stage::Fetching(attempt, fetching) =
                    std::mem::replace(&mut self.stage, Stage::Idle)
                else {
                    return;
                };
                self.known.keep(state.clone());
                self.reached(now, attempt, fetching.goal, state, out);
            }
            Got::False => {
                lied(out, node, Lie::Forged);
                self.fetch_elsewhere(now, out);
            }
        }
    }

    /// Asks the next of those who hold the state.
    pub(super) fn fetch_elsewhere(&mut self, now: Now, out: &mut ClientEffects) {
        let ticket = self.ticket();
        let time = self.phase_time();
        let Stage::Fetching(attempt, fetching) = &mut self.stage else {
            return;
        };
        let Some(from) = fetching.others.pop() else {
            self.abort(now, Cause::Late, out);
            return;
        };
        fetching.from = from;
        fetching.incoming = Incoming::new(fetching.goal.stamp(), ticket);
        attempt.deadline = attempt.last.min(now.mono + time);
        self.fetch(None, out);
    }

    /// Whether this question is about the state that is being fetched.
    pub(super) fn is_fetch(&self, node: NodeId, ticket: u64) -> bool {
        matches!(&self.stage, Stage::Fetching(_, fetching)
            if fetching.from == node && fetching.incoming.ticket == ticket)
    }

    /// The state is there: propose it, or the one that follows from what waits.
    pub(super) fn reached(
        &mut self,
        now: Now,
        attempt: Attempt,
        goal: Goal,
        state: State,
        out: &mut ClientEffects,
    ) {
        let Goal::Build(_) = goal else {
            self.propose(now, attempt, state, out);
            return;
        };
        self.known.committed(state.stamp());
        self.settle_from(now, &state, out);
        let rejoins = attempt.refreshes.iter().any(Refresh::is_rejoin);
        if !run::fits(&state, &*self.kind) && !rejoins {
            self.serve_reads(&attempt, &state, out);
            self.other_kind(out);
            self.leave(now, out);
            return;
        }
        if rejoins {
            // Whoever lost its disk needs its rank to be known to a quorum, and changes nothing:
            // it may act as a node, from which the others take only what they have.
            self.propose(now, attempt, state, out);
            return;
        }
        let operations = self.operations(&attempt.views);
        let next = self.build(now, &state, &operations);
        if let Some(next) = next {
            self.propose(now, attempt, next, out);
        } else {
            self.serve(&attempt, &state, out);
            self.next_round(now, false, out);
        }
    }

    /// What is to be applied: what enough nodes vouch for, and what this client submits itself.
    pub(super) fn operations(&self, views: &Views) -> Vec<Pending> {
        let mut operations = judge::vouched_pending(views, &self.config);
        if let Some(flight) = &self.flight
            && !self.config.rules.is_paper()
            && operations.iter().all(|pending| pending.op != flight.op)
            && let Some(principal) = &self.principal
        {
            operations.push(Pending {
                op: flight.op,
                principal: principal.clone(),
                body: flight.body.clone(),
            });
            operations.sort();
        }
        operations
    }

    pub(super) fn build(
        &mut self,
        now: Now,
        base: &State,
        operations: &[Pending],
    ) -> Option<State> {
        let (kind, config) = (self.kind.clone(), self.config.clone());
        let delta = run::run(
            base,
            operations,
            &*kind,
            &config,
            now.wall,
            &mut self.chance,
        )?;
        let next = base.next(&delta).ok()?;
        self.counters.applied += operations.len() as u64;
        let most = self.config.recent_bytes;
        self.known.stepped(base.stamp(), delta, next.stamp(), most);
        Some(next)
    }

    /// Whether somebody waits for the state that the present attempt finds.
    pub(super) fn attempt_serves(&self) -> bool {
        let attempt = match &self.stage {
            Stage::Idle => return false,
            Stage::Getting(attempt) | Stage::Fetching(attempt, _) => attempt,
            Stage::Proposing(holding) | Stage::Committing(holding) => &holding.attempt,
        };
        !attempt.refreshes.is_empty()
    }

    /// A caller no longer waits for the state that the present attempt finds.
    pub(super) fn end_in_attempt(&mut self, key: Key) {
        if let Some(attempt) = self.attempt() {
            attempt.refreshes.retain(|refresh| refresh.key() != key);
        }
    }

    pub(super) fn attempt(&mut self) -> Option<&mut Attempt> {
        match &mut self.stage {
            Stage::Idle => None,
            Stage::Getting(attempt) | Stage::Fetching(attempt, _) => Some(attempt),
            Stage::Proposing(holding) | Stage::Committing(holding) => Some(&mut holding.attempt),
        }
    }
}
