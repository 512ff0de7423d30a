//! What operators, probes and smart clients read: health, state, metrics, sessions, the cluster.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use conclave_client::clock;
use conclave_protocol::id::NodeId;
use conclave_protocol::lock::Mode;
use conclave_wire::Cluster;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::App;
use super::admit::Caller;
use super::errors::Failure;
use super::locks::{Query, refuse};
use super::openapi::{Either, Local};
use super::refusals::{Looking, Open};
use crate::shard::{LevelReport, Query as Ask, Report};

/// A node as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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
    /// How far its token clock is ahead of its wall clock, in milliseconds. Some clock of the
    /// cluster was ahead once; it does no harm.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) token_clock_ahead_ms: u64,
    /// Whether its wall clock is so far ahead that nothing is made of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) clock_ignored: bool,
    /// Nodes that keep refusing tokens which others know: they cannot hear the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) refusing: Vec<Refusing>,
    /// Its leases and objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) keeper: Option<KeeperStatus>,
    /// What it does in the clusters, if a hierarchy serves the locks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) levels: Option<LevelsStatus>,
}

/// A node that keeps refusing tokens, as a gateway sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Refusing {
    pub(crate) node: u32,
    /// What its token clock shows, in microseconds since 1970.
    pub(crate) token_clock: u64,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// A node in the clusters of a hierarchy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Suspect {
    pub(crate) node: u32,
    /// `stale`, `forged`, `equivocating`, `silent` or `huge`.
    pub(crate) kind: String,
    pub(crate) count: u64,
}

/// A node as another one sees it.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct SeenNode {
    id: u32,
    api: String,
    peer: String,
    reachable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    status: Option<NodeStatus>,
}

/// This node, and the cluster around it.
#[derive(Clone, Debug, Serialize, ToSchema)]
struct ClusterStatus {
    #[serde(flatten)]
    #[schema(value_type = NodeStatus)]
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
        let mut clocks = (clock::now().wall, false);
        let (state, incarnation, kept, connections) = match report {
            Some(Report::Overview {
                state,
                incarnation,
                kept,
                connections,
                token_clock,
                clock_ignored,
                ..
            }) => {
                clocks = (token_clock, clock_ignored);
                (state, incarnation, kept, connections)
            }
            _ => ("stopped", 0, [0; 4], 0),
        };
        let levels = match self.shard.inspect(Ask::Levels).await {
            Some(Report::Levels(levels)) => levels.map(LevelsStatus::from),
            _ => None,
        };
        let uptime = clock::now().mono.since(self.started);
        let waiters = self.waiting.taken();
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
            token_clock_ahead_ms: clocks.0.0.saturating_sub(clock::now().wall.0) / 1000,
            clock_ignored: clocks.1,
            refusing: self.refusing(),
            keeper: Some(self.keeper_status()),
            levels,
        }
    }

    /// Nodes that keep refusing tokens, as this gateway sees them.
    fn refusing(&self) -> Vec<Refusing> {
        let nodes = self.driver.nodes().into_iter();
        let refusing = nodes.filter_map(|health| {
            Some(Refusing {
                node: health.node.0 + 1,
                token_clock: health.refuses_tokens?.0,
            })
        });
        refusing.collect()
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

/// All nodes, or this one.
type Told = Either<ClusterStatus, NodeStatus>;

/// This node, and the others as it sees them.
///
/// With `local=true` only what this node says about itself.
#[utoipa::path(
    get,
    path = "/v1/status",
    params(Local),
    responses(
        (status = 200, description = "How the nodes do.", body = inline(Told)),
        Looking,
    ),
)]
pub(crate) async fn status(State(app): State<Arc<App>>, request: Request<Body>) -> Response {
    let (parts, _) = request.into_parts();
    let local = Query::read(&parts).and_then(|query| {
        query.only(&["local"])?;
        query.flag("local")
    });
    let local = match local {
        Ok(local) => local,
        Err(failure) => return refuse(&app, failure),
    };
    if local {
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

/// The process is alive.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Alive {
    alive: bool,
}

/// The node grants.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Ready {
    ready: bool,
    /// What the node is doing.
    state: String,
}

