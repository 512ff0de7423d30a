//! `conclave quorum compare`.

use std::path::PathBuf;

use clap::Args;
use conclave_quorum::analyze::{Analysis, Inputs, analyze};
use conclave_quorum::build::Built;
use conclave_quorum::draw::{CurveOptions, CurvePoint, Series, curves};
use conclave_quorum::measure::failure::{Failure as Chance, curve};
use serde_json::{Value, json};

use super::analyze::{failure_json, measures_json};
use super::inputs::{Effort, Range};
use crate::cli::Failure;
use crate::output::{self, Progress, number, span};

#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// The systems, for example 'majority(25)' 'grid(25)'
    #[arg(required = true, num_args = 1..=12)]
    systems: Vec<String>,
    /// The cluster's size, for forms that do not name one
    #[arg(long, value_name = "N")]
    nodes: Option<usize>,
    /// The probability that a node is down: one, or a range A..B
    #[arg(long, value_name = "P|A..B", default_value = "0.01..0.3")]
    down: Range,
    /// The probability that a node is up: the same as --down 1-B..1-A
    #[arg(long, value_name = "P|A..B", conflicts_with = "down")]
    up: Option<Range>,
    /// How many probabilities of the range are computed
    #[arg(long, value_name = "N", default_value_t = 30)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=500))]
    points: u16,
    /// Draw the curves into this file, SVG or PNG by its name
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    effort: Effort,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One system with its measures and its failure probability over p.
struct Compared {
    built: Built,
    analysis: Analysis,
    curve: Vec<Chance>,
}

impl Compare {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        if let Some(path) = &self.plot {
            super::draw::check_path(path)?;
        }
        let probabilities = self.probabilities();
        let mut compared = Vec::new();
        let progress = Progress::new("comparing");
        for text in &self.systems {
            let built = super::system(text, self.nodes)?;
            compared.push(self.measure(built, &probabilities, &progress)?);
        }
        drop(progress);
        if let Some(path) = &self.plot {
            let series: Vec<Series> = compared
                .iter()
                .map(|one| one.series(&probabilities))
                .collect();
            let picture = curves(&series, &CurveOptions::default());
            super::draw::write(path, &picture)?;
        }
        if self.json {
            let listed: Vec<Value> = compared
                .iter()
                .map(|one| one.as_json(&probabilities))
                .collect();
            output::json(&json!({ "systems": listed }))?;
        } else {
            print(&compared, &probabilities)?;
        }
        if let (Some(path), false) = (&self.plot, self.json) {
            output::line(format!("\ncurves drawn into {}", path.display()))?;
        }
        Ok(())
    }

    fn probabilities(&self) -> Vec<f64> {
        let Range { from, to } = match self.up {
            Some(up) => Range {
                from: 1.0 - up.to,
                to: 1.0 - up.from,
            },
            None => self.down,
        };
        let steps = if from == to {
            0
        } else {
            self.points.max(2) - 1
        };
        let step = (to - from) / f64::from(steps.max(1));
        (0..=steps)
            .map(|i| (from + f64::from(i) * step).clamp(0.0, 1.0))
            .collect()
    }

    fn measure(&self, built: Built, ps: &[f64], progress: &Progress) -> Result<Compared, Failure> {
        let mut tell = super::tell(progress);
        let analysis = analyze(&built, &Inputs::default(), &mut tell).map_err(Failure::input)?;
        let options = self.effort.options()?;
        let mut worst: Vec<Chance> = Vec::new();
        // Of a group system the worst cartel counts.
        for (place, family) in built.system.families().into_iter().enumerate() {
            let points = curve(family.as_ref(), ps, &options, &mut tell).map_err(Failure::input)?;
            if place == 0 {
                worst = points;
                continue;
            }
            for (worst, point) in worst.iter_mut().zip(points) {
                if point.value > worst.value {
                    *worst = point;
                }
            }
        }
        Ok(Compared {
            built,
            analysis,
            curve: worst,
        })
    }
}

impl Compared {
    fn series(&self, probabilities: &[f64]) -> Series {
        let point = |(p, chance): (&f64, &Chance)| CurvePoint {
            p: *p,
            low: chance.low,
            value: chance.value,
            high: chance.high,
        };
        Series {
            name: self.built.text.clone(),
            points: probabilities.iter().zip(&self.curve).map(point).collect(),
            exact: self.curve.iter().all(|chance| chance.exact),
        }
    }

    fn as_json(&self, probabilities: &[f64]) -> Value {
        let points = probabilities.iter().zip(&self.curve);
        let points = points
            .map(|(p, chance)| json!({ "p": p, "failure_probability": failure_json(chance) }));
        let more = json!({
            "system": self.built.text,
            "n": self.analysis.nodes,
            "kind": self.built.system.kind(),
            "curve": points.collect::<Vec<_>>(),
        });
        output::merged(measures_json(&self.analysis.whole), more)
    }
}

fn print(compared: &[Compared], probabilities: &[f64]) -> Result<(), Failure> {
    let last = probabilities.len() - 1;
    let mut shown = vec![0, last / 2, last];
    shown.dedup();
    let heads: Vec<String> = shown
        .iter()
        .map(|place| format!("FAILS AT p={}", number(probabilities[*place])))
        .collect();
    let mut header = vec!["SYSTEM", "N", "SIZE", "LOAD", "CRASHES", "MESSAGES"];
    header.extend(heads.iter().map(String::as_str));
    let mut table = output::table(&header);
    for one in compared {
        let whole = &one.analysis.whole;
        let exact = if whole.load.exact { "" } else { "~" };
        let mut row = vec![
            one.built.text.clone(),
            one.analysis.nodes.to_string(),
            span(whole.sizes.min, whole.sizes.max),
            format!("{exact}{}", number(whole.load.upper)),
            whole.resilience.value.to_string(),
            number(whole.messages.maekawa_m),
        ];
        row.extend(
            shown
                .iter()
                .map(|place| output::failure(&one.curve[*place])),
        );
        table.add_row(row);
    }
    output::print(&table)?;
    output::line(
        "\nLOAD: of the busiest node under the best strategy (~: an upper bound). CRASHES: any so \
         many leave a quorum.\nMESSAGES: Maekawa_M, uncontended. FAILS: probability that no quorum \
         is left; [low, high] where it was simulated.",
    )
}
