//! `conclave demo`: a real cluster goes through faults while clients fight for its locks, and what
//! held is told.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::Args;
use conclave_sim::script::{Action, Script, Step};
use conclave_wire::Span;
use conclave_wire::cluster::Times;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::task::LocalSet;

use super::find::Target;
use super::layout::{Layout, Wish};
use super::members::Members;
use super::settings::LogFormat;
use super::shape::Shape;
use super::signals::{Stops, code_of_signal};
use super::{logs, runtime, up};
use crate::cli::Failure;
use crate::output;
use crate::sim::thousands;

mod fight;
mod verdict;

use fight::Fight;
use verdict::{Promise, Verdict};

/// How many nodes the cluster has.
const NODES: u32 = 5;
/// The TTL of locks: a node that was killed keeps quiet for as long when it comes back.
const TTL: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// How long clients fight
    #[arg(long, value_name = "N", default_value_t = 14)]
    #[arg(value_parser = clap::value_parser!(u64).range(2..=3600))]
    seconds: u64,
    /// Do all of it so many times, and say in how many runs everything held
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeat: u32,
    /// Print JSON at the end of each run
    #[arg(long)]
    json: bool,
}

/// Tells what happens while it happens.
struct Story {
    begun: Instant,
    silent: bool,
    /// Times in seconds, and what happened.
    told: RefCell<Vec<(f64, String)>>,
}

impl Story {
    fn tell(&self, what: impl Into<String>) -> Result<(), Failure> {
        let (at, what) = (self.begun.elapsed().as_secs_f64(), what.into());
        if !self.silent {
            output::line(format!("{at:5.1} s  {what}"))?;
        }
        self.told.borrow_mut().push((at, what));
        Ok(())
    }
}

impl Demo {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        logs::start("error", LogFormat::Text)?;
        let mut held = 0;
        for run in 1..=self.repeat {
            if self.repeat > 1 && !self.json {
                output::line(format!("RUN {run} of {}", self.repeat))?;
            }
            match self.once() {
                Ok(()) => held += 1,
                // The others are worth seeing too.
                Err(Failure::Violation) if run < self.repeat => {}
                Err(failure) => return Err(failure),
            }
        }
        if self.repeat > 1 && !self.json {
            let (held, all) = (
                thousands(u64::from(held)),
                thousands(u64::from(self.repeat)),
            );
            output::line(format!("everything held in {held} of {all} runs"))?;
        }
        if held < self.repeat {
            return Err(Failure::Violation);
        }
        Ok(())
    }

    fn once(&self) -> Result<(), Failure> {
        let wish = Wish {
            shape: Shape {
                nodes: Some(NODES),
                ..Shape::default()
            },
            times: Times {
                ttl_max: Some(Span(TTL)),
                ..Times::default()
            },
            log: Some("error".to_owned()),
            history: false,
            access: None,
            private: false,
            audit: false,
        };
        let story = Story {
            begun: Instant::now(),
            silent: self.json,
            told: RefCell::default(),
        };
        let mut layout = Layout::open(None, &wish)?;
        let verdict = runtime()?.block_on(self.play(&mut layout, &story))?;
        self.conclude(&story, &verdict)?;
        if verdict.held() {
            Ok(())
        } else {
            Err(Failure::Violation)
        }
    }

    /// The whole play; the cluster is gone afterwards, however it ends.
    async fn play(&self, layout: &mut Layout, story: &Story) -> Result<Verdict, Failure> {
        let mut stops = Stops::new()?;
        story.tell(format!(
            "starting a cluster: {NODES} processes, any 2 may crash    \
             (conclave up --nodes {NODES} --processes)"
        ))?;
        let mut members = Members::start(layout, true)?;
        let result = tokio::select! {
            played = self.scenes(layout, &mut members, story) => played,
            signal = stops.next() => Err(Failure::Exit(code_of_signal(signal))),
        };
        if result.is_ok() {
            members.stop().await;
        } else {
            members.kill().await;
        }
        result
    }

    async fn scenes(
        &self,
        layout: &Layout,
        members: &mut Members,
        story: &Story,
    ) -> Result<Verdict, Failure> {
        up::all_ready(layout, members).await?;
        let target = layout.target()?;
        story.tell(format!("ready; its API: {} …", target.urls[0]))?;
        first_lock(&target, story).await?;
        let fight = Rc::new(Fight::new(target));
        let local = LocalSet::new();
        story.tell(format!(
            "{} clients fight for 3 locks, one inside at a time; {} more use a GPU for one of two \
             models",
            fight::ALONE,
            fight::GROUPED
        ))?;
        local
            .run_until(async {
                let all = fight.begin().await?;
                self.faults(layout, members, story, &fight).await?;
                fight.end();
                for task in all {
                    // A panic in a client would be a bug: it counts as one.
                    task.await
                        .map_err(|error| Failure::Failed(error.to_string()))?;
                }
                Ok::<(), Failure>(())
            })
            .await?;
        story.tell("everybody has left")?;
        Ok(fight.verdict())
    }

    async fn faults(
        &self,
        layout: &Layout,
        members: &mut Members,
        story: &Story,
        fight: &Fight,
    ) -> Result<(), Failure> {
        let begun = tokio::time::Instant::now();
        let whole = Duration::from_secs(self.seconds);
        for step in Script::demo().steps() {
            tokio::time::sleep_until(begun + whole * step.at / 100).await;
            let taken = thousands(fight.taken());
            inflict(step, layout, members, fight).await?;
            story.tell(format!("{:<24} {taken} locks taken so far", in_words(step)))?;
        }
        tokio::time::sleep_until(begun + whole).await;
        Ok(())
    }

    fn conclude(&self, story: &Story, verdict: &Verdict) -> Result<(), Failure> {
        if self.json {
            let told = story.told.borrow();
            let told = told
                .iter()
                .map(|(at, what)| json!({ "at": at, "what": what }));
            let told: Vec<Value> = told.collect();
            let all = output::merged(json!({ "story": told }), verdict.as_json());
            return output::json(&all);
        }
        let mut table = output::table(&["WHAT HAPPENED", ""]);
        for (what, count) in verdict.counts() {
            table.add_row([what, &count]);
        }
        output::line("")?;
        output::print(&table)?;
        let mut table = output::table(&["WHAT HELD", ""]);
        for promise in Promise::ALL {
            let broken = verdict.broken(promise);
            let result = match broken {
                0 => "held".to_owned(),
                times => format!("BROKEN {times} times"),
            };
            table.add_row([promise.words(), &result]);
        }
        output::line("")?;
        output::print(&table)?;
        for what in verdict.examples() {
            output::line(format!("\nBROKEN: {what}"))?;
        }
        output::line(
            "\nNow yours:\n  conclave up                         a cluster on this machine\n  \
             conclave lock NAME -- COMMAND       in another terminal: one at a time\n  \
             conclave lock --help                groups, waiting, fencing tokens",
        )
    }
}

