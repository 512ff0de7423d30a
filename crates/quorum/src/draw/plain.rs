//! Systems without a shape: nodes on a circle, or in rows if there are many.

use std::f64::consts::TAU;

use super::frame::{Entry, Sheet};
use super::palette::{FIRST, FIRST_DARK, SECOND};
use super::scene::{ROOM, Scene, Spot};
use super::svg::Point;

/// Up to this many nodes stand on a circle.
const CIRCLE_MAX: usize = 24;

/// Draws the nodes.
pub(super) fn draw(scene: &Scene<'_>) -> Sheet {
    if scene.nodes <= CIRCLE_MAX {
        circle(scene)
    } else {
        rows(scene)
    }
}

fn circle(scene: &Scene<'_>) -> Sheet {
    let (wide, high) = scene.ideal();
    let spread = |gap: f64| (wide + gap) * scene.nodes as f64 / TAU;
    let radius = if scene.nodes == 1 {
        0.0
    } else {
        spread(14.0).max(70.0)
    };
    let centre = (radius + wide / 2.0 + 4.0, radius + high / 2.0 + 4.0);
    let place = |node: usize| -> Point {
        let turn = TAU * node as f64 / scene.nodes as f64;
        let (x, y) = (radius * turn.sin(), -radius * turn.cos());
        (centre.0 + x, centre.1 + y)
    };
    let mut sheet = Sheet {
        size: (2.0 * centre.0, 2.0 * centre.1),
        ..Sheet::default()
    };
    let sets = [
        (scene.second.as_ref(), SECOND, SECOND),
        (scene.first.as_ref(), FIRST, FIRST_DARK),
    ];
    for (set, fill, stroke) in sets {
        let Some(set) = set.filter(|set| set.len() > 1) else {
            continue;
        };
        let corners: Vec<Point> = set.iter().map(place).collect();
        let attributes = format!(
            "fill=\"{fill}\" fill-opacity=\"0.15\" stroke=\"{stroke}\" stroke-opacity=\"0.6\" \
             stroke-width=\"1.5\""
        );
        sheet.body.polygon(&corners, &attributes);
        if scene.first.as_ref() == Some(set) {
            let text = "the members of a quorum, joined";
            sheet.legend.push(Entry::node(&attributes, text));
        }
    }
    for node in 0..scene.nodes {
        let spot = Spot::round(place(node), (wide, high));
        scene.node(&mut sheet.body, node, &spot);
    }
    sheet
}

fn rows(scene: &Scene<'_>) -> Sheet {
    let (wide, high) = scene.ideal();
    let most = (ROOM / (wide + 6.0)) as usize;
    // About square, with round tens per row where that fits.
    let square = (scene.nodes as f64 * high / wide).sqrt().ceil() as usize;
    let per_row = square.div_ceil(10).max(1) * 10;
    let per_row = per_row.min(most.max(1));
    let lines = scene.nodes.div_ceil(per_row);
    let mut sheet = Sheet {
        size: (
            per_row.min(scene.nodes) as f64 * (wide + 6.0),
            lines as f64 * (high + 6.0),
        ),
        ..Sheet::default()
    };
    for node in 0..scene.nodes {
        let x = ((node % per_row) as f64 + 0.5) * (wide + 6.0);
        let y = ((node / per_row) as f64 + 0.5) * (high + 6.0);
        let spot = Spot::round((x, y), (wide, high));
        scene.node(&mut sheet.body, node, &spot);
    }
    sheet
}
