//! An attempt to order: get, propose, commit, under one rank.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::judge::{self, Judged, Verdict, Views};
use super::known::{Got, Incoming, page_after};
use super::{ABORTS_MAX, Orderer, Refresh, fail, lied, run};
use crate::fault::{Aborts, Lie};
use crate::id::{Key, NodeId};
use crate::keeper::client::{ClientEffects, ClientEvent, Failure};
use crate::object::message::{
    Carry, ObjectAsk, ObjectRefusal, Page, Pending, Phase, Proof, Rank, View,
};
use crate::object::plant::Plant;
use crate::object::sign;
use crate::object::state::{Cell, Stamp, State};
use crate::time::{Instant, Now};

/// How far an attempt that took too long may raise its rank: a liar cannot use up all ranks.
pub(super) const JUMP_MAX: u64 = 1 << 20;
/// However much comes in, a phase ends after so many times its usual time.
const PHASES_MAX: u32 = 64;

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
    rank: Rank,
    proof: Proof,
    nonce: u64,
    views: Views,
    /// Nodes that named a larger rank, and which.
    refused: BTreeMap<NodeId, Rank>,
    /// Nodes that refuse whatever the rank.
    barred: BTreeMap<NodeId, ObjectRefusal>,
    /// Who is served by this attempt.
    refreshes: Vec<Refresh>,
    began: Instant,
    /// Then what is missing is sent again.
    resend: Instant,
    /// Then the attempt is given up.
    deadline: Instant,
    /// It cannot be put off beyond this.
    last: Instant,
}

/// A state that is fetched, and what for.
#[derive(Debug)]
pub(super) struct Fetching {
    goal: Goal,
    incoming: Incoming,
    from: NodeId,
    /// Others who hold it.
    others: Vec<NodeId>,
}

/// What an attempt will do with a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    /// Propose and commit it as it is.
    Finish(Stamp),
    /// Build the next one upon it.
    Build(Stamp),
}

impl Goal {
    fn stamp(self) -> Stamp {
        match self {
            Self::Finish(stamp) | Self::Build(stamp) => stamp,
        }
    }
}

/// A state that is proposed or committed.
#[derive(Debug)]
pub(super) struct Holding {
    attempt: Attempt,
    state: State,
    taken: BTreeSet<NodeId>,
    /// Nodes that say that more waits.
    more: BTreeSet<NodeId>,
    /// Nodes to which the whole state is on its way: the question's number and the last cell.
    uploads: BTreeMap<NodeId, (u64, Option<Cell>)>,
    /// Nodes that were helped once already.
    helped: BTreeSet<NodeId>,
}

