//! Every grant and its end as a line of JSON with its time, for the checkers.
//!
//! The lines of a round are handed to the system before the messages of that round leave: whatever
//! another process has seen of this node stands in its file, even if it is killed right after.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use conclave_protocol::Instant;
use conclave_protocol::id::{GrantNo, Incarnation, Name, NodeId, Token};
use conclave_protocol::lock::{Ask, Bond, End, Mode, NodeEvent};
use serde_json::{Map, Value, json};

/// No line is longer: names and groups are bounded.
const LINE_MAX: u64 = 64 * 1024;

/// A file of events.
#[derive(Debug)]
pub struct History {
    path: PathBuf,
    file: File,
    node: NodeId,
    lines: Vec<u8>,
}

impl History {
    /// Opens the file; new lines go to its end. Half a line that a killed process left is cut
    /// off: nothing that it tells of has left that process.
    pub fn open(path: &Path, node: NodeId) -> io::Result<Self> {
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .read(true)
            .open(path)?;
        let length = file.metadata()?.len();
        let from = length.saturating_sub(LINE_MAX);
        let mut tail = Vec::new();
        file.seek(SeekFrom::Start(from))?;
        file.read_to_end(&mut tail)?;
        let whole = tail.iter().rposition(|byte| *byte == b'\n');
        file.set_len(from + whole.map_or(0, |last| last as u64 + 1))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            node,
            lines: Vec::new(),
        })
    }

    /// Where it writes.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Notes that a life began.
    pub fn start(&mut self, at: Instant, incarnation: Incarnation) {
        let mut line = self.line(at, "start");
        line.insert("incarnation".to_owned(), json!(incarnation.0));
        self.push(line);
    }

    /// Notes that a life ended cleanly.
    pub fn down(&mut self, at: Instant, incarnation: Incarnation) {
        let mut line = self.line(at, "down");
        line.insert("incarnation".to_owned(), json!(incarnation.0));
        self.push(line);
    }

    /// Notes an event, if a checker asks for its kind.
    pub fn event(&mut self, at: Instant, event: &NodeEvent) {
        let line = match event {
            NodeEvent::Granted {
                ask,
                grant,
                floor,
                limit,
                bypass,
                inside,
            } => {
                let mut line = self.request(at, "granted", ask, *grant);
                line.insert("floor".to_owned(), json!(floor.0));
                line.insert("limit".to_owned(), json!(limit.0));
                line.insert("bypass".to_owned(), json!(bypass));
                line.insert("inside".to_owned(), json!(inside));
                line
            }
            NodeEvent::Ended { ask, grant, why } => {
                let mut line = self.request(at, "ended", ask, *grant);
                line.insert("why".to_owned(), json!(why_text(*why)));
                line
            }
            NodeEvent::Reclaimed { ask, grant, token } => {
                self.with_token(at, "reclaimed", ask, *grant, *token)
            }
            NodeEvent::Entered { ask, grant, token } => {
                self.with_token(at, "entered", ask, *grant, *token)
            }
            NodeEvent::Serving => self.line(at, "serving"),
            NodeEvent::Close(_)
            | NodeEvent::CannotRecover
            | NodeEvent::Refused(_)
            | NodeEvent::Barred { .. }
            | NodeEvent::Want { .. }
            | NodeEvent::Leave { .. } => return,
        };
        self.push(line);
    }

    /// Hands all lines to the system.
    pub fn write(&mut self) -> io::Result<()> {
        if self.lines.is_empty() {
            return Ok(());
        }
        self.file.write_all(&self.lines)?;
        self.lines.clear();
        Ok(())
    }

    fn line(&self, at: Instant, event: &str) -> Map<String, Value> {
        let mut line = Map::new();
        line.insert("at".to_owned(), json!(at.nanos()));
        line.insert("node".to_owned(), json!(self.node.0 + 1));
        line.insert("event".to_owned(), json!(event));
        line
    }

    fn request(&self, at: Instant, event: &str, ask: &Ask, grant: GrantNo) -> Map<String, Value> {
        let mut line = self.line(at, event);
        let (field, name) = name_text(&ask.name);
        line.insert(field.to_owned(), json!(name));
        line.insert("mode".to_owned(), json!(mode_text(&ask.mode)));
        line.insert("session".to_owned(), json!(format!("{:x}", ask.session)));
        line.insert("request".to_owned(), json!(ask.request.0));
        let bond = match ask.bond {
            Bond::Attached => "attached",
            Bond::Detached => "detached",
            Bond::Named => "named",
        };
        line.insert("bond".to_owned(), json!(bond));
        let priority = &ask.priority;
        let client = format!("{:x}", priority.client);
        let priority = json!([priority.t, client, priority.request.0]);
        line.insert("priority".to_owned(), priority);
        line.insert("grant".to_owned(), json!(grant.0));
        line
    }

    fn with_token(
        &self,
        at: Instant,
        event: &str,
        ask: &Ask,
        grant: GrantNo,
        token: Token,
    ) -> Map<String, Value> {
        let mut line = self.request(at, event, ask, grant);
        line.insert("token".to_owned(), json!(token.0));
        line
    }

    fn push(&mut self, line: Map<String, Value>) {
        let line = Value::Object(line).to_string();
        self.lines.extend_from_slice(line.as_bytes());
        self.lines.push(b'\n');
    }
}

