//! Connections of the API port: HTTP/1 and HTTP/2, plain as the first bytes say, or over TLS.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use axum::Router;
use axum::response::Response;
use conclave_client::clock;
use conclave_client::secure::{Port, Stream};
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::io::AsyncWrite;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::caller::Caller;
use super::deliver::{Arrived, Deliveries, Wire, escorted};
use super::handshake::{Handshake, Handshakes};
use super::share::Shares;
use super::{App, STOP_MAX, router};
use crate::sentry::Sentry;
use crate::who::account_of;

/// Requests of one HTTP/2 connection at a time.
const STREAMS_MAX: u32 = 100;
/// The most bytes of a request's head.
const HEAD_MAX: usize = 16 << 10;
/// The most bytes of a stream of HTTP/2, and of all of a connection, that nobody has read yet.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 256 << 10;

/// Accepts connections until the API is told to stop.
pub(super) async fn serve(app: Arc<App>, listener: TcpListener) {
    let router = router(&app);
    let builder = Arc::new(builder(&app));
    let handshakes = Handshakes::new(&app.limits);
    let room = Shares::new(app.limits.connections);
    let mut connections = JoinSet::new();
    let mut stopping = app.stopping.clone();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.wait_for(|stopping| *stopping) => break,
            Some(_) = connections.join_next() => continue,
        };
        let (stream, remote) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, mostly: others must close first.
                tracing::warn!(%error, "cannot accept a connection on the API port");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let (app, router, builder) = (app.clone(), router.clone(), builder.clone());
        let room = room.clone();
        // Here, for the oldest is who was accepted first.
        let handshake = app.security.tls().map(|_| handshakes.begin(remote.ip()));
        let sentry = app.shard.sentry().clone();
        connections.spawn(sentry.task("api", async move {
            let Some((mut stream, caller)) = greet(&app, stream, remote, handshake).await else {
                return;
            };
            // Whoever is still in its handshake takes no room.
            let Some(_permit) = room.take(&account_of(remote.ip())) else {
                return refuse(&app, &mut stream);
            };
            app.meters.api_connections.inc();
            connection(&app, router, &builder, stream, (remote, caller)).await;
            app.meters.api_connections.dec();
        }));
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(STOP_MAX / 2, all).await.is_err() {
        connections.abort_all();
    }
    app.driver.close().await;
}

/// Runs the requests of a connection that come side by side.
#[derive(Clone)]
struct Guarded(Sentry);

impl<F> Executor<F> for Guarded
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, request: F) {
        tokio::spawn(self.0.task("api", request));
    }
}

fn builder(app: &App) -> Builder<Guarded> {
    let mut builder = Builder::new(Guarded(app.shard.sentry().clone()));
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(app.limits.head)
        .max_buf_size(HEAD_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_MAX as u32)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(app.limits.head)
        .keep_alive_timeout(app.limits.head);
    builder
}

/// Serves one connection until it ends.
async fn connection(
    app: &Arc<App>,
    router: Router,
    builder: &Builder<Guarded>,
    stream: Stream,
    (remote, caller): (SocketAddr, Caller),
) {
    let deliveries = Deliveries::default();
    let greeted = Arc::new(AtomicBool::new(false));
    let wire = Wire::new(stream, deliveries.clone(), app.limits.head, greeted.clone());
    let service = TowerToHyperService::new(router);
    let bodies = app.bodies.clone();
    let tokens = !app.gate.is_open();
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        greeted.store(true, Ordering::Relaxed);
        let deliveries = deliveries.clone();
        let whole = request.version() == hyper::Version::HTTP_2;
        let extensions = request.extensions_mut();
        extensions.insert(Arrived(clock::now().mono));
        extensions.insert(deliveries.clone());
        extensions.insert(remote);
        extensions.insert(caller.identity());
        let answer = match caller.refused(&request, tokens) {
            Some(refusal) => Err(refusal),
            None => Ok(service.call(request.map(|body| bodies.bound(body, remote.ip())))),
        };
        async move {
            let response: Result<Response, Infallible> = match answer {
                Ok(answer) => answer.await,
                Err(refusal) => Ok(*refusal),
            };
            response.map(|response| escorted(response, &deliveries, whole))
        }
    });
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(wire), service));
    let mut stopping = app.stopping.clone();
    tokio::select! {
        // How a connection ends is its caller's business.
        _ = connection.as_mut() => return,
        _ = stopping.wait_for(|stopping| *stopping) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

/// Finds out who calls. Whoever does not get that far is told what to do, if it can be.
async fn greet(
    app: &App,
    stream: TcpStream,
    remote: SocketAddr,
    handshake: Option<Handshake>,
) -> Option<(Stream, Caller)> {
    stream.set_nodelay(true).ok()?;
    let tls = app.security.tls();
    let config = tls.and_then(|tls| tls.server_config(Port::Api));
    let (Some(config), Some(handshake)) = (config, handshake) else {
        return Some((Stream::Plain(stream), Caller::Open));
    };
    let stream = match handshake.shake(stream, config).await {
        Ok(stream) => stream,
        Err(failed) => {
            app.meters.refused(failed.reason());
            tracing::debug!(peer = %remote, %failed, "TLS handshake failed on the API port");
            return None;
        }
    };
    let shown = stream.get_ref().1.peer_certificates();
    let caller = Caller::new(shown.and_then(<[_]>::first), &app.cluster.name);
    Some((Stream::Tls(Box::new(stream.into())), caller))
}

/// Tells a caller that there is no room.
fn refuse(app: &App, stream: &mut Stream) {
    app.meters.refused("too_many_connections");
    let body = r#"{"error":{"code":"too_many_connections","message":"ask another node or later"}}"#;
    let text = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    // Whoever does not take it at once sees a closed connection, which says the same.
    let mut at_once = Context::from_waker(Waker::noop());
    let mut stream = Pin::new(stream);
    let _ = stream.as_mut().poll_write(&mut at_once, text.as_bytes());
    let _ = stream.poll_shutdown(&mut at_once);
}
