//! What nodes of a hierarchy say to each other, as frames on a connection, and what the arbiters
//! of its root keep on disk.

use std::time::Duration;

use conclave_protocol::Instant;
use conclave_protocol::id::{Incarnation, Name, Token};
use conclave_protocol::lock::Mode;
use conclave_protocol::multilevel::{
    Block, GrantId, Id, Kept, LevelMessage, LevelRecord, Place, Until, Word,
};

use crate::codec::{SKIP_MAX, WireError, split};
use crate::parts::{TEXT_MAX, node};
use crate::pb::{self, Bad, Reader, Value};

/// The most bytes of a frame: a name, a group and some numbers.
pub const LEVEL_FRAME_MAX: usize = 1 << 14;

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LevelFrame {
    /// The first frame of either end: in which life it speaks.
    Hello(Incarnation),
    /// The sender is still there.
    Ping,
    /// A message.
    Said(LevelMessage<Name>),
}

/// Appends a frame. A name or group that is longer than any that is allowed makes a frame that the
/// other end refuses: it closes the connection, and no message is left out unseen.
pub fn encode_level(frame: &LevelFrame, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    match frame {
        LevelFrame::Hello(life) => pb::message(out, 1, |out| pb::fixed(out, 1, life.0)),
        LevelFrame::Ping => pb::message(out, 2, |_| {}),
        LevelFrame::Said(message) => pb::message(out, 3, |out| put_said(out, message)),
    }
    let length = out.len() - start - 4;
    out[start..start + 4].copy_from_slice(&(length as u32).to_le_bytes());
}

/// The first frame of `bytes` and how many bytes it took, frames of unknown kinds before it
/// included; none if it is not whole yet.
pub fn decode_level(bytes: &[u8]) -> Result<Option<(LevelFrame, usize)>, WireError> {
    let mut taken = 0;
    while let Some((body, length)) = split(&bytes[taken..], LEVEL_FRAME_MAX)? {
        taken += length;
        if let Some(found) = frame(Reader::new(body))? {
            return Ok(Some((found, taken)));
        }
        if taken > SKIP_MAX {
            return Err(Bad("too many messages of unknown kinds in a row").into());
        }
    }
    Ok(None)
}

fn frame(mut from: Reader<'_>) -> Result<Option<LevelFrame>, Bad> {
    let mut found = None;
    while let Some((field, value)) = from.next()? {
        found = match field {
            1 => Some(LevelFrame::Hello(hello(value.message()?)?)),
            2 => Some(LevelFrame::Ping),
            3 => said(value.message()?)?.map(LevelFrame::Said),
            _ => found,
        };
    }
    Ok(found)
}

fn hello(mut from: Reader<'_>) -> Result<Incarnation, Bad> {
    let mut life = 0;
    while let Some((field, value)) = from.next()? {
        if field == 1 {
            life = value.fixed()?;
        }
    }
    Ok(Incarnation(life))
}

fn put_said(out: &mut Vec<u8>, message: &LevelMessage<Name>) {
    pb::bytes(out, 1, message.lock.bytes());
    pb::uint(out, 2, u64::from(message.level));
    pb::fixed(out, 3, message.life.0);
    pb::uint(out, 4, message.clock);
    put_word(out, &message.word);
}

fn said(mut from: Reader<'_>) -> Result<Option<LevelMessage<Name>>, Bad> {
    let (mut lock, mut level, mut life, mut clock) = (&b""[..], 0, 0, 0);
    let mut found = None;
    while let Some((field, value)) = from.next()? {
        match field {
            1 => lock = value.bytes(TEXT_MAX)?,
            2 => level = u8::try_from(value.uint()?).map_err(|_| Bad("a level is too deep"))?,
            3 => life = value.fixed()?,
            4 => clock = value.uint()?,
            _ => found = word(field, value)?.or(found),
        }
    }
    let message = |word| LevelMessage {
        lock: Name::new(lock),
        level,
        life: Incarnation(life),
        clock,
        word,
    };
    Ok(found.map(message))
}

