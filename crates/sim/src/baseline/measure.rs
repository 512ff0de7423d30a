//! What a run of a baseline is measured by.

use std::collections::BTreeMap;

use conclave_protocol::baseline::GroupNo;

use super::Kind;
use crate::fact::{True, Violation};

/// Waiting times from asking to entering, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wait {
    /// Their mean.
    pub mean: f64,
    /// Half waited no longer.
    pub p50: u64,
    /// All but one in a hundred waited no longer.
    pub p99: u64,
}

impl Wait {
    /// Of these waiting times.
    fn of(mut waits: Vec<u64>) -> Self {
        waits.sort_unstable();
        let Some(last) = waits.len().checked_sub(1) else {
            return Self::default();
        };
        let sum: f64 = waits.iter().map(|wait| *wait as f64).sum();
        Self {
            mean: sum / waits.len() as f64,
            p50: waits[last / 2],
            p99: waits[last * 99 / 100],
        }
    }
}

/// The figures of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The protocol.
    pub kind: Kind,
    /// How many entries there were.
    pub entries: u64,
    /// How many messages of each kind were sent.
    pub messages: BTreeMap<&'static str, u64>,
    /// The mean time from when the last one leaves until the next one enters, while somebody
    /// waits, counted in mean latencies.
    pub sync_delay: Option<f64>,
    /// The mean time from asking to entering when nobody else is about and no message is under
    /// way, counted in mean latencies.
    pub free_delay: Option<f64>,
    /// How long processes waited.
    pub wait: Wait,
    /// How many were inside on average, over the time in which somebody was.
    pub inside_mean: f64,
    /// The most that were inside at once.
    pub inside_max: usize,
    /// For each peer that decides (a node or server; a process where there are none) the share
    /// of entries whose request came to it.
    pub load: Vec<f64>,
    /// For the same peers, the messages received per entry.
    pub received: Vec<f64>,
    /// How much virtual time the run took, in nanoseconds.
    pub took: u64,
    /// How many events the engine handled.
    pub events: u64,
    /// What broke, if anything did.
    pub violation: Option<Violation>,
}

impl Measured {
    /// All messages per entry.
    pub fn messages_per_entry(&self) -> f64 {
        let total: u64 = self.messages.values().sum();
        per(total, self.entries)
    }

    /// Messages of one kind per entry.
    pub fn per_entry(&self, kind: &str) -> f64 {
        per(self.messages.get(kind).copied().unwrap_or(0), self.entries)
    }

    /// Entries per second of virtual time.
    pub fn throughput(&self) -> f64 {
        per(self.entries, self.took) * 1e9
    }
}

fn per(count: u64, of: u64) -> f64 {
    if of == 0 {
        0.0
    } else {
        count as f64 / of as f64
    }
}

/// A mean that grows.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    count: u64,
}

impl Mean {
    fn add(&mut self, value: u64) {
        self.sum += value as f64;
        self.count += 1;
    }

    fn in_units_of(self, unit: f64) -> Option<f64> {
        (self.count > 0 && unit > 0.0).then(|| self.sum / self.count as f64 / unit)
    }
}

/// Watches a run from outside, on true time: it believes events, not machines.
#[derive(Debug)]
pub(super) struct Meter {
    kind: Kind,
    /// Since when each process waits.
    asked: BTreeMap<u32, u64>,
    inside: BTreeMap<u32, GroupNo>,
    /// Who asks while nobody else is about.
    alone: Option<u32>,
    /// Since when nobody is inside although somebody waits.
    handover: Option<u64>,
    /// Since when the number inside has not changed.
    changed: u64,
    busy: u64,
    inside_time: f64,
    inside_max: usize,
    waits: Vec<u64>,
    sync: Mean,
    free: Mean,
    entries: u64,
    messages: BTreeMap<&'static str, u64>,
    requests: Vec<u64>,
    received: Vec<u64>,
}

impl Meter {
    pub(super) fn new(kind: Kind, peers: usize) -> Self {
        Self {
            kind,
            asked: BTreeMap::new(),
            inside: BTreeMap::new(),
            alone: None,
            handover: None,
            changed: 0,
            busy: 0,
            inside_time: 0.0,
            inside_max: 0,
            waits: Vec::new(),
            sync: Mean::default(),
            free: Mean::default(),
            entries: 0,
            messages: BTreeMap::new(),
            requests: vec![0; peers],
            received: vec![0; peers],
        }
    }

    /// A message was sent.
    pub(super) fn sent(&mut self, kind: &'static str) {
        *self.messages.entry(kind).or_default() += 1;
    }

    /// A message arrived.
    pub(super) fn arrived(&mut self, to: usize, kind: &'static str) {
        self.received[to] += 1;
        self.requests[to] += u64::from(kind == "request");
    }

