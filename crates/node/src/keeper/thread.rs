//! The loop of the keeper's thread.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use conclave_protocol::id::LinkId;
use conclave_protocol::keeper::{
    Answer, Keeper, KeeperConfig, KeeperEvent, KeeperInput, KeeperRecord,
};
use conclave_protocol::{Effects, EffectsOf, Machine, Now};
use conclave_wire::keeper::encode_answer;
use tokio::sync::mpsc;

use super::liar::Liar;
use super::others::{self, Notice};
use super::{Handle, Inbox, Look, Parts, Said, Seen, VIEWS_MAX};
use crate::NodeError;
use crate::meters::Meters;
use crate::shard::{Clock, Shard};
use crate::store::{KeeperStore, StoreError};

/// The loop looks around at least this often: a machine that slept counts differently from a wait.
const ROUND_MAX: Duration = Duration::from_secs(1);

/// Starts the thread.
pub(crate) fn spawn(parts: Parts) -> std::io::Result<Handle> {
    let inbox = parts.inbox.clone();
    let others = others::spawn(others::Parts {
        config: parts.config.clone(),
        dial: parts.dial.clone(),
        clock: parts.clock.clone(),
        inbox: inbox.clone(),
        meters: parts.meters.clone(),
        sentry: parts.shard.sentry().clone(),
    })?;
    let (taken, shard) = (inbox.clone(), parts.shard.clone());
    let name = format!("keeper-{}", parts.id);
    let thread = std::thread::Builder::new().name(name.clone());
    let thread = thread.spawn(move || {
        let run = || Loop::new(parts, others).run();
        let result = shard.sentry().catch(&name, run).unwrap_or_else(Err);
        taken.close();
        if let Err(error) = result {
            shard.end(error);
        }
    })?;
    Ok(Handle {
        inbox,
        thread: Mutex::new(Some(thread)),
    })
}

struct Loop {
    inbox: Inbox,
    machine: Keeper,
    out: EffectsOf<Keeper>,
    store: Box<dyn KeeperStore>,
    shard: Shard,
    clock: Clock,
    meters: std::sync::Arc<Meters>,
    liar: Option<Liar>,
    /// Records of this round, and how many were written before.
    records: Vec<KeeperRecord>,
    written: u64,
    /// Frames that may leave, and answers that wait for the records.
    frames: Vec<(LinkId, Vec<u8>)>,
    parked: Vec<(LinkId, Answer)>,
    /// Where the work about the other nodes hears of this one.
    others: mpsc::UnboundedSender<Notice>,
    gauges_at: conclave_protocol::Instant,
}

