use std::time::Duration;

use bb8_redis::redis::{FromRedisValue, ParsingError, Value, from_redis_value};

use super::connection::NeedsReplicas;
use keylatch_core::idempotency::{End, Kept, Phase, Reason, Run, View};
use keylatch_core::lock::FencingToken;
use keylatch_core::store::StoreError;

/// What every script on a record gives: what it found, and the record if there is one.
#[derive(Debug)]
pub(super) struct RecordReply {
    found: String,
    record: Option<Fields>,
}

/// `fence, attempts, begun, pttl, stage, at, end`, in this order.
#[derive(Debug)]
struct Fields {
    fence: u64,
    attempts: u32,
    begun_at_millis: u64,
    /// Negative when the key has no expiry, which only a stranger's `PERSIST` does.
    pttl_millis: i64,
    stage: String,
    /// What is left of the lease of a record in flight; of any other, when its stage began.
    at_millis: u64,
    end: Option<Vec<u8>>,
}

impl RecordReply {
    pub(super) fn found(&self) -> &str {
        &self.found
    }

    pub(super) fn run(&self) -> Result<Run, StoreError> {
        let record = self.record()?;
        let Phase::InFlight { lease } = record.phase(None)? else {
            return Err(Self::unexpected());
        };
        Ok(Run { fence: FencingToken::new(record.fence), attempts: record.attempts, lease })
    }

    pub(super) fn view(&self) -> Result<View, StoreError> {
        self.record()?.view(None)
    }

    /// The record as it is with the end that the caller itself sent; the script does not send it back.
    pub(super) fn view_with(&self, end: &End) -> Result<View, StoreError> {
        self.record()?.view(Some(end))
    }

    /// The reply is not one that the script gives.
    pub(super) fn unexpected() -> StoreError {
        StoreError::Lost("the reply is not one that this service expects".into())
    }

    fn record(&self) -> Result<&Fields, StoreError> {
        self.record.as_ref().ok_or_else(Self::unexpected)
    }
}

impl NeedsReplicas for RecordReply {
    fn needs_replicas(&self) -> bool {
        matches!(self.found(), "started" | "again" | "extended" | "kept" | "completed" | "freed")
    }
}

impl Fields {
    fn view(&self, end: Option<&End>) -> Result<View, StoreError> {
        Ok(View {
            fence: FencingToken::new(self.fence),
            attempts: self.attempts,
            begun_at_millis: self.begun_at_millis,
            expires_in: Duration::from_millis(u64::try_from(self.pttl_millis).unwrap_or(0)),
            phase: self.phase(end)?,
        })
    }

    fn phase(&self, end: Option<&End>) -> Result<Phase, StoreError> {
        let at_millis = self.at_millis;
        let end = match (self.stage.as_str(), end) {
            ("in-flight", None) => {
                return Ok(Phase::InFlight { lease: Duration::from_millis(at_millis) });
            }
            ("done", Some(End::Done(kept))) => End::Done(kept.clone()),
            ("unknown", Some(End::Unknown(reason))) => End::Unknown(*reason),
            ("done", None) => End::Done(self.kept()?),
            ("unknown", None) => End::Unknown(self.reason()?),
            _ => return Err(RecordReply::unexpected()),
        };
        Ok(match end {
            End::Done(kept) => Phase::Done { at_millis, kept },
            End::Unknown(reason) => Phase::Unknown { since_millis: at_millis, reason },
        })
    }

    fn kept(&self) -> Result<Kept, StoreError> {
        let end = self.end.as_deref().ok_or_else(RecordReply::unexpected)?;
        Kept::from_bytes(end).map_err(|error| StoreError::Lost(error.into()))
    }

    fn reason(&self) -> Result<Reason, StoreError> {
        let end = self.end.as_deref().and_then(|end| std::str::from_utf8(end).ok());
        end.and_then(Reason::parse).ok_or_else(RecordReply::unexpected)
    }
}

impl FromRedisValue for RecordReply {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let mut fields = Vec::<Value>::from_redis_value(value)?.into_iter();
        let mut next = || fields.next().unwrap_or(Value::Nil);
        let found = from_redis_value(next())?;
        let fence = next();
        if fence == Value::Nil {
            return Ok(Self { found, record: None });
        }
        let record = Fields {
            fence: from_redis_value(fence)?,
            attempts: from_redis_value(next())?,
            begun_at_millis: from_redis_value(next())?,
            pttl_millis: from_redis_value(next())?,
            stage: from_redis_value(next())?,
            at_millis: from_redis_value(next())?,
            end: from_redis_value(next())?,
        };
        Ok(Self { found, record: Some(record) })
    }
}
