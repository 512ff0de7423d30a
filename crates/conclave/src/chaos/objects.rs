//! `conclave chaos objects`: clients of counters, maps and registers while the processes of nodes
//! are killed, stopped, robbed of their disks, and one of them lies. What the clients saw must be
//! explained by one order of all operations, and nothing that was acknowledged may be lost.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use conclave_client::keeper::Keeper;
use conclave_client::{Counter, Map, ObjectError, Register, clock};
use conclave_quorum::Prng;
use conclave_sim::linear::{Action, Bytes, Call, Reply, Verdict, check};
use conclave_wire::Span;
use rustix::process::Signal;
use serde_json::json;

use crate::cli::Failure;
use crate::output;
use crate::service::http;
use crate::service::local::{Local, LocalOptions};
use crate::service::shape::Shape;

/// How long an operation may take before its outcome counts as unknown.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long everything may take to come back after the faults.
const BACK: Duration = Duration::from_mins(2);
/// Steps of the search for an order, for each object.
const STEPS_MAX: u64 = 50_000_000;
/// Keys of the map.
const KEYS: usize = 8;
/// The longest lease: a node that lost its disk waits for so long.
const SPAN_MAX: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fault {
    /// A node is killed and started again
    Kill,
    /// A node is stopped for a while
    Pause,
    /// As many nodes as may lie lose their disks, and rejoin
    Disk,
    /// All nodes are killed at once
    Power,
}

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Pause => "pause",
            Self::Disk => "disk",
            Self::Power => "power",
        }
    }
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Objects {
    #[command(flatten)]
    shape: Shape,
    /// How many clients
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=200))]
    clients: u32,
    /// How long the faults go on; every kind comes once at least
    #[arg(long, value_name = "S", default_value_t = 30)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Which faults, and in which order when, come from this
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The faults to draw from
    #[arg(long, value_name = "FAULT,..", value_delimiter = ',', value_enum)]
    #[arg(default_value = "kill,pause,disk,power")]
    faults: Vec<Fault>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

type History = Vec<Call<Action, Reply>>;

/// What all clients saw, by object: the counter, the map, the register.
#[derive(Debug, Default)]
struct Book(Mutex<[History; 3]>);

impl Book {
    /// Notes an operation. A read without an answer says nothing; of anything else it is not
    /// known whether it was done.
    fn note(&self, object: usize, call: Call<Action, Reply>) {
        let read = matches!(call.op, Action::Get | Action::Count | Action::Look(_));
        if call.ended.is_some() || !read {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)[object].push(call);
        }
    }
}

struct Player {
    number: u64,
    counter: Counter,
    map: Map,
    register: Register<Vec<u8>>,
    rng: Prng,
    count: u64,
}

impl Player {
    fn new(number: u64, keeper: &Keeper, seed: u64) -> Self {
        Self {
            number,
            counter: keeper.object("chaos/counter"),
            map: keeper.object("chaos/map"),
            register: keeper.object("chaos/register"),
            rng: Prng::new(seed ^ number << 32),
            count: 0,
        }
    }

    /// One operation by chance.
    async fn act(&mut self, book: &Book) {
        self.count += 1;
        let value = format!("{}:{}", self.number, self.count).into_bytes();
        let key = format!("k{}", self.rng.below(KEYS)).into_bytes();
        let (key, value): (Bytes, Bytes) = (key.into(), value.into());
        let (object, op) = match self.rng.below(8) {
            0 | 1 => (0, Action::Add(1)),
            2 => (0, Action::Count),
            3 | 4 => (1, Action::Put(key, value)),
            5 => (1, Action::Look(key)),
            6 => (2, Action::Set(value)),
            _ => (2, Action::Get),
        };
        self.call(object, op, book).await;
    }

    /// Does an operation and notes what came of it; whether it had an answer.
    async fn call(&mut self, object: usize, op: Action, book: &Book) -> bool {
        let began = clock::now().mono.nanos();
        let reply = tokio::time::timeout(PATIENCE, self.reply(&op)).await;
        let reply = reply.ok().and_then(Result::ok);
        let ended = reply.map(|reply| (clock::now().mono.nanos(), reply));
        let answered = ended.is_some();
        let client = self.number;
        book.note(
            object,
            Call {
                client,
                began,
                op,
                ended,
            },
        );
        answered
    }

