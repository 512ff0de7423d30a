//! The parts of questions, answers and records about leases and objects.

use std::sync::Arc;

use conclave_protocol::id::{ClientId, Name};
use conclave_protocol::lease::{Attempt, Space};
use conclave_protocol::object::{
    Author, Carry, Cell, Delta, Digest, ObjectRefusal, OpId, Page, Phase, Proof, Rank, Stamp, Value,
};

use super::{Budget, PROOF_MAX};
use crate::codec::FRAME_MAX;
use crate::parts::TEXT_MAX;
use crate::pb::{self, Bad, Reader};

/// A name as it is read.
pub(crate) fn name(value: pb::Value<'_>) -> Result<Name, Bad> {
    Ok(Name::new(value.bytes(TEXT_MAX)?))
}

/// Bytes that only the frame bounds.
pub(super) fn blob(value: pb::Value<'_>) -> Result<Arc<[u8]>, Bad> {
    Ok(value.bytes(FRAME_MAX)?.into())
}

/// 32 bytes.
pub(crate) fn thirty_two(value: pb::Value<'_>) -> Result<[u8; 32], Bad> {
    let bytes = value.bytes(32)?;
    bytes
        .try_into()
        .map_err(|_| Bad("a digest, seal or secret has not 32 bytes"))
}

/// The number of a space.
pub(super) fn put_space(out: &mut Vec<u8>, space: Space) {
    pb::uint(out, 2, u64::from(space == Space::Object));
}

/// The space of a number.
pub(super) fn space(value: pb::Value<'_>) -> Result<Space, Bad> {
    match value.uint()? {
        0 => Ok(Space::Lease),
        1 => Ok(Space::Object),
        _ => Err(Bad("an unknown kind of lease")),
    }
}

/// Writes an attempt and its round, fields 1 to 3.
pub(crate) fn put_attempt(out: &mut Vec<u8>, attempt: Attempt, sub: u32) {
    pb::id(out, 1, attempt.client.0);
    pb::uint(out, 2, attempt.number);
    pb::uint(out, 3, u64::from(sub));
}

/// An attempt and its round, as they are read.
#[derive(Default)]
pub(crate) struct Which {
    client: Option<u128>,
    number: u64,
    /// Field 3.
    pub(super) sub: u32,
}

impl Which {
    /// Takes a field, 1 to 3.
    pub(crate) fn take(&mut self, field: u32, value: pb::Value<'_>) -> Result<(), Bad> {
        match field {
            1 => self.client = Some(value.id()?),
            2 => self.number = value.uint()?,
            3 => self.sub = value.small()?,
            _ => {}
        }
        Ok(())
    }

    /// The attempt.
    pub(crate) fn attempt(&self) -> Result<Attempt, Bad> {
        let client = self.client.ok_or(Bad("an attempt has no client"))?;
        Ok(Attempt {
            client: ClientId(client),
            number: self.number,
        })
    }
}

/// Writes an operation's id, fields 1 and 2.
pub(super) fn put_op(out: &mut Vec<u8>, op: OpId) {
    pb::id(out, 1, op.author.0);
    pb::uint(out, 2, op.number);
}

/// Takes a field of an operation's id, 1 or 2.
pub(super) fn take_op(op: &mut OpId, field: u32, value: pb::Value<'_>) -> Result<(), Bad> {
    match field {
        1 => op.author = Author(value.id()?),
        2 => op.number = value.uint()?,
        _ => {}
    }
    Ok(())
}

/// Writes a rank as a message.
pub(super) fn put_rank(out: &mut Vec<u8>, field: u32, rank: &Rank) {
    pb::message(out, field, |out| {
        pb::uint(out, 1, rank.round);
        pb::id(out, 2, rank.client.0);
    });
}

/// Reads a rank.
pub(super) fn rank(value: pb::Value<'_>) -> Result<Rank, Bad> {
    let (mut from, mut rank) = (value.message()?, Rank::default());
    while let Some((field, value)) = from.next()? {
        match field {
            1 => rank.round = value.uint()?,
            2 => rank.client = ClientId(value.id()?),
            _ => {}
        }
    }
    Ok(rank)
}

/// Writes a stamp as a message.
pub(super) fn put_stamp(out: &mut Vec<u8>, field: u32, stamp: &Stamp) {
    pb::message(out, field, |out| {
        pb::uint(out, 1, stamp.version);
        pb::bytes(out, 2, &stamp.digest.0);
    });
}

