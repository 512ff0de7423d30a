//! A turn for the background task that nobody needs to hurry for.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};

/// Wakes the background task if something still waits to be written by then.
#[derive(Debug, Default)]
pub(super) struct Nudge {
    wanted: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Nudge {
    /// Whom to wake.
    pub(super) fn set_task(&self, task: &Waker) {
        *self.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task.clone());
    }

    /// Lets the background task have a turn once everybody who is ready on this thread has had
    /// one, unless [`Nudge::spare`] comes first.
    pub(super) fn ask(self: &Arc<Self>) {
        self.wanted.store(true, Ordering::SeqCst);
        Self::after_others(&Waker::from(self.clone()));
    }

    /// What waited was written: no turn is needed.
    pub(super) fn spare(&self) {
        self.wanted.store(false, Ordering::SeqCst);
    }

    /// Wakes a task once everybody who is ready on this thread has had a turn. To wake it at once
    /// would have the runtime rouse an idle thread for it, which costs more than the turn, or put
    /// it behind a caller that computes for long, where nothing else could wake it.
    pub(super) fn after_others(task: &Waker) {
        let mut cx = Context::from_waker(task);
        // Asked once, it sees to the waking; asked again it would only say that it has.
        let _ = pin!(tokio::task::yield_now()).poll(&mut cx);
    }
}

impl Wake for Nudge {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.wanted.swap(false, Ordering::SeqCst)
            && let Some(task) = &*self.task.lock().unwrap_or_else(PoisonError::into_inner)
        {
            task.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn a_turn_comes_after_others_and_only_if_it_is_still_wanted() {
        let woken = Arc::new(Count::default());
        let times = || woken.0.load(Ordering::SeqCst);
        let nudge = Arc::new(Nudge::default());
        nudge.set_task(&Waker::from(woken.clone()));
        nudge.ask();
        assert_eq!(times(), 0, "others come first");
        tokio::task::yield_now().await;
        assert_eq!(times(), 1);
        nudge.ask();
        nudge.spare();
        tokio::task::yield_now().await;
        assert_eq!(times(), 1, "it was written meanwhile");
        nudge.ask();
        nudge.ask();
        tokio::task::yield_now().await;
        assert_eq!(times(), 2, "one turn does for all");
    }

    /// Outside of a runtime nobody would ever come back to it.
    #[test]
    fn without_a_runtime_a_turn_comes_at_once() {
        let woken = Arc::new(Count::default());
        let nudge = Arc::new(Nudge::default());
        nudge.set_task(&Waker::from(woken.clone()));
        nudge.ask();
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
    }
}
