use std::time::Duration;

use bb8_redis::redis::{FromRedisValue, ParsingError, Value, from_redis_value};

use super::ballot::Ballot;
use crate::redis::replicas::Promise;
use keylatch_core::lock::{FencingToken, Holder, LockName, Owner};

/// What one node says of a lock after a step.
#[derive(Debug, Clone)]
pub(super) struct Vote {
    /// What the step found there.
    pub(super) found: Found,
    /// The bucket's fencing counter on the node.
    pub(super) counter: FencingToken,
    /// The node's wall clock, in microseconds since 1970.
    pub(super) micros: u64,
    /// The grant, if the lock is held there.
    pub(super) grant: Option<Grant>,
}

/// Who has a lock on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// The token of whoever asked, since this step.
    Granted,
    /// The token of whoever asked.
    Mine,
    /// Another token; for a reader any.
    Other,
    /// Nobody.
    Free,
}

/// A grant as one node has it.
#[derive(Debug, Clone)]
pub(super) struct Grant {
    /// The token's hash, as scripts write it.
    pub(super) token: String,
    /// [`FencingToken::NONE`] until the grant is settled.
    pub(super) fence: FencingToken,
    /// By which attempt the fencing token was proposed.
    by: u64,
    /// The highest ballot that the node promised to take nothing below.
    pub(super) promised: Ballot,
    /// Under which ballot it took the fencing token.
    pub(super) accepted: Ballot,
    pub(super) ttl: Duration,
    /// What was left of it when the node answered, at least.
    pub(super) expires_in: Duration,
    pub(super) owner: Option<Owner>,
    pub(super) acquired_at_millis: u64,
}

/// What the nodes of a grant have to agree on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Proposal {
    pub(super) fence: FencingToken,
    /// Whoever proposes it is the holder that everybody sees.
    pub(super) owner: Option<Owner>,
    /// The attempt that proposed it first, and is told that the lock was granted.
    pub(super) by: u64,
}

impl Vote {
    /// The grant, if the lock is with whoever asked.
    pub(super) fn mine(&self) -> Option<&Grant> {
        let mine = matches!(self.found, Found::Granted | Found::Mine);
        self.grant.as_ref().filter(|_| mine)
    }

    /// The grant, if the lock is with another.
    pub(super) fn other(&self) -> Option<&Grant> {
        self.grant.as_ref().filter(|_| self.found == Found::Other)
    }
}

impl Promise for Vote {
    fn is_promise(&self) -> bool {
        self.mine().is_some()
    }
}

impl Grant {
    /// What the node took.
    pub(super) fn proposal(&self) -> Proposal {
        Proposal { fence: self.fence, owner: self.owner.clone(), by: self.by }
    }

    /// The grant as everybody may see it.
    pub(super) fn holder(&self, name: &LockName) -> Holder {
        Holder {
            name: name.clone(),
            owner: self.owner.clone(),
            fence: self.fence,
            acquired_at_millis: self.acquired_at_millis,
            expires_in: self.expires_in,
            waiting: 0,
        }
    }
}

impl FromRedisValue for Vote {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let mut fields = Vec::<Value>::from_redis_value(value)?.into_iter();
        let mut next = || fields.next().unwrap_or(Value::Nil);
        let found = match from_redis_value::<String>(next())?.as_str() {
            "granted" => Found::Granted,
            "mine" => Found::Mine,
            "other" => Found::Other,
            "free" => Found::Free,
            _ => return Err("not what a step finds".into()),
        };
        let (counter, micros) = (FencingToken::new(from_redis_value(next())?), next());
        let micros = from_redis_value(micros)?;
        let pttl_millis: i64 = from_redis_value(next())?;
        let grant = match next() {
            Value::Nil => None,
            token => Some(Grant {
                token: from_redis_value(token)?,
                fence: FencingToken::new(from_redis_value(next())?),
                ttl: Duration::from_millis(from_redis_value(next())?),
                expires_in: Duration::from_millis(u64::try_from(pttl_millis).unwrap_or(0)),
                owner: owner(next())?,
                acquired_at_millis: from_redis_value(next())?,
                // A lock of the time when this node was a store by itself has none of these.
                by: from_redis_value::<Option<u64>>(next())?.unwrap_or_default(),
                promised: ballot(next())?,
                accepted: ballot(next())?,
            }),
        };
        Ok(Self { found, counter, micros, grant })
    }
}

fn owner(value: Value) -> Result<Option<Owner>, ParsingError> {
    Owner::parse(&from_redis_value::<String>(value)?).map_err(|error| error.to_string().into())
}

fn ballot(value: Value) -> Result<Ballot, ParsingError> {
    let text: Option<String> = from_redis_value(value)?;
    text.map_or(Ok(Ballot::NONE), |text| Ok(text.parse::<Ballot>()?))
}
