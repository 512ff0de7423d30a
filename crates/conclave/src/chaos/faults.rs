//! What a chaos run does to a cluster.

use std::time::Duration;

use clap::ValueEnum;
use conclave_quorum::Prng;
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
        }
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
        let proxy = &self.proxies[node as usize - 1];
        let some = Duration::from_millis(200 + rng.below(2500) as u64);
        match fault {
            Fault::Kill | Fault::KillRoot => {
                self.local.kill(node);
                tokio::time::sleep(some).await;
                self.local.spawn(node)?;
                self.local.ready(node).await?;
            }
            Fault::Stop => {
                self.local.signal(node, Signal::STOP);
                tokio::time::sleep(some).await;
                self.local.signal(node, Signal::CONT);
            }
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
                proxy.set(if fault == Fault::Cut {
                    Line::Cut
                } else {
                    Line::Half
                });
                tokio::time::sleep(some).await;
                self.proxies[node as usize - 1].set(Line::Open);
            }
            Fault::Reset => proxy.reset(),
            Fault::Rolling => {
                for node in 1..=nodes as u32 {
                    self.local.restart(node, false).await?;
                }
            }
            Fault::Power => {
                for node in 1..=nodes as u32 {
                    self.local.kill(node);
                }
                for node in 1..=nodes as u32 {
                    self.local.spawn(node)?;
                }
                for node in 1..=nodes as u32 {
                    self.local.ready(node).await?;
                }
            }
        }
        Ok(())
    }
}
