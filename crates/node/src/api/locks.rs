//! Locks over HTTP: acquire, keepalive, release, show and list.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use conclave_client::clock;
use conclave_client::trace::Caller as Traced;
use conclave_protocol::Instant;
use conclave_protocol::id::Name;
use conclave_protocol::lock::{Action, Mode, Watch};
use futures_util::StreamExt;
use futures_util::stream::{self, Stream};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::App;
use super::admit::Caller;
use super::deliver::{Arrived, Deliveries, Escort};
use super::errors::Failure;
use super::gateway::{Attempt, Step, TTL, Taken, Wish};
use super::look::{Cursor, LOCKS_MAX, ListQuery};
use super::path::{self, Call};
use super::text::Text;
use super::views::ModeText;
use super::watch;

/// How long the body of a request may take.
const BODY_PATIENCE: Duration = Duration::from_secs(10);
/// How many locks a list tells if its caller does not say.
pub(crate) const LIST_USUAL: usize = 100;
/// The longest id of an acquisition, in bytes.
pub(crate) const ID_MAX: usize = 256;

/// The body of an acquire request.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AcquireBody {
    mode: ModeText,
    slots: Option<u32>,
    ttl_ms: Option<u64>,
    wait_ms: Option<u64>,
    id: Option<String>,
    owner: Option<String>,
    note: Option<Text>,
}

/// The body of a keepalive or release request.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HandleBody {
    handle: String,
}

impl HandleBody {
    /// The handle.
    pub(crate) fn handle(&self) -> &str {
        &self.handle
    }
}

/// Everything under `/v1/locks/`.
pub(crate) async fn locks(State(app): State<Arc<App>>, request: Request<Body>) -> Response {
    let (parts, body) = request.into_parts();
    let name_bytes = app.config.limits.name_bytes;
    let call = match path::call(parts.method.as_str(), parts.uri.path(), name_bytes) {
        Ok(call) => call,
        Err(failure) => return refuse(&app, failure),
    };
    let result = match call {
        Call::Acquire(name) => acquire(&app, &parts, body, name).await,
        Call::Keepalive => keepalive(&app, &parts, body).await,
        Call::Release => release(&app, &parts, body).await,
        Call::Show(name) => show(&app, &parts, &name).await,
        Call::Watch(name) => watch_one(&app, &parts, name),
    };
    result.unwrap_or_else(|failure| refuse(&app, failure))
}

/// Counts a failure and answers it.
pub(crate) fn refuse(app: &App, failure: Failure) -> Response {
    app.count_failure(&failure);
    failure.into_response()
}

fn arrived(parts: &Parts) -> Instant {
    let arrived = parts.extensions.get::<Arrived>();
    arrived.map_or_else(|| clock::now().mono, |arrived| arrived.0)
}

async fn acquire(
    app: &Arc<App>,
    parts: &Parts,
    body: Body,
    name: Name,
) -> Result<Response, Failure> {
    let caller = Caller::of(&parts.extensions)?;
    let body: AcquireBody = read(app, body, true).await?;
    let remote = parts.extensions.get::<SocketAddr>();
    let mut wish = wish(name, body, remote)?;
    wish.traced = traced(parts.headers.get("traceparent").map(HeaderValue::as_bytes));
    let attempt = app.begin(arrived(parts), &caller, wish)?;
    let accepts = parts.headers.get_all(header::ACCEPT);
    let accepts = |kind: &str| {
        let mut all = accepts.iter().filter_map(|value| value.to_str().ok());
        all.any(|value| value.contains(kind))
    };
    if accepts("application/x-ndjson") {
        return Ok(streamed(attempt, parts, Frames::Lines));
    }
    if accepts("text/event-stream") {
        return Ok(streamed(attempt, parts, Frames::Events));
    }
    let Taken { answer, guard } = attempt.over().await?;
    app.count_acquired(&answer);
    let mut response = json(StatusCode::OK, answer.into_body());
    response.extensions_mut().insert(Escort::new(guard));
    Ok(response)
}

/// What an acquire body asks for.
fn wish(name: Name, body: AcquireBody, remote: Option<&SocketAddr>) -> Result<Wish, Failure> {
    if let Some(id) = &body.id
        && (id.is_empty() || id.len() > ID_MAX)
    {
        let problem = format!("id must have 1 to {ID_MAX} bytes");
        return Err(Failure::BadRequest(problem));
    }
    let owner = body.owner.or_else(|| remote.map(ToString::to_string));
    let mode = Mode::from(&body.mode);
    check_slots(body.slots, &mode)?;
    Ok(Wish {
        name,
        mode,
        slots: body.slots,
        ttl: body.ttl_ms.map_or(TTL, Duration::from_millis),
        wait: body.wait_ms.map(Duration::from_millis),
        id: body.id,
        owner: owner.unwrap_or_default(),
        note: body.note.map(|note| note.0),
        traced: Traced::default(),
    })
}

