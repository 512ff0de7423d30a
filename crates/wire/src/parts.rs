//! The parts that messages, records and handles are made of, to bytes and back.

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::Wall;
use conclave_protocol::id::{
    ClientId, GrantNo, Incarnation, Name, NodeId, RequestNo, SessionId, Token,
};
use conclave_protocol::lock::{
    Ask, Bond, Carried, ConfigId, GrantRef, Mode, Priority, Refusal, SessionInfo,
};

use crate::cluster::NODES_MAX;
use crate::dictionary::{Reading, Writing};
use crate::pb::{self, Bad, Reader, Value};

/// The most bytes of a name, group, label or note; the machines allow fewer and say which.
pub(crate) const TEXT_MAX: usize = 4096;

/// A node, if there can be one of this number.
#[inline]
pub(crate) fn node(value: Value<'_>) -> Result<NodeId, Bad> {
    node_of(value.uint()?)
}

/// A node, if there can be one of this number.
pub(crate) fn node_of(number: u64) -> Result<NodeId, Bad> {
    if number < NODES_MAX as u64 {
        Ok(NodeId(number as u32))
    } else {
        Err(Bad("a node's number is too large"))
    }
}

/// Adds to a list that may not grow for ever.
pub(crate) fn push<T>(list: &mut Vec<T>, most: usize, item: T) -> Result<(), Bad> {
    if list.len() >= most {
        return Err(Bad("a list is too long"));
    }
    list.push(item);
    Ok(())
}

/// Writes the session and the request, fields 1 to 3.
#[inline]
pub(crate) fn put_request(
    out: &mut Vec<u8>,
    known: &mut Writing,
    session: SessionId,
    request: RequestNo,
) {
    known.session(out, session);
    pb::uint(out, 3, request.0);
}

/// Writes a grant, fields 1 to 4.
#[inline]
pub(crate) fn put_grant(out: &mut Vec<u8>, known: &mut Writing, grant: &GrantRef) {
    put_request(out, known, grant.session, grant.request);
    pb::uint(out, 4, grant.grant.0);
}

/// The fields that name a session, a request and a grant, as they are read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reference {
    number: u32,
    id: Option<u128>,
    /// Field 3.
    pub(crate) request: Option<u64>,
    grant: u64,
}

impl Reference {
    /// Takes a field of the session, 1 or 2, or the request, 3.
    #[inline]
    pub(crate) fn take(&mut self, field: u32, value: Value<'_>) -> Result<(), Bad> {
        match field {
            1 => self.number = value.small()?,
            2 => self.id = Some(value.id()?),
            3 => self.request = Some(value.uint()?),
            _ => {}
        }
        Ok(())
    }

    /// Takes field 4, the grant, too.
    #[inline]
    pub(crate) fn take_grant(&mut self, field: u32, value: Value<'_>) -> Result<(), Bad> {
        if field == 4 {
            self.grant = value.uint()?;
            return Ok(());
        }
        self.take(field, value)
    }

    /// The session.
    #[inline]
    pub(crate) fn session(&self, known: &mut Reading) -> Result<SessionId, Bad> {
        known.session(self.number, self.id)
    }

    /// The request's number, zero if it was left out.
    #[inline]
    pub(crate) fn request(&self) -> RequestNo {
        RequestNo(self.request.unwrap_or(0))
    }

    /// The grant.
    #[inline]
    pub(crate) fn grant(&self, known: &mut Reading) -> Result<GrantRef, Bad> {
        Ok(GrantRef {
            session: self.session(known)?,
            request: self.request(),
            grant: GrantNo(self.grant),
        })
    }
}

/// Reads a message that is a grant and nothing else.
pub(crate) fn grant(mut from: Reader<'_>, known: &mut Reading) -> Result<GrantRef, Bad> {
    let mut reference = Reference::default();
    while let Some((field, value)) = from.next()? {
        reference.take_grant(field, value)?;
    }
    reference.grant(known)
}

/// Writes a grant and a token.
pub(crate) fn put_grant_token(
    out: &mut Vec<u8>,
    known: &mut Writing,
    grant: &GrantRef,
    token: Token,
) {
    put_grant(out, known, grant);
    pb::fixed(out, 5, token.0);
}

