//! Watches for thin clients: who is inside and how many wait, now and on every change. Over HTTP
//! as server-sent events, over gRPC as a stream.
//!
//! Only the newest state of a lock waits for a reader that is slow: nothing grows with time.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Request, header};
use axum::response::Response;
use conclave_client::driver::{Job, Work};
use conclave_protocol::id::Name;
use conclave_protocol::lock::{Action, ClientEvent, Ended, Holder, LockState, Watch};
use futures_util::stream;
use serde::Serialize;
use utoipa::ToSchema;

use super::App;
use super::admit::Caller;
use super::errors::Failure;
use super::locks::{Query, refuse};
use super::refusals;
use super::share::Place;
use super::text::Text;
use super::views::ModeText;

/// How often something is said on a stream on which nothing happens.
const STILL_HERE: Duration = Duration::from_secs(5);

/// What a watch tells.
#[derive(Debug)]
pub(crate) enum Told {
    /// A lock as it is now.
    State(LockState),
    /// All there is was told; whether it is partial.
    Synced(bool),
    /// Nothing has happened for a while.
    Still,
    /// It is over.
    Over(Failure),
}

/// A watch of a thin client.
#[derive(Debug)]
pub(crate) struct Watching {
    job: Job,
    /// Changes of the access file.
    changes: tokio::sync::watch::Receiver<u64>,
    stopping: tokio::sync::watch::Receiver<bool>,
    app: Arc<App>,
    caller: Caller,
    /// Its place among all watches of this gateway.
    _place: Place,
}

impl App {
    /// Begins a watch.
    pub(crate) fn watch(
        self: &Arc<Self>,
        what: Watch,
        caller: &Caller,
    ) -> Result<Watching, Failure> {
        if *self.stopping.borrow() {
            return Err(Failure::NotReady("stopping".to_owned()));
        }
        let max = self.config.limits.name_bytes;
        if what.bytes().len() > max {
            let problem = format!("a prefix has at most {max} bytes");
            return Err(Failure::BadRequest(problem));
        }
        // A prefix is watched by whoever may read all names below it.
        self.permit(caller, Action::Read, &Name::new(what.bytes()))?;
        let place = self.watching.take(caller.account());
        let place = place.ok_or(Failure::TooManyWatchers)?;
        Ok(Watching {
            job: self.driver.begin(Work::Watch(what)),
            changes: self.gate.changes(),
            stopping: self.stopping.clone(),
            app: self.clone(),
            caller: caller.clone(),
            _place: place,
        })
    }
}

impl Watching {
    /// What it tells next.
    pub(crate) async fn next(&mut self) -> Told {
        let stopping = || Told::Over(Failure::NotReady("stopping".to_owned()));
        loop {
            let event = tokio::select! {
                event = self.job.next() => event,
                _ = self.stopping.wait_for(|stopping| *stopping) => return stopping(),
                Ok(()) = self.changes.changed() => match self.app.recognises(&self.caller) {
                    Ok(()) => continue,
                    Err(failure) => return Told::Over(failure),
                },
                () = tokio::time::sleep(STILL_HERE) => return Told::Still,
            };
            match event {
                Some(ClientEvent::Seen(_, state)) => {
                    // The rules may have changed since it began.
                    let still = self.app.permit(&self.caller, Action::Read, &state.name);
                    return still.map_or_else(Told::Over, |()| Told::State(*state));
                }
                Some(ClientEvent::Synced(_, partial)) => return Told::Synced(partial),
                Some(ClientEvent::Ended(_, Ended::Refused(why))) => {
                    return Told::Over(Failure::Refused(why));
                }
                Some(ClientEvent::Ended(..)) | None => return stopping(),
                Some(_) => {}
            }
        }
    }
}

/// All locks whose names begin alike, now and on every change.
///
/// Server-sent events, numbered from 1: `state` with a `LockState`; `synced` when all there was has
/// been told, and again when the watch becomes partial or complete; `error` with an `Error` before
/// the stream ends for a reason. Comments come when nothing happens.
#[utoipa::path(
    get,
    path = "/v1/watch",
    params(("prefix" = Option<String>, Query,
        description = "Only names that begin with it, percent-encoded.")),
    responses(
        (status = 200, description = "Events.", body = String, content_type = "text/event-stream"),
        refusals::Watching,
    ),
)]
pub(crate) async fn prefix(State(app): State<Arc<App>>, request: Request<Body>) -> Response {
    let (parts, _) = request.into_parts();
    let begun = begin_prefix(&app, &parts);
    begun.unwrap_or_else(|failure| refuse(&app, failure))
}

fn begin_prefix(app: &Arc<App>, parts: &Parts) -> Result<Response, Failure> {
    let query = Query::read(parts)?;
    query.only(&["prefix"])?;
    let prefix = query.get("prefix").unwrap_or_default();
    let caller = Caller::of(&parts.extensions)?;
    let watching = app.watch(Watch::Prefix(prefix.into()), &caller)?;
    Ok(events(app.clone(), watching))
}

/// A watch as server-sent events, numbered from 1.
pub(crate) fn events(app: Arc<App>, watching: Watching) -> Response {
    let frames = stream::unfold(Some((watching, 0_u64)), move |state| {
        let app = app.clone();
        async move {
            let (mut watching, mut number) = state?;
            let told = watching.next().await;
            let over = matches!(told, Told::Over(_));
            let frame = frame(&app, told, &mut number);
            let next = (!over).then_some((watching, number));
            Some((Ok::<_, Infallible>(frame), next))
        }
    });
    let mut response = Response::new(Body::from_stream(frames));
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static("text/event-stream");
    headers.insert(header::CONTENT_TYPE, kind);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

fn frame(app: &App, told: Told, number: &mut u64) -> Bytes {
    let (event, json) = match told {
        Told::Still => return Bytes::from_static(b": still here\n\n"),
        Told::State(state) => ("state", serde_json::to_value(StateText::from(&state))),
        Told::Synced(partial) => ("synced", Ok(serde_json::json!({ "partial": partial }))),
        Told::Over(failure) => {
            app.count_failure(&failure);
            ("error", serde_json::to_value(failure.late_body()))
        }
    };
    *number += 1;
    let json = json.unwrap_or_default();
    Bytes::from(format!("id: {number}\nevent: {event}\ndata: {json}\n\n"))
}

/// A watched lock in JSON.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = LockState)]
pub(crate) struct StateText {
    name: Text,
    holders: Vec<HolderText>,
    more: u32,
    waiting: u32,
    partial: bool,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = WatchedHolder)]
struct HolderText {
    mode: ModeText,
    token: u64,
    group: String,
    owner: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    note: Option<Text>,
    session: String,
    asked_us: u64,
}

impl From<&LockState> for StateText {
    fn from(state: &LockState) -> Self {
        Self {
            name: Text(state.name.bytes().to_vec()),
            holders: state.holders.iter().map(HolderText::from).collect(),
            more: state.more,
            waiting: state.waiting,
            partial: state.partial,
        }
    }
}

impl From<&Holder> for HolderText {
    fn from(holder: &Holder) -> Self {
        Self {
            mode: ModeText::from(&holder.mode()),
            token: holder.token.0,
            group: holder.group.to_string(),
            owner: holder.owner.to_string(),
            note: holder.note.as_ref().map(|note| Text(note.to_vec())),
            session: format!("{:x}", holder.session),
            asked_us: holder.asked.0,
        }
    }
}
