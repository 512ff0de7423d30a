//! Answers about leases and objects.

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::{Name, Token};
use conclave_protocol::keeper::Answer;
use conclave_protocol::lease::{LeaseAnswer, LeaseKey, LeaseRefusal, LeaseReply, Space};
use conclave_protocol::object::{ObjectTell, OpId, Pending, Stamp, View};

use super::Budget;
use super::parts::{
    Which, blob, delta, given, name, paged, phase, proof, put_attempt, put_delta, put_op, put_page,
    put_phase, put_proof, put_rank, put_refusal, put_space, put_span_cells, put_stamp, rank,
    refusal, space, span_cells, stamp, take_op,
};
use crate::parts::TEXT_MAX;
use crate::pb::{self, Bad, Reader};

/// Writes an answer.
pub(super) fn put(out: &mut Vec<u8>, answer: &Answer) {
    match answer {
        Answer::Lease(key, reply) => {
            pb::bytes(out, 1, key.name.bytes());
            put_space(out, key.space);
            put_lease(out, reply);
        }
        Answer::Object(object, tell) => {
            pb::bytes(out, 1, object.bytes());
            put_object(out, tell);
        }
        Answer::Surveyed {
            ticket,
            objects,
            token,
            last,
            lost,
            new,
        } => pb::message(out, 21, |out| {
            pb::uint(out, 1, *ticket);
            for (object, stamp) in objects {
                pb::message(out, 2, |out| {
                    pb::bytes(out, 1, object.bytes());
                    put_stamp(out, 2, stamp);
                });
            }
            pb::fixed(out, 3, token.0);
            pb::flag(out, 4, *last);
            pb::flag(out, 5, *lost);
            pb::flag(out, 6, *new);
        }),
    }
}

fn put_lease(out: &mut Vec<u8>, reply: &LeaseReply) {
    let field = match reply.answer {
        LeaseAnswer::Free { .. } => 3,
        LeaseAnswer::Locked { .. } => 4,
        LeaseAnswer::Stale { .. } => 5,
        LeaseAnswer::Released => 6,
        LeaseAnswer::Refused(_) => 7,
    };
    pb::message(out, field, |out| {
        put_attempt(out, reply.attempt, reply.sub);
        match &reply.answer {
            LeaseAnswer::Free { held, rank } => {
                pb::span(out, 4, *held);
                if let Some(rank) = rank {
                    put_rank(out, 5, rank);
                }
            }
            LeaseAnswer::Locked {
                queued,
                remaining,
                token,
                rank,
            } => {
                pb::flag(out, 4, *queued);
                pb::span(out, 5, *remaining);
                pb::fixed(out, 6, token.0);
                if let Some(rank) = rank {
                    put_rank(out, 7, rank);
                }
            }
            LeaseAnswer::Stale { token } => pb::fixed(out, 4, token.0),
            LeaseAnswer::Released => {}
            LeaseAnswer::Refused(why) => pb::uint(out, 4, lease_code(*why)),
        }
    });
}

fn lease_code(why: LeaseRefusal) -> u64 {
    match why {
        LeaseRefusal::NotPermitted => 1,
        LeaseRefusal::Span => 2,
        LeaseRefusal::TokenTooFar => 3,
        LeaseRefusal::Full => 4,
        LeaseRefusal::Name => 5,
        LeaseRefusal::NotServing => 6,
        LeaseRefusal::Infeasible => 7,
    }
}

fn lease_refusal(code: u64) -> Result<LeaseRefusal, Bad> {
    Ok(match code {
        1 => LeaseRefusal::NotPermitted,
        2 => LeaseRefusal::Span,
        3 => LeaseRefusal::TokenTooFar,
        4 => LeaseRefusal::Full,
        5 => LeaseRefusal::Name,
        6 => LeaseRefusal::NotServing,
        7 => LeaseRefusal::Infeasible,
        _ => return Err(Bad("an unknown refusal")),
    })
}

