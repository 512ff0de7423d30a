//! How a client that knows nothing but HTTP reaches a cluster: one node after the other, leaving
//! those that do not live. It does what docs/curl.md advises and the Python client does.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Target, http};

/// How long a node may be silent before it is asked whether it lives.
const SILENCE: Duration = Duration::from_millis(120);
/// How long it may take to say so.
const PROBE: Duration = Duration::from_millis(150);
/// How long a node that lives may take beyond what it was asked to wait.
const PATIENCE: Duration = Duration::from_secs(3);
/// For so long a node that was found dead is asked after the others.
const SUSPICION: Duration = Duration::from_secs(2);

/// The nodes as a thin client sees them.
#[derive(Clone, Debug)]
pub(crate) struct Thin {
    target: Target,
    /// Whom to ask first.
    first: usize,
    /// When each was found dead last.
    dead: Vec<Option<Instant>>,
}

impl Thin {
    /// Asks the nodes of `target`, beginning with this one.
    pub(crate) fn new(target: Target, first: usize) -> Self {
        Self {
            first,
            dead: vec![None; target.urls.len()],
            target,
        }
    }

    /// The next request goes to the next node.
    pub(crate) fn turn(&mut self) {
        self.first += 1;
    }

    /// Sends JSON that a node may take `wait` to answer; the first answer of a node that serves.
    /// It may have been carried out more than once.
    pub(crate) async fn post(
        &mut self,
        path: &str,
        body: &Value,
        wait: Duration,
    ) -> Option<(u16, Value)> {
        for place in self.order() {
            let url = &self.target.urls[place];
            let whole = format!("{url}{path}");
            let answer = http::post(&whole, &self.target.security, body, wait + PATIENCE);
            let answer = tokio::select! {
                answer = answer => answer.ok(),
                () = self.dies(place) => None,
            };
            match answer {
                Some(answer) if answer.status != 503 => {
                    self.first = place;
                    return Some((answer.status, answer.json().unwrap_or_default()));
                }
                Some(_) => {}
                None => self.dead[place] = Some(Instant::now()),
            }
        }
        None
    }

    /// The nodes, beginning with the one that answered last; those that were found dead a moment
    /// ago come last.
    fn order(&self) -> Vec<usize> {
        let count = self.dead.len();
        let mut order: Vec<usize> = (0..count).map(|turn| (self.first + turn) % count).collect();
        order.sort_by_key(|place| self.dead[*place].is_some_and(|at| at.elapsed() < SUSPICION));
        order
    }

    /// Ends when a node that is silent does not say that it lives.
    async fn dies(&self, place: usize) {
        let url = format!("{}/healthz", self.target.urls[place]);
        loop {
            tokio::time::sleep(SILENCE).await;
            if http::get(&url, &self.target.security, PROBE).await.is_err() {
                return;
            }
        }
    }
}
