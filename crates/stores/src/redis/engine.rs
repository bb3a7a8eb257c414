//! The engine that the adapter over conditional writes runs on: rows in Redis.
//!
//! One script carries out a batch (`lua/write.lua`), in one step of the server, one carries out all
//! changes or none (`lua/write_all.lua`), and one reads (`lua/read.lua`). A row leaves Redis by
//! itself when nothing is in it any more, so nothing is swept, and the counter of its bucket keeps
//! its fencing tokens. On a cluster each bucket is a part by itself: it has a server, a clock and
//! failures of its own.
//!
//! Invariant: what the script says of a change is what became of it; a change on which a client
//! relies is answered once `min_replicas` replicas have it, else its outcome is unknown, and that
//! of no other. Tested by the conformance and the differential tests, and over servers that fail by
//! those of Redis.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bb8_redis::redis::{
    FromRedisValue, ParsingError, Script, ScriptInvocation, Value, from_redis_value,
};
use futures_util::future::try_join_all;
use futures_util::stream::BoxStream;
use keylatch_core::lock::LockName;
use keylatch_core::store::{EntryLimits, StoreError, StoreHealth, StoreProfile};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::client::Messages;
use super::connection::ScriptReply;
use super::failure::Failure;
use super::pubsub::{ANNOUNCE_BATCH, PubSubMessage, Watches, row_message};
use super::row::{parse_row, row_bytes};
use super::script::{self, Keys, parse_record_name};
use super::topology::Topology;
use crate::conn::locked;
use crate::conn::subscription::{self, Source};
use crate::optimistic::conditional::{
    Change, ConditionalStore, EngineTime, Key, Listing, Notice, ReadReply, Removal, Version,
    WriteReply,
};

/// How many batches of one kind are under way at once. While the server carries out one, this
/// process decides the next. With one alone they wait for each other, and more than two are no
/// faster. A batch that overtakes another may have the higher fencing token of a bucket; Redis then
/// refuses the lower one, and its change is decided again.
const WRITES_AT_ONCE: usize = 2;
/// How many indexes are read at once, at most.
const BUCKETS_AT_ONCE: usize = 64;

/// The rows of one Redis, of a master that sentinels name, or of a cluster. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct RedisEngine {
    pub(super) kind: &'static str,
    pub(super) topology: Arc<Topology>,
    pub(super) keys: Arc<Keys>,
    pub(super) watches: Arc<Watches>,
    /// Whether replicas must have what clients rely on.
    pub(super) replicates: bool,
    /// How many rows were written, for versions that no two rows share.
    pub(super) written: Arc<AtomicU64>,
    /// How long it may take to subscribe, and how often that was tried.
    pub(super) subscribe_limit: Duration,
    pub(super) subscriptions: Arc<AtomicUsize>,
    /// The subscription that was made when the store was opened, until it is used.
    pub(super) subscription: Arc<Mutex<Option<Subscription>>>,
}

impl RedisEngine {
    /// The key of a row; the counter of a bucket for its floor.
    pub(super) fn key_of(&self, key: &Key) -> String {
        match key {
            Key::Lock(name) => self.keys.lock(name.bucket(), name),
            Key::Record(record) => self.keys.record(record),
            Key::Floor(bucket) => self.keys.fencing_token(*bucket),
            Key::Id => self.keys.id(key.bucket()),
        }
    }

    /// A version that no other row has: the second half counts, and the first is random in each
    /// batch.
    fn version(&self, random: u64) -> Version {
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        Version(u128::from(random) << 64 | u128::from(number))
    }

    fn versions(&self, changes: &[Change]) -> Result<Vec<Version>, StoreError> {
        let random = getrandom::u64().map_err(|error| StoreError::Unreachable(error.into()))?;
        Ok(changes.iter().map(|_| self.version(random)).collect())
    }

