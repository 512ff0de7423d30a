//! The billiard family as circuits, for decision diagrams on small boards.

use crate::{Circuit, GateId};

use super::reach::{Steps, Way};
use super::{Billiard, Board, Tier};

/// Up to this side T1 is unrolled.
const PATHS_SIDE_MAX: usize = 33;

/// Up to this side paths of any length are: they take a round of gates per cell.
const REACH_SIDE_MAX: usize = 9;

/// The circuit of the family, or `None` if it would be too large.
pub(super) fn of(family: &Billiard) -> Option<Circuit> {
    let (board, tiers) = (family.board(), family.tiers());
    let long = tiers.contains(Tier::T2) || tiers.contains(Tier::T3);
    if board.q() > if long { REACH_SIDE_MAX } else { PATHS_SIDE_MAX } {
        return None;
    }
    let rest = paths_of(family);
    if !tiers.contains(Tier::T4) {
        return rest;
    }
    // The rest, or a majority that meets all of the rest.
    let mut circuit = Circuit::new(board.nodes());
    let leaves = leaves(&mut circuit, board);
    let extra = u64::from(board.nodes().is_multiple_of(2));
    let votes = |site: usize| if site == 0 { 1 + extra } else { 1 };
    let total = board.nodes() as u64 + extra;
    let inputs = leaves
        .iter()
        .enumerate()
        .map(|(site, id)| (*id, votes(site)));
    let inputs = inputs.collect();
    let majority = circuit.vote(total / 2 + 1, inputs);
    if let Some(rest) = rest {
        let meets = circuit.append_at(&rest.dual(), |_, site| leaves[site]);
        let fallback = circuit.all([majority, meets]);
        let first = circuit.append_at(&rest, |_, site| leaves[site]);
        circuit.any([first, fallback]);
    }
    Some(circuit)
}

/// The tiers other than T4, or `None` if there are none.
fn paths_of(family: &Billiard) -> Option<Circuit> {
    let (board, tiers) = (family.board(), family.tiers());
    let mut circuit = Circuit::new(board.nodes());
    let leaves = leaves(&mut circuit, board);
    let cells: Vec<GateId> = (0..board.cells())
        .map(|cell| leaves[board.site(cell)])
        .collect();
    let on = |tier| tiers.contains(tier);
    let mut options = Vec::new();
    if on(Tier::T2) {
        for way in [Way::LeftRight, Way::TopBottom] {
            for (start, end) in way.mirrored(board) {
                options.push(joined(
                    &mut circuit,
                    board,
                    &cells,
                    Steps::Diagonal,
                    &[start],
                    &[end],
                ));
            }
        }
    } else if on(Tier::T1) {
        antipodal(&mut circuit, family, &cells, &mut options);
    } else if on(Tier::T0) {
        for site in 0..board.nodes() {
            let path: Vec<GateId> = board
                .own_cell(site)
                .map(|cell| board.walk(cell).map(|cell| cells[cell]).collect())
                .unwrap_or_default();
            options.push(circuit.all(path));
        }
    }
    if on(Tier::T3) {
        for way in [Way::LeftRight, Way::TopBottom] {
            let straight = across(&mut circuit, board, &cells, way, Steps::Diagonal);
            let star = across(&mut circuit, board, &cells, way.other(), Steps::Star);
            options.push(circuit.all([straight, star]));
        }
    }
    if on(Tier::T3Prime) {
        let mut lines = |way: Way, first| {
            let lines: Vec<GateId> = (first..=board.q())
                .step_by(2)
                .map(|line| circuit.all(way.line(board, line).map(|cell| cells[cell])))
                .collect();
            circuit.any(lines)
        };
        let (row, column) = (lines(Way::TopBottom, 1), lines(Way::LeftRight, 2));
        options.push(circuit.all([row, column]));
    }
    if options.is_empty() {
        return None;
    }
    circuit.any(options);
    Some(circuit)
}

/// A gate per site, made column by column: that order keeps diagrams of paths narrow.
fn leaves(circuit: &mut Circuit, board: &Board) -> Vec<GateId> {
    let mut leaves: Vec<Option<GateId>> = vec![None; board.nodes()];
    for column in 1..=board.q() {
        for cell in Way::LeftRight.line(board, column) {
            let site = board.site(cell);
            if leaves[site].is_none() {
                leaves[site] = Some(circuit.node(site));
            }
        }
    }
    leaves.into_iter().flatten().collect()
}

/// For each direction and start a gate that is true iff some antipodal path from there is live.
fn antipodal(
    circuit: &mut Circuit,
    family: &Billiard,
    cells: &[GateId],
    options: &mut Vec<GateId>,
) {
    let (q, t) = (family.board().q(), family.board().t());
    for lane in 0..2 {
        let gate = |column, rank| family.paths().cell(lane, column, rank).map(|at| cells[at]);
        for start in 0..t {
            let mut reached: Vec<Option<GateId>> = vec![None; t + 2];
            reached[start] = gate(0, start);
            for column in 1..q {
                let mut next = vec![None; t + 2];
                for (rank, next) in next.iter_mut().enumerate() {
                    let other = if column % 2 == 1 {
                        rank.checked_sub(1)
                    } else {
                        Some(rank + 1)
                    };
                    let inputs: Vec<GateId> = [Some(rank), other]
                        .into_iter()
                        .flatten()
                        .filter_map(|from| reached.get(from).copied().flatten())
                        .collect();
                    if let (Some(cell), false) = (gate(column, rank), inputs.is_empty()) {
                        let before = circuit.any(inputs);
                        *next = Some(circuit.all([before, cell]));
                    }
                }
                reached = next;
            }
            options.extend(reached[t - 1 - start]);
        }
    }
}

/// A gate that is true iff a path crosses the board this way.
pub(super) fn across(
    circuit: &mut Circuit,
    board: &Board,
    cells: &[GateId],
    way: Way,
    steps: Steps,
) -> GateId {
    let (starts, ends) = (way.starts(board, steps), way.ends(board, steps));
    joined(circuit, board, cells, steps, &starts, &ends)
}

/// A gate that is true iff live cells join a start to an end. Each round of gates adds a step;
/// no path needs more steps than there are cells.
fn joined(
    circuit: &mut Circuit,
    board: &Board,
    cells: &[GateId],
    steps: Steps,
    starts: &[usize],
    ends: &[usize],
) -> GateId {
    let mut reached: Vec<Option<GateId>> = vec![None; cells.len()];
    for start in starts {
        reached[*start] = Some(cells[*start]);
    }
    for _ in 1..cells.len() {
        let before = reached.clone();
        for (cell, reached) in reached.iter_mut().enumerate() {
            if starts.contains(&cell) {
                continue;
            }
            let inputs: Vec<GateId> = steps
                .from(board, cell)
                .filter_map(|from| before[from])
                .collect();
            if !inputs.is_empty() {
                let near = circuit.any(inputs);
                *reached = Some(circuit.all([near, cells[cell]]));
            }
        }
    }
    let ends: Vec<GateId> = ends.iter().filter_map(|end| reached[*end]).collect();
    circuit.any(ends)
}
