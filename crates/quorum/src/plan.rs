//! The planner: which system for these nodes, failures, liars, groups and distances?

use thiserror::Error;

use crate::analyze::{Analysis, AnalyzeError, Inputs, analyze};
use crate::build::{BuildError, build};
use crate::construct::field::prime_power;
use crate::measure::{Progress, hierarchy, quiet};
use crate::text;

/// What a plan should be good at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Favour {
    /// A bit of everything.
    Balance,
    /// Little work per node.
    Load,
    /// A quorum left after failures.
    Availability,
    /// Few messages per entry.
    Messages,
    /// Near quorums.
    Latency,
}

impl Favour {
    /// Every choice.
    pub const ALL: [Self; 5] = [
        Self::Balance,
        Self::Load,
        Self::Availability,
        Self::Messages,
        Self::Latency,
    ];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Balance => "balance",
            Self::Load => "load",
            Self::Availability => "availability",
            Self::Messages => "messages",
            Self::Latency => "latency",
        }
    }
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// How many nodes there are.
    pub nodes: usize,
    /// How many nodes may lie.
    pub faults: usize,
    /// How many groups are registered; 0 for locks without groups.
    pub groups: usize,
    /// What to favour.
    pub favour: Favour,
    /// Failure probabilities, capacities and latencies.
    pub inputs: Inputs,
}

/// A system in its place.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The system's text form.
    pub system: String,
    /// Its measures.
    pub analysis: Analysis,
    /// Messages per entry: of the multilevel protocol for hierarchies, else of `Maekawa_M`.
    pub messages: f64,
    /// Why it stands where it does.
    pub why: String,
}

