//! `conclave bench --objects`: operations on replicated objects, and what they cost in bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use conclave_client::{Client, Counter, Map, ObjectError};
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::{Connections, histogram};
use crate::cli::Failure;
use crate::output;
use crate::service::local::Local;

/// Bytes of a key and of a value of the large map: with what each costs, 100 bytes.
const KEY: usize = 12;
const VALUE: usize = 72;
/// So many writers fill the large map.
const WRITERS: usize = 512;
/// Updates of the large map that are weighed.
const UPDATES: u64 = 50;

/// What to measure.
pub(super) struct Plan<'a> {
    pub(super) clients: &'a [usize],
    pub(super) connections: Connections,
    pub(super) span: Duration,
    pub(super) keys: usize,
    pub(super) json: bool,
}

/// Operations of some clients on one counter.
struct Row {
    clients: usize,
    own: bool,
    per_s: f64,
    times: Histogram<u64>,
    errors: u64,
}

fn failed(error: &ObjectError) -> Failure {
    Failure::Failed(error.to_string())
}

/// Measures and prints.
pub(super) async fn run(local: &Local, plan: &Plan<'_>) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for &clients in plan.clients {
        for own in [false, true] {
            let wanted = match plan.connections {
                Connections::Shared => !own,
                Connections::Separate => own,
                Connections::Both => !own || clients > 1,
            };
            if wanted {
                let how = if own { "own connections" } else { "shared" };
                anstream::eprintln!("counter with {clients} clients, {how}");
                rows.push(counted(local, clients, own, plan.span).await?);
            }
        }
    }
    let large = if plan.keys > 0 {
        Some(large(local, plan.keys).await?)
    } else {
        None
    };
    if plan.json {
        let rows: Vec<Value> = rows.iter().map(Row::json).collect();
        return output::line(json!({ "counter": rows, "map": large }).to_string());
    }
    let mut table = output::table(&[
        "clients",
        "connections",
        "ops/s",
        "p50 ms",
        "p99 ms",
        "errors",
    ]);
    for row in &rows {
        let millis = |at: f64| format!("{:.2}", row.times.value_at_quantile(at) as f64 / 1e6);
        table.add_row([
            row.clients.to_string(),
            if row.own { "own" } else { "shared" }.to_owned(),
            format!("{:.0}", row.per_s),
            millis(0.5),
            millis(0.99),
            row.errors.to_string(),
        ]);
    }
    output::print(&table)?;
    if let Some(large) = large {
        output::json(&large)?;
    }
    Ok(())
}

impl Row {
    fn json(&self) -> Value {
        let nanos = |at: f64| self.times.value_at_quantile(at);
        json!({
            "clients": self.clients,
            "own_connections": self.own,
            "ops_per_s": self.per_s,
            "p50_ns": nanos(0.5),
            "p99_ns": nanos(0.99),
            "errors": self.errors,
        })
    }
}

async fn connect(local: &Local) -> Result<Client, Failure> {
    local.target().client().await.map_err(Failure::input)
}

