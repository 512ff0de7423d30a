//! Drawings as SVG: systems with their quorums, node loads, and availability curves.
//!
//! Every picture has a title line and a legend that explains each mark, a white ground, colours
//! that colour-blind people can tell apart, and nodes counted from 1. Text is sans-serif. Nothing
//! is read or written: a picture is a function of its arguments, and the same arguments give the
//! same bytes.
//!
//! Marks carry `data-node` (from 1) and a class (`node`, with `quorum`, `second`, `owner` or
//! `spare` where these apply; `dead` for the cross of a node that is down), for whoever wants to
//! find them again.

mod billiard;
mod curves;
mod frame;
mod grids;
mod hgrid;
mod multilevel;
mod palette;
mod panels;
mod plain;
mod plane;
mod scene;
mod surficial;
mod svg;
mod trees;
mod walls;

use thiserror::Error;

use crate::NodeSet;
use crate::build::{Built, Shape};

pub use curves::{CurveOptions, CurvePoint, Scale, Series, curves};
pub use panels::{Axis, Bar, Chart, Panel, Trace, panels};

use scene::Scene;

/// What to show of a system, besides its shape.
#[derive(Clone, Debug, PartialEq)]
pub struct DrawOptions {
    /// The site (from 0) whose own quorum to show. Where the construction assigns none, a
    /// smallest quorum with this site is shown.
    pub site: Option<usize>,
    /// The quorum, or any other set, to show; it takes the place of the site's own.
    pub quorum: Option<NodeSet>,
    /// Another quorum, to see where the two meet.
    pub second: Option<NodeSet>,
    /// The nodes that are down, crossed out. Without a member, its capacity does not matter.
    pub dead: NodeSet,
    /// The load of each node, shown as colour and number.
    pub heat: Option<Vec<f64>>,
    /// The cartel (from 0) of a group system that the quorum is taken from.
    pub group: Option<usize>,
    /// How many further antipodal paths a billiard board shows, faintly; at most
    /// [`ANTIPODAL_MAX`].
    pub antipodal: usize,
    /// Whether nodes show their numbers or names, where these fit.
    pub labels: bool,
    /// The title; the system's text by default.
    pub title: Option<String>,
}

impl Default for DrawOptions {
    fn default() -> Self {
        Self {
            site: None,
            quorum: None,
            second: None,
            dead: NodeSet::new(0),
            heat: None,
            group: None,
            antipodal: 0,
            labels: true,
            title: None,
        }
    }
}

/// Why there is no picture.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum DrawError {
    /// More than a picture can show.
    #[error(
        "{count} {what} are too many for a picture, which shows at most {limit}: draw a smaller \
         system of the same form"
    )]
    TooMany {
        /// What there are too many of.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many can be shown.
        limit: usize,
    },
    /// A set or list is for another number of nodes.
    #[error("the {what} is for {given} nodes, but the system has {nodes}: give one for {nodes}")]
    Capacity {
        /// Which argument.
        what: &'static str,
        /// The nodes it is for.
        given: usize,
        /// The nodes of the system.
        nodes: usize,
    },
    /// A load that is no load.
    #[error("the load of node {node} is {value}: give a number from 0 on")]
    Load {
        /// The node, from 1.
        node: usize,
        /// The value given.
        value: f64,
    },
    /// There is no such site.
    #[error("there is no site {site}: give a site from 1 to {nodes}")]
    NoSite {
        /// The site asked for, from 1.
        site: usize,
        /// How many there are.
        nodes: usize,
    },
    /// No quorum has the site.
    #[error("site {site} is in no quorum of this family: give another site, or the quorum to show")]
    NoOwn {
        /// The site, from 1.
        site: usize,
    },
    /// There is no such group.
    #[error("there is no group {group}: the system has {groups} groups; give one of them, or none")]
    NoGroup {
        /// The group asked for, from 1.
        group: usize,
        /// How many there are.
        groups: usize,
    },
}

/// The most nodes that a picture shows; some shapes show fewer.
pub const NODES_MAX: usize = 2_000;

/// The most further antipodal paths that a billiard board shows.
pub const ANTIPODAL_MAX: usize = 50;

/// Draws a system.
pub fn draw(built: &Built, options: &DrawOptions) -> Result<String, DrawError> {
    limit("nodes", built.system.nodes(), NODES_MAX)?;
    let scene = Scene::new(built, options)?;
    let sheet = match &built.shape {
        Shape::Billiard(billiard) => Ok(billiard::draw(&scene, billiard)),
        Shape::Grid(grid) => grids::grid(&scene, grid),
        Shape::Mgrid(grid) => grids::mgrid(&scene, grid),
        Shape::Hgrid(grid) => hgrid::draw(&scene, grid),
        Shape::Tree(nodes) => trees::binary(&scene, *nodes),
        Shape::Hierarchical(branches) => trees::hierarchical(&scene, branches),
        Shape::Walls(walls) => walls::draw(&scene, walls),
        Shape::Plane(plane) => plane::draw(&scene, plane),
        Shape::Surficial(surficial) => surficial::draw(&scene, surficial),
        Shape::Multilevel(multilevel) => multilevel::draw(&scene, multilevel),
        Shape::Plain => Ok(plain::draw(&scene)),
    }?;
    Ok(frame::finish(&scene, sheet))
}

/// Draws a system with its nodes coloured by load.
pub fn heat_map(built: &Built, loads: &[f64], title: Option<String>) -> Result<String, DrawError> {
    let options = DrawOptions {
        heat: Some(loads.to_vec()),
        title,
        ..DrawOptions::default()
    };
    draw(built, &options)
}

/// Refuses what a picture cannot show.
fn limit(what: &'static str, count: usize, limit: usize) -> Result<(), DrawError> {
    if count > limit {
        return Err(DrawError::TooMany { what, count, limit });
    }
    Ok(())
}
