//! A state of the whole system, and what can happen next.

use std::hash::{Hash, Hasher};

use conclave_protocol::id::{GrantNo, NodeId};
use conclave_protocol::lock::{Ended, Fence, GrantRef, Message};

use super::options::ModelOptions;
use super::properties::Broken;
use super::space::{Dest, Happened, Holding, In, Space, digest};

/// Where a requester is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Idle,
    Waiting,
    Inside,
    Dead,
}

/// A requester, as its caller sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seat {
    pub(super) stage: Stage,
    /// How many times it will still ask.
    asks: u16,
    /// How many times it has asked before.
    attempt: u16,
    /// The nodes that have not yet noticed that it is dead.
    open: u64,
}

/// One step. Clients and nodes are counted from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Ask(u8),
    Cancel(u8),
    Release(u8),
    /// The next message of a client reaches a node.
    Up(u8, u8),
    /// The next message of a node reaches a client.
    Down(u8, u8),
    /// The next message of a node reaches another node.
    Across(u8, u8),
    /// A node expires the session of a live client.
    Expire(u8, u8),
    Crash(u8),
    /// A node notices that a dead client's connection is gone.
    Close(u8, u8),
    /// A node expires the session of a dead client.
    Bury(u8, u8),
}

impl Action {
    /// Whether it is a fault or a whim: a state in which only such are left is at rest.
    pub(super) fn is_whim(self) -> bool {
        matches!(self, Self::Cancel(_) | Self::Expire(..) | Self::Crash(_))
    }
}

/// All processes, all messages under way, and what the properties need to remember.
#[derive(Clone)]
pub(super) struct State {
    /// Local states by number.
    pub(super) nodes: Vec<u32>,
    pub(super) clients: Vec<u32>,
    /// Messages from clients to nodes, from nodes to clients and between nodes.
    queues: Vec<Vec<u32>>,
    pub(super) seats: Vec<Seat>,
    /// What the resource has seen: whoever enters uses it at once, because that can only make it
    /// refuse more.
    pub(super) fence: Fence,
    /// Grants that ended as possibly used without their holder's word.
    revoked: Vec<(u8, u8, u64)>,
    cancels: u32,
    expiries: u32,
    crashes: u32,
}

impl State {
    /// Everyone is connected and nobody has asked.
    pub(super) fn new(nodes: Vec<u32>, clients: Vec<u32>, options: &ModelOptions) -> Self {
        let pairs = nodes.len() * clients.len();
        let seat = Seat {
            stage: Stage::Idle,
            asks: options.rounds(),
            attempt: 0,
            open: 0,
        };
        Self {
            queues: vec![Vec::new(); 2 * pairs + nodes.len() * nodes.len()],
            seats: vec![seat; clients.len()],
            nodes,
            clients,
            fence: Fence::new(),
            revoked: Vec::new(),
            cancels: options.cancels,
            expiries: options.expiries,
            crashes: options.crashes,
        }
    }

    fn up(&self, client: usize, node: usize) -> usize {
        client * self.nodes.len() + node
    }

    fn down(&self, client: usize, node: usize) -> usize {
        (self.clients.len() + client) * self.nodes.len() + node
    }

    fn across(&self, from: usize, to: usize) -> usize {
        (2 * self.clients.len() + from) * self.nodes.len() + to
    }

