//! Compiles the protobuf definitions; no protoc is needed.

use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    println!("cargo:rerun-if-changed={}", root.display());
    println!("cargo:rerun-if-changed=build.rs");

    let peer = [
        "peer/v1/peer.proto",
        "peer/v1/keeper.proto",
        "peer/v1/levels.proto",
    ];
    let peer = protox::compile(peer, [&root])?;
    tonic_prost_build::configure()
        .btree_map(".")
        .compile_fds(peer)?;

    let public = [
        "conclave/v1/locks.proto",
        "conclave/v1/cluster.proto",
        "conclave/v1/leases.proto",
        "conclave/v1/objects.proto",
    ];
    let public = protox::compile(public, [&root])?;
    // What carries a handle gets a `Debug` that does not show it.
    let secret = [
        "Acquired",
        "KeepAliveRequest",
        "ReleaseRequest",
        "Leased",
        "RenewLeaseRequest",
        "ReleaseLeaseRequest",
    ];
    tonic_prost_build::configure()
        .btree_map(".")
        .skip_debug(secret.map(|name| format!(".conclave.v1.{name}")))
        .compile_fds(public)?;
    Ok(())
}
