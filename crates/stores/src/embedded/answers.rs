use std::io::{self, PipeWriter, Write as _};
use std::sync::mpsc;

use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::runtime::Handle;

/// Tells those who wait for one batch.
type Tell = Box<dyn FnOnce() + Send>;

/// Has the runtime tell the answers of a thread that is not its own.
///
/// To wake a task from such a thread wakes a worker of the runtime, and that one wakes a second to look
/// for more. So each batch is a byte in a pipe: it comes to the worker that waits for the network, which
/// then wakes the batch's tasks as its own.
pub(super) struct Answers {
    batches: mpsc::Sender<Tell>,
    bell: PipeWriter,
}

impl Answers {
    /// Starts the task that tells them, which ends with this.
    pub(super) fn start(runtime: &Handle) -> io::Result<Self> {
        let (ring, bell) = io::pipe()?;
        let (batches, answered) = mpsc::channel();
        let _runtime = runtime.enter();
        let ring = pipe::Receiver::from_owned_fd(ring.into())?;
        runtime.spawn(tell(ring, answered));
        Ok(Self { batches, bell })
    }

    /// Has a batch told. When the runtime has ended, nobody waits for it.
    pub(super) fn send(&mut self, tell: impl FnOnce() + Send + 'static) {
        if self.batches.send(Box::new(tell)).is_ok() {
            drop(self.bell.write_all(&[1]));
        }
    }
}

async fn tell(mut ring: pipe::Receiver, answered: mpsc::Receiver<Tell>) {
    let mut rings = [0; 64];
    while ring.read(&mut rings).await.is_ok_and(|rung| rung > 0) {
        answered.try_iter().for_each(|tell| tell());
    }
}
