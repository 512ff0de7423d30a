//! The gateway and everything else on the API port: locks for thin clients over HTTP and gRPC,
//! and what operators, probes and smart clients read.
//!
//! | module | what |
//! |---|---|
//! | `gateway` | takes, renews and releases locks for thin clients |
//! | `locks`, `path`, `text` | the same over HTTP with JSON |
//! | `grpc` | the same over gRPC |
//! | `keepers`, `leases`, `grpc_keeper` | leases for thin clients |
//! | `objects`, `object_calls`, `object_lists` | objects for thin clients |
//! | `admit`, `origin` | who calls, and no page of another site |
//! | `sessions`, `revoke` | sessions, and those that an operator ends |
//! | `answer`, `deliver` | true times; locks whose answer is not written are released |
//! | `look`, `views`, `fetch` | locks and sessions of all nodes, merged |
//! | `watch` | locks as they change, as server-sent events |
//! | `status` | health, metrics, the cluster |
//! | `openapi`, `refusals` | the description of all this, made from the types and handlers |
//! | `server`, `handshake`, `caller` | connections and their limits, TLS, and who calls |
//! | `share` | places that callers share |
//! | `body` | the bodies of requests and their limits |
//! | `fair_share` | what strangers share, so that none of them takes it from the others |

mod admit;
mod answer;
mod body;
mod caller;
mod deliver;
mod errors;
mod fair_share;
mod fetch;
mod gateway;
mod grpc;
mod grpc_keeper;
mod handshake;
mod keepers;
mod leases;
mod locks;
mod look;
mod object_calls;
mod object_lists;
mod objects;
mod openapi;
mod origin;
mod path;
mod refusals;
mod revoke;
mod server;
mod sessions;
mod share;
mod status;
mod text;
mod views;
mod watch;
mod why;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::http::{HeaderMap, Uri, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Extension, Router};
use conclave_client::driver::Driver;
use conclave_client::secure::LOOK;
use conclave_client::{Security, clock};
use conclave_protocol::Instant;
use conclave_protocol::id::NodeId;
use conclave_protocol::lock::Config;
use conclave_wire::Cluster;
use conclave_wire::cluster::ClusterError;
use conclave_wire::handle::Key;
use thiserror::Error;
use tokio::sync::watch as signal;
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::audit::Audit;
use crate::meters::Meters;
use crate::shard::Shard;
use crate::who::Gate;

/// What the API needs.
#[derive(Debug)]
pub struct Context {
    /// The cluster.
    pub cluster: Cluster,
    /// Which of its nodes this is, from 1.
    pub id: u32,
    /// The node's own locks, for looking at.
    pub shard: Shard,
    /// The key that seals handles.
    pub key: Key,
    /// What is counted.
    pub meters: Arc<Meters>,
    /// The random number of this process.
    pub process: u128,
    /// How much callers may take.
    pub limits: ApiLimits,
    /// What is believed about callers.
    pub gate: Arc<Gate>,
    /// Where refusals are noted.
    pub audit: Option<Audit>,
    /// How it shows who it is, and whom it believes.
    pub security: Security,
    /// Under which names it may be called besides those in the cluster file; `*` is any.
    pub names: Vec<String>,
}

/// How much callers of the API may make a node keep. Of connections, waiters and watches one caller
/// may have as many as are still free, so that others find room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiLimits {
    /// Open connections; others are told `too_many_connections` and closed.
    pub connections: usize,
    /// Acquire requests that wait; others are told `too_many_waiters`.
    pub waiters: usize,
    /// Watches; others are told `too_many_watchers`.
    pub watchers: usize,
    /// Bytes of a request's body.
    pub body: usize,
    /// How long a body may take.
    pub body_time: Duration,
    /// Bytes of all bodies that have not come whole. Beyond this the oldest of the address that
    /// has most is given up.
    pub bodies: usize,
    /// The same for one address.
    pub bodies_per_address: usize,
    /// How long the head of a request may take, and how long a connection may be idle.
    pub head: Duration,
    /// How long a TLS handshake may take.
    pub handshake: Duration,
    /// Connections whose TLS hello has not come whole, and as many whose handshake goes on after
    /// it. Beyond this the oldest of the address that has most is closed.
    pub handshakes: usize,
    /// The same for one address.
    pub handshakes_per_address: usize,
}

