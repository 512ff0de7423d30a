//! The thread that writes: it takes all records there are and syncs once for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Instant;

use conclave_protocol::lock::Record;

use crate::meters::Meters;
use crate::sentry::Sentry;
use crate::store::{Store, StoreError};

/// A handle to the journal's thread. Dropping it writes what is queued and waits for that.
#[derive(Debug)]
pub struct Journal {
    queue: Option<Sender<Vec<Record>>>,
    thread: Option<JoinHandle<()>>,
    queued: AtomicU64,
    durable: Arc<AtomicU64>,
}

impl Journal {
    /// Starts the thread. After every sync it tells the meters, then `done` the number of records
    /// durable in total. After an error it tells `done` once and writes nothing more.
    pub fn spawn(
        store: Box<dyn Store>,
        done: impl Fn(Result<u64, StoreError>) + Send + 'static,
        meters: Arc<Meters>,
    ) -> std::io::Result<Self> {
        Self::spawn_under(&Sentry::new(), store, done, meters)
    }

    /// The same, for a node that ends when the thread panics.
    pub(crate) fn spawn_under(
        sentry: &Sentry,
        store: Box<dyn Store>,
        done: impl Fn(Result<u64, StoreError>) + Send + 'static,
        meters: Arc<Meters>,
    ) -> std::io::Result<Self> {
        let (queue, incoming) = mpsc::channel();
        let durable = Arc::new(AtomicU64::new(0));
        let mut writer = Writer {
            store,
            incoming,
            durable: Arc::clone(&durable),
            done,
            meters,
        };
        let thread = sentry.thread("journal", move || writer.run())?;
        Ok(Self {
            queue: Some(queue),
            thread: Some(thread),
            queued: AtomicU64::new(0),
            durable,
        })
    }

    /// Queues records, in order, and returns at once.
    pub fn write(&self, records: Vec<Record>) {
        if records.is_empty() {
            return;
        }
        self.queued
            .fetch_add(records.len() as u64, Ordering::Relaxed);
        if let Some(queue) = &self.queue {
            // The thread ends early only after an error, which `done` was told.
            let _ = queue.send(records);
        }
    }

    /// How many records were queued and are not on disk yet.
    pub fn behind(&self) -> u64 {
        let queued = self.queued.load(Ordering::Relaxed);
        queued.saturating_sub(self.durable.load(Ordering::Relaxed))
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was told when it happened.
            let _ = thread.join();
        }
    }
}

struct Writer<D> {
    store: Box<dyn Store>,
    incoming: Receiver<Vec<Record>>,
    durable: Arc<AtomicU64>,
    done: D,
    meters: Arc<Meters>,
}

impl<D: Fn(Result<u64, StoreError>)> Writer<D> {
    fn run(&mut self) {
        while let Ok(mut batch) = self.incoming.recv() {
            // While the disk synced, more came: all of it shares the next sync.
            while batch.len() < BATCH_MAX
                && let Ok(mut more) = self.incoming.try_recv()
            {
                batch.append(&mut more);
            }
            let start = Instant::now();
            if let Err(problem) = self.store.write(&batch) {
                (self.done)(Err(problem));
                return;
            }
            self.meters.synced(start.elapsed(), batch.len());
            let count = batch.len() as u64;
            let durable = self.durable.fetch_add(count, Ordering::Relaxed) + count;
            (self.done)(Ok(durable));
        }
    }
}

/// Records in one sync, about: more would only make the first ones wait.
const BATCH_MAX: usize = 16_384;
