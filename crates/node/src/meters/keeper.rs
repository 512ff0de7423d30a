//! The numbers of leases and objects.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use conclave_protocol::fault::Lie;
use conclave_protocol::id::NodeId;
use conclave_protocol::keeper::{Answer, Ask};
use conclave_protocol::lease::{LeaseAnswer, LeaseAsk};
use conclave_protocol::object::{ObjectAsk, ObjectTell};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::{Book, Kind};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Suspect {
    node: u32,
    kind: &'static str,
}

/// What a node counts about leases and objects.
#[derive(Debug)]
pub struct KeeperMeters {
    /// States committed at this node.
    pub commits: Counter,
    /// 1 if this node serves leases and objects, 0 while it has lost its disk.
    pub serving: Gauge,
    /// Objects at this node.
    pub objects: Gauge,
    /// Bytes of all objects at this node.
    pub object_bytes: Gauge,
    /// Names of leases that this node remembers.
    pub leases: Gauge,
    /// Versions that this node was behind when it took a state from others.
    pub lag: Gauge,
    fsync: Histogram,
    records: Counter,
    asks: Family<Kind, Counter>,
    answers: Family<Kind, Counter>,
    lies: Family<Suspect, Counter>,
    suspects: Mutex<BTreeMap<(NodeId, Lie), u64>>,
    /// What clients of the gateway were last seen to have counted.
    known: Mutex<BTreeMap<(NodeId, Lie), u64>>,
}

impl KeeperMeters {
    pub(super) fn new(book: &mut Book<'_>) -> Self {
        Self {
            commits: book.counter("object_commits", "States of objects committed at this node"),
            serving: book.gauge(
                "keeper_serving",
                "1 if this node serves leases and objects, 0 while it has lost its disk",
            ),
            objects: book.gauge("objects", "Objects at this node"),
            object_bytes: book.gauge("object_bytes", "Bytes of all objects at this node"),
            leases: book.gauge("leases", "Names of leases that this node remembers"),
            lag: book.gauge(
                "object_lag",
                "Versions that this node was behind others at its last look",
            ),
            fsync: book.times("keeper_fsync", "Time of one write of leases and objects"),
            records: book.counter("keeper_records", "Records of leases and objects written"),
            asks: book.family("keeper_asks", "Questions about leases and objects, by kind"),
            answers: book.family("keeper_answers", "Answers about them, by kind"),
            lies: book.family(
                "keeper_lies",
                "How often a node differed from what enough others said",
            ),
            suspects: Mutex::new(BTreeMap::new()),
            known: Mutex::new(BTreeMap::new()),
        }
    }

    /// Counts a question.
    pub fn asked(&self, ask: &Ask) {
        let kind = ask_kind(ask);
        self.asks.get_or_create(&Kind { kind }).inc();
    }

    /// Counts an answer.
    pub fn answered(&self, answer: &Answer) {
        let kind = answer_kind(answer);
        self.answers.get_or_create(&Kind { kind }).inc();
    }

    /// Counts one write with its sync.
    pub fn synced(&self, took: Duration, records: usize) {
        self.fsync.observe(took.as_secs_f64());
        self.records.inc_by(records as u64);
    }

    /// Counts that a node differed so many times from what enough others said.
    pub fn lied(&self, node: NodeId, lie: Lie, times: u64) {
        let suspect = Suspect {
            node: node.0 + 1,
            kind: lie.name(),
        };
        self.lies.get_or_create(&suspect).inc_by(times);
        let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        *suspects.entry((node, lie)).or_default() += times;
    }

    /// Counts what the clients of this node's gateway have seen so far, all together.
    pub fn seen_by_clients(&self, totals: &BTreeMap<(NodeId, Lie), u64>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, total) in totals {
            let before = known.insert(*key, *total).unwrap_or(0);
            let more = total.saturating_sub(before);
            if more > 0 {
                self.lied(key.0, key.1, more);
            }
        }
    }

    /// Who differed from what enough others said, how, and how often.
    pub fn suspects(&self) -> Vec<(NodeId, Lie, u64)> {
        let suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        let all = suspects
            .iter()
            .map(|((node, lie), count)| (*node, *lie, *count));
        all.collect()
    }
}

fn ask_kind(ask: &Ask) -> &'static str {
    match ask {
        Ask::Lease(_, LeaseAsk::Try(_)) => "try",
        Ask::Lease(_, LeaseAsk::Release { .. }) => "release",
        Ask::Lease(_, LeaseAsk::Renew { .. }) => "renew",
        Ask::Object(_, ObjectAsk::Submit { .. }) => "submit",
        Ask::Object(_, ObjectAsk::Get { .. }) => "get",
        Ask::Object(_, ObjectAsk::Propose { .. }) => "propose",
        Ask::Object(_, ObjectAsk::Commit { .. }) => "commit",
        Ask::Object(_, ObjectAsk::Fetch { .. }) => "fetch",
        Ask::Object(_, ObjectAsk::Give { .. }) => "give",
        Ask::Object(_, ObjectAsk::Peek { .. }) => "peek",
        Ask::Object(_, ObjectAsk::Watch { .. }) => "watch",
        Ask::Object(_, ObjectAsk::Unwatch { .. }) => "unwatch",
        Ask::Survey { .. } => "survey",
    }
}

fn answer_kind(answer: &Answer) -> &'static str {
    match answer {
        Answer::Lease(_, reply) => match reply.answer {
            LeaseAnswer::Free { .. } => "free",
            LeaseAnswer::Locked { .. } => "locked",
            LeaseAnswer::Stale { .. } => "stale",
            LeaseAnswer::Released => "released",
            LeaseAnswer::Refused(_) => "lease_refused",
        },
        Answer::Object(_, tell) => match tell {
            ObjectTell::Held { .. } => "held",
            ObjectTell::Done { .. } => "done",
            ObjectTell::Denied { .. } => "denied",
            ObjectTell::Got { .. } => "got",
            ObjectTell::Taken { .. } => "taken",
            ObjectTell::Outranked { .. } => "outranked",
            ObjectTell::NeedState { .. } => "need_state",
            ObjectTell::Refused { .. } => "refused",
            ObjectTell::Page { .. } => "page",
            ObjectTell::Given { .. } => "given",
            ObjectTell::Gone { .. } => "gone",
            ObjectTell::Peeked { .. } => "peeked",
            ObjectTell::Changed { .. } => "changed",
        },
        Answer::Surveyed { .. } => "surveyed",
    }
}
