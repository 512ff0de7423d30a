//! Bytes that no honest process would send: every answer is an error or a message, never a panic,
//! and nothing is kept beyond its bound.

use proptest::prelude::*;

use conclave_protocol::id::NodeId;
use conclave_protocol::lock::{Message, Resume};

use super::random::Random;
use super::samples;
use crate::codec::{Decoder, Encoder, FRAME_MAX, First, SKIP_MAX, WireError, first_frame};
use crate::dictionary::SESSIONS_MAX;
use crate::greeting::{GREETING_MAX, decode_greeting, decode_reply, encode_greeting};
use crate::handle::{self, HandleError, Key};
use crate::levels::{LEVEL_FRAME_MAX, decode_level};
use crate::pb;
use crate::record;

fn frame(body: &[u8]) -> Vec<u8> {
    let mut out = (body.len() as u32).to_le_bytes().to_vec();
    out.extend_from_slice(body);
    out
}

fn body(build: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    build(&mut out);
    frame(&out)
}

/// Reads until the end or an error; says how many messages there were.
fn read_all(bytes: &[u8]) -> (usize, Option<WireError>) {
    let (mut decoder, mut rest, mut count) = (Decoder::new(), bytes, 0);
    loop {
        match decoder.decode(rest) {
            Ok(Some((_, length))) => {
                assert!(length > 0 && length <= rest.len());
                rest = &rest[length..];
                count += 1;
            }
            Ok(None) => return (count, None),
            Err(error) => return (count, Some(error)),
        }
    }
}

