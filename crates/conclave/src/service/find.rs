//! Which cluster a command is about.

use clap::Args;

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
}

impl Endpoints {
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
