//! What operators, probes and smart clients read: health, state, metrics, sessions, the cluster.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use conclave_client::clock;
use conclave_protocol::id::NodeId;
use conclave_protocol::lock::Mode;
use serde::{Deserialize, Serialize};

use super::App;
use super::admit::Caller;
use super::errors::Failure;
use super::locks::{Query, refuse};
use super::look::Silent;
use crate::shard::{LevelReport, Query as Ask, Report};

/// The most sessions of one answer.
pub(crate) const SESSIONS_MAX: usize = 1000;

/// A node as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeStatus {
    pub(crate) id: u32,
    /// The cluster's name.
    pub(crate) cluster: String,
    /// `starting`, `pausing`, `recovering`, `serving`, `draining` or `stopped`.
    pub(crate) state: String,
    /// The number of its present life.
    pub(crate) incarnation: u64,
    pub(crate) epoch: u64,
    /// The digest of the configuration, in hex.
    pub(crate) digest: String,
    /// Locks with a request.
    pub(crate) locks: usize,
    pub(crate) sessions: usize,
    pub(crate) clients: usize,
    /// Released handles that are remembered.
    pub(crate) tombstones: usize,
    /// Open connections on the peer port.
    pub(crate) connections: usize,
    /// Requests that are granted.
    pub(crate) granted: u64,
    /// Requests that wait.
    pub(crate) waiting: u64,
    /// Acquire requests that wait at this gateway.
    pub(crate) waiters: usize,
    pub(crate) version: String,
    pub(crate) uptime_ms: u64,
    /// A random number of the process, in hex.
    pub(crate) process: String,
    /// Its leases and objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) keeper: Option<KeeperStatus>,
    /// What it does in the clusters, if a hierarchy serves the locks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) levels: Option<LevelsStatus>,
}

/// A node in the clusters of a hierarchy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LevelsStatus {
    /// The clusters where it is a member, the highest first.
    pub(crate) clusters: Vec<ClusterSeat>,
    /// Locks that have the consent of the clusters here, and locks that want it.
    pub(crate) held: usize,
    pub(crate) wanted: usize,
    /// Nodes that it cannot reach.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) suspected: Vec<u32>,
    /// How many nodes it is connected with.
    pub(crate) links: usize,
}

/// A cluster, and what a member does there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClusterSeat {
    /// 0 is the root.
    pub(crate) level: u8,
    pub(crate) members: Vec<u32>,
    /// Locks whose permission it has given away.
    pub(crate) permissions: usize,
    /// Locks for which it asks there; above the last level as a representing node.
    pub(crate) runs: usize,
    /// Those of them that have consent.
    pub(crate) consents: usize,
    /// Requests and children that wait.
    pub(crate) waiting: usize,
}

impl From<LevelReport> for LevelsStatus {
    fn from(report: LevelReport) -> Self {
        let number = |node: NodeId| node.0 + 1;
        let clusters = report
            .levels
            .into_iter()
            .map(|(view, members)| ClusterSeat {
                level: view.level,
                members: members.into_iter().map(number).collect(),
                permissions: view.permissions,
                runs: view.runs,
                consents: view.consents,
                waiting: view.waiting,
            });
        Self {
            clusters: clusters.collect(),
            held: report.held,
            wanted: report.wanted,
            suspected: report.suspected.into_iter().map(number).collect(),
            links: report.links,
        }
    }
}

/// A node's leases and objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeeperStatus {
    /// Whether it serves them; if not it has lost its disk and is on its way back.
    pub(crate) serving: bool,
    /// How many objects there are, and how many bytes they have.
    pub(crate) objects: u64,
    pub(crate) object_bytes: u64,
    /// Objects that others have in a later version, as far as enough of them say so.
    pub(crate) behind: u64,
    /// Names of leases that are remembered.
    pub(crate) leases: u64,
    /// Who was seen to differ from what enough others say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) suspects: Vec<Suspect>,
}

/// A node that was seen to differ from what enough others say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Suspect {
    pub(crate) node: u32,
    /// `stale`, `forged`, `equivocating`, `silent` or `huge`.
    pub(crate) kind: String,
    pub(crate) count: u64,
}

