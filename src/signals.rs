//! The signals of the service: caught in one place, in every configuration, before anything else
//! begins.
//!
//! SIGTERM and SIGINT end the service. SIGHUP has the files that are followed read again. SIGUSR1
//! and SIGUSR2 do nothing. A data file at its size limit is a full disk, which is a response, so
//! SIGXFSZ does nothing as well. Invariant: a signal that asks for no end never ends the service.
//! Tested in `tests/cli/signals.rs`.

use std::io;
use std::sync::LazyLock;

use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// What is told of each SIGHUP, as it is a signal to the process.
static HANGUPS: LazyLock<watch::Sender<()>> = LazyLock::new(watch::Sender::default);

/// What those who follow files wait for: each SIGHUP from now on.
pub(crate) fn hangups() -> watch::Receiver<()> {
    HANGUPS.subscribe()
}

/// The signals of this process, caught for as long as it lives.
#[derive(Debug)]
pub struct Signals {
    term: unix::Signal,
    int: unix::Signal,
    _telling: AbortOnDropHandle<()>,
}

impl Signals {
    /// Catches them, within a runtime.
    ///
    /// # Errors
    ///
    /// The system does not let them be caught.
    pub fn catch() -> io::Result<Self> {
        let hangup = signal(SignalKind::hangup())?;
        for harmless in [Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGXFSZ] {
            // What catches it stays when this is dropped.
            drop(signal(SignalKind::from_raw(harmless as i32))?);
        }
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            _telling: AbortOnDropHandle::new(tokio::spawn(tell(hangup))),
        })
    }

    /// Waits for a signal that ends the service.
    pub async fn end(&mut self) {
        tokio::select! {
            _ = self.term.recv() => tracing::info!("SIGTERM: shutting down"),
            _ = self.int.recv() => tracing::info!("SIGINT: shutting down"),
        }
    }
}

/// Tells those who follow files of each SIGHUP.
async fn tell(mut hangup: unix::Signal) {
    while hangup.recv().await.is_some() {
        match HANGUPS.send(()) {
            Ok(()) => tracing::info!("SIGHUP: the files of the configuration are read again"),
            Err(_) => tracing::info!("SIGHUP: there is no file to read again"),
        }
    }
}