fn put_word(out: &mut Vec<u8>, word: &Word) {
    match word {
        Word::Request {
            place,
            rid,
            hint,
            span,
        } => pb::message(out, 5, |out| {
            put_place(out, 1, place);
            put_id(out, 2, rid);
            pb::fixed(out, 3, hint.0);
            pb::span(out, 4, *span);
        }),
        Word::Reply { rid, grant, block } => pb::message(out, 6, |out| {
            put_id(out, 1, rid);
            put_grant(out, 2, grant);
            put_block(out, 3, block);
        }),
        Word::Inquire { rid, grant } => put_given(out, 7, rid, grant),
        Word::Yield { rid, grant } => put_given(out, 8, rid, grant),
        Word::Release { rid, used } => put_end(out, 9, rid, *used),
        Word::Renew {
            rid,
            number,
            hint,
            span,
        } => pb::message(out, 10, |out| {
            put_id(out, 1, rid);
            pb::uint(out, 2, *number);
            pb::fixed(out, 3, hint.0);
            pb::span(out, 4, *span);
        }),
        Word::Renewed { rid, number, block } => pb::message(out, 11, |out| {
            put_id(out, 1, rid);
            pb::uint(out, 2, *number);
            if let Some(block) = block {
                put_block(out, 3, block);
            }
        }),
        Word::Announce { cid, mode } => put_wish(out, 12, cid, mode, Duration::ZERO),
        Word::Ask { cid, mode, span } => put_wish(out, 13, cid, mode, *span),
        Word::Keep { cid, number } => pb::message(out, 14, |out| {
            put_id(out, 1, cid);
            pb::uint(out, 2, *number);
        }),
        Word::Consent { cid, until, block } => pb::message(out, 15, |out| {
            put_id(out, 1, cid);
            match until {
                Until::For { echo, span } => {
                    pb::uint(out, 2, *echo);
                    pb::span(out, 3, *span);
                }
                Until::At(at) => pb::fixed_always(out, 4, at.nanos()),
            }
            put_block(out, 5, block);
        }),
        Word::Done { cid, used } => put_end(out, 16, cid, *used),
        Word::Recovered { rid, grant } => put_given(out, 17, rid, grant),
        Word::Rejoined { cid } => pb::message(out, 18, |out| put_id(out, 1, cid)),
    }
}

/// The word of a field; none if its kind is unknown.
fn word(field: u32, value: Value<'_>) -> Result<Option<Word>, Bad> {
    if !(5..=18).contains(&field) {
        return Ok(None);
    }
    let parts = parts(value.message()?, field)?;
    let id = parts.id.ok_or(Bad("a request or pairing is missing"))?;
    let grant = parts.grant.unwrap_or_default();
    let block = parts.block.unwrap_or_default();
    let (number, span) = (parts.number, parts.span);
    let (used, hint) = (Token(parts.token), Token(parts.token));
    Ok(Some(match field {
        5 => Word::Request {
            place: parts.place.ok_or(Bad("a request has no place"))?,
            rid: id,
            hint,
            span,
        },
        6 => Word::Reply {
            rid: id,
            grant,
            block,
        },
        7 => Word::Inquire { rid: id, grant },
        8 => Word::Yield { rid: id, grant },
        9 => Word::Release { rid: id, used },
        10 => Word::Renew {
            rid: id,
            number,
            hint,
            span,
        },
        11 => Word::Renewed {
            rid: id,
            number,
            block: parts.block,
        },
        12 => Word::Announce {
            cid: id,
            mode: parts.mode()?,
        },
        13 => Word::Ask {
            cid: id,
            mode: parts.mode()?,
            span,
        },
        14 => Word::Keep { cid: id, number },
        15 => Word::Consent {
            cid: id,
            until: parts
                .at
                .map_or(Until::For { echo: number, span }, Until::At),
            block,
        },
        16 => Word::Done { cid: id, used },
        17 => Word::Recovered { rid: id, grant },
        _ => Word::Rejoined { cid: id },
    }))
}

/// The parts of all words, as they are read.
#[derive(Default)]
struct Parts {
    id: Option<Id>,
    place: Option<Place>,
    grant: Option<GrantId>,
    block: Option<Block>,
    number: u64,
    token: u64,
    span: Duration,
    at: Option<Instant>,
    mode: u64,
    group: Vec<u8>,
}

