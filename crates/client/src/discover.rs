//! How a client learns what the cluster is: any node tells, at the URL of its API.

use std::fmt::Write;
use std::time::Duration;

use bytes::Bytes;
use conclave_wire::{Cluster, tolerant};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Request, StatusCode, Uri};
use thiserror::Error;
use tokio::task::JoinSet;

use crate::keeper::error::Trouble;
use crate::secure::{Security, http};

/// The most bytes of a cluster's description.
const BODY_MAX: usize = 4 << 20;
/// How long one endpoint may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a second endpoint may take to say the same as the first.
const SECOND_WORD: Duration = Duration::from_secs(1);
/// The most endpoints that are tried.
const ENDPOINTS_MAX: usize = 64;
/// What went wrong when an endpoint does not know who asks.
const STRANGER: &str = "it does not accept who asks";

/// Why no endpoint told about its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DiscoverError {
    /// None was given.
    #[error("no endpoints given; name the API URLs of some nodes, as in http://host:port")]
    NoEndpoints,
    /// The nodes want to know who asks.
    #[error("not authenticated: the nodes accept no such token; ask the operator for a valid one")]
    NotAuthenticated,
    /// None answered as it should.
    #[error("no endpoint told about its cluster{}", listed(.0))]
    NoAnswer(Vec<(String, String)>),
}

/// Asks all endpoints at once and takes the first good answer. Endpoints are API URLs; `http://`
/// may be left out, and one text may name several, separated by commas.
pub async fn discover<I>(endpoints: I) -> Result<Cluster, DiscoverError>
where
    I: IntoIterator,
    I::Item: AsRef<str>,
{
    discover_with(endpoints, &Security::default()).await
}

/// The same, showing and believing what `security` says: with TLS it is `https://` that may be
/// left out.
pub async fn discover_with<I>(endpoints: I, security: &Security) -> Result<Cluster, DiscoverError>
where
    I: IntoIterator,
    I::Item: AsRef<str>,
{
    let mut asks = asked(endpoints, security);
    if asks.is_empty() {
        return Err(DiscoverError::NoEndpoints);
    }
    let mut troubles = Vec::new();
    while let Some(asked) = asks.join_next().await {
        match asked {
            Ok((_, Ok(cluster))) => return Ok(cluster),
            Ok((endpoint, Err(trouble))) => troubles.push((endpoint, trouble)),
            // The runtime is ending; the others may still answer.
            Err(_) => {}
        }
    }
    troubles.sort();
    if troubles.iter().any(|(_, trouble)| trouble == STRANGER) {
        return Err(DiscoverError::NotAuthenticated);
    }
    Err(DiscoverError::NoAnswer(troubles))
}

/// What an endpoint says, or why it says nothing.
type Said = (String, Result<Cluster, String>);

/// Asks all endpoints at once.
fn asked<I>(endpoints: I, security: &Security) -> JoinSet<Said>
where
    I: IntoIterator,
    I::Item: AsRef<str>,
{
    let mut asks = JoinSet::new();
    for text in endpoints {
        for endpoint in text.as_ref().split(',').map(str::trim) {
            if !endpoint.is_empty() && asks.len() < ENDPOINTS_MAX {
                let (endpoint, security) = (endpoint.to_owned(), security.clone());
                asks.spawn(async move {
                    let asked = tokio::time::timeout(PATIENCE, ask(&endpoint, security)).await;
                    let told = asked.unwrap_or_else(|_| Err("no answer in time".to_owned()));
                    (endpoint, told)
                });
            }
        }
    }
    asks
}

/// What everyone says who answers in time.
pub(crate) async fn answers<T>(whom: Vec<(T, String)>, security: &Security) -> Vec<(T, Cluster)>
where
    T: Send + 'static,
{
    let mut asks = JoinSet::new();
    for (who, endpoint) in whom.into_iter().take(ENDPOINTS_MAX) {
        let security = security.clone();
        asks.spawn(async move {
            let told = tokio::time::timeout(PATIENCE, ask(&endpoint, security)).await;
            Some((who, told.ok()?.ok()?))
        });
    }
    let mut said = Vec::new();
    let mut last = std::pin::pin!(tokio::time::sleep(PATIENCE));
    loop {
        let asked = tokio::select! {
            asked = asks.join_next() => asked,
            () = &mut last => None,
        };
        let Some(asked) = asked else { return said };
        if let Ok(Some(answer)) = asked {
            if said.is_empty() {
                // Who waits for these does not wait for those that are gone.
                let soon = tokio::time::Instant::now() + SECOND_WORD;
                last.as_mut().reset(soon);
            }
            said.push(answer);
        }
    }
}

