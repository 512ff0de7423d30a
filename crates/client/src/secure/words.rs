//! What went wrong with TLS, in words that say what to do.

use std::io;

use rustls::{AlertDescription, CertificateError, Error};

/// What a port without TLS answers to one who speaks it: the alert that TLS itself has for it,
/// "no version of the protocol in common".
pub const NO_TLS_ALERT: [u8; 7] = [0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x46];

/// Whether these first bytes of a connection begin a greeting of TLS.
pub fn is_client_hello(bytes: &[u8]) -> bool {
    matches!(bytes, [0x16, 0x03, 0x00..=0x04, ..])
}

/// Who the other end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// We have dialled.
    Node,
    /// We were dialled.
    Caller,
}

/// An error of a connection in words; those of TLS say what to do.
pub fn explain(error: &io::Error, other: Side) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match inner {
        Some(error) => words(error, other),
        None if error.to_string().contains("handshake eof") => {
            "it closed the connection during the TLS handshake".to_owned()
        }
        None => error.to_string(),
    }
}

/// The error of TLS below an error of HTTP, in words; none if there is none.
pub fn explain_below(error: &(dyn std::error::Error + 'static), other: Side) -> Option<String> {
    let mut cause = Some(error);
    while let Some(inner) = cause {
        if let Some(error) = inner.downcast_ref::<io::Error>()
            && let Some(below) = error.get_ref()
            && below.is::<Error>()
        {
            return Some(explain(error, other));
        }
        cause = inner.source();
    }
    None
}

/// Whether the ends do not believe each other, or do not both speak TLS: trying again does not
/// help.
pub fn is_lasting(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(
        inner,
        Some(
            Error::AlertReceived(_)
                | Error::InvalidCertificate(_)
                | Error::InvalidMessage(_)
                | Error::NoCertificatesPresented
        )
    )
}

fn words(error: &Error, other: Side) -> String {
    let (them, ours, theirs) = match other {
        Side::Node => ("the node", "--cert", "--ca"),
        Side::Caller => (
            "the caller",
            "the node's certificate",
            "the node's [tls] ca",
        ),
    };
    match error {
        Error::AlertReceived(alert) => refused(*alert, them, ours),
        Error::InvalidCertificate(error) => believed(error, them, theirs),
        Error::InvalidMessage(_) if other == Side::Node => {
            "the node does not speak TLS; leave --ca out, or give the node a [tls] section"
                .to_owned()
        }
        Error::InvalidMessage(_) => "what it sends is not TLS".to_owned(),
        Error::NoCertificatesPresented => format!("{them} shows no certificate"),
        error => format!("TLS: {error}"),
    }
}

/// What the other end says about us.
fn refused(alert: AlertDescription, them: &str, ours: &str) -> String {
    match alert {
        AlertDescription::CertificateExpired => {
            format!("{them} says that our certificate has expired; renew {ours}")
        }
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            format!("{them} does not believe who signed our certificate; give another {ours}")
        }
        AlertDescription::CertificateRequired => {
            format!("{them} wants a certificate; give {ours} and its key")
        }
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::CertificateRevoked
        | AlertDescription::AccessDenied => {
            format!("{them} refuses our certificate ({alert:?}); give another {ours}")
        }
        AlertDescription::ProtocolVersion => {
            format!("{them} does not speak TLS 1.3; is it set up without TLS?")
        }
        alert => format!("{them} ended the TLS handshake ({alert:?})"),
    }
}

/// What we think of the other end's certificate.
fn believed(error: &CertificateError, them: &str, theirs: &str) -> String {
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            format!("the certificate of {them} has expired; it must be renewed")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            format!("the certificate of {them} is not valid yet; is a clock wrong?")
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            format!("{theirs} does not vouch for the certificate of {them}: unknown issuer")
        }
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => {
            let shown: Vec<&str> = presented.iter().map(String::as_str).take(8).collect();
            format!(
                "the certificate there is not for '{}' but for {}",
                expected.to_str(),
                shown.join(", ")
            )
        }
        CertificateError::NotValidForName => {
            format!("the certificate of {them} is for another name")
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            format!("the certificate of {them} is not made for this; a client's serves no node")
        }
        error => format!("the certificate of {them} is refused: {error}"),
    }
}
