//! One step on a lock, or on several at once: the rule of one lock is that of several, for a slice of one.
//!
//! Locks are acquired as a whole. Either every lock has room for the token, and it gets all of them, or it gets none and
//! joins the queues of all. Since one step joins all queues, any two sets that wait stand in the same order in every
//! queue that they share, and none that waits holds a lock of its set: so no two wait for each other. The price is that
//! of first come, first served: the first in one queue holds that lock up until it is the first in its other queues as
//! well.
//!
//! Invariants: an acquire and a renewal do all or nothing; a token that holds one of the locks never waits for the
//! others; its queue entries are kept together; the fencing tokens that one step gives rise, as locks may have a bucket
//! in common. What one lock does is in `rules.rs`. Tested in `tests/modes`, by the
//! conformance of sets and over HTTP.

use std::time::Duration;

use super::{Refusal, Taken};
use crate::entry::{Entry as _, Few, Found};
use crate::lock::queue::QueueEntry;
use crate::lock::{
    AcquireCommand, AcquireReply, BreakReply, FencingToken, Lease, Limit, LockCommand, LockReply,
    LockState, LostLock, Moment, RenewReply, SetAcquireReply, SetContention, SetRenewReply,
    TokenHash, Ttl,
};

type Lock<'a> = Found<'a, LockState>;

/// The states after a command, in the order of `found`, and what the command found.
pub(super) fn step(found: &[Lock<'_>], command: &LockCommand) -> (Few<LockState>, LockReply) {
    let mut states = live(found);
    let first = found.first().zip(states.first_mut());
    let reply = match command {
        LockCommand::Acquire(command) => LockReply::Acquire(acquire(found, &mut states, command)),
        LockCommand::Withdraw { token, attempt } => {
            let each = found.iter().zip(&mut states);
            each.for_each(|(it, state)| state.withdraw(token, *attempt, &it.moment));
            LockReply::Withdraw
        }
        LockCommand::Renew { token, ttl } => {
            LockReply::Renew(renew(found, &mut states, token, *ttl))
        }
        LockCommand::Release { token, entry } => {
            let each = found.iter().zip(&mut states);
            let released = each.map(|(it, state)| state.release(token, entry.as_ref(), &it.moment));
            LockReply::Release(released.collect())
        }
        LockCommand::Break(command) => {
            let broken = first.map(|(it, state)| state.break_lease(it.key, command, &it.moment));
            LockReply::Break(broken.unwrap_or(BreakReply::NotHeld))
        }
        LockCommand::Look => {
            let of = |(it, state): (&Lock<'_>, &mut LockState)| {
                state.holding(it.key, it.moment.now, Limit::HOLDERS_MAX)
            };
            LockReply::Look(first.and_then(of))
        }
        LockCommand::LookAtQueue => {
            let waiters = first.map(|(it, state)| state.queue().public(it.moment.now));
            LockReply::LookAtQueue(waiters.unwrap_or_default())
        }
        LockCommand::Recall => {
            let ends = first.map(|(_, state)| state.history().grants().cloned().collect());
            LockReply::Recall(ends.unwrap_or_default())
        }
    };
    (states, reply)
}

/// The states as they are at their moments.
fn live(found: &[Lock<'_>]) -> Few<LockState> {
    found.iter().map(|it| it.state.live(&it.moment)).collect()
}

fn acquire(
    found: &[Lock<'_>],
    states: &mut Few<LockState>,
    command: &AcquireCommand,
) -> SetAcquireReply {
    let Verdicts { leases, is_new, refusals } = take_all(found, states, command);
    let most_ahead = refusals.iter().map(|(_, refusal)| refusal.ahead()).max().unwrap_or_default();
    // The first that says so, but what no release changes counts more.
    let refusal = refusals.into_iter().min_by_key(|(_, refusal)| refusal.rank());
    let Some((place, refusal)) = refusal else {
        return if is_new { AcquireReply::Granted(leases) } else { AcquireReply::Repeated(leases) };
    };
    if !leases.is_empty() {
        *states = live(found);
    }
    let waits = command.queue.filter(|_| matches!(refusal, Refusal::Busy(_)));
    let holds =
        waits.is_some() && states.iter().any(|it| it.holders.find(&command.token).is_some());
    if let Some(lasts) = waits.filter(|_| !holds) {
        join(found, states, command, lasts);
    }
    let contention = |ahead| {
        let (name, now) = (found[place].key, found[place].moment.now);
        let contention = states[place].contention(name, now, ahead);
        SetContention { name: name.clone(), contention, most_ahead }
    };
    match refusal {
        Refusal::Busy(ahead) if !holds => AcquireReply::Busy(contention(ahead)),
        Refusal::Busy(ahead) | Refusal::NotAlone(ahead) => {
            AcquireReply::NotAlone(contention(ahead))
        }
        Refusal::WaitEnded(why) => AcquireReply::WaitEnded(why),
        Refusal::Full => {
            states.iter_mut().for_each(|state| state.queue.leave(&command.token, None));
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
fn take_all(found: &[Lock<'_>], states: &mut Few<LockState>, command: &AcquireCommand) -> Verdicts {
    let (mut all, mut given) = (Verdicts::default(), FencingToken::NONE);
    for (place, (it, state)) in found.iter().zip(states).enumerate() {
        let last_fencing_token = it.moment.last_fencing_token.max(given);
        match state.take(command, &Moment { last_fencing_token, ..it.moment }) {
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
            Self::Busy(_) => 2,
        }
    }

    fn ahead(&self) -> u64 {
        if let Self::Busy(ahead) = self { *ahead } else { 0 }
    }
}

/// Queues the token for every lock: at all places that it had, or at the end of all. A set that kept its place in some
/// queues alone might be before another set there, and behind it elsewhere.
fn join(
    found: &[Lock<'_>],
    states: &mut Few<LockState>,
    command: &AcquireCommand,
    lasts: Duration,
) {
    let keeps_places = states.iter().all(|state| state.queue.find(&command.token).is_some());
    for (it, state) in found.iter().zip(states) {
        if !keeps_places {
            state.queue.leave(&command.token, None);
        }
        state.queue.join(QueueEntry::of(command, lasts, it.moment.now));
    }
}

fn renew(
    found: &[Lock<'_>],
    states: &mut Few<LockState>,
    token: &TokenHash,
    ttl: Ttl,
) -> SetRenewReply {
    let (mut leases, mut lost) = (Few::new(), Few::new());
    for (it, state) in found.iter().zip(&mut *states) {
        match state.renew(token, ttl, it.moment.now) {
            RenewReply::Renewed(lease) => leases.push(lease),
            RenewReply::Lost(loss) => lost.push(LostLock { name: it.key.clone(), loss }),
        }
    }
    if lost.is_empty() {
        return RenewReply::Renewed(leases);
    }
    if !leases.is_empty() {
        *states = live(found);
    }
    RenewReply::Lost(lost)
}
