//! Locks and records in an etcd, shared by all keylatch instances that use the same prefix.
//!
//! The adapter over conditional writes runs the rules (`optimistic`); this is its engine: a batch
//! is one transaction of nested ones (`txn.rs`), on one connection to one member (`session.rs`,
//! `cluster.rs`); a listing asks for narrow ranges (`pages.rs`); and a watch says what other
//! instances change (`watch.rs`). etcd tells no time, so this process's timeline says how long ago
//! a revision was seen. No lease of etcd is used: they last whole seconds, and an election renews
//! them.
//!
//! Invariant: what a response or the watch says of revisions is on the timeline before the adapter
//! has it.

mod cluster;
mod failure;
mod health;
#[expect(unreachable_pub, clippy::enum_variant_names, reason = "the file is generated")]
mod messages;
mod pages;
mod session;
mod txn;
mod url;
mod watch;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{join_all, try_join_all};
use futures_util::stream::BoxStream;
use keylatch_core::store::{Effect, Store, StoreError, StoreHealth, StoreProfile};
use tokio::time::Instant;

use crate::conn::{locked, subscription};
use crate::error::OpenError;
use crate::optimistic::conditional::{
    Change, ConditionalStore, EngineTime, Key, Listing, Notice, ReadReply, Removal, Timeline,
    WriteReply,
};
use crate::optimistic::optimistic;
use crate::settings::Settings;
use cluster::Cluster;
use failure::causes;
use messages::etcdserverpb::{RangeRequest, ResponseHeader};
use pages::{PageRanges, RangeWidth};
use txn::{Keyspace, carried_out, check_one_request, is_end, parts, requests, row, rows, version};
use url::Address;
use watch::Subscription;

/// Opens the etcd at `url`.
///
/// # Errors
///
/// `url` is not understood, or etcd answers and is not fit: it is too old, its members are of two
/// clusters, or the user may not do everything below the prefix. An etcd that does not answer is no
/// error: the store keeps trying.
pub(crate) async fn open(url: &str, settings: Settings<'_>) -> Result<Arc<dyn Store>, OpenError> {
    let address = Address::parse(url)?;
    let connect_limit = Duration::from_millis(settings.etcd.connect_timeout_ms);
    let endpoints = address.endpoints(connect_limit)?;
    let timeline = Arc::<Timeline>::default();
    let cluster =
        Cluster::new(endpoints, address.credentials, connect_limit, Arc::clone(&timeline));
    let etcd = Etcd {
        cluster: Arc::new(cluster),
        keys: Keyspace(address.prefix),
        hosts: address.hosts.into(),
        timeline,
        subscription: Arc::default(),
        widths: Arc::default(),
        is_full: Arc::default(),
    };
    // Before the first watch, so that no change is missed because the store is new.
    let starting = async {
        etcd.cluster.inspect().await?;
        etcd.cluster.call(|| etcd.keys.probe()).await?;
        for advice in health::health(&etcd).await?.advice {
            tracing::warn!(advice, "the store should be changed");
        }
        Subscription::start(&etcd).await
    };
    match starting.await {
        Ok(subscription) => *locked(&etcd.subscription) = Some(subscription),
        Err(error @ StoreError::Refused(_)) => {
            return Err(OpenError::Unfit("etcd", causes(&error)));
        }
        Err(error) => tracing::warn!(error = causes(&error), "etcd cannot be reached yet"),
    }
    Ok(optimistic(etcd))
}

/// Checks a URL and the files that it names.
pub(crate) fn check(url: &str, _: Settings<'_>) -> Result<(), OpenError> {
    Address::parse(url)?.endpoints(Duration::ZERO).map(drop)
}

