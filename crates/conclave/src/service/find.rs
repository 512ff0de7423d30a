//! Which cluster a command is about, and how to show it who asks.

use std::path::{Path, PathBuf};

use clap::Args;
use conclave_client::discover::DiscoverError;
use conclave_client::secure::Secret;
use conclave_client::{Client, ConnectError, NodeId, Security};
use conclave_wire::greeting::CREDENTIAL_MAX;
use serde::{Deserialize, Serialize};

use super::place::shown;
use super::registry;
use crate::cli::Failure;

/// The most endpoints that are tried.
const ENDPOINTS_MAX: usize = 1000;

/// Where the cluster is.
#[derive(Clone, Debug, Args)]
#[expect(clippy::struct_field_names, reason = "the name of its flag")]
pub(crate) struct Endpoints {
    #[arg(long, value_name = "URL,…", value_delimiter = ',', global = true)]
    #[arg(
        help = "API URLs of any nodes of the cluster, comma separated; without it \
        CONCLAVE_ENDPOINTS, else the running 'conclave up' of this user"
    )]
    endpoints: Vec<String>,
    #[arg(long, value_name = "FILE", global = true)]
    #[arg(
        help = "The file with the bearer token that shows who you are; without it \
        CONCLAVE_BEARER_FILE, else that of the running 'conclave up --private' of this user"
    )]
    bearer_file: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsFlags,
}

/// The files with which a command shows who asks.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct TlsFlags {
    #[arg(
        long,
        value_name = "FILE",
        global = true,
        help = "Speak TLS and believe who is certified by \
        these authorities (PEM); CONCLAVE_CA without it"
    )]
    ca: Option<PathBuf>,
    #[arg(
        long,
        value_name = "FILE",
        global = true,
        help = "The certificate to show; CONCLAVE_CERT without it"
    )]
    cert: Option<PathBuf>,
    #[arg(
        long,
        value_name = "FILE",
        global = true,
        help = "Its key; CONCLAVE_KEY without it"
    )]
    key: Option<PathBuf>,
}

/// The files of TLS that a running `up` tells of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TlsFiles {
    pub(crate) ca: PathBuf,
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

impl TlsFiles {
    /// TLS from these files.
    pub(crate) fn security(&self) -> Result<Security, Failure> {
        load(&self.ca, Some((&self.cert, &self.key)))
    }
}

fn load(ca: &Path, own: Option<(&Path, &Path)>) -> Result<Security, Failure> {
    Security::from_files(ca, own).map_err(|error| Failure::Input(shown(&error.to_string())))
}

impl TlsFlags {
    /// Whether any is given as a flag.
    fn is_given(&self) -> bool {
        self.ca.is_some() || self.cert.is_some() || self.key.is_some()
    }

    /// What the flags say, else the environment; plain TCP if neither does.
    pub(crate) fn security(&self) -> Result<Security, Failure> {
        let or_env = |flag: &Option<PathBuf>, name: &str| {
            let env = std::env::var_os(name).filter(|path| !path.is_empty());
            flag.clone().or(env.map(PathBuf::from))
        };
        let ca = or_env(&self.ca, "CONCLAVE_CA");
        let cert = or_env(&self.cert, "CONCLAVE_CERT");
        let key = or_env(&self.key, "CONCLAVE_KEY");
        match (ca, cert, key) {
            (None, None, None) => Ok(Security::default()),
            (Some(ca), None, None) => load(&ca, None),
            (Some(ca), Some(cert), Some(key)) => load(&ca, Some((&cert, &key))),
            (None, ..) => Err(Failure::Input(
                "a certificate needs an authority to believe too: give --ca or CONCLAVE_CA"
                    .to_owned(),
            )),
            _ => Err(Failure::Input(
                "a certificate and its key go together: give --cert and --key (or CONCLAVE_CERT \
                 and CONCLAVE_KEY)"
                    .to_owned(),
            )),
        }
    }
}

/// A cluster to talk to.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// API URLs of its nodes, at least one.
    pub(crate) urls: Vec<String>,
    /// How to talk to them.
    pub(crate) security: Security,
}

impl Target {
    /// A client of the cluster.
    pub(crate) async fn client(&self) -> Result<Client, ConnectError> {
        let builder = Client::builder().endpoints(self.urls.iter().cloned());
        builder.security(self.security.clone()).connect().await
    }
}

/// The most bytes of a bearer token.
const BEARER_MAX: usize = CREDENTIAL_MAX;

impl Endpoints {
    /// The same, showing the token if there is one: that of the flag, of the environment, or else
    /// this one.
    fn shown(&self, security: Security, usual: Option<PathBuf>) -> Result<Security, Failure> {
        let env = std::env::var_os("CONCLAVE_BEARER_FILE").filter(|path| !path.is_empty());
        let path = self.bearer_file.clone().or(env.map(PathBuf::from));
        match path.or(usual) {
            Some(path) => bearer(&path, security),
            None => Ok(security),
        }
    }

