//! The API of real nodes over real sockets.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod errors;
mod gone;
mod grpc;
mod harness;
mod limits;
mod locks;
mod looks;
mod stream;
mod watch;
