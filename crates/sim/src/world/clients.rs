//! Client processes: starting, stepping, crashing, pausing.

use std::collections::VecDeque;

use conclave_protocol::Machine;
use conclave_protocol::id::{ClientId, Key};
use conclave_protocol::lock::{
    ClientEffects, ClientEvent, ClientInput, LockClient, Message, Watch,
};
use conclave_quorum::Prng;

use super::holds::Do;
use super::wires::NONE;
use super::{Event, World};
use crate::clock::Clock;
use crate::fact::{Fact, True, Violation};
use crate::net::exponential;
use crate::options::Options;

/// What a paused process finds when it goes on.
#[derive(Debug)]
pub(super) enum ClientThing {
    Input(ClientInput),
    Due(Key, Do),
    Wish,
}

/// One client's process.
#[derive(Debug)]
pub(super) struct ClientProcess {
    /// The machine; none while the process is down.
    pub(super) machine: Option<LockClient>,
    /// Counts the starts of the process.
    pub(super) life: u32,
    pub(super) paused: bool,
    /// Since when it runs without a pause.
    pub(super) awake_since: u64,
    pub(super) clock: Clock,
    /// When the earliest wake-up under way comes.
    wake: u64,
    inbox: VecDeque<ClientThing>,
    /// The present connection to each node.
    pub(super) links: Vec<u32>,
    /// How many wishes it has made.
    pub(super) asked: u64,
    /// Whether a wish of this life has entered.
    pub(super) warm: bool,
}

impl ClientProcess {
    pub(super) fn new(options: &Options, nodes: usize, rng: &mut Prng) -> Self {
        let clock = if options.has_faults() || options.skew_ms > 0 {
            Clock::draw(options.drift_ppm, options.skew_ms * 1000, rng)
        } else {
            Clock::exact()
        };
        Self {
            machine: None,
            life: 0,
            paused: false,
            awake_since: 0,
            clock,
            wake: u64::MAX,
            inbox: VecDeque::new(),
            links: vec![NONE; nodes],
            asked: 0,
            warm: false,
        }
    }
}

