//! The commands on a record, one Lua script each, and the scripts' reply.
//!
//! A record is one hash that Redis expires, which `lua/record.lua` describes; each bucket has an index of
//! its unfinished ones, which the same scripts write. `record_list.rs` lists them. Each script applies the
//! rules of `keylatch_core::idempotency` in one atomic step, and replies with what it found and the
//! record if there is one. A stored response that the caller itself sent does not come back.
//!
//! Tested by the conformance tests of records, and by the differential tests against the rules.

use std::time::Duration;

use bb8_redis::redis::{
    FromRedisValue, ParsingError, Script, ScriptInvocation, Value, from_redis_value,
};

use super::RedisStore;
use super::connection::NeedsReplicas;
use super::script::{self, millis, millis_or_none};
use keylatch_core::idempotency::{
    AbandonReply, BeginCommand, BeginReply, CompleteReply, OnCrash, RecordCommand, RecordKey,
    RecordReply, RecordStatus, RecordView, ResolveCommand, ResolveReply, Run, RunEnd, RunRenewal,
    StoredResponse, UNKNOWN_RETENTION, UnknownReason,
};
use keylatch_core::lock::{FencingToken, TokenHash};
use keylatch_core::store::StoreError;

/// The commands on a record.
impl RedisStore {
    /// Runs a command on a record.
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
                let call = self.record_call(&self.scripts.record.find, key);
                let reply = self.run_record(key, &call).await?;
                RecordReply::Look(match reply.found() {
                    "found" => Some(reply.view()?),
                    "absent" => None,
                    _ => return Err(ScriptReply::unexpected()),
                })
            }
        })
    }

    async fn begin(&self, key: &RecordKey, begin: &BeginCommand) -> Result<BeginReply, StoreError> {
        let (on_crash, outlives) = match begin.on_crash {
            OnCrash::Unknown => ("unknown", UNKNOWN_RETENTION),
            OnCrash::Rerun => ("rerun", begin.retention),
        };
        let mut call = self.record_call(&self.scripts.record.begin, key);
        call.key(self.keys.fencing_token(key.bucket()))
            .key(self.keys.unfinished(key.bucket()))
            .arg(script::token(&begin.token))
            .arg(script::fingerprint(&begin.fingerprint))
            .arg(millis_or_none(begin.lease))
            .arg(millis(begin.retention))
            .arg(on_crash)
            .arg(millis(outlives))
            .arg(begin.scope.to_bytes().map_err(refused)?);
        let reply = self.run_record(key, &call).await?;
        match reply.found() {
            "started" => Ok(BeginReply::Started(reply.run()?)),
            "again" => Ok(BeginReply::Again(reply.run()?)),
            "found" => Ok(BeginReply::Found(reply.view()?)),
            "reused" => Ok(BeginReply::Reused(reply.view()?)),
            _ => Err(ScriptReply::unexpected()),
        }
    }

    async fn extend(&self, key: &RecordKey, token: &TokenHash) -> Result<RunRenewal, StoreError> {
        let mut call = self.change_call(&self.scripts.record.extend, key);
        call.arg(script::token(token)).arg(millis(UNKNOWN_RETENTION));
        match self.run_record(key, &call).await?.found() {
            "extended" => Ok(RunRenewal::Extended),
            "lost" => Ok(RunRenewal::Lost),
            _ => Err(ScriptReply::unexpected()),
        }
    }

    async fn complete(
        &self,
        key: &RecordKey,
        token: &TokenHash,
        end: &RunEnd,
    ) -> Result<CompleteReply, StoreError> {
        let (stage, stored) = match end {
            RunEnd::Done(kept) => ("done", kept.to_bytes().map_err(refused)?),
            RunEnd::Unknown(reason) => ("unknown", reason.as_str().into()),
        };
        let mut call = self.change_call(&self.scripts.record.complete, key);
        call.arg(script::token(token)).arg(stage).arg(stored).arg(millis(UNKNOWN_RETENTION));
        let reply = self.run_record(key, &call).await?;
        match reply.found() {
            "kept" => Ok(CompleteReply::Kept(reply.view_with(end)?)),
            "refused" => Ok(CompleteReply::Refused(reply.view()?)),
            "absent" => Ok(CompleteReply::Absent),
            _ => Err(ScriptReply::unexpected()),
        }
    }

    async fn abandon(
        &self,
        key: &RecordKey,
        token: &TokenHash,
    ) -> Result<AbandonReply, StoreError> {
        let mut call = self.change_call(&self.scripts.record.abandon, key);
        call.arg(script::token(token));
        let reply = self.run_record(key, &call).await?;
        match reply.found() {
            "abandoned" => Ok(AbandonReply::Abandoned),
            "refused" => Ok(AbandonReply::Refused(reply.view()?)),
            "absent" => Ok(AbandonReply::Absent),
            _ => Err(ScriptReply::unexpected()),
        }
    }

    async fn resolve(
        &self,
        key: &RecordKey,
        resolve: &ResolveCommand,
    ) -> Result<ResolveReply, StoreError> {
        let fencing_token = resolve
            .fencing_token
            .map(|fencing_token| fencing_token.to_string())
            .unwrap_or_default();
        let kept = resolve.end.as_ref().map(|kept| kept.to_bytes().map_err(refused)).transpose()?;
        let mut call = self.change_call(&self.scripts.record.resolve, key);
        call.arg(fencing_token).arg(kept.unwrap_or_default());
        let reply = self.run_record(key, &call).await?;
        match (reply.found(), &resolve.end) {
            ("completed", Some(kept)) => {
                Ok(ResolveReply::Completed(reply.view_with(&RunEnd::Done(kept.clone()))?))
            }
            ("freed", None) => Ok(ResolveReply::Freed),
            ("refused", _) => Ok(ResolveReply::Refused(reply.view()?)),
            ("absent", _) => Ok(ResolveReply::Absent),
            _ => Err(ScriptReply::unexpected()),
        }
    }

    async fn run_record(
        &self,
        key: &RecordKey,
        call: &ScriptInvocation<'_>,
    ) -> Result<ScriptReply, StoreError> {
        self.topology.run(key.bucket(), call).await
    }

    fn record_call<'a>(&self, script: &'a Script, key: &RecordKey) -> ScriptInvocation<'a> {
        let mut call = script.prepare_invoke();
        call.key(self.keys.record(key));
        call
    }

    /// The same for a command that changes the record, and with it the bucket's index.
    fn change_call<'a>(&self, script: &'a Script, key: &RecordKey) -> ScriptInvocation<'a> {
        let mut call = self.record_call(script, key);
        call.key(self.keys.unfinished(key.bucket()));
        call
    }
}