    /// What a client rests on, if it is inside.
    pub(super) fn holding<'a>(&self, client: usize, space: &'a Space) -> Option<&'a Holding> {
        space.clients[self.clients[client] as usize]
            .holding
            .as_ref()
    }

    /// Whether a node took this grant back without a word of its holder.
    pub(super) fn is_revoked(&self, client: usize, node: NodeId, grant: GrantNo) -> bool {
        let revoked = (client as u8, node.0 as u8, grant.0);
        self.revoked.contains(&revoked)
    }

    /// What can happen next, and whether any of it happens by itself.
    pub(super) fn actions(&self, space: &Space) -> (Vec<Action>, bool) {
        let mut actions = Vec::new();
        for client in 0..self.clients.len() {
            self.actions_of(client, space, &mut actions);
        }
        for from in 0..self.nodes.len() {
            for to in 0..self.nodes.len() {
                if !self.queues[self.across(from, to)].is_empty() {
                    actions.push(Action::Across(from as u8, to as u8));
                }
            }
        }
        let moves = actions.iter().any(|action| !action.is_whim());
        (actions, moves)
    }

    fn actions_of(&self, client: usize, space: &Space, actions: &mut Vec<Action>) {
        let seat = &self.seats[client];
        let c = client as u8;
        match seat.stage {
            Stage::Idle if seat.asks > 0 => actions.push(Action::Ask(c)),
            Stage::Waiting if self.cancels > 0 => actions.push(Action::Cancel(c)),
            Stage::Inside => actions.push(Action::Release(c)),
            _ => {}
        }
        let dead = seat.stage == Stage::Dead;
        let busy = matches!(seat.stage, Stage::Waiting | Stage::Inside);
        if busy && self.crashes > 0 {
            actions.push(Action::Crash(c));
        }
        for node in 0..self.nodes.len() {
            let n = node as u8;
            let mail = !self.queues[self.up(client, node)].is_empty();
            if mail {
                actions.push(Action::Up(c, n));
            }
            if dead {
                let machine = &space.nodes[self.nodes[node] as usize].machine;
                if seat.open & 1 << node != 0 {
                    actions.push(Action::Close(c, n));
                } else if machine.knows(space.sessions[client]) {
                    actions.push(Action::Bury(c, n));
                }
                continue;
            }
            if !self.queues[self.down(client, node)].is_empty() {
                actions.push(Action::Down(c, n));
            }
            if busy && self.expiries > 0 && (mail || self.has_entry(client, node, space)) {
                actions.push(Action::Expire(c, n));
            }
        }
    }

    fn has_entry(&self, client: usize, node: usize, space: &Space) -> bool {
        let local = &space.nodes[self.nodes[node] as usize];
        let session = space.sessions[client];
        local.asked.contains(&session)
    }

    /// Takes a step. Says what went wrong in it, if anything did.
    pub(super) fn apply(&mut self, action: Action, space: &mut Space) -> Option<Broken> {
        let broken = self.step(action, space);
        self.hand_over_idle_talk(space);
        self.forget_revoked(space);
        broken
    }

    fn step(&mut self, action: Action, space: &mut Space) -> Option<Broken> {
        match action {
            Action::Ask(c) => {
                let seat = &mut self.seats[usize::from(c)];
                seat.stage = Stage::Waiting;
                seat.asks -= 1;
                let attempt = seat.attempt;
                seat.attempt += 1;
                self.client_step(usize::from(c), In::Ask(attempt), space)
            }
            Action::Cancel(c) => {
                self.cancels -= 1;
                let seat = &mut self.seats[usize::from(c)];
                seat.asks += 1;
                let attempt = seat.attempt - 1;
                self.client_step(usize::from(c), In::Cancel(attempt), space)
            }
            Action::Release(c) => {
                let attempt = self.seats[usize::from(c)].attempt - 1;
                self.client_step(usize::from(c), In::Release(attempt), space)
            }
            Action::Up(c, n) => {
                let (client, node) = (usize::from(c), usize::from(n));
                let queue = self.up(client, node);
                let mail = self.queues[queue].remove(0);
                self.node_step(node, In::Mail(u16::from(c), mail), space)
            }
            Action::Down(c, n) => {
                let (client, node) = (usize::from(c), usize::from(n));
                let queue = self.down(client, node);
                let mail = self.queues[queue].remove(0);
                self.client_step(client, In::Mail(u16::from(n), mail), space)
            }
            Action::Across(from, to) => {
                let queue = self.across(usize::from(from), usize::from(to));
                let mail = self.queues[queue].remove(0);
                self.node_step(usize::from(to), In::Peer(u16::from(from), mail), space)
            }
            Action::Expire(c, n) => {
                self.expiries -= 1;
                self.node_step(usize::from(n), In::Expire(u16::from(c)), space)
            }
            Action::Crash(c) => {
                self.crash(usize::from(c));
                None
            }
            Action::Close(c, n) => {
                let (client, node) = (usize::from(c), usize::from(n));
                self.seats[client].open &= !(1 << node);
                let queue = self.up(client, node);
                self.queues[queue].clear();
                self.node_step(node, In::Closed(u16::from(c)), space)
            }
            Action::Bury(c, n) => self.node_step(usize::from(n), In::Expire(u16::from(c)), space),
        }
    }

    /// The process is gone. What it sent may still arrive, until each node notices.
    fn crash(&mut self, client: usize) {
        self.crashes -= 1;
        let seat = &mut self.seats[client];
        seat.stage = Stage::Dead;
        seat.open = (1 << self.nodes.len()) - 1;
        for node in 0..self.nodes.len() {
            let queue = self.down(client, node);
            self.queues[queue].clear();
        }
    }

    fn node_step(&mut self, node: usize, input: In, space: &mut Space) -> Option<Broken> {
        let outcome = space.step_node(node, self.nodes[node], input);
        let outcome = space.outcome(outcome);
        self.nodes[node] = outcome.next;
        for (dest, mail) in &outcome.sends {
            let queue = match dest {
                Dest::Client(client) if self.seats[*client].stage == Stage::Dead => continue,
                Dest::Client(client) => self.down(*client, node),
                Dest::Node(to) => self.across(node, *to),
            };
            self.queues[queue].push(*mail);
        }
        let mut broken = None;
        for happened in &outcome.happened {
            match happened {
                Happened::Revoked { session, grant } => {
                    let owner = space.sessions.iter().position(|one| one == session);
                    let owner = owner.unwrap_or_default() as u8;
                    self.revoked.push((owner, node as u8, grant.0));
                    self.revoked.sort_unstable();
                }
                Happened::Closed => {
                    broken = Some(("connection", format!("n{} closed a connection", node + 1)));
                }
                _ => {}
            }
        }
        broken
    }

    fn client_step(&mut self, client: usize, input: In, space: &mut Space) -> Option<Broken> {
        let attempt = self.seats[client].attempt.saturating_sub(1);
        let outcome = space.step_client(client, self.clients[client], input, attempt);
        let outcome = space.outcome(outcome);
        self.clients[client] = outcome.next;
        for (dest, mail) in &outcome.sends {
            if let Dest::Node(node) = dest {
                let queue = self.up(client, *node);
                self.queues[queue].push(*mail);
            }
        }
        let mut broken = None;
        for happened in &outcome.happened {
            let seat = &mut self.seats[client];
            match happened {
                Happened::Holds { group, token } => {
                    seat.stage = Stage::Inside;
                    // Whether it had to be admitted is judged with the state.
                    self.fence.admit(group, *token);
                }
                Happened::Lost | Happened::Over(Ended::Released | Ended::Cancelled) => {
                    seat.stage = Stage::Idle;
                }
                Happened::Over(ended) => {
                    seat.stage = Stage::Idle;
                    let what = format!("c{} was given up: {ended:?}", client + 1);
                    broken = Some(("forgotten", what));
                }
                Happened::Closed => {
                    let what = format!("c{} closed a connection", client + 1);
                    broken = Some(("connection", what));
                }
                Happened::Revoked { .. } => {}
            }
        }
        broken
    }

    /// Hands over messages that make no difference, see [`Space::is_idle_talk`].
    fn hand_over_idle_talk(&mut self, space: &mut Space) {
        for client in 0..self.clients.len() {
            for node in 0..self.nodes.len() {
                let queue = self.down(client, node);
                while let Some(mail) = self.queues[queue].first().copied()
                    && space.is_idle_talk(mail)
                {
                    self.queues[queue].remove(0);
                    let input = In::Mail(node as u16, mail);
                    self.client_step(client, input, space);
                }
            }
        }
    }

    /// A revoked grant that nobody has in hand or will get makes no difference any more.
    fn forget_revoked(&mut self, space: &Space) {
        if self.revoked.is_empty() {
            return;
        }
        let mut revoked = std::mem::take(&mut self.revoked);
        revoked.retain(|(client, node, grant)| {
            let (client, node) = (usize::from(*client), usize::from(*node));
            if self.seats[client].stage == Stage::Dead {
                return false;
            }
            let pair = space.pair(client, node);
            let queue = &self.queues[self.down(client, node)];
            let mails = queue.iter().map(|mail| &space.mails[*mail as usize].form);
            let local = &space.clients[self.clients[client] as usize].form;
            let mut forms = mails.chain([local]);
            forms.any(|form| {
                let mut ranked = form.ranked.iter();
                ranked.any(|one| one.pair == pair && one.number == *grant && !one.looks)
            })
        });
        self.revoked = revoked;
    }

    /// The identity of this state: grant numbers count by their rank among those of the same node
    /// and session.
    pub(super) fn digest(&self, space: &Space, scratch: &mut Scratch) -> u128 {
        scratch.numbers.resize(space.pairs(), Vec::new());
        scratch.numbers.iter_mut().for_each(Vec::clear);
        scratch.bytes.clear();
        self.each_form(space, |form| {
            for one in form.ranked.iter().filter(|one| !one.looks) {
                scratch.numbers[usize::from(one.pair)].push(one.number);
            }
        });
        for numbers in &mut scratch.numbers {
            numbers.sort_unstable();
            numbers.dedup();
        }
        let Scratch {
            numbers,
            bytes,
            literal,
        } = scratch;
        let literal = *literal;
        let rank = |pair: u16, number: u64, bytes: &mut Vec<u8>| {
            if literal {
                bytes.extend_from_slice(&number.to_le_bytes());
                return;
            }
            // The same count serves both kinds: how many grants are not above the number.
            let known = &numbers[usize::from(pair)];
            bytes.push(known.partition_point(|other| *other <= number) as u8);
        };
        self.each_form(space, |form| {
            bytes.extend_from_slice(&form.plain.to_le_bytes());
            for one in &form.ranked {
                rank(one.pair, one.number, bytes);
            }
        });
        for queue in &self.queues {
            bytes.push(queue.len() as u8);
        }
        for seat in &self.seats {
            bytes.push(seat.stage as u8);
            bytes.extend_from_slice(&seat.asks.to_le_bytes());
            bytes.extend_from_slice(&seat.attempt.to_le_bytes());
            bytes.extend_from_slice(&seat.open.to_le_bytes());
        }
        for (client, node, grant) in &self.revoked {
            bytes.extend_from_slice(&[*client, *node]);
            let pair = space.pair(usize::from(*client), usize::from(*node));
            rank(pair, *grant, bytes);
        }
        for budget in [self.cancels, self.expiries, self.crashes] {
            bytes.extend_from_slice(&budget.to_le_bytes());
        }
        let mut fence = Bytes(bytes);
        self.fence.hash(&mut fence);
        digest(bytes)
    }

    fn each_form(&self, space: &Space, mut tell: impl FnMut(&super::space::Form)) {
        for node in &self.nodes {
            tell(&space.nodes[*node as usize].form);
        }
        for (client, local) in self.clients.iter().enumerate() {
            if self.seats[client].stage != Stage::Dead {
                tell(&space.clients[*local as usize].form);
            }
        }
        for mail in self.queues.iter().flatten() {
            tell(&space.mails[*mail as usize].form);
        }
    }

    /// Delivers everything, in one fixed order.
    pub(super) fn drain(&mut self, space: &mut Space) {
        let deliver = |action: &Action| matches!(action, Action::Up(..) | Action::Down(..));
        while let Some(action) = self.actions(space).0.into_iter().find(deliver) {
            self.apply(action, space);
        }
    }

    /// Gets a client connected to the nodes of a quorum, for the preparation.
    pub(super) fn warm_up(&mut self, client: usize, round: u16, space: &mut Space) {
        for input in [In::Warm(round), In::Cool(round)] {
            self.client_step(client, input, space);
            self.drain(space);
        }
    }

    /// Sends the heartbeats that are due and has them answered: nodes then are known to know
    /// everyone's session.
    pub(super) fn beat(&mut self, space: &mut Space) {
        for client in 0..self.clients.len() {
            self.client_step(client, In::Beat, space);
        }
        self.drain(space);
    }

    /// Who went in or out since an earlier state, in words.
    pub(super) fn news(&self, before: &Self, space: &Space) -> String {
        let mut news = Vec::new();
        for client in 0..self.clients.len() {
            let (was, is) = (before.seats[client].stage, self.seats[client].stage);
            let name = client + 1;
            match (was, is) {
                (Stage::Waiting, Stage::Inside) => {
                    let token = self.holding(client, space).map(|holding| holding.token);
                    let token = token.unwrap_or_default();
                    news.push(format!("; c{name} enters with token {token}"));
                }
                (Stage::Inside, Stage::Idle) => news.push(format!("; c{name} is out")),
                _ => {}
            }
        }
        news.concat()
    }

    /// An action in words, as it would happen in this state.
    pub(super) fn describe(&self, action: Action, space: &Space) -> String {
        let says = |queue: usize| {
            let mail = self.queues[queue].first();
            mail.map_or_else(String::new, |mail| {
                words(&space.mails[*mail as usize].message)
            })
        };
        let one = |index: u8| index + 1;
        match action {
            Action::Ask(c) => format!("c{} asks", one(c)),
            Action::Cancel(c) => format!("c{} cancels", one(c)),
            Action::Release(c) => format!("c{} releases", one(c)),
            Action::Up(c, n) => {
                let said = says(self.up(usize::from(c), usize::from(n)));
                format!("n{} hears from c{}: {said}", one(n), one(c))
            }
            Action::Down(c, n) => {
                let said = says(self.down(usize::from(c), usize::from(n)));
                format!("c{} hears from n{}: {said}", one(c), one(n))
            }
            Action::Across(from, to) => {
                let said = says(self.across(usize::from(from), usize::from(to)));
                format!("n{} hears from n{}: {said}", one(to), one(from))
            }
            Action::Expire(c, n) => format!("n{} expires the session of c{}", one(n), one(c)),
            Action::Crash(c) => format!("c{} crashes", one(c)),
            Action::Close(c, n) => format!("n{} loses the connection of c{}", one(n), one(c)),
            Action::Bury(c, n) => format!("n{} expires the dead c{}", one(n), one(c)),
        }
    }
}

