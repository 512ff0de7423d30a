//! The lines of a history: what nodes, clients, the resource and the run write down.
//!
//! Every line is a JSON object with `at`, the time in nanoseconds of the one clock that all
//! processes of the machine share. A line with `node` is a node's, one with `client` is about a
//! client, and one with neither is about the whole run. Unknown fields are ignored.

use std::io::{self, BufRead};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use conclave_protocol::id::{ClientId, GrantNo, Name, NodeId, RequestNo, SessionId, Token};
use conclave_protocol::lock::{Ask, Bond, End, Mode, Priority};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// Of a node.
    Node(NodeLine),
    /// About a client.
    Client(ClientLine),
    /// About the run.
    Run(RunLine),
}

impl Line {
    /// When it happened.
    pub fn at(&self) -> u64 {
        match self {
            Self::Node(line) => line.at,
            Self::Client(line) => line.at,
            Self::Run(line) => line.at,
        }
    }
}

/// What a node says.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeLine {
    /// When.
    pub at: u64,
    /// Which node.
    pub node: NodeId,
    /// What.
    pub event: NodeWord,
}

/// What happened at a node.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeWord {
    /// A life began.
    Start,
    /// A life ended in order.
    Down,
    /// It grants from now on.
    Serving,
    /// It granted a request.
    Granted {
        /// What was asked.
        ask: Arc<Ask>,
        /// The grant.
        grant: GrantNo,
        /// The floor told.
        floor: Token,
        /// The limit registered.
        limit: Token,
        /// Whether a better request of another group waited.
        bypass: bool,
        /// Whether the requester was inside and moves.
        inside: bool,
    },
    /// It took over a grant of an earlier life.
    Reclaimed {
        /// What was asked.
        ask: Arc<Ask>,
        /// The grant.
        grant: GrantNo,
        /// The holder's token.
        token: Token,
    },
    /// A holder said that it entered.
    Entered,
    /// A request ended; the grant is zero if it waited.
    Ended {
        /// What was asked.
        ask: Arc<Ask>,
        /// The grant.
        grant: GrantNo,
        /// Why.
        why: End,
    },
}

/// What a client says, or the resource says about it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientLine {
    /// When. Read before `until` and `members` are; of `released`, before the release is sent;
    /// of `acted`, while the resource decides.
    pub at: u64,
    /// Which client, by any number.
    pub client: u32,
    /// Which life of its process.
    #[serde(default)]
    pub life: u32,
    /// How it takes locks.
    #[serde(default)]
    pub kind: Kind,
    /// What.
    pub event: ClientWord,
    /// Which acquisition of this life. Only `vanished` may leave it out: the whole process died.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<u64>,
    /// The lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The lock, if its name is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_b64: Option<String>,
    /// `exclusive`, `shared` or `group:NAME`; needed in `entered`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The token; needed in `entered` and `acted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// The grants it rests on, as number of the node (from 1) and of the grant, if known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<(u32, u64)>,
    /// Until when it believes that it holds the lock if it hears from nobody; 0 if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// Whether the resource let it pass; needed in `acted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admitted: Option<bool>,
}

/// How a client takes locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// It talks to the nodes itself.
    #[default]
    Smart,
    /// It holds handles and talks to some gateway.
    Thin,
}

/// What happened to an acquisition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientWord {
    /// It was asked for.
    #[default]
    Asked,
    /// Its caller was told that it is inside.
    Entered,
    /// It is still inside, perhaps with another token, on other grants, or for longer.
    Moved,
    /// Its caller leaves.
    Released,
    /// Its caller was told that it is lost.
    Lost,
    /// It ended without having entered.
    Ended,
    /// Its process died.
    Vanished,
    /// It used the resource.
    Acted,
}

impl ClientLine {
    /// The lock it is about.
    pub fn lock(&self) -> Option<Name> {
        name(self.name.as_deref(), self.name_b64.as_deref())
    }

    /// What it asked for.
    pub fn wants(&self) -> Option<Mode> {
        mode(self.mode.as_deref()?)
    }

    /// Names the lock, in the field that fits.
    pub fn set_lock(&mut self, name: &[u8]) {
        match std::str::from_utf8(name) {
            Ok(text) => self.name = Some(text.to_owned()),
            Err(_) => self.name_b64 = Some(BASE64.encode(name)),
        }
    }

    fn check(&self) -> Result<(), &'static str> {
        if self.event == ClientWord::Vanished && self.key.is_none() {
            return Ok(());
        }
        if self.key.is_none() {
            return Err("no key");
        }
        if self.lock().is_none() {
            return Err("no name");
        }
        let members = self.members.iter();
        if members.clone().any(|(node, _)| *node == 0) {
            return Err("node 0 among the members: nodes are numbered from 1");
        }
        match self.event {
            ClientWord::Entered if self.wants().is_none() => Err("no mode that is one"),
            ClientWord::Entered if self.token.is_none() => Err("no token"),
            ClientWord::Entered if self.until.is_none() => Err("no until"),
            ClientWord::Acted if self.token.is_none() => Err("no token"),
            ClientWord::Acted if self.admitted.is_none() => Err("no admitted"),
            _ => Ok(()),
        }
    }
}

/// What is said about the whole run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunLine {
    /// When.
    pub at: u64,
    /// What.
    pub event: RunWord,
}

/// What happened to the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunWord {
    /// All faults have ended: from now on every request must end.
    Healed,
}

