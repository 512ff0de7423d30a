//! Questions about leases and objects.

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::{Name, Token};
use conclave_protocol::keeper::Ask;
use conclave_protocol::lease::{LeaseAsk, LeaseKey, Seal, Secret, Space, Try};
use conclave_protocol::object::{Carry, ObjectAsk, OpId, Proof, Rank, Span, Stamp};

use super::Budget;
use super::parts::{
    Which, blob, carry, given, name, paged, proof, put_attempt, put_carry, put_op, put_page,
    put_proof, put_rank, put_space, put_stamp, rank, space, stamp, take_op, thirty_two,
};
use crate::pb::{self, Bad, Reader};

/// Writes a question.
pub(super) fn put(out: &mut Vec<u8>, ask: &Ask) {
    match ask {
        Ask::Lease(key, ask) => {
            pb::bytes(out, 1, key.name.bytes());
            put_space(out, key.space);
            put_lease(out, ask);
        }
        Ask::Object(object, ask) => {
            pb::bytes(out, 1, object.bytes());
            put_object(out, ask);
        }
        Ask::Survey { ticket, after, new } => pb::message(out, 15, |out| {
            pb::uint(out, 1, *ticket);
            if let Some(after) = after {
                pb::bytes_always(out, 2, after.bytes());
            }
            pb::flag(out, 3, *new);
        }),
    }
}

fn put_lease(out: &mut Vec<u8>, ask: &LeaseAsk) {
    match ask {
        LeaseAsk::Try(wish) => pb::message(out, 3, |out| {
            put_attempt(out, wish.attempt, wish.sub);
            pb::fixed(out, 4, wish.token.0);
            pb::span(out, 5, wish.span);
            pb::bytes(out, 6, &wish.seal.0);
            pb::span(out, 7, wish.patience);
            pb::span(out, 8, wish.waited);
        }),
        LeaseAsk::Release { attempt, secret } => pb::message(out, 4, |out| {
            put_attempt(out, *attempt, 0);
            pb::bytes(out, 4, &secret.0);
        }),
        LeaseAsk::Renew {
            attempt,
            sub,
            secret,
        } => pb::message(out, 5, |out| {
            put_attempt(out, *attempt, *sub);
            pb::bytes(out, 4, &secret.0);
        }),
    }
}

fn put_object(out: &mut Vec<u8>, ask: &ObjectAsk) {
    match ask {
        ObjectAsk::Submit { op, body } => pb::message(out, 6, |out| {
            put_op(out, *op);
            pb::bytes(out, 3, body);
        }),
        ObjectAsk::Get {
            rank,
            nonce,
            have,
            proof,
        } => pb::message(out, 7, |out| {
            put_rank(out, 1, rank);
            pb::fixed(out, 2, *nonce);
            put_have(out, 3, have.as_ref());
            put_proof(out, 4, proof);
        }),
        ObjectAsk::Propose {
            rank,
            stamp,
            carry,
            proof,
        } => put_take(out, 8, rank, stamp, carry.as_ref(), proof),
        ObjectAsk::Commit {
            rank,
            stamp,
            carry,
            proof,
        } => put_take(out, 9, rank, stamp, carry.as_ref(), proof),
        ObjectAsk::Fetch {
            ticket,
            stamp,
            after,
        } => pb::message(out, 10, |out| {
            pb::uint(out, 1, *ticket);
            put_stamp(out, 2, stamp);
            if let Some(after) = after {
                pb::bytes_always(out, 3, after);
            }
        }),
        ObjectAsk::Give {
            ticket,
            stamp,
            page,
        } => pb::message(out, 11, |out| put_page(out, *ticket, stamp, page)),
        ObjectAsk::Peek {
            ticket,
            have,
            spans,
        } => pb::message(out, 12, |out| {
            pb::uint(out, 1, *ticket);
            put_have(out, 2, have.as_ref());
            for span in spans {
                pb::message(out, 3, |out| put_span(out, span));
            }
        }),
        ObjectAsk::Watch { ticket } => pb::message(out, 13, |out| pb::uint(out, 1, *ticket)),
        ObjectAsk::Unwatch { ticket } => pb::message(out, 14, |out| pb::uint(out, 1, *ticket)),
    }
}

