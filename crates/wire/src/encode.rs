//! Messages of the lock protocol as the body of a frame.

use conclave_protocol::id::NodeId;
use conclave_protocol::lock::{
    Claim, Entered, Finished, Message, NotNow, Recovered, Resume, Travel,
};

use crate::dictionary::Writing;
use crate::parts::{
    put_ask, put_carried, put_config, put_grant, put_grant_token, put_refusal, put_request,
    put_session_info,
};
use crate::pb;
use crate::sight;

/// Appends a message.
#[inline]
pub(crate) fn put(out: &mut Vec<u8>, known: &mut Writing, message: &Message) {
    match message {
        Message::Request { ask, hint, inside } => pb::message(out, 1, |out| {
            pb::message(out, 1, |out| put_ask(out, known, ask));
            pb::fixed(out, 2, hint.0);
            pb::flag(out, 3, inside.is_some());
            put_nodes(out, 4, inside.as_deref().unwrap_or_default());
        }),
        Message::Locked {
            grant,
            floor,
            limit,
            incarnation,
            clock,
        } => pb::message(out, 2, |out| {
            put_grant(out, known, grant);
            pb::fixed(out, 5, floor.0);
            pb::fixed(out, 6, limit.0);
            pb::fixed(out, 7, incarnation.0);
            pb::fixed(out, 8, clock.0);
        }),
        Message::Done {
            session,
            request,
            token,
        } => {
            let done = Finished {
                session: *session,
                request: *request,
                token: *token,
            };
            pb::message(out, 3, |out| put_done(out, known, &done));
        }
        Message::Heartbeat { beat, entered } => pb::message(out, 4, |out| {
            pb::uint(out, 1, *beat);
            for entered in entered {
                pb::message(out, 2, |out| put_entered(out, known, entered));
            }
        }),
        Message::Beat { beat, clock, noted } => pb::message(out, 5, |out| {
            pb::uint(out, 1, *beat);
            pb::fixed(out, 2, clock.0);
            for grant in noted {
                pb::message(out, 3, |out| put_grant(out, known, grant));
            }
        }),
        other => put_rare(out, known, other),
    }
}

/// The kinds that are not sent for every lock.
fn put_rare(out: &mut Vec<u8>, known: &mut Writing, message: &Message) {
    match message {
        Message::Entered(entered) => pb::message(out, 6, |out| put_entered(out, known, entered)),
        Message::Noted(grant) => pb::message(out, 7, |out| put_grant(out, known, grant)),
        Message::Queued {
            session,
            request,
            position,
        } => pb::message(out, 8, |out| {
            put_request(out, known, *session, *request);
            pb::uint(out, 4, u64::from(*position));
        }),
        Message::Inquire(grant) => pb::message(out, 9, |out| put_grant(out, known, grant)),
        Message::Yield(grant) => pb::message(out, 10, |out| put_grant(out, known, grant)),
        Message::Raise { grant, token } => {
            pb::message(out, 11, |out| put_grant_token(out, known, grant, *token));
        }
        Message::Raised { grant, token } => {
            pb::message(out, 12, |out| put_grant_token(out, known, grant, *token));
        }
        Message::Keepalive { grant, token } => {
            pb::message(out, 13, |out| put_grant_token(out, known, grant, *token));
        }
        Message::Kept(grant) => pb::message(out, 14, |out| put_grant(out, known, grant)),
        Message::Dead { session, request } => pb::message(out, 15, |out| {
            known.session(out, *session);
            put_option(out, 3, request.map(|request| request.0));
        }),
        Message::Denied {
            session,
            request,
            why,
        } => pb::message(out, 22, |out| {
            known.session(out, *session);
            put_option(out, 3, request.map(|request| request.0));
            pb::message(out, 4, |out| put_refusal(out, why));
        }),
        Message::NotNow {
            session,
            request,
            why,
            retry,
        } => pb::message(out, 21, |out| {
            put_request(out, known, *session, *request);
            let why = match why {
                NotNow::Pausing => 1,
                NotNow::Draining => 2,
            };
            pb::uint(out, 4, why);
            pb::span(out, 5, *retry);
        }),
        Message::Finish {
            session,
            request,
            token,
        } => {
            let done = Finished {
                session: *session,
                request: *request,
                token: *token,
            };
            pb::message(out, 24, |out| put_done(out, known, &done));
        }
        other => put_seldom(out, known, other),
    }
}

