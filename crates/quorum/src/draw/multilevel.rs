//! Clusters of clusters: the root at the left, leaf clusters as rows at the right.
//!
//! A cluster above the leaves is a column; each of its members stands level with the cluster that
//! it speaks for.

use crate::NodeSet;
use crate::construct::multilevel::{ClusterId, Multilevel};

use super::frame::{Entry, Sheet};
use super::palette::{EDGE, FAINT, FIRST_DARK, GREY, INK, SECOND};
use super::scene::{ROOM, Scene, Spot};
use super::svg::{Point, Svg};
use super::{DrawError, limit};

/// The most levels, and the most leaf clusters.
const LEVELS_MAX: usize = 10;
const LEAVES_MAX: usize = 400;
/// Between a cluster's frame and its members.
const PAD: f64 = 5.0;
/// From this many leaf clusters on, rows are lower and closer.
const CLOSE: usize = 30;

/// Draws the clusters.
pub(super) fn draw(scene: &Scene<'_>, multilevel: &Multilevel) -> Result<Sheet, DrawError> {
    let clusters = multilevel.clusters();
    limit("levels of clusters", clusters.levels(), LEVELS_MAX)?;
    limit(
        "leaf clusters",
        clusters.count(clusters.levels()),
        LEAVES_MAX,
    )?;
    let plan = Plan::new(scene, multilevel);
    let mut sheet = Sheet {
        size: plan.size,
        ..Sheet::default()
    };
    let chains = [&scene.first, &scene.second].map(|set| {
        let set = set.as_ref();
        set.and_then(|set| chain_in(multilevel, clusters.root(), set))
            .unwrap_or_default()
    });
    for level in 0..=clusters.levels() {
        for id in clusters.at(level) {
            plan.links(&mut sheet.body, id, &chains);
        }
    }
    for level in 0..=clusters.levels() {
        plan.heading(&mut sheet.body, level);
        for id in clusters.at(level) {
            plan.cluster(&mut sheet.body, id, &chains);
        }
    }
    sheet.legend = entries(clusters.levels() > 0, &chains);
    Ok(sheet)
}