fn put_have(out: &mut Vec<u8>, field: u32, have: Option<&Stamp>) {
    if let Some(have) = have {
        put_stamp(out, field, have);
    }
}

fn put_take(
    out: &mut Vec<u8>,
    field: u32,
    rank: &Rank,
    stamp: &Stamp,
    carry: Option<&Carry>,
    proof: &Proof,
) {
    pb::message(out, field, |out| {
        put_rank(out, 1, rank);
        put_stamp(out, 2, stamp);
        if let Some(carry) = carry {
            put_carry(out, 3, carry);
        }
        put_proof(out, 4, proof);
    });
}

fn put_span(out: &mut Vec<u8>, span: &Span) {
    pb::bytes(out, 1, &span.from);
    if let Some(to) = &span.to {
        pb::bytes_always(out, 2, to);
    }
    pb::uint(out, 3, u64::from(span.limit));
    pb::flag(out, 4, span.backwards);
}

/// A question as it is read: what it is about is known only at its end.
enum Found {
    Lease(LeaseAsk),
    Object(ObjectAsk),
    Survey(u64, Option<Name>, bool),
}

/// Reads a question; none if it is of an unknown kind.
pub(super) fn read(mut from: Reader<'_>, budget: &mut Budget) -> Result<Option<Ask>, Bad> {
    let (mut about, mut of, mut found) = (Name::new(b""), Space::Lease, None);
    while let Some((field, value)) = from.next()? {
        let kind = match field {
            1 => {
                about = name(value)?;
                continue;
            }
            2 => {
                of = space(value)?;
                continue;
            }
            3 => Found::Lease(LeaseAsk::Try(wish(value.message()?)?)),
            4 | 5 => Found::Lease(holder(value.message()?, field == 5)?),
            6..=14 => Found::Object(object(field, value.message()?, budget)?),
            15 => survey(value.message()?)?,
            _ => continue,
        };
        if found.replace(kind).is_some() {
            return Err(Bad("two questions in one"));
        }
    }
    Ok(found.map(|found| match found {
        Found::Lease(ask) => {
            let key = LeaseKey {
                space: of,
                name: about,
            };
            Ask::Lease(key, ask)
        }
        Found::Object(ask) => Ask::Object(about, ask),
        Found::Survey(ticket, after, new) => Ask::Survey { ticket, after, new },
    }))
}

fn wish(mut from: Reader<'_>) -> Result<Try, Bad> {
    let (mut which, mut token, mut seal) = (Which::default(), 0, None);
    let mut spans = [Duration::ZERO; 3];
    while let Some((field, value)) = from.next()? {
        match field {
            4 => token = value.fixed()?,
            5 => spans[0] = value.span()?,
            6 => seal = Some(thirty_two(value)?),
            7 => spans[1] = value.span()?,
            8 => spans[2] = value.span()?,
            _ => which.take(field, value)?,
        }
    }
    let [span, patience, waited] = spans;
    Ok(Try {
        attempt: which.attempt()?,
        sub: which.sub,
        token: Token(token),
        span,
        seal: Seal(given(seal)?),
        patience,
        waited,
    })
}

fn holder(mut from: Reader<'_>, renew: bool) -> Result<LeaseAsk, Bad> {
    let (mut which, mut secret) = (Which::default(), None);
    while let Some((field, value)) = from.next()? {
        match field {
            4 => secret = Some(thirty_two(value)?),
            _ => which.take(field, value)?,
        }
    }
    let (attempt, secret) = (which.attempt()?, Secret(given(secret)?));
    Ok(if renew {
        LeaseAsk::Renew {
            attempt,
            sub: which.sub,
            secret,
        }
    } else {
        LeaseAsk::Release { attempt, secret }
    })
}

fn object(kind: u32, from: Reader<'_>, budget: &mut Budget) -> Result<ObjectAsk, Bad> {
    match kind {
        6 => submit(from),
        7 => get(from),
        8 | 9 => take(from, kind == 9, budget),
        10 => fetch(from),
        11 => {
            let (ticket, stamp, page) = paged(from, budget)?;
            Ok(ObjectAsk::Give {
                ticket,
                stamp,
                page,
            })
        }
        12 => peek(from, budget),
        13 => Ok(ObjectAsk::Watch {
            ticket: ticket(from)?,
        }),
        _ => Ok(ObjectAsk::Unwatch {
            ticket: ticket(from)?,
        }),
    }
}

