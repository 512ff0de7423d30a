//! The audit log: who was granted, lost and refused what, as lines of JSON.
//!
//! Lines are written by a thread of their own, so that no lock waits for this file. Its queue is
//! bounded, and so is what it takes of the disk; refusals are summed up per source and reason.
//! Lines that are lost, for want of room in the queue or on the disk, are counted one by one, in
//! the metrics and in a line of their own. The file may be moved away at any time: it is opened
//! anew within a second.
//!
//! Nothing in it lets anybody do anything: no handles, tokens of bearers or keys.

mod log_file;
mod refusals;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use conclave_protocol::id::{GrantNo, Name, NodeId, RequestNo, SessionId};
use conclave_protocol::lock::{Ask, End, LockNode, Mode, NodeEvent, Refusal};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::meters::{Meters, refusal_code};
use crate::sentry::Sentry;
use log_file::{LogFile, Torn};
use refusals::{Refusals, Source, Sum};

/// What an audit log takes of the disk if nobody says otherwise.
pub const BYTES_MAX: u64 = 256 << 20;
/// The least that can be asked for.
pub const BYTES_MIN: u64 = 1 << 20;

/// Lines that wait to be written.
const QUEUE_MAX: usize = 16_384;
/// Lines are written in pieces of about so many bytes.
const PIECE: usize = 1 << 16;
/// How often the thread looks whether its file was moved away.
const LOOK: Duration = Duration::from_secs(1);
/// How long refusals are summed up.
const WINDOW: Duration = Duration::from_secs(10);

/// Where the audit log is written, and how much it may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditOptions {
    /// The file; older ones are beside it.
    pub path: PathBuf,
    /// The most bytes of all its files together.
    pub bytes_max: u64,
}

/// A line on its way.
#[derive(Debug)]
struct Line {
    at: Timestamp,
    fields: Map<String, Value>,
    /// How many events it tells of.
    events: u64,
}

/// An open audit log. Clones write to the same file; it ends with the last of them.
#[derive(Clone, Debug)]
pub struct Audit {
    node: u32,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Gone when the log ends.
    lines: Option<SyncSender<Line>>,
    refusals: Arc<Mutex<Refusals>>,
    dropped: Arc<Dropped>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Events that the log lost.
#[derive(Debug)]
struct Dropped {
    count: AtomicU64,
    meters: Arc<Meters>,
}

impl Dropped {
    fn add(&self, events: u64) {
        self.count.fetch_add(events, Ordering::Relaxed);
        self.meters.audit_dropped.inc_by(events);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.lines = None;
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            // A panic of the thread was told when it happened.
            let _ = thread.join();
        }
    }
}

impl Audit {
    /// Opens the file, which is made if it is not there; lines go to its end. A disk that is full
    /// is no error: what it cannot take is counted until it can.
    pub fn open(options: &AuditOptions, node: NodeId, meters: Arc<Meters>) -> io::Result<Self> {
        Self::open_under(&Sentry::new(), options, node, meters)
    }

    /// The same, for a node that ends when the log's thread panics.
    pub(crate) fn open_under(
        sentry: &Sentry,
        options: &AuditOptions,
        node: NodeId,
        meters: Arc<Meters>,
    ) -> io::Result<Self> {
        let file = LogFile::open(&options.path, options.bytes_max.max(BYTES_MIN))?;
        let (lines, queue) = sync_channel(QUEUE_MAX);
        let count = AtomicU64::new(0);
        let dropped = Arc::new(Dropped { count, meters });
        let refusals = Arc::new(Mutex::new(Refusals::default()));
        let writer = Writer {
            file,
            node: node.0 + 1,
            refusals: refusals.clone(),
            window: Instant::now(),
            dropped: dropped.clone(),
            told: 0,
            broken: false,
        };
        let thread = sentry.thread("audit", move || writer.run(&queue))?;
        Ok(Self {
            node: node.0 + 1,
            inner: Arc::new(Inner {
                lines: Some(lines),
                refusals,
                dropped,
                thread: Mutex::new(Some(thread)),
            }),
        })
    }

