//! What watchers and nodes say to each other, as bodies of frames.
//!
//! Sessions are told by their ids: whoever watches hears of many sessions that are not its own,
//! and must not crowd the numbers of those that are.

use std::sync::Arc;

use conclave_protocol::Wall;
use conclave_protocol::id::{GrantNo, Name, RequestNo, SessionId, Token, WatchNo};
use conclave_protocol::lock::{GrantRef, Group, Holder, Message, Refusal, Report, Sight, Watch};

use crate::parts::{TEXT_MAX, push, put_refusal, refusal};
use crate::pb::{self, Bad, Reader};

/// The most holders that a report may name.
const HOLDERS_MAX: usize = 1024;

/// Appends the body of a watch.
pub(crate) fn put_watch(out: &mut Vec<u8>, watch: WatchNo, what: &Watch) {
    pb::uint(out, 1, watch.0);
    pb::flag(out, 2, matches!(what, Watch::Prefix(_)));
    pb::bytes(out, 3, what.bytes());
}

/// Reads the body of a watch.
pub(crate) fn watch(mut from: Reader<'_>) -> Result<Message, Bad> {
    let (mut watch, mut prefix, mut bytes): (_, _, &[u8]) = (WatchNo(0), false, &[]);
    while let Some((field, value)) = from.next()? {
        match field {
            1 => watch = WatchNo(value.uint()?),
            2 => prefix = value.flag()?,
            3 => bytes = value.bytes(TEXT_MAX)?,
            _ => {}
        }
    }
    let what = if prefix {
        Watch::Prefix(bytes.into())
    } else {
        Watch::Name(Name::new(bytes))
    };
    Ok(Message::Watch { watch, what })
}

/// Reads the body of an end of a watch.
pub(crate) fn unwatch(mut from: Reader<'_>) -> Result<Message, Bad> {
    let mut watch = WatchNo(0);
    while let Some((field, value)) = from.next()? {
        if field == 1 {
            watch = WatchNo(value.uint()?);
        }
    }
    Ok(Message::Unwatch { watch })
}

/// Appends the body of what a watch sees.
pub(crate) fn put_seen(out: &mut Vec<u8>, watch: WatchNo, sight: &Sight) {
    pb::uint(out, 1, watch.0);
    match sight {
        Sight::State(report) => {
            pb::bytes(out, 3, report.name.bytes());
            for holder in &report.holders {
                pb::message(out, 4, |out| put_holder(out, holder));
            }
            pb::uint(out, 5, u64::from(report.more));
            pb::uint(out, 6, u64::from(report.waiting));
        }
        Sight::Begin => pb::uint(out, 2, 1),
        Sight::Synced => pb::uint(out, 2, 2),
        Sight::Refused(why) => {
            pb::uint(out, 2, 3);
            pb::message(out, 7, |out| put_refusal(out, why));
        }
    }
}

/// Reads the body of what a watch sees.
pub(crate) fn seen(mut from: Reader<'_>) -> Result<Message, Bad> {
    let (mut watch, mut kind, mut name): (_, _, &[u8]) = (WatchNo(0), 0, &[]);
    let (mut holders, mut more, mut waiting) = (Vec::new(), 0, 0);
    let mut why: Option<Refusal> = None;
    while let Some((field, value)) = from.next()? {
        match field {
            1 => watch = WatchNo(value.uint()?),
            2 => kind = value.uint()?,
            3 => name = value.bytes(TEXT_MAX)?,
            4 => push(&mut holders, HOLDERS_MAX, holder(value.message()?)?)?,
            5 => more = value.small()?,
            6 => waiting = value.small()?,
            7 => why = Some(refusal(value.message()?)?),
            _ => {}
        }
    }
    let sight = match kind {
        0 => Sight::State(Report {
            name: Name::new(name),
            holders,
            more,
            waiting,
        }),
        1 => Sight::Begin,
        2 => Sight::Synced,
        3 => Sight::Refused(why.ok_or(Bad("a refusal is missing"))?),
        _ => return Err(Bad("an unknown kind of sight")),
    };
    let sight = Box::new(sight);
    Ok(Message::Seen { watch, sight })
}

fn put_holder(out: &mut Vec<u8>, holder: &Holder) {
    pb::id(out, 1, holder.session.0);
    pb::uint(out, 2, holder.request.0);
    match &holder.group {
        Group::Request(..) => {}
        Group::Session(_) => pb::uint(out, 3, 1),
        Group::Shared => pb::uint(out, 3, 2),
        Group::Named(name) => {
            pb::uint(out, 3, 3);
            pb::bytes(out, 4, name);
        }
    }
    pb::fixed(out, 5, holder.token.0);
    pb::fixed(out, 6, holder.asked.0);
    pb::bytes(out, 7, holder.owner.as_bytes());
    if let Some(note) = &holder.note {
        pb::bytes_always(out, 8, note);
    }
    pb::uint(out, 9, u64::from(holder.edition));
}

fn holder(mut from: Reader<'_>) -> Result<Holder, Bad> {
    let (mut session, mut request) = (None, RequestNo(0));
    let (mut kind, mut group): (_, &[u8]) = (0, &[]);
    let (mut token, mut asked, mut owner) = (Token(0), Wall(0), "");
    let (mut note, mut edition): (Option<Arc<[u8]>>, _) = (None, 0);
    while let Some((field, value)) = from.next()? {
        match field {
            1 => session = Some(SessionId(value.id()?)),
            2 => request = RequestNo(value.uint()?),
            3 => kind = value.uint()?,
            4 => group = value.bytes(TEXT_MAX)?,
            5 => token = Token(value.fixed()?),
            6 => asked = Wall(value.fixed()?),
            7 => owner = value.text(TEXT_MAX)?,
            8 => note = Some(value.bytes(TEXT_MAX)?.into()),
            9 => edition = value.small()?,
            _ => {}
        }
    }
    let session = session.ok_or(Bad("a holder without a session"))?;
    Ok(Holder {
        session,
        request,
        group: match kind {
            0 => Group::Request(session, request),
            1 => Group::Session(session),
            2 => Group::Shared,
            3 => Group::Named(group.into()),
            _ => return Err(Bad("an unknown kind of group")),
        },
        token,
        asked,
        owner: owner.into(),
        note,
        edition,
    })
}

/// Appends the body of a notice that a lock is watched.
pub(crate) fn put_watched(out: &mut Vec<u8>, grant: &GrantRef) {
    pb::id(out, 1, grant.session.0);
    pb::uint(out, 2, grant.request.0);
    pb::uint(out, 3, grant.grant.0);
}

/// Reads the body of a notice that a lock is watched.
pub(crate) fn watched(mut from: Reader<'_>) -> Result<Message, Bad> {
    let (mut session, mut request, mut grant) = (None, 0, 0);
    while let Some((field, value)) = from.next()? {
        match field {
            1 => session = Some(SessionId(value.id()?)),
            2 => request = value.uint()?,
            3 => grant = value.uint()?,
            _ => {}
        }
    }
    Ok(Message::Watched(GrantRef {
        session: session.ok_or(Bad("a grant without a session"))?,
        request: RequestNo(request),
        grant: GrantNo(grant),
    }))
}
