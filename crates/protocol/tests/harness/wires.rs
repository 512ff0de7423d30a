//! The connections: first in, first out, each direction stalled or broken at the test's word.

use std::collections::{BTreeMap, VecDeque};

use conclave_protocol::id::{ConnNo, LinkId, NodeId};
use conclave_protocol::lock::{ClientInput, Message, NodeInput, To};

use super::{Cluster, Delivered};

#[derive(Clone, Debug)]
pub(crate) struct Conn {
    pub(crate) client: usize,
    pub(crate) node: usize,
    pub(crate) number: ConnNo,
    pub(crate) up: VecDeque<Message>,
    pub(crate) down: VecDeque<Message>,
}

/// All connections, and what is left of broken ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wires {
    conns: BTreeMap<LinkId, Conn>,
    /// Connections that only the client knows to be gone: their bytes may still arrive.
    late: BTreeMap<LinkId, Conn>,
    last: u64,
    /// Stalled directions: client, node, up.
    stalled: Vec<(usize, usize, bool)>,
    silent: Vec<usize>,
    /// Stalled ways between nodes, and what waits there.
    stalled_nodes: Vec<(usize, usize)>,
    between: VecDeque<(usize, usize, Message)>,
}

impl Wires {
    pub(crate) fn open(&mut self, client: usize, node: usize, conn: ConnNo) {
        self.last += 1;
        let fresh = Conn {
            client,
            node,
            number: conn,
            up: VecDeque::new(),
            down: VecDeque::new(),
        };
        self.conns.insert(LinkId(self.last), fresh);
    }

    /// Takes a connection away; what was left of it when it was severed may still arrive.
    pub(crate) fn close(&mut self, link: LinkId) -> Option<Conn> {
        self.conns.remove(&link)
    }

    pub(crate) fn find(&self, client: usize, node: usize, conn: ConnNo) -> Option<LinkId> {
        let hit = self.conns.iter().find(|(_, other)| {
            other.client == client && other.node == node && other.number == conn
        });
        hit.map(|(link, _)| *link)
    }

    pub(crate) fn links_of(&self, client: Option<usize>, node: Option<usize>) -> Vec<LinkId> {
        let hit = self.conns.iter().filter(|(_, conn)| {
            client.is_none_or(|client| conn.client == client)
                && node.is_none_or(|node| conn.node == node)
        });
        hit.map(|(link, _)| *link).collect()
    }

    /// The connection between a client and a node.
    pub(crate) fn link(&self, client: usize, node: usize) -> Option<LinkId> {
        self.links_of(Some(client), Some(node)).pop()
    }

    pub(crate) fn push_up(&mut self, client: usize, node: usize, message: Message) {
        if let Some(link) = self.link(client, node)
            && let Some(conn) = self.conns.get_mut(&link)
        {
            conn.up.push_back(message);
        }
    }

    pub(crate) fn push_down(&mut self, link: LinkId, message: Message) {
        if let Some(conn) = self.conns.get_mut(&link) {
            conn.down.push_back(message);
        }
    }

    pub(crate) fn forget_late(&mut self, node: usize) {
        self.late.retain(|_, conn| conn.node != node);
    }

    /// Stalls one direction, or lets it flow again.
    pub(crate) fn stall(&mut self, client: usize, node: usize, up: bool, stall: bool) {
        self.stalled.retain(|other| *other != (client, node, up));
        if stall {
            self.stalled.push((client, node, up));
        }
    }

    /// Stalls everything from and to a client.
    pub(crate) fn stall_client(&mut self, client: usize, stall: bool) {
        self.silent.retain(|other| *other != client);
        if stall {
            self.silent.push(client);
        }
    }

    fn flows(&self, conn: &Conn, up: bool) -> bool {
        !self.silent.contains(&conn.client) && !self.stalled.contains(&(conn.client, conn.node, up))
    }

    /// Connections with something to deliver, first those to nodes.
    pub(crate) fn ready(&self) -> Vec<(LinkId, bool)> {
        let one = |up: bool| {
            let some = move |conn: &Conn| !(if up { &conn.up } else { &conn.down }).is_empty();
            let conns = self.conns.iter();
            conns
                .filter(move |(_, conn)| some(conn) && self.flows(conn, up))
                .map(move |(link, _)| (*link, up))
        };
        one(true).chain(one(false)).collect()
    }

    /// The next message of a direction.
    pub(crate) fn peek(&self, link: LinkId, up: bool) -> Option<&Message> {
        let conn = self.conns.get(&link)?;
        if up { &conn.up } else { &conn.down }.front()
    }

    pub(crate) fn in_flight(&self) -> usize {
        let conns = self.conns.values();
        conns.map(|conn| conn.up.len() + conn.down.len()).sum()
    }
}

impl Cluster {
    /// Breaks a connection; what was under way is lost, both ends learn of it.
    pub(crate) fn reset(&mut self, link: LinkId) {
        let Some(conn) = self.wires.close(link) else {
            return;
        };
        self.node(conn.node, NodeInput::Closed(link));
        let node = NodeId::at(conn.node);
        self.client(conn.client, ClientInput::Closed(node, conn.number));
    }

