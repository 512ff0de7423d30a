//! The API of real nodes over real sockets.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod description;
mod errors;
mod gone;
mod grpc;
mod harness;
mod http2;
mod leases;
mod limits;
mod locks;
mod looks;
mod quota;
mod schema;
mod stream;
mod tls;
mod watch;
