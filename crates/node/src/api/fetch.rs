//! Asks other nodes for what they know, over their API.

use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Method, Request};
use conclave_client::Security;
use conclave_client::secure::{Connector, Side, explain_below};
use conclave_protocol::id::NodeId;
use conclave_wire::Cluster;
use futures_util::StreamExt;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde::de::DeserializeOwned;

use super::admit::{Caller, IN_THE_NAME_OF};

/// How long another node may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// The most bytes of an answer.
const ANSWER_MAX: usize = 16 << 20;
/// How many nodes are asked at once.
const AT_ONCE: usize = 64;

/// A client of the other nodes' API.
#[derive(Clone, Debug)]
pub(crate) struct Fetch {
    client: Client<Connector, Empty<Bytes>>,
    /// All nodes but this one.
    others: Vec<(NodeId, String)>,
}

impl Fetch {
    pub(crate) fn new(cluster: &Cluster, id: u32, security: &Security) -> Self {
        let connector = Connector(security.clone());
        let others = cluster.nodes.iter().filter(|node| node.id != id);
        Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            others: others.map(|node| (node.node(), node.api.clone())).collect(),
        }
    }

    /// Asks all other nodes the same, and tells what each said or why it did not.
    pub(crate) async fn all<T: DeserializeOwned>(
        &self,
        path: &str,
        caller: &Caller,
    ) -> Vec<(NodeId, Result<T, String>)> {
        self.call_all(Method::GET, path, caller).await
    }

    /// Tells all other nodes to do the same.
    pub(crate) async fn post_all<T: DeserializeOwned>(
        &self,
        path: &str,
        caller: &Caller,
    ) -> Vec<(NodeId, Result<T, String>)> {
        self.call_all(Method::POST, path, caller).await
    }

    async fn call_all<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        caller: &Caller,
    ) -> Vec<(NodeId, Result<T, String>)> {
        let asked = self.others.clone().into_iter().map(|(node, api)| {
            let (fetch, path, method) = (self.clone(), path.to_owned(), method.clone());
            let caller = caller.clone();
            async move {
                let asked = fetch.one(method, &api, &path, &caller);
                let answer = tokio::time::timeout(PATIENCE, asked).await;
                let answer = answer.unwrap_or_else(|_| Err("no answer in time".to_owned()));
                (node, answer)
            }
        });
        futures_util::stream::iter(asked)
            .buffer_unordered(AT_ONCE)
            .collect()
            .await
    }

    async fn one<T: DeserializeOwned>(
        &self,
        method: Method,
        api: &str,
        path: &str,
        caller: &Caller,
    ) -> Result<T, String> {
        let url = format!("{}{path}", api.trim_end_matches('/'));
        let mut request = Request::builder().method(method).uri(url);
        // Who knows this node by its certificate wants to know too.
        if let Some(name) = caller.header() {
            request = request.header(IN_THE_NAME_OF, name);
        }
        let request = request
            .body(Empty::new())
            .map_err(|error| error.to_string())?;
        let answer = self.client.request(request).await;
        let answer = answer.map_err(|error| because(&error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        // Not being ready is told with another status and the same body.
        serde_json::from_slice(&body).map_err(|_| format!("answered {status}"))
    }
}

/// An error with what caused it, which says more.
fn because(error: &(dyn std::error::Error + 'static)) -> String {
    if let Some(text) = explain_below(error, Side::Node) {
        return text;
    }
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