/// Reads a stamp.
pub(super) fn stamp(value: pb::Value<'_>) -> Result<Stamp, Bad> {
    let (mut from, mut version, mut digest) = (value.message()?, 0, None);
    while let Some((field, value)) = from.next()? {
        match field {
            1 => version = value.uint()?,
            2 => digest = Some(Digest(thirty_two(value)?)),
            _ => {}
        }
    }
    let digest = digest.ok_or(Bad("a version has no digest"))?;
    Ok(Stamp { version, digest })
}

/// What must be there.
pub(super) fn given<T>(value: Option<T>) -> Result<T, Bad> {
    value.ok_or(Bad("a part of a message is missing"))
}

/// Writes a signature, if there is one.
pub(super) fn put_proof(out: &mut Vec<u8>, field: u32, proof: &Proof) {
    if let Some(proof) = proof {
        pb::bytes_always(out, field, proof);
    }
}

/// Reads a signature.
pub(super) fn proof(value: pb::Value<'_>) -> Result<Proof, Bad> {
    Ok(Some(value.bytes(PROOF_MAX)?.into()))
}

/// Writes a delta as a message.
pub(super) fn put_delta(out: &mut Vec<u8>, field: u32, delta: &Delta) {
    pb::message(out, field, |out| {
        for (cell, value) in delta.writes() {
            pb::message(out, 1, |out| {
                pb::bytes(out, 1, cell);
                if let Some(value) = value {
                    pb::bytes_always(out, 2, value);
                }
            });
        }
    });
}

/// Reads a delta.
pub(super) fn delta(value: pb::Value<'_>, budget: &mut Budget) -> Result<Delta, Bad> {
    let (mut from, mut writes) = (value.message()?, Vec::new());
    while let Some((field, value)) = from.next()? {
        if field == 1 {
            budget.push(&mut writes, write(value.message()?)?)?;
        }
    }
    Ok(Delta::new(writes))
}

fn write(mut from: Reader<'_>) -> Result<(Cell, Option<Value>), Bad> {
    let (mut cell, mut held): (Cell, _) = (Arc::default(), None);
    while let Some((field, value)) = from.next()? {
        match field {
            1 => cell = blob(value)?,
            2 => held = Some(blob(value)?),
            _ => {}
        }
    }
    Ok((cell, held))
}

/// Writes a way from one state to another as a message.
pub(super) fn put_carry(out: &mut Vec<u8>, field: u32, carry: &Carry) {
    pb::message(out, field, |out| {
        put_stamp(out, 1, &carry.base);
        for delta in &carry.deltas {
            put_delta(out, 2, delta);
        }
    });
}

/// Reads a way from one state to another.
pub(super) fn carry(value: pb::Value<'_>, budget: &mut Budget) -> Result<Carry, Bad> {
    let (mut from, mut base, mut deltas) = (value.message()?, None, Vec::new());
    while let Some((field, value)) = from.next()? {
        match field {
            1 => base = Some(stamp(value)?),
            2 => {
                let delta = delta(value, budget)?;
                budget.push(&mut deltas, delta)?;
            }
            _ => {}
        }
    }
    let base = given(base)?;
    Ok(Carry { base, deltas })
}

/// Writes cells, each as a message.
pub(super) fn put_cells<'a>(
    out: &mut Vec<u8>,
    field: u32,
    cells: impl IntoIterator<Item = (&'a Cell, &'a Value)>,
) {
    for (cell, value) in cells {
        pb::message(out, field, |out| {
            pb::bytes(out, 1, cell);
            pb::bytes(out, 2, value);
        });
    }
}

/// Reads a cell.
pub(super) fn cell(value: pb::Value<'_>) -> Result<(Cell, Value), Bad> {
    let mut from = value.message()?;
    let (mut cell, mut held): (Cell, Value) = (Arc::default(), Arc::default());
    while let Some((field, value)) = from.next()? {
        match field {
            1 => cell = blob(value)?,
            2 => held = blob(value)?,
            _ => {}
        }
    }
    Ok((cell, held))
}

fn pairs(cells: &[(Cell, Value)]) -> impl Iterator<Item = (&Cell, &Value)> {
    cells.iter().map(|(cell, value)| (cell, value))
}

/// Writes a page of a state, with its question.
pub(super) fn put_page(out: &mut Vec<u8>, ticket: u64, stamp: &Stamp, page: &Page) {
    pb::uint(out, 1, ticket);
    put_stamp(out, 2, stamp);
    put_page_body(out, 3, page);
}

