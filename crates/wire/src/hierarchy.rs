//! Hierarchies in the cluster file: where nodes are, and the clusters of clusters that follow.
//!
//! A cluster file asks for a hierarchy in one of two ways. Either its quorum system is one, as in
//! `quorum = "multilevel(tree, 27, levels=2)"`; or every node has a place, as in
//! `place = "eu/rack-1"`, and the system is made from the places. In both cases
//! [`Cluster::quorum`] is the text of a `multilevel` system once the file is read, and the digest
//! covers it.

use std::sync::Arc;
use std::time::Duration;

use conclave_protocol::lock::{Config, Gate};
use conclave_protocol::multilevel::{LevelConfig, Topology};
use conclave_quorum::construct::multilevel::{Clusters, LEVELS_MAX};
use conclave_quorum::text::{self, ClustersSize, Spec};
use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, ClusterError, PolicyText, ProtocolText, wrong};

/// The most bytes of a node's place.
pub const PLACE_BYTES: usize = 200;

/// A client of a hierarchy asks a second node when its home has not answered for so long.
const HEDGE: Duration = Duration::from_millis(200);

/// Whether locks are served by a hierarchy of clusters, as written in the cluster file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "describe", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum TopologyText {
    /// A client asks the members of a quorum itself, whatever the quorum system is.
    Flat,
    /// Clusters of clusters: a client asks one node, and clusters ask each other.
    Multilevel,
}

/// Which coteries the clusters have, as written in the cluster file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "describe", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum CoterieText {
    /// The same at every level.
    All(String),
    /// One per level, the root's first.
    Each(Vec<String>),
}

impl Cluster {
    /// Writes out the quorum system that follows from the places of the nodes, if the file leaves
    /// it to them. Whoever reads a cluster file does this first.
    pub fn complete(&mut self) -> Result<(), ClusterError> {
        if self.quorum.is_empty()
            && let Some(text) = self.placed_system()?
        {
            self.quorum = text;
        }
        Ok(())
    }

    /// Whether a hierarchy of clusters serves the locks.
    pub fn is_hierarchy(&self) -> bool {
        match self.topology {
            Some(TopologyText::Flat) => false,
            Some(TopologyText::Multilevel) => true,
            None => {
                let spec = text::parse(&self.quorum);
                matches!(spec, Ok(Spec::Multilevel { .. }))
            }
        }
    }

    /// The clusters of clusters that serve the locks of a checked cluster, with their coteries;
    /// none where clients ask the members of quorums themselves.
    pub fn topology(&self) -> Option<Topology> {
        self.hierarchy().ok().flatten()
    }

    /// What the clusters run with; none where there is no hierarchy.
    pub fn level_config(&self) -> Result<Option<LevelConfig>, ClusterError> {
        let Some(topology) = self.hierarchy()? else {
            return Ok(None);
        };
        let shared = self.config()?;
        let times = shared.times;
        let mut config = LevelConfig::new(Arc::new(topology));
        config.lease = times.link_ttl * 3;
        // What the front of a lock of the longest TTL asks for, and a little more.
        config.lease_max = times.ttl_max * 2 + times.link_ttl * 2;
        config.lease_max = config.lease_max.max(config.lease);
        config.drift_ppm = times.drift_ppm;
        config.restart = shared.restart;
        config.locks_max = config.locks_max.min(shared.limits.locks);
        Ok(Some(config))
    }

    /// Nodes of a hierarchy are fronts: they grant with the consent of the clusters.
    pub(crate) fn set_gate(&self, config: &mut Config) -> Result<(), ClusterError> {
        if !self.groups.is_empty() {
            let problem = "are for group systems; in a hierarchy every group may be used";
            return Err(wrong("groups", problem));
        }
        let serial = |policy: &&PolicyText| policy.protocol == Some(ProtocolText::Serial);
        if let Some(policy) = self.policies.iter().find(serial) {
            let problem = format!(
                "protocol = \"serial\" of prefix '{}' has no meaning in a hierarchy; leave it out",
                policy.prefix
            );
            return Err(wrong("policies", problem));
        }
        config.gate = Some(Gate::default());
        // A second node would only want the same consent again: it is asked when the first has
        // had its time.
        config.times.hedge_min = config.times.hedge_min.max(HEDGE);
        Ok(())
    }

