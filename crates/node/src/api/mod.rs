//! The gateway and everything else on the API port: locks for thin clients over HTTP and gRPC,
//! and what operators, probes and smart clients read.
//!
//! | module | what |
//! |---|---|
//! | `gateway` | takes, renews and releases locks for thin clients |
//! | `locks`, `path`, `text` | the same over HTTP with JSON |
//! | `grpc` | the same over gRPC |
//! | `keepers`, `leases`, `objects`, `grpc_keeper` | leases and objects for thin clients |
//! | `admit`, `revoke` | who calls; sessions that an operator ends |
//! | `answer`, `deliver` | true times; locks whose answer is not written are released |
//! | `look`, `views`, `fetch` | locks and sessions of all nodes, merged |
//! | `watch` | locks as they change, as server-sent events |
//! | `status`, `openapi` | health, metrics, the cluster, the description of all this |
//! | `server`, `caller` | connections and their limits, TLS, and who calls |

mod admit;
mod answer;
mod caller;
mod deliver;
mod errors;
mod fetch;
mod gateway;
mod grpc;
mod grpc_keeper;
mod keepers;
mod leases;
mod locks;
mod look;
mod objects;
mod openapi;
mod path;
mod revoke;
mod server;
mod status;
mod text;
mod views;
mod watch;
mod why;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderMap, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use conclave_client::driver::Driver;
use conclave_client::secure::{LOOK, Secret};
use conclave_client::{Security, clock};
use conclave_protocol::Instant;
use conclave_protocol::id::NodeId;
use conclave_protocol::lock::Config;
use conclave_wire::Cluster;
use conclave_wire::cluster::ClusterError;
use conclave_wire::handle::Key;
use thiserror::Error;
use tokio::sync::{Semaphore, watch as signal};

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
}

/// How much callers of the API may make a node keep.
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
    /// How long the head of a request may take, and how long a connection may be idle.
    pub head: Duration,
    /// How long a TLS handshake may take.
    pub handshake: Duration,
    /// TLS handshakes at once; others wait for their turn.
    pub handshakes: usize,
}

impl Default for ApiLimits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            waiters: 20_000,
            watchers: 4000,
            body: 64 << 10,
            head: Duration::from_secs(30),
            handshake: Duration::from_secs(5),
            handshakes: 64,
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
    thread: Option<JoinHandle<()>>,
}

impl ApiHandle {
    /// Where it is served.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Takes no more connections, answers those who wait that the node stops, gives the other
    /// answers a little time and ends. Returns when it is over, after [`STOP_MAX`] at the latest.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed; there is nothing to add.
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
    waiting: Arc<Semaphore>,
    watching: Arc<Semaphore>,
    stopping: signal::Receiver<bool>,
    fetch: fetch::Fetch,
    gate: Arc<Gate>,
    audit: Option<Audit>,
    security: Security,
    /// Leases and objects in the names of callers.
    keepers: keepers::Keepers,
}

