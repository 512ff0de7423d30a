//! Many locks: a hundred thousand held at once, millions of names used once.

use std::time::{Duration, Instant};

use conclave_client::{Client, Guard};
use serde_json::json;

use crate::cli::Failure;
use crate::output;
use crate::service::local::Local;

/// Tasks that take locks at the same time.
const TASKS: usize = 256;
/// Locks of one client: nodes keep a limited number for each.
const PER_CLIENT: usize = 10_000;
/// How long the cluster is left alone to see what heartbeats cost.
const REST: Duration = Duration::from_secs(10);

/// Takes `locks` locks, keeps them, and tells what that costs; then restarts a node.
pub(super) async fn held(local: &mut Local, locks: usize, json: bool) -> Result<(), Failure> {
    let before = local.resident_mb();
    let mut clients = Vec::new();
    for _ in 0..locks.div_ceil(PER_CLIENT) {
        let client = local.target().client().await;
        clients.push(client.map_err(Failure::input)?);
    }
    let start = Instant::now();
    let mut guards: Vec<Guard> = Vec::with_capacity(locks);
    for (place, client) in clients.iter().enumerate() {
        let count = PER_CLIENT.min(locks - place * PER_CLIENT);
        anstream::eprintln!("{} of {locks} locks held", guards.len());
        guards.extend(take(client, place * PER_CLIENT, count).await?);
    }
    let taken = start.elapsed();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (cpu, own) = (local.cpu_seconds(), own_cpu());
    tokio::time::sleep(REST).await;
    let node_cpu = (local.cpu_seconds() - cpu) / REST.as_secs_f64() / local.len() as f64;
    let own_cpu = (own_cpu() - own) / REST.as_secs_f64();
    let after = local.resident_mb();
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    anstream::eprintln!("restarting node 1 gracefully, then by force");
    let graceful = local.restart(1, false).await?;
    let moved = guards.iter().filter(|guard| guard.is_held()).count();
    let forced = local.restart(1, true).await?;
    let still = guards.iter().filter(|guard| guard.is_held()).count();
    for client in clients {
        client.close().await;
    }
    let result = json!({
        "locks": locks,
        "taken_s": taken.as_secs_f64(),
        "rss_mb_empty": before,
        "rss_mb": after,
        "bytes_per_lock": (after - before) * 1024.0 * 1024.0 / locks as f64,
        "node_cpu_share": node_cpu,
        "client_cpu_share": own_cpu,
        "lost_at_rest": lost,
        "graceful_restart_s": graceful.as_secs_f64(),
        "held_after_graceful_restart": moved,
        "forced_restart_s": forced.as_secs_f64(),
        "held_after_restarts": still,
    });
    if json {
        return output::line(result.to_string());
    }
    output::line(format!(
        "{locks} locks taken in {:.1} s and kept by {} clients over {} nodes
  memory per node              {before:.1} MB before, {after:.1} MB with them
  heartbeats, CPU per node     {:.2} % of a core
  heartbeats, CPU of clients   {:.2} % of a core
  lost while at rest           {lost}
  graceful restart of a node   {:.2} s until it serves again, {moved} held
  kill -9 and start            {:.2} s until it serves again (the pause is the longest TTL)
  held after both              {still}",
        taken.as_secs_f64(),
        locks.div_ceil(PER_CLIENT),
        local.len(),
        node_cpu * 100.0,
        own_cpu * 100.0,
        graceful.as_secs_f64(),
        forced.as_secs_f64(),
    ))
}

async fn take(client: &Client, from: usize, count: usize) -> Result<Vec<Guard>, Failure> {
    let tasks = (0..TASKS.min(count)).map(|task| {
        let client = client.clone();
        tokio::spawn(async move {
            let mut guards = Vec::new();
            for place in (task..count).step_by(TASKS) {
                let name = format!("bench/held/{}", from + place);
                let lock = client.lock(&name).exclusive();
                let guard = lock.acquire_timeout(Duration::from_secs(30)).await;
                guards.push(guard.map_err(Failure::input)?);
            }
            Ok::<_, Failure>(guards)
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let mut all = Vec::with_capacity(count);
    for task in tasks {
        all.extend(task.await.map_err(Failure::input)??);
    }
    Ok(all)
}

/// Uses `names` names once each, and tells whether memory stays flat.
pub(super) async fn used(local: &Local, names: u64, json: bool) -> Result<(), Failure> {
    let client = local.target().client().await;
    let client = client.map_err(Failure::input)?;
    let mut samples = vec![(0_u64, local.resident_mb())];
    let start = Instant::now();
    let parts = 10;
    for part in 0..parts {
        let (from, to) = (names * part / parts, names * (part + 1) / parts);
        let tasks: Vec<_> = (0..TASKS as u64)
            .map(|task| {
                let client = client.clone();
                tokio::spawn(async move {
                    for place in (from + task..to).step_by(TASKS) {
                        let name = format!("bench/used/{place}");
                        let lock = client.lock(&name).exclusive();
                        let guard = lock.acquire_timeout(Duration::from_secs(30)).await;
                        let _ = guard.map_err(Failure::input)?.release().await;
                    }
                    Ok::<_, Failure>(())
                })
            })
            .collect();
        for task in tasks {
            task.await.map_err(Failure::input)??;
        }
        samples.push((to, local.resident_mb()));
        anstream::eprintln!(
            "{to} of {names} names used, {:.1} MB per node",
            local.resident_mb()
        );
    }
    let seconds = start.elapsed().as_secs_f64();
    client.close().await;
    if json {
        let samples: Vec<_> = samples.iter().map(|(used, mb)| json!([used, mb])).collect();
        let result = json!({"names": names, "seconds": seconds, "rss_mb": samples});
        return output::line(result.to_string());
    }
    let mut table = output::table(&["NAMES USED", "MB PER NODE"]);
    for (used, mb) in samples {
        table.add_row([used.to_string(), format!("{mb:.1}")]);
    }
    output::print(&table)?;
    let speed = names as f64 / seconds;
    output::line(format!(
        "{names} names in {seconds:.1} s, {speed:.0} a second"
    ))
}

fn own_cpu() -> f64 {
    crate::service::usage::cpu_seconds(std::process::id())
}
