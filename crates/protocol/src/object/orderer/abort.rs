//! Attempts that others outrank, that are refused or that take too long.

use std::sync::Arc;

use super::judge::{self, Judged, Views};
use super::round::{Attempt, JUMP_MAX, Stage};
use super::{ABORTS_MAX, Orderer, fail, lied};
use crate::fault::{Aborts, Lie};
use crate::id::NodeId;
use crate::keeper::client::{ClientEffects, Failure};
use crate::object::message::{ObjectRefusal, Proof, Rank};
use crate::object::sign;
use crate::time::{Instant, Now};

impl Orderer {
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
    pub(super) fn abort(&mut self, now: Now, cause: Cause, out: &mut ClientEffects) {
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
    pub(super) fn silent_ones(&mut self, out: &mut ClientEffects) {
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
    pub(super) fn look_for_lies(
        &mut self,
        views: &Views,
        judged: &Judged,
        out: &mut ClientEffects,
    ) {
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
pub(super) enum Cause {
    /// More than b nodes have seen larger ranks.
    Outranked,
    /// It took too long.
    Late,
}
