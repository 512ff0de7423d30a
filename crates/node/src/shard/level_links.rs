//! Connections between nodes of a hierarchy: one for each pair that has something to say.
//!
//! The node of the smaller number opens it. The other one, when it needs it, *knocks*: it opens a
//! connection that is closed again at once, and is called back. So there are never two, and when
//! the one breaks both ends know that what was under way may be lost. A connection is kept up with
//! pings; no word for a while ends it. The machine hears `Alive` when both ends have said in which
//! life they are, and `Suspected` when the connection breaks or cannot be opened.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use conclave_protocol::Instant;
use conclave_protocol::id::{Incarnation, Name, NodeId};
use conclave_protocol::multilevel::{LevelInput, LevelMessage};
use conclave_wire::codec::{First, first_frame};
use conclave_wire::greeting::{Service, decode_reply, encode_greeting};
use conclave_wire::levels::{LevelFrame, decode_level, encode_level};
use mio::net::TcpStream;

use super::conn::Stage;
use super::peers::dial_way;
use super::read::End;
use super::run::Loop;

/// How often a connection is looked at, and a ping sent on it.
const PING: Duration = Duration::from_millis(250);
/// A connection on which nothing came for so long is given up.
const SILENCE: Duration = Duration::from_secs(1);
/// A connection that is not up after so long is given up.
const OPENING: Duration = Duration::from_secs(1);
/// The first wait before another attempt, doubled with every failure.
const AGAIN_MIN: Duration = Duration::from_millis(50);
/// The longest wait before another attempt.
const AGAIN_MAX: Duration = Duration::from_secs(1);

/// What the machine was told last about a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Told {
    #[default]
    Nothing,
    Alive,
    Suspected,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// To be opened then.
    Idle(Instant),
    /// Its host name is being looked up.
    Resolving,
    /// Under way since then, or knocking.
    Opening(u64, Instant),
    /// Open; it is up once the other side's hello has come.
    Open { id: u64, since: Instant, up: bool },
}

#[derive(Debug)]
struct LevelLink {
    way: Way,
    told: Told,
    heard: Instant,
    /// Whether something was said since the last look.
    spoke: bool,
    failures: u32,
}

/// The connections of a hierarchy at this node.
#[derive(Debug, Default)]
pub(super) struct LevelLinks {
    links: BTreeMap<NodeId, LevelLink>,
    look: Option<Instant>,
}

impl LevelLinks {
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.look
    }

    /// Nodes that cannot be reached.
    pub(super) fn suspected(&self) -> impl Iterator<Item = NodeId> {
        let suspected = |link: &LevelLink| link.told == Told::Suspected;
        let links = self.links.iter();
        links.filter_map(move |(node, link)| suspected(link).then_some(*node))
    }

    /// How many connections are up.
    pub(super) fn up(&self) -> usize {
        let up = |link: &&LevelLink| matches!(link.way, Way::Open { up: true, .. });
        self.links.values().filter(up).count()
    }

    /// The connections are looked at then, if not before.
    fn look_by(&mut self, at: Instant) {
        self.look = Some(self.look.map_or(at, |look| look.min(at)));
    }

    fn link(&mut self, node: NodeId, now: Instant) -> &mut LevelLink {
        let new = !self.links.contains_key(&node);
        self.look_by(if new { now } else { now + PING });
        self.links.entry(node).or_insert(LevelLink {
            way: Way::Idle(now),
            told: Told::Nothing,
            heard: now,
            spoke: false,
            failures: 0,
        })
    }
}

impl Loop {
    fn level_link(&mut self, node: NodeId) -> Option<&mut LevelLink> {
        self.levels.as_mut()?.links.links.get_mut(&node)
    }

    /// Sends to another node. What cannot leave is dropped: the machine says it again when it hears
    /// that the node can be reached.
    pub(super) fn send_level(&mut self, node: NodeId, message: LevelMessage<Name>) {
        let now = self.now().mono;
        let Some(levels) = &mut self.levels else {
            return;
        };
        let link = levels.links.link(node, now);
        if let Way::Open { id, up: true, .. } = link.way {
            link.spoke = true;
            let frame = LevelFrame::Said(message);
            self.say_level(id, &frame);
        }
    }

    fn say_level(&mut self, id: u64, frame: &LevelFrame) {
        if !self
            .conns
            .send_raw(id, |output| encode_level(frame, output))
        {
            self.overflows(id);
        }
    }

    /// Opens what is due, pings, and gives up what is silent.
    pub(super) fn look_at_levels(&mut self) {
        let now = self.now().mono;
        let Some(levels) = self.levels.as_mut().filter(|_| self.started) else {
            return;
        };
        if levels.links.look.is_none_or(|look| look > now) {
            return;
        }
        let nodes: Vec<NodeId> = levels.links.links.keys().copied().collect();
        levels.links.look = (!nodes.is_empty()).then_some(now + PING);
        for node in nodes {
            self.look_at_level(node, now);
        }
        self.turn_levels();
    }

