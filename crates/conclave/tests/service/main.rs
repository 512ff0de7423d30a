//! The service as its users meet it: real processes, real signals, real files.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod access;
mod against;
mod audit;
mod browser;
mod chaos;
mod cluster;
mod demo;
mod elect;
mod keeper;
mod lease;
mod lock;
mod logs;
mod look;
mod object;
mod scaling;
mod systems;
mod tls;
mod together;
mod up;
