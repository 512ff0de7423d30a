//! The client's side (under construction in this commit).
use std::sync::Arc;

use super::api::{ClientEffects, ClientEvent, ClientInput};
use super::config::Config;
use super::message::Message;
use crate::id::{ClientId, GrantNo, Key, Name, NodeId, Token};
use crate::machine::Machine;
use crate::time::{Instant, Now, Wake};

/// All requesters of one client process, with its sessions and its connections to the nodes.
#[derive(Clone, Debug)]
pub struct LockClient {
    config: Arc<Config>,
    id: ClientId,
}

impl LockClient {
    /// A client. `seed` gives it its session ids and spreads its hash tables.
    pub fn new(config: Arc<Config>, id: ClientId, seed: u64) -> Self {
        let _ = seed;
        Self { config, id }
    }

    /// Which client this is.
    pub fn id(&self) -> ClientId {
        self.id
    }

    /// Until when a lock is held if no node is heard from again; none if it is not held.
    pub fn held_until(&self, key: Key, name: &Name) -> Option<Instant> {
        let _ = (key, name, &self.config);
        None
    }

    /// The token of a held lock and the fresh grants it rests on at `now`.
    pub fn held(
        &self,
        key: Key,
        name: &Name,
        now: Instant,
    ) -> Option<(Token, Vec<(NodeId, GrantNo)>)> {
        let _ = (key, name, now);
        None
    }

    /// How many requests are live.
    pub fn live(&self) -> usize {
        0
    }
}

impl Machine for LockClient {
    type Input = ClientInput;
    type Address = NodeId;
    type Message = Message;
    type Record = std::convert::Infallible;
    type Event = ClientEvent;

    fn handle(&mut self, now: Now, input: ClientInput, out: &mut ClientEffects) {
        let _ = (now, input, out);
    }

    fn next_wake(&self) -> Option<Wake> {
        None
    }
}
