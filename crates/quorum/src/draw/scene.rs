//! What a picture shows, checked, and how a node looks in it.

use crate::build::{Built, Shape};
use crate::text::{self, Spec};
use crate::{Family, NodeSet};

use super::palette::{self, BOTH, DEAD, DOWN, EDGE, FIRST, INK, OWNER, OWNER_HOT, PLAIN, SECOND};
use super::svg::{Point, Svg, fit, num, text_width};
use super::{ANTIPODAL_MAX, DrawError, DrawOptions};

/// A system and what to show of it.
pub(super) struct Scene<'a> {
    pub(super) built: &'a Built,
    pub(super) nodes: usize,
    pub(super) site: Option<usize>,
    /// The quorum shown, and whether the construction assigns it to `site`.
    pub(super) first: Option<NodeSet>,
    pub(super) own: bool,
    /// Whether the quorum was found for the site.
    pub(super) found: bool,
    pub(super) second: Option<NodeSet>,
    pub(super) dead: NodeSet,
    pub(super) heat: Option<&'a [f64]>,
    /// The largest load.
    pub(super) hottest: f64,
    pub(super) group: Option<usize>,
    pub(super) antipodal: usize,
    pub(super) title: &'a str,
    /// Nodes that no quorum has.
    pub(super) spare: NodeSet,
    labels: Option<Vec<String>>,
    /// A second line inside each node.
    notes: Option<Vec<String>>,
    /// Whether that line tells votes.
    pub(super) has_votes: bool,
}

/// Where a node stands: the middle and the size of its box.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    pub(super) at: Point,
    pub(super) size: Point,
    /// Whether the box has round ends.
    pub(super) round: bool,
}

impl Spot {
    pub(super) fn square(at: Point, size: Point) -> Self {
        Self {
            at,
            size,
            round: false,
        }
    }

    pub(super) fn round(at: Point, size: Point) -> Self {
        Self {
            at,
            size,
            round: true,
        }
    }

    fn corner(&self) -> f64 {
        if self.round {
            self.size.0.min(self.size.1) / 2.0
        } else {
            (self.size.0.min(self.size.1) / 8.0).min(4.0)
        }
    }
}

/// How a label is written.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lettering {
    /// In light italics.
    pub(super) light: bool,
    /// On a plate of the node's colour, because a line runs below.
    pub(super) plate: bool,
}

/// How a node is painted.
pub(super) struct Look {
    pub(super) fill: String,
    pub(super) stroke: &'static str,
    pub(super) width: f64,
    pub(super) dash: bool,
    pub(super) ink: &'static str,
}

impl Look {
    pub(super) fn attributes(&self) -> String {
        let dash = if self.dash {
            r#" stroke-dasharray="3 2""#
        } else {
            ""
        };
        format!(
            r#"fill="{}" stroke="{}" stroke-width="{}"{dash}"#,
            self.fill,
            self.stroke,
            num(self.width)
        )
    }
}

impl<'a> Scene<'a> {
    /// Checks the options against the system and finds the quorum that they ask for.
    pub(super) fn new(built: &'a Built, options: &'a DrawOptions) -> Result<Self, DrawError> {
        let nodes = built.system.nodes();
        let family = chosen_family(built, options.group)?;
        check_set("quorum", options.quorum.as_ref(), nodes)?;
        check_set("second quorum", options.second.as_ref(), nodes)?;
        if !options.dead.is_empty() {
            check_set("set of nodes that are down", Some(&options.dead), nodes)?;
        }
        let loads = options.heat.as_deref();
        check_loads(loads, nodes)?;
        let (first, own) = match (&options.quorum, options.site) {
            (Some(quorum), _) => (Some(quorum.clone()), false),
            (None, Some(site)) => {
                let (quorum, own) = quorum_of(family, site)?;
                (Some(quorum), own)
            }
            (None, None) => (None, false),
        };
        if let Some(site) = options.site {
            check_site(site, nodes)?;
        }
        let notes = notes(built, loads);
        Ok(Self {
            built,
            nodes,
            site: options.site,
            first,
            own,
            found: options.quorum.is_none(),
            second: options.second.clone(),
            dead: NodeSet::of(nodes, options.dead.iter()),
            heat: loads,
            hottest: loads.map_or(0.0, |loads| loads.iter().copied().fold(0.0, f64::max)),
            group: options.group,
            antipodal: options.antipodal.min(ANTIPODAL_MAX),
            title: options.title.as_deref().unwrap_or(&built.text),
            spare: spares(built),
            labels: options.labels.then(|| labels(built)),
            has_votes: loads.is_none() && notes.is_some(),
            notes,
        })
    }

