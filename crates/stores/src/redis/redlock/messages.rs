//! What one node is sent, and what it reports: Paxos's own messages, and one that ends a grant.
//!
//! An [acquire](Message::Acquire) and a [renewal](Message::Renew) ask for a promise under a
//! [`Ballot`]; an [accept](Message::Accept) carries the [`Proposal`]. Each is one Lua script
//! (`lua/redlock_*.lua`), and a node answers each with its [`Report`] of the lock.
//!
//! Invariant: no two attempts have the same ballot, and ballots compare in Lua as they do here. The
//! words are those of internals/redlock.md. Tested below, and over real nodes by the tests of
//! Redlock's fencing tokens.

use std::fmt;
use std::time::Duration;

use bb8_redis::redis::{FromRedisValue, ParsingError, ScriptInvocation, Value, from_redis_value};

use crate::redis::connection::ScriptReply;
use crate::redis::script::{self, Keys};
use keylatch_core::lock::{
    Attempt, FencingToken, Holder, Lease, Limit, LockName, Owner, TokenHash, Ttl,
};
use keylatch_core::time::unix_micros;

/// How many digits each of the two numbers of a ballot has.
const DIGITS: usize = 20;

/// The number that orders the attempts to agree on a fencing token. A higher ballot wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ballot {
    /// The proposer's clock, in microseconds since 1970.
    clock_micros: u64,
    /// The proposer's own number.
    proposer: u64,
}

impl Ballot {
    /// Below every other.
    pub(super) const NONE: Self = Self { clock_micros: 0, proposer: 0 };

    /// A ballot of `proposer` above `last`. By the clock it is above the ballots of earlier
    /// attempts as well.
    pub(super) fn above(last: Self, proposer: u64) -> Self {
        Self { clock_micros: unix_micros().max(last.clock_micros.saturating_add(1)), proposer }
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let (clock_micros, proposer) = text.split_at_checked(DIGITS)?;
        Some(Self { clock_micros: clock_micros.parse().ok()?, proposer: proposer.parse().ok()? })
    }
}

/// Digits of one length, so that Lua compares ballots as texts.
impl fmt::Display for Ballot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:0DIGITS$}{:0DIGITS$}", self.clock_micros, self.proposer)
    }
}

/// What the nodes of a grant agree on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Proposal {
    pub(super) fencing_token: FencingToken,
    /// The owner of the attempt that first proposed it. Others see this owner as the holder.
    pub(super) owner: Option<Owner>,
    /// The attempt that first proposed it: of all attempts with the token, this one was granted the
    /// lock, and the others repeat it.
    pub(super) attempt: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) name: LockName,
    pub(super) message: Message,
}

#[derive(Debug, Clone)]
pub(super) enum Message {
    /// Phase 1 of a grant: gives the lock if it is free, and promises the ballot.
    Acquire { token: TokenHash, ttl: Ttl, attempt: Attempt, ballot: Ballot },
    /// Phase 2 of a grant: accepts the proposal, unless a higher ballot was promised.
    Accept { token: TokenHash, ballot: Ballot, proposal: Proposal },
    /// Lets the lease last the TTL from now, or its own, and promises the ballot.
    Renew { token: TokenHash, ttl: Option<Ttl>, ballot: Ballot },
    /// Changes nothing.
    Look,
    /// Ends the grant of the token; or, with an attempt, only if that attempt alone has got it.
    End { token: TokenHash, attempt: Option<Attempt> },
}

impl Request {
    /// The call of the message's script.
    pub(super) fn call(&self, keys: &Keys) -> ScriptInvocation<'static> {
        let (script, arguments) = match &self.message {
            Message::Acquire { token, ttl, attempt, ballot } => {
                let attempt = attempt.get().to_string();
                let ttl = ttl.as_millis().to_string();
                (
                    &script::REDLOCK_ACQUIRE,
                    vec![script::token(token), ttl, attempt, ballot.to_string()],
                )
            }
            Message::Accept { token, ballot, proposal } => {
                let Proposal { fencing_token, owner, attempt } = proposal;
                let owner = owner.as_ref().map_or("", |owner| owner.as_str()).to_owned();
                let (fencing_token, attempt) = (fencing_token.to_string(), attempt.to_string());
                let token = script::token(token);
                (
                    &script::REDLOCK_ACCEPT,
                    vec![token, ballot.to_string(), fencing_token, owner, attempt],
                )
            }
            Message::Renew { token, ttl, ballot } => {
                let ttl = ttl.map(|ttl| ttl.as_millis().to_string()).unwrap_or_default();
                (&script::REDLOCK_RENEW, vec![script::token(token), ttl, ballot.to_string()])
            }
            Message::Look => (&script::REDLOCK_LOOK, Vec::new()),
            Message::End { token, attempt } => {
                let attempt = attempt.map(|attempt| attempt.get().to_string());
                (&script::REDLOCK_END, [script::token(token)].into_iter().chain(attempt).collect())
            }
        };
        let mut call = script.prepare_invoke();
        call.key(keys.lock(self.name.bucket(), &self.name));
        call.key(keys.fencing_token(self.name.bucket())).arg(arguments);
        call
    }
}

/// A lock on one node, as the node reports it after every [`Message`].
#[derive(Debug, Clone)]
pub(super) struct Report {
    pub(super) found: Found,
    /// The bucket's fencing counter on the node.
    pub(super) counter: FencingToken,
    /// The node's wall clock, in microseconds since 1970.
    pub(super) clock_micros: u64,
    /// The grant, if the lock is held there.
    pub(super) grant: Option<NodeGrant>,
}

