use std::sync::Arc;

use bb8_redis::redis::{Script, ScriptInvocation};

use super::ballot::Ballot;
use super::vote::Proposal;
use crate::redis::script::{self, Keys, Scripts};
use keylatch_core::lock::{Attempt, LockName, Owner, TokenHash, Ttl};

/// A lock that is asked of every node.
#[derive(Debug, Clone)]
pub(super) struct Acquire {
    pub(super) name: LockName,
    pub(super) token: TokenHash,
    pub(super) ttl: Ttl,
    pub(super) owner: Option<Owner>,
    pub(super) attempt: Attempt,
}

/// A step that every node is asked to take, and what it is about.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Acquire(Arc<Acquire>, Ballot),
    Settle(LockName, TokenHash, Ballot, Proposal),
    Renew(LockName, TokenHash, Ttl, Ballot),
    Get(LockName),
}

/// A step by which a node gives a lock back, the same as on one Redis.
#[derive(Debug, Clone)]
pub(super) enum Return {
    Release(LockName, TokenHash),
    Withdraw(LockName, TokenHash, Attempt),
}

impl Step {
    pub(super) fn call<'a>(&self, scripts: &'a Scripts, keys: &Keys) -> ScriptInvocation<'a> {
        let on = |script: &'a Script, name: &LockName| {
            let mut call = script.prepare_invoke();
            call.key(keys.lock(name.bucket(), name)).key(keys.fence(name.bucket()));
            call
        };
        match self {
            Self::Acquire(ask, ballot) => {
                let mut call = on(&scripts.redlock.acquire, &ask.name);
                call.arg(script::token(&ask.token))
                    .arg(ask.ttl.as_millis())
                    .arg(ask.attempt.get())
                    .arg(ballot.to_string());
                call
            }
            Self::Settle(name, token, ballot, proposal) => {
                let mut call = on(&scripts.redlock.settle, name);
                call.arg(script::token(token))
                    .arg(ballot.to_string())
                    .arg(proposal.fence.get())
                    .arg(proposal.owner.as_ref().map_or("", |owner| owner.as_str()))
                    .arg(proposal.by);
                call
            }
            Self::Renew(name, token, ttl, ballot) => {
                let mut call = on(&scripts.redlock.renew, name);
                call.arg(script::token(token)).arg(ttl.as_millis()).arg(ballot.to_string());
                call
            }
            Self::Get(name) => on(&scripts.redlock.get, name),
        }
    }
}

impl Return {
    pub(super) fn call<'a>(&self, scripts: &'a Scripts, keys: &Keys) -> ScriptInvocation<'a> {
        let on = |script: &'a Script, name: &LockName| {
            let mut call = script.prepare_invoke();
            call.key(keys.lock(name.bucket(), name)).key(&keys.line(name.bucket(), name));
            call
        };
        match self {
            Self::Release(name, token) => {
                let mut call = on(&scripts.release, name);
                call.arg(script::token(token)).arg(keys.turns());
                call
            }
            Self::Withdraw(name, token, attempt) => {
                let mut call = on(&scripts.withdraw, name);
                call.arg(script::token(token)).arg(attempt.get()).arg(keys.turns());
                call
            }
        }
    }
}