/// A node as another one sees it.
#[derive(Clone, Debug, Serialize)]
struct SeenNode {
    id: u32,
    api: String,
    peer: String,
    reachable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<NodeStatus>,
}

/// This node, and the cluster around it.
#[derive(Clone, Debug, Serialize)]
struct ClusterStatus {
    #[serde(flatten)]
    own: Option<NodeStatus>,
    quorum: String,
    /// Whether the nodes that serve contain a quorum for exclusive locks.
    available: bool,
    nodes: Vec<SeenNode>,
}

impl App {
    /// What this node says about itself.
    pub(crate) async fn own_status(&self) -> NodeStatus {
        let report = self.shard.inspect(Ask::Overview).await;
        let (state, incarnation, kept, connections) = match report {
            Some(Report::Overview {
                state,
                incarnation,
                kept,
                connections,
            }) => (state, incarnation, kept, connections),
            _ => ("stopped", 0, [0; 4], 0),
        };
        let levels = match self.shard.inspect(Ask::Levels).await {
            Some(Report::Levels(levels)) => levels.map(LevelsStatus::from),
            _ => None,
        };
        let uptime = clock::now().mono.since(self.started);
        let waiters = self.limits.waiters - self.waiting.available_permits();
        NodeStatus {
            id: self.id,
            cluster: self.cluster.name.clone(),
            state: state.to_owned(),
            incarnation,
            epoch: self.config.id.epoch,
            digest: hex(&self.config.id.digest),
            locks: kept[0],
            sessions: kept[1],
            clients: kept[2],
            tombstones: kept[3],
            connections,
            granted: u64::try_from(self.meters.granted.get()).unwrap_or(0),
            waiting: u64::try_from(self.meters.waiting.get()).unwrap_or(0),
            waiters,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_ms: u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX),
            process: format!("{:032x}", self.process),
            keeper: Some(self.keeper_status()),
            levels,
        }
    }

    fn keeper_status(&self) -> KeeperStatus {
        let keeper = &self.meters.keeper;
        keeper.seen_by_clients(&self.keepers.lies());
        let count = |gauge: i64| u64::try_from(gauge).unwrap_or(0);
        let suspects = keeper.suspects().into_iter();
        KeeperStatus {
            serving: keeper.serving.get() == 1,
            objects: count(keeper.objects.get()),
            object_bytes: count(keeper.object_bytes.get()),
            behind: count(keeper.lag.get()),
            leases: count(keeper.leases.get()),
            suspects: suspects
                .map(|(node, lie, count)| Suspect {
                    node: node.0 + 1,
                    kind: lie.name().to_owned(),
                    count,
                })
                .collect(),
        }
    }
}

impl App {
    /// What all nodes say about themselves, by number, or why they do not.
    pub(crate) async fn all_status(&self) -> Vec<(u32, Result<NodeStatus, String>)> {
        let path = "/v1/status?local=true";
        let itself = Caller::itself();
        let others = self.fetch.all::<NodeStatus>(path, &itself);
        let (own, others) = tokio::join!(self.own_status(), others);
        let others = others
            .into_iter()
            .map(|(node, status)| (node.0 + 1, status));
        let mut all: Vec<_> = others.chain([(self.id, Ok(own))]).collect();
        all.sort_by_key(|(id, _)| *id);
        all
    }
}

fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits
        .filter_map(|digit| char::from_digit(u32::from(digit), 16))
        .collect()
}