/// The field and the text of a name: as it is if it is text, else in base 64.
fn name_text(name: &Name) -> (&'static str, String) {
    match std::str::from_utf8(name.bytes()) {
        Ok(text) => ("name", text.to_owned()),
        Err(_) => ("name_b64", BASE64.encode(name.bytes())),
    }
}

fn mode_text(mode: &Mode) -> String {
    match mode {
        Mode::Exclusive => "exclusive".to_owned(),
        Mode::Shared => "shared".to_owned(),
        Mode::Group(group) => format!("group:{}", String::from_utf8_lossy(group)),
    }
}

fn why_text(why: End) -> String {
    match why {
        End::Done(token) => format!("done:{token}"),
        End::Cancelled => "cancelled".to_owned(),
        End::Yielded => "yielded".to_owned(),
        End::Expired => "expired".to_owned(),
        End::Lapsed => "lapsed".to_owned(),
        End::Disconnected => "disconnected".to_owned(),
        End::Forgotten => "forgotten".to_owned(),
        End::Revoked => "revoked".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use conclave_protocol::id::{ClientId, RequestNo, SessionId};
    use conclave_protocol::lock::Priority;

    use super::*;

    fn ask(name: &[u8], mode: Mode) -> Arc<Ask> {
        Arc::new(Ask {
            name: Name::new(name),
            mode,
            session: SessionId(0xab),
            request: RequestNo(7),
            priority: Priority {
                t: 5,
                client: ClientId(0xc),
                request: RequestNo(7),
            },
            bond: Bond::Named,
        })
    }

    #[test]
    fn each_event_is_one_line_that_says_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n2.jsonl");
        std::fs::write(&path, "{\"half").unwrap();
        let mut history = History::open(&path, NodeId(1)).unwrap();
        history.start(Instant::from_nanos(1), Incarnation(9));
        let granted = NodeEvent::Granted {
            ask: ask(b"a\"b", Mode::group("g")),
            grant: GrantNo(3),
            floor: Token(10),
            limit: Token(20),
            bypass: true,
            inside: false,
        };
        history.event(Instant::from_nanos(2), &granted);
        let ended = NodeEvent::Ended {
            ask: ask(&[0xff], Mode::Exclusive),
            grant: GrantNo(3),
            why: End::Done(Token(11)),
        };
        history.event(Instant::from_nanos(3), &ended);
        assert_eq!(std::fs::read(&path).unwrap(), b"", "not before it is asked");
        history.write().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<Value> = text
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect();
        let start = json!({"at": 1, "node": 2, "event": "start", "incarnation": 9});
        assert_eq!(lines[0], start);
        let expected = json!({
            "at": 2, "node": 2, "event": "granted", "name": "a\"b", "mode": "group:g",
            "session": "ab", "request": 7, "bond": "named", "priority": [5, "c", 7],
            "grant": 3, "floor": 10, "limit": 20, "bypass": true, "inside": false,
        });
        assert_eq!(lines[1], expected);
        assert_eq!(lines[2]["name_b64"], json!("/w=="));
        assert_eq!(lines[2]["why"], json!("done:11"));

        std::fs::write(&path, format!("{text}{{\"at\":4,")).unwrap();
        History::open(&path, NodeId(1)).unwrap();
        let again = std::fs::read_to_string(&path).unwrap();
        assert_eq!(again, text, "whole lines stay, half a line goes");
    }
}
