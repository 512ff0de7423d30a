//! A small HTTP client for the API of nodes: one request per connection, small answers.

use std::time::Duration;

use bytes::Bytes;
use conclave_client::Security;
use conclave_client::secure::http::send;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Method, Request, Uri};
use serde_json::Value;
use tokio::time::timeout;

use super::place::shown;

/// The largest answer that is read.
const BODY_MAX: usize = 16 * 1024 * 1024;

/// An answer of a node.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The HTTP status.
    pub(crate) status: u16,
    /// The body.
    pub(crate) body: Bytes,
}

impl Answer {
    /// The body as JSON.
    pub(crate) fn json(&self) -> Result<Value, String> {
        serde_json::from_slice(&self.body).map_err(|error| format!("not JSON: {error}"))
    }

    /// What went wrong, in the node's words.
    pub(crate) fn trouble(&self) -> String {
        let told = self.json().ok();
        let told = told
            .as_ref()
            .and_then(|body| body["error"]["message"].as_str());
        let told = told.map_or_else(
            || String::from_utf8_lossy(&self.body).into_owned(),
            str::to_owned,
        );
        format!("{}: {}", self.status, shown(&told))
    }
}

/// Asks for a resource.
pub(crate) async fn get(
    url: &str,
    security: &Security,
    patience: Duration,
) -> Result<Answer, String> {
    call(Method::GET, url, security, Bytes::new(), patience).await
}

/// Sends JSON.
pub(crate) async fn post(
    url: &str,
    security: &Security,
    body: &Value,
    patience: Duration,
) -> Result<Answer, String> {
    call(
        Method::POST,
        url,
        security,
        body.to_string().into(),
        patience,
    )
    .await
}

async fn call(
    method: Method,
    url: &str,
    security: &Security,
    body: Bytes,
    patience: Duration,
) -> Result<Answer, String> {
    let seconds = patience.as_secs_f64();
    timeout(patience, exchange(method, url, security, body))
        .await
        .unwrap_or_else(|_| Err(format!("no answer within {seconds} s")))
}

async fn exchange(
    method: Method,
    url: &str,
    security: &Security,
    body: Bytes,
) -> Result<Answer, String> {
    let url: Uri = url.parse().map_err(|_| "not a URL".to_owned())?;
    let request = Request::builder()
        .method(method)
        .header("content-type", "application/json")
        .body(Full::new(body))
        .map_err(|error| error.to_string())?;
    let answer = send(&url, security, request).await?;
    let status = answer.status().as_u16();
    let body = Limited::new(answer.into_body(), BODY_MAX).collect().await;
    let body = body.map_err(|error| error.to_string())?.to_bytes();
    Ok(Answer { status, body })
}
