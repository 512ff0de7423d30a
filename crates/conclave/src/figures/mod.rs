//! `conclave sim figures`: every figure and table of the papers, by one command.
//!
//! A [`Figure`](figure::Figure) says where it stands, what it claims, how its table is drawn and
//! how it is judged; a module per paper computes the tables. A table becomes a CSV file, a picture
//! as SVG and PNG, and an entry of `index.html`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::cli::Failure;
use crate::output::{self, Progress};
use crate::quorum::draw;
use figure::{Made, Paper};
pub(crate) use markdown::escape;
pub(crate) use page::framed;
use page::{About, Shown};
use pool::Setting;

mod backoff;
mod billiard;
mod errata;
mod figure;
mod groups;
mod markdown;
mod multilevel;
mod page;
mod pool;
mod table;

#[derive(Debug, Args)]
pub(crate) struct Figures {
    /// Whose figures
    #[arg(value_enum)]
    set: Set,
    /// The directory for the files; made if missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Fewer and smaller runs: a minute in place of many
    #[arg(long)]
    quick: bool,
    /// The seed of all runs
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The figures to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Set {
    /// Those of all four papers
    All,
    /// Hierarchies of clusters: messages, waiting, availability, delay
    Multilevel,
    /// Billiard quorums: boards, sizes, load, availability
    Billiard,
    /// Group mutual exclusion: concurrency, messages, delay
    Groups,
    /// Leases: waits by backoff
    Backoff,
}

impl Set {
    fn papers(self) -> Vec<Paper> {
        match self {
            Self::All => Paper::ALL.to_vec(),
            Self::Multilevel => vec![Paper::Multilevel],
            Self::Billiard => vec![Paper::Billiard],
            Self::Groups => vec![Paper::Groups],
            Self::Backoff => vec![Paper::Backoff],
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Multilevel => Paper::Multilevel.word(),
            Self::Billiard => Paper::Billiard.word(),
            Self::Groups => Paper::Groups.word(),
            Self::Backoff => Paper::Backoff.word(),
        }
    }
}

/// Computes the figures of a paper.
fn make(paper: Paper, setting: &Setting) -> Result<Vec<Made>, Failure> {
    match paper {
        Paper::Multilevel => multilevel::make(setting),
        Paper::Groups => groups::make(setting),
        Paper::Billiard => billiard::make(setting),
        Paper::Backoff => Ok(backoff::make(setting)),
    }
}

impl Figures {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        std::fs::create_dir_all(&self.out).map_err(|error| {
            Failure::Input(format!("directory '{}': {error}", self.out.display()))
        })?;
        let mut setting = Setting {
            quick: self.quick,
            seed: u64::from(self.seed),
            progress: (!self.json).then(|| Progress::new("figures")),
        };
        let mut shown = Vec::new();
        for paper in self.set.papers() {
            for Made { figure, table } in make(paper, &setting)? {
                let svg = (figure.draw)(&table);
                let judgement = (figure.judge)(&table);
                let one = Shown {
                    figure,
                    table,
                    svg,
                    judgement,
                };
                self.write_figure(&one)?;
                shown.push(one);
            }
        }
        setting.progress = None;
        let about = About {
            set: self.set.word(),
            quick: self.quick,
            seed: self.seed,
        };
        self.write("index.html", &page::index(&shown, &about))?;
        self.write("errata.html", &errata::page())?;
        if self.json {
            return output::json(&self.as_json(&shown));
        }
        self.print(&shown)
    }

    fn write_figure(&self, one: &Shown) -> Result<(), Failure> {
        let id = one.figure.id;
        self.write(&format!("{id}.csv"), &one.table.csv())?;
        draw::write(&self.out.join(format!("{id}.svg")), &one.svg)?;
        draw::write(&self.out.join(format!("{id}.png")), &one.svg)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Failure> {
        let path = self.out.join(name);
        std::fs::write(&path, text)
            .map_err(|error| Failure::Input(format!("file '{}': {error}", path.display())))
    }

    fn as_json(&self, shown: &[Shown]) -> Value {
        let one = |one: &Shown| {
            json!({
                "id": one.figure.id,
                "paper": one.figure.paper.word(),
                "place": one.figure.place,
                "title": one.figure.title,
                "claim": one.figure.claim,
                "verdict": one.judgement.verdict.word(),
                "found": one.judgement.found,
                "why": one.judgement.why,
                "rows": one.table.rows.len(),
                "csv": self.out.join(format!("{}.csv", one.figure.id)),
            })
        };
        json!({
            "seed": self.seed,
            "quick": self.quick,
            "index": self.out.join("index.html"),
            "errata": self.out.join("errata.html"),
            "figures": shown.iter().map(one).collect::<Vec<_>>(),
        })
    }

    fn print(&self, shown: &[Shown]) -> Result<(), Failure> {
        let mut table = output::table(&["FIGURE", "PAPER", "WHERE", "SHOWS", "CLAIM"]);
        for one in shown {
            table.add_row([
                one.figure.id.to_owned(),
                one.figure.paper.word().to_owned(),
                one.figure.place.to_owned(),
                one.figure.title.to_owned(),
                one.judgement.verdict.to_string(),
            ]);
        }
        output::print(&table)?;
        output::line(format!(
            "\n{} figures as CSV, SVG and PNG, index.html and errata.html are in {}",
            shown.len(),
            self.out.display()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use figure::Figure;

    /// Every figure there is.
    fn figures() -> Vec<&'static Figure> {
        let mut all = multilevel::figures();
        all.extend(billiard::figures());
        all.extend(groups::figures());
        all.extend(&backoff::FIGURES);
        all
    }

    #[test]
    fn every_figure_has_its_own_name_and_says_what_it_claims() {
        let all = figures();
        for (place, figure) in all.iter().enumerate() {
            let others = &all[..place];
            assert!(
                others.iter().all(|other| other.id != figure.id),
                "{}",
                figure.id
            );
            assert!(figure.id.starts_with(figure.paper.word()), "{}", figure.id);
            assert!(figure.claim.ends_with(['.', '?']), "{}", figure.id);
            assert!(
                !figure.columns.is_empty() && !figure.place.is_empty(),
                "{}",
                figure.id
            );
        }
    }
}