fn damaged(bytes: &[u8]) -> String {
    match Decoder::new().decode(bytes) {
        Err(WireError::Damaged(what)) => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_frame_cut_anywhere_is_not_whole_yet() {
    for (name, message) in samples::messages() {
        let mut bytes = Vec::new();
        Encoder::new().encode(&message, &mut bytes);
        for cut in 0..bytes.len() {
            assert_eq!(
                Decoder::new().decode(&bytes[..cut]),
                Ok(None),
                "{name} at {cut}"
            );
        }
    }
    for (name, greeting) in samples::greetings() {
        let mut bytes = Vec::new();
        encode_greeting(&greeting, &mut bytes);
        for cut in 0..bytes.len() {
            assert_eq!(decode_greeting(&bytes[..cut]), Ok(None), "{name} at {cut}");
            assert_eq!(decode_reply(&bytes[..cut]), Ok(None), "{name} at {cut}");
        }
    }
}

#[test]
fn a_record_or_handle_cut_anywhere_is_refused() {
    for (name, record) in samples::records() {
        let bytes = record::encode(&record);
        for cut in 0..bytes.len() {
            let got = record::decode(&bytes[..cut]);
            assert!(matches!(got, Err(WireError::Damaged(_))), "{name} at {cut}");
        }
    }
    let key = Key::new(b"key");
    let text = handle::seal(&key, "me", &samples::handle());
    for cut in 0..text.len() {
        assert_eq!(
            handle::open(&key, "me", &text[..cut]),
            Err(HandleError::Forged)
        );
    }
}

#[test]
fn every_changed_bit_of_a_record_is_seen() {
    for (name, record) in samples::records() {
        let bytes = record::encode(&record);
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(record::decode(&changed).is_err(), "{name}, bit {bit}");
        }
    }
}

#[test]
fn lengths_beyond_the_bound_are_refused_before_the_bytes_are_there() {
    let head = |length: usize| (length as u32).to_le_bytes();
    for length in [FRAME_MAX + 1, u32::MAX as usize] {
        let error = Err(WireError::TooLong { bytes: length });
        assert_eq!(Decoder::new().decode(&head(length)), error);
        let error = Err(WireError::TooLong { bytes: length });
        assert_eq!(decode_greeting(&head(length)), error);
    }
    assert_eq!(Decoder::new().decode(&head(FRAME_MAX)), Ok(None));
    assert_eq!(decode_greeting(&head(GREETING_MAX)), Ok(None));
    assert!(decode_greeting(&head(GREETING_MAX + 1)).is_err());
    assert!(decode_reply(&head(GREETING_MAX + 1)).is_err());
}

#[test]
fn a_length_inside_a_frame_cannot_reach_outside() {
    for length in [1_u64, 1 << 20, u64::from(u32::MAX), u64::MAX] {
        let bytes = body(|out| {
            out.push(1 << 3 | 2);
            pb::varint(out, length);
        });
        assert_eq!(damaged(&bytes), "a field is cut short");
    }
}

#[test]
fn lists_end_somewhere() {
    let nodes = body(|out| {
        pb::message(out, 28, |out| {
            pb::message(out, 3, |out| out.extend_from_slice(&[1; 10_001]));
        });
    });
    assert_eq!(damaged(&nodes), "a list is too long");
    let grants = body(|out| {
        pb::message(out, 28, |out| {
            for _ in 0..=10_000 {
                pb::message(out, 4, |_| {});
            }
        });
    });
    assert_eq!(damaged(&grants), "a list is too long");
    let noted = body(|out| {
        pb::message(out, 5, |out| {
            pb::message(out, 3, |out| {
                pb::uint(out, 1, 1);
                pb::id(out, 2, 7);
            });
            for _ in 0..65_536 {
                pb::message(out, 3, |out| pb::uint(out, 1, 1));
            }
        });
    });
    assert_eq!(damaged(&noted), "a list is too long");
}

#[test]
fn texts_end_somewhere() {
    let named = |length: usize| {
        body(|out| {
            pb::message(out, 1, |out| {
                pb::message(out, 1, |out| {
                    pb::id(out, 2, 7);
                    pb::bytes(out, 4, &vec![b'x'; length]);
                    pb::id(out, 8, 7);
                });
            });
        })
    };
    let whole = Decoder::new().decode(&named(4096)).unwrap();
    assert!(whole.is_some());
    assert_eq!(
        damaged(&named(4097)),
        "a name, group, label or note is too long"
    );
    assert!(
        Decoder::new().decode(&named(0)).unwrap().is_some(),
        "the machine refuses it"
    );
}

#[test]
fn sessions_need_numbers_in_order() {
    let noted = |number: u64, id: Option<u128>| {
        body(|out| {
            pb::message(out, 7, |out| {
                pb::uint(out, 1, number);
                if let Some(id) = id {
                    pb::id(out, 2, id);
                }
            });
        })
    };
    assert_eq!(damaged(&noted(0, None)), "a session is missing");
    assert_eq!(
        damaged(&noted(1, None)),
        "a session's number was never given"
    );
    assert_eq!(
        damaged(&noted(2, Some(5))),
        "a session's number is out of order"
    );
    let mut decoder = Decoder::new();
    for number in 1..=SESSIONS_MAX as u64 {
        decoder.decode(&noted(number, Some(5))).unwrap();
    }
    let beyond = decoder.decode(&noted(SESSIONS_MAX as u64 + 1, Some(5)));
    assert!(beyond.is_err(), "the dictionary is full");
    decoder.decode(&noted(1, Some(6))).unwrap();
    decoder.decode(&noted(1, None)).unwrap();
}

#[test]
fn unknown_numbers_of_kinds_are_damage() {
    let cases = [("an unknown mode", 1, 5), ("an unknown bond", 1, 10)];
    for (what, kind, field) in cases {
        let bytes = body(|out| {
            pb::message(out, kind, |out| {
                pb::message(out, 1, |out| {
                    pb::id(out, 2, 7);
                    pb::id(out, 8, 7);
                    pb::uint(out, field, 99);
                });
            });
        });
        assert_eq!(damaged(&bytes), what);
    }
    let refused = body(|out| pb::message(out, 20, |out| pb::uint(out, 1, 99)));
    assert_eq!(damaged(&refused), "an unknown refusal");
    let node = body(|out| pb::message(out, 25, |out| pb::uint(out, 1, 10_000)));
    assert_eq!(damaged(&node), "a node's number is too large");
    let twice = body(|out| {
        pb::message(out, 23, |_| {});
        pb::message(out, 23, |_| {});
    });
    assert_eq!(damaged(&twice), "two messages in one frame");
}

#[test]
fn unknown_kinds_are_skipped_but_not_for_ever() {
    let unknown = body(|out| pb::message(out, 1000, |out| out.extend_from_slice(b"new")));
    let mut known = Vec::new();
    Encoder::new().encode(&Message::Draining, &mut known);
    let mut decoder = Decoder::new();
    let mut bytes = [unknown.clone(), frame(b""), unknown.clone()].concat();
    assert_eq!(decoder.decode(&bytes), Ok(None));
    assert_eq!(decoder.skipped(), 0);
    bytes.extend_from_slice(&known);
    let all = bytes.len();
    assert_eq!(decoder.decode(&bytes), Ok(Some((Message::Draining, all))));
    assert_eq!(decoder.skipped(), 3);
    let many = unknown.repeat(SKIP_MAX / unknown.len() + 1);
    assert!(damaged(&many).contains("unknown kinds in a row"));
}

#[test]
fn unknown_kinds_can_be_dropped_one_by_one_for_ever() {
    let unknown = body(|out| pb::message(out, 1000, |out| out.extend_from_slice(b"new")));
    let mut known = Vec::new();
    Encoder::new().encode(&Message::Draining, &mut known);
    let mut decoder = Decoder::new();
    let many = 2 * SKIP_MAX / unknown.len();
    let bytes = [unknown.repeat(many), known.clone(), unknown.clone()].concat();
    let (mut at, mut dropped) = (0, 0);
    let mut first = |bytes: &[u8]| first_frame(bytes, |bytes| decoder.decode(bytes));
    while let Ok(First::Unknown(length)) = first(&bytes[at..]) {
        at += length;
        dropped += 1;
    }
    assert_eq!(dropped, many);
    let message = First::Message(Message::Draining, known.len());
    assert_eq!(first(&bytes[at..]), Ok(message));
    for length in 0..unknown.len() {
        assert_eq!(first(&unknown[..length]), Ok(First::Partial), "{length}");
    }
    let level = [4 << 20, LEVEL_FRAME_MAX as u32 + 1];
    for announced in level.map(u32::to_le_bytes) {
        first_frame(&announced, decode_level).unwrap_err();
    }
}

/// A message with unknown fields before, inside and after.
fn with_more_fields(message: &Message) -> Vec<u8> {
    let mut out = Vec::new();
    Encoder::new().encode(message, &mut out);
    let body = &out[4..];
    let mut from = pb::Reader::new(body);
    let (field, value) = from.next().unwrap().unwrap();
    let inside = value.bytes(FRAME_MAX).unwrap();
    let mut changed = Vec::new();
    let more = |out: &mut Vec<u8>| {
        pb::uint(out, 500, 7);
        pb::fixed(out, 501, 7);
        pb::bytes(out, 502, b"later");
        // A number of 4 bytes, which no version has used so far.
        pb::varint(out, 503 << 3 | 5);
        out.extend_from_slice(&[1, 2, 3, 4]);
    };
    pb::message(&mut changed, field, |out| {
        more(out);
        out.extend_from_slice(inside);
        more(out);
    });
    more(&mut changed);
    frame(&changed)
}

#[test]
fn unknown_fields_change_nothing() {
    for (name, message) in samples::messages() {
        let bytes = with_more_fields(&message);
        let got = Decoder::new().decode(&bytes).unwrap();
        assert_eq!(got, Some((message, bytes.len())), "{name}");
    }
    for (name, greeting) in samples::greetings() {
        let mut out = Vec::new();
        encode_greeting(&greeting, &mut out);
        let bytes = body(|longer| {
            longer.extend_from_slice(&out[4..]);
            pb::bytes(longer, 600, b"later");
        });
        assert_eq!(
            decode_greeting(&bytes).unwrap().unwrap().0,
            greeting,
            "{name}"
        );
    }
}

#[test]
fn what_cannot_be_a_frame_closes_the_connection() {
    let mut resume = Resume::default();
    let Message::Open(mut info) = samples::messages()[3].1.clone() else {
        panic!("the samples have changed");
    };
    info.owner = "x".repeat(FRAME_MAX).into();
    resume.sessions.push(info);
    let mut out = Vec::new();
    Encoder::new().encode(&Message::Resume(Box::new(resume)), &mut out);
    let length = u32::MAX as usize;
    assert_eq!(
        read_all(&out),
        (0, Some(WireError::TooLong { bytes: length }))
    );
}

#[test]
fn a_long_resume_goes_in_parts_that_add_up() {
    let mut resume = Resume {
        last: true,
        ..Resume::default()
    };
    let Message::Resume(one) = samples::messages()[1].1.clone() else {
        panic!("the samples have changed");
    };
    for number in 0..30_000 {
        let mut done = one.done[0];
        done.request.0 = number;
        resume.done.push(done);
        let mut info = one.sessions[0].clone();
        info.session.0 = u128::from(number);
        resume.sessions.push(info);
        resume.live.push(one.live[0].clone());
    }
    let mut out = Vec::new();
    Encoder::new().encode(&Message::Resume(Box::new(resume.clone())), &mut out);
    let (mut decoder, mut at, mut got) = (Decoder::new(), 0, Resume::default());
    while let Some((message, length)) = decoder.decode(&out[at..]).unwrap() {
        let Message::Resume(part) = message else {
            panic!("{message:?}");
        };
        assert!(!got.last, "a part after the last");
        got.sessions.extend(part.sessions);
        got.live.extend(part.live);
        got.done.extend(part.done);
        got.last = part.last;
        at += length;
    }
    assert_eq!(got, resume);
}

#[test]
fn the_largest_handle_can_be_opened() {
    let mut handle = samples::handle();
    let member = handle.grants[0];
    handle.grants = (0..10_000)
        .map(|node| {
            (
                NodeId(node),
                member.1,
                conclave_protocol::id::GrantNo(u64::MAX),
            )
        })
        .collect();
    let key = Key::new(b"key");
    let text = handle::seal(&key, "me", &handle);
    assert_eq!(handle::open(&key, "me", &text), Ok(handle));
    let long = "A".repeat(handle::TEXT_MAX + 1);
    assert_eq!(handle::open(&key, "me", &long), Err(HandleError::Forged));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn random_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        read_all(&bytes);
        read_all(&frame(&bytes));
        let _ = decode_greeting(&frame(&bytes));
        let _ = decode_reply(&frame(&bytes));
        let _ = record::decode(&bytes);
    }

    #[test]
    fn changed_bits_do_no_harm(
        seed in any::<u64>(),
        flips in prop::collection::vec(any::<u64>(), 1..8),
    ) {
        let (mut encoder, mut bytes, mut random) = (Encoder::new(), Vec::new(), Random::new(seed));
        for _ in 0..4 {
            encoder.encode(&random.message(), &mut bytes);
        }
        for flip in flips {
            let bit = flip as usize % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        // Whatever was understood can be said again.
        let (mut decoder, mut rest) = (Decoder::new(), &bytes[..]);
        while let Ok(Some((message, length))) = decoder.decode(rest) {
            let mut again = Vec::new();
            Encoder::new().encode(&message, &mut again);
            let got = Decoder::new().decode(&again).unwrap().unwrap().0;
            prop_assert_eq!(got, message);
            rest = &rest[length..];
        }
    }
}
