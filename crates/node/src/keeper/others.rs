//! What a node does about leases and objects besides serving: it takes what the others have and it
//! lacks, and after the loss of its disk it comes back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::fault::{Faults, Lie};
use conclave_protocol::id::{ClientId, Key, Name, NodeId};
use conclave_protocol::keeper::client::{ClientEvent, ClientInput, Command};
use conclave_protocol::keeper::diffusion::{Diffusion, DiffusionEvent, DiffusionInput};
use conclave_protocol::keeper::rejoin::{Rejoin, RejoinEvent, RejoinInput};
use conclave_protocol::keeper::{KeeperClient, KeeperInput};
use conclave_protocol::object::Stamp;
use conclave_protocol::{Effects, Envelope, Instant, Machine, Now};
use tokio::sync::mpsc;

use super::links::{As, Dial, Event, Links};
use super::suspect::Suspects;
use super::{Configs, Inbox, Said};
use crate::meters::Meters;
use crate::sentry::Sentry;
use crate::shard::Clock;

/// So much that others said waits at the most.
const EVENTS_MAX: usize = 1024;
/// The loop looks around at least this often.
const ROUND_MAX: Duration = Duration::from_secs(1);

/// What the keeper's thread tells.
#[derive(Debug)]
pub(super) enum Notice {
    /// The disk was lost, and votes are given from some time on.
    Lost {
        /// When.
        opens: Instant,
        /// Whether there is no trace of anything kept.
        blank: bool,
    },
    /// Another node says that it never kept anything.
    New(NodeId),
    /// This node has committed a state.
    Own(Name, Stamp),
    /// A state that was handed over was not taken.
    NotAdopted(Name, Stamp),
}

/// What this work is made of.
pub(crate) struct Parts {
    pub(crate) config: Configs,
    pub(crate) dial: super::Dialling,
    pub(crate) clock: Clock,
    pub(crate) inbox: Inbox,
    pub(crate) meters: Arc<Meters>,
    pub(crate) sentry: Sentry,
}

/// Starts the thread; it ends when the keeper's does.
pub(super) fn spawn(parts: Parts) -> std::io::Result<mpsc::UnboundedSender<Notice>> {
    let (notify, notices) = mpsc::unbounded_channel();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let sentry = parts.sentry.clone();
    sentry.thread("others", move || {
        runtime.block_on(Others::new(parts).run(notices));
    })?;
    Ok(notify)
}

struct Others {
    parts: Parts,
    diffusion: Option<Diffusion>,
    suspects: Suspects,
    back: Option<Back>,
    /// Connections on which this node looks. None as long as it has no object: a cluster that is
    /// used for locks alone is not crossed by connections.
    look: Option<Links>,
    events: mpsc::Sender<Event>,
    heard: mpsc::Receiver<Event>,
}

/// The way back of a node that has lost its disk.
struct Back {
    rejoin: Rejoin,
    client: KeeperClient,
    act: Links,
    orders: BTreeMap<Key, Name>,
    next: u64,
}

impl Others {
    fn new(parts: Parts) -> Self {
        let (events, heard) = mpsc::channel(EVENTS_MAX);
        let seed = getrandom::u64().unwrap_or(1);
        let objects = parts.config.objects.clone();
        let alone = parts.dial.cluster.nodes.len() < 2;
        Self {
            diffusion: objects
                .filter(|_| !alone)
                .map(|objects| Diffusion::new(objects, seed)),
            suspects: Suspects::default(),
            back: None,
            look: None,
            parts,
            events,
            heard,
        }
    }

    async fn run(mut self, mut notices: mpsc::UnboundedReceiver<Notice>) {
        loop {
            let wait = self.timeout();
            tokio::select! {
                notice = notices.recv() => match notice {
                    Some(notice) => self.noticed(notice),
                    None => return,
                },
                event = self.heard.recv() => {
                    if let Some(event) = event {
                        self.told(event);
                    }
                }
                () = tokio::time::sleep(wait) => {}
            }
            self.wake_if_due();
        }
    }

