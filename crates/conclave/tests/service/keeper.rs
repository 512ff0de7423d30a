//! Nodes that keep leases and objects: flags, liars, chaos.

use std::process::Command;

use serde_json::Value;

fn conclave(arguments: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_conclave"));
    command.args(arguments).output().unwrap()
}

#[test]
fn what_clients_of_objects_saw_has_one_order_through_faults_and_a_liar() {
    let output = conclave(&[
        "chaos",
        "objects",
        "--json",
        "--nodes",
        "7",
        "--byzantine",
        "1",
        "--liar",
        "3=mix",
        "--clients",
        "3",
        "--seconds",
        "4",
        "--faults",
        "kill,pause,disk,power",
    ]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["broken"], serde_json::json!([]), "{report:#}");
    for object in report["objects"].as_array().unwrap() {
        assert!(object["answered"].as_u64() > Some(3), "{report:#}");
        assert_eq!(object["verdict"], "linearizable", "{report:#}");
    }
}

#[test]
fn a_node_in_service_cannot_be_made_to_lie() {
    let output = conclave(&["serve", "--lie", "forge", "--config", "nowhere.toml"]);
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("--lie"), "{told}");
    let help = conclave(&["serve", "--help"]);
    let help = String::from_utf8_lossy(&help.stdout).to_lowercase();
    for word in ["--lie", "--liar", "forge", "equivocate"] {
        assert!(!help.contains(word), "{word}");
    }
    // Nor by its file, its cluster's file or the environment.
    let folder = tempfile::tempdir().unwrap();
    for (file, line) in [("node.toml", "liar"), ("node.toml", "lie")] {
        let path = folder.path().join(file);
        std::fs::write(&path, format!("{line} = \"forge\"\n")).unwrap();
        let output = conclave(&["serve", "--config", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2));
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.contains("unknown field"), "{told}");
    }
}

#[test]
fn a_liar_runs_only_on_this_machine() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("node.toml");
    let text = "id = 1\ndata = \"data\"\nsecret_file = \"secret\"\ninsecure = true\n[cluster]\n\
        name = \"far\"\nepoch = 1\nquorum = \"majority\"\n[[cluster.nodes]]\nid = 1\n\
        peer = \"192.0.2.1:7000\"\napi = \"http://192.0.2.1:8000\"\n";
    std::fs::write(&file, text).unwrap();
    std::fs::write(folder.path().join("secret"), "0123456789abcdef0123").unwrap();
    let path = file.to_str().unwrap();
    let output = conclave(&["chaos", "node", "--lie", "forge", "--config", path]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("on this machine alone"), "{told}");
}

#[test]
fn too_few_nodes_for_the_liars_are_refused_with_what_would_do() {
    let output = conclave(&["up", "--nodes", "6", "--byzantine", "1"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    for word in ["at least 7 nodes", "timed", "off"] {
        assert!(told.contains(word), "{word}: {told}");
    }
    let output = conclave(&["up", "--nodes", "7", "--byzantine", "1", "--liar", "9=mix"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("--liar: node 9"), "{told}");
}
