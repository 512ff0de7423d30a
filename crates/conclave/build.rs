//! Compiles the few calls of etcd that `bench --against` makes; no protoc is needed.

use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_PEERS").is_none() {
        return Ok(());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bench/against");
    println!(
        "cargo:rerun-if-changed={}",
        root.join("etcd.proto").display()
    );
    println!(
        "cargo:rerun-if-changed={}",
        root.join("etcd_lock.proto").display()
    );
    let calls = protox::compile(["etcd.proto", "etcd_lock.proto"], [&root])?;
    tonic_prost_build::configure()
        .build_server(false)
        .compile_fds(calls)?;
    Ok(())
}
