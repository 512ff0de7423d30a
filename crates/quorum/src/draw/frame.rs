//! The frame of every picture: title above, legend below.

use crate::build::Shape;
use crate::{NodeSet, System};

use super::palette::{self, BOTH, DEAD, EDGE, FIRST, GREY, INK, OWNER, OWNER_HOT, PLAIN, SECOND};
use super::scene::{Scene, load_text};
use super::svg::{Point, Svg, fit, text_width};

/// A picture without its title and legend.
#[derive(Debug, Default)]
pub(super) struct Sheet {
    pub(super) body: Svg,
    pub(super) size: Point,
    pub(super) legend: Vec<Entry>,
}

/// A line of a legend: a sample of a mark in a box of [`SAMPLE`], and what the mark means.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    sample: Svg,
    text: String,
}

/// The size of a sample.
pub(super) const SAMPLE: Point = (30.0, 18.0);
/// No picture is wider.
const WIDTH_MAX: f64 = 1400.0;
const WIDTH_MIN: f64 = 640.0;
const MARGIN: f64 = 24.0;
const TITLE: f64 = 18.0;
const TEXT: f64 = 13.0;
const LINE: f64 = 22.0;

impl Entry {
    /// A mark drawn in a box from (0, 0) to [`SAMPLE`].
    pub(super) fn new(sample: Svg, text: impl Into<String>) -> Self {
        Self {
            sample,
            text: text.into(),
        }
    }

    /// A node's box with these attributes.
    pub(super) fn node(attributes: &str, text: impl Into<String>) -> Self {
        let mut sample = Svg::new();
        let (w, h) = SAMPLE;
        sample.rect((w / 2.0, h / 2.0), (h - 2.0, h - 2.0), 2.0, attributes);
        Self::new(sample, text)
    }

    /// A stroke with these attributes.
    pub(super) fn line(attributes: &str, text: impl Into<String>) -> Self {
        let mut sample = Svg::new();
        let (w, h) = SAMPLE;
        sample.line((1.0, h / 2.0), (w - 1.0, h / 2.0), attributes);
        Self::new(sample, text)
    }

    fn width(&self) -> f64 {
        SAMPLE.0 + 6.0 + text_width(&self.text, TEXT) * 0.95 + 16.0
    }
}

/// Puts the title above the sheet and the legend below it.
pub(super) fn finish(scene: &Scene<'_>, mut sheet: Sheet) -> String {
    let mut entries = common_entries(scene);
    entries.append(&mut sheet.legend);
    sheet.legend = entries;
    let lines = [
        Some(summary(scene)),
        shown(scene),
        second_shown(scene),
        meeting(scene),
    ];
    let lines: Vec<String> = lines.into_iter().flatten().collect();
    compose(scene.title, &lines, &sheet, |svg, at| match scene.heat {
        Some(loads) => colour_bar(svg, scene, loads, at),
        None => 0.0,
    })
}

