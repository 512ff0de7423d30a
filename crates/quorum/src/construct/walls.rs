//! Crumbling walls.
