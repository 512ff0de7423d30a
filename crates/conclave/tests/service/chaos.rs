//! A short chaos run: real processes under load while nodes and clients are killed, stopped, cut
//! off and restarted; their histories go through the checkers of the simulator.

use std::process::Command;

#[test]
fn nothing_is_violated_while_processes_are_broken_on_purpose() {
    let output = Command::new(env!("CARGO_BIN_EXE_conclave"))
        .args(["chaos", "run", "--json", "--seconds", "9", "--seed", "3"])
        .args(["--smart", "4", "--thin", "3", "--ttl", "1s"])
        .args(["--faults", "kill,cut,pause,kill-client,rolling,power"])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["violations"], serde_json::json!([]), "{report:#}");
    for kind in ["smart", "thin"] {
        assert!(report["entered"][kind].as_u64() > Some(10), "{report:#}");
    }
    assert!(report["node_crashes"].as_u64() >= Some(5), "{report:#}");
    let checked = report["checked"].as_array().unwrap();
    for property in ["exclusion", "token-order", "lost-in-time", "admission"] {
        assert!(checked.contains(&property.into()), "{property}");
    }
}
