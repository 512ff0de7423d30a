//! Grids of rows and columns.

use crate::construct::grid::Grid;
use crate::construct::mgrid::Mgrid;
use crate::{Family as _, NodeSet};

use super::frame::{Entry, Sheet};
use super::palette::{FIRST_DARK, GREY, SECOND};
use super::scene::{Scene, Spot};
use super::svg::{Point, Svg, num};
use super::{DrawError, limit};

/// The most rows, and the most columns.
pub(super) const LINES_MAX: usize = 400;

/// Room for the numbers of rows and columns.
pub(super) const AXIS: f64 = 26.0;

/// Maekawa's grid; its last row may be short.
pub(super) fn grid(scene: &Scene<'_>, grid: &Grid) -> Result<Sheet, DrawError> {
    lattice(scene, grid.nodes(), grid.cols())
}

/// A square grid whose quorums have several rows and columns; nodes past the square are spares.
pub(super) fn mgrid(scene: &Scene<'_>, grid: &Mgrid) -> Result<Sheet, DrawError> {
    let side = grid.side();
    let mut sheet = lattice(scene, side * side, side)?;
    put_spares(scene, &mut sheet);
    Ok(sheet)
}

/// Nodes `0..nodes` row by row.
fn lattice(scene: &Scene<'_>, nodes: usize, cols: usize) -> Result<Sheet, DrawError> {
    let rows = nodes.div_ceil(cols.max(1));
    limit("columns", cols, LINES_MAX)?;
    limit("rows", rows, LINES_MAX)?;
    let (cell, gap) = scene.cell(cols, rows);
    let pitch = (cell.0 + gap, cell.1 + gap);
    let place = |node: usize| {
        let (row, col) = (node / cols, node % cols);
        let x = AXIS + (col as f64 + 0.5) * pitch.0;
        (x, AXIS + (row as f64 + 0.5) * pitch.1)
    };
    let mut sheet = Sheet {
        size: (AXIS + cols as f64 * pitch.0, AXIS + rows as f64 * pitch.1),
        ..Sheet::default()
    };
    let svg = &mut sheet.body;
    axis(svg, cols, pitch.0, |at| (AXIS + at, AXIS / 2.0));
    axis(svg, rows, pitch.1, |at| (AXIS / 2.0, AXIS + at));
    for node in 0..nodes {
        scene.node(svg, node, &Spot::square(place(node), cell));
    }
    let sets = [
        (scene.second.as_ref(), SECOND, "second quorum", 1.0),
        (scene.first.as_ref(), FIRST_DARK, "quorum", 0.0),
    ];
    for (set, colour, name, inset) in sets {
        let Some(set) = set else { continue };
        let thick = num((pitch.0.min(pitch.1) / 10.0).clamp(0.6, 2.5));
        let attributes = format!(r#"fill="none" stroke="{colour}" stroke-width="{thick}""#);
        let lines = full_lines(set, nodes, cols);
        for (from, to) in &lines {
            let (a, b) = (place(*from), place(*to));
            let centre = (f64::midpoint(a.0, b.0), f64::midpoint(a.1, b.1));
            let size = (
                b.0 - a.0 + pitch.0 - inset * gap / 2.0,
                b.1 - a.1 + pitch.1 - inset * gap / 2.0,
            );
            svg.rect(centre, size, gap, &attributes);
        }
        if !lines.is_empty() {
            let text = format!("a full row or column of the {name}");
            sheet.legend.push(Entry::node(&attributes, text));
        }
    }
    Ok(sheet)
}

/// The rows and columns whose nodes are all in the set, as their first and last node. The short
/// last row is no row.
fn full_lines(set: &NodeSet, nodes: usize, cols: usize) -> Vec<(usize, usize)> {
    let full_rows = nodes / cols.max(1);
    let rows = (0..full_rows)
        .map(|row| (row * cols, row * cols + cols - 1))
        .filter(|(from, to)| (*from..=*to).all(|node| set.contains(node)));
    let columns = (0..cols.min(nodes)).filter_map(|col| {
        let last = (col..nodes).step_by(cols).next_back()?;
        let full = (col..nodes).step_by(cols).all(|node| set.contains(node));
        full.then_some((col, last))
    });
    rows.chain(columns).collect()
}

/// Numbers `count` lines from 1, as many of them as there is room for.
pub(super) fn axis(svg: &mut Svg, count: usize, pitch: f64, place: impl Fn(f64) -> Point) {
    let step = [1, 2, 5, 10, 20, 50, 100]
        .into_iter()
        .find(|step| pitch * f64::from(*step) >= 24.0)
        .unwrap_or(100);
    let attributes = format!(r#"text-anchor="middle" fill="{GREY}""#);
    for line in 1..=count {
        if line == 1 || line % step as usize == 0 {
            let at = (line as f64 - 0.5) * pitch;
            svg.text(place(at), 11.0, &attributes, &line.to_string());
        }
    }
}

/// Adds the spare nodes in lines below the sheet.
pub(super) fn put_spares(scene: &Scene<'_>, sheet: &mut Sheet) {
    if scene.spare.is_empty() {
        return;
    }
    let (wide, high) = scene.ideal();
    let (wide, high) = (wide + 4.0, high + 4.0);
    sheet.size.0 = sheet.size.0.max(400.0);
    let per_line = ((sheet.size.0 / wide) as usize).max(1);
    let top = sheet.size.1 + 14.0;
    for (place, node) in scene.spare.iter().enumerate() {
        let x = ((place % per_line) as f64 + 0.5) * wide;
        let y = top + ((place / per_line) as f64 + 0.5) * high;
        scene.node(&mut sheet.body, node, &Spot::square((x, y), scene.ideal()));
    }
    let lines = scene.spare.len().div_ceil(per_line);
    sheet.size.1 = top + lines as f64 * high;
}
