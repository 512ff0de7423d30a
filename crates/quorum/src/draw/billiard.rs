//! The billiard board: cells with their sites, and quorums as paths.

use std::collections::BTreeSet;

use crate::construct::billiard::{Billiard, Board};
use crate::{NodeSet, Prng};

use super::frame::{Entry, SAMPLE, Sheet};
use super::grids::{AXIS, axis, put_spares};
use super::palette::{EDGE, FIRST, FIRST_DARK, GREY, PLAIN, SECOND};
use super::scene::{Lettering, ROOM, Scene, Spot};
use super::svg::{Point, Svg};

/// A cell of the board: row and column from 1.
type Cell = (usize, usize);

/// Draws the board.
pub(super) fn draw(scene: &Scene<'_>, billiard: &Billiard) -> Sheet {
    let board = billiard.board();
    let q = board.q();
    let view = View {
        scene,
        board,
        pitch: scene.cell_in(ROOM, 0.0, q, q),
    };
    let side = |pitch: f64| 2.0 * AXIS + q as f64 * pitch;
    let mut sheet = Sheet {
        size: (side(view.pitch.0), side(view.pitch.1)),
        ..Sheet::default()
    };
    let first = scene.first.as_ref();
    let site = scene.site.filter(|_| scene.own);
    let path = first.and_then(|set| path_of(billiard, set, site));
    let other = scene.second.as_ref();
    let other = other.and_then(|set| path_of(billiard, set, None));
    view.cells(&mut sheet.body);
    for further in further_paths(board, path.as_deref(), scene.antipodal) {
        view.faint(&mut sheet.body, &further);
    }
    // A load is read through the path, so that is thin and light there.
    let (thick, colour) = match scene.heat {
        Some(_) => (2.0, FIRST),
        None => (
            (view.pitch.0.min(view.pitch.1) / 6.0).clamp(2.0, 6.0),
            FIRST_DARK,
        ),
    };
    if let Some(other) = &other {
        view.path(&mut sheet.body, other, "path second", (SECOND, thick));
    }
    if let Some(path) = &path {
        view.path(&mut sheet.body, path, "path", (colour, thick));
    }
    view.labels(&mut sheet.body);
    let colour = path.is_some().then_some(colour);
    entries(&view, &mut sheet, colour, other.is_some());
    put_spares(scene, &mut sheet);
    sheet
}

