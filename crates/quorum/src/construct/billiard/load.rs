//! Load.

use crate::{LoadPlan, Prng};

use super::Board;
use super::paths::Paths;

/// A strategy.
#[derive(Clone, Debug)]
pub(super) struct Strategy;

impl Strategy {
    pub(super) fn draw(&self, _: &Board, _: &Paths, _: &mut Prng) -> Vec<usize> {
        Vec::new()
    }
    pub(super) fn load(&self, _: &Board) -> f64 {
        1.0
    }
}

pub(super) fn quick(_: &Board, _: &Paths) -> Option<Strategy> {
    None
}

pub(super) fn plan(_: &Board, _: &Paths, _: Option<&Strategy>) -> Option<LoadPlan> {
    None
}