fn submit(mut from: Reader<'_>) -> Result<ObjectAsk, Bad> {
    let (mut op, mut body): (_, Arc<[u8]>) = (OpId::default(), Arc::default());
    while let Some((field, value)) = from.next()? {
        match field {
            3 => body = blob(value)?,
            _ => take_op(&mut op, field, value)?,
        }
    }
    Ok(ObjectAsk::Submit { op, body })
}

fn get(mut from: Reader<'_>) -> Result<ObjectAsk, Bad> {
    let (mut of, mut nonce, mut have, mut signed) = (None, 0, None, None);
    while let Some((field, value)) = from.next()? {
        match field {
            1 => of = Some(rank(value)?),
            2 => nonce = value.fixed()?,
            3 => have = Some(stamp(value)?),
            4 => signed = proof(value)?,
            _ => {}
        }
    }
    Ok(ObjectAsk::Get {
        rank: given(of)?,
        nonce,
        have,
        proof: signed,
    })
}

fn take(mut from: Reader<'_>, commit: bool, budget: &mut Budget) -> Result<ObjectAsk, Bad> {
    let (mut of, mut state, mut way, mut signed) = (None, None, None, None);
    while let Some((field, value)) = from.next()? {
        match field {
            1 => of = Some(rank(value)?),
            2 => state = Some(stamp(value)?),
            3 => way = Some(carry(value, budget)?),
            4 => signed = proof(value)?,
            _ => {}
        }
    }
    let (rank, stamp, carry, proof) = (given(of)?, given(state)?, way, signed);
    Ok(if commit {
        ObjectAsk::Commit {
            rank,
            stamp,
            carry,
            proof,
        }
    } else {
        ObjectAsk::Propose {
            rank,
            stamp,
            carry,
            proof,
        }
    })
}

fn fetch(mut from: Reader<'_>) -> Result<ObjectAsk, Bad> {
    let (mut ticket, mut state, mut after) = (0, None, None);
    while let Some((field, value)) = from.next()? {
        match field {
            1 => ticket = value.uint()?,
            2 => state = Some(stamp(value)?),
            3 => after = Some(blob(value)?),
            _ => {}
        }
    }
    Ok(ObjectAsk::Fetch {
        ticket,
        stamp: given(state)?,
        after,
    })
}

fn peek(mut from: Reader<'_>, budget: &mut Budget) -> Result<ObjectAsk, Bad> {
    let (mut ticket, mut have, mut spans) = (0, None, Vec::new());
    while let Some((field, value)) = from.next()? {
        match field {
            1 => ticket = value.uint()?,
            2 => have = Some(stamp(value)?),
            3 => budget.push(&mut spans, span(value.message()?)?)?,
            _ => {}
        }
    }
    Ok(ObjectAsk::Peek {
        ticket,
        have,
        spans,
    })
}

fn span(mut from: Reader<'_>) -> Result<Span, Bad> {
    let mut span = Span {
        from: Arc::default(),
        to: None,
        limit: 0,
        backwards: false,
    };
    while let Some((field, value)) = from.next()? {
        match field {
            1 => span.from = blob(value)?,
            2 => span.to = Some(blob(value)?),
            3 => span.limit = value.small()?,
            4 => span.backwards = value.flag()?,
            _ => {}
        }
    }
    Ok(span)
}

fn ticket(mut from: Reader<'_>) -> Result<u64, Bad> {
    let mut ticket = 0;
    while let Some((field, value)) = from.next()? {
        if field == 1 {
            ticket = value.uint()?;
        }
    }
    Ok(ticket)
}

fn survey(mut from: Reader<'_>) -> Result<Found, Bad> {
    let (mut ticket, mut after, mut new) = (0, None, false);
    while let Some((field, value)) = from.next()? {
        match field {
            1 => ticket = value.uint()?,
            2 => after = Some(name(value)?),
            3 => new = value.flag()?,
            _ => {}
        }
    }
    Ok(Found::Survey(ticket, after, new))
}
