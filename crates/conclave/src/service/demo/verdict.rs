//! What clients saw, and whether every promise held. All times are of one clock of one machine.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::sim::thousands;

/// One stay inside a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stay {
    /// Who may be inside at the same time: only the same.
    group: String,
    token: u64,
    /// From when to when, in nanoseconds.
    entered: u64,
    left: u64,
}

impl Stay {
    pub(super) fn new(group: String, token: u64, entered: u64, left: u64) -> Self {
        Self {
            group,
            token,
            entered,
            left: left.max(entered),
        }
    }
}

/// Something that must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Promise {
    Exclusion,
    Order,
    Served,
}

impl Promise {
    pub(super) const ALL: [Self; 3] = [Self::Exclusion, Self::Order, Self::Served];

    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Exclusion => "different groups were never inside at the same time",
            Self::Order => "tokens grew from holder to conflicting holder",
            Self::Served => "while nodes were down, the others served",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Exclusion => "exclusion",
            Self::Order => "token-order",
            Self::Served => "served",
        }
    }
}

/// What was seen, and what is wrong with it.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    stays: BTreeMap<&'static str, Vec<Stay>>,
    /// Stays that ended because the lock was lost.
    pub(super) lost: usize,
    /// Requests that were not served in time.
    pub(super) failed: usize,
    /// Nodes that were killed.
    pub(super) killed: usize,
    broken: Vec<(Promise, String)>,
}

impl Verdict {
    pub(super) fn add(&mut self, lock: &'static str, stay: Stay) {
        self.stays.entry(lock).or_default().push(stay);
    }

    /// How many locks were taken.
    pub(super) fn taken(&self) -> u64 {
        self.stays.values().map(|stays| stays.len() as u64).sum()
    }

    /// Looks for what must not be.
    pub(super) fn check(&mut self) {
        let mut broken = Vec::new();
        for (lock, stays) in &mut self.stays {
            stays.sort_by_key(|stay| stay.entered);
            broken.extend(overlaps(stays).map(|what| (Promise::Exclusion, lock, what)));
            broken.extend(disorder(stays).map(|what| (Promise::Order, lock, what)));
        }
        let broken = broken.into_iter();
        self.broken = broken
            .map(|(which, lock, what)| (which, format!("{lock}: {what}")))
            .collect();
        if self.failed > 0 {
            let what = format!("{} requests were not served in time", self.failed);
            self.broken.push((Promise::Served, what));
        }
    }

    pub(super) fn held(&self) -> bool {
        self.broken.is_empty()
    }

    pub(super) fn broken(&self, promise: Promise) -> usize {
        self.broken
            .iter()
            .filter(|(which, _)| *which == promise)
            .count()
    }

    /// A few of what is broken.
    pub(super) fn examples(&self) -> impl Iterator<Item = &str> {
        self.broken.iter().take(3).map(|(_, what)| what.as_str())
    }

    /// The longest time without anybody entering anywhere, in nanoseconds.
    fn longest_pause(&self) -> u64 {
        longest_gap(self.stays.values().flatten())
    }

    /// The longest time without anybody entering one of the locks, in nanoseconds.
    fn longest_of_one(&self) -> u64 {
        self.stays.values().map(longest_gap).max().unwrap_or(0)
    }

    /// The most of one group inside at the same time.
    fn together(&self) -> usize {
        let most = |stays: &Vec<Stay>| {
            let mut steps: Vec<(u64, i64)> = Vec::new();
            for stay in stays {
                steps.extend([(stay.entered, 1), (stay.left, -1)]);
            }
            steps.sort_unstable();
            let mut inside = 0;
            let counts = steps.into_iter().map(|(_, step)| {
                inside += step;
                inside
            });
            counts.max().unwrap_or(0)
        };
        let most = self.stays.values().map(most).max().unwrap_or(0);
        usize::try_from(most).unwrap_or(0)
    }

    pub(super) fn counts(&self) -> Vec<(&'static str, String)> {
        vec![
            ("locks taken", thousands(self.taken())),
            (
                "most of one group inside at once",
                self.together().to_string(),
            ),
            ("nodes killed with kill -9", self.killed.to_string()),
            ("locks that their holder lost", self.lost.to_string()),
            (
                "longest pause in which nobody got any lock",
                format!("{:.0} ms", self.longest_pause() as f64 / 1e6),
            ),
            (
                "longest pause in which nobody got one of them",
                format!("{:.0} ms", self.longest_of_one() as f64 / 1e6),
            ),
        ]
    }

