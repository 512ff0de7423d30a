//! All connections of the shard, and what they make it keep.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::Instant;
use conclave_protocol::lock::Message;
use conclave_protocol::table::Table;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

use super::conn::{Conn, Pool, Stage, Way};
use crate::access::TokenHash;
use crate::who::Gate;

/// A connection whose unsent bytes exceed this is closed.
const UNSENT_MAX: usize = 8 << 20;
/// A connection is not read while it has more unsent bytes than this.
const UNSENT_PAUSE: usize = 1 << 20;
/// A connection whose unsent bytes make the sum over all exceed this is closed.
const UNSENT_SUM_MAX: usize = 256 << 20;
/// A connection whose unfinished frame makes the sum over all exceed this is closed.
const REST_SUM_MAX: usize = 128 << 20;
/// Connections that have not greeted, or that are being closed, at once.
const LOOSE_MAX: usize = 1024;
/// How long a greeting, a first message, a reply and a farewell may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Conns {
    registry: Registry,
    table: Table<u64, Box<Conn>>,
    next: u64,
    pub(super) pool: Pool,
    /// Those that may have something to read.
    ready: Vec<u64>,
    /// Those that have something to write.
    dirty: Vec<u64>,
    /// When to look whether a connection has got further, oldest first.
    deadlines: VecDeque<(Instant, u64)>,
    clients: usize,
    /// How many connections of clients each account has.
    accounts: BTreeMap<Arc<str>, usize>,
    /// Those that a token let in, and as whom.
    tokens: BTreeMap<u64, (TokenHash, Arc<str>)>,
    loose: usize,
    unsent: usize,
    rests: usize,
}