/// `GET /v1/status`.
pub(crate) async fn status(State(app): State<Arc<App>>, request: Request<Body>) -> Response {
    let (parts, _) = request.into_parts();
    let query = match Query::read(&parts).and_then(|query| query.only(&["local"]).map(|()| query)) {
        Ok(query) => query,
        Err(failure) => return refuse(&app, failure),
    };
    if query.is_local() {
        return Json(app.own_status().await).into_response();
    }
    let all = app.all_status().await;
    let mut nodes = Vec::with_capacity(all.len());
    let mut own = None;
    for (id, status) in all {
        let (status, why) = match status {
            Ok(status) => (Some(status), None),
            Err(why) => (None, Some(why)),
        };
        let listed = app.cluster.node(id);
        if id == app.id {
            own.clone_from(&status);
        }
        nodes.push(SeenNode {
            id,
            api: listed.map(|node| node.api.clone()).unwrap_or_default(),
            peer: listed.map(|node| node.peer.clone()).unwrap_or_default(),
            reachable: status.is_some(),
            why,
            status,
        });
    }
    let serves = |node: &&SeenNode| {
        let status = node.status.as_ref();
        status.is_some_and(|status| status.state == "serving")
    };
    let serving = nodes.iter().filter(serves);
    let serving: Vec<NodeId> = serving
        .map(|node| NodeId(node.id.saturating_sub(1)))
        .collect();
    let available = match app.cluster.topology() {
        Some(topology) => topology.serves(&|node| serving.contains(&node)),
        None => app.config.quorums.served_by(&Mode::Exclusive, serving),
    };
    Json(ClusterStatus {
        own,
        quorum: app.cluster.quorum.clone(),
        available,
        nodes,
    })
    .into_response()
}

/// `GET /healthz`: the process is alive and its API answers.
pub(crate) async fn healthz() -> Response {
    Json(serde_json::json!({ "alive": true })).into_response()
}

/// `GET /readyz`: the node grants.
pub(crate) async fn readyz(State(app): State<Arc<App>>) -> Response {
    let status = app.own_status().await;
    let stopping = *app.stopping.borrow();
    if status.state == "serving" && !stopping {
        return Json(serde_json::json!({ "ready": true, "state": status.state })).into_response();
    }
    let state = if stopping { "stopping" } else { &status.state };
    Failure::NotReady(state.to_owned()).into_response()
}

/// `GET /metrics`.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let status = app.own_status().await;
    app.meters.set_state(&status.state);
    let breaks = app.driver.counters().closed;
    let breaks = i64::try_from(breaks).unwrap_or(i64::MAX);
    app.meters.gateway_breaks.set(breaks);
    app.meters.keeper.seen_by_clients(&app.keepers.lies());
    let text = app.meters.text();
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let mut response = text.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// `GET /v1/cluster`: what smart clients need to know.
pub(crate) async fn cluster(State(app): State<Arc<App>>) -> Response {
    Json(&app.cluster).into_response()
}

/// A session in JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SessionJson {
    pub(crate) session: String,
    pub(crate) owner: String,
    /// In whose name it asks; left out if nobody has to say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) principal: String,
    /// Whether it was revoked: it is not renewed any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) revoked: bool,
    pub(crate) ttl_ms: u64,
    pub(crate) detached: bool,
    pub(crate) requests: usize,
    /// How long ago it was renewed.
    pub(crate) age_ms: u64,
    /// The nodes that keep it.
    #[serde(default)]
    pub(crate) nodes: Vec<u32>,
}

/// A page of sessions.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SessionPage {
    pub(crate) sessions: Vec<SessionJson>,
    /// What to give as `cursor` for the next page; none at the end.
    pub(crate) next: Option<u32>,
    #[serde(default, skip_deserializing, skip_serializing_if = "Vec::is_empty")]
    pub(crate) silent: Vec<Silent>,
}

impl App {
    /// Sessions that this node keeps.
    pub(crate) async fn local_sessions(
        &self,
        from: u32,
        limit: usize,
        caller: &Caller,
    ) -> Result<SessionPage, Failure> {
        let ask = Ask::Sessions {
            from,
            limit,
            reader: caller.reader().cloned(),
        };
        let Report::Sessions(page, next) = self.inspect(ask).await? else {
            return Ok(SessionPage::default());
        };
        let millis = |span: std::time::Duration| u64::try_from(span.as_millis());
        let sessions = page.iter().map(|session| SessionJson {
            session: format!("{:x}", session.session),
            owner: session.owner.to_string(),
            principal: session.principal.to_string(),
            revoked: session.revoked,
            ttl_ms: millis(session.ttl).unwrap_or(u64::MAX),
            detached: session.detached,
            requests: session.requests,
            age_ms: millis(session.age).unwrap_or(u64::MAX),
            nodes: vec![self.id],
        });
        Ok(SessionPage {
            sessions: sessions.collect(),
            next,
            silent: Vec::new(),
        })
    }