    fn look_at_level(&mut self, node: NodeId, now: Instant) {
        let Some(link) = self.level_link(node) else {
            return;
        };
        match link.way {
            Way::Idle(at) if at <= now => self.open_level(node),
            Way::Idle(at) => self.look_by(at),
            Way::Opening(id, since) if now.since(since) >= OPENING => {
                self.end_conn(id, &End::Rude("it took too long to open"));
            }
            Way::Resolving | Way::Opening(..) => {}
            Way::Open { id, since, up } => {
                let silent = now.since(link.heard) >= SILENCE;
                let late = !up && now.since(since) >= OPENING;
                let quiet = !std::mem::take(&mut link.spoke);
                if silent || late {
                    self.end_conn(id, &End::Rude("another node of the hierarchy is silent"));
                } else if quiet && up {
                    self.say_level(id, &LevelFrame::Ping);
                }
            }
        }
    }

    fn look_by(&mut self, at: Instant) {
        if let Some(levels) = &mut self.levels {
            levels.links.look_by(at);
        }
    }

    fn open_level(&mut self, node: NodeId) {
        let Some(address) = self.peers.address(node).map(str::to_owned) else {
            return;
        };
        let Some(link) = self.level_link(node) else {
            return;
        };
        link.way = Way::Resolving;
        if let Ok(address) = address.parse::<SocketAddr>() {
            self.level_resolved(node, &Ok(address));
        } else if !self.peers.resolve(node, address) {
            self.level_resolved(node, &Err("host names cannot be looked up".to_owned()));
        }
    }

    /// The address of a node is known, or why not.
    pub(super) fn level_resolved(&mut self, node: NodeId, found: &Result<SocketAddr, String>) {
        let now = self.now().mono;
        let resolving = |link: &mut LevelLink| link.way == Way::Resolving;
        if !self.level_link(node).is_some_and(resolving) {
            return;
        }
        let opened = found.clone().and_then(|address| {
            let socket = TcpStream::connect(address).map_err(|error| error.to_string())?;
            let stage = Stage::LevelDialled { node, open: false };
            let way = dial_way(&self.security, &self.door, node)?;
            let added = self.conns.add(socket, address, stage, way, now);
            added.map_err(|error| error.to_string())
        });
        match opened {
            Ok(id) => {
                let mut greeting = self.door.greeting(node);
                greeting.service = Service::Levels;
                self.conns
                    .send_raw(id, |output| encode_greeting(&greeting, output));
                if let Some(link) = self.level_link(node) {
                    link.way = Way::Opening(id, now);
                }
            }
            Err(problem) => {
                if self.quiet.may_speak(now) {
                    tracing::warn!(%node, problem, "cannot reach another node; trying again");
                }
                self.level_failed(node);
            }
        }
    }

    /// A connection that we opened is open, or failed to.
    pub(super) fn level_dialled(&mut self, id: u64, node: NodeId) {
        if !self.socket_opened(id) {
            return;
        }
        self.conns
            .set_stage(id, Stage::LevelDialled { node, open: true });
        self.conns.mark_dirty(id);
    }

    /// Takes the reply of another node off the front of what it sent.
    pub(super) fn take_level_reply(
        &mut self,
        id: u64,
        node: NodeId,
        bytes: &[u8],
    ) -> Result<Option<usize>, End> {
        let (reply, used) = match decode_reply(bytes) {
            Ok(Some(whole)) => whole,
            Ok(None) => return Ok(None),
            Err(error) => {
                self.meters.damaged.inc();
                return Err(End::Broken(error.to_string()));
            }
        };
        if let Err(refusal) = reply.accepted_by(node) {
            return Err(End::Broken(format!("it refuses: {refusal}")));
        }
        if self.door.id < node {
            self.conns.set_stage(id, Stage::Levels(node));
            self.level_opened(id, node);
        } else {
            // The knock was heard: the other side calls back.
            self.conns.set_stage(id, Stage::Closing { flushed: false });
            let now = self.now().mono;
            self.conns.watch(id, now);
            self.conns.mark_dirty(id);
            self.knocked(node, id);
        }
        Ok(Some(used))
    }

    /// Another node has greeted for the levels.
    pub(super) fn level_came(&mut self, id: u64, node: NodeId) {
        let now = self.now().mono;
        if node < self.door.id {
            self.conns.set_stage(id, Stage::Levels(node));
            if let Some(levels) = &mut self.levels {
                levels.links.link(node, now);
            }
            self.drop_level(node);
            self.level_opened(id, node);
            return;
        }
        self.conns.close_soon(id, now);
        let Some(levels) = &mut self.levels else {
            return;
        };
        let link = levels.links.link(node, now);
        match link.way {
            Way::Idle(_) => {
                link.failures = 0;
                link.way = Way::Idle(now);
                self.look_by(now);
            }
            // It has lost what we take to be open, unless its knock was already on its way when
            // this one opened.
            Way::Open { since, .. } if now.since(since) > OPENING => {
                self.drop_level(node);
                if let Some(link) = self.level_link(node) {
                    link.way = Way::Idle(now);
                }
                self.look_by(now);
            }
            Way::Resolving | Way::Opening(..) | Way::Open { .. } => {}
        }
    }

