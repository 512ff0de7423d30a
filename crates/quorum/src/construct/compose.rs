//! compose.
