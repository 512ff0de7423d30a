//! Clients that fight for locks, and what they saw.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use conclave_client::{Client, clock};
use serde_json::json;
use tokio::task::JoinHandle;

use super::TTL;
use super::verdict::{Stay, Verdict};
use crate::cli::Failure;
use crate::service::Target;
use crate::service::thin::Thin;

/// Clients that are inside alone, those over HTTP included.
pub(super) const ALONE: usize = 8;
/// How many of them know nothing but HTTP.
const THIN: usize = 2;
/// Clients that use a lock in groups.
pub(super) const GROUPED: usize = 6;
/// The locks for one at a time.
const DOORS: [&str; 3] = ["doors/red", "doors/green", "doors/blue"];
/// The lock of the groups, and the groups.
const GPU: &str = "gpu/0";
const MODELS: [&str; 2] = ["llama", "whisper"];
/// How long somebody stays inside.
const STAY: Duration = Duration::from_millis(2);
/// How long somebody waits before asking anew.
const PATIENCE: Duration = Duration::from_secs(20);

/// How often somebody tries to release before leaving that to the TTL.
const RELEASES: usize = 20;
/// How long somebody over HTTP waits when no node serves.
const AGAIN: Duration = Duration::from_millis(20);

/// What all clients share.
pub(super) struct Fight {
    target: Target,
    over: Cell<bool>,
    seen: RefCell<Verdict>,
}

impl Fight {
    pub(super) fn new(target: Target) -> Self {
        Self {
            target,
            over: Cell::new(false),
            seen: RefCell::default(),
        }
    }

    /// Starts all clients.
    pub(super) async fn begin(self: &Rc<Self>) -> Result<Vec<JoinHandle<()>>, Failure> {
        let mut all = Vec::new();
        for number in 0..ALONE - THIN {
            let client = self.client().await?;
            let fight = Rc::clone(self);
            all.push(tokio::task::spawn_local(async move {
                fight.smart(&client, number, None).await;
            }));
        }
        for number in 0..THIN {
            let fight = Rc::clone(self);
            all.push(tokio::task::spawn_local(
                async move { fight.thin(number).await },
            ));
        }
        for number in 0..GROUPED {
            let client = self.client().await?;
            let fight = Rc::clone(self);
            let model = MODELS[number % MODELS.len()];
            all.push(tokio::task::spawn_local(async move {
                fight.smart(&client, number, Some(model)).await;
            }));
        }
        Ok(all)
    }

    async fn client(&self) -> Result<Client, Failure> {
        let client = self.target.client().await;
        client.map_err(|error| Failure::NoQuorum(error.to_string()))
    }

    /// Tells all clients to leave.
    pub(super) fn end(&self) {
        self.over.set(true);
    }

    /// How many locks were taken so far.
    pub(super) fn taken(&self) -> u64 {
        self.seen.borrow().taken()
    }

    /// So many nodes were killed.
    pub(super) fn killed(&self, nodes: usize) {
        self.seen.borrow_mut().killed += nodes;
    }

    /// What was seen, checked.
    pub(super) fn verdict(&self) -> Verdict {
        let mut verdict = self.seen.take();
        verdict.check();
        verdict
    }

    /// A client that asks the nodes itself.
    async fn smart(&self, client: &Client, number: usize, model: Option<&str>) {
        for round in 0.. {
            if self.over.get() {
                break;
            }
            let name = model.map_or(DOORS[(number + round) % DOORS.len()], |_| GPU);
            let mut request = client.lock(name).ttl(TTL);
            if let Some(model) = model {
                request = request.group(model);
            }
            let Ok(guard) = request.acquire_timeout(PATIENCE).await else {
                self.seen.borrow_mut().failed += 1;
                continue;
            };
            let entered = clock::now().mono.nanos();
            let (token, group) = (guard.token(), guard.group().to_string());
            tokio::time::sleep(STAY).await;
            // Whoever lost the lock is not inside any more, whatever the clock says.
            let until = guard.until_nanos();
            let left = clock::now().mono.nanos().min(until);
            let kept = guard.release().await.is_ok();
            self.stayed(name, Stay::new(group, token, entered, left), kept);
        }
        client.close().await;
    }

    /// A client that knows nothing but HTTP, and asks whichever node answers.
    async fn thin(&self, number: usize) {
        let mut nodes = Thin::new(self.target.clone(), number);
        for round in 0.. {
            if self.over.get() {
                break;
            }
            let name = DOORS[(number + round) % DOORS.len()];
            let wish = json!({
                "ttl_ms": millis(TTL),
                "wait_ms": millis(TTL * 5),
                "owner": format!("thin client {number}"),
                // Whoever asks again with it, at any node, is not in its own way.
                "id": format!("{number}/{round}"),
            });
            let asked = clock::now().mono.nanos();
            let path = format!("/v1/locks/{name}/acquire");
            let taken = nodes.post(&path, &wish, TTL * 5).await;
            let Some((200, taken)) = taken else {
                tokio::time::sleep(AGAIN).await;
                continue;
            };
            let entered = clock::now().mono.nanos();
            let nanos = |field: &str| taken[field].as_u64().unwrap_or(0).saturating_mul(1_000_000);
            let until = asked + nanos("waited_ms") + nanos("valid_ms");
            let token = taken["token"].as_u64().unwrap_or(0);
            let group = taken["group"].as_str().unwrap_or_default().to_owned();
            tokio::time::sleep(STAY).await;
            let left = clock::now().mono.nanos();
            let kept = left < until;
            if entered < until {
                self.stayed(
                    name,
                    Stay::new(group, token, entered, left.min(until)),
                    kept,
                );
            }
            let handle = json!({ "handle": taken["handle"] });
            // Through the next node, to show that any will do.
            nodes.turn();
            for _ in 0..RELEASES {
                let done = nodes.post("/v1/locks/release", &handle, Duration::ZERO);
                if let Some((200, _)) = done.await {
                    break;
                }
                tokio::time::sleep(AGAIN).await;
            }
        }
    }

    fn stayed(&self, name: &'static str, stay: Stay, kept: bool) {
        let mut seen = self.seen.borrow_mut();
        seen.lost += usize::from(!kept);
        seen.add(name, stay);
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
