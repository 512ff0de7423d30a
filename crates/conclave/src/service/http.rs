//! A small HTTP client for the API of nodes: one request per connection, small answers.

use std::time::Duration;

use bytes::Bytes;
use conclave_client::secure::Security;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
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
pub(crate) async fn get(url: &str, patience: Duration) -> Result<Answer, String> {
    get_with(url, &Security::default(), patience).await
}

/// Asks for a resource, and shows who asks.
pub(crate) async fn get_with(
    url: &str,
    security: &Security,
    patience: Duration,
) -> Result<Answer, String> {
    call(Method::GET, url, Bytes::new(), security, patience).await
}

/// Sends JSON.
pub(crate) async fn post(url: &str, body: &Value, patience: Duration) -> Result<Answer, String> {
    post_with(url, body, &Security::default(), patience).await
}

/// Sends JSON, and shows who sends it.
pub(crate) async fn post_with(
    url: &str,
    body: &Value,
    security: &Security,
    patience: Duration,
) -> Result<Answer, String> {
    call(
        Method::POST,
        url,
        body.to_string().into(),
        security,
        patience,
    )
    .await
}

async fn call(
    method: Method,
    url: &str,
    body: Bytes,
    security: &Security,
    patience: Duration,
) -> Result<Answer, String> {
    let seconds = patience.as_secs_f64();
    timeout(patience, exchange(method, url, body, security))
        .await
        .unwrap_or_else(|_| Err(format!("no answer within {seconds} s")))
}

async fn exchange(
    method: Method,
    url: &str,
    body: Bytes,
    security: &Security,
) -> Result<Answer, String> {
    let uri: Uri = url.parse().map_err(|_| "not a URL".to_owned())?;
    if uri.scheme_str() != Some("http") {
        return Err("not an http:// URL".to_owned());
    }
    let host = uri.host().ok_or("a URL without a host")?;
    let port = uri.port_u16().unwrap_or(80);
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((bare, port)).await;
    let stream = stream.map_err(|error| error.to_string())?;
    let tell = |error: hyper::Error| error.to_string();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(tell)?;
    let connection = tokio::spawn(connection);
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::builder();
    if let Some(bearer) = security.bearer() {
        request = request.header("authorization", format!("Bearer {}", bearer.reveal()));
    }
    let request = request
        .method(method)
        .uri(path)
        .header("host", format!("{host}:{port}"))
        .header("content-type", "application/json")
        .body(Full::new(body))
        .map_err(|error| error.to_string())?;
    let answer = sender.send_request(request).await.map_err(tell)?;
    let status = answer.status().as_u16();
    let body = Limited::new(answer.into_body(), BODY_MAX).collect().await;
    let body = body.map_err(|error| error.to_string())?.to_bytes();
    connection.abort();
    Ok(Answer { status, body })
}
