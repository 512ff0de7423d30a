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
use http_body_util::BodyExt;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::ToSchema;

use super::App;
use super::admit::Caller;
use super::answer::{Acquired, Released};
use super::body::why;
use super::deliver::{Arrived, Deliveries, Escort};
use super::errors::Failure;
use super::gateway::{Attempt, Step, TTL, Taken, Wish};
use super::look::{Cursor, LOCKS_MAX, ListQuery, LocalPage, Page, Whole};
use super::openapi::{Either, Local, LockName};
use super::path::{self, Call};
use super::refusals::{Holding, Looking, Posting, Taking, Watching};
use super::text::Text;
use super::views::{Local as LocalLock, Merged, ModeText};
use super::watch;

/// How many locks a list tells if its caller does not say.
pub(crate) const LIST_USUAL: usize = 100;
/// The longest id of an acquisition, in bytes.
pub(crate) const ID_MAX: usize = 256;

/// How a lock is asked for.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AcquireRequest, example = json!({
    "mode": "exclusive", "ttl_ms": 10_000, "wait_ms": 2_000, "owner": "cron@host7"
}))]
pub(crate) struct AcquireBody {
    #[serde(default)]
    mode: ModeText,
    /// Takes any one of so many slots of a semaphore of this name instead of the lock itself.
    /// Exclusive only; all callers must name the same number. Slots have the name of the lock with
    /// `~` and a number, which must not be too long.
    #[schema(minimum = 1, maximum = 64)]
    slots: Option<u32>,
    /// How long the lock is kept without keepalive; 10000 if left out.
    ttl_ms: Option<u64>,
    /// How long to wait: 0 takes the lock only if nobody is in the way; at most 100 times the TTL,
    /// which is also what is meant if it is left out.
    wait_ms: Option<u64>,
    /// The caller's own name for this acquisition: a repeated call does not exclude itself.
    #[schema(min_length = 1, max_length = 256)]
    id: Option<String>,
    /// Who asks, for people; the remote address if left out.
    owner: Option<String>,
    /// What the holder says about itself.
    note: Option<Text>,
}

/// What was given out with a lock or a lease.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = HandleRequest)]
pub(crate) struct HandleBody {
    /// The handle.
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

pub(crate) fn arrived(parts: &Parts) -> Instant {
    let arrived = parts.extensions.get::<Arrived>();
    arrived.map_or_else(|| clock::now().mono, |arrived| arrived.0)
}

/// Takes a lock.
///
/// With `Accept: application/x-ndjson` or `text/event-stream` the answer is a stream: the position
/// in the queue whenever it changes, as `{"position": 2}`, then an `Acquired`, or an `Error` with
/// its status.
#[utoipa::path(
    post,
    path = "/v1/locks/{name}/acquire",
    params(LockName),
    request_body = AcquireBody,
    responses(
        (status = 200, description = "The lock is held.", content(
            (Acquired<'static> = "application/json"),
            (String = "application/x-ndjson"),
            (String = "text/event-stream"),
        )),
        Posting, Taking, Holding,
    ),
)]
pub(super) async fn acquire(
    app: &Arc<App>,
    parts: &Parts,
    body: Body,
    name: Name,
) -> Result<Response, Failure> {
    let caller = Caller::of(&parts.extensions)?;
    let body: AcquireBody = read(body, true).await?;
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

/// Keeps a lock for another TTL.
#[utoipa::path(
    post,
    path = "/v1/locks/keepalive",
    request_body = HandleBody,
    responses(
        (status = 200, description = "It is kept.", body = Acquired<'static>),
        Posting, Holding,
    ),
)]
pub(super) async fn keepalive(
    app: &Arc<App>,
    parts: &Parts,
    body: Body,
) -> Result<Response, Failure> {
    let body: HandleBody = read(body, false).await?;
    let caller = Caller::of(&parts.extensions)?;
    let answer = app.keep(arrived(parts), &caller, &body.handle).await?;
    if answer.times(clock::now().mono).is_none() {
        return Err(Failure::Lost);
    }
    app.meters.answered("kept");
    Ok(json(StatusCode::OK, answer.into_body()))
}

