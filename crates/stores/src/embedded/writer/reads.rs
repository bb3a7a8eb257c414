//! Commands whose replies show a response that is on disk alone.
//!
//! SQLite lets no other connection read the file, so the writer's thread reads, after a batch and
//! its responses, and some bytes at most before the next batch: changes wait for a read or two, and
//! no worker of the runtime waits for the disk. A read that hangs holds changes as a sync that
//! hangs does, and no caller's deadline. The command runs on the record with its response, and a
//! record that has changed since the table was asked gives what it says now. Invariant: a reply has
//! the response that is on disk, or is an error. Tested in `crates/stores/tests/faults/answers.rs`.

use std::slice;

use super::{Answer, Committer, Job, Writer};
use crate::table::{Draft, step};
use keylatch_core::idempotency::{RecordCommand, RecordKey, RecordState};
use keylatch_core::store::{Command, Reply, StoreError};

/// How many bytes of responses are read between two batches, and one response in any case. A job
/// that reads none has a pause between two batches to itself.
pub(super) const ALL_OF_A_PAUSE: u64 = 256 * 1024;

impl Writer {
    /// Runs a command whose reply shows a response that is on disk alone.
    pub(in crate::embedded) async fn read(
        &self,
        key: RecordKey,
        command: RecordCommand,
    ) -> Result<Reply, StoreError> {
        self.ask(|answer| self.shared.push_job(job(key, command, answer))).await
    }
}

/// The same for the thread. A record that is another one by now, which the command would change,
/// is for a batch.
pub(super) fn job(key: RecordKey, command: RecordCommand, answer: Answer<Reply>) -> Job {
    Box::new(move |shared| {
        // A caller that has gone needs no response.
        if answer.is_closed() {
            return 0;
        }
        match shared.with_committer(|committer| committer.read(&key, &command)) {
            Some(Ok(Some((reply, length)))) => {
                drop(answer.send(Ok(reply)));
                return length;
            }
            Some(Ok(None)) => drop(shared.push((Command::Record(key, command), answer))),
            Some(Err(error)) => drop(answer.send(Err(error))),
            None => {}
        }
        0
    })
}

impl Committer {
    /// Runs a command on a record with all of its response. Gives the reply, and how many bytes the
    /// response has; `None` where the command would change the record, which is another one by now.
    fn read(
        &mut self,
        key: &RecordKey,
        command: &RecordCommand,
    ) -> Result<Option<(Reply, u64)>, StoreError> {
        self.settle()?;
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
