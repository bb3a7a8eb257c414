//! The commands on a record, each with the type of its reply.
//!
//! They are helpers on the port, which fail as
//! those for locks do. Tested in `tests/stores/record_conformance`.

use super::{Command, Reply, Store, StoreError};
use crate::idempotency::{
    AbandonReply, BeginCommand, BeginReply, CompleteReply, EraseReply, RecordCommand, RecordKey,
    RecordReply, RecordView, ResolveCommand, ResolveReply, RunEnd, RunRenewal,
};
use crate::lock::TokenHash;

impl dyn Store + '_ {
    /// Starts a run, or says what became of an earlier one.
    pub async fn begin(&self, ask: &BeginCommand) -> Result<BeginReply, StoreError> {
        let command = RecordCommand::Begin(ask.clone());
        reply!(self.record(ask.key, command), RecordReply::Begin(reply) => reply)
    }

    /// Lets the lease of a run last its full time from now.
    pub async fn extend(
        &self,
        key: &RecordKey,
        token: &TokenHash,
    ) -> Result<RunRenewal, StoreError> {
        let command = RecordCommand::Renew { token: *token };
        reply!(self.record(*key, command), RecordReply::Renew(reply) => reply)
    }

    /// Ends a run and stores its result.
    pub async fn complete(
        &self,
        key: &RecordKey,
        token: &TokenHash,
        end: RunEnd,
    ) -> Result<CompleteReply, StoreError> {
        let command = RecordCommand::Complete { token: *token, end };
        reply!(self.record(*key, command), RecordReply::Complete(reply) => reply)
    }

    /// Forgets a run under which nothing was done, so that the key is free.
    pub async fn abandon(
        &self,
        key: &RecordKey,
        token: &TokenHash,
    ) -> Result<AbandonReply, StoreError> {
        let command = RecordCommand::Abandon { token: *token };
        reply!(self.record(*key, command), RecordReply::Abandon(reply) => reply)
    }

    /// Settles an unknown outcome.
    pub async fn resolve(&self, ask: &ResolveCommand) -> Result<ResolveReply, StoreError> {
        let command = RecordCommand::Resolve(ask.clone());
        reply!(self.record(ask.key, command), RecordReply::Resolve(reply) => reply)
    }

    /// Removes what is kept of a response, but its status.
    pub async fn erase(&self, key: &RecordKey) -> Result<EraseReply, StoreError> {
        reply!(self.record(*key, RecordCommand::Erase), RecordReply::Erase(reply) => reply)
    }

    /// Looks at a record.
    pub async fn find(&self, key: &RecordKey) -> Result<Option<RecordView>, StoreError> {
        reply!(self.record(*key, RecordCommand::Look), RecordReply::Look(view) => view)
    }

    async fn record(
        &self,
        key: RecordKey,
        command: RecordCommand,
    ) -> Result<RecordReply, StoreError> {
        match self.execute(Command::Record(key, command)).await? {
            Reply::Record(reply) if reply.has_stub() => {
                Err(StoreError::Refused("the reply lacks the answer that it shows".into()))
            }
            Reply::Record(reply) => Ok(reply),
            Reply::Lock(_) => Err(StoreError::mismatched_reply()),
        }
    }
}