/// Gives a lock back.
#[utoipa::path(
    post,
    path = "/v1/locks/release",
    request_body = HandleBody,
    responses(
        (status = 200, description = "It is not held any more.", body = Released),
        Posting, Holding,
    ),
)]
pub(super) async fn release(
    app: &Arc<App>,
    parts: &Parts,
    body: Body,
) -> Result<Response, Failure> {
    let body: HandleBody = read(body, false).await?;
    let caller = Caller::of(&parts.extensions)?;
    app.release(&caller, &body.handle).await?;
    app.meters.answered("released");
    Ok(Json(Released::DONE).into_response())
}

/// A lock as all nodes see it, or as this one does.
type Shown = Either<Whole<Merged>, LocalLock>;
/// Locks as all nodes see them, or as this one does.
type Listed = Either<Whole<Page>, LocalPage>;

/// One lock: who holds it, who waits.
///
/// One that nobody asks for has no holders and no waiters. With `local=true` what this node knows.
#[utoipa::path(
    get,
    path = "/v1/locks/{name}",
    params(LockName, Local),
    responses(
        (status = 200, description = "The lock.", body = inline(Shown)),
        Looking,
    ),
)]
pub(super) async fn show(app: &Arc<App>, parts: &Parts, name: &Name) -> Result<Response, Failure> {
    let query = Query::read(parts)?;
    query.only(&["local"])?;
    let caller = Caller::of(&parts.extensions)?;
    app.permit(&caller, Action::Read, name)?;
    if query.flag("local")? {
        return Ok(Json(app.local_lock(name).await?).into_response());
    }
    Ok(Json(app.whole_lock(name, &caller).await?).into_response())
}

/// One lock, now and on every change.
///
/// Events are those of /v1/watch. A lock whose name ends in `/watch` is shown with its last slash
/// written `%2F`.
#[utoipa::path(
    get,
    path = "/v1/locks/{name}/watch",
    params(LockName),
    responses(
        (status = 200, description = "Events.", body = String, content_type = "text/event-stream"),
        Watching,
    ),
)]
pub(super) fn watch_one(app: &Arc<App>, parts: &Parts, name: Name) -> Result<Response, Failure> {
    Query::read(parts)?.only(&[])?;
    let caller = Caller::of(&parts.extensions)?;
    let watching = app.watch(Watch::Name(name), &caller)?;
    Ok(watch::events(app.clone(), watching))
}

/// The locks that are held or waited for, by name.
///
/// With `local=true` those of this node.
#[utoipa::path(
    get,
    path = "/v1/locks",
    params(
        Local,
        ("prefix" = Option<String>, Query,
            description = "Only names that begin with it, percent-encoded."),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000,
            description = "How many at most; 100 if left out."),
        ("cursor" = Option<String>, Query, description = "`next` of the page before.",
            pattern = "^([A-Za-z0-9_-]{4})*([A-Za-z0-9_-][AQgw]|\
                [A-Za-z0-9_-]{2}[AEIMQUYcgkosw048])?$"),
    ),
    responses(
        (status = 200, description = "A page of locks.", body = inline(Listed)),
        Looking,
    ),
)]
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
    if query.flag("local")? {
        return Ok(Json(app.local_locks(&ask, &caller).await?).into_response());
    }
    Ok(Json(app.whole_locks(&ask, &caller).await?).into_response())
}

/// Reads a JSON body. An empty one is all defaults where that makes sense.
pub(crate) async fn read<T: DeserializeOwned>(
    body: Body,
    may_be_empty: bool,
) -> Result<T, Failure> {
    let bytes = body.collect().await.map_err(why)?.to_bytes();
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
        for (at, (field, _)) in self.0.iter().enumerate() {
            if self.0[..at].iter().any(|(before, _)| before == field) {
                let problem = format!("'{field}' is given twice");
                return Err(Failure::BadRequest(problem));
            }
        }
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

    /// Whether something is asked for that is true or false, and false if left out.
    pub(crate) fn flag(&self, field: &str) -> Result<bool, Failure> {
        match self.get(field) {
            None | Some(b"false" | b"0") => Ok(false),
            Some(b"true" | b"1" | b"") => Ok(true),
            Some(_) => Err(Failure::BadRequest(format!(
                "{field} must be true or false"
            ))),
        }
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
pub(crate) fn json(status: StatusCode, body: Body) -> Response {
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
    serde_json::to_string(&failure.late_body()).unwrap_or_default()
}
