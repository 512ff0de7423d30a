//! What an operator asks about a node, counted where it happens and told as Prometheus text.
//!
//! A count costs one atomic addition, so the shard's thread and the journal's count as they go.
//! [`Meters::text`] is what `GET /metrics` answers.

mod keeper;
mod levels;

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::lock::{End, Message, NodeEvent, Refusal};
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

pub use keeper::KeeperMeters;
pub use levels::LevelMeters;

/// The states of a node, as in [`Meters::set_state`].
pub const STATES: [&str; 6] = [
    "starting",
    "pausing",
    "recovering",
    "serving",
    "draining",
    "stopped",
];

/// The limits that a node may reach, as in [`refusal_code`].
const LIMITS: [&str; 5] = [
    "queue_full",
    "session_limit",
    "request_limit",
    "lock_limit",
    "client_limit",
];

/// One label and its value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct State {
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PeerVersion {
    version: u32,
}

/// All numbers of one node.
#[derive(Debug)]
pub struct Meters {
    registry: Registry,

    // The shard's.
    /// Locks with a request at this node.
    pub locks: Gauge,
    /// Sessions kept at this node.
    pub sessions: Gauge,
    /// Clients (smart clients and gateways) kept at this node.
    pub clients: Gauge,
    /// Tombstones of released handles.
    pub tombstones: Gauge,
    /// Watches that this node keeps.
    pub watches: Gauge,
    /// Open connections on the peer port.
    pub connections: Gauge,
    /// Requests that wait at this node.
    pub waiting: Gauge,
    /// Grants that are out at this node.
    pub granted: Gauge,
    /// Connections accepted on the peer port.
    pub accepted: Counter,
    /// Connections to other nodes opened again after they broke.
    pub reconnects: Counter,
    /// Grants given.
    pub grants: Counter,
    /// Grants and requests that ended because nobody renewed them.
    pub expiries: Counter,
    /// Tokens registered beyond the limit of a grant.
    pub raises: Counter,
    /// Holds that came here from other nodes.
    pub migrations: Counter,
    /// Grants of an earlier life that were taken over.
    pub reclaims: Counter,
    /// Frames that made no sense.
    pub damaged: Counter,
    /// Messages of kinds that only newer builds know.
    pub unknown: Counter,
    /// Bytes read from peers.
    pub bytes_in: Counter,
    /// Bytes written to peers.
    pub bytes_out: Counter,
    /// Bytes that wait to be written to peers.
    pub buffered: Gauge,
    /// Messages that wait for the disk.
    pub parked: Gauge,
    /// Wake-ups of the shard's thread.
    pub wakes: Counter,
    /// Events that the audit log lost, for want of room in its queue or on its disk.
    pub audit_dropped: Counter,

    // The journal's.
    /// Time of one write with its sync, in seconds.
    pub fsync: Histogram,
    /// Records that wait to be written.
    pub journal_queue: Gauge,
    /// Records written.
    pub records: Counter,

    // The gateway's.
    /// Time from the arrival of an acquire request to its answer, in seconds.
    pub acquire: Histogram,
    /// Acquire requests that wait at this gateway.
    pub waiters: Gauge,
    /// Open connections on the API port.
    pub api_connections: Gauge,
    /// Connections of the gateway to nodes that ended or could not be made.
    pub gateway_breaks: Gauge,

    /// Leases and objects.
    pub keeper: KeeperMeters,
    /// The levels of a hierarchy.
    pub levels: LevelMeters,

    state: Family<State, Gauge>,
    refused: Family<Reason, Counter>,
    greetings: Family<PeerVersion, Counter>,
    outcomes: Family<Outcome, Counter>,
    messages_in: Vec<Counter>,
    messages_out: Vec<Counter>,
    memory: Gauge,
    cpu: Gauge<f64, std::sync::atomic::AtomicU64>,
}