/// Writes what is hashed as it is.
struct Bytes<'a>(&'a mut Vec<u8>);

impl Hasher for Bytes<'_> {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn finish(&self) -> u64 {
        0
    }
}

/// Room for computing digests.
#[derive(Default)]
pub(super) struct Scratch {
    numbers: Vec<Vec<u64>>,
    bytes: Vec<u8>,
    /// Whether numbers count as they are: only a test of the ranks wants that.
    pub(super) literal: bool,
}

/// A message in a trace.
fn words(message: &Message) -> String {
    let kind = message.kind();
    match message {
        Message::Request { ask, .. } => format!("{kind} {}", ask.request),
        Message::Locked {
            grant,
            floor,
            limit,
            ..
        } => format!("{kind} {} floor {floor} limit {limit}", named(grant)),
        Message::Inquire(grant) | Message::Yield(grant) | Message::Noted(grant) => {
            format!("{kind} {}", named(grant))
        }
        Message::Raise { grant, token } | Message::Raised { grant, token } => {
            format!("{kind} {} token {token}", named(grant))
        }
        Message::Done { request, token, .. } => match token {
            Some(token) => format!("{kind} {request} token {token}"),
            None => format!("{kind} {request}"),
        },
        _ => kind.to_owned(),
    }
}

/// A grant in a trace; the upper half of its number is the node's life.
fn named(grant: &GrantRef) -> String {
    format!("{} grant {}", grant.request, grant.grant.0 as u32)
}
