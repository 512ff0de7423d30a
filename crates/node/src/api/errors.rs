//! Why the API says no: one enum, with the HTTP status, the gRPC status and the word that
//! programs compare.

use std::time::Duration;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use conclave_protocol::lock::Refusal;
use conclave_wire::handle::HandleError;
use serde::Serialize;
use thiserror::Error;
use utoipa::ToSchema;

use super::refusals;
use super::views::Holder;
use crate::meters::refusal_code;

/// Why a call of the API failed, and what helps.
#[derive(Clone, Debug, Error)]
pub(crate) enum Failure {
    /// Somebody else is inside, and the time was up.
    #[error("somebody else holds the lock; wait longer or ask again")]
    NotAcquired(Box<InTheWay>),
    /// It was acquired, but took so long that nothing of its validity was left.
    #[error("the lock was acquired too late to be of use and was released; ask again")]
    TooLate,
    /// The handle is no longer held.
    #[error("the lock is lost: stop using it, and acquire it again")]
    Lost,
    /// Too few nodes have said that they heard of a release.
    #[error(
        "too few nodes answered to say that the lock is free; release again with the same handle, \
         or stop using the lock: it ends by itself after its TTL"
    )]
    NotReleased,
    /// Too few nodes answer.
    #[error("no quorum of nodes answers{}; ask another node", told(troubles))]
    NoQuorum {
        /// What went wrong with some of them.
        troubles: Vec<String>,
    },
    /// The handle is not what a node gave out.
    #[error("{}", HandleError::Forged)]
    Forged,
    /// The handle is another principal's.
    #[error("{}", HandleError::Foreign)]
    Foreign,
    /// Nobody knows who calls.
    #[error(
        "show who you are: a client certificate, or 'Authorization: Bearer' with a valid token"
    )]
    Unauthenticated,
    /// A browser calls for a page of another site.
    #[error("a page of another site ({0}) may not call this API; call it without a browser")]
    ForeignOrigin(String),
    /// A browser posts what a page can send without asking.
    #[error("what a browser posts must have the content type application/json")]
    NotJson,
    /// The request names a host that this node is not.
    #[error(
        "'{0}' is no name of this node: use its address, or add the name to api_names in its file"
    )]
    ForeignHost(String),
    /// The nodes, or the client machine of this gateway, refused.
    #[error("{0}")]
    Refused(Refusal),
    /// Another renewal of the same handle is under way at this node.
    #[error("this handle is being renewed by another request; one renewal at a time is enough")]
    Renewing,
    /// The gateway has as many waiting requests as it may.
    #[error("too many requests wait at this node; ask another node or later")]
    TooManyWaiters,
    /// The gateway has as many watches as it may.
    #[error("too many watches at this node; ask another node or end some")]
    TooManyWatchers,
    /// The wait is longer than allowed.
    #[error("wait_ms is at most 100 times the TTL, here {}; ask again for more", max.as_millis())]
    WaitTooLong {
        /// The longest allowed.
        max: Duration,
    },
    /// The name of the lock cannot be.
    #[error("{0}")]
    BadName(&'static str),
    /// The request's body or query is not what the call takes.
    #[error("{0}")]
    BadRequest(String),
    /// The request's body is too large.
    #[error("the body is larger than {max} bytes")]
    BodyTooLarge {
        /// The largest allowed.
        max: usize,
    },
    /// The request's body did not come in time.
    #[error("the body did not arrive in time")]
    SlowBody,
    /// Others needed the room that its body took.
    #[error("too many bytes of unfinished bodies are at this node; send the whole body at once")]
    TooManyBodies,
    /// There is nothing at this path.
    #[error("no such path; GET / lists what there is")]
    NotFound,
    /// The path exists, but not with this method.
    #[error("this path takes {allow}; see /v1/openapi.json")]
    WrongMethod {
        /// The methods that it takes, as the header `Allow` has them.
        allow: &'static str,
    },
    /// A lease or an object cannot be had as it was asked for.
    #[error("{0}")]
    Keeper(Box<KeeperFailure>),
    /// The node does not grant, for now or any more.
    #[error("the node is {0}; ask another node")]
    NotReady(String),
}

