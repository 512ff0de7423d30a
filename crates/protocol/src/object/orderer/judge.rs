//! What a quorum's answers to a get mean, although b of them may be lies.

use std::collections::BTreeMap;

use crate::id::NodeId;
use crate::object::config::ObjectConfig;
use crate::object::message::{Pending, Rank, View};
use crate::object::plant::Plant;
use crate::object::state::Stamp;

/// The answers to a get, by node.
pub type Views = BTreeMap<NodeId, Box<View>>;

/// What is true of an object, as far as the answers show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Judged {
    /// The latest state that a truthful node has committed.
    pub(super) committed: Option<Stamp>,
    /// The state that may have been proposed to a quorum.
    pub(super) proposed: Option<Stamp>,
    /// The latest version that a quorum is known to have committed.
    pub(super) completed: u64,
}

/// What a client must do after a get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Propose and commit this state, which another client left unfinished or may have.
    Finish(Stamp),
    /// Build the next state upon this one, which a quorum has committed.
    Build(Stamp),
    /// Nothing: this cannot be while at most b nodes lie and none has forgotten anything.
    Impossible,
}

impl Judged {
    pub(super) fn verdict(&self) -> Verdict {
        let later = |stamp: &Stamp| stamp.version > self.completed;
        let unfinished = self.committed.filter(later);
        if let Some(stamp) = unfinished.or(self.proposed.filter(later)) {
            return Verdict::Finish(stamp);
        }
        match self.committed {
            Some(stamp) if stamp.version == self.completed => Verdict::Build(stamp),
            _ => Verdict::Impossible,
        }
    }
}

/// What a client must do that has these answers of a quorum and knows that `completed` was
/// committed at a quorum.
pub fn verdict(views: &Views, completed: u64, config: &ObjectConfig) -> Verdict {
    judge(views, completed, config).verdict()
}

/// Judges answers, knowing that `completed` was committed at a quorum.
pub(super) fn judge(views: &Views, completed: u64, config: &ObjectConfig) -> Judged {
    let committed = highest_vouched(views, config);
    let mut completed = completed.max(before_proposals(views, config));
    if !config.rules.is_paper()
        && let Some(stamp) = held_by_quorum(views, config)
    {
        completed = completed.max(stamp.version);
    }
    Judged {
        committed,
        proposed: choose(views, config),
        completed,
    }
}

/// The state of the highest version that enough nodes have committed.
fn highest_vouched(views: &Views, config: &ObjectConfig) -> Option<Stamp> {
    let mut counts: BTreeMap<Stamp, usize> = BTreeMap::new();
    for view in views.values() {
        *counts.entry(view.committed).or_default() += 1;
    }
    let support = |stamp: &Stamp| {
        if config.rules.has(Plant::VersionEquality) {
            counts
                .iter()
                .filter(|(other, _)| other.version == stamp.version)
                .map(|(_, count)| count)
                .sum()
        } else {
            counts.get(stamp).copied().unwrap_or(0)
        }
    };
    let mut stamps = counts.keys().rev();
    stamps
        .find(|stamp| support(stamp) >= config.vouch())
        .copied()
}

/// The state that a quorum of the answers has committed, if they agree.
pub(super) fn held_by_quorum(views: &Views, config: &ObjectConfig) -> Option<Stamp> {
    let mut counts: BTreeMap<Stamp, usize> = BTreeMap::new();
    for view in views.values() {
        let count = counts.entry(view.committed).or_default();
        *count += 1;
        if *count >= config.quorum {
            return Some(view.committed);
        }
    }
    None
}

/// Walks the proposals, the latest first, until one has enough support: whatever was proposed to
/// a quorum is found before anything older can be.
fn choose(views: &Views, config: &ObjectConfig) -> Option<Stamp> {
    let mut list: Vec<(Stamp, Rank)> = views
        .values()
        .map(|view| (view.proposed, view.proposer))
        .collect();
    let by_rank = !config.rules.has(Plant::NoProposerInSort);
    let by_digest = !config.rules.has(Plant::VersionEquality);
    list.sort_by(|(a, r), (b, s)| {
        let versions = b.version.cmp(&a.version);
        versions.then_with(|| {
            if by_rank {
                s.cmp(r)
            } else {
                a.digest.cmp(&b.digest)
            }
        })
    });
    let mut counts: BTreeMap<Stamp, usize> = BTreeMap::new();
    for (stamp, _) in list {
        let mut same = stamp;
        if !by_digest {
            same.digest.0 = [0; 32];
        }
        let count = counts.entry(same).or_default();
        *count += 1;
        if *count >= config.vouch() {
            return Some(stamp);
        }
    }
    None
}

