//! What a run costs: messages by kind, waiting times, concurrency.

use conclave_protocol::multilevel::Word;

use super::scenario::Measured;

/// How messages are called, in the order of [`place`].
pub(super) const KINDS: [&str; 13] = [
    "Request",
    "Reply",
    "Inquire",
    "Yield",
    "Release",
    "PreCRequest",
    "CRequest",
    "CReply",
    "CRelease",
    "Renew",
    "Renewed",
    "Keep",
    "NodeRecovery",
];

/// Where a word is counted.
pub(super) fn place(word: &Word) -> usize {
    match word {
        Word::Request { .. } => 0,
        Word::Reply { .. } => 1,
        Word::Inquire { .. } => 2,
        Word::Yield { .. } => 3,
        Word::Release { .. } => 4,
        Word::Announce { .. } => 5,
        Word::Ask { .. } => 6,
        Word::Consent { .. } => 7,
        Word::Done { .. } => 8,
        Word::Renew { .. } => 9,
        Word::Renewed { .. } => 10,
        Word::Keep { .. } => 11,
        Word::Recovered { .. } | Word::Rejoined { .. } => 12,
    }
}

/// Counts what happens.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    /// Messages to others, by kind.
    pub(super) sent: [u64; KINDS.len()],
    /// Messages of nodes to themselves, by kind.
    pub(super) own: [u64; KINDS.len()],
    /// Messages of elections.
    pub(super) elections: u64,
    /// Waiting times.
    pub(super) waits: Vec<u64>,
    inside: u64,
    changed: u64,
    area: u128,
    busy: u128,
    /// Node times down.
    down: u128,
    nodes_down: u64,
    down_changed: u64,
}

impl Meter {
    pub(super) fn count(&mut self, word: &Word, own: bool) {
        let counts = if own { &mut self.own } else { &mut self.sent };
        counts[place(word)] += 1;
    }

    /// All messages of a kind.
    pub(super) fn of(&self, kind: &str) -> u64 {
        let place = KINDS.iter().position(|name| *name == kind);
        place.map_or(0, |place| self.sent[place] + self.own[place])
    }

    pub(super) fn entries(&self) -> u64 {
        self.waits.len() as u64
    }

    pub(super) fn enters(&mut self, now: u64, asked: u64) {
        self.settle(now);
        self.inside += 1;
        self.waits.push(now - asked);
    }

    pub(super) fn leaves(&mut self, now: u64) {
        self.settle(now);
        self.inside = self.inside.saturating_sub(1);
    }

    fn settle(&mut self, now: u64) {
        let span = u128::from(now - self.changed);
        if self.inside > 0 {
            self.busy += span;
            self.area += span * u128::from(self.inside);
        }
        self.changed = now;
    }

    /// So many nodes are down from now on.
    pub(super) fn down(&mut self, now: u64, nodes: u64) {
        self.down += u128::from(now - self.down_changed) * u128::from(self.nodes_down);
        self.down_changed = now;
        self.nodes_down = nodes;
    }

    pub(super) fn finish(mut self, now: u64, nodes: u64, events: u64) -> Measured {
        self.down(now, 0);
        self.settle(now);
        let entries = self.entries();
        let per = |count: u64| count as f64 / entries.max(1) as f64;
        let (sent, own): (u64, u64) = (self.sent.iter().sum(), self.own.iter().sum());
        let back = self.of("Release") + self.of("CRelease");
        let by_kind = KINDS.iter().map(|kind| (*kind, per(self.of(kind))));
        let by_kind = by_kind.filter(|(_, count)| *count > 0.0).collect();
        let total: u128 = self.waits.iter().map(|wait| u128::from(*wait)).sum();
        self.waits.sort_unstable();
        let rank = |share: f64| {
            let place = (self.waits.len() as f64 * share) as usize;
            let last = self.waits.len().saturating_sub(1);
            self.waits
                .get(place.min(last))
                .map_or(0.0, |wait| *wait as f64)
        };
        let all_time = u128::from(now) * u128::from(nodes);
        Measured {
            messages_per_entry: per(sent + own),
            without_self: per(sent),
            until_consent: per(sent + own - back),
            waiting_mean: total as f64 / entries.max(1) as f64,
            waiting_p50: rank(0.5),
            waiting_p99: rank(0.99),
            predicted: 0.0,
            entries,
            events,
            elections_per_entry: per(self.elections),
            by_kind,
            concurrency: self.area as f64 / self.busy.max(1) as f64,
            up: 1.0 - self.down as f64 / all_time.max(1) as f64,
            span: now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_by_hand() {
        let mut meter = Meter::default();
        meter.down(0, 2);
        meter.enters(10, 4);
        meter.enters(20, 0);
        meter.leaves(30);
        meter.down(50, 0);
        meter.leaves(40);
        meter.sent[0] = 6;
        meter.own[4] = 2;
        let measured = meter.finish(100, 10, 7);
        assert_eq!(measured.messages_per_entry, 4.0);
        assert_eq!((measured.without_self, measured.until_consent), (3.0, 3.0));
        assert_eq!((measured.waiting_mean, measured.waiting_p99), (13.0, 20.0));
        // One alone for 10, two for 10, one for 10.
        assert_eq!(measured.concurrency, 4.0 / 3.0);
        assert_eq!(measured.up, 0.9);
        assert_eq!(measured.by_kind, [("Request", 3.0), ("Release", 1.0)]);
    }
}
