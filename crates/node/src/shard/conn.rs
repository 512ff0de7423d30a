//! One connection: its socket, what came and is not whole, what the socket has not taken.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;

use conclave_client::secure::{Session, is_client_hello};
use conclave_protocol::id::NodeId;
use conclave_protocol::lock::Message;
use conclave_wire::codec::{Decoder, Encoder};
use mio::net::TcpStream;
use rustls::ServerConfig;

/// What a connection is for at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Accepted; its greeting has not come.
    Waiting,
    /// A client's; whether its first message has come.
    Client { known: bool },
    /// A client's or a node's that asks about leases and objects.
    Keeper,
    /// Another node's, which only speaks.
    Node(NodeId),
    /// Ours to another node, which only listens: still connecting, or waiting for its reply.
    Dialled { node: NodeId, open: bool },
    /// Ours to another node, after its reply.
    Spoken(NodeId),
    /// Ours to another node of the hierarchy: still connecting, or waiting for its reply.
    LevelDialled { node: NodeId, open: bool },
    /// Between two nodes of the hierarchy; both speak.
    Levels(NodeId),
    /// It is flushed, then closed when the other side has read it all or its time is up.
    Closing { flushed: bool },
}

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Got {
    /// So many bytes, and there may be more.
    Bytes(usize),
    /// So many bytes, and nothing more for now.
    Last(usize),
    /// The other side is gone.
    End,
}

/// How bytes become those of the socket.
#[derive(Debug)]
pub(super) enum Way {
    /// As they are; this node speaks no TLS.
    Plain,
    /// Nothing has come yet: the first bytes show whether the other side speaks TLS.
    Unknown(Arc<ServerConfig>),
    /// As they are, although this node speaks TLS: just enough to tell the other side.
    Mistaken,
    /// Over TLS.
    Tls(Box<Session>),
}

/// A connection and what is known of it.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own about the socket"
)]
pub(super) struct Conn {
    socket: TcpStream,
    way: Way,
    /// Who is at the other end, for logs.
    pub(super) address: SocketAddr,
    pub(super) stage: Stage,
    /// Whom a client's connection is charged to, once it has greeted.
    pub(super) account: Option<Arc<str>>,
    encoder: Encoder,
    pub(super) decoder: Decoder,
    /// The start of a frame that is not whole yet.
    pub(super) rest: Vec<u8>,
    output: Vec<u8>,
    /// How much of the output the socket has taken.
    sent: usize,
    /// The socket took less than all: it says when it takes more.
    blocked: bool,
    /// The socket may have more to read.
    pub(super) readable: bool,
    /// The other side has closed its half: reading goes on to the very end.
    pub(super) hangs_up: bool,
    /// It has too much to send and is about to be dropped.
    pub(super) doomed: bool,
    /// Whether it is on the list of those to be flushed.
    pub(super) dirty: bool,
    /// Whether it is on the list of those to be read.
    pub(super) listed: bool,
    /// The keeper has as much to do as it may: it is read again when it has less.
    pub(super) stalled: bool,
}

impl Conn {
    pub(super) fn new(socket: TcpStream, address: SocketAddr, stage: Stage, way: Way) -> Self {
        Self {
            socket,
            way,
            address,
            stage,
            account: None,
            encoder: Encoder::new(),
            decoder: Decoder::new(),
            rest: Vec::new(),
            output: Vec::new(),
            sent: 0,
            blocked: matches!(
                stage,
                Stage::Dialled { open: false, .. } | Stage::LevelDialled { open: false, .. }
            ),
            readable: false,
            hangs_up: false,
            doomed: false,
            dirty: false,
            listed: false,
            stalled: false,
        }
    }

    pub(super) fn way(&self) -> &Way {
        &self.way
    }

    /// Whether the ends do not know each other yet.
    pub(super) fn is_handshaking(&self) -> bool {
        match &self.way {
            Way::Plain | Way::Mistaken => false,
            Way::Unknown(_) => true,
            Way::Tls(session) => session.is_handshaking(),
        }
    }

    /// Whether TLS has something to say, or can say now what waited for the end of its handshake.
    pub(super) fn wants_flush(&self) -> bool {
        match &self.way {
            Way::Tls(session) => {
                session.wants_write() || !session.is_handshaking() && self.unsent() > 0
            }
            _ => false,
        }
    }

    /// Whether the socket has taken everything.
    pub(super) fn is_flushed(&self) -> bool {
        self.unsent() == 0 && !matches!(&self.way, Way::Tls(session) if session.wants_write())
    }

    pub(super) fn socket(&mut self) -> &mut TcpStream {
        &mut self.socket
    }

    /// How many bytes wait to be taken by the socket.
    pub(super) fn unsent(&self) -> usize {
        self.output.len() - self.sent
    }

    /// The output, with a buffer from the pool if it has none.
    pub(super) fn output(&mut self, pool: &mut Pool) -> &mut Vec<u8> {
        if self.output.capacity() == 0 {
            self.output = pool.take();
        }
        &mut self.output
    }

