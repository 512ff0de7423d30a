//! Projective planes: the incidence matrix of points and lines, and for seven points the
//! well-known triangle.

use crate::construct::plane::Plane;
use crate::{Family as _, NodeSet};

use super::frame::{Entry, Sheet};
use super::palette::{BOTH, EDGE, FAINT, FIRST, FIRST_DARK, GREY, SECOND};
use super::scene::{ROOM, Scene, Spot};
use super::svg::{Point, Svg};
use super::{DrawError, limit};

/// The most points that a matrix shows.
const POINTS_MAX: usize = 400;

/// Draws the plane.
pub(super) fn draw(scene: &Scene<'_>, plane: &Plane) -> Result<Sheet, DrawError> {
    limit("points of a plane", plane.nodes(), POINTS_MAX)?;
    if let Some(fano) = Fano::new(plane) {
        return Ok(fano.draw(scene));
    }
    Ok(matrix(scene, plane))
}

/// The lines whose points are all in the set.
fn lines_in(plane: &Plane, set: Option<&NodeSet>) -> NodeSet {
    let mut lines = NodeSet::new(plane.nodes());
    if let Some(set) = set {
        for line in 0..plane.nodes() {
            if plane.line(line).all(|node| set.contains(node)) {
                lines.insert(line);
            }
        }
    }
    lines
}

