//! The properties of leases, on true time.

use conclave_protocol::id::Token;

use crate::fact::{True, Violation};

/// A token this far above the true time of day, in microseconds, was not chosen by a clock.
const INFLATED: u64 = 3_700_000_000;

/// A lease that a client holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    pub(super) client: usize,
    pub(super) token: Token,
    pub(super) from: True,
    pub(super) until: True,
    /// Whether a vote for an older attempt was counted.
    pub(super) late: bool,
    /// Whether a vote was counted that was given only after a wait.
    pub(super) delayed: bool,
}

/// Watches all leases of the name.
#[derive(Debug)]
pub(super) struct Check {
    /// Leases that may still be held, each under its number.
    live: Vec<(u64, Lease)>,
    largest: Option<(Token, usize)>,
    count: u64,
    /// Whether it is the protocol as it was published: no tokens, and known ways to break it.
    paper: bool,
}

impl Check {
    /// Nothing has happened yet.
    pub(super) fn new(paper: bool) -> Self {
        Self {
            live: Vec::new(),
            largest: None,
            count: 0,
            paper,
        }
    }

    /// How many leases were won.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Whether somebody other than this client holds the lease.
    pub(super) fn held_by_other(&self, client: usize, now: True) -> bool {
        let mut live = self.live.iter();
        live.any(|(_, lease)| lease.client != client && lease.until > now)
    }

    /// A client has won a lease; returns its number.
    pub(super) fn won(&mut self, lease: Lease, wall: u64) -> Result<u64, Violation> {
        let now = lease.from;
        let broken = |property, what| {
            Err(Violation {
                property,
                at: now,
                what,
            })
        };
        self.live.retain(|(_, other)| other.until > now);
        if let Some((_, other)) = self.live.first() {
            let seconds = |at: True| at.0 as f64 / 1e9;
            let property = if self.paper && (lease.late || other.late) {
                "overlap (late answer)"
            } else if self.paper && (lease.delayed || other.delayed) {
                "overlap (delayed list)"
            } else {
                "overlap"
            };
            let what = format!(
                "c{} has the lease from {:.6} s on, and c{} until {:.6} s",
                lease.client + 1,
                seconds(now),
                other.client + 1,
                seconds(other.until)
            );
            return broken(property, what);
        }
        if !self.paper {
            if let Some((largest, other)) = self.largest
                && lease.token <= largest
            {
                let what = format!(
                    "c{} has token {} after c{} had {largest}",
                    lease.client + 1,
                    lease.token,
                    other + 1
                );
                return broken("token-order", what);
            }
            if lease.token.0 > wall.saturating_add(INFLATED) {
                let what = format!("c{} has token {} at {wall}", lease.client + 1, lease.token);
                return broken("token-inflation", what);
            }
            self.largest = Some((lease.token, lease.client));
        }
        self.count += 1;
        self.live.push((self.count, lease));
        Ok(self.count)
    }

    /// A lease is extended.
    pub(super) fn renewed(&mut self, number: u64, until: True) {
        if let Some((_, lease)) = self.live.iter_mut().find(|(other, _)| *other == number) {
            lease.until = lease.until.max(until);
        }
    }

    /// A lease is given back.
    pub(super) fn ended(&mut self, number: u64, at: True) {
        if let Some((_, lease)) = self.live.iter_mut().find(|(other, _)| *other == number) {
            lease.until = lease.until.min(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(client: usize, token: u64, from: u64, until: u64) -> Lease {
        Lease {
            client,
            token: Token(token),
            from: True(from),
            until: True(until),
            late: false,
            delayed: false,
        }
    }

    fn broken(result: Result<u64, Violation>) -> &'static str {
        result.map_or_else(|violation| violation.property, |_| "nothing")
    }

    #[test]
    fn overlaps_and_old_tokens_are_seen() {
        let mut check = Check::new(false);
        let first = check.won(lease(0, 5, 0, 100), 0).unwrap();
        assert!(check.held_by_other(1, True(99)) && !check.held_by_other(0, True(99)));
        check.renewed(first, True(150));
        assert_eq!(broken(check.won(lease(1, 6, 149, 200), 0)), "overlap");
        assert_eq!(broken(check.won(lease(1, 5, 150, 200), 0)), "token-order");
        let second = check.won(lease(1, 6, 150, 200), 0).unwrap();
        check.ended(second, True(160));
        assert_eq!(broken(check.won(lease(0, 7, 160, 200), 0)), "nothing");
        assert_eq!(
            broken(check.won(lease(0, u64::MAX, 300, 400), 0)),
            "token-inflation"
        );
    }
}