    /// The node's name, or its number from 1.
    pub(super) fn name(&self, node: usize) -> String {
        let name = self.built.names.as_ref().and_then(|names| names.get(node));
        name.cloned().unwrap_or_else(|| (node + 1).to_string())
    }

    /// The names of some nodes, with commas.
    pub(super) fn names(&self, set: &NodeSet) -> String {
        let names: Vec<String> = set.iter().map(|node| self.name(node)).collect();
        names.join(", ")
    }

    /// The name of a group, or its number from 1.
    pub(super) fn group_name(&self, group: usize) -> String {
        let names = self.built.groups.as_ref();
        let name = names.and_then(|names| names.get(group));
        name.cloned().unwrap_or_else(|| (group + 1).to_string())
    }

    pub(super) fn in_first(&self, node: usize) -> bool {
        self.first.as_ref().is_some_and(|set| set.contains(node))
    }

    pub(super) fn in_second(&self, node: usize) -> bool {
        self.second.as_ref().is_some_and(|set| set.contains(node))
    }

    /// The size of a node's box that shows all that there is to say.
    pub(super) fn ideal(&self) -> Point {
        let lines = |list: &Option<Vec<String>>, size: f64| {
            let lines = list.iter().flatten();
            lines.map(|line| text_width(line, size)).fold(0.0, f64::max)
        };
        let wide = lines(&self.labels, LABEL).max(lines(&self.notes, NOTE));
        let high = if self.notes.is_some() { 42.0 } else { 34.0 };
        ((wide + 10.0).max(high), high)
    }

    /// The size of a node's box where `across` of them stand side by side and `down` one above
    /// the other, in steps that are wider by `gap` each and take at most `room`.
    pub(super) fn cell_in(&self, room: f64, gap: f64, across: usize, down: usize) -> Point {
        let (wide, high) = self.ideal();
        let width = wide.min(room / across.max(1) as f64 - gap);
        let height = high.min(room / down.max(1) as f64 - gap);
        if self.font(width, height).is_some() {
            return (width, height);
        }
        // Without labels boxes are about square; a little length makes thin ones visible.
        let longest = 3.0 * width.min(height);
        (width.min(longest).max(1.0), height.min(longest).max(1.0))
    }

    /// The same with a usual gap, and that gap.
    pub(super) fn cell(&self, across: usize, down: usize) -> (Point, f64) {
        let gap = if across.max(down) > 90 { 0.8 } else { 4.0 };
        (self.cell_in(ROOM, gap, across, down), gap)
    }

    /// Draws a node with its label.
    pub(super) fn node(&self, svg: &mut Svg, node: usize, spot: &Spot) {
        self.shape(svg, node, spot);
        self.label(svg, node, spot);
    }

    /// Draws a node's box.
    pub(super) fn shape(&self, svg: &mut Svg, node: usize, spot: &Spot) {
        let mut class = String::from("node");
        for (applies, word) in [
            (self.in_first(node), " quorum"),
            (self.in_second(node), " second"),
            (self.site == Some(node), " owner"),
            (self.spare.contains(node), " spare"),
        ] {
            if applies {
                class.push_str(word);
            }
        }
        let mut look = self.look(node);
        if spot.size.0.min(spot.size.1) < 10.0 {
            // Borders must not hide the colours of small boxes.
            look.width *= 0.4;
        }
        let attributes = format!(
            r#"class="{class}" data-node="{}" {}"#,
            node + 1,
            look.attributes()
        );
        let hover = match self.heat {
            Some(loads) => format!("{}: load {}", self.name(node), load_text(loads[node])),
            None => self.name(node),
        };
        svg.rect_with_hover(spot.at, spot.size, spot.corner(), &attributes, &hover);
    }

    /// Writes a node's label, and crosses the node out if it is down.
    pub(super) fn label(&self, svg: &mut Svg, node: usize, spot: &Spot) {
        self.label_as(svg, node, spot, Lettering::default());
    }

