//! A panic in a machine closes its client: what the machine knew is not to be trusted any more.
//! Here the words of the panic are kept, for everyone who then asks why.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::sync::watch;

/// Why a client closed itself, if it did.
#[derive(Debug)]
pub(crate) struct Fault(watch::Sender<Option<Arc<str>>>);

impl Default for Fault {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl Fault {
    /// Keeps the words of the first panic.
    pub(crate) fn tell(&self, words: &str) {
        tracing::error!(%words, "a fault in the client: it is closed and what it held is lost");
        self.0.send_if_modified(|told| {
            let first = told.is_none();
            told.get_or_insert_with(|| words.into());
            first
        });
    }

    /// What the panic said, if there was one.
    pub(crate) fn told(&self) -> Option<Arc<str>> {
        self.0.borrow().clone()
    }

    /// Waits for a panic; none if the client ended without.
    pub(crate) fn wait(&self) -> impl Future<Output = Option<Arc<str>>> + Send + use<> {
        let mut told = self.0.subscribe();
        async move {
            let told = told.wait_for(Option::is_some).await.ok()?;
            told.clone()
        }
    }
}

/// Does something; an error is what its panic said.
pub(crate) fn catch<T>(act: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(act)).map_err(|panic| words(&*panic))
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without words".to_owned())
}

#[cfg(test)]
mod tests;
