//! Which cluster a command is about.

use std::path::{Path, PathBuf};

use clap::Args;
use conclave_client::discover::DiscoverError;
use conclave_client::secure::{Secret, Security};
use conclave_client::{Builder, Client, ConnectError};
use conclave_wire::greeting::CREDENTIAL_MAX;

use super::registry;
use crate::cli::Failure;

/// The most endpoints that are tried.
const ENDPOINTS_MAX: usize = 1000;

/// Where the cluster is.
#[derive(Clone, Debug, Args)]
pub(crate) struct Endpoints {
    #[arg(long, value_name = "URL,…", value_delimiter = ',')]
    #[arg(
        help = "API URLs of any nodes of the cluster, comma separated; without it \
        CONCLAVE_ENDPOINTS, else the running 'conclave up' of this user"
    )]
    endpoints: Vec<String>,
    #[arg(long, value_name = "FILE")]
    #[arg(
        help = "The file with the bearer token that shows who you are; CONCLAVE_BEARER_FILE \
        without it"
    )]
    bearer_file: Option<PathBuf>,
}

/// The most bytes of a bearer token.
const BEARER_MAX: usize = CREDENTIAL_MAX;

impl Endpoints {
    /// How this process shows who it is.
    pub(crate) fn security(&self) -> Result<Security, Failure> {
        let env = std::env::var_os("CONCLAVE_BEARER_FILE").filter(|path| !path.is_empty());
        let path = self.bearer_file.clone().or(env.map(PathBuf::from));
        let security = Security::default();
        path.map_or(Ok(security.clone()), |path| {
            Ok(security.with_bearer(bearer(&path)?))
        })
    }

    /// A client of the cluster, to be connected.
    pub(crate) fn client(&self) -> Result<Builder, Failure> {
        let client = Client::builder().endpoints(self.find()?);
        Ok(client.security(self.security()?))
    }

    /// API URLs of the cluster, at least one.
    pub(crate) fn find(&self) -> Result<Vec<String>, Failure> {
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
            return given.into_iter().map(|url| normal(url, from)).collect();
        }
        match registry::newest() {
            Some(running) if !running.endpoints.is_empty() => Ok(running.endpoints),
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
        ConnectError::Discover(DiscoverError::NotAuthenticated) => {
            Failure::Input(error.to_string())
        }
        error => Failure::NoQuorum(error.to_string()),
    }
}

/// The token in a file, without the line's end.
fn bearer(path: &Path) -> Result<Secret, Failure> {
    let place = super::place::shown(&path.display().to_string());
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::Input(format!("cannot read the bearer file {place}: {error}")))?;
    let token = text.trim();
    let plain = token.bytes().all(|byte| byte.is_ascii_graphic());
    if token.is_empty() || token.len() > BEARER_MAX || !plain {
        return Err(Failure::Input(format!(
            "the bearer file {place} must hold one token of 1 to {BEARER_MAX} visible characters; \
             'conclave token new' makes one"
        )));
    }
    Ok(Secret::new(token))
}

/// The URL without a slash at its end; a bare host:port is plain HTTP.
fn normal(url: &str, from: &str) -> Result<String, Failure> {
    let wrong = |why: &str| {
        let url = super::place::shown(url);
        Err(Failure::Input(format!(
            "{from}: '{url}' {why}; write http://host:port"
        )))
    };
    if url.starts_with("https://") {
        return wrong("asks for TLS, which this version does not speak");
    }
    let full = if url.contains("://") {
        url.to_owned()
    } else {
        format!("http://{url}")
    };
    let Ok(uri) = full.parse::<hyper::Uri>() else {
        return wrong("is not a URL");
    };
    if uri.scheme_str() != Some("http") || uri.host().is_none_or(str::is_empty) {
        return wrong("is not the URL of an API");
    }
    Ok(full.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_as_people_write_them() {
        for (text, url) in [
            ("http://a:1", "http://a:1"),
            ("a:1", "http://a:1"),
            ("http://a:1/", "http://a:1"),
            ("127.0.0.1:8000", "http://127.0.0.1:8000"),
            ("http://[::1]:1", "http://[::1]:1"),
        ] {
            assert_eq!(normal(text, "x").unwrap(), url);
        }
        for text in ["https://a:1", "ftp://a", "http://", "a b", "http://a:1:2:3"] {
            assert!(normal(text, "x").is_err(), "{text}");
        }
    }
}