    fn dial(&self, role: As) -> Dial {
        let dialling = &self.parts.dial;
        let rejoin = dialling.rejoin.as_ref().filter(|_| role == As::Client);
        Dial {
            role,
            id: dialling.id,
            process: dialling.process,
            cluster: dialling.cluster.clone(),
            security: rejoin.unwrap_or(&dialling.security).clone(),
            sentry: self.parts.sentry.clone(),
        }
    }

    fn now(&self) -> Now {
        (self.parts.clock)()
    }

    fn timeout(&self) -> Duration {
        let now = self.now().mono;
        let wakes = [
            self.diffusion.as_ref().and_then(Machine::next_wake),
            self.back.as_ref().and_then(|back| back.rejoin.next_wake()),
            self.back.as_ref().and_then(|back| back.client.next_wake()),
        ];
        let next = wakes.into_iter().flatten().map(|wake| wake.at.since(now));
        next.min().map_or(ROUND_MAX, |wait| wait.min(ROUND_MAX))
    }

    fn noticed(&mut self, notice: Notice) {
        if self.look.is_none() {
            self.look = Some(Links::open(&self.dial(As::Node), &self.events));
        }
        match notice {
            Notice::Own(object, stamp) => {
                let lies = self.suspects.own(self.now(), object.clone(), stamp);
                self.count(lies);
                self.diffuse(DiffusionInput::Own(object, stamp));
            }
            Notice::NotAdopted(object, stamp) => {
                self.diffuse(DiffusionInput::NotAdopted(object, stamp));
            }
            Notice::Lost { opens, blank } => self.begin_back(opens, blank),
            Notice::New(node) => self.rejoin(RejoinInput::New(node)),
        }
    }

    fn begin_back(&mut self, opens: Instant, blank: bool) {
        let config = &self.parts.config;
        let faults: Faults = config.lease.faults;
        if faults.nodes() < 2 {
            tracing::error!(
                "the only node has lost its disk and nobody can tell what it kept; start it \
                 with --init if its leases and objects may be forgotten"
            );
            return;
        }
        let mut seed = [0; 32];
        let mut client = [0; 16];
        if getrandom::fill(&mut seed).is_err() || getrandom::fill(&mut client).is_err() {
            tracing::error!("the system gives no random numbers: this node cannot rejoin");
            return;
        }
        let client = ClientId(u128::from_le_bytes(client));
        let objects = config.objects.clone();
        self.back = Some(Back {
            rejoin: Rejoin::new(faults, objects.as_ref(), opens, blank),
            client: KeeperClient::new(config.lease.clone(), objects, client, seed),
            act: Links::open(&self.dial(As::Client), &self.events),
            orders: BTreeMap::new(),
            next: 0,
        });
    }

    fn told(&mut self, event: Event) {
        match event {
            Event::Opened(As::Node, node) => {
                self.suspects.opened(self.now(), node);
                self.rejoin(RejoinInput::Opened(node));
                self.diffuse(DiffusionInput::Opened(node));
            }
            Event::Closed(As::Node, node) => {
                self.suspects.closed(node);
                self.rejoin(RejoinInput::Closed(node));
                self.diffuse(DiffusionInput::Closed(node));
            }
            Event::Heard(As::Node, node, answer) => {
                let lies = self.suspects.heard(self.now(), node, &answer);
                self.count(lies);
                self.rejoin(RejoinInput::Heard(node, answer.clone()));
                self.diffuse(DiffusionInput::Heard(node, answer));
            }
            Event::Opened(As::Client, node) => self.act(ClientInput::Opened(node)),
            Event::Closed(As::Client, node) => self.act(ClientInput::Closed(node)),
            Event::Heard(As::Client, node, answer) => self.act(ClientInput::Heard(node, answer)),
        }
    }

    fn count(&self, lies: Vec<(NodeId, Lie)>) {
        for (node, lie) in lies {
            self.parts.meters.keeper.lied(node, lie, 1);
        }
    }

