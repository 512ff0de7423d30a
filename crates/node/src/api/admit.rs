//! Who calls the API. One layer in front of all paths decides; behind it every call has a
//! [`Caller`].

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Extensions, HeaderMap, HeaderValue, Request, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use conclave_client::secure::{Identity, Secret};
use conclave_protocol::id::Name;
use conclave_protocol::lock::{Action, Refusal};

use super::App;
use super::errors::Failure;
use crate::access::{NOBODY, is_principal};

/// By this header a node that asks another says in whose name. Only nodes are believed.
pub(crate) const IN_THE_NAME_OF: &str = "conclave-principal";

/// Paths that tell nothing about locks and are there for everyone.
const PUBLIC: [&str; 4] = ["/", "/healthz", "/readyz", "/v1/openapi.json"];

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    principal: Arc<str>,
    /// Whether a node asks for itself: it may see everything.
    node: bool,
    /// The token by which it showed who it is.
    bearer: Option<Secret>,
}

impl Caller {
    /// Somebody who did not have to say who they are.
    fn nobody() -> Self {
        Self {
            principal: NOBODY.into(),
            node: false,
            bearer: None,
        }
    }

    /// This node, looking for itself.
    pub(crate) fn itself() -> Self {
        Self {
            principal: NOBODY.into(),
            node: true,
            bearer: None,
        }
    }

    /// The token by which it showed who it is.
    pub(crate) fn bearer(&self) -> Option<&Secret> {
        self.bearer.as_ref()
    }

    /// Whether it is a node that asks for itself.
    pub(crate) fn is_node(&self) -> bool {
        self.node
    }

    /// Whose handles it may use.
    pub(crate) fn principal(&self) -> &str {
        &self.principal
    }

    /// In whose name nodes are asked; empty if nobody has to say.
    pub(crate) fn told(&self) -> Arc<str> {
        if *self.principal == *NOBODY {
            return Arc::default();
        }
        self.principal.clone()
    }

    /// Who reads; none if it may see everything.
    pub(crate) fn reader(&self) -> Option<&Arc<str>> {
        (!self.node).then_some(&self.principal)
    }

    /// The header that tells another node in whose name this one asks.
    pub(crate) fn header(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(self.reader()?).ok()
    }

    /// The caller of a request that came through [`admit`].
    pub(crate) fn of(extensions: &Extensions) -> Result<Self, Failure> {
        let caller = extensions.get::<Self>().cloned();
        caller.ok_or(Failure::Unauthenticated)
    }
}

/// Finds out who calls, or refuses the call.
pub(crate) async fn admit(
    State(app): State<Arc<App>>,
    mut request: Request<Body>,
    next: Next,
) -> Response {
    let found = app.caller(request.headers(), request.extensions());
    let public = PUBLIC.contains(&request.uri().path());
    let caller = match found {
        Ok(caller) => caller,
        Err(_) if public => Caller::nobody(),
        Err(failure) => {
            app.count_failure(&failure);
            app.note_refusal("", None, failure.code(), request.extensions());
            let kind = request.headers().get(header::CONTENT_TYPE);
            if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
                return tonic::Status::from(failure).into_http();
            }
            return failure.into_response();
        }
    };
    request.extensions_mut().insert(caller);
    next.run(request).await
}

impl App {
    fn caller(&self, headers: &HeaderMap, extensions: &Extensions) -> Result<Caller, Failure> {
        let identity = extensions.get::<Option<Identity>>();
        let identity = identity.and_then(Option::as_ref);
        let shown = headers
            .get(header::AUTHORIZATION)
            .map(HeaderValue::as_bytes);
        let bearer = shown.and_then(bearer);
        if shown.is_some() && bearer.is_none() && !self.gate.is_open() {
            return Err(Failure::Unauthenticated);
        }
        let who = self.gate.who(identity, bearer);
        let who = who.map_err(|_| Failure::Unauthenticated)?;
        let Some(who) = who else {
            return Ok(Caller::nobody());
        };
        if !who.gateway {
            return Ok(Caller {
                principal: who.principal,
                node: false,
                bearer: bearer
                    .and_then(|token| std::str::from_utf8(token).ok())
                    .map(Secret::new),
            });
        }
        let Some(name) = headers.get(IN_THE_NAME_OF) else {
            return Ok(Caller {
                principal: who.principal,
                node: true,
                bearer: None,
            });
        };
        let name = name.to_str().ok();
        let name = name.filter(|name| is_principal(name) || *name == NOBODY);
        name.map_or(Err(Failure::Unauthenticated), |name| {
            Ok(Caller {
                principal: name.into(),
                node: false,
                bearer: None,
            })
        })
    }

    /// Whether the caller may do this with a lock; each node that is asked looks for itself.
    pub(crate) fn permit(
        &self,
        caller: &Caller,
        action: Action,
        name: &Name,
    ) -> Result<(), Failure> {
        if self.may(caller, action, name) {
            return Ok(());
        }
        self.meters.refused("not_permitted");
        if let Some(audit) = &self.audit {
            audit.refused(&caller.principal, Some(name), "not_permitted", "api");
        }
        Err(Failure::Refused(Refusal::NotPermitted))
    }

    /// The same, for leaving out what the caller may not see.
    pub(crate) fn may(&self, caller: &Caller, action: Action, name: &Name) -> bool {
        let rules = self.gate.rules();
        caller.node || rules.may(&caller.principal, action, name.bytes())
    }

    /// Notes a call that was refused.
    pub(crate) fn note_refusal(
        &self,
        principal: &str,
        name: Option<&Name>,
        reason: &str,
        extensions: &Extensions,
    ) {
        if let Some(audit) = &self.audit {
            let from = extensions.get::<SocketAddr>().map(ToString::to_string);
            audit.refused(principal, name, reason, &from.unwrap_or_default());
        }
    }
}

/// The token of an `Authorization` header.
fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = header.split_at_checked(7)?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bearer_token_is_one() {
        assert_eq!(bearer(b"Bearer abc"), Some(&b"abc"[..]));
        assert_eq!(bearer(b"bearer  abc "), Some(&b"abc"[..]));
        for other in [&b""[..], b"Bearer", b"Bearer ", b"Basic YTpi", b"Bearerabc"] {
            assert_eq!(bearer(other), None);
        }
    }
}
