//! What a chaos run does to a cluster.

use std::time::Duration;

use clap::ValueEnum;
use conclave_protocol::lock::Mode;
use conclave_quorum::{NodeSet, Prng};
use rustix::process::Signal;

use super::Stage;
use super::proxy::Line;
use crate::cli::Failure;

/// One kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Fault {
    /// kill -9 a node, start it again later
    Kill,
    /// kill -9 a member of a hierarchy's root cluster, start it again later
    KillRoot,
    /// SIGSTOP a node for a while
    Stop,
    /// SIGSTOP a client until its locks have run out
    Pause,
    /// kill -9 a client
    KillClient,
    /// No byte passes to or from a node, and nobody is told
    Cut,
    /// Every second connection of a node is cut
    Half,
    /// All connections of a node are reset
    Reset,
    /// Every node is restarted gracefully, one after the other
    Rolling,
    /// All nodes are killed at once
    Power,
    /// A minority of the nodes is killed at once, then restarted
    Minority,
    /// The cable of a node's host is pulled; needs --hosts
    Link,
    /// Nothing that a node sends arrives, though it hears everybody; needs --hosts
    OneWay,
    /// A node is killed and comes back with its address on another host; needs --hosts
    Relocate,
    /// What `conclave demo` does: kills, a freeze and a graceful stop, one after the other
    Demo,
}

impl Fault {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kill => "a node is killed",
            Self::KillRoot => "a member of the root is killed",
            Self::Stop => "a node is stopped for a while",
            Self::Pause => "a client is paused past its TTL",
            Self::KillClient => "a client is killed",
            Self::Cut => "a node is cut off",
            Self::Half => "half of a node's connections are cut off",
            Self::Reset => "a node's connections are reset",
            Self::Rolling => "a rolling restart",
            Self::Power => "all nodes lose power",
            Self::Minority => "a minority of the nodes is killed",
            Self::Link => "the cable of a node is pulled",
            Self::OneWay => "nothing that a node sends arrives",
            Self::Relocate => "a node moves to another host",
            Self::Demo => "what the demo does",
        }
    }

    /// Whether only hosts of their own can have it.
    pub(super) fn needs_hosts(self) -> bool {
        matches!(self, Self::Link | Self::OneWay | Self::Relocate)
    }

    /// Whether only a proxy can make it.
    pub(super) fn needs_proxy(self) -> bool {
        matches!(self, Self::Cut | Self::Half | Self::Reset)
    }
}

impl Stage {
    /// The members of a hierarchy's root cluster, from 1; none if there is no hierarchy.
    fn root(&self) -> Option<Vec<u32>> {
        let topology = self.local.cluster().topology()?;
        let clusters = topology.clusters();
        let root = clusters.members(clusters.root());
        Some(root.map(|node| node as u32 + 1).collect())
    }

    /// Inflicts a fault and ends it.
    pub(super) async fn inflict(&mut self, fault: Fault, rng: &mut Prng) -> Result<(), Failure> {
        let nodes = self.local.len();
        let node = match self.root() {
            Some(root) if fault == Fault::KillRoot => root[rng.below(root.len())],
            _ => rng.below(nodes) as u32 + 1,
        };
        let some = Duration::from_millis(200 + rng.below(2500) as u64);
        match fault {
            Fault::Kill | Fault::KillRoot => self.kill_and_start(&[node], some).await?,
            Fault::Stop => self.freeze(node, some).await,
            Fault::Pause if !self.players.is_empty() => {
                let player = rng.below(self.players.len());
                self.signal_player(player, Signal::STOP);
                tokio::time::sleep(self.options.ttl + some / 2).await;
                self.signal_player(player, Signal::CONT);
            }
            Fault::KillClient if !self.players.is_empty() => {
                let place = rng.below(self.players.len());
                self.players[place].kill()?;
                let player = &self.players[place];
                let (client, kind, life) = (player.client, player.kind, player.life);
                self.players[place] = self.player(client, kind, life + 1)?;
            }
            Fault::Pause | Fault::KillClient => {}
            Fault::Cut | Fault::Half => {
                let half = fault == Fault::Half;
                let Some(proxy) = self.proxies.get(node as usize - 1) else {
                    return Ok(());
                };
                proxy.set(if half { Line::Half } else { Line::Cut });
                tokio::time::sleep(some).await;
                proxy.set(Line::Open);
            }
            Fault::Reset => {
                if let Some(proxy) = self.proxies.get(node as usize - 1) {
                    proxy.reset();
                }
            }
            Fault::Minority => {
                let those = self.spared(node, nodes / 2)?;
                self.kill_and_start(&those, some).await?;
            }
            Fault::Link | Fault::OneWay | Fault::Relocate => {
                self.disturb_host(fault, node, some).await?;
            }
            Fault::Demo => self.demo().await?,
            Fault::Rolling => {
                for node in 1..=nodes as u32 {
                    self.local.restart(node, false).await?;
                }
            }
            Fault::Power => {
                let all: Vec<u32> = (1..=nodes as u32).collect();
                self.kill_and_start(&all, Duration::ZERO).await?;
            }
        }
        Ok(())
    }

