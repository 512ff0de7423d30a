//! What the shard tells people and metrics about itself.

use prometheus_client::metrics::gauge::Gauge;

use super::run::Loop;
use super::{LABELS_MAX, Query, Report};

impl Loop {
    pub(super) fn look(&self, query: &Query) -> Report {
        match query {
            Query::Overview => Report::Overview {
                state: self.node.state(),
                incarnation: self.node.incarnation().0,
                kept: self.node.kept(),
                connections: self.conns.len(),
            },
            Query::Lock(name) => Report::Lock(self.node.view(name)),
            Query::Locks {
                prefix,
                from,
                limit,
            } => {
                let (page, next) = self.node.locks_from(prefix, *from, *limit);
                Report::Locks(page, next)
            }
            Query::Sessions { from, limit } => {
                let now = self.now().mono;
                let (page, next) = self.node.sessions_from(*from, *limit, now);
                Report::Sessions(page, next)
            }
            Query::Reasons(name) => {
                let now = self.now().mono;
                Report::Reasons {
                    state: self.node.state(),
                    pause: self.node.pauses_for(now),
                    reasons: self.node.reasons(name, now),
                }
            }
            Query::Labels(of) => {
                let of = of.iter().take(LABELS_MAX);
                let label = |(session, request)| self.node.label(session, request);
                Report::Labels(of.copied().map(label).collect())
            }
        }
    }

    pub(super) fn set_gauges(&self) {
        let set = |gauge: &Gauge, value: usize| {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        };
        let [locks, sessions, clients, tombstones] = self.node.kept();
        let meters = &self.meters;
        set(&meters.locks, locks);
        set(&meters.sessions, sessions);
        set(&meters.clients, clients);
        set(&meters.tombstones, tombstones);
        set(&meters.watches, self.node.watches());
        set(&meters.connections, self.conns.len());
        set(&meters.buffered, self.conns.unsent());
        set(&meters.parked, self.parked.len());
        set(&meters.journal_queue, self.journal.behind() as usize);
        let granted = self.granted.max(0);
        meters.granted.set(granted);
        let requests = i64::try_from(self.node.requests()).unwrap_or(i64::MAX);
        meters.waiting.set((requests - granted).max(0));
        meters.set_state(self.node.state());
    }
}