impl Conns {
    pub(super) fn new(registry: Registry) -> Self {
        Self {
            registry,
            table: Table::new(0),
            next: 1,
            pool: Pool::default(),
            ready: Vec::new(),
            dirty: Vec::new(),
            deadlines: VecDeque::new(),
            clients: 0,
            accounts: BTreeMap::new(),
            tokens: BTreeMap::new(),
            loose: 0,
            unsent: 0,
            rests: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// How many connections of clients there are.
    pub(super) fn clients(&self) -> usize {
        self.clients
    }

    /// How many connections an account has.
    pub(super) fn of_account(&self, account: &Arc<str>) -> usize {
        self.accounts.get(account).copied().unwrap_or(0)
    }

    /// Charges a connection to an account, until it is gone.
    pub(super) fn charge(&mut self, id: u64, account: Arc<str>) {
        if let Some(conn) = self.table.get_mut(&id) {
            *self.accounts.entry(account.clone()).or_default() += 1;
            conn.account = Some(account);
        }
    }

    /// A token let a connection in.
    pub(super) fn let_in(&mut self, id: u64, token: TokenHash, principal: Arc<str>) {
        self.tokens.insert(id, (token, principal));
    }

    /// Connections whose token does not count any more.
    pub(super) fn outdated(&self, gate: &Gate) -> Vec<u64> {
        let all = self.tokens.iter();
        all.filter(|(_, (token, principal))| !gate.counts(token, principal))
            .map(|(id, _)| *id)
            .collect()
    }

    fn refund(&mut self, account: &Arc<str>) {
        if let Some(count) = self.accounts.get_mut(account) {
            *count -= 1;
            if *count == 0 {
                self.accounts.remove(account);
            }
        }
    }

    /// Whether no more connections without a greeting are taken for now.
    pub(super) fn is_crowded(&self) -> bool {
        self.loose >= LOOSE_MAX
    }

    /// Bytes that wait to be written.
    pub(super) fn unsent(&self) -> usize {
        self.unsent
    }

    pub(super) fn stage(&self, id: u64) -> Option<Stage> {
        self.table.get(&id).map(|conn| conn.stage)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Conn> {
        self.table.get_mut(&id).map(Box::as_mut)
    }

    /// Whether a connection does not know yet who is at its other end.
    pub(super) fn is_handshaking(&self, id: u64) -> bool {
        self.table
            .get(&id)
            .is_some_and(|conn| conn.is_handshaking())
    }

    pub(super) fn address(&self, id: u64) -> Option<SocketAddr> {
        self.table.get(&id).map(|conn| conn.address)
    }

    /// Adds a connection and gives it a number that no other ever had.
    pub(super) fn add(
        &mut self,
        mut socket: TcpStream,
        address: SocketAddr,
        stage: Stage,
        way: Way,
        now: Instant,
    ) -> io::Result<u64> {
        let id = self.next;
        self.next += 1;
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.registry
            .register(&mut socket, Token(id as usize), interest)?;
        self.table
            .insert(id, Box::new(Conn::new(socket, address, stage, way)));
        self.count(stage, 1);
        self.watch(id, now);
        Ok(id)
    }

    /// Looks at the connection again when its patience is over.
    pub(super) fn watch(&mut self, id: u64, now: Instant) {
        self.deadlines.push_back((now + PATIENCE, id));
    }

    /// The next connection whose patience is over.
    pub(super) fn overdue(&mut self, now: Instant) -> Option<u64> {
        let due = self.deadlines.front().is_some_and(|(at, _)| *at <= now);
        due.then(|| self.deadlines.pop_front())?.map(|(_, id)| id)
    }

    /// When to look next.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.front().map(|(at, _)| *at)
    }

    /// Nobody could get further so far: all patience begins now.
    pub(super) fn restart_deadlines(&mut self, now: Instant) {
        for (at, _) in &mut self.deadlines {
            *at = now + PATIENCE;
        }
    }

    pub(super) fn set_stage(&mut self, id: u64, stage: Stage) {
        let Some(conn) = self.table.get_mut(&id) else {
            return;
        };
        let old = std::mem::replace(&mut conn.stage, stage);
        self.count(old, -1);
        self.count(stage, 1);
    }

    fn count(&mut self, stage: Stage, by: isize) {
        match stage {
            Stage::Waiting | Stage::Closing { .. } => {
                self.loose = self.loose.saturating_add_signed(by);
            }
            Stage::Client { .. } | Stage::Keeper => {
                self.clients = self.clients.saturating_add_signed(by);
            }
            Stage::Node(_)
            | Stage::Dialled { .. }
            | Stage::Spoken(_)
            | Stage::LevelDialled { .. }
            | Stage::Levels(_) => {}
        }
    }

    /// Drops a connection at once and says what it was.
    pub(super) fn remove(&mut self, id: u64) -> Option<Stage> {
        let mut conn = self.table.remove(&id)?;
        self.tokens.remove(&id);
        self.count(conn.stage, -1);
        if let Some(account) = conn.account.take() {
            self.refund(&account);
        }
        self.unsent = self.unsent.saturating_sub(conn.unsent());
        self.rests = self.rests.saturating_sub(conn.rest.len());
        // Closing the socket takes it out of the poll in any case.
        let _ = self.registry.deregister(conn.socket());
        Some(conn.stage)
    }

    /// Closes a connection once everything queued has left.
    pub(super) fn close_soon(&mut self, id: u64, now: Instant) {
        match self.stage(id) {
            None | Some(Stage::Closing { .. }) => {}
            Some(_) => {
                self.set_stage(id, Stage::Closing { flushed: false });
                self.watch(id, now);
                self.mark_dirty(id);
                self.mark_ready(id);
            }
        }
    }

    /// Queues a message; false if the connection now has more unsent bytes than allowed.
    pub(super) fn send(&mut self, id: u64, message: &Message) -> bool {
        self.queue(id, |conn, pool| conn.push(message, pool))
    }

    /// Queues bytes made by `write`; false if there are now more unsent bytes than allowed.
    pub(super) fn send_raw(&mut self, id: u64, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        self.queue(id, |conn, pool| write(conn.output(pool)))
    }

    fn queue(&mut self, id: u64, push: impl FnOnce(&mut Conn, &mut Pool)) -> bool {
        let Some(conn) = self.table.get_mut(&id) else {
            return true;
        };
        if conn.doomed || matches!(conn.stage, Stage::Closing { .. }) {
            return true;
        }
        let before = conn.unsent();
        push(conn, &mut self.pool);
        let after = conn.unsent();
        self.unsent += after - before;
        if !conn.dirty {
            conn.dirty = true;
            self.dirty.push(id);
        }
        conn.doomed = after > UNSENT_MAX || self.unsent > UNSENT_SUM_MAX;
        !conn.doomed
    }

    /// Puts a connection on the list of those to be flushed.
    pub(super) fn mark_dirty(&mut self, id: u64) {
        if let Some(conn) = self.table.get_mut(&id)
            && !conn.dirty
        {
            conn.dirty = true;
            self.dirty.push(id);
        }
    }

    /// Puts a connection on the list of those to be read, unless it must first send.
    pub(super) fn mark_ready(&mut self, id: u64) {
        if let Some(conn) = self.table.get_mut(&id)
            && !conn.listed
            && conn.readable
            && !conn.stalled
            && conn.unsent() <= UNSENT_PAUSE
        {
            conn.listed = true;
            self.ready.push(id);
        }
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Those that may have something to read; the list begins anew.
    pub(super) fn take_ready(&mut self, into: &mut Vec<u64>) {
        std::mem::swap(&mut self.ready, into);
        for id in &*into {
            if let Some(conn) = self.table.get_mut(id) {
                conn.listed = false;
            }
        }
    }

    /// Keeps the start of a frame; false if that is more than all may keep together.
    pub(super) fn keep_rest(&mut self, id: u64, rest: Vec<u8>) -> bool {
        let Some(conn) = self.table.get_mut(&id) else {
            return true;
        };
        self.rests += rest.len();
        conn.rest = rest;
        self.rests <= REST_SUM_MAX
    }

    /// Takes the start of a frame back.
    pub(super) fn take_rest(&mut self, id: u64) -> Vec<u8> {
        let Some(conn) = self.table.get_mut(&id) else {
            return Vec::new();
        };
        let rest = std::mem::take(&mut conn.rest);
        self.rests = self.rests.saturating_sub(rest.len());
        rest
    }

    /// One write for each connection with something to send. Says how many bytes left; the
    /// connections that failed are added to `lost`.
    pub(super) fn flush(&mut self, lost: &mut Vec<u64>) -> usize {
        let mut sent = 0;
        let mut dirty = std::mem::take(&mut self.dirty);
        for id in dirty.drain(..) {
            let Some(conn) = self.table.get_mut(&id) else {
                continue;
            };
            conn.dirty = false;
            let Ok(bytes) = conn.flush(&mut self.pool) else {
                lost.push(id);
                continue;
            };
            sent += bytes;
            if conn.is_flushed() && conn.stage == (Stage::Closing { flushed: false }) {
                conn.stage = Stage::Closing { flushed: true };
                conn.finish();
            }
            self.mark_ready(id);
        }
        self.unsent = self.unsent.saturating_sub(sent);
        self.dirty = dirty;
        sent
    }
}

#[cfg(test)]
mod tests {
    use conclave_protocol::id::NodeId;

    use super::*;

    fn conns() -> (Conns, std::net::TcpListener) {
        let poll = mio::Poll::new().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        (Conns::new(poll.registry().try_clone().unwrap()), listener)
    }

    fn add(conns: &mut Conns, listener: &std::net::TcpListener) -> u64 {
        let address = listener.local_addr().unwrap();
        let socket = TcpStream::connect(address).unwrap();
        conns
            .add(socket, address, Stage::Waiting, Way::Plain, Instant::ZERO)
            .unwrap()
    }

    #[test]
    fn a_crowd_that_does_not_greet_is_bounded() {
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        if files.is_some_and(|files| files < 4096) {
            eprintln!("skipped: only {files:?} open files are allowed; 4096 are needed");
            return;
        }
        let (mut conns, listener) = conns();
        let ids: Vec<u64> = (0..LOOSE_MAX).map(|_| add(&mut conns, &listener)).collect();
        assert!(conns.is_crowded());
        conns.set_stage(ids[0], Stage::Client { known: false });
        assert!(!conns.is_crowded(), "whoever has greeted makes room");
        assert_eq!(conns.clients(), 1);
        conns.close_soon(ids[0], Instant::ZERO);
        assert!(
            conns.is_crowded(),
            "whoever leaves takes room until it is gone"
        );
        conns.remove(ids[0]);
        conns.remove(ids[1]);
        assert!(!conns.is_crowded());
        assert_eq!((conns.len(), conns.clients()), (LOOSE_MAX - 2, 0));
    }

    #[test]
    fn unsent_bytes_are_bounded_for_each_and_for_all() {
        let (mut conns, listener) = conns();
        let id = add(&mut conns, &listener);
        let fill = |output: &mut Vec<u8>| output.resize(output.len() + (1 << 20), 0);
        for _ in 0..8 {
            assert!(conns.send_raw(id, fill));
        }
        assert!(!conns.send_raw(id, fill), "this one has too much");
        assert_eq!(conns.unsent(), 9 << 20);
        assert!(conns.send_raw(id, fill), "it is told once");
        assert_eq!(conns.unsent(), 9 << 20, "and gets nothing more");
        conns.remove(id);
        assert_eq!(conns.unsent(), 0);
    }

    #[test]
    fn whoever_must_send_first_is_not_read() {
        let (mut conns, listener) = conns();
        let id = add(&mut conns, &listener);
        conns.set_stage(id, Stage::Node(NodeId(0)));
        conns.get_mut(id).unwrap().readable = true;
        conns.send_raw(id, |output| output.resize(UNSENT_PAUSE + 1, 0));
        conns.mark_ready(id);
        assert!(!conns.has_ready());
        let other = add(&mut conns, &listener);
        conns.get_mut(other).unwrap().readable = true;
        conns.send_raw(other, |output| output.resize(UNSENT_PAUSE, 0));
        conns.mark_ready(other);
        let mut ready = Vec::new();
        conns.take_ready(&mut ready);
        assert_eq!(ready, [other]);
    }
}
