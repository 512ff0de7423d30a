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
use crate::access::{NOBODY, TokenHash, is_principal};
use crate::who::account_of;

/// By this header a node that asks another says in whose name. Only nodes are believed.
pub(crate) const IN_THE_NAME_OF: &str = "conclave-principal";

/// Paths that tell nothing about locks and are there for everyone.
const PUBLIC: [&str; 4] = ["/", "/healthz", "/readyz", "/v1/openapi.json"];

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    principal: Arc<str>,
    /// What it takes is charged to this: its principal, or its address if nobody has to say.
    account: Arc<str>,
    /// Whether a node asks for itself: it may see everything.
    node: bool,
    /// The token by which it showed who it is.
    bearer: Option<Secret>,
}

impl Caller {
    /// Somebody who did not have to say who they are.
    fn nobody(extensions: &Extensions) -> Self {
        let address = extensions.get::<SocketAddr>();
        let account = address.map(|address| account_of(address.ip()));
        Self {
            principal: NOBODY.into(),
            account: account.unwrap_or_else(|| NOBODY.into()),
            node: false,
            bearer: None,
        }
    }

    /// Somebody who has shown who they are.
    fn known(principal: Arc<str>, node: bool, bearer: Option<Secret>) -> Self {
        Self {
            account: principal.clone(),
            principal,
            node,
            bearer,
        }
    }

    /// This node, looking for itself.
    pub(crate) fn itself() -> Self {
        Self::known(NOBODY.into(), true, None)
    }

    /// Whom what it takes is charged to.
    pub(crate) fn account(&self) -> &Arc<str> {
        &self.account
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

    /// In whose name nodes are asked; its address if nobody has to say.
    pub(crate) fn told(&self) -> Arc<str> {
        if *self.account == *NOBODY {
            return Arc::default();
        }
        self.account.clone()
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
    match app.admitted(&request) {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(failure) => {
            app.count_failure(&failure);
            app.note_refusal("", None, failure.code(), request.extensions());
            let kind = request.headers().get(header::CONTENT_TYPE);
            if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
                return tonic::Status::from(failure).into_http();
            }
            failure.into_response()
        }
    }
}

impl App {
    /// Who calls, if the call is not one that a page of another site had a browser make.
    fn admitted(&self, request: &Request<Body>) -> Result<Caller, Failure> {
        self.origins.check(request)?;
        let public = PUBLIC.contains(&request.uri().path());
        let caller = match self.caller(request.headers(), request.extensions()) {
            Err(_) if public => Caller::nobody(request.extensions()),
            found => found?,
        };
        let unknown = caller.principal() == NOBODY && !caller.is_node();
        if self.gate.is_open() && unknown {
            self.origins.check_host(request)?;
        }
        Ok(caller)
    }

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
            return Ok(Caller::nobody(extensions));
        };
        if !who.gateway {
            let bearer = bearer.and_then(|token| std::str::from_utf8(token).ok());
            return Ok(Caller::known(who.principal, false, bearer.map(Secret::new)));
        }
        let Some(name) = headers.get(IN_THE_NAME_OF) else {
            return Ok(Caller::known(who.principal, true, None));
        };
        let name = name.to_str().ok();
        let name = name.filter(|name| is_principal(name) || *name == NOBODY);
        name.map_or(Err(Failure::Unauthenticated), |name| {
            Ok(Caller::known(name.into(), false, None))
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

    /// Whether the caller still is who it was when it called: its token counts.
    pub(crate) fn recognises(&self, caller: &Caller) -> Result<(), Failure> {
        let counts = caller.bearer.as_ref().is_none_or(|token| {
            let token = TokenHash::of(token.reveal().as_bytes());
            self.gate.is_open() || self.gate.counts(&token, &caller.principal)
        });
        counts.then_some(()).ok_or(Failure::Unauthenticated)
    }

    /// Notes a call that was refused.
    pub(crate) fn note_refusal(
        &self,
        principal: &str,
        name: Option<&Name>,
        reason: &'static str,
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