/// The kinds of connections, of nodes among themselves and of the serial protocol.
fn put_seldom(out: &mut Vec<u8>, known: &mut Writing, message: &Message) {
    match message {
        Message::Hello {
            client,
            conn,
            config,
        } => {
            known.client = Some(*client);
            pb::message(out, 16, |out| {
                pb::id(out, 1, client.0);
                pb::uint(out, 2, conn.0);
                pb::message(out, 3, |out| put_config(out, config));
            });
        }
        Message::Welcome {
            node,
            incarnation,
            clock,
        } => pb::message(out, 17, |out| {
            pb::uint(out, 1, u64::from(node.0));
            pb::fixed(out, 2, incarnation.0);
            pb::fixed(out, 3, clock.0);
        }),
        Message::Resume(resume) => pb::message(out, 18, |out| put_resume(out, known, resume)),
        Message::Open(info) => pb::message(out, 19, |out| put_session_info(out, known, info)),
        Message::Refused(refusal) => pb::message(out, 20, |out| put_refusal(out, refusal)),
        Message::Recover { node, incarnation } => pb::message(out, 25, |out| {
            pb::uint(out, 1, u64::from(node.0));
            pb::fixed(out, 2, incarnation.0);
        }),
        Message::Recovered(recovered) => pb::message(out, 26, |out| put_recovered(out, recovered)),
        Message::Alive { node, incarnation } => pb::message(out, 27, |out| {
            pb::uint(out, 1, u64::from(node.0));
            pb::fixed(out, 2, incarnation.0);
        }),
        Message::TokenClock { clock, asks } => pb::message(out, 35, |out| {
            pb::fixed(out, 1, clock.0);
            pb::flag(out, 2, *asks);
        }),
        // Builds that do not know these kinds skip them: they must not give a session its number.
        Message::ConfirmGrant(ask) => pb::message(out, 36, |out| {
            let mut plain = Writing::plain();
            pb::message(out, 1, |out| put_ask(out, &mut plain, ask));
        }),
        Message::GrantConfirmed {
            session,
            request,
            granted,
        } => pb::message(out, 37, |out| {
            pb::id(out, 1, session.0);
            pb::uint(out, 2, request.0);
            put_option(out, 3, granted.map(u64::from));
        }),
        Message::Travel(travel) => pb::message(out, 28, |out| put_travel(out, known, travel)),
        Message::Carried {
            session,
            request,
            grants,
        } => pb::message(out, 29, |out| {
            put_request(out, known, *session, *request);
            for carried in grants {
                pb::message(out, 4, |out| put_carried(out, carried));
            }
        }),
        Message::Draining => pb::message(out, 23, |_| {}),
        // Builds that do not know this kind skip it: it must not give a session its number.
        Message::Revoked(session) => pb::message(out, 30, |out| pb::id(out, 2, session.0)),
        Message::Watch { watch, what } => {
            pb::message(out, 31, |out| sight::put_watch(out, *watch, what));
        }
        Message::Unwatch { watch } => pb::message(out, 32, |out| pb::uint(out, 1, watch.0)),
        Message::Seen { watch, sight } => {
            pb::message(out, 33, |out| sight::put_seen(out, *watch, sight));
        }
        Message::Watched(grant) => pb::message(out, 34, |out| sight::put_watched(out, grant)),
        // Written above; named here so that a new kind cannot be forgotten.
        Message::Request { .. }
        | Message::Locked { .. }
        | Message::Done { .. }
        | Message::Heartbeat { .. }
        | Message::Beat { .. }
        | Message::Entered(_)
        | Message::Noted(_)
        | Message::Queued { .. }
        | Message::Inquire(_)
        | Message::Yield(_)
        | Message::Raise { .. }
        | Message::Raised { .. }
        | Message::Keepalive { .. }
        | Message::Kept(_)
        | Message::Dead { .. }
        | Message::Denied { .. }
        | Message::NotNow { .. }
        | Message::Finish { .. } => {}
    }
}

fn put_option(out: &mut Vec<u8>, field: u32, value: Option<u64>) {
    if let Some(value) = value {
        pb::uint_always(out, field, value);
    }
}

/// Writes a list of nodes, packed.
fn put_nodes(out: &mut Vec<u8>, field: u32, nodes: &[NodeId]) {
    if !nodes.is_empty() {
        pb::message(out, field, |out| {
            for node in nodes {
                pb::varint(out, u64::from(node.0));
            }
        });
    }
}

fn put_done(out: &mut Vec<u8>, known: &mut Writing, done: &Finished) {
    put_request(out, known, done.session, done.request);
    if let Some(token) = done.token {
        pb::fixed_always(out, 4, token.0);
    }
}

fn put_entered(out: &mut Vec<u8>, known: &mut Writing, entered: &Entered) {
    put_grant_token(out, known, &entered.grant, entered.token);
    if let Some(note) = &entered.note {
        pb::bytes_always(out, 6, note);
    }
    pb::uint(out, 7, u64::from(entered.edition));
}

fn put_resume(out: &mut Vec<u8>, known: &mut Writing, resume: &Resume) {
    for info in &resume.sessions {
        pb::message(out, 1, |out| put_session_info(out, known, info));
    }
    for claim in &resume.live {
        pb::message(out, 2, |out| put_claim(out, known, claim));
    }
    for done in &resume.done {
        pb::message(out, 3, |out| put_done(out, known, done));
    }
    pb::flag(out, 4, resume.last);
}

fn put_claim(out: &mut Vec<u8>, known: &mut Writing, claim: &Claim) {
    pb::message(out, 1, |out| put_ask(out, known, &claim.ask));
    pb::fixed(out, 2, claim.hint.0);
    pb::uint(out, 3, claim.seen.0);
    pb::flag(out, 4, claim.holding);
    for (field, token) in [(5, claim.inside), (6, claim.raising)] {
        if let Some(token) = token {
            pb::fixed_always(out, field, token.0);
        }
    }
    pb::flag(out, 7, claim.fresh);
    put_nodes(out, 8, &claim.members);
}

fn put_recovered(out: &mut Vec<u8>, recovered: &Recovered) {
    pb::uint(out, 1, u64::from(recovered.node.0));
    pb::flag(out, 2, recovered.recovering);
    pb::flag(out, 3, recovered.served);
    pb::fixed(out, 4, recovered.floor.0);
    pb::fixed(out, 5, recovered.limit.0);
    pb::fixed(out, 6, recovered.incarnation.0);
    pb::fixed(out, 7, recovered.clock.0);
}

fn put_travel(out: &mut Vec<u8>, known: &mut Writing, travel: &Travel) {
    pb::message(out, 1, |out| put_ask(out, known, &travel.ask));
    pb::fixed(out, 2, travel.hint.0);
    put_nodes(out, 3, &travel.route);
    for carried in &travel.grants {
        pb::message(out, 4, |out| put_carried(out, carried));
    }
}