fn entries(links: bool, chains: &[Vec<ClusterId>; 2]) -> Vec<Entry> {
    let mut entries = Vec::new();
    let frame = format!(r##"fill="#ffffff" stroke="{FAINT}" stroke-width="1.5""##);
    entries.push(Entry::node(&frame, "frame: a cluster"));
    for (chain, colour, text) in [
        (&chains[0], FIRST_DARK, "cluster on the quorum's chain"),
        (&chains[1], SECOND, "cluster on the second quorum's chain"),
    ] {
        if !chain.is_empty() {
            let attributes = format!(r##"fill="#ffffff" stroke="{colour}" stroke-width="3""##);
            entries.push(Entry::node(&attributes, text));
        }
    }
    if links {
        let mut sample = Svg::new();
        sample.rect(
            (15.0, 9.0),
            (16.0, 16.0),
            2.0,
            &format!(r#"fill="none" stroke="{EDGE}""#),
        );
        flag(&mut sample, (7.0, 1.0), 6.0);
        let text = "delegate: a member of the cluster to the left as well";
        entries.push(Entry::new(sample, text));
    }
    entries
}

/// The clusters from this one down to a leaf that all have a quorum in `set`.
fn chain_in(multilevel: &Multilevel, id: ClusterId, set: &NodeSet) -> Option<Vec<ClusterId>> {
    let clusters = multilevel.clusters();
    let members = clusters.members(id).enumerate();
    let held = members.filter(|(_, node)| set.contains(*node));
    let places = NodeSet::of(clusters.size(id), held.map(|(place, _)| place));
    if !multilevel.coterie(id).contains_quorum(&places) {
        return None;
    }
    if clusters.is_leaf(id) {
        return Some(vec![id]);
    }
    let below = clusters
        .children(id)
        .find_map(|child| chain_in(multilevel, child, set));
    below.map(|mut chain| {
        chain.push(id);
        chain
    })
}

/// A filled corner that marks a delegate; `at` is the corner.
fn flag(svg: &mut Svg, at: Point, size: f64) {
    let points = [at, (at.0 + size, at.1), (at.0, at.1 + size)];
    svg.polygon(&points, &format!(r#"class="delegate" fill="{INK}""#));
}

struct Plan<'a> {
    scene: &'a Scene<'a>,
    multilevel: &'a Multilevel,
    node: Point,
    /// How many members of a leaf cluster stand side by side.
    per_line: usize,
    /// The height of each leaf cluster's row, and where it begins.
    rows: Vec<(f64, f64)>,
    /// From the left edge of one level to that of the next.
    step: f64,
    size: Point,
}

const HEADING: f64 = 24.0;

impl<'a> Plan<'a> {
    fn new(scene: &'a Scene<'a>, multilevel: &'a Multilevel) -> Self {
        let clusters = multilevel.clusters();
        let levels = clusters.levels();
        let (wide, high) = scene.ideal();
        let leaves = clusters.count(levels);
        let largest = clusters.at(levels).map(|id| clusters.size(id)).max();
        let largest = largest.unwrap_or(1);
        let high = if leaves > CLOSE { high.min(18.0) } else { high };
        let high = if scene.heat.is_some() && leaves <= 2 * CLOSE {
            36.0
        } else {
            high
        };
        let step = wide + 2.0 * PAD + 50.0;
        let room = ROOM - levels as f64 * step;
        let pitch = (room / largest as f64).min(wide + 4.0);
        // A row of a flat system may have to be broken.
        let (wide, per_line) = if pitch < 0.85 * wide {
            (wide, ((room / (wide + 4.0)) as usize).clamp(1, largest))
        } else {
            (pitch - 4.0, largest)
        };
        let mut top = HEADING;
        let mut rows = Vec::with_capacity(leaves);
        for id in clusters.at(levels) {
            let lines = clusters.size(id).div_ceil(per_line) as f64;
            let pad = if leaves > CLOSE { 2.0 } else { PAD + 3.0 };
            let height = lines * (high + 4.0) + 2.0 * pad;
            rows.push((top, height));
            top += height;
        }
        let width = levels as f64 * step + per_line as f64 * (wide + 4.0) + 2.0 * PAD;
        Self {
            scene,
            multilevel,
            node: (wide, high),
            per_line,
            rows,
            step,
            size: (width, top),
        }
    }

    /// The top and the height of what a cluster stands for.
    fn span(&self, id: ClusterId) -> (f64, f64) {
        let clusters = self.multilevel.clusters();
        let edge = |mut id: ClusterId, last: bool| {
            while !clusters.is_leaf(id) {
                let mut children = clusters.children(id);
                let place = if last { children.len() } else { 1 };
                let child = children.nth(place.saturating_sub(1));
                let Some(child) = child else { break };
                id = child;
            }
            self.rows.get(id.index()).copied().unwrap_or_default()
        };
        let (top, _) = edge(id, false);
        let (bottom, height) = edge(id, true);
        (top, bottom + height - top)
    }

    fn left(&self, level: usize) -> f64 {
        level as f64 * self.step
    }

    /// The middle of a member's box.
    fn place(&self, id: ClusterId, place: usize) -> Point {
        let clusters = self.multilevel.clusters();
        let left = self.left(id.level()) + PAD;
        if clusters.is_leaf(id) {
            let (top, height) = self.span(id);
            let lines = clusters.size(id).div_ceil(self.per_line) as f64;
            let top = top + (height - lines * (self.node.1 + 4.0)) / 2.0;
            let (line, column) = (place / self.per_line, place % self.per_line);
            let x = left + (column as f64 + 0.5) * (self.node.0 + 4.0);
            let y = top + (line as f64 + 0.5) * (self.node.1 + 4.0);
            return (x, y);
        }
        let child = clusters.children(id).nth(place);
        let (top, height) = child.map_or((0.0, 0.0), |child| self.span(child));
        (left + self.node.0 / 2.0 + 2.0, top + height / 2.0)
    }

    fn links(&self, svg: &mut Svg, id: ClusterId, chains: &[Vec<ClusterId>; 2]) {
        let clusters = self.multilevel.clusters();
        for (place, child) in clusters.children(id).enumerate() {
            let (x, y) = self.place(id, place);
            let attributes = match chains.each_ref().map(|chain| chain.contains(&child)) {
                [true, _] => format!(r#"stroke="{FIRST_DARK}" stroke-width="3""#),
                [false, true] => format!(r#"stroke="{SECOND}" stroke-width="3""#),
                _ => format!(r#"stroke="{EDGE}" stroke-width="1""#),
            };
            svg.line((x, y), (self.left(child.level()), y), &attributes);
        }
    }

    fn cluster(&self, svg: &mut Svg, id: ClusterId, chains: &[Vec<ClusterId>; 2]) {
        let clusters = self.multilevel.clusters();
        let (top, height) = self.span(id);
        let width = if clusters.is_leaf(id) {
            let across = clusters.size(id).min(self.per_line);
            across as f64 * (self.node.0 + 4.0) + 2.0 * PAD
        } else {
            self.node.0 + 4.0 + 2.0 * PAD
        };
        let centre = (self.left(id.level()) + width / 2.0, top + height / 2.0);
        let (stroke, thick) = match chains.each_ref().map(|chain| chain.contains(&id)) {
            [true, _] => (FIRST_DARK, 3.0),
            [false, true] => (SECOND, 3.0),
            _ => (FAINT, 1.5),
        };
        let attributes =
            format!(r##"class="cluster" fill="#ffffff" stroke="{stroke}" stroke-width="{thick}""##);
        let gap = if self.rows.len() > CLOSE { 2.0 } else { 6.0 };
        svg.rect(centre, (width, height - gap), 6.0, &attributes);
        for (place, node) in clusters.members(id).enumerate() {
            let at = self.place(id, place);
            self.scene.node(svg, node, &Spot::square(at, self.node));
            if id.level() > 0 && node == clusters.delegate(id) {
                let corner = (at.0 - self.node.0 / 2.0, at.1 - self.node.1 / 2.0);
                flag(svg, corner, (self.node.1 / 3.0).min(8.0));
            }
        }
    }

    fn heading(&self, svg: &mut Svg, level: usize) {
        let levels = self.multilevel.clusters().levels();
        let text = match level {
            _ if levels == 0 => "one cluster",
            0 => "root",
            _ if level == levels => "leaf clusters",
            _ => "",
        };
        let text = if text.is_empty() {
            format!("level {level}")
        } else {
            text.to_owned()
        };
        let at = (self.left(level), 8.0);
        svg.text(at, 12.0, &format!(r#"fill="{GREY}""#), &text);
    }
}