/// Writes a page as a message.
pub(super) fn put_page_body(out: &mut Vec<u8>, field: u32, page: &Page) {
    pb::message(out, field, |out| {
        pb::bytes(out, 1, &page.previous.0);
        put_cells(out, 2, pairs(&page.cells));
        pb::flag(out, 3, page.last);
    });
}

/// Reads a page of a state, with its question.
pub(super) fn paged(mut from: Reader<'_>, budget: &mut Budget) -> Result<(u64, Stamp, Page), Bad> {
    let (mut ticket, mut which, mut found) = (0, None, None);
    while let Some((field, value)) = from.next()? {
        match field {
            1 => ticket = value.uint()?,
            2 => which = Some(stamp(value)?),
            3 => found = Some(page(value.message()?, budget)?),
            _ => {}
        }
    }
    Ok((ticket, given(which)?, given(found)?))
}

/// Reads a page.
pub(super) fn page(mut from: Reader<'_>, budget: &mut Budget) -> Result<Page, Bad> {
    let (mut previous, mut cells, mut last) = (None, Vec::new(), false);
    while let Some((field, value)) = from.next()? {
        match field {
            1 => previous = Some(Digest(thirty_two(value)?)),
            2 => budget.push(&mut cells, cell(value)?)?,
            3 => last = value.flag()?,
            _ => {}
        }
    }
    let previous = given(previous)?;
    Ok(Page {
        previous,
        cells,
        last,
    })
}

/// Writes the cells of a span as a message.
pub(super) fn put_span_cells(out: &mut Vec<u8>, field: u32, cells: &[(Cell, Value)]) {
    pb::message(out, field, |out| put_cells(out, 1, pairs(cells)));
}

/// Reads the cells of a span.
pub(super) fn span_cells(
    value: pb::Value<'_>,
    budget: &mut Budget,
) -> Result<Vec<(Cell, Value)>, Bad> {
    let (mut from, mut cells) = (value.message()?, Vec::new());
    while let Some((field, value)) = from.next()? {
        if field == 1 {
            budget.push(&mut cells, cell(value)?)?;
        }
    }
    Ok(cells)
}

/// The number of a phase.
pub(super) fn put_phase(out: &mut Vec<u8>, field: u32, phase: Phase) {
    let number = match phase {
        Phase::Get => 1,
        Phase::Propose => 2,
        Phase::Commit => 3,
    };
    pb::uint(out, field, number);
}

/// The phase of a number.
pub(super) fn phase(value: pb::Value<'_>) -> Result<Phase, Bad> {
    Ok(match value.uint()? {
        1 => Phase::Get,
        2 => Phase::Propose,
        3 => Phase::Commit,
        _ => return Err(Bad("an unknown phase")),
    })
}

const REFUSALS: [ObjectRefusal; 11] = [
    ObjectRefusal::NotPermitted,
    ObjectRefusal::TooLarge,
    ObjectRefusal::Full,
    ObjectRefusal::Name,
    ObjectRefusal::NotServing,
    ObjectRefusal::Unknown,
    ObjectRefusal::Contradiction,
    ObjectRefusal::Older,
    ObjectRefusal::Proof,
    ObjectRefusal::Infeasible,
    ObjectRefusal::Forgotten,
];

/// The number of a refusal.
pub(super) fn put_refusal(out: &mut Vec<u8>, field: u32, why: ObjectRefusal) {
    let number = match why {
        ObjectRefusal::NotPermitted => 1,
        ObjectRefusal::TooLarge => 2,
        ObjectRefusal::Full => 3,
        ObjectRefusal::Name => 4,
        ObjectRefusal::NotServing => 5,
        ObjectRefusal::Unknown => 6,
        ObjectRefusal::Contradiction => 7,
        ObjectRefusal::Older => 8,
        ObjectRefusal::Proof => 9,
        ObjectRefusal::Infeasible => 10,
        ObjectRefusal::Forgotten => 11,
    };
    pb::uint(out, field, number);
}

/// The refusal of a number.
pub(super) fn refusal(value: pb::Value<'_>) -> Result<ObjectRefusal, Bad> {
    let place = (value.small()? as usize).wrapping_sub(1);
    let found = REFUSALS.get(place).copied();
    found.ok_or(Bad("an unknown refusal"))
}
