//! A TCP proxy in front of a node's peer port, so that a partition can be made without rights.
//!
//! Every byte between clients and a node goes through it. It can hold bytes back in both
//! directions (a cable pulled: nobody is told), for some connections or all, and it can reset.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What the proxy does with connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Bytes pass.
    Open,
    /// No byte passes, and nobody is told.
    Cut,
    /// No byte passes on every second connection.
    Half,
}

/// A proxy in front of one node.
#[derive(Debug)]
pub(super) struct Proxy {
    address: SocketAddr,
    state: watch::Sender<(Line, u64)>,
    passed: Arc<AtomicU64>,
}

impl Proxy {
    /// Listens on a port of the system's choice and passes everything on to `target`.
    pub(super) async fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (state, seen) = watch::channel((Line::Open, 0));
        let passed = Arc::new(AtomicU64::new(0));
        let count = passed.clone();
        tokio::spawn(async move {
            let turn = AtomicU8::new(0);
            while let Ok((stream, _)) = listener.accept().await {
                let odd = turn.fetch_xor(1, Ordering::Relaxed) == 1;
                tokio::spawn(carry(stream, target, seen.clone(), odd, count.clone()));
            }
        });
        Ok(Self {
            address,
            state,
            passed,
        })
    }

    /// Where clients connect.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets what happens to bytes from now on.
    pub(super) fn set(&self, line: Line) {
        self.state.send_modify(|state| state.0 = line);
    }

    /// Resets every connection of now.
    pub(super) fn reset(&self) {
        self.state.send_modify(|state| state.1 += 1);
    }

    /// How many bytes have passed.
    pub(super) fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }
}

async fn carry(
    stream: TcpStream,
    target: SocketAddr,
    state: watch::Receiver<(Line, u64)>,
    odd: bool,
    count: Arc<AtomicU64>,
) {
    let born = state.borrow().1;
    let Ok(node) = TcpStream::connect(target).await else {
        return;
    };
    let _ = (stream.set_nodelay(true), node.set_nodelay(true));
    let ((from_client, to_client), (from_node, to_node)) = (stream.into_split(), node.into_split());
    let up = pass(
        from_client,
        to_node,
        state.clone(),
        odd,
        born,
        count.clone(),
    );
    let down = pass(from_node, to_client, state, odd, born, count);
    // Whichever end closes first takes the other with it.
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut state: watch::Receiver<(Line, u64)>,
    odd: bool,
    born: u64,
    count: Arc<AtomicU64>,
) {
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let got = tokio::select! {
            got = from.read(&mut bytes) => got,
            changed = state.changed() => {
                if changed.is_err() || state.borrow().1 != born {
                    return;
                }
                continue;
            }
        };
        let Ok(got @ 1..) = got else { return };
        loop {
            let (line, resets) = *state.borrow_and_update();
            if resets != born {
                return;
            }
            if line == Line::Open || line == Line::Half && !odd {
                break;
            }
            if state.changed().await.is_err() {
                return;
            }
        }
        if to.write_all(&bytes[..got]).await.is_err() {
            return;
        }
        count.fetch_add(got as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        address
    }

    #[tokio::test]
    async fn a_cut_line_is_silent_and_heals_and_a_reset_ends_it() {
        let proxy = Proxy::start(echo().await).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        let mut byte = [0];
        stream.write_all(b"a").await.unwrap();
        stream.read_exact(&mut byte).await.unwrap();
        proxy.set(Line::Cut);
        stream.write_all(b"b").await.unwrap();
        let short = std::time::Duration::from_millis(50);
        let silent = tokio::time::timeout(short, stream.read_exact(&mut byte)).await;
        assert!(silent.is_err(), "nothing passes a cut line");
        proxy.set(Line::Open);
        stream.read_exact(&mut byte).await.unwrap();
        assert_eq!(&byte, b"b");
        proxy.reset();
        assert!(matches!(stream.read(&mut byte).await, Ok(0) | Err(_)));
        assert!(proxy.passed() >= 4);
    }
}
