//! The answer that gives or renews a lock or a lease, with times that are true when it is written.
//!
//! The caller's deadline is its own send time + `waited_ms` + `valid_ms`. It sent before the
//! request arrived, so counting the wait from the arrival can only make the deadline earlier, and
//! so does rounding both down. The wait is counted by two clocks whose rates may differ: what
//! they may differ by during the wait is taken off the validity.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use conclave_client::clock;
use conclave_protocol::Instant;
use conclave_protocol::lock::Times;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use serde::Serialize;
use utoipa::ToSchema;

/// A lock or a lease that was given or renewed, as its holder is told.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// The sealed handle.
    pub(crate) handle: String,
    /// The fencing token.
    pub(crate) token: u64,
    /// The identity that the token of a lock fences.
    pub(crate) group: Option<String>,
    /// The slot of a semaphore that was taken.
    pub(crate) slot: Option<u32>,
    /// How many attempts a lease took.
    pub(crate) attempts: Option<u32>,
    /// When the request arrived.
    pub(crate) arrived: Instant,
    /// Until when it is held.
    pub(crate) until: Instant,
    /// The drift of clocks.
    pub(crate) times: Times,
}

/// A lock that was taken or kept.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Acquired<'a> {
    /// The right to keep and release the lock, at any node. Keep it secret.
    handle: &'a str,
    /// The fencing token: larger than those of all earlier holders that exclude this one.
    token: u64,
    /// Who shares the token, for the check at the resource.
    group: &'a str,
    /// The slot that was taken, from 1, if slots were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    slot: Option<u32>,
    /// How long it is held: your deadline is the moment you sent the request, plus `waited_ms`,
    /// plus this.
    valid_ms: u64,
    /// How long the request was at the node.
    waited_ms: u64,
}

/// A lease that was taken or renewed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Leased<'a> {
    /// What renews and releases it, at any node. Keep it secret.
    handle: &'a str,
    /// The fencing token: larger than that of every holder before.
    token: u64,
    /// How many attempts it took.
    attempts: u32,
    /// How long it is held: your deadline is the moment you sent the request, plus `waited_ms`,
    /// plus this.
    valid_ms: u64,
    /// How long the request was at the node.
    waited_ms: u64,
}

/// It was given back.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Released {
    released: bool,
}

impl Released {
    /// The answer.
    pub(crate) const DONE: Self = Self { released: true };
}

impl Answer {
    /// How long it is still valid and how long the request has waited, in milliseconds;
    /// none if nothing is left.
    pub(crate) fn times(&self, now: Instant) -> Option<(u64, u64)> {
        let waited = now.since(self.arrived);
        let drift = waited.saturating_sub(self.times.shrink(waited));
        let valid = self.until.since(now).saturating_sub(drift);
        let valid = u64::try_from(valid.as_millis()).unwrap_or(u64::MAX);
        let waited = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        (valid > 0).then_some((valid, waited))
    }

    /// The JSON object with the times of `now`; none if nothing is left.
    pub(crate) fn json(&self, now: Instant) -> Option<String> {
        let (valid, waited) = self.times(now)?;
        self.told(valid, waited).ok()
    }

    fn told(&self, valid_ms: u64, waited_ms: u64) -> serde_json::Result<String> {
        let (handle, token) = (&self.handle[..], self.token);
        if let Some(attempts) = self.attempts {
            return serde_json::to_string(&Leased {
                handle,
                token,
                attempts,
                valid_ms,
                waited_ms,
            });
        }
        serde_json::to_string(&Acquired {
            handle,
            token,
            group: self.group.as_deref().unwrap_or_default(),
            slot: self.slot,
            valid_ms,
            waited_ms,
        })
    }

    /// The object as a body that is made when it is written.
    pub(crate) fn into_body(self) -> Body {
        let longest = self.told(u64::MAX, u64::MAX).unwrap_or_default();
        let length = longest.len() + "\n".len();
        Body::new(AnswerBody {
            answer: Some(self),
            length,
        })
    }
}

/// The length is told before the numbers are known: spaces fill it.
struct AnswerBody {
    answer: Option<Answer>,
    length: usize,
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        let Some(answer) = self.answer.take() else {
            return Poll::Ready(None);
        };
        let Some(mut text) = answer.json(clock::now().mono) else {
            // The status is out already: only a broken connection can still say no.
            return Poll::Ready(Some(Err(std::io::ErrorKind::TimedOut.into())));
        };
        while text.len() + 1 < self.length {
            text.push(' ');
        }
        text.push('\n');
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(text)))))
    }

    fn is_end_stream(&self) -> bool {
        self.answer.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let left = self.answer.as_ref().map_or(0, |_| self.length);
        SizeHint::with_exact(left as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn answer(arrived_ms: u64, until_ms: u64) -> Answer {
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        Answer {
            handle: "abc_-".into(),
            token: 7,
            group: Some("group:a\"b".into()),
            slot: None,
            attempts: None,
            arrived: at(arrived_ms),
            until: at(until_ms),
            times: Times::default(),
        }
    }

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    #[test]
    fn a_deadline_is_never_late_whatever_was_waited() {
        let answer = answer(1_000, 20_000);
        for now in (1_000_000..21_000_000).step_by(7_321) {
            let Some((valid, waited)) = answer.times(at(now)) else {
                assert!(now > 19_000_000, "{now}: there was something left");
                continue;
            };
            // A caller that sent just when the request arrived, by a clock that runs slower.
            let waited_there = Duration::from_millis(waited).mul_f64(1.005);
            let deadline = at(1_000_000) + waited_there + Duration::from_millis(valid);
            assert!(deadline <= at(20_000_000), "{now}: {deadline}");
        }
    }

    #[test]
    fn the_wait_costs_its_drift() {
        let answer = answer(0, 20_000);
        // Ten seconds waited: half a per cent is 50 ms.
        assert_eq!(answer.times(at(10_000_000)), Some((9_950, 10_000)));
        assert_eq!(answer.times(at(10_000_999)), Some((9_948, 10_000)));
        assert_eq!(answer.times(at(19_950_000)), None);
        assert_eq!(answer.times(at(30_000_000)), None);
    }

    #[tokio::test]
    async fn the_body_is_as_long_as_it_says() {
        let now = clock::now().mono;
        for waited in [0, 5_000] {
            let answer = Answer {
                arrived: now - Duration::from_millis(waited),
                until: now + Duration::from_secs(10),
                ..answer(0, 0)
            };
            let body = answer.into_body();
            let told = body.size_hint().exact().unwrap();
            let bytes = axum::body::to_bytes(body, 10_000).await.unwrap();
            assert_eq!(bytes.len() as u64, told);
            let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
            assert_eq!(json["group"], "group:a\"b");
            assert!(json["waited_ms"].as_u64().unwrap() >= waited);
            assert!(json["valid_ms"].as_u64().unwrap() <= 10_000);
        }
    }

    #[tokio::test]
    async fn a_body_with_nothing_left_breaks_off() {
        let body = answer(0, 1).into_body();
        assert!(axum::body::to_bytes(body, 10_000).await.is_err());
    }
}
