//! The commands on a record, each with the type of its reply: helpers on the port, as those for locks are.
//!
//! A store that replies to another command has a defect, which is an error and no panic. Tested in
//! `tests/stores/record_conformance`.

use super::{Command, ListQuery, ListRecords, ListReply, Page, Reply, Store, StoreError};
use crate::idempotency::{
    AbandonReply, BeginCommand, BeginReply, CompleteReply, EraseReply, RecordCommand, RecordKey,
    RecordReply, RecordSummary, RecordView, ResolveCommand, ResolveReply, RunEnd, RunRenewal,
};
use crate::lock::TokenHash;

impl dyn Store + '_ {
    /// Starts a run, or says what became of an earlier one.
    ///
    /// # Errors
    ///
    /// The store could not find out.
    pub async fn begin(&self, ask: &BeginCommand) -> Result<BeginReply, StoreError> {
        match self.record(ask.key, RecordCommand::Begin(ask.clone())).await? {
            RecordReply::Begin(reply) => Ok(reply),
            _ => Err(StoreError::mismatched_reply()),
        }
    }

    /// Lets the lease of a run last its full time from now.
    ///
    /// # Errors
    ///
    /// The store could not find out.
    pub async fn extend(
        &self,
        key: &RecordKey,
        token: &TokenHash,
    ) -> Result<RunRenewal, StoreError> {
        match self.record(*key, RecordCommand::Renew { token: *token }).await? {
            RecordReply::Renew(reply) => Ok(reply),
            _ => Err(StoreError::mismatched_reply()),
        }
    }

    /// Ends a run and stores its result.
    ///
    /// # Errors
    ///
    /// The store could not find out.
    pub async fn complete(
        &self,
        key: &RecordKey,
        token: &TokenHash,
        end: RunEnd,
    ) -> Result<CompleteReply, StoreError> {
        match self.record(*key, RecordCommand::Complete { token: *token, end }).await? {
            RecordReply::Complete(reply) => Ok(reply),
            _ => Err(StoreError::mismatched_reply()),
        }
    }

    /// Forgets a run under which nothing was done, so that the key is free.
    ///
    /// # Errors
    ///
    /// The store could not find out.
    pub async fn abandon(
        &self,
        key: &RecordKey,
        token: &TokenHash,
    ) -> Result<AbandonReply, StoreError> {
        match self.record(*key, RecordCommand::Abandon { token: *token }).await? {
            RecordReply::Abandon(reply) => Ok(reply),
            _ => Err(StoreError::mismatched_reply()),
        }
    }

    /// Settles an unknown outcome.
    ///
    /// # Errors
    ///
    /// The store could not find out.
    pub async fn resolve(&self, ask: &ResolveCommand) -> Result<ResolveReply, StoreError> {
        match self.record(ask.key, RecordCommand::Resolve(ask.clone())).await? {
            RecordReply::Resolve(reply) => Ok(reply),
            _ => Err(StoreError::mismatched_reply()),
        }
    }

    /// Removes what is kept of an answer, but its status.
    ///
    /// # Errors
    ///
    /// The store could not find out.
    pub async fn erase(&self, key: &RecordKey) -> Result<EraseReply, StoreError> {
        match self.record(*key, RecordCommand::Erase).await? {
            RecordReply::Erase(reply) => Ok(reply),
            _ => Err(StoreError::mismatched_reply()),
        }
    }

    /// Looks at a record.
    ///
    /// # Errors
    ///
    /// The store could not find out.
    pub async fn find(&self, key: &RecordKey) -> Result<Option<RecordView>, StoreError> {
        match self.record(*key, RecordCommand::Look).await? {
            RecordReply::Look(view) => Ok(view),
            _ => Err(StoreError::mismatched_reply()),
        }
    }

    /// A page of records; `None` when the cursor is not one that this store gave.
    ///
    /// # Errors
    ///
    /// The store could not find out, or keeps no records.
    pub async fn list_records(
        &self,
        query: &ListRecords,
    ) -> Result<Option<Page<RecordSummary>>, StoreError> {
        match self.list(&ListQuery::Records(query.clone())).await? {
            None => Ok(None),
            Some(ListReply::Records(page)) => Ok(Some(page)),
            Some(ListReply::Locks(_) | ListReply::All(_)) => Err(StoreError::mismatched_reply()),
        }
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
            Reply::Lock(_) | Reply::Set(_) => Err(StoreError::mismatched_reply()),
        }
    }
}
