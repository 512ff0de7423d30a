//! Projective planes.