impl Orderer {
    fn phase_time(&self) -> Duration {
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
    fn last_step(&self, stamp: Stamp) -> Option<Carry> {
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
    fn look_at_views(&mut self, now: Now, out: &mut ClientEffects) {
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
    fn decide(&mut self, now: Now, out: &mut ClientEffects) {
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
    fn reach(&mut self, now: Now, mut attempt: Attempt, goal: Goal, out: &mut ClientEffects) {
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

    fn fetch(&mut self, after: Option<Cell>, out: &mut ClientEffects) {
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
    fn reached(
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
        let operations = self.operations(&attempt.views);
        let next = self.build(now, &state, &operations);
        match next {
            Some(next) => self.propose(now, attempt, next, out),
            // Whoever lost its disk needs its rank to be known to a quorum.
            None if rejoins => self.propose(now, attempt, state, out),
            None => {
                self.serve(&attempt, &state, out);
                self.next_round(now, false, out);
            }
        }
    }

    /// What is to be applied: what enough nodes vouch for, and what this client submits itself.
    fn operations(&self, views: &Views) -> Vec<Pending> {
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

    fn build(&mut self, now: Now, base: &State, operations: &[Pending]) -> Option<State> {
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

    fn propose(&mut self, now: Now, attempt: Attempt, state: State, out: &mut ClientEffects) {
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

    fn commit(&mut self, now: Now, out: &mut ClientEffects) {
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

    fn holding(&self, now: Now, mut attempt: Attempt, state: State) -> Holding {
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
    fn held(&mut self, rank: Rank, phase: Phase, stamp: Stamp) -> Option<&mut Holding> {
        let holding = match (&mut self.stage, phase) {
            (Stage::Proposing(holding), Phase::Propose)
            | (Stage::Committing(holding), Phase::Commit) => holding,
            _ => return None,
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
    fn committed(&mut self, now: Now, out: &mut ClientEffects) {
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
    fn next_round(&mut self, now: Now, more: bool, out: &mut ClientEffects) {
        let wanted = self.wants_order() || more;
        if wanted && self.may_order(now) && !self.config.rules.is_paper() {
            self.begin_get(now, out);
        } else {
            self.leave(now, out);
        }
    }

    /// Tells those who asked before the attempt began.
    fn serve(&mut self, attempt: &Attempt, state: &State, out: &mut ClientEffects) {
        if !run::fits(state, &*self.kind) {
            self.other_kind(out);
        }
        self.serve_reads(attempt, state, out);
    }

    fn serve_reads(&mut self, attempt: &Attempt, state: &State, out: &mut ClientEffects) {
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

    fn attempt(&mut self) -> Option<&mut Attempt> {
        match &mut self.stage {
            Stage::Idle => None,
            Stage::Getting(attempt) | Stage::Fetching(attempt, _) => Some(attempt),
            Stage::Proposing(holding) | Stage::Committing(holding) => Some(&mut holding.attempt),
        }
    }

    /// A node has seen a larger rank.
    pub(super) fn outranked(
        &mut self,
        now: Now,
        node: NodeId,
        rank: Rank,
        (max, proof): (Rank, &Proof),
        out: &mut ClientEffects,
    ) {
        let vouch = self.config.faults.vouch();
        let Some(attempt) = self.attempt() else {
            return;
        };
        // Only a larger rank is a reason to give way.
        if attempt.rank != rank || max <= rank {
            return;
        }
        if let Some(signing) = &self.signing {
            let valid = |proof: &Arc<[u8]>| signing.verifier.valid(&self.name, max, proof);
            if !proof.as_ref().is_some_and(valid) {
                lied(out, node, Lie::Forged);
                return;
            }
            // Nobody can invent a signed rank, so one node's word will do. It may show old ones
            // one by one, so the next is larger by some margin.
            self.counters.outranked += 1;
            self.round = self.round.max(sign::above(max, self.chance.next_u64()));
            self.abort(now, Cause::Outranked, out);
            return;
        }
        let Some(attempt) = self.attempt() else {
            return;
        };
        attempt.refused.insert(node, max);
        if attempt.refused.len() >= vouch {
            self.counters.outranked += 1;
            self.abort(now, Cause::Outranked, out);
        } else {
            self.look_at_views(now, out);
        }
    }

    /// A node refuses the attempt whatever its rank.
    pub(super) fn refused(
        &mut self,
        now: Now,
        node: NodeId,
        rank: Rank,
        why: ObjectRefusal,
        out: &mut ClientEffects,
    ) {
        let vouch = self.config.faults.vouch();
        let Some(attempt) = self.attempt().filter(|attempt| attempt.rank == rank) else {
            return;
        };
        attempt.barred.insert(node, why);
        let same = attempt
            .barred
            .values()
            .filter(|other| **other == why)
            .count();
        let lasting = !matches!(
            why,
            ObjectRefusal::Full | ObjectRefusal::NotServing | ObjectRefusal::Older
        );
        if same >= vouch && lasting {
            let refreshes = std::mem::take(&mut attempt.refreshes);
            for refresh in refreshes {
                fail(out, refresh.key(), Failure::Object(why));
            }
            self.give_up(why, out);
            self.leave(now, out);
            self.take_off(now, out);
            self.go(now, out);
        } else {
            self.look_at_views(now, out);
        }
    }

    /// Gives an attempt up, and sees to it that the next one has a larger rank than stopped it.
    fn abort(&mut self, now: Now, cause: Cause, out: &mut ClientEffects) {
        let vouch = self.config.faults.vouch();
        let Some(attempt) = self.attempt() else {
            return;
        };
        let own = attempt.rank.round;
        let largest = attempt.refused.values().map(|rank| rank.round).max();
        let answered = attempt.views.len();
        let own_too = std::iter::repeat_n(own, answered.max(1));
        let named = attempt.refused.values().map(|rank| rank.round);
        let vouched = judge::nth_largest(named.chain(own_too), vouch).unwrap_or(own);
        let capped = largest.unwrap_or(own).min(own.saturating_add(JUMP_MAX));
        let huge: Vec<NodeId> = attempt
            .refused
            .iter()
            .filter(|(_, rank)| rank.round > vouched.saturating_add(JUMP_MAX))
            .map(|(node, _)| *node)
            .collect();
        let refreshes = std::mem::take(&mut attempt.refreshes);
        self.refreshes.extend(refreshes);
        for node in huge {
            lied(out, node, Lie::Huge);
        }
        let timed = self.config.aborts == Aborts::Timed;
        let next = match cause {
            Cause::Outranked if self.config.rules.is_paper() => largest.unwrap_or(own),
            Cause::Outranked if timed => vouched.min(own.saturating_add(JUMP_MAX)),
            Cause::Outranked => vouched,
            Cause::Late => capped,
        };
        self.round = self.round.max(next);
        self.stage = Stage::Idle;
        self.aborts += 1;
        let again = self.aborts <= ABORTS_MAX && self.may_order(now) && self.wants_order();
        if again && !self.config.rules.is_paper() {
            self.begin_get(now, out);
        } else {
            self.leave(now, out);
        }
    }

    /// When the present phase must be looked at.
    pub(super) fn round_wake(&self) -> Option<Instant> {
        let patience = |attempt: &Attempt| {
            let late = attempt.began + 2 * self.config.delay;
            let enough = attempt.views.len() >= self.config.quorum;
            if enough { late } else { Instant::FAR }
        };
        match &self.stage {
            Stage::Idle => None,
            Stage::Getting(attempt) => {
                let soon = attempt.resend.min(attempt.deadline);
                Some(soon.min(patience(attempt)))
            }
            Stage::Fetching(attempt, _) => Some(attempt.deadline),
            Stage::Proposing(holding) | Stage::Committing(holding) => {
                Some(holding.attempt.resend.min(holding.attempt.deadline))
            }
        }
    }

    pub(super) fn wake_round(&mut self, now: Now, out: &mut ClientEffects) {
        self.look_at_views(now, out);
        let (pause, open) = (2 * self.config.delay, self.open.len());
        let quorum = self.config.quorum;
        let Some(attempt) = self.attempt() else {
            return;
        };
        if attempt.deadline <= now.mono {
            if matches!(self.stage, Stage::Fetching(..)) {
                self.fetch_elsewhere(now, out);
                return;
            }
            self.counters.timeouts += 1;
            if open >= quorum {
                self.silent_ones(out);
            }
            self.abort(now, Cause::Late, out);
        } else if attempt.resend <= now.mono {
            attempt.resend = now.mono + pause;
            for node in self.open.clone() {
                self.send_round_to(node, out);
            }
        }
    }

    /// Nodes that are connected and have not said a word in a phase that ran out of time.
    fn silent_ones(&mut self, out: &mut ClientEffects) {
        let open = self.open.clone();
        let Some(attempt) = self.attempt() else {
            return;
        };
        let spoke = |node: &NodeId| {
            attempt.views.contains_key(node)
                || attempt.refused.contains_key(node)
                || attempt.barred.contains_key(node)
        };
        let silent: Vec<NodeId> = open.into_iter().filter(|node| !spoke(node)).collect();
        for node in silent {
            lied(out, node, Lie::Silent);
        }
    }

    /// Who differs from what is known to be true.
    fn look_for_lies(&mut self, views: &Views, judged: &Judged, out: &mut ClientEffects) {
        let Some(truth) = judged.committed else {
            return;
        };
        for (node, view) in views {
            let behind = view.committed.version + 1 < judged.completed;
            let differs = view.committed.version == truth.version && view.committed != truth;
            let far = view.proposed.version > truth.version.saturating_add(JUMP_MAX)
                || view.committed.version > truth.version.saturating_add(JUMP_MAX);
            if differs || far {
                lied(out, *node, Lie::Forged);
            } else if behind {
                lied(out, *node, Lie::Stale);
            }
            if let Some(flight) = &self.flight {
                let own = view
                    .pending
                    .iter()
                    .filter(|one| one.op.author == flight.op.author);
                if own
                    .filter(|one| one.op.number >= flight.op.number)
                    .any(|one| one.op != flight.op || one.body != flight.body)
                {
                    lied(out, *node, Lie::Forged);
                }
            }
        }
    }
}

/// Why an attempt is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// More than b nodes have seen larger ranks.
    Outranked,
    /// It took too long.
    Late,
}

fn hold(
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

fn bytes_of(carry: &Carry) -> u64 {
    carry.deltas.iter().map(|delta| delta.bytes() as u64).sum()
}
