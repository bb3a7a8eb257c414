//! The signals that `keylatch run` passes on to its command.
//!
//! A signal that was ignored when `run` started stays ignored, as `nohup` wants it. Tested in
//! `tests/cli/run_signals.rs`.

use std::io;
use std::task::{Context, Poll};

use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind};

/// What is passed on to the command. Others are not for it (SIGCHLD, SIGPIPE), cannot be caught
/// (SIGKILL, SIGSTOP), or stop `run` itself (SIGTTIN, SIGTTOU).
const PASSED_ON: [Signal; 10] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGWINCH,
    Signal::SIGTSTP,
    Signal::SIGCONT,
];

/// The signals that this process gets in place of the command.
#[derive(Debug)]
pub(super) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
    asked_to_end: bool,
}

impl Signals {
    /// Catches them from now on; not those that were ignored, so that `nohup` still works.
    pub(super) fn catch() -> io::Result<Self> {
        let ignored = ignored();
        let streams = PASSED_ON
            .into_iter()
            .filter(|signal| ignored & (1 << (*signal as u32 - 1)) == 0)
            .map(|signal| Ok((signal, unix::signal(SignalKind::from_raw(signal as i32))?)));
        Ok(Self { streams: streams.collect::<io::Result<_>>()?, asked_to_end: false })
    }

    /// The next signal.
    pub(super) async fn next(&mut self) -> Signal {
        let signal = std::future::poll_fn(|cx| self.poll_next(cx)).await;
        self.asked_to_end |= [Signal::SIGTERM, Signal::SIGINT, Signal::SIGQUIT].contains(&signal);
        signal
    }

    /// Whether one has asked for the end, be it passed on or not.
    pub(super) fn asked_to_end(&self) -> bool {
        self.asked_to_end
    }

    /// The next signal that asks to end.
    pub(super) async fn end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            let goes_on = [Signal::SIGWINCH, Signal::SIGTSTP, Signal::SIGCONT].contains(&signal);
            if !goes_on {
                return signal;
            }
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Signal> {
        for (signal, stream) in &mut self.streams {
            if stream.poll_recv(cx).is_ready() {
                return Poll::Ready(*signal);
            }
        }
        Poll::Pending
    }
}

/// The signals that this process ignores, one bit each from SIGHUP on; none where the system has no
/// such file.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}
