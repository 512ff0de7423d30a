//! Surficial group systems.
