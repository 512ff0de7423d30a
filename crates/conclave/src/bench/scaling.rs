//! `conclave bench --scaling`: the same load on ever larger clusters, billiard beside majority.
//!
//! On one machine a larger cluster makes no more cycles: the cores are shared. What tells how a
//! system grows is how much of the work its busiest node has to do, so that is measured: its share
//! of the cycles, beside the load that the toolbox computes, and the processor time it used.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::load::{Conclave, Drive, Load, Running};
use super::{Target, all_cpu};
use crate::cli::Failure;
use crate::output;
use crate::service::local::Work;
use crate::service::shape::Shape;
use crate::service::usage;

/// The systems that are compared at each size.
const SYSTEMS: [&str; 2] = ["billiard", "majority"];
/// More processes than this say nothing on one machine.
const SIZE_MAX: u32 = 200;
/// How long an acquisition may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// What shall be measured.
pub(super) struct Plan<'a> {
    pub(super) shape: &'a Shape,
    pub(super) sizes: &'a [u32],
    pub(super) clients: &'a [usize],
    /// Names over all clients.
    pub(super) names: usize,
    pub(super) span: Duration,
    pub(super) json: bool,
}

/// What a cluster did.
#[derive(Clone, Debug)]
struct Row {
    nodes: u32,
    system: String,
    clients: usize,
    cycles: u64,
    cycles_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    /// The largest share of cycles that one node took part in, and what was planned.
    busiest: f64,
    planned: f64,
    messages: f64,
    planned_messages: f64,
    /// Processor seconds: of the node that used most, and of all nodes and clients.
    busiest_cpu: f64,
    all_cpu: f64,
    errors: u64,
}

/// Measures one cluster after the other.
pub(super) async fn run(plan: &Plan<'_>) -> Result<(), Failure> {
    let clusters = clusters(plan)?;
    let mut rows = Vec::new();
    for (nodes, system, shape) in clusters {
        anstream::eprintln!("{system}: {nodes} processes start");
        // Ended before the next one starts: so many processes on few cores are enough.
        let target = Target::start(&shape, &system).await?;
        for &clients in plan.clients {
            anstream::eprintln!("{system}: {clients} clients");
            rows.push(measure(plan, &target, nodes, clients).await?);
        }
    }
    report(plan, &rows)
}

/// All clusters to be measured. Every size is looked at before anything starts.
fn clusters(plan: &Plan<'_>) -> Result<Vec<(u32, String, Shape)>, Failure> {
    let mut clusters = Vec::new();
    for &size in plan.sizes {
        if !(1..=SIZE_MAX).contains(&size) {
            return Err(Failure::Input(format!(
                "--sizes: {size} is not 1 to {SIZE_MAX}"
            )));
        }
        for name in SYSTEMS {
            let system = format!("{name}({size})");
            let spec = conclave_quorum::text::parse(&system).map_err(Failure::input)?;
            let no_files = |_: &str| Err("write the system out".to_owned());
            conclave_quorum::build::build(&spec, Some(size as usize), &no_files)
                .map_err(|error| Failure::Input(format!("--sizes: {error}")))?;
            let shape = Shape {
                nodes: None,
                quorum: Some(system.clone()),
                ..plan.shape.clone()
            };
            clusters.push((size, system, shape));
        }
    }
    Ok(clusters)
}

