//! What must hold in every state.

use conclave_protocol::id::GrantNo;
use conclave_protocol::lock::{LockView, Protocol};

use super::options::ModelOptions;
use super::space::{Holding, Space};
use super::state::{Stage, State};

/// A broken property and what is wrong.
pub(super) type Broken = (&'static str, String);

/// What one node must keep to by itself.
pub(super) fn node(index: usize, view: &LockView, options: &ModelOptions) -> Option<Broken> {
    let limit = options.limit();
    let node = index + 1;
    let granted = view.entries.iter().filter(|entry| entry.grant > GrantNo(0));
    let count = granted.clone().count();
    if count > limit as usize {
        return Some((
            "max_inside",
            format!("n{node} has {count} grants outstanding, allowed are {limit}"),
        ));
    }
    let mut groups = granted.clone().map(|entry| &entry.ask);
    if let Some(first) = groups.next()
        && groups.any(|ask| !ask.joins(first))
    {
        return Some(("structure", format!("n{node} granted two groups at once")));
    }
    if count == 0 && !view.entries.is_empty() {
        return Some((
            "structure",
            format!("n{node} has requests and granted none"),
        ));
    }
    // The serial protocol never asks a grant back.
    let asks_back = options.protocol == Protocol::Parallel;
    if asks_back && !view.has_priority && granted.clone().any(|entry| !entry.inquired) {
        return Some((
            "structure",
            format!("n{node} lets a grant stand in the way of a better request"),
        ));
    }
    None
}

/// What must hold between all processes.
pub(super) fn state(state: &State, space: &Space) -> Option<Broken> {
    for (index, node) in state.nodes.iter().enumerate() {
        debug_assert!(index < space.width);
        if let Some(broken) = &space.nodes[*node as usize].broken {
            return Some(broken.clone());
        }
    }
    let inside: Vec<(usize, &Holding)> = (0..state.clients.len())
        .filter(|client| state.seats[*client].stage != Stage::Dead)
        .filter_map(|client| Some((client, state.holding(client, space)?)))
        .collect();
    for (place, (a, first)) in inside.iter().enumerate() {
        for (b, second) in &inside[place + 1..] {
            if first.group != second.group && !excused(state, (*a, first), (*b, second)) {
                let modes = (space.options.mode(*a), space.options.mode(*b));
                let what = format!(
                    "c{} ({}) and c{} ({}) are inside together",
                    a + 1,
                    modes.0,
                    b + 1,
                    modes.1
                );
                return Some(("exclusion", what));
            }
        }
    }
    for (client, holding) in &inside {
        let past = state.fence.seen().other(&holding.group);
        if holding.token <= past && !revoked_somewhere(state, *client, holding) {
            let what = format!(
                "the resource refuses c{} with token {}: it has seen {} of another group, and no \
                 node has expired c{}",
                client + 1,
                holding.token,
                past,
                client + 1
            );
            return Some(("admission", what));
        }
    }
    None
}

/// Whether a node that both rest on has expired one of them.
fn excused(state: &State, a: (usize, &Holding), b: (usize, &Holding)) -> bool {
    a.1.members.iter().any(|(node, grant)| {
        let other = b.1.members.iter().find(|(shared, _)| shared == node);
        other.is_some_and(|(_, other)| {
            state.is_revoked(a.0, *node, *grant) || state.is_revoked(b.0, *node, *other)
        })
    })
}

fn revoked_somewhere(state: &State, client: usize, holding: &Holding) -> bool {
    let mut members = holding.members.iter();
    members.any(|(node, grant)| state.is_revoked(client, *node, *grant))
}

/// What must hold when nothing is left to happen by itself.
pub(super) fn at_rest(state: &State) -> Option<Broken> {
    let waits = |seat: &super::state::Seat| seat.stage == Stage::Waiting;
    let waiting = state.seats.iter().position(waits)?;
    let what = format!(
        "nothing is under way, nobody is inside, and c{} waits",
        waiting + 1
    );
    Some(("deadlock", what))
}
