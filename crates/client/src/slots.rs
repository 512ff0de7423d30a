//! Numbered slots: exclusive locks `NAME~1` to `NAME~N`, and who is in them.

use std::collections::BTreeMap;
use std::time::Duration;

use conclave_protocol::lock::{Holder, LockState};
use tokio::time::Instant;

use crate::client::Client;
use crate::driver::random;
use crate::error::AcquireError;
use crate::guard::Guard;
use crate::watch::{PrefixWatch, Sight, WatchError};

/// The most slots of a barrier or latch.
pub const SLOTS_MAX: u32 = 1024;

/// How long to wait before trying again although no slot was seen to become free.
const AGAIN: Duration = Duration::from_millis(200);

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

    fn lock_name(&self, slot: u32) -> Vec<u8> {
        let mut name = self.name.clone();
        name.extend_from_slice(format!("~{slot}").as_bytes());
        name
    }

    fn slot_of(&self, state: &LockState) -> Option<u32> {
        let rest = state.name.bytes().strip_prefix(self.name.as_slice())?;
        let number = std::str::from_utf8(rest.strip_prefix(b"~")?).ok()?;
        let slot: u32 = number.parse().ok()?;
        let exact = slot.to_string() == number;
        (exact && (1..=self.count).contains(&slot)).then_some(slot)
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
    ) -> Result<(u32, Guard), SlotError> {
        // Parties that come together begin at different slots.
        let start = (random() % u128::from(self.count)) as u32;
        loop {
            for turn in 0..self.count {
                let slot = (start + turn) % self.count + 1;
                if self.holders.contains_key(&slot) {
                    continue;
                }
                let mut request = self.client.lock(self.lock_name(slot)).note(note);
                if let Some(ttl) = ttl {
                    request = request.ttl(ttl);
                }
                if let Some(guard) = request.try_acquire().await? {
                    return Ok((slot, guard));
                }
            }
            let again = Instant::now() + AGAIN;
            let until_next = until.map_or(again, |until| until.min(again));
            // Either way we look again: a state may be late.
            if let Ok(changed) = tokio::time::timeout_at(until_next, self.change()).await {
                changed?;
            }
            if until.is_some_and(|until| until <= Instant::now()) {
                return Err(AcquireError::TimedOut { position: None }.into());
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
