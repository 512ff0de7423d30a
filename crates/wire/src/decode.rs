//! The body of a frame as a message of the lock protocol.

use std::time::Duration;

use conclave_protocol::Wall;
use conclave_protocol::id::{
    ClientId, ConnNo, GrantNo, Incarnation, NodeId, RequestNo, SessionId, Token,
};
use conclave_protocol::lock::{
    Claim, ConfigId, Entered, Finished, Message, NotNow, Recovered, Resume, Travel,
};

use crate::cluster::NODES_MAX;
use crate::dictionary::Reading;
use crate::parts::{
    Reference, TEXT_MAX, ask, carried, config, given, grant, grant_token, node, node_of, push,
    refusal, session_info,
};
use crate::pb::{Bad, Reader, Value};
use crate::sight;

/// The most entries of a list in a message.
pub(crate) const LIST_MAX: usize = 65_536;

/// Reads a message and gives it away; false if it is of a kind that this build does not know.
///
/// A message is given to a function instead of being returned because every `Option` and
/// `Result` around it is a copy of all its bytes, which took longer than reading it.
#[inline]
pub(crate) fn message(
    bytes: &[u8],
    known: &mut Reading,
    give: &mut impl FnMut(Message),
) -> Result<bool, Bad> {
    let mut from = Reader::new(bytes);
    let mut found = false;
    while let Some((field, value)) = from.next()? {
        if !(1..=37).contains(&field) {
            continue;
        }
        // What a kind says about sessions counts at once, so a second one cannot be undone.
        if found {
            return Err(Bad("two messages in one frame"));
        }
        found = true;
        let inside = value.message()?;
        match field {
            1 => request(inside, known, give)?,
            2 => locked(inside, known, give)?,
            3 => {
                let Finished {
                    session,
                    request,
                    token,
                } = done(inside, known)?;
                give(Message::Done {
                    session,
                    request,
                    token,
                });
            }
            4 => heartbeat(inside, known, give)?,
            5 => beat(inside, known, give)?,
            _ => give(rare(field, inside, known)?),
        }
    }
    Ok(found)
}

fn rare(field: u32, from: Reader<'_>, known: &mut Reading) -> Result<Message, Bad> {
    Ok(match field {
        6 => Message::Entered(Box::new(entered(from, known)?)),
        7 => Message::Noted(grant(from, known)?),
        8 => queued(from, known)?,
        9 => Message::Inquire(grant(from, known)?),
        10 => Message::Yield(grant(from, known)?),
        11 => {
            let (grant, token) = grant_token(from, known)?;
            Message::Raise { grant, token }
        }
        12 => {
            let (grant, token) = grant_token(from, known)?;
            Message::Raised { grant, token }
        }
        13 => {
            let (grant, token) = grant_token(from, known)?;
            Message::Keepalive { grant, token }
        }
        14 => Message::Kept(grant(from, known)?),
        15 => dead(from, known)?,
        16 => hello(from, known)?,
        17 => welcome(from)?,
        18 => Message::Resume(Box::new(resume(from, known)?)),
        19 => Message::Open(session_info(from, known)?),
        20 => Message::Refused(refusal(from)?),
        21 => not_now(from, known)?,
        22 => denied(from, known)?,
        23 => Message::Draining,
        24 => {
            let Finished {
                session,
                request,
                token,
            } = done(from, known)?;
            Message::Finish {
                session,
                request,
                token,
            }
        }
        25 => {
            let (node, incarnation) = life(from)?;
            Message::Recover { node, incarnation }
        }
        26 => Message::Recovered(recovered(from)?),
        27 => {
            let (node, incarnation) = life(from)?;
            Message::Alive { node, incarnation }
        }
        28 => Message::Travel(Box::new(travel(from, known)?)),
        29 => carried_all(from, known)?,
        30 => revoked(from)?,
        31 => sight::watch(from)?,
        32 => sight::unwatch(from)?,
        33 => sight::seen(from)?,
        34 => sight::watched(from)?,
        35 => token_clock(from)?,
        36 => confirm_grant(from)?,
        37 => grant_confirmed(from)?,
        _ => return Err(Bad("an unknown kind of message")),
    })
}

