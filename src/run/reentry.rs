//! A `run` within a `run` of the same lock, which enters the lock again under the token of the outer one.
//!
//! The outer `run` hands its lease to its command in the environment. The inner one enters the lock under a
//! name of its own and leaves that entry at its end, so the lock stays held until the last of them has ended,
//! in whatever order they do. Both renew one lease, so the inner one takes the outer one's TTL: no renewal of
//! either makes the lease shorter than the other counts on. Nor does it let more others hold the lock than
//! the outer one does. Tested in `tests/cli/run_modes.rs`.

use keylatch_client::{AcquireOptions, LockGuard};
use keylatch_core::lock::{EntryName, Limit, LockName, Slots, Token, Ttl};

use super::job::Job;

/// The variables that a command reads: the first three are for it, and the others for a `run` within it.
const NAME: &str = "KEYLATCH_NAME";
const FENCING_TOKEN: &str = "KEYLATCH_FENCING_TOKEN";
const SLOT: &str = "KEYLATCH_SLOT";
const URL: &str = "KEYLATCH_URL";
const TOKEN: &str = "KEYLATCH_TOKEN";
const TTL: &str = "KEYLATCH_TTL_MS";
const LIMIT: &str = "KEYLATCH_LIMIT";
/// The limit of a lock that any number may share.
const ANY: &str = "any";

/// The lease under which this process runs.
#[derive(Debug, Clone)]
pub struct Reentry {
    token: Token,
    ttl: Ttl,
    limit: Limit,
}

impl Reentry {
    /// The lease of the lock `name` at `server` that `variable` tells, if the process runs under one.
    pub fn find(
        server: &str,
        name: &LockName,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Option<Self> {
        // The token is for the service that gave the lease, and for no other.
        if variable(URL)? != server || variable(NAME)? != name.as_str() {
            return None;
        }
        let token = Token::parse(&variable(TOKEN)?).ok()?;
        let ttl = Ttl::from_millis(variable(TTL)?.parse().ok()?).ok()?;
        let limit = match variable(LIMIT) {
            None => Limit::Exclusive,
            Some(any) if any == ANY => Limit::Shared,
            Some(slots) => Limit::Counted(Slots::new(slots.parse().ok()?).ok()?),
        };
        Some(Self { token, ttl, limit })
    }

    /// The options of a `run` that enters the lock again.
    ///
    /// # Errors
    ///
    /// The operating system has no random bytes for the name of the entry.
    pub fn options(self, wanted: AcquireOptions) -> Result<AcquireOptions, getrandom::Error> {
        let is_met =
            wanted.limit == Limit::Exclusive || wanted.limit.holders() >= self.limit.holders();
        let name = format!("run {}", Token::generate()?.expose());
        Ok(AcquireOptions {
            ttl: self.ttl,
            limit: if is_met { self.limit } else { wanted.limit },
            token: Some(self.token),
            entry: EntryName::parse(&name).ok(),
            ..wanted
        })
    }
}

/// What the command of a job has in its environment: what an outer `run` said of another lock goes.
pub(super) fn environment(job: &Job, guard: &LockGuard) -> Vec<(&'static str, Option<String>)> {
    let limit = match job.options.limit {
        Limit::Exclusive => None,
        Limit::Shared => Some(ANY.to_owned()),
        Limit::Counted(slots) => Some(slots.get().to_string()),
    };
    vec![
        (NAME, Some(job.name.as_str().to_owned())),
        (FENCING_TOKEN, Some(guard.fencing_token().to_string())),
        (URL, Some(job.server.clone())),
        (SLOT, guard.slot().map(|slot| slot.to_string())),
        (TOKEN, Some(guard.token().expose().to_owned())),
        (TTL, Some(job.options.ttl.as_millis().to_string())),
        (LIMIT, limit),
    ]
}
