//! The `keylatch` command as a process: a service on a free port, or a command that ends by itself.
//!
//! Only a test binary knows where cargo put the command: `env!("CARGO_BIN_EXE_keylatch")` has a
//! value there and not in this crate. So each test binary names it once, as a static [`Program`].
//!
//! Every child starts with an environment that the test states in full and with the default action
//! for every signal. A shell starts a background job with SIGINT ignored and `nohup` ignores
//! SIGHUP, and a child would inherit both: then a test of signals would depend on how the tests
//! were started.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::task::JoinHandle;

use crate::service::PATIENCE_MS;
use crate::signal::send;
use crate::{LIMIT, START_LIMIT, eventually, soon, within};

/// A build of the `keylatch` command.
#[derive(Debug, Clone)]
pub struct Program {
    path: Cow<'static, str>,
}

impl Program {
    /// The command at a path that is known when the test is compiled.
    pub const fn at(path: &'static str) -> Self {
        Self { path: Cow::Borrowed(path) }
    }

    /// The command at a path that a test found out.
    pub const fn found_at(path: String) -> Self {
        Self { path: Cow::Owned(path) }
    }

    /// Starts a service with these further arguments and environment variables, and waits until it
    /// listens. Its store is in memory, and has a minute for each step, unless they say otherwise.
    pub async fn serve(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Process {
        self.serve_as_told(&[&["--listen", "127.0.0.1:0"], arguments].concat(), environment).await
    }

    /// The same on the listeners of a file, whose last one is on a free port; the process's address
    /// is that.
    pub async fn serve_file(&self, config: &str) -> Process {
        self.serve_as_told(&["--config", config], &[]).await
    }

    async fn serve_as_told(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Process {
        let patience = PATIENCE_MS.to_string();
        let defaults = [("KEYLATCH_STORE", "memory:"), ("KEYLATCH_STORE_TIMEOUT_MS", &patience)];
        let environment = [&defaults[..], environment].concat();
        let mut child = command(&[&*self.path], &environment)
            .args(arguments)
            .spawn()
            .expect("the command runs");
        let mut lines = BufReader::new(child.stderr.take().expect("its log"));
        let mut start = String::new();
        let address = soon("listening", listening(&mut lines, &mut start)).await;
        let log = Arc::new(Mutex::new(start));
        let reading = tokio::spawn(keep_log(lines, Arc::clone(&log)));
        Process { address, child, log, reading }
    }

    /// Starts the command without waiting for anything.
    pub fn start(&self, arguments: &[&str], environment: &[(&str, &str)]) -> RunningCommand {
        RunningCommand::spawn(command(&[&*self.path], environment).args(arguments))
    }

    /// Runs the command until it ends by itself.
    pub async fn run(&self, arguments: &[&str]) -> Exit {
        self.run_with(arguments, &[] as &[(&str, &str)]).await
    }

    /// Runs the command with environment variables until it ends by itself.
    pub async fn run_with<V: AsRef<OsStr>>(
        &self,
        arguments: &[&str],
        environment: &[(&str, V)],
    ) -> Exit {
        output(command(&[&*self.path], environment).args(arguments)).await
    }

    /// Runs the command through another one, such as `setpriv`, which turns into it by `exec`.
    pub async fn run_through(&self, other: &[&str], arguments: &[&str]) -> Exit {
        let program = [other, &[&*self.path]].concat();
        output(command(&program, &[] as &[(&str, &str)]).args(arguments)).await
    }
}

/// A service on a free port in its own process; it ends with the test.
#[derive(Debug)]
pub struct Process {
    /// Where it listens.
    pub address: SocketAddr,
    child: Child,
    /// What it has logged.
    log: Arc<Mutex<String>>,
    reading: JoinHandle<()>,
}

impl Process {
    /// Sends a signal, such as `-TERM`.
    pub fn signal(&self, signal: &str) {
        send(signal, self.id());
    }

    /// The process's id.
    pub fn id(&self) -> u32 {
        self.child.id().expect("the process runs")
    }

    /// Waits until the log has had a text so many times.
    pub async fn logs(&self, text: &str, times: usize) {
        let log = || self.log.lock().expect("a whole log").matches(text).count();
        eventually(async || (log() >= times).then_some(())).await;
    }

    /// Ends the process by a signal.
    pub async fn ended_by(self, signal: &str) -> Exit {
        self.signal(signal);
        self.ended().await
    }

    /// Waits for the end of the process.
    pub async fn ended(mut self) -> Exit {
        let status = soon("the end of the process", self.child.wait()).await;
        let code = status.expect("the process can be waited for").code();
        soon("the end of its log", self.reading).await.expect("its log");
        let stderr = self.log.lock().expect("a whole log").clone();
        Exit { code, stdout: String::new(), stderr }
    }
}

/// A command while it runs; it ends with the test.
#[derive(Debug)]
pub struct RunningCommand {
    child: Child,
}

impl RunningCommand {
    /// Starts another program than `keylatch`.
    pub fn of(program: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::spawn(&mut command(program, environment))
    }

    fn spawn(command: &mut Command) -> Self {
        Self { child: command.spawn().expect("the command runs") }
    }

    /// Sends a signal, such as `-TERM`.
    pub fn signal(&self, signal: &str) {
        send(signal, self.id());
    }

    /// Waits until the process catches the signal with this number.
    pub async fn catches(&self, signal: u32) {
        let path = format!("/proc/{}/status", self.id());
        let caught = async || {
            let status = std::fs::read_to_string(&path).expect("its status");
            let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            let mask = u64::from_str_radix(mask.expect("a mask").trim(), 16).expect("a mask");
            (mask & (1 << (signal - 1)) != 0).then_some(())
        };
        eventually(caught).await;
    }

    /// Waits for the end of the process.
    #[track_caller]
    pub fn ended(self) -> impl Future<Output = Exit> {
        self.ended_within(LIMIT)
    }

    /// The same of one that may wait for longer than a test does as a rule.
    #[track_caller]
    pub fn ended_within(self, limit: Duration) -> impl Future<Output = Exit> {
        let output = within(limit, "the end of the command", self.child.wait_with_output());
        async { Exit::of(output.await.expect("the command can be waited for")) }
    }

    /// The process's id.
    pub fn id(&self) -> u32 {
        self.child.id().expect("the process runs")
    }
}

/// How a process ended, and all that it printed.
#[derive(Debug)]
pub struct Exit {
    /// `None` when a signal killed it.
    pub code: Option<i32>,
    /// What it printed to its standard output; nothing for a [`Process`].
    pub stdout: String,
    /// What it printed to its standard error.
    pub stderr: String,
}

impl Exit {
    fn of(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("output of text");
        let (stdout, stderr) = (text(output.stdout), text(output.stderr));
        Self { code: output.status.code(), stdout, stderr }
    }
}

async fn output(command: &mut Command) -> Exit {
    let ended = within(START_LIMIT, "the end of the command", command.output());
    Exit::of(ended.await.expect("the command runs"))
}

/// A program with these environment variables and no others, with the default action for every
/// signal, whose output is read.
fn command<V: AsRef<OsStr>>(program: &[&str], environment: &[(&str, V)]) -> Command {
    let mut command = Command::new("env");
    command
        .arg("--default-signal")
        .args(program)
        .env_clear()
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Reads the log until it says where the service listens.
async fn listening(lines: &mut BufReader<ChildStderr>, read: &mut String) -> SocketAddr {
    loop {
        let mut line = String::new();
        let bytes = lines.read_line(&mut line).await.expect("a log of text");
        assert!(bytes > 0, "the service ended before it listened: {read}");
        read.push_str(&line);
        let json: Value = serde_json::from_str(&line).unwrap_or(Value::Null);
        if json["message"] == "listening" {
            let address = json["address"].as_str().expect("an address");
            match address.parse() {
                Ok(address) => return address,
                Err(_) => assert!(address.starts_with("unix:"), "no address in {line}"),
            }
        }
    }
}

/// Keeps what is logged from then on, until the process ends.
async fn keep_log(mut lines: BufReader<ChildStderr>, log: Arc<Mutex<String>>) {
    let mut line = String::new();
    while lines.read_line(&mut line).await.expect("a log of text") > 0 {
        log.lock().expect("a whole log").push_str(&line);
        line.clear();
    }
}