impl Loop {
    fn new(parts: Parts, others: mpsc::UnboundedSender<Notice>) -> Self {
        let now = (parts.clock)();
        let config = KeeperConfig {
            lease: parts.config.lease,
            objects: parts.config.objects,
            access: parts.access,
            verifier: None,
            seed: getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id())),
        };
        let mut out = Effects::new();
        let machine = Keeper::new(config, parts.start, now, &mut out);
        if !machine.is_serving() {
            tracing::warn!(
                node = %parts.id,
                "leases and objects were lost with the disk: this node asks the others"
            );
            // Its receiver lives as long as this thread does.
            let _ = others.send(Notice::Lost {
                opens: machine.opens(),
                blank: machine.is_new(),
            });
        }
        let mut after = None;
        loop {
            let some = machine.views(after.as_ref(), VIEWS_MAX);
            let Some(last) = some.last() else { break };
            after = Some(last.name.clone());
            for view in some {
                let _ = others.send(Notice::Own(view.name, view.committed));
            }
        }
        Self {
            inbox: parts.inbox,
            machine,
            out,
            store: parts.store,
            shard: parts.shard,
            clock: parts.clock,
            meters: parts.meters,
            liar: parts.liar.map(Liar::new),
            records: Vec::new(),
            written: 0,
            frames: Vec::new(),
            parked: Vec::new(),
            others,
            gauges_at: now.mono,
        }
    }

    fn run(&mut self) -> Result<(), NodeError> {
        self.collect();
        self.finish()?;
        self.set_gauges();
        loop {
            let batch = self.inbox.take(self.timeout());
            if batch.over {
                return Ok(());
            }
            if batch.wanted {
                self.shard.keeper_has_room();
            }
            self.wake_if_due();
            for said in batch.said {
                match said {
                    Said::Input(input) => {
                        self.wake_if_due();
                        self.step(input);
                    }
                    Said::Look(look, answer) => {
                        let seen = self.look(&look);
                        // Whoever asked may have gone.
                        let _ = answer.send(seen);
                    }
                }
            }
            self.finish()?;
            self.set_gauges();
        }
    }

    fn set_gauges(&mut self) {
        let now = self.now().mono;
        if self.gauges_at > now {
            return;
        }
        self.gauges_at = now + ROUND_MAX;
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.inbox.set_mark(self.machine.mark());
        let (objects, bytes) = self.machine.size();
        let keeper = &self.meters.keeper;
        keeper.serving.set(i64::from(self.machine.is_serving()));
        keeper.objects.set(count(objects));
        keeper.object_bytes.set(count(bytes));
        keeper.leases.set(count(self.machine.leases().names()));
    }

    fn now(&self) -> Now {
        (self.clock)()
    }

    fn timeout(&self) -> Duration {
        let now = self.now().mono;
        let wake = self.machine.next_wake().map(|wake| wake.at.since(now));
        wake.map_or(ROUND_MAX, |wait| wait.min(ROUND_MAX))
    }

    /// After a pause what has run out ends before anything that came meanwhile is heard.
    fn wake_if_due(&mut self) {
        let now = self.now();
        let wake = self.machine.next_wake();
        if wake.is_some_and(|wake| wake.at <= now.mono) {
            self.machine.handle(now, KeeperInput::Wake, &mut self.out);
            self.collect();
        }
    }

    fn step(&mut self, input: KeeperInput) {
        if let KeeperInput::Receive(_, ask) = &input {
            self.meters.keeper.asked(ask);
        }
        let now = self.now();
        self.machine.handle(now, input, &mut self.out);
        self.collect();
    }

    /// Keeps what a step asks for until the round ends.
    fn collect(&mut self) {
        let mut out = std::mem::take(&mut self.out);
        self.records.append(&mut out.persist);
        for envelope in out.send_now.drain(..) {
            self.say(envelope.to, envelope.message);
        }
        let parked = out.send_durable.drain(..);
        self.parked
            .extend(parked.map(|envelope| (envelope.to, envelope.message)));
        for event in out.events.drain(..) {
            self.event(&event);
        }
        self.out = out;
    }

    /// Makes a frame of an answer.
    fn say(&mut self, link: LinkId, answer: Answer) {
        let answer = match &mut self.liar {
            Some(liar) => liar.twist(link, answer),
            None => Some(answer),
        };
        let Some(answer) = answer else { return };
        self.meters.keeper.answered(&answer);
        let same = self.frames.last().is_some_and(|(last, _)| *last == link);
        if !same {
            self.frames.push((link, Vec::new()));
        }
        if let Some((_, frame)) = self.frames.last_mut()
            && let Err(error) = encode_answer(&answer, frame)
        {
            tracing::error!(%link, %error, "an answer is too long and is not sent");
        }
    }

    /// Sends what may leave, writes all records with one sync, and sends what waited for them.
    fn finish(&mut self) -> Result<(), StoreError> {
        self.send();
        if self.records.is_empty() && self.parked.is_empty() {
            return Ok(());
        }
        let records = std::mem::take(&mut self.records);
        let count = records.len() as u64;
        if count > 0 {
            let begun = Instant::now();
            let machine = &self.machine;
            self.store.write(&records, &|| machine.stored())?;
            self.meters.keeper.synced(begun.elapsed(), records.len());
        }
        self.written += count;
        for (link, answer) in std::mem::take(&mut self.parked) {
            self.say(link, answer);
        }
        self.send();
        let durable = KeeperInput::Durable(self.written);
        let now = self.now();
        self.machine.handle(now, durable, &mut self.out);
        self.collect();
        Ok(())
    }

    fn send(&mut self) {
        if !self.frames.is_empty() {
            self.shard.answers(std::mem::take(&mut self.frames));
        }
    }

    fn event(&mut self, event: &KeeperEvent) {
        match event {
            KeeperEvent::Serving => tracing::info!("leases and objects are served"),
            KeeperEvent::New(node) => {
                let _ = self.others.send(Notice::New(*node));
            }
            KeeperEvent::Committed { object, stamp } => {
                self.meters.keeper.commits.inc();
                let _ = self.others.send(Notice::Own(object.clone(), *stamp));
            }
            KeeperEvent::NotAdopted { object, stamp } => {
                tracing::debug!(%object, version = stamp.version, "a state was not adopted");
                let _ = self.others.send(Notice::NotAdopted(object.clone(), *stamp));
            }
        }
    }

    fn look(&self, look: &Look) -> Seen {
        let now = self.now().mono;
        let leases = self.machine.leases();
        Seen {
            serving: self.machine.is_serving(),
            opens_in: self.machine.opens().since(now),
            mark: self.machine.mark(),
            leases: (leases.names(), leases.waiting()),
            objects: self.machine.size(),
            views: self
                .machine
                .views(look.after.as_ref(), look.limit.min(VIEWS_MAX)),
        }
    }
}
