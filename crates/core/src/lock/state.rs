use std::time::Duration;

use super::line::Line;
use super::{
    Acquire, Acquisition, Attempt, Busy, Change, FencingToken, Holder, Lease, LockName, Moment,
    Owner, Release, Renewal, TokenHash, Ttl,
};

/// What a store remembers of one lock, and the rules by which it changes.
///
/// The rules are a pure function of the state, a command and the moment, so that stores with
/// compare-and-set can run them and stores with scripts can be tested against them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockState {
    held: Option<Held>,
    line: Line,
}

impl LockState {
    /// The state after `command`, and what the command found.
    ///
    /// A grant takes its fencing token from `moment`; the store has to keep it as the bucket's
    /// last.
    #[must_use]
    pub fn apply<C: Command>(&self, command: &C, moment: &Moment) -> (Self, C::Outcome) {
        command.apply(self.live(moment.now), moment)
    }

    /// What the state still says at `now`: a grant or a place that has expired is none.
    #[must_use]
    pub fn live(&self, now: Duration) -> Self {
        let held = self.held.as_ref().filter(|held| held.expires > now).cloned();
        Self { held, line: self.line.live(now) }
    }

    /// Whether [`LockState::live`] says something else at `now`.
    pub fn is_stale(&self, now: Duration) -> bool {
        self.held.as_ref().is_some_and(|held| held.expires <= now) || self.line.is_stale(now)
    }

    /// Whose turn it is, if the lock is free and somebody waits for it.
    pub fn next(&self) -> Option<&TokenHash> {
        if self.held.is_some() { None } else { self.line.first() }
    }

    /// What those who watch the lock are told when it becomes `after` at `now`.
    pub fn change(&self, after: &Self, name: &LockName, now: Duration) -> Option<Change> {
        let before = self.held.as_ref().filter(|held| held.expires > now);
        match (before, &after.held) {
            (Some(before), Some(held)) if before.is_same_lease(held) => None,
            (Some(before), Some(held)) if before.fence == held.fence => {
                after.holder(name, now).map(Change::Renewed)
            }
            (_, Some(_)) => after.holder(name, now).map(Change::Acquired),
            (Some(before), None) => Some(Change::Released(before.fence)),
            (None, None) => None,
        }
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
    /// how long it was away: the lease lasts its full TTL again, so that it never ends early. Who
    /// waited went away with the process that they asked.
    pub fn restore(record: &Record<'_>, now: Duration) -> Self {
        let held = Held {
            token: record.token,
            fence: record.fence,
            owner: record.owner.cloned(),
            ttl: record.ttl,
            expires: now + record.ttl,
            acquired_at_millis: record.acquired_at_millis,
            sole_attempt: None,
        };
        Self { held: Some(held), line: Line::default() }
    }

    /// Whether there is neither a grant nor a place, expired ones included.
    pub fn is_empty(&self) -> bool {
        self.held.is_none() && self.line.is_empty()
    }

    /// The fencing token of the last grant, if the state still knows it.
    pub fn fence(&self) -> Option<FencingToken> {
        self.held.as_ref().map(|held| held.fence)
    }

    fn holder(&self, name: &LockName, now: Duration) -> Option<Holder> {
        let held = self.held.as_ref()?;
        Some(Holder {
            name: name.clone(),
            owner: held.owner.clone(),
            fence: held.fence,
            acquired_at_millis: held.acquired_at_millis,
            expires_in: held.expires.saturating_sub(now),
            waiting: self.line.len(),
        })
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
    fn is_same_lease(&self, other: &Self) -> bool {
        self.fence == other.fence && self.expires == other.expires
    }

    fn lease(&self, now: Duration) -> Lease {
        Lease {
            fence: self.fence,
            owner: self.owner.clone(),
            ttl: self.ttl,
            expires_in: self.expires.saturating_sub(now),
        }
    }
}

/// One rule: what a command does to a lock.
///
/// `state` is as it stands at `moment`.
pub trait Command {
    /// What the command found.
    type Outcome;

    /// The state after the command, and what it found.
    fn apply(&self, state: LockState, moment: &Moment) -> (LockState, Self::Outcome);
}

impl Command for Acquire {
    type Outcome = Acquisition;

    fn apply(&self, mut state: LockState, moment: &Moment) -> (LockState, Acquisition) {
        let now = moment.now;
        if let Some(held) = &mut state.held
            && held.token == self.token
        {
            held.sole_attempt = held.sole_attempt.filter(|&sole| sole == self.attempt);
            let lease = held.lease(now);
            state.line.leave(&self.token, None);
            return (state, Acquisition::Repeated(lease));
        }
        let ahead = state.line.ahead_of(&self.token);
        if state.held.is_none() && ahead == 0 {
            state.line.leave(&self.token, None);
            let granted = self.grant(moment);
            let lease = granted.lease(now);
            state.held = Some(granted);
            return (state, Acquisition::Granted(lease));
        }
        if let Some(place) = self.place {
            state.line.join(self.token, self.attempt, now + place);
        }
        let busy = Busy { holder: state.holder(&self.name, now), ahead };
        (state, Acquisition::Held(busy))
    }
}

impl Acquire {
    fn grant(&self, moment: &Moment) -> Held {
        Held {
            token: self.token,
            fence: moment.last_fence.next(moment.unix_micros),
            owner: self.owner.clone(),
            ttl: self.ttl.get(),
            expires: moment.now + self.ttl.get(),
            acquired_at_millis: moment.unix_micros / 1000,
            sole_attempt: Some(self.attempt),
        }
    }
}

/// Takes back what one attempt got, be it the lock or a place, unless another attempt was given
/// the same.
#[derive(Debug, Clone)]
pub struct Withdraw {
    /// The token that the attempt was made with.
    pub token: TokenHash,
    /// The attempt.
    pub attempt: Attempt,
}

impl Command for Withdraw {
    type Outcome = ();

    fn apply(&self, mut state: LockState, _: &Moment) -> (LockState, ()) {
        let taken_back =
            |held: &Held| held.token == self.token && held.sole_attempt == Some(self.attempt);
        if state.held.as_ref().is_some_and(taken_back) {
            state.held = None;
        }
        state.line.leave(&self.token, Some(self.attempt));
        (state, ())
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

    fn apply(&self, mut state: LockState, moment: &Moment) -> (LockState, Renewal) {
        let outcome = match &mut state.held {
            None => Renewal::NotHeld,
            Some(held) if held.token == self.token => {
                held.ttl = self.ttl.get();
                held.expires = moment.now + self.ttl.get();
                // Whoever renews has read the grant, so nobody may take it back any more.
                held.sole_attempt = None;
                Renewal::Renewed(held.lease(moment.now))
            }
            Some(_) => Renewal::Mismatch,
        };
        (state, outcome)
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

    fn apply(&self, mut state: LockState, _: &Moment) -> (LockState, Release) {
        let outcome = match &state.held {
            None => Release::NotHeld,
            Some(held) if held.token == self.token => {
                state.held = None;
                Release::Released
            }
            Some(_) => Release::Mismatch,
        };
        (state, outcome)
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

    fn apply(&self, state: LockState, moment: &Moment) -> (LockState, Option<Holder>) {
        let holder = state.holder(&self.name, moment.now);
        (state, holder)
    }
}
