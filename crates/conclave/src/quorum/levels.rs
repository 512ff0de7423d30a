//! `conclave quorum plan --multilevel`: how many levels a hierarchy should have.

use clap::Args;
use conclave_quorum::analyze::{Inputs, even_up};
use conclave_quorum::level_plan::{LevelChoice, LevelPlan, LevelRequest, level_plan};
use conclave_quorum::text::{self, Spec};
use serde_json::{Value, json};

use crate::cli::Failure;
use crate::output::{self, Progress, number, span};

/// What to compare.
#[derive(Debug, Args)]
pub(crate) struct LevelArgs {
    /// Choose the number of levels of a hierarchy of clusters
    #[arg(long)]
    multilevel: bool,
    /// The coterie of the clusters, without a size: tree, majority, grid, billiard, ...
    #[arg(
        long,
        value_name = "FORM",
        default_value = "tree",
        requires = "multilevel"
    )]
    coterie: String,
    /// Another coterie for the root cluster
    #[arg(long, value_name = "FORM", requires = "multilevel")]
    root: Option<String>,
    /// Compare up to so many levels below the root
    #[arg(long, value_name = "L", default_value_t = 6, requires = "multilevel")]
    levels_max: usize,
    /// How long sending a message takes, for the delay
    #[arg(
        long,
        value_name = "TIME",
        default_value_t = 8.0,
        requires = "multilevel"
    )]
    send: f64,
    /// How long a message is on its way, for the delay
    #[arg(
        long,
        value_name = "TIME",
        default_value_t = 12.0,
        requires = "multilevel"
    )]
    way: f64,
}

impl LevelArgs {
    pub(crate) fn wanted(&self) -> bool {
        self.multilevel
    }

    pub(crate) fn run(&self, nodes: usize, inputs: &Inputs, json: bool) -> Result<(), Failure> {
        let up = match &inputs.faults {
            None => 1.0,
            Some(faults) => even_up(faults).ok_or_else(|| {
                Failure::input("--multilevel takes one probability for all nodes: give --up P")
            })?,
        };
        let request = LevelRequest {
            coterie: open_form("--coterie", &self.coterie)?,
            root: match &self.root {
                Some(root) => Some(open_form("--root", root)?),
                None => None,
            },
            levels_max: self.levels_max,
            send: self.send,
            way: self.way,
            seed: inputs.options.seed,
            ..LevelRequest::new(nodes, up)
        };
        let progress = Progress::new("planning");
        let plan = level_plan(&request, &mut super::tell(&progress)).map_err(Failure::input)?;
        drop(progress);
        if json {
            return output::json(&as_json(&plan, &request));
        }
        print(&plan, &request)?;
        if inputs.faults.is_none() {
            output::line("\nfailures are not considered: give --up P")?;
        }
        Ok(())
    }
}

/// A form that takes the size of each cluster.
fn open_form(flag: &str, form: &str) -> Result<Spec, Failure> {
    let said = |error: String| Failure::Input(format!("{flag}: {error}"));
    let spec = text::parse(form).map_err(|error| said(error.to_string()))?;
    // What clusters may have is judged where the text of a hierarchy is.
    text::parse(&format!("multilevel({spec}, 3)")).map_err(|_| {
        said(format!(
            "'{form}' is no coterie without a size of its own; give one such as tree or majority"
        ))
    })?;
    Ok(spec)
}

fn as_json(plan: &LevelPlan, request: &LevelRequest) -> Value {
    let refused = plan.refused.iter();
    let refused = refused.map(|(levels, why)| json!({ "levels": levels, "why": why }));
    json!({
        "nodes": request.nodes,
        "up": request.up,
        "coterie": request.coterie.to_string(),
        "root": request.root.as_ref().map(ToString::to_string),
        "levels": plan.choices.iter().map(choice_json).collect::<Vec<_>>(),
        "refused": refused.collect::<Vec<_>>(),
        "recommended": {
            "levels": plan.recommended().levels,
            "system": plan.recommended().system,
        },
        "formula": plan.formula.map(|formula| json!({
            "k": formula.k,
            "real_levels": formula.real,
            "levels": formula.levels,
        })),
        "published_estimate": plan.estimate.map(|estimate| json!({
            "real_levels": estimate.real,
            "levels": estimate.levels,
            "cost": estimate.cost,
            "cost_ratio": estimate.cost_ratio,
            "messages": estimate.messages,
        })),
    })
}