    /// The cluster that is meant.
    pub(crate) fn find(&self) -> Result<Target, Failure> {
        let (given, from) = if self.endpoints.is_empty() {
            let text = std::env::var("CONCLAVE_ENDPOINTS").unwrap_or_default();
            let all: Vec<String> = text.split(',').map(str::to_owned).collect();
            (all, "CONCLAVE_ENDPOINTS")
        } else {
            (self.endpoints.clone(), "--endpoints")
        };
        let given = given
            .iter()
            .map(|url| url.trim())
            .filter(|url| !url.is_empty());
        let given: Vec<&str> = given.collect();
        if given.len() > ENDPOINTS_MAX {
            return Err(Failure::Input(format!(
                "{from}: at most {ENDPOINTS_MAX} URLs"
            )));
        }
        if !given.is_empty() {
            let security = self.shown(self.tls.security()?, None)?;
            let usual = security.tls().map_or("http", |_| "https");
            let urls: Result<_, _> = given.iter().map(|url| normal(url, usual, from)).collect();
            let urls = urls?;
            return Ok(Target { urls, security });
        }
        match registry::newest() {
            Some(running) if !running.endpoints.is_empty() => {
                let security = match &running.tls {
                    Some(files) if !self.tls.is_given() => files.security()?,
                    Some(_) => self.tls.security()?,
                    None => Security::default(),
                };
                let security = self.shown(security, running.bearer_file)?;
                let urls = running.endpoints;
                Ok(Target { urls, security })
            }
            _ => Err(Failure::Input(
                "no cluster to talk to: give --endpoints http://host:port, set \
                 CONCLAVE_ENDPOINTS, or start one with 'conclave up'"
                    .to_owned(),
            )),
        }
    }
}

/// How a client that could not be made ends its command.
pub(crate) fn not_connected(error: &ConnectError) -> Failure {
    match error {
        ConnectError::Discover(DiscoverError::NotAuthenticated) | ConnectError::Security(_) => {
            Failure::Input(error.to_string())
        }
        error => Failure::NoQuorum(error.to_string()),
    }
}

/// Shows what a file says: a token, and perhaps lines with the number of a node and a token for
/// that node alone.
pub(super) fn bearer(path: &Path, security: Security) -> Result<Security, Failure> {
    let place = shown(&path.display().to_string());
    if security.tls().is_none() {
        return Err(Failure::Input(format!(
            "the token in {place} is shown over TLS alone, for without it whoever listens could \
             use it: give --ca, or leave the token out"
        )));
    }
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::Input(format!("cannot read the bearer file {place}: {error}")))?;
    tokens(&text, security).ok_or_else(|| {
        Failure::Input(format!(
            "the bearer file {place} must hold one token of 1 to {BEARER_MAX} visible characters, \
             or one for all and lines 'ID TOKEN' for single nodes; 'conclave token new' makes one"
        ))
    })
}

/// The same for its text; none if it makes no sense.
fn tokens(text: &str, mut security: Security) -> Option<Security> {
    let is_token = |token: &str| {
        let plain = token.bytes().all(|byte| byte.is_ascii_graphic());
        (1..=BEARER_MAX).contains(&token.len()) && plain
    };
    let mut single = Vec::new();
    let mut found = false;
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let mut words = line.split_whitespace();
        match (words.next()?, words.next(), words.next()) {
            (token, None, _) if is_token(token) && !found => {
                security = security.with_bearer(Secret::new(token));
                found = true;
            }
            (id, Some(token), None) if is_token(token) => {
                let id = id.parse::<u32>().ok().filter(|id| *id > 0)?;
                single.push((NodeId(id - 1), Secret::new(token)));
            }
            _ => return None,
        }
    }
    (found || !single.is_empty()).then(|| security.with_bearers(single))
}

/// The URL without a slash at its end; a bare host:port has the usual scheme.
fn normal(url: &str, usual: &str, from: &str) -> Result<String, Failure> {
    let wrong = |why: &str| {
        let url = shown(url);
        Err(Failure::Input(format!(
            "{from}: '{url}' {why}; write {usual}://host:port"
        )))
    };
    match (url.split_once("://"), usual) {
        (Some(("https", _)), "http") => {
            let url = shown(url);
            return Err(Failure::Input(format!(
                "{from}: '{url}' speaks TLS: give --ca, and --cert and --key"
            )));
        }
        (Some(("http", _)), "https") => return wrong("is not safe where --ca is given"),
        _ => {}
    }
    let full = if url.contains("://") {
        url.to_owned()
    } else {
        format!("{usual}://{url}")
    };
    let Ok(uri) = full.parse::<hyper::Uri>() else {
        return wrong("is not a URL");
    };
    if uri.scheme_str() != Some(usual) || uri.host().is_none_or(str::is_empty) {
        return wrong("is not the URL of an API");
    }
    Ok(full.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bearer_file_has_one_token_or_one_per_node() {
        let read = |text: &str| tokens(text, Security::default());
        let one = read("abc\n").unwrap();
        assert_eq!(one.bearer_for(NodeId(3)).unwrap().reveal(), "abc");
        assert!(one.shares_bearer(2));
        let each = read("abc\n1 x\n2 y\n").unwrap();
        assert_eq!(each.bearer().unwrap().reveal(), "abc");
        assert_eq!(each.bearer_for(NodeId(1)).unwrap().reveal(), "y");
        assert!(!each.shares_bearer(2) && !each.shares_bearer(3) && each.shares_bearer(4));
        for wrong in ["", "a\nb", "0 x", "x y", "1 2 3", "ü"] {
            assert!(read(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn urls_are_taken_as_people_write_them() {
        for (text, url) in [
            ("http://a:1", "http://a:1"),
            ("a:1", "http://a:1"),
            ("http://a:1/", "http://a:1"),
            ("127.0.0.1:8000", "http://127.0.0.1:8000"),
            ("http://[::1]:1", "http://[::1]:1"),
        ] {
            assert_eq!(normal(text, "http", "x").unwrap(), url);
        }
        for text in ["a:1", "https://a:1", "https://a:1/"] {
            assert_eq!(normal(text, "https", "x").unwrap(), "https://a:1");
        }
        for text in ["https://a:1", "ftp://a", "http://", "a b", "http://a:1:2:3"] {
            assert!(normal(text, "http", "x").is_err(), "{text}");
        }
        for text in ["http://a:1", "ftp://a", "https://"] {
            assert!(normal(text, "https", "x").is_err(), "{text}");
        }
    }
}
