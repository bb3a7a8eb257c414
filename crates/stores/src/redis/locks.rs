//! The commands on a lock, one Lua script each.
//!
//! A held lock is one hash that Redis expires. Its queue is three keys more, which `lua/queue.lua`
//! describes. Each script applies the rules of `keylatch_core::lock` in one atomic step, and replies
//! with what it found, the grant if there is one, and the length of the queue.
//!
//! Tested by the conformance tests of locks and queues, and by the differential tests against the
//! rules.

use bb8_redis::redis::{Script, ScriptInvocation};

use super::RedisStore;
use super::reply::ScriptReply;
use super::script;
use keylatch_core::lock::{
    AcquireCommand, AcquireReply, Holding, LockCommand, LockName, LockReply, ReleaseReply,
    RenewReply, TokenHash, Ttl,
};
use keylatch_core::store::StoreError;

/// The commands on a lock.
impl RedisStore {
    /// Runs a command on a lock.
    pub(super) async fn lock(
        &self,
        name: &LockName,
        command: &LockCommand,
    ) -> Result<LockReply, StoreError> {
        if command.needs_modes() {
            return Err(StoreError::Unsupported);
        }
        Ok(match command {
            LockCommand::Acquire(command) => LockReply::Acquire(self.acquire(name, command).await?),
            LockCommand::Withdraw { token, attempt } => {
                let mut call = self.queue_call(&self.scripts.withdraw, name);
                call.arg(script::token(token))
                    .arg(attempt.get())
                    .arg(self.keys.wakeup_channel())
                    .arg(self.change_channel_of(name));
                self.run_on_queue(name, &call).await?;
                LockReply::Withdraw
            }
            LockCommand::Renew { token, ttl } => {
                LockReply::Renew(self.renew(name, token, *ttl).await?)
            }
            LockCommand::Release { token, .. } => {
                LockReply::Release(self.release(name, token).await?)
            }
            LockCommand::Break(_) | LockCommand::Recall => return Err(StoreError::Unsupported),
            LockCommand::Look => {
                let bucket = name.bucket();
                let [_, expiries, _] = self.keys.queue(bucket, name);
                let mut call = self.scripts.get.prepare_invoke();
                call.key(self.keys.lock(bucket, name)).key(expiries);
                let reply: ScriptReply = self.topology.run(bucket, &call).await?;
                LockReply::Look(match reply.found() {
                    "held" => Some(Holding::by_one(reply.holder(name)?)),
                    "not-held" => None,
                    _ => return Err(ScriptReply::unexpected()),
                })
            }
        })
    }

    async fn acquire(
        &self,
        name: &LockName,
        command: &AcquireCommand,
    ) -> Result<AcquireReply, StoreError> {
        let entry_millis = command.queue.map(|lasts| script::millis(lasts).to_string());
        let mut call = self.queue_call(&self.scripts.acquire, name);
        call.key(self.keys.fencing_token(name.bucket()))
            .arg(script::token(&command.token))
            .arg(command.ttl.as_millis())
            .arg(command.owner.as_ref().map_or("", |owner| owner.as_str()))
            .arg(command.attempt.get())
            .arg(entry_millis.unwrap_or_default())
            .arg(self.keys.wakeup_channel())
            .arg(self.change_channel_of(name));
        let reply = self.run_on_queue(name, &call).await?;
        match reply.found() {
            "granted" => Ok(AcquireReply::Granted(reply.lease()?)),
            "repeated" => Ok(AcquireReply::Repeated(reply.lease()?)),
            "held" => Ok(AcquireReply::Busy(reply.busy(name)?)),
            _ => Err(ScriptReply::unexpected()),
        }
    }

    async fn renew(
        &self,
        name: &LockName,
        token: &TokenHash,
        ttl: Ttl,
    ) -> Result<RenewReply, StoreError> {
        let mut call = self.scripts.renew.prepare_invoke();
        call.key(self.keys.lock(name.bucket(), name))
            .arg(script::token(token))
            .arg(ttl.as_millis());
        if self.watches.is_watched(name) {
            let [queue, ..] = self.keys.queue(name.bucket(), name);
            call.key(queue).arg(self.keys.change_channel());
        }
        let reply: ScriptReply = self.topology.run(name.bucket(), &call).await?;
        match reply.found() {
            "renewed" => Ok(RenewReply::Renewed(reply.lease()?)),
            "not-held" => Ok(RenewReply::NotHeld),
            "mismatch" => Ok(RenewReply::Mismatch),
            _ => Err(ScriptReply::unexpected()),
        }
    }

    async fn release(
        &self,
        name: &LockName,
        token: &TokenHash,
    ) -> Result<ReleaseReply, StoreError> {
        let mut call = self.queue_call(&self.scripts.release, name);
        call.arg(script::token(token))
            .arg(self.keys.wakeup_channel())
            .arg(self.change_channel_of(name));
        let reply = self.run_on_queue(name, &call).await?;
        match reply.found() {
            "released" => Ok(ReleaseReply::Released),
            "not-held" => Ok(ReleaseReply::NotHeld),
            "mismatch" => Ok(ReleaseReply::Mismatch),
            _ => Err(ScriptReply::unexpected()),
        }
    }

    /// The channel on which a command publishes its change; empty where the lock is not watched.
    fn change_channel_of(&self, name: &LockName) -> String {
        if self.watches.is_watched(name) { self.keys.change_channel() } else { String::new() }
    }

    /// A call of a script on a lock and its queue.
    fn queue_call<'a>(&self, script: &'a Script, name: &LockName) -> ScriptInvocation<'a> {
        let bucket = name.bucket();
        let mut call = script.prepare_invoke();
        call.key(self.keys.lock(bucket, name)).key(&self.keys.queue(bucket, name));
        call
    }

    /// Runs a script on a lock and its queue until it has executed its command. Before that it may
    /// have to drop more expired entries than it does in one go.
    async fn run_on_queue(
        &self,
        name: &LockName,
        call: &ScriptInvocation<'_>,
    ) -> Result<ScriptReply, StoreError> {
        loop {
            let reply: ScriptReply = self.topology.run(name.bucket(), call).await?;
            if reply.found() != "again" {
                return Ok(reply);
            }
        }
    }
}
