//! Records of a node's store as bytes, each with its own checksum.
//!
//! A record is a version byte, the first 8 bytes of the BLAKE3 hash of everything else, and a
//! protobuf message. It has no length of its own: the store keeps records apart.

use std::sync::Arc;

use conclave_protocol::Wall;
use conclave_protocol::id::{ClientId, GrantNo, Incarnation, RequestNo, SessionId, Token};
use conclave_protocol::lock::{
    ConfigId, Record, Snapshot, StoredConfig, StoredGrant, StoredRevocation,
};

use crate::codec::WireError;
use crate::dictionary::{Reading, Writing};
use crate::levels;
use crate::parts::{TEXT_MAX, ask, given, put_ask, put_session_info, session_info};
use crate::pb::{self, Bad, Reader};

/// The version of the records that this build writes.
pub const VERSION: u8 = 1;

const CHECKSUM: usize = 8;

/// The most bytes of a cluster file that is kept.
pub const CONFIG_BYTES: usize = 8 << 20;

/// A record as bytes.
pub fn encode(record: &Record) -> Vec<u8> {
    seal(|out| put(out, record))
}

/// The record that these bytes are.
pub fn decode(bytes: &[u8]) -> Result<Record, WireError> {
    Ok(record(Reader::new(unseal(bytes)?))?)
}

/// Version and checksum before what `put` writes.
pub(crate) fn seal(put: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    out.push(VERSION);
    out.extend_from_slice(&[0; CHECKSUM]);
    put(&mut out);
    let sum = checksum(VERSION, &out[1 + CHECKSUM..]);
    out[1..=CHECKSUM].copy_from_slice(&sum);
    out
}

/// What stands behind version and checksum, if they are right.
pub(crate) fn unseal(bytes: &[u8]) -> Result<&[u8], WireError> {
    let Some((&version, rest)) = bytes.split_first() else {
        return Err(Bad("a record is empty").into());
    };
    let Some((sum, body)) = rest.split_first_chunk::<CHECKSUM>() else {
        return Err(Bad("a record is cut short").into());
    };
    if *sum != checksum(version, body) {
        return Err(Bad("a record's checksum is wrong").into());
    }
    if version != VERSION {
        return Err(Bad("a record was written by another version").into());
    }
    Ok(body)
}

fn checksum(version: u8, body: &[u8]) -> [u8; CHECKSUM] {
    let mut hash = blake3::Hasher::new();
    hash.update(&[version]);
    hash.update(body);
    let mut sum = [0; CHECKSUM];
    hash.finalize_xof().fill(&mut sum);
    sum
}

fn put(out: &mut Vec<u8>, record: &Record) {
    let mut plain = Writing::plain();
    match record {
        Record::Incarnation(incarnation) => pb::fixed_always(out, 1, incarnation.0),
        Record::Ceiling { ceiling, clock } => {
            pb::fixed_always(out, 2, ceiling.0);
            pb::fixed(out, 10, clock.0);
        }
        Record::LongestTtl(ttl) => pb::uint_always(out, 3, pb::nanos(*ttl)),
        Record::DefaultFloor(floor) => pb::fixed_always(out, 4, floor.0),
        Record::Clean(snapshot) => pb::message(out, 5, |out| {
            pb::fixed(out, 1, snapshot.floor.0);
            pb::uint(out, 2, snapshot.grant.0);
            for grant in &snapshot.grants {
                pb::message(out, 3, |out| put_stored(out, &mut plain, grant));
            }
        }),
        Record::Unclean => pb::message(out, 6, |_| {}),
        Record::Grant(grant) => pb::message(out, 7, |out| put_stored(out, &mut plain, grant)),
        Record::GrantEnded(session, request) => pb::message(out, 8, |out| {
            pb::id(out, 1, session.0);
            pb::uint(out, 2, request.0);
        }),
        Record::Revoked(revocation) => pb::message(out, 11, |out| {
            pb::id(out, 1, revocation.session.0);
            pb::bytes(out, 2, revocation.by.as_bytes());
            pb::flag(out, 3, revocation.known);
        }),
        Record::RevocationEnded(session) => pb::message(out, 12, |out| {
            pb::id(out, 1, session.0);
        }),
        Record::Level(record) => pb::message(out, 9, |out| levels::put_record(out, record)),
        Record::Config(config) => pb::message(out, 13, |out| put_config(out, config)),
        Record::Adopting(config) => pb::message(out, 14, |out| put_config(out, config)),
    }
}

fn put_config(out: &mut Vec<u8>, config: &StoredConfig) {
    pb::uint(out, 1, config.id.epoch);
    pb::bytes(out, 2, &config.id.digest);
    pb::bytes(out, 3, config.text.as_bytes());
    pb::uint(out, 4, u64::from(config.before));
}

fn config(mut from: Reader<'_>) -> Result<Box<StoredConfig>, Bad> {
    let (mut id, mut text, mut before) = (ConfigId::default(), "", 0);
    while let Some((field, value)) = from.next()? {
        match field {
            1 => id.epoch = value.uint()?,
            2 => id.digest = value.sixteen()?,
            3 => text = value.text(CONFIG_BYTES)?,
            4 => before = value.small()?,
            _ => {}
        }
    }
    Ok(Box::new(StoredConfig {
        id,
        text: text.into(),
        before,
    }))
}

