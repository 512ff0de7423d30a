//! What a run of a baseline is measured by: the same figures as a run of the lock.

use std::collections::BTreeMap;

use conclave_protocol::baseline::GroupNo;

use super::Kind;
use crate::fact::{True, Violation};
use crate::measure::{Measures, Wait, jain, median};

/// The result of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The protocol.
    pub kind: Kind,
    /// Its figures. The load is that of the peers that decide: nodes or servers, else the
    /// processes themselves.
    pub measures: Measures,
    /// For the same peers, all messages received per entry.
    pub received: Vec<f64>,
    /// How many events the engine handled.
    pub events: u64,
    /// What broke, if anything did.
    pub violation: Option<Violation>,
}

impl Measured {
    /// Messages of one kind per entry.
    pub fn per_entry(&self, kind: &str) -> f64 {
        let sent = self.measures.messages_by_kind.get(kind);
        per(sent.copied().unwrap_or(0), self.measures.entries)
    }

    /// Entries per second of virtual time.
    pub fn throughput(&self) -> f64 {
        let seconds = self.measures.virtual_seconds;
        if seconds > 0.0 {
            self.measures.entries as f64 / seconds
        } else {
            0.0
        }
    }
}

fn per(count: u64, of: u64) -> f64 {
    if of == 0 {
        0.0
    } else {
        count as f64 / of as f64
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
    /// When the last one inside left, and its group.
    vacant: Option<(u64, GroupNo)>,
    /// Since when the number inside has not changed.
    changed: u64,
    inside_area: u128,
    inside_max: u32,
    waits: Vec<u64>,
    calm_waits: Vec<u64>,
    sync: (f64, u64),
    messages: BTreeMap<&'static str, u64>,
    by_process: Vec<u64>,
    requests: Vec<u64>,
    received: Vec<u64>,
}

impl Meter {
    /// A meter for these many peers, of which the first `askers` ask.
    pub(super) fn new(kind: Kind, peers: usize, askers: usize) -> Self {
        Self {
            kind,
            asked: BTreeMap::new(),
            inside: BTreeMap::new(),
            alone: None,
            vacant: None,
            changed: 0,
            inside_area: 0,
            inside_max: 0,
            waits: Vec::new(),
            calm_waits: Vec::new(),
            sync: (0.0, 0),
            messages: BTreeMap::new(),
            by_process: vec![0; askers],
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
        self.requests[to] += u64::from(kind == "REQUEST");
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
        let groups_count = self.kind.knows_groups();
        let clashes = |other: GroupNo| !groups_count || other != group;
        if let Some((other, _)) = self.inside.iter().find(|(_, other)| clashes(**other)) {
            let (process, other) = (process + 1, other + 1);
            return broken(format!("process {process} entered beside process {other}"));
        }
        if let Some((left, before)) = self.vacant.take() {
            // Only a request that was there when the lock became free tells how long it takes.
            if clashes(before) && asked <= left {
                self.sync.0 += (at.0 - left) as f64;
                self.sync.1 += 1;
            }
        }
        if self.alone.take() == Some(process) {
            self.calm_waits.push(at.0 - asked);
        }
        self.settle(at.0);
        self.inside.insert(process, group);
        self.inside_max = self.inside_max.max(self.inside.len() as u32);
        self.waits.push(at.0 - asked);
        self.by_process[process as usize] += 1;
        Ok(())
    }

    /// A process left.
    pub(super) fn left(&mut self, at: True, process: u32) {
        self.settle(at.0);
        let Some(group) = self.inside.remove(&process) else {
            return;
        };
        if self.inside.is_empty() {
            self.vacant = Some((at.0, group));
        }
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.asked.len()
    }

    fn settle(&mut self, now: u64) {
        self.inside_area += self.inside.len() as u128 * u128::from(now - self.changed);
        self.changed = now;
    }

    /// The result, with `unit` as the mean latency; peers before `deciders` decide nothing.
    pub(super) fn finish(
        mut self,
        at: True,
        events: u64,
        unit: f64,
        deciders: usize,
        violation: Option<Violation>,
    ) -> Measured {
        self.settle(at.0);
        let entries = self.waits.len() as u64;
        let rates = |counts: &[u64]| -> Vec<f64> {
            let counts = counts.get(deciders..).unwrap_or_default();
            counts.iter().map(|count| per(*count, entries)).collect()
        };
        let (sum, count) = self.sync;
        let area = self.inside_area as f64;
        let measures = Measures {
            entries,
            messages_per_entry: per(self.messages.values().sum(), entries),
            messages_by_kind: self.messages,
            sync_delay: (count > 0).then(|| sum / count as f64 / unit),
            calm_delay: median(&mut self.calm_waits).map(|wait| wait as f64 / unit),
            wait: Wait::of(&mut self.waits),
            inside_max: self.inside_max,
            inside_mean: if at.0 == 0 { 0.0 } else { area / at.0 as f64 },
            load: rates(&self.requests),
            fairness: jain(&self.by_process),
            raises_per_entry: 0.0,
            virtual_seconds: at.0 as f64 / 1e9,
        };
        Measured {
            kind: self.kind,
            measures,
            received: rates(&self.received),
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
        let mut meter = Meter::new(Kind::Central, 3, 3);
        for process in 0..3 {
            meter.asks(True(1), process, true);
        }
        assert_eq!(meter.entered(True(2), 0, GroupNo(4)), Ok(()));
        assert_eq!(meter.entered(True(2), 1, GroupNo(4)), Ok(()));
        let broken = meter.entered(True(3), 2, GroupNo(5)).unwrap_err();
        assert_eq!(broken.property, "exclusion");
        assert_eq!(broken.what, "process 3 entered beside process 1");
        assert!(meter.entered(True(3), 2, GroupNo(4)).is_err(), "unasked");

        let mut strict = Meter::new(Kind::Ricart(Variant::Exclusive), 3, 3);
        strict.asks(True(1), 0, true);
        strict.asks(True(1), 1, true);
        assert_eq!(strict.entered(True(2), 0, GroupNo(4)), Ok(()));
        assert!(strict.entered(True(3), 1, GroupNo(4)).is_err());
    }

    #[test]
    fn delays_and_concurrency_by_hand() {
        let mut meter = Meter::new(Kind::Central, 3, 3);
        meter.asks(True(100), 0, true);
        meter.entered(True(120), 0, GroupNo(0)).unwrap();
        meter.asks(True(130), 1, true);
        meter.left(True(150), 0);
        meter.entered(True(180), 1, GroupNo(1)).unwrap();
        meter.asks(True(185), 2, false);
        meter.entered(True(190), 2, GroupNo(1)).unwrap();
        meter.left(True(200), 1);
        meter.asks(True(210), 1, false);
        meter.left(True(220), 2);
        // Of the group that was inside last: no handover.
        meter.entered(True(240), 1, GroupNo(1)).unwrap();
        meter.left(True(250), 1);
        let measures = meter.finish(True(250), 9, 10.0, 0, None).measures;
        assert_eq!(measures.calm_delay, Some(2.0));
        assert_eq!(measures.sync_delay, Some(3.0));
        // 30 alone, 10 alone, 10 together, 20 alone, 10 alone.
        assert_eq!(measures.inside_mean, 90.0 / 250.0);
        assert_eq!((measures.inside_max, measures.entries), (2, 4));
        assert_eq!(measures.wait.mean, 105.0 / 4.0 / 1e6);
    }
}