impl Default for ApiLimits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            waiters: 20_000,
            watchers: 4000,
            body: 64 << 10,
            body_time: Duration::from_secs(10),
            bodies: 32 << 20,
            bodies_per_address: 8 << 20,
            head: Duration::from_secs(30),
            handshake: Duration::from_secs(5),
            handshakes: 2048,
            handshakes_per_address: 512,
        }
    }
}

/// Why the API cannot be served.
#[derive(Debug, Error)]
pub enum ApiError {
    /// The cluster cannot be.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The system gave no thread, timer or socket.
    #[error("cannot serve the API: {0}")]
    System(#[from] std::io::Error),
}

/// The API of a node, served on its own threads.
#[derive(Debug)]
pub struct ApiHandle {
    addr: SocketAddr,
    stop: signal::Sender<bool>,
    runtime: tokio::runtime::Handle,
    thread: Option<JoinHandle<()>>,
}

impl ApiHandle {
    /// Where it is served.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The threads that serve it.
    pub(crate) fn runtime(&self) -> &tokio::runtime::Handle {
        &self.runtime
    }

    /// Takes no more connections, answers those who wait that the node stops, gives the other
    /// answers a little time and ends. Returns when it is over, after [`STOP_MAX`] at the latest.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was told when it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for ApiHandle {
    fn drop(&mut self) {
        self.end();
    }
}

/// How long the API takes to stop at the most.
pub const STOP_MAX: Duration = Duration::from_secs(3);

/// Everything that the handlers share.
#[derive(Debug)]
pub(crate) struct App {
    cluster: Cluster,
    config: Arc<Config>,
    id: u32,
    shard: Shard,
    driver: Driver,
    key: Key,
    meters: Arc<Meters>,
    process: u128,
    started: Instant,
    limits: ApiLimits,
    waiting: Arc<share::Shares>,
    watching: Arc<share::Shares>,
    stopping: signal::Receiver<bool>,
    fetch: fetch::Fetch,
    gate: Arc<Gate>,
    audit: Option<Audit>,
    security: Security,
    origins: origin::Origins,
    bodies: body::Bodies,
    /// Leases and objects in the names of callers.
    keepers: keepers::Keepers,
}

impl App {
    /// Ends the node when a client in it closes itself because of a panic.
    fn end_with(
        &self,
        name: &'static str,
        failed: impl Future<Output = Option<Arc<str>>> + Send + 'static,
    ) {
        let sentry = self.shard.sentry().clone();
        tokio::spawn(async move {
            if let Some(words) = failed.await {
                sentry.told(name, &words);
            }
        });
    }

    /// Counts an answer that gives a lock.
    fn count_acquired(&self, answer: &answer::Answer) {
        let took = clock::now().mono.since(answer.arrived);
        self.meters.acquire.observe(took.as_secs_f64());
        self.meters.answered("acquired");
    }

