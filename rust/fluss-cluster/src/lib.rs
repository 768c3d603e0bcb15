//! A real Fluss cluster for the length of a test, made by `tests/fluss/cluster.py`, which `./weir fluss` runs too.
//!
//! The cluster ends with the [`Cluster`] that started it, and also when the test's process ends in any other way: its
//! keeper reads from a pipe, and stops all when that is closed. Tests that stop no server can also run on a cluster that is
//! there already: [`Cluster::shared`].

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a test can ask of its cluster.
pub struct Options {
    /// Tablet servers: 1 (replication 1) or 3 (replication 3).
    pub tablets: u32,
    /// `user:password` that clients must give (SASL/PLAIN).
    pub sasl: Option<String>,
    /// Settings of the servers, in place of what they have here, as `key=value`.
    pub settings: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self { tablets: 1, sasl: None, settings: Vec::new() }
    }
}

/// A running cluster.
pub struct Cluster {
    /// `None`: somebody else's.
    keeper: Option<Mutex<Keeper>>,
    bootstrap: String,
    root: PathBuf,
}

struct Keeper {
    process: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Cluster {
    /// Starts a cluster on free ports and waits until it is ready, about 10 s.
    ///
    /// # Panics
    /// If it does not start; what the program says is on standard error.
    pub fn start(options: Options) -> Self {
        let mut command = Command::new("python3");
        command.arg(program()).args(["run", "--tablets", &options.tablets.to_string()]);
        command.arg("--root").arg(folder());
        if let Some(sasl) = options.sasl {
            command.args(["--sasl", &sasl]);
        }
        for setting in &options.settings {
            command.args(["--set", setting]);
        }
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3 runs tests/fluss/cluster.py");
        let commands = process.stdin.take();
        let answers = BufReader::new(process.stdout.take().expect("standard output is piped"));
        let mut keeper = Keeper { process, commands, answers };
        let status = keeper.answer();
        let field = |name: &str| {
            let value = status.split_once(&format!("\"{name}\": \"")).and_then(|(_, rest)| rest.split_once('"'));
            value.unwrap_or_else(|| panic!("the cluster did not start; its program said '{status}'")).0.to_owned()
        };
        let (bootstrap, root) = (field("bootstrap"), field("root").into());
        Self { keeper: Some(Mutex::new(keeper)), bootstrap, root }
    }

    /// The cluster that `WEIR_FLUSS_BOOTSTRAP` names, such as one that `./weir fluss start` started; else one of its own.
    pub fn shared() -> Self {
        match std::env::var("WEIR_FLUSS_BOOTSTRAP") {
            Ok(bootstrap) => Self { keeper: None, bootstrap, root: PathBuf::new() },
            Err(_) => Self::start(Options::default()),
        }
    }

    /// `host:port` of the coordinator.
    pub fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// Where a server keeps its data, such as `tablet-0`; of a cluster of its own.
    pub fn data(&self, name: &str) -> PathBuf {
        self.root.join("data").join(name)
    }

    /// The id of a server's process, such as of `tablet-0`; of a cluster of its own.
    ///
    /// # Panics
    /// If there is no such server, or it does not run.
    pub fn process(&self, name: &str) -> u32 {
        let text = std::fs::read_to_string(self.root.join("pid").join(name)).expect("the server runs");
        text.split(' ').next().and_then(|id| id.parse().ok()).expect("its file begins with its process id")
    }

    /// Ends a process at once: `zookeeper`, `coordinator` or `tablet-<n>`.
    pub fn kill(&self, name: &str) {
        self.command(&format!("kill {name}"));
    }

    /// Starts a process again and waits until it is ready.
    pub fn restart(&self, name: &str) {
        self.command(&format!("start {name}"));
    }

    /// Stops a process without ending it.
    pub fn suspend(&self, name: &str) {
        self.command(&format!("signal {name} 19"));
    }

    /// Lets a suspended process go on.
    pub fn resume(&self, name: &str) {
        self.command(&format!("signal {name} 18"));
    }

    fn command(&self, line: &str) {
        let mut keeper = self.keeper().expect("a cluster of its own");
        let commands = keeper.commands.as_mut().expect("open until drop");
        writeln!(commands, "{line}").and_then(|()| commands.flush()).expect("the keeper listens");
        assert_eq!(keeper.answer(), "done", "the cluster cannot '{line}'");
    }

    fn keeper(&self) -> Option<MutexGuard<'_, Keeper>> {
        Some(self.keeper.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Keeper {
    /// The next line that the keeper says; empty if it has ended.
    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the keeper's output is text");
        line.trim_end().to_owned()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let Some(mut keeper) = self.keeper() else { return };
        drop(keeper.commands.take());
        // It ends by itself, and prints why where it cannot.
        let _ = keeper.process.wait();
    }
}

fn program() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fluss/cluster.py")
}

/// A folder of its own for each cluster, below the checkout.
fn folder() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.weir/fluss").join(name)
}
