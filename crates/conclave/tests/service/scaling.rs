//! `conclave bench --scaling`: one cluster after the other, and what their busiest nodes do.

use serde_json::Value;

use crate::cluster::{conclave, ran};

#[test]
fn both_systems_are_measured_at_each_size() {
    let home = tempfile::tempdir().unwrap();
    let mut command = conclave(home.path());
    let arguments = "bench --scaling --sizes 4 --clients 8 --seconds 0.3 --json";
    command.args(arguments.split_whitespace());
    let (code, out, err) = ran(&mut command);
    assert_eq!(code, 0, "{err}");
    let told: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    let rows = told["rows"].as_array().unwrap();
    let systems: Vec<&str> = rows
        .iter()
        .map(|row| row["system"].as_str().unwrap())
        .collect();
    assert_eq!(systems, ["billiard(4)", "majority(4)"]);
    for row in rows {
        assert_eq!((&row["nodes"], &row["clients"]), (&4.into(), &8.into()));
        assert_eq!(row["errors"], 0, "{row}");
        let number = |key: &str| row[key].as_f64().unwrap();
        assert!(number("planned_load") == 0.75, "{row}");
        for key in ["cycles_per_s", "busiest_share", "messages_per_cycle"] {
            assert!(number(key) > 0.0, "{key}: {row}");
        }
        assert!(
            number("busiest_cpu_s") > 0.0 && number("cpu_s") > 0.0,
            "{row}"
        );
    }
}

#[test]
fn wrong_wishes_are_refused_in_one_line() {
    let home = tempfile::tempdir().unwrap();
    for (arguments, word) in [
        ("--scaling --sizes 4,5", "no billiard board has 5"),
        ("--scaling --sizes 4,1000", "--sizes"),
        ("--scaling --sizes x", "--sizes"),
        ("--scaling --nodes 5", "--nodes"),
        ("--scaling --quorum tree", "--quorum"),
        ("--scaling --loads hot", "--loads"),
        ("--scaling --against conclave", "--against"),
        ("--scaling --clients 0", "--clients"),
        ("--sizes 4", "--scaling"),
    ] {
        let mut command = conclave(home.path());
        command.arg("bench").args(arguments.split_whitespace());
        let (code, out, err) = ran(&mut command);
        assert_eq!((code, out.as_str()), (2, ""), "{arguments}: {err}");
        assert!(err.contains(word), "{arguments}: {err}");
    }
}
