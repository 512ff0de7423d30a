//! Connections in the world: dialling, sending, arriving, stalling, breaking.

use conclave_protocol::id::{ConnNo, LinkId, NodeId};
use conclave_protocol::lock::{ClientInput, Message, NodeInput, Refusal};

use super::{Event, Item, World};
use crate::fact::{Fact, True};
use crate::net::{Arrival, Link, Stream, Way};
use crate::trace;

/// How long a client waits for a connection to open.
const DIAL_NANOS: u64 = 1_000_000_000;
/// Within this time both ends of a broken connection know of it.
const BROKEN_NANOS: u64 = 300_000_000;
/// No connection.
pub(super) const NONE: u32 = u32::MAX;

impl World<'_> {
    /// A client asks for a connection.
    pub(super) fn connect(&mut self, client: u32, node: NodeId, conn: ConnNo) {
        let place = self.links.len() as u32;
        let latency = self.pair_latency(client, node.0);
        let mut link = Link {
            client,
            client_life: self.clients[client as usize].life,
            node: node.0,
            node_life: 0,
            conn,
            latency,
            opened: false,
            client_open: true,
            node_open: false,
            up: Stream::default(),
            down: Stream::default(),
        };
        if let Some([up, down]) = self.stall_of(client, node.0) {
            link.up.stall(up);
            link.down.stall(down);
        }
        self.links.push(link);
        let process = &mut self.clients[client as usize];
        let old = std::mem::replace(&mut process.links[node.index()], place);
        if old != NONE {
            self.close_by_client(old);
        }
        let nanos = latency.draw(&mut self.rng);
        self.queue.push_in(nanos, Event::Dial(place));
        if !self.stalls.is_empty() {
            self.queue.push_in(DIAL_NANOS, Event::GiveUp(place));
        }
    }

    fn stall_of(&self, client: u32, node: u32) -> Option<[u64; 2]> {
        let place = client as usize * self.nodes.len() + node as usize;
        self.stalls.get(place).copied()
    }

    /// A wish to connect reaches the node's machine: taken if the process runs.
    pub(super) fn dial(&mut self, place: u32) {
        let link = &self.links[place as usize];
        let (client, node, latency) = (link.client, link.node, link.latency);
        if let Some([up, _]) = self.stall_of(client, node)
            && up > self.now
        {
            self.queue.push(True(up), Event::Dial(place));
            return;
        }
        let process = &self.nodes[node as usize];
        let taken = process.machine.is_some() && process.ready;
        let life = process.life;
        let link = &mut self.links[place as usize];
        // A client that stopped waiting has closed before: its end is on the way.
        link.node_open = taken && link.client_open;
        link.node_life = life;
        let nanos = latency.draw(&mut self.rng);
        let link = &mut self.links[place as usize];
        let at = link.down.depart(self.now, nanos);
        self.queue.push(True(at), Event::Dialled(place, taken));
    }

    /// The answer reaches the client.
    pub(super) fn dialled(&mut self, place: u32, taken: bool) {
        let link = &self.links[place as usize];
        let (client, node) = (link.client, link.node);
        if let Some([_, down]) = self.stall_of(client, node)
            && down > self.now
        {
            self.queue.push(True(down), Event::Dialled(place, taken));
            return;
        }
        let link = &mut self.links[place as usize];
        if !link.client_open || link.opened {
            return;
        }
        let (conn, life) = (link.conn, link.client_life);
        if taken {
            link.opened = true;
            self.note(Some(node), Some(client), || {
                format!("connection {conn} opens")
            });
            self.give_client(client, life, ClientInput::Opened(NodeId(node), conn));
        } else {
            link.client_open = false;
            self.forget_link(place);
            self.note(Some(node), Some(client), || {
                format!("connection {conn} is refused")
            });
            self.give_client(client, life, ClientInput::Closed(NodeId(node), conn));
        }
    }

    /// The client stops waiting for a connection to open.
    pub(super) fn give_up(&mut self, place: u32) {
        let link = &self.links[place as usize];
        if link.opened || !link.client_open {
            return;
        }
        let (client, node, conn, life) = (link.client, link.node, link.conn, link.client_life);
        self.close_by_client(place);
        self.forget_link(place);
        self.give_client(client, life, ClientInput::Closed(NodeId(node), conn));
    }

    /// The client's table no longer names this connection.
    fn forget_link(&mut self, place: u32) {
        let link = &self.links[place as usize];
        let process = &mut self.clients[link.client as usize];
        if process.links[link.node as usize] == place {
            process.links[link.node as usize] = NONE;
        }
    }

    /// A client sends.
    pub(super) fn send_up(&mut self, client: u32, node: NodeId, message: Message) {
        self.meter.sent(&message);
        let place = self.clients[client as usize].links[node.index()];
        if place == NONE {
            return;
        }
        let link = &mut self.links[place as usize];
        if !link.client_open || !link.opened {
            return;
        }
        let nanos = link.latency.draw(&mut self.rng);
        let at = link.up.depart(self.now, nanos);
        self.queue
            .push_in_order(True(at), Event::Up(place, Some(message)));
    }

    /// A node sends to a client. Every message of a node to a client passes here: the place for a
    /// tap that makes a node lie.
    pub(super) fn send_down(&mut self, node: u32, link: LinkId, message: Message) {
        self.meter.sent(&message);
        self.note_refusal(node, link, &message);
        let Some(link_ref) = self.links.get_mut(link.0 as usize) else {
            return;
        };
        if !link_ref.node_open || link_ref.node != node {
            return;
        }
        let nanos = link_ref.latency.draw(&mut self.rng);
        let at = link_ref.down.depart(self.now, nanos);
        self.queue
            .push_in_order(True(at), Event::Down(link.0 as u32, Some(message)));
    }

    /// Tells checkers that a node refused the token of somebody who means well.
    fn note_refusal(&mut self, node: u32, link: LinkId, message: &Message) {
        let honest = link.0 < super::attack::LINKS && self.watched;
        if let Message::Denied {
            session,
            request: Some(request),
            why: Refusal::TokenAhead { .. },
        } = *message
            && honest
            && self.nodes_hear_each_other()
        {
            self.tell(&Fact::TokenRefused {
                node: NodeId(node),
                session,
                request,
            });
        }
    }

    /// A node sends to another node: such messages may be lost whole.
    pub(super) fn send_peer(&mut self, from: NodeId, to: NodeId, message: Message) {
        self.meter.sent(&message);
        if to.index() >= self.nodes.len() {
            return;
        }
        if !self.splits.is_empty() && !self.healed {
            let split = self.splits[from.index() * self.nodes.len() + to.index()];
            if split > self.now || self.mischief.chance(self.options.loss) {
                return;
            }
        }
        let nanos = self.options.latency.draw(&mut self.rng);
        self.queue
            .push_in(nanos, Event::Peer(from, to, Box::new(message)));
    }

    /// A message between nodes arrives.
    pub(super) fn peer(&mut self, from: NodeId, to: NodeId, message: Message) {
        if self.tracer.is_some() {
            let text = format!("<- {from} {}", trace::message(&message));
            self.note(Some(to.0), None, || text);
        }
        self.give_node(to.0, NodeInput::Peer(from, message));
    }

    /// Something sent by a client has come to the node.
    pub(super) fn arrive_up(&mut self, place: u32, item: Item) {
        let stream = &mut self.links[place as usize].up;
        if stream.is_clear(self.now) {
            // Most messages: they need not be handed to and fro.
            self.deliver_up(place, item);
            return;
        }
        let arrival = stream.arrive(self.now, item);
        match arrival {
            Arrival::Now(item) => self.deliver_up(place, item),
            Arrival::Held(Some(until)) => {
                self.queue.push(True(until), Event::Release(place, Way::Up));
            }
            Arrival::Held(None) | Arrival::Lost => {}
        }
    }

    /// Something sent by a node has come to the client.
    pub(super) fn arrive_down(&mut self, place: u32, item: Item) {
        let stream = &mut self.links[place as usize].down;
        if stream.is_clear(self.now) {
            self.deliver_down(place, item);
            return;
        }
        let arrival = stream.arrive(self.now, item);
        match arrival {
            Arrival::Now(item) => self.deliver_down(place, item),
            Arrival::Held(Some(until)) => {
                self.queue
                    .push(True(until), Event::Release(place, Way::Down));
            }
            Arrival::Held(None) | Arrival::Lost => {}
        }
    }

    fn deliver_up(&mut self, place: u32, item: Item) {
        let link = &self.links[place as usize];
        let (node, client) = (link.node, link.client);
        if !link.node_open || self.nodes[node as usize].life != link.node_life {
            return;
        }
        let id = LinkId(u64::from(place));
        if let Some(message) = item {
            if self.tracer.is_some() {
                let text = format!("<- {}", trace::message(&message));
                self.note(Some(node), Some(client), || text);
            }
            self.remember_session(node, &message);
            self.warn_of_finish(node, &message);
            self.give_node(node, NodeInput::Receive(id, message));
        } else {
            self.links[place as usize].node_open = false;
            self.note(Some(node), Some(client), || {
                "<- the connection ends".to_owned()
            });
            self.give_node(node, NodeInput::Closed(id));
        }
    }

    fn deliver_down(&mut self, place: u32, item: Item) {
        let link = &self.links[place as usize];
        let (node, client, life, conn) = (link.node, link.client, link.client_life, link.conn);
        if !link.client_open {
            return;
        }
        if let Some(message) = item {
            if self.tracer.is_some() {
                let text = format!("-> {}", trace::message(&message));
                self.note(Some(node), Some(client), || text);
            }
            self.give_client(
                client,
                life,
                ClientInput::Receive(NodeId(node), conn, message),
            );
        } else {
            self.client_hears_end(place);
        }
    }

    fn client_hears_end(&mut self, place: u32) {
        let link = &mut self.links[place as usize];
        if !link.client_open {
            return;
        }
        link.client_open = false;
        let (node, client, life, conn) = (link.node, link.client, link.client_life, link.conn);
        self.forget_link(place);
        self.note(Some(node), Some(client), || {
            format!("-> connection {conn} ends")
        });
        self.give_client(client, life, ClientInput::Closed(NodeId(node), conn));
    }

    /// A stall may have ended: what waited for it comes, in order.
    pub(super) fn release(&mut self, place: u32, way: Way) {
        match self.links[place as usize].way(way).release(self.now) {
            Ok(items) => {
                for item in items {
                    match way {
                        Way::Up => self.deliver_up(place, item),
                        Way::Down => self.deliver_down(place, item),
                    }
                }
            }
            Err(until) => self.queue.push(True(until), Event::Release(place, way)),
        }
    }

    /// The client closes its end; the node hears it after all that was sent before.
    pub(super) fn close_by_client(&mut self, place: u32) {
        let link = &mut self.links[place as usize];
        if !link.client_open {
            return;
        }
        link.client_open = false;
        let nanos = link.latency.draw(&mut self.rng);
        let at = link.up.depart(self.now, nanos);
        self.queue.push(True(at), Event::Up(place, None));
    }

    /// The client's machine asks for a connection to be closed.
    pub(super) fn disconnect(&mut self, client: u32, node: NodeId, conn: ConnNo) {
        let place = self.clients[client as usize].links[node.index()];
        if place != NONE && self.links[place as usize].conn == conn {
            self.close_by_client(place);
            self.forget_link(place);
        }
    }

    /// The node closes its end; the client hears it after all that was sent before.
    pub(super) fn close_by_node(&mut self, node: u32, place: u32) {
        let Some(link) = self.links.get_mut(place as usize) else {
            return;
        };
        if !link.node_open || link.node != node {
            return;
        }
        link.node_open = false;
        let nanos = link.latency.draw(&mut self.rng);
        let at = link.down.depart(self.now, nanos);
        self.queue.push(True(at), Event::Down(place, None));
    }

    /// A connection breaks: both ends hear of it, at different times. What is under way is lost,
    /// or what the client sent arrives late, when a newer connection may be open.
    pub(super) fn reset(&mut self, place: u32, late: bool) {
        let link = &self.links[place as usize];
        let (client, node) = (link.client, link.node);
        self.disturb_pair(client, node, self.now + BROKEN_NANOS);
        let soon = |world: &mut Self, nanos: usize| 1 + world.mischief.below(nanos) as u64;
        let link = &mut self.links[place as usize];
        link.down.lose();
        if late {
            let hold = 1_000_000 + self.mischief.below(600_000_000) as u64;
            link.up.stall(self.now + hold);
            // The end follows the late bytes.
            let at = link.up.depart(self.now, hold + 1_000_000);
            self.queue.push(True(at), Event::Up(place, None));
        } else {
            link.up.lose();
            let nanos = soon(self, BROKEN_NANOS as usize);
            self.queue.push_in(nanos, Event::Broken(place, Way::Up));
        }
        let nanos = soon(self, 60_000_000);
        self.queue.push_in(nanos, Event::Broken(place, Way::Down));
    }

    /// An end learns that its connection is broken.
    pub(super) fn broken(&mut self, place: u32, way: Way) {
        match way {
            Way::Up => self.deliver_up(place, None),
            Way::Down => self.client_hears_end(place),
        }
    }

    /// Stalls one way between a client and a node.
    pub(super) fn stall(&mut self, client: u32, node: u32, way: Way, until: u64) {
        let pair = client as usize * self.nodes.len() + node as usize;
        let stall = &mut self.stalls[pair][way as usize];
        *stall = (*stall).max(until);
        self.disturb_pair(client, node, until);
        let place = self.clients[client as usize].links[node as usize];
        if place != NONE {
            self.links[place as usize].way(way).stall(until);
        }
    }

    /// Ends all stalls; late bytes of old connections come soon.
    pub(super) fn end_stalls(&mut self) {
        self.stalls.fill([0; 2]);
        self.splits.fill(0);
        for place in 0..self.links.len() as u32 {
            for way in [Way::Up, Way::Down] {
                let stream = self.links[place as usize].way(way);
                stream.resume(self.now);
                if stream.is_holding() {
                    self.queue.push(True(self.now), Event::Release(place, way));
                }
            }
        }
    }

    /// All connections of a node's process are gone; clients hear of it.
    pub(super) fn drop_links_of_node(&mut self, node: u32) {
        for place in 0..self.links.len() as u32 {
            let link = &self.links[place as usize];
            if link.node == node && link.node_open {
                self.close_by_node(node, place);
            }
        }
    }

    /// All connections of a client's process are gone; nodes hear of it.
    pub(super) fn drop_links_of_client(&mut self, client: u32) {
        for node in 0..self.nodes.len() {
            let place = self.clients[client as usize].links[node];
            if place != NONE {
                self.close_by_client(place);
                self.clients[client as usize].links[node] = NONE;
            }
        }
    }
}