    fn wake_if_due(&mut self) {
        if self.diffusion.is_some() {
            let silent = self.suspects.silent(self.now());
            self.count(silent);
        }
        let now = self.now().mono;
        let due = |wake: Option<conclave_protocol::Wake>| wake.is_some_and(|wake| wake.at <= now);
        if due(self.diffusion.as_ref().and_then(Machine::next_wake)) {
            self.diffuse(DiffusionInput::Wake);
        }
        if due(self.back.as_ref().and_then(|back| back.rejoin.next_wake())) {
            self.rejoin(RejoinInput::Wake);
        }
        if due(self.back.as_ref().and_then(|back| back.client.next_wake())) {
            self.act(ClientInput::Wake);
        }
    }

    fn ask_all(
        &self,
        asks: impl IntoIterator<Item = Envelope<NodeId, conclave_protocol::keeper::Ask>>,
    ) {
        if let Some(look) = &self.look {
            for envelope in asks {
                look.ask(envelope.to, envelope.message);
            }
        }
    }

    fn diffuse(&mut self, input: DiffusionInput) {
        let now = self.now();
        let Some(diffusion) = &mut self.diffusion else {
            return;
        };
        let mut out = Effects::new();
        diffusion.handle(now, input, &mut out);
        let behind = diffusion.behind();
        self.parts
            .meters
            .keeper
            .lag
            .set(i64::try_from(behind).unwrap_or(i64::MAX));
        self.ask_all(out.send_now);
        for event in out.events {
            let input = match event {
                DiffusionEvent::Adopt {
                    object,
                    stamp,
                    remedy,
                } => KeeperInput::Adopt {
                    object,
                    stamp,
                    remedy,
                },
                DiffusionEvent::Settled { object, stamp } => KeeperInput::Settled { object, stamp },
            };
            self.parts.inbox.put(Said::Input(input), 0);
        }
    }

    fn rejoin(&mut self, input: RejoinInput) {
        let now = self.now();
        let Some(back) = &mut self.back else { return };
        let mut out = Effects::new();
        back.rejoin.handle(now, input, &mut out);
        self.ask_all(out.send_now);
        for event in out.events {
            match event {
                RejoinEvent::Refresh(object) => self.refresh(object),
                RejoinEvent::Begin => {
                    self.parts.inbox.put(Said::Input(KeeperInput::Begin), 0);
                    tracing::info!("no node ever kept leases or objects: this one begins");
                    if let Some(back) = self.back.take() {
                        back.act.end();
                    }
                    return;
                }
                RejoinEvent::Rejoined { mark } => {
                    let rejoined = KeeperInput::Rejoined { mark };
                    self.parts.inbox.put(Said::Input(rejoined), 0);
                    tracing::info!("all objects are back: this node serves them again");
                    if let Some(back) = self.back.take() {
                        back.act.end();
                    }
                    return;
                }
            }
        }
    }

    fn refresh(&mut self, object: Name) {
        let Some(back) = &mut self.back else { return };
        back.next += 1;
        let key = Key(back.next);
        back.orders.insert(key, object.clone());
        self.act(ClientInput::Do(key, Command::Refresh { object }));
    }

    /// Lets the client that orders objects anew go on.
    fn act(&mut self, input: ClientInput) {
        let now = self.now();
        let Some(back) = &mut self.back else { return };
        let mut out = Effects::new();
        back.client.handle(now, input, &mut out);
        for envelope in out.send_now {
            back.act.ask(envelope.to, envelope.message);
        }
        let mut done = Vec::new();
        for event in out.events {
            match event {
                ClientEvent::Refreshed {
                    key,
                    state,
                    rank,
                    proof,
                } => {
                    let Some(object) = back.orders.remove(&key) else {
                        continue;
                    };
                    let restored = KeeperInput::Restored {
                        object: object.clone(),
                        rank,
                        proof,
                        state,
                    };
                    self.parts.inbox.put(Said::Input(restored), 0);
                    done.push(RejoinInput::Refreshed(object));
                }
                ClientEvent::Failed { key, why } => {
                    if let Some(object) = back.orders.remove(&key) {
                        tracing::warn!(%object, ?why, "an object could not be ordered anew");
                        done.push(RejoinInput::Failed(object));
                    }
                }
                ClientEvent::Lied { node, lie } => self.parts.meters.keeper.lied(node, lie, 1),
                _ => {}
            }
        }
        for input in done {
            self.rejoin(input);
        }
    }
}