/// All clients add to one counter; in the end it must show every addition that was answered.
async fn counted(local: &Local, tasks: usize, own: bool, span: Duration) -> Result<Row, Failure> {
    let mut clients = Vec::new();
    for _ in 0..if own { tasks } else { 1 } {
        clients.push(connect(local).await?);
    }
    let name = format!("bench/{tasks}/{own}");
    let first: Counter = clients[0].object(&name);
    let before = first.incr().await.map_err(|error| failed(&error))?;
    let errors = Arc::new(AtomicU64::new(0));
    let (begun, warm) = (Instant::now(), span.min(Duration::from_secs(1)) / 2);
    let mut work = tokio::task::JoinSet::new();
    for task in 0..tasks {
        let counter: Counter = clients[task % clients.len()].object(&name);
        let errors = errors.clone();
        work.spawn(async move {
            let (mut times, mut added) = (histogram(), 0i64);
            while begun.elapsed() < warm + span {
                let asked = Instant::now();
                if counter.incr().await.is_err() {
                    errors.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                added += 1;
                if begun.elapsed() >= warm && begun.elapsed() < warm + span {
                    let took = u64::try_from(asked.elapsed().as_nanos()).unwrap_or(u64::MAX);
                    times.saturating_record(took);
                }
            }
            (times, added)
        });
    }
    let (mut times, mut added) = (histogram(), 0);
    while let Some(one) = work.join_next().await {
        let (own, count) = one.map_err(Failure::input)?;
        let _ = times.add(own);
        added += count;
    }
    let after = first.get().await.map_err(|error| failed(&error))?;
    let errors = errors.load(Ordering::Relaxed);
    // An operation without an answer may have been done, and no more than that.
    let lost = (before + added) - after;
    let extra = after - (before + added);
    for client in &clients {
        client.close().await;
    }
    if lost > 0 || extra > i64::try_from(errors).unwrap_or(i64::MAX) {
        anstream::eprintln!("{before} + {added} answered additions, and the counter has {after}");
        return Err(Failure::Violation);
    }
    Ok(Row {
        clients: tasks,
        own,
        per_s: times.len() as f64 / span.as_secs_f64(),
        times,
        errors,
    })
}

/// A map of many keys: what an update and a fresh client cost in bytes.
async fn large(local: &Local, keys: usize) -> Result<Value, Failure> {
    anstream::eprintln!("a map of {keys} keys");
    let client = connect(local).await?;
    let map: Map = client.object("bench/map");
    let begun = Instant::now();
    let next = Arc::new(AtomicU64::new(0));
    let mut work = tokio::task::JoinSet::new();
    for _ in 0..WRITERS {
        let (map, next) = (map.clone(), next.clone());
        work.spawn(async move {
            loop {
                let key = next.fetch_add(1, Ordering::Relaxed);
                if key >= keys as u64 {
                    return Ok(());
                }
                map.set(key_of(key), value_of(key)).await?;
            }
        });
    }
    while let Some(done) = work.join_next().await {
        let done: Result<(), ObjectError> = done.map_err(Failure::input)?;
        done.map_err(|error| failed(&error))?;
    }
    let filled = begun.elapsed();
    let told = |error: ObjectError| failed(&error);
    let keeper = client.keeper().await.map_err(Failure::input)?;
    let start = keeper.counters();
    for update in 0..UPDATES {
        map.set(key_of(update), value_of(update + 1))
            .await
            .map_err(told)?;
    }
    let end = keeper.counters();
    let fresh = connect(local).await?;
    let again: Map = fresh.object("bench/map");
    let (one, read) = timed(again.get(key_of(7))).await.map_err(told)?;
    let seen = fresh.keeper().await.map_err(Failure::input)?;
    let after_read = seen.counters();
    let (_, wrote) = timed(again.set(key_of(7), b"new")).await.map_err(told)?;
    let after_write = seen.counters();
    client.close().await;
    fresh.close().await;
    Ok(json!({
        "keys": keys,
        "bytes": keys * (KEY + VALUE + 16),
        "filled_s": filled.as_secs_f64(),
        "found": one.is_some(),
        "update_bytes_sent": (end.bytes_sent - start.bytes_sent) / UPDATES,
        "update_bytes_received": (end.bytes_received - start.bytes_received) / UPDATES,
        "fresh_read_bytes": after_read.bytes_received,
        "fresh_read_ms": read.as_secs_f64() * 1e3,
        "fresh_write_bytes": after_write.bytes_received - after_read.bytes_received,
        "fresh_write_ms": wrote.as_secs_f64() * 1e3,
    }))
}

async fn timed<T, E>(work: impl Future<Output = Result<T, E>>) -> Result<(T, Duration), E> {
    let begun = Instant::now();
    Ok((work.await?, begun.elapsed()))
}

fn key_of(number: u64) -> String {
    format!("{number:0KEY$}")
}

fn value_of(number: u64) -> String {
    format!("{number:0VALUE$}")
}
