//! The record of a lock campaign: requests, answers, writes, faults, healings and promotions.
//!
//! Goal: the checker judges a campaign by what was visible outside keylatch, and by nothing else.
//!
//! Method: plain data, and pure functions that find grants, faults and possible losses in it. An
//! answer that leaves an outcome open stays ambiguous here: only the checker decides what it
//! allows. `guilt.rs` builds histories by hand and tests the functions through the checker.

use std::collections::BTreeMap;
use std::fmt;

use super::faults::Kind;
use super::mode::{Mode, Share};

/// Microseconds on the one monotonic clock of all clients.
pub(super) type Micros = u64;

/// By when every instance has heard of another master: they ask each second, and wait half a second
/// for answers.
const HEARD: Micros = 1_500_000;
/// How long the news of a change takes at most while all is well, as `docs/stores/zookeeper.md`
/// says.
const NEWS: Micros = 100_000;
/// What is shown of a lock for a violation: so long before it, and so long after.
const BEFORE: Micros = 10_000_000;
const AFTER: Micros = 1_000_000;

/// What clients sent and read during a campaign, what the fenced resource took, and which faults
/// there were.
#[derive(Debug, Clone, Default)]
pub(super) struct History {
    pub(super) events: Vec<Event>,
    pub(super) writes: Vec<Write>,
    /// What the resource took, in its own order.
    pub(super) taken: Vec<AcceptedWrite>,
    pub(super) faults: Vec<Fault>,
    pub(super) healings: Vec<LivenessBound>,
    pub(super) promotions: Vec<Promotion>,
    /// The store tells no time, so each instance counts a lease from when it heard of it.
    pub(super) counts_by_news: bool,
    /// One process judges all leases, by one clock.
    pub(super) has_one_judge: bool,
    /// How much longer than usual a request or the news of a change may have taken on this machine.
    pub(super) late: Micros,
}

/// Between these two moments a node became master, or a master restarted. It may have forgotten
/// earlier grants.
#[derive(Debug, Clone, Copy)]
pub(super) struct Promotion {
    pub(super) from: Micros,
    pub(super) to: Micros,
}

/// A request and what was read of its answer.
#[derive(Debug, Clone)]
pub(super) struct Event {
    /// The number of the request. A grant carries the number of the request that got it, in its
    /// owner. A request for several locks is an event of each, under one number.
    pub(super) number: u64,
    pub(super) lock: usize,
    pub(super) token: u64,
    /// In which mode the token asks for the lock.
    pub(super) mode: Mode,
    pub(super) ask: Ask,
    pub(super) sent: Micros,
    pub(super) read: Micros,
    pub(super) told: LockAnswer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    Acquire {
        waits: bool,
    },
    Renew {
        ttl: Micros,
    },
    Release,
    Look,
    /// How earlier grants ended.
    Recall,
    /// Ends the leases with this fencing token: at once, or when they end by themselves.
    Break {
        fencing_token: u64,
        at_once: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LockAnswer {
    /// 201.
    Granted(Lease),
    /// The same token had it already.
    Again(Lease),
    /// 201 to a token that may have had some of the locks before: which of them are new, it does
    /// not say.
    GrantedOrAgain(Lease),
    Renewed(Lease),
    Released,
    /// 409; without a holder when the lock is free for the first in the queue.
    Held(Holding),
    Shown(Holding),
    /// Those of the earlier grants that were neither released nor broken.
    Expired(Vec<Holder>),
    NotHeld,
    Mismatch,
    /// A request for several locks did nothing, because of another of them.
    Refused,
    /// The leases end by then at the latest.
    Broke {
        ends_in: Micros,
    },
    /// The lease of the client that asked cannot be renewed.
    Broken,
    /// The service said that nothing was done.
    NotExecuted,
    /// The service said that the outcome is unknown.
    Unknown,
    /// There was no answer.
    Nothing,
    /// An answer that there should not be.
    Odd(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) fencing_token: u64,
    pub(super) valid_for: Micros,
    /// Where the lock is counted.
    pub(super) slot: Option<u64>,
}

/// Who holds a lock, as any client reads it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Holding {
    /// Some of them.
    pub(super) holders: Vec<Holder>,
    /// How many there are.
    pub(super) count: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) share: Share,
    /// The number of the request that got the grant.
    pub(super) number: u64,
    /// The token of the grant.
    pub(super) token: u64,
}