    /// Notes something that was refused, in whose name and why. `from` is an address, or the part
    /// of the node that refused.
    pub fn refused(&self, principal: &str, name: Option<&Name>, reason: &'static str, from: &str) {
        let source = from.parse::<SocketAddr>().map_or_else(
            |_| Source::Principal(principal.into()),
            |address| Source::address(address.ip()),
        );
        self.refuse(source, reason, |line| {
            put(line, "principal", principal);
            if let Some(name) = name {
                put_name(line, name);
            }
            put(line, "from", from);
        });
    }

    /// Notes a refusal: whole, or as one more of its kind.
    fn refuse(
        &self,
        source: Source,
        reason: &'static str,
        fill: impl FnOnce(&mut Map<String, Value>),
    ) {
        let refusals = self.inner.refusals.lock();
        let mut refusals = refusals.unwrap_or_else(PoisonError::into_inner);
        let whole = refusals.note(source, reason, Timestamp::now());
        drop(refusals);
        if whole {
            let mut line = self.line("refused");
            fill(&mut line);
            put(&mut line, "reason", reason);
            self.push(line);
        }
    }

    /// Notes that an operator revoked a session here.
    pub fn revoked(&self, session: SessionId, by: &str, force: bool, known: bool) {
        let mut line = self.line("revoked");
        put(&mut line, "principal", by);
        line.insert("session".to_owned(), json!(format!("{session:x}")));
        line.insert("force".to_owned(), json!(force));
        line.insert("known".to_owned(), json!(known));
        self.push(line);
    }

    fn line(&self, event: &str) -> Map<String, Value> {
        begun(self.node, event)
    }

    fn push(&self, fields: Map<String, Value>) {
        let Some(lines) = &self.inner.lines else {
            return;
        };
        let line = Line {
            at: Timestamp::now(),
            fields,
            events: 1,
        };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = lines.try_send(line) {
            self.inner.dropped.add(1);
        }
    }
}

/// What the shard's thread tells, with the holders that it needs to remember.
#[derive(Debug)]
pub(crate) struct Auditor {
    audit: Audit,
    /// In whose name, and for whom, what is granted was asked.
    holders: HashMap<(SessionId, RequestNo), (Arc<str>, Arc<str>)>,
}

impl Auditor {
    pub(crate) fn new(audit: Audit) -> Self {
        Self {
            audit,
            holders: HashMap::new(),
        }
    }

    pub(crate) fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Notes an event, if operators ask for its kind.
    pub(crate) fn event(&mut self, event: &NodeEvent, node: &LockNode) {
        match event {
            NodeEvent::Granted { ask, grant, .. } => {
                self.learn(ask, node);
                let line = self.request("granted", ask, *grant);
                self.audit.push(line);
            }
            NodeEvent::Reclaimed { ask, grant, token } => {
                self.learn(ask, node);
                let mut line = self.request("reclaimed", ask, *grant);
                line.insert("token".to_owned(), json!(token.0));
                self.audit.push(line);
            }
            NodeEvent::Entered { ask, grant, token } => {
                // Of a grant that was read from disk nothing was heard before.
                self.learn(ask, node);
                let mut line = self.request("entered", ask, *grant);
                line.insert("token".to_owned(), json!(token.0));
                self.audit.push(line);
            }
            NodeEvent::Ended { ask, grant, why } if grant.0 > 0 => self.ended(ask, *grant, *why),
            NodeEvent::Barred {
                principal,
                session,
                name,
                why,
            } => {
                let source = Source::Principal(principal.clone());
                self.audit.refuse(source, refusal_code(why), |line| {
                    put(line, "principal", principal);
                    if let Some(name) = name {
                        put_name(line, name);
                    }
                    line.insert("session".to_owned(), json!(format!("{session:x}")));
                });
            }
            NodeEvent::Refused(why) if !matches!(why, Refusal::NotPermitted | Refusal::Revoked) => {
                let source = Source::Principal(Arc::default());
                self.audit.refuse(source, refusal_code(why), |_| {});
            }
            _ => {}
        }
    }