fn token_clock(mut from: Reader<'_>) -> Result<Message, Bad> {
    let (mut clock, mut asks) = (Wall(0), false);
    while let Some((field, value)) = from.next()? {
        match field {
            1 => clock = Wall(value.fixed()?),
            2 => asks = value.flag()?,
            _ => {}
        }
    }
    Ok(Message::TokenClock { clock, asks })
}

fn confirm_grant(mut from: Reader<'_>) -> Result<Message, Bad> {
    let mut what = None;
    while let Some((field, value)) = from.next()? {
        if field == 1 {
            what = Some(ask(value.message()?, &mut Reading::default())?);
        }
    }
    Ok(Message::ConfirmGrant(given(what)?))
}

fn grant_confirmed(mut from: Reader<'_>) -> Result<Message, Bad> {
    let (mut session, mut request, mut granted) = (None, RequestNo(0), None);
    while let Some((field, value)) = from.next()? {
        match field {
            1 => session = Some(SessionId(value.id()?)),
            2 => request = RequestNo(value.uint()?),
            3 => granted = Some(value.flag()?),
            _ => {}
        }
    }
    Ok(Message::GrantConfirmed {
        session: session.ok_or(Bad("a session is missing"))?,
        request,
        granted,
    })
}

fn revoked(mut from: Reader<'_>) -> Result<Message, Bad> {
    let mut session = None;
    while let Some((field, value)) = from.next()? {
        if field == 2 {
            session = Some(SessionId(value.id()?));
        }
    }
    let session = session.ok_or(Bad("a session is missing"))?;
    Ok(Message::Revoked(session))
}

#[inline]
fn request(
    mut from: Reader<'_>,
    known: &mut Reading,
    give: &mut impl FnMut(Message),
) -> Result<(), Bad> {
    let (mut what, mut hint, mut inside) = (None, Token(0), false);
    let mut members = Vec::new();
    while let Some((field, value)) = from.next()? {
        match field {
            1 => what = Some(ask(value.message()?, known)?),
            2 => hint = Token(value.fixed()?),
            3 => inside = value.flag()?,
            4 => route_part(&mut members, value)?,
            _ => {}
        }
    }
    let ask = given(what)?;
    let inside = inside.then_some(members);
    give(Message::Request { ask, hint, inside });
    Ok(())
}

#[inline]
fn locked(
    mut from: Reader<'_>,
    known: &mut Reading,
    give: &mut impl FnMut(Message),
) -> Result<(), Bad> {
    let mut reference = Reference::default();
    let (mut floor, mut limit, mut incarnation, mut clock) = (0, 0, 0, 0);
    while let Some((field, value)) = from.next()? {
        match field {
            5 => floor = value.fixed()?,
            6 => limit = value.fixed()?,
            7 => incarnation = value.fixed()?,
            8 => clock = value.fixed()?,
            _ => reference.take_grant(field, value)?,
        }
    }
    let grant = reference.grant(known)?;
    give(Message::Locked {
        grant,
        floor: Token(floor),
        limit: Token(limit),
        incarnation: Incarnation(incarnation),
        clock: Wall(clock),
    });
    Ok(())
}

#[inline]
fn done(mut from: Reader<'_>, known: &mut Reading) -> Result<Finished, Bad> {
    let (mut reference, mut token) = (Reference::default(), None);
    while let Some((field, value)) = from.next()? {
        match field {
            4 => token = Some(Token(value.fixed()?)),
            _ => reference.take(field, value)?,
        }
    }
    Ok(Finished {
        session: reference.session(known)?,
        request: reference.request(),
        token,
    })
}

fn entered(mut from: Reader<'_>, known: &mut Reading) -> Result<Entered, Bad> {
    let (mut reference, mut token, mut note) = (Reference::default(), Token(0), None);
    let mut edition = 0;
    while let Some((field, value)) = from.next()? {
        match field {
            7 => edition = value.small()?,
            5 => token = Token(value.fixed()?),
            6 => note = Some(value.bytes(TEXT_MAX)?.into()),
            _ => reference.take_grant(field, value)?,
        }
    }
    Ok(Entered {
        grant: reference.grant(known)?,
        token,
        note,
        edition,
    })
}