fn matrix(scene: &Scene<'_>, plane: &Plane) -> Sheet {
    let nodes = plane.nodes();
    let (wide, high) = scene.ideal();
    let most = (ROOM - wide - 30.0) / nodes as f64;
    let cell = most.min(26.0);
    let high = high.min(cell - 1.0);
    // Without room for its label a node is a small box.
    let wide = if scene.font(wide, high).is_some() {
        wide
    } else {
        cell.max(10.0)
    };
    let (left, top) = (wide + 24.0, 40.0);
    let place = |line: usize, point: usize| {
        let x = left + (line as f64 + 0.5) * cell;
        (x, top + (point as f64 + 0.5) * cell)
    };
    let mut sheet = Sheet {
        size: (left + nodes as f64 * cell, top + nodes as f64 * cell),
        ..Sheet::default()
    };
    let svg = &mut sheet.body;
    headings(svg, nodes, cell, (left, top));
    let first = lines_in(plane, scene.first.as_ref());
    let second = lines_in(plane, scene.second.as_ref());
    let side = nodes as f64 * cell;
    for (lines, colour) in [(&second, SECOND), (&first, FIRST)] {
        for line in lines.iter() {
            let (x, _) = place(line, 0);
            let attributes = format!(r#"class="line" fill="{colour}" fill-opacity="0.35""#);
            svg.rect((x, top + side / 2.0), (cell, side), 0.0, &attributes);
        }
    }
    let frame = format!(r#"fill="none" stroke="{FAINT}""#);
    svg.rect(
        (left + side / 2.0, top + side / 2.0),
        (side, side),
        0.0,
        &frame,
    );
    if cell > 8.0 {
        rules(svg, nodes, cell, (left, top));
    }
    for line in 0..nodes {
        let colour = match (first.contains(line), second.contains(line)) {
            (true, true) => BOTH,
            (true, false) => FIRST_DARK,
            (false, true) => SECOND,
            (false, false) => EDGE,
        };
        let attributes = format!(r#"fill="{colour}""#);
        for point in plane.line(line) {
            svg.circle(place(line, point), cell * 0.32, &attributes);
        }
    }
    for point in 0..nodes {
        let (_, y) = place(0, point);
        let spot = Spot::square((wide / 2.0 + 20.0, y), (wide, high));
        scene.node(svg, point, &spot);
    }
    sheet.legend = entries(&first, &second);
    sheet
}

fn entries(first: &NodeSet, second: &NodeSet) -> Vec<Entry> {
    let mut dot = Svg::new();
    dot.circle((15.0, 9.0), 6.0, &format!(r#"fill="{EDGE}""#));
    let mut entries = vec![Entry::new(dot, "the node is on this line")];
    for (lines, colour, text) in [
        (first, FIRST, "line of the quorum"),
        (second, SECOND, "line of the second quorum"),
    ] {
        if !lines.is_empty() {
            let attributes = format!(r#"fill="{colour}" fill-opacity="0.35""#);
            entries.push(Entry::node(&attributes, text));
        }
    }
    entries
}

/// Thin lines between the cells.
fn rules(svg: &mut Svg, count: usize, cell: f64, (left, top): Point) {
    let attributes = format!(r#"stroke="{FAINT}" stroke-width="0.5""#);
    let side = count as f64 * cell;
    for line in 1..count {
        let at = line as f64 * cell;
        svg.line((left + at, top), (left + at, top + side), &attributes);
        svg.line((left, top + at), (left + side, top + at), &attributes);
    }
}

/// The names of the axes, and the numbers of the lines.
fn headings(svg: &mut Svg, count: usize, cell: f64, (left, top): Point) {
    let middle = format!(r#"text-anchor="middle" fill="{GREY}""#);
    let half = count as f64 * cell / 2.0;
    svg.text((left + half, 10.0), 13.0, &middle, "lines (quorums)");
    svg.text_upwards((12.0, top + half), 13.0, "points (nodes)");
    super::grids::axis(svg, count, cell, |at| (left + at, top - 12.0));
}

/// The plane of seven points: the corners of a triangle, the middles of its sides and its centre.
/// Its lines are the sides, the heights, and the circle through the middles.
struct Fano<'a> {
    plane: &'a Plane,
    /// Three corners, then the middles opposite to each, then the centre.
    nodes: [usize; 7],
}

impl<'a> Fano<'a> {
    /// `None` unless the plane has seven points.
    fn new(plane: &'a Plane) -> Option<Self> {
        if plane.nodes() != 7 {
            return None;
        }
        // Any line may be the circle, and any point off it the centre.
        let circle: NodeSet = NodeSet::of(7, plane.line(0));
        let off: Vec<usize> = circle.complement().iter().collect();
        let [centre, a, b, c] = off[..] else {
            return None;
        };
        let third = |one: usize, two: usize| {
            (0..7).find_map(|line| {
                let on: Vec<usize> = plane.line(line).collect();
                let both = on.contains(&one) && on.contains(&two);
                let other = on.into_iter().find(|node| *node != one && *node != two);
                other.filter(|_| both)
            })
        };
        let nodes = [a, b, c, third(b, c)?, third(c, a)?, third(a, b)?, centre];
        Some(Self { plane, nodes })
    }

    fn draw(&self, scene: &Scene<'_>) -> Sheet {
        let (wide, high) = scene.ideal();
        let (side, pad) = (420.0, wide.max(high) / 2.0 + 4.0);
        let tall = side * 0.75f64.sqrt();
        let [a, b, c] = [
            (pad + side / 2.0, pad),
            (pad, pad + tall),
            (pad + side, pad + tall),
        ];
        let middle = |p: Point, q: Point| (f64::midpoint(p.0, q.0), f64::midpoint(p.1, q.1));
        let centre = (a.0, pad + tall * 2.0 / 3.0);
        let spots = [a, b, c, middle(b, c), middle(c, a), middle(a, b), centre];
        let mut sheet = Sheet {
            size: (side + 2.0 * pad, tall + 2.0 * pad),
            ..Sheet::default()
        };
        let first = lines_in(self.plane, scene.first.as_ref());
        let second = lines_in(self.plane, scene.second.as_ref());
        // Lines that are shown come last, over the others.
        let mut order: Vec<usize> = (0..7).collect();
        order.sort_by_key(|line| (first.contains(*line), second.contains(*line)));
        for line in order {
            let (colour, width) = match (first.contains(line), second.contains(line)) {
                (true, _) => (FIRST_DARK, 5.0),
                (false, true) => (SECOND, 5.0),
                (false, false) => (EDGE, 1.5),
            };
            let attributes =
                format!(r#"class="line" fill="none" stroke="{colour}" stroke-width="{width}""#);
            self.line(&mut sheet.body, line, &spots, &attributes);
        }
        for (node, at) in self.nodes.iter().zip(spots) {
            let spot = Spot::round(at, (wide, high));
            scene.node(&mut sheet.body, *node, &spot);
        }
        let attributes = format!(r#"stroke="{EDGE}" stroke-width="1.5""#);
        let text = "line: six are straight, one is the circle";
        sheet.legend.push(Entry::line(&attributes, text));
        sheet
    }

    fn line(&self, svg: &mut Svg, line: usize, spots: &[Point; 7], attributes: &str) {
        let on: Vec<usize> = (0..7)
            .filter(|place| self.plane.line(line).any(|node| node == self.nodes[*place]))
            .collect();
        match on[..] {
            [3, 4, 5] => {
                let radius = spots[3].1 - spots[6].1;
                svg.circle(spots[6], radius, attributes);
            }
            // A height runs from its corner to the middle of the other side, a side from corner
            // to corner.
            [corner, middle, 6] => svg.line(spots[corner], spots[middle], attributes),
            [corner, other, _] => svg.line(spots[corner], spots[other], attributes),
            _ => {}
        }
    }
}
