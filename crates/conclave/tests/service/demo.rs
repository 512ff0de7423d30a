//! `conclave demo`.

use serde_json::Value;

use crate::cluster::{conclave, ran};

#[test]
fn the_demo_ends_by_itself_and_tells_what_held() {
    let home = tempfile::tempdir().unwrap();
    let (code, out, err) = ran(conclave(home.path()).args(["demo", "--seconds", "3", "--json"]));
    assert_eq!(code, 0, "{err}\n{out}");
    let told: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(told["violations"], Value::Array(Vec::new()));
    assert_eq!(told["killed"], 3);
    assert!(told["taken"].as_u64().unwrap() > 10, "{told}");
    let story = told["story"].to_string();
    for word in [
        "conclave up",
        "conclave lock",
        "kill -9 node 2",
        "start node 1 and 4 again",
    ] {
        assert!(story.contains(word), "{word}: {story}");
    }
}
