//! Work on all cores, with a progress line.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::output::Progress;

/// What all figures of a run have in common.
pub(crate) struct Setting {
    /// Fewer and smaller runs.
    pub(crate) quick: bool,
    pub(crate) seed: u64,
    /// Shown to a terminal; none with JSON.
    pub(crate) progress: Option<Progress>,
}

impl Setting {
    /// The first number for a full run, the second for a quick one.
    pub(crate) fn either<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Does all tasks on all cores, costly ones first; results come in the order of the tasks.
    pub(crate) fn each<T: Sync, R: Send>(
        &self,
        what: &str,
        tasks: &[T],
        cost: impl Fn(&T) -> u64,
        work: impl Fn(&T) -> R + Sync,
    ) -> Vec<R> {
        let costs: Vec<u64> = tasks.iter().map(&cost).collect();
        let total: u64 = costs.iter().sum();
        let mut order: Vec<usize> = (0..tasks.len()).collect();
        order.sort_by_key(|place| std::cmp::Reverse(costs[*place]));
        if let Some(progress) = &self.progress {
            progress.say(what);
            progress.set(0, total);
        }
        let next = AtomicUsize::new(0);
        let results: Mutex<(u64, Vec<(usize, R)>)> = Mutex::new((0, Vec::new()));
        let worker = || {
            while let Some(place) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                let result = work(&tasks[*place]);
                if let Ok(mut results) = results.lock() {
                    results.0 += costs[*place];
                    results.1.push((*place, result));
                    if let Some(progress) = &self.progress {
                        progress.set(results.0, total);
                    }
                }
            }
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..cores.min(tasks.len()) {
                scope.spawn(worker);
            }
        });
        let mut results = results
            .into_inner()
            .map_or_else(|_| Vec::new(), |done| done.1);
        results.sort_by_key(|(place, _)| *place);
        results.into_iter().map(|(_, result)| result).collect()
    }
}

#[cfg(test)]
impl Setting {
    /// A quick run that tells nothing.
    pub(crate) fn quiet() -> Self {
        Self {
            quick: true,
            seed: 1,
            progress: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_tasks() {
        let tasks: Vec<u64> = (0..100).collect();
        let setting = Setting::quiet();
        let found = setting.each("", &tasks, |task| task % 7, |task| task * 2);
        assert_eq!(found, (0..100).map(|task| task * 2).collect::<Vec<_>>());
        let none: Vec<u64> = setting.each("", &[], |_: &u64| 1, |task| *task);
        assert!(none.is_empty());
    }
}
