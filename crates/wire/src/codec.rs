//! Messages as frames on a connection.
//!
//! A frame is a length (u32, little endian) and a protobuf message. Both ends of a connection keep
//! a small dictionary of sessions, so that only the first mention of a session carries its id.

use conclave_protocol::lock::{Message, Resume};
use thiserror::Error;

use crate::decode::{self, LIST_MAX};
use crate::dictionary::{Reading, Writing};
use crate::encode;
use crate::pb::Bad;

/// The most bytes of a frame.
pub const FRAME_MAX: usize = 1 << 20;

/// The most bytes of frames of unknown kinds that may come before a known one.
pub const SKIP_MAX: usize = 1 << 16;

/// Bytes of a frame's length.
const HEAD: usize = 4;

/// Why bytes are not a frame of ours. The connection cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// The frame is longer than allowed.
    #[error("a frame of {bytes} bytes; at most {FRAME_MAX} are allowed")]
    TooLong {
        /// Its announced length.
        bytes: usize,
    },
    /// The bytes of the frame make no sense.
    #[error("a damaged frame: {0}")]
    Damaged(String),
}

impl From<Bad> for WireError {
    fn from(bad: Bad) -> Self {
        Self::Damaged(bad.0.to_owned())
    }
}

/// Turns messages of one direction of one connection into bytes. Every frame must be sent, in
/// order: later ones lean on what earlier ones said.
#[derive(Debug, Default)]
pub struct Encoder {
    known: Writing,
}

impl Encoder {
    /// For a new connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a message, as one frame unless it is too long for one: then a resume goes in more
    /// parts, and the lists of heartbeats and their answers go ahead as messages of their own,
    /// which mean the same. What cannot be cut (only a name or note beyond every limit) ends in a
    /// frame that makes the other end close the connection: no message is left out unseen.
    #[inline]
    pub fn encode(&mut self, message: &Message, out: &mut Vec<u8>) {
        if !self.frame(message, out) {
            self.cut(message, out);
        }
    }

    /// Appends one frame, or nothing if it would be too long.
    #[inline]
    fn frame(&mut self, message: &Message, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        out.extend_from_slice(&[0; HEAD]);
        encode::put(out, &mut self.known, message);
        let length = out.len() - start - HEAD;
        if length > FRAME_MAX || longest_list(message) > LIST_MAX {
            out.truncate(start);
            // Numbers that only the lost frame gave are given again.
            self.known.reset();
            return false;
        }
        out[start..start + HEAD].copy_from_slice(&(length as u32).to_le_bytes());
        true
    }

    #[cold]
    fn cut(&mut self, message: &Message, out: &mut Vec<u8>) {
        match message {
            Message::Resume(resume) => {
                if let Some((first, rest)) = halves(resume) {
                    self.encode(&Message::Resume(Box::new(first)), out);
                    self.encode(&Message::Resume(Box::new(rest)), out);
                    return;
                }
            }
            Message::Heartbeat { beat, entered } if !entered.is_empty() => {
                for entered in entered {
                    self.encode(&Message::Entered(Box::new(entered.clone())), out);
                }
                let (beat, entered) = (*beat, Vec::new());
                self.encode(&Message::Heartbeat { beat, entered }, out);
                return;
            }
            Message::Beat { beat, clock, noted } if !noted.is_empty() => {
                for grant in noted {
                    self.encode(&Message::Noted(*grant), out);
                }
                let (beat, clock, noted) = (*beat, *clock, Vec::new());
                self.encode(&Message::Beat { beat, clock, noted }, out);
                return;
            }
            _ => {}
        }
        out.extend_from_slice(&u32::MAX.to_le_bytes());
    }
}

#[inline]
fn longest_list(message: &Message) -> usize {
    match message {
        Message::Heartbeat { entered, .. } => entered.len(),
        Message::Beat { noted, .. } => noted.len(),
        Message::Resume(resume) => resume
            .sessions
            .len()
            .max(resume.live.len())
            .max(resume.done.len()),
        _ => 0,
    }
}