/// Title, lines of text, body, legend, and what `more` adds at a place, of the height it says.
pub(super) fn compose(
    title: &str,
    lines: &[String],
    sheet: &Sheet,
    more: impl FnOnce(&mut Svg, Point) -> f64,
) -> String {
    let width = (sheet.size.0 + 2.0 * MARGIN).clamp(WIDTH_MIN, WIDTH_MAX);
    let room = width - 2.0 * MARGIN;
    let mut svg = Svg::new();
    let mut y = MARGIN + 4.0;
    let bold = format!(r#"class="title" font-weight="bold" fill="{INK}""#);
    svg.text((MARGIN, y), TITLE, &bold, &fit(title, room, TITLE));
    y += 6.0;
    for line in lines {
        y += 20.0;
        let attributes = format!(r#"fill="{GREY}""#);
        svg.text((MARGIN, y), TEXT, &attributes, &fit(line, room, TEXT));
    }
    y += 24.0;
    svg.put(((width - sheet.size.0) / 2.0, y), &sheet.body);
    y += sheet.size.1 + 24.0;
    y = legend(&mut svg, &sheet.legend, y, room);
    y += more(&mut svg, (MARGIN, y));
    svg.document(width, y + MARGIN - 8.0)
}

/// Writes the entries from left to right, and gives the height below them.
fn legend(svg: &mut Svg, entries: &[Entry], top: f64, room: f64) -> f64 {
    let (mut x, mut y) = (0.0, top);
    for entry in entries {
        if x > 0.0 && x + entry.width() > room {
            x = 0.0;
            y += LINE;
        }
        svg.put((MARGIN + x, y), &entry.sample);
        let at = (MARGIN + x + SAMPLE.0 + 6.0, y + SAMPLE.1 / 2.0);
        let cut = fit(&entry.text, room - SAMPLE.0 - 6.0, TEXT);
        svg.text(at, TEXT, &format!(r#"fill="{INK}""#), &cut);
        x += entry.width();
    }
    if entries.is_empty() {
        y
    } else {
        y + LINE + 4.0
    }
}

/// What the fills, borders and crosses of nodes mean.
fn common_entries(scene: &Scene<'_>) -> Vec<Entry> {
    let mut entries = Vec::new();
    let hot = scene.heat.is_some();
    let colour = |colour: &str, text: &str| {
        let attributes = if hot {
            format!(r##"fill="#ffffff" stroke="{colour}" stroke-width="4""##)
        } else {
            format!(r#"fill="{colour}" stroke="{EDGE}""#)
        };
        Entry::node(&attributes, text)
    };
    if scene.first.is_some() {
        entries.push(colour(FIRST, &first_name(scene)));
    }
    if let (Some(first), Some(second)) = (&scene.first, &scene.second) {
        entries.push(colour(SECOND, "second quorum"));
        if first.intersects(second) {
            entries.push(colour(BOTH, "in both: where they meet"));
        }
    } else if scene.second.is_some() {
        entries.push(colour(SECOND, "second quorum"));
    }
    if let Some(site) = scene.site {
        let border = if hot { OWNER_HOT } else { OWNER };
        let attributes = format!(r##"fill="#ffffff" stroke="{border}" stroke-width="3""##);
        entries.push(Entry::node(
            &attributes,
            format!("site {}", scene.name(site)),
        ));
    }
    let others = (0..scene.nodes).any(|node| !scene.in_first(node) && !scene.in_second(node));
    if !hot && others {
        let shown = scene.first.is_some() || scene.second.is_some();
        let text = if shown { "other node" } else { "node" };
        entries.push(colour(PLAIN, text));
    }
    if !scene.dead.is_empty() {
        let mut sample = Svg::new();
        let attributes = format!(r#"fill="none" stroke="{DEAD}" stroke-width="2.5""#);
        let (w, h) = SAMPLE;
        sample.cross((w / 2.0, h / 2.0), (h - 5.0, h - 5.0), &attributes);
        entries.push(Entry::new(sample, "down"));
    }
    if !scene.spare.is_empty() {
        let attributes = format!(r#"fill="{PLAIN}" stroke="{EDGE}" stroke-dasharray="3 2""#);
        let text = match scene.built.shape {
            Shape::Surficial(_) => "spare: on no line, only in fallback quorums",
            _ => "spare: in no quorum",
        };
        entries.push(Entry::node(&attributes, text));
    }
    if scene.has_votes {
        let mut sample = Svg::new();
        let attributes = format!(r#"text-anchor="middle" fill="{INK}""#);
        let (w, h) = SAMPLE;
        sample.text((w / 2.0, h / 2.0), 11.0, &attributes, "x2");
        entries.push(Entry::new(sample, "votes of the node"));
    }
    entries
}

fn first_name(scene: &Scene<'_>) -> String {
    let quorum = match (&scene.built.system, scene.group) {
        (System::Groups(_), Some(group)) if scene.found => {
            format!("quorum of group {}", scene.group_name(group))
        }
        (System::Groups(_), None) if scene.found => "exclusive quorum".to_owned(),
        _ => "quorum".to_owned(),
    };
    match scene.site {
        Some(site) if scene.own && quorum == "quorum" => {
            format!("quorum of site {}", scene.name(site))
        }
        Some(site) if scene.in_first(site) => {
            format!("{quorum} with site {}", scene.name(site))
        }
        _ => quorum,
    }
}

/// One sentence on the system.
fn summary(scene: &Scene<'_>) -> String {
    let count = |count: usize, what: &str| {
        let plural = if count == 1 { "" } else { "s" };
        format!("{count} {what}{plural}")
    };
    let nodes = count(scene.nodes, "node");
    let families = scene.built.system.families();
    let sizes = families
        .iter()
        .map(|family| family.primary().unwrap_or(family.as_ref()).sizes())
        .reduce(|a, b| crate::Sizes {
            min: a.min.min(b.min),
            max: a.max.max(b.max),
            exact: a.exact && b.exact,
        });
    let groups = match families.len() {
        1 => String::new(),
        many => format!(", {many} groups"),
    };
    match sizes {
        None => nodes,
        Some(sizes) if !sizes.exact => {
            format!("{nodes}{groups}, quorums of {} nodes or more", sizes.min)
        }
        Some(sizes) if sizes.min == sizes.max => {
            format!("{nodes}{groups}, quorums of {}", count(sizes.min, "node"))
        }
        Some(sizes) => {
            let (min, max) = (sizes.min, sizes.max);
            format!("{nodes}{groups}, quorums of {min} to {max} nodes")
        }
    }
}

/// The quorum shown.
fn shown(scene: &Scene<'_>) -> Option<String> {
    let first = scene.first.as_ref()?;
    let mut name = first_name(scene);
    name[..1].make_ascii_uppercase();
    Some(set_line(scene, &name, first))
}

fn second_shown(scene: &Scene<'_>) -> Option<String> {
    let second = scene.second.as_ref()?;
    Some(set_line(scene, "Second quorum", second))
}

/// Where the two quorums meet.
fn meeting(scene: &Scene<'_>) -> Option<String> {
    let common = scene.first.as_ref()?.intersection(scene.second.as_ref()?);
    Some(if common.is_empty() {
        "They share no node.".to_owned()
    } else {
        set_line(scene, "They share", &common).replacen(',', "", 1)
    })
}

fn set_line(scene: &Scene<'_>, name: &str, set: &NodeSet) -> String {
    let plural = if set.len() == 1 { "" } else { "s" };
    format!("{name}, {} node{plural}: {}", set.len(), scene.names(set))
}

/// The colours of loads with their numbers. Gives its height.
fn colour_bar(svg: &mut Svg, scene: &Scene<'_>, loads: &[f64], at: Point) -> f64 {
    let (left, width, steps) = (at.0 + 60.0, 240.0, 60);
    let y = at.1 + 10.0;
    let ink = format!(r#"fill="{INK}""#);
    svg.text((at.0, y), TEXT, &ink, "load");
    for step in 0..steps {
        let share = (f64::from(step) + 0.5) / f64::from(steps);
        let (colour, _) = palette::heat(share);
        let each = width / f64::from(steps);
        let x = left + (f64::from(step) + 0.5) * each;
        let attributes = format!(r#"fill="{colour}""#);
        svg.rect((x, y), (each + 0.3, 16.0), 0.0, &attributes);
    }
    let outline = format!(r#"fill="none" stroke="{EDGE}""#);
    svg.rect((left + width / 2.0, y), (width, 16.0), 0.0, &outline);
    let middle = format!(r#"text-anchor="middle" fill="{INK}""#);
    for share in [0.0, 0.5, 1.0] {
        let number = load_text(share * scene.hottest);
        svg.text((left + share * width, y + 18.0), 12.0, &middle, &number);
    }
    let mean = loads.iter().sum::<f64>() / loads.len().max(1) as f64;
    let busiest = loads.iter().position(|load| *load == scene.hottest);
    let busiest = busiest.map_or_else(String::new, |node| {
        let alike = loads.iter().filter(|load| **load >= 0.999 * scene.hottest);
        match alike.count() {
            count if count == loads.len() => "all nodes alike".to_owned(),
            1 => format!("busiest: node {}", scene.name(node)),
            count => format!("busiest: {count} nodes, such as {}", scene.name(node)),
        }
    });
    let text = format!(
        "{busiest}, {}; mean {}",
        load_text(scene.hottest),
        load_text(mean)
    );
    svg.text((at.0, y + 42.0), TEXT, &ink, &text);
    62.0
}
