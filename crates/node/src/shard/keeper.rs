//! Connections that ask about leases and objects: their frames go to the keeper's thread, and what
//! it says comes back as frames.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::Instant;
use conclave_protocol::id::{LinkId, NodeId, Token};
use conclave_protocol::keeper::{Caller, KeeperInput};
use conclave_protocol::lock::{Access, Who};
use conclave_wire::codec::{First, first_frame};
use conclave_wire::greeting::{Greeting, Rejection, Role, Service};
use conclave_wire::keeper::decode_ask;

use super::conn::{Stage, Way};
use super::read::{End, REST_MAX};
use super::run::Loop;
use crate::keeper::{Inbox, Said};

/// A connection that says nothing for so long is closed; its client opens another when it needs
/// one.
const IDLE: Duration = Duration::from_mins(10);

/// The connections of the keeper.
pub(super) struct Keepers {
    inbox: Option<Inbox>,
    /// When each was last heard.
    heard: BTreeMap<u64, Instant>,
    /// Those that are not read until the keeper has room.
    stalled: Vec<u64>,
}

impl Keepers {
    pub(super) fn new(inbox: Option<Inbox>) -> Self {
        Self {
            inbox,
            heard: BTreeMap::new(),
            stalled: Vec::new(),
        }
    }

    /// Above every token of a lease that was voted for.
    pub(super) fn mark(&self) -> Token {
        self.inbox.as_ref().map_or(Token(0), Inbox::mark)
    }

    pub(super) fn set_access(&self, access: &Arc<Access>) {
        if let Some(inbox) = &self.inbox {
            inbox.put(Said::Input(KeeperInput::Access(access.clone())), 0);
        }
    }
}

impl Loop {
    /// Why a greeting is refused because of what it asks for, if it is.
    pub(super) fn judge_service(
        &mut self,
        id: u64,
        greeting: &Greeting,
        who: Option<&Who>,
    ) -> Option<Rejection> {
        let refuse = |why: &str| {
            let why = why.to_owned();
            Some(Rejection::Service { why })
        };
        match greeting.service {
            Service::Levels => return self.judge_levels(greeting.role),
            Service::Change if greeting.role == Role::Client => {
                return refuse("only nodes ask how others stand");
            }
            Service::Locks | Service::Change => return None,
            Service::Keeper if self.keepers.inbox.is_some() => {}
            Service::Keeper => return refuse("it keeps no leases and objects"),
            Service::Other(_) => return refuse("it does not know that service; update the node"),
        }
        let conn = self.conns.get_mut(id)?;
        let plain = matches!(conn.way(), Way::Plain) && who.is_none();
        let local = self.door.local && conn.address.ip().is_loopback();
        if self.door.liars > 0 && plain && !local {
            return refuse(
                "where nodes may lie, clients must show each of them who they are; give the \
                 nodes [tls] or an access file",
            );
        }
        None
    }

    /// Why a connection between the levels of a hierarchy is refused, if it is.
    fn judge_levels(&self, role: Role) -> Option<Rejection> {
        let why = match role {
            _ if self.levels.is_none() => "its locks are not served by a hierarchy",
            Role::Client => "only nodes speak of levels",
            Role::Node(node) if node == self.door.id => "a node does not call itself",
            Role::Node(_) => return None,
        };
        let why = why.to_owned();
        Some(Rejection::Service { why })
    }

    /// Somebody wants to ask about leases and objects.
    pub(super) fn keeper_came(&mut self, id: u64, role: Role, who: Option<Who>) {
        let who = who.unwrap_or_else(|| Who {
            principal: Arc::from(""),
            gateway: false,
        });
        let node = match role {
            Role::Node(node) => Some(node),
            // A node's certificate makes a node of whoever shows it.
            Role::Client if who.gateway => Some(node_of(&who.principal)),
            Role::Client => None,
        };
        let now = self.now().mono;
        self.keepers.heard.insert(id, now);
        if let Some(inbox) = &self.keepers.inbox {
            let opened = KeeperInput::Opened(LinkId(id), Caller { who, node });
            inbox.put(Said::Input(opened), 0);
        }
    }

    /// A connection of the keeper is gone.
    pub(super) fn keeper_left(&mut self, id: u64) {
        self.keepers.heard.remove(&id);
        if let Some(inbox) = &self.keepers.inbox {
            inbox.put(Said::Input(KeeperInput::Closed(LinkId(id))), 0);
        }
    }

    /// Takes one question off the front, unless the keeper has too many already.
    pub(super) fn take_ask(&mut self, id: u64, bytes: &[u8]) -> Result<Option<usize>, End> {
        let Some(inbox) = &self.keepers.inbox else {
            return Err(End::Rude("it asks for what this node does not keep"));
        };
        if bytes.is_empty() {
            return Ok(None);
        }
        if inbox.is_full() {
            if let Some(conn) = self.conns.get_mut(id) {
                conn.readable = true;
                conn.stalled = true;
                self.keepers.stalled.push(id);
            }
            return Ok(None);
        }
        match first_frame(bytes, decode_ask) {
            Ok(First::Message(ask, used)) => {
                let asked = KeeperInput::Receive(LinkId(id), ask);
                inbox.put(Said::Input(asked), used);
                let now = self.now().mono;
                self.keepers.heard.insert(id, now);
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

    /// What had to wait for the keeper is read again.
    pub(super) fn unstall(&mut self) {
        for id in std::mem::take(&mut self.keepers.stalled) {
            if let Some(conn) = self.conns.get_mut(id) {
                conn.stalled = false;
            }
            self.conns.mark_ready(id);
        }
    }

    /// Sends what the keeper says.
    pub(super) fn keeper_says(&mut self, frames: Vec<(LinkId, Vec<u8>)>) {
        for (link, bytes) in frames {
            if self.conns.stage(link.0) != Some(Stage::Keeper) {
                continue;
            }
            let room = self
                .conns
                .send_raw(link.0, |output| output.extend_from_slice(&bytes));
            if !room {
                self.overflows(link.0);
            }
        }
    }

    /// Closes connections that nobody uses.
    pub(super) fn look_for_idle(&mut self) {
        let now = self.now().mono;
        let idle = |heard: &Instant| now.since(*heard) > IDLE;
        let heard = self.keepers.heard.iter();
        let silent: Vec<u64> = heard
            .filter_map(|(id, heard)| idle(heard).then_some(*id))
            .collect();
        for id in silent {
            self.end_conn(id, &End::Closed);
        }
    }
}

/// The node that a principal names; one that is none if it names no node.
fn node_of(principal: &str) -> NodeId {
    let number = principal.strip_prefix("node/").map(str::parse::<u32>);
    let number = number.and_then(Result::ok).unwrap_or(0);
    NodeId(number.wrapping_sub(1))
}