impl Meters {
    /// All zero.
    pub fn new() -> Arc<Self> {
        let mut registry = Registry::with_prefix("conclave");
        let mut book = Book(&mut registry);
        let meters = Self {
            locks: book.gauge("locks", "Locks with at least one request at this node"),
            sessions: book.gauge("sessions", "Sessions that this node keeps"),
            clients: book.gauge("clients", "Smart clients and gateways known to this node"),
            tombstones: book.gauge("tombstones", "Released handles that are remembered"),
            watches: book.gauge("watches", "Watches of clients and gateways at this node"),
            connections: book.gauge("connections", "Open connections on the peer port"),
            waiting: book.gauge("waiting", "Requests that wait in a queue of this node"),
            granted: book.gauge("held", "Grants of this node that are out"),
            accepted: book.counter("accepted", "Connections accepted on the peer port"),
            reconnects: book.counter("reconnects", "Connections to nodes opened again"),
            grants: book.counter("grants", "Grants given by this node"),
            expiries: book.counter(
                "expiries",
                "Requests that ended because nobody renewed them",
            ),
            raises: book.counter("raises", "Tokens registered beyond the limit of a grant"),
            migrations: book.counter("migrations", "Holds that moved here from other nodes"),
            reclaims: book.counter("reclaims", "Grants of an earlier life that were taken over"),
            damaged: book.counter("damaged_frames", "Frames from peers that made no sense"),
            unknown: book.counter(
                "unknown_messages",
                "Messages of kinds that only newer builds know, passed over",
            ),
            bytes_in: book.counter("read_bytes", "Bytes read from peers and smart clients"),
            bytes_out: book.counter("written_bytes", "Bytes written to peers and smart clients"),
            buffered: book.gauge("out_buffer_bytes", "Bytes that wait to be written to peers"),
            parked: book.gauge(
                "parked_messages",
                "Messages that wait until a record is on disk",
            ),
            wakes: book.counter("shard_wakes", "Wake-ups of the thread that owns the locks"),
            audit_dropped: book.counter("audit_dropped", "Events that the audit log lost"),
            fsync: book.times("fsync", "Time of one write to disk with its sync"),
            journal_queue: book.gauge("journal_queue", "Records that wait to be written to disk"),
            records: book.counter("journal_records", "Records written to disk"),
            acquire: book.times(
                "acquire",
                "Time from an acquire request to its answer, gateway",
            ),
            waiters: book.gauge("waiters", "Acquire requests under way at this gateway"),
            api_connections: book.gauge("api_connections", "Open connections on the API port"),
            gateway_breaks: book.gauge("gateway_breaks", "Broken links from the gateway to nodes"),
            keeper: KeeperMeters::new(&mut book),
            levels: LevelMeters::new(&mut book),
            state: book.family("state", "1 for the state that the node is in, else 0"),
            refused: book.family("refused", "What the node or its gateway refused, by reason"),
            greetings: book.family(
                "greetings",
                "Connections agreed on, by version of the peer protocol",
            ),
            outcomes: book.family("gateway_answers", "Answers of the gateway, by outcome"),
            messages_in: book.kinds("messages_in", "Messages received on the peer port, by kind"),
            messages_out: book.kinds("messages_out", "Messages sent on the peer port, by kind"),
            memory: Gauge::default(),
            cpu: Gauge::default(),
            registry: Registry::default(),
        };
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The version of this program", build);
        let help = "Memory of this process that is in RAM";
        registry.register_with_unit("memory", help, Unit::Bytes, meters.memory.clone());
        let help = "Processor time that this process has used";
        registry.register_with_unit("cpu", help, Unit::Seconds, meters.cpu.clone());
        let meters = Self { registry, ..meters };
        meters.set_state("starting");
        // From zero on, so that the first refusal is seen as a rise.
        for reason in LIMITS {
            drop(meters.refused.get_or_create(&Reason { reason }));
        }
        Arc::new(meters)
    }

    /// Says which of [`STATES`] the node is in.
    pub fn set_state(&self, now: &str) {
        for state in STATES {
            let gauge = self.state.get_or_create(&State { state });
            gauge.set(i64::from(state == now));
        }
    }

    /// Counts a message from a peer.
    #[inline]
    pub fn received(&self, message: &Message) {
        if matches!(message, Message::Raise { .. }) {
            self.raises.inc();
        }
        self.messages_in[message.kind_number()].inc();
    }

    /// Counts a message to a peer.
    #[inline]
    pub fn sent(&self, message: &Message) {
        self.messages_out[message.kind_number()].inc();
    }