    /// Both greetings are through: says in which life this node is.
    fn level_opened(&mut self, id: u64, node: NodeId) {
        let now = self.now().mono;
        let Some(levels) = &mut self.levels else {
            return;
        };
        let life = levels.machine.life();
        let link = levels.links.link(node, now);
        link.way = Way::Open {
            id,
            since: now,
            up: false,
        };
        link.heard = now;
        self.say_level(id, &LevelFrame::Hello(life));
    }

    /// Takes a frame off the front.
    pub(super) fn take_level(
        &mut self,
        id: u64,
        node: NodeId,
        bytes: &[u8],
    ) -> Result<Option<usize>, End> {
        let (frame, used) = match first_frame(bytes, decode_level) {
            Ok(First::Message(frame, used)) => (frame, used),
            Ok(First::Unknown(used)) => return Ok(Some(self.drop_unknown(used))),
            Ok(First::Partial) => return Ok(None),
            Err(error) => {
                self.meters.damaged.inc();
                return Err(End::Broken(error.to_string()));
            }
        };
        let now = self.now().mono;
        let Some(link) = self.level_link(node) else {
            return Err(End::Rude("it speaks of levels that are not here"));
        };
        let Way::Open {
            id: current,
            since,
            up,
        } = link.way
        else {
            return Err(End::Rude("another connection of it has taken over"));
        };
        if current != id {
            return Err(End::Rude("another connection of it has taken over"));
        }
        link.heard = now;
        match frame {
            LevelFrame::Hello(life) if !up => {
                link.way = Way::Open {
                    id,
                    since,
                    up: true,
                };
                link.failures = 0;
                self.level_up(node, life);
            }
            LevelFrame::Hello(_) => return Err(End::Rude("it says hello twice")),
            _ if !up => return Err(End::Rude("it speaks before it says hello")),
            LevelFrame::Ping => {}
            LevelFrame::Said(message) => {
                self.meters.levels.received.inc();
                self.level_input(LevelInput::Receive(node, message));
            }
        }
        Ok(Some(used))
    }

    fn level_up(&mut self, node: NodeId, life: Incarnation) {
        if let Some(link) = self.level_link(node) {
            link.told = Told::Alive;
        }
        self.level_input(LevelInput::Alive(node, life));
    }

    /// A connection of the levels is gone.
    pub(super) fn level_left(&mut self, node: NodeId, id: u64) {
        let ours = |link: &mut LevelLink| match link.way {
            Way::Opening(kept, _) | Way::Open { id: kept, .. } => kept == id,
            Way::Idle(_) | Way::Resolving => false,
        };
        if self.level_link(node).is_some_and(ours) {
            self.level_failed(node);
        }
    }

    /// A knock was heard. If nobody calls back in time, it is tried again.
    fn knocked(&mut self, node: NodeId, id: u64) {
        let now = self.now().mono;
        let Some(link) = self.level_link(node) else {
            return;
        };
        if matches!(link.way, Way::Opening(kept, _) if kept == id) {
            let wait = AGAIN_MIN * 4 * (1 << link.failures.min(4));
            link.failures = link.failures.saturating_add(1);
            let many = link.failures > 3;
            let at = now + wait.min(AGAIN_MAX);
            link.way = Way::Idle(at);
            self.look_by(at);
            if many {
                self.suspect(node);
            }
        }
    }

    /// Ends the connection to a node, if there is one.
    fn drop_level(&mut self, node: NodeId) {
        let Some(link) = self.level_link(node) else {
            return;
        };
        if let Way::Opening(id, _) | Way::Open { id, .. } = link.way {
            if let Way::Opening(..) = link.way {
                // Nothing was said on it: nothing is lost.
                link.way = Way::Resolving;
            }
            self.drop_conn(id);
        }
    }

    fn level_failed(&mut self, node: NodeId) {
        let now = self.now().mono;
        let Some(link) = self.level_link(node) else {
            return;
        };
        let wait = AGAIN_MIN.saturating_mul(1 << link.failures.min(8));
        link.failures = link.failures.saturating_add(1);
        // Half to all of it, so that nodes do not come back in step.
        let share = getrandom::u32().unwrap_or(0) % 512 + 512;
        let at = now + wait.min(AGAIN_MAX) * share / 1024;
        link.way = Way::Idle(at);
        self.look_by(at);
        self.suspect(node);
    }

    /// Tells the machine that a node cannot be reached, once.
    fn suspect(&mut self, node: NodeId) {
        let Some(link) = self.level_link(node) else {
            return;
        };
        if std::mem::replace(&mut link.told, Told::Suspected) != Told::Suspected {
            self.meters.levels.suspicions.inc();
            self.level_input(LevelInput::Suspected(node));
        }
    }
}
