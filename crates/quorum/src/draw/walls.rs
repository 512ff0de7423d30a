//! Walls: rows of bricks, each row centred.

use crate::NodeSet;
use crate::construct::walls::Walls;

use super::frame::{Entry, Sheet};
use super::grids::{AXIS, LINES_MAX, axis};
use super::palette::{FIRST_DARK, SECOND};
use super::scene::{ROOM, Scene, Spot};
use super::{DrawError, limit};

/// Draws the wall.
pub(super) fn draw(scene: &Scene<'_>, walls: &Walls) -> Result<Sheet, DrawError> {
    let widest = (0..walls.rows()).map(|row| walls.row(row).len()).max();
    let widest = widest.unwrap_or(1);
    limit("bricks in a row", widest, LINES_MAX)?;
    limit("rows", walls.rows(), LINES_MAX)?;
    let ((w, h), gap) = scene.cell(widest, walls.rows());
    // Bricks are wider than high where there is room.
    let w = w.max((ROOM / widest as f64 - gap).min(1.5 * h));
    let (pitch, lift) = (w + gap, h + gap);
    let mut sheet = Sheet {
        size: (
            AXIS + widest as f64 * pitch,
            walls.rows() as f64 * lift + 4.0,
        ),
        ..Sheet::default()
    };
    let middle = AXIS + widest as f64 * pitch / 2.0;
    let svg = &mut sheet.body;
    axis(svg, walls.rows(), lift, |at| (AXIS / 2.0, at));
    for row in 0..walls.rows() {
        let bricks = walls.row(row);
        let left = middle - bricks.len() as f64 * pitch / 2.0;
        let y = (row as f64 + 0.5) * lift;
        for (place, node) in bricks.enumerate() {
            let x = left + (place as f64 + 0.5) * pitch;
            scene.node(svg, node, &Spot::square((x, y), (w, h)));
        }
    }
    let sets = [
        (scene.second.as_ref(), SECOND, "second quorum"),
        (scene.first.as_ref(), FIRST_DARK, "quorum"),
    ];
    for (set, colour, name) in sets {
        let Some(row) = set.and_then(|set| full_row(walls, set)) else {
            continue;
        };
        let attributes = format!(r#"fill="none" stroke="{colour}" stroke-width="2.5""#);
        let size = (walls.row(row).len() as f64 * pitch, lift);
        let y = (row as f64 + 0.5) * lift;
        svg.rect((middle, y), size, 5.0, &attributes);
        let below = if row + 1 < walls.rows() {
            "; below it one brick per row"
        } else {
            ""
        };
        let text = format!("the full row of the {name}{below}");
        sheet.legend.push(Entry::node(&attributes, text));
    }
    Ok(sheet)
}

/// The lowest row whose bricks are all in the set.
fn full_row(walls: &Walls, set: &NodeSet) -> Option<usize> {
    (0..walls.rows())
        .rev()
        .find(|row| walls.row(*row).all(|node| set.contains(node)))
}
