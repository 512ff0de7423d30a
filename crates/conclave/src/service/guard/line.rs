//! What the holder of a lock and the guard of its command tell each other, over a pair of sockets.
//!
//! The guard's end is its standard input, for no other descriptor reaches a new process. The
//! command's own standard input goes over it, before the first word.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use conclave_protocol::Instant;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;

/// The length of a word.
pub(super) const WORD: usize = 9;

/// What the holder says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// The lock counts until then.
    Until(Instant),
    /// It is lost.
    Lost,
    /// This signal is for the command.
    Signal(i32),
}

impl Word {
    pub(super) fn bytes(self) -> [u8; WORD] {
        let (kind, number) = match self {
            Self::Until(until) => (0, until.nanos()),
            Self::Lost => (1, 0),
            Self::Signal(signal) => (2, u64::from(signal.cast_unsigned())),
        };
        let mut bytes = [kind; WORD];
        bytes[1..].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    pub(super) fn read(bytes: [u8; WORD]) -> Option<Self> {
        let [kind, number @ ..] = bytes;
        let number = u64::from_le_bytes(number);
        Some(match kind {
            0 => Self::Until(Instant::from_nanos(number)),
            1 => Self::Lost,
            2 => Self::Signal(i32::try_from(number).ok()?),
            _ => return None,
        })
    }
}

/// What the guard says at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ending {
    /// How the command ended, as the system tells it.
    pub(super) status: i32,
    /// The command was told to end.
    pub(super) told: bool,
}

impl Ending {
    pub(super) fn bytes(self) -> [u8; 5] {
        let [a, b, c, d] = self.status.to_le_bytes();
        [u8::from(self.told), a, b, c, d]
    }

    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let [told, status @ ..]: [u8; 5] = bytes.try_into().ok()?;
        Some(Self {
            status: i32::from_le_bytes(status),
            told: told != 0,
        })
    }
}

/// Reads some of what the guard says at the end; false when it has said all.
pub(super) async fn read_ending(line: &mut UnixStream, ending: &mut Vec<u8>) -> bool {
    // Nobody honest sends more than an ending.
    ending.len() <= WORD && matches!(line.read_buf(ending).await, Ok(1..))
}

/// Sends our standard input along.
pub(super) fn send_stdin(line: impl AsFd) -> io::Result<()> {
    let stdin = io::stdin();
    let descriptors = [stdin.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(
        line,
        &[IoSlice::new(&[0])],
        &mut control,
        SendFlags::empty(),
    )?;
    Ok(())
}

/// Receives the standard input that was sent along.
pub(super) fn receive_stdin(line: impl AsFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    recvmsg(line, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
    let mut received = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let none = || io::Error::other("no standard input was sent along");
    received.next().ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_from_their_bytes() {
        for word in [
            Word::Until(Instant::from_nanos(u64::MAX)),
            Word::Lost,
            Word::Signal(15),
        ] {
            assert_eq!(Word::read(word.bytes()), Some(word));
        }
        assert_eq!(Word::read([9; WORD]), None);
        let ending = Ending {
            status: 15,
            told: true,
        };
        assert_eq!(Ending::read(&ending.bytes()), Some(ending));
        assert_eq!(Ending::read(&[1, 2]), None);
    }
}
