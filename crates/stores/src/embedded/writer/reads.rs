//! Commands whose replies show a response that is on disk alone.
//!
//! SQLite lets no other connection read the file, so the writer's thread reads, after a batch and
//! its responses, and some bytes at most before the next batch: changes wait for a read or two, and
//! no worker of the runtime waits for the disk. A read that hangs holds changes as a sync that
//! hangs does, and no caller's deadline. The command runs on the record with its response, and a
//! record that has changed since the table was asked gives what it says now. Invariant: a reply has
//! the response that is on disk, or is an error. Tested in `crates/stores/tests/faults/answers.rs`.

use std::slice;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::{Answer, Committer, Shared, WriteRequest, Writer, outcome};
use crate::table::{Draft, step};
use keylatch_core::idempotency::{RecordCommand, RecordKey, RecordState};
use keylatch_core::store::{Command, Reply, StoreError};

/// How many bytes of responses are read between two batches, and one response in any case.
const READ_BYTES: u64 = 256 * 1024;

/// A command whose reply shows a response that is on disk alone.
#[derive(Debug)]
pub(super) struct ReadRequest {
    pub(super) key: RecordKey,
    pub(super) command: RecordCommand,
    pub(super) answer: Answer<Reply>,
}

impl Writer {
    /// Runs a command whose reply shows a response that is on disk alone.
    pub(in crate::embedded) async fn read(
        &self,
        key: RecordKey,
        command: RecordCommand,
    ) -> Result<Reply, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.shared.push_read(ReadRequest { key, command, answer })?;
        answered.await.unwrap_or_else(|_| Err(StoreError::Lost("the read had no end".into())))
    }
}

impl Shared {
    /// Queues a command for the thread, and appoints it where there is no leader.
    fn push_read(self: &Arc<Self>, read: ReadRequest) -> Result<(), StoreError> {
        let appointed = self.queue().push_read(read)?;
        self.start(appointed);
        Ok(())
    }

    /// Answers the first of the commands that are queued.
    pub(super) fn answer_reads(self: &Arc<Self>) {
        let mut bytes = 0;
        while bytes < READ_BYTES {
            let Some(ReadRequest { key, command, answer }) = self.queue().pop_read() else {
                return;
            };
            // A caller that has gone needs no response.
            if answer.is_closed() {
                continue;
            }
            match self.with_committer(|committer| committer.read(&key, &command)) {
                Some(Ok(Some((reply, length)))) => {
                    bytes += length;
                    drop(answer.send(Ok(reply)));
                }
                Some(Ok(None)) => {
                    let command = Command::Record(key, command);
                    drop(self.push(WriteRequest::Step(command, answer)));
                }
                Some(Err(error)) => drop(answer.send(Err(error))),
                None => {}
            }
        }
    }
}

impl Committer {
    /// Runs a command on a record with all of its response. Gives the reply, and how many bytes the
    /// response has; `None` where the command would change the record, which is another one by now.
    fn read(
        &mut self,
        key: &RecordKey,
        command: &RecordCommand,
    ) -> Result<Option<(Reply, u64)>, StoreError> {
        outcome(&self.settle(), ())?;
        let (state, _) = self.table.look::<RecordState>(key);
        let state = self.answers.complete(key, state, &self.engine);
        let state = state.map_err(|error| StoreError::Refused(error.into()))?;
        // It may have expired meanwhile.
        let (_, moment) = self.table.look::<RecordState>(key);
        let mut draft = Draft::of(state, moment);
        let reply = step(slice::from_ref(key), slice::from_mut(&mut draft), command);
        let Draft { before, after, .. } = draft;
        Ok((before == after).then(|| (Reply::Record(reply), before.kept_bytes())))
    }
}
