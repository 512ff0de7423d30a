//! The bodies of requests. What callers have sent of bodies that have not ended is bounded: each
//! in size and time, all of an address and all together in bytes. Beyond that the oldest of the
//! address that has most is given up.

use std::error::Error;
use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use tokio::time::Sleep;

use super::ApiLimits;
use super::errors::Failure;
use super::fair_share::{FairShare, Share};

/// What all bodies share.
#[derive(Clone, Debug)]
pub(super) struct Bodies {
    share: FairShare,
    max: usize,
    patience: Duration,
}

impl Bodies {
    pub(super) fn new(limits: &ApiLimits) -> Self {
        Self {
            share: FairShare::new(limits.bodies, limits.bodies_per_address),
            max: limits.body,
            patience: limits.body_time,
        }
    }

    /// The body of a request from an address, within the limits.
    pub(super) fn bound(&self, body: Incoming, from: IpAddr) -> Body {
        if body.is_end_stream() {
            return Body::empty();
        }
        Body::new(Bounded {
            body,
            max: self.max,
            left: self.max,
            end: Box::pin(tokio::time::sleep(self.patience)),
            share: Some(self.share.join(from, 0)),
        })
    }
}

/// A body that counts what came of it.
struct Bounded {
    body: Incoming,
    max: usize,
    left: usize,
    end: Pin<Box<Sleep>>,
    /// None once it has come whole.
    share: Option<Share>,
}

impl Bounded {
    fn counted(&mut self, frame: &Frame<Bytes>) -> Result<(), Failure> {
        let count = frame.data_ref().map_or(0, Bytes::len);
        let max = self.max;
        let left = self.left.checked_sub(count);
        self.left = left.ok_or(Failure::BodyTooLarge { max })?;
        if let Some(share) = &self.share {
            share.grow(count);
        }
        Ok(())
    }
}

impl HttpBody for Bounded {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let failed = |failure: Failure| Poll::Ready(Some(Err(BodyError::from(failure))));
        let frame = match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => frame,
            Poll::Ready(Some(Err(error))) => return failed(Failure::BadRequest(error.to_string())),
            Poll::Ready(None) => {
                self.share = None;
                return Poll::Ready(None);
            }
            Poll::Pending => {
                let share = self.share.as_mut();
                if share.is_some_and(|share| share.poll_dropped(cx).is_ready()) {
                    return failed(Failure::TooManyBodies);
                }
                if self.end.as_mut().poll(cx).is_ready() {
                    return failed(Failure::SlowBody);
                }
                return Poll::Pending;
            }
        };
        match self.counted(&frame) {
            Ok(()) => Poll::Ready(Some(Ok(frame))),
            Err(failure) => failed(failure),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Why a body was given up. Its source says the same in the words of gRPC, whose services read
/// bodies by themselves.
#[derive(Debug)]
pub(super) struct BodyError {
    failure: Failure,
    status: Box<tonic::Status>,
}

impl From<Failure> for BodyError {
    fn from(failure: Failure) -> Self {
        Self {
            status: Box::new(failure.clone().into()),
            failure,
        }
    }
}

impl fmt::Display for BodyError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.failure.fmt(out)
    }
}

impl Error for BodyError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.status)
    }
}

/// Why a body could not be read.
pub(super) fn why(error: axum::Error) -> Failure {
    match error.into_inner().downcast::<BodyError>() {
        Ok(given_up) => given_up.failure,
        Err(error) => Failure::BadRequest(error.to_string()),
    }
}
