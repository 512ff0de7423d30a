//! The failure probability of a hierarchy, exact although delegates are shared between levels.
//!
//! The spans of the children of a cluster are disjoint, and all that the cluster shares with a
//! child's chain is the child's delegate. So a chain is described by the joint weights of "the
//! delegate is up" and "the chain has its quorums": four numbers per cluster, found from those of
//! its children with the coterie's own recurrence. Each is a sum of products of weights, never a
//! difference, so a failure probability of 1e-30 keeps its digits.

use super::{ClusterId, Multilevel};
use crate::{Mass, Odds};

/// The weights of a chain with and without quorums, each by the state of its delegate.
#[derive(Clone, Copy, Debug)]
struct Chain {
    live: Odds,
    dead: Odds,
}

impl Chain {
    /// The weights of the delegate's states, whatever the chain does.
    fn any(&self) -> Odds {
        Odds {
            up: self.live.up + self.dead.up,
            down: self.live.down + self.dead.down,
        }
    }
}

pub(super) fn mass(system: &Multilevel, odds: &[Odds]) -> Option<Mass> {
    if odds.len() != system.clusters.nodes() {
        return None;
    }
    let chain = chain(system, system.clusters.root(), odds)?;
    Some(Mass {
        live: chain.live.up + chain.live.down,
        dead: chain.dead.up + chain.dead.down,
    })
}

/// The weights of the chains from a cluster down.
fn chain(system: &Multilevel, id: ClusterId, odds: &[Odds]) -> Option<Chain> {
    let side: &dyn Fn(bool) -> Option<Mass> = if system.clusters.is_leaf(id) {
        let members: Vec<Odds> = system.clusters.members(id).map(|node| odds[node]).collect();
        &move |up| system.coterie(id).mass(&given(members.clone(), up))
    } else {
        let children = system.clusters.children(id);
        let below: Option<Vec<Chain>> = children.map(|child| chain(system, child, odds)).collect();
        let below = below?;
        &move |up| side_mass(system, id, &below, up)
    };
    let (up, down) = (side(true)?, side(false)?);
    Some(Chain {
        live: Odds {
            up: up.live,
            down: down.live,
        },
        dead: Odds {
            up: up.dead,
            down: down.dead,
        },
    })
}

/// The weights of the chains from a cluster above the last level, with its delegate up or down.
fn side_mass(system: &Multilevel, id: ClusterId, below: &[Chain], up: bool) -> Option<Mass> {
    let coterie = system.coterie(id);
    let any = || below.iter().map(Chain::any);
    let dead = || below.iter().map(|child| child.dead);
    let silent = coterie.mass(&given(any().collect(), up))?.dead;
    let stranded = coterie.mass(&given(dead().collect(), up))?.live;
    // Live: summed over which child is the first whose chain is live.
    let mut live = 0.0;
    let mut mixed: Vec<Odds> = any().collect();
    for (place, child) in below.iter().enumerate() {
        mixed[place] = child.live;
        live += coterie.mass(&given(mixed.clone(), up))?.live;
        mixed[place] = child.dead;
    }
    Some(Mass {
        live,
        dead: silent + stranded,
    })
}

/// The odds with the first node, the delegate, known to be up or down.
fn given(mut odds: Vec<Odds>, up: bool) -> Vec<Odds> {
    if let Some(first) = odds.first_mut() {
        if up {
            first.down = 0.0;
        } else {
            first.up = 0.0;
        }
    }
    odds
}
