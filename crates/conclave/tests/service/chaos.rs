//! Short chaos runs: real processes under load while nodes and clients are killed, stopped, cut
//! off and restarted; their histories go through the checkers of the simulator.

use std::process::Command;

use serde_json::Value;

/// A run in which nothing may be violated.
fn chaos(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_conclave"))
        .args(["chaos", "run", "--json", "--ttl", "1s"])
        .args(arguments)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["violations"], serde_json::json!([]), "{report:#}");
    assert!(report["entered"]["smart"].as_u64() > Some(10), "{report:#}");
    report
}

#[test]
fn nothing_is_violated_while_processes_are_broken_on_purpose() {
    let report = chaos(&[
        "--seconds",
        "9",
        "--seed",
        "3",
        "--smart",
        "4",
        "--thin",
        "3",
        "--faults",
        "kill,cut,pause,kill-client,rolling,power",
    ]);
    assert!(report["entered"]["thin"].as_u64() > Some(10), "{report:#}");
    assert!(report["node_crashes"].as_u64() >= Some(5), "{report:#}");
    let checked = report["checked"].as_array().unwrap();
    for property in ["exclusion", "token-order", "lost-in-time", "admission"] {
        assert!(checked.contains(&property.into()), "{property}");
    }
}

#[test]
fn nothing_is_violated_where_groups_have_cartels_of_their_own() {
    let system = ["--quorum", "surficial(groups=2, n=4)"];
    let more = ["--groups", "red,blue", "--faults", "kill,cut"];
    chaos(&[&system[..], &more, &["--seconds", "3"]].concat());
}

#[test]
fn nothing_is_violated_under_the_serial_protocol() {
    let policy = ["--policy", "chaos/:protocol=serial", "--thin", "0"];
    chaos(&[&policy[..], &["--faults", "kill,cut", "--seconds", "3"]].concat());
}