#[inline]
fn heartbeat(
    mut from: Reader<'_>,
    known: &mut Reading,
    give: &mut impl FnMut(Message),
) -> Result<(), Bad> {
    let (mut beat, mut list) = (0, Vec::new());
    while let Some((field, value)) = from.next()? {
        match field {
            1 => beat = value.uint()?,
            2 => push(&mut list, LIST_MAX, entered(value.message()?, known)?)?,
            _ => {}
        }
    }
    give(Message::Heartbeat {
        beat,
        entered: list,
    });
    Ok(())
}

#[inline]
fn beat(
    mut from: Reader<'_>,
    known: &mut Reading,
    give: &mut impl FnMut(Message),
) -> Result<(), Bad> {
    let (mut beat, mut clock, mut noted) = (0, Wall(0), Vec::new());
    while let Some((field, value)) = from.next()? {
        match field {
            1 => beat = value.uint()?,
            2 => clock = Wall(value.fixed()?),
            3 => push(&mut noted, LIST_MAX, grant(value.message()?, known)?)?,
            _ => {}
        }
    }
    give(Message::Beat { beat, clock, noted });
    Ok(())
}

fn queued(mut from: Reader<'_>, known: &mut Reading) -> Result<Message, Bad> {
    let (mut reference, mut position) = (Reference::default(), 0);
    while let Some((field, value)) = from.next()? {
        match field {
            4 => position = value.small()?,
            _ => reference.take(field, value)?,
        }
    }
    Ok(Message::Queued {
        session: reference.session(known)?,
        request: reference.request(),
        position,
    })
}

fn dead(mut from: Reader<'_>, known: &mut Reading) -> Result<Message, Bad> {
    let mut reference = Reference::default();
    while let Some((field, value)) = from.next()? {
        reference.take(field, value)?;
    }
    Ok(Message::Dead {
        session: reference.session(known)?,
        request: reference.request.map(RequestNo),
    })
}

fn denied(mut from: Reader<'_>, known: &mut Reading) -> Result<Message, Bad> {
    let (mut reference, mut why) = (Reference::default(), None);
    while let Some((field, value)) = from.next()? {
        match field {
            4 => why = Some(refusal(value.message()?)?),
            _ => reference.take(field, value)?,
        }
    }
    Ok(Message::Denied {
        session: reference.session(known)?,
        request: reference.request.map(RequestNo),
        why: why.ok_or(Bad("a refusal is missing"))?,
    })
}

fn not_now(mut from: Reader<'_>, known: &mut Reading) -> Result<Message, Bad> {
    let mut reference = Reference::default();
    let (mut why, mut retry) = (0, Duration::ZERO);
    while let Some((field, value)) = from.next()? {
        match field {
            4 => why = value.uint()?,
            5 => retry = value.span()?,
            _ => reference.take(field, value)?,
        }
    }
    Ok(Message::NotNow {
        session: reference.session(known)?,
        request: reference.request(),
        why: match why {
            1 => NotNow::Pausing,
            2 => NotNow::Draining,
            _ => return Err(Bad("an unknown reason to wait")),
        },
        retry,
    })
}

fn hello(mut from: Reader<'_>, known: &mut Reading) -> Result<Message, Bad> {
    let (mut client, mut conn, mut id) = (None, ConnNo(0), ConfigId::default());
    while let Some((field, value)) = from.next()? {
        match field {
            1 => client = Some(ClientId(value.id()?)),
            2 => conn = ConnNo(value.uint()?),
            3 => id = config(value.message()?)?,
            _ => {}
        }
    }
    let client = client.ok_or(Bad("a hello without a client"))?;
    known.client = Some(client);
    Ok(Message::Hello {
        client,
        conn,
        config: id,
    })
}

fn welcome(mut from: Reader<'_>) -> Result<Message, Bad> {
    let (mut place, mut incarnation, mut clock) = (NodeId(0), Incarnation(0), Wall(0));
    while let Some((field, value)) = from.next()? {
        match field {
            1 => place = node(value)?,
            2 => incarnation = Incarnation(value.fixed()?),
            3 => clock = Wall(value.fixed()?),
            _ => {}
        }
    }
    Ok(Message::Welcome {
        node: place,
        incarnation,
        clock,
    })
}

