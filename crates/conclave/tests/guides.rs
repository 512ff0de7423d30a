//! The guides name only commands and options that exist, and link only to what is there.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

#[allow(dead_code, reason = "shared with tests that write files")]
mod common;

use common::{conclave, directory};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The pages for users.
fn pages() -> Vec<PathBuf> {
    let mut pages = vec![
        root().join("README.md"),
        root().join("clients/python/README.md"),
        root().join("deploy/README.md"),
        root().join("deploy/kubernetes/README.md"),
    ];
    for entry in fs::read_dir(root().join("docs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "md") {
            pages.push(path);
        }
    }
    pages
}

/// The commands that a page shows, in blocks and between backticks, without their comments.
fn commands(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut in_block = false;
    for line in page.lines() {
        if line.starts_with("```") {
            in_block = !in_block;
        } else if in_block {
            let line = line.trim_start().trim_start_matches("$ ");
            if line.starts_with("conclave ") {
                found.push(line.to_owned());
            }
        } else {
            let spans = line.split('`').skip(1).step_by(2);
            let spans = spans.filter(|span| span.starts_with("conclave "));
            found.extend(spans.map(str::to_owned));
        }
    }
    let command = |line: String| {
        let line = line.split("  ").next().unwrap_or_default();
        let line = line.split(" # ").next().unwrap_or_default();
        let line = line.split(" -- ").next().unwrap_or_default();
        line.split(" | ").next().unwrap_or_default().to_owned()
    };
    found.into_iter().map(command).collect()
}

/// What is wrong with a command, if anything.
fn wrong(command: &str) -> Option<String> {
    let words: Vec<&str> = command
        .split_whitespace()
        .skip(1)
        .map(|word| word.trim_matches(['[', ']', ',']))
        .collect();
    let is_name = |word: &&&str| {
        let mut letters = word.chars();
        letters.all(|letter| letter.is_ascii_lowercase() || letter == '-') && !word.starts_with('-')
    };
    let names: Vec<&str> = words.iter().take_while(is_name).copied().collect();
    if names.is_empty() {
        return None;
    }
    let home = directory();
    let help = conclave(home.path(), &[&names[..], &["--help"]].concat());
    if help.code != Some(0) {
        return Some(format!("'{command}': {}", help.err));
    }
    let known: BTreeSet<&str> = help
        .out
        .split(|letter: char| letter.is_whitespace() || "[],=<".contains(letter))
        .filter(|word| word.starts_with("--"))
        .collect();
    let options = words.iter().filter(|word| word.starts_with("--"));
    let options = options.map(|word| word.split('=').next().unwrap_or_default());
    let unknown: Vec<&str> = options.filter(|option| !known.contains(option)).collect();
    (!unknown.is_empty()).then(|| format!("'{command}': no {unknown:?}"))
}

#[test]
fn commands_in_the_guides_exist() {
    let mut all = BTreeSet::new();
    for page in pages() {
        all.extend(commands(&fs::read_to_string(page).unwrap()));
    }
    assert!(all.len() > 30, "the commands are found: {all:?}");
    let wrong: Vec<String> = all.iter().filter_map(|command| wrong(command)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The targets of links of a page that are files here.
fn targets(page: &str) -> Vec<&str> {
    let links = page.split("](").skip(1);
    let links = links.filter_map(|rest| rest.split(')').next());
    links
        .map(|link| link.split('#').next().unwrap_or_default())
        .filter(|link| !link.is_empty() && !link.contains("://"))
        .collect()
}

#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for target in targets(&text) {
            if !page.parent().unwrap().join(target).exists() {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn the_checks_can_fail() {
    let page = "a `conclave lock x --no-such` b\n```\n$ conclave status   # how\nls\n```\n";
    assert_eq!(
        commands(page),
        ["conclave lock x --no-such", "conclave status"]
    );
    assert!(wrong("conclave lock x --no-such").is_some());
    assert!(wrong("conclave no-such").is_some());
    assert!(wrong("conclave lock x [--shared | --ttl 10s]").is_none());
    assert_eq!(targets("[a](b.md#c) [d](https://e) [f](#g)"), ["b.md"]);
}
