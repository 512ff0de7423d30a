//! The background task: it reads, keeps the time, opens connections, and writes for callers that
//! come in crowds.
//!
//! Per turn it reads everything there is, then lets the machine see it (timers that are due come
//! first), then writes once per connection. If what it read woke several callers it lets them run
//! before it writes: what they say next leaves together.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use conclave_protocol::id::{ClientId, ConnNo, NodeId};
use conclave_protocol::lock::{ClientInput, LockClient};
use conclave_wire::Cluster;
use conclave_wire::greeting::{Rejection, Service};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Sleep;

use super::conn::{Open, Reader, Turn};
use super::core::{Core, Flush, Stage};
use super::nudge::Nudge;
use super::{Shared, configured, hello, random};
use crate::dial::{Hello, dial, is_stranger};
use crate::directory::Directory;
use crate::secure::{Security, Side, explain, is_lasting};

/// How long a closing driver waits until the nodes have read what it said.
const LINGER: Duration = Duration::from_secs(1);

/// What a client is made with, and made again when the cluster has another configuration.
pub(super) struct Settings {
    pub(super) directory: Directory,
    pub(super) security: Security,
    pub(super) home: Option<NodeId>,
    pub(super) owner: String,
}

/// Waits for news of the cluster.
type News = Pin<Box<dyn Future<Output = watch::Receiver<Arc<Cluster>>> + Send>>;

fn news(mut known: watch::Receiver<Arc<Cluster>>) -> News {
    Box::pin(async move {
        if known.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        known
    })
}

/// A connection, or why there is none and whether trying again is of no use.
type Dialled = (NodeId, ConnNo, Result<Open, (String, bool)>);

pub(super) struct Task {
    shared: Arc<Shared>,
    hello: Hello,
    settings: Settings,
    /// Ends when there may be news of the cluster.
    news: News,
    dials: JoinSet<Dialled>,
    dialled: Vec<Dialled>,
    readers: Vec<Reader>,
    linger: Option<Pin<Box<Sleep>>>,
}

