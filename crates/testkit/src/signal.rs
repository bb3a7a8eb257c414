//! Signals to the processes of a test.
//!
//! A process of several threads that is sent SIGSTOP runs until one of them has taken the signal,
//! which on a busy machine is long enough for another to do what the test wants it not to do. So a
//! stop is waited for.

use std::fs;
use std::process::Command;
use std::time::Instant;

use crate::LIMIT;

/// Sends a signal, such as `-TERM`, to a process that exists. After `-STOP` none of its threads
/// runs.
pub(crate) fn send(signal: &str, pid: u32) {
    let sent = Command::new("kill").args([signal, &pid.to_string()]).status().expect("kill runs");
    assert!(sent.success(), "the process takes {signal}");
    if signal == "-STOP" {
        wait_for_stop(pid);
    }
}

fn wait_for_stop(pid: u32) {
    let end = Instant::now() + LIMIT;
    while runs(pid) {
        assert!(Instant::now() < end, "the process does not stop");
        std::thread::yield_now();
    }
}

/// Whether any thread of the process may run. One that has ended does not.
fn runs(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.filter_map(Result::ok).any(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The name before it may have any character.
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        state.is_some_and(|state| !matches!(state, 'T' | 't' | 'Z' | 'X'))
    })
}
