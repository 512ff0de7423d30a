//! An authority in a directory: `ca.pem` and `ca.key`, and what it signs beside them.

use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use conclave_client::secure::{
    Identity, Inspected, authority_of, authority_uri, inspect, is_client_name, node_name,
};
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType, SerialNumber,
};
use rustls::pki_types::DnsName;

use crate::cli::Failure;
use crate::service::{hex, shown};

/// The most hosts of a certificate.
const HOSTS_MAX: usize = 100;
/// The largest key or certificate that is read.
const FILE_MAX: u64 = 1 << 20;
/// Certificates are valid from a little before now: clocks differ.
const SLACK: Duration = Duration::from_mins(5);
const DAY: u64 = 24 * 60 * 60;

/// When a certificate begins and ends, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Valid {
    from: u64,
    until: u64,
}

impl Valid {
    /// From now on, for so many days.
    pub(crate) fn days(days: u32) -> Self {
        Self::until(now() + u64::from(days) * DAY)
    }

    /// From now on until this time; one that has passed makes a certificate that has expired.
    pub(crate) fn until(until: u64) -> Self {
        let from = now().saturating_sub(SLACK.as_secs());
        Self {
            from: from.min(until.saturating_sub(DAY)),
            until,
        }
    }
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

/// An authority that can sign.
pub(crate) struct Authority {
    pub(crate) cluster: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate with its key, in files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

impl Pair {
    /// The files of this name in a directory.
    pub(crate) fn new(folder: &Path, stem: &str) -> Self {
        Self {
            cert: folder.join(format!("{stem}.pem")),
            key: folder.join(format!("{stem}.key")),
        }
    }

    /// The files of a node or client.
    pub(crate) fn of(folder: &Path, who: &Identity) -> Self {
        Self::new(
            folder,
            &match who {
                Identity::Node(id) => format!("node-{id}"),
                Identity::Client(name) => format!("client-{name}"),
            },
        )
    }
}

impl Authority {
    /// Makes a new authority for a cluster.
    pub(crate) fn create(
        folder: &Path,
        cluster: &str,
        valid: Valid,
        force: bool,
    ) -> Result<Self, Failure> {
        if cluster.is_empty() || cluster.len() > 100 {
            let why = "a cluster's name has 1 to 100 bytes";
            return Err(Failure::Input(why.to_owned()));
        }
        let files = Pair::new(folder, "ca");
        let key = KeyPair::generate().map_err(|error| made(&error))?;
        put(&files.key, &key.serialize_pem(), 0o600, force)?;
        let params = ca_params(cluster, valid, &key)?;
        let cert = params.self_signed(&key).map_err(|error| made(&error))?;
        put(&files.cert, &cert.pem(), 0o644, true)?;
        Self::open(folder)
    }

    /// The authority in a directory.
    pub(crate) fn open(folder: &Path) -> Result<Self, Failure> {
        let files = Pair::new(folder, "ca");
        if !files.cert.exists() {
            return Err(Failure::Input(format!(
                "no authority in '{}'; make one with 'conclave certs init --dir {}'",
                shown(&folder.display().to_string()),
                shown(&folder.display().to_string())
            )));
        }
        let found = look(&files.cert)?;
        let cluster = found.uris.iter().find_map(|uri| authority_of(uri));
        let cluster = cluster.ok_or_else(|| {
            let problem = "not an authority made by 'conclave certs init'";
            wrong(&files.cert, &problem)
        })?;
        let pem = text(&files.cert)?;
        let issuer = Issuer::from_ca_cert_pem(&pem, key(&files.key)?)
            .map_err(|error| wrong(&files.cert, &error))?;
        fits(&files, &found, issuer.key())?;
        Ok(Self { cluster, issuer })
    }

    /// Signs a certificate for a node with these hosts, or for a client, with a new key.
    pub(crate) fn issue(
        &self,
        folder: &Path,
        who: &Identity,
        hosts: &[String],
        valid: Valid,
        force: bool,
    ) -> Result<Pair, Failure> {
        let files = Pair::of(folder, who);
        let key = KeyPair::generate().map_err(|error| made(&error))?;
        let cert = self.sign(who, hosts, valid, &key)?;
        put(&files.key, &key.serialize_pem(), 0o600, force)?;
        put(&files.cert, &cert, 0o644, true)?;
        Ok(files)
    }