impl Parts {
    fn mode(&self) -> Result<Mode, Bad> {
        match self.mode {
            0 => Ok(Mode::Exclusive),
            1 => Ok(Mode::Shared),
            2 => Ok(Mode::group(&self.group)),
            _ => Err(Bad("an unknown mode")),
        }
    }
}

fn parts(mut from: Reader<'_>, word: u32) -> Result<Parts, Bad> {
    let mut parts = Parts::default();
    while let Some((field, value)) = from.next()? {
        match (word, field) {
            (5, 1) => parts.place = Some(place(value.message()?)?),
            (5, 2) | (6..=18, 1) => parts.id = Some(id(value.message()?)?),
            (6 | 7 | 8 | 17, 2) => parts.grant = Some(grant(value.message()?)?),
            (6 | 11, 3) | (15, 5) => parts.block = Some(block(value.message()?)?),
            (5 | 10, 3) | (9 | 16, 2) => parts.token = value.fixed()?,
            (5 | 10 | 13, 4) | (15, 3) => parts.span = value.span()?,
            (10 | 11 | 14 | 15, 2) => parts.number = value.uint()?,
            (12 | 13, 2) => parts.mode = value.uint()?,
            (12 | 13, 3) => parts.group = value.bytes(TEXT_MAX)?.to_vec(),
            (15, 4) => parts.at = Some(Instant::from_nanos(value.fixed()?)),
            _ => {}
        }
    }
    Ok(parts)
}

fn put_id(out: &mut Vec<u8>, field: u32, id: &Id) {
    pb::message(out, field, |out| {
        pb::uint(out, 1, u64::from(id.node.0));
        pb::fixed(out, 2, id.life.0);
        pb::uint(out, 3, id.counter);
    });
}

fn id(mut from: Reader<'_>) -> Result<Id, Bad> {
    let (mut who, mut life, mut counter) = (crate::parts::node_of(0)?, 0, 0);
    while let Some((field, value)) = from.next()? {
        match field {
            1 => who = node(value)?,
            2 => life = value.fixed()?,
            3 => counter = value.uint()?,
            _ => {}
        }
    }
    Ok(Id {
        node: who,
        life: Incarnation(life),
        counter,
    })
}

fn put_place(out: &mut Vec<u8>, field: u32, place: &Place) {
    pb::message(out, field, |out| {
        pb::uint(out, 1, place.clock);
        pb::uint(out, 2, u64::from(place.node.0));
    });
}

fn place(mut from: Reader<'_>) -> Result<Place, Bad> {
    let (mut clock, mut who) = (0, crate::parts::node_of(0)?);
    while let Some((field, value)) = from.next()? {
        match field {
            1 => clock = value.uint()?,
            2 => who = node(value)?,
            _ => {}
        }
    }
    Ok(Place { clock, node: who })
}

fn put_grant(out: &mut Vec<u8>, field: u32, grant: &GrantId) {
    pb::message(out, field, |out| {
        pb::fixed(out, 1, grant.life.0);
        pb::uint(out, 2, grant.counter);
    });
}

fn grant(mut from: Reader<'_>) -> Result<GrantId, Bad> {
    let mut grant = GrantId::default();
    while let Some((field, value)) = from.next()? {
        match field {
            1 => grant.life = Incarnation(value.fixed()?),
            2 => grant.counter = value.uint()?,
            _ => {}
        }
    }
    Ok(grant)
}

fn put_block(out: &mut Vec<u8>, field: u32, block: &Block) {
    pb::message(out, field, |out| {
        pb::fixed(out, 1, block.from.0);
        pb::fixed(out, 2, block.to.0);
    });
}

fn block(mut from: Reader<'_>) -> Result<Block, Bad> {
    let mut block = Block::default();
    while let Some((field, value)) = from.next()? {
        match field {
            1 => block.from = Token(value.fixed()?),
            2 => block.to = Token(value.fixed()?),
            _ => {}
        }
    }
    Ok(block)
}

