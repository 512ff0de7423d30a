//! Failure probability.
