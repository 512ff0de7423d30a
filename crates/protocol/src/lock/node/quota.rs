//! How much each principal makes the node keep, and how much it may.
//!
//! Everything is charged to an account: that of the principal in whose name it is asked, through
//! whichever connection or gateway it comes; where nobody has said who they are, that of their
//! address; where not even that is known, that of the client. An account may have so many sessions,
//! requests and watches, and at most as many bytes as are still free of the node's budget: whoever
//! is greedy alone gets half of it, and whoever comes next always finds room.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::LockNode;
use crate::id::{ClientId, SessionId};
use crate::lock::access::{ADDRESS_MARK, Who};
use crate::lock::arbiter::Entry;
use crate::lock::config::Limits;
use crate::lock::message::Refusal;
use crate::lock::mode::{Ask, Mode};
use crate::table::Slab;

/// What a session takes beside its texts, at the most.
const SESSION: usize = 512;
/// What a request takes beside its texts, with the lock that it may be the only one of.
const REQUEST: usize = 1024;
/// What a watch takes beside its name.
const WATCH: usize = 512;

/// What the driver said about the other end of a connection.
#[derive(Clone, Debug)]
pub(super) enum Origin {
    /// Who it is.
    Known(Who),
    /// Nobody has said who it is. It comes from this address, and perhaps it is a gateway, which
    /// names the addresses of its callers.
    Address(Arc<str>, bool),
}

impl Origin {
    /// Who it is, if that is known.
    pub(super) fn who(&self) -> Option<&Who> {
        match self {
            Self::Known(who) => Some(who),
            Self::Address(..) => None,
        }
    }

    /// Whether it asks for others, who pay for it.
    pub(super) fn is_gateway(&self) -> bool {
        match self {
            Self::Known(who) => who.gateway,
            Self::Address(_, gateway) => *gateway,
        }
    }
}

/// Whom something is charged to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Payer {
    /// A principal, or an address.
    Named(Arc<str>),
    /// A client of which nothing else is known.
    Client(ClientId),
}

/// What one payer makes the node keep.
#[derive(Clone, Debug)]
struct Account {
    payer: Payer,
    sessions: usize,
    requests: usize,
    watches: usize,
    bytes: usize,
}

/// The accounts of all who make the node keep something.
#[derive(Clone, Debug, Default)]
pub(super) struct Accounts {
    by_payer: BTreeMap<Payer, u32>,
    kept: Slab<Account>,
    bytes: usize,
    requests: usize,
}

/// What is charged at once.
#[derive(Clone, Copy, Debug)]
pub(super) enum Item {
    Session(usize),
    Request(usize),
    Watch(usize),
    /// More bytes of something that is charged already.
    Bytes(usize),
}

impl Item {
    /// A session with these texts.
    pub(super) fn session(owner: &str, principal: &str) -> Self {
        Self::Session(SESSION + owner.len() + principal.len())
    }

    /// A request.
    pub(super) fn request(ask: &Ask) -> Self {
        let group = match &ask.mode {
            Mode::Group(group) => group.len(),
            Mode::Exclusive | Mode::Shared => 0,
        };
        // The name stands in the request and in the lock.
        Self::Request(REQUEST + 2 * ask.name.bytes().len() + group)
    }

    /// A request as it is kept, with its note.
    pub(super) fn entry(entry: &Entry) -> Self {
        let note = Self::note(entry.note.as_deref()).bytes();
        Self::Request(Self::request(&entry.ask).bytes() + note)
    }

    /// The note of a request that is charged already.
    pub(super) fn note(note: Option<&[u8]>) -> Self {
        Self::Bytes(note.map_or(0, <[u8]>::len))
    }

    /// A watch of this many bytes of a name or prefix.
    pub(super) fn watch(what: usize) -> Self {
        Self::Watch(WATCH + 2 * what)
    }

    fn bytes(self) -> usize {
        match self {
            Self::Session(bytes)
            | Self::Request(bytes)
            | Self::Watch(bytes)
            | Self::Bytes(bytes) => bytes,
        }
    }
}

impl Account {
    /// How many of this kind it has.
    fn count(&mut self, item: Item) -> Option<&mut usize> {
        match item {
            Item::Session(_) => Some(&mut self.sessions),
            Item::Request(_) => Some(&mut self.requests),
            Item::Watch(_) => Some(&mut self.watches),
            Item::Bytes(_) => None,
        }
    }

    fn is_empty(&self) -> bool {
        self.sessions == 0 && self.requests == 0 && self.watches == 0
    }
}