    /// Counts something that was refused, by its code.
    pub fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&Reason { reason }).inc();
    }

    /// Counts a connection that was agreed on, by the version chosen: this build speaks few.
    pub fn greeted(&self, version: u32) {
        let version = PeerVersion { version };
        self.greetings.get_or_create(&version).inc();
    }

    /// Counts an answer of the gateway, by its outcome.
    pub fn answered(&self, outcome: &'static str) {
        self.outcomes.get_or_create(&Outcome { outcome }).inc();
    }

    /// Counts what the machine tells.
    pub fn event(&self, event: &NodeEvent) {
        match event {
            NodeEvent::Granted { inside, .. } => {
                self.grants.inc();
                if *inside {
                    self.migrations.inc();
                }
            }
            NodeEvent::Ended {
                why: End::Expired | End::Lapsed,
                ..
            } => {
                self.expiries.inc();
            }
            NodeEvent::Reclaimed { .. } => {
                self.reclaims.inc();
            }
            NodeEvent::Refused(refusal) => self.refused(refusal_code(refusal)),
            NodeEvent::Ended { .. }
            | NodeEvent::Close(_)
            | NodeEvent::Entered { .. }
            | NodeEvent::Barred { .. }
            | NodeEvent::Want { .. }
            | NodeEvent::Leave { .. }
            | NodeEvent::Serving
            | NodeEvent::CannotRecover => {}
        }
    }

    /// Counts one write with its sync.
    pub fn synced(&self, took: Duration, records: usize) {
        self.fsync.observe(took.as_secs_f64());
        self.records.inc_by(records as u64);
    }

    /// Everything, in the classic text format of Prometheus.
    pub fn classic_text(&self) -> String {
        classic(&self.text())
    }

    /// Everything, in the text format `OpenMetrics`.
    pub fn text(&self) -> String {
        if let Some((memory, cpu)) = usage() {
            self.memory.set(memory);
            self.cpu.set(cpu);
        }
        let mut out = String::new();
        if text::encode(&mut out, &self.registry).is_err() {
            // Only a writer can fail, and this one has all the memory there is.
            out.clear();
        }
        out
    }
}

/// The classic text format of what is told in `OpenMetrics`: families are named as their values
/// are, infos are gauges, and there are neither units nor an end mark.
fn classic(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    // The help of a family comes before its type.
    let mut help = None;
    for line in text.lines() {
        let told = line
            .strip_prefix("# ")
            .and_then(|told| told.split_once(' '));
        match told {
            None if line == "# EOF" => {}
            None => out.extend([line, "\n"]),
            Some(("HELP", words)) => help = words.split_once(' '),
            Some(("TYPE", words)) => {
                let (name, kind) = words.split_once(' ').unwrap_or((words, "untyped"));
                let (ending, kind) = match kind {
                    "counter" => ("_total", kind),
                    "info" => ("_info", "gauge"),
                    "unknown" => ("", "untyped"),
                    _ => ("", kind),
                };
                if let Some((_, words)) = help.take() {
                    out.extend(["# HELP ", name, ending, " ", words, "\n"]);
                }
                out.extend(["# TYPE ", name, ending, " ", kind, "\n"]);
            }
            Some(_) => {}
        }
    }
    out
}

/// One word for a refusal, as in metrics and answers of the API.
pub fn refusal_code(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::QueueFull => "queue_full",
        Refusal::SessionLimit => "session_limit",
        Refusal::RequestLimit => "request_limit",
        Refusal::LockLimit => "lock_limit",
        Refusal::ClientLimit => "client_limit",
        Refusal::StaleConfig { .. } => "stale_config",
        Refusal::OldConnection => "old_connection",
        Refusal::PriorityAhead { .. } => "priority_ahead",
        Refusal::TokenAhead { .. } => "token_ahead",
        Refusal::TokenAboveLimit => "token_above_limit",
        Refusal::TtlTooLong { .. } => "ttl_too_long",
        Refusal::TtlTooShort { .. } => "ttl_too_short",
        Refusal::Size => "size",
        Refusal::Finished => "finished",
        Refusal::NoHandles => "no_handles",
        Refusal::Unfit => "unfit",
        Refusal::NotPermitted => "not_permitted",
        Refusal::Revoked => "revoked",
        Refusal::WatchLimit => "watch_limit",
    }
}