    async fn reply(&self, op: &Action) -> Result<Reply, ObjectError> {
        let bytes = |value: &[u8]| -> Bytes { value.into() };
        Ok(match op {
            Action::Add(more) => Reply::Number(self.counter.add(*more).await?),
            Action::Count => Reply::Number(self.counter.get().await?),
            Action::Put(key, value) => {
                self.map.set(key, value).await?;
                Reply::Done
            }
            Action::Look(key) => {
                let entry = self.map.get(key).await?;
                Reply::Value(entry.map(|entry| bytes(&entry.value)))
            }
            Action::Set(value) => {
                self.register.set(&value.to_vec()).await?;
                Reply::Done
            }
            _ => {
                let held = self.register.get().await?;
                Reply::Value(held.map(|(value, _)| bytes(&value)))
            }
        })
    }
}

impl Objects {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        super::runtime()?.block_on(self.play())
    }

    async fn play(&self) -> Result<(), Failure> {
        let shape = Shape {
            span_max: self.shape.span_max.or(Some(Span(SPAN_MAX))),
            byzantine: self.shape.byzantine.or(Some(1)),
            ..self.shape.clone()
        };
        let history = false;
        let mut local = Local::start(&LocalOptions { shape, history }).await?;
        anstream::eprintln!(
            "{} nodes of which {} may lie, {} clients, seed {}, in {}",
            local.len(),
            local.cluster().faults.byzantine(),
            self.clients,
            self.seed,
            local.folder().display()
        );
        let book = Arc::new(Book::default());
        let over = Arc::new(AtomicBool::new(false));
        let mut clients = tokio::task::JoinSet::new();
        for number in 0..u64::from(self.clients) {
            let keeper = client_of(&local)?;
            let mut player = Player::new(number, &keeper, self.seed);
            let (book, over) = (book.clone(), over.clone());
            clients.spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    player.act(&book).await;
                    tokio::time::sleep(Duration::from_millis(player.rng.below(20) as u64)).await;
                }
            });
        }
        let marks = self.break_things(&mut local).await?;
        heal(&mut local).await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        over.store(true, Ordering::Relaxed);
        while clients.join_next().await.is_some() {}
        let keeper = client_of(&local)?;
        self.last_look(&keeper, &book).await?;
        self.judge(&book, &marks, &local)
    }

    async fn break_things(&self, local: &mut Local) -> Result<Vec<&'static str>, Failure> {
        let mut rng = Prng::new(self.seed);
        let end = Instant::now() + Duration::from_secs(self.seconds);
        let mut marks = Vec::new();
        tokio::time::sleep(Duration::from_secs(1)).await;
        while Instant::now() < end || marks.len() < self.faults.len() {
            let fault = match self.faults.get(marks.len()) {
                Some(fault) => *fault,
                None => self.faults[rng.below(self.faults.len())],
            };
            anstream::eprintln!("{}", fault.name());
            inflict(fault, local, &mut rng).await?;
            marks.push(fault.name());
            tokio::time::sleep(Duration::from_millis(300 + rng.below(1000) as u64)).await;
        }
        Ok(marks)
    }

    /// What is there at the end, as a client sees it that knew nothing before.
    async fn last_look(&self, keeper: &Keeper, book: &Book) -> Result<(), Failure> {
        let mut last = Player::new(u64::from(self.clients), keeper, self.seed);
        let mut reads = vec![(0, Action::Count), (2, Action::Get)];
        for key in 0..KEYS {
            let key = format!("k{key}").into_bytes();
            reads.push((1, Action::Look(key.into())));
        }
        for (object, op) in reads {
            let begun = Instant::now();
            while !last.call(object, op.clone(), book).await {
                if begun.elapsed() > BACK {
                    let problem = "objects cannot be read although all faults have ended";
                    return Err(Failure::Failed(problem.to_owned()));
                }
            }
        }
        Ok(())
    }

    fn judge(&self, book: &Book, marks: &[&str], local: &Local) -> Result<(), Failure> {
        let histories = book.0.lock().unwrap_or_else(PoisonError::into_inner);
        let names = ["counter", "map", "register"];
        let mut broken = Vec::new();
        let mut rows = Vec::new();
        for (name, calls) in names.iter().zip(histories.iter()) {
            let verdict = check(calls, STEPS_MAX);
            let done = calls.iter().filter(|call| call.ended.is_some()).count();
            let word = match &verdict {
                Verdict::Linearizable => "linearizable",
                Verdict::Unknown => "too long to tell",
                Verdict::Broken(_) => "BROKEN",
            };
            if let Verdict::Broken(found) = &verdict {
                broken.push(format!("{name}: {:?}", calls.get(found.stuck)));
            }
            rows.push((*name, calls.len(), done, word));
        }
        if self.json {
            let objects = rows.iter().map(|(name, calls, done, verdict)| {
                json!({"object": name, "operations": calls, "answered": done, "verdict": verdict})
            });
            output::json(&json!({
                "seed": self.seed,
                "nodes": local.len(),
                "byzantine": local.cluster().faults.byzantine(),
                "faults": marks,
                "objects": objects.collect::<Vec<_>>(),
                "broken": broken,
            }))?;
        } else {
            let mut table = output::table(&["OBJECT", "OPERATIONS", "ANSWERED", "HISTORY"]);
            for (name, calls, done, verdict) in &rows {
                let (calls, done) = (calls.to_string(), done.to_string());
                table.add_row([(*name).to_owned(), calls, done, (*verdict).to_owned()]);
            }
            output::print(&table)?;
            output::line(format!("\n{} faults: {}", marks.len(), marks.join(", ")))?;
        }
        if broken.is_empty() {
            return Ok(());
        }
        for line in broken {
            anstream::eprintln!("{line}");
        }
        Err(Failure::Exit(1))
    }
}