fn in_words(step: &Step) -> String {
    let nodes: Vec<String> = step.nodes.iter().map(u32::to_string).collect();
    let nodes = nodes.join(" and ");
    match step.action {
        Action::Kill => format!("kill -9 node {nodes}"),
        Action::Start => format!("start node {nodes} again"),
        Action::Freeze => format!("freeze node {nodes}"),
        Action::Resume => format!("let node {nodes} go on"),
        Action::Stop => format!("stop node {nodes} gracefully"),
    }
}

async fn inflict(
    step: &Step,
    layout: &Layout,
    members: &mut Members,
    fight: &Fight,
) -> Result<(), Failure> {
    let signal = match step.action {
        Action::Kill => Signal::KILL,
        Action::Freeze => Signal::STOP,
        Action::Resume => Signal::CONT,
        Action::Stop => Signal::TERM,
        Action::Start => {
            for node in &step.nodes {
                members.start_again(layout, *node)?;
            }
            return Ok(());
        }
    };
    if step.action == Action::Kill {
        fight.killed(step.nodes.len());
    }
    for node in &step.nodes {
        members.signal_one(*node, signal);
    }
    if matches!(step.action, Action::Kill | Action::Stop) {
        for _ in &step.nodes {
            members.ended().await;
        }
    }
    Ok(())
}

/// Takes a first lock, as a newcomer would.
async fn first_lock(target: &Target, story: &Story) -> Result<(), Failure> {
    let client = target.client().await;
    let client = client.map_err(|error| Failure::NoQuorum(error.to_string()))?;
    let asked = Instant::now();
    let guard = client.lock("hello").ttl(TTL).acquire().await;
    let guard = guard.map_err(|error| Failure::NotAcquired(error.to_string()))?;
    let took = asked.elapsed().as_secs_f64() * 1e3;
    story.tell(format!(
        "lock 'hello' taken after {took:.1} ms, fencing token {}    \
         (conclave lock hello -- COMMAND)",
        guard.token()
    ))?;
    let lost = guard.release().await;
    lost.map_err(|error| Failure::Lost(error.to_string()))?;
    client.close().await;
    Ok(())
}
