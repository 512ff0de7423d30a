//! The same calls over gRPC, on the same port. Statuses are those of HTTP in gRPC's words; the
//! metadata `conclave-code` carries the code.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use conclave_client::clock;
use conclave_protocol::Instant;
use conclave_protocol::lock::{Action, LockState, Mode as LockMode, Watch};
use conclave_wire::api::v1;
use conclave_wire::api::v1::cluster_server::{Cluster, ClusterServer};
use conclave_wire::api::v1::locks_server::{Locks, LocksServer};
use futures_util::stream::{self, Stream};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::service::Routes;
use tonic::{Code, Extensions, Request, Response, Status};

use super::App;
use super::admit::Caller;
use super::answer::Answer;
use super::deliver::{Arrived, Deliveries, Escort};
use super::errors::Failure;
use super::gateway::{Attempt, Step, TTL, Taken, Wish};
use super::grpc_keeper;
use super::locks::{ID_MAX, LIST_USUAL, check_slots, traced};
use super::look::{LOCKS_MAX, ListQuery, Silent};
use super::path::check;
use super::revoke::session;
use super::sessions::SESSIONS_MAX;
use super::status::NodeStatus;
use super::views::{Merged, ModeText};
use super::watch::{Told, Watching};

/// The services, for the router of the API port.
pub(super) fn router(app: &Arc<App>) -> Router {
    let max = app.limits.body;
    let locks = LocksServer::new(Service(app.clone())).max_decoding_message_size(max);
    let cluster = ClusterServer::new(Service(app.clone())).max_decoding_message_size(max);
    let routes = Routes::new(locks).add_service(cluster);
    let routes = grpc_keeper::services(routes, app);
    routes.into_axum_router().reset_fallback()
}

/// Both services of a node.
#[derive(Clone, Debug)]
struct Service(Arc<App>);

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        let code = match failure.status() {
            StatusCode::BAD_REQUEST
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::UNSUPPORTED_MEDIA_TYPE => Code::InvalidArgument,
            StatusCode::FORBIDDEN => Code::PermissionDenied,
            StatusCode::UNAUTHORIZED => Code::Unauthenticated,
            StatusCode::CONFLICT => Code::Aborted,
            StatusCode::GONE | StatusCode::NOT_FOUND => Code::NotFound,
            StatusCode::TOO_MANY_REQUESTS => Code::ResourceExhausted,
            StatusCode::SERVICE_UNAVAILABLE => Code::Unavailable,
            StatusCode::REQUEST_TIMEOUT => Code::DeadlineExceeded,
            _ => Code::Internal,
        };
        let mut metadata = MetadataMap::new();
        metadata.insert("conclave-code", MetadataValue::from_static(failure.code()));
        Self::with_metadata(code, failure.to_string(), metadata)
    }
}

/// Counts a failure and turns it into a status.
pub(super) fn refuse(app: &App, failure: Failure) -> Status {
    app.count_failure(&failure);
    Status::from(failure)
}

pub(super) fn arrived(extensions: &Extensions) -> Instant {
    let arrived = extensions.get::<Arrived>();
    arrived.map_or_else(|| clock::now().mono, |arrived| arrived.0)
}

fn acquired(answer: &Answer) -> Option<v1::Acquired> {
    let (valid_ms, waited_ms) = answer.times(clock::now().mono)?;
    Some(v1::Acquired {
        handle: answer.handle.clone(),
        token: answer.token,
        group: answer.group.clone().unwrap_or_default(),
        valid_ms,
        waited_ms,
        slot: answer.slot,
    })
}

impl Service {
    fn begin(&self, request: Request<v1::AcquireRequest>) -> Result<Attempt, Failure> {
        let extensions = request.extensions();
        let arrived = arrived(extensions);
        let caller = Caller::of(extensions)?;
        let remote = extensions.get::<SocketAddr>().map(ToString::to_string);
        let traceparent = request.metadata().get("traceparent");
        let traced = traced(traceparent.map(MetadataValue::as_bytes));
        let body = request.into_inner();
        let name = check(body.name, self.0.config.limits.name_bytes)?;
        if let Some(id) = &body.id
            && (id.is_empty() || id.len() > ID_MAX)
        {
            let problem = format!("id must have 1 to {ID_MAX} bytes");
            return Err(Failure::BadRequest(problem));
        }
        let mode = mode(body.mode);
        check_slots(body.slots, &mode)?;
        let wish = Wish {
            name,
            mode,
            slots: body.slots,
            ttl: body.ttl_ms.map_or(TTL, Duration::from_millis),
            wait: body.wait_ms.map(Duration::from_millis),
            id: body.id,
            owner: body.owner.or(remote).unwrap_or_default(),
            note: body.note,
            traced,
        };
        self.0.begin(arrived, &caller, wish)
    }
}