fn put_object(out: &mut Vec<u8>, tell: &ObjectTell) {
    match tell {
        ObjectTell::Held { op, principal } => pb::message(out, 8, |out| {
            put_op(out, *op);
            pb::bytes(out, 3, principal.as_bytes());
        }),
        ObjectTell::Done { op, result } => pb::message(out, 9, |out| {
            put_op(out, *op);
            pb::bytes(out, 3, result);
        }),
        ObjectTell::Denied { op, why } => pb::message(out, 10, |out| {
            put_op(out, *op);
            put_refusal(out, 3, *why);
        }),
        ObjectTell::Got { rank, nonce, view } => pb::message(out, 11, |out| {
            put_rank(out, 1, rank);
            pb::fixed(out, 2, *nonce);
            pb::message(out, 3, |out| put_view(out, view));
        }),
        ObjectTell::Taken {
            rank,
            phase,
            stamp,
            waiting,
        } => pb::message(out, 12, |out| {
            put_rank(out, 1, rank);
            put_phase(out, 2, *phase);
            put_stamp(out, 3, stamp);
            pb::uint(out, 4, u64::from(*waiting));
        }),
        ObjectTell::Outranked {
            rank,
            phase,
            max,
            proof,
        } => pb::message(out, 13, |out| {
            put_rank(out, 1, rank);
            put_phase(out, 2, *phase);
            put_rank(out, 3, max);
            put_proof(out, 4, proof);
        }),
        ObjectTell::NeedState {
            rank,
            phase,
            stamp,
            committed,
            proposed,
        } => pb::message(out, 14, |out| {
            put_rank(out, 1, rank);
            put_phase(out, 2, *phase);
            for (field, stamp) in [(3, stamp), (4, committed), (5, proposed)] {
                put_stamp(out, field, stamp);
            }
        }),
        ObjectTell::Refused { rank, phase, why } => pb::message(out, 15, |out| {
            put_rank(out, 1, rank);
            put_phase(out, 2, *phase);
            put_refusal(out, 3, *why);
        }),
        _ => put_ticketed(out, tell),
    }
}

/// What answers a question by its number.
fn put_ticketed(out: &mut Vec<u8>, tell: &ObjectTell) {
    match tell {
        ObjectTell::Page {
            ticket,
            stamp,
            page,
        } => pb::message(out, 16, |out| put_page(out, *ticket, stamp, page)),
        ObjectTell::Given { ticket, whole } => pb::message(out, 17, |out| {
            pb::uint(out, 1, *ticket);
            pb::flag(out, 2, *whole);
        }),
        ObjectTell::Gone { ticket, why } => pb::message(out, 18, |out| {
            pb::uint(out, 1, *ticket);
            put_refusal(out, 2, *why);
        }),
        ObjectTell::Peeked {
            ticket,
            committed,
            proposed,
            suffix,
            cells,
        } => pb::message(out, 19, |out| {
            pb::uint(out, 1, *ticket);
            put_stamp(out, 2, committed);
            pb::uint(out, 3, *proposed);
            for delta in suffix {
                put_delta(out, 4, delta);
            }
            for cells in cells {
                put_span_cells(out, 5, cells);
            }
        }),
        ObjectTell::Changed { ticket, stamp } => pb::message(out, 20, |out| {
            pb::uint(out, 1, *ticket);
            put_stamp(out, 2, stamp);
        }),
        _ => debug_assert!(false, "written by put_object"),
    }
}

fn put_view(out: &mut Vec<u8>, view: &View) {
    put_stamp(out, 1, &view.committed);
    put_stamp(out, 2, &view.proposed);
    put_rank(out, 3, &view.proposer);
    for pending in &view.pending {
        pb::message(out, 4, |out| {
            put_op(out, pending.op);
            pb::bytes(out, 3, pending.principal.as_bytes());
            pb::bytes(out, 4, &pending.body);
        });
    }
    for delta in &view.suffix {
        put_delta(out, 5, delta);
    }
    if let Some(step) = &view.step {
        put_delta(out, 6, step);
    }
}

/// An answer as it is read: what it is about is known only at its end.
enum Found {
    Lease(LeaseReply),
    Object(ObjectTell),
    Whole(Answer),
}

/// Reads an answer; none if it is of an unknown kind.
pub(super) fn read(mut from: Reader<'_>, budget: &mut Budget) -> Result<Option<Answer>, Bad> {
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
            3..=7 => Found::Lease(lease(field, value.message()?)?),
            8..=10 => Found::Object(operation(field, value.message()?)?),
            11 => Found::Object(got(value.message()?, budget)?),
            12..=15 => Found::Object(ranked(field, value.message()?)?),
            16 => {
                let (ticket, stamp, page) = paged(value.message()?, budget)?;
                Found::Object(ObjectTell::Page {
                    ticket,
                    stamp,
                    page,
                })
            }
            17 | 18 | 20 => Found::Object(ticketed(field, value.message()?)?),
            19 => Found::Object(peeked(value.message()?, budget)?),
            21 => Found::Whole(surveyed(value.message()?, budget)?),
            _ => continue,
        };
        if found.replace(kind).is_some() {
            return Err(Bad("two answers in one"));
        }
    }
    Ok(found.map(|found| match found {
        Found::Lease(reply) => {
            let key = LeaseKey {
                space: of,
                name: about,
            };
            Answer::Lease(key, reply)
        }
        Found::Object(tell) => Answer::Object(about, tell),
        Found::Whole(answer) => answer,
    }))
}

