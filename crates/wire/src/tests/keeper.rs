//! Questions and answers about leases and objects: they come back, they are protobuf, and no bytes
//! do harm.

use proptest::prelude::*;

use conclave_protocol::id::Name;
use conclave_protocol::keeper::{Answer, Ask};
use conclave_protocol::object::{Delta, Digest, ObjectAsk, ObjectTell, OpId, Page, Stamp};

use super::keeper_samples::{answers, asks, records};
use crate::codec::{FRAME_MAX, SKIP_MAX, WireError};
use crate::generated::peer;
use crate::keeper::{
    PARTS_MAX, decode_answer, decode_ask, decode_record, encode_answer, encode_ask, encode_record,
};
use crate::pb;

fn ask_bytes(ask: &Ask) -> Vec<u8> {
    let mut out = Vec::new();
    encode_ask(ask, &mut out).unwrap();
    out
}

fn answer_bytes(answer: &Answer) -> Vec<u8> {
    let mut out = Vec::new();
    encode_answer(answer, &mut out).unwrap();
    out
}

/// All frames of both directions, which an attacker would start from.
fn frames() -> Vec<Vec<u8>> {
    let asks = asks().into_iter().map(|(_, ask)| ask_bytes(&ask));
    let answers = answers().into_iter().map(|(_, a)| answer_bytes(&a));
    asks.chain(answers).collect()
}

fn is_protobuf<T: prost::Message + Default + std::fmt::Debug>(body: &[u8]) {
    let read = T::decode(body).unwrap();
    assert_eq!(read.encode_to_vec(), body, "{read:?}");
}

/// Reads the bytes in both directions; what is read is written and read again.
fn read(bytes: &[u8]) {
    if let Ok(Some((ask, length))) = decode_ask(bytes) {
        assert!(length <= bytes.len());
        let again = ask_bytes(&ask);
        assert_eq!(decode_ask(&again), Ok(Some((ask, again.len()))));
    }
    if let Ok(Some((answer, length))) = decode_answer(bytes) {
        assert!(length <= bytes.len());
        let again = answer_bytes(&answer);
        assert_eq!(decode_answer(&again), Ok(Some((answer, again.len()))));
    }
}

#[test]
fn frames_are_protobuf_and_are_whole_or_not_there_yet() {
    for (name, ask) in asks() {
        let bytes = ask_bytes(&ask);
        is_protobuf::<peer::KeeperAsk>(&bytes[4..]);
        for cut in 0..bytes.len() {
            assert_eq!(decode_ask(&bytes[..cut]), Ok(None), "{name} at {cut}");
        }
    }
    for (name, answer) in answers() {
        let bytes = answer_bytes(&answer);
        is_protobuf::<peer::KeeperAnswer>(&bytes[4..]);
        for cut in 0..bytes.len() {
            assert_eq!(decode_answer(&bytes[..cut]), Ok(None), "{name} at {cut}");
        }
    }
}

#[test]
fn every_changed_bit_is_read_or_refused() {
    for frame in frames() {
        for bit in 0..frame.len() * 8 {
            let mut changed = frame.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            read(&changed);
        }
    }
}

