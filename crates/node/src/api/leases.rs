//! Leases over HTTP. Names are as those of locks.
//!
//! | request | means |
//! |---|---|
//! | `POST /v1/leases/a/b/acquire` | take lease `a/b` |
//! | `POST /v1/leases/renew` | extend a lease by its handle, at any node |
//! | `POST /v1/leases/release` | give a lease back by its handle, at any node |

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{Method, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use conclave_protocol::id::Name;
use serde::Deserialize;
use utoipa::ToSchema;

use super::App;
use super::admit::Caller;
use super::answer::{Leased, Released};
use super::deliver::Escort;
use super::errors::Failure;
use super::gateway::Taken;
use super::locks::{HandleBody, arrived, json as answered, read, refuse};
use super::openapi::LockName;
use super::path::{check, decode};
use super::refusals::{Holding, Missing, Posting, Taking};

/// What the path of a lease begins with.
const LEASES: &str = "/v1/leases/";

/// How a lease is asked for.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = LeaseRequest, example = json!({ "for_ms": 5_000, "wait_ms": 30_000 }))]
pub(crate) struct LeaseBody {
    /// How long it lasts; 5000 if left out.
    #[schema(minimum = 1)]
    for_ms: Option<u64>,
    /// How long to wait; 30000 if left out, 600000 at the most, 0 tries once.
    wait_ms: Option<u64>,
}

/// What a request about leases asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Take a lease.
    Acquire(Name),
    /// Extend one by its handle.
    Renew,
    /// Give one back by its handle.
    Release,
}

/// What a POST to this raw path, after [`LEASES`], asks for.
pub(crate) fn call(path: &str, name_bytes: usize) -> Result<Call, Failure> {
    match path {
        "renew" => Ok(Call::Renew),
        "release" => Ok(Call::Release),
        _ => {
            let raw = path.strip_suffix("/acquire").ok_or(Failure::NotFound)?;
            Ok(Call::Acquire(check(decode(raw)?, name_bytes)?))
        }
    }
}

/// Everything under `/v1/leases/`.
pub(crate) async fn leases(State(app): State<Arc<App>>, request: Request<Body>) -> Response {
    let result = answer(&app, request).await;
    result.unwrap_or_else(|failure| refuse(&app, failure))
}

async fn answer(app: &Arc<App>, request: Request<Body>) -> Result<Response, Failure> {
    let (parts, body) = request.into_parts();
    if parts.method != Method::POST {
        return Err(Failure::WrongMethod { allow: "POST" });
    }
    let path = parts.uri.path().strip_prefix(LEASES);
    let path = path.ok_or(Failure::NotFound)?;
    match call(path, app.config.limits.name_bytes)? {
        Call::Acquire(name) => acquire_lease(app, &parts, body, &name).await,
        Call::Renew => renew_lease(app, &parts, body).await,
        Call::Release => release_lease(app, &parts, body).await,
    }
}

/// Takes a lease.
#[utoipa::path(
    post,
    path = "/v1/leases/{name}/acquire",
    params(LockName),
    request_body = LeaseBody,
    responses(
        (status = 200, description = "The lease is held.", body = Leased<'static>),
        Posting, Taking, Missing,
    ),
)]
pub(super) async fn acquire_lease(
    app: &Arc<App>,
    parts: &Parts,
    body: Body,
    name: &Name,
) -> Result<Response, Failure> {
    let caller = Caller::of(&parts.extensions)?;
    let body: LeaseBody = read(body, true).await?;
    let span = body.for_ms.map(Duration::from_millis);
    let wait = body.wait_ms.map(Duration::from_millis);
    let taken = app.take_lease(arrived(parts), &caller, name, span, wait);
    let Taken { answer, guard } = taken.await?;
    let mut response = answered(StatusCode::OK, answer.into_body());
    response.extensions_mut().insert(Escort::new(guard));
    Ok(response)
}

/// Extends a lease by its handle, at any node.
#[utoipa::path(
    post,
    path = "/v1/leases/renew",
    request_body = HandleBody,
    responses(
        (status = 200, description = "It is extended.", body = Leased<'static>),
        Posting, Holding,
    ),
)]
pub(super) async fn renew_lease(
    app: &Arc<App>,
    parts: &Parts,
    body: Body,
) -> Result<Response, Failure> {
    let caller = Caller::of(&parts.extensions)?;
    let body: HandleBody = read(body, false).await?;
    let arrived = arrived(parts);
    let answer = app.renew_lease(arrived, &caller, body.handle()).await?;
    Ok(answered(StatusCode::OK, answer.into_body()))
}

/// Gives a lease back by its handle, at any node.
#[utoipa::path(
    post,
    path = "/v1/leases/release",
    request_body = HandleBody,
    responses(
        (status = 200, description = "It is not held any more.", body = Released),
        Posting, Holding,
    ),
)]
pub(super) async fn release_lease(
    app: &Arc<App>,
    parts: &Parts,
    body: Body,
) -> Result<Response, Failure> {
    let caller = Caller::of(&parts.extensions)?;
    let body: HandleBody = read(body, false).await?;
    app.release_lease(&caller, body.handle()).await?;
    Ok(Json(Released::DONE).into_response())
}