impl Task {
    pub(super) fn new(shared: Arc<Shared>, hello: Hello, settings: Settings) -> Self {
        Self {
            shared,
            hello,
            news: news(settings.directory.follow()),
            settings,
            dials: JoinSet::new(),
            dialled: Vec::new(),
            readers: Vec::new(),
            linger: None,
        }
    }

    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut reads = 0;
        let mut full = false;
        let mut rung = false;
        while self.shared.timer.poll_rung(cx).is_ready() {
            rung = true;
        }
        for reader in &mut self.readers {
            full |= reader.read(cx, &mut reads) == Turn::Full;
        }
        while let Poll::Ready(Some(dialled)) = self.dials.poll_join_next(cx) {
            // A dial neither panics nor is it aborted while the task lives.
            self.dialled.extend(dialled);
        }
        let mut known = None;
        while let Poll::Ready(mut told) = self.news.as_mut().poll(cx) {
            known = Some(told.borrow_and_update().clone());
            self.news = news(told);
        }
        let shared = self.shared.clone();
        let (again, over) = shared.with(|core| {
            core.counters.turns += 1;
            core.counters.reads += reads;
            if !core
                .task
                .as_ref()
                .is_some_and(|task| task.will_wake(cx.waker()))
            {
                core.task = Some(cx.waker().clone());
                shared.nudge.set_task(cx.waker());
            }
            if rung {
                core.rung();
            }
            if let Some(known) = known {
                self.take_up(core, &known);
            }
            self.work(core, cx)
        });
        if over {
            return Poll::Ready(());
        }
        if again || full {
            Nudge::after_others(cx.waker());
        }
        Poll::Pending
    }

    /// Goes on with the cluster as it is known now.
    fn take_up(&mut self, core: &mut Core, cluster: &Cluster) {
        if core.stage != Stage::Running {
            return;
        }
        if cluster.digest() == self.hello.digest() {
            return core.judge();
        }
        let settings = &self.settings;
        // Whoever told it was checked; a client that cannot use it stays with what it has.
        let Ok(config) = configured(cluster, settings.home) else {
            return core.judge();
        };
        let config = Arc::new(config);
        let machine = LockClient::new(config.clone(), ClientId(random()), random() as u64);
        let machine = machine.with_owner(&settings.owner);
        let mut shown = self.shared.config.write();
        **shown.as_mut().unwrap_or_else(|poisoned| poisoned.get_mut()) = config.clone();
        drop(shown);
        self.hello = hello(cluster, &settings.security);
        // Numbers of connections begin anew: nothing of the old ones may be heard.
        self.dials = JoinSet::new();
        self.dialled.clear();
        self.readers.clear();
        core.adopt(machine, config);
    }

    /// One turn under the lock: whether to come again at once, and whether all is over.
    fn work(&mut self, core: &mut Core, cx: &mut Context<'_>) -> (bool, bool) {
        if core.flush != Flush::Free {
            core.flush = Flush::Free;
            core.write_all(Some(cx));
        }
        let before = core.wakes.len();
        core.wake_due();
        let mut fresh = false;
        for (node, no, stream) in self.dialled.drain(..) {
            match stream {
                Ok(open) => {
                    let (reader, writer) =
                        open.split(node, no, self.hello.bytes(node, Service::Locks));
                    if core.opened(node, no, writer) {
                        self.readers.push(reader);
                        fresh = true;
                    }
                }
                Err((why, lasting)) => {
                    self.settings.directory.failed(node);
                    core.failed(node, no, why, lasting);
                }
            }
        }
        for reader in &mut self.readers {
            attend(reader, core, &self.hello, &self.settings.directory);
        }
        let closing = core.stage != Stage::Running;
        self.readers
            .retain(|reader| reader.ended.is_none() && core.is_current(reader.node, reader.no));
        let woken = core.wakes.len() - before;
        if woken > 0 {
            core.crowd = woken;
        }
        let mut again = fresh;
        if woken > 1 {
            // Those who were woken have their turn first.
            core.flush = Flush::Due;
            again = true;
        } else if core.flush == Flush::Free {
            core.write_all(Some(cx));
        }
        core.arm();
        again |= self.dial(core);
        if closing {
            return (again, self.lingered(core, cx));
        }
        (again, false)
    }

    /// Begins to open the connections that the machine wants.
    fn dial(&mut self, core: &mut Core) -> bool {
        if core.stage != Stage::Running {
            core.to_open.clear();
        }
        let wanted = !core.to_open.is_empty();
        let patience = core.patience();
        for (node, no) in core.to_open.drain(..) {
            let peer = self.settings.directory.peer(node);
            let security = self.settings.security.clone();
            let cluster = self.hello.cluster();
            self.dials.spawn(async move {
                let dialled = dial(&peer, &security, &cluster, node);
                let dialled = tokio::time::timeout(patience, dialled).await;
                let late = |_| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"));
                let dialled = dialled
                    .unwrap_or_else(late)
                    .and_then(Open::new)
                    .map_err(|error| {
                        let why = explain(&error, Side::Node);
                        let why = format!("cannot connect to {peer}: {why}");
                        (why, is_lasting(&error))
                    });
                (node, no, dialled)
            });
        }
        wanted
    }

    /// Whether a closing driver has said everything and been heard, or has waited long enough.
    fn lingered(&mut self, core: &mut Core, cx: &mut Context<'_>) -> bool {
        if core.stage == Stage::Closed {
            return true;
        }
        let linger = self
            .linger
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
        let late = linger.as_mut().poll(cx).is_ready();
        if !late && core.flush != Flush::Free {
            return false;
        }
        if !core.has_bytes() {
            // A node that has read everything closes its side: only then is nothing lost.
            core.hang_up();
        }
        let over = late || self.readers.is_empty() && !core.has_bytes();
        if over {
            core.end();
        }
        over
    }
}

impl Future for Task {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.turn(cx)
    }
}

impl Drop for Task {
    /// Also when its runtime ends: nobody waits for a task that is gone.
    fn drop(&mut self) {
        self.shared.with(|core| {
            if std::thread::panicking() {
                return core.fail("its task panicked");
            }
            // What was said leaves if it can at once: releases above all.
            core.close();
            core.write_all(None);
            core.end();
        });
        self.shared.ended.notify_waiters();
    }
}

/// Lets the machine see what a connection has brought.
fn attend(reader: &mut Reader, core: &mut Core, hello: &Hello, directory: &Directory) {
    let (node, no) = (reader.node, reader.no);
    if !core.is_current(node, no) {
        return;
    }
    if !reader.greeted {
        match reader.reply() {
            Ok(None) => {}
            Ok(Some(reply)) => {
                core.unauthenticated = matches!(reply.refusal, Some(Rejection::Credential));
                match hello.judge(node, &reply) {
                    Ok(()) => {
                        reader.greeted = true;
                        directory.reached(node);
                        core.accepted(node);
                    }
                    Err((why, lasting)) => {
                        if is_stranger(node, &reply) {
                            directory.refused(node);
                        }
                        core.rejected(node, no, why, lasting);
                        return;
                    }
                }
            }
            Err(why) => {
                core.closed(node, no, why);
                return;
            }
        }
        if reader.ended.is_some() && !reader.greeted {
            directory.failed(node);
        }
    }
    while reader.greeted && core.is_current(node, no) {
        match reader.message() {
            Ok(None) => break,
            Ok(Some(message)) => {
                core.counters.received += 1;
                core.step(ClientInput::Receive(node, no, message));
            }
            Err(why) => core.closed(node, no, why),
        }
    }
    reader.tidy();
    if let Some(why) = &reader.ended {
        core.failed(node, no, why.clone(), reader.lasting);
    }
}