fn resume(mut from: Reader<'_>, known: &mut Reading) -> Result<Resume, Bad> {
    let mut resume = Resume::default();
    while let Some((field, value)) = from.next()? {
        match field {
            1 => {
                let info = session_info(value.message()?, known)?;
                push(&mut resume.sessions, LIST_MAX, info)?;
            }
            2 => push(&mut resume.live, LIST_MAX, claim(value.message()?, known)?)?,
            3 => push(&mut resume.done, LIST_MAX, done(value.message()?, known)?)?,
            4 => resume.last = value.flag()?,
            _ => {}
        }
    }
    Ok(resume)
}

fn claim(mut from: Reader<'_>, known: &mut Reading) -> Result<Claim, Bad> {
    let (mut what, mut hint, mut seen) = (None, Token(0), GrantNo(0));
    let (mut holding, mut inside, mut raising, mut fresh) = (false, None, None, false);
    let mut members = Vec::new();
    while let Some((field, value)) = from.next()? {
        match field {
            1 => what = Some(ask(value.message()?, known)?),
            2 => hint = Token(value.fixed()?),
            3 => seen = GrantNo(value.uint()?),
            4 => holding = value.flag()?,
            5 => inside = Some(Token(value.fixed()?)),
            6 => raising = Some(Token(value.fixed()?)),
            7 => fresh = value.flag()?,
            8 => route_part(&mut members, value)?,
            _ => {}
        }
    }
    Ok(Claim {
        ask: given(what)?,
        hint,
        seen,
        holding,
        inside,
        raising,
        fresh,
        members,
    })
}

fn life(mut from: Reader<'_>) -> Result<(NodeId, Incarnation), Bad> {
    let (mut place, mut incarnation) = (NodeId(0), Incarnation(0));
    while let Some((field, value)) = from.next()? {
        match field {
            1 => place = node(value)?,
            2 => incarnation = Incarnation(value.fixed()?),
            _ => {}
        }
    }
    Ok((place, incarnation))
}

fn recovered(mut from: Reader<'_>) -> Result<Recovered, Bad> {
    let mut recovered = Recovered {
        node: NodeId(0),
        recovering: false,
        served: false,
        floor: Token(0),
        limit: Token(0),
        incarnation: Incarnation(0),
        clock: Wall(0),
    };
    while let Some((field, value)) = from.next()? {
        match field {
            1 => recovered.node = node(value)?,
            2 => recovered.recovering = value.flag()?,
            3 => recovered.served = value.flag()?,
            4 => recovered.floor = Token(value.fixed()?),
            5 => recovered.limit = Token(value.fixed()?),
            6 => recovered.incarnation = Incarnation(value.fixed()?),
            7 => recovered.clock = Wall(value.fixed()?),
            _ => {}
        }
    }
    Ok(recovered)
}

fn travel(mut from: Reader<'_>, known: &mut Reading) -> Result<Travel, Bad> {
    let (mut what, mut hint) = (None, Token(0));
    let (mut route, mut grants) = (Vec::new(), Vec::new());
    while let Some((field, value)) = from.next()? {
        match field {
            1 => what = Some(ask(value.message()?, known)?),
            2 => hint = Token(value.fixed()?),
            3 => route_part(&mut route, value)?,
            4 => push(&mut grants, NODES_MAX, carried(value.message()?)?)?,
            _ => {}
        }
    }
    Ok(Travel {
        ask: given(what)?,
        hint,
        route: route.into(),
        grants,
    })
}

/// A list of numbers comes in one piece, in several, or number by number.
fn route_part(route: &mut Vec<NodeId>, value: Value<'_>) -> Result<(), Bad> {
    if let Value::Varint(number) = value {
        return push(route, NODES_MAX, node_of(number)?);
    }
    let mut numbers = value.message()?;
    while !numbers.is_empty() {
        push(route, NODES_MAX, node_of(numbers.varint()?)?)?;
    }
    Ok(())
}

fn carried_all(mut from: Reader<'_>, known: &mut Reading) -> Result<Message, Bad> {
    let (mut reference, mut grants) = (Reference::default(), Vec::new());
    while let Some((field, value)) = from.next()? {
        match field {
            4 => push(&mut grants, NODES_MAX, carried(value.message()?)?)?,
            _ => reference.take(field, value)?,
        }
    }
    Ok(Message::Carried {
        session: reference.session(known)?,
        request: reference.request(),
        grants,
    })
}