impl App {
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

/// Serves the API on a listening socket.
pub fn spawn(context: Context, listener: TcpListener) -> Result<ApiHandle, ApiError> {
    let addr = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("api")
        .enable_all()
        .build()?;
    let entered = runtime.enter();
    let owner = format!("{}{}", views::GATEWAY, context.id);
    let mut security = context.security;
    if !context.gate.is_open() {
        // Where callers must show who they are, so must gateways.
        let node = NodeId(context.id.saturating_sub(1));
        let shown = context.gate.key().credential_of(node);
        security = security.with_bearer(Secret::new(shown));
    }
    let home = NodeId(context.id.saturating_sub(1));
    let driver = Driver::spawn_at(&context.cluster, &owner, security.clone(), Some(home))?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let (stop, stopping) = signal::channel(false);
    let app = Arc::new(App {
        config: driver.config().clone(),
        fetch: fetch::Fetch::new(&context.cluster, context.id, &security),
        cluster: context.cluster,
        id: context.id,
        shard: context.shard,
        driver,
        key: context.key,
        meters: context.meters,
        process: context.process,
        started: clock::now().mono,
        limits: context.limits,
        waiting: Arc::new(Semaphore::new(context.limits.waiters)),
        watching: Arc::new(Semaphore::new(context.limits.watchers)),
        stopping,
        gate: context.gate,
        audit: context.audit,
        security,
        keepers: keepers::Keepers::default(),
    });
    keep_fresh(&app);
    let (shard, node_ended) = (app.shard.clone(), stop.clone());
    tokio::spawn(async move {
        // Why the node ended is told to whoever waits for it; without it there is no API.
        let _ = shard.ended().await;
        node_ended.send_replace(true);
    });
    drop(entered);
    let thread = std::thread::Builder::new()
        .name("api".into())
        .spawn(move || {
            runtime.block_on(server::serve(app, listener));
            runtime.shutdown_timeout(STOP_MAX / 3);
        })?;
    Ok(ApiHandle {
        addr,
        stop,
        thread: Some(thread),
    })
}

/// Takes up certificates that are renewed on disk, off the threads that others wait for.
fn keep_fresh(app: &Arc<App>) {
    let Some(tls) = app.security.tls().cloned() else {
        return;
    };
    let mut stopping = app.stopping.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                _ = stopping.wait_for(|stopping| *stopping) => return,
            }
            let tls = tls.clone();
            // It fails only when the runtime ends.
            let _ = tokio::task::spawn_blocking(move || tls.refresh()).await;
        }
    });
}

/// The paths and their methods, as in the description.
#[cfg(test)]
pub(crate) const ROUTES: [(&str, &str); 21] = [
    ("GET", "/"),
    ("GET", "/healthz"),
    ("GET", "/metrics"),
    ("GET", "/readyz"),
    ("GET", "/v1/cluster"),
    ("GET", "/v1/locks"),
    ("GET", "/v1/locks/{name}"),
    ("GET", "/v1/locks/{name}/watch"),
    ("GET", "/v1/objects/{kind}/{name}"),
    ("GET", "/v1/openapi.json"),
    ("GET", "/v1/sessions"),
    ("GET", "/v1/status"),
    ("GET", "/v1/watch"),
    ("POST", "/v1/leases/release"),
    ("POST", "/v1/leases/renew"),
    ("POST", "/v1/leases/{name}/acquire"),
    ("POST", "/v1/locks/keepalive"),
    ("POST", "/v1/locks/release"),
    ("POST", "/v1/locks/{name}/acquire"),
    ("POST", "/v1/objects/{kind}/{name}"),
    ("POST", "/v1/sessions/{id}/revoke"),
];

/// Says that there is nothing at a path, in the words of whoever asks.
async fn nothing_here(headers: HeaderMap) -> Response {
    let kind = headers.get(header::CONTENT_TYPE);
    if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
        return tonic::Status::unimplemented("no such service").into_http();
    }
    errors::Failure::NotFound.into_response()
}

fn router(app: &Arc<App>) -> Router {
    Router::new()
        .route("/", get(status::root))
        .route("/healthz", get(status::healthz))
        .route("/readyz", get(status::readyz))
        .route("/metrics", get(status::metrics))
        .route("/v1/cluster", get(status::cluster))
        .route("/v1/openapi.json", get(openapi::openapi))
        .route("/v1/status", get(status::status))
        .route("/v1/sessions", get(status::sessions))
        .route("/v1/sessions/{id}/revoke", post(revoke::revoke))
        .route("/v1/watch", get(watch::prefix))
        .route("/v1/leases/{*rest}", any(leases::leases))
        .route("/v1/objects/{*rest}", any(objects::objects))
        .route("/v1/locks", get(locks::list))
        .route("/v1/locks/", any(locks::locks))
        .route("/v1/locks/{*rest}", any(locks::locks))
        .method_not_allowed_fallback(|| async { errors::Failure::WrongMethod })
        .fallback(nothing_here)
        .with_state(app.clone())
        .merge(grpc::router(app))
        .layer(from_fn_with_state(app.clone(), admit::admit))
}
