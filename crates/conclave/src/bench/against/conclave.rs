//! Conclave as one of the systems under test.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::timeout;

use super::site::{Fleet, Place, Site, System, Wanted};
use crate::bench::load::Conclave as Taker;
use crate::cli::Failure;
use crate::service::http;
use crate::service::local::{Local, LocalOptions};
use crate::service::shape::Shape;
use crate::service::up::Restart;
use crate::service::usage;

/// A cluster of node processes.
#[derive(Debug)]
pub(super) struct Cluster {
    local: Local,
    /// CPU seconds of nodes that were killed.
    spent: f64,
}

impl Site for Cluster {
    type Taker = Taker;
    type Fleet = Self;

    async fn start(place: &Place, system: System) -> Result<Self, Failure> {
        let restart = if system == System::Durable {
            Restart::Durable
        } else {
            Restart::Pause
        };
        let options = LocalOptions {
            shape: Shape {
                restart: Some(restart),
                ..place.shape.clone()
            },
            history: false,
        };
        Ok(Self {
            local: Local::start(&options).await?,
            spent: 0.0,
        })
    }

    async fn takers(&self, wanted: Wanted) -> Result<Vec<Taker>, String> {
        let client = self.local.target().client().await;
        Ok(vec![Taker {
            client: client.map_err(|error| error.to_string())?,
            patience: wanted.patience,
        }])
    }

    async fn close(&self, takers: Vec<Taker>) {
        for taker in takers {
            let _ = timeout(Duration::from_secs(5), taker.client.close()).await;
        }
    }

    fn fleet(&self) -> &Self {
        self
    }

    fn fleet_mut(&mut self) -> &mut Self {
        self
    }

    async fn fsyncs(&self) -> Option<u64> {
        let mut sum = 0;
        for endpoint in self.local.endpoints() {
            let url = format!("{endpoint}/metrics");
            let security = &self.local.target().security;
            let answer = http::get(&url, security, Duration::from_secs(2)).await;
            let text = String::from_utf8_lossy(&answer.ok()?.body).into_owned();
            sum += usage::metric(&text, "conclave_fsync_seconds_count");
        }
        Some(sum)
    }
}

impl Fleet for Cluster {
    fn ended(&mut self) -> Option<String> {
        None
    }

    fn last_words(&self) -> String {
        String::new()
    }

    fn cpu_seconds(&self) -> f64 {
        self.spent + self.local.cpu_seconds()
    }

    fn resident_mb(&self) -> f64 {
        let pids = self.local.pids();
        pids.into_iter().map(usage::resident_mb).sum()
    }

    fn hit(&mut self, server: usize, signal: Signal) {
        let id = server as u32 + 1;
        if signal == Signal::KILL {
            self.spent += self.local.pid(id).map_or(0.0, usage::cpu_seconds);
            self.local.kill(id);
        } else {
            self.local.signal(id, signal);
        }
    }
}
