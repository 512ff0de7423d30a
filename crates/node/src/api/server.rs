//! Connections of the API port: HTTP/1 and HTTP/2, plain as the first bytes say, or over TLS.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use conclave_client::clock;
use conclave_client::secure::{Port, Side, Stream, explain};
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::caller::Caller;
use super::deliver::{Arrived, Deliveries, Wire, escorted};
use super::{App, STOP_MAX, router};

/// Requests of one HTTP/2 connection at a time.
const STREAMS_MAX: u32 = 1024;
/// The most bytes of a request's head.
const HEAD_MAX: usize = 64 << 10;

/// Accepts connections until the API is told to stop.
pub(super) async fn serve(app: Arc<App>, listener: TcpListener) {
    let router = router(&app);
    let builder = Arc::new(builder(&app));
    let handshakes = Arc::new(Semaphore::new(app.limits.handshakes));
    let room = Arc::new(Semaphore::new(app.limits.connections));
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
        let Ok(permit) = room.clone().try_acquire_owned() else {
            refuse(&app, &stream);
            continue;
        };
        let (app, router, builder) = (app.clone(), router.clone(), builder.clone());
        let handshakes = handshakes.clone();
        connections.spawn(async move {
            app.meters.api_connections.inc();
            if let Some((stream, caller)) = shake_hands(&app, stream, remote, &handshakes).await {
                connection(&app, router, &builder, stream, (remote, caller)).await;
            }
            app.meters.api_connections.dec();
            drop(permit);
        });
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(STOP_MAX / 2, all).await.is_err() {
        connections.abort_all();
    }
    app.driver.close().await;
}

fn builder(app: &App) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
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
        .keep_alive_interval(app.limits.head)
        .keep_alive_timeout(app.limits.head);
    builder
}

/// Serves one connection until it ends.
async fn connection(
    app: &Arc<App>,
    router: Router,
    builder: &Builder<TokioExecutor>,
    stream: Stream,
    (remote, caller): (SocketAddr, Caller),
) {
    let deliveries = Deliveries::default();
    let greeted = Arc::new(AtomicBool::new(false));
    let wire = Wire::new(stream, deliveries.clone(), app.limits.head, greeted.clone());
    let service = TowerToHyperService::new(router);
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
            None => Ok(service.call(request.map(Body::new))),
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
async fn shake_hands(
    app: &App,
    stream: TcpStream,
    remote: SocketAddr,
    turn: &Semaphore,
) -> Option<(Stream, Caller)> {
    stream.set_nodelay(true).ok()?;
    let tls = app.security.tls();
    let Some(config) = tls.and_then(|tls| tls.server_config(Port::Api)) else {
        return Some((Stream::Plain(stream), Caller::Open));
    };
    let shaken = async {
        let mut first = [0; 3];
        let count = stream.peek(&mut first).await?;
        if count > 0 && first[0] != TLS_FIRST {
            app.meters.refused("plain");
            say_tls(&stream);
            return Ok(None);
        }
        let _turn = turn.acquire().await.map_err(io::Error::other)?;
        let stream = TlsAcceptor::from(config).accept(stream).await?;
        io::Result::Ok(Some(stream))
    };
    match tokio::time::timeout(app.limits.handshake, shaken).await {
        Ok(Ok(Some(stream))) => {
            let shown = stream.get_ref().1.peer_certificates();
            let caller = Caller::new(shown.and_then(<[_]>::first), &app.cluster.name);
            Some((Stream::Tls(Box::new(stream.into())), caller))
        }
        Ok(Ok(None)) => None,
        Ok(Err(error)) => {
            app.meters.refused("tls");
            let reason = explain(&error, Side::Caller);
            tracing::debug!(peer = %remote, %reason, "TLS handshake failed on the API port");
            None
        }
        Err(_) => {
            app.meters.refused("tls");
            None
        }
    }
}

/// Tells a caller that speaks plain HTTP where TLS is spoken.
fn say_tls(stream: &TcpStream) {
    let body = r#"{"error":{"code":"tls_only","message":"this port speaks TLS: write https://"}}"#;
    let text = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    // What it sent is read, for closing with unread bytes would take the answer back.
    let _ = stream.try_read(&mut [0; 4096]);
    let _ = stream.try_write(text.as_bytes());
}

/// The first byte of whoever begins with TLS.
const TLS_FIRST: u8 = 0x16;

/// Tells a caller that there is no room, as far as that fits into the first packet.
fn refuse(app: &App, stream: &TcpStream) {
    app.meters.refused("too_many_connections");
    let body = r#"{"error":{"code":"too_many_connections","message":"ask another node or later"}}"#;
    let text = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    // Whoever cannot take it sees a closed connection, which says the same.
    let _ = stream.try_write(text.as_bytes());
}
