//! What nodes log about locks.

use std::fs::{self, File};

use crate::cluster::{Cluster, until};

#[test]
fn lines_about_a_lock_name_it_and_keep_secrets() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("log");
    let log = File::create(&path).unwrap();
    let words = ["--nodes", "3", "--log", "conclave_node=debug"];
    let cluster = Cluster::start_logged(home, &words, &[], log.into());
    let long = format!("a\u{1b}b{}", "c".repeat(100));
    for name in ["jobs/nightly", long.as_str()] {
        let script = "echo $CONCLAVE_GROUP";
        let (code, group, errors) = cluster.run(&["lock", name, "--", "sh", "-c", script]);
        assert_eq!(code, 0, "{errors}");
        // The group of an exclusive holder has its whole session in it.
        let session = group.trim().strip_prefix("own:").unwrap();
        let (session, request) = session.split_once('/').unwrap();
        let session = format!("{session:0>32}");
        let short = &session[..8];
        let log = || fs::read_to_string(&path).unwrap();
        for word in ["asked", "granted", "released"] {
            let mut found = String::new();
            until(&format!("a line that {name:?} is {word}"), || {
                let fields = format!("session={short} request={request} ");
                let fits = |line: &&str| line.contains(word) && line.contains(&fields);
                found = log().lines().find(fits).unwrap_or_default().to_owned();
                !found.is_empty()
            });
            assert!(found.contains("node=n"), "{found}");
        }
        let name = name.replace('\u{1b}', "\\x1b");
        // An escape is longer than what it stands for: the cut is by bytes of the name.
        let shown = if name.len() > 64 {
            format!("lock={}…", &name[..67])
        } else {
            format!("lock={name} ")
        };
        assert!(log().contains(&shown), "{shown}");
        assert!(!log().contains(&session), "a session is told in short");
    }
    assert!(!fs::read_to_string(&path).unwrap().contains('\u{1b}'));
}
