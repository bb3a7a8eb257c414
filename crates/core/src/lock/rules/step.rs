//! One step on a lock, or on several at once: the rule of one lock is that of several, for a slice
//! of one.
//!
//! Locks are acquired as a whole. Either every lock has room for the token, and it gets all of
//! them, or it gets none and joins the queues of all. Since one step joins all queues, any two sets
//! that wait stand in the same order in every queue that they share, and none that waits holds a
//! lock of its set: so no two wait for each other. The price is that of first come, first served:
//! the first in one queue holds that lock up until it is the first in its other queues as well.
//!
//! Invariants: an acquire and a renewal do all or nothing; a token that holds one of the locks
//! never waits for the others; its queue entries are kept together; the fencing tokens that one
//! step gives rise, as locks may have a bucket in common. What one lock does is in `rules.rs`.
//! Tested in `tests/modes`, by the conformance of sets and over HTTP.

use std::time::Duration;

use super::{Refusal, Taken};
use crate::entry::{Entry as _, Few, Found};
use crate::lock::queue::QueueEntry;
use crate::lock::{
    AcquireCommand, AcquireReply, BreakReply, FencingToken, Lease, Limit, LockCommand, LockReply,
    LockState, LostLock, Moment, RenewReply, TokenHash, Ttl,
};

type Lock<'a> = Found<'a, LockState>;

