//! Entries of versions that kept a lock or a record as a hash under the key that now has a row.
//!
//! They are read and never written: a command that changes nothing is answered from them, so that a lock
//! that an older instance holds is held and what it has done is replayed, and any other is refused until
//! Redis has expired the hash. An older instance refuses what is no hash in the same way. So instances of
//! both kinds share one Redis while they are replaced, no lock is held twice and no key runs twice. Tested
//! in `tests/stores/redis_upgrade.rs`.

use std::collections::HashMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bb8_redis::redis::{Value, from_redis_value};
use keylatch_core::idempotency::{
    Fingerprint, OnCrash, Record, RecordScope, RecordStage, RecordState, StoredResponse,
    UnknownReason,
};
use keylatch_core::lock::{
    Attempt, Entries, Entry, FencingToken, History, HolderState, Limit, LockState, Owner,
    TokenHash, WaitQueue,
};

use crate::optimistic::conditional::{EngineTime, Key, Row, Version};
use crate::optimistic::value::encode_state;

/// The version of all that is read here; no row has it.
pub(super) const LEGACY: Version = Version(u128::MAX);

/// The row of an entry that was read at `now` as `{pttl, field, value, …}`; `None` if it cannot be
/// understood.
pub(super) fn parse(key: &Key, fields: Vec<Value>, now: EngineTime) -> Option<Row> {
    let fields = Fields::parse(fields)?;
    let last = fields.fencing_token()?;
    let value = match key {
        Key::Lock(_) => encode_state(fields.lock(now)?, last),
        Key::Record(_) => encode_state(fields.record()?, last),
        Key::Floor(_) => return None,
    };
    Some(Row { version: LEGACY, value: value.ok()? })
}

/// The fields of a hash, and what is left of it in milliseconds; negative without an expiry.
struct Fields {
    pttl: i64,
    fields: HashMap<String, Vec<u8>>,
}

impl Fields {
    fn parse(found: Vec<Value>) -> Option<Self> {
        let mut found = found.into_iter();
        let pttl = from_redis_value(found.next()?).ok()?;
        let mut fields = HashMap::new();
        while let (Some(field), Some(value)) = (found.next(), found.next()) {
            fields.insert(from_redis_value(field).ok()?, from_redis_value(value).ok()?);
        }
        Some(Self { pttl, fields })
    }

    fn lock(&self, now: EngineTime) -> Option<LockState> {
        let ttl = self.millis("ttl")?;
        // Redis keeps a key through the millisecond in which it expires, and an older instance may renew it then.
        let left = u64::try_from(self.pttl);
        let left = left.map_or(ttl, |left| Duration::from_millis(left.saturating_add(1)));
        let sole_attempt = self.number("attempt").map(Attempt::new);
        let holder = HolderState {
            token: TokenHash::from_bytes(self.hash("token")?),
            fencing_token: self.fencing_token()?,
            owner: Owner::parse(self.text("owner")?).ok()?,
            since: (now + left).saturating_sub(ttl),
            ttl,
            acquired_at_millis: self.number("acquired")?,
            limit: Limit::Exclusive,
            slot: 0,
            entries: Entries::of(Entry { name: None, sole_attempt }),
            broken: None,
        };
        Some(LockState::new(Some(holder), WaitQueue::default(), History::default()))
    }

    fn record(&self) -> Option<RecordState> {
        let (at, lease) = (self.number("at")?, self.millis("lease")?);
        let stage = match self.text("stage")? {
            "in-flight" => RecordStage::InFlight,
            "done" => {
                RecordStage::Done(at, StoredResponse::from_bytes(self.fields.get("end")?).ok()?)
            }
            "unknown" => RecordStage::Unknown(at, UnknownReason::parse(self.text("end")?)?),
            _ => return None,
        };
        let at = Duration::from_millis(at);
        let is_in_flight = stage == RecordStage::InFlight;
        let scope = self.fields.get("scope");
        Some(RecordState::new(Some(Record {
            token: TokenHash::from_bytes(self.hash("token")?),
            fingerprint: Fingerprint::from_bytes(self.hash("fingerprint")?),
            scope: scope.and_then(|scope| RecordScope::from_bytes(scope).ok()),
            fencing_token: self.fencing_token()?,
            attempts: u32::try_from(self.number("attempts")?).ok()?,
            begun_at_millis: self.number("begun")?,
            lease,
            retention: self.millis("retention")?,
            on_crash: match self.text("on_crash")? {
                "unknown" => OnCrash::Unknown,
                "rerun" => OnCrash::Rerun,
                _ => return None,
            },
            stage,
            since: if is_in_flight { at.saturating_sub(lease) } else { at },
        })))
    }

    fn fencing_token(&self) -> Option<FencingToken> {
        self.number("fence").map(FencingToken::new)
    }

    fn text(&self, field: &str) -> Option<&str> {
        std::str::from_utf8(self.fields.get(field)?).ok()
    }

    fn number(&self, field: &str) -> Option<u64> {
        self.text(field)?.parse().ok()
    }

    fn millis(&self, field: &str) -> Option<Duration> {
        self.number(field).map(Duration::from_millis)
    }

    fn hash(&self, field: &str) -> Option<[u8; 32]> {
        URL_SAFE_NO_PAD.decode(self.fields.get(field)?).ok()?.try_into().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_is_held_as_long_as_redis_has_its_hash() {
        let hash = URL_SAFE_NO_PAD.encode([1; 32]);
        let fields = [("token", &*hash), ("fence", "7"), ("ttl", "500"), ("owner", "older")];
        let fields = fields.into_iter().chain([("acquired", "0"), ("attempt", "")]);
        let bytes = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let fields = fields.flat_map(|(field, value)| [bytes(field), bytes(value)]);
        for left in [0, 1, 500] {
            let found = std::iter::once(Value::Int(left)).chain(fields.clone()).collect();
            let now = Duration::from_micros(1_800_000_000_000_500);
            let lock = Fields::parse(found).and_then(|fields| fields.lock(now)).expect("a lock");
            let ends: Vec<_> = lock.ends().collect();
            assert!(ends.iter().all(|end| *end > now), "{left} ms are left: {ends:?}");
        }
    }
}
