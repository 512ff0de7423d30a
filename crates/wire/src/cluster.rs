//! The cluster file: what all nodes and clients of a cluster agree on, and where its nodes are.
//!
//! One [`Cluster`] is read from TOML by nodes, told as JSON to clients that ask any node, and
//! turned into the [`Config`] that the machines run with. Its [`digest`](Cluster::digest) covers
//! everything the protocol depends on, addresses excepted; two processes whose digests differ
//! refuse each other, and [`differences`] says in words what differs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::id::NodeId;
use conclave_protocol::lock::{
    Choice, Config, ConfigId, Limits, Policy, Protocol, Quorums, QuorumsError, Restart,
};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::faults::FaultsText;
use crate::hierarchy::{CoterieText, TopologyText};
use crate::span::Span;

/// The most nodes of a cluster.
pub const NODES_MAX: usize = 10_000;
/// The most policies of a cluster.
pub const POLICIES_MAX: usize = 1_000;
/// The largest number of a configuration: the largest that TOML can say.
pub const EPOCH_MAX: u64 = i64::MAX as u64;
/// The most bytes of the quorum system's text form: a weight for each of the most nodes.
pub const QUORUM_BYTES: usize = 1 << 17;
/// The largest limit that can be set; none of them can be reached beyond it.
const LIMIT_MAX: usize = 1_000_000_000;

/// A cluster as its file describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "describe", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Its name, for people and in the digest.
    pub name: String,
    /// The number of this configuration; raised with every change.
    pub epoch: u64,
    /// The quorum system in its text form; without n it takes the number of nodes. Empty until
    /// [`Cluster::complete`] where it follows from the places of the nodes.
    #[serde(default)]
    pub quorum: String,
    /// Whether a hierarchy of clusters serves the locks; by default it does if the quorum system
    /// is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<TopologyText>,
    /// The coteries of the clusters that the places of the nodes make; trees by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coterie: Option<CoterieText>,
    /// The groups that own the cartels of a group system, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// What nodes keep on disk.
    #[serde(default)]
    pub restart: RestartText,
    /// Times that differ from the usual.
    #[serde(default)]
    pub times: Times,
    /// Limits that differ from the usual.
    #[serde(default)]
    pub limits: LimitsText,
    /// How many nodes may lie, and what leases and objects run with.
    #[serde(default, skip_serializing_if = "FaultsText::is_usual")]
    pub faults: FaultsText,
    /// Policies by prefix of a lock's name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<PolicyText>,
    /// The nodes.
    pub nodes: Vec<Node>,
}

/// A node of the cluster file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "describe", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Its number, from 1.
    pub id: u32,
    /// Host and port for peers and smart clients.
    pub peer: String,
    /// The URL of its API.
    pub api: String,
    /// Where it is, from the largest place to the smallest: `eu/rack-1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
}

impl Node {
    /// The node as the machines number it.
    pub fn node(&self) -> NodeId {
        NodeId(self.id.saturating_sub(1))
    }
}

/// What nodes keep on disk, as written in the cluster file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "describe", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum RestartText {
    /// A few numbers; after a crash a node pauses.
    #[default]
    Pause,
    /// Every grant, before it is sent.
    Durable,
}

/// Times of the cluster file; those left out are the usual ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "describe", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Times {
    /// How long a connection lives without a heartbeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "describe", schema(value_type = Option<String>))]
    pub link_ttl: Option<Span>,
    /// How often a client sends a heartbeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "describe", schema(value_type = Option<String>))]
    pub heartbeat: Option<Span>,
    /// The longest TTL of a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "describe", schema(value_type = Option<String>))]
    pub ttl_max: Option<Span>,
    /// The shortest TTL of a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "describe", schema(value_type = Option<String>))]
    pub ttl_min: Option<Span>,
}