fn choice_json(choice: &LevelChoice) -> Value {
    let clusters = choice.clusters.iter();
    let clusters = clusters.map(
        |(count, least, most)| json!({ "clusters": count, "size": { "min": least, "max": most } }),
    );
    json!({
        "levels": choice.levels,
        "system": choice.system,
        "clusters": clusters.collect::<Vec<_>>(),
        "cost": choice.cost,
        "quorum_members": choice.quorums,
        "messages": choice.messages,
        "delay": { "published": choice.paper_delay, "true": choice.delay },
        "availability": {
            "published": choice.paper_availability,
            "chain": choice.availability,
            "some_chain": choice.some_chain,
        },
        "busiest_node": choice.busiest,
        "exact": choice.exact,
    })
}

fn print(plan: &LevelPlan, request: &LevelRequest) -> Result<(), Failure> {
    let root = request.root.as_ref();
    let root = root.map_or(String::new(), |root| format!(", {root} at the root"));
    output::line(format!(
        "{} nodes, each up with probability {}, {} in every cluster{root}\n",
        request.nodes, request.up, request.coterie
    ))?;
    let header = [
        "",
        "LEVELS",
        "CLUSTERS",
        "COST c",
        "QUORUMS",
        "MESSAGES",
        "DELAY",
        "AVAILABLE",
        "PUBLISHED",
        "BUSIEST",
    ];
    let mut table = output::table(&header);
    for (place, choice) in plan.choices.iter().enumerate() {
        let mark = if place == plan.best { "*" } else { "" };
        let about = if choice.exact { "" } else { "~" };
        table.add_row(vec![
            mark.to_owned(),
            choice.levels.to_string(),
            clusters(choice),
            choice
                .cost
                .map_or("-".to_owned(), |cost| format!("{cost:.2}")),
            format!("{about}{:.2}", choice.quorums),
            format!("{about}{:.2}", choice.messages),
            number(choice.delay),
            format!("{about}{:.4}", choice.availability),
            choice
                .paper_availability
                .map_or("-".to_owned(), |published| format!("{published:.4}")),
            format!("{about}{:.3}", choice.busiest),
        ]);
    }
    output::print(&table)?;
    output::line("")?;
    tell_formula(plan)?;
    for (levels, why) in &plan.refused {
        output::line(format!("not possible: {levels} levels: {why}"))?;
    }
    let best = plan.recommended();
    let pays = if best.levels == 0 {
        " (no hierarchy pays here)"
    } else {
        ""
    };
    output::line(format!("take: {}{pays}", best.system))
}

fn tell_formula(plan: &LevelPlan) -> Result<(), Failure> {
    let best = plan.recommended();
    output::line(format!(
        "fewest messages: {} levels, {:.2} per entry",
        best.levels, best.messages
    ))?;
    if let Some(formula) = plan.formula {
        output::line(format!(
            "least cost c: {} levels (exact k {:.5}, real optimum {:.3})",
            formula.levels, formula.k, formula.real
        ))?;
    }
    if let Some(estimate) = plan.estimate {
        let messages = estimate.messages.map_or(String::new(), |messages| {
            let more = messages / best.messages * 100.0 - 100.0;
            format!(" and {messages:.2} messages, {more:.0} % more")
        });
        output::line(format!(
            "the published estimate says {} levels (real {:.3}): cost {:.2}, {:.0} % above the \
             least{messages}",
            estimate.levels,
            estimate.real,
            estimate.cost,
            estimate.cost_ratio * 100.0 - 100.0
        ))?;
    }
    Ok(())
}

/// The clusters of each level from the root: count and sizes.
fn clusters(choice: &LevelChoice) -> String {
    let level = |(count, least, most): &(usize, usize, usize)| {
        format!("{count} of {}", span(*least, *most))
    };
    let levels: Vec<String> = choice.clusters.iter().map(level).collect();
    levels.join(", ")
}