    fn learn(&mut self, ask: &Ask, node: &LockNode) {
        let key = (ask.session, ask.request);
        if !self.holders.contains_key(&key)
            && let Some(label) = node.label(ask.session, ask.request)
        {
            self.holders.insert(key, (label.principal, label.owner));
        }
    }

    fn ended(&mut self, ask: &Ask, grant: GrantNo, why: End) {
        let (event, reason) = match why {
            End::Done(_) => ("released", None),
            End::Cancelled => ("released", Some("not_used")),
            End::Yielded => {
                self.holders.remove(&(ask.session, ask.request));
                return;
            }
            End::Expired => ("expired", None),
            End::Lapsed => ("expired", Some("connection")),
            End::Forgotten | End::Disconnected => ("lost", Some("forgotten")),
            End::Revoked => ("lost", Some("revoked")),
        };
        let mut line = self.request(event, ask, grant);
        if let End::Done(token) = why {
            line.insert("token".to_owned(), json!(token.0));
        }
        put(&mut line, "reason", reason.unwrap_or_default());
        self.holders.remove(&(ask.session, ask.request));
        self.audit.push(line);
    }

    fn request(&self, event: &str, ask: &Ask, grant: GrantNo) -> Map<String, Value> {
        let mut line = self.audit.line(event);
        put_name(&mut line, &ask.name);
        let mode = match &ask.mode {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
            Mode::Group(_) => "group",
        };
        line.insert("mode".to_owned(), json!(mode));
        if let Mode::Group(group) = &ask.mode {
            put(&mut line, "group", &String::from_utf8_lossy(group));
        }
        if let Some((principal, owner)) = self.holders.get(&(ask.session, ask.request)) {
            put(&mut line, "principal", principal);
            put(&mut line, "owner", owner);
        }
        line.insert("session".to_owned(), json!(format!("{:x}", ask.session)));
        line.insert("request".to_owned(), json!(ask.request.0));
        line.insert("grant".to_owned(), json!(grant.0));
        line
    }
}

/// The first fields of a line.
fn begun(node: u32, event: &str) -> Map<String, Value> {
    let mut line = Map::new();
    line.insert("node".to_owned(), json!(node));
    line.insert("event".to_owned(), json!(event));
    line
}

/// Text that is left out if empty.
fn put(line: &mut Map<String, Value>, field: &str, text: &str) {
    if !text.is_empty() {
        line.insert(field.to_owned(), json!(text));
    }
}

/// A name as text; bytes that are none are shown as such.
fn put_name(line: &mut Map<String, Value>, name: &Name) {
    let text = str::from_utf8(name.bytes()).map(str::to_owned);
    let text = text.unwrap_or_else(|_| name.bytes().escape_ascii().to_string());
    line.insert("name".to_owned(), json!(text));
}

/// What the thread owns.
struct Writer {
    file: LogFile,
    node: u32,
    refusals: Arc<Mutex<Refusals>>,
    /// When the present sums were begun.
    window: Instant,
    dropped: Arc<Dropped>,
    /// How many dropped events have been told.
    told: u64,
    broken: bool,
}

