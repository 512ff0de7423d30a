//! An answer that gives a lock or a lease away must arrive. From the moment a handle exists until
//! its answer may have reached the caller, a [`Guard`] goes with it; if it is dropped on the way,
//! what was given is released. Once a byte of the answer may be out, nothing is released any more:
//! whoever has been told that it holds a lock must not lose it.
//!
//! The way: the handler's future, the response and its body, the list of the connection
//! ([`Deliveries`]) when the body is written to hyper's buffer, and its end when the connection
//! writes next ([`Wire`]).

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::response::Response;
use conclave_client::LeaseGuard;
use conclave_client::driver::{Driver, Work};
use conclave_client::secure::Stream;
use conclave_protocol::Instant;
use conclave_protocol::lock::Handle;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// When a request arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived(pub(crate) Instant);

/// Gives up what was given to a caller whom the answer did not reach.
#[derive(Debug)]
pub(crate) struct Guard {
    armed: Option<Given>,
}

/// What an answer gives away.
#[derive(Debug)]
enum Given {
    Lock(Driver, Box<Handle>),
    Lease(LeaseGuard),
}

impl Guard {
    pub(crate) fn of_lock(driver: Driver, handle: Box<Handle>) -> Self {
        Self {
            armed: Some(Given::Lock(driver, handle)),
        }
    }

    pub(crate) fn of_lease(lease: LeaseGuard) -> Self {
        Self {
            armed: Some(Given::Lease(lease)),
        }
    }

    /// The answer is on its way: its caller has the handle, and this gateway keeps nothing.
    fn disarm(mut self) {
        match self.armed.take() {
            Some(Given::Lease(lease)) => lease.hand_over(),
            Some(Given::Lock(..)) | None => {}
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        match self.armed.take() {
            Some(Given::Lock(driver, handle)) => drop(driver.begin(Work::Abandon(handle))),
            // Dropping it gives it back.
            Some(Given::Lease(_)) | None => {}
        }
    }
}

/// The guards of answers that are in a connection's buffer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deliveries(Arc<Mutex<Vec<Guard>>>);

impl Deliveries {
    /// The guard's answer was put into the buffer.
    pub(crate) fn add(&self, guard: Guard) {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.push(guard);
    }

    fn take(&self) -> Vec<Guard> {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut list)
    }
}

/// A guard on its way from a handler to the connection, in the extensions of a response.
#[derive(Clone, Debug)]
pub(crate) struct Escort(Arc<Mutex<Option<Guard>>>);

impl Escort {
    pub(crate) fn new(guard: Guard) -> Self {
        Self(Arc::new(Mutex::new(Some(guard))))
    }

    fn take(&self) -> Option<Guard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Puts the guard of a response, if it has one, into its body.
pub(crate) fn escorted(response: Response, deliveries: &Deliveries, whole: bool) -> Response {
    let Some(escort) = response.extensions().get::<Escort>().cloned() else {
        return response;
    };
    let Some(guard) = escort.take() else {
        return response;
    };
    let deliveries = deliveries.clone();
    response.map(|body| {
        Body::new(Escorted {
            body,
            guard: Some(guard),
            deliveries,
            whole,
            read: false,
        })
    })
}

/// A body that hands its guard to the connection when it is read.
struct Escorted {
    body: Body,
    guard: Option<Guard>,
    deliveries: Deliveries,
    /// Over HTTP/2 what was read may still wait for the caller's window. It is let through when
    /// the end of the body is asked for, and without its end the caller has no answer.
    whole: bool,
    read: bool,
}

impl HttpBody for Escorted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.read
            && let Some(guard) = self.guard.take()
        {
            self.deliveries.add(guard);
        }
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(_))) = &frame {
            self.read = true;
            if !self.whole
                && let Some(guard) = self.guard.take()
            {
                self.deliveries.add(guard);
            }
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        // The end must be asked for while there is a guard to hand over.
        self.guard.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection that knows when what was put into its buffer may have left, and that ends if no
/// request comes on it in time.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: Stream,
    deliveries: Deliveries,
    /// Until the first request has come.
    patience: Option<Pin<Box<Sleep>>>,
    greeted: Arc<AtomicBool>,
}

impl Wire {
    pub(crate) fn new(
        stream: Stream,
        deliveries: Deliveries,
        patience: std::time::Duration,
        greeted: Arc<AtomicBool>,
    ) -> Self {
        Self {
            stream,
            deliveries,
            patience: Some(Box::pin(tokio::time::sleep(patience))),
            greeted,
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        drop(self.deliveries.take());
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.patience.is_some() && self.greeted.load(Ordering::Relaxed) {
            self.patience = None;
        }
        let patience = self.patience.as_mut();
        if patience.is_some_and(|patience| patience.as_mut().poll(cx).is_ready()) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl Wire {
    /// Whatever was in the buffer may be out now.
    fn wrote(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(1..)) = &written {
            self.deliveries.take().into_iter().for_each(Guard::disarm);
        }
        written
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