fn mode(mode: Option<v1::Mode>) -> LockMode {
    match mode.and_then(|mode| mode.kind) {
        None | Some(v1::mode::Kind::Exclusive(_)) => LockMode::Exclusive,
        Some(v1::mode::Kind::Shared(_)) => LockMode::Shared,
        Some(v1::mode::Kind::Group(group)) => LockMode::group(group),
    }
}

type Events = Pin<Box<dyn Stream<Item = Result<v1::AcquireEvent, Status>> + Send>>;

type Watches = Pin<Box<dyn Stream<Item = Result<v1::WatchEvent, Status>> + Send>>;

#[tonic::async_trait]
impl Locks for Service {
    async fn acquire(
        &self,
        request: Request<v1::AcquireRequest>,
    ) -> Result<Response<v1::Acquired>, Status> {
        let app = &self.0;
        let taken = async { self.begin(request)?.over().await };
        let Taken { answer, guard } = taken.await.map_err(|failure| refuse(app, failure))?;
        let acquired = acquired(&answer).ok_or_else(|| refuse(app, Failure::TooLate))?;
        app.count_acquired(&answer);
        let mut response = Response::new(acquired);
        response.extensions_mut().insert(Escort::new(guard));
        Ok(response)
    }

    type AcquireStreamStream = Events;

    async fn acquire_stream(
        &self,
        request: Request<v1::AcquireRequest>,
    ) -> Result<Response<Events>, Status> {
        let deliveries = request.extensions().get::<Deliveries>().cloned();
        let attempt = self.begin(request);
        let attempt = attempt.map_err(|failure| refuse(&self.0, failure))?;
        let events = events(attempt.followed(), deliveries.unwrap_or_default());
        Ok(Response::new(Box::pin(events)))
    }

    async fn keep_alive(
        &self,
        request: Request<v1::KeepAliveRequest>,
    ) -> Result<Response<v1::Acquired>, Status> {
        let app = &self.0;
        let arrived = arrived(request.extensions());
        let kept = async {
            let caller = Caller::of(request.extensions())?;
            app.keep(arrived, &caller, &request.get_ref().handle).await
        };
        let kept = kept.await.map_err(|failure| refuse(app, failure))?;
        let acquired = acquired(&kept).ok_or_else(|| refuse(app, Failure::Lost))?;
        app.meters.answered("kept");
        Ok(Response::new(acquired))
    }