    /// So many nodes at most, from this one on, without which there is a quorum.
    fn spared(&self, first: u32, most: usize) -> Result<Vec<u32>, Failure> {
        let config = self.local.cluster().shared_config();
        let config = config.map_err(Failure::input)?;
        let family = config.quorums.family(&Mode::Exclusive);
        let nodes = self.local.len();
        let mut left = NodeSet::full(nodes);
        let mut spared = Vec::new();
        for node in (0..nodes).map(|more| (first as usize - 1 + more) % nodes) {
            left.remove(node);
            if spared.len() < most && family.contains_quorum(&left) {
                spared.push(node as u32 + 1);
            } else {
                left.insert(node);
            }
        }
        Ok(spared)
    }

    /// Kills nodes at once, and starts them again after a while.
    async fn kill_and_start(&mut self, nodes: &[u32], after: Duration) -> Result<(), Failure> {
        for node in nodes {
            self.local.kill(*node);
        }
        tokio::time::sleep(after).await;
        for node in nodes {
            self.local.spawn(*node)?;
        }
        for node in nodes {
            self.local.ready(*node).await?;
        }
        Ok(())
    }

    async fn freeze(&self, node: u32, span: Duration) {
        self.local.signal(node, Signal::STOP);
        tokio::time::sleep(span).await;
        self.local.signal(node, Signal::CONT);
    }

    /// The schedule of `conclave demo`, in which two nodes are down at most.
    async fn demo(&mut self) -> Result<(), Failure> {
        let down = Duration::from_millis(1400);
        let rest = Duration::from_millis(2800);
        let second = 2.min(self.local.len() as u32);
        for (first, most) in [(second, 1), (1, 2)] {
            let those = self.spared(first, most)?;
            self.kill_and_start(&those, down).await?;
            tokio::time::sleep(rest).await;
        }
        let frozen = self.spared(second, 1)?;
        for node in frozen {
            self.freeze(node, Duration::from_millis(1100)).await;
        }
        tokio::time::sleep(Duration::from_millis(1100)).await;
        for node in self.spared(1, 1)? {
            self.local.stop(node).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.local.spawn(node)?;
            self.local.ready(node).await?;
        }
        Ok(())
    }

    /// What only a host of its own can have.
    async fn disturb_host(
        &mut self,
        fault: Fault,
        node: u32,
        span: Duration,
    ) -> Result<(), Failure> {
        let Some(hosts) = &mut self.hosts else {
            return Ok(());
        };
        let place = node as usize - 1;
        match fault {
            Fault::Link => {
                hosts.link(place, false)?;
                tokio::time::sleep(span).await;
                hosts.link(place, true)?;
            }
            Fault::OneWay => {
                hosts.mute(place, true)?;
                tokio::time::sleep(span).await;
                hosts.mute(place, false)?;
            }
            _ => {
                self.local.kill(node);
                hosts.relocate(place)?;
                tokio::time::sleep(span).await;
                self.local.start_by(node, hosts.prefix(place));
                self.local.spawn(node)?;
                self.local.ready(node).await?;
            }
        }
        Ok(())
    }
}