/// A resume in two parts; none if there is nothing to share out.
fn halves(resume: &Resume) -> Option<(Resume, Resume)> {
    let (sessions, live, done) = (&resume.sessions, &resume.live, &resume.done);
    let half = (sessions.len() + live.len() + done.len()) / 2;
    if half == 0 {
        return None;
    }
    let in_sessions = half.min(sessions.len());
    let in_live = (half - in_sessions).min(live.len());
    let in_done = half - in_sessions - in_live;
    let first = Resume {
        sessions: sessions[..in_sessions].to_vec(),
        live: live[..in_live].to_vec(),
        done: done[..in_done].to_vec(),
        last: false,
    };
    let rest = Resume {
        sessions: sessions[in_sessions..].to_vec(),
        live: live[in_live..].to_vec(),
        done: done[in_done..].to_vec(),
        last: resume.last,
    };
    Some((first, rest))
}

/// Turns the bytes of one direction of one connection into messages.
#[derive(Debug, Default)]
pub struct Decoder {
    known: Reading,
    skipped: u64,
}

impl Decoder {
    /// For a new connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// The first message of `bytes` and how many bytes it took; none if it is not whole yet.
    /// Frames of unknown kinds before it are skipped and are part of what it took.
    #[inline]
    pub fn decode(&mut self, bytes: &[u8]) -> Result<Option<(Message, usize)>, WireError> {
        let (mut taken, mut skipped) = (0, 0);
        while let Some((body, length)) = split(&bytes[taken..], FRAME_MAX)? {
            taken += length;
            let mut found = None;
            decode::message(body, &mut self.known, &mut |message| found = Some(message))?;
            if let Some(message) = found {
                self.skipped += skipped;
                return Ok(Some((message, taken)));
            }
            skipped += 1;
            if taken > SKIP_MAX {
                return Err(Bad("too many messages of unknown kinds in a row").into());
            }
        }
        Ok(None)
    }

    /// Gives away every whole message of `bytes`, in order, and tells how many bytes they took
    /// together with what was skipped. Several times as fast as [`decode`](Self::decode). After
    /// an error the messages before it have been given.
    #[inline]
    pub fn decode_each(
        &mut self,
        bytes: &[u8],
        mut give: impl FnMut(Message),
    ) -> Result<usize, WireError> {
        let mut taken = 0;
        while let Some((body, length)) = split(&bytes[taken..], FRAME_MAX)? {
            taken += length;
            if !decode::message(body, &mut self.known, &mut give)? {
                self.skipped += 1;
            }
        }
        Ok(taken)
    }

    /// How many frames of unknown kinds were skipped.
    pub const fn skipped(&self) -> u64 {
        self.skipped
    }
}

/// What the first frame of some bytes is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum First<T> {
    /// A message, and how many bytes it took.
    Message(T, usize),
    /// Of a kind that only newer builds know, and how many bytes that is.
    Unknown(usize),
    /// Not whole yet.
    Partial,
}

/// Looks at the first frame alone, with the decoder of its connection.
///
/// Decoders pass over frames of unknown kinds too, but these stay in the buffer until a known one
/// follows, and there may not be many. With this they are dropped as they come, so that a newer
/// process can send as many as it likes.
#[inline]
pub fn first_frame<T>(
    bytes: &[u8],
    decode: impl FnOnce(&[u8]) -> Result<Option<(T, usize)>, WireError>,
) -> Result<First<T>, WireError> {
    let whole = split(bytes, FRAME_MAX)?.map(|(_, length)| length);
    // The decoder may have reasons to refuse what is not whole yet.
    let found = decode(&bytes[..whole.unwrap_or(bytes.len())])?;
    Ok(match (found, whole) {
        (Some((message, length)), _) => First::Message(message, length),
        (None, Some(length)) => First::Unknown(length),
        (None, None) => First::Partial,
    })
}

