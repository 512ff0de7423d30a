//! What the shard tells people and metrics about itself.

use conclave_protocol::id::NodeId;
use conclave_protocol::lock::{Action, NodeInput};
use prometheus_client::metrics::gauge::Gauge;

use super::run::Loop;
use super::{LABELS_MAX, LevelReport, Query, Report, Revocation, Revoke};

impl Loop {
    pub(super) fn look(&self, query: &Query) -> Report {
        match query {
            Query::Overview => Report::Overview {
                state: self.node.state(),
                incarnation: self.node.incarnation().0,
                kept: self.node.kept(),
                connections: self.conns.len(),
                token_clock: self.node.token_clock(),
                clock_ignored: self.node.ignores_wall_clock(),
                journal: self.journaled(),
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
            Query::Sessions {
                from,
                limit,
                reader,
            } => {
                let now = self.now().mono;
                let (page, next) = self
                    .node
                    .sessions_from(*from, *limit, now, reader.as_deref());
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
            Query::Levels => Report::Levels(self.look_at_own_levels()),
        }
    }

    /// Renews a session no more, if whoever says so may say it.
    pub(super) fn revoke(&mut self, revoke: Revoke) -> Revocation {
        let Revoke { session, by, force } = revoke;
        let known = self.node.may_administer(&by, session);
        // What is not known here may still come; it is refused where they may administer.
        let some = || self.gate.rules().may_any(&by, Action::Administer);
        if !known.unwrap_or_else(some) {
            self.meters.refused("not_permitted");
            if let Some(audit) = &self.audit {
                audit.audit().refused(&by, None, "not_permitted", "revoke");
            }
            return Revocation::NotPermitted;
        }
        if let Some(audit) = &self.audit {
            audit.audit().revoked(session, &by, force, known.is_some());
        }
        self.step(NodeInput::Revoke { session, by, force });
        let now = self.now().mono;
        let (grants, left) = self.node.grants_of(session, now).unwrap_or_default();
        Revocation::Revoked {
            known: known.is_some(),
            grants,
            left,
        }
    }

    fn look_at_own_levels(&self) -> Option<LevelReport> {
        let levels = self.levels.as_ref()?;
        let topology = &levels.config.topology;
        let id = levels.machine.id();
        let view = levels.machine.view().into_iter().map(|view| {
            let cluster = topology.cluster_of(id, view.level);
            let members = cluster
                .iter()
                .flat_map(|one| topology.clusters().members(*one));
            (view, members.map(NodeId::at).collect())
        });
        let [held, wanted] = self.node.consents();
        Some(LevelReport {
            levels: view.collect(),
            held,
            wanted,
            suspected: levels.links.suspected().collect(),
            links: levels.links.up(),
        })
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
        if let Some(levels) = &self.levels {
            set(&meters.levels.held, self.node.consents()[0]);
            set(&meters.levels.suspected, levels.links.suspected().count());
        }
        let granted = self.granted.max(0);
        meters.granted.set(granted);
        let requests = i64::try_from(self.node.requests()).unwrap_or(i64::MAX);
        meters.waiting.set((requests - granted).max(0));
        meters.set_state(self.node.state());
    }
}
