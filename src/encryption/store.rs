//! Any store, with each response encrypted that it keeps.
//!
//! The service of records stands on this decorator, so whoever completes or resolves, the store,
//! its copies and its disk have ciphertext alone. A response that does not open stays sealed in the
//! reply: a repeat then gets 503 and never runs, while lists, looks, erasures and resolutions work.
//! A repeated end has another ciphertext, so it is compared here, once opened. Tested in
//! `tests/api/encrypted_responses.rs`.

use std::sync::Arc;

use async_trait::async_trait;
use keylatch_core::idempotency::{
    BeginReply, EndReply, RecordCommand, RecordKey, RecordReply, RecordStatus, RecordSummary,
    RecordView, ResolveCommand, ResolveReply, RunEnd, Settlement, StoredResponse,
};
use keylatch_core::lock::{Holding, TokenHash};
use keylatch_core::store::{
    Backup, Command, Hints, ListLocks, ListRecords, Page, Reply, Store, StoreError, StoreGauges,
    StoreHealth, StoreProfile, Topic,
};

use super::keys::{EncryptionKeys, Unopened};

/// A [`Store`] that keeps no response in plain text.
#[derive(Debug)]
pub(crate) struct EncryptedStore {
    pub(crate) inner: Arc<dyn Store>,
    pub(crate) keys: EncryptionKeys,
}

impl EncryptedStore {
    /// Runs a command on a record, and opens the response that the reply shows.
    async fn record(
        &self,
        key: RecordKey,
        command: RecordCommand,
    ) -> Result<RecordReply, StoreError> {
        let reply = self.inner.execute(Command::Record(key, command)).await?;
        let Reply::Record(mut reply) = reply else {
            return Err(StoreError::Lost("the reply belongs to another command".into()));
        };
        if let Some(view) = shown(&mut reply) {
            self.open(&key, view);
        }
        Ok(reply)
    }

    async fn complete(
        &self,
        key: RecordKey,
        token: TokenHash,
        mut end: RunEnd,
    ) -> Result<RecordReply, StoreError> {
        let plain = match &mut end {
            RunEnd::Done(kept) | RunEnd::DoneFor(kept, _) => Some(self.seal(&key, &token, kept)?),
            RunEnd::Unknown(_) | RunEnd::SentOn(..) => None,
        };
        let reply = self.record(key, RecordCommand::Complete { token, end }).await?;
        Ok(match reply {
            RecordReply::Complete(EndReply::Refused(view))
                if view.token == token && is_done_with(&view, plain.as_ref()) =>
            {
                RecordReply::Complete(EndReply::Done(view))
            }
            reply => reply,
        })
    }

    /// The response is sealed for the last run, which is looked for, and the step is on that run
    /// alone.
    async fn resolve(&self, mut ask: ResolveCommand) -> Result<RecordReply, StoreError> {
        let (Settlement::Done(kept) | Settlement::DoneFor(kept, _)) = &mut ask.end else {
            return self.record(ask.key, RecordCommand::Resolve(ask)).await;
        };
        let (key, look) = (ask.key, self.record(ask.key, RecordCommand::Look).await?);
        let RecordReply::Look(Some(view)) = look else {
            return Ok(RecordReply::Resolve(ResolveReply::Absent));
        };
        let run = view.fencing_token;
        if ask.fencing_token.is_some_and(|meant| meant != run) {
            return Ok(RecordReply::Resolve(ResolveReply::Refused(view)));
        }
        let plain = self.seal(&key, &view.token, kept)?;
        ask.fencing_token = Some(run);
        let reply = self.record(key, RecordCommand::Resolve(ask)).await?;
        Ok(match reply {
            RecordReply::Resolve(ResolveReply::Refused(view))
                if view.fencing_token == run && is_done_with(&view, Some(&plain)) =>
            {
                RecordReply::Resolve(ResolveReply::Completed(view))
            }
            reply => reply,
        })
    }

    /// Seals what is to be kept, and gives what it was.
    fn seal(
        &self,
        key: &RecordKey,
        run: &TokenHash,
        kept: &mut StoredResponse,
    ) -> Result<StoredResponse, StoreError> {
        let plain = kept.clone();
        if let StoredResponse::Answer(answer) = &plain {
            let sealed = self.keys.seal(key, run, answer).map_err(StoreError::Refused)?;
            *kept = StoredResponse::Sealed(Arc::new(sealed));
        }
        Ok(plain)
    }

    fn open(&self, key: &RecordKey, view: &mut RecordView) {
        let RecordStatus::Done { kept, .. } = &mut view.phase else { return };
        let StoredResponse::Sealed(sealed) = &*kept else { return };
        match self.keys.open(key, &view.token, sealed) {
            Ok(answer) => *kept = StoredResponse::Answer(Arc::new(answer)),
            // Who needs the response says so.
            Err(Unopened::MissingKey) => {}
            Err(Unopened::Changed) => tracing::error!(
                key_id = sealed.key_id,
                "a kept response was changed in the store, or moved there: it does not decrypt"
            ),
        }
    }
}

/// The record that a reply shows with its response.
fn shown(reply: &mut RecordReply) -> Option<&mut RecordView> {
    match reply {
        RecordReply::Begin(BeginReply::Found(view) | BeginReply::Reused(view))
        | RecordReply::Complete(EndReply::Done(view) | EndReply::Refused(view))
        | RecordReply::Resolve(ResolveReply::Completed(view) | ResolveReply::Refused(view))
        | RecordReply::Look(Some(view)) => Some(view),
        _ => None,
    }
}

fn is_done_with(view: &RecordView, response: Option<&StoredResponse>) -> bool {
    matches!(&view.phase, RecordStatus::Done { kept, .. } if Some(kept) == response)
}

#[async_trait]
impl Store for EncryptedStore {
    async fn execute(&self, command: Command) -> Result<Reply, StoreError> {
        let reply = match command {
            Command::Record(key, RecordCommand::Complete { token, end }) => {
                self.complete(key, token, end).await
            }
            Command::Record(_, RecordCommand::Resolve(ask)) => self.resolve(ask).await,
            Command::Record(key, command) => self.record(key, command).await,
            other => return self.inner.execute(other).await,
        };
        reply.map(Reply::Record)
    }

    async fn list_locks(&self, query: &ListLocks) -> Result<Option<Page<Holding>>, StoreError> {
        self.inner.list_locks(query).await
    }

    async fn list_records(
        &self,
        query: &ListRecords,
    ) -> Result<Option<Page<RecordSummary>>, StoreError> {
        self.inner.list_records(query).await
    }

    async fn back_up(&self) -> Result<Backup, StoreError> {
        self.inner.back_up().await
    }

    fn subscribe(&self, topic: Topic) -> Hints {
        self.inner.subscribe(topic)
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        self.inner.health().await
    }

    fn profile(&self) -> StoreProfile {
        self.inner.profile()
    }

    fn gauges(&self) -> StoreGauges {
        self.inner.gauges()
    }
}