/// Reads a grant and a token.
pub(crate) fn grant_token(
    mut from: Reader<'_>,
    known: &mut Reading,
) -> Result<(GrantRef, Token), Bad> {
    let (mut reference, mut token) = (Reference::default(), Token(0));
    while let Some((field, value)) = from.next()? {
        match field {
            5 => token = Token(value.fixed()?),
            _ => reference.take_grant(field, value)?,
        }
    }
    Ok((reference.grant(known)?, token))
}

/// Writes what is asked.
pub(crate) fn put_ask(out: &mut Vec<u8>, known: &mut Writing, ask: &Ask) {
    put_request(out, known, ask.session, ask.request);
    pb::bytes(out, 4, ask.name.bytes());
    match &ask.mode {
        Mode::Exclusive => {}
        Mode::Shared => pb::uint(out, 5, 1),
        Mode::Group(group) => {
            pb::uint(out, 5, 2);
            pb::bytes(out, 6, group);
        }
    }
    pb::fixed(out, 7, ask.priority.t);
    if known.client != Some(ask.priority.client) {
        pb::id(out, 8, ask.priority.client.0);
    }
    if ask.priority.request != ask.request {
        pb::uint_always(out, 9, ask.priority.request.0);
    }
    let bond = match ask.bond {
        Bond::Attached => 0,
        Bond::Detached => 1,
        Bond::Named => 2,
    };
    pb::uint(out, 10, bond);
}

/// Reads what is asked.
pub(crate) fn ask(mut from: Reader<'_>, known: &mut Reading) -> Result<Arc<Ask>, Bad> {
    let mut reference = Reference::default();
    let (mut name, mut mode, mut group): (&[u8], _, &[u8]) = (&[], 0, &[]);
    let (mut t, mut client, mut number, mut bond) = (0, None, None, 0);
    while let Some((field, value)) = from.next()? {
        match field {
            4 => name = value.bytes(TEXT_MAX)?,
            5 => mode = value.uint()?,
            6 => group = value.bytes(TEXT_MAX)?,
            7 => t = value.fixed()?,
            8 => client = Some(ClientId(value.id()?)),
            9 => number = Some(RequestNo(value.uint()?)),
            10 => bond = value.uint()?,
            _ => reference.take(field, value)?,
        }
    }
    let request = reference.request();
    Ok(Arc::new(Ask {
        name: Name::new(name),
        mode: match mode {
            0 => Mode::Exclusive,
            1 => Mode::Shared,
            2 => Mode::group(group),
            _ => return Err(Bad("an unknown mode")),
        },
        session: reference.session(known)?,
        request,
        priority: Priority {
            t,
            client: client
                .or(known.client)
                .ok_or(Bad("a priority has no client"))?,
            request: number.unwrap_or(request),
        },
        bond: match bond {
            0 => Bond::Attached,
            1 => Bond::Detached,
            2 => Bond::Named,
            _ => return Err(Bad("an unknown bond")),
        },
    }))
}

/// What was asked, which every message that has it must have.
pub(crate) fn given(ask: Option<Arc<Ask>>) -> Result<Arc<Ask>, Bad> {
    ask.ok_or(Bad("what is asked is missing"))
}

/// Writes a session as its client announces it.
pub(crate) fn put_session_info(out: &mut Vec<u8>, known: &mut Writing, info: &SessionInfo) {
    known.session(out, info.session);
    pb::span(out, 3, info.ttl);
    pb::flag(out, 4, info.detached);
    pb::bytes(out, 5, info.owner.as_bytes());
    pb::bytes(out, 6, info.principal.as_bytes());
}

/// Reads a session as its client announces it.
pub(crate) fn session_info(mut from: Reader<'_>, known: &mut Reading) -> Result<SessionInfo, Bad> {
    let mut reference = Reference::default();
    let (mut ttl, mut detached) = (Duration::ZERO, false);
    let (mut owner, mut principal) = ("", Arc::default());
    while let Some((field, value)) = from.next()? {
        match field {
            3 => ttl = value.span()?,
            4 => detached = value.flag()?,
            5 => owner = value.text(TEXT_MAX)?,
            6 => principal = value.text(TEXT_MAX)?.into(),
            _ => reference.take(field, value)?,
        }
    }
    Ok(SessionInfo {
        session: reference.session(known)?,
        ttl,
        detached,
        owner: owner.into(),
        principal,
    })
}

/// Writes a configuration.
pub(crate) fn put_config(out: &mut Vec<u8>, config: &ConfigId) {
    pb::uint(out, 1, config.epoch);
    pb::bytes(out, 2, &config.digest);
}

