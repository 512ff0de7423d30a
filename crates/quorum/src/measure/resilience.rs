//! Resilience.
