//! TLS handshakes of the API port. Who has not sent a whole hello costs a socket and a few bytes,
//! never a turn that others wait for; and both who owes its hello and who owes the rest make room
//! for newcomers, the oldest of the greediest address first.

use std::io::{self, Read};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use conclave_client::secure::{Side, explain};
use rustls::ServerConfig;
use rustls::server::{Accepted, Acceptor};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::StartHandshake;
use tokio_rustls::server::TlsStream;

use super::ApiLimits;
use super::fair_share::{FairShare, Share};

/// The most bytes of a hello. Those of today have at most two thousand.
const HELLO_MAX: usize = 16 << 10;
/// The first byte of whoever begins with TLS.
const TLS_FIRST: u8 = 0x16;

/// Why there is no connection.
#[derive(Debug, Error)]
pub(super) enum ShakeError {
    /// It does not begin with TLS; it was told so.
    #[error("it does not speak TLS")]
    Plain,
    /// Others needed its place.
    #[error("too many handshakes of its address are under way")]
    Dropped,
    /// It took too long.
    #[error("it did not end in time")]
    Late,
    /// What it sent is wrong, or it went away.
    #[error("{}", explain(.0, Side::Caller))]
    Failed(#[from] io::Error),
}

impl ShakeError {
    /// The word under which it is counted.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Dropped => "too_many_handshakes",
            Self::Late | Self::Failed(_) => "tls",
        }
    }
}

/// All handshakes that are under way.
#[derive(Clone, Debug)]
pub(super) struct Handshakes {
    /// Whose hello has not come whole.
    hellos: FairShare,
    /// Whose hello has been answered.
    answered: FairShare,
    patience: Duration,
}

impl Handshakes {
    pub(super) fn new(limits: &ApiLimits) -> Self {
        let share = || FairShare::new(limits.handshakes, limits.handshakes_per_address);
        Self {
            hellos: share(),
            answered: share(),
            patience: limits.handshake,
        }
    }

    /// The handshake of a connection that was accepted just now.
    pub(super) fn begin(&self, from: IpAddr) -> Handshake {
        Handshake {
            place: self.hellos.join(from, 1),
            all: self.clone(),
            from,
        }
    }
}

/// A handshake that begins.
#[derive(Debug)]
pub(super) struct Handshake {
    place: Share,
    all: Handshakes,
    from: IpAddr,
}

impl Handshake {
    /// Shakes hands.
    pub(super) async fn shake(
        self,
        stream: TcpStream,
        config: Arc<ServerConfig>,
    ) -> Result<TlsStream<TcpStream>, ShakeError> {
        let end = Instant::now() + self.all.patience;
        let accepted = in_time(end, self.place, hello(&stream)).await?;
        let place = self.all.answered.join(self.from, 1);
        let rest = StartHandshake::from_parts(accepted, stream).into_stream(config);
        in_time(end, place, async { Ok(rest.await?) }).await
    }
}

/// Does something until the time is up or its place is needed.
async fn in_time<T>(
    end: Instant,
    mut place: Share,
    work: impl Future<Output = Result<T, ShakeError>>,
) -> Result<T, ShakeError> {
    let done = async {
        tokio::select! {
            done = work => done,
            () = place.dropped() => Err(ShakeError::Dropped),
        }
    };
    let done = timeout_at(end, done).await;
    done.unwrap_or(Err(ShakeError::Late))
}

/// Reads until the hello is whole.
async fn hello(stream: &TcpStream) -> Result<Accepted, ShakeError> {
    let mut first = [0];
    if stream.peek(&mut first).await? > 0 && first[0] != TLS_FIRST {
        say_tls(stream);
        return Err(ShakeError::Plain);
    }
    let mut acceptor = Acceptor::default();
    let mut left = HELLO_MAX;
    while left > 0 {
        stream.readable().await?;
        let read = acceptor.read_tls(&mut Ready(stream).take(left as u64));
        match read {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(count) => left -= count.min(left),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error.into()),
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => return Ok(accepted),
            Ok(None) => {}
            Err((error, mut alert)) => {
                let mut bytes = Vec::new();
                alert.write_all(&mut bytes)?;
                // Whoever cannot take it sees a closed connection.
                let _ = stream.try_write(&bytes);
                return Err(io::Error::new(io::ErrorKind::InvalidData, error).into());
            }
        }
    }
    let large = format!("a hello of more than {HELLO_MAX} bytes");
    Err(io::Error::new(io::ErrorKind::InvalidData, large).into())
}

/// What has come on a connection.
struct Ready<'a>(&'a TcpStream);

impl Read for Ready<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buffer)
    }
}

/// Tells a caller that speaks plain HTTP where TLS is spoken.
fn say_tls(stream: &TcpStream) {
    let body = r#"{"error":{"code":"tls_only","message":"this port speaks TLS: write https://"}}"#;
    let text = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    // What it sent is read, for closing with unread bytes would take the answer back.
    let _ = stream.try_read(&mut [0; 4096]);
    let _ = stream.try_write(text.as_bytes());
}