    /// The call of a script for the changes at these places, in this order.
    fn batch(
        &self,
        script: &'static Script,
        changes: &[Change],
        order: &[usize],
        versions: &[Version],
    ) -> ScriptInvocation<'static> {
        let are_records = matches!(changes.first().map(|change| &change.key), Some(Key::Record(_)));
        let mut call = script.prepare_invoke();
        call.arg(if are_records { 3 } else { 2 }).arg(self.keys.change_channel());
        for position in order {
            let (change, version) = (&changes[*position], versions[*position]);
            let (bucket, outline) = (change.key.bucket(), &change.outline);
            call.key(self.key_of(&change.key)).key(self.keys.fencing_token(bucket));
            if are_records {
                call.key(self.keys.unfinished(bucket));
            }
            call.arg(change.was.map(|was| was.0.to_be_bytes().to_vec()).unwrap_or_default())
                .arg(row_bytes(version, &change.value))
                .arg(micros(change.guard.from))
                .arg(micros(change.guard.until))
                .arg(micros(outline.lasts))
                .arg(outline.given.map(|given| given.to_string()).unwrap_or_default())
                .arg(if outline.is_promise { "1" } else { "" })
                .arg(self.message(change, version))
                .arg(if change.mark.is { "1" } else { "" });
        }
        call
    }

    /// The names in the index of a bucket's unfinished records.
    async fn unfinished(&self, bucket: u8) -> Result<Vec<String>, StoreError> {
        let mut call = script::UNFINISHED.prepare_invoke();
        call.key(self.keys.unfinished(bucket));
        self.topology.run(bucket, &call).await
    }

    /// What a change of a row publishes: something only where a process waits for it or watches it.
    fn message(&self, change: &Change, version: Version) -> Vec<u8> {
        match &change.key {
            Key::Lock(name)
                if !change.outline.turns.is_empty() || self.watches.is_watched(name) =>
            {
                row_message(&self.key_of(&change.key), version, &change.value)
            }
            _ => Vec::new(),
        }
    }
}

#[async_trait]
impl ConditionalStore for RedisEngine {
    async fn read(&self, keys: &[Key]) -> Result<ReadReply, StoreError> {
        let bucket = keys.first().map_or(0, Key::bucket);
        let mut call = script::READ.prepare_invoke();
        for key in keys {
            call.key(self.key_of(key));
        }
        let RowsReply { rows, now, asked } = self.topology.run(bucket, &call).await?;
        let rows = keys.iter().zip(rows).map(|(key, row)| parse_row(key, row));
        Ok(ReadReply { rows: rows.collect(), asked, now })
    }

    async fn write(&self, changes: &[Change]) -> Result<WriteReply, StoreError> {
        let bucket = changes.first().map_or(0, |change| change.key.bucket());
        let order = order_of(changes);
        let versions = self.versions(changes)?;
        let call = self.batch(&script::WRITE, changes, &order, &versions);
        let reply: BatchReply = self.topology.run(bucket, &call).await?;
        let (mut versions, mut failed): (Vec<_>, _) =
            (versions.into_iter().map(Some).collect(), Vec::new());
        let unreplicated = reply.unreplicated.map(|failure| Arc::new(StoreError::from(failure)));
        let mut outcomes = reply.outcomes.into_iter();
        let mut found = Vec::new();
        for position in order {
            let outcome = outcomes.next();
            if let Some(Outcome::Found(row)) = &outcome {
                let row = parse_row(&changes[position].key, row.clone());
                found.push((position, row));
            }
            match result_of(outcome, unreplicated.as_ref()) {
                Ok(true) => {}
                Ok(false) => versions[position] = None,
                Err(error) => failed.push((position, error)),
            }
        }
        Ok(WriteReply { versions, failed, found, asked: reply.asked, now: reply.now })
    }

    async fn write_all(&self, changes: &[Change]) -> Result<WriteReply, StoreError> {
        let bucket = changes.first().map_or(0, |change| change.key.bucket());
        let mut order = order_of(changes);
        // A row that is there is written first: a Redis whose memory is full takes the rest then.
        order.reverse();
        let versions = self.versions(changes)?;
        let call = self.batch(&script::WRITE_ALL, changes, &order, &versions);
        let reply: BatchReply = self.topology.run(bucket, &call).await?;
        let is_done = are_all_done(&reply.outcomes, changes.len())?;
        if let Some(failure) = reply.unreplicated {
            return Err(StoreError::Lost(StoreError::from(failure).into()));
        }
        let versions = versions.into_iter().map(|version| is_done.then_some(version)).collect();
        Ok(WriteReply::new(versions, reply.asked, reply.now))
    }

    async fn list(
        &self,
        _prefix: &[u8],
        _after: Option<&Key>,
        _limit: usize,
    ) -> Result<Listing, StoreError> {
        Err(StoreError::Unsupported)
    }

    /// Redis itself removes rows, and not from the index of those that are marked.
    async fn remove(&self, rows: &[Removal]) -> Result<(), StoreError> {
        let removing = rows.iter().map(async |Removal { key, .. }| {
            let mut call = script::UNLIST.prepare_invoke();
            call.key(self.key_of(key)).key(self.keys.unfinished(key.bucket()));
            self.topology.run::<()>(key.bucket(), &call).await
        });
        try_join_all(removing).await.map(drop)
    }

