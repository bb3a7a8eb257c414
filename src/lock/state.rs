use std::time::Duration;

use super::{
    Acquire, Acquisition, Attempt, FencingToken, Holder, Lease, LockName, Moment, Owner, Release,
    Renewal, TokenHash, Ttl,
};

/// What a store remembers of one lock, and the rules by which it changes.
///
/// The rules are a pure function of the state, a command and the moment, so that stores with
/// compare-and-set can run them and stores with scripts can be tested against them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockState {
    held: Option<Held>,
}

impl LockState {
    /// The state after `command`, and what the command found.
    ///
    /// A grant takes its fencing token from `moment`; the store has to keep it as the bucket's
    /// last.
    #[must_use]
    pub fn apply<C: Command>(&self, command: &C, moment: &Moment) -> (Self, C::Outcome) {
        command.apply(self.held.as_ref().filter(|held| held.expires > moment.now), moment)
    }

    /// What the state still says at `now`: a grant that has expired is none.
    #[must_use]
    pub fn live(&self, now: Duration) -> Self {
        if self.is_free(now) { Self::free() } else { self.clone() }
    }

    /// The grant as a durable store writes it down; `None` for a free lock.
    pub fn record(&self) -> Option<Record<'_>> {
        self.held.as_ref().map(|held| Record {
            token: held.token,
            fence: held.fence,
            owner: held.owner.as_ref(),
            ttl: held.ttl,
            acquired_at_millis: held.acquired_at_millis,
        })
    }

    /// The state of a grant that was written down, read at `now` by a process that does not know
    /// how long it was away: the lease lasts its full TTL again, so that it never ends early.
    pub fn restore(record: &Record<'_>, now: Duration) -> Self {
        Self::held(Held {
            token: record.token,
            fence: record.fence,
            owner: record.owner.cloned(),
            ttl: record.ttl,
            expires: now + record.ttl,
            acquired_at_millis: record.acquired_at_millis,
            sole_attempt: None,
        })
    }

    /// Whether the lock is free at `now`, so that nothing of this state is worth keeping.
    pub fn is_free(&self, now: Duration) -> bool {
        self.held.as_ref().is_none_or(|held| held.expires <= now)
    }

    /// The fencing token of the last grant, if the state still knows it.
    pub fn fence(&self) -> Option<FencingToken> {
        self.held.as_ref().map(|held| held.fence)
    }

    fn free() -> Self {
        Self { held: None }
    }

    fn held(held: Held) -> Self {
        Self { held: Some(held) }
    }
}

/// What outlives the process of a grant. The time of its end does not: no clock that goes on while
/// the process is away can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Who holds the lock.
    pub token: TokenHash,
    /// The grant's fencing token.
    pub fence: FencingToken,
    /// The holder's label.
    pub owner: Option<&'a Owner>,
    /// The TTL of the grant, or of its last renewal.
    pub ttl: Duration,
    /// When the lock was granted, in milliseconds since 1970.
    pub acquired_at_millis: u64,
}

/// A grant as the store keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    token: TokenHash,
    fence: FencingToken,
    owner: Option<Owner>,
    ttl: Duration,
    /// On the store's monotonic clock.
    expires: Duration,
    acquired_at_millis: u64,
    /// The attempt that got the grant, for as long as no other was given it too.
    sole_attempt: Option<Attempt>,
}

impl Held {
    fn lease(&self, now: Duration) -> Lease {
        Lease {
            fence: self.fence,
            owner: self.owner.clone(),
            ttl: self.ttl,
            expires_in: self.expires.saturating_sub(now),
        }
    }

    fn holder(&self, name: &LockName, now: Duration) -> Holder {
        Holder {
            name: name.clone(),
            owner: self.owner.clone(),
            fence: self.fence,
            acquired_at_millis: self.acquired_at_millis,
            expires_in: self.expires.saturating_sub(now),
        }
    }
}