/// A response that cannot be encoded was not sent.
fn refused(error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::Refused(error.into())
}

/// The reply of every script on a record: what it found, and the record if there is one.
#[derive(Debug)]
struct ScriptReply {
    found: String,
    record: Option<RecordFields>,
}

/// `fencing_token, attempts, begun, pttl, stage, at, end`, in this order.
#[derive(Debug)]
pub(super) struct RecordFields {
    fencing_token: u64,
    attempts: u32,
    begun_at_millis: u64,
    /// Negative when the key has no expiry, which only another program's `PERSIST` does.
    pttl_millis: i64,
    pub(super) stage: String,
    /// For a record in flight what is left of its lease; for any other when its stage began.
    at_millis: u64,
    pub(super) end: Option<Vec<u8>>,
}

impl ScriptReply {
    fn found(&self) -> &str {
        &self.found
    }

    fn run(&self) -> Result<Run, StoreError> {
        let record = self.record()?;
        let RecordStatus::InFlight { lease } = record.phase(None)? else {
            return Err(Self::unexpected());
        };
        Ok(Run {
            fencing_token: FencingToken::new(record.fencing_token),
            attempts: record.attempts,
            lease,
        })
    }

    fn view(&self) -> Result<RecordView, StoreError> {
        self.record()?.view(None)
    }