/// Limits of the cluster file; those left out are the usual ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "describe", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct LimitsText {
    /// Requests per lock at one node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiters_per_lock: Option<usize>,
    /// Sessions of one principal (one address where nobody says who they are) at one node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions_per_client: Option<usize>,
    /// Requests of one principal or address at one node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locks_per_client: Option<usize>,
    /// Connections of clients per node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<usize>,
    /// Connections of one principal or address at one node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections_per_client: Option<usize>,
    /// Mebibytes that all sessions, requests and watches of a node may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<usize>,
    /// Locks per node with a request in them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locks: Option<usize>,
    /// Bytes of a lock's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_bytes: Option<usize>,
    /// Bytes of a group's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_bytes: Option<usize>,
    /// Locks taken at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub together: Option<usize>,
}

/// A policy of the cluster file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "describe", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PolicyText {
    /// The prefix of the names it is for.
    pub prefix: String,
    /// How many of a group a node lets in at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_inside: Option<u32>,
    /// How many late members of the group inside may pass a waiting request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bypass: Option<u32>,
    /// `parallel` or `serial`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<ProtocolText>,
    /// `shared` or `near`: how clients choose the quorum that they ask first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<ChoiceText>,
}

/// How clients choose the quorum that they ask first, as written in the cluster file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "describe", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum ChoiceText {
    /// By the lock's name alone.
    Shared,
    /// Near nodes first.
    Near,
}

/// Which protocol serves a lock, as written in the cluster file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "describe", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum ProtocolText {
    /// All members of a quorum at once.
    Parallel,
    /// One member after the other.
    Serial,
}