impl World<'_> {
    /// A client's process starts: a new client, for all that nodes know.
    pub(super) fn start_client(&mut self, client: u32) {
        let process = &mut self.clients[client as usize];
        if process.machine.is_some() {
            return;
        }
        process.life += 1;
        process.paused = false;
        process.awake_since = self.now;
        process.wake = u64::MAX;
        process.inbox.clear();
        process.warm = false;
        if process.life > 1 && self.mischief.chance(0.5) {
            process.clock.reboot(&mut self.mischief);
        }
        let id = ClientId(u128::from(self.rng.next_u64()) << 64 | u128::from(self.rng.next_u64()));
        let seed = self.rng.next_u64();
        process.machine = Some(LockClient::new(self.config.clone(), id, seed));
        let life = process.life;
        self.note(None, Some(client), || "* starts".to_owned());
        if client < self.options.watchers {
            self.begin_watch(client);
        }
        for _ in 0..self.options.wishes {
            let nanos = self.think();
            self.queue.push_in(nanos, Event::Wish(client, life));
        }
    }

    /// Gives a life of a client an input, now or when its pause ends.
    pub(super) fn give_client(&mut self, client: u32, life: u32, input: ClientInput) {
        let process = &mut self.clients[client as usize];
        if process.life != life || process.machine.is_none() {
            return;
        }
        if process.paused {
            process.inbox.push_back(ClientThing::Input(input));
        } else {
            self.step_client(client, input);
        }
    }

    /// Puts something that is due aside if the client cannot attend to it now.
    pub(super) fn defer(&mut self, client: u32, thing: ClientThing) -> Option<ClientThing> {
        let process = &mut self.clients[client as usize];
        if process.paused {
            process.inbox.push_back(thing);
            return None;
        }
        Some(thing)
    }

    pub(super) fn step_client(&mut self, client: u32, input: ClientInput) {
        let process = &mut self.clients[client as usize];
        let Some(machine) = &mut process.machine else {
            return;
        };
        let mut out = std::mem::take(&mut self.client_out);
        machine.handle(process.clock.now(True(self.now)), input, &mut out);
        self.after_client_step(client, &mut out);
        // A step within a step has left its own memory behind; keep this one.
        self.client_out = out;
    }

    fn after_client_step(&mut self, client: u32, out: &mut ClientEffects) {
        let life = self.clients[client as usize].life;
        let mut raised = false;
        for envelope in out.send_now.drain(..).chain(out.send_durable.drain(..)) {
            raised |= matches!(envelope.message, Message::Raise { .. });
            self.send_up(client, envelope.to, envelope.message);
        }
        if raised {
            self.meter.raised();
        }
        if !out.events.is_empty() {
            for event in out.events.drain(..) {
                if self.clients[client as usize].life == life {
                    self.client_event(client, life, event);
                }
            }
        }
        self.arm_client(client);
    }

    fn client_event(&mut self, client: u32, life: u32, event: ClientEvent) {
        match event {
            ClientEvent::Connect(node, conn) => self.connect(client, node, conn),
            ClientEvent::Disconnect(node, conn) => self.disconnect(client, node, conn),
            ClientEvent::Position(..) => {}
            ClientEvent::Seen(key, state) if self.watched => self.tell(&Fact::Seen {
                client,
                life,
                key,
                state,
            }),
            other => self.hold_event(client, life, other),
        }
    }

    /// The first client watches all locks, each other one a lock of its own.
    fn begin_watch(&mut self, client: u32) {
        let what = match client.checked_sub(1) {
            None => Watch::Prefix([].into()),
            Some(number) => Watch::Name(self.name(number % self.options.names.max(1))),
        };
        let key = self.holds.new_key();
        self.step_client(client, ClientInput::Watch(key, what));
    }

    fn arm_client(&mut self, client: u32) {
        let process = &mut self.clients[client as usize];
        let Some(machine) = &mut process.machine else {
            return;
        };
        machine.skip_stale_timers();
        if self.checkers.is_some()
            && let Some(what) = machine.lost_timer().or_else(|| machine.stuck_request())
        {
            self.violate(Violation {
                property: "next-step",
                at: True(self.now),
                what: format!("client {client}: {what}"),
            });
            return;
        }
        let Some(wake) = machine.next_wake() else {
            return;
        };
        let at = process.clock.true_at(wake.at).0.max(self.now);
        if at < process.wake {
            process.wake = at;
            self.queue.push(True(at), Event::WakeClient(client));
        }
    }

    pub(super) fn wake_client(&mut self, client: u32) {
        let process = &mut self.clients[client as usize];
        if process.wake != self.now {
            return;
        }
        process.wake = u64::MAX;
        if !process.paused {
            self.wake_client_if_due(client);
        }
    }

    fn wake_client_if_due(&mut self, client: u32) {
        let process = &self.clients[client as usize];
        let wake = process.machine.as_ref().and_then(Machine::next_wake);
        let Some(wake) = wake else {
            return;
        };
        if wake.at <= process.clock.now(True(self.now)).mono {
            self.step_client(client, ClientInput::Wake);
        } else {
            self.arm_client(client);
        }
    }

    /// A client's process dies, with everything it waited for and held.
    pub(super) fn crash_client(&mut self, client: u32) {
        let process = &mut self.clients[client as usize];
        if process.machine.take().is_none() {
            return;
        }
        process.inbox.clear();
        process.paused = false;
        self.note(None, Some(client), || "* CRASHES".to_owned());
        self.drop_links_of_client(client);
        self.vanish(client);
        let nanos = exponential(self.options.down_ms * 1_000_000, &mut self.mischief);
        self.queue.push_in(nanos, Event::StartClient(client));
    }

    pub(super) fn pause_client(&mut self, client: u32) {
        let process = &mut self.clients[client as usize];
        if process.machine.is_none() || process.paused {
            return;
        }
        process.paused = true;
        let life = process.life;
        self.note(None, Some(client), || "* is paused".to_owned());
        let nanos = exponential(self.options.pause_ms * 1_000_000, &mut self.mischief);
        self.queue.push_in(nanos, Event::ResumeClient(client, life));
    }

    /// A paused client goes on. What it was about to do to the resource it does first, not knowing
    /// how long it was away; then due wake-ups; then what came meanwhile.
    pub(super) fn resume_client(&mut self, client: u32, life: u32) {
        let process = &mut self.clients[client as usize];
        if process.life != life || !process.paused {
            return;
        }
        process.paused = false;
        process.awake_since = self.now;
        process.wake = u64::MAX;
        let inbox = std::mem::take(&mut process.inbox);
        self.note(None, Some(client), || "* goes on".to_owned());
        let acts = |thing: &ClientThing| matches!(thing, ClientThing::Due(_, Do::Act(_)));
        let (first, rest): (VecDeque<_>, VecDeque<_>) = inbox.into_iter().partition(acts);
        for thing in first {
            self.attend(client, life, thing);
        }
        self.wake_client_if_due(client);
        for thing in rest {
            if self.over {
                return;
            }
            self.attend(client, life, thing);
        }
        self.arm_client(client);
    }

    fn attend(&mut self, client: u32, life: u32, thing: ClientThing) {
        match thing {
            ClientThing::Input(input) => self.give_client(client, life, input),
            ClientThing::Due(key, Do::Act(lock)) => self.act(key, lock),
            ClientThing::Due(key, what) => self.hold_due(key, what),
            ClientThing::Wish => self.wish(client, life),
        }
    }
}