    /// The record with the end that the caller itself sent, which the script does not return.
    fn view_with(&self, end: &RunEnd) -> Result<RecordView, StoreError> {
        self.record()?.view(Some(end))
    }

    /// The script gives no such reply.
    fn unexpected() -> StoreError {
        StoreError::Lost("the reply is not one that this service expects".into())
    }

    fn record(&self) -> Result<&RecordFields, StoreError> {
        self.record.as_ref().ok_or_else(Self::unexpected)
    }
}

impl NeedsReplicas for ScriptReply {
    fn needs_replicas(&self) -> bool {
        matches!(self.found(), "started" | "again" | "extended" | "kept" | "completed" | "freed")
    }
}

impl RecordFields {
    pub(super) fn view(&self, end: Option<&RunEnd>) -> Result<RecordView, StoreError> {
        Ok(RecordView {
            fencing_token: FencingToken::new(self.fencing_token),
            attempts: self.attempts,
            begun_at_millis: self.begun_at_millis,
            expires_in: Duration::from_millis(u64::try_from(self.pttl_millis).unwrap_or(0)),
            phase: self.phase(end)?,
        })
    }

    fn phase(&self, end: Option<&RunEnd>) -> Result<RecordStatus, StoreError> {
        let at_millis = self.at_millis;
        let end = match (self.stage.as_str(), end) {
            ("in-flight", None) => {
                return Ok(RecordStatus::InFlight { lease: Duration::from_millis(at_millis) });
            }
            ("done", Some(RunEnd::Done(kept))) => RunEnd::Done(kept.clone()),
            ("unknown", Some(RunEnd::Unknown(reason))) => RunEnd::Unknown(*reason),
            ("done", None) => RunEnd::Done(self.kept()?),
            ("unknown", None) => RunEnd::Unknown(self.reason()?),
            _ => return Err(ScriptReply::unexpected()),
        };
        Ok(match end {
            RunEnd::Done(kept) => RecordStatus::Done { at_millis, kept },
            RunEnd::Unknown(reason) => RecordStatus::Unknown { since_millis: at_millis, reason },
        })
    }

    fn kept(&self) -> Result<StoredResponse, StoreError> {
        let end = self.end.as_deref().ok_or_else(ScriptReply::unexpected)?;
        StoredResponse::from_bytes(end).map_err(|error| StoreError::Lost(error.into()))
    }

    fn reason(&self) -> Result<UnknownReason, StoreError> {
        let end = self.end.as_deref().and_then(|end| std::str::from_utf8(end).ok());
        end.and_then(UnknownReason::parse).ok_or_else(ScriptReply::unexpected)
    }
}

impl FromRedisValue for ScriptReply {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let mut fields = Vec::<Value>::from_redis_value(value)?.into_iter();
        let found = from_redis_value(fields.next().unwrap_or(Value::Nil))?;
        Ok(Self { found, record: RecordFields::read(&mut fields)? })
    }
}

impl RecordFields {
    /// Takes the fields of a record from those of a reply; `None` where the reply has no record.
    pub(super) fn read(
        fields: &mut impl Iterator<Item = Value>,
    ) -> Result<Option<Self>, ParsingError> {
        let mut next = || fields.next().unwrap_or(Value::Nil);
        let fencing_token = next();
        if fencing_token == Value::Nil {
            return Ok(None);
        }
        Ok(Some(Self {
            fencing_token: from_redis_value(fencing_token)?,
            attempts: from_redis_value(next())?,
            begun_at_millis: from_redis_value(next())?,
            pttl_millis: from_redis_value(next())?,
            stage: from_redis_value(next())?,
            at_millis: from_redis_value(next())?,
            end: from_redis_value(next())?,
        }))
    }
}
