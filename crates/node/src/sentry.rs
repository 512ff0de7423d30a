//! A panic in any thread or task of a node ends the node.
//!
//! What a thread leaves behind when it panics is in no known state, and the others would wait for
//! it for ever. So everything that a node starts is started here: a panic is told to the log with
//! the name of its thread, and the node ends with it as an error, as after a failure of its disk.
//! A panic in the handler of one request is no exception.

use std::any::Any;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use futures_util::FutureExt;

use crate::NodeError;

/// Starts threads and tasks of one node and ends it when one of them panics. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Sentry {
    state: Arc<Mutex<State>>,
    /// The thread or task of this name panics as soon as it starts.
    #[cfg(test)]
    pub(crate) trip: Option<&'static str>,
}

#[derive(Default)]
struct State {
    /// The first panic, if nobody has been told yet.
    fault: Option<NodeError>,
    end: Option<End>,
}

/// Ends the node.
type End = Box<dyn Fn(NodeError) + Send>;

impl fmt::Debug for Sentry {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Sentry").finish_non_exhaustive()
    }
}

impl Sentry {
    pub(crate) fn new() -> Self {
        Self {
            #[cfg(test)]
            trip: tests::TRIP.get(),
            ..Self::default()
        }
    }

    /// How the node is ended. A panic that came before is told at once.
    pub(crate) fn on_panic(&self, end: impl Fn(NodeError) + Send + 'static) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fault) = state.fault.take() {
            end(fault);
        }
        state.end = Some(Box::new(end));
    }

    /// Tells of a panic and ends the node.
    fn end(&self, fault: NodeError) {
        tracing::error!("{fault}");
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &state.end {
            Some(end) => end(fault),
            None => state.fault = Some(fault),
        }
    }

    /// Ends the node because of a panic that its client has caught.
    pub(crate) fn told(&self, name: &str, words: &str) {
        self.end(NodeError::Panic {
            thread: name.to_owned(),
            words: words.to_owned(),
        });
    }

    /// Starts a thread.
    pub(crate) fn thread(
        &self,
        name: &str,
        run: impl FnOnce() + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let (sentry, place) = (self.clone(), name.to_owned());
        let thread = Builder::new().name(name.to_owned());
        thread.spawn(move || {
            sentry.run(&place, run);
        })
    }

    /// Does something; none if it panicked.
    pub(crate) fn run<T>(&self, name: &str, run: impl FnOnce() -> T) -> Option<T> {
        self.catch(name, run).map_err(|fault| self.end(fault)).ok()
    }

    /// Does something for a thread that ends the node itself.
    pub(crate) fn catch<T>(&self, name: &str, run: impl FnOnce() -> T) -> Result<T, NodeError> {
        let run = || {
            self.may_trip(name);
            run()
        };
        catch_unwind(AssertUnwindSafe(run)).map_err(|panic| fault(name, &*panic))
    }

    /// The same task, guarded; none if it panicked.
    pub(crate) fn task<F: Future>(
        &self,
        name: &'static str,
        task: F,
    ) -> impl Future<Output = Option<F::Output>> + use<F> {
        let sentry = self.clone();
        async move {
            let task = async {
                sentry.may_trip(name);
                task.await
            };
            let done = AssertUnwindSafe(task).catch_unwind().await;
            done.map_err(|panic| sentry.end(fault(name, &*panic))).ok()
        }
    }

    #[cfg(test)]
    fn may_trip(&self, name: &str) {
        assert!(self.trip != Some(name), "tripped");
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "tests make it panic here")]
    fn may_trip(&self, _name: &str) {}
}

fn fault(thread: &str, panic: &(dyn Any + Send)) -> NodeError {
    NodeError::Panic {
        thread: thread.to_owned(),
        words: words(panic),
    }
}

/// What a panic said.
pub(crate) fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without words".to_owned())
}

#[cfg(test)]
mod tests;