/// Explains paths and folded cells.
fn entries(view: &View<'_>, sheet: &mut Sheet, path: Option<&str>, other: bool) {
    let legend = &mut sheet.legend;
    for (colour, text) in [
        (path, "its path, from the dot to the arrow"),
        (other.then_some(SECOND), "path of the second quorum"),
    ] {
        if let Some(colour) = colour {
            let mut sample = Svg::new();
            let (w, h) = SAMPLE;
            let ends = [(5.0, h / 2.0), (w - 4.0, h / 2.0)];
            stroke(&mut sample, &ends, "", (colour, 4.0));
            legend.push(Entry::new(sample, text));
        }
    }
    if view.scene.antipodal > 0 {
        let attributes = format!(r#"stroke="{GREY}" stroke-width="1.5""#);
        let text = if path.is_some() {
            "other paths with the same ends"
        } else {
            "some antipodal paths"
        };
        legend.push(Entry::line(&attributes, text));
    }
    if !view.board.is_full() {
        let attributes =
            format!(r#"fill="{PLAIN}" fill-opacity="0.45" stroke="{EDGE}" stroke-dasharray="2 3""#);
        legend.push(Entry::node(
            &attributes,
            "border cell that shares the site further in",
        ));
    }
    let attributes = format!(r##"fill="#ffffff" stroke="{GREY}" stroke-opacity="0.35""##);
    legend.push(Entry::node(&attributes, "cell without a site"));
}

struct View<'a> {
    scene: &'a Scene<'a>,
    board: &'a Board,
    pitch: Point,
}

impl View<'_> {
    fn centre(&self, (row, column): Cell) -> Point {
        let x = AXIS + (column as f64 - 0.5) * self.pitch.0;
        (x, AXIS + (row as f64 - 0.5) * self.pitch.1)
    }

    fn spot(&self, cell: Cell) -> Spot {
        let gap = if self.pitch.0 > 12.0 { 2.0 } else { 0.5 };
        let size = (self.pitch.0 - gap, self.pitch.1 - gap);
        Spot::square(self.centre(cell), size)
    }

    /// Whether the cell has no site of its own.
    fn is_shared(&self, (row, column): Cell, site: usize) -> bool {
        let q = self.board.q();
        let border = row == 1 || row == q || column == 1 || column == q;
        border && self.board.cells_of(site).len() > 1
    }

    fn all_cells(&self) -> impl Iterator<Item = (Cell, Option<usize>)> + '_ {
        let q = self.board.q();
        (1..=q).flat_map(move |row| {
            (1..=q).map(move |column| ((row, column), self.board.site_at(row, column)))
        })
    }

    fn cells(&self, svg: &mut Svg) {
        let q = self.board.q();
        axis(svg, q, self.pitch.0, |at| (AXIS + at, AXIS / 2.0));
        axis(svg, q, self.pitch.1, |at| (AXIS / 2.0, AXIS + at));
        let size = (q as f64 * self.pitch.0, q as f64 * self.pitch.1);
        let centre = (AXIS + size.0 / 2.0, AXIS + size.1 / 2.0);
        let attributes = format!(r##"fill="#ffffff" stroke="{GREY}" stroke-opacity="0.35""##);
        svg.rect(centre, size, 0.0, &attributes);
        for (cell, site) in self.all_cells() {
            let Some(site) = site else { continue };
            if !self.is_shared(cell, site) {
                self.scene.shape(svg, site, &self.spot(cell));
                continue;
            }
            let look = self.scene.look(site);
            let quorum = if self.scene.in_first(site) { " in" } else { "" };
            let attributes = format!(
                "class=\"shared{quorum}\" data-node=\"{}\" fill=\"{}\" fill-opacity=\"0.45\" \
                 stroke=\"{EDGE}\" stroke-dasharray=\"2 3\"",
                site + 1,
                look.fill,
            );
            let hover = self.scene.name(site);
            let spot = self.spot(cell);
            svg.rect_with_hover(spot.at, spot.size, 3.0, &attributes, &hover);
        }
    }

    fn labels(&self, svg: &mut Svg) {
        for (cell, site) in self.all_cells() {
            let Some(site) = site else { continue };
            let chosen = self.scene.in_first(site) || self.scene.in_second(site);
            let lettering = Lettering {
                light: self.is_shared(cell, site),
                plate: (chosen || self.scene.antipodal > 0) && self.scene.heat.is_none(),
            };
            self.scene.label_as(svg, site, &self.spot(cell), lettering);
        }
    }

    fn faint(&self, svg: &mut Svg, path: &[Cell]) {
        let points: Vec<Point> = path.iter().map(|cell| self.centre(*cell)).collect();
        let attributes = format!(
            "class=\"antipodal\" fill=\"none\" stroke=\"{GREY}\" stroke-opacity=\"0.45\" \
             stroke-width=\"1.5\""
        );
        svg.polyline(&points, &attributes);
    }

    /// Draws a path with a dot where it enters the board and an arrow where it leaves it.
    fn path(&self, svg: &mut Svg, path: &[Cell], class: &str, (colour, width): (&str, f64)) {
        let mut points: Vec<Point> = path.iter().map(|cell| self.centre(*cell)).collect();
        if let [first, second, ..] = points[..] {
            points.insert(0, beyond(second, first));
        }
        if let [.., before, last] = points[..] {
            points.push(beyond(before, last));
        }
        stroke(svg, &points, class, (colour, width));
    }
}

/// Half a step further on the way from `from` to `to`: the corner of the last cell.
fn beyond(from: Point, to: Point) -> Point {
    (to.0 + (to.0 - from.0) / 2.0, to.1 + (to.1 - from.1) / 2.0)
}

/// A thick line with a dot at its start and an arrow at its end.
fn stroke(svg: &mut Svg, points: &[Point], class: &str, (colour, width): (&str, f64)) {
    let class = if class.is_empty() {
        String::new()
    } else {
        format!(r#"class="{class}" "#)
    };
    let attributes = format!(
        "{class}fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width:.1}\" \
         stroke-opacity=\"0.65\" stroke-linejoin=\"round\""
    );
    svg.polyline(points, &attributes);
    let solid = format!(r#"fill="{colour}""#);
    let width = width.max(3.5);
    if let Some(start) = points.first() {
        svg.circle(*start, width * 1.1, &solid);
    }
    if let [.., before, tip] = points {
        let (dx, dy) = (tip.0 - before.0, tip.1 - before.1);
        let length = dx.hypot(dy).max(1e-9);
        let (dx, dy) = (dx / length * width, dy / length * width);
        let front = (tip.0 + 0.9 * dx, tip.1 + 0.9 * dy);
        let left = (tip.0 - 1.4 * dx - 1.4 * dy, tip.1 - 1.4 * dy + 1.4 * dx);
        let right = (tip.0 - 1.4 * dx + 1.4 * dy, tip.1 - 1.4 * dy - 1.4 * dx);
        svg.polygon(&[front, left, right], &solid);
    }
}

/// The path behind a quorum: that of its site, or any path whose sites are the quorum. `None` for
/// quorums that are no path.
fn path_of(billiard: &Billiard, set: &NodeSet, site: Option<usize>) -> Option<Vec<Cell>> {
    let board = billiard.board();
    let matches = |path: &[Cell]| {
        let sites = path
            .iter()
            .filter_map(|(row, col)| board.site_at(*row, *col));
        NodeSet::of(set.capacity().max(board.nodes()), sites) == *set
    };
    let own = site.into_iter().chain(set.iter());
    let own = own
        .map(|site| board.own_path(site))
        .find(|path| matches(path));
    own.or_else(|| {
        let cost: Vec<f64> = (0..board.nodes())
            .map(|site| {
                if set.contains(site) {
                    1.0
                } else {
                    f64::INFINITY
                }
            })
            .collect();
        billiard.cheapest_path(&cost).filter(|path| matches(path))
    })
}

/// Up to `count` other antipodal paths: with the ends of `path`, or with any ends without one.
fn further_paths(board: &Board, path: Option<&[Cell]>, count: usize) -> BTreeSet<Vec<Cell>> {
    let q = board.q();
    let mut found = BTreeSet::new();
    if count == 0 {
        return found;
    }
    // The same numbers each time: a picture depends on its arguments alone.
    let mut rng = Prng::new(1);
    for _ in 0..20 * count {
        let (start, upwards) = match path.and_then(<[Cell]>::first) {
            Some((row, 1)) => (*row, false),
            Some((_, column)) => (*column, true),
            None => (2 + 2 * rng.below(q / 2), rng.below(2) == 1),
        };
        let rows = walk(q, start, &mut rng);
        let cells: Vec<Cell> = rows
            .iter()
            .enumerate()
            .map(|(step, row)| {
                if upwards {
                    (q - step, *row)
                } else {
                    (*row, step + 1)
                }
            })
            .collect();
        if path != Some(&cells[..]) {
            found.insert(cells);
        }
        if found.len() == count {
            break;
        }
    }
    found
}

/// The rows of a random path from row `start` of the first column to the opposite row of the
/// last, every such path as likely as any other.
fn walk(q: usize, start: usize, rng: &mut Prng) -> Vec<usize> {
    // ways[c][r]: how many paths lead from row r of column c on to the end, scaled.
    let mut ways = vec![vec![0.0; q + 2]; q];
    ways[q - 1][(q + 1).saturating_sub(start).clamp(1, q)] = 1.0;
    for column in (0..q - 1).rev() {
        for row in 1..=q {
            ways[column][row] = f64::midpoint(ways[column + 1][row - 1], ways[column + 1][row + 1]);
        }
    }
    let mut rows = vec![start];
    let mut row = start;
    for next in ways.iter().skip(1) {
        let (up, down) = (next[row - 1], next[row + 1]);
        if up + down <= 0.0 {
            break;
        }
        row = if rng.unit() * (up + down) < up {
            row - 1
        } else {
            row + 1
        };
        rows.push(row);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_paths_are_antipodal() {
        let board = Board::with_side(9).unwrap();
        let own = board.own_path(10);
        for path in [None, Some(&own[..])] {
            let found = further_paths(&board, path, 20);
            assert!(found.len() >= 15, "{}", found.len());
            for cells in &found {
                assert_eq!(cells.len(), 9);
                let ((a, b), (c, d)) = (cells[0], cells[8]);
                assert!(a + c == 10 && b + d == 10, "{cells:?}");
                assert!(cells.iter().all(|(r, c)| board.site_at(*r, *c).is_some()));
                if path.is_some() {
                    assert_eq!((cells[0], cells[8]), (own[0], own[8]));
                }
            }
        }
    }
}
