//! Every status by which the API says no, with the codes that come with it, for the description.
//!
//! Tests compare the table with [`Failure`](super::errors::Failure), where both are decided.

use std::collections::BTreeMap;

use utoipa::openapi::header::Header;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Response, ResponseBuilder};
use utoipa::{IntoResponses, PartialSchema, ToSchema};

use super::errors::ErrorBody;

/// A status, when it is told, and its codes.
struct Refusal {
    status: u16,
    when: &'static str,
    codes: &'static [&'static str],
}

const fn says(status: u16, when: &'static str, codes: &'static [&'static str]) -> Refusal {
    Refusal {
        status,
        when,
        codes,
    }
}

/// All of them.
const REFUSALS: [Refusal; 12] = [
    says(
        400,
        "The request is wrong; the message says what",
        &[
            "bad_name",
            "bad_request",
            "forged_handle",
            "name",
            "no_handles",
            "no_objects",
            "size",
            "span",
            "ttl_too_long",
            "ttl_too_short",
            "unfit",
            "wait_too_long",
        ],
    ),
    says(
        401,
        "The cluster wants to know who calls, and does not",
        &["no_certificate", "not_authenticated", "unauthenticated"],
    ),
    says(
        403,
        "The caller may not do this, or not from there",
        &[
            "foreign_certificate",
            "foreign_handle",
            "foreign_host",
            "foreign_origin",
            "needs_token",
            "not_permitted",
        ],
    ),
    says(
        404,
        "There is nothing here, or nothing in it",
        &["empty", "not_found"],
    ),
    says(
        405,
        "The path takes other methods; the header Allow names them",
        &["wrong_method"],
    ),
    says(408, "The body did not arrive in time", &["slow_body"]),
    says(
        409,
        "Somebody else has it, or it is not as it was thought to be",
        &[
            "not_acquired",
            "other_kind",
            "overflow",
            "timed_out",
            "unreadable",
            "version_mismatch",
        ],
    ),
    says(
        410,
        "It is no longer held: stop using it",
        &["ended", "finished", "lost", "revoked"],
    ),
    says(
        413,
        "The body, the operation or the object would be too large",
        &["body_too_large", "too_large"],
    ),
    says(
        415,
        "A browser posts something else than JSON",
        &["not_json"],
    ),
    says(
        429,
        "Somebody has as much as they may have; ask later or another node",
        &[
            "busy",
            "client_limit",
            "full",
            "lock_limit",
            "queue_full",
            "renewing",
            "request_limit",
            "session_limit",
            "too_many_bodies",
            "too_many_waiters",
            "too_many_watchers",
            "watch_limit",
        ],
    ),
    says(
        503,
        "Too few nodes answer, or not now; ask another node or again",
        &[
            "closed",
            "cluster",
            "contradiction",
            "forgotten",
            "infeasible",
            "no_quorum",
            "not_ready",
            "not_released",
            "not_renewed",
            "not_serving",
            "old_connection",
            "older",
            "priority_ahead",
            "proof",
            "shared_token",
            "stale_config",
            "timed_out",
            "token_above_limit",
            "token_ahead",
            "token_too_far",
            "too_many_connections",
            "unconfirmed",
            "unknown",
            "unknown_state",
            "unreadable",
        ],
    ),
];

/// The schema of a code: one of all there are.
pub(super) fn code() -> Schema {
    let codes = REFUSALS.iter().flat_map(|refusal| refusal.codes);
    let mut codes: Vec<&str> = codes.copied().collect();
    codes.sort_unstable();
    codes.dedup();
    let word = ObjectBuilder::new()
        .schema_type(SchemaType::Type(Type::String))
        .description(Some("One word, for programs."))
        .enum_values(Some(codes));
    Schema::Object(word.build())
}

fn response(refusal: &Refusal) -> Response {
    let codes: Vec<String> = refusal.codes.iter().map(|one| format!("`{one}`")).collect();
    let error = Ref::from_schema_name(ErrorBody::name());
    let content = ContentBuilder::new().schema(Some(error)).build();
    let mut response = ResponseBuilder::new()
        .description(format!("{}: {}.", refusal.when, codes.join(", ")))
        .content("application/json", content);
    if refusal.status == 405 {
        let mut allow = Header::new(String::schema());
        allow.description = Some("The methods that the path takes.".to_owned());
        response = response.header("Allow", allow);
    }
    response.build()
}

fn responses(statuses: &[u16]) -> BTreeMap<String, RefOr<Response>> {
    let chosen = REFUSALS
        .iter()
        .filter(|refusal| statuses.contains(&refusal.status));
    chosen
        .map(|refusal| (refusal.status.to_string(), response(refusal).into()))
        .collect()
}

/// Sets of answers that calls have in common.
macro_rules! sets {
    ($($(#[$doc:meta])* $name:ident: $($status:literal),+;)+) => {$(
        $(#[$doc])*
        pub(super) struct $name;

        impl IntoResponses for $name {
            fn responses() -> BTreeMap<String, RefOr<Response>> {
                responses(&[$($status),+])
            }
        }
    )+};
}

sets! {
    /// Of what everybody may look at.
    Open: 401, 403, 405, 503;
    /// Of what is looked at.
    Looking: 400, 401, 403, 405, 503;
    /// Of what begins to be watched.
    Watching: 400, 401, 403, 405, 429, 503;
    /// Of what is posted.
    Posting: 400, 401, 403, 405, 408, 413, 415, 429, 503;
    /// Of what may be somebody else's.
    Taking: 409;
    /// Of what may be over.
    Holding: 410;
    /// Of what may not be there.
    Missing: 404;
    /// Of objects.
    Keeping: 404, 409, 413, 429;
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use conclave_client::{LeaseError, ObjectError, Trouble};
    use conclave_protocol::lease::LeaseRefusal;
    use conclave_protocol::lock::Refusal as No;
    use conclave_protocol::object::{KindError, ObjectRefusal};

    use super::*;
    use crate::api::errors::Failure;

    fn is_described(failure: &Failure) -> bool {
        let status = failure.status().as_u16();
        let mut found = REFUSALS.iter().filter(|one| one.status == status);
        found.any(|one| one.codes.contains(&failure.code()))
    }

    fn refusals() -> Vec<No> {
        let max = Duration::ZERO;
        vec![
            No::QueueFull,
            No::SessionLimit,
            No::RequestLimit,
            No::LockLimit,
            No::WatchLimit,
            No::ClientLimit,
            No::TtlTooLong { max },
            No::Size,
            No::NoHandles,
            No::Unfit,
            No::Finished,
            No::Revoked,
            No::NotPermitted,
            No::OldConnection,
            No::TokenAboveLimit,
        ]
    }

    fn leases() -> Vec<LeaseError> {
        let refused = [
            LeaseRefusal::NotPermitted,
            LeaseRefusal::Span,
            LeaseRefusal::TokenTooFar,
            LeaseRefusal::Full,
            LeaseRefusal::Name,
            LeaseRefusal::NotServing,
            LeaseRefusal::Infeasible,
        ];
        let mut all: Vec<LeaseError> = refused.map(LeaseError::Refused).into();
        all.extend([
            LeaseError::TimedOut,
            LeaseError::Ended,
            LeaseError::NotRenewed,
            LeaseError::NotReleased,
        ]);
        all
    }

    fn objects() -> Vec<ObjectError> {
        let refused = [
            ObjectRefusal::NotPermitted,
            ObjectRefusal::TooLarge,
            ObjectRefusal::Full,
            ObjectRefusal::Name,
            ObjectRefusal::NotServing,
            ObjectRefusal::Unknown,
            ObjectRefusal::Contradiction,
            ObjectRefusal::Older,
            ObjectRefusal::Proof,
            ObjectRefusal::Infeasible,
            ObjectRefusal::Forgotten,
        ];
        let kinds = [
            KindError::Unreadable,
            KindError::TooLarge,
            KindError::Empty,
            KindError::Overflow,
        ];
        let troubles = [
            Trouble::NotAuthenticated,
            Trouble::NoObjects,
            Trouble::Busy,
            Trouble::Closed,
        ];
        let mut all: Vec<ObjectError> = refused.map(ObjectError::Refused).into();
        all.extend(kinds.map(ObjectError::Kind));
        all.extend(troubles.map(ObjectError::Trouble));
        all.extend([
            ObjectError::TimedOut,
            ObjectError::Unreadable,
            ObjectError::OtherKind,
        ]);
        all
    }

    #[test]
    fn whatever_is_refused_is_described() {
        let own = [
            Failure::NotAcquired(Box::default()),
            Failure::TooLate,
            Failure::Lost,
            Failure::NotReleased,
            Failure::NoQuorum { troubles: vec![] },
            Failure::Forged,
            Failure::Foreign,
            Failure::Unauthenticated,
            Failure::ForeignOrigin(String::new()),
            Failure::NotJson,
            Failure::ForeignHost(String::new()),
            Failure::Renewing,
            Failure::TooManyWaiters,
            Failure::TooManyWatchers,
            Failure::WaitTooLong {
                max: Duration::ZERO,
            },
            Failure::BadName(""),
            Failure::BadRequest(String::new()),
            Failure::BodyTooLarge { max: 0 },
            Failure::SlowBody,
            Failure::TooManyBodies,
            Failure::NotFound,
            Failure::WrongMethod { allow: "" },
            Failure::NotReady(String::new()),
        ];
        let refused = refusals().into_iter().map(Failure::Refused);
        let leases = leases().into_iter().map(Failure::from);
        let objects = objects().into_iter().map(Failure::from);
        for failure in own.into_iter().chain(refused).chain(leases).chain(objects) {
            let told = (failure.status(), failure.code());
            assert!(is_described(&failure), "{told:?}");
        }
    }
}
