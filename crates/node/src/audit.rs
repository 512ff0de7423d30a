//! The audit log: who was granted, lost and refused what, as lines of JSON.
//!
//! Lines are written by a thread of their own, so that no lock waits for this file. Its queue is
//! bounded; lines that find no room are counted, in the metrics and in a line of their own. The
//! file may be moved away at any time: it is opened anew within a second.
//!
//! Nothing in it lets anybody do anything: no handles, tokens of bearers or keys.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use conclave_protocol::id::{GrantNo, Name, NodeId, RequestNo, SessionId};
use conclave_protocol::lock::{Ask, End, LockNode, Mode, NodeEvent, Refusal};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::meters::{Meters, refusal_code};

/// Lines that wait to be written.
const QUEUE_MAX: usize = 16_384;
/// How often the thread looks whether its file was moved away.
const LOOK: Duration = Duration::from_secs(1);

type Line = (Timestamp, Map<String, Value>);

/// An open audit log. Clones write to the same file; it ends with the last of them.
#[derive(Clone, Debug)]
pub struct Audit {
    node: u32,
    inner: Arc<Inner>,
    meters: Arc<Meters>,
}

#[derive(Debug)]
struct Inner {
    /// Gone when the log ends.
    lines: Option<SyncSender<Line>>,
    dropped: Arc<AtomicU64>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.lines = None;
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            // A panic of the thread has been printed; there is nothing to add.
            let _ = thread.join();
        }
    }
}

impl Audit {
    /// Opens the file, which is made if it is not there; lines go to its end.
    pub fn open(path: &Path, node: NodeId, meters: Arc<Meters>) -> io::Result<Self> {
        let file = open(path)?;
        let (lines, queue) = sync_channel(QUEUE_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let writer = Writer {
            path: path.to_owned(),
            out: BufWriter::new(file),
            node: node.0 + 1,
            dropped: dropped.clone(),
            told: 0,
            broken: false,
        };
        let thread = std::thread::Builder::new().name("audit".to_owned());
        let thread = thread.spawn(move || writer.run(&queue))?;
        Ok(Self {
            node: node.0 + 1,
            inner: Arc::new(Inner {
                lines: Some(lines),
                dropped,
                thread: Mutex::new(Some(thread)),
            }),
            meters,
        })
    }

    /// Notes something that was refused, in whose name and why.
    pub fn refused(&self, principal: &str, name: Option<&Name>, reason: &str, from: &str) {
        let mut line = self.line("refused");
        put(&mut line, "principal", principal);
        if let Some(name) = name {
            put_name(&mut line, name);
        }
        put(&mut line, "reason", reason);
        put(&mut line, "from", from);
        self.push(line);
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
        let mut line = Map::new();
        line.insert("node".to_owned(), json!(self.node));
        line.insert("event".to_owned(), json!(event));
        line
    }

    fn push(&self, line: Map<String, Value>) {
        let Some(lines) = &self.inner.lines else {
            return;
        };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            lines.try_send((Timestamp::now(), line))
        {
            self.inner.dropped.fetch_add(1, Ordering::Relaxed);
            self.meters.audit_dropped.inc();
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
                let mut line = self.audit.line("refused");
                put(&mut line, "principal", principal);
                if let Some(name) = name {
                    put_name(&mut line, name);
                }
                line.insert("session".to_owned(), json!(format!("{session:x}")));
                put(&mut line, "reason", refusal_code(why));
                self.audit.push(line);
            }
            NodeEvent::Refused(why) if !matches!(why, Refusal::NotPermitted | Refusal::Revoked) => {
                let mut line = self.audit.line("refused");
                put(&mut line, "reason", refusal_code(why));
                self.audit.push(line);
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
    path: PathBuf,
    out: BufWriter<File>,
    node: u32,
    dropped: Arc<AtomicU64>,
    /// How many dropped lines have been told.
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
            self.reopen_if_moved();
            let more = std::iter::from_fn(|| queue.try_recv().ok());
            // One batch at a time, so that a busy node does not keep its lines from the disk.
            let batch: Vec<Line> = first.into_iter().chain(more.take(QUEUE_MAX)).collect();
            let written = self.write(batch);
            self.judge(written);
        }
    }

    fn write(&mut self, batch: Vec<Line>) -> io::Result<()> {
        for (at, line) in batch {
            self.put(at, line)?;
        }
        let dropped = self.dropped.load(Ordering::Relaxed);
        if dropped > self.told {
            let count = dropped - self.told;
            let mut line = Map::new();
            line.insert("node".to_owned(), json!(self.node));
            line.insert("event".to_owned(), json!("dropped"));
            line.insert("count".to_owned(), json!(count));
            self.put(Timestamp::now(), line)?;
            self.told = dropped;
        }
        self.out.flush()
    }

    fn put(&mut self, at: Timestamp, line: Map<String, Value>) -> io::Result<()> {
        let time = format!("{at:.3}");
        let mut whole = Map::new();
        whole.insert("time".to_owned(), json!(time));
        whole.extend(line);
        serde_json::to_writer(&mut self.out, &whole)?;
        self.out.write_all(b"\n")
    }

    /// Tells once that the log cannot be written, and once that it can again.
    fn judge(&mut self, written: io::Result<()>) {
        match written {
            Ok(()) if std::mem::take(&mut self.broken) => {
                tracing::info!(path = %self.path.display(), "the audit log is written again");
            }
            Ok(()) => {}
            Err(error) => {
                if !std::mem::replace(&mut self.broken, true) {
                    let path = self.path.display();
                    tracing::error!(%path, %error, "cannot write the audit log; lines are lost");
                }
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// A file that was moved away or removed is opened anew under its name.
    fn reopen_if_moved(&mut self) {
        let own = self.out.get_ref().metadata();
        let there = std::fs::metadata(&self.path);
        let same = match (&own, &there) {
            (Ok(own), Ok(there)) => own.dev() == there.dev() && own.ino() == there.ino(),
            _ => false,
        };
        if same {
            return;
        }
        if let Ok(file) = open(&self.path) {
            // What is left in the buffer belongs to the old file.
            let flushed = self.out.flush();
            self.judge(flushed);
            self.out = BufWriter::new(file);
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &Path) -> Vec<Value> {
        let text = std::fs::read_to_string(path).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect()
    }

    #[test]
    fn what_is_noted_is_written_when_the_log_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let audit = Audit::open(&path, NodeId(0), Meters::new()).unwrap();
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
        let audit = Audit::open(&path, NodeId(0), Meters::new()).unwrap();
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
        let audit = Audit::open(&path, NodeId(0), meters.clone()).unwrap();
        let many = QUEUE_MAX * 40;
        for _ in 0..many {
            audit.refused("a", None, "x", "");
        }
        drop(audit);
        let lost = meters.audit_dropped.get();
        let told: u64 = lines(&path)
            .iter()
            .filter_map(|line| line["count"].as_u64())
            .sum();
        let written = lines(&path)
            .iter()
            .filter(|line| line["event"] == "refused")
            .count();
        assert_eq!(written as u64 + lost, many as u64);
        assert!(told <= lost);
    }
}
