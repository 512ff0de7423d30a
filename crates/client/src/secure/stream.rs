//! Connections to the API of nodes, plain or over TLS, as their URL says.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, TlsStream};

use super::{Security, Side, explain};

/// A connection, plain or over TLS.
#[derive(Debug)]
pub enum Stream {
    /// As it is.
    Plain(TcpStream),
    /// Over TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

/// Opens a connection to the host of a URL: plain for `http://`, over TLS for `https://`. Whoever
/// has authorities to believe does not speak plainly.
pub async fn open(url: &Uri, security: &Security) -> io::Result<Stream> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
    let host = url.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() {
        return Err(wrong("a URL without a host"));
    }
    let (tls, port) = match (url.scheme_str(), security.tls()) {
        (Some("http"), None) => (None, 80),
        (Some("https"), Some(tls)) => (Some(tls), 443),
        (Some("https"), None) => {
            return Err(wrong("it speaks TLS: give --ca, and --cert and --key"));
        }
        (Some("http"), Some(_)) => {
            return Err(wrong(
                "http:// is not safe where --ca is given: write https://",
            ));
        }
        _ => return Err(wrong("not a URL that begins with http:// or https://")),
    };
    security.check_bearers().map_err(io::Error::other)?;
    let stream = TcpStream::connect((host, url.port_u16().unwrap_or(port))).await?;
    stream.set_nodelay(true)?;
    let Some(tls) = tls else {
        return Ok(Stream::Plain(stream));
    };
    let name = ServerName::try_from(host.to_owned()).map_err(|_| wrong("not a host name"))?;
    let dialled = TlsConnector::from(tls.http_config())
        .connect(name, stream)
        .await;
    let dialled = dialled.map_err(|error| io::Error::other(explain(&error, Side::Node)))?;
    Ok(Stream::Tls(Box::new(dialled.into())))
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// Opens connections for a pool of hyper's.
#[derive(Clone, Debug)]
pub struct Connector(pub Security);

/// A connection in such a pool.
#[derive(Debug)]
pub struct Pooled(TokioIo<Stream>);

impl tower_service::Service<Uri> for Connector {
    type Response = Pooled;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Pooled>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let security = self.0.clone();
        Box::pin(async move { Ok(Pooled(TokioIo::new(open(&url, &security).await?))) })
    }
}

impl Connection for Pooled {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl hyper::rt::Read for Pooled {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl hyper::rt::Write for Pooled {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, parts)
    }
}