impl Accounts {
    /// Whether an account may have one more of this.
    pub(super) fn has_room(&self, place: Option<u32>, item: Item, limits: &Limits) -> bool {
        let account = place.and_then(|place| self.kept.get(place));
        let (count, most) = match item {
            Item::Session(_) => (
                account.map(|kept| kept.sessions),
                limits.sessions_per_client,
            ),
            Item::Request(_) => (
                account.map(|kept| kept.requests),
                limits.requests_per_client,
            ),
            Item::Watch(_) => (account.map(|kept| kept.watches), limits.watches_per_client),
            Item::Bytes(_) => (None, usize::MAX),
        };
        let used = account.map_or(0, |kept| kept.bytes) + item.bytes();
        let free = limits.memory.saturating_sub(self.bytes + item.bytes());
        count.unwrap_or(0) < most && used <= free
    }

    /// The account of a payer, if it has one.
    pub(super) fn find(&self, payer: &Payer) -> Option<u32> {
        self.by_payer.get(payer).copied()
    }

    /// The account of a payer, made if it is new. Something must be charged to it at once.
    pub(super) fn open(&mut self, payer: Payer) -> u32 {
        if let Some(place) = self.find(&payer) {
            return place;
        }
        let place = self.kept.insert(Account {
            payer: payer.clone(),
            sessions: 0,
            requests: 0,
            watches: 0,
            bytes: 0,
        });
        self.by_payer.insert(payer, place);
        place
    }

    pub(super) fn charge(&mut self, place: u32, item: Item) {
        let Some(account) = self.kept.get_mut(place) else {
            return;
        };
        if let Some(count) = account.count(item) {
            *count += 1;
        }
        account.bytes += item.bytes();
        self.bytes += item.bytes();
        self.requests += usize::from(matches!(item, Item::Request(_)));
    }

    /// Gives back what was charged; an account of nothing is forgotten.
    pub(super) fn refund(&mut self, place: u32, item: Item) {
        let Some(account) = self.kept.get_mut(place) else {
            return;
        };
        if let Some(count) = account.count(item) {
            *count = count.saturating_sub(1);
        }
        account.bytes = account.bytes.saturating_sub(item.bytes());
        self.bytes = self.bytes.saturating_sub(item.bytes());
        self.requests -= usize::from(matches!(item, Item::Request(_)));
        if account.is_empty()
            && let Some(account) = self.kept.remove(place)
        {
            debug_assert_eq!(account.bytes, 0, "what was charged was given back");
            self.by_payer.remove(&account.payer);
        }
    }

    /// How many requests there are.
    pub(super) fn requests(&self) -> usize {
        self.requests
    }

    /// How many bytes all accounts have.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl LockNode {
    /// Who pays for what a connection asks in the name of `claimed`.
    pub(super) fn payer(&self, peer: u32, claimed: &Arc<str>) -> Payer {
        let Some(peer) = self.peers.get(peer) else {
            return Payer::Client(ClientId::default());
        };
        let named = |name: &Arc<str>| Payer::Named(name.clone());
        match &peer.origin {
            None => Payer::Client(peer.id),
            Some(Origin::Known(who)) if !who.gateway || claimed.is_empty() => named(&who.principal),
            Some(Origin::Known(_)) => named(claimed),
            Some(Origin::Address(_, true)) if claimed.starts_with(ADDRESS_MARK) => named(claimed),
            Some(Origin::Address(address, _)) => named(address),
        }
    }

    /// Why a session may not leave this note, if so.
    pub(super) fn note_refusal(&self, session: SessionId, note: &[u8]) -> Option<Refusal> {
        let limits = &self.config.limits;
        if note.len() > limits.note_bytes {
            return Some(Refusal::Size);
        }
        let session = self.sessions.get(*self.by_session.get(&session)?)?;
        let item = Item::note(Some(note));
        let fits = self.accounts.has_room(Some(session.account), item, limits);
        (!fits).then_some(Refusal::RequestLimit)
    }

    /// How many sessions and requests may come back on a connection: a gateway has those of many.
    pub(super) fn resume_limits(&self, peer: u32) -> (usize, usize) {
        let limits = &self.config.limits;
        let origin = self.peers.get(peer).and_then(|peer| peer.origin.as_ref());
        if origin.is_some_and(Origin::is_gateway) {
            return (limits.memory / SESSION, limits.memory / REQUEST);
        }
        (limits.sessions_per_client, limits.requests_per_client)
    }

    /// How many bytes of its budget the node has given away.
    pub fn charged_bytes(&self) -> usize {
        self.accounts.bytes()
    }
}
