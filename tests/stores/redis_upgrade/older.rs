//! An instance of the version that kept locks and records as hashes.
//!
//! It is that version's scripts, which lie beside this file as they were, run by `EVAL` with the keys and
//! arguments of that version. What a script finds is its first word. Where Redis refuses a command because
//! the key has a row of this version (`WRONGTYPE`), that version answered 503, `not-executed`; that is
//! `None` here.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use keylatch_core::idempotency::{Fingerprint, RecordKey, StoredResponse};
use keylatch_core::lock::TokenHash;
use keylatch_testkit::RedisServer;
use redis::{RedisResult, Value, from_redis_value};

use crate::lock_conformance::name;

macro_rules! script {
    ($($file:literal),+) => { concat!($(include_str!(concat!($file, ".lua"))),+) };
}

const ACQUIRE: &str = script!("fence", "queue", "acquire");
const WITHDRAW: &str = script!("queue", "withdraw");
const RENEW: &str = script!("renew");
const RELEASE: &str = script!("queue", "release");
const GET: &str = script!("get");
const BEGIN: &str = script!("fence", "record", "record_begin");
const EXTEND: &str = script!("record", "record_extend");
const COMPLETE: &str = script!("record", "record_complete");
const ABANDON: &str = script!("record", "record_abandon");
const RESOLVE: &str = script!("record", "record_resolve");
const FIND: &str = script!("record", "record_find");

/// The lease of each run.
pub(super) const LEASE: Duration = Duration::from_secs(60);
/// How long each answer is kept, and each unknown outcome.
pub(super) const RETENTION: Duration = Duration::from_secs(24 * 3600);
/// The attempt of each acquire.
const ATTEMPT: &str = "7";
const WAKEUPS: &str = "keylatch:turns";

/// What a script found; `None` where the key has a row of this version.
pub(super) type Found = Option<Vec<Value>>;

/// An instance of the older version.
pub(super) struct Older<'a>(pub(super) &'a RedisServer);

/// The commands on a lock.
impl Older<'_> {
    /// Acquires a lock; its fencing token.
    pub(super) async fn acquire(
        &self,
        lock: &str,
        token: &TokenHash,
        ttl: Duration,
    ) -> Option<u64> {
        granted(&self.ask(lock, token, ttl, "").await)
    }

    /// Acquires a lock, or waits for it in the queue; its fencing token.
    pub(super) async fn acquire_or_wait(
        &self,
        lock: &str,
        token: &TokenHash,
        ttl: Duration,
    ) -> Option<u64> {
        granted(&self.ask(lock, token, ttl, "4000").await)
    }

    /// What an acquire finds, which leaves a queue entry for so many milliseconds.
    pub(super) async fn ask(
        &self,
        lock: &str,
        token: &TokenHash,
        ttl: Duration,
        entry: &str,
    ) -> Found {
        let args = [&text(token), &*millis(ttl), "older", ATTEMPT, entry, WAKEUPS, ""];
        self.run(ACQUIRE, &lock_keys(lock), &args).await
    }

    pub(super) async fn withdraw(&self, lock: &str, token: &TokenHash) -> Found {
        let args = [&text(token), ATTEMPT, WAKEUPS, ""];
        self.run(WITHDRAW, &lock_keys(lock)[..4], &args).await
    }

    pub(super) async fn renew(&self, lock: &str, token: &TokenHash, ttl: Duration) -> Found {
        self.run(RENEW, &lock_keys(lock)[..1], &[&text(token), &*millis(ttl)]).await
    }

    pub(super) async fn release(&self, lock: &str, token: &TokenHash) -> Found {
        self.run(RELEASE, &lock_keys(lock)[..4], &[&text(token), WAKEUPS, ""]).await
    }

    pub(super) async fn look(&self, lock: &str) -> Found {
        let [key, _, places, ..] = &lock_keys(lock)[..] else { unreachable!("five keys") };
        self.run(GET, &[key.clone(), places.clone()], &[]).await
    }
}

