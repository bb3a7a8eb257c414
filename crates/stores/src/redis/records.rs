//! The steps on a record, one Lua script each.

use bb8_redis::redis::{Script, ScriptInvocation};

use super::RedisStore;
use super::record_reply::RecordReply as ScriptReply;
use super::script::{self, millis};
use keylatch_core::idempotency::{
    Abandonment, Begin, Begun, Completion, End, Extension, OnCrash, RecordCommand, RecordKey,
    RecordReply, Resolution, Resolve, UNKNOWN_RETENTION,
};
use keylatch_core::lock::TokenHash;
use keylatch_core::store::StoreError;

impl RedisStore {
    pub(super) async fn record(
        &self,
        key: &RecordKey,
        command: &RecordCommand,
    ) -> Result<RecordReply, StoreError> {
        Ok(match command {
            RecordCommand::Begin(begin) => RecordReply::Begin(self.begin(key, begin).await?),
            RecordCommand::Renew { token } => RecordReply::Renew(self.extend(key, token).await?),
            RecordCommand::Complete { token, end } => {
                RecordReply::Complete(self.complete(key, token, end).await?)
            }
            RecordCommand::Abandon { token } => {
                RecordReply::Abandon(self.abandon(key, token).await?)
            }
            RecordCommand::Resolve(resolve) => {
                RecordReply::Resolve(self.resolve(key, resolve).await?)
            }
            RecordCommand::Look => {
                let call = self.on_record(&self.scripts.record.find, key);
                let reply = self.run_on_record(key, &call).await?;
                RecordReply::Look(match reply.found() {
                    "found" => Some(reply.view()?),
                    "absent" => None,
                    _ => return Err(ScriptReply::unexpected()),
                })
            }
        })
    }

    async fn begin(&self, key: &RecordKey, begin: &Begin) -> Result<Begun, StoreError> {
        let (on_crash, outlives) = match begin.on_crash {
            OnCrash::Unknown => ("unknown", UNKNOWN_RETENTION),
            OnCrash::Rerun => ("rerun", begin.retention),
        };
        let mut call = self.on_record(&self.scripts.record.begin, key);
        call.key(self.keys.fence(key.bucket()))
            .arg(script::token(&begin.token))
            .arg(script::fingerprint(&begin.fingerprint))
            .arg(millis(begin.lease))
            .arg(millis(begin.retention))
            .arg(on_crash)
            .arg(millis(outlives));
        let reply = self.run_on_record(key, &call).await?;
        match reply.found() {
            "started" => Ok(Begun::Started(reply.run()?)),
            "again" => Ok(Begun::Again(reply.run()?)),
            "found" => Ok(Begun::Found(reply.view()?)),
            "reused" => Ok(Begun::Reused(reply.view()?)),
            _ => Err(ScriptReply::unexpected()),
        }
    }

    async fn extend(&self, key: &RecordKey, token: &TokenHash) -> Result<Extension, StoreError> {
        let mut call = self.on_record(&self.scripts.record.extend, key);
        call.arg(script::token(token)).arg(millis(UNKNOWN_RETENTION));
        match self.run_on_record(key, &call).await?.found() {
            "extended" => Ok(Extension::Extended),
            "lost" => Ok(Extension::Lost),
            _ => Err(ScriptReply::unexpected()),
        }
    }

    async fn complete(
        &self,
        key: &RecordKey,
        token: &TokenHash,
        end: &End,
    ) -> Result<Completion, StoreError> {
        let (stage, stored) = match end {
            End::Done(kept) => ("done", kept.to_bytes().map_err(refused)?),
            End::Unknown(reason) => ("unknown", reason.as_str().into()),
        };
        let mut call = self.on_record(&self.scripts.record.complete, key);
        call.arg(script::token(token)).arg(stage).arg(stored).arg(millis(UNKNOWN_RETENTION));
        let reply = self.run_on_record(key, &call).await?;
        match reply.found() {
            "kept" => Ok(Completion::Kept(reply.view_with(end)?)),
            "refused" => Ok(Completion::Refused(reply.view()?)),
            "absent" => Ok(Completion::Absent),
            _ => Err(ScriptReply::unexpected()),
        }
    }

    async fn abandon(&self, key: &RecordKey, token: &TokenHash) -> Result<Abandonment, StoreError> {
        let mut call = self.on_record(&self.scripts.record.abandon, key);
        call.arg(script::token(token));
        let reply = self.run_on_record(key, &call).await?;
        match reply.found() {
            "abandoned" => Ok(Abandonment::Abandoned),
            "refused" => Ok(Abandonment::Refused(reply.view()?)),
            "absent" => Ok(Abandonment::Absent),
            _ => Err(ScriptReply::unexpected()),
        }
    }

    async fn resolve(&self, key: &RecordKey, resolve: &Resolve) -> Result<Resolution, StoreError> {
        let fence = resolve.fence.map(|fence| fence.to_string()).unwrap_or_default();
        let kept = resolve.end.as_ref().map(|kept| kept.to_bytes().map_err(refused)).transpose()?;
        let mut call = self.on_record(&self.scripts.record.resolve, key);
        call.arg(fence).arg(kept.unwrap_or_default());
        let reply = self.run_on_record(key, &call).await?;
        match (reply.found(), &resolve.end) {
            ("completed", Some(kept)) => {
                Ok(Resolution::Completed(reply.view_with(&End::Done(kept.clone()))?))
            }
            ("freed", None) => Ok(Resolution::Freed),
            ("refused", _) => Ok(Resolution::Refused(reply.view()?)),
            ("absent", _) => Ok(Resolution::Absent),
            _ => Err(ScriptReply::unexpected()),
        }
    }

    async fn run_on_record(
        &self,
        key: &RecordKey,
        call: &ScriptInvocation<'_>,
    ) -> Result<ScriptReply, StoreError> {
        self.topology.run(key.bucket(), call).await
    }

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
