//! Billiard quorums on the checkerboard grid, after D. Agrawal, Ö. Eğecioğlu and A. El Abbadi,
//! *Billiard Quorums on the Grid*, Information Processing Letters 64 (1997).
//!
//! | paper | here |
//! |---|---|
//! | modified grid, `R_{i,j}` | [`Board`], [`Board::site_at`] |
//! | site `n` | site `n - 1`: code counts from 0 |
//! | billiard path of `n`, `x_1 .. x_q` | [`Board::own_path`] |
//! | quorum `S_n` | [`Board::own`]; all of them are tier T0 of [`Billiard`] |
//! | row and column quorums (section 5) | [`crosses`]: only one parity class is safe |
//! | hierarchical structuring | [`Hierarchy`] |
//!
//! Beyond the paper: the other quorums of `q` sites on the same board (T1), fallbacks for
//! failures (T2 to T4), and boards for any number of sites by folding.

mod board;
mod circuits;
pub mod crosses;
mod hierarchy;
mod listing;
mod load;
mod paths;
mod quorums;
mod reach;
mod tiers;

pub use board::{Board, BoardError, SITES_MAX};
pub use hierarchy::{Form, Hierarchy, HierarchyError};
pub use quorums::Billiard;
pub use tiers::{Tier, TierError, Tiers};
