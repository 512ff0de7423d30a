//! The house rules that no compiler checks: which crate may use which, what the pure crates must
//! not touch, and a few habits of the sources.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The one file that may use a hash table: it wraps it so that nobody can walk it.
const TABLE: &str = "protocol/src/table.rs";

/// Crates without clock, socket, thread, random source or unstable iteration order.
const PURE: [&str; 2] = ["quorum", "protocol"];

/// What must not stand in the sources of a pure crate, and why.
const BANNED: [(&str, &str); 12] = [
    ("Instant::now", "time is an argument"),
    ("SystemTime", "time is an argument"),
    ("std::thread", "no threads"),
    ("std::net", "no sockets"),
    ("std::fs", "no files"),
    ("std::process", "no processes"),
    ("std::env", "no environment"),
    ("HashMap", "its iteration order changes from run to run"),
    ("HashSet", "its iteration order changes from run to run"),
    ("RandomState", "chance is an argument"),
    ("rand::", "chance is an argument"),
    ("tokio", "no runtime"),
];

/// Crates that a pure crate may not name as a dependency.
const BANNED_CRATES: [&str; 8] = [
    "tokio",
    "rand",
    "getrandom",
    "mio",
    "socket2",
    "hyper",
    "chrono",
    "time",
];

const LINE_MAX: usize = 100;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn rust_files(folder: &Path, into: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().unwrap() != "target" {
            rust_files(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    rust_files(&root().join(folder), &mut files);
    assert!(!files.is_empty(), "no sources below {folder}");
    files
        .into_iter()
        .map(|path| (path.clone(), fs::read_to_string(path).unwrap()))
        .collect()
}

/// Lines of a source that break the bans. Comments may speak of anything.
fn banned(source: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (place, line) in source.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        for (word, why) in BANNED {
            if code.contains(word) {
                found.push((place + 1, format!("{word}: {why}")));
            }
        }
    }
    found
}

/// Lines of a source that break a habit.
fn untidy(source: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (place, line) in source.lines().enumerate() {
        let mut tell = |what: String| found.push((place + 1, what));
        if line.chars().count() > LINE_MAX {
            tell(format!("longer than {LINE_MAX} characters"));
        }
        if line.trim() == "#[ignore]" {
            tell("a test is ignored without a reason".to_owned());
        }
        for word in [
            "TO\u{44}O",
            "FIX\u{4d}E",
            "XX\u{58}",
            "\u{2f}root/",
            "\u{2f}work/",
        ] {
            if line.contains(word) {
                tell(format!("'{word}' stands in it"));
            }
        }
    }
    found
}

/// The crates of the house that each crate uses, from the manifests.
fn edges() -> BTreeMap<String, BTreeSet<String>> {
    let mut edges = BTreeMap::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let folder = entry.unwrap().path();
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let manifest: toml::Table = manifest.parse().unwrap();
        let used = manifest["dependencies"].as_table().unwrap().keys();
        let used = used.filter_map(|name| name.strip_prefix("conclave-"));
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        edges.insert(name, used.map(str::to_owned).collect());
    }
    edges
}

/// The edges that ARCHITECTURE.md allows: lines `crate -> crate, crate` of its `edges` block.
fn allowed(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let block = text
        .split("```edges\n")
        .nth(1)
        .expect("ARCHITECTURE.md has an edges block");
    let block = block.split("```").next().unwrap();
    block
        .lines()
        .map(|line| {
            let (from, to) = line.split_once("->").expect("an edge is written with ->");
            let to = to.split(',').map(str::trim).filter(|name| !name.is_empty());
            (from.trim().to_owned(), to.map(str::to_owned).collect())
        })
        .collect()
}

#[test]
fn crates_use_each_other_as_the_architecture_says() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    assert_eq!(
        edges(),
        allowed(&text),
        "left: manifests, right: ARCHITECTURE.md"
    );
}

#[test]
fn pure_crates_are_pure() {
    for name in PURE {
        let mut found = Vec::new();
        for (path, source) in sources(&format!("crates/{name}/src")) {
            if path.ends_with(TABLE) {
                continue;
            }
            let lines = banned(&source).into_iter();
            found.extend(lines.map(|(line, what)| format!("{}:{line}: {what}", path.display())));
        }
        assert!(found.is_empty(), "{found:#?}");
        let manifest = root().join(format!("crates/{name}/Cargo.toml"));
        let manifest: toml::Table = fs::read_to_string(manifest).unwrap().parse().unwrap();
        for used in manifest["dependencies"].as_table().unwrap().keys() {
            assert!(
                !BANNED_CRATES.contains(&used.as_str()),
                "{name} depends on {used}"
            );
        }
    }
}

#[test]
fn sources_are_tidy() {
    let mut found = Vec::new();
    for (path, source) in sources("crates") {
        let lines = untidy(&source).into_iter();
        found.extend(lines.map(|(line, what)| format!("{}:{line}: {what}", path.display())));
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn every_crate_takes_the_workspace_lints() {
    for name in edges().keys() {
        let manifest = root().join(format!("crates/{name}/Cargo.toml"));
        let manifest = fs::read_to_string(manifest).unwrap();
        assert!(
            manifest.contains("[lints]\nworkspace = true"),
            "{name} has no workspace lints"
        );
    }
}

#[test]
fn the_rules_can_be_broken() {
    assert_eq!(banned("let now = Instant::now();").len(), 1);
    assert_eq!(banned("use std::collections::HashMap; // fine?").len(), 1);
    assert_eq!(banned("// Instant::now is banned here").len(), 0);
    assert_eq!(untidy(&"x".repeat(101)).len(), 1);
    assert_eq!(untidy("    #[ignore]").len(), 1);
    assert_eq!(untidy("    #[ignore = \"takes a minute\"]").len(), 0);
    let one = allowed("```edges\nb -> a\na ->\n```");
    assert_eq!(one["b"], BTreeSet::from(["a".to_owned()]));
    assert!(one["a"].is_empty());
}