    /// Breaks a connection for the client only: the node neither learns of it, nor has it read
    /// what was under way.
    pub(crate) fn sever(&mut self, link: LinkId) {
        let Some(conn) = self.wires.close(link) else {
            return;
        };
        let (client, node, number) = (conn.client, NodeId::at(conn.node), conn.number);
        self.wires.late.insert(link, conn);
        self.client(client, ClientInput::Closed(node, number));
    }

    /// The node reads what was left of a severed connection. How many messages there were.
    pub(crate) fn deliver_late(&mut self, client: usize, node: usize) -> usize {
        let hit = |(_, conn): &(&LinkId, &Conn)| conn.client == client && conn.node == node;
        let Some(link) = self.wires.late.iter().find(hit).map(|(link, _)| *link) else {
            return 0;
        };
        let Some(conn) = self.wires.late.remove(&link) else {
            return 0;
        };
        let count = conn.up.len();
        for message in conn.up {
            self.arrived(client, node, true, &message);
            self.node(node, NodeInput::Receive(link, message));
        }
        count
    }

    pub(crate) fn sent_by_node(&mut self, from: usize, to: To, message: Message) {
        match to {
            To::Link(link) => self.wires.push_down(link, message),
            To::Node(node) if self.wires.stalled_nodes.contains(&(from, node.index())) => {
                let waiting = (from, node.index(), message);
                self.wires.between.push_back(waiting);
            }
            To::Node(node) => {
                // Clocks are told all the time: no trace is about them.
                let clock = matches!(message, Message::TokenClock { .. });
                if let Some(trace) = self.trace.as_mut().filter(|_| !clock) {
                    trace.between(from, node.index(), &message);
                }
                self.node(node.index(), NodeInput::Peer(NodeId::at(from), message));
            }
        }
    }

    /// Stalls the way from one node to another, or lets what waits there arrive.
    pub(crate) fn stall_nodes(&mut self, from: usize, to: usize, stall: bool) {
        self.wires.stalled_nodes.retain(|way| *way != (from, to));
        if stall {
            self.wires.stalled_nodes.push((from, to));
            return;
        }
        let all = std::mem::take(&mut self.wires.between);
        for (one, other, message) in all {
            if (one, other) == (from, to) {
                self.sent_by_node(one, To::Node(NodeId::at(other)), message);
            } else {
                self.wires.between.push_back((one, other, message));
            }
        }
    }

    fn arrived(&mut self, client: usize, node: usize, up: bool, message: &Message) {
        if let Some(trace) = &mut self.trace {
            trace.message(client, node, up, message);
        }
        self.delivered.push(Delivered {
            client,
            node,
            up,
            message: message.clone(),
        });
    }

    /// Delivers the next message of one direction of a connection.
    pub(crate) fn deliver(&mut self, link: LinkId, up: bool) -> bool {
        let Some(conn) = self.wires.conns.get_mut(&link) else {
            return false;
        };
        let queue = if up { &mut conn.up } else { &mut conn.down };
        let Some(message) = queue.pop_front() else {
            return false;
        };
        let (client, node, number) = (conn.client, conn.node, conn.number);
        self.arrived(client, node, up, &message);
        if up {
            self.node(node, NodeInput::Receive(link, message));
        } else {
            let node = NodeId::at(node);
            self.client(client, ClientInput::Receive(node, number, message));
        }
        true
    }

    /// Delivers one message between a client and a node, and says whether there was one.
    pub(crate) fn deliver_one(&mut self, client: usize, node: usize, up: bool) -> bool {
        self.settle();
        let link = self.wires.link(client, node);
        let done = link.is_some_and(|link| self.deliver(link, up));
        self.settle();
        done
    }

    /// Delivers all that is under way in one direction, and the handshakes that follow.
    pub(crate) fn deliver_all(&mut self, client: usize, node: usize, up: bool) {
        while self.deliver_one(client, node, up) {}
    }

    /// Delivers everything that flows.
    pub(crate) fn drain(&mut self) {
        let mut steps = 0;
        while let Some((link, up)) = self.wires.ready().first().copied() {
            self.deliver(link, up);
            steps += 1;
            assert!(steps < 1_000_000, "the cluster does not come to rest");
        }
    }

    /// Delivers what is under way now, but nothing that follows from it: one message delay.
    pub(crate) fn round(&mut self) {
        let waiting: Vec<(LinkId, bool, usize)> = self
            .wires
            .ready()
            .into_iter()
            .map(|(link, up)| {
                let conn = &self.wires.conns[&link];
                let queue = if up { &conn.up } else { &conn.down };
                (link, up, queue.len())
            })
            .collect();
        for (link, up, count) in waiting {
            for _ in 0..count {
                self.deliver(link, up);
            }
        }
    }

    /// Delivers handshakes and empty heartbeats at the head of every queue that flows.
    pub(crate) fn settle(&mut self) {
        loop {
            let next = self.wires.ready().into_iter().find(|(link, up)| {
                let message = self.wires.peek(*link, *up);
                message.is_some_and(super::show::is_routine)
            });
            let Some((link, up)) = next else { return };
            self.deliver(link, up);
        }
    }
}
