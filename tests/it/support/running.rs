use tokio::process::{Child, Command};

use super::process::{Ended, piped, send};
use super::{eventually, soon};

/// The `keylatch` command while it runs, without a service in it; it ends with the test.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
}

impl Running {
    /// Starts the command with these arguments and environment variables, and no others.
    pub(crate) fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::spawn(piped(env!("CARGO_BIN_EXE_keylatch"), environment).args(arguments))
    }

    /// Starts another program.
    pub(crate) fn program(program: &[&str], environment: &[(&str, &str)]) -> Self {
        let (program, arguments) = program.split_first().expect("a program");
        Self::spawn(piped(program, environment).args(arguments))
    }

    fn spawn(command: &mut Command) -> Self {
        Self { child: command.spawn().expect("the command runs") }
    }

    /// Sends a signal, such as `-TERM`.
    pub(crate) fn signal(&self, signal: &str) {
        send(signal, self.id());
    }

    /// Waits until the process catches the signal with this number.
    pub(crate) async fn catches(&self, signal: u32) {
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
    pub(crate) fn ended(self) -> impl Future<Output = Ended> {
        let output = soon("the end of the command", self.child.wait_with_output());
        async { Ended::of(output.await.expect("the command can be waited for")) }
    }

    fn id(&self) -> u32 {
        self.child.id().expect("the process runs")
    }
}