    /// A page costs the indexes of the buckets that it looks into.
    async fn marked(&self, after: Option<&Key>, limit: usize) -> Result<Vec<Key>, StoreError> {
        let mut found = Vec::new();
        let (mut next, mut at_once) = (after.map_or(0, |key| usize::from(key.bucket())), 1);
        while next < LockName::BUCKETS && found.len() < limit {
            let buckets = (next..next + at_once).filter_map(|bucket| u8::try_from(bucket).ok());
            for names in try_join_all(buckets.map(|bucket| self.unfinished(bucket))).await? {
                let keys = names.iter().filter_map(|name| parse_record_name(name));
                let mut keys: Vec<_> = keys.map(Key::Record).collect();
                keys.retain(|key| after.is_none_or(|after| key > after));
                keys.sort_unstable();
                found.extend(keys);
            }
            (next, at_once) = (next + at_once, (2 * at_once).min(BUCKETS_AT_ONCE));
        }
        found.truncate(limit);
        Ok(found)
    }

    fn notices(&self) -> BoxStream<'static, Notice> {
        subscription::notices(self.clone(), locked(&self.subscription).take())
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        let mut health = self.topology.health().await?;
        // Each instance has one subscription, at one of the masters.
        let instances = self.topology.subscribers(&self.keys.change_channel()).await;
        let instances = instances.map_or("not known".to_owned(), |count| count.to_string());
        health.facts.insert("instances", instances);
        Ok(health)
    }

    fn profile(&self) -> StoreProfile {
        StoreProfile::new(self.kind, EntryLimits::NONE)
    }

    fn forgets(&self) -> bool {
        true
    }

    fn replicates(&self) -> bool {
        self.replicates
    }

    fn writes_at_once(&self) -> usize {
        WRITES_AT_ONCE
    }

    fn parts(&self) -> usize {
        self.topology.parts()
    }
}

/// The messages of a server, and the token that is cancelled when it is retired.
pub(super) type Subscription = (Messages, CancellationToken);

impl Source for RedisEngine {
    type Subscription = Subscription;

    async fn subscribe(&self) -> Result<Subscription, String> {
        let subscribing = async {
            // Each attempt is at another master.
            let attempt = self.subscriptions.fetch_add(1, Ordering::Relaxed);
            let publisher = self.topology.publisher(attempt).ok_or("no master is known yet")?;
            let subscribed = publisher.client().subscribe(&[&self.keys.change_channel()]).await;
            Ok((subscribed.map_err(|error| error.to_string())?, publisher.retired()))
        };
        let subscribed = timeout(self.subscribe_limit, subscribing).await;
        subscribed.unwrap_or_else(|late| Err(late.to_string()))
    }

    async fn hear(&self, (messages, retired): &mut Subscription) -> Option<Vec<Notice>> {
        let message = retired.run_until_cancelled(messages.next()).await??;
        match PubSubMessage::parse(&self.keys, message.get_payload_bytes()) {
            Some(PubSubMessage::Watched(name)) => {
                self.watches.note_watched(name);
                Some(Vec::new())
            }
            Some(PubSubMessage::Notice(notice)) => Some(vec![notice]),
            None => Some(Vec::new()),
        }
    }
}

impl RedisEngine {
    /// Announces the locks that are watched here, for ever.
    pub(super) async fn announce(self) {
        loop {
            self.watches.until_due().await;
            self.watches.forget_expired();
            for names in self.watches.here.keys().chunks(ANNOUNCE_BATCH) {
                let mut call = script::ANNOUNCE.prepare_invoke();
                call.arg(self.keys.change_channel());
                for name in names {
                    call.arg(self.keys.lock(name.bucket(), name));
                }
                // The script has no keys, and every server passes on its messages.
                let any_bucket = names.first().map_or(0, LockName::bucket);
                if let Err(error) = self.topology.run::<()>(any_bucket, &call).await {
                    tracing::debug!(%error, "watched locks could not be announced");
                }
            }
        }
    }
}

/// The places of the changes in the order of a batch. New rows come first: a Redis whose memory is
/// full refuses them, and takes what follows only because a row is there already.
fn order_of(changes: &[Change]) -> Vec<usize> {
    let (new, old): (Vec<_>, Vec<_>) =
        (0..changes.len()).partition(|position| changes[*position].was.is_none());
    new.into_iter().chain(old).collect()
}

/// Whether a change was carried out. It is an error if the replicas that a client relies on may not
/// have it.
fn result_of(
    outcome: Option<Outcome>,
    unreplicated: Option<&Arc<StoreError>>,
) -> Result<bool, StoreError> {
    match (outcome, unreplicated) {
        (Some(Outcome::Conflict | Outcome::Found(_)), _) => Ok(false),
        (Some(Outcome::Promised), Some(error)) => Err(StoreError::Lost(Arc::clone(error).into())),
        (Some(Outcome::Written | Outcome::Promised), _) => Ok(true),
        (Some(Outcome::Refused(code)), _) => {
            Err(StoreError::Refused(format!("Redis answered {code}").into()))
        }
        (None, _) => Err(StoreError::Lost("the reply lacks a change".into())),
    }
}

