//! From bytes to steps: reading connections, and how they end.

use conclave_client::secure::{Side, explain};
use conclave_protocol::Now;
use conclave_protocol::id::{LinkId, NodeId};
use conclave_protocol::lock::{Message, NodeInput};
use conclave_wire::codec::{FRAME_MAX, First, SKIP_MAX, first_frame};

use super::conn::{Got, Stage};
use super::run::Loop;

/// At most this much is read from one connection per round, so that all get their turn.
const READ_ROUND: usize = 256 * 1024;
/// So many reads from one connection per round at the most: records of TLS may bring nothing.
const READS_ROUND: usize = 8;
/// How much is read at once.
pub(super) const READ_CHUNK: usize = 64 * 1024;
/// More than what is skipped, the longest frame and one read.
pub(super) const REST_MAX: usize = FRAME_MAX + SKIP_MAX + 2 * READ_CHUNK;

impl Loop {
    /// Reads what a connection has, up to its share of a round.
    pub(super) fn read(&mut self, id: u64) {
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut sealed = std::mem::take(&mut self.sealed);
        let (mut total, mut reads) = (0, 0);
        let end = loop {
            let Some(conn) = self.conns.get_mut(id) else {
                break None;
            };
            if !conn.readable || conn.stalled {
                break None;
            }
            let backlog = conn.stage == Stage::Keeper && conn.rest.len() > REST_MAX;
            if backlog && self.may_read() {
                // What came while the keeper had no room is heard before more is read.
                match self.digest_with_rest(id, &[], self.now()) {
                    Ok(()) => continue,
                    Err(end) => break Some(end),
                }
            }
            let Some(conn) = self.conns.get_mut(id) else {
                break None;
            };
            let got = match conn.read(&mut scratch, &mut sealed) {
                Ok(got) => got,
                Err(error) => break Some(broken(conn.stage, &error)),
            };
            let flush = conn.wants_flush();
            let bytes = match got {
                Got::End => break Some(End::Closed),
                Got::Bytes(bytes) => bytes,
                Got::Last(bytes) => {
                    conn.readable = false;
                    bytes
                }
            };
            if flush {
                self.conns.mark_dirty(id);
            }
            total += bytes;
            reads += 1;
            let read_at = self.now();
            if let Err(end) = self.digest_with_rest(id, &scratch[..bytes], read_at) {
                break Some(end);
            }
            if total >= READ_ROUND || reads >= READS_ROUND || !self.may_read() {
                break None;
            }
        };
        self.scratch = scratch;
        self.sealed = sealed;
        self.meters.bytes_in.inc_by(total as u64);
        match end {
            Some(end) => self.end_conn(id, &end),
            None => self.conns.mark_ready(id),
        }
    }

    /// Takes all whole frames of what was kept and what came now, and keeps the start of the next.
    fn digest_with_rest(&mut self, id: u64, bytes: &[u8], read_at: Now) -> Result<(), End> {
        let mut rest = self.conns.take_rest(id);
        let left = if rest.is_empty() {
            let used = self.digest(id, bytes, read_at)?;
            bytes[used..].to_vec()
        } else {
            rest.extend_from_slice(bytes);
            let used = self.digest(id, &rest, read_at)?;
            rest.drain(..used);
            rest
        };
        if !left.is_empty() && !self.conns.keep_rest(id, left) {
            return Err(End::Rude(
                "all connections together hold too many unfinished frames",
            ));
        }
        Ok(())
    }

    /// Takes whole frames off the front and says how many bytes they were.
    fn digest(&mut self, id: u64, bytes: &[u8], read_at: Now) -> Result<usize, End> {
        let mut used = 0;
        loop {
            let Some(stage) = self.conns.stage(id) else {
                return Ok(bytes.len());
            };
            let left = &bytes[used..];
            let taken = match stage {
                Stage::Closing { .. } => return Ok(bytes.len()),
                Stage::Waiting => self.take_greeting(id, left)?,
                Stage::Dialled { node, .. } => self.take_reply(id, node, left)?,
                Stage::Spoken(_) if left.is_empty() => None,
                Stage::Spoken(_) => return Err(End::Rude("it speaks on a connection of ours")),
                Stage::LevelDialled { node, .. } => self.take_level_reply(id, node, left)?,
                Stage::Client { .. } | Stage::Node(_) | Stage::Keeper | Stage::Levels(_)
                    if !self.may_read() =>
                {
                    // The machine starts anew: the rest is heard when it has.
                    if let Some(conn) = self.conns.get_mut(id) {
                        conn.readable = true;
                    }
                    None
                }
                Stage::Client { known } => {
                    let link = (id, known);
                    self.take_message(id, left, |it, message| {
                        it.client_says(link, read_at, message)
                    })?
                }
                Stage::Keeper => self.take_ask(id, left)?,
                Stage::Levels(node) => self.take_level(id, node, left)?,
                Stage::Node(node) => {
                    self.take_message(id, left, |it, message| it.node_says(node, read_at, message))?
                }
            };
            match taken {
                Some(bytes) => used += bytes,
                None => return Ok(used),
            }
        }
    }

    fn take_message(
        &mut self,
        id: u64,
        bytes: &[u8],
        then: impl FnOnce(&mut Self, Message) -> Result<(), End>,
    ) -> Result<Option<usize>, End> {
        let Some(conn) = self.conns.get_mut(id) else {
            return Ok(None);
        };
        match first_frame(bytes, |bytes| conn.decoder.decode(bytes)) {
            Ok(First::Message(message, used)) => {
                self.meters.received(&message);
                then(self, message)?;
                Ok(Some(used))
            }
            Ok(First::Unknown(used)) => Ok(Some(self.drop_unknown(used))),
            Ok(First::Partial) if bytes.len() > REST_MAX => Err(End::Rude("its frames do not end")),
            Ok(First::Partial) => Ok(None),
            Err(error) => {
                self.meters.damaged.inc();
                Err(End::Broken(error.to_string()))
            }
        }
    }

