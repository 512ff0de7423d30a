//! One connection: bytes on their way out, bytes that came in.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use conclave_protocol::id::{ConnNo, NodeId};
use conclave_protocol::lock::Message;
use conclave_wire::codec::{Decoder, Encoder};
use conclave_wire::greeting::{Reply, decode_reply};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// The most bytes that wait for a node that does not read.
pub(super) const OUT_MAX: usize = 8 << 20;
/// How much is read at a time.
const CHUNK: usize = 64 << 10;
/// The most bytes read in one turn, so that one node cannot keep the others waiting.
const TURN_MAX: usize = 1 << 20;

/// The sending side of a connection.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) no: ConnNo,
    half: OwnedWriteHalf,
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
    pub(super) fn new(no: ConnNo, half: OwnedWriteHalf, greeting: Vec<u8>) -> Self {
        Self {
            no,
            half,
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
        self.sent < self.out.len()
    }

    /// Writes what the system takes. Without a task to wake, whoever asked must come again.
    pub(super) fn flush(&mut self, mut cx: Option<&mut Context<'_>>, writes: &mut u64) -> Flushed {
        while self.sent < self.out.len() {
            let bytes = &self.out[self.sent..];
            *writes += 1;
            let wrote = match &mut cx {
                Some(cx) => Pin::new(&mut self.half).poll_write(cx, bytes),
                None => match self.half.try_write(bytes) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
                    other => Poll::Ready(other),
                },
            };
            match wrote {
                Poll::Ready(Ok(0)) => return Flushed::Broken(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => self.sent += count,
                Poll::Ready(Err(error)) => return Flushed::Broken(error),
                Poll::Pending => {
                    self.out.drain(..self.sent);
                    self.sent = 0;
                    return Flushed::Some;
                }
            }
        }
        self.out.clear();
        // A burst is over: its memory is given back.
        self.out.shrink_to(CHUNK);
        self.sent = 0;
        Flushed::All
    }
}

/// The receiving side of a connection.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) node: NodeId,
    pub(super) no: ConnNo,
    half: OwnedReadHalf,
    decoder: Decoder,
    bytes: Vec<u8>,
    /// The bytes that hold something: from where it is not decoded yet, and up to where.
    start: usize,
    end: usize,
    pub(super) greeted: bool,
    /// Why nothing more will come.
    pub(super) ended: Option<String>,
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
    pub(super) fn new(node: NodeId, no: ConnNo, half: OwnedReadHalf) -> Self {
        Self {
            node,
            no,
            half,
            decoder: Decoder::new(),
            bytes: Vec::new(),
            start: 0,
            end: 0,
            greeted: false,
            ended: None,
        }
    }

    /// Reads everything there is.
    pub(super) fn read(&mut self, cx: &mut Context<'_>, reads: &mut u64) -> Turn {
        let mut brought = 0;
        while self.ended.is_none() {
            if self.bytes.len() < self.end + CHUNK {
                self.bytes.resize(self.end + CHUNK, 0);
            }
            let mut buf = ReadBuf::new(&mut self.bytes[self.end..]);
            match Pin::new(&mut self.half).poll_read(cx, &mut buf) {
                Poll::Pending => break,
                Poll::Ready(Ok(())) => {
                    let count = buf.filled().len();
                    *reads += 1;
                    self.end += count;
                    brought += count;
                    if count == 0 {
                        self.ended = Some("the node closed the connection".to_owned());
                    }
                    if brought >= TURN_MAX {
                        return Turn::Full;
                    }
                }
                Poll::Ready(Err(error)) => self.ended = Some(error.to_string()),
            }
        }
        if brought > 0 || self.ended.is_some() {
            Turn::Something
        } else {
            Turn::Nothing
        }
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
        let found = self.decoder.decode(&self.bytes[self.start..self.end]);
        let found = found.map_err(|error| error.to_string())?;
        Ok(found.map(|(message, length)| {
            self.take(length);
            message
        }))
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