    /// A process asks; `quiet` if no message is under way.
    pub(super) fn asks(&mut self, at: True, process: u32, quiet: bool) {
        let nobody = quiet && self.asked.is_empty() && self.inside.is_empty();
        self.alone = nobody.then_some(process);
        self.asked.insert(process, at.0);
    }

    /// A process entered.
    pub(super) fn entered(
        &mut self,
        at: True,
        process: u32,
        group: GroupNo,
    ) -> Result<(), Violation> {
        let broken = |what: String| {
            Err(Violation {
                property: "exclusion",
                at,
                what,
            })
        };
        let Some(asked) = self.asked.remove(&process) else {
            return broken(format!("process {} entered unasked", process + 1));
        };
        let clashes = |other: &GroupNo| !self.kind.knows_groups() || *other != group;
        if let Some((other, _)) = self.inside.iter().find(|(_, other)| clashes(other)) {
            let (process, other) = (process + 1, other + 1);
            return broken(format!("process {process} entered beside process {other}"));
        }
        self.settle(at.0);
        self.inside.insert(process, group);
        self.inside_max = self.inside_max.max(self.inside.len());
        self.entries += 1;
        self.waits.push(at.0 - asked);
        if let Some(since) = self.handover.take() {
            self.sync.add(at.0 - since);
        }
        if self.alone.take() == Some(process) {
            self.free.add(at.0 - asked);
        }
        Ok(())
    }

    /// A process left.
    pub(super) fn left(&mut self, at: True, process: u32) {
        self.settle(at.0);
        self.inside.remove(&process);
        if self.inside.is_empty() && !self.asked.is_empty() {
            self.handover = Some(at.0);
        }
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.asked.len()
    }

    fn settle(&mut self, now: u64) {
        let span = now - self.changed;
        self.changed = now;
        if !self.inside.is_empty() {
            self.busy += span;
            self.inside_time += span as f64 * self.inside.len() as f64;
        }
    }

    /// The figures; peers before `deciders` decide nothing.
    pub(super) fn finish(
        self,
        at: True,
        events: u64,
        unit: f64,
        deciders: usize,
        violation: Option<Violation>,
    ) -> Measured {
        let entries = self.entries;
        let rates = |counts: &[u64]| -> Vec<f64> {
            let counts = counts.get(deciders..).unwrap_or_default();
            counts.iter().map(|count| per(*count, entries)).collect()
        };
        Measured {
            kind: self.kind,
            entries,
            load: rates(&self.requests),
            received: rates(&self.received),
            messages: self.messages,
            sync_delay: self.sync.in_units_of(unit),
            free_delay: self.free.in_units_of(unit),
            wait: Wait::of(self.waits),
            inside_mean: if self.busy == 0 {
                0.0
            } else {
                self.inside_time / self.busy as f64
            },
            inside_max: self.inside_max,
            took: at.0,
            events,
            violation,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conclave_protocol::baseline::ricart::Variant;

    #[test]
    fn exclusion_can_fail() {
        let mut meter = Meter::new(Kind::Central, 3);
        for process in 0..3 {
            meter.asks(True(1), process, true);
        }
        assert_eq!(meter.entered(True(2), 0, GroupNo(4)), Ok(()));
        assert_eq!(meter.entered(True(2), 1, GroupNo(4)), Ok(()));
        let broken = meter.entered(True(3), 2, GroupNo(5)).unwrap_err();
        assert_eq!(broken.property, "exclusion");
        assert_eq!(broken.what, "process 3 entered beside process 1");
        assert!(meter.entered(True(3), 2, GroupNo(4)).is_err(), "unasked");

        let mut strict = Meter::new(Kind::Ricart(Variant::Exclusive), 3);
        strict.asks(True(1), 0, true);
        strict.asks(True(1), 1, true);
        assert_eq!(strict.entered(True(2), 0, GroupNo(4)), Ok(()));
        assert!(strict.entered(True(3), 1, GroupNo(4)).is_err());
    }

    #[test]
    fn delays_and_concurrency_by_hand() {
        let mut meter = Meter::new(Kind::Central, 3);
        meter.asks(True(100), 0, true);
        meter.entered(True(120), 0, GroupNo(0)).unwrap();
        meter.asks(True(130), 1, true);
        meter.left(True(150), 0);
        meter.entered(True(180), 1, GroupNo(1)).unwrap();
        meter.asks(True(185), 2, false);
        meter.entered(True(190), 2, GroupNo(1)).unwrap();
        meter.left(True(200), 1);
        meter.left(True(220), 2);
        let measured = meter.finish(True(220), 9, 10.0, 0, None);
        assert_eq!(measured.free_delay, Some(2.0));
        assert_eq!(measured.sync_delay, Some(3.0));
        // 30 alone, 10 alone, 10 together, 20 alone.
        assert_eq!(measured.inside_mean, 80.0 / 70.0);
        assert_eq!(measured.inside_max, 2);
        assert_eq!(measured.wait.p50, 20);
        assert_eq!(measured.wait.mean, 25.0);
    }
}
