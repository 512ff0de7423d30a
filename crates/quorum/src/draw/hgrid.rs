//! Grids of grids, as nested frames.

use crate::construct::hgrid::Hgrid;

use super::frame::{Entry, Sheet};
use super::grids::LINES_MAX;
use super::palette::GREY;
use super::scene::{ROOM, Scene, Spot};
use super::svg::{Point, Svg};
use super::{DrawError, limit};

/// Room on each side of a part inside its frame.
const PAD: f64 = 6.0;
/// Grids deeper than this have levels of single parts, which frames would only clutter.
const LEVELS_MAX: usize = 12;

/// Draws the grid.
pub(super) fn draw(scene: &Scene<'_>, grid: &Hgrid) -> Result<Sheet, DrawError> {
    let shape = grid.shape();
    limit("levels", shape.len(), LEVELS_MAX)?;
    let rows: usize = shape.iter().map(|(rows, _)| rows).product();
    let cols: usize = shape.iter().map(|(_, cols)| cols).product();
    limit("columns", cols, LINES_MAX)?;
    limit("rows", rows, LINES_MAX)?;
    let pad = padding(shape);
    let room = ROOM - frames(shape) as f64 * 2.0 * pad;
    let node = scene.cell_in(room, 4.0 * pad / PAD, cols, rows);
    // The size of a part at each level, and of a node at the end.
    let mut sizes = vec![(node.0 + 4.0 * pad / PAD, node.1 + 4.0 * pad / PAD)];
    for (rows, cols) in shape.iter().rev() {
        let (w, h) = sizes.last().copied().unwrap_or_default();
        let part = (*cols as f64 * w, *rows as f64 * h);
        sizes.push((part.0 + 2.0 * pad, part.1 + 2.0 * pad));
    }
    sizes.reverse();
    let nested = Nested {
        scene,
        grid,
        sizes: &sizes,
        node,
        pad,
    };
    let mut sheet = Sheet {
        size: sizes.first().copied().unwrap_or_default(),
        ..Sheet::default()
    };
    nested.part(&mut sheet.body, 0, 0, (0.0, 0.0));
    let attributes = format!(r#"fill="none" stroke="{GREY}" stroke-width="1.5""#);
    sheet.legend.push(Entry::node(
        &attributes,
        "frame: a part, which is a grid of smaller parts",
    ));
    Ok(sheet)
}

/// How many frames of all levels stand side by side, or one above the other if these are more.
fn frames(shape: &[(usize, usize)]) -> usize {
    let count = |side: fn(&(usize, usize)) -> usize| {
        let (mut parts, mut frames) = (1, 0);
        for size in shape {
            frames += parts;
            parts *= side(size);
        }
        frames
    };
    count(|(rows, _)| *rows).max(count(|(_, cols)| *cols))
}

/// The room inside each frame: at most a quarter of the picture goes into it.
fn padding(shape: &[(usize, usize)]) -> f64 {
    (ROOM / 8.0 / frames(shape).max(1) as f64).min(PAD)
}

struct Nested<'a> {
    scene: &'a Scene<'a>,
    grid: &'a Hgrid,
    sizes: &'a [Point],
    node: Point,
    pad: f64,
}

impl Nested<'_> {
    /// Draws the part of this level whose nodes begin at `first`, its top left corner at `at`.
    fn part(&self, svg: &mut Svg, level: usize, first: usize, at: Point) {
        let size = self.sizes[level];
        let centre = (at.0 + size.0 / 2.0, at.1 + size.1 / 2.0);
        let Some((rows, cols)) = self.grid.shape().get(level).copied() else {
            self.scene
                .node(svg, first, &Spot::square(centre, self.node));
            return;
        };
        let deep = self.grid.shape().len() - level;
        let (stroke, inset): (f64, f64) = match deep {
            1 => (1.0, 4.0),
            2 => (1.8, 2.0),
            _ => (2.5, 1.0),
        };
        let attributes =
            format!(r##"class="frame" fill="#ffffff" stroke="{GREY}" stroke-width="{stroke}""##);
        let inset = inset * self.pad / PAD;
        let frame = (size.0 - inset, size.1 - inset);
        svg.rect(centre, frame, 5.0, &attributes);
        let step = self.sizes[level + 1];
        let held = self.grid.part_nodes(level) / (rows * cols).max(1);
        for part in 0..rows * cols {
            let (row, col) = (part / cols, part % cols);
            let x = at.0 + self.pad + col as f64 * step.0;
            let y = at.1 + self.pad + row as f64 * step.1;
            self.part(svg, level + 1, first + part * held, (x, y));
        }
    }
}
