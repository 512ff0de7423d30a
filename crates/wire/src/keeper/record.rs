//! Records of a node's keeper as bytes, sealed like those of locks.

use conclave_protocol::id::{Name, Token};
use conclave_protocol::keeper::KeeperRecord;
use conclave_protocol::object::{How, Proof, Rank, Stamp};

use super::Budget;
use super::parts::{
    carry, given, name, page, proof, put_carry, put_page_body, put_proof, put_rank, put_stamp,
    rank, stamp,
};
use crate::codec::WireError;
use crate::pb::{self, Bad, Reader};
use crate::record::{seal, unseal};

/// A record as bytes.
pub fn encode_record(record: &KeeperRecord) -> Vec<u8> {
    seal(|out| put(out, record))
}

/// The record that these bytes are.
pub fn decode_record(bytes: &[u8]) -> Result<KeeperRecord, WireError> {
    Ok(read(Reader::new(unseal(bytes)?))?)
}

fn put(out: &mut Vec<u8>, record: &KeeperRecord) {
    match record {
        KeeperRecord::Opened => pb::message(out, 1, |_| {}),
        KeeperRecord::Mark(token) => pb::fixed_always(out, 2, token.0),
        KeeperRecord::Span(span) => pb::uint_always(out, 3, pb::nanos(*span)),
        KeeperRecord::Rank {
            object,
            rank,
            nonce,
            proof,
        } => pb::message(out, 4, |out| {
            pb::bytes(out, 1, object.bytes());
            put_rank(out, 2, rank);
            if let Some(nonce) = nonce {
                pb::fixed_always(out, 3, *nonce);
            }
            put_proof(out, 4, proof);
        }),
        KeeperRecord::Page {
            object,
            stamp,
            page,
        } => pb::message(out, 5, |out| {
            pb::bytes(out, 1, object.bytes());
            put_stamp(out, 2, stamp);
            put_page_body(out, 3, page);
        }),
        KeeperRecord::Proposed {
            object,
            rank,
            stamp,
            how,
            proof,
        } => put_state(out, 6, object, Some(rank), stamp, how, proof),
        KeeperRecord::Committed {
            object,
            rank,
            stamp,
            how,
            proof,
        } => put_state(out, 7, object, Some(rank), stamp, how, proof),
        KeeperRecord::Adopted { object, stamp, how } => {
            put_state(out, 8, object, None, stamp, how, &None);
        }
        KeeperRecord::Restored {
            object,
            rank,
            stamp,
            how,
            proof,
        } => put_state(out, 9, object, Some(rank), stamp, how, proof),
    }
}

fn put_state(
    out: &mut Vec<u8>,
    field: u32,
    object: &Name,
    rank: Option<&Rank>,
    stamp: &Stamp,
    how: &How,
    proof: &Proof,
) {
    pb::message(out, field, |out| {
        pb::bytes(out, 1, object.bytes());
        if let Some(rank) = rank {
            put_rank(out, 2, rank);
        }
        put_stamp(out, 3, stamp);
        match how {
            How::Held => {}
            How::Carry(carry) => {
                pb::uint(out, 4, 1);
                put_carry(out, 5, carry);
            }
            How::Pages => pb::uint(out, 4, 2),
        }
        put_proof(out, 6, proof);
    });
}

fn read(mut from: Reader<'_>) -> Result<KeeperRecord, Bad> {
    // What the node wrote itself was bounded when it came.
    let budget = &mut Budget(usize::MAX);
    let mut found = None;
    while let Some((field, value)) = from.next()? {
        let record = match field {
            1 => KeeperRecord::Opened,
            2 => KeeperRecord::Mark(Token(value.fixed()?)),
            3 => KeeperRecord::Span(value.span()?),
            4 => read_rank(value.message()?)?,
            5 => read_page(value.message()?, budget)?,
            6..=9 => read_state(field, value.message()?, budget)?,
            _ => continue,
        };
        if found.replace(record).is_some() {
            return Err(Bad("two records in one"));
        }
    }
    // Unlike a message, a record that is not understood may not be passed over.
    found.ok_or(Bad(
        "an unknown kind of record; if a newer version wrote it, start that one",
    ))
}

fn read_rank(mut from: Reader<'_>) -> Result<KeeperRecord, Bad> {
    let (mut object, mut of, mut nonce, mut signed) = (Name::new(b""), None, None, None);
    while let Some((field, value)) = from.next()? {
        match field {
            1 => object = name(value)?,
            2 => of = Some(rank(value)?),
            3 => nonce = Some(value.fixed()?),
            4 => signed = proof(value)?,
            _ => {}
        }
    }
    Ok(KeeperRecord::Rank {
        object,
        rank: given(of)?,
        nonce,
        proof: signed,
    })
}

fn read_page(mut from: Reader<'_>, budget: &mut Budget) -> Result<KeeperRecord, Bad> {
    let (mut object, mut state, mut part) = (Name::new(b""), None, None);
    while let Some((field, value)) = from.next()? {
        match field {
            1 => object = name(value)?,
            2 => state = Some(stamp(value)?),
            3 => part = Some(page(value.message()?, budget)?),
            _ => {}
        }
    }
    Ok(KeeperRecord::Page {
        object,
        stamp: given(state)?,
        page: given(part)?,
    })
}

fn read_state(kind: u32, mut from: Reader<'_>, budget: &mut Budget) -> Result<KeeperRecord, Bad> {
    let (mut object, mut of, mut state, mut way) = (Name::new(b""), None, None, 0);
    let (mut steps, mut signed) = (None, None);
    while let Some((field, value)) = from.next()? {
        match field {
            1 => object = name(value)?,
            2 => of = Some(rank(value)?),
            3 => state = Some(stamp(value)?),
            4 => way = value.uint()?,
            5 => steps = Some(carry(value, budget)?),
            6 => signed = proof(value)?,
            _ => {}
        }
    }
    let how = match way {
        0 => How::Held,
        1 => How::Carry(given(steps)?),
        2 => How::Pages,
        _ => return Err(Bad("an unknown way to a state")),
    };
    let (stamp, proof) = (given(state)?, signed);
    if kind == 8 {
        return Ok(KeeperRecord::Adopted { object, stamp, how });
    }
    let rank = given(of)?;
    Ok(match kind {
        6 => KeeperRecord::Proposed {
            object,
            rank,
            stamp,
            how,
            proof,
        },
        7 => KeeperRecord::Committed {
            object,
            rank,
            stamp,
            how,
            proof,
        },
        _ => KeeperRecord::Restored {
            object,
            rank,
            stamp,
            how,
            proof,
        },
    })
}