    /// Counts an answer that says no.
    fn count_failure(&self, failure: &errors::Failure) {
        self.meters.answered(failure.code());
        if failure.status() == axum::http::StatusCode::TOO_MANY_REQUESTS {
            self.meters.refused(failure.code());
        }
    }
}

/// So many connections may wait to be accepted.
const BACKLOG: i32 = 1024;

/// Serves the API on a socket that has its address. It need not listen yet: while a node starts,
/// callers are better refused than kept waiting.
pub fn spawn(context: Context, listener: TcpListener) -> Result<ApiHandle, ApiError> {
    let addr = listener.local_addr()?;
    rustix::net::listen(&listener, BACKLOG).map_err(std::io::Error::from)?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("api")
        .enable_all()
        .build()?;
    let entered = runtime.enter();
    let owner = format!("{}{}", views::GATEWAY, context.id);
    let security = context.security;
    let home = NodeId(context.id.saturating_sub(1));
    let driver = Driver::spawn_at(&context.cluster, &owner, security.clone(), Some(home))?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let (stop, stopping) = signal::channel(false);
    let app = Arc::new(App {
        config: driver.config(),
        fetch: fetch::Fetch::new(&context.cluster, context.id, &security),
        bodies: body::Bodies::new(&context.limits),
        origins: origin::Origins::new(&context.cluster, &context.names),
        cluster: context.cluster,
        id: context.id,
        shard: context.shard,
        driver,
        key: context.key,
        meters: context.meters,
        process: context.process,
        started: clock::now().mono,
        limits: context.limits,
        waiting: share::Shares::new(context.limits.waiters),
        watching: share::Shares::new(context.limits.watchers),
        stopping,
        gate: context.gate,
        audit: context.audit,
        security,
        keepers: keepers::Keepers::default(),
    });
    keep_fresh(&app);
    let (shard, node_ended) = (app.shard.clone(), stop.clone());
    let sentry = app.shard.sentry().clone();
    tokio::spawn(sentry.task("api", async move {
        // Why the node ended is told to whoever waits for it; without it there is no API.
        let _ = shard.ended().await;
        node_ended.send_replace(true);
    }));
    let failed = app.driver.failed();
    app.end_with("gateway", failed);
    drop(entered);
    let handle = runtime.handle().clone();
    let thread = sentry.thread("api", move || {
        runtime.block_on(server::serve(app, listener));
        runtime.shutdown_timeout(STOP_MAX / 3);
    })?;
    Ok(ApiHandle {
        addr,
        stop,
        runtime: handle,
        thread: Some(thread),
    })
}

/// Takes up certificates that are renewed on disk, off the threads that others wait for.
fn keep_fresh(app: &Arc<App>) {
    let Some(tls) = app.security.tls().cloned() else {
        return;
    };
    let mut stopping = app.stopping.clone();
    let sentry = app.shard.sentry().clone();
    let look = sentry.clone();
    tokio::spawn(sentry.task("api", async move {
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                _ = stopping.wait_for(|stopping| *stopping) => return,
            }
            let (tls, sentry) = (tls.clone(), look.clone());
            let refresh = move || sentry.run("api", || tls.refresh());
            // It fails only when the runtime ends.
            let _ = tokio::task::spawn_blocking(refresh).await;
        }
    }));
}

/// Says that there is nothing at a path, in the words of whoever asks.
async fn nothing_here(headers: HeaderMap) -> Response {
    let kind = headers.get(header::CONTENT_TYPE);
    if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
        return tonic::Status::unimplemented("no such service").into_http();
    }
    errors::Failure::NotFound.into_response()
}

/// Says which method a path takes: all that have one only are read, but that of revocations.
async fn wrong_method(uri: Uri) -> Response {
    let posts = uri.path().starts_with("/v1/sessions/");
    let allow = if posts { "POST" } else { path::READ };
    errors::Failure::WrongMethod { allow }.into_response()
}

/// Every path with its description. What a plain path is and which methods it takes stands beside
/// its handler alone; the trees of names are dispatched by `path`, `leases` and `objects`.
fn described() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::with_openapi(openapi::Trees::openapi())
        .routes(routes!(status::root))
        .routes(routes!(status::healthz))
        .routes(routes!(status::readyz))
        .routes(routes!(status::metrics))
        .routes(routes!(status::cluster))
        .routes(routes!(openapi::openapi))
        .routes(routes!(status::status))
        .routes(routes!(sessions::sessions))
        .routes(routes!(revoke::revoke))
        .routes(routes!(watch::prefix))
        .routes(routes!(locks::list))
        .route("/v1/leases/{*rest}", any(leases::leases))
        .route("/v1/objects/{*rest}", any(objects::objects))
        .route("/v1/locks/", any(locks::locks))
        .route("/v1/locks/{*rest}", any(locks::locks))
}

fn router(app: &Arc<App>) -> Router {
    let (router, description) = described().split_for_parts();
    let description = openapi::Description::new(&description, &app.cluster, &app.config);
    #[cfg(test)]
    let router = router.route(
        "/v1/panic",
        axum::routing::get(async || -> () { panic!("asked for") }),
    );
    router
        .method_not_allowed_fallback(wrong_method)
        .fallback(nothing_here)
        .with_state(app.clone())
        .layer(Extension(description))
        .merge(grpc::router(app))
        .layer(from_fn_with_state(app.clone(), admit::admit))
}