/// What a caller is doing, as its header `traceparent` says.
pub(crate) fn traced(header: Option<&[u8]>) -> Traced {
    let text = header.and_then(|bytes| std::str::from_utf8(bytes).ok());
    text.map_or_else(Traced::default, Traced::from_traceparent)
}

/// The most slots of a semaphore.
const SLOTS_MAX: u32 = 64;

/// Refuses a semaphore that cannot be.
pub(crate) fn check_slots(slots: Option<u32>, mode: &Mode) -> Result<(), Failure> {
    let Some(slots) = slots else { return Ok(()) };
    if !(1..=SLOTS_MAX).contains(&slots) {
        let problem = format!("slots must be 1 to {SLOTS_MAX}");
        return Err(Failure::BadRequest(problem));
    }
    if *mode != Mode::Exclusive {
        let problem = "a slot is held by one: leave out mode or slots".to_owned();
        return Err(Failure::BadRequest(problem));
    }
    Ok(())
}

async fn keepalive(app: &Arc<App>, parts: &Parts, body: Body) -> Result<Response, Failure> {
    let body: HandleBody = read(app, body, false).await?;
    let caller = Caller::of(&parts.extensions)?;
    let answer = app.keep(arrived(parts), &caller, &body.handle).await?;
    if answer.times(clock::now().mono).is_none() {
        return Err(Failure::Lost);
    }
    app.meters.answered("kept");
    Ok(json(StatusCode::OK, answer.into_body()))
}

async fn release(app: &Arc<App>, parts: &Parts, body: Body) -> Result<Response, Failure> {
    let body: HandleBody = read(app, body, false).await?;
    let caller = Caller::of(&parts.extensions)?;
    app.release(&caller, &body.handle).await?;
    app.meters.answered("released");
    Ok(Json(serde_json::json!({ "released": true })).into_response())
}

async fn show(app: &Arc<App>, parts: &Parts, name: &Name) -> Result<Response, Failure> {
    let query = Query::read(parts)?;
    query.only(&["local"])?;
    let caller = Caller::of(&parts.extensions)?;
    app.permit(&caller, Action::Read, name)?;
    if query.is_local() {
        return Ok(Json(app.local_lock(name).await?).into_response());
    }
    Ok(Json(app.whole_lock(name, &caller).await?).into_response())
}

fn watch_one(app: &Arc<App>, parts: &Parts, name: Name) -> Result<Response, Failure> {
    Query::read(parts)?.only(&[])?;
    let caller = Caller::of(&parts.extensions)?;
    let watching = app.watch(Watch::Name(name), &caller)?;
    Ok(watch::events(app.clone(), watching))
}

/// `GET /v1/locks`.
pub(crate) async fn list(State(app): State<Arc<App>>, request: Request<Body>) -> Response {
    let (parts, _) = request.into_parts();
    let result = listed(&app, &parts).await;
    result.unwrap_or_else(|failure| refuse(&app, failure))
}

async fn listed(app: &Arc<App>, parts: &Parts) -> Result<Response, Failure> {
    let caller = Caller::of(&parts.extensions)?;
    let query = Query::read(parts)?;
    query.only(&["local", "prefix", "limit", "cursor"])?;
    let ask = ListQuery {
        prefix: query.get("prefix").unwrap_or_default().to_vec(),
        after: query.get("cursor").map(Cursor::read).transpose()?,
        limit: query.limit(LIST_USUAL, LOCKS_MAX)?,
    };
    if query.is_local() {
        return Ok(Json(app.local_locks(&ask, &caller).await?).into_response());
    }
    Ok(Json(app.whole_locks(&ask, &caller).await?).into_response())
}

/// Reads a JSON body of bounded size. An empty one is all defaults where that makes sense.
pub(crate) async fn read<T: DeserializeOwned>(
    app: &App,
    body: Body,
    may_be_empty: bool,
) -> Result<T, Failure> {
    let max = app.limits.body;
    let bytes = Limited::new(body, max).collect();
    let bytes = tokio::time::timeout(BODY_PATIENCE, bytes).await;
    let bytes = match bytes {
        Err(_) => return Err(Failure::SlowBody),
        Ok(Ok(bytes)) => bytes.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            return Err(Failure::BodyTooLarge { max });
        }
        Ok(Err(error)) => return Err(Failure::BadRequest(error.to_string())),
    };
    let bytes = if bytes.is_empty() && may_be_empty {
        &b"{}"[..]
    } else {
        &bytes[..]
    };
    let wrong = |why: String| {
        let problem = format!("the body is not the JSON of this call: {why}");
        Failure::BadRequest(problem)
    };
    // Fields are named: a list would be taken for them in order.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(wrong("expected an object".to_owned()));
    }
    serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))
}