/// Reads a configuration.
pub(crate) fn config(mut from: Reader<'_>) -> Result<ConfigId, Bad> {
    let mut config = ConfigId::default();
    while let Some((field, value)) = from.next()? {
        match field {
            1 => config.epoch = value.uint()?,
            2 => config.digest = value.sixteen()?,
            _ => {}
        }
    }
    Ok(config)
}

/// Writes a carried grant.
pub(crate) fn put_carried(out: &mut Vec<u8>, carried: &Carried) {
    pb::uint(out, 1, u64::from(carried.node.0));
    pb::fixed(out, 2, carried.incarnation.0);
    pb::uint(out, 3, carried.grant.0);
    pb::fixed(out, 4, carried.floor.0);
    pb::fixed(out, 5, carried.limit.0);
}

/// Reads a carried grant.
pub(crate) fn carried(mut from: Reader<'_>) -> Result<Carried, Bad> {
    let mut carried = Carried {
        node: NodeId(0),
        incarnation: Incarnation(0),
        grant: GrantNo(0),
        floor: Token(0),
        limit: Token(0),
    };
    while let Some((field, value)) = from.next()? {
        match field {
            1 => carried.node = node(value)?,
            2 => carried.incarnation = Incarnation(value.fixed()?),
            3 => carried.grant = GrantNo(value.uint()?),
            4 => carried.floor = Token(value.fixed()?),
            5 => carried.limit = Token(value.fixed()?),
            _ => {}
        }
    }
    Ok(carried)
}

/// Writes a refusal.
pub(crate) fn put_refusal(out: &mut Vec<u8>, refusal: &Refusal) {
    let code = match refusal {
        Refusal::QueueFull => 1,
        Refusal::SessionLimit => 2,
        Refusal::RequestLimit => 3,
        Refusal::LockLimit => 4,
        Refusal::ClientLimit => 5,
        Refusal::StaleConfig { .. } => 6,
        Refusal::OldConnection => 7,
        Refusal::PriorityAhead { .. } => 8,
        Refusal::TokenAhead { .. } => 9,
        Refusal::TokenAboveLimit => 10,
        Refusal::TtlTooLong { .. } => 11,
        Refusal::TtlTooShort { .. } => 12,
        Refusal::Size => 13,
        Refusal::Finished => 14,
        Refusal::NoHandles => 15,
        Refusal::Unfit => 16,
        Refusal::NotPermitted => 17,
        Refusal::Revoked => 18,
        Refusal::WatchLimit => 19,
    };
    pb::uint(out, 1, code);
    match refusal {
        Refusal::StaleConfig { node } => pb::message(out, 2, |out| put_config(out, node)),
        Refusal::PriorityAhead { clock } | Refusal::TokenAhead { clock } => {
            pb::fixed(out, 3, clock.0);
        }
        Refusal::TtlTooLong { max: span } | Refusal::TtlTooShort { min: span } => {
            pb::span(out, 4, *span);
        }
        _ => {}
    }
}

/// Reads a refusal.
pub(crate) fn refusal(mut from: Reader<'_>) -> Result<Refusal, Bad> {
    let (mut code, mut node) = (0, ConfigId::default());
    let (mut clock, mut span) = (Wall(0), Duration::ZERO);
    while let Some((field, value)) = from.next()? {
        match field {
            1 => code = value.uint()?,
            2 => node = config(value.message()?)?,
            3 => clock = Wall(value.fixed()?),
            4 => span = value.span()?,
            _ => {}
        }
    }
    Ok(match code {
        1 => Refusal::QueueFull,
        2 => Refusal::SessionLimit,
        3 => Refusal::RequestLimit,
        4 => Refusal::LockLimit,
        5 => Refusal::ClientLimit,
        6 => Refusal::StaleConfig { node },
        7 => Refusal::OldConnection,
        8 => Refusal::PriorityAhead { clock },
        9 => Refusal::TokenAhead { clock },
        10 => Refusal::TokenAboveLimit,
        11 => Refusal::TtlTooLong { max: span },
        12 => Refusal::TtlTooShort { min: span },
        13 => Refusal::Size,
        14 => Refusal::Finished,
        15 => Refusal::NoHandles,
        16 => Refusal::Unfit,
        17 => Refusal::NotPermitted,
        18 => Refusal::Revoked,
        19 => Refusal::WatchLimit,
        _ => return Err(Bad("an unknown refusal")),
    })
}