/// Why a lease or an object cannot be had.
#[derive(Clone, Debug, Error)]
#[error("{message}")]
pub(crate) struct KeeperFailure {
    /// The status of HTTP.
    pub(crate) status: StatusCode,
    /// One word, for programs.
    pub(crate) code: &'static str,
    /// What is wrong, and what helps.
    pub(crate) message: String,
}

/// What kept a request from its lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InTheWay {
    /// Who is inside.
    pub(crate) holders: Vec<Holder>,
    /// How many requests were before it at the worst node.
    pub(crate) position: u32,
}

fn told(troubles: &[String]) -> String {
    if troubles.is_empty() {
        return String::new();
    }
    format!(" ({})", troubles.join("; "))
}

impl Failure {
    /// The status of HTTP.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::NotAcquired(_) | Self::TooLate => StatusCode::CONFLICT,
            Self::Lost => StatusCode::GONE,
            Self::NotReleased | Self::NoQuorum { .. } | Self::NotReady(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Foreign | Self::ForeignOrigin(_) | Self::ForeignHost(_) => StatusCode::FORBIDDEN,
            Self::NotJson => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::Refused(refusal) => refusal_status(refusal),
            Self::Renewing | Self::TooManyWaiters | Self::TooManyWatchers | Self::TooManyBodies => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::Forged | Self::WaitTooLong { .. } | Self::BadName(_) | Self::BadRequest(_) => {
                StatusCode::BAD_REQUEST
            }
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::SlowBody => StatusCode::REQUEST_TIMEOUT,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::WrongMethod { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::Keeper(failure) => failure.status,
        }
    }

    /// One word, for programs.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::NotAcquired(_) | Self::TooLate => "not_acquired",
            Self::Lost => "lost",
            Self::NotReleased => "not_released",
            Self::NoQuorum { .. } => "no_quorum",
            Self::Forged => "forged_handle",
            Self::Foreign => "foreign_handle",
            Self::Unauthenticated => "unauthenticated",
            Self::ForeignOrigin(_) => "foreign_origin",
            Self::NotJson => "not_json",
            Self::ForeignHost(_) => "foreign_host",
            Self::Refused(refusal) => refusal_code(refusal),
            Self::Renewing => "renewing",
            Self::TooManyWaiters => "too_many_waiters",
            Self::TooManyWatchers => "too_many_watchers",
            Self::WaitTooLong { .. } => "wait_too_long",
            Self::BadName(_) => "bad_name",
            Self::BadRequest(_) => "bad_request",
            Self::BodyTooLarge { .. } => "body_too_large",
            Self::SlowBody => "slow_body",
            Self::TooManyBodies => "too_many_bodies",
            Self::NotFound => "not_found",
            Self::WrongMethod { .. } => "wrong_method",
            Self::NotReady(_) => "not_ready",
            Self::Keeper(failure) => failure.code,
        }
    }

    /// The body, for any of the ways to answer.
    pub(crate) fn body(&self) -> ErrorBody<'_> {
        let way = match self {
            Self::NotAcquired(way) => Some(&**way),
            Self::TooLate => Some(&NOBODY),
            _ => None,
        };
        ErrorBody {
            error: ErrorText {
                code: self.code(),
                message: self.to_string(),
            },
            holders: way.map(|way| &way.holders[..]),
            position: way.map(|way| way.position),
            status: None,
        }
    }

    /// The body in a stream, whose own status is out before.
    pub(crate) fn late_body(&self) -> ErrorBody<'_> {
        ErrorBody {
            status: Some(self.status().as_u16()),
            ..self.body()
        }
    }
}

static NOBODY: InTheWay = InTheWay {
    holders: Vec::new(),
    position: 0,
};