fn lease(kind: u32, mut from: Reader<'_>) -> Result<LeaseReply, Bad> {
    let mut which = Which::default();
    let (mut span, mut queued, mut token, mut why) = (Duration::ZERO, false, Token(0), 0);
    let mut seen = None;
    while let Some((field, value)) = from.next()? {
        match (kind, field) {
            (3, 4) | (4, 5) => span = value.span()?,
            (3, 5) | (4, 7) => seen = Some(rank(value)?),
            (4, 4) => queued = value.flag()?,
            (4, 6) | (5, 4) => token = Token(value.fixed()?),
            (7, 4) => why = value.uint()?,
            _ => which.take(field, value)?,
        }
    }
    let answer = match kind {
        3 => LeaseAnswer::Free {
            held: span,
            rank: seen,
        },
        4 => LeaseAnswer::Locked {
            queued,
            remaining: span,
            token,
            rank: seen,
        },
        5 => LeaseAnswer::Stale { token },
        6 => LeaseAnswer::Released,
        _ => LeaseAnswer::Refused(lease_refusal(why)?),
    };
    Ok(LeaseReply {
        attempt: which.attempt()?,
        sub: which.sub,
        answer,
    })
}

fn operation(kind: u32, mut from: Reader<'_>) -> Result<ObjectTell, Bad> {
    let (mut op, mut result, mut why) = (OpId::default(), Arc::default(), None);
    let mut principal: Arc<str> = Arc::from("");
    while let Some((field, value)) = from.next()? {
        match (kind, field) {
            (8, 3) => principal = value.text(TEXT_MAX)?.into(),
            (9, 3) => result = blob(value)?,
            (10, 3) => why = Some(refusal(value)?),
            _ => take_op(&mut op, field, value)?,
        }
    }
    Ok(match kind {
        8 => ObjectTell::Held { op, principal },
        9 => ObjectTell::Done { op, result },
        _ => ObjectTell::Denied {
            op,
            why: given(why)?,
        },
    })
}

fn got(mut from: Reader<'_>, budget: &mut Budget) -> Result<ObjectTell, Bad> {
    let (mut of, mut nonce, mut found) = (None, 0, None);
    while let Some((field, value)) = from.next()? {
        match field {
            1 => of = Some(rank(value)?),
            2 => nonce = value.fixed()?,
            3 => found = Some(Box::new(view(value.message()?, budget)?)),
            _ => {}
        }
    }
    Ok(ObjectTell::Got {
        rank: given(of)?,
        nonce,
        view: given(found)?,
    })
}

fn view(mut from: Reader<'_>, budget: &mut Budget) -> Result<View, Bad> {
    let (mut committed, mut proposed, mut proposer) = (None, None, None);
    let (mut pending, mut suffix, mut step) = (Vec::new(), Vec::new(), None);
    while let Some((field, value)) = from.next()? {
        match field {
            1 => committed = Some(stamp(value)?),
            2 => proposed = Some(stamp(value)?),
            3 => proposer = Some(rank(value)?),
            4 => budget.push(&mut pending, waiting(value.message()?)?)?,
            5 => {
                let delta = delta(value, budget)?;
                budget.push(&mut suffix, delta)?;
            }
            6 => step = Some(delta(value, budget)?),
            _ => {}
        }
    }
    Ok(View {
        committed: given(committed)?,
        proposed: given(proposed)?,
        proposer: given(proposer)?,
        pending,
        suffix,
        step,
    })
}

fn waiting(mut from: Reader<'_>) -> Result<Pending, Bad> {
    let mut pending = Pending {
        op: OpId::default(),
        principal: Arc::from(""),
        body: Arc::default(),
    };
    while let Some((field, value)) = from.next()? {
        match field {
            3 => pending.principal = value.text(TEXT_MAX)?.into(),
            4 => pending.body = blob(value)?,
            _ => take_op(&mut pending.op, field, value)?,
        }
    }
    Ok(pending)
}

