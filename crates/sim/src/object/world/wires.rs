//! Connections between clients and nodes: in order or broken, unless the world is raw.

use std::time::Duration;

use conclave_protocol::id::{LinkId, NodeId};
use conclave_protocol::keeper::client::ClientInput;
use conclave_protocol::keeper::{Answer, Ask, Caller, KeeperInput};
use conclave_protocol::lease::{LeaseAnswer, LeaseAsk, LeaseReply, Space};
use conclave_protocol::lock::Who;

use super::clients::principal;
use super::{Event, World};
use crate::fact::True;

/// How many times longer the messages of a slow connection take.
const SLOW: u64 = 8;

/// How long a client waits before it connects again.
const RECONNECT: u64 = 3_000_000;

/// The connection of a client to a node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pipe {
    /// Zero if there is none.
    link: u64,
    /// When the last message of each way arrives.
    up_at: u64,
    down_at: u64,
    /// Whether nothing more gets through.
    cut: bool,
    /// How many times longer its messages take.
    slow: u64,
}

impl World<'_> {
    fn pipe(&mut self, client: usize, node: usize) -> &mut Pipe {
        let nodes = self.nodes.len();
        &mut self.pipes[client * nodes + node]
    }

    /// Whether this is the present connection of a client to a node.
    pub(super) fn is_open(&self, client: usize, node: usize, link: LinkId) -> bool {
        self.pipes[client * self.nodes.len() + node].link == link.0
    }

    /// How long a message takes; when all is well no longer than everybody believes.
    fn latency(&mut self) -> u64 {
        let drawn = self.options.latency.draw(&mut self.rng);
        if self.faulty {
            return drawn;
        }
        drawn.min(self.options.delay_ms * 900_000)
    }

    /// When a message that is sent now arrives.
    fn arrival(&mut self, client: usize, node: usize) -> u64 {
        let slow = self.pipe(client, node).slow;
        let times = if self.faulty { slow.max(1) } else { 1 };
        self.queue.now().0 + self.latency() * times
    }

    fn is_lost(&mut self) -> bool {
        self.faulty && self.options.loss > 0.0 && self.rng.chance(self.options.loss)
    }

    /// Whether a question is for a vote that everybody gets.
    pub(super) fn is_duel(&self, ask: &Ask) -> bool {
        let object = matches!(ask, Ask::Lease(key, _) if key.space == Space::Object);
        object && self.options.duel && self.faulty
    }

    /// A client sends something to a node.
    pub(super) fn up(&mut self, client: usize, node: usize, ask: Ask) {
        let lost = self.is_lost();
        let at = self.arrival(client, node);
        let raw = self.options.raw && self.faulty;
        let pipe = self.pipe(client, node);
        if pipe.link == 0 || pipe.cut {
            return;
        }
        if lost {
            if !raw {
                self.cut(client, node);
            }
            return;
        }
        let at = if raw { at } else { at.max(pipe.up_at + 1) };
        pipe.up_at = pipe.up_at.max(at);
        let link = LinkId(pipe.link);
        self.queue.push(True(at), Event::ToNode { node, link, ask });
    }

    /// Everybody gets the vote, after a while that is the same for all nodes: nobody is kept from
    /// ordering.
    pub(super) fn vote(&mut self, client: usize, node: usize, ask: &Ask, wait: u64) {
        let Ask::Lease(key, ask) = ask else {
            return;
        };
        let free = LeaseAnswer::Free {
            held: Duration::ZERO,
            rank: None,
        };
        let (attempt, sub, answer) = match ask {
            LeaseAsk::Try(asked) => (asked.attempt, asked.sub, free),
            LeaseAsk::Renew { attempt, sub, .. } => (*attempt, *sub, free),
            LeaseAsk::Release { attempt, .. } => (*attempt, 0, LeaseAnswer::Released),
        };
        let reply = LeaseReply {
            attempt,
            sub,
            answer,
        };
        let event = Event::ToClient {
            client,
            node,
            link: LinkId(self.pipe(client, node).link),
            answer: Answer::Lease(key.clone(), reply),
        };
        self.queue.push_in(wait, event);
    }

    /// A node sends something on a connection.
    pub(super) fn down(&mut self, node: usize, link: LinkId, answer: Answer) {
        let Some(client) = self.nodes[node].links.get(&link).copied() else {
            return;
        };
        let lost = self.is_lost();
        let at = self.arrival(client, node);
        let raw = self.options.raw && self.faulty;
        let pipe = self.pipe(client, node);
        if pipe.link != link.0 || pipe.cut {
            return;
        }
        if lost {
            if !raw {
                self.cut(client, node);
            }
            return;
        }
        let at = if raw { at } else { at.max(pipe.down_at + 1) };
        pipe.down_at = pipe.down_at.max(at);
        let event = Event::ToClient {
            client,
            node,
            link,
            answer,
        };
        self.queue.push(True(at), event);
    }

    /// Nothing more gets through; both ends notice some time later.
    fn cut(&mut self, client: usize, node: usize) {
        let delay = self.latency();
        let now = self.queue.now().0;
        let pipe = self.pipe(client, node);
        pipe.cut = true;
        let link = LinkId(pipe.link);
        let (up, down) = (pipe.up_at.max(now + delay), pipe.down_at.max(now + delay));
        self.queue
            .push(True(up + 1), Event::ClosedAtNode { node, link });
        let closed = Event::ClosedAtClient { client, node, link };
        self.queue.push(True(down + 1), closed);
    }

    /// A client's process is gone: what it has sent still arrives.
    pub(super) fn hang_up(&mut self, client: usize) {
        for node in 0..self.nodes.len() {
            let now = self.queue.now().0;
            let pipe = self.pipe(client, node);
            let link = LinkId(pipe.link);
            let at = pipe.up_at.max(now) + 1;
            *pipe = Pipe::default();
            if link.0 > 0 {
                self.queue
                    .push(True(at), Event::ClosedAtNode { node, link });
            }
        }
    }

    /// A node's process is gone: what it has sent still arrives.
    pub(super) fn drop_links(&mut self, node: usize) {
        let links = std::mem::take(&mut self.nodes[node].links);
        for (link, client) in links {
            let delay = self.latency();
            let now = self.queue.now().0;
            let pipe = self.pipe(client, node);
            if pipe.link == link.0 {
                pipe.cut = true;
                let at = pipe.down_at.max(now + delay) + 1;
                let closed = Event::ClosedAtClient { client, node, link };
                self.queue.push(True(at), closed);
            }
        }
    }

    pub(super) fn closed_at_client(&mut self, client: usize, node: usize, link: LinkId) {
        let pipe = self.pipe(client, node);
        if pipe.link != link.0 {
            return;
        }
        *pipe = Pipe::default();
        let life = self.clients[client].life;
        self.client_step(client, ClientInput::Closed(NodeId::at(node)));
        let event = Event::Connect { client, node, life };
        self.queue.push_in(RECONNECT, event);
    }

    pub(super) fn closed_at_node(&mut self, node: usize, link: LinkId) {
        if self.nodes[node].links.remove(&link).is_some() {
            self.node_step(node, KeeperInput::Closed(link));
        }
    }

    pub(super) fn connect(&mut self, client: usize, node: usize, life: u32) {
        if self.clients[client].life != life || self.clients[client].machine.is_none() {
            return;
        }
        if self.nodes[node].keeper.is_none() {
            let event = Event::Connect { client, node, life };
            return self.queue.push_in(RECONNECT, event);
        }
        self.links += 1;
        let link = self.links;
        let slow = self.options.slow > 0.0 && self.rng.chance(self.options.slow);
        let pipe = self.pipe(client, node);
        if pipe.link != 0 {
            return;
        }
        *pipe = Pipe {
            link,
            slow: if slow { SLOW } else { 1 },
            ..Pipe::default()
        };
        let link = LinkId(link);
        self.nodes[node].links.insert(link, client);
        let caller = Caller {
            who: Who {
                principal: principal(client),
                gateway: false,
            },
            node: None,
        };
        self.node_step(node, KeeperInput::Opened(link, caller));
        self.client_step(client, ClientInput::Opened(NodeId::at(node)));
    }
}
