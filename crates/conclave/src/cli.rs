//! The command line: what is asked, and how it ends.

use std::fmt;
use std::io;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::{bench, certs, chaos, check, quorum, service, sim};

/// How a command that did not succeed ends.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A check or run found a violation: exit 1. The finding is already printed.
    Violation,
    /// Usage or bad input: one line, exit 2.
    Input(String),
    /// A system that breaks the promise of its kind: a violation to `check`, bad input to others.
    Broken(String),
    /// The reader of our output is gone: end quietly.
    Closed,
    /// What ran failed, one line: exit 1.
    Failed(String),
    /// A lock was not acquired in time, one line: exit 3.
    NotAcquired(String),
    /// A lock was lost, one line: exit 4.
    Lost(String),
    /// No quorum of nodes can be reached, one line: exit 5.
    NoQuorum(String),
    /// Ends with the code of a command that was run; nothing more to say.
    Exit(u8),
}

impl Failure {
    /// Bad input, told by anything that displays.
    pub(crate) fn input(message: impl fmt::Display) -> Self {
        Self::Input(message.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::Closed
        } else {
            Self::Input(error.to_string())
        }
    }
}

/// A leaderless lock service on quorums of nodes, and a toolbox for quorum systems.
#[derive(Debug, Parser)]
#[command(
    name = "conclave",
    version,
    propagate_version = true,
    after_help = "Exit codes: 0 ok, 1 a check or run found a violation or failed, 2 usage or bad \
        input, 3 not acquired in time, 4 lost, 5 no quorum reachable. 'lock' ends with the code \
        of its command."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Put a real cluster through faults while clients fight for locks, and tell what held
    #[command(after_help = "Example:\n  conclave demo --seconds 60\n\n\
        It starts a cluster of processes, takes locks, kills, freezes and restarts nodes, and\n\
        ends by itself; exit 1 if a promise was broken. 'conclave sim demo' does the same to a\n\
        hundred simulated clusters in a second.")]
    Demo(service::Demo),
    /// Run a whole cluster on this machine until Ctrl-C
    #[command(after_help = "Examples:\n  conclave up\n  \
        conclave up --nodes 3 --processes --data /tmp/three --json\n  \
        conclave up --nodes 24 --quorum 'billiard(24)'\n  \
        conclave up --tls\n\n\
        With --json the first line of standard output is, once all nodes are ready,\n  \
        {\"ready\":true,\"nodes\":[{\"id\":1,\"api\":…,\"peer\":…,\"pid\":…},…]}\n\
        and the second tells the data directory and how to start each node by hand.")]
    Up(service::Up),
    /// Run a command while holding a lock
    #[command(
        after_help = "Examples:\n  conclave lock nightly-backup -- ./backup.sh\n  \
        conclave lock deploy --wait 30s -- make deploy\n  \
        conclave lock gpu0 --group llama-70b -- ./infer.py\n  \
        conclave lock licences --slots 4 -- ./simulate      # at most four at once\n  \
        conclave lock src --and dst -- ./move               # both, or none\n  \
        conclave lock index --try --endpoints http://10.0.0.1:8000 -- ./reindex\n\n\
        The command finds CONCLAVE_LOCK, CONCLAVE_TOKEN (give it to what you write to) and\n\
        CONCLAVE_GROUP in its environment; with --slots also CONCLAVE_SLOT, with --and also\n\
        CONCLAVE_LOCKS and CONCLAVE_TOKENS, one per line in the same order. Signals are\n\
        passed on to it. If the lock cannot be renewed any more, the command and all that it has\n\
        started get TERM a fifth of the TTL before the deadline, at once if the lock is gone or\n\
        this process is killed, and KILL shortly before the deadline, also if this process\n\
        stands still.\n\n\
        Exit codes: that of the command (128+n if signal n ended it), 2 usage, 3 not acquired\n\
        in time, 4 lost, 5 no quorum reachable, 126 and 127 if the command cannot be run."
    )]
    Lock(service::Lock),
    /// Run a command while having a lease, which up to b lying nodes cannot break
    #[command(
        after_help = "Examples:\n  conclave lease report --for 30s -- ./report.sh\n  \
        conclave lease importer --for 5s --renew --wait 1m -- ./import\n  \
        conclave lease index --for 10s --try -- ./reindex\n\n\
        A lease ends by itself: without --renew the command must be done by then. It finds\n\
        CONCLAVE_LEASE, CONCLAVE_TOKEN (give it to what you write to) and CONCLAVE_DEADLINE_MS\n\
        (milliseconds of the wall clock since 1970) in its environment. It gets TERM a fifth of\n\
        the span before the lease ends, and KILL at the end; signals are passed on to it.\n\n\
        Exit codes: that of the command (128+n if signal n ended it), 2 usage, 3 not acquired\n\
        in time, 4 the lease ended first, 5 no quorum reachable."
    )]
    Lease(service::Lease),
    /// Work on replicated objects, which up to b lying nodes cannot falsify
    #[command(after_help = "Examples:\n  conclave object counter visits incr\n  \
        conclave object map users set ada 1815\n  \
        conclave object map users set ada 1852 --if-version 7\n  \
        conclave object map users watch ada\n  \
        conclave object queue jobs push 'resize 17.png'\n  \
        conclave object queue jobs pop\n  \
        conclave object log audit append 'door opened'\n  \
        conclave object log audit read --from 10 --limit 5\n  \
        conclave object register motd set 'hello'\n  \
        conclave object acl motd --write ann,bob --read '*'\n\n\
        An object is made by the first operation that changes it. 'get', 'pop' and 'peek' print\n\
        the bare value. Exit codes: 1 if the object says no (the message begins with why:\n\
        absent, empty, version_mismatch, overflow, too_large, other_kind), 2 usage or refused,\n\
        3 no answer in time, 5 no quorum reachable. Where the message begins with 'unknown',\n\
        the operation may still be done.")]
    Object(service::Object),
    /// Run a command while leading an election, or follow who leads
    #[command(after_help = "Examples:\n  \
        conclave elect scheduler --value $(hostname):8080 -- ./scheduler\n  \
        conclave elect scheduler --value b --ttl 3s --wait 1m -- ./scheduler\n  \
        conclave elect scheduler --observe --json\n  \
        conclave elect scheduler --observe --once        # exit 3 if nobody leads\n\n\
        Whoever holds the lock NAME leads; its value is what observers read, and tokens and\n\
        values never go back for them. Environment, signals and exit codes are those of 'lock'.")]
    Elect(service::Elect),
    /// Follow a lock, or all locks whose names begin alike, as they change
    #[command(after_help = "Examples:\n  conclave watch jobs/nightly\n  \
        conclave watch --prefix jobs/ --json\n  conclave watch --prefix '' --once\n\n\
        A line for what is now and one per change, until Ctrl-C. Changes that come faster than\n\
        they are read are skipped; a holder is never shown after a later one.")]
    Watch(service::Watch),
    /// Wait until so many parties are there, then run a command
    #[command(
        after_help = "Examples:\n  conclave barrier start --parties 3 -- ./load-test\n  \
        conclave barrier step-2 --parties 3 --wait 1m\n\n\
        The command finds the number of its slot, from 1, in CONCLAVE_SLOT. Exit codes: that of\n\
        the command, 3 if not all came in time, 4 if our place was lost, 5 no quorum reachable."
    )]
    Barrier(service::Barrier),
    /// Count while a command runs, or wait until so many have counted
    #[command(
        after_help = "Examples:\n  conclave latch workers-up --count 3 -- ./worker\n  \
        conclave latch workers-up --count 3 --await --wait 1m\n\n\
        A count lasts as long as its command runs. Exit codes are those of 'lock'; --await ends\n\
        with 3 if not so many counted in time."
    )]
    Latch(service::Latch),
    /// Tell the state of every node; exit 5 if no quorum serves
    #[command(
        after_help = "Examples:\n  conclave status\n  conclave status --watch\n  \
        conclave status --endpoints http://10.0.0.1:8000 --json"
    )]
    Status(service::Status),
    /// List the locks that are held or waited for
    #[command(after_help = "Examples:\n  conclave locks\n  conclave locks jobs/ --watch=2s")]
    Locks(service::Locks),
    /// Show who holds a lock, who waits for it, and why
    #[command(
        after_help = "Examples:\n  conclave show gpu0\n  conclave show gpu0 --mine\n  \
        conclave show gpu0 --watch --json"
    )]
    Show(service::Show),
    /// List the sessions of clients
    #[command(after_help = "Example:\n  conclave sessions --json")]
    Sessions(service::Sessions),
    /// End a session: its locks are renewed no more; exit 5 if too few nodes heard it
    #[command(after_help = "Examples:\n  conclave revoke 5c0ffee…\n  \
        conclave revoke 5c0ffee… --force\n\n\
        Without --force the holder is told at once, and its locks are free when it leaves or when\n\
        their TTL has run out: nobody else is let in while it may believe to hold them. --force\n\
        frees them at once. A holder that is not reached may then act beside the next one; only\n\
        what checks fencing tokens is safe from it.")]
    Revoke(service::Revoke),
    /// Make bearer tokens
    #[command(subcommand)]
    Token(service::Token),
    /// Run one node
    #[command(after_help = "Examples:\n  conclave serve --config node.toml\n  \
        conclave serve --config node.toml --init      # the first start of a new node\n\n\
        Flags win over the environment (CONCLAVE_ID, CONCLAVE_DATA, …), which wins over the\n\
        file; 'conclave check-config' tells what holds. TERM and Ctrl-C stop gracefully.")]
    Serve(service::Serve),
    /// Build, check, measure, compare, choose and draw quorum systems
    #[command(subcommand)]
    Quorum(quorum::Command),
    /// Run the protocols in a simulated world that tries to break them
    #[command(subcommand)]
    Sim(sim::Command),
    /// Explore every order of events at small sizes
    #[command(subcommand)]
    Check(check::Command),
    /// Measure a cluster of processes, beside a bare echo in the same run
    #[command(after_help = "Examples:\n  conclave bench\n  \
        conclave bench --clients 64 --loads uncontended --restart durable --json\n  \
        conclave bench --nodes 12 --quorum 'billiard(12)' --loads uncontended --clients 64\n  \
        conclave bench --loads uncontended --clients 64 --rate 5000      # open loop\n  \
        conclave bench --held 100000\n  conclave bench --used 10000000\n  \
        conclave bench --objects --nodes 7 --byzantine 1 --clients 1,16,64\n  \
        conclave bench --against etcd,zookeeper,redis,redlock --html out.html\n  \
        conclave bench --against conclave --loads kill --clients 64 --json\n  \
        conclave bench --scaling --sizes 4,12,24,40 --seconds 5")]
    Bench(bench::Bench),
    /// Break a real cluster on purpose, and check what everybody believed
    #[command(subcommand)]
    Chaos(chaos::Command),
    /// One client of a chaos run
    #[command(hide = true)]
    ChaosClient(chaos::ChaosClient),
    /// Answer with what comes, for the floor of a benchmark
    #[command(hide = true)]
    BenchEcho,
    /// Make an authority and certificates for TLS, renew them, tell what they say
    #[command(subcommand)]
    Certs(certs::Command),
    /// Check a node file or a cluster file and tell what would run, and why
    #[command(after_help = "Examples:\n  conclave check-config node.toml\n  \
        conclave check-config cluster.toml --json\n  \
        CONCLAVE_LOG=debug conclave check-config node.toml --id 2")]
    CheckConfig(service::CheckConfig),
    /// Ask the node of a node file whether it is alive, or ready
    #[command(after_help = "Examples:\n  conclave health --config node.toml\n  \
        conclave health --config node.toml --ready\n\n\
        Exit 0 if it is, 1 if not.")]
    Health(service::Health),
    /// Become a command that is told when the parent process ends
    #[command(hide = true)]
    ExecGuarded(service::ExecGuarded),
    /// Start a command and end it before its lock can be another's
    #[command(hide = true)]
    GuardCommand(service::GuardCommand),
    /// Print a completion script for a shell
    #[command(
        after_help = "Example:\n  conclave completions bash > /etc/bash_completion.d/conclave"
    )]
    Completions {
        /// The shell
        shell: Shell,
    },
}

