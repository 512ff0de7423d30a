//! Latches: waiting until so many have counted.

use std::time::Duration;

use tokio::time::Instant;

use crate::barrier::BarrierError;
use crate::client::Client;
use crate::error::AcquireError;
use crate::guard::Guard;
use crate::slots::{SLOTS_MAX, SlotError, Slots};

/// A latch of N counts. It opens when N have counted and are still there.
///
/// **A count lasts as long as its holder**: it is a held lock, one of N slots. Whoever drops its
/// guard, dies or loses touch with the nodes takes its count back. There is no count that outlives
/// its process.
#[must_use = "nothing happens before count_down or wait is awaited"]
#[derive(Clone, Debug)]
pub struct Latch {
    client: Client,
    name: Vec<u8>,
    count: u32,
    ttl: Option<Duration>,
    wait: Option<Duration>,
}

impl Latch {
    pub(crate) fn new(client: &Client, name: &[u8], count: u32) -> Self {
        Self {
            client: client.clone(),
            name: name.to_vec(),
            count,
            ttl: None,
            wait: None,
        }
    }

    /// How long a count outlives contact with the nodes.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// How long to wait; for ever unless said otherwise.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.wait = Some(limit);
        self
    }

    /// Counts, for as long as the guard lives. If N have counted already it waits for one of them
    /// to leave.
    pub async fn count_down(&self) -> Result<Guard, BarrierError> {
        let (mut slots, until) = self.slots()?;
        match slots.take(self.ttl, b"counted", until).await {
            Ok(guard) => Ok(guard.into_guard()),
            Err(SlotError::Acquire(AcquireError::TimedOut { .. })) => Err(self.timed_out(&slots)),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until N have counted.
    pub async fn wait(&self) -> Result<(), BarrierError> {
        let (mut slots, until) = self.slots()?;
        while !slots.is_full() {
            let changed = match until {
                None => slots.change().await,
                Some(until) => match tokio::time::timeout_at(until, slots.change()).await {
                    Ok(changed) => changed,
                    Err(_) => return Err(self.timed_out(&slots)),
                },
            };
            changed?;
        }
        Ok(())
    }

    fn slots(&self) -> Result<(Slots, Option<Instant>), BarrierError> {
        if !(1..=SLOTS_MAX).contains(&self.count) {
            return Err(BarrierError::Parties(self.count));
        }
        let until = self.wait.map(|limit| Instant::now() + limit);
        let slots = Slots::new(&self.client, &self.name, self.count);
        Ok((slots, until))
    }

    fn timed_out(&self, slots: &Slots) -> BarrierError {
        BarrierError::TimedOut {
            there: slots.holders().len(),
            parties: self.count,
        }
    }
}