    async fn release(
        &self,
        request: Request<v1::ReleaseRequest>,
    ) -> Result<Response<v1::Released>, Status> {
        let released = async {
            let caller = Caller::of(request.extensions())?;
            self.0.release(&caller, &request.get_ref().handle).await
        };
        released.await.map_err(|failure| refuse(&self.0, failure))?;
        self.0.meters.answered("released");
        Ok(Response::new(v1::Released {}))
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> Result<Response<v1::Lock>, Status> {
        let app = &self.0;
        let whole = async {
            let caller = Caller::of(request.extensions())?;
            let name = check(request.into_inner().name, app.config.limits.name_bytes)?;
            app.permit(&caller, Action::Read, &name)?;
            app.whole_lock(&name, &caller).await
        };
        let whole = whole.await.map_err(|failure| refuse(app, failure))?;
        let mut lock = lock(whole.what);
        lock.partial = whole.partial;
        lock.silent = silent(&whole.silent);
        Ok(Response::new(lock))
    }

    type WatchStream = Watches;

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Watches>, Status> {
        let app = &self.0;
        let caller = Caller::of(request.extensions());
        let what = match request.into_inner().what {
            Some(v1::watch_request::What::Name(name)) => {
                check(name, app.config.limits.name_bytes).map(Watch::Name)
            }
            Some(v1::watch_request::What::Prefix(prefix)) => Ok(Watch::Prefix(prefix.into())),
            None => Ok(Watch::Prefix([].into())),
        };
        let watching = what.and_then(|what| app.watch(what, &caller?));
        let watching = watching.map_err(|failure| refuse(app, failure))?;
        Ok(Response::new(Box::pin(watched(app.clone(), watching))))
    }

    async fn list(
        &self,
        request: Request<v1::ListRequest>,
    ) -> Result<Response<v1::ListResponse>, Status> {
        let app = &self.0;
        let caller = Caller::of(request.extensions());
        let body = request.into_inner();
        let whole = async {
            let query = ListQuery {
                prefix: body.prefix,
                after: body.after,
                limit: limit(body.limit, LIST_USUAL, LOCKS_MAX)?,
            };
            app.whole_locks(&query, &caller?).await
        };
        let whole = whole.await.map_err(|failure| refuse(app, failure))?;
        Ok(Response::new(v1::ListResponse {
            locks: whole.what.locks.into_iter().map(lock).collect(),
            next: whole.what.next.map(|next| next.0),
            partial: whole.partial,
            silent: silent(&whole.silent),
        }))
    }
}

/// The queue position whenever it changes, then the lock or the error.
fn events(
    attempt: Attempt,
    deliveries: Deliveries,
) -> impl Stream<Item = Result<v1::AcquireEvent, Status>> + Send {
    let event = |event| Ok(v1::AcquireEvent { event: Some(event) });
    stream::unfold(Some(attempt), move |attempt| {
        let deliveries = deliveries.clone();
        async move {
            let mut attempt = attempt?;
            let result = match attempt.next().await {
                Step::Position(position) => {
                    let position = v1::acquire_event::Event::Position(position);
                    return Some((event(position), Some(attempt)));
                }
                Step::Over(result) => *result,
            };
            let app = attempt.app();
            let last = result.and_then(|Taken { answer, guard }| {
                let acquired = acquired(&answer).ok_or(Failure::TooLate)?;
                app.count_acquired(&answer);
                deliveries.add(guard);
                Ok(v1::acquire_event::Event::Acquired(acquired))
            });
            let last = match last {
                Ok(last) => event(last),
                Err(failure) => Err(refuse(app, failure)),
            };
            Some((last, None))
        }
    })
}

/// What a watch tells, as a stream.
fn watched(
    app: Arc<App>,
    watching: Watching,
) -> impl Stream<Item = Result<v1::WatchEvent, Status>> + Send {
    let event = |event| Ok(v1::WatchEvent { event: Some(event) });
    stream::unfold(Some(watching), move |watching| {
        let app = app.clone();
        async move {
            let mut watching = watching?;
            loop {
                let told = match watching.next().await {
                    // The connection itself is kept alive by its own means.
                    Told::Still => continue,
                    Told::State(state) => event(v1::watch_event::Event::State(seen(&state))),
                    Told::Synced(partial) => {
                        event(v1::watch_event::Event::Synced(v1::Synced { partial }))
                    }
                    Told::Over(failure) => return Some((Err(refuse(&app, failure)), None)),
                };
                return Some((told, Some(watching)));
            }
        }
    })
}

fn seen(state: &LockState) -> v1::LockState {
    let holders = state.holders.iter().map(|holder| v1::Holder {
        mode: Some(mode_of(ModeText::from(&holder.mode()))),
        token: Some(holder.token.0),
        group: holder.group.to_string(),
        owner: holder.owner.to_string(),
        note: holder.note.as_ref().map(|note| note.to_vec()),
        session: format!("{:x}", holder.session),
        asked_us: holder.asked.0,
        nodes: Vec::new(),
        held_ms: None,
        expires_ms: None,
    });
    v1::LockState {
        name: state.name.bytes().to_vec(),
        holders: holders.collect(),
        more: state.more,
        waiting: state.waiting,
        partial: state.partial,
    }
}

fn limit(asked: Option<u32>, usual: usize, max: usize) -> Result<usize, Failure> {
    let limit = asked.map_or(usual, |limit| limit as usize);
    if !(1..=max).contains(&limit) {
        return Err(Failure::BadRequest(format!("limit must be 1 to {max}")));
    }
    Ok(limit)
}

fn silent(silent: &[Silent]) -> Vec<u32> {
    silent.iter().map(|silent| silent.node).collect()
}

fn mode_of(mode: ModeText) -> v1::Mode {
    let kind = match mode {
        ModeText::Exclusive => v1::mode::Kind::Exclusive(v1::Exclusive {}),
        ModeText::Shared => v1::mode::Kind::Shared(v1::Shared {}),
        ModeText::Group(group) => v1::mode::Kind::Group(group.0),
    };
    v1::Mode { kind: Some(kind) }
}

fn lock(merged: Merged) -> v1::Lock {
    let holders = merged.holders.into_iter().map(|holder| v1::Holder {
        mode: Some(mode_of(holder.mode)),
        token: holder.token,
        group: holder.group,
        owner: holder.owner,
        note: holder.note.map(|note| note.0),
        session: holder.session,
        asked_us: holder.asked_us,
        nodes: holder.nodes,
        held_ms: holder.held_ms,
        expires_ms: holder.expires_ms,
    });
    let waiters = merged.waiters.into_iter().map(|waiter| {
        let (code, text) = waiter
            .why
            .map_or_else(Default::default, |why| (why.code, why.text));
        v1::Waiter {
            mode: Some(mode_of(waiter.mode)),
            position: waiter.position,
            owner: waiter.owner,
            session: waiter.session,
            asked_us: waiter.asked_us,
            why: text,
            why_code: code,
        }
    });
    v1::Lock {
        name: merged.name.0,
        holders: holders.collect(),
        waiters: waiters.collect(),
        partial: false,
        silent: Vec::new(),
    }
}

#[tonic::async_trait]
impl Cluster for Service {
    async fn describe(
        &self,
        _: Request<v1::DescribeRequest>,
    ) -> Result<Response<v1::Description>, Status> {
        let cluster = &self.0.cluster;
        let json = serde_json::to_string(cluster);
        let nodes = cluster.nodes.iter().map(|node| v1::Node {
            id: node.id,
            peer: node.peer.clone(),
            api: node.api.clone(),
        });
        Ok(Response::new(v1::Description {
            name: cluster.name.clone(),
            epoch: cluster.epoch,
            digest: self.0.config.id.digest.to_vec(),
            quorum: cluster.quorum.clone(),
            nodes: nodes.collect(),
            cluster_json: json.map_err(|error| Status::internal(error.to_string()))?,
        }))
    }

