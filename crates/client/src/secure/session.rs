//! TLS between bytes that come from a socket and bytes that go to it, without the socket.

use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};

/// One end of a TLS connection: gives plain bytes for those that came, and bytes to send for
/// plain ones. What it keeps is bounded by what fits into a few records.
#[derive(Debug)]
pub struct Session {
    tls: Connection,
}

/// What came of bytes from the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fed {
    /// So many plain bytes were written.
    pub plain: usize,
    /// The other end has said that nothing more comes.
    pub closed: bool,
}

/// A record that is not whole can hold back so many plain bytes.
const RECORD_MAX: usize = 20 << 10;

impl Session {
    /// Fed at most this much at once, what comes out fits into twice as much.
    pub const FEED_MAX: usize = 32 << 10;

    /// The end that dials, and whom it wants there.
    pub fn dial(config: Arc<ClientConfig>, name: ServerName<'static>) -> io::Result<Self> {
        let tls = ClientConnection::new(config, name).map_err(io::Error::other)?;
        Ok(Self { tls: tls.into() })
    }

    /// The end that was dialled.
    pub fn accept(config: Arc<ServerConfig>) -> io::Result<Self> {
        let tls = ServerConnection::new(config).map_err(io::Error::other)?;
        Ok(Self { tls: tls.into() })
    }

    /// Whether the ends do not know each other yet.
    pub fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// Whether there is something for the socket.
    pub fn wants_write(&self) -> bool {
        self.tls.wants_write()
    }

    /// The other end's certificate, once the ends know each other.
    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.tls.peer_certificates()?.first()
    }

    /// Takes bytes from the socket, at most [`Session::FEED_MAX`], and writes the plain ones, for
    /// which there must be room. After an error there may be a last word for the socket.
    pub fn feed(&mut self, mut bytes: &[u8], plain: &mut [u8]) -> io::Result<Fed> {
        debug_assert!(
            plain.len() >= bytes.len() + RECORD_MAX,
            "a record that was held back must fit too"
        );
        let mut fed = Fed {
            plain: 0,
            closed: false,
        };
        while !bytes.is_empty() && !fed.closed {
            let taken = self.tls.read_tls(&mut bytes)?;
            let state = self.tls.process_new_packets();
            let state = state.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
            fed.plain += self.drain(&mut plain[fed.plain..])?;
            fed.closed = taken == 0 || state.peer_has_closed();
        }
        Ok(fed)
    }

    /// Writes plain bytes that came and were not given out yet.
    pub fn drain(&mut self, plain: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < plain.len() {
            match self.tls.reader().read(&mut plain[done..]) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Takes plain bytes to send: as many as may wait for the socket, none during the handshake.
    pub fn push(&mut self, plain: &[u8]) -> io::Result<usize> {
        if self.tls.is_handshaking() {
            return Ok(0);
        }
        self.tls.writer().write(plain)
    }

    /// Gives the socket what there is for it; the socket's answer.
    pub fn send(&mut self, socket: &mut dyn Write) -> io::Result<usize> {
        self.tls.write_tls(socket)
    }

    /// Nothing more will be pushed.
    pub fn finish(&mut self) {
        self.tls.send_close_notify();
    }
}

impl From<ClientConnection> for Session {
    fn from(tls: ClientConnection) -> Self {
        Self { tls: tls.into() }
    }
}
