//! Clusters as operators set them up and change them: several `conclave serve`, no `--init`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod hosts;

use hosts::{Hosts, until};

const ALL: [usize; 5] = [1, 2, 3, 4, 5];

fn start_all(hosts: &mut Hosts, ids: &[usize], file: &std::path::Path, words: &[&str]) {
    for id in ids {
        hosts.start(*id, file, words);
    }
    for id in ids {
        until("all serve", || hosts.serves(*id));
    }
}

#[test]
fn a_node_that_finds_another_configuration_does_not_start() {
    let mut hosts = Hosts::new(5, false);
    let old = hosts.file("old.toml", 1, "majority", 5);
    let new = hosts.file("new.toml", 2, "tree", 5);
    start_all(&mut hosts, &ALL, &old, &[]);
    // Two of five are a quorum of the tree; the other three of the majority.
    for order in [[1, 3], [3, 1]] {
        let mut holder = hosts.holder(&ALL);
        for id in order {
            hosts.stop(id);
            hosts.start(id, &new, &[]);
            // It ends by itself, unless it serves what the others do not.
            until("it ends or is up", || {
                !hosts.nodes[id - 1].as_mut().unwrap().lives() || hosts.said(id).contains("serving")
            });
        }
        assert!(holder.lives(), "three of five are a majority");
        assert!(!hosts.gets_in(&order), "two hold one lock");
        for id in order {
            assert_eq!(hosts.ended(id), Some(2), "{}", hosts.said(id));
            let said = hosts.said(id);
            for words in [
                "epoch 1",
                "majority' on disk",
                "tree' in the file",
                "--reconfigure",
            ] {
                assert!(said.contains(words), "{words}: {said}");
            }
            hosts.start(id, &old, &[]);
            until("it serves what it served", || hosts.serves(id));
        }
        holder.end(None);
        std::fs::remove_file(hosts.path("inside")).unwrap();
    }
}

#[test]
fn a_change_is_served_only_when_every_old_node_has_adopted_it() {
    let mut hosts = Hosts::new(5, false);
    let old = hosts.file("old.toml", 1, "majority", 5);
    let new = hosts.file("new.toml", 2, "tree", 5);
    start_all(&mut hosts, &ALL, &old, &[]);
    let mut last = hosts.token(&ALL);
    let incr = ["object", "counter", "visits", "incr", "--wait", "20s"];
    let (code, out, err) = hosts.ask(&ALL, &incr);
    assert_eq!((code, out.trim()), (Some(0), "1"), "{err}");
    for id in ALL {
        hosts.stop(id);
    }
    // One still has the old file: the others wait for it, and it alone gives no lock away.
    hosts.start(4, &old, &[]);
    until("the old node is up", || hosts.said(4).contains("serving"));
    for id in [3, 5, 1, 2] {
        hosts.start(id, &new, &["--reconfigure"]);
    }
    until("they wait for it", || {
        hosts.said(1).contains("n4 is at epoch 1")
    });
    until("they have waited", || {
        hosts.said(2).contains("own_wait_seconds=0")
    });
    assert!(!hosts.gets_in(&ALL), "somebody got in during the change");
    assert!([1, 2, 3, 5].iter().all(|id| !hosts.serves(*id)));
    // A restart on the way changes nothing, and without the flag it says what to do.
    hosts.stop(2);
    hosts.start(2, &old, &[]);
    assert_eq!(hosts.ended(2), Some(2));
    assert!(
        hosts.said(2).contains("changing to epoch 2"),
        "{}",
        hosts.said(2)
    );
    hosts.start(2, &new, &["--reconfigure"]);
    hosts.stop(4);
    hosts.start(4, &new, &["--reconfigure"]);
    for id in ALL {
        until("all serve the new one", || hosts.serves(id));
    }
    let token = hosts.token(&ALL);
    assert!(token > last, "{token} after {last}");
    last = token;
    // From now on it is what they serve, with and without the flag.
    for id in [2, 5] {
        hosts.stop(id);
        hosts.start(id, &old, &[]);
        assert_eq!(hosts.ended(id), Some(2), "{}", hosts.said(id));
        hosts.start(id, &new, if id == 2 { &["--reconfigure"] } else { &[] });
        until("it serves again", || hosts.serves(id));
    }
    assert!(hosts.token(&ALL) > last);
    // Objects stay.
    let (code, out, err) = hosts.ask(&ALL, &incr);
    assert_eq!((code, out.trim()), (Some(0), "2"), "{err}");
}

#[test]
fn nodes_join_and_one_that_lost_its_disk_is_abandoned() {
    let mut hosts = Hosts::new(5, false);
    let old = hosts.file("old.toml", 1, "majority", 3);
    let new = hosts.file("new.toml", 2, "majority", 5);
    start_all(&mut hosts, &[1, 2, 3], &old, &[]);
    let last = hosts.token(&[1, 2, 3]);
    for id in [1, 2, 3] {
        hosts.stop(id);
    }
    std::fs::remove_dir_all(hosts.data(2)).unwrap();
    for id in ALL {
        hosts.start(id, &new, &["--reconfigure"]);
    }
    let wants = "n2 does not know what it served";
    until("they say what is missing", || hosts.said(1).contains(wants));
    for id in [1, 3] {
        hosts.stop(id);
        hosts.start(id, &new, &["--reconfigure", "--abandon", "2"]);
    }
    for id in ALL {
        until("all serve the new one", || hosts.serves(id));
    }
    assert!(hosts.said(1).contains("node 2 is abandoned"));
    assert!(hosts.token(&ALL) > last);
    let (code, out, err) = hosts.ask(&ALL, &["object", "counter", "visits", "incr"]);
    assert_eq!((code, out.trim()), (Some(0), "1"), "{err}");
}