/// A write to the fenced resource, as a client saw it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Write {
    pub(super) lock: usize,
    pub(super) token: u64,
    pub(super) fencing_token: u64,
    pub(super) sent: Micros,
    pub(super) read: Micros,
    pub(super) taken: bool,
}

/// A write that the resource took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AcceptedWrite {
    pub(super) lock: usize,
    pub(super) token: u64,
    pub(super) share: Share,
}

/// Something that was done to the deployment.
#[derive(Debug, Clone)]
pub(super) struct Fault {
    pub(super) kind: Kind,
    pub(super) from: Micros,
    pub(super) to: Micros,
    /// How it was seen to have taken effect, or why it was not.
    pub(super) seen: Result<String, String>,
}

/// From `at` on nothing was wrong any more, so a lock can be had within a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct LivenessBound {
    pub(super) lock: usize,
    /// The lock is held, and this token of another client is refused within the time.
    pub(super) refused: Option<u64>,
    pub(super) at: Micros,
    pub(super) within: Micros,
}

impl LockAnswer {
    /// The lease of the client that asked.
    pub(super) fn lease(&self) -> Option<Lease> {
        match self {
            Self::Renewed(lease) => Some(*lease),
            _ => self.acquired(),
        }
    }

    /// The lease by which a client that acquires has the lock.
    pub(super) fn acquired(&self) -> Option<Lease> {
        match self {
            Self::Granted(lease) | Self::Again(lease) | Self::GrantedOrAgain(lease) => Some(*lease),
            _ => None,
        }
    }

    /// Who holds the lock by this answer, if it says so.
    pub(super) fn holding(&self) -> Option<&Holding> {
        match self {
            Self::Held(holding) | Self::Shown(holding) => Some(holding),
            _ => None,
        }
    }

    /// The holders that the answer names.
    pub(super) fn holders(&self) -> &[Holder] {
        self.holding().map_or(&[], |holding| &holding.holders)
    }

    /// Whether the step may have been taken all the same, now or later.
    pub(super) fn is_ambiguous(&self) -> bool {
        matches!(self, Self::Unknown | Self::Nothing | Self::Odd(_))
    }
}

impl Ask {
    pub(super) fn is_acquire(self) -> bool {
        matches!(self, Self::Acquire { .. })
    }
}

/// Which grant: a token may be granted the same lock more than once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GrantKey {
    pub(super) lock: usize,
    pub(super) fencing_token: u64,
    pub(super) token: u64,
}

/// A grant, by all the answers about it that its holder read.
#[derive(Debug, Clone)]
pub(super) struct Grant {
    pub(super) share: Share,
    /// Before the request that got it was sent, there was no such grant.
    pub(super) sent: Micros,
    /// When its holder first read of it.
    pub(super) read: Micros,
    /// The events that told of it.
    pub(super) told: Vec<usize>,
}

impl fmt::Display for GrantKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock {} fence {} token {}", self.lock, self.fencing_token, self.token)
    }
}

impl Event {
    /// The grant that the answer tells its client of, as others see it.
    pub(super) fn share(&self) -> Option<Share> {
        let Lease { fencing_token, slot, .. } = self.told.lease()?;
        Some(Share { fencing_token, mode: self.mode, slot })
    }

    /// All grants that the answer tells of.
    pub(super) fn shares(&self) -> impl Iterator<Item = Share> {
        self.share().into_iter().chain(self.told.holders().iter().map(|holder| holder.share))
    }
}

impl History {
    /// All grants that their holders read of.
    pub(super) fn grants(&self) -> BTreeMap<GrantKey, Grant> {
        let mut first_sent = BTreeMap::new();
        for event in self.events.iter().filter(|event| event.ask.is_acquire()) {
            let sent = first_sent.entry((event.lock, event.token)).or_insert(event.sent);
            *sent = event.sent.min(*sent);
        }
        let mut grants = BTreeMap::new();
        for (place, event) in self.events.iter().enumerate() {
            let Some(share) = event.share() else { continue };
            let Share { fencing_token, .. } = share;
            let key = GrantKey { lock: event.lock, fencing_token, token: event.token };
            let sent = match event.told {
                LockAnswer::Granted(_) => event.sent,
                _ => first_sent.get(&(event.lock, event.token)).copied().unwrap_or(event.sent),
            };
            let first = Grant { share, sent, read: event.read, told: Vec::new() };
            let grant: &mut Grant = grants.entry(key).or_insert(first);
            grant.sent = grant.sent.max(sent);
            grant.read = grant.read.min(event.read);
            grant.told.push(place);
        }
        grants
    }