#[test]
fn bodies_cut_anywhere_are_read_or_refused() {
    for frame in frames() {
        for cut in 4..frame.len() {
            let mut shorter = ((cut - 4) as u32).to_le_bytes().to_vec();
            shorter.extend_from_slice(&frame[4..cut]);
            read(&shorter);
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(body in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
        bytes.extend_from_slice(&body);
        read(&body);
        read(&bytes);
    }

    #[test]
    fn spliced_frames_are_read_or_refused(
        picks in prop::collection::vec((any::<usize>(), any::<u16>(), any::<u16>()), 1..5),
        field in 1..24_u32,
    ) {
        let frames = frames();
        let mut body = Vec::new();
        for (which, from, to) in picks {
            let part = &frames[which % frames.len()][4..];
            let (from, to) = (from as usize % part.len(), to as usize % part.len());
            pb::bytes_always(&mut body, field, &part[from.min(to)..from.max(to)]);
            body.extend_from_slice(&part[from.min(to)..]);
        }
        let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
        bytes.extend_from_slice(&body);
        read(&bytes);
    }

    #[test]
    fn deltas_and_pages_come_back(
        cells in prop::collection::btree_map(
            prop::collection::vec(any::<u8>(), 0..20),
            prop::option::of(prop::collection::vec(any::<u8>(), 0..200)),
            0..40,
        ),
        version: u64,
        digest: [u8; 32],
        last: bool,
    ) {
        let stamp = Stamp { version, digest: Digest(digest) };
        let page = Page {
            previous: Digest(digest),
            cells: cells
                .iter()
                .filter_map(|(cell, value)| {
                    Some((cell.as_slice().into(), value.as_deref()?.into()))
                })
                .collect(),
            last,
        };
        let ask = Ask::Object(
            Name::new("o"),
            ObjectAsk::Give { ticket: version, stamp, page: page.clone() },
        );
        let bytes = ask_bytes(&ask);
        prop_assert_eq!(decode_ask(&bytes), Ok(Some((ask, bytes.len()))));
        let writes = cells
            .iter()
            .map(|(cell, value)| (cell.as_slice().into(), value.as_deref().map(Into::into)));
        let tell = ObjectTell::Peeked {
            ticket: 1,
            committed: stamp,
            proposed: version,
            suffix: vec![Delta::new(writes.collect())],
            cells: vec![page.cells],
        };
        let answer = Answer::Object(Name::new("o"), tell);
        let bytes = answer_bytes(&answer);
        prop_assert_eq!(decode_answer(&bytes), Ok(Some((answer, bytes.len()))));
    }
}

#[test]
fn what_is_too_long_for_a_frame_is_refused_and_leaves_nothing() {
    let ask = Ask::Object(
        Name::new("o"),
        ObjectAsk::Submit {
            op: OpId::default(),
            body: vec![0; FRAME_MAX].into(),
        },
    );
    let mut out = vec![7];
    assert!(matches!(
        encode_ask(&ask, &mut out),
        Err(WireError::TooLong { .. })
    ));
    assert_eq!(out, [7]);
    let head = (FRAME_MAX as u32 + 1).to_le_bytes();
    assert!(decode_ask(&head).is_err() && decode_answer(&head).is_err());
}

#[test]
fn lists_end_at_their_bound() {
    let body = |count: usize| {
        let mut body = Vec::new();
        pb::message(&mut body, 12, |out| {
            for _ in 0..count {
                pb::message(out, 3, |_| {});
            }
        });
        let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
        bytes.extend_from_slice(&body);
        bytes
    };
    assert!(matches!(decode_ask(&body(PARTS_MAX)), Ok(Some(_))));
    assert!(decode_ask(&body(PARTS_MAX + 1)).is_err());
}

#[test]
fn unknown_kinds_are_skipped_up_to_a_bound() {
    let mut bytes = Vec::new();
    let mut unknown = Vec::new();
    pb::message(&mut unknown, 99, |out| pb::uint(out, 1, 1));
    let mut frame = (unknown.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(&unknown);
    bytes.extend_from_slice(&frame);
    let (_, ask) = asks().remove(0);
    bytes.extend_from_slice(&ask_bytes(&ask));
    assert_eq!(decode_ask(&bytes), Ok(Some((ask, bytes.len()))));
    let endless = frame.repeat(SKIP_MAX / frame.len() + 2);
    assert!(decode_ask(&endless).is_err());
    let mut two = ask_bytes(&asks().remove(4).1);
    let more = ask_bytes(&asks().remove(5).1);
    two.extend_from_slice(&more[4..]);
    let length = (two.len() - 4) as u32;
    two[..4].copy_from_slice(&length.to_le_bytes());
    assert!(decode_ask(&two).is_err(), "two questions in one");
}

#[test]
fn records_are_protobuf_and_every_changed_bit_shows() {
    for (name, record) in records() {
        let bytes = encode_record(&record);
        is_protobuf::<peer::KeeperRecord>(&bytes[9..]);
        assert_eq!(decode_record(&bytes), Ok(record), "{name}");
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_record(&changed).is_err(), "{name}, bit {bit}");
        }
        for cut in 0..bytes.len() {
            assert!(decode_record(&bytes[..cut]).is_err(), "{name} at {cut}");
        }
    }
}