    /// Drops a frame of a kind that only newer builds know, and counts it.
    pub(super) fn drop_unknown(&self, used: usize) -> usize {
        self.meters.unknown.inc();
        used
    }

    fn client_says(
        &mut self,
        (id, known): (u64, bool),
        read_at: Now,
        message: Message,
    ) -> Result<(), End> {
        if !said_by_clients(&message) {
            return Err(End::Rude("it sends what only nodes send"));
        }
        if !known && matches!(message, Message::Hello { .. }) {
            self.conns.set_stage(id, Stage::Client { known: true });
        }
        self.hear(read_at, NodeInput::Receive(LinkId(id), message));
        Ok(())
    }

    fn node_says(&mut self, node: NodeId, read_at: Now, message: Message) -> Result<(), End> {
        if !said_by_nodes(&message) {
            return Err(End::Rude("it sends what no node sends to another"));
        }
        self.hear(read_at, NodeInput::Peer(node, message));
        Ok(())
    }

    /// A connection ends by the other side's doing or fault.
    pub(super) fn end_conn(&mut self, id: u64, end: &End) {
        let Some(address) = self.conns.address(id) else {
            return;
        };
        let stage = self.conns.stage(id);
        let what = match (stage, end) {
            (Some(Stage::Closing { .. }), _) | (_, End::Closed) => None,
            (_, End::Broken(what)) => Some(what.as_str()),
            (_, End::Rude(what)) => Some(*what),
        };
        let again = match stage {
            // One line says that a node cannot be reached; it is tried all the time.
            Some(Stage::Dialled { node, .. }) => self.peers.failed_before(node),
            _ => false,
        };
        if let Some(what) = what.filter(|_| !again)
            && self.quiet.may_speak(self.now().mono)
        {
            let who = stage.map_or_else(String::new, who);
            tracing::warn!(peer = %address, %who, reason = what, "connection closed");
        }
        self.drop_conn(id);
    }

    /// Drops a connection and tells whoever lived on it.
    pub(super) fn drop_conn(&mut self, id: u64) {
        match self.conns.remove(id) {
            Some(Stage::Client { .. }) => self.step(NodeInput::Closed(LinkId(id))),
            Some(Stage::Keeper) => self.keeper_left(id),
            Some(Stage::Node(node)) => self.door.node_left(node, id),
            Some(Stage::Dialled { node, .. } | Stage::Spoken(node)) => self.dial_failed(node, id),
            Some(Stage::LevelDialled { node, .. } | Stage::Levels(node)) => {
                self.level_left(node, id);
            }
            Some(Stage::Waiting | Stage::Closing { .. }) | None => {}
        }
    }

    /// Connections that have not got further in time end.
    pub(super) fn look_at_deadlines(&mut self) {
        if !self.started {
            return;
        }
        let now = self.now().mono;
        while let Some(id) = self.conns.overdue(now) {
            let late = match self.conns.stage(id) {
                Some(Stage::Waiting) => "no greeting came",
                Some(Stage::Client { known: false }) => "no first message came",
                Some(Stage::Dialled { .. } | Stage::LevelDialled { .. }) => "no reply came",
                Some(Stage::Closing { .. }) => "it did not read the farewell",
                Some(
                    Stage::Client { known: true }
                    | Stage::Keeper
                    | Stage::Node(_)
                    | Stage::Spoken(_)
                    | Stage::Levels(_),
                )
                | None => continue,
            };
            self.end_conn(id, &End::Rude(late));
        }
    }
}

/// Why a connection ends.
#[derive(Clone, Debug)]
pub(super) enum End {
    /// The other side closed it.
    Closed,
    /// The system or the codec says that it cannot go on.
    Broken(String),
    /// The other side does what it must not.
    Rude(&'static str),
}

/// What an error of the socket or of TLS means.
fn broken(stage: Stage, error: &std::io::Error) -> End {
    let other = match stage {
        Stage::Dialled { .. } | Stage::Spoken(_) | Stage::LevelDialled { .. } => Side::Node,
        _ => Side::Caller,
    };
    End::Broken(explain(error, other))
}

fn who(stage: Stage) -> String {
    match stage {
        Stage::Waiting => "not greeted".to_owned(),
        Stage::Client { .. } => "client".to_owned(),
        Stage::Keeper => "client of leases and objects".to_owned(),
        Stage::Node(node)
        | Stage::Dialled { node, .. }
        | Stage::Spoken(node)
        | Stage::LevelDialled { node, .. }
        | Stage::Levels(node) => node.to_string(),
        Stage::Closing { .. } => "closing".to_owned(),
    }
}

fn said_by_clients(message: &Message) -> bool {
    matches!(
        message,
        Message::Hello { .. }
            | Message::Resume(_)
            | Message::Open(_)
            | Message::Request { .. }
            | Message::Yield(_)
            | Message::Done { .. }
            | Message::Raise { .. }
            | Message::Entered(_)
            | Message::Heartbeat { .. }
            | Message::Keepalive { .. }
            | Message::Finish { .. }
            | Message::Travel(_)
            | Message::Watch { .. }
            | Message::Unwatch { .. }
    )
}

fn said_by_nodes(message: &Message) -> bool {
    matches!(
        message,
        Message::Recover { .. }
            | Message::Recovered(_)
            | Message::Alive { .. }
            | Message::TokenClock { .. }
            | Message::ConfirmGrant(_)
            | Message::GrantConfirmed { .. }
            | Message::Travel(_)
    )
}