    pub(crate) fn hierarchy(&self) -> Result<Option<Topology>, ClusterError> {
        if !self.is_hierarchy() {
            return Ok(None);
        }
        let topology = Topology::parse(&self.quorum, Some(self.nodes.len()))
            .map_err(|error| wrong("quorum", error.to_string()))?;
        topology.map(Some).ok_or_else(|| {
            let problem = "multilevel needs a place at every node, such as place = \"eu/rack-1\", \
                           or quorum = \"multilevel(tree, levels=1)\"";
            wrong("topology", problem)
        })
    }

    /// Checks that places, coteries and the quorum system fit together.
    pub(crate) fn check_hierarchy(&self) -> Result<(), ClusterError> {
        let placed = self.placed_system()?;
        match placed {
            None if self.coterie.is_some() => {
                let problem = "is for nodes with places; without them the quorum system says it, \
                               as in quorum = \"multilevel([majority,tree], levels=1)\"";
                return Err(wrong("coterie", problem));
            }
            Some(placed) if canonical(&self.quorum) != placed => {
                let problem = "is not what the places of the nodes make: leave quorum out, or \
                               the places";
                return Err(wrong("quorum", problem));
            }
            _ => {}
        }
        self.hierarchy().map(drop)
    }

    /// The text of the system that the places of the nodes make; none without places, and none
    /// for a flat cluster, whose places are for people alone.
    fn placed_system(&self) -> Result<Option<String>, ClusterError> {
        let somewhere = self.nodes.iter().any(|node| node.place.is_some());
        if self.topology != Some(TopologyText::Multilevel) || !somewhere {
            return Ok(None);
        }
        let mut places = vec![Vec::new(); self.nodes.len()];
        for node in &self.nodes {
            let Some(place) = &node.place else {
                let problem = format!("node {} has no place and others have one", node.id);
                return Err(wrong("nodes", problem));
            };
            // Numbers that are wrong are told by the check of the nodes.
            if let Some(slot) = places.get_mut(node.id.wrapping_sub(1) as usize) {
                *slot = parts(node.id, place)?;
            }
        }
        let clusters =
            Clusters::of_places(&places).map_err(|error| wrong("nodes", error.to_string()))?;
        let coteries: Vec<&str> = match &self.coterie {
            None => vec!["tree"],
            Some(CoterieText::All(one)) => vec![one],
            Some(CoterieText::Each(each)) => each.iter().map(String::as_str).collect(),
        };
        let levels = clusters.levels();
        if matches!(self.coterie, Some(CoterieText::Each(_))) && coteries.len() != levels + 1 {
            let problem = format!(
                "has {} coteries for {} levels of clusters: the places have {levels} parts, and \
                 the root comes first",
                coteries.len(),
                levels + 1
            );
            return Err(wrong("coterie", problem));
        }
        let inner: Result<Vec<Spec>, _> = coteries.into_iter().map(text::parse).collect();
        let inner = inner.map_err(|error| wrong("coterie", error.to_string()))?;
        let sizes = ClustersSize::Sizes(clusters.sizes());
        let written = Spec::Multilevel {
            inner,
            clusters: sizes,
        };
        // Reading it again judges the coteries and gives the canonical text.
        let read = text::parse(&written.to_string());
        let read = read.map_err(|error| wrong("coterie", error.to_string()))?;
        Ok(Some(read.to_string()))
    }
}

/// The parts of a place.
fn parts(id: u32, place: &str) -> Result<Vec<String>, ClusterError> {
    let parts: Vec<&str> = place.split('/').collect();
    let plain = |part: &&str| !part.is_empty() && !part.contains(char::is_whitespace);
    if place.len() > PLACE_BYTES || parts.len() > LEVELS_MAX || !parts.iter().all(plain) {
        let problem = format!(
            "place of node {id} is not a path such as eu/rack-1 (at most {LEVELS_MAX} parts and \
             {PLACE_BYTES} bytes, no spaces)"
        );
        return Err(wrong("nodes", problem));
    }
    Ok(parts.into_iter().map(str::to_owned).collect())
}

fn canonical(quorum: &str) -> String {
    text::parse(quorum).map_or_else(|_| quorum.to_owned(), |spec| spec.to_string())
}
