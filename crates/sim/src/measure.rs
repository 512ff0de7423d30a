//! What a run cost and how it felt: messages, delays, waiting, concurrency, load and fairness.

use std::collections::BTreeMap;

use conclave_protocol::id::{GrantNo, NodeId};
use conclave_protocol::lock::{Message, Mode};
use conclave_quorum::measure::{load::load, quiet};

use crate::options::{Options, OptionsError};

/// Kinds that keep connections, sessions and nodes, and tell positions: counted apart from the
/// messages of an entry.
const APART: [&str; 17] = [
    "TOKEN_CLOCK",
    "ALIVE",
    "WATCH",
    "UNWATCH",
    "SEEN",
    "WATCHED",
    "HELLO",
    "RESUME",
    "OPEN",
    "ENTERED",
    "HEARTBEAT",
    "WELCOME",
    "QUEUED",
    "NOTED",
    "BEAT",
    "RECOVER",
    "RECOVERED",
];

/// One lock as the meter sees it.
#[derive(Clone, Debug, Default)]
struct Traffic {
    inside: u32,
    waiting: u32,
    /// When the last holder left, and its mode.
    left: Option<(u64, Mode)>,
    /// Counts how often somebody asked, entered or left.
    stirs: u64,
}

/// Measures a run while it goes on.
#[derive(Debug)]
pub(crate) struct Meter {
    sent: [u64; Message::KINDS.len()],
    locks: Vec<Traffic>,
    inside: u32,
    inside_max: u32,
    inside_area: u128,
    inside_since: u64,
    waits: Vec<u64>,
    calm_waits: Vec<u64>,
    sync: (f64, u64),
    by_node: Vec<u64>,
    by_client: Vec<u64>,
    raises: u64,
    latency: f64,
}

/// What the meter remembers of a request until it enters.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stamp {
    at: u64,
    /// The lock's stirs when it asked, if nobody was inside or waiting.
    calm: Option<u64>,
}

impl Meter {
    pub(crate) fn new(options: &Options, nodes: usize) -> Self {
        Self {
            sent: [0; Message::KINDS.len()],
            locks: vec![Traffic::default(); options.names as usize],
            inside: 0,
            inside_max: 0,
            inside_area: 0,
            inside_since: 0,
            waits: Vec::new(),
            calm_waits: Vec::new(),
            sync: (0.0, 0),
            by_node: vec![0; nodes],
            by_client: vec![0; options.clients as usize],
            raises: 0,
            latency: options.latency.mean() * (1.0 + options.spread) / 2.0,
        }
    }

    /// A message leaves.
    pub(crate) fn sent(&mut self, message: &Message) {
        self.sent[message.kind_number()] += 1;
    }

    /// A requester starts to raise its token.
    pub(crate) fn raised(&mut self) {
        self.raises += 1;
    }

    /// How many entries there were.
    pub(crate) fn entries(&self) -> u64 {
        self.waits.len() as u64
    }

    fn change_inside(&mut self, now: u64, change: i32) {
        self.inside_area += u128::from(self.inside) * u128::from(now - self.inside_since);
        self.inside_since = now;
        self.inside = self.inside.saturating_add_signed(change);
        self.inside_max = self.inside_max.max(self.inside);
    }

    /// A client asks; `warm` if its connections have been used before.
    pub(crate) fn asked(&mut self, now: u64, name: u32, warm: bool) -> Stamp {
        let lock = &mut self.locks[name as usize];
        lock.stirs += 1;
        lock.waiting += 1;
        let calm = warm && lock.inside == 0 && lock.waiting == 1;
        Stamp {
            at: now,
            calm: calm.then_some(lock.stirs),
        }
    }

    /// A request ends outside.
    pub(crate) fn gave_up(&mut self, name: u32) {
        let lock = &mut self.locks[name as usize];
        lock.stirs += 1;
        lock.waiting = lock.waiting.saturating_sub(1);
    }

    /// A request enters.
    pub(crate) fn entered(
        &mut self,
        now: u64,
        (name, mode, client): (u32, &Mode, u32),
        stamp: Stamp,
        members: &[(NodeId, GrantNo)],
    ) {
        let lock = &mut self.locks[name as usize];
        lock.waiting = lock.waiting.saturating_sub(1);
        if stamp.calm == Some(lock.stirs) {
            self.calm_waits.push(now - stamp.at);
        }
        lock.stirs += 1;
        if let Some((left, before)) = lock.left.take() {
            let conflicts = *mode == Mode::Exclusive || *mode != before;
            // Only a request that was there when the lock became free tells how long it takes.
            if lock.inside == 0 && conflicts && stamp.at <= left {
                self.sync.0 += (now - left) as f64;
                self.sync.1 += 1;
            }
        }
        lock.inside += 1;
        self.change_inside(now, 1);
        self.waits.push(now - stamp.at);
        self.by_client[client as usize] += 1;
        for (node, _) in members {
            self.by_node[node.index()] += 1;
        }
    }

    /// A holder leaves, loses its lock or dies.
    pub(crate) fn left(&mut self, now: u64, name: u32, mode: &Mode) {
        let lock = &mut self.locks[name as usize];
        lock.stirs += 1;
        lock.inside = lock.inside.saturating_sub(1);
        if lock.inside == 0 {
            lock.left = Some((now, mode.clone()));
        }
        self.change_inside(now, -1);
    }