fn put_given(out: &mut Vec<u8>, field: u32, rid: &Id, grant: &GrantId) {
    pb::message(out, field, |out| {
        put_id(out, 1, rid);
        put_grant(out, 2, grant);
    });
}

fn put_end(out: &mut Vec<u8>, field: u32, id: &Id, used: Token) {
    pb::message(out, field, |out| {
        put_id(out, 1, id);
        pb::fixed(out, 2, used.0);
    });
}

fn put_wish(out: &mut Vec<u8>, field: u32, cid: &Id, mode: &Mode, span: Duration) {
    pb::message(out, field, |out| {
        put_id(out, 1, cid);
        match mode {
            Mode::Exclusive => {}
            Mode::Shared => pb::uint(out, 2, 1),
            Mode::Group(group) => {
                pb::uint(out, 2, 2);
                pb::bytes(out, 3, group);
            }
        }
        pb::span(out, 4, span);
    });
}

/// Writes a record of an arbiter of the root.
pub(crate) fn put_record(out: &mut Vec<u8>, record: &LevelRecord<Name>) {
    match record {
        LevelRecord::Grant(lock, kept) => pb::message(out, 1, |out| {
            pb::bytes(out, 1, lock.bytes());
            put_id(out, 2, &kept.rid);
            put_place(out, 3, &kept.place);
            put_grant(out, 4, &kept.grant);
            put_block(out, 5, &kept.block);
            pb::span(out, 6, kept.span);
        }),
        LevelRecord::Free(lock) => {
            pb::message(out, 2, |out| pb::bytes(out, 1, lock.bytes()));
        }
        LevelRecord::Promise { ceiling, lease } => pb::message(out, 3, |out| {
            pb::fixed(out, 1, ceiling.0);
            pb::span(out, 2, *lease);
        }),
    }
}

/// Reads a record of an arbiter of the root.
pub(crate) fn record(mut from: Reader<'_>) -> Result<LevelRecord<Name>, Bad> {
    let mut found = None;
    while let Some((field, value)) = from.next()? {
        let record = match field {
            1 => kept(value.message()?)?,
            2 => LevelRecord::Free(named(value.message()?)?),
            3 => promise(value.message()?)?,
            _ => continue,
        };
        if found.replace(record).is_some() {
            return Err(Bad("two records in one"));
        }
    }
    found.ok_or(Bad(
        "an unknown kind of record; if a newer version wrote it, start that one",
    ))
}

fn named(mut from: Reader<'_>) -> Result<Name, Bad> {
    let mut lock = &b""[..];
    while let Some((field, value)) = from.next()? {
        if field == 1 {
            lock = value.bytes(TEXT_MAX)?;
        }
    }
    Ok(Name::new(lock))
}

fn kept(mut from: Reader<'_>) -> Result<LevelRecord<Name>, Bad> {
    let (mut lock, mut rid, mut at) = (&b""[..], None, None);
    let (mut number, mut tokens) = (GrantId::default(), Block::default());
    let mut span = Duration::ZERO;
    while let Some((field, value)) = from.next()? {
        match field {
            1 => lock = value.bytes(TEXT_MAX)?,
            2 => rid = Some(id(value.message()?)?),
            3 => at = Some(place(value.message()?)?),
            4 => number = grant(value.message()?)?,
            5 => tokens = block(value.message()?)?,
            6 => span = value.span()?,
            _ => {}
        }
    }
    let kept = Kept {
        rid: rid.ok_or(Bad("a grant has no request"))?,
        place: at.ok_or(Bad("a grant has no place"))?,
        grant: number,
        block: tokens,
        span,
    };
    Ok(LevelRecord::Grant(Name::new(lock), kept))
}

fn promise(mut from: Reader<'_>) -> Result<LevelRecord<Name>, Bad> {
    let (mut ceiling, mut lease) = (0, Duration::ZERO);
    while let Some((field, value)) = from.next()? {
        match field {
            1 => ceiling = value.fixed()?,
            2 => lease = value.span()?,
            _ => {}
        }
    }
    Ok(LevelRecord::Promise {
        ceiling: Token(ceiling),
        lease,
    })
}
