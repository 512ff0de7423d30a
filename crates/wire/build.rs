//! Compiles the protobuf definitions; no protoc is needed.

use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    println!("cargo:rerun-if-changed={}", root.display());
    println!("cargo:rerun-if-changed=build.rs");

    let peer = protox::compile(["peer/v1/peer.proto"], [&root])?;
    tonic_prost_build::configure()
        .btree_map(".")
        .build_client(false)
        .build_server(false)
        .compile_fds(peer)?;
    Ok(())
}
