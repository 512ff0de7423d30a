//! `conclave quorum draw`.

use std::path::{Path, PathBuf};

use clap::Args;
use conclave_quorum::build::Built;
use conclave_quorum::draw::{DrawOptions, draw};
use conclave_quorum::measure::load::load;
use conclave_quorum::{NodeSet, Prng, pick};

use super::Target;
use crate::cli::Failure;
use crate::output::{self, Progress};
use crate::png;

#[derive(Debug, Args)]
pub(crate) struct Draw {
    #[command(flatten)]
    target: Target,
    /// Draw the quorum of this site
    #[arg(long, value_name = "NODE")]
    site: Option<usize>,
    /// Draw a second quorum, of this site, and where the two meet
    #[arg(long, value_name = "NODE", requires = "site")]
    with: Option<usize>,
    /// Nodes that are down, for example 3,17: crossed out, and the quorum avoids them
    #[arg(long, value_name = "NODES", value_delimiter = ',')]
    avoid: Vec<usize>,
    /// The group (cartel), from 1
    #[arg(long, value_name = "GROUP")]
    group: Option<usize>,
    /// Colour the nodes by their load under the best strategy
    #[arg(long)]
    heat: bool,
    /// Draw so many further antipodal paths of a billiard board, faintly
    #[arg(long, value_name = "N", default_value_t = 0)]
    antipodal: usize,
    /// The seed of the pick
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The file to write: .svg or .png
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Pixels to the unit, for PNG
    #[arg(long, default_value_t = 2.0)]
    scale: f32,
}

impl Draw {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        check_path(&self.output)?;
        if !(0.1..=20.0).contains(&self.scale) {
            return Err(Failure::input("--scale takes a number from 0.1 to 20"));
        }
        let built = self.target.build()?;
        let options = self.options(&built)?;
        let picture = draw(&built, &options).map_err(Failure::input)?;
        write_scaled(&self.output, &picture, self.scale)?;
        output::line(format!("drawn into {}", self.output.display()))
    }

    fn options(&self, built: &Built) -> Result<DrawOptions, Failure> {
        let nodes = built.system.nodes();
        let dead = super::node_set(&self.avoid, nodes)?;
        let group = super::cartel(self.group, built)?;
        let family = built
            .system
            .family(group)
            .ok_or_else(|| Failure::input("the system has no such group"))?;
        let own = |site: usize| -> Result<NodeSet, Failure> {
            let site = super::node(site, nodes)?;
            family.own(site).ok_or_else(|| {
                Failure::Input(format!(
                    "'{}' assigns no quorum to site {}",
                    built.text,
                    site + 1
                ))
            })
        };
        let mut options = DrawOptions {
            dead: dead.clone(),
            group,
            antipodal: self.antipodal,
            ..DrawOptions::default()
        };
        if let Some(site) = self.site {
            own(site)?;
            options.site = Some(super::node(site, nodes)?);
            options.second = self.with.map(own).transpose()?;
        } else if !self.heat {
            let mut prng = Prng::new(self.seed);
            options.quorum = pick(family.as_ref(), &dead, None, &mut prng);
        }
        if self.heat {
            let progress = Progress::new("load");
            let found = load(family.as_ref(), None, &mut super::tell(&progress));
            options.heat = Some(found.loads);
        }
        Ok(options)
    }
}

/// Refuses a path that is neither SVG nor PNG, before the work is done.
pub(crate) fn check_path(path: &Path) -> Result<(), Failure> {
    match extension(path).as_deref() {
        Some("svg" | "png") => Ok(()),
        _ => Err(Failure::Input(format!(
            "'{}' is neither .svg nor .png: name the file accordingly",
            path.display()
        ))),
    }
}

fn extension(path: &Path) -> Option<String> {
    Some(path.extension()?.to_str()?.to_ascii_lowercase())
}

/// Writes a picture in the format that the file's name asks for.
pub(crate) fn write(path: &Path, svg: &str) -> Result<(), Failure> {
    write_scaled(path, svg, 2.0)
}

fn write_scaled(path: &Path, svg: &str, scale: f32) -> Result<(), Failure> {
    let bytes = match extension(path).as_deref() {
        Some("png") => png::render(svg, scale).map_err(Failure::Input)?,
        _ => svg.as_bytes().to_vec(),
    };
    std::fs::write(path, bytes)
        .map_err(|error| Failure::Input(format!("file '{}': {error}", path.display())))
}
