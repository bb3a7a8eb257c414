//! The output of a command, passed on as it comes, and the last of it kept.
//!
//! Two threads do that, since who reads the output may be slow, and the lease has to be renewed
//! meanwhile. What the command leaves behind may hold its output open: then the wait for the end of
//! it has a limit. Tested in `tests/cli/once.rs`.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::process::{ChildStderr, ChildStdout};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

/// How much is kept, in bytes.
const KEPT: usize = 64 * 1024;
/// How long the end of the output is waited for once the command has ended.
const DRAIN: Duration = Duration::from_secs(5);

/// What a command has printed, on both of its outputs.
#[derive(Debug)]
pub(super) struct Output {
    tail: Arc<Mutex<VecDeque<u8>>>,
    ends: [oneshot::Receiver<()>; 2],
}

impl Output {
    /// Passes it on from now on.
    pub(super) fn follow((out, error): (ChildStdout, ChildStderr)) -> Self {
        let tail = Arc::default();
        let ends = [copy(out, io::stdout(), &tail), copy(error, io::stderr(), &tail)];
        Self { tail, ends }
    }

    /// The last of it, when the command has ended.
    pub(super) async fn tail(self) -> Vec<u8> {
        let limit = Instant::now() + DRAIN;
        for end in self.ends {
            let _ = timeout_at(limit, end).await;
        }
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.iter().copied().collect()
    }
}

fn copy(
    mut from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
    tail: &Arc<Mutex<VecDeque<u8>>>,
) -> oneshot::Receiver<()> {
    let (ended, end) = oneshot::channel();
    let tail = Arc::clone(tail);
    thread::spawn(move || {
        let mut bytes = [0; 8 * 1024];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
            tail.extend(&bytes[..count]);
            let surplus = tail.len().saturating_sub(KEPT);
            tail.drain(..surplus);
            drop(tail);
            // The command is told by its next write that nobody reads it any more.
            if to.write_all(&bytes[..count]).and_then(|()| to.flush()).is_err() {
                break;
            }
        }
        let _ = ended.send(());
    });
    end
}