/// The systems that serve, best first, and those that do not.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The systems that serve, best first.
    pub ranking: Vec<Choice>,
    /// What taking the second instead of the first costs and saves.
    pub runner_up: Option<String>,
    /// Systems that were considered and do not serve, with the reason.
    pub refused: Vec<(String, String)>,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum PlanError {
    /// Liars and groups together.
    #[error("groups with lying nodes are not served: drop --groups or --byzantine")]
    GroupsWithLiars,
    /// Latency is favoured but not known.
    #[error("to favour latency the planner needs round trips: give --latency FILE")]
    NoLatency,
    /// No system serves.
    #[error("no system serves {nodes} nodes: {why}")]
    Nothing {
        /// How many nodes were given.
        nodes: usize,
        /// The last refusal.
        why: String,
    },
    /// The inputs do not fit the nodes.
    #[error(transparent)]
    Analyze(#[from] AnalyzeError),
}

/// Ranks the systems that serve the request.
pub fn plan(request: &Request, progress: &mut dyn FnMut(Progress)) -> Result<Plan, PlanError> {
    if request.groups > 0 && request.faults > 0 {
        return Err(PlanError::GroupsWithLiars);
    }
    if request.faults >= request.nodes && request.faults > 0 {
        return Err(PlanError::Nothing {
            nodes: request.nodes,
            why: format!("with {} lying nodes none is left", request.faults),
        });
    }
    if request.favour == Favour::Latency && request.inputs.latency.is_none() {
        return Err(PlanError::NoLatency);
    }
    let mut ranking = Vec::new();
    let mut refused = Vec::new();
    let texts = candidates(request);
    let total = texts.len() as u64;
    for (done, text) in texts.into_iter().enumerate() {
        progress(Progress {
            stage: "measuring candidates",
            done: done as u64,
            total,
        });
        match measured(&text, request) {
            Ok(choice) => ranking.push(choice),
            Err(Refusal::Input(error)) => return Err(error.into()),
            Err(Refusal::System(why)) => refused.push((text, why)),
        }
    }
    if ranking.is_empty() {
        let why = refused
            .last()
            .map_or("no form is made for so few", |(_, why)| why);
        return Err(PlanError::Nothing {
            nodes: request.nodes,
            why: why.to_owned(),
        });
    }
    let best = Best::of(&ranking);
    ranking.sort_by(|a, b| {
        let (a, b) = (
            score(a, request.favour, &best),
            score(b, request.favour, &best),
        );
        a.partial_cmp(&b).unwrap_or(std::cmp::Ordering::Equal)
    });
    explain(&mut ranking, request, &best);
    let runner_up = match ranking.as_slice() {
        [first, second, ..] => Some(price(first, second)),
        _ => None,
    };
    Ok(Plan {
        ranking,
        runner_up,
        refused,
    })
}

enum Refusal {
    Input(AnalyzeError),
    System(String),
}

fn measured(text: &str, request: &Request) -> Result<Choice, Refusal> {
    let spec = text::parse(text).map_err(|error| Refusal::System(error.to_string()))?;
    let no_files = |_: &str| Err("the planner reads no files".to_owned());
    let built = build(&spec, Some(request.nodes), &no_files)
        .map_err(|error: BuildError| Refusal::System(error.to_string()))?;
    let mut inputs = request.inputs.clone();
    // Many systems are measured: none may take long.
    inputs.options.diagram_nodes = inputs.options.diagram_nodes.min(DIAGRAM_NODES_MAX);
    let analysis = analyze(&built, &inputs, &mut quiet).map_err(Refusal::Input)?;
    let messages = analysis
        .multilevel_messages
        .unwrap_or(analysis.whole.messages.maekawa_m);
    Ok(Choice {
        system: built.text,
        analysis,
        messages,
        why: String::new(),
    })
}

/// The systems worth measuring for this request.
fn candidates(request: &Request) -> Vec<String> {
    let n = request.nodes;
    let b = request.faults;
    if b > 0 {
        let thresholds =
            ["masking", "mutex", "ordering", "free"].map(|form| format!("{form}({n}, b={b})"));
        let grids = ["masking", "mutex", "ordering", "free"]
            .map(|rule| format!("mgrid({n}, b={b}, rule={rule})").replace(", rule=masking", ""));
        return thresholds.into_iter().chain(grids).collect();
    }
    if request.groups > 0 {
        let m = request.groups;
        let mut texts = vec![
            format!("surficial(groups={m}, n={n})"),
            format!("surficial(groups={m}, n={n}, fallback=balanced)"),
            format!("affine({n}, groups={m})"),
            format!("affine({n}, groups={m}, fallback=balanced)"),
        ];
        texts.extend(
            coteries(request)
                .into_iter()
                .map(|text| format!("groups({text}, {m})")),
        );
        return texts;
    }
    coteries(request)
}

fn coteries(request: &Request) -> Vec<String> {
    let n = request.nodes;
    let mut texts = vec![format!("majority({n})")];
    if n >= 3 {
        texts.extend([
            format!("tree({n})"),
            format!("triangular({n})"),
            format!("wheel({n})"),
        ]);
    }
    if n >= 4 {
        texts.push(format!("grid({n})"));
    }
    if n == 4 || n >= 10 {
        texts.push(format!("billiard({n})"));
    }
    let order = n.saturating_sub(1).isqrt();
    let orders = [order.saturating_sub(1), order];
    if orders
        .iter()
        .any(|s| s * s + s + 1 == n && prime_power(*s).is_some())
    {
        texts.push(format!("plane({n})"));
    }
    let side = n.isqrt();
    if side * side == n && side > 1 {
        texts.push(format!("hgrid({side}x{side})"));
    }
    for (parts, size) in splits(request) {
        texts.push(format!("hierarchical({parts},{size})"));
    }
    if let Some(parts) = power_of_three(n) {
        texts.push(format!("hierarchical({})", vec!["3"; parts].join(",")));
    }
    if n >= 50 {
        let up = 1.0 - mean_down(request);
        let levels = hierarchy::best_levels(n, up.clamp(0.5, 1.0)).max(1);
        texts.push(format!("multilevel(tree, {n}, levels={levels})"));
    }
    texts
}

fn mean_down(request: &Request) -> f64 {
    request.inputs.faults.as_ref().map_or(0.0, |faults| {
        faults.down().iter().sum::<f64>() / faults.down().len().max(1) as f64
    })
}

/// Two levels of votes: the most even way to split `n` into equal parts of at least 3, and the
/// failure domains, where those are equal runs of nodes.
fn splits(request: &Request) -> Vec<(usize, usize)> {
    let n = request.nodes;
    let even = (3..=n.isqrt())
        .rev()
        .find(|size| n.is_multiple_of(*size) && n / size >= 3);
    let mut splits: Vec<(usize, usize)> = even.map(|size| (n / size, size)).into_iter().collect();
    splits.extend(domain_runs(request));
    splits.retain(|split| *split != (3, 3));
    splits.dedup();
    splits
}

/// How many failure domains there are and of what size, if they are runs of equally many nodes
/// that together are the cluster.
fn domain_runs(request: &Request) -> Option<(usize, usize)> {
    let domains = request.inputs.faults.as_ref()?.domains();
    let size = domains.first()?.nodes.len();
    let fits = domains.len() * size == request.nodes && domains.len() >= 3;
    let mut runs: Vec<Vec<usize>> = domains
        .iter()
        .map(|domain| domain.nodes.iter().collect())
        .collect();
    runs.sort();
    let straight = runs.concat().into_iter().eq(0..request.nodes);
    let equal = runs.iter().all(|run| run.len() == size);
    (fits && straight && equal).then_some((domains.len(), size))
}

fn power_of_three(n: usize) -> Option<usize> {
    (2..12).find(|power| 3usize.pow(*power as u32) == n)
}

/// The best value of each measure over all choices.
struct Best {
    load: f64,
    failure: Option<f64>,
    messages: f64,
    latency: Option<f64>,
}

impl Best {
    fn of(choices: &[Choice]) -> Self {
        let least = |value: fn(&Choice) -> Option<f64>| {
            choices.iter().filter_map(value).min_by(f64::total_cmp)
        };
        Self {
            load: least(|choice| Some(choice.load())).unwrap_or(1.0),
            failure: least(Choice::failure),
            messages: least(|choice| Some(choice.messages)).unwrap_or(1.0),
            latency: least(Choice::latency),
        }
    }
}

impl Choice {
    /// The load of the strategy found.
    pub fn load(&self) -> f64 {
        self.analysis.whole.load.upper
    }

    /// The failure probability, where failures were given; of a simulation the high end of its
    /// confidence interval, since seeing no failure proves little.
    pub fn failure(&self) -> Option<f64> {
        self.analysis.whole.failure.map(|failure| failure.high)
    }

    fn failure_text(&self) -> String {
        match self.analysis.whole.failure {
            Some(failure) if failure.exact => short(failure.value),
            Some(failure) => format!("below {} (simulated)", short(failure.high)),
            None => "unknown".to_owned(),
        }
    }

    /// The median time to the nearest quorum, where latencies were given.
    pub fn latency(&self) -> Option<f64> {
        self.analysis
            .whole
            .latency
            .as_ref()
            .map(|latency| latency.nearest_p50)
    }
}

/// Nodes of a decision diagram while planning.
const DIAGRAM_NODES_MAX: usize = 400_000;

/// Failure probabilities below this are as good as any.
const SURE: f64 = 1e-12;

/// Stands for probabilities too small for a number, so that ratios can be told.
const TINY: f64 = 1e-300;

/// Less is better. The favoured measure decides; the balanced score follows to break ties.
///
/// The balanced score adds up logarithms: twice the load weighs as much as twice the messages,
/// twice the latency, or sixteen times the failure probability.
fn score(choice: &Choice, favour: Favour, best: &Best) -> (f64, f64) {
    let ratio = |value: f64, best: f64| (value / best).max(1e-9).ln();
    let failure = |choice: &Choice| choice.failure().unwrap_or(SURE).max(SURE);
    let balance = ratio(choice.load(), best.load)
        + ratio(choice.messages, best.messages)
        + 0.25 * ratio(failure(choice), best.failure.unwrap_or(SURE).max(SURE))
        + match (choice.latency(), best.latency) {
            (Some(own), Some(best)) => ratio(own.max(1e-3), best.max(1e-3)),
            _ => 0.0,
        };
    let first = match favour {
        Favour::Balance => balance,
        Favour::Load => choice.load(),
        Favour::Availability => failure(choice),
        Favour::Messages => choice.messages,
        Favour::Latency => choice.latency().unwrap_or(f64::INFINITY),
    };
    // Equal but for rounding counts as equal.
    ((first * 1e9).round() / 1e9, balance)
}

fn explain(ranking: &mut [Choice], request: &Request, best: &Best) {
    let reasons: Vec<String> = ranking
        .iter()
        .map(|choice| why(choice, request, best))
        .collect();
    for (choice, why) in ranking.iter_mut().zip(reasons) {
        choice.why = why;
    }
}

fn why(choice: &Choice, request: &Request, best: &Best) -> String {
    let mut good = Vec::new();
    let mut dear = Vec::new();
    let mut judge = |name: &str, value: f64, best: f64, text: String| {
        let times = value / best;
        if times <= 1.0 + 1e-9 {
            good.push(format!("{name} {text}"));
        } else {
            dear.push(format!("{name} {text} ({} times the best)", factor(times)));
        }
    };
    judge("load", choice.load(), best.load, short(choice.load()));
    judge(
        "messages",
        choice.messages,
        best.messages,
        format!("{:.1}", choice.messages),
    );
    if let (Some(own), Some(best)) = (choice.failure(), best.failure) {
        judge(
            "failure probability",
            own.max(TINY),
            best.max(TINY),
            choice.failure_text(),
        );
    }
    if let (Some(own), Some(best)) = (choice.latency(), best.latency) {
        judge(
            "median latency",
            own.max(1e-3),
            best.max(1e-3),
            format!("{own:.1} ms"),
        );
    }
    let mut text = String::new();
    if !good.is_empty() {
        text = format!("best {}", good.join(" and best "));
    }
    if !dear.is_empty() {
        if !text.is_empty() {
            text += "; ";
        }
        text += &dear.join(", ");
    }
    let purpose = purpose(&choice.system, request.faults);
    if !purpose.is_empty() {
        text += "; ";
        text += purpose;
    }
    text
}

/// What a system for lying nodes is for: they do not serve the same protocols.
fn purpose(system: &str, faults: usize) -> &'static str {
    match () {
        () if faults == 0 => "",
        () if system.contains("mutex") => "serves backoff mutual exclusion as published",
        () if system.contains("ordering") => "serves replicated objects",
        () if system.contains("free") => "serves leases (not objects)",
        () => "serves reads that outvote liars",
    }
}

