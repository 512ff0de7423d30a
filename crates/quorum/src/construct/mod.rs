//! The constructions, one file each.

pub mod affine;
pub mod billiard;
pub mod explicit;
pub mod fallback;
pub mod field;
pub mod formula;
pub mod grid;
pub mod groups;
pub mod multilevel;
pub mod plane;
pub mod surficial;
pub mod walls;
