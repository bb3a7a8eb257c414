use std::ffi::OsStr;
use std::net::SocketAddr;
use std::process::{Command as Program, Output, Stdio};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::task::JoinHandle;

use super::wire::soon;

/// The `keylatch` command, serving on a free port as a process of its own; it ends with the test.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) address: SocketAddr,
    child: Child,
    /// The log up to the line that said where it listens.
    start: String,
    rest: JoinHandle<String>,
}

/// How a process ended, and all that it printed.
#[derive(Debug)]
pub(crate) struct Ended {
    /// `None` when a signal killed it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Process {
    /// A service with these further arguments and environment variables, and no others; on memory
    /// unless they name another store.
    pub(crate) async fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::start_program(env!("CARGO_BIN_EXE_keylatch"), arguments, environment).await
    }

    /// The same of another build of the command.
    pub(crate) async fn start_program(
        program: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let environment = [&[("KEYLATCH_STORE", "memory:")], environment].concat();
        let mut child = piped(program, &environment)
            .args(["--listen", "127.0.0.1:0"])
            .args(arguments)
            .spawn()
            .expect("the command runs");
        let mut lines = BufReader::new(child.stderr.take().expect("its log"));
        let mut start = String::new();
        let address = soon("listening", listening(&mut lines, &mut start)).await;
        let rest = tokio::spawn(async move {
            let mut rest = String::new();
            lines.read_to_string(&mut rest).await.expect("a log of text");
            rest
        });
        Self { address, child, start, rest }
    }

    /// Sends a signal, such as `-TERM`.
    pub(crate) fn signal(&self, signal: &str) {
        send(signal, self.id());
    }

    /// The process's id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id().expect("the process runs")
    }

    /// Ends the process by a signal.
    pub(crate) async fn ended_by(self, signal: &str) -> Ended {
        self.signal(signal);
        self.ended().await
    }

    /// Waits for the end of the process.
    pub(crate) async fn ended(mut self) -> Ended {
        let status = soon("the end of the process", self.child.wait()).await;
        let code = status.expect("the process can be waited for").code();
        let stderr = self.start + &self.rest.await.expect("its log");
        Ended { code, stdout: String::new(), stderr }
    }
}

/// Runs the `keylatch` command by another one, which changes into it, until it ends by itself.
pub(crate) async fn run_by(by: &[&str], arguments: &[&str]) -> Ended {
    let [program, its_arguments @ ..] = by else { panic!("no program") };
    let mut command = Command::new(program);
    command.args(its_arguments).arg(env!("CARGO_BIN_EXE_keylatch"));
    output(command.args(arguments).stdin(Stdio::null()).kill_on_drop(true)).await
}

/// Runs the `keylatch` command until it ends by itself.
pub(crate) async fn run(arguments: &[&str]) -> Ended {
    run_with(arguments, &[] as &[(&str, &str)]).await
}

/// The same with environment variables.
pub(crate) async fn run_with<V: AsRef<OsStr>>(
    arguments: &[&str],
    environment: &[(&str, V)],
) -> Ended {
    output(command(environment).args(arguments)).await
}

async fn output(command: &mut Command) -> Ended {
    Ended::of(soon("the end of the command", command.output()).await.expect("the command runs"))
}

impl Ended {
    pub(super) fn of(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("output of text");
        let (stdout, stderr) = (text(output.stdout), text(output.stderr));
        Self { code: output.status.code(), stdout, stderr }
    }
}

/// Sends a signal to a process that takes it.
pub(super) fn send(signal: &str, pid: u32) {
    let sent = Program::new("kill").args([signal, &pid.to_string()]).status().expect("kill runs");
    assert!(sent.success(), "the process takes {signal}");
}

fn command<V: AsRef<OsStr>>(environment: &[(&str, V)]) -> Command {
    piped(env!("CARGO_BIN_EXE_keylatch"), environment)
}

/// A program with these environment variables, and no others, whose output is read.
pub(super) fn piped<V: AsRef<OsStr>>(program: &str, environment: &[(&str, V)]) -> Command {
    let mut command = Command::new(program);
    command
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
            let address = json["address"].as_str().and_then(|address| address.parse().ok());
            return address.unwrap_or_else(|| panic!("no address in {line}"));
        }
    }
}
