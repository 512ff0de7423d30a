//! What a certificate says, for people.

use std::net::IpAddr;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::time::ASN1Time;

use super::files::{SecurityError, certificates};
use super::identity::{Certified, certified};

/// What a certificate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspected {
    /// Whom it speaks for; none if it is not one of ours.
    pub certified: Option<Certified>,
    /// The host names and addresses in it.
    pub hosts: Vec<String>,
    /// The URIs in it.
    pub uris: Vec<String>,
    /// Its subject.
    pub subject: String,
    /// Who signed it.
    pub issuer: String,
    /// Whether it may sign others.
    pub is_ca: bool,
    /// From when it is valid, in seconds since 1970.
    pub from: i64,
    /// Until when it is valid, in seconds since 1970.
    pub until: i64,
    /// Its public key, as in the certificate.
    pub public_key: Vec<u8>,
}

impl Inspected {
    /// Until when it is valid, for people.
    pub fn until_text(&self) -> String {
        text(self.until)
    }

    /// From when it is valid, for people.
    pub fn from_text(&self) -> String {
        text(self.from)
    }

    /// Whether it is valid now.
    pub(super) fn in_time(&self, path: &Path) -> Result<(), SecurityError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
        let path = path.to_owned();
        if now > self.until {
            let until = self.until_text();
            return Err(SecurityError::Expired { path, until });
        }
        if now < self.from {
            let from = self.from_text();
            return Err(SecurityError::NotYet { path, from });
        }
        Ok(())
    }
}

/// What the first certificate of a PEM file says.
pub fn inspect(path: &Path) -> Result<Inspected, SecurityError> {
    let chain = certificates(path)?;
    read(&chain[0]).ok_or_else(|| SecurityError::Unfit {
        path: path.to_owned(),
        problem: "its certificate cannot be read".to_owned(),
    })
}

pub(super) fn read(certificate: &[u8]) -> Option<Inspected> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let names = parsed.subject_alternative_name().ok().flatten();
    let names = names.map_or(Vec::new(), |names| names.value.general_names.clone());
    let mut hosts = Vec::new();
    let mut uris = Vec::new();
    for name in &names {
        match name {
            GeneralName::DNSName(name) => hosts.push((*name).to_owned()),
            GeneralName::IPAddress(bytes) => hosts.extend(address(bytes).map(|ip| ip.to_string())),
            GeneralName::URI(uri) => uris.push((*uri).to_owned()),
            _ => {}
        }
    }
    Some(Inspected {
        certified: certified(certificate),
        hosts,
        uris,
        subject: parsed.subject().to_string(),
        issuer: parsed.issuer().to_string(),
        is_ca: parsed.is_ca(),
        from: parsed.validity().not_before.timestamp(),
        until: parsed.validity().not_after.timestamp(),
        public_key: parsed.public_key().raw.to_vec(),
    })
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(four) = <[u8; 4]>::try_from(bytes) {
        return Some(four.into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)
}

/// A time in seconds since 1970, for people.
fn text(seconds: i64) -> String {
    let Ok(time) = ASN1Time::from_timestamp(seconds) else {
        return "an impossible time".to_owned();
    };
    let time = time.to_datetime();
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02} UTC",
        time.year(),
        u8::from(time.month()),
        time.day(),
        time.hour(),
        time.minute()
    )
}