/// Why a call failed.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Error)]
pub(crate) struct ErrorBody<'a> {
    error: ErrorText,
    /// Who is inside, where a lock was not acquired.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<Vec<Holder>>)]
    holders: Option<&'a [Holder]>,
    /// How many requests were before it at the worst node, where a lock was not acquired.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    position: Option<u32>,
    /// The status, in streams alone: theirs is out before.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    status: Option<u16>,
}

/// What is wrong.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ErrorText)]
struct ErrorText {
    #[schema(schema_with = refusals::code)]
    code: &'static str,
    /// What is wrong and what helps, for people.
    message: String,
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = (self.status(), Json(self.body())).into_response();
        if let Self::WrongMethod { allow } = self {
            let allow = axum::http::HeaderValue::from_static(allow);
            response.headers_mut().insert(header::ALLOW, allow);
        }
        if matches!(self, Self::Unauthenticated) {
            let bearer = axum::http::HeaderValue::from_static("Bearer");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, bearer);
        }
        if matches!(
            self,
            Self::BodyTooLarge { .. } | Self::SlowBody | Self::TooManyBodies
        ) {
            // What is left of the body is not read.
            let close = axum::http::HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        response
    }
}

/// Whether a refusal is the caller's doing (400), a limit (429) or a state of the nodes (503).
pub(crate) fn refusal_status(refusal: &Refusal) -> StatusCode {
    match refusal {
        Refusal::QueueFull
        | Refusal::SessionLimit
        | Refusal::RequestLimit
        | Refusal::LockLimit
        | Refusal::WatchLimit
        | Refusal::ClientLimit => StatusCode::TOO_MANY_REQUESTS,
        Refusal::TtlTooLong { .. }
        | Refusal::TtlTooShort { .. }
        | Refusal::Size
        | Refusal::NoHandles
        | Refusal::Unfit => StatusCode::BAD_REQUEST,
        Refusal::Finished | Refusal::Revoked => StatusCode::GONE,
        Refusal::NotPermitted => StatusCode::FORBIDDEN,
        Refusal::StaleConfig { .. }
        | Refusal::OldConnection
        | Refusal::PriorityAhead { .. }
        | Refusal::TokenAhead { .. }
        | Refusal::TokenAboveLimit => StatusCode::SERVICE_UNAVAILABLE,
    }
}

impl From<HandleError> for Failure {
    fn from(error: HandleError) -> Self {
        match error {
            HandleError::Forged => Self::Forged,
            HandleError::Foreign => Self::Foreign,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_way_stands_beside_the_error() {
        let way = InTheWay {
            holders: Vec::new(),
            position: 3,
        };
        let failure = Failure::NotAcquired(Box::new(way));
        let json = serde_json::to_value(failure.body()).unwrap();
        assert_eq!(json["error"]["code"], "not_acquired");
        assert_eq!(json["position"], 3);
        assert_eq!(json["holders"], serde_json::json!([]));
        let json = serde_json::to_value(Failure::Lost.body()).unwrap();
        assert_eq!(json["error"]["code"], "lost");
        assert!(json.get("position").is_none());
    }

    #[test]
    fn limits_are_429_and_mistakes_400() {
        let limits = [
            Refusal::QueueFull,
            Refusal::SessionLimit,
            Refusal::RequestLimit,
            Refusal::LockLimit,
            Refusal::ClientLimit,
        ];
        for limit in limits {
            assert_eq!(refusal_status(&limit).as_u16(), 429, "{limit}");
        }
        let max = Duration::from_secs(1);
        for mistake in [
            Refusal::TtlTooLong { max },
            Refusal::Size,
            Refusal::NoHandles,
        ] {
            assert_eq!(refusal_status(&mistake).as_u16(), 400, "{mistake}");
        }
        assert_eq!(Failure::Refused(Refusal::QueueFull).code(), "queue_full");
    }
}
