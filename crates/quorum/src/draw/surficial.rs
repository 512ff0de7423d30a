//! Surficial systems: a staircase of rectangles, one for each pair of cartels.
//!
//! A quorum is a line that comes down through the rectangles above its cartel's place on the
//! diagonal, turns there, and goes on to the right. Lines of two cartels cross in one rectangle.

use crate::NodeSet;
use crate::construct::surficial::Surficial;

use super::frame::{Entry, Sheet};
use super::grids::put_spares;
use super::palette::{self, FAINT};
use super::scene::{ROOM, Scene, Spot};
use super::svg::{Point, Svg, fit, text_width};
use super::{DrawError, limit, plain};

/// The most quorums of all cartels together.
const LINES_MAX: usize = 300;
/// The most groups that the legend names one by one.
const NAMED_MAX: usize = 12;

/// Draws the staircase.
pub(super) fn draw(scene: &Scene<'_>, surficial: &Surficial) -> Result<Sheet, DrawError> {
    if surficial.groups() == 1 {
        return Ok(plain::draw(scene));
    }
    let lines: usize = surficial.widths().iter().sum();
    limit("quorums of all groups", lines, LINES_MAX)?;
    let stairs = Stairs::new(scene, surficial, lines);
    let mut sheet = Sheet {
        size: stairs.size,
        ..Sheet::default()
    };
    stairs.frames(&mut sheet.body);
    // Lines that are shown come last, over the others.
    for shown in [false, true] {
        for cartel in 0..surficial.groups() {
            stairs.lines(&mut sheet.body, cartel, shown);
        }
    }
    for (upper, lower) in stairs.pairs() {
        let rectangle = surficial.rectangle(upper, lower).unwrap_or_default();
        for (row, nodes) in rectangle.iter().enumerate() {
            for (column, node) in nodes.iter().enumerate() {
                let at = (stairs.x(lower, column), stairs.y(upper, row));
                scene.node(&mut sheet.body, *node, &Spot::square(at, stairs.node));
            }
        }
    }
    for cartel in 0..surficial.groups() {
        stairs.name(&mut sheet.body, cartel);
    }
    sheet.legend = entries(scene, surficial);
    put_spares(scene, &mut sheet);
    Ok(sheet)
}