    /// Appends a message to the output.
    pub(super) fn push(&mut self, message: &Message, pool: &mut Pool) {
        if self.output.capacity() == 0 {
            self.output = pool.take();
        }
        self.encoder.encode(message, &mut self.output);
    }

    /// The socket takes bytes again.
    pub(super) fn unblock(&mut self) {
        self.blocked = false;
    }

    /// Reads once. `sealed` is for the bytes of TLS.
    pub(super) fn read(&mut self, into: &mut [u8], sealed: &mut [u8]) -> io::Result<Got> {
        match self.way {
            Way::Plain | Way::Mistaken => read(&mut self.socket, into, self.hangs_up),
            Way::Unknown(_) | Way::Tls(_) => self.read_tls(into, sealed),
        }
    }

    fn read_tls(&mut self, into: &mut [u8], sealed: &mut [u8]) -> io::Result<Got> {
        let got = read(&mut self.socket, sealed, self.hangs_up)?;
        let (Got::Bytes(count) | Got::Last(count)) = got else {
            return Ok(got);
        };
        if count == 0 {
            return Ok(got);
        }
        let came = &sealed[..count];
        if let Way::Unknown(config) = &self.way {
            // A greeting of TLS may come in pieces, but its first byte begins no other greeting.
            if came[0] != TLS_FIRST || came.len() >= 3 && !is_client_hello(came) {
                self.way = Way::Mistaken;
                into[..count].copy_from_slice(came);
                return Ok(got);
            }
            self.way = Way::Tls(Box::new(Session::accept(config.clone())?));
        }
        let Way::Tls(session) = &mut self.way else {
            return Ok(got);
        };
        let fed = match session.feed(came, into) {
            Ok(fed) => fed,
            Err(error) => {
                // The other side is told why, if the socket takes it.
                let _ = session.send(&mut self.socket);
                return Err(error);
            }
        };
        Ok(match got {
            _ if fed.closed && fed.plain == 0 => Got::End,
            Got::Last(_) if !fed.closed => Got::Last(fed.plain),
            _ => Got::Bytes(fed.plain),
        })
    }

    /// Gives the socket all it takes, in one write if it can; says how many bytes it took.
    pub(super) fn flush(&mut self, pool: &mut Pool) -> io::Result<usize> {
        let before = self.sent;
        if let Way::Tls(session) = &mut self.way {
            while !self.blocked {
                self.sent += session.push(&self.output[self.sent..])?;
                if !session.wants_write() {
                    break;
                }
                match session.send(&mut self.socket) {
                    Ok(0) => return Err(ErrorKind::WriteZero.into()),
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => self.blocked = true,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            return Ok(self.wrote(before, pool));
        }
        while !self.blocked && self.sent < self.output.len() {
            match self.socket.write(&self.output[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.blocked = true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.wrote(before, pool))
    }

    /// Tidies up after a write; how many bytes it took.
    fn wrote(&mut self, before: usize, pool: &mut Pool) -> usize {
        let wrote = self.sent - before;
        if self.sent == self.output.len() {
            self.sent = 0;
            pool.give(std::mem::take(&mut self.output));
        } else if self.sent >= COMPACT {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
        wrote
    }

    /// Tells the other side that nothing more comes.
    pub(super) fn finish(&mut self) {
        if let Way::Tls(session) = &mut self.way {
            session.finish();
            let _ = session.send(&mut self.socket);
        }
        // A socket that is gone needs no farewell.
        let _ = self.socket.shutdown(Shutdown::Write);
    }
}

/// The first byte of whoever begins with TLS.
const TLS_FIRST: u8 = 0x16;

fn read(socket: &mut TcpStream, into: &mut [u8], hangs_up: bool) -> io::Result<Got> {
    loop {
        match socket.read(into) {
            Ok(0) => return Ok(Got::End),
            // A short read has emptied the socket: what comes later is told anew.
            Ok(bytes) if bytes < into.len() && !hangs_up => return Ok(Got::Last(bytes)),
            Ok(bytes) => return Ok(Got::Bytes(bytes)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Got::Last(0)),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Sent bytes are dropped from the front once there are this many.
const COMPACT: usize = 1 << 20;

/// Empty buffers for the connections that have something to send: idle ones keep none.
#[derive(Debug, Default)]
pub(super) struct Pool(Vec<Vec<u8>>);

impl Pool {
    const BUFFERS: usize = 256;
    const BYTES: usize = 64 * 1024;

    fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_else(|| Vec::with_capacity(1024))
    }

    fn give(&mut self, mut buffer: Vec<u8>) {
        let fits = (1..=Self::BYTES).contains(&buffer.capacity());
        if fits && self.0.len() < Self::BUFFERS {
            buffer.clear();
            self.0.push(buffer);
        }
    }
}