async fn measure(
    plan: &Plan<'_>,
    target: &Target,
    nodes: u32,
    tasks: usize,
) -> Result<Row, Failure> {
    let local = &target.local;
    let client = local.target().client().await.map_err(Failure::input)?;
    let drive = Drive {
        load: Load::Uncontended,
        tasks,
        names: (plan.names / tasks).max(1),
        rate: None,
        // So many processes take a while until each has been asked once.
        warm: (plan.span / 3).max(Duration::from_millis(500)),
        span: plan.span,
    };
    let warm = drive.warm;
    let taker = Conclave {
        client,
        patience: PATIENCE,
    };
    let running = Running::start(slice::from_ref(&taker), drive, Arc::default());
    tokio::time::sleep(warm).await;
    running.measure();
    let end = Instant::now() + plan.span;
    let each = || {
        let pids = local.pids().into_iter();
        pids.map(usage::cpu_exactly).collect::<Vec<f64>>()
    };
    let (cpu, all, work) = (each(), all_cpu(local), local.work().await);
    tokio::time::sleep_until(end).await;
    running.rest();
    // The load goes on while nodes are asked one by one, so that each has worked for as long.
    let (cpu_after, all_after, work_after) = (each(), all_cpu(local), local.work().await);
    let seen = running.finish().await?;
    taker.client.close().await;
    let done = work.iter().zip(&work_after);
    let done: Vec<Work> = done.map(|(before, after)| after.since(*before)).collect();
    let used = cpu
        .iter()
        .zip(&cpu_after)
        .map(|(before, after)| after - before);
    let cycles = seen.cycles.max(1) as f64;
    let busiest = done.iter().map(|work| work.grants).max().unwrap_or(0);
    let messages: u64 = done.iter().map(|work| work.messages).sum();
    Ok(Row {
        nodes,
        system: target.system.clone(),
        clients: tasks,
        cycles: seen.cycles,
        cycles_per_s: seen.cycles as f64 / plan.span.as_secs_f64(),
        p50_us: seen.times.value_at_quantile(0.5) as f64 / 1e3,
        p99_us: seen.times.value_at_quantile(0.99) as f64 / 1e3,
        busiest: busiest as f64 / cycles,
        planned: target.load,
        messages: messages as f64 / cycles,
        planned_messages: target.messages,
        busiest_cpu: used.fold(0.0, f64::max),
        all_cpu: all_after - all,
        errors: seen.errors,
    })
}

impl Row {
    /// By how much the busiest node's share is off the plan.
    fn off(&self) -> f64 {
        self.busiest / self.planned.max(1e-9) - 1.0
    }

    /// Cycles of the cluster for each processor second of its busiest node.
    fn per_cpu(&self) -> f64 {
        self.cycles as f64 / self.busiest_cpu.max(1e-6)
    }

    fn cells(&self) -> Vec<String> {
        let per_1000 = |seconds: f64| seconds / self.cycles.max(1) as f64 * 1e3;
        vec![
            self.nodes.to_string(),
            self.system.clone(),
            self.clients.to_string(),
            format!("{:.0}", self.cycles_per_s),
            format!("{:.0}", self.p50_us),
            format!("{:.3}", self.busiest),
            format!("{:.3}", self.planned),
            format!("{:+.1} %", self.off() * 100.0),
            format!("{:.2}", self.messages),
            format!("{:.2}", self.planned_messages),
            format!("{:.4}", per_1000(self.all_cpu)),
            format!("{:.4}", per_1000(self.busiest_cpu)),
            format!("{:.0}", self.per_cpu()),
        ]
    }

    fn json(&self) -> Value {
        json!({
            "nodes": self.nodes,
            "system": self.system,
            "clients": self.clients,
            "cycles": self.cycles,
            "cycles_per_s": self.cycles_per_s,
            "p50_us": self.p50_us,
            "p99_us": self.p99_us,
            "busiest_share": self.busiest,
            "planned_load": self.planned,
            "off_plan": self.off(),
            "messages_per_cycle": self.messages,
            "planned_messages": self.planned_messages,
            "cpu_s": self.all_cpu,
            "busiest_cpu_s": self.busiest_cpu,
            "cycles_per_busiest_cpu_s": self.per_cpu(),
            "errors": self.errors,
        })
    }
}

