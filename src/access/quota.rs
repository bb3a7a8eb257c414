//! How much an identity may have and ask for, and what it has.
//!
//! A [`Quota`] is what the file of identities says. A [`Meter`] has it beside the counts, which
//! outlive a new reading of the file. Each instance counts what it answered itself: the stores know
//! no identities, so two instances let an identity have twice as much. Without a quota nothing is
//! counted. The checks come before the store is asked, and a claim makes room for what is being
//! asked for. A meter hears of every end that this instance causes, whoever asked for it. An
//! identity has a meter for itself, and one for each namespace in which it has a quota of its own.
//! Tested in `tests/api/quotas.rs`.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultDirectRateLimiter, RateLimiter};
use keylatch_core::idempotency::{RecordKey, RecordStatus, RecordView};
use keylatch_core::lock::{LockName, Token, TokenHash};
use serde::Deserialize;
use strum::{IntoStaticStr, VariantArray};

use super::ledger::{Claim, Ledger, Load};

/// The longest time for which a refusal is held back.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How many refusals of an identity are held back at once. Each is a request that is being
/// answered.
const PAUSES_MAX: u32 = 64;

/// The limits of an identity; `None` is no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Quota {
    locks: Option<NonZeroU64>,
    waiters: Option<NonZeroU64>,
    streams: Option<NonZeroU64>,
    records: Option<NonZeroU64>,
    bytes: Option<NonZeroU64>,
    requests_per_second: Option<NonZeroU32>,
}

impl Quota {
    /// Whether all that it limits has to do with locks of some names.
    pub(super) fn is_of_locks(&self) -> bool {
        let Self { records, bytes, requests_per_second, .. } = self;
        records.is_none() && bytes.is_none() && requests_per_second.is_none()
    }

    /// Whether all that it limits has to do with some idempotency keys.
    pub(super) fn is_of_keys(&self) -> bool {
        let Self { locks, waiters, streams, requests_per_second, .. } = self;
        locks.is_none() && waiters.is_none() && streams.is_none() && requests_per_second.is_none()
    }
}

/// What a quota limits. As a text it is the member of `quota` that sets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum QuotaKind {
    /// Locks held and asked for.
    Locks,
    /// Requests that wait for locks.
    Waiters,
    /// Streams of events.
    Streams,
    /// Idempotency keys in use.
    Records,
    /// Bytes of the responses that are kept under them.
    Bytes,
    /// Requests a second.
    #[strum(serialize = "requests_per_second")]
    Requests,
}

/// A request that is above the quota of its identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaRefusal {
    /// Which quota it is.
    pub kind: QuotaKind,
    /// How much the identity may have.
    pub limit: u64,
    /// When there may be room, at the earliest.
    pub retry_after: Duration,
}

/// A grant of a lock, as a ledger knows it.
type LockKey = (LockName, TokenHash);

/// The quota of an identity, and what it has.
#[derive(Debug)]
pub struct Meter {
    quota: Quota,
    rate: Option<Arc<DefaultDirectRateLimiter>>,
    usage: Arc<Usage>,
}

#[derive(Debug, Default)]
struct Usage {
    locks: Arc<Ledger<LockKey>>,
    records: Arc<Ledger<RecordKey>>,
    waiters: Arc<AtomicU64>,
    streams: Arc<AtomicU64>,
    pauses: Arc<AtomicU64>,
    refusals: [AtomicU64; QuotaKind::VARIANTS.len()],
    has_refused: AtomicBool,
}

impl Meter {
    /// A meter at zero.
    pub fn new(quota: Quota) -> Self {
        let rate = quota.requests_per_second.map(|rate| {
            let rate = governor::Quota::per_second(rate);
            Arc::new(RateLimiter::direct(rate))
        });
        Self { quota, rate, usage: Arc::default() }
    }

    /// The same quota over what another meter counted, for the same identity as it was before.
    #[must_use]
    pub fn succeed(self, before: &Self) -> Self {
        let is_same = self.quota.requests_per_second == before.quota.requests_per_second;
        let rate = if is_same { before.rate.clone() } else { self.rate };
        Self { quota: self.quota, rate, usage: Arc::clone(&before.usage) }
    }

    /// Counts a request.
    ///
    /// # Errors
    ///
    /// There were as many within the last second as may.
    pub fn admit_request(&self) -> Result<(), QuotaRefusal> {
        let Some(rate) = &self.rate else { return Ok(()) };
        rate.check().map_err(|early| {
            let retry_after = early.wait_time_from(DefaultClock::default().now());
            let limit = self.quota.requests_per_second.map_or(0, |rate| u64::from(rate.get()));
            self.refuse(QuotaKind::Requests, limit, retry_after)
        })
    }

