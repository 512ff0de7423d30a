//! Numbered slots: exclusive locks `NAME~1` to `NAME~N`, and who is in them.

use std::collections::BTreeMap;
use std::time::Duration;

use conclave_protocol::lock::{Holder, LockState};
use tokio::time::Instant;

use crate::client::Client;
use crate::error::AcquireError;
use crate::guard::SlotGuard;
use crate::semaphore::{slot_name, slot_of};
use crate::watch::{PrefixWatch, Sight, WatchError};

/// The most slots of a barrier or latch.
pub const SLOTS_MAX: u32 = 64;

/// The slots of a barrier or latch, as they are seen.
#[derive(Debug)]
pub(crate) struct Slots {
    client: Client,
    name: Vec<u8>,
    count: u32,
    watch: PrefixWatch,
    holders: BTreeMap<u32, Holder>,
    /// Whether everything that there is has been told.
    synced: bool,
}

impl Slots {
    pub(crate) fn new(client: &Client, name: &[u8], count: u32) -> Self {
        let mut prefix = name.to_vec();
        prefix.push(b'~');
        Self {
            client: client.clone(),
            name: name.to_vec(),
            count,
            watch: client.watch_prefix(prefix),
            holders: BTreeMap::new(),
            synced: false,
        }
    }

    fn slot_of(&self, state: &LockState) -> Option<u32> {
        let slot = slot_of(&state.name)?;
        let ours = slot_name(&self.name, slot) == state.name;
        (ours && slot <= self.count).then_some(slot)
    }

    /// Who is in each slot.
    pub(crate) fn holders(&self) -> &BTreeMap<u32, Holder> {
        &self.holders
    }

    /// Whether somebody is in every slot, as far as is known.
    pub(crate) fn is_full(&self) -> bool {
        self.synced && self.holders.len() == self.count as usize
    }

    /// Waits for the next change.
    pub(crate) async fn change(&mut self) -> Result<(), WatchError> {
        match self.watch.next().await? {
            Sight::Synced { partial } => self.synced = !partial,
            Sight::State(state) => {
                if let Some(slot) = self.slot_of(&state) {
                    match state.leader() {
                        Some(holder) => self.holders.insert(slot, holder.clone()),
                        None => self.holders.remove(&slot),
                    };
                }
            }
        }
        Ok(())
    }

    /// Takes a slot that is free, or waits for one.
    pub(crate) async fn take(
        &mut self,
        ttl: Option<Duration>,
        note: &[u8],
        until: Option<Instant>,
    ) -> Result<SlotGuard, SlotError> {
        let mut request = self.client.semaphore(&self.name, self.count).note(note);
        if let Some(ttl) = ttl {
            request = request.ttl(ttl);
        }
        let acquire = async {
            match until {
                None => request.acquire().await,
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    request.acquire_timeout(left).await
                }
            }
        };
        let mut acquire = std::pin::pin!(acquire);
        loop {
            // What changes meanwhile is known when the slot is ours.
            tokio::select! {
                taken = &mut acquire => return Ok(taken?),
                changed = self.change() => changed?,
            }
        }
    }
}

/// Why no slot was taken.
#[derive(Debug)]
pub(crate) enum SlotError {
    Acquire(AcquireError),
    Watch(WatchError),
}

impl From<AcquireError> for SlotError {
    fn from(error: AcquireError) -> Self {
        Self::Acquire(error)
    }
}

impl From<WatchError> for SlotError {
    fn from(error: WatchError) -> Self {
        Self::Watch(error)
    }
}