/// The engine. Clones are the same.
#[derive(Debug, Clone)]
struct Etcd {
    cluster: Arc<Cluster>,
    keys: Keyspace,
    /// The members of the URL, for people.
    hosts: Arc<[String]>,
    timeline: Arc<Timeline>,
    /// The watch that was made when the store was opened, until it is used.
    subscription: Arc<Mutex<Option<Subscription>>>,
    /// How wide ranges of rows are, by the first byte of their keys.
    widths: Arc<Mutex<BTreeMap<u8, RangeWidth>>>,
    /// Whether the last write that etcd counts found no room.
    is_full: Arc<AtomicBool>,
}

impl Etcd {
    /// Notes what a response says of the time, and gives it.
    fn note(&self, header: ResponseHeader, asked: Instant) -> EngineTime {
        self.timeline.note_answer(version(header.revision), asked)
    }

    /// Carries out as many changes as one request has. What their guards do not allow when it is
    /// sent is left out.
    async fn write_at_once(&self, changes: &[Change]) -> Result<WriteReply, StoreError> {
        let mut allowed = Vec::new();
        let request = || {
            let now = self.timeline.now();
            allowed = changes.iter().map(|change| change.guard.allows(now)).collect();
            let sent = changes.iter().zip(&allowed).filter(|(_, allowed)| **allowed);
            self.keys.write(sent.map(|(change, _)| change))
        };
        let called = self.cluster.call(request).await;
        match &called {
            Err(StoreError::Full(_)) => self.is_full.store(true, Ordering::Relaxed),
            Ok(_) if !changes.iter().all(is_end) => self.is_full.store(false, Ordering::Relaxed),
            _ => {}
        }
        let (answer, header, asked) = called?;
        let sent = allowed.iter().filter(|allowed| **allowed).count();
        let mut carried_out = carried_out(answer, sent)?.into_iter();
        let now = self.note(header, asked);
        let versions = allowed.into_iter().map(|allowed| {
            let is_done = allowed && carried_out.next().unwrap_or_default();
            is_done.then(|| version(header.revision))
        });
        Ok(WriteReply::new(versions.collect(), asked, now))
    }

    async fn read_at_once(&self, keys: &[Key]) -> Result<ReadReply, StoreError> {
        let (answer, header, asked) = self.cluster.call(|| self.keys.read(keys)).await?;
        let rows = rows(answer, keys.len())?;
        let now = self.note(header, asked);
        Ok(ReadReply { rows, asked, now })
    }
}

#[async_trait]
impl ConditionalStore for Etcd {
    async fn read(&self, keys: &[Key]) -> Result<ReadReply, StoreError> {
        let readings = try_join_all(parts(keys).map(|keys| self.read_at_once(keys))).await?;
        let together = readings.into_iter().reduce(|mut all, reading| {
            all.rows.extend(reading.rows);
            ReadReply { asked: all.asked.min(reading.asked), now: all.now.min(reading.now), ..all }
        });
        let nothing =
            || ReadReply { rows: vec![], asked: Instant::now(), now: self.timeline.now() };
        Ok(together.unwrap_or_else(nothing))
    }

    async fn write(&self, changes: &[Change]) -> Result<WriteReply, StoreError> {
        let mut all = WriteReply::new(Vec::new(), Instant::now(), self.timeline.now());
        // Where etcd is full, ends pass and other changes do not.
        let is_full = self.is_full.load(Ordering::Relaxed);
        let parts = if is_full { changes.chunks(1).collect() } else { requests(changes) };
        let writings = join_all(parts.iter().map(|part| self.write_at_once(part))).await;
        if !is_full {
            return Ok(together(writings)?.unwrap_or(all));
        }
        for (place, writing) in writings.into_iter().enumerate() {
            let failed = |error| all.failed.push((place, error));
            all.versions.push(writing.map_err(failed).ok().and_then(|one| one.versions[0]));
        }
        Ok(all)
    }

