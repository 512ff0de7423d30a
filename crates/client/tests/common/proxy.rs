//! A proxy before a node, whose wire can be cut without closing it.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub struct Proxy {
    pub addr: SocketAddr,
    frozen: Arc<watch::Sender<bool>>,
}

impl Proxy {
    pub async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let frozen = Arc::new(watch::Sender::new(false));
        let gate = frozen.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(target).await else {
                    continue;
                };
                let (near_read, near_write) = near.into_split();
                let (far_read, far_write) = far.into_split();
                tokio::spawn(pump(near_read, far_write, gate.subscribe()));
                tokio::spawn(pump(far_read, near_write, gate.subscribe()));
            }
        });
        Self { addr, frozen }
    }

    /// From now on nothing passes.
    pub fn freeze(&self) {
        self.frozen.send_replace(true);
    }

    /// Everything passes again, also what came meanwhile.
    pub fn thaw(&self) {
        self.frozen.send_replace(false);
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut gate: watch::Receiver<bool>) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(count) = from.read(&mut bytes).await {
        if gate.wait_for(|frozen| !*frozen).await.is_err() || count == 0 {
            return;
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