/// Whether all nodes of a cluster are on this machine, as those of `conclave up` are: then there
/// is nobody else to believe.
pub fn is_local(cluster: &Cluster) -> bool {
    let local = |peer: &str| {
        let peer = peer.parse::<std::net::SocketAddr>();
        peer.is_ok_and(|peer| peer.ip().is_loopback())
    };
    cluster.nodes.iter().all(|node| local(&node.peer))
}

/// Makes sure that a description of a cluster can be believed though some nodes may lie: with b
/// liars, b+1 endpoints must give it. How many may lie is what the most fearful endpoint says. On
/// one machine one endpoint is enough.
pub(crate) async fn confirm(
    cluster: &Cluster,
    endpoints: &[String],
    security: &Security,
) -> Result<(), Trouble> {
    if is_local(cluster) {
        return Ok(());
    }
    let mut asks = asked(endpoints, security);
    let all = asks.len();
    let (mut equal, mut byzantine) = (0, cluster.faults.byzantine());
    let mut last = std::pin::pin!(tokio::time::sleep(PATIENCE));
    loop {
        let said = tokio::select! {
            said = asks.join_next() => said,
            () = &mut last => None,
        };
        let Some(said) = said else { break };
        let Ok((_, Ok(told))) = said else { continue };
        byzantine = byzantine.max(told.faults.byzantine());
        equal += usize::from(told == *cluster);
        // A lone endpoint might hide that there may be liars: a second one is waited for.
        if equal > byzantine && equal >= all.min(2) {
            break;
        }
        if equal > byzantine {
            let soon = tokio::time::Instant::now() + SECOND_WORD;
            last.as_mut().reset(soon);
        }
    }
    let needed = byzantine + 1;
    if equal >= needed {
        return Ok(());
    }
    Err(Trouble::Unconfirmed {
        equal,
        needed,
        byzantine,
    })
}

async fn ask(endpoint: &str, security: Security) -> Result<Cluster, String> {
    let url = url(endpoint, security.tls().is_some())?;
    let request = Request::new(Empty::<Bytes>::new());
    let response = http::send(&url, &security, request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), BODY_MAX).collect().await;
    let body = body
        .map_err(|error| http::words(error.as_ref()))?
        .to_bytes();
    if status != StatusCode::OK {
        let told = serde_json::from_slice::<serde_json::Value>(&body).unwrap_or_default();
        if told["error"]["code"] == "unauthenticated" {
            return Err(STRANGER.to_owned());
        }
        return Err(match told["error"]["message"].as_str() {
            Some(why) => {
                let why = why.replace(char::is_control, " ");
                format!("it answered {status}: {why}")
            }
            None => format!("it answered {status}; is this the API of a node?"),
        });
    }
    // Not as strict as a file: a newer node may tell more than this build knows.
    let cluster: Cluster = tolerant::from_json(&body).map_err(|error| {
        format!("its answer is not a cluster ({error}); is this a node, and none that is newer?")
    })?;
    cluster
        .check()
        .map_err(|error| format!("the cluster it tells about is wrong: {error}"))?;
    Ok(cluster)
}

fn url(endpoint: &str, tls: bool) -> Result<Uri, String> {
    let usual = if tls { "https" } else { "http" };
    let (scheme, rest) = endpoint.split_once("://").unwrap_or((usual, endpoint));
    if scheme != "http" && scheme != "https" {
        return Err(format!(
            "'{scheme}' is not spoken here; write {usual}://host:port"
        ));
    }
    let rest = rest.trim_end_matches('/');
    let url = format!("{scheme}://{rest}/v1/cluster").parse();
    url.map_err(|error| format!("not a URL ({error}); write {usual}://host:port"))
}

fn listed(troubles: &[(String, String)]) -> String {
    let mut text = String::new();
    for (endpoint, trouble) in troubles {
        let _ = write!(text, "; {endpoint}: {trouble}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_urls_or_hosts() {
        for endpoint in [
            "127.0.0.1:80",
            "http://127.0.0.1:80",
            "http://127.0.0.1:80/",
        ] {
            let url = url(endpoint, false).unwrap().to_string();
            assert_eq!(url, "http://127.0.0.1:80/v1/cluster");
        }
        for (endpoint, tls) in [
            ("h:1", true),
            ("https://h:1/", true),
            ("https://h:1", false),
        ] {
            let url = url(endpoint, tls).unwrap().to_string();
            assert_eq!(url, "https://h:1/v1/cluster");
        }
        for endpoint in ["ftp://h:1", "h o s t", "http://"] {
            assert!(url(endpoint, false).is_err(), "{endpoint}");
        }
    }
}