/// Where metrics are registered as they are made.
struct Book<'a>(&'a mut Registry);

impl Book<'_> {
    fn gauge(&mut self, name: &str, help: &str) -> Gauge {
        let gauge = Gauge::default();
        self.0.register(name, help, gauge.clone());
        gauge
    }

    fn counter(&mut self, name: &str, help: &str) -> Counter {
        let counter = Counter::default();
        self.0.register(name, help, counter.clone());
        counter
    }

    /// A histogram from 50 microseconds to about a minute.
    fn times(&mut self, name: &str, help: &str) -> Histogram {
        let times = Histogram::new(exponential_buckets(0.000_05, 2.0, 21));
        self.0
            .register_with_unit(name, help, Unit::Seconds, times.clone());
        times
    }

    fn family<L, M>(&mut self, name: &str, help: &str) -> Family<L, M>
    where
        L: EncodeLabelSet + Clone + Eq + std::hash::Hash + std::fmt::Debug + Send + Sync + 'static,
        M: prometheus_client::encoding::EncodeMetric
            + prometheus_client::metrics::TypedMetric
            + Default
            + std::fmt::Debug
            + Send
            + Sync
            + 'static,
    {
        let family = Family::default();
        self.0.register(name, help, family.clone());
        family
    }

    /// A counter per kind of message, found by number and not by label.
    fn kinds(&mut self, name: &str, help: &str) -> Vec<Counter> {
        let family: Family<Kind, Counter> = self.family(name, help);
        let counters = Message::KINDS.iter().map(|kind| {
            let counter: Counter = family.get_or_create(&Kind { kind }).clone();
            counter
        });
        counters.collect()
    }
}

/// Bytes in RAM and seconds of processor time of this process, where the system tells.
fn usage() -> Option<(i64, f64)> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The command's name may hold anything; it ends with the last parenthesis.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let user: u64 = fields.nth(11)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    let pages: i64 = fields.nth(8)?.parse().ok()?;
    let page = i64::try_from(rustix::param::page_size()).ok()?;
    let ticks = rustix::param::clock_ticks_per_second().max(1);
    Some((
        pages.saturating_mul(page),
        user.saturating_add(system) as f64 / ticks as f64,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use conclave_protocol::id::{Incarnation, NodeId, SessionId};

    #[test]
    fn each_message_counts_under_its_own_kind() {
        let meters = Meters::new();
        let messages = [
            Message::Draining,
            Message::Alive {
                node: NodeId(0),
                incarnation: Incarnation(1),
            },
            Message::Dead {
                session: SessionId(1),
                request: None,
            },
        ];
        for message in &messages {
            meters.received(message);
            meters.sent(message);
        }
        let text = meters.text();
        for message in &messages {
            for way in ["in", "out"] {
                let kind = message.kind();
                let line = format!("conclave_messages_{way}_total{{kind=\"{kind}\"}} 1\n");
                assert!(text.contains(&line), "{line}{text}");
            }
        }
        assert!(text.contains("conclave_messages_in_total{kind=\"HELLO\"} 0\n"));
    }

    #[test]
    fn the_node_is_in_one_state() {
        let meters = Meters::new();
        meters.set_state("serving");
        let text = meters.text();
        for state in STATES {
            let one = u8::from(state == "serving");
            let line = format!("conclave_state{{state=\"{state}\"}} {one}\n");
            assert!(text.contains(&line), "{line}{text}");
        }
    }

    #[test]
    fn times_and_refusals_are_told() {
        let meters = Meters::new();
        meters.synced(Duration::from_millis(3), 7);
        meters.event(&NodeEvent::Refused(Refusal::QueueFull));
        let text = meters.text();
        for line in [
            "conclave_fsync_seconds_count 1\n",
            "conclave_journal_records_total 7\n",
            "conclave_refused_total{reason=\"queue_full\"} 1\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_and_processor_time_are_plausible() {
        let (memory, cpu) = usage().unwrap();
        assert!(memory > 100_000, "{memory}");
        assert!((0.0..1e6).contains(&cpu), "{cpu}");
    }
}