/// A truthful node holds a proposal of this version or a later one, so the version before it was
/// committed at a quorum.
fn before_proposals(views: &Views, config: &ObjectConfig) -> u64 {
    let versions = views.values().map(|view| view.proposed.version);
    let place = if config.rules.has(Plant::CompletedFromLargest) {
        1
    } else {
        config.vouch()
    };
    nth_largest(versions, place).unwrap_or(0).saturating_sub(1)
}

/// Operations that enough nodes say are waiting, in the order of their authors.
pub(super) fn vouched_pending(views: &Views, config: &ObjectConfig) -> Vec<Pending> {
    let needed = if config.rules.has(Plant::OneVoucher) {
        1
    } else {
        config.vouch()
    };
    let mut counts: BTreeMap<&Pending, usize> = BTreeMap::new();
    for view in views.values() {
        let mut seen: Vec<&Pending> = view.pending.iter().collect();
        seen.sort_unstable();
        seen.dedup();
        for pending in seen {
            *counts.entry(pending).or_default() += 1;
        }
    }
    let enough = counts.into_iter().filter(|(_, count)| *count >= needed);
    enough.map(|(pending, _)| pending.clone()).collect()
}

/// The value at this place, from the largest on, counted from one.
pub(super) fn nth_largest<T: Ord>(values: impl Iterator<Item = T>, place: usize) -> Option<T> {
    let mut values: Vec<T> = values.collect();
    values.sort_unstable();
    let at = values.len().checked_sub(place)?;
    values.into_iter().nth(at)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fault::{Aborts, Faults};
    use crate::id::ClientId;
    use crate::lease::LeaseConfig;
    use crate::object::plant::Rules;
    use crate::object::state::Digest;

    fn config(rules: Rules) -> ObjectConfig {
        let faults = Faults::new(7, 1).expect("enough nodes");
        let lease = LeaseConfig::new(faults);
        ObjectConfig::new(Arc::new(lease), Aborts::Vouched)
            .expect("enough nodes")
            .ruled(rules)
    }

    fn stamp(version: u64, mark: u8) -> Stamp {
        let digest = Digest([mark; 32]);
        Stamp { version, digest }
    }

    fn views(rows: &[(Stamp, Stamp, u64)]) -> Views {
        let view = |(committed, proposed, round): &(Stamp, Stamp, u64)| View {
            committed: *committed,
            proposed: *proposed,
            proposer: Rank {
                round: *round,
                client: ClientId(1),
            },
            pending: Vec::new(),
            suffix: Vec::new(),
            step: None,
        };
        let rows = rows.iter().enumerate();
        rows.map(|(at, row)| (NodeId::at(at), Box::new(view(row))))
            .collect()
    }

    #[test]
    fn a_lone_voice_is_not_believed() {
        let (old, new, lie) = (stamp(3, 3), stamp(4, 4), stamp(9, 9));
        let rows = [
            (old, new, 5),
            (old, new, 5),
            (old, old, 4),
            (old, old, 4),
            (lie, lie, 99),
        ];
        let judged = judge(&views(&rows), 0, &config(Rules::default()));
        assert_eq!(judged.committed, Some(old));
        assert_eq!(judged.proposed, Some(new));
        assert_eq!(judged.completed, 3);
        let fooled = config(Rules::planted(Plant::CompletedFromLargest));
        assert_eq!(judge(&views(&rows), 0, &fooled).completed, 8);
    }

    #[test]
    fn a_quorum_that_agrees_shows_what_is_done() {
        let (one, two) = (stamp(1, 1), stamp(2, 2));
        let rows = [(two, two, 1), (two, two, 1), (two, two, 1), (two, two, 1)];
        let mut rows = rows.to_vec();
        rows.push((one, one, 1));
        let rules = config(Rules::default());
        assert_eq!(judge(&views(&rows), 0, &rules).completed, 1);
        rows[4] = (two, one, 1);
        assert_eq!(judge(&views(&rows), 0, &rules).completed, 2);
        let paper = config(Rules::paper());
        assert_eq!(judge(&views(&rows), 0, &paper).completed, 1);
    }

    #[test]
    fn of_one_version_the_larger_rank_counts() {
        let base = stamp(1, 1);
        let (old, new) = (stamp(2, 9), stamp(2, 2));
        let rows = [
            (base, old, 3),
            (base, old, 3),
            (base, new, 7),
            (base, new, 7),
            (base, base, 1),
        ];
        let judged = judge(&views(&rows), 1, &config(Rules::default()));
        assert_eq!(judged.proposed, Some(new));
    }

    #[test]
    fn the_nth_largest() {
        assert_eq!(nth_largest([5, 9, 1].into_iter(), 1), Some(9));
        assert_eq!(nth_largest([5, 9, 1].into_iter(), 3), Some(1));
        assert_eq!(nth_largest([5, 9, 1].into_iter(), 4), None);
    }
}