    async fn status(
        &self,
        request: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        let mut nodes = Vec::new();
        if request.get_ref().local {
            nodes.push(node_status(self.0.own_status().await));
        } else {
            for (id, status) in self.0.all_status().await {
                nodes.push(match status {
                    Ok(status) => node_status(status),
                    Err(problem) => v1::NodeStatus {
                        id,
                        problem: Some(problem),
                        ..v1::NodeStatus::default()
                    },
                });
            }
        }
        Ok(Response::new(v1::StatusResponse { nodes }))
    }

    async fn sessions(
        &self,
        request: Request<v1::SessionsRequest>,
    ) -> Result<Response<v1::SessionsResponse>, Status> {
        let app = &self.0;
        let caller = Caller::of(request.extensions());
        let body = request.into_inner();
        let page = async {
            let limit = limit(body.limit, LIST_USUAL, SESSIONS_MAX)?;
            let from = body.after.as_deref().map_or(Ok(0), str::parse);
            let problem = "after must be the next of a page".to_owned();
            let from = from.map_err(|_| Failure::BadRequest(problem))?;
            app.local_sessions(from, limit, &caller?).await
        };
        let page = page.await.map_err(|failure| refuse(app, failure))?;
        let sessions = page.sessions.into_iter().map(|session| v1::Session {
            id: session.session,
            owner: session.owner,
            ttl_ms: session.ttl_ms,
            detached: session.detached,
            requests: u32::try_from(session.requests).unwrap_or(u32::MAX),
            principal: session.principal,
            revoked: session.revoked,
        });
        Ok(Response::new(v1::SessionsResponse {
            sessions: sessions.collect(),
            next: page.next.map(|next| next.to_string()),
        }))
    }

    async fn revoke(
        &self,
        request: Request<v1::RevokeRequest>,
    ) -> Result<Response<v1::RevokeResponse>, Status> {
        let app = &self.0;
        let caller = Caller::of(request.extensions());
        let body = request.into_inner();
        let done = async {
            let session = session(&body.session)?;
            app.revoke(&caller?, session, body.force).await
        };
        let done = done.await.map_err(|failure| refuse(app, failure))?;
        let nodes = done.nodes.into_iter().map(|one| v1::RevokedAt {
            node: one.node,
            outcome: one.outcome,
            known: one.known,
            grants: u32::try_from(one.grants).unwrap_or(u32::MAX),
            left_ms: one.left_ms,
            problem: one.problem,
        });
        Ok(Response::new(v1::RevokeResponse {
            enough: done.enough,
            nodes: nodes.collect(),
        }))
    }
}

fn node_status(status: NodeStatus) -> v1::NodeStatus {
    use v1::node_status::State;
    let state = match status.state.as_str() {
        "starting" => State::Starting,
        "pausing" => State::Pausing,
        "recovering" => State::Recovering,
        "serving" => State::Serving,
        "draining" => State::Draining,
        _ => State::Unspecified,
    };
    let stopped = state == State::Unspecified;
    let digest = status.digest.as_bytes().chunks(2);
    let digest =
        digest.filter_map(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok());
    v1::NodeStatus {
        id: status.id,
        state: state.into(),
        problem: stopped.then_some(status.state),
        incarnation: status.incarnation,
        epoch: status.epoch,
        digest: digest.collect(),
        version: status.version,
        uptime_ms: status.uptime_ms,
        connections: status.connections as u64,
        sessions: status.sessions as u64,
        locks: status.locks as u64,
        granted: status.granted,
        waiting: status.waiting,
    }
}