/// Whether all changes of a step were carried out, or none. Some of them alone are an error.
fn are_all_done(outcomes: &[Outcome], count: usize) -> Result<bool, StoreError> {
    let is_done = |outcome: &Outcome| matches!(outcome, Outcome::Written | Outcome::Promised);
    let is_conflict = |outcome: &Outcome| matches!(outcome, Outcome::Conflict);
    match outcomes {
        outcomes if outcomes.len() != count => {
            Err(StoreError::Lost("the reply lacks a change".into()))
        }
        outcomes if outcomes.iter().all(is_done) => Ok(true),
        outcomes if outcomes.iter().all(is_conflict) => Ok(false),
        _ => Err(StoreError::Lost("Redis carried out a part of the step".into())),
    }
}

/// The last microsecond that Lua knows exactly, some 285 years after 1970.
const LATEST: u64 = 1 << 53;

/// A time as a script's argument: the first whole microsecond that is not before it.
fn micros(time: EngineTime) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(LATEST).min(LATEST)
}

/// What a server's clock showed, as a script gives it: seconds and microseconds. Refuses a time
/// past [`LATEST`].
pub(super) fn time_of(
    fields: &mut impl Iterator<Item = Value>,
) -> Result<EngineTime, ParsingError> {
    let mut next = || from_redis_value::<u64>(fields.next().unwrap_or(Value::Nil));
    let (seconds, rest) = (Duration::from_secs(next()?), Duration::from_micros(next()?));
    let known = |time: &EngineTime| *time <= Duration::from_micros(LATEST);
    let time = seconds.checked_add(rest).filter(known);
    time.ok_or_else(|| ParsingError::from("the server's clock shows no time that Redis can keep"))
}

/// The reply of `read`.
#[derive(Debug)]
pub(super) struct RowsReply {
    pub(super) rows: Vec<Value>,
    pub(super) now: EngineTime,
    asked: Instant,
}

/// The reply of `unfinished`.
impl ScriptReply for Vec<String> {}

impl FromRedisValue for RowsReply {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let mut fields = Vec::<Value>::from_redis_value(value)?.into_iter();
        let now = time_of(&mut fields)?;
        Ok(Self { rows: fields.collect(), now, asked: Instant::now() })
    }
}

impl ScriptReply for RowsReply {
    fn note_asked(&mut self, asked: Instant) {
        self.asked = asked;
    }
}

/// What became of a change.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// Its guard did not hold, or its fencing token is too low.
    Conflict,
    /// Another row is there, or none.
    Found(Value),
    Written,
    /// It was written, and a client relies on it.
    Promised,
    Refused(String),
}

/// The reply of `write`.
#[derive(Debug)]
pub(super) struct BatchReply {
    outcomes: Vec<Outcome>,
    now: EngineTime,
    asked: Instant,
    /// Why the replicas may not have what was written.
    unreplicated: Option<Failure>,
}

impl FromRedisValue for BatchReply {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let mut fields = Vec::<Value>::from_redis_value(value)?.into_iter();
        let now = time_of(&mut fields)?;
        let outcomes = fields.map(|field| match field {
            Value::Int(0) => Ok(Outcome::Conflict),
            Value::Int(1) => Ok(Outcome::Written),
            Value::Int(2) => Ok(Outcome::Promised),
            Value::Array(mut found) => Ok(Outcome::Found(found.pop().unwrap_or(Value::Nil))),
            code => from_redis_value(code).map(Outcome::Refused),
        });
        let outcomes = outcomes.collect::<Result<_, _>>()?;
        Ok(Self { outcomes, now, asked: Instant::now(), unreplicated: None })
    }
}

impl ScriptReply for BatchReply {
    fn needs_replicas(&self) -> bool {
        self.outcomes.contains(&Outcome::Promised)
    }

    fn note_asked(&mut self, asked: Instant) {
        self.asked = asked;
    }

    fn unreplicated(self, failure: Failure) -> Result<Self, Failure> {
        Ok(Self { unreplicated: Some(failure), ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fuzzer found the panic of a `Duration` that is too long.
    #[test]
    fn clock_that_shows_no_time_of_ours_is_refused() {
        let shown = |seconds: i64, micros: i64| {
            time_of(&mut [seconds, micros].map(Value::Int).into_iter()).ok()
        };
        assert_eq!(shown(1_800_000_000, 5), Some(Duration::new(1_800_000_000, 5_000)));
        assert_eq!(shown(i64::MAX, i64::MAX), None);
        assert_eq!(shown(-1, 0), None);
        assert_eq!(shown(0, (1 << 53) + 1), None, "Lua does not know it exactly");
        let largest = Value::SimpleString(u64::MAX.to_string());
        assert!(time_of(&mut [largest.clone(), largest].into_iter()).is_err());
    }
}
