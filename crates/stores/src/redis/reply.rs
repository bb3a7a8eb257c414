//! What a script on a lock replies: what it found, the grant if there is one, and the queue.
//!
//! Locks, announced changes and Redlock's nodes share it. Tested by the conformance tests, and with foreign
//! values in the keys by `tests/api/store_failures.rs`.

use std::time::Duration;

use bb8_redis::redis::{FromRedisValue, ParsingError, Value, from_redis_value};

use super::connection::NeedsReplicas;
use keylatch_core::lock::{
    Contention, FencingToken, Holder, Holding, Lease, Limit, LockName, Owner,
};
use keylatch_core::store::StoreError;

/// The reply of every script on a lock: what it found, the grant if there is one, and the queue.
#[derive(Debug)]
pub(super) struct ScriptReply {
    found: String,
    grant: Option<GrantFields>,
    /// How many entries the queue has, and how many of them are ahead of the caller.
    waiting: u64,
    ahead: u64,
}

/// `fencing_token, ttl, pttl, owner, acquired`, in this order.
#[derive(Debug)]
struct GrantFields {
    fencing_token: u64,
    ttl_millis: u64,
    /// Negative when the key has no expiry, which only another program's `PERSIST` does.
    pttl_millis: i64,
    owner: String,
    acquired_at_millis: u64,
}

impl ScriptReply {
    /// What the script found.
    pub(super) fn found(&self) -> &str {
        &self.found
    }

    /// The grant, as its holder reads it.
    pub(super) fn lease(&self) -> Result<Lease, StoreError> {
        let grant = self.grant()?;
        let fencing_token = FencingToken::new(grant.fencing_token);
        let ttl = Duration::from_millis(grant.ttl_millis);
        Ok(Lease::exclusive(fencing_token, grant.owner()?, ttl, grant.expires_in()))
    }

    /// The grant, as others read it.
    pub(super) fn holder(&self, name: &LockName) -> Result<Holder, StoreError> {
        let grant = self.grant()?;
        Ok(Holder {
            name: name.clone(),
            owner: grant.owner()?,
            fencing_token: FencingToken::new(grant.fencing_token),
            acquired_at_millis: grant.acquired_at_millis,
            expires_in: grant.expires_in(),
            waiting: self.waiting,
            limit: Limit::Exclusive,
            slot: 0,
            broken: None,
        })
    }

    /// Why an acquire got nothing. A free lock without a holder is for the first entry of its queue.
    pub(super) fn busy(&self, name: &LockName) -> Result<Contention, StoreError> {
        let holder = self.grant.is_some().then(|| self.holder(name)).transpose()?;
        Ok(Contention { holding: holder.map(Holding::by_one), ahead: self.ahead })
    }

    /// The script gives no such reply.
    pub(super) fn unexpected() -> StoreError {
        StoreError::Lost("the reply is not one that this service expects".into())
    }

    fn grant(&self) -> Result<&GrantFields, StoreError> {
        self.grant.as_ref().ok_or_else(Self::unexpected)
    }
}

impl NeedsReplicas for ScriptReply {
    fn needs_replicas(&self) -> bool {
        matches!(self.found(), "granted" | "repeated" | "renewed")
    }
}

impl GrantFields {
    fn of(fields: [Value; 5]) -> Result<Option<Self>, ParsingError> {
        let [fencing_token, ttl, pttl, owner, acquired] = fields;
        if fencing_token == Value::Nil {
            return Ok(None);
        }
        Ok(Some(Self {
            fencing_token: from_redis_value(fencing_token)?,
            ttl_millis: from_redis_value(ttl)?,
            pttl_millis: from_redis_value(pttl)?,
            owner: from_redis_value(owner)?,
            acquired_at_millis: from_redis_value(acquired)?,
        }))
    }

    fn owner(&self) -> Result<Option<Owner>, StoreError> {
        Owner::parse(&self.owner).map_err(|error| StoreError::Lost(error.into()))
    }

    fn expires_in(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.pttl_millis).unwrap_or(0))
    }
}

impl FromRedisValue for ScriptReply {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let mut fields = Vec::<Value>::from_redis_value(value)?.into_iter();
        let mut next = || fields.next().unwrap_or(Value::Nil);
        let found = from_redis_value(next())?;
        let grant = [next(), next(), next(), next(), next()];
        let number = |value| from_redis_value::<Option<u64>>(value).map(Option::unwrap_or_default);
        let (waiting, ahead) = (number(next())?, number(next())?);
        Ok(Self { found, grant: GrantFields::of(grant)?, waiting, ahead })
    }
}