    /// How long the refusal of a request above the rate is to be held back: as if each of those
    /// that are held back took the time of a request. A client that asks again at once has no more
    /// refusals than requests then, and takes little from the others.
    pub fn pause(&self, refusal: QuotaRefusal) -> RefusalPause {
        let before = self.usage.pauses.fetch_add(1, Ordering::Relaxed);
        let before = u32::try_from(before).unwrap_or(u32::MAX);
        let permit = Arc::new(QuotaPermit(vec![Arc::clone(&self.usage.pauses)]));
        let rate = self.quota.requests_per_second.map_or(u32::MAX, NonZeroU32::get);
        let turns = Duration::from_secs(1) / rate * before.min(PAUSES_MAX);
        let lasts = (refusal.retry_after + turns).min(PAUSE_MAX);
        let lasts = if before < PAUSES_MAX { lasts } else { Duration::ZERO };
        RefusalPause { lasts, _permit: permit }
    }

    /// Room for these locks under this token. A lock that it holds already takes none.
    ///
    /// # Errors
    ///
    /// The identity holds and asks for as many as it may.
    pub fn claim_locks(
        &self,
        names: &[LockName],
        token: Option<&Token>,
    ) -> Result<LockClaim, QuotaRefusal> {
        let Some(limit) = self.quota.locks else { return Ok(LockClaim(None)) };
        let token = token.map(Token::hash);
        let keys = names.iter().map(|name| Some((name.clone(), token?)));
        let limit = Load { count: limit.get(), weight: 0 };
        match self.usage.locks.claim(keys, 0, limit) {
            Ok(claim) => Ok(LockClaim(Some(claim))),
            Err(full) => Err(self.refuse(QuotaKind::Locks, limit.count, full.after)),
        }
    }

    /// Notes that these locks are held for so long.
    pub fn note_locks(&self, names: &[LockName], token: &Token, lasts: Duration) {
        if self.quota.locks.is_some() {
            let token = token.hash();
            for name in names {
                self.usage.locks.note((name.clone(), token), lasts);
            }
        }
    }

    /// Forgets locks that are not held any more.
    pub fn remove_locks(&self, names: &[LockName], token: &Token) {
        if self.quota.locks.is_some() {
            let token = token.hash();
            for name in names {
                self.usage.locks.remove(&(name.clone(), token));
            }
        }
    }

    /// A permit for a request that waits for locks.
    ///
    /// # Errors
    ///
    /// As many wait as may.
    pub fn enter_waiter(&self) -> Result<QuotaPermit, QuotaRefusal> {
        self.enter(QuotaKind::Waiters, self.quota.waiters, &self.usage.waiters)
    }

    /// A permit for a stream of events.
    ///
    /// # Errors
    ///
    /// As many are open as may.
    pub fn enter_stream(&self) -> Result<QuotaPermit, QuotaRefusal> {
        self.enter(QuotaKind::Streams, self.quota.streams, &self.usage.streams)
    }

    /// Forgets a lock whose lease is over.
    pub fn end_lock(&self, name: LockName, token: TokenHash) {
        self.usage.locks.remove(&(name, token));
    }

    /// Room for the record of a key, and for a response of so many bytes.
    ///
    /// # Errors
    ///
    /// The identity uses as many keys as it may, or as many bytes are or may be kept for it as may.
    pub fn claim_record(&self, key: RecordKey, bytes: u64) -> Result<RecordClaim, QuotaRefusal> {
        let Quota { records, bytes: kept, .. } = self.quota;
        if records.is_none() && kept.is_none() {
            return Ok(RecordClaim(None));
        }
        let limit = [records, kept].map(|limit| limit.map_or(u64::MAX, NonZeroU64::get));
        let [count, weight] = limit;
        let keys = std::iter::once(Some(key));
        match self.usage.records.claim(keys, bytes.min(weight), Load { count, weight }) {
            Ok(claim) => Ok(RecordClaim(Some(claim))),
            Err(full) if full.by_weight => Err(self.refuse(QuotaKind::Bytes, weight, full.after)),
            Err(full) => Err(self.refuse(QuotaKind::Records, count, full.after)),
        }
    }