impl Writer {
    fn run(mut self, queue: &Receiver<Line>) {
        loop {
            let first = match queue.recv_timeout(LOOK) {
                Ok(line) => Some(line),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            self.file.follow();
            let more = std::iter::from_fn(|| queue.try_recv().ok());
            // One batch at a time, so that a busy node does not keep its lines from the disk.
            let mut batch: Vec<Line> = first.into_iter().chain(more.take(QUEUE_MAX)).collect();
            if self.window.elapsed() >= WINDOW {
                batch.extend(self.sums());
            }
            self.write(batch);
        }
        let last = self.sums();
        self.write(last);
    }

    /// Ends the window of refusals: a line for every sum.
    fn sums(&mut self) -> Vec<Line> {
        self.window = Instant::now();
        let refusals = self.refusals.lock();
        let sums = refusals.unwrap_or_else(PoisonError::into_inner).take();
        sums.into_iter().map(|sum| self.sum(&sum)).collect()
    }

    fn sum(&self, sum: &Sum) -> Line {
        let mut fields = begun(self.node, "refused");
        match &sum.source {
            Source::Address(address) => put(&mut fields, "from", &address.to_string()),
            Source::Principal(principal) => put(&mut fields, "principal", principal),
            Source::Others => put(&mut fields, "from", "others"),
        }
        put(&mut fields, "reason", sum.reason);
        fields.insert("count".to_owned(), json!(sum.count));
        put(&mut fields, "since", &format!("{:.3}", sum.since));
        Line {
            at: Timestamp::now(),
            fields,
            events: sum.count,
        }
    }

    fn write(&mut self, batch: Vec<Line>) {
        let mut piece = Piece::default();
        for line in batch {
            piece.put(line);
            if piece.text.len() >= PIECE {
                self.append(&std::mem::take(&mut piece));
            }
        }
        self.append(&piece);
        self.tell_dropped();
    }

    fn append(&mut self, piece: &Piece) {
        if piece.text.is_empty() {
            return;
        }
        let written = self.file.append(&piece.text);
        if let Err(torn) = &written {
            self.dropped.add(piece.events_after(torn.written));
        }
        self.judge(written);
    }

    /// Writes how many events were lost; if that is lost too, it is told later.
    fn tell_dropped(&mut self) {
        let dropped = self.dropped.count.load(Ordering::Relaxed);
        if dropped == self.told {
            return;
        }
        let mut fields = begun(self.node, "dropped");
        fields.insert("count".to_owned(), json!(dropped - self.told));
        let mut piece = Piece::default();
        piece.put(Line {
            at: Timestamp::now(),
            fields,
            events: 0,
        });
        let written = self.file.append(&piece.text);
        if written.is_ok() {
            self.told = dropped;
        }
        self.judge(written);
    }

    /// Tells once that the log cannot be written, and once that it can again.
    fn judge(&mut self, written: Result<(), Torn>) {
        let path = self.file.path().display();
        match written {
            Ok(()) if std::mem::take(&mut self.broken) => {
                tracing::info!(%path, "the audit log is written again");
            }
            Ok(()) => {}
            Err(Torn { error, .. }) => {
                if !std::mem::replace(&mut self.broken, true) {
                    tracing::error!(%path, %error, "cannot write the audit log; lines are lost");
                }
            }
        }
    }
}

/// Lines that are written together.
#[derive(Default)]
struct Piece {
    text: Vec<u8>,
    /// Where each line ends, and how many events it tells of.
    ends: Vec<(usize, u64)>,
}

impl Piece {
    fn put(&mut self, line: Line) {
        let mut whole = Map::new();
        whole.insert("time".to_owned(), json!(format!("{:.3}", line.at)));
        whole.extend(line.fields);
        self.text
            .extend(Value::Object(whole).to_string().into_bytes());
        self.text.push(b'\n');
        self.ends.push((self.text.len(), line.events));
    }