    /// The same, in another lettering.
    pub(super) fn label_as(&self, svg: &mut Svg, node: usize, spot: &Spot, lettering: Lettering) {
        let dead = self.dead.contains(node);
        if dead {
            let attributes = format!(
                r#"class="dead" data-node="{}" fill="none" stroke="{DEAD}" stroke-width="{}""#,
                node + 1,
                (spot.size.1 / 10.0).clamp(1.0, 3.0)
            );
            let part = if spot.round { 0.68 } else { 0.9 };
            let size = (spot.size.0 * part, spot.size.1 * part);
            svg.cross(spot.at, size, &attributes);
        }
        let Some(size) = self.font(spot.size.0, spot.size.1) else {
            return;
        };
        let look = self.look(node);
        let label = self.labels.as_ref().map(|labels| labels[node].as_str());
        let note = self.notes.as_ref().map(|notes| notes[node].as_str());
        let (x, y) = spot.at;
        let lines: Vec<(f64, f64, &str)> = match (label, note) {
            (Some(label), Some(note)) if spot.size.1 >= 30.0 => {
                vec![(y - 8.0, size, label), (y + 8.0, NOTE, note)]
            }
            (Some(text), _) | (None, Some(text)) => vec![(y, size, text)],
            (None, None) => Vec::new(),
        };
        let italic = if lettering.light {
            r#" font-style="italic" fill-opacity="0.65""#
        } else {
            ""
        };
        for (y, size, text) in lines {
            if dead || lettering.plate {
                let plate = (
                    (text_width(text, size) + 3.0).min(spot.size.0),
                    (size + 2.0).min(spot.size.1),
                );
                let attributes = format!(r#"fill="{}" fill-opacity="0.85""#, look.fill);
                svg.rect((x, y), plate, 3.0, &attributes);
            }
            let attributes = format!(r#"text-anchor="middle" fill="{}"{italic}"#, look.ink);
            svg.text((x, y), size, &attributes, text);
        }
    }

    /// The size of labels in boxes of this size, if they fit.
    pub(super) fn font(&self, width: f64, height: f64) -> Option<f64> {
        if height < 13.0 {
            return None;
        }
        let lists = [&self.labels, &self.notes];
        let longest = |list: &Vec<String>| list.iter().map(|text| text.chars().count()).max();
        let chars = match lists {
            [Some(labels), Some(notes)] if height >= 30.0 => longest(labels).max(longest(notes)),
            [Some(labels), _] => longest(labels),
            [None, Some(notes)] => longest(notes),
            [None, None] => None,
        }? as f64;
        // A little closer than elsewhere: a digit is narrower than most letters.
        [LABEL, NOTE]
            .into_iter()
            .find(|size| chars * size * 0.58 + 3.0 <= width)
    }

    /// How a node is painted.
    pub(super) fn look(&self, node: usize) -> Look {
        let colour = match (self.in_first(node), self.in_second(node)) {
            (true, true) => Some(BOTH),
            (true, false) => Some(FIRST),
            (false, true) => Some(SECOND),
            (false, false) => None,
        };
        let owner = self.site == Some(node);
        let dash = self.spare.contains(node);
        let (fill, ink) = match (self.heat, colour) {
            (Some(loads), _) => palette::heat(self.share(loads[node])),
            (None, Some(BOTH)) => (BOTH.to_owned(), "#ffffff"),
            (None, Some(colour)) => (colour.to_owned(), "#000000"),
            (None, None) if self.dead.contains(node) => (DOWN.to_owned(), INK),
            (None, None) => (PLAIN.to_owned(), INK),
        };
        let (stroke, width) = match (owner, self.heat, colour) {
            (true, None, _) => (OWNER, 3.0),
            (true, Some(_), _) => (OWNER_HOT, 4.0),
            (false, Some(_), Some(colour)) => (colour, 4.0),
            _ => (EDGE, 1.0),
        };
        Look {
            fill,
            stroke,
            width,
            dash,
            ink,
        }
    }

    /// A load as a share of the largest.
    pub(super) fn share(&self, load: f64) -> f64 {
        if self.hottest > 0.0 {
            load / self.hottest
        } else {
            0.0
        }
    }
}

/// A load, to three digits.
pub(super) fn load_text(load: f64) -> String {
    if load >= 100.0 {
        format!("{load:.0}")
    } else if load == 0.0 || load >= 0.095 {
        format!("{load:.2}")
    } else if load >= 0.001 {
        format!("{load:.3}")
    } else {
        format!("{load:.0e}")
    }
}

/// The width and height that boxes side by side may take.
pub(super) const ROOM: f64 = 1280.0;
const LABEL: f64 = 12.0;
const NOTE: f64 = 11.0;
/// Names are cut at this width.
const NAME_WIDTH: f64 = 96.0;

fn chosen_family(built: &Built, group: Option<usize>) -> Result<&dyn Family, DrawError> {
    let family = built.system.family(group);
    family.map(AsRef::as_ref).ok_or_else(|| DrawError::NoGroup {
        group: group.map_or(0, |group| group.saturating_add(1)),
        groups: match &built.system {
            crate::System::Groups(groups) => groups.cartels().len(),
            _ => 0,
        },
    })
}

fn check_set(what: &'static str, set: Option<&NodeSet>, nodes: usize) -> Result<(), DrawError> {
    match set {
        Some(set) if set.capacity() != nodes => Err(DrawError::Capacity {
            what,
            given: set.capacity(),
            nodes,
        }),
        _ => Ok(()),
    }
}

fn check_site(site: usize, nodes: usize) -> Result<(), DrawError> {
    if site >= nodes {
        return Err(DrawError::NoSite {
            site: site.saturating_add(1),
            nodes,
        });
    }
    Ok(())
}

fn check_loads(loads: Option<&[f64]>, nodes: usize) -> Result<(), DrawError> {
    let Some(loads) = loads else {
        return Ok(());
    };
    if loads.len() != nodes {
        return Err(DrawError::Capacity {
            what: "list of loads",
            given: loads.len(),
            nodes,
        });
    }
    match loads
        .iter()
        .position(|load| !load.is_finite() || *load < 0.0)
    {
        Some(node) => Err(DrawError::Load {
            node: node + 1,
            value: loads[node],
        }),
        None => Ok(()),
    }
}

/// The quorum that the family assigns to the site and `true`, or a smallest one with it.
fn quorum_of(family: &dyn Family, site: usize) -> Result<(NodeSet, bool), DrawError> {
    check_site(site, family.nodes())?;
    if let Some(own) = family.own(site) {
        return Ok((own, true));
    }
    let mut cost = vec![1.0; family.nodes()];
    cost[site] = 0.0;
    family
        .cheapest(&cost)
        .filter(|quorum| quorum.contains(site))
        .map(|quorum| (quorum, false))
        .ok_or(DrawError::NoOwn { site: site + 1 })
}

fn labels(built: &Built) -> Vec<String> {
    let names = built.names.as_deref().unwrap_or_default();
    (0..built.system.nodes())
        .map(|node| match names.get(node) {
            Some(name) => fit(name, NAME_WIDTH, LABEL),
            None => (node + 1).to_string(),
        })
        .collect()
}

/// The second line of each node: its load, or its votes where the text gives nodes votes.
fn notes(built: &Built, loads: Option<&[f64]>) -> Option<Vec<String>> {
    if let Some(loads) = loads {
        return Some(loads.iter().map(|load| load_text(*load)).collect());
    }
    match text::parse(&built.text) {
        Ok(Spec::Weighted { weights, .. }) if weights.len() == built.system.nodes() => {
            Some(weights.iter().map(|votes| format!("x{votes}")).collect())
        }
        _ => None,
    }
}

/// The nodes that the shape leaves out.
fn spares(built: &Built) -> NodeSet {
    let nodes = built.system.nodes();
    let used = match &built.shape {
        Shape::Billiard(billiard) => billiard.board().nodes(),
        Shape::Mgrid(grid) => grid.side() * grid.side(),
        Shape::Surficial(surficial) => surficial.spares().start,
        // A node with one child is a leaf to the quorums: the child is in none.
        Shape::Tree(nodes) if nodes.is_multiple_of(2) => nodes - 1,
        _ => nodes,
    };
    NodeSet::of(nodes, used.min(nodes)..nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_keep_their_digits() {
        assert_eq!(load_text(0.0), "0.00");
        assert_eq!(load_text(0.375), "0.38");
        assert_eq!(load_text(0.0312), "0.031");
        assert_eq!(load_text(0.00002), "2e-5");
        assert_eq!(load_text(1234.0), "1234");
    }
}