    fn sign(
        &self,
        who: &Identity,
        hosts: &[String],
        valid: Valid,
        key: &KeyPair,
    ) -> Result<String, Failure> {
        let mut params = params(&format!("{who} of {}", self.cluster), valid)?;
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.subject_alt_names = vec![SanType::URI(ascii(&who.uri(&self.cluster))?)];
        if let Identity::Node(id) = who {
            let node = node_name(&self.cluster, *id);
            let purposes = &mut params.extended_key_usages;
            purposes.push(ExtendedKeyUsagePurpose::ServerAuth);
            let names = &mut params.subject_alt_names;
            names.push(SanType::DnsName(ascii(&node)?));
            for host in hosts.iter().filter(|host| **host != node) {
                names.push(san(host)?);
            }
        }
        let cert = params.signed_by(key, &self.issuer);
        Ok(cert.map_err(|error| made(&error))?.pem())
    }
}

/// Renews the certificate in a file: the same identity and hosts, a later end; a new key if asked
/// for. The authority and the key stand beside it.
pub(crate) fn renew(cert: &Path, valid: Valid, new_key: bool) -> Result<Inspected, Failure> {
    let found = look(cert)?;
    let folder = cert.parent().unwrap_or(Path::new(""));
    let files = Pair {
        cert: cert.to_owned(),
        key: cert.with_extension("key"),
    };
    let old = key(&files.key)?;
    fits(&files, &found, &old)?;
    if let Some(cluster) = found.uris.iter().find_map(|uri| authority_of(uri)) {
        if new_key {
            let why = "an authority keeps its key, or all that it signed would be worth nothing; \
                       make another with 'conclave certs init'";
            return Err(wrong(cert, &why));
        }
        let params = ca_params(&cluster, valid, &old)?;
        let signed = params.self_signed(&old).map_err(|error| made(&error))?;
        put(cert, &signed.pem(), 0o644, true)?;
        return look(cert);
    }
    let Some(certified) = &found.certified else {
        return Err(wrong(cert, &"names no node or client of a cluster"));
    };
    let authority = Authority::open(folder)?;
    if authority.cluster != certified.cluster {
        let why = format!(
            "is that of {certified}, and the authority beside it is for cluster '{}'",
            authority.cluster
        );
        return Err(wrong(cert, &why));
    }
    let used = if new_key {
        KeyPair::generate().map_err(|error| made(&error))?
    } else {
        old
    };
    let signed = authority.sign(&certified.who, &found.hosts, valid, &used)?;
    if new_key {
        put(&files.key, &used.serialize_pem(), 0o600, true)?;
    }
    put(cert, &signed, 0o644, true)?;
    look(cert)
}

/// What a certificate in a file says.
pub(crate) fn look(path: &Path) -> Result<Inspected, Failure> {
    inspect(path).map_err(|error| Failure::Input(shown(&error.to_string())))
}

/// A client's name as it may stand in a certificate.
pub(crate) fn client_name(name: &str) -> Result<Identity, Failure> {
    if is_client_name(name) {
        return Ok(Identity::Client(name.to_owned()));
    }
    Err(Failure::Input(format!(
        "'{}' is not a client's name: 1 to 64 letters, digits, '-', '_', '.' or '@', a letter or \
         digit first",
        shown(name)
    )))
}

fn ca_params(cluster: &str, valid: Valid, key: &KeyPair) -> Result<CertificateParams, Failure> {
    // Two authorities of one cluster have two names, or one could be taken for the other's key.
    let id = CertificateParams::default().key_identifier(key);
    let id = hex(&id[..id.len().min(4)]);
    let cut: String = cluster.chars().take(32).collect();
    let mut params = params(&format!("Conclave authority {id} of {cut}"), valid)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.subject_alt_names = vec![SanType::URI(ascii(&authority_uri(cluster))?)];
    Ok(params)
}

fn params(subject: &str, valid: Valid) -> Result<CertificateParams, Failure> {
    let mut params = CertificateParams::default();
    params.not_before = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(valid.from);
    params.not_after = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(valid.until);
    let mut name = DistinguishedName::new();
    // A common name has at most 64 characters.
    let short: String = subject.chars().take(64).collect();
    name.push(DnType::CommonName, short);
    params.distinguished_name = name;
    let mut serial = [0; 16];
    getrandom::fill(&mut serial)
        .map_err(|error| Failure::Failed(format!("no random numbers: {error}")))?;
    // Serial numbers are positive.
    serial[0] = serial[0] & 0x7f | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    Ok(params)
}

/// Hosts as they may stand in a certificate, each once.
pub(crate) fn hosts(given: &[String]) -> Result<Vec<String>, Failure> {
    let mut all: Vec<String> = Vec::new();
    for host in given {
        san(host)?;
        if !all.contains(host) {
            all.push(host.clone());
        }
    }
    if all.len() > HOSTS_MAX {
        return Err(Failure::Input(format!("at most {HOSTS_MAX} hosts")));
    }
    Ok(all)
}

fn san(host: &str) -> Result<SanType, Failure> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(address));
    }
    if DnsName::try_from(host).is_err() {
        return Err(Failure::Input(format!(
            "'{}' is neither a host name nor an address; leave port and scheme out",
            shown(host)
        )));
    }
    Ok(SanType::DnsName(ascii(host)?))
}

fn ascii(text: &str) -> Result<Ia5String, Failure> {
    Ia5String::try_from(text).map_err(|error| made(&error))
}

