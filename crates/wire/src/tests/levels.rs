//! What nodes of a hierarchy say and keep: it comes back, it is protobuf, and no bytes do harm.

use std::time::Duration;

use proptest::prelude::*;

use conclave_protocol::Instant;
use conclave_protocol::id::{Incarnation, Name, NodeId, Token};
use conclave_protocol::lock::{Mode, Record};
use conclave_protocol::multilevel::{
    Block, GrantId, Id, Kept, LevelMessage, LevelRecord, Place, Until, Word,
};

use crate::codec::WireError;
use crate::generated::peer;
use crate::levels::{LEVEL_FRAME_MAX, LevelFrame, decode_level, encode_level};
use crate::pb;
use crate::record;

const LIFE: Incarnation = Incarnation(1_767_225_600_000_000);
const SPAN: Duration = Duration::from_secs(21);

fn id(counter: u64) -> Id {
    Id {
        node: NodeId(7),
        life: LIFE,
        counter,
    }
}

fn place() -> Place {
    Place {
        clock: 900,
        node: NodeId(7),
    }
}

fn grant() -> GrantId {
    GrantId {
        life: Incarnation(LIFE.0 + 1),
        counter: 41,
    }
}

fn block() -> Block {
    Block {
        from: Token(LIFE.0),
        to: Token(LIFE.0 + (1 << 20)),
    }
}

/// A word of every kind, some twice.
fn words() -> Vec<(&'static str, Word)> {
    let (rid, cid, grant, block) = (id(300), id(5), grant(), block());
    let consent = |until| Word::Consent { cid, until, block };
    vec![
        (
            "level-request",
            Word::Request {
                place: place(),
                rid,
                hint: Token(17),
                span: SPAN,
            },
        ),
        ("level-reply", Word::Reply { rid, grant, block }),
        ("level-inquire", Word::Inquire { rid, grant }),
        ("level-yield", Word::Yield { rid, grant }),
        (
            "level-release",
            Word::Release {
                rid,
                used: Token(LIFE.0 + 3),
            },
        ),
        (
            "level-renew",
            Word::Renew {
                rid,
                number: 3,
                hint: Token(0),
                span: SPAN,
            },
        ),
        (
            "level-renewed",
            Word::Renewed {
                rid,
                number: 3,
                block: Some(block),
            },
        ),
        (
            "level-renewed-none",
            Word::Renewed {
                rid,
                number: 4,
                block: None,
            },
        ),
        (
            "level-announce",
            Word::Announce {
                cid,
                mode: Mode::Shared,
            },
        ),
        (
            "level-ask",
            Word::Ask {
                cid,
                mode: Mode::Exclusive,
                span: SPAN,
            },
        ),
        (
            "level-ask-group",
            Word::Ask {
                cid,
                mode: Mode::group("blue"),
                span: SPAN,
            },
        ),
        ("level-keep", Word::Keep { cid, number: 12 }),
        (
            "level-consent",
            consent(Until::For {
                echo: 12,
                span: SPAN,
            }),
        ),
        (
            "level-consent-at",
            consent(Until::At(Instant::from_nanos(99))),
        ),
        (
            "level-done",
            Word::Done {
                cid,
                used: Token(0),
            },
        ),
        ("level-recovered", Word::Recovered { rid, grant }),
        ("level-rejoined", Word::Rejoined { cid }),
    ]
}

/// Frames of every kind, the same for ever.
pub(super) fn frames() -> Vec<(&'static str, LevelFrame)> {
    let said = words().into_iter().map(|(name, word)| {
        let message = LevelMessage {
            lock: Name::new("jobs/nightly"),
            level: 2,
            life: LIFE,
            clock: 1234,
            word,
        };
        (name, LevelFrame::Said(message))
    });
    let first = [
        ("level-hello", LevelFrame::Hello(LIFE)),
        ("level-ping", LevelFrame::Ping),
    ];
    first.into_iter().chain(said).collect()
}

/// Records of every kind, the same for ever.
pub(super) fn records() -> Vec<(&'static str, Record)> {
    let name = Name::new("jobs/nightly");
    let kept = Kept {
        rid: id(300),
        place: place(),
        grant: grant(),
        block: block(),
        span: SPAN,
    };
    let promise = LevelRecord::Promise {
        ceiling: Token(LIFE.0),
        lease: SPAN,
    };
    let record = |record| Record::Level(Box::new(record));
    vec![
        (
            "record-level-grant",
            record(LevelRecord::Grant(name.clone(), kept)),
        ),
        ("record-level-free", record(LevelRecord::Free(name))),
        ("record-level-promise", record(promise)),
    ]
}

fn bytes_of(frame: &LevelFrame) -> Vec<u8> {
    let mut out = Vec::new();
    encode_level(frame, &mut out);
    out
}

/// Reads the bytes; what is read is written and read again.
fn read(bytes: &[u8]) {
    if let Ok(Some((frame, length))) = decode_level(bytes) {
        assert!(length <= bytes.len());
        let again = bytes_of(&frame);
        assert_eq!(decode_level(&again), Ok(Some((frame, again.len()))));
    }
}

#[test]
fn every_word_has_a_sample() {
    let mut kinds: Vec<_> = words().iter().map(|(_, word)| word.kind()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    // Two of them are the published protocol's one word after a restart.
    assert_eq!(kinds.len(), 13, "{kinds:?}");
}

#[test]
fn frames_are_protobuf_and_are_whole_or_not_there_yet() {
    use prost::Message as _;
    for (name, frame) in frames() {
        let bytes = bytes_of(&frame);
        let body = peer::LevelFrame::decode(&bytes[4..]).unwrap();
        assert_eq!(body.encode_to_vec(), &bytes[4..], "{name}: {body:?}");
        for cut in 0..bytes.len() {
            assert_eq!(decode_level(&bytes[..cut]), Ok(None), "{name} at {cut}");
        }
    }
    for (name, sample) in records() {
        let bytes = record::encode(&sample);
        let body = peer::Record::decode(&bytes[9..]).unwrap();
        assert_eq!(body.encode_to_vec(), &bytes[9..], "{name}: {body:?}");
    }
}

#[test]
fn every_changed_bit_and_every_cut_is_read_or_refused() {
    for (_, frame) in frames() {
        let bytes = bytes_of(&frame);
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            read(&changed);
        }
        for cut in 4..bytes.len() {
            let mut shorter = ((cut - 4) as u32).to_le_bytes().to_vec();
            shorter.extend_from_slice(&bytes[4..cut]);
            read(&shorter);
        }
    }
}

#[test]
fn long_frames_and_unknown_kinds_end() {
    let long = (LEVEL_FRAME_MAX as u32 + 1).to_le_bytes();
    let refused = decode_level(&long);
    assert!(matches!(refused, Err(WireError::Damaged(_))), "{refused:?}");
    let mut unknown = vec![3, 0, 0, 0];
    pb::uint(&mut unknown, 100, 1);
    assert_eq!(decode_level(&unknown), Ok(None), "skipped");
    let many: Vec<u8> = unknown.iter().copied().cycle().take(70_000).collect();
    assert!(decode_level(&many).is_err(), "but not for ever");
    let mut then = unknown.clone();
    encode_level(&LevelFrame::Ping, &mut then);
    assert_eq!(
        decode_level(&then),
        Ok(Some((LevelFrame::Ping, then.len())))
    );
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(body in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
        bytes.extend_from_slice(&body);
        read(&body);
        read(&bytes);
    }
}