/// What is wrong with a cluster file, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ClusterError {
    /// Not TOML, or not the fields of a cluster file.
    #[error("{0}")]
    Text(String),
    /// A field has a value that cannot be.
    #[error("{field}: {problem}")]
    Field {
        /// Which.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}

pub(crate) fn wrong(field: &'static str, problem: impl Into<String>) -> ClusterError {
    ClusterError::Field {
        field,
        problem: problem.into(),
    }
}

impl Cluster {
    /// Reads a cluster file; the error tells line and column.
    pub fn parse(text: &str) -> Result<Self, ClusterError> {
        let mut cluster: Self = toml::from_str(text)
            .map_err(|error| ClusterError::Text(error.to_string().trim_end().to_owned()))?;
        cluster.complete()?;
        cluster.check()?;
        Ok(cluster)
    }

    /// The cluster as a file. It has to be one that [`check`](Self::check) accepts: TOML cannot
    /// say every number.
    pub fn to_toml(&self) -> String {
        toml::to_string_pretty(self).unwrap_or_else(|error| format!("# no cluster file: {error}\n"))
    }

    /// Checks what no type says: numbers, names, times, and that the quorum system can serve.
    pub fn check(&self) -> Result<(), ClusterError> {
        if self.name.is_empty() || self.name.len() > 100 {
            return Err(wrong("name", "must have 1 to 100 bytes"));
        }
        if self.epoch > EPOCH_MAX {
            return Err(wrong("epoch", format!("must be at most {EPOCH_MAX}")));
        }
        if self.quorum.len() > QUORUM_BYTES {
            let problem = format!("must have at most {QUORUM_BYTES} bytes");
            return Err(wrong("quorum", problem));
        }
        if self.nodes.is_empty() || self.nodes.len() > NODES_MAX {
            return Err(wrong("nodes", format!("must be 1 to {NODES_MAX} nodes")));
        }
        if self.policies.len() > POLICIES_MAX {
            return Err(wrong("policies", format!("must be at most {POLICIES_MAX}")));
        }
        self.check_nodes()?;
        if self.quorum.is_empty() {
            let problem = "is missing; write one such as quorum = \"majority\"";
            return Err(wrong("quorum", problem));
        }
        self.check_hierarchy()?;
        self.object_config()?;
        self.config().map(drop)
    }

    fn check_nodes(&self) -> Result<(), ClusterError> {
        let mut seen = vec![false; self.nodes.len()];
        for node in &self.nodes {
            match seen.get_mut(node.id.wrapping_sub(1) as usize) {
                Some(seen) if !*seen => *seen = true,
                Some(_) => {
                    return Err(wrong("nodes", format!("id {} is given twice", node.id)));
                }
                None => {
                    let last = self.nodes.len();
                    let problem = format!("id {} is not one of 1 to {last}", node.id);
                    return Err(wrong("nodes", problem));
                }
            }
            if node
                .peer
                .rsplit_once(':')
                .is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err())
            {
                let problem = format!("peer '{}' of node {} is not host:port", node.peer, node.id);
                return Err(wrong("nodes", problem));
            }
            let host = ["http://", "https://"];
            let host = host.iter().find_map(|scheme| node.api.strip_prefix(scheme));
            if host.is_none_or(str::is_empty) {
                let problem = format!(
                    "api '{}' of node {} is not a URL; write http://host:port",
                    node.api, node.id
                );
                return Err(wrong("nodes", problem));
            }
        }
        Ok(())
    }

    /// The node of this number, from 1.
    pub fn node(&self, id: u32) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// What the machines run with.
    pub fn config(&self) -> Result<Config, ClusterError> {
        let hierarchy = self.is_hierarchy();
        let quorums = if hierarchy {
            // What keeps holders apart is the consent that each node needs.
            Quorums::any_one(self.nodes.len())
        } else {
            self.quorums()?
        };
        let mut config = Config::new(quorums);
        if hierarchy {
            self.set_gate(&mut config)?;
        }
        let usual = config.times;
        let times = &mut config.times;
        let set = |into: &mut Duration, from: Option<Span>| {
            if let Some(span) = from {
                *into = span.0;
            }
        };
        set(&mut times.link_ttl, self.times.link_ttl);
        set(&mut times.heartbeat, self.times.heartbeat);
        set(&mut times.ttl_max, self.times.ttl_max);
        set(&mut times.ttl_min, self.times.ttl_min);
        if times.link_ttl < Duration::from_millis(20) || times.link_ttl > Duration::from_mins(1) {
            return Err(wrong("times.link_ttl", "must be 20ms to 60s"));
        }
        if times.heartbeat * 2 > times.link_ttl || times.heartbeat.is_zero() {
            return Err(wrong("times.heartbeat", "must be at most half of link_ttl"));
        }
        if times.ttl_min < Duration::from_millis(10) || times.ttl_min > times.ttl_max {
            return Err(wrong("times.ttl_min", "must be 10ms to ttl_max"));
        }
        if times.ttl_max > Duration::from_hours(24) {
            return Err(wrong("times.ttl_max", "must be at most 24h"));
        }
        if times.link_ttl > times.ttl_max {
            return Err(wrong("times.link_ttl", "must be at most ttl_max"));
        }
        debug_assert_eq!(
            usual.drift_ppm, times.drift_ppm,
            "the same on every machine"
        );
        config.limits = self.limits.apply(config.limits)?;
        config.restart = match self.restart {
            RestartText::Pause => Restart::Pause,
            RestartText::Durable => Restart::Durable,
        };
        let mut prefixes = BTreeSet::new();
        for policy in &self.policies {
            if !prefixes.insert(&policy.prefix) {
                let problem = format!("prefix '{}' is given twice", policy.prefix);
                return Err(wrong("policies", problem));
            }
            config.policies.push(policy.parse(&config.limits)?);
        }
        config.id = ConfigId {
            epoch: self.epoch,
            digest: self.digest(),
        };
        Ok(config)
    }

    fn quorums(&self) -> Result<Quorums, ClusterError> {
        let spec = conclave_quorum::text::parse(&self.quorum)
            .map_err(|error| wrong("quorum", error.to_string()))?;
        let no_files = |_: &str| {
            Err("a cluster file cannot name another file: write the system out".to_owned())
        };
        let built = conclave_quorum::build::build(&spec, Some(self.nodes.len()), &no_files)
            .map_err(|error| wrong("quorum", error.to_string()))?;
        let groups: Vec<&str> = self.groups.iter().map(String::as_str).collect();
        Quorums::new(&built.system, &groups).map_err(|error| match error {
            QuorumsError::Loose => wrong("quorum", error.to_string()),
            _ => wrong("groups", error.to_string()),
        })
    }

    /// Everything the protocol depends on, as pairs of field and value in one fixed order.
    pub fn facts(&self) -> Facts {
        let mut facts = BTreeMap::new();
        let mut tell = |field: &str, value: String| {
            facts.insert(field.to_owned(), short(value));
        };
        tell("name", self.name.clone());
        tell("epoch", self.epoch.to_string());
        tell("nodes", self.nodes.len().to_string());
        // The text as it is understood, so that spaces do not make two configurations.
        let quorum = conclave_quorum::text::parse(&self.quorum)
            .map_or_else(|_| self.quorum.clone(), |spec| spec.to_string());
        tell("quorum", quorum);
        // Told only where it matters, so that other clusters keep their digests.
        if self.is_hierarchy() {
            tell("topology", "multilevel".to_owned());
        }
        // Quoted, so that one group with a comma in its name is not two.
        tell("groups", format!("{:?}", self.groups));
        tell("restart", format!("{:?}", self.restart).to_lowercase());
        let usual = conclave_protocol::lock::Times::default();
        let pick = |given: Option<Span>, usual: Duration| given.map_or(usual, |span| span.0);
        let times = [
            ("link_ttl", pick(self.times.link_ttl, usual.link_ttl)),
            ("heartbeat", pick(self.times.heartbeat, usual.heartbeat)),
            ("ttl_max", pick(self.times.ttl_max, usual.ttl_max)),
            ("ttl_min", pick(self.times.ttl_min, usual.ttl_min)),
        ];
        for (field, span) in times {
            tell(&format!("times.{field}"), format!("{span:?}"));
        }
        tell("limits", self.limits.text());
        let policies: Vec<String> = self.policies.iter().map(PolicyText::text).collect();
        tell("policies", policies.join(" "));
        for (field, value) in self.faults.facts() {
            tell(field, value);
        }
        facts
    }

    /// A digest of the facts.
    pub fn digest(&self) -> [u8; 16] {
        let mut hash = blake3::Hasher::new();
        for (field, value) in self.facts() {
            for part in [field, value] {
                hash.update(&(part.len() as u64).to_le_bytes());
                hash.update(part.as_bytes());
            }
        }
        let mut digest = [0; 16];
        digest.copy_from_slice(&hash.finalize().as_bytes()[..16]);
        digest
    }

    /// The configuration with its digest, ready to share.
    pub fn shared_config(&self) -> Result<Arc<Config>, ClusterError> {
        self.config().map(Arc::new)
    }
}

