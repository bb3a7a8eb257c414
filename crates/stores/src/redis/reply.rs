use std::time::Duration;

use bb8_redis::redis::{FromRedisValue, ParsingError, Value, from_redis_value};

use super::connection::NeedsReplicas;
use keylatch_core::lock::{Contention, FencingToken, Holder, Lease, LockName, Owner};
use keylatch_core::store::StoreError;

/// What every script gives: what it found, the grant if there is one, and what it says of the line.
#[derive(Debug)]
pub(super) struct Reply {
    found: String,
    grant: Option<GrantReply>,
    waiting: u64,
    ahead: u64,
}

/// `fence, ttl, pttl, owner, acquired`, in this order.
#[derive(Debug)]
struct GrantReply {
    fence: u64,
    ttl_millis: u64,
    /// Negative when the key has no expiry, which only a stranger's `PERSIST` does.
    pttl_millis: i64,
    owner: String,
    acquired_at_millis: u64,
}

impl Reply {
    pub(super) fn found(&self) -> &str {
        &self.found
    }

    pub(super) fn lease(&self) -> Result<Lease, StoreError> {
        let grant = self.grant()?;
        Ok(Lease {
            fence: FencingToken::new(grant.fence),
            owner: grant.owner()?,
            ttl: Duration::from_millis(grant.ttl_millis),
            expires_in: grant.expires_in(),
        })
    }

    pub(super) fn holder(&self, name: &LockName) -> Result<Holder, StoreError> {
        let grant = self.grant()?;
        Ok(Holder {
            name: name.clone(),
            owner: grant.owner()?,
            fence: FencingToken::new(grant.fence),
            acquired_at_millis: grant.acquired_at_millis,
            expires_in: grant.expires_in(),
            waiting: self.waiting,
        })
    }

    /// Why an acquire got nothing; a lock that is free is so for the first in line.
    pub(super) fn busy(&self, name: &LockName) -> Result<Contention, StoreError> {
        let holder = self.grant.is_some().then(|| self.holder(name)).transpose()?;
        Ok(Contention { holder, ahead: self.ahead })
    }

    /// The reply is not one that the script gives.
    pub(super) fn unexpected() -> StoreError {
        StoreError::Lost("the reply is not one that this service expects".into())
    }

    fn grant(&self) -> Result<&GrantReply, StoreError> {
        self.grant.as_ref().ok_or_else(Self::unexpected)
    }
}

impl NeedsReplicas for Reply {
    fn needs_replicas(&self) -> bool {
        matches!(self.found(), "granted" | "repeated" | "renewed")
    }
}

impl GrantReply {
    fn of(fields: [Value; 5]) -> Result<Option<Self>, ParsingError> {
        let [fence, ttl, pttl, owner, acquired] = fields;
        if fence == Value::Nil {
            return Ok(None);
        }
        Ok(Some(Self {
            fence: from_redis_value(fence)?,
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

impl FromRedisValue for Reply {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let mut fields = Vec::<Value>::from_redis_value(value)?.into_iter();
        let mut next = || fields.next().unwrap_or(Value::Nil);
        let found = from_redis_value(next())?;
        let grant = [next(), next(), next(), next(), next()];
        let number = |value| from_redis_value::<Option<u64>>(value).map(Option::unwrap_or_default);
        let (waiting, ahead) = (number(next())?, number(next())?);
        Ok(Self { found, grant: GrantReply::of(grant)?, waiting, ahead })
    }
}