fn ranked(kind: u32, mut from: Reader<'_>) -> Result<ObjectTell, Bad> {
    let (mut of, mut step, mut max, mut signed, mut why) = (None, None, None, None, None);
    let mut stamps: [Option<Stamp>; 3] = [None; 3];
    let mut waiting = 0;
    while let Some((field, value)) = from.next()? {
        match (kind, field) {
            (_, 1) => of = Some(rank(value)?),
            (_, 2) => step = Some(phase(value)?),
            (13, 3) => max = Some(rank(value)?),
            (13, 4) => signed = proof(value)?,
            (12, 4) => waiting = value.small()?,
            (15, 3) => why = Some(refusal(value)?),
            (12, 3) | (14, 3..=5) => stamps[field as usize - 3] = Some(stamp(value)?),
            _ => {}
        }
    }
    let (rank, phase) = (given(of)?, given(step)?);
    Ok(match kind {
        12 => ObjectTell::Taken {
            rank,
            phase,
            stamp: given(stamps[0])?,
            waiting,
        },
        13 => ObjectTell::Outranked {
            rank,
            phase,
            max: given(max)?,
            proof: signed,
        },
        14 => ObjectTell::NeedState {
            rank,
            phase,
            stamp: given(stamps[0])?,
            committed: given(stamps[1])?,
            proposed: given(stamps[2])?,
        },
        _ => ObjectTell::Refused {
            rank,
            phase,
            why: given(why)?,
        },
    })
}

fn ticketed(kind: u32, mut from: Reader<'_>) -> Result<ObjectTell, Bad> {
    let (mut ticket, mut whole, mut why, mut state) = (0, false, None, None);
    while let Some((field, value)) = from.next()? {
        match (kind, field) {
            (_, 1) => ticket = value.uint()?,
            (17, 2) => whole = value.flag()?,
            (18, 2) => why = Some(refusal(value)?),
            (20, 2) => state = Some(stamp(value)?),
            _ => {}
        }
    }
    Ok(match kind {
        17 => ObjectTell::Given { ticket, whole },
        18 => ObjectTell::Gone {
            ticket,
            why: given(why)?,
        },
        _ => ObjectTell::Changed {
            ticket,
            stamp: given(state)?,
        },
    })
}

fn peeked(mut from: Reader<'_>, budget: &mut Budget) -> Result<ObjectTell, Bad> {
    let (mut ticket, mut committed, mut proposed) = (0, None, 0);
    let (mut suffix, mut spans) = (Vec::new(), Vec::new());
    while let Some((field, value)) = from.next()? {
        match field {
            1 => ticket = value.uint()?,
            2 => committed = Some(stamp(value)?),
            3 => proposed = value.uint()?,
            4 => {
                let delta = delta(value, budget)?;
                budget.push(&mut suffix, delta)?;
            }
            5 => {
                let cells = span_cells(value, budget)?;
                budget.push(&mut spans, cells)?;
            }
            _ => {}
        }
    }
    Ok(ObjectTell::Peeked {
        ticket,
        committed: given(committed)?,
        proposed,
        suffix,
        cells: spans,
    })
}

fn surveyed(mut from: Reader<'_>, budget: &mut Budget) -> Result<Answer, Bad> {
    let (mut ticket, mut objects, mut token) = (0, Vec::new(), 0);
    let (mut last, mut lost, mut new) = (false, false, false);
    while let Some((field, value)) = from.next()? {
        match field {
            1 => ticket = value.uint()?,
            2 => budget.push(&mut objects, known(value.message()?)?)?,
            3 => token = value.fixed()?,
            4 => last = value.flag()?,
            5 => lost = value.flag()?,
            6 => new = value.flag()?,
            _ => {}
        }
    }
    Ok(Answer::Surveyed {
        ticket,
        objects,
        token: Token(token),
        last,
        lost,
        new,
    })
}

fn known(mut from: Reader<'_>) -> Result<(Name, Stamp), Bad> {
    let (mut about, mut state) = (Name::new(b""), None);
    while let Some((field, value)) = from.next()? {
        match field {
            1 => about = name(value)?,
            2 => state = Some(stamp(value)?),
            _ => {}
        }
    }
    Ok((about, given(state)?))
}