fn record(mut from: Reader<'_>) -> Result<Record, Bad> {
    let mut plain = Reading::default();
    let (mut found, mut clock) = (None, Wall(0));
    while let Some((field, value)) = from.next()? {
        let record = match field {
            1 => Record::Incarnation(Incarnation(value.fixed()?)),
            2 => Record::Ceiling {
                ceiling: Token(value.fixed()?),
                clock: Wall(0),
            },
            3 => Record::LongestTtl(value.span()?),
            4 => Record::DefaultFloor(Token(value.fixed()?)),
            5 => Record::Clean(Box::new(snapshot(value.message()?, &mut plain)?)),
            6 => Record::Unclean,
            7 => Record::Grant(Box::new(stored(value.message()?, &mut plain)?)),
            8 => grant_ended(value.message()?)?,
            9 => Record::Level(Box::new(levels::record(value.message()?)?)),
            11 => Record::Revoked(Box::new(revocation(value.message()?)?)),
            12 => Record::RevocationEnded(revocation(value.message()?)?.session),
            10 => {
                clock = Wall(value.fixed()?);
                continue;
            }
            13 => Record::Config(config(value.message()?)?),
            14 => Record::Adopting(config(value.message()?)?),
            _ => continue,
        };
        if found.replace(record).is_some() {
            return Err(Bad("two records in one"));
        }
    }
    match found {
        Some(Record::Ceiling { ceiling, .. }) => Ok(Record::Ceiling { ceiling, clock }),
        Some(record) => Ok(record),
        // Unlike a message, a record that is not understood may not be passed over.
        None => Err(Bad(
            "an unknown kind of record; if a newer version wrote it, start that one",
        )),
    }
}

fn revocation(mut from: Reader<'_>) -> Result<StoredRevocation, Bad> {
    let (mut session, mut by, mut known) = (None, Arc::default(), false);
    while let Some((field, value)) = from.next()? {
        match field {
            1 => session = Some(SessionId(value.id()?)),
            2 => by = value.text(TEXT_MAX)?.into(),
            3 => known = value.flag()?,
            _ => {}
        }
    }
    let session = session.ok_or(Bad("a session is missing"))?;
    Ok(StoredRevocation { session, by, known })
}

fn put_stored(out: &mut Vec<u8>, plain: &mut Writing, grant: &StoredGrant) {
    pb::message(out, 1, |out| put_ask(out, plain, &grant.ask));
    pb::message(out, 2, |out| put_session_info(out, plain, &grant.session));
    pb::id(out, 3, grant.client.0);
    pb::uint(out, 4, grant.grant.0);
    pb::fixed(out, 5, grant.floor.0);
    pb::fixed(out, 6, grant.limit.0);
    pb::fixed(out, 7, grant.named.0);
    pb::flag(out, 8, grant.entered);
}

fn stored(mut from: Reader<'_>, plain: &mut Reading) -> Result<StoredGrant, Bad> {
    let (mut what, mut session, mut client) = (None, None, None);
    let (mut grant, mut floor, mut limit, mut named) = (0, 0, 0, 0);
    let mut entered = false;
    while let Some((field, value)) = from.next()? {
        match field {
            1 => what = Some(ask(value.message()?, plain)?),
            2 => session = Some(session_info(value.message()?, plain)?),
            3 => client = Some(ClientId(value.id()?)),
            4 => grant = value.uint()?,
            5 => floor = value.fixed()?,
            6 => limit = value.fixed()?,
            7 => named = value.fixed()?,
            8 => entered = value.flag()?,
            _ => {}
        }
    }
    Ok(StoredGrant {
        ask: given(what)?,
        session: session.ok_or(Bad("a grant has no session"))?,
        client: client.ok_or(Bad("a grant has no client"))?,
        grant: GrantNo(grant),
        floor: Token(floor),
        limit: Token(limit),
        named: Token(named),
        entered,
    })
}

fn snapshot(mut from: Reader<'_>, plain: &mut Reading) -> Result<Snapshot, Bad> {
    let mut snapshot = Snapshot::default();
    while let Some((field, value)) = from.next()? {
        match field {
            1 => snapshot.floor = Token(value.fixed()?),
            2 => snapshot.grant = GrantNo(value.uint()?),
            3 => snapshot.grants.push(stored(value.message()?, plain)?),
            _ => {}
        }
    }
    Ok(snapshot)
}

fn grant_ended(mut from: Reader<'_>) -> Result<Record, Bad> {
    let (mut session, mut request) = (None, 0);
    while let Some((field, value)) = from.next()? {
        match field {
            1 => session = Some(SessionId(value.id()?)),
            2 => request = value.uint()?,
            _ => {}
        }
    }
    let session = session.ok_or(Bad("a session is missing"))?;
    Ok(Record::GrantEnded(session, RequestNo(request)))
}