/// Takes a step, and gives what the command found.
pub(super) fn step(found: &mut [Lock<'_>], command: &LockCommand) -> LockReply {
    found.iter_mut().for_each(|it| it.state.settle(&it.moment));
    match command {
        LockCommand::Acquire(command) => LockReply::Acquire(acquire(found, command)),
        LockCommand::Withdraw { token, attempt } => {
            found.iter_mut().for_each(|it| it.state.withdraw(token, *attempt, &it.moment));
            LockReply::Withdraw
        }
        LockCommand::Renew { token, ttl } => LockReply::Renew(renew(found, token, *ttl)),
        LockCommand::Release { token, entry } => {
            let each = found.iter_mut();
            let released = each.map(|it| it.state.release(token, entry.as_ref(), &it.moment));
            LockReply::Release(released.collect())
        }
        LockCommand::Break(command) => {
            let broken =
                found.first_mut().map(|it| it.state.break_lease(it.key, command, &it.moment));
            LockReply::Break(broken.unwrap_or(BreakReply::NotHeld))
        }
        LockCommand::Look => LockReply::Look(
            found
                .first()
                .and_then(|it| it.state.holding(it.key, it.moment.now, Limit::HOLDERS_MAX)),
        ),
        LockCommand::LookAtQueue => {
            let waiters = found.first().map(|it| it.state.queue().public(it.moment.now));
            LockReply::LookAtQueue(waiters.unwrap_or_default())
        }
        LockCommand::Recall => {
            let ends = found.first().map(|it| it.state.history().grants().cloned().collect());
            LockReply::Recall(ends.unwrap_or_default())
        }
    }
}

/// The states before a step on several, which may come to nothing after it changed one. A step on
/// one lock alone refuses before it changes any.
fn copies(found: &[Lock<'_>]) -> Few<LockState> {
    let several = found.iter().filter(|_| found.len() > 1);
    several.map(|it| it.state.clone()).collect()
}

fn restore(found: &mut [Lock<'_>], before: Few<LockState>) {
    for (it, before) in found.iter_mut().zip(before) {
        *it.state = before;
    }
}

fn acquire(found: &mut [Lock<'_>], command: &AcquireCommand) -> AcquireReply {
    let before = copies(found);
    let Verdicts { leases, is_new, refusals } = take_all(found, command);
    let most_ahead = refusals.iter().map(|(_, refusal)| refusal.ahead()).max().unwrap_or_default();
    // The first that says so, but what no release changes counts more.
    let refusal = refusals.into_iter().min_by_key(|(_, refusal)| refusal.rank());
    let Some((place, refusal)) = refusal else {
        return if is_new { AcquireReply::Granted(leases) } else { AcquireReply::Repeated(leases) };
    };
    restore(found, before);
    let waits = command.queue.filter(|_| matches!(refusal, Refusal::Busy(_)));
    let holds = |it: &Lock<'_>| it.state.holders.find(&command.token).is_some();
    let holds = waits.is_some() && found.iter().any(holds);
    if let Some(lasts) = waits.filter(|_| !holds) {
        join(found, command, lasts);
    }
    let contention = |ahead| {
        let Found { key, state, moment } = &found[place];
        state.contention(key, moment.now, ahead, most_ahead)
    };
    match refusal {
        Refusal::Crowded(ahead) => AcquireReply::Crowded(contention(ahead)),
        Refusal::Busy(ahead) if !holds => AcquireReply::Busy(contention(ahead)),
        Refusal::Busy(ahead) | Refusal::NotAlone(ahead) => {
            AcquireReply::NotAlone(contention(ahead))
        }
        Refusal::WaitEnded(why) => AcquireReply::WaitEnded(why),
        Refusal::Full => {
            found.iter_mut().for_each(|it| it.state.queue.leave(&command.token, None));
            AcquireReply::Full
        }
    }
}

/// What the locks say to an acquire, each by itself.
#[derive(Default)]
struct Verdicts {
    leases: Few<Lease>,
    /// One of the leases is.
    is_new: bool,
    /// By which of the locks, and why.
    refusals: Few<(usize, Refusal)>,
}

/// Takes the locks that are to be had.
fn take_all(found: &mut [Lock<'_>], command: &AcquireCommand) -> Verdicts {
    let (mut all, mut given) = (Verdicts::default(), FencingToken::NONE);
    for (place, it) in found.iter_mut().enumerate() {
        let last_fencing_token = it.moment.last_fencing_token.max(given);
        match it.state.take(command, &Moment { last_fencing_token, ..it.moment }) {
            Ok(Taken { lease, is_new }) => {
                given = given.max(lease.fencing_token);
                all.is_new |= is_new;
                all.leases.push(lease);
            }
            Err(refusal) => all.refusals.push((place, refusal)),
        }
    }
    all
}

impl Refusal {
    /// What counts most has the least rank.
    fn rank(&self) -> u8 {
        match self {
            Self::WaitEnded(_) => 0,
            Self::NotAlone(_) | Self::Full => 1,
            Self::Crowded(_) => 2,
            Self::Busy(_) => 3,
        }
    }

    fn ahead(&self) -> u64 {
        if let Self::Busy(ahead) | Self::Crowded(ahead) = self { *ahead } else { 0 }
    }
}

/// Queues the token for every lock: at all places that it had, or at the end of all. A set that
/// kept its place in some queues alone might be before another set there, and behind it elsewhere.
fn join(found: &mut [Lock<'_>], command: &AcquireCommand, lasts: Duration) {
    let keeps_places = found.iter().all(|it| it.state.queue.find(&command.token).is_some());
    for it in found {
        if !keeps_places {
            it.state.queue.leave(&command.token, None);
        }
        it.state.queue.join(QueueEntry::of(command, lasts, it.moment.now));
    }
}

fn renew(found: &mut [Lock<'_>], token: &TokenHash, ttl: Option<Ttl>) -> RenewReply {
    let before = copies(found);
    let (mut leases, mut lost) = (Few::new(), Few::new());
    for it in &mut *found {
        match it.state.renew(token, ttl, it.moment.now) {
            Ok(lease) => leases.push(lease),
            Err(loss) => lost.push(LostLock { name: it.key.clone(), loss }),
        }
    }
    if lost.is_empty() {
        return RenewReply::Renewed(leases);
    }
    restore(found, before);
    RenewReply::Lost(lost)
}