    /// The result, at the end of a run.
    pub(crate) fn finish(mut self, now: u64) -> Measures {
        self.change_inside(now, 0);
        let entries = self.entries();
        let share = |count: u64| {
            if entries == 0 {
                0.0
            } else {
                count as f64 / entries as f64
            }
        };
        let kinds = Message::KINDS.iter().zip(self.sent);
        let counted = kinds.filter(|(_, count)| *count > 0);
        let by_kind: BTreeMap<&'static str, u64> =
            counted.map(|(kind, count)| (*kind, count)).collect();
        let messages = by_kind
            .iter()
            .filter(|(kind, _)| !APART.contains(kind))
            .map(|(_, count)| *count)
            .sum();
        Measures {
            entries,
            messages_per_entry: share(messages),
            messages_by_kind: by_kind,
            sync_delay: (self.sync.1 > 0).then(|| self.sync.0 / self.sync.1 as f64 / self.latency),
            calm_delay: median(&mut self.calm_waits).map(|wait| wait as f64 / self.latency),
            wait: Wait::of(&mut self.waits),
            inside_max: self.inside_max,
            inside_mean: if now == 0 {
                0.0
            } else {
                self.inside_area as f64 / now as f64
            },
            load: self.by_node.iter().map(|count| share(*count)).collect(),
            fairness: jain(&self.by_client),
            raises_per_entry: share(self.raises),
            virtual_seconds: now as f64 / 1e9,
        }
    }
}

/// What a run cost and how it felt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measures {
    /// How often a lock was entered.
    pub entries: u64,
    /// Messages per entry, without those that keep connections, sessions and nodes (handshake,
    /// heartbeats, notices of entry, recovery) and without told positions.
    pub messages_per_entry: f64,
    /// All messages of the run by kind.
    pub messages_by_kind: BTreeMap<&'static str, u64>,
    /// From a holder leaving to the next conflicting one entering, in mean latencies; none if no
    /// lock was handed over.
    pub sync_delay: Option<f64>,
    /// From asking to entering with nobody else around, in mean latencies (the median).
    pub calm_delay: Option<f64>,
    /// From asking to entering.
    pub wait: Wait,
    /// The most holders at one time, over all locks.
    pub inside_max: u32,
    /// The mean number of holders.
    pub inside_mean: f64,
    /// Per node, the share of entries that used it.
    pub load: Vec<f64>,
    /// Jain's index over the entries of clients: one if all are equal.
    pub fairness: f64,
    /// Rounds of raising a token per entry.
    pub raises_per_entry: f64,
    /// How long the run was, on true time.
    pub virtual_seconds: f64,
}

/// Waiting times in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wait {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// Exceeded by one in a hundred.
    pub p99: f64,
}

impl Wait {
    pub(crate) fn of(waits: &mut [u64]) -> Self {
        if waits.is_empty() {
            return Self::default();
        }
        waits.sort_unstable();
        let millis = |nanos: u64| nanos as f64 / 1e6;
        let sum: u128 = waits.iter().map(|wait| u128::from(*wait)).sum();
        Self {
            mean: sum as f64 / waits.len() as f64 / 1e6,
            p50: millis(waits[waits.len() / 2]),
            p99: millis(waits[waits.len() * 99 / 100]),
        }
    }
}

pub(crate) fn median(values: &mut [u64]) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

/// Jain's index of fairness: one if all counts are equal, `1/n` if one has everything.
pub(crate) fn jain(counts: &[u64]) -> f64 {
    let sum: f64 = counts.iter().map(|count| *count as f64).sum();
    let squares: f64 = counts.iter().map(|count| (*count as f64).powi(2)).sum();
    if squares == 0.0 {
        1.0
    } else {
        sum * sum / (counts.len() as f64 * squares)
    }
}

/// The load per node in theory: how often the best strategy of exclusive requests uses each node.
pub fn theoretical_load(options: &Options) -> Result<Vec<f64>, OptionsError> {
    let config = options.config(false)?;
    let family = config.quorums.family(&Mode::Exclusive);
    Ok(load(family.as_ref(), None, &mut quiet).loads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_and_waits_are_as_defined() {
        assert!((jain(&[3, 3, 3]) - 1.0).abs() < 1e-12);
        assert!((jain(&[9, 0, 0]) - 1.0 / 3.0).abs() < 1e-12);
        let mut waits: Vec<u64> = (1..=100).map(|wait| wait * 1_000_000).collect();
        let wait = Wait::of(&mut waits);
        assert_eq!((wait.mean, wait.p50, wait.p99), (50.5, 51.0, 100.0));
    }

    #[test]
    fn a_handover_counts_only_for_one_who_waited() {
        let options = Options::default();
        let mut meter = Meter::new(&options, 5);
        let mode = Mode::Exclusive;
        let first = meter.asked(0, 0, true);
        meter.entered(2_000_000, (0, &mode, 0), first, &[(NodeId(0), GrantNo(1))]);
        let second = meter.asked(2_500_000, 0, true);
        meter.left(3_000_000, 0, &mode);
        meter.entered(5_000_000, (0, &mode, 1), second, &[(NodeId(1), GrantNo(1))]);
        meter.left(6_000_000, 0, &mode);
        let late = meter.asked(9_000_000, 0, true);
        meter.entered(12_000_000, (0, &mode, 1), late, &[(NodeId(1), GrantNo(2))]);
        let measures = meter.finish(20_000_000);
        assert_eq!(measures.sync_delay, Some(2.0));
        assert_eq!(measures.calm_delay, Some(3.0));
        assert_eq!(measures.entries, 3);
        assert_eq!(measures.load, [1.0 / 3.0, 2.0 / 3.0, 0.0, 0.0, 0.0]);
        assert_eq!(measures.inside_max, 1);
    }
}
