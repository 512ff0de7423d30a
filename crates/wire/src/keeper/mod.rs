//! What clients and nodes say to each other about leases and objects, as frames on a connection.
//!
//! Frames are as those of locks: a length (u32, little endian) and a protobuf message. There is
//! nothing to remember between them, so each is read and written by itself.

mod answer;
mod ask;
pub(crate) mod parts;
mod record;

use conclave_protocol::keeper::{Answer, Ask};

use crate::codec::{FRAME_MAX, SKIP_MAX, WireError, split};
use crate::pb::{Bad, Reader};

pub use record::{decode_record, encode_record};

/// The most parts (cells, deltas, spans, operations, objects) of one frame.
pub const PARTS_MAX: usize = 1 << 17;

/// The most bytes of a rank's signature.
pub const PROOF_MAX: usize = 4096;

/// Appends a question as a frame. One that is too long is refused and leaves `out` as it was.
pub fn encode_ask(ask: &Ask, out: &mut Vec<u8>) -> Result<(), WireError> {
    frame(out, |out| ask::put(out, ask))
}

/// The first question of `bytes` and how many bytes it took, frames of unknown kinds before it
/// included; none if it is not whole yet.
pub fn decode_ask(bytes: &[u8]) -> Result<Option<(Ask, usize)>, WireError> {
    first(bytes, ask::read)
}

/// Appends an answer as a frame. One that is too long is refused and leaves `out` as it was.
pub fn encode_answer(answer: &Answer, out: &mut Vec<u8>) -> Result<(), WireError> {
    frame(out, |out| answer::put(out, answer))
}

/// The first answer of `bytes` and how many bytes it took, frames of unknown kinds before it
/// included; none if it is not whole yet.
pub fn decode_answer(bytes: &[u8]) -> Result<Option<(Answer, usize)>, WireError> {
    first(bytes, answer::read)
}

const HEAD: usize = 4;

fn frame(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) -> Result<(), WireError> {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD]);
    body(out);
    let bytes = out.len() - start - HEAD;
    if bytes > FRAME_MAX {
        out.truncate(start);
        return Err(WireError::TooLong { bytes });
    }
    out[start..start + HEAD].copy_from_slice(&(bytes as u32).to_le_bytes());
    Ok(())
}

type Read<T> = fn(Reader<'_>, &mut Budget) -> Result<Option<T>, Bad>;

fn first<T>(bytes: &[u8], read: Read<T>) -> Result<Option<(T, usize)>, WireError> {
    let mut taken = 0;
    while let Some((body, length)) = split(&bytes[taken..], FRAME_MAX)? {
        taken += length;
        if let Some(found) = read(Reader::new(body), &mut Budget(PARTS_MAX))? {
            return Ok(Some((found, taken)));
        }
        if taken > SKIP_MAX {
            return Err(Bad("too many messages of unknown kinds in a row").into());
        }
    }
    Ok(None)
}

/// How many parts a frame may still have: small parts take more memory than bytes.
struct Budget(usize);

impl Budget {
    fn push<T>(&mut self, list: &mut Vec<T>, item: T) -> Result<(), Bad> {
        self.0 = self.0.checked_sub(1).ok_or(Bad("a list is too long"))?;
        list.push(item);
        Ok(())
    }
}
