//! Runs the real binary.

use std::path::Path;
use std::process::Command;

/// How a run of the binary ended.
pub(crate) struct Run {
    /// The exit code; `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    /// Standard output.
    pub(crate) out: String,
    /// Standard error.
    pub(crate) err: String,
}

/// Runs `conclave` with these arguments in this directory.
pub(crate) fn conclave<S: AsRef<str>>(directory: &Path, arguments: &[S]) -> Run {
    let output = Command::new(env!("CARGO_BIN_EXE_conclave"))
        .args(arguments.iter().map(AsRef::as_ref))
        .current_dir(directory)
        .output()
        .expect("the binary starts");
    Run {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).expect("standard output is UTF-8"),
        err: String::from_utf8(output.stderr).expect("standard error is UTF-8"),
    }
}

/// A directory that is gone after the test.
pub(crate) fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// Writes a file into the directory.
pub(crate) fn put(directory: &Path, name: &str, content: impl AsRef<[u8]>) {
    std::fs::write(directory.join(name), content).expect("the file is written");
}