/// Whether the process is alive and its API answers.
#[utoipa::path(
    get,
    path = "/healthz",
    responses((status = 200, description = "It is.", body = Alive), Open),
    security(()),
)]
pub(crate) async fn healthz() -> Response {
    Json(Alive { alive: true }).into_response()
}

/// Whether the node grants locks.
#[utoipa::path(
    get,
    path = "/readyz",
    responses((status = 200, description = "It does.", body = Ready), Open),
    security(()),
)]
pub(crate) async fn readyz(State(app): State<Arc<App>>) -> Response {
    let status = app.own_status().await;
    let stopping = *app.stopping.borrow();
    if status.state == "serving" && !stopping {
        let (ready, state) = (true, status.state);
        return Json(Ready { ready, state }).into_response();
    }
    let state = if stopping { "stopping" } else { &status.state };
    Failure::NotReady(state.to_owned()).into_response()
}

/// Metrics: `OpenMetrics`, or the classic text format of Prometheus for whoever likes that better.
#[utoipa::path(
    get,
    path = "/metrics",
    responses(
        (status = 200, description = "The metrics.", content(
            (String = "application/openmetrics-text"),
            (String = "text/plain"),
        )),
        Open,
    ),
)]
pub(crate) async fn metrics(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    let status = app.own_status().await;
    app.meters.set_state(&status.state);
    let breaks = app.driver.counters().closed;
    let breaks = i64::try_from(breaks).unwrap_or(i64::MAX);
    app.meters.gateway_breaks.set(breaks);
    app.meters.keeper.seen_by_clients(&app.keepers.lies());
    let (text, kind) = if wants_classic(&headers) {
        let kind = "text/plain; version=0.0.4; charset=utf-8";
        (app.meters.classic_text(), kind)
    } else {
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        (app.meters.text(), kind)
    };
    let mut response = text.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Whether plain text is preferred to `OpenMetrics`.
fn wants_classic(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter();
    let accepted = accepted.filter_map(|value| value.to_str().ok());
    let (mut classic, mut open) = (0.0_f32, 0.0_f32);
    for kind in accepted.flat_map(|value| value.split(',')) {
        let mut parts = kind.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse().ok());
        let weight = weight.unwrap_or(1.0);
        if ["text/plain", "text/*", "*/*"].contains(&name) {
            classic = classic.max(weight);
        }
        if ["application/openmetrics-text", "application/*", "*/*"].contains(&name) {
            open = open.max(weight);
        }
    }
    classic > open
}

/// The configuration, for smart clients.
#[utoipa::path(
    get,
    path = "/v1/cluster",
    responses((status = 200, description = "The cluster file as JSON.", body = Cluster), Open),
)]
pub(crate) async fn cluster(State(app): State<Arc<App>>) -> Response {
    Json(&app.cluster).into_response()
}

/// What this is, and all paths.
#[utoipa::path(
    get,
    path = "/",
    responses(
        (status = 200, description = "A short text.", body = String, content_type = "text/plain"),
        Open,
    ),
    security(()),
)]
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
GET  /v1/locks/{name}/watch     the same as it changes
GET  /v1/locks?prefix=          which locks there are
GET  /v1/watch?prefix=          the same as they change
POST /v1/leases/{name}/acquire  take a lease: {\"for_ms\",\"wait_ms\"}
POST /v1/leases/renew           renew it: {\"handle\"}
POST /v1/leases/release         give it back: {\"handle\"}
POST /v1/objects/counter/{name}   change a counter: {\"op\",…}; GET reads it
POST /v1/objects/map/{name}       the same with a map
POST /v1/objects/queue/{name}     a queue
POST /v1/objects/log/{name}       a log
POST /v1/objects/register/{name}  a register
GET  /v1/sessions               whose sessions there are
POST /v1/sessions/{id}/revoke   end one: renewed no more; ?force=true frees at once
GET  /v1/status                 this node and the others
GET  /v1/cluster                the configuration, for smart clients
GET  /v1/openapi.json           all of this for programs
GET  /healthz /readyz /metrics  for probes and Prometheus
gRPC conclave.v1.Locks, Leases, Objects and Cluster on the same port
";