/// Which token has the lock on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// The token of the message.
    Own,
    /// The token of the message, until now.
    Ended,
    /// Another token; for a reader any token.
    Competing,
    /// None.
    Free,
}

/// A grant as one node has it.
#[derive(Debug, Clone)]
pub(super) struct NodeGrant {
    /// The token's hash, as scripts write it.
    pub(super) token: String,
    /// The accepted fencing token; [`FencingToken::NONE`] until the node accepts one.
    pub(super) fencing_token: FencingToken,
    /// The attempt that first proposed the fencing token.
    pub(super) proposed_by: u64,
    /// The highest ballot that the node promised.
    pub(super) promised: Ballot,
    /// The ballot under which the node accepted the fencing token.
    pub(super) accepted: Ballot,
    pub(super) ttl: Duration,
    /// What is left of the lease, at least, by the node's clock when it replied.
    pub(super) expires_in: Duration,
    pub(super) owner: Option<Owner>,
    pub(super) acquired_at_millis: u64,
}

impl Report {
    /// The grant, if the token of the message has the lock: the node's promise to accept nothing
    /// under a lower ballot than `promised`, with what it has accepted before.
    pub(super) fn own_grant(&self) -> Option<&NodeGrant> {
        self.grant.as_ref().filter(|_| self.found == Found::Own)
    }

    /// The grant, if another token has the lock.
    pub(super) fn competing_grant(&self) -> Option<&NodeGrant> {
        self.grant.as_ref().filter(|_| self.found == Found::Competing)
    }
}

impl ScriptReply for Report {
    fn needs_replicas(&self) -> bool {
        self.own_grant().is_some()
    }
}

impl NodeGrant {
    /// What the node accepted.
    pub(super) fn proposal(&self) -> Proposal {
        Proposal {
            fencing_token: self.fencing_token,
            owner: self.owner.clone(),
            attempt: self.proposed_by,
        }
    }

    pub(super) fn lease(&self) -> Lease {
        Lease::exclusive(self.fencing_token, self.owner.clone(), self.ttl, self.expires_in)
    }

    /// The grant as others may see it.
    pub(super) fn holder(&self, name: &LockName) -> Holder {
        Holder {
            name: name.clone(),
            owner: self.owner.clone(),
            fencing_token: self.fencing_token,
            acquired_at_millis: self.acquired_at_millis,
            expires_in: self.expires_in,
            waiting: 0,
            limit: Limit::Exclusive,
            slot: 0,
            broken: None,
        }
    }
}

impl FromRedisValue for Report {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let mut fields = Vec::<Value>::from_redis_value(value)?.into_iter();
        let mut next = || fields.next().unwrap_or(Value::Nil);
        let found = match from_redis_value::<String>(next())?.as_str() {
            "own" => Found::Own,
            "ended" => Found::Ended,
            "competing" => Found::Competing,
            "free" => Found::Free,
            _ => return Err("not what a node finds".into()),
        };
        let counter = FencingToken::new(from_redis_value(next())?);
        let clock_micros = from_redis_value(next())?;
        let pttl_millis: i64 = from_redis_value(next())?;
        let grant = match next() {
            Value::Nil => None,
            token => Some(NodeGrant {
                token: from_redis_value(token)?,
                fencing_token: FencingToken::new(from_redis_value(next())?),
                ttl: Duration::from_millis(from_redis_value(next())?),
                expires_in: Duration::from_millis(u64::try_from(pttl_millis).unwrap_or(0)),
                owner: owner(next())?,
                acquired_at_millis: from_redis_value(next())?,
                // The first and the last are not there before the node accepts a fencing token.
                proposed_by: from_redis_value::<Option<u64>>(next())?.unwrap_or_default(),
                promised: ballot(next())?,
                accepted: ballot(next())?,
            }),
        };
        Ok(Self { found, counter, clock_micros, grant })
    }
}

fn owner(value: Value) -> Result<Option<Owner>, ParsingError> {
    Owner::parse(&from_redis_value::<String>(value)?).map_err(|error| error.to_string().into())
}

fn ballot(value: Value) -> Result<Ballot, ParsingError> {
    let text: Option<String> = from_redis_value(value)?;
    let Some(text) = text else { return Ok(Ballot::NONE) };
    Ballot::parse(&text).ok_or_else(|| "not a ballot".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ballots_order_as_texts_like_as_numbers() {
        let ballot = |clock_micros, proposer| Ballot { clock_micros, proposer };
        let rising = [
            Ballot::NONE,
            ballot(0, 7),
            ballot(9, u64::MAX),
            ballot(10, 0),
            ballot(u64::MAX, u64::MAX),
        ];
        for pair in rising.windows(2) {
            assert!(pair[0] < pair[1]);
            assert!(pair[0].to_string() < pair[1].to_string());
        }
        for ballot in rising {
            assert_eq!(Ballot::parse(&ballot.to_string()), Some(ballot));
        }
        assert_eq!(Ballot::parse("7"), None);
    }

    #[test]
    fn ballot_above_is_higher_also_when_the_clock_is_behind() {
        let ahead = Ballot { clock_micros: u64::MAX - 1, proposer: 9 };
        assert!(Ballot::above(ahead, 1) > ahead);
        assert!(Ballot::above(Ballot::NONE, 0) > Ballot::NONE);
    }
}
