//! One system under one load: started fresh, measured with each number of clients, ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::Plan;
use super::conclave::Cluster;
use super::measure::Usage;
use super::rows::{Numbers, Row};
use super::site::{Fleet, Place, Site, System, Wanted};
use crate::bench::echo as bare;
use crate::bench::load::{Drive, Load, Referee, Running, Seen, Taker};
use crate::cli::Failure;

/// How long a system may take until a first lock was acquired.
const START: Duration = Duration::from_mins(1);
/// How often a system is started where somebody else may have taken its ports meanwhile.
const STARTS: usize = 3;
/// How long a fresh system is under load before anything is measured.
const WARM_UP: Duration = Duration::from_secs(3);
/// How long one attempt to acquire may take where nothing fails.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same where a server is hit: a call that is stuck must not hide that others are served.
const PATIENCE_IN_FAULTS: Duration = Duration::from_secs(2);
/// A system that acquired nothing for so long is down.
const DOWN: Duration = Duration::from_secs(1);
/// How long we wait after a fault for a system to come back.
const RECOVERY: Duration = Duration::from_secs(30);
/// How long we try to learn who leads.
const LEADER: Duration = Duration::from_secs(20);
/// Numbers of clients that meet a fault.
const IN_FAULTS: [usize; 2] = [16, 64];

/// All runs of a system under a load.
pub(super) async fn all(
    system: System,
    place: &Place,
    plan: &Plan<'_>,
    load: Load,
    round: u32,
) -> Result<Vec<Row>, Failure> {
    let visit = Visit {
        system,
        place,
        plan,
        load,
        round,
    };
    match system {
        System::Conclave | System::Durable => visit.all::<Cluster>().await,
        #[cfg(feature = "peers")]
        System::Etcd => visit.all::<super::etcd::Etcd>().await,
        #[cfg(feature = "peers")]
        System::Zookeeper => visit.all::<super::zookeeper::Zookeeper>().await,
        #[cfg(feature = "peers")]
        System::Redis => visit.all::<super::redis::Redis>().await,
        #[cfg(feature = "peers")]
        System::Redlock => visit.all::<super::redlock::Redlock>().await,
        #[cfg(not(feature = "peers"))]
        _ => Err(Failure::input("this build cannot talk to it")),
    }
}

/// The physical floor, as a row: an echo fanned out to as many processes as a quorum has.
pub(super) fn echo(members: usize, span: Duration) -> Result<Row, Failure> {
    let times = bare::measure(members, span.min(Duration::from_secs(3)))?;
    let micros = |quantile: f64| times.value_at_quantile(quantile) as f64 / 1e3;
    let longest = times.max() as f64 / 1e6;
    let numbers = Numbers {
        cycles_per_s: 1e9 / times.mean().max(1.0),
        p50_us: micros(0.5),
        p99_us: micros(0.99),
        p999_us: micros(0.999),
        gap_ms: longest,
        client_gap_ms: longest,
        ..Numbers::default()
    };
    Ok(Row {
        system: "echo",
        load: "echo",
        clients: 1,
        numbers,
        fsyncs: None,
        errors: 0,
        error: None,
        violations: 0,
        emulated: false,
        survives: None,
        times,
        rounds: 1,
        low: numbers,
        high: numbers,
    })
}

struct Visit<'a> {
    system: System,
    place: &'a Place,
    plan: &'a Plan<'a>,
    load: Load,
    round: u32,
}

/// What a run has seen, before it is a row.
struct Run {
    seen: Seen,
    span: Duration,
    before: Usage,
    after: Usage,
    rss_mb: f64,
    violations: u64,
}