    async fn write_all(&self, changes: &[Change]) -> Result<WriteReply, StoreError> {
        check_one_request(changes)?;
        let mut is_allowed = false;
        let request = || {
            let now = self.timeline.now();
            is_allowed = changes.iter().all(|change| change.guard.allows(now));
            if is_allowed { self.keys.write_all(changes) } else { self.keys.nothing() }
        };
        let (answer, header, asked) = self.cluster.call(request).await?;
        let now = self.note(header, asked);
        let is_done = is_allowed && answer.succeeded;
        let versions = changes.iter().map(|_| is_done.then(|| version(header.revision)));
        Ok(WriteReply::new(versions.collect(), asked, now))
    }

    async fn list(
        &self,
        prefix: &[u8],
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Listing, StoreError> {
        let kind = prefix.first().copied().unwrap_or_default();
        let width = locked(&self.widths).get(&kind).cloned().unwrap_or_default();
        let start = self.keys.range(prefix).key;
        let mut ranges = PageRanges::new(start, after.map(|key| self.keys.bytes(key)), width);
        let (mut rows, mut first) = (Vec::new(), None);
        while let (Some((key, range_end)), true) = (ranges.next(), rows.len() < limit) {
            let limit = i64::try_from(limit - rows.len()).unwrap_or(i64::MAX);
            let range = RangeRequest { key, range_end, limit };
            let (answer, header, asked) = self.cluster.call(|| range.clone()).await?;
            let now = self.note(header, asked);
            first.get_or_insert(now);
            let keys: Vec<_> = answer.kvs.iter().map(|kv| &*kv.key).collect();
            let count = usize::try_from(answer.count).unwrap_or_default();
            ranges.note((range.key, range.range_end), &keys, count);
            let found = answer.kvs.into_iter();
            rows.extend(found.filter_map(|kv| Some((self.keys.key(&kv.key)?, row(kv)))));
        }
        locked(&self.widths).insert(kind, ranges.into_width());
        Ok(Listing { rows, now: first.unwrap_or_else(|| self.timeline.now()) })
    }

    async fn remove(&self, rows: &[Removal]) -> Result<(), StoreError> {
        for rows in parts(rows) {
            let (_, header, asked) = self.cluster.call(|| self.keys.remove(rows)).await?;
            self.note(header, asked);
        }
        Ok(())
    }

    async fn marked(&self, after: Option<&Key>, limit: usize) -> Result<Vec<Key>, StoreError> {
        let range = self.keys.marks(after, limit);
        let (answer, header, asked) = self.cluster.call(|| range.clone()).await?;
        self.note(header, asked);
        let marks = answer.kvs.iter().filter_map(|kv| self.keys.marked_key(&kv.key));
        Ok(marks.collect())
    }

    fn notices(&self) -> BoxStream<'static, Notice> {
        subscription::notices(self.clone(), locked(&self.subscription).take())
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        health::health(self).await
    }

    fn profile(&self) -> StoreProfile {
        StoreProfile::new("etcd", txn::LIMITS)
    }

    fn timeline(&self) -> Option<&Timeline> {
        Some(&self.timeline)
    }
}

/// What became of a batch that went in several requests. If one of them failed and another did not,
/// it is not known of the batch whether it was carried out.
fn together(
    writings: Vec<Result<WriteReply, StoreError>>,
) -> Result<Option<WriteReply>, StoreError> {
    let (mut all, mut failure): (Option<WriteReply>, Option<StoreError>) = (None, None);
    for writing in writings {
        match (writing, &mut all) {
            (Ok(writing), None) => all = Some(writing),
            (Ok(writing), Some(all)) => {
                all.versions.extend(writing.versions);
                all.now = all.now.max(writing.now);
            }
            (Err(error), _) if error.effect() == Effect::Unknown || failure.is_none() => {
                failure = Some(error);
            }
            (Err(_), _) => {}
        }
    }
    match (failure, all) {
        (None, all) => Ok(all),
        (Some(failure), None) => Err(failure),
        (Some(failure), Some(_)) => Err(StoreError::Lost(failure.into())),
    }
}
