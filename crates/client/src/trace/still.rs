//! No traces: what is left when the feature `otel` is off.

use std::time::Duration;

use super::{Origin, Span, StartError};

/// What a caller was doing when it asked; nothing is known of it here.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caller {}

impl Caller {
    /// What the caller is doing now.
    pub fn current() -> Self {
        Self {}
    }

    /// What the caller says of itself, as in the header `traceparent`.
    pub fn from_traceparent(_text: &str) -> Self {
        Self {}
    }
}

/// Whether traces are made.
#[inline]
pub const fn on() -> bool {
    false
}

/// Whether a trace of this request is made.
#[inline]
pub const fn wants(_origin: Origin) -> bool {
    false
}

/// Begins to send traces if the environment says where to: `true` if it does.
pub fn start(_service: &str, _instance: Option<&str>) -> Result<bool, StartError> {
    Ok(false)
}

/// Sends what is left, for a bounded time, and ends.
pub fn stop() {}

pub(super) fn send(span: Span, _took: Duration) {
    drop(span);
}
