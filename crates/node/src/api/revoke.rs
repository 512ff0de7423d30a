//! Revoking a session: every node renews it no more.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Request;
use axum::response::{IntoResponse, Response};
use conclave_protocol::id::{NodeId, SessionId};
use conclave_protocol::lock::Refusal;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::App;
use super::admit::Caller;
use super::errors::Failure;
use super::locks::{Query, refuse};
use super::openapi::{Either, Flag, Local};
use super::refusals::Posting;
use super::views::is_partial;
use crate::shard::{Revocation, Revoke};

/// What a node did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct RevokedAt {
    pub(crate) node: u32,
    /// `revoked`, `not_permitted` or `unreachable`.
    pub(crate) outcome: String,
    /// Whether the node knew the session; if not, it refuses it should it come.
    pub(crate) known: bool,
    /// How many grants the session has left there.
    pub(crate) grants: usize,
    /// How long they last if their holder does not leave.
    pub(crate) left_ms: u64,
    /// Why the node did not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) problem: Option<String>,
}

/// What all nodes did.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Revoked {
    pub(crate) session: String,
    pub(crate) force: bool,
    /// Whether so many nodes renew it no more that it can be held no longer.
    pub(crate) enough: bool,
    pub(crate) nodes: Vec<RevokedAt>,
}

/// The session of this id in hexadecimal digits.
pub(crate) fn session(text: &str) -> Result<SessionId, Failure> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let id = u128::from_str_radix(text, 16).ok().filter(|_| digits);
    let problem = "the id of a session has up to 32 hexadecimal digits; see /v1/sessions";
    id.map(SessionId)
        .ok_or_else(|| Failure::BadRequest(problem.to_owned()))
}

impl App {
    /// Revokes a session at this node.
    pub(crate) async fn revoke_here(
        &self,
        caller: &Caller,
        session: SessionId,
        force: bool,
    ) -> Result<RevokedAt, Failure> {
        let by = caller.principal().into();
        let told = self.shard.revoke(Revoke { session, by, force }).await;
        let told = told.ok_or_else(|| Failure::NotReady("stopped".to_owned()))?;
        let (outcome, known, grants, left) = match told {
            Revocation::NotPermitted => ("not_permitted", true, 0, std::time::Duration::ZERO),
            Revocation::Revoked {
                known,
                grants,
                left,
            } => ("revoked", known, grants, left),
        };
        Ok(RevokedAt {
            node: self.id,
            outcome: outcome.to_owned(),
            known,
            grants,
            left_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
            problem: None,
        })
    }

    /// Revokes a session at all nodes.
    pub(crate) async fn revoke(
        &self,
        caller: &Caller,
        session: SessionId,
        force: bool,
    ) -> Result<Revoked, Failure> {
        let path = format!("/v1/sessions/{session:x}/revoke?local=true&force={force}");
        let own = self.revoke_here(caller, session, force);
        let others = self.fetch.post_all::<RevokedAt>(&path, caller);
        let (own, others) = tokio::join!(own, others);
        let mut nodes = vec![own?];
        for (node, answer) in others {
            nodes.push(answer.unwrap_or_else(|problem| RevokedAt {
                node: node.0 + 1,
                outcome: "unreachable".to_owned(),
                known: false,
                grants: 0,
                left_ms: 0,
                problem: Some(problem),
            }));
        }
        nodes.sort_by_key(|one| one.node);
        let done = nodes.iter().filter(|one| one.outcome == "revoked");
        let done = done.map(|one| NodeId(one.node.saturating_sub(1)));
        let done: Vec<NodeId> = done.collect();
        if done.is_empty() && nodes.iter().any(|one| one.outcome == "not_permitted") {
            return Err(Failure::Refused(Refusal::NotPermitted));
        }
        Ok(Revoked {
            session: format!("{session:x}"),
            force,
            enough: !is_partial(&self.config.quorums, &done),
            nodes,
        })
    }
}

/// What all nodes did, or what this one did.
type Outcome = Either<Revoked, RevokedAt>;

/// Ends a session: nodes renew it no more.
///
/// With `force=true` they free at once what it holds, also if its holder still uses it. With
/// `local=true` only this node does.
#[utoipa::path(
    post,
    path = "/v1/sessions/{id}/revoke",
    params(
        ("id" = String, Path, pattern = "^[0-9A-Fa-f]{1,32}$",
            description = "As /v1/sessions shows it."),
        Local,
        ("force" = inline(Option<Flag>), Query,
            description = "Frees at once what the session holds."),
    ),
    responses(
        (status = 200, description = "What the nodes did.", body = inline(Outcome)),
        Posting,
    ),
)]
pub(crate) async fn revoke(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Response {
    let (parts, _) = request.into_parts();
    let done = async {
        let caller = Caller::of(&parts.extensions)?;
        let query = Query::read(&parts)?;
        query.only(&["local", "force"])?;
        let force = query.flag("force")?;
        // Bytes that are no text are no id either.
        let session = session(id.as_ref().map_or("", |Path(id)| id))?;
        if query.flag("local")? {
            let here = app.revoke_here(&caller, session, force).await?;
            return Ok(Json(here).into_response());
        }
        let all = app.revoke(&caller, session, force).await?;
        Ok(Json(all).into_response())
    };
    done.await.unwrap_or_else(|failure| refuse(&app, failure))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_named_as_it_is_shown() {
        assert_eq!(session("ff").unwrap(), SessionId(255));
        assert_eq!(format!("{:x}", session("abc").unwrap()), "abc");
        for wrong in ["", "+1", "xyz", "1 ", &"f".repeat(33)] {
            assert!(session(wrong).is_err(), "{wrong}");
        }
    }
}
