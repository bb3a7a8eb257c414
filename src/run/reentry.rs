//! A `run` within a `run` of the same locks, which enters them again under the token of the outer
//! one.
//!
//! The outer `run` hands its lease to its command in the environment. The inner one enters a lock
//! under a name of its own and leaves that entry at its end. Several locks have no entries
//! together, so the inner one renews them, and leaves them to the outer one at its end. Both renew
//! one lease, so the inner one takes the outer one's TTL: no renewal of either makes the lease
//! shorter than the other counts on. Nor does it let more others hold a lock than the outer one
//! does. Tested in `tests/cli/run_modes.rs` and `run_sets.rs`.

use keylatch_client::{AcquireOptions, LeasedLock, Limit, LockGuard, SetGuard, Token};
use keylatch_core::lock::{LockName, Slots, Ttl};

use super::{Job, Locks};

/// The variables that a command reads: of one lock, and of several with a line for each.
const NAME: &str = "KEYLATCH_NAME";
pub(super) const FENCING_TOKEN: &str = "KEYLATCH_FENCING_TOKEN";
const SLOT: &str = "KEYLATCH_SLOT";
const NAMES: &str = "KEYLATCH_NAMES";
const FENCING_TOKENS: &str = "KEYLATCH_FENCING_TOKENS";
const SLOTS: &str = "KEYLATCH_SLOTS";
/// Those for a `run` within it.
pub(super) const URL: &str = "KEYLATCH_URL";
const TOKEN: &str = "KEYLATCH_TOKEN";
const TTL: &str = "KEYLATCH_TTL_MS";
const LIMIT: &str = "KEYLATCH_LIMIT";
/// The limit of a lock that any number may share.
const ANY: &str = "any";

/// Variables, with the value that they are set to; `None` removes one.
pub(super) type Environment = Vec<(&'static str, Option<String>)>;

/// The lease under which this process runs.
#[derive(Debug, Clone)]
pub struct Reentry {
    token: Token,
    ttl: Ttl,
    limit: Limit,
}

impl Reentry {
    /// The lease of all of `locks` at `server` that `variable` tells, if the process runs under
    /// one.
    pub fn find(
        server: &str,
        locks: &Locks,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Option<Self> {
        // The token is for the service that gave the lease, and for no other.
        if variable(URL)? != server {
            return None;
        }
        let outer = variable(NAME).or_else(|| variable(NAMES))?;
        let is_outer = |name: &LockName| outer.split('\n').any(|outer| outer == name.as_str());
        if !locks.names().iter().all(is_outer) {
            return None;
        }
        let token = Token::parse(&variable(TOKEN)?).ok()?;
        let ttl = Ttl::from_millis(variable(TTL)?.parse().ok()?).ok()?;
        let limit = match variable(LIMIT) {
            None => Limit::Exclusive,
            Some(any) if any == ANY => Limit::Shared,
            Some(slots) => Limit::Counted(Slots::new(slots.parse().ok()?).ok()?.get().into()),
        };
        Some(Self { token, ttl, limit })
    }

    /// The options of a `run` that enters `locks` again.
    pub fn options(
        self,
        locks: &Locks,
        wanted: AcquireOptions,
    ) -> Result<AcquireOptions, getrandom::Error> {
        let is_met =
            wanted.limit == Limit::Exclusive || holders(wanted.limit) >= holders(self.limit);
        let entry = match locks {
            Locks::One(_) => Some(format!("run {}", Token::generate()?.expose())),
            Locks::Several(_) => None,
        };
        Ok(AcquireOptions {
            ttl: self.ttl.get(),
            limit: if is_met { self.limit } else { wanted.limit },
            token: Some(self.token),
            keep: entry.is_none(),
            entry,
            ..wanted
        })
    }
}

/// How many may hold a lock together.
fn holders(limit: Limit) -> u64 {
    match limit {
        Limit::Exclusive => 1,
        Limit::Counted(slots) => slots,
        Limit::Shared => u64::MAX,
    }
}

/// What the command of a job with one lock has in its environment.
pub(super) fn of_lock(job: &Job, guard: &LockGuard) -> Environment {
    let mut environment = of_lease(job, guard.token());
    environment.extend([
        (NAME, Some(guard.name().to_owned())),
        (FENCING_TOKEN, Some(guard.fencing_token().to_string())),
        (SLOT, guard.slot().map(|slot| slot.to_string())),
    ]);
    environment
}

/// What the command of a job with several locks has in its environment.
pub(super) fn of_set(job: &Job, guard: &SetGuard) -> Environment {
    let lines = |line: &dyn Fn(&LeasedLock) -> Option<String>| {
        let lines = guard.locks().iter().map(line).collect::<Option<Vec<_>>>();
        lines.map(|lines| lines.join("\n"))
    };
    let mut environment = of_lease(job, guard.token());
    environment.extend([
        (NAMES, lines(&|lock| Some(lock.name.clone()))),
        (FENCING_TOKENS, lines(&|lock| Some(format!("{} {}", lock.fencing_token, lock.name)))),
        (SLOTS, lines(&|lock| Some(format!("{} {}", lock.slot?, lock.name)))),
    ]);
    environment
}

/// What is removed of an outer `run`.
pub(super) fn outside() -> Environment {
    let of_outer = [NAME, FENCING_TOKEN, SLOT, NAMES, FENCING_TOKENS, SLOTS, TOKEN, TTL, LIMIT];
    of_outer.map(|variable| (variable, None)).into()
}

/// What every command has; what an outer `run` said of other locks goes.
fn of_lease(job: &Job, token: &Token) -> Environment {
    let limit = match job.options.limit {
        Limit::Exclusive => None,
        Limit::Shared => Some(ANY.to_owned()),
        Limit::Counted(slots) => Some(slots.to_string()),
    };
    let mut environment = outside();
    environment.extend([
        (URL, Some(job.server.clone())),
        (TOKEN, Some(token.expose().to_owned())),
        (TTL, Some(job.options.ttl.as_millis().to_string())),
        (LIMIT, limit),
    ]);
    environment
}
