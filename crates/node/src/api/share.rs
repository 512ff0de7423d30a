//! Places that callers share: whoever is greedy alone gets half of them, and whoever comes next
//! always finds one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// So many places everyone may have while there are any.
const LEAST: usize = 16;

/// So many places for all callers.
#[derive(Debug)]
pub(crate) struct Shares {
    most: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_account: BTreeMap<Arc<str>, usize>,
}

impl Shares {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            taken: Mutex::default(),
        })
    }

    /// A place for a caller; none if all are taken, or it has as many as are free.
    pub(crate) fn take(self: &Arc<Self>, account: &Arc<str>) -> Option<Place> {
        let mut taken = self.lock();
        let free = self.most.saturating_sub(taken.all);
        let own = taken.by_account.get(account).copied().unwrap_or(0);
        if free == 0 || own >= free.max(LEAST) {
            return None;
        }
        taken.all += 1;
        *taken.by_account.entry(account.clone()).or_default() += 1;
        Some(Place {
            shares: self.clone(),
            account: account.clone(),
        })
    }

    /// How many are taken.
    pub(crate) fn taken(&self) -> usize {
        self.lock().all
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place that is taken until this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    shares: Arc<Shares>,
    account: Arc<str>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.shares.lock();
        taken.all -= 1;
        if let Some(own) = taken.by_account.get_mut(&self.account) {
            *own -= 1;
            if *own == 0 {
                taken.by_account.remove(&self.account);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_greedy_leaves_room_for_the_next() {
        let shares = Shares::new(100);
        let take_all = |who: &str| {
            let who = who.into();
            let taken = std::iter::from_fn(|| shares.take(&who));
            taken.collect::<Vec<_>>()
        };
        let greedy = take_all("greedy");
        assert_eq!(greedy.len(), 50);
        let second = take_all("second");
        assert_eq!(second.len(), 25);
        assert!(shares.take(&"modest".into()).is_some());
        drop(greedy);
        assert_eq!(shares.taken(), 25);
        assert!(!take_all("second").is_empty(), "what is free again counts");
        drop(second);
        assert_eq!(shares.taken(), 0);
        assert!(shares.lock().by_account.is_empty());
    }

    #[test]
    fn few_places_are_for_whoever_comes_first() {
        let shares = Shares::new(2);
        let places = [shares.take(&"a".into()), shares.take(&"a".into())];
        assert!(places.iter().all(Option::is_some));
        assert!(shares.take(&"b".into()).is_none());
    }
}