/// What the second choice costs and saves against the first.
fn price(first: &Choice, second: &Choice) -> String {
    let mut parts = vec![
        change("load", first.load(), second.load()),
        change("messages", first.messages, second.messages),
    ];
    if let (Some(a), Some(b)) = (first.failure(), second.failure()) {
        parts.push(change("failure probability", a.max(TINY), b.max(TINY)));
    }
    if let (Some(a), Some(b)) = (first.latency(), second.latency()) {
        parts.push(change("median latency", a.max(1e-3), b.max(1e-3)));
    }
    format!(
        "{} instead of {}: {}",
        second.system,
        first.system,
        parts.join(", ")
    )
}

fn change(name: &str, from: f64, to: f64) -> String {
    let times = to / from;
    match times {
        times if (times - 1.0).abs() < 0.005 => format!("the same {name}"),
        times if times > 1.0 => format!("{} times the {name}", factor(times)),
        times => format!("{name} down to 1/{}", factor(1.0 / times)),
    }
}

/// A ratio above 1 in two or three digits.
fn factor(times: f64) -> String {
    match times {
        times if times < 1.1 => format!("{times:.2}"),
        times if times < 100.0 => format!("{times:.1}"),
        times if times < 1e5 => format!("{times:.0}"),
        times => format!("{times:.0e}"),
    }
}

fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if !(1e-3..1e4).contains(&size) => format!("{value:.1e}"),
        size if size < 1.0 => format!("{value:.4}"),
        _ => format!("{value:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeSet;
    use crate::measure::failure::{Domain, FailureOptions, Faults};

    fn request(nodes: usize, favour: Favour) -> Request {
        let inputs = Inputs {
            faults: Some(Faults::uniform(nodes, 0.02).unwrap()),
            options: FailureOptions {
                samples: 5_000,
                ..FailureOptions::default()
            },
            ..Inputs::default()
        };
        Request {
            nodes,
            faults: 0,
            groups: 0,
            favour,
            inputs,
        }
    }

    #[test]
    fn the_favoured_measure_decides() {
        for favour in [Favour::Load, Favour::Availability, Favour::Messages] {
            let plan = plan(&request(24, favour), &mut quiet).unwrap();
            let value = |choice: &Choice| match favour {
                Favour::Load => choice.load(),
                Favour::Availability => choice.failure().unwrap().max(SURE),
                _ => choice.messages,
            };
            for pair in plan.ranking.windows(2) {
                assert!(value(&pair[0]) <= value(&pair[1]) + 1e-8, "{favour:?}");
            }
        }
    }

    #[test]
    fn majorities_win_on_availability_and_lose_on_load() {
        let first = |favour| {
            plan(&request(31, favour), &mut quiet)
                .unwrap()
                .ranking
                .remove(0)
                .system
        };
        assert_eq!(first(Favour::Availability), "majority(31)");
        assert_eq!(first(Favour::Load), "plane(31)");
        assert_eq!(first(Favour::Messages), "plane(31)");
        let twenty_four = plan(&request(24, Favour::Balance), &mut quiet).unwrap();
        assert!(twenty_four.runner_up.is_some());
        assert!(
            twenty_four
                .ranking
                .iter()
                .all(|choice| !choice.why.is_empty())
        );
    }

    #[test]
    fn votes_follow_failure_domains() {
        let racks = |size: usize| -> Vec<Domain> {
            let nodes = |rack: usize| NodeSet::of(20, rack * size..(rack + 1) * size);
            let rack = |rack| Domain {
                nodes: nodes(rack),
                down: 0.05,
            };
            (0..20 / size).map(rack).collect()
        };
        let mut request = request(20, Favour::Balance);
        request.inputs.faults = Some(Faults::new(vec![0.02; 20], racks(2)).unwrap());
        let ranked = plan(&request, &mut quiet).unwrap().ranking;
        assert!(
            ranked
                .iter()
                .any(|choice| choice.system == "hierarchical(10,2)")
        );
        let mut mixed = racks(2);
        mixed[0].nodes = NodeSet::of(20, [0, 5]);
        request.inputs.faults = Some(Faults::new(vec![0.02; 20], mixed).unwrap());
        let ranked = plan(&request, &mut quiet).unwrap().ranking;
        assert!(
            ranked
                .iter()
                .all(|choice| choice.system != "hierarchical(10,2)")
        );
    }

    #[test]
    fn liars_and_groups_have_their_own_systems() {
        let mut liars = request(9, Favour::Balance);
        liars.faults = 1;
        let liar_plan = plan(&liars, &mut quiet).unwrap();
        assert!(
            liar_plan
                .ranking
                .iter()
                .any(|choice| choice.system == "mutex(9, b=1)")
        );
        assert!(
            liar_plan
                .ranking
                .iter()
                .all(|choice| !choice.system.contains("majority"))
        );
        let mut groups = request(12, Favour::Load);
        groups.groups = 3;
        let plan_groups = plan(&groups, &mut quiet).unwrap();
        assert!(
            plan_groups
                .ranking
                .iter()
                .any(|choice| choice.system == "surficial(groups=3, n=12)")
        );
        groups.faults = 1;
        assert_eq!(
            plan(&groups, &mut quiet).unwrap_err(),
            PlanError::GroupsWithLiars
        );
        liars.faults = 4;
        assert!(matches!(
            plan(&liars, &mut quiet),
            Err(PlanError::Nothing { .. })
        ));
    }
}
