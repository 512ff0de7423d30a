//! Whether another process already serves as this node: whoever answers at the address that the
//! cluster knows this node by should be this very process.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use conclave_client::secure::Session;
use conclave_wire::greeting::{Greeting, decode_reply, encode_greeting};

/// How long a connection to our own address may take.
const CONNECT: Duration = Duration::from_millis(500);
/// How long another process has to answer.
const ANSWER: Duration = Duration::from_secs(1);
/// Connections of others that are kept meanwhile.
const EARLY_MAX: usize = 64;
/// No reply is longer.
const REPLY_MAX: usize = 64 * 1024;

/// The address of another process that serves as this node, if there is one.
///
/// Our own listener is looked at meanwhile; connections of others that come there are put into
/// `early`. When nobody answers, nothing is wrong: the address may not be reachable from here.
pub(crate) fn find(
    address: &str,
    greeting: &Greeting,
    tls: Option<Session>,
    listener: &TcpListener,
    early: &mut Vec<TcpStream>,
) -> Option<SocketAddr> {
    let target = address.to_socket_addrs().ok()?.next()?;
    let stream = TcpStream::connect_timeout(&target, CONNECT).ok()?;
    let own = stream.local_addr().ok()?;
    stream.set_nonblocking(true).ok()?;
    listener.set_nonblocking(true).ok()?;
    let mut bytes = Vec::new();
    encode_greeting(greeting, &mut bytes);
    let mut talk = Talk {
        stream,
        tls,
        bytes,
        answer: Vec::new(),
    };
    let begun = Instant::now();
    while begun.elapsed() < ANSWER {
        match listener.accept() {
            Ok((_, from)) if from == own => return None,
            Ok((other, _)) if early.len() < EARLY_MAX => early.push(other),
            _ => {}
        }
        match talk.go_on() {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(_) => return None,
        }
        match decode_reply(&talk.answer) {
            Ok(Some((reply, _))) => {
                let twin = reply.node == greeting.target && reply.process != greeting.process;
                return twin.then_some(target);
            }
            Ok(None) if talk.answer.len() <= REPLY_MAX => {}
            _ => return None,
        }
    }
    None
}

/// A connection on which one greeting is said and one answer heard.
struct Talk {
    stream: TcpStream,
    tls: Option<Session>,
    /// What is left to be said.
    bytes: Vec<u8>,
    answer: Vec<u8>,
}

impl Talk {
    fn go_on(&mut self) -> io::Result<()> {
        match &mut self.tls {
            None if self.bytes.is_empty() => {}
            None => {
                let count = self.stream.write(&self.bytes)?;
                self.bytes.drain(..count);
            }
            Some(session) => {
                let count = session.push(&self.bytes)?;
                self.bytes.drain(..count);
                while session.wants_write() {
                    session.send(&mut self.stream)?;
                }
            }
        }
        let mut came = [0; 4096];
        let count = self.stream.read(&mut came)?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        match &mut self.tls {
            None => self.answer.extend_from_slice(&came[..count]),
            Some(session) => {
                let mut plain = vec![0; 2 * Session::FEED_MAX];
                let fed = session.feed(&came[..count], &mut plain)?;
                self.answer.extend_from_slice(&plain[..fed.plain]);
            }
        }
        Ok(())
    }
}