    /// Sessions of all nodes: the first page of each, one line per session. To read more than
    /// that, ask each node for its own.
    pub(crate) async fn whole_sessions(
        &self,
        limit: usize,
        caller: &Caller,
    ) -> Result<SessionPage, Failure> {
        let path = format!("/v1/sessions?local=true&limit={SESSIONS_MAX}");
        let own = self.local_sessions(0, SESSIONS_MAX, caller);
        let others = self.fetch.all::<SessionPage>(&path, caller);
        let (own, others) = tokio::join!(own, others);
        let mut all = std::collections::BTreeMap::new();
        let mut whole = SessionPage::default();
        let mut pages = vec![own?];
        for (node, page) in others {
            match page {
                Ok(page) => pages.push(page),
                Err(why) => whole.silent.push(Silent {
                    node: node.0 + 1,
                    why,
                }),
            }
        }
        for session in pages.into_iter().flat_map(|page| page.sessions) {
            match all.entry(session.session.clone()) {
                std::collections::btree_map::Entry::Vacant(place) => {
                    place.insert(session);
                }
                std::collections::btree_map::Entry::Occupied(mut seen) => {
                    let seen: &mut SessionJson = seen.get_mut();
                    seen.nodes.extend(session.nodes);
                    seen.requests = seen.requests.max(session.requests);
                    seen.age_ms = seen.age_ms.min(session.age_ms);
                    seen.revoked |= session.revoked;
                }
            }
        }
        whole.sessions = all.into_values().take(limit).collect();
        whole
            .sessions
            .iter_mut()
            .for_each(|one| one.nodes.sort_unstable());
        whole.silent.sort_by_key(|silent| silent.node);
        Ok(whole)
    }
}

/// `GET /v1/sessions`.
pub(crate) async fn sessions(State(app): State<Arc<App>>, request: Request<Body>) -> Response {
    let (parts, _) = request.into_parts();
    let page = async {
        let query = Query::read(&parts)?;
        query.only(&["local", "limit", "cursor"])?;
        let caller = Caller::of(&parts.extensions)?;
        let limit = query.limit(100, SESSIONS_MAX)?;
        if !query.is_local() {
            return app.whole_sessions(limit, &caller).await;
        }
        let cursor = query.get("cursor").map_or(Some(0), |text| {
            let text = std::str::from_utf8(text).ok()?;
            text.parse().ok()
        });
        let problem = || Failure::BadRequest("cursor must be the next of a page".to_owned());
        let cursor = cursor.ok_or_else(problem)?;
        app.local_sessions(cursor, limit, &caller).await
    };
    match page.await {
        Ok(page) => Json(page).into_response(),
        Err(failure) => refuse(&app, failure),
    }
}

/// `GET /`.
pub(crate) async fn root(State(app): State<Arc<App>>) -> Response {
    let text = format!(
        "Conclave {}: node {} of cluster '{}', a lock service without a leader.\n\n{ROOT}",
        env!("CARGO_PKG_VERSION"),
        app.id,
        app.cluster.name
    );
    (StatusCode::OK, text).into_response()
}

const ROOT: &str = "\
POST /v1/locks/{name}/acquire   take a lock: {\"mode\",\"ttl_ms\",\"wait_ms\",\"id\",\"owner\"}
POST /v1/locks/keepalive        renew it: {\"handle\"}
POST /v1/locks/release          release it: {\"handle\"}
GET  /v1/locks/{name}           who holds it, who waits
GET  /v1/locks?prefix=          which locks there are
GET  /v1/sessions               whose sessions there are
POST /v1/sessions/{id}/revoke   end one: renewed no more; ?force=true frees at once
GET  /v1/status                 this node and the others
GET  /v1/cluster                the configuration, for smart clients
GET  /v1/openapi.json           all of this for programs
GET  /healthz /readyz /metrics  for probes and Prometheus
gRPC conclave.v1.Locks and conclave.v1.Cluster on the same port
";
