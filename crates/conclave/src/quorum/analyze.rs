//! `conclave quorum analyze`.

use clap::Args;
use conclave_quorum::analyze::{Analysis, Measures, analyze};
use conclave_quorum::build::Built;
use conclave_quorum::measure::failure::Failure as Chance;
use serde_json::{Value, json};

use super::Target;
use super::inputs::InputArgs;
use crate::cli::Failure;
use crate::output::{self, Progress, number, span};

/// Quorums of a strategy that are printed.
const STRATEGY_MAX: usize = 20;

#[derive(Debug, Args)]
pub(crate) struct Analyze {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    inputs: InputArgs,
    /// Print the load-optimal strategy: quorums and how often to use them
    #[arg(long)]
    strategy: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Analyze {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let built = self.target.build()?;
        let inputs = self.inputs.read(built.system.nodes())?;
        let progress = Progress::new("analyzing");
        let analysis =
            analyze(&built, &inputs, &mut super::tell(&progress)).map_err(Failure::input)?;
        drop(progress);
        if self.json {
            return output::json(&as_json(&built, &analysis, self.strategy));
        }
        print(&built, &analysis)?;
        if self.strategy {
            print_strategy(&built, &analysis.whole)?;
        }
        Ok(())
    }
}

pub(crate) fn failure_json(failure: &Chance) -> Value {
    json!({
        "value": failure.value,
        "exact": failure.exact,
        "low": failure.low,
        "high": failure.high,
        "method": failure.method,
        "samples": failure.samples,
    })
}

pub(crate) fn measures_json(measures: &Measures) -> Value {
    let Measures {
        sizes,
        load,
        resilience,
        messages,
        latency,
        ..
    } = measures;
    let finite = |value: f64| value.is_finite().then_some(value);
    json!({
        "size": {
            "min": sizes.min,
            "max": sizes.max,
            "exact": sizes.exact,
            "mean": load.mean_size(),
        },
        "quorums": measures.count.and_then(finite),
        "load": {
            "value": load.upper,
            "exact": load.exact,
            "lower": load.lower,
            "upper": load.upper,
            "method": load.method,
        },
        "capacity": load.capacity(),
        "resilience": resilience.value,
        "resilience_exact": resilience.exact,
        "resilience_upper": resilience.upper,
        "failure_probability": measures.failure.as_ref().map(failure_json),
        "messages": {
            "maekawa_m": messages.maekawa_m,
            "maekawa_m_worst": messages.maekawa_m_worst,
            "maekawa_s": messages.maekawa_s,
            "ricart_agrawala": messages.ricart_agrawala,
            "central": messages.central,
            "lease_try": messages.lease_try,
            "lease_release": messages.lease_release,
        },
        "latency_ms": latency.as_ref().map(|latency| json!({
            "nearest_p50": finite(latency.nearest_p50),
            "nearest_p99": finite(latency.nearest_p99),
            "balanced_p50": finite(latency.balanced_p50),
            "balanced_p99": finite(latency.balanced_p99),
        })),
    })
}

fn as_json(built: &Built, analysis: &Analysis, strategy: bool) -> Value {
    let more = json!({
        "system": built.text,
        "n": analysis.nodes,
        "kind": built.system.kind(),
        "tiers": analysis.scope.as_ref().map(|scope| json!({
            "load": scope.load,
            "failure_probability": scope.failure,
        })),
        "node_loads": analysis.whole.load.loads,
        "cartels": analysis.cartels.iter().map(measures_json).collect::<Vec<_>>(),
        "exclusive": analysis.exclusive.as_ref().map(measures_json),
        "multilevel_messages": analysis.multilevel_messages,
        "strategy": strategy.then(|| strategy_json(&analysis.whole)),
    });
    output::merged(measures_json(&analysis.whole), more)
}

fn strategy_json(measures: &Measures) -> Vec<Value> {
    let entry = |(quorum, probability): &(conclave_quorum::NodeSet, f64)| {
        let quorum: Vec<usize> = quorum.numbers().collect();
        json!({ "quorum": quorum, "probability": probability })
    };
    measures.load.strategy.iter().map(entry).collect()
}

/// A probability with what is known of its exactness.
fn chance(failure: &Chance) -> String {
    if failure.exact && failure.value == 0.0 {
        return format!(
            "0, or too small for a number (exact, by {})",
            failure.method
        );
    }
    if failure.exact {
        return format!("{} (exact, by {})", number(failure.value), failure.method);
    }
    format!(
        "{}, between {} and {} (95 % confidence, {} random states)",
        number(failure.value),
        number(failure.low),
        number(failure.high),
        failure.samples
    )
}

