//! `conclave quorum plan`.

use clap::Args;
use conclave_quorum::construct::check_nodes;
use conclave_quorum::plan::{self, Choice, Request, plan};
use serde_json::{Value, json};

use super::Favour;
use super::analyze::failure_json;
use super::inputs::InputArgs;
use super::levels::LevelArgs;
use crate::cli::Failure;
use crate::output::{self, Progress, number, span};

#[derive(Debug, Args)]
pub(crate) struct Plan {
    /// How many nodes the cluster has
    #[arg(long, value_name = "N")]
    nodes: usize,
    /// How many nodes may lie
    #[arg(long, value_name = "B", default_value_t = 0)]
    byzantine: usize,
    /// How many groups are registered
    #[arg(long, value_name = "M", default_value_t = 0)]
    groups: usize,
    /// What matters most
    #[arg(long, value_enum, default_value_t = Favour::Balance)]
    favour: Favour,
    #[command(flatten)]
    inputs: InputArgs,
    #[command(flatten)]
    levels: LevelArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Plan {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        check_nodes(self.nodes).map_err(Failure::input)?;
        if self.levels.wanted() {
            if self.byzantine > 0 || self.groups > 0 {
                let why = "--multilevel is for locks without lying nodes and registered groups: \
                           drop --byzantine and --groups";
                return Err(Failure::input(why));
            }
            let inputs = self.inputs.read(self.nodes)?;
            return self.levels.run(self.nodes, &inputs, self.json);
        }
        let request = Request {
            nodes: self.nodes,
            faults: self.byzantine,
            groups: self.groups,
            favour: match self.favour {
                Favour::Balance => plan::Favour::Balance,
                Favour::Load => plan::Favour::Load,
                Favour::Availability => plan::Favour::Availability,
                Favour::Messages => plan::Favour::Messages,
                Favour::Latency => plan::Favour::Latency,
            },
            inputs: self.inputs.read(self.nodes)?,
        };
        let progress = Progress::new("planning");
        let plan = plan(&request, &mut super::tell(&progress)).map_err(Failure::input)?;
        drop(progress);
        if self.json {
            return output::json(&as_json(&plan, &request));
        }
        print(&plan, &request)
    }
}

fn as_json(plan: &plan::Plan, request: &Request) -> Value {
    let refused = plan.refused.iter();
    let refused = refused.map(|(system, why)| json!({ "system": system, "why": why }));
    json!({
        "nodes": request.nodes,
        "favour": request.favour.word(),
        "ranking": plan.ranking.iter().map(choice_json).collect::<Vec<_>>(),
        "runner_up": plan.runner_up,
        "refused": refused.collect::<Vec<_>>(),
    })
}

fn choice_json(choice: &Choice) -> Value {
    let whole = &choice.analysis.whole;
    json!({
        "system": choice.system,
        "load": whole.load.upper,
        "load_exact": whole.load.exact,
        "failure_probability": whole.failure.map(|failure| failure.value),
        "failure": whole.failure.as_ref().map(failure_json),
        "messages": choice.messages,
        "size": { "min": whole.sizes.min, "max": whole.sizes.max },
        "resilience": whole.resilience.value,
        "latency_ms": choice.latency(),
        "why": choice.why,
    })
}

fn print(plan: &plan::Plan, request: &Request) -> Result<(), Failure> {
    output::line(format!(
        "{} nodes, favouring {}\n",
        request.nodes,
        request.favour.word()
    ))?;
    let header = [
        "", "SYSTEM", "LOAD", "FAILURE", "MESSAGES", "SIZE", "CRASHES", "WHY",
    ];
    let mut table = output::table(&header);
    for (place, choice) in plan.ranking.iter().enumerate() {
        let whole = &choice.analysis.whole;
        table.add_row(vec![
            (place + 1).to_string(),
            choice.system.clone(),
            number(choice.load()),
            whole
                .failure
                .as_ref()
                .map_or("-".to_owned(), output::failure),
            format!("{:.1}", choice.messages),
            span(whole.sizes.min, whole.sizes.max),
            whole.resilience.value.to_string(),
            choice.why.clone(),
        ]);
    }
    output::print(&table)?;
    if request.inputs.faults.is_none() {
        output::line("\nfailures are not considered: give --down P")?;
    }
    if let Some(price) = &plan.runner_up {
        output::line(format!("\nrunner-up: {price}"))?;
    }
    for (system, why) in &plan.refused {
        output::line(format!("not possible: {system}: {why}"))?;
    }
    Ok(())
}
