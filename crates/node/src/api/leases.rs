//! Leases over HTTP. Names are as those of locks.
//!
//! | request | means |
//! |---|---|
//! | `POST /v1/leases/a/b/acquire` | take lease `a/b` |
//! | `POST /v1/leases/renew` | extend a lease by its handle |
//! | `POST /v1/leases/release` | give a lease back by its handle |

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Method, Request};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;

use super::App;
use super::admit::Caller;
use super::errors::Failure;
use super::keepers::LeaseAnswer;
use super::locks::{HandleBody, read, refuse};
use super::path::{check, decode};

/// What the path of a lease begins with.
const LEASES: &str = "/v1/leases/";

/// The body of a request for a lease.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LeaseBody {
    for_ms: Option<u64>,
    wait_ms: Option<u64>,
}

/// Everything under `/v1/leases/`.
pub(crate) async fn leases(State(app): State<Arc<App>>, request: Request<Body>) -> Response {
    let result = call(&app, request).await;
    result.unwrap_or_else(|failure| refuse(&app, failure))
}

async fn call(app: &Arc<App>, request: Request<Body>) -> Result<Response, Failure> {
    let (parts, body) = request.into_parts();
    if parts.method != Method::POST {
        return Err(Failure::WrongMethod);
    }
    let caller = Caller::of(&parts.extensions)?;
    let path = parts.uri.path().strip_prefix(LEASES);
    let path = path.ok_or(Failure::NotFound)?;
    if path == "renew" {
        let body: HandleBody = read(app, body, false).await?;
        let answer = app.renew_lease(&caller, body.handle()).await?;
        return Ok(told(&answer));
    }
    if path == "release" {
        let body: HandleBody = read(app, body, false).await?;
        app.release_lease(&caller, body.handle())?;
        return Ok(Json(json!({ "released": true })).into_response());
    }
    let raw = path.strip_suffix("/acquire").ok_or(Failure::NotFound)?;
    let name = check(decode(raw)?, app.config.limits.name_bytes)?;
    let body: LeaseBody = read(app, body, true).await?;
    let span = body.for_ms.map(Duration::from_millis);
    let wait = body.wait_ms.map(Duration::from_millis);
    let answer = app.take_lease(&caller, &name, span, wait).await?;
    Ok(told(&answer))
}

fn told(answer: &LeaseAnswer) -> Response {
    Json(json!({
        "handle": answer.handle,
        "token": answer.token,
        "valid_ms": answer.valid_ms,
        "attempts": answer.attempts,
    }))
    .into_response()
}
