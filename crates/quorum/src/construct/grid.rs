//! Grids.