    /// The promotions that were faults of the campaign themselves: of a PostgreSQL, which promotes
    /// no standby itself.
    pub(super) fn promotions_by_faults(&self) -> impl Iterator<Item = Promotion> {
        let of_promotion =
            |fault: &&Fault| matches!(fault.kind, Kind::Promote | Kind::PromoteBehind);
        let promotions = self.faults.iter().filter(of_promotion);
        promotions.map(|fault| Promotion { from: fault.from, to: fault.to })
    }

    /// Whether a master may have forgotten something in a span, or an instance may not have heard
    /// yet that there is another.
    pub(super) fn may_have_forgotten(&self, from: Micros, to: Micros) -> bool {
        self.promotions.iter().any(|one| one.from <= to && from <= one.to + HEARD + self.late)
    }

    /// Whether the clock of a store was set in a span, or was wrong in it.
    pub(super) fn has_clock_set(&self, from: Micros, to: Micros) -> bool {
        let is_set =
            |fault: &Fault| matches!(fault.kind, Kind::ClockAhead | Kind::ClockThereAndBack);
        self.faults.iter().any(|fault| is_set(fault) && fault.from <= to && from <= fault.to)
    }

    /// Whether an instance may have heard late of a lease of a span, because a fault kept the news
    /// back. It then counts the lease to a later end, where the store tells no time. After a
    /// restart on disk a lease lasts anew.
    pub(super) fn may_lack_news(&self, from: Micros, to: Micros) -> bool {
        let keeps_back = |fault: &&Fault| match self.has_one_judge {
            true => fault.kind == Kind::KillInstance,
            false => self.counts_by_news && !fault.kind.is_of_clients(),
        };
        let mut faults = self.faults.iter().filter(keeps_back);
        faults.any(|fault| fault.from <= to && from <= fault.to + HEARD + self.late)
    }

    /// By how much a lease ends late although nothing keeps news back.
    pub(super) fn news_take(&self) -> Micros {
        if self.counts_by_news { NEWS + self.late } else { 0 }
    }

    /// Whether two requests of one token waited for the lock at once, did not get it, and ended
    /// after `since`. Neither may take the place from the other, so it outlives both.
    pub(super) fn has_shared_place(&self, lock: usize, since: Micros) -> bool {
        let left = |event: &&Event| {
            let waits = matches!(event.ask, Ask::Acquire { waits: true });
            event.lock == lock && waits && event.read >= since && event.told.lease().is_none()
        };
        let mut left: Vec<_> = self.events.iter().filter(left).collect();
        left.sort_unstable_by_key(|event| (event.token, event.sent));
        left.windows(2).any(|two| two[0].token == two[1].token)
    }

    /// What was read of a lock some time before a moment and soon after it, a line each, for people
    /// to find out what happened.
    pub(super) fn around(&self, lock: usize, moment: Micros) -> String {
        let (from, to) = (moment.saturating_sub(BEFORE), moment + AFTER);
        let is_near = |event: &&Event| event.lock == lock && from <= event.read && event.sent <= to;
        let mut near: Vec<_> = self.events.iter().filter(is_near).collect();
        near.sort_unstable_by_key(|event| event.read);
        near.iter().fold(String::new(), |text, event| format!("{text}\n{event:?}"))
    }

    /// The kinds of the faults that were there at some time of a span; if there were none, the one
    /// before it.
    pub(super) fn faults_within(&self, from: Micros, to: Micros) -> Vec<String> {
        let seen = || self.faults.iter().filter(|fault| fault.seen.is_ok());
        let within = seen().filter(|fault| fault.from <= to && from <= fault.to);
        let mut kinds: Vec<_> = within.map(|fault| format!("{:?}", fault.kind)).collect();
        kinds.sort_unstable();
        kinds.dedup();
        if kinds.is_empty() {
            let before = seen().filter(|fault| fault.to < from).max_by_key(|fault| fault.to);
            kinds.extend(before.map(|fault| format!("after {:?}", fault.kind)));
        }
        kinds
    }
}
