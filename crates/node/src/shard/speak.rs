//! What the log says about locks, at the level `debug`: always with the node, and with the lock,
//! the session and the request that it is about.

use conclave_client::trace::{short, shown};
use conclave_protocol::id::NodeId;
use conclave_protocol::lock::{Ask, End, Message, NodeEvent};
use tracing::debug;

use super::grants::outcome;

/// One line about a request.
macro_rules! tell {
    ($node:expr, $ask:expr, $($rest:tt)*) => {{
        let ask: &Ask = $ask;
        debug!(
            node = %$node,
            lock = %shown(&ask.name),
            session = %short(ask.session),
            request = ask.request.0,
            $($rest)*
        );
    }};
}

/// Something happened to a request.
pub(super) fn event(node: NodeId, event: &NodeEvent) {
    match event {
        NodeEvent::Granted {
            ask,
            grant,
            inside: false,
            ..
        } => tell!(node, ask, mode = %ask.mode, grant = grant.0, "granted"),
        NodeEvent::Granted { ask, grant, .. } => {
            tell!(node, ask, mode = %ask.mode, grant = grant.0, "a holder moves here");
        }
        NodeEvent::Entered { ask, grant, token } => {
            tell!(node, ask, grant = grant.0, token = token.0, "entered");
        }
        NodeEvent::Reclaimed { ask, grant, token } => {
            tell!(
                node,
                ask,
                grant = grant.0,
                token = token.0,
                "taken over from an earlier life"
            );
        }
        NodeEvent::Ended {
            ask,
            grant,
            why: End::Done(token),
        } => tell!(node, ask, grant = grant.0, token = token.0, "released"),
        NodeEvent::Ended { ask, grant, why } => {
            tell!(node, ask, grant = grant.0, why = outcome(*why), "ended");
        }
        NodeEvent::Refused(why) => debug!(%node, %why, "refused"),
        NodeEvent::Barred {
            principal,
            session,
            name,
            why,
        } => {
            let lock = name.as_ref().map(|name| shown(name).to_string());
            debug!(%node, %principal, session = %short(*session), lock, %why, "barred");
        }
        NodeEvent::Want {
            name, wish, mode, ..
        } => debug!(%node, lock = %shown(name), wish, %mode, "wants consent"),
        NodeEvent::Leave { name, wish, used } => {
            debug!(%node, lock = %shown(name), wish, used = used.0, "leaves consent");
        }
        NodeEvent::Close(_) | NodeEvent::Serving | NodeEvent::CannotRecover => {}
    }
}

/// Something is said to a client. Of what is refused nothing is kept: these lines name the
/// request, and the line of its arrival the lock.
pub(super) fn said(node: NodeId, message: &Message) {
    match message {
        Message::Queued {
            session,
            request,
            position,
        } => {
            let session = short(*session);
            debug!(%node, %session, request = request.0, position, "queued");
        }
        Message::Denied {
            session,
            request,
            why,
        } => {
            let session = short(*session);
            debug!(%node, %session, request = request.map(|it| it.0), %why, "request refused");
        }
        Message::NotNow {
            session,
            request,
            why,
            ..
        } => {
            let session = short(*session);
            debug!(%node, %session, request = request.0, ?why, "request refused for now");
        }
        Message::Inquire(grant) => {
            let session = short(grant.session);
            let request = grant.request.0;
            debug!(%node, %session, request, grant = grant.grant.0, "asked back");
        }
        _ => {}
    }
}

/// A request came.
pub(super) fn heard(node: NodeId, message: &Message) {
    match message {
        Message::Request { ask, .. } => tell!(node, &**ask, mode = %ask.mode, "asked"),
        Message::Travel(travel) => tell!(node, &*travel.ask, mode = %travel.ask.mode, "asked"),
        Message::Resume(resume) => {
            for claim in &resume.live {
                let (ask, grant) = (&claim.ask, claim.seen.0);
                tell!(node, &**ask, mode = %ask.mode, grant, "asked on a new connection");
            }
        }
        _ => {}
    }
}