/// The commands on a record.
impl Older<'_> {
    /// Begins a run, which leaves an unknown outcome behind when it is interrupted; its fencing token.
    pub(super) async fn begin(&self, record: &RecordKey, runner: &TokenHash) -> Option<u64> {
        self.begin_as(record, runner, "unknown").await
    }

    /// Begins a run, of which this is what is left when it is interrupted; its fencing token.
    pub(super) async fn begin_as(
        &self,
        record: &RecordKey,
        runner: &TokenHash,
        on_crash: &str,
    ) -> Option<u64> {
        let fingerprint = URL_SAFE_NO_PAD.encode(Fingerprint::of_text("an order").as_bytes());
        let (token, lease, retention) = (text(runner), millis(LEASE), millis(RETENTION));
        let args = [&token, &*fingerprint, &lease, &retention, on_crash, &retention, ""];
        let [key, index] = record_keys(record);
        let counter = format!("keylatch:{{{:02x}}}:fence", record.bucket());
        granted(&self.run(BEGIN, &[key, counter, index], &args).await)
    }

    pub(super) async fn extend(&self, record: &RecordKey, runner: &TokenHash) -> Found {
        self.run(EXTEND, &record_keys(record), &[&text(runner), &*millis(RETENTION)]).await
    }

    /// Ends a run as done, with the bytes of [`mark`], or as unknown.
    pub(super) async fn complete(
        &self,
        record: &RecordKey,
        runner: &TokenHash,
        stage: &str,
    ) -> Found {
        let end = if stage == "done" { mark_text() } else { "failed".to_owned() };
        let args = [&text(runner), stage, &*end, &millis(RETENTION)];
        self.run(COMPLETE, &record_keys(record), &args).await
    }

    pub(super) async fn abandon(&self, record: &RecordKey, runner: &TokenHash) -> Found {
        self.run(ABANDON, &record_keys(record), &[&text(runner)]).await
    }

    /// Resolves an unknown outcome: it was done, and came to [`mark`], or was not executed.
    pub(super) async fn resolve(&self, record: &RecordKey, is_done: bool) -> Found {
        let kept = if is_done { mark_text() } else { String::new() };
        self.run(RESOLVE, &record_keys(record), &["", &kept]).await
    }

    pub(super) async fn find(&self, record: &RecordKey) -> Found {
        self.run(FIND, &record_keys(record)[..1], &[]).await
    }
}

impl Older<'_> {
    async fn run(&self, script: &str, keys: &[String], args: &[&str]) -> Found {
        let count = keys.len().to_string();
        let keys = keys.iter().map(String::as_str);
        let command: Vec<_> = ["EVAL", script, &count].into_iter().chain(keys).collect();
        let reply: RedisResult<Vec<Value>> = self.0.try_run(&[&command, args].concat()).await;
        match reply {
            Ok(reply) => Some(reply),
            Err(error) => {
                let code = error.code().map(ToOwned::to_owned);
                assert_eq!(code.as_deref(), Some("WRONGTYPE"), "{error}");
                None
            }
        }
    }
}

/// Asserts what a script found.
#[track_caller]
pub(super) fn is(found: &Found, word: &str) {
    assert_eq!(word_of(found).as_deref(), Some(word), "{found:?}");
}

fn word_of(found: &Found) -> Option<String> {
    found.as_ref().map(|reply| from_redis_value(reply[0].clone()).expect("a word"))
}

/// The fencing token of what was granted or started.
fn granted(found: &Found) -> Option<u64> {
    let is_granted = matches!(word_of(found)?.as_str(), "granted" | "started");
    let fence = &found.as_ref()?[1];
    is_granted.then(|| from_redis_value(fence.clone()).expect("a fencing token"))
}

/// A stored response whose bytes are text.
pub(super) fn mark() -> StoredResponse {
    StoredResponse::Mark(80)
}

fn mark_text() -> String {
    String::from_utf8(mark().to_bytes().expect("bytes")).expect("text")
}

fn text(token: &TokenHash) -> String {
    URL_SAFE_NO_PAD.encode(token.as_bytes())
}

fn millis(span: Duration) -> String {
    span.as_millis().to_string()
}

/// The lock, the three keys of its queue, and the counter of its bucket.
pub(super) fn lock_keys(lock: &str) -> Vec<String> {
    let bucket = name(lock).bucket();
    let parts = ["lock", "line", "places", "attempts"].map(|part| format!("{part}:{lock}"));
    let parts = parts.into_iter().chain(["fence".to_owned()]);
    parts.map(|part| format!("keylatch:{{{bucket:02x}}}:{part}")).collect()
}

/// The record, and the index of its bucket.
pub(super) fn record_keys(record: &RecordKey) -> [String; 2] {
    let bucket = record.bucket();
    let hash = URL_SAFE_NO_PAD.encode(record.as_bytes());
    [format!("record:{hash}"), "unfinished".to_owned()]
        .map(|part| format!("keylatch:{{{bucket:02x}}}:{part}"))
}