/// A client of its own.
fn client_of(local: &Local) -> Result<Keeper, Failure> {
    let security = &local.target().security;
    Keeper::spawn(local.cluster(), security).map_err(Failure::input)
}

/// Ends all faults and waits until all nodes serve.
async fn heal(local: &mut Local) -> Result<(), Failure> {
    for id in 1..=local.len() as u32 {
        local.signal(id, Signal::CONT);
        if local.pid(id).is_none() {
            local.spawn(id)?;
        }
    }
    for id in 1..=local.len() as u32 {
        serves(local, id).await?;
    }
    Ok(())
}

async fn inflict(fault: Fault, local: &mut Local, rng: &mut Prng) -> Result<(), Failure> {
    let nodes = local.len();
    let id = 1 + rng.below(nodes) as u32;
    match fault {
        Fault::Kill => {
            local.kill(id);
            tokio::time::sleep(Duration::from_millis(rng.below(1500) as u64)).await;
            local.spawn(id)?;
        }
        Fault::Pause => {
            local.signal(id, Signal::STOP);
            tokio::time::sleep(Duration::from_millis(500 + rng.below(2000) as u64)).await;
            local.signal(id, Signal::CONT);
        }
        Fault::Disk => {
            let lost = local.cluster().faults.byzantine().max(1).min(nodes - 1);
            for place in 0..lost as u32 {
                let id = 1 + (id - 1 + place) % nodes as u32;
                local.kill(id);
                fs::remove_dir_all(local.folder().join(format!("node{id}")))?;
                local.spawn_after_loss(id)?;
            }
            for place in 0..lost as u32 {
                serves(local, 1 + (id - 1 + place) % nodes as u32).await?;
            }
        }
        Fault::Power => {
            for id in 1..=nodes as u32 {
                local.kill(id);
            }
            for id in 1..=nodes as u32 {
                local.spawn(id)?;
            }
        }
    }
    Ok(())
}

/// Waits until a node serves leases and objects.
async fn serves(local: &Local, id: u32) -> Result<(), Failure> {
    let begun = Instant::now();
    let url = format!(
        "{}/v1/status?local=true",
        local.cluster().nodes[id as usize - 1].api
    );
    loop {
        let answer = http::get(&url, &local.target().security, Duration::from_secs(1)).await;
        let told: Option<serde_json::Value> = answer
            .ok()
            .and_then(|answer| serde_json::from_slice(&answer.body).ok());
        if told.is_some_and(|told| told["keeper"]["serving"] == json!(true)) {
            return Ok(());
        }
        if begun.elapsed() > BACK {
            let problem = format!("node {id} does not serve leases and objects again");
            return Err(Failure::Failed(problem));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
