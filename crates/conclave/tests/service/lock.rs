//! `conclave lock`.

use std::fs;
use std::io::BufRead;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::{Cluster, Kid, conclave, lives, ran, signal, until};

#[test]
fn the_command_finds_its_lock_in_the_environment_and_its_code_is_ours() {
    let cluster = Cluster::start(&["--nodes", "3"]);
    let script = "echo \"$CONCLAVE_LOCK $CONCLAVE_GROUP $CONCLAVE_TOKEN\"; exit 7";
    let words = ["lock", "a/b c", "--group", "red", "--", "sh", "-c", script];
    let (code, out, err) = cluster.run(&words);
    assert_eq!(code, 7, "{err}");
    let token = out
        .strip_prefix("a/b c group:red ")
        .expect("name and group");
    let first: u64 = token.trim().parse().unwrap();
    let words = ["lock", "a/b c", "--shared", "--", "sh", "-c", script];
    let (_, out, _) = cluster.run(&words);
    let token = out.strip_prefix("a/b c shared ").expect("name and group");
    assert!(token.trim().parse::<u64>().unwrap() > first);
    let (code, _, _) = cluster.run(&["lock", "x", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(code, 128 + 9);
    // Nothing of this is left.
    let (code, _, err) = cluster.run(&["lock", "x", "--try", "--", "true"]);
    assert_eq!(code, 0, "{err}");
}

#[test]
fn a_command_that_cannot_be_run_leaves_no_lock() {
    let cluster = Cluster::start(&["--nodes", "3"]);
    let (code, _, err) = cluster.run(&["lock", "x", "--", "no-such-command-here"]);
    assert_eq!(code, 127, "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    assert!(err.contains("cannot run 'no-such-command-here'"), "{err}");
    let (code, _, err) = cluster.run(&["lock", "x", "--", "/"]);
    assert_eq!(code, 126, "{err}");
    let (code, _, err) = cluster.run(&["lock", "x", "--try", "--", "true"]);
    assert_eq!(code, 0, "{err}");
}

#[test]
fn whoever_comes_second_waits_or_is_told() {
    let cluster = Cluster::start(&["--nodes", "3"]);
    let holder = cluster.holder(&["x"]);
    let (code, out, err) = cluster.run(&["lock", "x", "--try", "--", "echo", "in"]);
    assert_eq!((code, out.as_str()), (3, ""), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    let (code, out, err) = cluster.run(&["lock", "x", "--wait", "100ms", "--", "echo", "in"]);
    assert_eq!((code, out.as_str()), (3, ""), "{err}");
    let (code, out, _) = cluster.run(&["lock", "y", "--try", "--", "echo", "in"]);
    assert_eq!((code, out.as_str()), (0, "in\n"), "another lock is free");
    let mut second = cluster.command(&["lock", "x", "-v", "--", "echo", "in"]);
    let mut second = Kid::spawn(&mut second);
    let mut errors = std::io::BufReader::new(second.0.stderr.take().unwrap());
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    assert!(line.contains("waiting for 'x'"), "{line}");
    assert_eq!(holder.leave(), 0);
    let mut line = String::new();
    second.output().read_line(&mut line).unwrap();
    assert_eq!(line, "in\n");
    assert_eq!(second.code(), 0);
}

#[test]
fn members_of_a_group_are_inside_together() {
    let cluster = Cluster::start(&["--nodes", "3"]);
    let one = cluster.holder(&["x", "--group", "red"]);
    let two = cluster.holder(&["x", "--group", "red"]);
    let (code, _, _) = cluster.run(&["lock", "x", "--group", "blue", "--try", "--", "true"]);
    assert_eq!(code, 3);
    let (code, _, _) = cluster.run(&["lock", "x", "--try", "--", "true"]);
    assert_eq!(code, 3);
    assert_eq!((one.leave(), two.leave()), (0, 0));
    let (code, _, err) = cluster.run(&["lock", "x", "--group", "blue", "--try", "--", "true"]);
    assert_eq!(code, 0, "{err}");
}

#[test]
fn signals_are_passed_on() {
    let cluster = Cluster::start(&["--nodes", "1"]);
    let script = "for s in HUP INT QUIT TERM USR1 USR2; do trap \"echo $s\" $s; done; \
                  echo $$; while :; do sleep 0.02; done";
    let mut command = cluster.command(&["lock", "x", "--", "bash", "-c", script]);
    let mut kid = Kid::spawn(&mut command);
    let mut output = kid.output();
    let mut line = || {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    };
    let pid: u32 = line().parse().unwrap();
    for (one, name) in [
        (Signal::HUP, "HUP"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::TERM, "TERM"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ] {
        kid.signal(one);
        assert_eq!(line(), name);
    }
    kid.0.kill().unwrap();
    kid.end();
    assert_eq!(line(), "TERM", "the command is told that its lock is going");
    // It takes no notice, and would run for ever.
    until("the command is killed in time", || !lives(pid));
}

#[test]
fn the_command_ends_with_whoever_holds_its_lock() {
    let cluster = Cluster::start(&["--nodes", "1"]);
    let script = "echo $$; exec sleep 1000";
    let mut command = cluster.command(&["lock", "x", "--", "sh", "-c", script]);
    let mut kid = Kid::spawn(&mut command);
    let mut line = String::new();
    kid.output().read_line(&mut line).unwrap();
    let pid: u32 = line.trim().parse().unwrap();
    assert!(lives(pid));
    kid.0.kill().unwrap();
    kid.end();
    until("the command ends", || !lives(pid));
}

/// A command that takes no notice of TERM and has two children like it, one in a session of its
/// own, and the numbers of all three.
fn stubborn(output: &mut impl BufRead) -> Vec<u32> {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let pids = line.split_whitespace().map(|pid| pid.parse().unwrap());
    let pids: Vec<u32> = pids.collect();
    assert_eq!(pids.len(), 3, "{line}");
    pids
}

const STUBBORN: &str = "trap '' TERM; sleep 1000 & one=$!; setsid sleep 1000 & \
                        echo $$ $one $!; while :; do wait; done";

#[test]
fn a_command_does_not_outlive_its_lock_when_the_holder_stands_still() {
    let cluster = Cluster::start(&["--nodes", "1"]);
    let words = ["lock", "x", "--ttl", "2s", "--", "sh", "-c", STUBBORN];
    let mut kid = Kid::spawn(&mut cluster.command(&words));
    let pids = stubborn(&mut kid.output());
    kid.signal(Signal::STOP);
    for pid in pids {
        until("the command and its children are killed", || !lives(pid));
    }
    kid.signal(Signal::CONT);
    assert_eq!(kid.code(), 4, "{}", kid.errors());
}

#[test]
fn nothing_that_a_command_has_started_outlives_the_lock_of_a_holder_that_was_killed() {
    let cluster = Cluster::start(&["--nodes", "1"]);
    let words = ["lock", "x", "--ttl", "2s", "--", "sh", "-c", STUBBORN];
    let mut kid = Kid::spawn(&mut cluster.command(&words));
    let pids = stubborn(&mut kid.output());
    kid.signal(Signal::KILL);
    for pid in pids {
        until("the command and its children are killed", || !lives(pid));
    }
}

/// Below a terminal the command is in the terminal's foreground group, with whoever holds its
/// lock, so that no group of its own can be killed.
#[test]
fn children_of_a_command_below_a_terminal_do_not_outlive_its_lock() {
    let cluster = Cluster::start(&["--nodes", "1"]);
    let place = tempfile::tempdir().unwrap();
    let (file, pids) = (place.path().join("command"), place.path().join("pids"));
    let stubborn_there = STUBBORN.replace("$!;", &format!("$! > {};", pids.display()));
    fs::write(
        &file,
        format!("tty > /dev/null || exit 9; {stubborn_there}"),
    )
    .unwrap();
    let ours = format!(
        "{} lock x --ttl 2s -- sh {}",
        env!("CARGO_BIN_EXE_conclave"),
        file.display()
    );
    let command = cluster.command(&[]);
    let mut terminal = std::process::Command::new("script");
    terminal
        .args(["-qec", &ours, "/dev/null"])
        .stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            terminal.env(name, value);
        }
    }
    let Ok(terminal) = terminal.stdout(Stdio::null()).spawn() else {
        eprintln!("skipped: there is no `script` here to make a terminal");
        return;
    };
    let _terminal = Kid(terminal);
    until("the command runs", || {
        fs::read_to_string(&pids).is_ok_and(|text| text.ends_with('\n'))
    });
    let pids = stubborn(&mut fs::read(&pids).unwrap().as_slice());
    let holder = parent(parent(pids[0]));
    signal(holder, Signal::KILL);
    for pid in pids {
        until("the command and its children are killed", || !lives(pid));
    }
}

/// The parent of a process.
fn parent(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit(')').next().unwrap();
    fields.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_killed_guard_takes_the_command_with_it() {
    let cluster = Cluster::start(&["--nodes", "1"]);
    let script = format!("echo $PPID; {STUBBORN}");
    let words = ["lock", "x", "--", "sh", "-c", &script];
    let mut kid = Kid::spawn(&mut cluster.command(&words));
    let mut output = kid.output();
    let mut guard = String::new();
    output.read_line(&mut guard).unwrap();
    let pids = stubborn(&mut output);
    signal(guard.trim().parse().unwrap(), Signal::KILL);
    assert_eq!(kid.code(), 4);
    let err = kid.errors();
    assert!(err.contains("guards the command"), "{err}");
    for pid in pids {
        until("the command and its children are killed", || !lives(pid));
    }
    let (code, _, err) = cluster.run(&["lock", "x", "--try", "--", "true"]);
    assert_eq!(code, 0, "{err}");
}

#[test]
fn a_command_reads_what_its_lock_was_given() {
    use std::io::Write;
    let cluster = Cluster::start(&["--nodes", "1"]);
    let mut command = cluster.command(&["lock", "x", "--", "cat"]);
    command.stdin(Stdio::piped());
    let mut kid = Kid::spawn(&mut command);
    kid.0
        .stdin
        .take()
        .unwrap()
        .write_all(b"all of it\n")
        .unwrap();
    let mut line = String::new();
    kid.output().read_line(&mut line).unwrap();
    assert_eq!(line, "all of it\n");
    assert_eq!(kid.code(), 0);
}

#[test]
fn a_waiting_command_can_be_interrupted() {
    let cluster = Cluster::start(&["--nodes", "3"]);
    let holder = cluster.holder(&["x"]);
    let mut command = cluster.command(&["lock", "x", "-v", "--", "echo", "in"]);
    let mut kid = Kid::spawn(&mut command);
    let mut errors = std::io::BufReader::new(kid.0.stderr.take().unwrap());
    errors.read_line(&mut String::new()).unwrap();
    kid.signal(Signal::INT);
    assert_eq!(kid.code(), 128 + 2);
    let shown = cluster.json(&["show", "x", "--json"]);
    assert_eq!(
        shown["waiters"],
        Value::Array(Vec::new()),
        "it left the queue"
    );
    assert_eq!(holder.leave(), 0);
}

/// Nodes that do not answer any more, and go on at the end of the test.
struct Stopped(Vec<u32>);

impl Stopped {
    fn all(cluster: &Cluster) -> Self {
        let pids: Vec<u32> = cluster.nodes.iter().map(|node| node.pid).collect();
        for pid in &pids {
            signal(*pid, Signal::STOP);
        }
        Self(pids)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for pid in &self.0 {
            signal(*pid, Signal::CONT);
        }
    }
}

#[test]
fn a_command_that_outlives_its_lock_is_told_and_then_killed() {
    let cluster = Cluster::start(&["--nodes", "3", "--processes"]);
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("told");
    let script = format!(
        "trap 'echo told >> {}' TERM; echo in; while :; do sleep 0.02; done",
        file.display()
    );
    let words = ["lock", "x", "--ttl", "2s", "--", "sh", "-c", &script];
    let mut command = cluster.command(&words);
    let mut kid = Kid::spawn(&mut command);
    let mut output = kid.output();
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "in\n");
    let stopped = Stopped::all(&cluster);
    assert_eq!(kid.code(), 4);
    let err = kid.errors();
    assert!(
        err.contains("'x' was lost") && err.contains("signal 9"),
        "{err}"
    );
    assert_eq!(
        fs::read_to_string(&file).unwrap(),
        "told\n",
        "told once, then killed"
    );
    drop(stopped);
    let (code, _, err) = cluster.run(&["lock", "x", "--ttl", "2s", "--", "true"]);
    assert_eq!(code, 0, "the cluster serves again: {err}");
}

#[test]
fn a_command_that_ends_when_told_still_lost_its_lock() {
    let cluster = Cluster::start(&["--nodes", "3", "--processes"]);
    let mut command = cluster.command(&["lock", "x", "--json", "--ttl", "2s", "--", "sleep", "60"]);
    let mut kid = Kid::spawn(&mut command);
    until("it is inside", || {
        let shown = cluster.json(&["show", "x", "--json"]);
        shown["holders"]
            .as_array()
            .is_some_and(|holders| !holders.is_empty())
    });
    let _stopped = Stopped::all(&cluster);
    assert_eq!(kid.code(), 4);
    let err = kid.errors();
    let told: Value = serde_json::from_str(&err).unwrap_or_else(|_| panic!("{err}"));
    assert_eq!(told["outcome"], "lost");
    assert_eq!(told["exit"], 4);
    assert!(
        told["message"].as_str().unwrap().contains("signal 15"),
        "{told}"
    );
}

#[test]
fn without_a_quorum_nothing_is_locked() {
    let cluster = Cluster::start(&["--nodes", "3", "--processes"]);
    for node in &cluster.nodes[1..] {
        signal(node.pid, Signal::KILL);
    }
    let words = ["lock", "x", "--wait", "500ms", "--", "echo", "in"];
    let (code, out, err) = cluster.run(&words);
    assert_eq!((code, out.as_str()), (5, ""), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    let (code, _, _) = cluster.run(&["status"]);
    assert_eq!(code, 5);
    signal(cluster.nodes[0].pid, Signal::KILL);
    until("no endpoint answers", || {
        let (code, _, err) = cluster.run(&["lock", "x", "--", "true"]);
        code == 5 && err.contains(&cluster.nodes[0].api)
    });
}

#[test]
fn the_end_is_told_in_json() {
    let cluster = Cluster::start(&["--nodes", "1"]);
    let words = ["lock", "x", "--json", "--", "sh", "-c", "echo mine; exit 9"];
    let (code, out, err) = cluster.run(&words);
    assert_eq!(
        (code, out.as_str()),
        (9, "mine\n"),
        "standard output is the command's"
    );
    let told: Value = serde_json::from_str(&err).unwrap();
    assert_eq!(told["lock"], "x");
    assert_eq!(told["outcome"], "done");
    assert_eq!(told["exit"], 9);
    assert!(told["token"].as_u64().is_some(), "{told}");
    let holder = cluster.holder(&["x"]);
    let (code, _, err) = cluster.run(&["lock", "x", "--json", "--try", "--", "true"]);
    let told: Value = serde_json::from_str(&err).unwrap();
    assert_eq!((code, told["outcome"].as_str()), (3, Some("not_acquired")));
    assert_eq!(holder.leave(), 0);
}

#[test]
fn bad_requests_are_refused_in_one_line() {
    let cluster = Cluster::start(&["--nodes", "1"]);
    let long = "x".repeat(5000);
    for (words, says) in [
        (vec!["lock", &long, "--", "true"], "refused"),
        (vec!["lock", "", "--", "true"], "refused"),
        (vec!["lock", "x", "--ttl", "1ms", "--", "true"], "refused"),
        (vec!["lock", "x", "--ttl", "100h", "--", "true"], "refused"),
        (
            vec!["lock", "x", "--ttl", "soon", "--", "true"],
            "span of time",
        ),
        (
            vec!["lock", "x", "--endpoints", "https://a:1", "--", "true"],
            "TLS",
        ),
        (vec!["show", ""], "empty"),
        (vec!["show", &long], "name"),
    ] {
        let (code, out, err) = cluster.run(&words);
        let shown: Vec<String> = words
            .iter()
            .map(|word| word.chars().take(20).collect())
            .collect();
        assert_eq!((code, out.as_str()), (2, ""), "{shown:?}: {err}");
        assert!(
            err.starts_with("error: ") && err.lines().count() == 1,
            "{shown:?}: {err}"
        );
        assert!(err.contains(says), "{shown:?}: {err}");
    }
}

#[test]
fn endpoints_may_be_given_in_the_environment() {
    let cluster = Cluster::start(&["--nodes", "3"]);
    let home = tempfile::tempdir().unwrap();
    let words = ["lock", "x", "--", "echo", "in"];
    let given = format!("http://127.0.0.1:1,{}", cluster.nodes[2].api);
    let mut command = conclave(home.path());
    let (code, out, err) = ran(command.args(words).env("CONCLAVE_ENDPOINTS", given));
    assert_eq!((code, out.as_str()), (0, "in\n"), "{err}");
    let mut command = conclave(home.path());
    command
        .args(words)
        .env("CONCLAVE_ENDPOINTS", "http://127.0.0.1:1");
    let (code, _, err) = ran(command.stdin(Stdio::null()));
    assert_eq!(code, 5, "{err}");
    assert!(err.contains("http://127.0.0.1:1"), "{err}");
}

#[test]
fn as_many_commands_run_as_there_are_slots() {
    let cluster = Cluster::start(&["--nodes", "3"]);
    let first = cluster.holder(&["pool", "--slots", "2"]);
    let second = cluster.holder(&["pool", "--slots", "2"]);
    let (code, _, err) = cluster.run(&["lock", "pool", "--slots", "2", "--try", "--", "true"]);
    assert_eq!(code, 3, "{err}");
    let mut waiting = cluster.command(&["lock", "pool", "--slots", "2", "--", "true"]);
    let mut waiting = Kid::spawn(&mut waiting);
    let locks = || cluster.json(&["locks", "pool~", "--json"]);
    until("it waits for both", || {
        let locks = locks();
        let waiters = |slot: usize| {
            locks["locks"][slot]["waiters"]
                .as_array()
                .map_or(0, Vec::len)
        };
        waiters(0) == 1 && waiters(1) == 1
    });
    assert_eq!(first.leave(), 0);
    assert_eq!(waiting.code(), 0);
    let script = "test $CONCLAVE_LOCK = pool && test $CONCLAVE_SLOT -ge 1";
    let (code, _, err) = cluster.run(&["lock", "pool", "--slots", "2", "--", "sh", "-c", script]);
    assert_eq!(code, 0, "{err}");
    assert_eq!(second.leave(), 0);
    let (code, _, err) = cluster.run(&["lock", "pool", "--slots", "65", "--", "true"]);
    assert_eq!(code, 2, "{err}");
}

#[test]
fn several_locks_are_held_together_or_not_at_all() {
    let cluster = Cluster::start(&["--nodes", "3"]);
    let script = "test \"$CONCLAVE_LOCKS\" = \"a\nb\nc\" && \
        test $(echo \"$CONCLAVE_TOKENS\" | wc -l) = 3 && test $CONCLAVE_TOKEN -gt 0";
    let all = [
        "lock", "b", "--and", "a", "--and", "c", "--", "sh", "-c", script,
    ];
    let (code, _, err) = cluster.run(&all);
    assert_eq!(code, 0, "{err}");
    let holder = cluster.holder(&["c"]);
    let (code, _, err) = cluster.run(&["lock", "a", "--and", "c", "--try", "--", "true"]);
    assert_eq!(code, 3, "{err}");
    assert!(err.contains("'a' and 'c'"), "{err}");
    until("nothing of the set stays", || {
        let shown = cluster.json(&["show", "a", "--json"]);
        shown["holders"].as_array().is_some_and(Vec::is_empty)
    });
    assert_eq!(holder.leave(), 0);
}

#[test]
fn whoever_waits_long_is_told_why() {
    let cluster = Cluster::start(&["--nodes", "3"]);
    let holder = cluster.holder(&["busy"]);
    let arguments = ["lock", "busy", "--wait", "3s", "--verbose", "--", "true"];
    let (code, _, err) = cluster.run(&arguments);
    assert_eq!(code, 3, "{err}");
    let pid = holder.kid.pid().to_string();
    let why = err.lines().find(|line| line.contains("held by"));
    assert!(why.is_some_and(|why| why.contains(&pid)), "{err}");
    assert_eq!(holder.leave(), 0);
}