    /// Counts what became of the record of a key, if it counts here; `None` where the key is free
    /// again.
    pub fn see_record(&self, key: &RecordKey, view: Option<&RecordView>) {
        let bytes = match view.map(|view| &view.phase) {
            None => return self.usage.records.remove(key),
            Some(RecordStatus::InFlight { .. }) => return,
            Some(RecordStatus::Done { kept, .. }) => kept.kept_bytes(),
            Some(RecordStatus::Unknown { .. }) => 0,
        };
        let lasts = view.map_or(Duration::ZERO, |view| view.expires_in);
        self.usage.records.change(key, lasts, bytes);
    }

    /// The locks that count, and the records.
    pub fn counted(&self) -> (Vec<(LockName, TokenHash)>, Vec<RecordKey>) {
        (self.usage.locks.keys(), self.usage.records.keys())
    }

    /// Whether it has refused something since it was asked so before.
    pub fn has_refused(&self) -> bool {
        self.usage.has_refused.swap(false, Ordering::Relaxed)
    }

    /// How much the identity has of each, where it has a quota.
    pub fn usage(&self) -> impl Iterator<Item = (QuotaKind, u64)> {
        let Quota { locks, waiters, streams, records, bytes, .. } = &self.quota;
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Load { count: in_use, weight: kept } = self.usage.records.usage();
        [
            (QuotaKind::Locks, locks, self.usage.locks.usage().count),
            (QuotaKind::Waiters, waiters, count(&self.usage.waiters)),
            (QuotaKind::Streams, streams, count(&self.usage.streams)),
            (QuotaKind::Records, records, in_use),
            (QuotaKind::Bytes, bytes, kept),
        ]
        .into_iter()
        .filter_map(|(kind, limit, used)| limit.map(|_| (kind, used)))
    }

    /// How many requests each quota refused.
    pub fn refusals(&self) -> impl Iterator<Item = (QuotaKind, u64)> {
        let counts = self.usage.refusals.iter().map(|count| count.load(Ordering::Relaxed));
        QuotaKind::VARIANTS.iter().copied().zip(counts).filter(|(_, count)| *count > 0)
    }

    fn enter(
        &self,
        kind: QuotaKind,
        limit: Option<NonZeroU64>,
        count: &Arc<AtomicU64>,
    ) -> Result<QuotaPermit, QuotaRefusal> {
        let Some(limit) = limit.map(NonZeroU64::get) else { return Ok(QuotaPermit::default()) };
        let more = |count: u64| (count < limit).then_some(count + 1);
        match count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(QuotaPermit(vec![Arc::clone(count)])),
            Err(_) => Err(self.refuse(kind, limit, Duration::from_secs(1))),
        }
    }

    fn refuse(&self, kind: QuotaKind, limit: u64, retry_after: Duration) -> QuotaRefusal {
        self.usage.refusals[kind as usize].fetch_add(1, Ordering::Relaxed);
        self.usage.has_refused.store(true, Ordering::Relaxed);
        QuotaRefusal { kind, limit, retry_after }
    }
}

/// Room for locks, until they are granted or this is dropped.
#[derive(Debug, Default)]
pub struct LockClaim(Option<Claim<LockKey>>);

impl LockClaim {
    /// Notes that the locks were granted for so long.
    pub fn keep(self, names: &[LockName], token: &Token, lasts: Duration) {
        if let Some(claim) = self.0 {
            let token = token.hash();
            claim.keep(names.iter().map(|name| ((name.clone(), token), lasts)));
        }
    }
}

/// Room for a record, until a run began or this is dropped.
#[derive(Debug, Default)]
pub struct RecordClaim(Option<Claim<RecordKey>>);

impl RecordClaim {
    /// Notes that the record is there for so long.
    pub fn keep(self, key: RecordKey, lasts: Duration) {
        if let Some(claim) = self.0 {
            claim.keep(std::iter::once((key, lasts)));
        }
    }
}

/// The time for which a refusal is held back. It counts for as long as this lives.
#[derive(Debug, Clone)]
pub struct RefusalPause {
    /// The time.
    pub lasts: Duration,
    _permit: Arc<QuotaPermit>,
}

/// A permit that is taken for as long as this lives, of one meter or of several.
#[derive(Debug, Default)]
pub struct QuotaPermit(Vec<Arc<AtomicU64>>);

impl QuotaPermit {
    /// Both.
    #[must_use]
    pub fn and(mut self, mut other: Self) -> Self {
        self.0.append(&mut other.0);
        self
    }
}

impl Drop for QuotaPermit {
    fn drop(&mut self) {
        for count in &self.0 {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
