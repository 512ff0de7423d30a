//! The page that shows all figures with what was claimed and what was found.

use std::fmt::Write as _;

use super::figure::{Figure, Judgement, Paper, Verdict};
use super::markdown::escape;
use super::table::Table;

const STYLE: &str = include_str!("page.css");

/// Longer tables are left to their files.
const ROWS_MAX: usize = 200;

/// A figure as it was drawn and judged.
pub(crate) struct Shown {
    pub(crate) figure: &'static Figure,
    pub(crate) table: Table,
    pub(crate) svg: String,
    pub(crate) judgement: Judgement,
}

/// What a page tells about the run that made it.
pub(crate) struct About {
    /// What was asked for: a paper's word, or all.
    pub(crate) set: &'static str,
    pub(crate) quick: bool,
    pub(crate) seed: u32,
}

impl About {
    /// The command that makes these figures again.
    pub(crate) fn command(&self, set: &str) -> String {
        let quick = if self.quick { " --quick" } else { "" };
        let seed = self.seed;
        format!("conclave sim figures {set}{quick} --seed {seed} --out figures")
    }
}

/// A whole page around its body.
pub(crate) fn framed(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{} - Conclave</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{body}\
         </body>\n</html>\n",
        escape(title)
    )
}

/// The page of all figures.
pub(crate) fn index(shown: &[Shown], about: &About) -> String {
    let mut body = String::new();
    head(&mut body, shown, about);
    contents(&mut body, shown);
    for paper in Paper::ALL {
        let ours: Vec<&Shown> = of(shown, paper).collect();
        if ours.is_empty() {
            continue;
        }
        let _ = writeln!(
            body,
            "<h2 id=\"{}\">{}</h2>\n<p class=\"cite\">{}</p>\n<p class=\"small\">{}</p>",
            paper.word(),
            escape(paper.heading()),
            escape(paper.citation()),
            escape(paper.left_out()),
        );
        for one in ours {
            article(&mut body, one, about);
        }
    }
    framed("The figures of the papers", &body)
}

fn of(shown: &[Shown], paper: Paper) -> impl Iterator<Item = &Shown> {
    shown.iter().filter(move |one| one.figure.paper == paper)
}

fn badge(verdict: Verdict) -> String {
    format!("<span class=\"badge {}\">{verdict}</span>", verdict.word())
}

fn head(body: &mut String, shown: &[Shown], about: &About) {
    let rough = if about.quick {
        " It was a quick run: few and small samples, so that verdicts which rest on small \
         differences may be wrong."
    } else {
        ""
    };
    let _ = writeln!(
        body,
        "<nav class=\"top\"><a href=\"errata.html\">Errata of the papers</a></nav>\n\
         <h1>The figures of the papers</h1>\n\
         <p>What four papers claim, computed and simulated again by Conclave {}, and whether it \
         held. Made by <code>{}</code> with seed {}.{rough}</p>",
        env!("CARGO_PKG_VERSION"),
        escape(&about.command(about.set)),
        about.seed,
    );
    body.push_str("<div class=\"tally\">");
    for verdict in [
        Verdict::Held,
        Verdict::InPart,
        Verdict::NotHeld,
        Verdict::Ours,
    ] {
        let count = shown.iter().filter(|one| one.judgement.verdict == verdict);
        let _ = write!(
            body,
            "<span class=\"badge {}\">{verdict}: {}</span>",
            verdict.word(),
            count.count()
        );
    }
    body.push_str("</div>\n");
}

fn contents(body: &mut String, shown: &[Shown]) {
    body.push_str("<div class=\"wide\"><table class=\"contents\">\n");
    for paper in Paper::ALL {
        let mut first = true;
        for one in of(shown, paper) {
            if std::mem::take(&mut first) {
                let _ = writeln!(
                    body,
                    "<tr class=\"paper\"><td colspan=\"3\"><a href=\"#{}\">{}</a></td></tr>",
                    paper.word(),
                    escape(paper.heading())
                );
            }
            let _ = writeln!(
                body,
                "<tr><td>{}</td><td><a href=\"#{}\">{}</a></td><td>{}</td></tr>",
                escape(one.figure.place),
                one.figure.id,
                escape(one.figure.title),
                badge(one.judgement.verdict),
            );
        }
    }
    body.push_str("</table></div>\n");
}

fn article(body: &mut String, one: &Shown, about: &About) {
    let Figure {
        id,
        place,
        title,
        claim,
        paper,
        ..
    } = one.figure;
    let Judgement {
        verdict,
        found,
        why,
    } = &one.judgement;
    let _ = writeln!(
        body,
        "<article id=\"{id}\">\n<header><span class=\"place\">{}</span><h3>{}</h3>{}</header>",
        escape(place),
        escape(title),
        badge(*verdict),
    );
    let _ = writeln!(body, "<div class=\"picture\">\n{}</div>", one.svg);
    body.push_str("<dl>\n");
    let mut entry = |term: &str, text: &str| {
        if !text.is_empty() {
            let _ = writeln!(body, "<dt>{term}</dt><dd>{text}</dd>");
        }
    };
    let asked = if *verdict == Verdict::Ours {
        "The question"
    } else {
        "The claim"
    };
    entry(asked, &escape(claim));
    entry("Found", &escape(found));
    let differs = if matches!(verdict, Verdict::InPart | Verdict::NotHeld) {
        "Why"
    } else {
        "Note"
    };
    entry(differs, &escape(why));
    let command = about.command(paper.word());
    entry("Command", &format!("<code>{}</code>", escape(&command)));
    let files = format!(
        "<a href=\"{id}.csv\">{id}.csv</a>, <a href=\"{id}.svg\">{id}.svg</a>, \
         <a href=\"{id}.png\">{id}.png</a>"
    );
    entry("Files", &files);
    body.push_str("</dl>\n");
    numbers(body, &one.table);
    body.push_str("</article>\n");
}

fn numbers(body: &mut String, table: &Table) {
    if table.rows.len() > ROWS_MAX {
        return;
    }
    body.push_str("<details><summary>Numbers</summary><div class=\"wide\"><table>\n<tr>");
    for column in &table.columns {
        let _ = write!(body, "<th>{}</th>", escape(column));
    }
    body.push_str("</tr>\n");
    for row in &table.rows {
        body.push_str("<tr>");
        for cell in row {
            let _ = write!(body, "<td>{}</td>", escape(&cell.shown()));
        }
        body.push_str("</tr>\n");
    }
    body.push_str("</table></div></details>\n");
}
