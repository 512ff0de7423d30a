//! The Python client, by its own tests, against this very program.

use std::path::Path;
use std::process::Command;

#[test]
fn the_python_client_works_with_this_program() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/python");
    let version = "import sys; sys.exit(sys.version_info < (3, 9))";
    let python = Command::new("python3").args(["-c", version]).status();
    if !python.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no python3 of version 3.9 or newer");
        return;
    }
    let output = Command::new("python3")
        .args(["-B", "-m", "unittest", "discover", "-s", "tests", "-t", "."])
        .env("CONCLAVE_BIN", env!("CARGO_BIN_EXE_conclave"))
        .current_dir(folder)
        .output()
        .expect("python3 starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}
