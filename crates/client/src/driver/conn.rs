//! One connection: bytes on their way out, bytes that came in, plain or over TLS.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use conclave_protocol::id::{ConnNo, NodeId};
use conclave_protocol::lock::Message;
use conclave_wire::codec::{Decoder, Encoder, First, first_frame};
use conclave_wire::greeting::{Reply, decode_reply};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio_rustls::TlsStream;

use crate::secure::{Session, Side, Stream, explain, is_lasting};

/// The most bytes that wait for a node that does not read.
pub(super) const OUT_MAX: usize = 8 << 20;
/// How much is read at a time.
const CHUNK: usize = 64 << 10;
/// The most bytes read in one turn, so that one node cannot keep the others waiting.
const TURN_MAX: usize = 1 << 20;

/// A connection that is open, after the handshake if it speaks TLS.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) stream: TcpStream,
    pub(super) tls: Option<Session>,
}

/// The state of TLS, which both directions of a connection use.
type Shared = Option<Arc<Mutex<Session>>>;

impl Open {
    /// A connection whose encryption we drive ourselves.
    pub(super) fn new(stream: Stream) -> io::Result<Self> {
        match stream {
            Stream::Plain(stream) => Ok(Self { stream, tls: None }),
            Stream::Tls(stream) => {
                let TlsStream::Client(stream) = *stream else {
                    return Err(io::ErrorKind::Unsupported.into());
                };
                let (stream, session) = stream.into_inner();
                let tls = Some(Session::from(session));
                Ok(Self { stream, tls })
            }
        }
    }

    /// Both sides of the connection.
    pub(super) fn split(self, node: NodeId, no: ConnNo, greeting: Vec<u8>) -> (Reader, Writer) {
        let (read, write) = self.stream.into_split();
        let tls = self.tls.map(|session| Arc::new(Mutex::new(session)));
        let reader = Reader::new(node, no, read, tls.clone());
        (reader, Writer::new(no, write, tls, greeting))
    }
}

/// The sending side of a connection.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) no: ConnNo,
    half: OwnedWriteHalf,
    tls: Shared,
    /// TLS has bytes that the system has not taken.
    held: bool,
    encoder: Encoder,
    out: Vec<u8>,
    /// How much of `out` has been written.
    sent: usize,
}

/// What became of bytes on their way out.
#[derive(Debug)]
pub(super) enum Flushed {
    /// All are written.
    All,
    /// Some must wait until the node reads.
    Some,
    /// The connection is broken.
    Broken(io::Error),
}

impl Writer {
    fn new(no: ConnNo, half: OwnedWriteHalf, tls: Shared, greeting: Vec<u8>) -> Self {
        Self {
            no,
            half,
            tls,
            held: false,
            encoder: Encoder::new(),
            out: greeting,
            sent: 0,
        }
    }

    /// Puts a message into the buffer. `false` if too much waits there already.
    pub(super) fn push(&mut self, message: &Message) -> bool {
        self.encoder.encode(message, &mut self.out);
        self.out.len() - self.sent <= OUT_MAX
    }

    pub(super) fn has_bytes(&self) -> bool {
        self.sent < self.out.len() || self.held
    }

    /// Writes what the system takes. Without a task to wake, whoever asked must come again.
    pub(super) fn flush(&mut self, mut cx: Option<&mut Context<'_>>, writes: &mut u64) -> Flushed {
        if let Some(tls) = self.tls.clone() {
            return self.flush_tls(&mut locked(&tls), cx, writes);
        }
        while self.sent < self.out.len() {
            let bytes = &self.out[self.sent..];
            *writes += 1;
            match write(&mut self.half, &mut cx, bytes) {
                Poll::Ready(Ok(0)) => return Flushed::Broken(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => self.sent += count,
                Poll::Ready(Err(error)) => return Flushed::Broken(error),
                Poll::Pending => return self.some(),
            }
        }
        self.all()
    }

    fn flush_tls(
        &mut self,
        tls: &mut Session,
        cx: Option<&mut Context<'_>>,
        writes: &mut u64,
    ) -> Flushed {
        let mut socket = Socket {
            half: &mut self.half,
            cx,
            writes,
        };
        loop {
            match tls.push(&self.out[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) => return Flushed::Broken(error),
            }
            self.held = tls.wants_write();
            if !self.held {
                return self.all();
            }
            match tls.send(&mut socket) {
                Ok(0) => return Flushed::Broken(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return self.some(),
                Err(error) => return Flushed::Broken(error),
            }
        }
    }

    fn all(&mut self) -> Flushed {
        self.out.clear();
        // A burst is over: its memory is given back.
        self.out.shrink_to(CHUNK);
        self.sent = 0;
        Flushed::All
    }

    fn some(&mut self) -> Flushed {
        self.out.drain(..self.sent);
        self.sent = 0;
        Flushed::Some
    }
}

/// Writes once. Without a task to wake, whoever asked must come again.
fn write(
    half: &mut OwnedWriteHalf,
    cx: &mut Option<&mut Context<'_>>,
    bytes: &[u8],
) -> Poll<io::Result<usize>> {
    match cx {
        Some(cx) => Pin::new(half).poll_write(cx, bytes),
        None => match half.try_write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
            other => Poll::Ready(other),
        },
    }
}

/// The socket as TLS writes to it.
struct Socket<'a, 'b, 'c> {
    half: &'a mut OwnedWriteHalf,
    cx: Option<&'b mut Context<'c>>,
    writes: &'a mut u64,
}

