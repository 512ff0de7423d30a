//! Redlock over independent Redis: a lock is ours where a majority of the servers says so before
//! it might have run out again.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::time::timeout;

use super::redis::{self, Held, Link, TTL_MS};
use super::servers::Servers;
use super::site::{Place, Site, System, Wanted};
use crate::bench::load::{self, Company};
use crate::cli::Failure;

/// How long one server may take to answer: short beside the time that a lock lasts.
const ANSWER: Duration = Duration::from_millis(50);

/// How long a lock is ours if the majority answered after `took`: clocks may drift by a hundredth
/// of its time and two milliseconds.
fn validity(took: Duration) -> Option<Duration> {
    let ttl = Duration::from_millis(TTL_MS);
    let drift = ttl / 100 + Duration::from_millis(2);
    ttl.checked_sub(took)?
        .checked_sub(drift)
        .filter(|left| !left.is_zero())
}

/// As many servers as other systems have, which know nothing of each other.
#[derive(Debug)]
pub(super) struct Redlock {
    servers: Servers,
    ports: Vec<u16>,
}

/// All tasks share one connection per server.
#[derive(Clone)]
pub(super) struct Taker {
    links: Vec<Link>,
    patience: Duration,
}

impl Taker {
    /// One attempt: whether a majority agreed in time. The verdict does not wait for stragglers;
    /// what they are still to do comes before the release on the same connection.
    async fn attempt(&self, name: &str, secret: &str) -> bool {
        let start = Instant::now();
        let majority = self.links.len() / 2 + 1;
        let mut answers: FuturesUnordered<_> = self
            .links
            .iter()
            .map(|link| link.set(name, secret))
            .collect();
        let (mut yes, mut no) = (0, 0);
        while let Some(answer) = answers.next().await {
            if answer == Ok(true) {
                yes += 1;
            } else {
                no += 1;
            }
            if yes >= majority {
                return validity(start.elapsed()).is_some();
            }
            if no > self.links.len() - majority {
                return false;
            }
        }
        false
    }

    /// Gives the lock back everywhere, and tells at how many servers it was ours.
    async fn give_back(&self, name: &str, secret: &str) -> usize {
        let all = self.links.iter().map(|link| link.unset(name, secret));
        let answers = join_all(all).await;
        answers.iter().filter(|answer| **answer == Ok(true)).count()
    }
}

impl load::Taker for Taker {
    type Held = Held;

    async fn acquire(&self, name: &str, _: Company) -> Result<Held, String> {
        let name = name.to_owned();
        let secret = redis::secret()?;
        let attempts = async {
            while !self.attempt(&name, &secret).await {
                self.give_back(&name, &secret).await;
                redis::pause().await;
            }
        };
        let done = timeout(self.patience, attempts).await;
        done.map_err(|_| "not acquired in time".to_owned())?;
        Ok(Held { name, secret })
    }

    async fn release(&self, held: Held) -> Result<(), String> {
        let released = self.give_back(&held.name, &held.secret).await;
        if released > self.links.len() / 2 {
            return Ok(());
        }
        Err("the lock was lost".to_owned())
    }

    fn token(_: &Held) -> Option<u64> {
        None
    }

    fn company(_: Company) -> Company {
        Company::Alone
    }
}

impl Site for Redlock {
    type Taker = Taker;
    type Fleet = Servers;

    async fn start(place: &Place, _: System) -> Result<Self, Failure> {
        let (servers, ports) = redis::spawn(place, place.nodes)?;
        Ok(Self { servers, ports })
    }

    async fn takers(&self, wanted: Wanted) -> Result<Vec<Taker>, String> {
        let mut links = Vec::new();
        let answer = if wanted.roam {
            ANSWER
        } else {
            Duration::from_secs(2)
        };
        for port in &self.ports {
            links.push(Link::open(*port, answer).await?);
        }
        let patience = wanted.patience;
        Ok(vec![Taker { links, patience }])
    }

    fn fleet(&self) -> &Servers {
        &self.servers
    }

    fn fleet_mut(&mut self) -> &mut Servers {
        &mut self.servers
    }

    async fn fsyncs(&self) -> Option<u64> {
        redis::fsyncs(&self.ports).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_took_too_long_is_none() {
        let quick = validity(Duration::from_millis(3));
        assert_eq!(quick, Some(Duration::from_millis(10_000 - 3 - 102)));
        assert_eq!(validity(Duration::from_millis(9_898)), None);
        assert_eq!(validity(Duration::from_secs(11)), None);
    }
}