    pub(super) fn as_json(&self) -> Value {
        let broken = self.broken.iter();
        let broken = broken.map(|(which, what)| json!({ "property": which.name(), "what": what }));
        json!({
            "taken": self.taken(),
            "together": self.together(),
            "killed": self.killed,
            "lost": self.lost,
            "failed": self.failed,
            "longest_pause_ms": self.longest_pause() as f64 / 1e6,
            "longest_pause_of_one_ms": self.longest_of_one() as f64 / 1e6,
            "properties": Promise::ALL.map(Promise::name),
            "violations": broken.collect::<Vec<_>>(),
        })
    }
}

/// The longest time between two entries, in nanoseconds.
fn longest_gap<'a>(stays: impl IntoIterator<Item = &'a Stay>) -> u64 {
    let mut entered: Vec<u64> = stays.into_iter().map(|stay| stay.entered).collect();
    entered.sort_unstable();
    let gaps = entered.windows(2).map(|pair| pair[1] - pair[0]);
    gaps.max().unwrap_or(0)
}

/// Stays of different groups at the same time, in stays sorted by their beginning.
fn overlaps(stays: &[Stay]) -> impl Iterator<Item = String> {
    let mut last: Option<&Stay> = None;
    let mut found = Vec::new();
    for stay in stays {
        if let Some(last) = last
            && last.group != stay.group
            && stay.entered < last.left
        {
            found.push(format!(
                "token {} entered while token {} was inside",
                stay.token, last.token
            ));
        }
        // Whoever stays longest is the one to run into.
        if last.is_none_or(|last| stay.left >= last.left) {
            last = Some(stay);
        }
    }
    found.into_iter()
}

/// Tokens that do not grow from one group to the next, in stays sorted by their beginning.
fn disorder(stays: &[Stay]) -> impl Iterator<Item = String> {
    let mut found = Vec::new();
    // The largest token of the groups that were inside before the present one, and of this one.
    let (mut before, mut present, mut group) = (0, 0, "");
    for stay in stays {
        if stay.group != group {
            group = &stay.group;
            before = present.max(before);
            present = 0;
        }
        if stay.token <= before {
            found.push(format!("token {} came after token {before}", stay.token));
        }
        present = present.max(stay.token);
    }
    found.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(stays: &[(&str, u64, u64, u64)]) -> Verdict {
        let mut verdict = Verdict::default();
        for (group, token, entered, left) in stays {
            verdict.add("x", Stay::new((*group).to_owned(), *token, *entered, *left));
        }
        verdict.check();
        verdict
    }

    #[test]
    fn a_good_run_holds() {
        let verdict = verdict(&[("b", 2, 20, 30), ("a", 1, 0, 10), ("a", 1, 5, 20)]);
        assert!(verdict.held(), "{verdict:?}");
        assert_eq!(verdict.together(), 2);
        assert_eq!(verdict.longest_pause(), 15);
        assert_eq!(verdict.taken(), 3);
    }

    #[test]
    fn two_groups_inside_are_found() {
        let verdict = verdict(&[("a", 1, 0, 100), ("a", 1, 5, 10), ("b", 2, 50, 60)]);
        assert_eq!(verdict.broken(Promise::Exclusion), 1);
        assert_eq!(verdict.broken(Promise::Order), 0);
        assert!(!verdict.held());
    }

    #[test]
    fn tokens_that_go_back_are_found() {
        let bad = verdict(&[("a", 5, 0, 10), ("b", 5, 20, 30)]);
        assert_eq!(bad.broken(Promise::Order), 1);
        let bad = verdict(&[("a", 5, 0, 10), ("b", 7, 20, 30), ("a", 6, 40, 50)]);
        assert_eq!(bad.broken(Promise::Order), 1);
        let good = verdict(&[("a", 5, 0, 10), ("a", 4, 20, 30), ("b", 6, 40, 50)]);
        assert!(
            good.held(),
            "members of a group may come in any order: {good:?}"
        );
    }
}