/// One rule: what a command does to a lock that is held, or to one that is not.
///
/// `held` is a grant that has not expired at `moment`.
pub trait Command {
    /// What the command found.
    type Outcome;

    /// The state after the command, and what it found.
    fn apply(&self, held: Option<&Held>, moment: &Moment) -> (LockState, Self::Outcome);
}

impl Command for Acquire {
    type Outcome = Acquisition;

    fn apply(&self, held: Option<&Held>, moment: &Moment) -> (LockState, Acquisition) {
        match held {
            None => {
                let granted = Held {
                    token: self.token,
                    fence: moment.last_fence.next(moment.unix_micros),
                    owner: self.owner.clone(),
                    ttl: self.ttl.get(),
                    expires: moment.now + self.ttl.get(),
                    acquired_at_millis: moment.unix_micros / 1000,
                    sole_attempt: Some(self.attempt),
                };
                let lease = granted.lease(moment.now);
                (LockState::held(granted), Acquisition::Granted(lease))
            }
            Some(held) if held.token == self.token => {
                let lease = held.lease(moment.now);
                let shared = Held {
                    sole_attempt: held.sole_attempt.filter(|&sole| sole == self.attempt),
                    ..held.clone()
                };
                (LockState::held(shared), Acquisition::Repeated(lease))
            }
            Some(held) => {
                let holder = held.holder(&self.name, moment.now);
                (LockState::held(held.clone()), Acquisition::Held(holder))
            }
        }
    }
}

/// Takes back what one attempt got, unless another attempt was given the same grant.
#[derive(Debug, Clone)]
pub struct Withdraw {
    /// The token that the attempt was made with.
    pub token: TokenHash,
    /// The attempt.
    pub attempt: Attempt,
}

impl Command for Withdraw {
    type Outcome = ();

    fn apply(&self, held: Option<&Held>, _: &Moment) -> (LockState, ()) {
        let kept =
            held.filter(|held| held.token != self.token || held.sole_attempt != Some(self.attempt));
        (LockState { held: kept.cloned() }, ())
    }
}

/// Lets a lease last a full TTL from now.
#[derive(Debug, Clone)]
pub struct Renew {
    /// The holder's token.
    pub token: TokenHash,
    /// The new TTL.
    pub ttl: Ttl,
}

impl Command for Renew {
    type Outcome = Renewal;

    fn apply(&self, held: Option<&Held>, moment: &Moment) -> (LockState, Renewal) {
        match held {
            None => (LockState::free(), Renewal::NotHeld),
            Some(held) if held.token == self.token => {
                let renewed = Held {
                    ttl: self.ttl.get(),
                    expires: moment.now + self.ttl.get(),
                    // Whoever renews has read the grant, so nobody may take it back any more.
                    sole_attempt: None,
                    ..held.clone()
                };
                let lease = renewed.lease(moment.now);
                (LockState::held(renewed), Renewal::Renewed(lease))
            }
            Some(held) => (LockState::held(held.clone()), Renewal::Mismatch),
        }
    }
}

/// Gives a lock back: the command behind a [`Release`].
#[derive(Debug, Clone)]
pub struct Return {
    /// The holder's token.
    pub token: TokenHash,
}

impl Command for Return {
    type Outcome = Release;

    fn apply(&self, held: Option<&Held>, _: &Moment) -> (LockState, Release) {
        match held {
            None => (LockState::free(), Release::NotHeld),
            Some(held) if held.token == self.token => (LockState::free(), Release::Released),
            Some(held) => (LockState::held(held.clone()), Release::Mismatch),
        }
    }
}

/// Looks who holds a lock.
#[derive(Debug, Clone)]
pub struct Peek {
    /// The lock.
    pub name: LockName,
}

impl Command for Peek {
    type Outcome = Option<Holder>;

    fn apply(&self, held: Option<&Held>, moment: &Moment) -> (LockState, Option<Holder>) {
        let holder = held.map(|held| held.holder(&self.name, moment.now));
        (LockState { held: held.cloned() }, holder)
    }
}