    /// The events of lines that end after so many bytes.
    fn events_after(&self, written: usize) -> u64 {
        let after = self.ends.iter().filter(|(end, _)| *end > written);
        after.map(|(_, events)| events).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn open(path: &Path, meters: Arc<Meters>) -> Audit {
        let options = AuditOptions {
            path: path.to_owned(),
            bytes_max: BYTES_MAX,
        };
        Audit::open(&options, NodeId(0), meters).unwrap()
    }

    fn lines(path: &Path) -> Vec<Value> {
        let text = std::fs::read_to_string(path).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect()
    }

    #[test]
    fn what_is_noted_is_written_when_the_log_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let audit = open(&path, Meters::new());
        audit.refused(
            "ci",
            Some(&Name::new("a\n\u{1}b")),
            "not_permitted",
            "1.2.3.4:5",
        );
        audit.revoked(SessionId(0xabc), "ops", true, false);
        drop(audit);
        let lines = lines(&path);
        assert_eq!(lines[0]["event"], "refused");
        assert_eq!(lines[0]["name"], "a\n\u{1}b");
        assert_eq!(lines[0]["principal"], "ci");
        assert_eq!(lines[0]["node"], 1);
        assert!(lines[0]["time"].as_str().unwrap().ends_with('Z'));
        assert_eq!(
            (&lines[1]["session"], &lines[1]["force"]),
            (&json!("abc"), &json!(true))
        );
    }

    #[test]
    fn a_file_that_was_moved_away_is_opened_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (path, old) = (dir.path().join("audit.log"), dir.path().join("audit.log.1"));
        let audit = open(&path, Meters::new());
        audit.refused("a", None, "one", "");
        while !path.metadata().is_ok_and(|file| file.len() > 0) {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::fs::rename(&path, &old).unwrap();
        audit.refused("a", None, "two", "");
        drop(audit);
        assert_eq!(lines(&old).len(), 1);
        assert_eq!(lines(&path)[0]["reason"], "two");
    }

    #[test]
    fn lines_without_room_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let meters = Meters::new();
        let audit = open(&path, meters.clone());
        let many = QUEUE_MAX * 40;
        for _ in 0..many {
            audit.revoked(SessionId(1), "ops", false, true);
        }
        drop(audit);
        let lost = meters.audit_dropped.get();
        let told: u64 = lines(&path)
            .iter()
            .filter_map(|line| line["count"].as_u64())
            .sum();
        let written = lines(&path)
            .iter()
            .filter(|line| line["event"] == "revoked")
            .count();
        assert_eq!(written as u64 + lost, many as u64);
        assert_eq!(told, lost);
    }

    /// How many refusals the lines tell of.
    fn refusals(lines: &[Value]) -> u64 {
        let refused = lines.iter().filter(|line| line["event"] == "refused");
        refused
            .map(|line| line["count"].as_u64().unwrap_or(1))
            .sum()
    }

    #[test]
    fn a_flood_of_refusals_is_summed_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let audit = open(&path, Meters::new());
        for number in 0..100_000_u32 {
            let from = format!("10.0.0.{}:{}", number % 2, number % 60_000);
            audit.refused("", None, "unauthenticated", &from);
        }
        drop(audit);
        let lines = lines(&path);
        assert_eq!(refusals(&lines), 100_000);
        assert!(lines.len() < 100, "{} lines", lines.len());
        let sum = lines.iter().find(|line| line["count"].is_u64()).unwrap();
        assert!(
            sum["from"].as_str().unwrap().starts_with("10.0.0."),
            "{sum}"
        );
        assert!(sum["since"].is_string(), "{sum}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn every_line_that_a_full_disk_does_not_take_is_counted_and_told_later() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        let meters = Meters::new();
        let audit = open(&path, meters.clone());
        for _ in 0..1_000 {
            audit.revoked(SessionId(1), "ops", false, true);
        }
        while meters.audit_dropped.get() < 1_000 {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::fs::remove_file(&path).unwrap();
        audit.revoked(SessionId(2), "ops", false, true);
        drop(audit);
        let lines = lines(&path);
        let told = lines.iter().filter_map(|line| line["count"].as_u64());
        assert_eq!(told.sum::<u64>(), 1_000, "{lines:?}");
        assert_eq!(lines[0]["session"], "2", "{lines:?}");
        assert_eq!(meters.audit_dropped.get(), 1_000);
    }
}