/// Why a history cannot be read.
#[derive(Debug, Error)]
pub enum HistoryError {
    /// The file cannot be read.
    #[error("cannot read the history {file}: {problem}")]
    Io {
        /// Its name.
        file: String,
        /// What the system said.
        problem: io::Error,
    },
    /// A line is not one.
    #[error("line {line} of the history {file} is damaged: {problem}; run it again")]
    Damaged {
        /// The file.
        file: String,
        /// The number of the line, from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
}

/// Reads one file. Half a line at its very end is left out: its writer was killed.
pub fn read(file: &str, mut from: impl BufRead) -> Result<Vec<Line>, HistoryError> {
    let mut lines = Vec::new();
    let mut bytes = Vec::new();
    for number in 1.. {
        bytes.clear();
        let count = from.read_until(b'\n', &mut bytes);
        let count = count.map_err(|problem| HistoryError::Io {
            file: file.to_owned(),
            problem,
        })?;
        if count == 0 {
            break;
        }
        let whole = bytes.ends_with(b"\n");
        if bytes.trim_ascii().is_empty() {
            continue;
        }
        match parse(&bytes) {
            Ok(line) => lines.push(line),
            Err(_) if !whole => break,
            Err(problem) => {
                return Err(HistoryError::Damaged {
                    file: file.to_owned(),
                    line: number,
                    problem,
                });
            }
        }
    }
    Ok(lines)
}

/// The line that these bytes are, or what is wrong with it.
pub fn parse(bytes: &[u8]) -> Result<Line, String> {
    #[derive(Deserialize)]
    struct Whose {
        node: Option<u32>,
        client: Option<u32>,
    }
    let text = |error: serde_json::Error| error.to_string();
    let whose: Whose = serde_json::from_slice(bytes).map_err(text)?;
    if whose.node.is_some() {
        let raw: RawNodeLine = serde_json::from_slice(bytes).map_err(text)?;
        return raw.line().map(Line::Node).map_err(ToOwned::to_owned);
    }
    if whose.client.is_none() {
        return serde_json::from_slice(bytes).map(Line::Run).map_err(text);
    }
    let line: ClientLine = serde_json::from_slice(bytes).map_err(text)?;
    line.check()?;
    Ok(Line::Client(line))
}

/// A node's line as it stands in the file.
#[derive(Deserialize)]
struct RawNodeLine {
    at: u64,
    node: u32,
    event: String,
    name: Option<String>,
    name_b64: Option<String>,
    mode: Option<String>,
    session: Option<String>,
    request: Option<u64>,
    bond: Option<String>,
    priority: Option<(u64, String, u64)>,
    grant: Option<u64>,
    floor: Option<u64>,
    limit: Option<u64>,
    #[serde(default)]
    bypass: bool,
    #[serde(default)]
    inside: bool,
    why: Option<String>,
    token: Option<u64>,
}

impl RawNodeLine {
    fn line(self) -> Result<NodeLine, &'static str> {
        let Some(node) = self.node.checked_sub(1) else {
            return Err("node 0: nodes are numbered from 1");
        };
        let grant = || self.grant.map(GrantNo).ok_or("no grant");
        let event = match self.event.as_str() {
            "start" => NodeWord::Start,
            "down" => NodeWord::Down,
            "serving" => NodeWord::Serving,
            "entered" => NodeWord::Entered,
            "granted" => NodeWord::Granted {
                ask: self.ask()?,
                grant: grant()?,
                floor: Token(self.floor.ok_or("no floor")?),
                limit: Token(self.limit.ok_or("no limit")?),
                bypass: self.bypass,
                inside: self.inside,
            },
            "reclaimed" => NodeWord::Reclaimed {
                ask: self.ask()?,
                grant: grant()?,
                token: Token(self.token.ok_or("no token")?),
            },
            "ended" => NodeWord::Ended {
                ask: self.ask()?,
                grant: grant()?,
                why: why(self.why.as_deref().ok_or("no why")?).ok_or("a why that is none")?,
            },
            _ => return Err("an event that no node has"),
        };
        Ok(NodeLine {
            at: self.at,
            node: NodeId(node),
            event,
        })
    }

    fn ask(&self) -> Result<Arc<Ask>, &'static str> {
        let (t, client, number) = self.priority.as_ref().ok_or("no priority")?;
        Ok(Arc::new(Ask {
            name: name(self.name.as_deref(), self.name_b64.as_deref()).ok_or("no name")?,
            mode: mode(self.mode.as_deref().ok_or("no mode")?).ok_or("a mode that is none")?,
            session: SessionId(hex(self.session.as_deref())?),
            request: RequestNo(self.request.ok_or("no request")?),
            priority: Priority {
                t: *t,
                client: ClientId(hex(Some(client))?),
                request: RequestNo(*number),
            },
            bond: match self.bond.as_deref() {
                Some("attached") => Bond::Attached,
                Some("detached") => Bond::Detached,
                Some("named") => Bond::Named,
                _ => return Err("no bond that is one"),
            },
        }))
    }
}

fn hex(text: Option<&str>) -> Result<u128, &'static str> {
    let text = text.ok_or("no session")?;
    u128::from_str_radix(text, 16).map_err(|_| "an id that is not hexadecimal")
}

fn name(text: Option<&str>, base64: Option<&str>) -> Option<Name> {
    if let Some(text) = text {
        return Some(Name::new(text));
    }
    BASE64.decode(base64?).ok().map(Name::new)
}

fn mode(text: &str) -> Option<Mode> {
    match text {
        "exclusive" => Some(Mode::Exclusive),
        "shared" => Some(Mode::Shared),
        _ => text.strip_prefix("group:").map(Mode::group),
    }
}

fn why(text: &str) -> Option<End> {
    Some(match text {
        "cancelled" => End::Cancelled,
        "yielded" => End::Yielded,
        "expired" => End::Expired,
        "lapsed" => End::Lapsed,
        "disconnected" => End::Disconnected,
        "forgotten" => End::Forgotten,
        "revoked" => End::Revoked,
        _ => End::Done(Token(text.strip_prefix("done:")?.parse().ok()?)),
    })
}