impl Visit<'_> {
    async fn all<S: Site>(&self) -> Result<Vec<Row>, Failure> {
        let mut rows = Vec::new();
        if self.load == Load::Kill {
            for clients in in_faults(self.plan.clients) {
                for (name, signal) in [("kill", Signal::KILL), ("stop", Signal::STOP)] {
                    self.progress(name, clients);
                    let mut site = self.start::<S>().await?;
                    rows.push(self.fault(&mut site, name, clients, signal).await?);
                }
            }
            return Ok(rows);
        }
        let site = self.start::<S>().await?;
        self.warm_up(&site).await?;
        for &clients in self.plan.clients {
            self.progress(self.load.name(), clients);
            rows.push(self.steady(&site, clients).await?);
        }
        Ok(rows)
    }

    fn progress(&self, what: &str, clients: usize) {
        anstream::eprintln!(
            "round {}/{}: {}, {what} with {clients} clients",
            self.round + 1,
            self.plan.rounds,
            self.system.name(),
        );
    }

    fn failed(&self, why: &str) -> Failure {
        Failure::Input(format!("{}: {why}", self.system.name()))
    }

    /// Starts the system and waits until it serves.
    async fn start<S: Site>(&self) -> Result<S, Failure> {
        let mut last = None;
        for _ in 0..STARTS {
            let mut site = S::start(self.place, self.system).await?;
            match self.ready(&mut site).await {
                Ok(()) => {
                    let names = self.load.names(self.plan.names);
                    let prepared = site.prepare(&names).await;
                    prepared.map_err(|why| self.failed(&why))?;
                    return Ok(site);
                }
                Err(failure) => last = Some(failure),
            }
        }
        Err(last.unwrap_or_else(|| self.failed("it did not start")))
    }

    /// A system is ready when a first lock was acquired and given back.
    async fn ready<S: Site>(&self, site: &mut S) -> Result<(), Failure> {
        let wanted = Wanted {
            tasks: 1,
            patience: PATIENCE_IN_FAULTS,
            roam: false,
        };
        let start = Instant::now();
        loop {
            let Err(why) = first_cycle(site, wanted).await else {
                return Ok(());
            };
            if let Some(words) = site.fleet_mut().ended() {
                return Err(self.failed(&format!("a server ended by itself; it said: {words}")));
            }
            if start.elapsed() > START {
                let words = site.fleet().last_words();
                return Err(self.failed(&format!(
                    "no lock within {} s ({why}); its servers said last: {words}",
                    START.as_secs()
                )));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn drive(&self, tasks: usize) -> Drive {
        let span = self.plan.span;
        Drive {
            load: self.load,
            tasks,
            names: (self.plan.names / tasks).max(1),
            rate: None,
            warm: (span / 5).min(Duration::from_secs(1)),
            span,
        }
    }

    /// Lets a fresh system find its stride, unmeasured: compilers at run time, caches, files.
    async fn warm_up<S: Site>(&self, site: &S) -> Result<(), Failure> {
        let tasks = self.plan.clients.iter().copied().max().unwrap_or(1);
        let wanted = Wanted {
            tasks,
            patience: PATIENCE,
            roam: false,
        };
        let takers = site.takers(wanted).await;
        let takers = takers.map_err(|why| self.failed(&why))?;
        let running = Running::start(&takers, self.drive(tasks), Arc::default());
        tokio::time::sleep((self.plan.span / 2).min(WARM_UP)).await;
        running.finish().await?;
        site.close(takers).await;
        Ok(())
    }

    /// Sets clients off and lets them find their stride.
    async fn set_off<S: Site>(
        &self,
        site: &S,
        wanted: Wanted,
    ) -> Result<(Vec<S::Taker>, Running, Arc<Referee>), Failure> {
        let takers = site.takers(wanted).await;
        let takers = takers.map_err(|why| self.failed(&why))?;
        let referee = Arc::new(Referee::default());
        let drive = self.drive(wanted.tasks);
        let warm = drive.warm;
        let running = Running::start(&takers, drive, referee.clone());
        tokio::time::sleep(warm).await;
        Ok((takers, running, referee))
    }

    /// A run in which nothing fails.
    async fn steady<S: Site>(&self, site: &S, tasks: usize) -> Result<Row, Failure> {
        let wanted = Wanted {
            tasks,
            patience: PATIENCE,
            roam: false,
        };
        let (takers, running, referee) = self.set_off(site, wanted).await?;
        let (fsyncs, asked) = (site.fsyncs().await, Instant::now());
        running.measure();
        let (before, start) = (Usage::now(site), Instant::now());
        tokio::time::sleep(self.plan.span).await;
        running.rest();
        let (after, span) = (Usage::now(site), start.elapsed());
        let rss_mb = site.fleet().resident_mb();
        // The load still runs: the counters are read at both ends in the same way.
        let (fsyncs_after, answered) = (site.fsyncs().await, asked.elapsed());
        let seen = running.finish().await?;
        site.close(takers).await;
        let per_cycle = |count: u64| {
            let cycles = seen.cycles.max(1) as f64 / span.as_secs_f64();
            count as f64 / answered.as_secs_f64() / cycles
        };
        let fsyncs = fsyncs.zip(fsyncs_after);
        let fsyncs = fsyncs.map(|(before, after)| per_cycle(after.saturating_sub(before)));
        let run = Run {
            seen,
            span,
            before,
            after,
            rss_mb,
            violations: referee.violations(),
        };
        Ok(Row {
            fsyncs,
            ..self.row(self.load.name(), tasks, run)
        })
    }

    /// Who leads. Servers under load may be slow to tell, or just be choosing.
    async fn victim<S: Site>(&self, site: &S) -> Result<usize, Failure> {
        let start = Instant::now();
        loop {
            match site.leader().await {
                Ok(victim) => return Ok(victim),
                Err(why) if start.elapsed() > LEADER => return Err(self.failed(&why)),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// A run in which a server is hit.
    async fn fault<S: Site>(
        &self,
        site: &mut S,
        name: &'static str,
        tasks: usize,
        signal: Signal,
    ) -> Result<Row, Failure> {
        let wanted = Wanted {
            tasks,
            patience: PATIENCE_IN_FAULTS,
            roam: true,
        };
        // They stay until the end: leases and sessions are kept alive by them.
        let (_takers, running, referee) = self.set_off(site, wanted).await?;
        running.measure();
        let (before, start) = (Usage::now(site), Instant::now());
        let calm = (self.plan.span / 2).min(Duration::from_secs(5));
        tokio::time::sleep(calm).await;
        let rss_mb = site.fleet().resident_mb();
        let victim = self.victim(site).await?;
        site.fleet_mut().hit(victim, signal);
        let hit = Instant::now();
        tokio::time::sleep(self.plan.span).await;
        // Nothing brings one Redis back.
        while self.system != System::Redis && running.idle() > DOWN && hit.elapsed() < RECOVERY {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let survives = running.idle() <= DOWN;
        running.rest();
        let (after, span) = (Usage::now(site), start.elapsed());
        let seen = running.finish().await?;
        let run = Run {
            seen,
            span,
            before,
            after,
            rss_mb,
            violations: referee.violations(),
        };
        Ok(Row {
            survives: Some(survives),
            ..self.row(name, tasks, run)
        })
    }

    fn row(&self, load: &'static str, clients: usize, run: Run) -> Row {
        let seen = run.seen;
        let cycles = seen.cycles.max(1) as f64;
        let micros = |quantile: f64| seen.times.value_at_quantile(quantile) as f64 / 1e3;
        let numbers = Numbers {
            cycles_per_s: seen.cycles as f64 / run.span.as_secs_f64(),
            p50_us: micros(0.5),
            p99_us: micros(0.99),
            p999_us: micros(0.999),
            gap_ms: seen.gap as f64 / 1e6,
            client_gap_ms: seen.longest as f64 / 1e6,
            cpu_s_per_1000: (run.after.cpu - run.before.cpu) / cycles * 1000.0,
            rss_mb: run.rss_mb,
            net_bytes: run.after.net.saturating_sub(run.before.net) as f64 / cycles,
        };
        Row {
            system: self.system.name(),
            load,
            clients,
            numbers,
            fsyncs: None,
            errors: seen.errors,
            error: seen.error,
            violations: run.violations,
            emulated: self.system.emulates(self.load),
            survives: None,
            times: seen.times,
            rounds: 1,
            low: numbers,
            high: numbers,
        }
    }
}

/// Acquires a lock and gives it back.
async fn first_cycle<S: Site>(site: &S, wanted: Wanted) -> Result<(), String> {
    let takers = site.takers(wanted).await?;
    let taker = takers.first().ok_or("there are no clients")?;
    let held = taker
        .acquire("bench/ready", crate::bench::load::Company::Alone)
        .await?;
    taker.release(held).await?;
    site.close(takers).await;
    Ok(())
}

/// The numbers of clients that meet a fault: 16 and 64 of the list, else its largest.
fn in_faults(clients: &[usize]) -> Vec<usize> {
    let both = clients.iter().filter(|clients| IN_FAULTS.contains(clients));
    let both: Vec<usize> = both.copied().collect();
    if both.is_empty() {
        return clients.iter().max().copied().into_iter().collect();
    }
    both
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_met_by_a_few_numbers_of_clients() {
        assert_eq!(in_faults(&[1, 16, 64, 256]), [16, 64]);
        assert_eq!(in_faults(&[1, 64]), [64]);
        assert_eq!(in_faults(&[3, 9, 4]), [9]);
    }
}