/// The query of a URL, decoded.
#[derive(Debug)]
pub(crate) struct Query(Vec<(String, Vec<u8>)>);

impl Query {
    pub(crate) fn read(parts: &Parts) -> Result<Self, Failure> {
        let query = parts.uri.query().unwrap_or_default();
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| {
            let (field, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = path::decode(&value.replace('+', "%20")).map_err(|_| {
                let problem = format!("{field}: a % is not followed by two hex digits");
                Failure::BadRequest(problem)
            })?;
            Ok((field.to_owned(), value))
        });
        Ok(Self(pairs.collect::<Result<_, Failure>>()?))
    }

    /// Refuses fields that are none of these, so that a typing error does not go unseen.
    pub(crate) fn only(&self, fields: &[&str]) -> Result<(), Failure> {
        let unknown = self
            .0
            .iter()
            .find(|(field, _)| !fields.contains(&field.as_str()));
        unknown.map_or(Ok(()), |(field, _)| {
            let known = fields.join(", ");
            let problem = if fields.is_empty() {
                format!("'{field}': this call takes no parameters")
            } else {
                format!("'{field}' is not one of the parameters {known}")
            };
            Err(Failure::BadRequest(problem))
        })
    }

    pub(crate) fn get(&self, field: &str) -> Option<&[u8]> {
        let mut found = self.0.iter().filter(|(name, _)| name == field);
        found.next().map(|(_, value)| value.as_slice())
    }

    pub(crate) fn is_local(&self) -> bool {
        matches!(self.get("local"), Some(b"true" | b"1" | b""))
    }

    pub(crate) fn limit(&self, usual: usize, max: usize) -> Result<usize, Failure> {
        let Some(text) = self.get("limit") else {
            return Ok(usual);
        };
        let number = std::str::from_utf8(text)
            .ok()
            .and_then(|text| text.parse().ok());
        number
            .filter(|number| (1..=max).contains(number))
            .ok_or_else(|| Failure::BadRequest(format!("limit must be 1 to {max}")))
    }
}

/// A response with a JSON body.
fn json(status: StatusCode, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// How the objects of a stream are told apart.
#[derive(Clone, Copy)]
enum Frames {
    /// One per line.
    Lines,
    /// As server-sent events.
    Events,
}

impl Frames {
    fn kind(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Lines => "application/x-ndjson",
            Self::Events => "text/event-stream",
        })
    }

    fn frame(self, json: &str) -> Bytes {
        match self {
            Self::Lines => Bytes::from(format!("{json}\n")),
            Self::Events => Bytes::from(format!("data: {json}\n\n")),
        }
    }
}

/// The queue position whenever it changes, then the answer. Its status is out before the answer
/// is known, so an error carries its own.
fn streamed(attempt: Attempt, parts: &Parts, frames: Frames) -> Response {
    let deliveries = parts.extensions.get::<Deliveries>().cloned();
    let stream = steps(attempt.followed(), deliveries.unwrap_or_default());
    let bytes = stream.map(move |json| Ok::<_, std::convert::Infallible>(frames.frame(&json)));
    let mut response = Response::new(Body::from_stream(bytes));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, frames.kind());
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

fn steps(attempt: Attempt, deliveries: Deliveries) -> impl Stream<Item = String> + Send {
    stream::unfold(Some(attempt), move |attempt| {
        let deliveries = deliveries.clone();
        async move {
            let mut attempt = attempt?;
            match attempt.next().await {
                Step::Position(position) => {
                    Some((format!("{{\"position\":{position}}}"), Some(attempt)))
                }
                Step::Over(result) => Some((last(&attempt, *result, &deliveries), None)),
            }
        }
    })
}

/// The last object of a stream.
fn last(attempt: &Attempt, result: Result<Taken, Failure>, deliveries: &Deliveries) -> String {
    let app = attempt.app();
    let failure = match result {
        Ok(Taken { answer, guard }) => match answer.json(clock::now().mono) {
            Some(json) => {
                app.count_acquired(&answer);
                deliveries.add(guard);
                return json;
            }
            None => Failure::TooLate,
        },
        Err(failure) => failure,
    };
    app.count_failure(&failure);
    let mut body = serde_json::to_value(failure.body()).unwrap_or_default();
    body["status"] = failure.status().as_u16().into();
    body.to_string()
}