fn fits(files: &Pair, found: &Inspected, key: &KeyPair) -> Result<(), Failure> {
    use rcgen::PublicKeyData;
    if found.public_key == key.subject_public_key_info() {
        return Ok(());
    }
    Err(Failure::Input(format!(
        "the key '{}' does not fit the certificate '{}'",
        shown(&files.key.display().to_string()),
        shown(&files.cert.display().to_string())
    )))
}

fn key(path: &Path) -> Result<KeyPair, Failure> {
    let pem = text(path)?;
    KeyPair::from_pem(&pem).map_err(|_| wrong(path, &"no private key in PEM"))
}

fn text(path: &Path) -> Result<String, Failure> {
    let found = fs::metadata(path).map_err(|error| wrong(path, &error))?;
    if found.len() > FILE_MAX {
        return Err(wrong(path, &"too large"));
    }
    fs::read_to_string(path).map_err(|error| wrong(path, &error))
}

fn made(error: &rcgen::Error) -> Failure {
    Failure::Failed(format!("cannot make a certificate: {error}"))
}

fn wrong(path: &Path, why: &dyn std::fmt::Display) -> Failure {
    let path = shown(&path.display().to_string());
    Failure::Input(format!("'{path}': {}", shown(&why.to_string())))
}

/// Writes a file aside and renames it, so that nobody reads half of it. One that is there is
/// replaced only by force.
fn put(path: &Path, text: &str, mode: u32, force: bool) -> Result<(), Failure> {
    if !force && path.exists() {
        return Err(wrong(path, &"is there already; give --force to replace it"));
    }
    if let Some(folder) = path.parent().filter(|path| !path.as_os_str().is_empty()) {
        use std::os::unix::fs::DirBuilderExt;
        let mut builder = fs::DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(folder);
        made.map_err(|error| wrong(folder, &error))?;
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let aside = path.with_file_name(name);
    // What a run that was killed left behind may have other rights.
    let _ = fs::remove_file(&aside);
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(mode).open(&aside);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| fs::rename(&aside, path))
        .map_err(|error| wrong(path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_private_and_not_replaced_by_accident() {
        use std::os::unix::fs::PermissionsExt;
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("certs");
        let authority = Authority::create(&folder, "Größe 1", Valid::days(10), false).unwrap();
        assert_eq!(authority.cluster, "Größe 1");
        let again = Authority::create(&folder, "other", Valid::days(10), false);
        assert!(again.is_err());
        let who = Identity::Node(3);
        let hosts = [
            "10.0.0.3".to_owned(),
            "::1".to_owned(),
            "db3.example".to_owned(),
        ];
        let files = authority.issue(&folder, &who, &hosts, Valid::days(5), false);
        let files = files.unwrap();
        let mode = fs::metadata(&files.key).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let found = look(&files.cert).unwrap();
        assert_eq!(found.certified.as_ref().unwrap().who, who);
        assert_eq!(found.certified.as_ref().unwrap().cluster, "Größe 1");
        assert_eq!(found.hosts[1..], hosts);
        assert!(!found.is_ca);
        let second = authority.issue(&folder, &who, &hosts, Valid::days(5), false);
        assert!(second.is_err(), "a key is there already");
        let kept = fs::read(&files.key).unwrap();
        let renewed = renew(&files.cert, Valid::days(50), false).unwrap();
        assert_eq!(fs::read(&files.key).unwrap(), kept);
        assert_eq!((&renewed.hosts, &renewed.uris), (&found.hosts, &found.uris));
        assert!(renewed.until > found.until);
        renew(&files.cert, Valid::days(50), true).unwrap();
        assert_ne!(fs::read(&files.key).unwrap(), kept);
        let ca = Pair::new(&folder, "ca");
        assert!(renew(&ca.cert, Valid::days(99), true).is_err());
        assert!(renew(&ca.cert, Valid::days(99), false).unwrap().is_ca);
        Authority::open(&folder).unwrap();
        fs::copy(&files.key, &ca.key).unwrap();
        assert!(Authority::open(&folder).is_err(), "not its key");
    }

    #[test]
    fn hosts_and_names_are_judged() {
        for host in ["http://a", "a:1", "", "a b", "-"] {
            assert!(hosts(&[host.to_owned()]).is_err(), "{host}");
        }
        let twice = ["a".to_owned(), "a".to_owned(), "::1".to_owned()];
        assert_eq!(hosts(&twice).unwrap(), ["a", "::1"]);
        for name in ["", "a/b", "../x", "a b", "-a", &"a".repeat(65)] {
            assert!(client_name(name).is_err(), "{name}");
        }
        assert!(client_name("ci@build-7").is_ok());
    }

    #[test]
    fn an_end_in_the_past_makes_an_expired_certificate() {
        let past = Valid::until(1_577_836_800);
        assert!(past.from < past.until && past.until < now());
    }
}