fn entries(scene: &Scene<'_>, surficial: &Surficial) -> Vec<Entry> {
    let named = surficial.groups().min(NAMED_MAX);
    let mut entries: Vec<Entry> = (0..named)
        .map(|cartel| {
            let colour = palette::series(cartel);
            let attributes = format!(r#"stroke="{colour}" stroke-width="2.5""#);
            let name = scene.group_name(cartel);
            let text = match surficial.widths()[cartel] {
                1 => format!("group {name}: 1 quorum, a line"),
                width => format!("group {name}: {width} quorums, a line each"),
            };
            Entry::line(&attributes, text)
        })
        .collect();
    if named < surficial.groups() {
        let attributes = format!(r#"stroke="{}" stroke-width="2.5""#, palette::series(0));
        let text = "further groups: the colours repeat";
        entries.push(Entry::line(&attributes, text));
    }
    let attributes = format!(r#"fill="none" stroke="{FAINT}" stroke-width="1.5""#);
    let text = "rectangle of two groups: their lines cross there";
    entries.push(Entry::node(&attributes, text));
    entries
}

struct Stairs<'a> {
    scene: &'a Scene<'a>,
    surficial: &'a Surficial,
    /// Where each cartel's block begins along both axes, and where the last ends.
    starts: Vec<f64>,
    left: f64,
    pitch: Point,
    node: Point,
    size: Point,
}

/// Between two blocks.
const GAP: f64 = 10.0;
const NAME: f64 = 13.0;

impl<'a> Stairs<'a> {
    fn new(scene: &'a Scene<'a>, surficial: &'a Surficial, lines: usize) -> Self {
        let groups = surficial.groups() as f64;
        let names = (0..surficial.groups()).map(|cartel| {
            let name = format!("group {}", scene.group_name(cartel));
            text_width(&fit(&name, 120.0, NAME), NAME)
        });
        let left = names.fold(0.0, f64::max) + 12.0;
        let (wide, high) = scene.ideal();
        let room = (ROOM - left - groups * GAP) / lines as f64;
        let pitch = ((wide + 14.0).min(room), (high + 14.0).min(room));
        let node = if scene.font(pitch.0 - 6.0, pitch.1 - 6.0).is_some() {
            (wide.min(pitch.0 - 6.0), high.min(pitch.1 - 6.0))
        } else {
            (pitch.0 * 0.6, pitch.1 * 0.6)
        };
        let mut starts = vec![0.0];
        for width in surficial.widths() {
            let last = starts.last().copied().unwrap_or(0.0);
            starts.push(last + *width as f64);
        }
        let size = (
            left + lines as f64 * pitch.0 + (groups - 1.0) * GAP,
            lines as f64 * pitch.1 + (groups - 1.0) * GAP,
        );
        Self {
            scene,
            surficial,
            starts,
            left,
            pitch,
            node,
            size,
        }
    }

    fn x(&self, cartel: usize, place: usize) -> f64 {
        let cells = self.starts[cartel] + place as f64 + 0.5;
        self.left + cells * self.pitch.0 + cartel as f64 * GAP
    }

    fn y(&self, cartel: usize, place: usize) -> f64 {
        let cells = self.starts[cartel] + place as f64 + 0.5;
        cells * self.pitch.1 + cartel as f64 * GAP
    }

    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let groups = self.surficial.groups();
        (0..groups).flat_map(move |upper| (upper + 1..groups).map(move |lower| (upper, lower)))
    }

    fn frames(&self, svg: &mut Svg) {
        let attributes =
            format!(r#"class="rectangle" fill="none" stroke="{FAINT}" stroke-width="1.5""#);
        let widths = self.surficial.widths();
        for (upper, lower) in self.pairs() {
            let (rows, columns) = (widths[upper], widths[lower]);
            let x = f64::midpoint(self.x(lower, 0), self.x(lower, columns - 1));
            let y = f64::midpoint(self.y(upper, 0), self.y(upper, rows - 1));
            let size = (
                columns as f64 * self.pitch.0 + 2.0,
                rows as f64 * self.pitch.1 + 2.0,
            );
            svg.rect((x, y), size, 4.0, &attributes);
        }
    }

    /// The nodes of a quorum of a cartel.
    fn quorum(&self, cartel: usize, place: usize) -> NodeSet {
        let mut set = NodeSet::new(self.surficial.nodes());
        for (upper, lower) in self.pairs() {
            if upper != cartel && lower != cartel {
                continue;
            }
            for (row, nodes) in self
                .surficial
                .rectangle(upper, lower)
                .iter()
                .flatten()
                .enumerate()
            {
                for (column, node) in nodes.iter().enumerate() {
                    let along = if upper == cartel { row } else { column };
                    if along == place {
                        set.insert(*node);
                    }
                }
            }
        }
        set
    }

    /// Draws the lines of a cartel: those of the quorum or group shown, or the others.
    fn lines(&self, svg: &mut Svg, cartel: usize, shown: bool) {
        let group = self.scene.group == Some(cartel) && self.scene.first.is_none();
        let thin = (self.pitch.0.min(self.pitch.1) / 16.0).clamp(0.8, 2.0);
        for place in 0..self.surficial.widths()[cartel] {
            let quorum = self.quorum(cartel, place);
            let sets = [&self.scene.first, &self.scene.second];
            let chosen = sets.into_iter().flatten().any(|set| quorum.is_subset(set));
            if (group || chosen) != shown {
                continue;
            }
            let width = if shown { 3.0 * thin } else { thin };
            let attributes = format!(
                "class=\"line\" fill=\"none\" stroke=\"{}\" stroke-width=\"{width:.1}\" \
                 stroke-linejoin=\"round\"",
                palette::series(cartel)
            );
            svg.polyline(&self.bend(cartel, place), &attributes);
        }
    }

    /// Down from the top, round at the diagonal, and to the right.
    fn bend(&self, cartel: usize, place: usize) -> Vec<Point> {
        let corner = (self.x(cartel, place), self.y(cartel, place));
        let mut points = Vec::new();
        if cartel > 0 {
            points.push((corner.0, 0.0));
        }
        points.push(corner);
        if cartel + 1 < self.surficial.groups() {
            points.push((self.size.0, corner.1));
        }
        points
    }

    /// Writes a group's name beside its place on the diagonal.
    fn name(&self, svg: &mut Svg, cartel: usize) {
        let last = self.surficial.widths()[cartel] - 1;
        let y = f64::midpoint(self.y(cartel, 0), self.y(cartel, last));
        let at = (self.x(cartel, 0) - self.pitch.0 / 2.0 - 2.0, y);
        let attributes = format!(
            r#"text-anchor="end" font-weight="bold" fill="{}""#,
            palette::series(cartel)
        );
        let name = format!("group {}", self.scene.group_name(cartel));
        svg.text(at, NAME, &attributes, &fit(&name, 120.0, NAME));
    }
}
