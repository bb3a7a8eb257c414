//! The output of a command, passed on as it comes, and the last of it kept.
//!
//! Two threads copy it, because its reader may be slow and the lease has to be renewed meanwhile. A
//! process that the command left behind may hold the output open, so the wait for its end has a
//! limit. Invariant: what the command itself has printed is passed on whole, unless its
//! reader goes away. Tested in `tests/cli/once.rs`.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::process::{ChildStderr, ChildStdout};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// How much is kept, in bytes.
const KEPT: usize = 64 * 1024;
/// How many bytes are copied at a time, and how many can be on their way: a chunk and a full pipe.
const CHUNK: usize = 8 * 1024;
const ON_ITS_WAY: usize = CHUNK + 64 * 1024;
/// How long more of the output is waited for once the command has ended.
const DRAIN: Duration = Duration::from_secs(5);

/// What a command has printed, on both of its outputs.
#[derive(Debug)]
pub(super) struct Output {
    tail: Arc<Mutex<VecDeque<u8>>>,
    copies: [watch::Receiver<Copied>; 2],
}

/// How far a copy is. Its sender goes with it.
#[derive(Debug, Default)]
struct Copied {
    bytes: usize,
    is_writing: bool,
}

impl Output {
    /// Passes it on from now on.
    pub(super) fn follow((out, error): (ChildStdout, ChildStderr)) -> Self {
        let tail = Arc::default();
        let copies = [copy(out, io::stdout(), &tail), copy(error, io::stderr(), &tail)];
        Self { tail, copies }
    }

    /// Waits until all of it is passed on, once the command has ended. It waits for a slow reader
    /// without a limit.
    pub(super) async fn drained(&mut self) {
        let [out, error] = &mut self.copies;
        tokio::join!(drained(out), drained(error));
    }

    /// The last of it.
    pub(super) fn tail(&self) -> Vec<u8> {
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.iter().copied().collect()
    }
}

async fn drained(copy: &mut watch::Receiver<Copied>) {
    let (mut left, most) = (DRAIN, copy.borrow().bytes + ON_ITS_WAY);
    while copy.wait_for(|it| !it.is_writing).await.is_ok_and(|it| it.bytes < most) {
        let begun = Instant::now();
        let Ok(Ok(())) = timeout(left, copy.changed()).await else { break };
        left = left.saturating_sub(begun.elapsed());
    }
}

fn copy(
    mut from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
    tail: &Arc<Mutex<VecDeque<u8>>>,
) -> watch::Receiver<Copied> {
    let (copied, copy) = watch::channel(Copied::default());
    let tail = Arc::clone(tail);
    thread::spawn(move || {
        let mut bytes = [0; CHUNK];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
            tail.extend(&bytes[..count]);
            let surplus = tail.len().saturating_sub(KEPT);
            tail.drain(..surplus);
            drop(tail);
            copied.send_modify(|copied| copied.is_writing = true);
            // The next write of the command then fails, as it would without this copy.
            if to.write_all(&bytes[..count]).and_then(|()| to.flush()).is_err() {
                break;
            }
            copied.send_modify(|copied| {
                *copied = Copied { bytes: copied.bytes + count, is_writing: false };
            });
        }
    });
    copy
}
