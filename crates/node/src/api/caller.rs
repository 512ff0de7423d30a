//! Who calls the API: what the connection's certificate says, and what can be had without one.

use axum::Json;
use axum::http::{Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use conclave_client::secure::Identity;
use rustls::pki_types::CertificateDer;
use serde_json::json;

/// Paths for probes, which have no certificate.
const FOR_ALL: [&str; 2] = ["/healthz", "/readyz"];

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// Anybody: this node speaks plainly.
    Open,
    /// Somebody who showed no certificate.
    Nobody,
    /// Somebody whose certificate is not of this cluster, and why not.
    Stranger(String),
    /// The bearer of a certificate of this cluster.
    Known(Identity),
}

impl Caller {
    /// Who shows this certificate, which an authority of ours has signed.
    pub(crate) fn new(shown: Option<&CertificateDer<'_>>, cluster: &str) -> Self {
        match shown.map(|shown| Identity::in_cluster(shown, cluster)) {
            None => Self::Nobody,
            Some(Ok(identity)) => Self::Known(identity),
            Some(Err(stranger)) => Self::Stranger(stranger.to_string()),
        }
    }

    /// The identity that the certificate proves.
    pub(crate) fn identity(&self) -> Option<Identity> {
        match self {
            Self::Known(identity) => Some(identity.clone()),
            Self::Open | Self::Nobody | Self::Stranger(_) => None,
        }
    }

    /// What to answer instead of doing what is asked, if it must not be done.
    /// A token does instead of a certificate, where tokens are known.
    pub(crate) fn refused<B>(&self, request: &Request<B>, tokens: bool) -> Option<Box<Response>> {
        let shown = request.headers().contains_key(header::AUTHORIZATION);
        let (code, why) = match self {
            Self::Open | Self::Known(_) => return None,
            Self::Nobody if FOR_ALL.contains(&request.uri().path()) => return None,
            Self::Nobody if tokens && shown => return None,
            Self::Nobody => (
                "no_certificate",
                "show a certificate of this cluster (for curl: --cert and --key)",
            ),
            Self::Stranger(why) => ("foreign_certificate", why.as_str()),
        };
        let kind = request.headers().get(header::CONTENT_TYPE);
        if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
            let status = tonic::Status::unauthenticated(format!("{code}: {why}"));
            return Some(Box::new(status.into_http()));
        }
        let status = match self {
            Self::Stranger(_) => StatusCode::FORBIDDEN,
            _ => StatusCode::UNAUTHORIZED,
        };
        let body = json!({ "error": { "code": code, "message": why } });
        Some(Box::new((status, Json(body)).into_response()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(caller: &Caller, path: &str) -> Option<u16> {
        let request = Request::builder().uri(path).body(()).unwrap();
        caller
            .refused(&request, false)
            .map(|answer| answer.status().as_u16())
    }

    #[test]
    fn without_a_certificate_only_probes_are_answered() {
        for path in ["/healthz", "/readyz"] {
            assert_eq!(asks(&Caller::Nobody, path), None, "{path}");
        }
        for path in ["/", "/metrics", "/v1/locks", "/v1/cluster", "/healthz/x"] {
            assert_eq!(asks(&Caller::Nobody, path), Some(401), "{path}");
        }
        let stranger = Caller::Stranger("of another cluster".to_owned());
        assert_eq!(asks(&stranger, "/v1/locks"), Some(403));
        for caller in [Caller::Open, Caller::Known(Identity::Node(1))] {
            assert_eq!(asks(&caller, "/v1/locks"), None);
        }
    }

    #[test]
    fn grpc_is_answered_in_its_own_words() {
        let request = Request::builder()
            .header(header::CONTENT_TYPE, "application/grpc")
            .body(())
            .unwrap();
        let answer = Caller::Nobody.refused(&request, true).unwrap();
        assert_eq!(answer.headers()["grpc-status"], "16");
    }
}