/// The body of the first frame and the bytes it takes; none if it is not whole yet.
#[inline]
pub(crate) fn split(bytes: &[u8], most: usize) -> Result<Option<(&[u8], usize)>, WireError> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*head) as usize;
    if length > FRAME_MAX {
        return Err(WireError::TooLong { bytes: length });
    }
    if length > most {
        return Err(Bad("a frame is too long for its kind").into());
    }
    Ok(rest.get(..length).map(|body| (body, HEAD + length)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use conclave_protocol::Wall;
    use conclave_protocol::id::{ClientId, ConnNo, GrantNo, Name, RequestNo, SessionId, Token};
    use conclave_protocol::lock::{Ask, Bond, ConfigId, GrantRef, Mode, Priority};

    use super::*;

    fn request(session: u128, number: u64) -> Message {
        Message::Request {
            ask: Arc::new(Ask {
                name: Name::new("jobs/nightly"),
                mode: Mode::Exclusive,
                session: SessionId(session),
                request: RequestNo(number),
                priority: Priority {
                    t: 5,
                    client: ClientId(7),
                    request: RequestNo(number),
                },
                bond: Bond::Attached,
            }),
            hint: Token(9),
            inside: None,
        }
    }

    fn all(bytes: &[u8]) -> Vec<Message> {
        let (mut decoder, mut rest, mut messages) = (Decoder::new(), bytes, Vec::new());
        while let Some((message, length)) = decoder.decode(rest).unwrap() {
            messages.push(message);
            rest = &rest[length..];
        }
        assert_eq!(rest, b"");
        messages
    }

    #[test]
    fn what_was_said_before_is_not_said_again() {
        let hello = Message::Hello {
            client: ClientId(7),
            conn: ConnNo(1),
            config: ConfigId::default(),
        };
        let messages = [
            hello,
            request(1, 1),
            request(1, 2),
            request(2, 3),
            request(1, 4),
        ];
        let (mut encoder, mut out, mut lengths) = (Encoder::new(), Vec::new(), Vec::new());
        for message in &messages {
            let before = out.len();
            encoder.encode(message, &mut out);
            lengths.push(out.len() - before);
        }
        assert_eq!(all(&out), messages);
        assert_eq!(lengths[1] - lengths[2], 18, "the id of the session");
        assert_eq!(lengths[3], lengths[1]);
        assert_eq!(lengths[4], lengths[2]);
    }

    #[test]
    fn numbers_of_sessions_are_taken_again() {
        let mut messages: Vec<_> = (0..10_000).map(|i| request(i, 1)).collect();
        messages.extend((0..10_000).rev().map(|i| request(i, 1)));
        let (mut encoder, mut out) = (Encoder::new(), Vec::new());
        for message in &messages {
            encoder.encode(message, &mut out);
        }
        assert_eq!(all(&out), messages);
    }

    #[test]
    fn what_is_too_long_for_a_frame_goes_in_several() {
        let noted: Vec<_> = (0..70_000)
            .map(|i| GrantRef {
                session: SessionId(i),
                request: RequestNo(1),
                grant: GrantNo(2),
            })
            .collect();
        let beat = Message::Beat {
            beat: 3,
            clock: Wall(4),
            noted: noted.clone(),
        };
        let (mut encoder, mut out) = (Encoder::new(), Vec::new());
        encoder.encode(&request(7, 1), &mut out);
        encoder.encode(&beat, &mut out);
        encoder.encode(&request(7, 1), &mut out);
        let got = all(&out);
        assert_eq!(got.len(), noted.len() + 3);
        let told = got[1..=noted.len()].iter();
        assert!(
            told.eq(noted
                .iter()
                .map(|grant| Message::Noted(*grant))
                .collect::<Vec<_>>()
                .iter())
        );
    }
}