#[test]
fn nodes_that_leave_give_their_word_first() {
    let mut hosts = Hosts::new(5, false);
    let old = hosts.file("old.toml", 1, "majority", 5);
    let new = hosts.file("new.toml", 2, "majority", 3);
    start_all(&mut hosts, &ALL, &old, &[]);
    let last = hosts.token(&ALL);
    for id in ALL {
        hosts.stop(id);
    }
    for id in [1, 2, 3] {
        hosts.start(id, &new, &["--reconfigure"]);
    }
    until("they miss those that leave", || {
        hosts.said(1).contains("n5 does not answer")
    });
    hosts.start(4, &new, &["--reconfigure"]);
    assert_eq!(hosts.ended(4), Some(2));
    assert!(hosts.said(4).contains("--listen-peer"), "{}", hosts.said(4));
    for id in [4, 5] {
        let peer = hosts.peer(id);
        hosts.start(id, &new, &["--reconfigure", "--listen-peer", &peer]);
    }
    for id in [1, 2, 3] {
        until("the others serve", || hosts.serves(id));
    }
    assert!(hosts.token(&[1, 2, 3]) > last);
    for id in [4, 5] {
        assert!(hosts.said(id).contains("not in the new configuration"));
        hosts.stop(id);
    }
}

/// Objects and leases are served by a new cluster, and by a node that lost its disk.
fn begins_with_everything(
    hosts: &mut Hosts,
    file: &std::path::Path,
    ids: &[usize],
    words: &[&str],
) {
    start_all(hosts, ids, file, words);
    let incr = ["object", "counter", "visits", "incr", "--wait", "20s"];
    let (code, out, err) = hosts.ask(ids, &incr);
    assert_eq!((code, out.trim()), (Some(0), "1"), "{err}");
    let (code, _, err) = hosts.ask(
        ids,
        &["lease", "l", "--for", "1s", "--wait", "20s", "--", "true"],
    );
    assert_eq!(code, Some(0), "{err}");
    assert!(hosts.token(ids) > 0);
    hosts.stop(2);
    std::fs::remove_dir_all(hosts.data(2)).unwrap();
    hosts.start(2, file, words);
    let back = "all objects are back";
    until("it comes back", || hosts.said(2).contains(back));
    // It counts again: as many others as may be missing are missing.
    hosts.stop(1);
    let (code, out, err) = hosts.ask(&ids[1..], &incr);
    assert_eq!((code, out.trim()), (Some(0), "2"), "{err}");
}

#[test]
fn a_new_cluster_with_certificates_begins_with_everything() {
    let mut hosts = Hosts::new(5, true);
    let file = hosts.file("cluster.toml", 1, "majority", 5);
    begins_with_everything(&mut hosts, &file, &ALL, &[]);
}

#[test]
fn a_new_cluster_with_an_access_file_begins_with_everything() {
    let mut hosts = Hosts::new(3, true);
    let file = hosts.file("cluster.toml", 1, "majority", 3);
    let access = hosts.path("access.toml");
    let hash = "0".repeat(64);
    let text = format!("[[token]]\nprincipal = \"ann\"\nsha256 = \"{hash}\"\n");
    std::fs::write(&access, text).unwrap();
    let words = ["--access", access.to_str().unwrap()];
    begins_with_everything(&mut hosts, &file, &[1, 2, 3], &words);
}

#[test]
fn a_new_cluster_without_certificates_begins_with_everything() {
    let mut hosts = Hosts::new(3, false);
    let file = hosts.file("cluster.toml", 1, "majority", 3);
    begins_with_everything(&mut hosts, &file, &[1, 2, 3], &[]);
}

#[test]
fn a_new_cluster_of_nodes_that_may_lie_begins_with_everything() {
    let mut hosts = Hosts::new(7, true);
    let more = "\n[times]\nttl_max = \"2s\"\nttl_min = \"500ms\"\n\n[faults]\nbyzantine = 1\n\
        span_max = \"2s\"\n";
    let file = hosts.file_with("cluster.toml", 1, "majority", 7, more);
    begins_with_everything(&mut hosts, &file, &[1, 2, 3, 4, 5, 6, 7], &[]);
}

#[test]
fn check_config_says_who_survives_liars() {
    let hosts = Hosts::new(7, false);
    let file = hosts.file_with(
        "cluster.toml",
        1,
        "majority",
        7,
        "\n[faults]\nbyzantine = 1\n",
    );
    let (code, out, err) = hosts.ask(&[], &["check-config", file.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{err}");
    let (locks, others) = out.split_once("LEASES AND OBJECTS").unwrap();
    let line = |text: &str, start: &str| {
        let line = text
            .lines()
            .map(str::trim)
            .find(|line| line.starts_with(start));
        line.unwrap_or_default().to_owned()
    };
    assert!(line(locks, "liars survived").ends_with("none"), "{out}");
    assert!(line(others, "liars survived").contains("1 of 7"), "{out}");
}