fn report(plan: &Plan<'_>, rows: &[Row]) -> Result<(), Failure> {
    if plan.json {
        let rows: Vec<Value> = rows.iter().map(Row::json).collect();
        let (names, seconds) = (plan.names, plan.span.as_secs_f64());
        let result = json!({"names": names, "seconds": seconds, "rows": rows});
        return output::line(result.to_string());
    }
    let mut table = output::table(&[
        "NODES",
        "SYSTEM",
        "CLIENTS",
        "CYCLES/S",
        "P50 us",
        "BUSIEST",
        "PLANNED",
        "OFF",
        "MESSAGES",
        "PLANNED",
        "CPU s/1000",
        "BUSIEST",
        "CYCLES/ITS CPU s",
    ]);
    for row in rows {
        table.add_row(row.cells());
    }
    output::print(&table)?;
    for line in ratios(rows) {
        output::line(line)?;
    }
    for row in rows.iter().filter(|row| row.errors > 0) {
        output::line(format!(
            "{} with {} clients: {} errors",
            row.system, row.clients, row.errors
        ))?;
    }
    Ok(())
}

/// What the first system makes of its busiest node, compared with the second, at each size.
fn ratios(rows: &[Row]) -> Vec<String> {
    let twin = |row: &Row| {
        let mut others = rows.iter();
        let same = |other: &&Row| (other.nodes, other.clients) == (row.nodes, row.clients);
        others.find(|other| same(other) && other.system != row.system)
    };
    let first = rows.iter().filter(|row| row.system.starts_with(SYSTEMS[0]));
    let lines = first.filter_map(|row| {
        let other = twin(row)?;
        Some(format!(
            "{} nodes, {} clients: {} makes {:.2} times as many cycles per CPU second of the \
             busiest node as {}; by their loads {:.2} times",
            row.nodes,
            row.clients,
            row.system,
            row.per_cpu() / other.per_cpu().max(1e-9),
            other.system,
            other.planned / row.planned.max(1e-9),
        ))
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(system: &str, busiest_cpu: f64, planned: f64) -> Row {
        Row {
            nodes: 12,
            system: system.to_owned(),
            clients: 64,
            cycles: 1_000,
            cycles_per_s: 500.0,
            p50_us: 1.0,
            p99_us: 2.0,
            busiest: 0.55,
            planned,
            messages: 15.0,
            planned_messages: 15.0,
            busiest_cpu,
            all_cpu: 1.0,
            errors: 0,
        }
    }

    #[test]
    fn sizes_are_looked_at_before_anything_starts() {
        let shape = Shape::default();
        let plan = |sizes: &'static [u32]| Plan {
            shape: &shape,
            sizes,
            clients: &[64],
            names: 10_000,
            span: Duration::from_secs(1),
            json: false,
        };
        let all = clusters(&plan(&[4, 12])).unwrap_or_default();
        let names: Vec<&str> = all.iter().map(|(_, name, _)| name.as_str()).collect();
        let wanted = ["billiard(4)", "majority(4)", "billiard(12)", "majority(12)"];
        assert_eq!(names, wanted);
        let wrong: [(&[u32], &str); 2] = [(&[4, 5], "board has 5"), (&[0], "1 to 200")];
        for (sizes, words) in wrong {
            let Err(Failure::Input(error)) = clusters(&plan(sizes)) else {
                panic!("{sizes:?} are refused");
            };
            assert!(
                error.starts_with("--sizes: ") && error.contains(words),
                "{error}"
            );
        }
    }

    #[test]
    fn the_busiest_nodes_are_compared_at_the_same_size() {
        let rows = [row("billiard(12)", 0.5, 0.5), row("majority(12)", 0.7, 0.6)];
        assert!((rows[0].off() - 0.1).abs() < 1e-9);
        assert_eq!(rows[0].per_cpu(), 2_000.0);
        let lines = ratios(&rows);
        assert_eq!(lines.len(), 1);
        assert!(lines[0].contains("1.40 times") && lines[0].contains("loads 1.20"));
    }
}