fn rows(measures: &Measures) -> Vec<(&'static str, String)> {
    let Measures {
        sizes,
        load,
        resilience,
        messages,
        ..
    } = measures;
    let about = if sizes.exact {
        ""
    } else {
        " (largest: as far as known)"
    };
    let size = span(sizes.min, sizes.max);
    let mut rows = vec![(
        "quorum size",
        format!("{size}{about}, mean {}", number(load.mean_size())),
    )];
    if let Some(count) = measures.count {
        let shown = if count < 1e15 {
            format!("{count:.0}")
        } else {
            format!("{count:.3e}")
        };
        rows.push(("quorums", shown));
    }
    let proof = if load.exact {
        format!("exact: lower = upper bound, by {}", load.method)
    } else {
        let (lower, upper) = (number(load.lower), number(load.upper));
        let gap = 100.0 * load.gap();
        format!(
            "between {lower} and {upper}, gap {gap:.2} %, by {}",
            load.method
        )
    };
    rows.push(("load", format!("{} ({proof})", number(load.upper))));
    rows.push((
        "capacity",
        format!("{} times one node's", number(load.capacity())),
    ));
    let left = format!("any {} crashes leave a quorum", resilience.value);
    let crashes = if resilience.exact {
        format!("{left} (exact)")
    } else {
        format!("{left}; some {} do not", resilience.upper + 1)
    };
    rows.push(("resilience", crashes));
    if let Some(failure) = &measures.failure {
        rows.push(("failure probability", chance(failure)));
    }
    let each = format!(
        "{} (Maekawa_M; at most {}), {} (Maekawa_S), {} (Ricart-Agrawala), {} (central)",
        number(messages.maekawa_m),
        number(messages.maekawa_m_worst),
        number(messages.maekawa_s),
        number(messages.ricart_agrawala),
        number(messages.central)
    );
    rows.push(("messages per entry", each));
    rows.extend(latency_rows(measures));
    rows
}

fn latency_rows(measures: &Measures) -> Vec<(&'static str, String)> {
    let Some(latency) = &measures.latency else {
        return Vec::new();
    };
    let ms = |value: f64| {
        if value.is_finite() {
            format!("{value:.1} ms")
        } else {
            "no quorum in reach".to_owned()
        }
    };
    let pair = |p50, p99, over| format!("p50 {}, p99 {} over {over}", ms(p50), ms(p99));
    let nearest = pair(latency.nearest_p50, latency.nearest_p99, "clients");
    let balanced = pair(
        latency.balanced_p50,
        latency.balanced_p99,
        "clients and quorums",
    );
    vec![
        ("latency, nearest quorum", nearest),
        ("latency, balanced load", balanced),
    ]
}

fn print(built: &Built, analysis: &Analysis) -> Result<(), Failure> {
    output::line(format!(
        "{}: {} nodes, {}",
        built.text,
        analysis.nodes,
        built.system.kind()
    ))?;
    if let Some(scope) = &analysis.scope {
        output::line(format!(
            "measured: load, sizes and messages over {}; failures over {}",
            scope.load, scope.failure
        ))?;
    }
    let mut table = output::table(&[]);
    for (name, value) in rows(&analysis.whole) {
        table.add_row([name, &value]);
    }
    if let Some(messages) = analysis.multilevel_messages {
        table.add_row(["multilevel messages", &number(messages)]);
    }
    output::print(&table)?;
    for (place, cartel) in analysis.cartels.iter().enumerate() {
        let number = (place + 1).to_string();
        let name = built.groups.as_ref().map_or(&number, |names| &names[place]);
        brief(&format!("group {name}"), cartel)?;
    }
    match &analysis.exclusive {
        Some(exclusive) => brief("exclusive", exclusive),
        None => Ok(()),
    }
}

fn brief(name: &str, measures: &Measures) -> Result<(), Failure> {
    let Measures {
        sizes,
        load,
        resilience,
        failure,
        ..
    } = measures;
    let mut text = format!(
        "{name}: quorum size {}, load {} when alone, {} crashes survived",
        span(sizes.min, sizes.max),
        number(load.upper),
        resilience.value
    );
    if let Some(failure) = failure {
        text = format!("{text}, failure probability {}", chance(failure));
    }
    output::line(text)
}

fn print_strategy(built: &Built, measures: &Measures) -> Result<(), Failure> {
    let mut strategy = measures.load.strategy.clone();
    if strategy.is_empty() {
        return output::line("strategy: the construction's own, as 'conclave quorum show' picks");
    }
    strategy.sort_by(|a, b| b.1.total_cmp(&a.1));
    output::line("strategy:")?;
    for (quorum, probability) in strategy.iter().take(STRATEGY_MAX) {
        let quorum = super::show::named(quorum, built);
        output::line(format!("  {}  {quorum}", number(*probability)))?;
    }
    if strategy.len() > STRATEGY_MAX {
        output::line(format!(
            "  and {} more; --json prints all",
            strategy.len() - STRATEGY_MAX
        ))?;
    }
    Ok(())
}