impl io::Write for Socket<'_, '_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        *self.writes += 1;
        match write(self.half, &mut self.cx, bytes) {
            Poll::Ready(wrote) => wrote,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn write_vectored(&mut self, parts: &[io::IoSlice<'_>]) -> io::Result<usize> {
        *self.writes += 1;
        let wrote = match &mut self.cx {
            Some(cx) => Pin::new(&mut *self.half).poll_write_vectored(cx, parts),
            None => return self.half.try_write_vectored(parts),
        };
        match wrote {
            Poll::Ready(wrote) => wrote,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn locked(tls: &Mutex<Session>) -> MutexGuard<'_, Session> {
    tls.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The receiving side of a connection.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) node: NodeId,
    pub(super) no: ConnNo,
    half: OwnedReadHalf,
    tls: Shared,
    /// Bytes from the system that TLS has not seen; empty without TLS.
    sealed: Vec<u8>,
    decoder: Decoder,
    bytes: Vec<u8>,
    /// The bytes that hold something: from where it is not decoded yet, and up to where.
    start: usize,
    end: usize,
    pub(super) greeted: bool,
    /// Why nothing more will come.
    pub(super) ended: Option<String>,
    /// Whether that will be so again.
    pub(super) lasting: bool,
}

/// What a turn of reading brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Nothing,
    Something,
    /// As much as a turn may bring: there may be more.
    Full,
}

impl Reader {
    fn new(node: NodeId, no: ConnNo, half: OwnedReadHalf, tls: Shared) -> Self {
        let sealed = tls.as_ref().map_or(0, |_| Session::FEED_MAX);
        let mut reader = Self {
            node,
            no,
            half,
            tls,
            sealed: vec![0; sealed],
            decoder: Decoder::new(),
            bytes: Vec::new(),
            start: 0,
            end: 0,
            greeted: false,
            ended: None,
            lasting: false,
        };
        // What came with the end of the handshake.
        if let Some(tls) = reader.tls.clone() {
            reader.bytes.resize(CHUNK, 0);
            match locked(&tls).drain(&mut reader.bytes) {
                Ok(count) => reader.end = count,
                Err(error) => reader.broke(&error),
            }
        }
        reader
    }

    /// Reads everything there is.
    pub(super) fn read(&mut self, cx: &mut Context<'_>, reads: &mut u64) -> Turn {
        let mut brought = 0;
        while self.ended.is_none() {
            if self.bytes.len() < self.end + CHUNK {
                self.bytes.resize(self.end + CHUNK, 0);
            }
            match self.read_once(cx) {
                Poll::Pending => break,
                Poll::Ready(Ok((came, closed))) => {
                    *reads += 1;
                    brought += came;
                    if closed {
                        self.ended = Some("the node closed the connection".to_owned());
                    }
                    if brought >= TURN_MAX {
                        return Turn::Full;
                    }
                }
                Poll::Ready(Err(error)) => self.broke(&error),
            }
        }
        if brought > 0 || self.ended.is_some() {
            Turn::Something
        } else {
            Turn::Nothing
        }
    }

    fn broke(&mut self, error: &io::Error) {
        self.ended = Some(explain(error, Side::Node));
        self.lasting = is_lasting(error);
    }

    /// Reads once into the free end of the buffer: how many bytes came, and whether no more will.
    fn read_once(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(usize, bool)>> {
        let free = &mut self.bytes[self.end..];
        let mut buf = ReadBuf::new(match self.tls {
            None => &mut *free,
            Some(_) => &mut self.sealed,
        });
        std::task::ready!(Pin::new(&mut self.half).poll_read(cx, &mut buf))?;
        let came = buf.filled().len();
        let Some(tls) = &self.tls else {
            self.end += came;
            return Poll::Ready(Ok((came, came == 0)));
        };
        let fed = locked(tls).feed(&self.sealed[..came], &mut self.bytes[self.end..])?;
        self.end += fed.plain;
        Poll::Ready(Ok((came, came == 0 || fed.closed)))
    }

    /// The reply to our greeting, once it is whole.
    pub(super) fn reply(&mut self) -> Result<Option<Reply>, String> {
        let found = decode_reply(&self.bytes[self.start..self.end]);
        let found = found.map_err(|error| error.to_string())?;
        Ok(found.map(|(reply, length)| {
            self.take(length);
            reply
        }))
    }

    /// The next message, once it is whole.
    pub(super) fn message(&mut self) -> Result<Option<Message>, String> {
        loop {
            let bytes = &self.bytes[self.start..self.end];
            let first = first_frame(bytes, |bytes| self.decoder.decode(bytes));
            match first.map_err(|error| error.to_string())? {
                First::Message(message, length) => {
                    self.take(length);
                    return Ok(Some(message));
                }
                // A newer node may send what this build does not know.
                First::Unknown(length) => self.take(length),
                First::Partial => return Ok(None),
            }
        }
    }

    fn take(&mut self, length: usize) {
        self.start += length.min(self.end - self.start);
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Moves what is left to the front, and gives the memory of a burst back.
    pub(super) fn tidy(&mut self) {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.bytes.len() > self.end + 4 * CHUNK {
            self.bytes.truncate(self.end + CHUNK);
            self.bytes.shrink_to_fit();
        }
    }
}