impl Command {
    /// Whether this process takes locks itself.
    fn takes_locks(&self) -> bool {
        matches!(
            self,
            Self::Lock(_)
                | Self::Elect(_)
                | Self::Barrier(_)
                | Self::Latch(_)
                | Self::Bench(_)
                | Self::ChaosClient(_)
        )
    }
}

/// Parses the arguments, runs the command, prints what went wrong and gives the exit code.
pub(crate) fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let code = u8::try_from(error.exit_code()).unwrap_or(2);
            if matches!(
                error.kind(),
                ErrorKind::ValueValidation | ErrorKind::InvalidValue
            ) {
                // A wrong value is told in one line, like any other bad input.
                let text = error.to_string();
                let lines = text.lines().take_while(|line| !line.is_empty());
                let lines: Vec<&str> = lines.map(str::trim).collect();
                anstream::eprintln!("{}", lines.join(" "));
                return ExitCode::from(code);
            }
            // Help goes to standard output, complaints to standard error; a closed pipe is fine.
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    if cli.command.takes_locks() {
        service::traces::start(service::traces::CLIENT, None);
    }
    let result = match cli.command {
        Command::Bench(bench) => bench.run(),
        Command::Certs(command) => certs::run(&command),
        Command::Chaos(command) => chaos::run(&command),
        Command::ChaosClient(client) => client.run(),
        Command::BenchEcho => bench::serve_echo(),
        Command::Quorum(command) => quorum::run(command),
        Command::Sim(command) => sim::run(command),
        Command::Check(command) => check::run(command),
        Command::Demo(demo) => demo.run(),
        Command::Up(up) => up.run(),
        Command::Lock(lock) => lock.run(),
        Command::Lease(lease) => lease.run(),
        Command::Object(object) => object.run(),
        Command::Elect(elect) => elect.run(),
        Command::Watch(watch) => watch.run(),
        Command::Barrier(barrier) => barrier.run(),
        Command::Latch(latch) => latch.run(),
        Command::Status(status) => status.run(),
        Command::Locks(locks) => locks.run(),
        Command::Show(show) => show.run(),
        Command::Sessions(sessions) => sessions.run(),
        Command::Revoke(revoke) => revoke.run(),
        Command::Token(token) => token.run(),
        Command::Serve(serve) => serve.run(),
        Command::ExecGuarded(exec) => exec.run(),
        Command::GuardCommand(guard) => guard.run(),
        Command::CheckConfig(check) => check.run(),
        Command::Health(health) => health.run(),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "conclave", &mut script);
            crate::output::raw(&script)
        }
    };
    service::traces::stop();
    let (code, message) = match result {
        Ok(()) | Err(Failure::Closed) => (0, None),
        Err(Failure::Violation) => (1, None),
        Err(Failure::Exit(code)) => (code, None),
        Err(Failure::Failed(message)) => (1, Some(message)),
        Err(Failure::Input(message) | Failure::Broken(message)) => (2, Some(message)),
        Err(Failure::NotAcquired(message)) => (3, Some(message)),
        Err(Failure::Lost(message)) => (4, Some(message)),
        Err(Failure::NoQuorum(message)) => (5, Some(message)),
    };
    if let Some(message) = message {
        anstream::eprintln!("error: {message}");
    }
    ExitCode::from(code)
}

/// Whether a command line can be given, for tests of what our pages say; else what is wrong.
#[cfg(test)]
pub(crate) fn parses(words: &[String]) -> Result<(), String> {
    match Cli::try_parse_from(words) {
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
