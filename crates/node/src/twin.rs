//! Whether another process already serves as this node: whoever answers at the address that the
//! cluster knows this node by should be this very process.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

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
    listener: &TcpListener,
    early: &mut Vec<TcpStream>,
) -> Option<SocketAddr> {
    let target = address.to_socket_addrs().ok()?.next()?;
    let mut stream = TcpStream::connect_timeout(&target, CONNECT).ok()?;
    let own = stream.local_addr().ok()?;
    stream.set_nonblocking(true).ok()?;
    listener.set_nonblocking(true).ok()?;
    let mut bytes = Vec::new();
    encode_greeting(greeting, &mut bytes);
    // A greeting always fits into the buffer of a new connection.
    stream.write_all(&bytes).ok()?;
    let mut answer = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < ANSWER {
        match listener.accept() {
            Ok((_, from)) if from == own => return None,
            Ok((other, _)) if early.len() < EARLY_MAX => early.push(other),
            _ => {}
        }
        let mut chunk = [0; 4096];
        match stream.read(&mut chunk) {
            Ok(0) => return None,
            Ok(bytes) => answer.extend_from_slice(&chunk[..bytes]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(_) => return None,
        }
        match decode_reply(&answer) {
            Ok(Some((reply, _))) => {
                let twin = reply.node == greeting.target && reply.process != greeting.process;
                return twin.then_some(target);
            }
            Ok(None) if answer.len() <= REPLY_MAX => {}
            _ => return None,
        }
    }
    None
}
