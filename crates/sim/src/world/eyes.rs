//! What checkers may look at.

use conclave_protocol::Wall;
use conclave_protocol::id::{GrantNo, Name, NodeId, Token};
use conclave_protocol::lock::LockView;

use super::World;
use super::holds::{Hold, Lock, Phase};
use crate::fact::{Eyes, Holder, True};
use crate::workload::Workload;

impl World<'_> {
    /// A lock of a wish that is inside.
    fn inside(&self, holder: &Holder) -> Option<(&Hold, &Lock)> {
        let hold = self.holds.get(holder.key)?;
        let number = Workload::number(&holder.name)?;
        let mut locks = hold.locks.iter();
        let lock = locks.find(|lock| lock.name == number && lock.phase == Phase::Inside)?;
        Some((hold, lock))
    }
}

impl Eyes for World<'_> {
    fn believes_until(&self, holder: &Holder) -> Option<True> {
        let (hold, _) = self.inside(holder)?;
        if let Some(detached) = &hold.detached
            && detached.handle.is_some()
        {
            return Some(True(detached.until));
        }
        let process = &self.clients[hold.client as usize];
        let machine = process.machine.as_ref()?;
        let until = machine.held_until(hold.key, &holder.name)?;
        Some(process.clock.true_at(until))
    }

    fn view(&self, node: NodeId, name: &Name) -> Option<LockView> {
        let process = self.nodes.get(node.index())?;
        process.machine.as_ref()?.view(name)
    }

    fn reserves(&self, holder: &Holder, node: NodeId) -> bool {
        let machine = self.clients[holder.client as usize].machine.as_ref();
        // A handle names those that do.
        machine.is_none_or(|machine| {
            machine.held_until(holder.key, &holder.name).is_none()
                || machine.reserves(holder.key, &holder.name, node)
        })
    }

    fn fresh_members(&self, holder: &Holder) -> Vec<(NodeId, GrantNo)> {
        let Some((hold, _)) = self.inside(holder) else {
            return Vec::new();
        };
        if let Some(detached) = &hold.detached
            && let Some(handle) = &detached.handle
        {
            if detached.until <= self.now {
                return Vec::new();
            }
            let grants = handle.grants.iter();
            return grants.map(|(node, _, grant)| (*node, *grant)).collect();
        }
        let process = &self.clients[hold.client as usize];
        let Some(machine) = &process.machine else {
            return Vec::new();
        };
        let now = process.clock.now(True(self.now)).mono;
        let held = machine.held(hold.key, &holder.name, now);
        held.map_or_else(Vec::new, |(_, members)| members)
    }

    fn awake_since(&self, holder: &Holder) -> Option<True> {
        let hold = self.holds.get(holder.key)?;
        let process = &self.clients[hold.client as usize];
        let runs = process.machine.is_some() && !process.paused && process.life == hold.life;
        (runs && !hold.is_detached()).then_some(True(process.awake_since))
    }

    fn serving(&self, node: NodeId) -> bool {
        let process = self.nodes.get(node.index());
        let machine = process.and_then(|process| process.machine.as_ref());
        machine.is_some_and(conclave_protocol::lock::LockNode::is_serving)
    }

    fn waiting(&self) -> Vec<Holder> {
        let mut waiting = Vec::new();
        for hold in self.holds.iter() {
            let waits = hold
                .locks
                .iter()
                .filter(|lock| lock.phase == Phase::Waiting);
            waiting.extend(waits.map(|lock| Holder {
                client: hold.client,
                life: hold.life,
                key: hold.key,
                name: self.name(lock.name),
            }));
        }
        waiting
    }

    fn kept(&self, node: NodeId) -> Option<[usize; 4]> {
        let process = self.nodes.get(node.index())?;
        Some(process.machine.as_ref()?.kept())
    }

    fn tokens(&self, node: NodeId) -> Option<(Token, Wall)> {
        let machine = self.nodes.get(node.index())?.machine.as_ref()?;
        Some((machine.highest_token(), machine.token_clock()))
    }

    fn wall(&self, node: NodeId) -> Option<Wall> {
        let process = self.nodes.get(node.index())?;
        Some(process.clock.now(True(self.now)).wall)
    }

    fn nodes(&self) -> usize {
        self.nodes.len()
    }

    fn servable(&self, holder: &Holder) -> bool {
        self.could_serve(holder)
    }

    fn patience(&self) -> u64 {
        self.patience
    }

    fn keepable(&self, holder: &Holder) -> bool {
        self.could_keep(holder)
    }

    fn kept_holds(&self) -> Vec<(Holder, u64, u64)> {
        let ttl = self.options.ttl_low_ms * 1_000_000;
        // A short TTL runs out while a lost node is noticed.
        if ttl / 4 < self.options.link_ttl_ms * 1_000_000 || ttl / 2 < self.patience {
            return Vec::new();
        }
        let inside = self.inside_now().into_iter();
        inside
            .filter_map(|holder| Some((holder.clone(), self.lasts(&holder)?, ttl / 2)))
            .collect()
    }
}
