use async_trait::async_trait;
use bb8_redis::redis::{Script, ScriptInvocation};

use super::RedisStore;
use super::record_reply::RecordReply;
use super::script::{self, millis};
use keylatch_core::idempotency::{
    Abandonment, Begin, Begun, Complete, Completion, End, Extension, OnCrash, RecordKey,
    RecordStore, Resolution, Resolve, UNKNOWN_RETENTION, View,
};
use keylatch_core::lock::{StoreError, TokenHash};

#[async_trait]
impl RecordStore for RedisStore {
    async fn begin(&self, ask: &Begin) -> Result<Begun, StoreError> {
        let (on_crash, outlives) = match ask.on_crash {
            OnCrash::Unknown => ("unknown", UNKNOWN_RETENTION),
            OnCrash::Rerun => ("rerun", ask.retention),
        };
        let mut call = self.on_record(&self.scripts.record.begin, &ask.key);
        call.key(self.keys.fence(ask.key.bucket()))
            .arg(script::token(&ask.token))
            .arg(script::fingerprint(&ask.fingerprint))
            .arg(millis(ask.lease))
            .arg(millis(ask.retention))
            .arg(on_crash)
            .arg(millis(outlives));
        let reply: RecordReply = self.topology.run(ask.key.bucket(), &call).await?;
        match reply.found() {
            "started" => Ok(Begun::Started(reply.run()?)),
            "again" => Ok(Begun::Again(reply.run()?)),
            "found" => Ok(Begun::Found(reply.view()?)),
            "reused" => Ok(Begun::Reused(reply.view()?)),
            _ => Err(RecordReply::unexpected()),
        }
    }

    async fn extend(&self, key: &RecordKey, token: &TokenHash) -> Result<Extension, StoreError> {
        let mut call = self.on_record(&self.scripts.record.extend, key);
        call.arg(script::token(token)).arg(millis(UNKNOWN_RETENTION));
        let reply: RecordReply = self.topology.run(key.bucket(), &call).await?;
        match reply.found() {
            "extended" => Ok(Extension::Extended),
            "lost" => Ok(Extension::Lost),
            _ => Err(RecordReply::unexpected()),
        }
    }

    async fn complete(&self, ask: &Complete) -> Result<Completion, StoreError> {
        let (stage, end) = match &ask.end {
            End::Done(kept) => ("done", kept.to_bytes().map_err(refused)?),
            End::Unknown(reason) => ("unknown", reason.as_str().into()),
        };
        let mut call = self.on_record(&self.scripts.record.complete, &ask.key);
        call.arg(script::token(&ask.token)).arg(stage).arg(end).arg(millis(UNKNOWN_RETENTION));
        let reply: RecordReply = self.topology.run(ask.key.bucket(), &call).await?;
        match reply.found() {
            "kept" => Ok(Completion::Kept(reply.view_with(&ask.end)?)),
            "refused" => Ok(Completion::Refused(reply.view()?)),
            "absent" => Ok(Completion::Absent),
            _ => Err(RecordReply::unexpected()),
        }
    }

    async fn abandon(&self, key: &RecordKey, token: &TokenHash) -> Result<Abandonment, StoreError> {
        let mut call = self.on_record(&self.scripts.record.abandon, key);
        call.arg(script::token(token));
        let reply: RecordReply = self.topology.run(key.bucket(), &call).await?;
        match reply.found() {
            "abandoned" => Ok(Abandonment::Abandoned),
            "refused" => Ok(Abandonment::Refused(reply.view()?)),
            "absent" => Ok(Abandonment::Absent),
            _ => Err(RecordReply::unexpected()),
        }
    }

    async fn resolve(&self, ask: &Resolve) -> Result<Resolution, StoreError> {
        let fence = ask.fence.map(|fence| fence.to_string()).unwrap_or_default();
        let kept = ask.end.as_ref().map(|kept| kept.to_bytes().map_err(refused)).transpose()?;
        let mut call = self.on_record(&self.scripts.record.resolve, &ask.key);
        call.arg(fence).arg(kept.unwrap_or_default());
        let reply: RecordReply = self.topology.run(ask.key.bucket(), &call).await?;
        match (reply.found(), &ask.end) {
            ("completed", Some(kept)) => {
                Ok(Resolution::Completed(reply.view_with(&End::Done(kept.clone()))?))
            }
            ("freed", None) => Ok(Resolution::Freed),
            ("refused", _) => Ok(Resolution::Refused(reply.view()?)),
            ("absent", _) => Ok(Resolution::Absent),
            _ => Err(RecordReply::unexpected()),
        }
    }

    async fn find(&self, key: &RecordKey) -> Result<Option<View>, StoreError> {
        let call = self.on_record(&self.scripts.record.find, key);
        let reply: RecordReply = self.topology.run(key.bucket(), &call).await?;
        match reply.found() {
            "found" => reply.view().map(Some),
            "absent" => Ok(None),
            _ => Err(RecordReply::unexpected()),
        }
    }

    async fn forget_expired(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

impl RedisStore {
    fn on_record<'a>(&self, script: &'a Script, key: &RecordKey) -> ScriptInvocation<'a> {
        let mut call = script.prepare_invoke();
        call.key(self.keys.record(key));
        call
    }
}

/// What could not be written was not sent.
fn refused(error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::Refused(error.into())
}