/// Fields and values of a configuration, for comparing and for telling what differs.
pub type Facts = BTreeMap<String, String>;

/// The most bytes of a fact's value that two processes tell each other.
pub const FACT_BYTES: usize = 200;

/// A long value is told by its hash: whoever compares still sees that it differs.
fn short(value: String) -> String {
    if value.len() <= FACT_BYTES {
        return value;
    }
    let hash = blake3::hash(value.as_bytes()).to_hex();
    format!("{} bytes, hash {}", value.len(), &hash[..16])
}

/// What differs between two configurations, one sentence; none if nothing does.
pub fn differences(here: &Facts, there: &Facts) -> Option<String> {
    let none = String::from("(none)");
    let fields = here
        .keys()
        .chain(there.keys().filter(|field| !here.contains_key(*field)));
    let differing: Vec<String> = fields
        .filter(|field| here.get(*field) != there.get(*field))
        .map(|field| {
            let here = here.get(field).unwrap_or(&none);
            let there = there.get(field).unwrap_or(&none);
            format!("{field} is '{here}' here and '{there}' there")
        })
        .collect();
    (!differing.is_empty()).then(|| differing.join("; "))
}

impl LimitsText {
    fn fields(&self) -> [(&'static str, Option<usize>); 10] {
        [
            ("waiters_per_lock", self.waiters_per_lock),
            ("sessions_per_client", self.sessions_per_client),
            ("locks_per_client", self.locks_per_client),
            ("connections", self.connections),
            ("connections_per_client", self.connections_per_client),
            ("memory_mib", self.memory_mib),
            ("locks", self.locks),
            ("name_bytes", self.name_bytes),
            ("group_bytes", self.group_bytes),
            ("together", self.together),
        ]
    }

    fn text(&self) -> String {
        let given = self.fields().into_iter();
        let given: Vec<String> = given
            .filter_map(|(field, value)| Some(format!("{field}={}", value?)))
            .collect();
        given.join(" ")
    }

    fn apply(&self, mut limits: Limits) -> Result<Limits, ClusterError> {
        let strange = |value: usize| value == 0 || value > LIMIT_MAX;
        let mut fields = self.fields().into_iter();
        if let Some((field, _)) = fields.find(|(_, value)| value.is_some_and(strange)) {
            let problem = format!("{field} must be 1 to {LIMIT_MAX}");
            return Err(wrong("limits", problem));
        }
        let sizes = [self.name_bytes, self.group_bytes];
        if sizes.into_iter().flatten().any(|bytes| bytes > 4096) {
            let problem = "name_bytes and group_bytes must be at most 4096";
            return Err(wrong("limits", problem));
        }
        let set = |into: &mut usize, from: Option<usize>| *into = from.unwrap_or(*into);
        set(&mut limits.queue, self.waiters_per_lock);
        set(&mut limits.sessions_per_client, self.sessions_per_client);
        set(&mut limits.requests_per_client, self.locks_per_client);
        set(&mut limits.clients, self.connections);
        set(
            &mut limits.connections_per_client,
            self.connections_per_client,
        );
        let memory = self.memory_mib.map(|mib| mib.saturating_mul(1 << 20));
        set(&mut limits.memory, memory);
        set(&mut limits.locks, self.locks);
        set(&mut limits.name_bytes, self.name_bytes);
        set(&mut limits.group_bytes, self.group_bytes);
        set(&mut limits.together, self.together);
        Ok(limits)
    }
}

impl PolicyText {
    fn text(&self) -> String {
        let show = |value: Option<u32>| value.map_or("usual".to_owned(), |n| n.to_string());
        let serial = self.protocol == Some(ProtocolText::Serial);
        let near = self.choice == Some(ChoiceText::Near);
        format!(
            "{:?}: max_inside={} max_bypass={} {}{}",
            self.prefix,
            show(self.max_inside),
            show(self.max_bypass),
            if serial { "serial" } else { "parallel" },
            if near { " near" } else { "" }
        )
    }

    fn parse(&self, limits: &Limits) -> Result<(Vec<u8>, Policy), ClusterError> {
        if self.prefix.len() > limits.name_bytes {
            let problem = format!("prefix '{}' is longer than any name", self.prefix);
            return Err(wrong("policies", problem));
        }
        if self.max_inside == Some(0) {
            return Err(wrong("policies", "max_inside must be at least 1"));
        }
        let usual = Policy::default();
        let policy = Policy {
            max_inside: self.max_inside.unwrap_or(usual.max_inside),
            max_bypass: self.max_bypass.unwrap_or(usual.max_bypass),
            protocol: match self.protocol {
                Some(ProtocolText::Serial) => Protocol::Serial,
                Some(ProtocolText::Parallel) | None => Protocol::Parallel,
            },
            choice: match self.choice {
                Some(ChoiceText::Near) => Choice::Near,
                Some(ChoiceText::Shared) | None => Choice::Shared,
            },
        };
        Ok((self.prefix.clone().into_bytes(), policy))
    }
}
