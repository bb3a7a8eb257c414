//! Locks and records in a ZooKeeper ensemble, shared by all keylatch instances below one node.
//!
//! The adapter over conditional writes runs the rules (`optimistic`); this is its engine. Each row
//! is a node (`tree.rs`), each change one conditional request, and all requests are pipelined on
//! one session (`session.rs`). ZooKeeper tells no time, so every process judges ends on its own
//! timeline of the ensemble's transactions (`notices.rs`). No ephemeral node and no sequence is
//! used: a lock's queue is in its row, and a lease is bound to no session.
//!
//! A node without data is no row. So the floors are made empty at start, and "no floor yet" is the
//! data version 0, which a creation can check; and a row is emptied before its node is deleted
//! (`graves.rs`).

mod failure;
mod graves;
mod health;
mod notices;
mod session;
mod tls;
mod tree;
mod url;
mod write;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{join_all, try_join_all};
use futures_util::stream::BoxStream;
use keylatch_core::store::{Effect, EntryLimits, Store, StoreError, StoreHealth, StoreProfile};
use tokio::time::Instant;
use zookeeper_client::{Client, Error};

use crate::conn::{locked, subscription};
use crate::error::OpenError;
use crate::optimistic::conditional::{
    Change, ConditionalStore, Key, Listing, Notice, ReadReply, Removal, Row, Timeline, Version,
    WriteReply,
};
use crate::optimistic::optimistic;
use crate::settings::Settings;
use failure::classify;
use graves::Graves;
use notices::Watch;
use session::{Link, Session};
use tree::{Tree, version_in};
use url::Address;

/// A value of that many bytes fits into a request of 1 MiB, which is what a member takes by default
/// and what a larger one would end the connection for.
const LIMITS: EntryLimits =
    EntryLimits { bytes: 1_000_000, waiters: 1000, answer_bytes: 512 * 1024 };
/// How many bytes a change has in a request around its value, at most: its path, that of its floor,
/// versions.
const AROUND: usize = 600;
/// How many batches are pipelined on the session at once.
const WRITES_AT_ONCE: usize = 64;
/// How many rows a listing asks for at once: a session's requests are answered in their order, so a
/// step on a lock waits behind them.
const ROWS_AT_ONCE: usize = 128;
/// How many buckets a listing looks into at once, at most.
const BUCKETS_AT_ONCE: usize = 64;

/// Opens the ensemble at `url`.
///
/// # Errors
///
/// `url` is not understood, or the ensemble answers and is not fit: it is too old, or its user may
/// not use the node. An ensemble that does not answer is no error: the store keeps trying.
pub(crate) async fn open(url: &str, settings: Settings<'_>) -> Result<Arc<dyn Store>, OpenError> {
    let address = Address::parse(url)?;
    let limit = Duration::from_millis(settings.zookeeper.connect_timeout_ms);
    let link = Link::new(address, limit).await?;
    // Before the first watch, so that no change is missed because the store is new.
    let at_start = match link.session_at_start().await {
        Ok(session) => Some(session),
        Err(error @ StoreError::Refused(_)) => {
            return Err(OpenError::Unfit("ZooKeeper", why_unfit(&error, &link.members.tree)));
        }
        Err(error) => {
            tracing::warn!(error = error.cause(), "ZooKeeper cannot be reached yet");
            None
        }
    };
    if at_start.is_some() {
        for advice in health::health(&link.members.hosts).await.advice {
            tracing::warn!("{advice}");
        }
    }
    let graves = Graves::default();
    let at_start = Mutex::new(at_start);
    Ok(optimistic(ZooKeeper { link: Arc::new(link), graves, at_start }))
}

/// Checks a URL and the file that it names.
pub(crate) fn check(url: &str, _: Settings<'_>) -> Result<(), OpenError> {
    Address::parse(url)?.security.as_ref().map(tls::connector).transpose().map(drop)
}

/// What an administrator does about an ensemble that refuses to be used.
fn why_unfit(error: &StoreError, Tree { root }: &Tree) -> String {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<Error>());
    match source {
        Some(Error::NoAuth | Error::InvalidAcl) => format!(
            "the user may neither use nor make the node {root}; an administrator runs create {root} \"\" \
             auth:USER:PASSWORD:crdwa, or setAcl -R {root} auth:USER:PASSWORD:crdwa where it is there, \
             after addauth digest USER:PASSWORD"
        ),
        Some(Error::Unimplemented) => "it is older than 3.6".to_owned(),
        _ => error.cause(),
    }
}

#[derive(Debug)]
struct ZooKeeper {
    link: Arc<Link>,
    graves: Graves,
    /// The session that was made when the store was opened, until its watch is used.
    at_start: Mutex<Option<Arc<Session>>>,
}

/// The row of a node, unless the node is not there.
async fn node(client: &Client, path: &str) -> Result<Option<Row>, StoreError> {
    match client.get_data(path).await {
        Ok((value, stat)) => Ok(Some(Row { version: version_in(&stat), value })),
        Err(Error::NoNode) => Ok(None),
        Err(error) => Err(classify(error)),
    }
}

impl ZooKeeper {
    /// The rows of keys, as new as what was answered before. A node without data is no row.
    async fn rows(&self, session: &Session, keys: &[Key]) -> Result<Vec<Option<Row>>, StoreError> {
        let Link { members, timeline, .. } = &*self.link;
        let paths: Vec<_> = keys.iter().map(|key| members.tree.node(key)).collect();
        let nodes = try_join_all(paths.iter().map(|path| node(&session.client, path))).await?;
        let rows = keys.iter().zip(nodes).map(|(key, node)| {
            let row = node?;
            let is_row = !row.value.is_empty();
            if !is_row && !matches!(key, Key::Floor(_)) {
                self.graves.note(key.clone(), row.version);
            }
            is_row.then_some(row)
        });
        let rows: Vec<_> = rows.collect();
        if let Some(latest) = rows.iter().flatten().map(|row| row.version).max() {
            timeline.note(latest);
        }
        Ok(rows)
    }

    /// Waits until the member of this session has what the leader has.
    async fn sync(&self, session: &Session) -> Result<(), StoreError> {
        session.client.sync(&self.link.members.tree.root).await.map_err(classify)
    }

    /// The keys of some buckets of a kind of nodes that begin with `prefix`, bucket by bucket, in
    /// the order of their bytes.
    async fn keys_in(
        &self,
        session: &Session,
        buckets: impl Iterator<Item = u8>,
        nodes: char,
        prefix: &[u8],
    ) -> Result<Vec<Key>, StoreError> {
        let Some(kind) = prefix.first().copied().map(char::from) else { return Ok(Vec::new()) };
        let parents: Vec<_> =
            buckets.map(|bucket| self.link.members.tree.bucket(nodes, bucket)).collect();
        let listing = parents.iter().map(|parent| session.client.list_children(parent));
        let mut found = Vec::new();
        for names in join_all(listing).await {
            let names = match names {
                Err(Error::NoNode) => Vec::new(),
                names => names.map_err(classify)?,
            };
            let keys = names.iter().filter_map(|name| Tree::key_in(kind, name));
            let mut keys: Vec<_> = keys.filter(|key| key.to_bytes().starts_with(prefix)).collect();
            keys.sort_unstable();
            found.extend(keys);
        }
        Ok(found)
    }

    async fn listing(
        &self,
        session: &Session,
        prefix: &[u8],
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Listing, StoreError> {
        self.bury(session).await?;
        let now = self.link.timeline.now();
        self.sync(session).await?;
        let kind = prefix.first().copied().map_or('l', char::from);
        let mut rows = Vec::new();
        let (mut next, mut at_once) = (after.map_or(0, |key| usize::from(key.bucket())), 1);
        while next <= usize::from(u8::MAX) && rows.len() < limit {
            let buckets = (next..next + at_once).filter_map(|bucket| u8::try_from(bucket).ok());
            let mut keys = self.keys_in(session, buckets, kind, prefix).await?;
            let is_next =
                |key: &Key| after.is_none_or(|after| (key.bucket(), key) > (after.bucket(), after));
            keys.retain(is_next);
            for some in keys.chunks(ROWS_AT_ONCE.min(limit)) {
                let found = self.rows(session, some).await?;
                let found =
                    some.iter().zip(found).filter_map(|(key, row)| Some((key.clone(), row?)));
                rows.extend(found);
                if rows.len() >= limit {
                    break;
                }
            }
            (next, at_once) = (next + at_once, (2 * at_once).min(BUCKETS_AT_ONCE));
        }
        rows.truncate(limit);
        Ok(Listing { rows, now })
    }

    async fn marked_keys(
        &self,
        session: &Session,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Key>, StoreError> {
        self.sync(session).await?;
        let mut found = Vec::new();
        let (mut next, mut at_once) = (after.map_or(0, |key| usize::from(key.bucket())), 1);
        while next <= usize::from(u8::MAX) && found.len() < limit {
            let buckets = (next..next + at_once).filter_map(|bucket| u8::try_from(bucket).ok());
            let keys = self.keys_in(session, buckets, 'm', Key::RECORDS).await?;
            // The first byte of a record's key is its bucket.
            found.extend(keys.into_iter().filter(|key| after.is_none_or(|after| key > after)));
            (next, at_once) = (next + at_once, (2 * at_once).min(BUCKETS_AT_ONCE));
        }
        found.truncate(limit);
        Ok(found)
    }
}

/// The versions of a batch. A change that failed fails all of them, and then nothing counts as not
/// executed of which something was, or may have been.
fn whole(
    results: Vec<Result<Option<Version>, StoreError>>,
) -> Result<Vec<Option<Version>>, StoreError> {
    let is_untouched = results.iter().all(|result| match result {
        Ok(version) => version.is_none(),
        Err(error) => error.effect() == Effect::NotExecuted,
    });
    results.into_iter().collect::<Result<_, _>>().map_err(|error| match is_untouched {
        true => error,
        false => StoreError::Lost(error.into()),
    })
}

#[async_trait]
impl ConditionalStore for ZooKeeper {
    async fn read(&self, keys: &[Key]) -> Result<ReadReply, StoreError> {
        let session = self.link.session().await?;
        let (asked, now) = (Instant::now(), self.link.timeline.now());
        let reading = async {
            // It is sent here, and the reads behind it: a session's requests are answered in their
            // order.
            let synced = session.client.sync(&self.link.members.tree.root);
            let rows = self.rows(&session, keys).await;
            synced.await.map_err(classify)?;
            rows
        };
        let rows = self.link.answer(&session, reading).await?;
        Ok(ReadReply { rows, asked, now })
    }

    /// What the member of this session has, without a word of the leader.
    async fn peek(&self, keys: &[Key]) -> Result<ReadReply, StoreError> {
        let session = self.link.session().await?;
        let (asked, now) = (Instant::now(), self.link.timeline.now());
        let rows = self.link.answer(&session, self.rows(&session, keys)).await?;
        Ok(ReadReply { rows, asked, now })
    }

    async fn write(&self, changes: &[Change]) -> Result<WriteReply, StoreError> {
        let session = self.link.session().await?;
        let asked = Instant::now();
        let writing = changes.iter().map(|change| self.carry_out(&session, change));
        let writing = async { whole(join_all(writing).await) };
        let versions = self.link.answer(&session, writing).await?;
        Ok(WriteReply::new(versions, asked, self.link.timeline.now()))
    }

    async fn write_all(&self, changes: &[Change]) -> Result<WriteReply, StoreError> {
        let (bytes, limit) =
            (changes.iter().map(|change| change.value.len() + AROUND).sum(), LIMITS.bytes);
        if bytes > limit {
            return Err(StoreError::TooLarge { bytes, limit });
        }
        let session = self.link.session().await?;
        let asked = Instant::now();
        let versions = self.carry_out_all(&session, changes).await?;
        let versions = match versions {
            Some(versions) => versions.into_iter().map(Some).collect(),
            None => vec![None; changes.len()],
        };
        Ok(WriteReply::new(versions, asked, self.link.timeline.now()))
    }

    /// The order is that of the buckets, and within a bucket that of the keys. So a page costs the
    /// names of the buckets that it looks into, and not of all.
    async fn list(
        &self,
        prefix: &[u8],
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Listing, StoreError> {
        let session = self.link.session().await?;
        self.link.answer(&session, self.listing(&session, prefix, after, limit)).await
    }

    async fn remove(&self, rows: &[Removal]) -> Result<(), StoreError> {
        let session = self.link.session().await?;
        self.link.answer(&session, self.empty(&session, rows)).await
    }

    /// A page costs the names of the buckets that it looks into, as of a listing.
    async fn marked(&self, after: Option<&Key>, limit: usize) -> Result<Vec<Key>, StoreError> {
        let session = self.link.session().await?;
        self.link.answer(&session, self.marked_keys(&session, after, limit)).await
    }

    fn notices(&self) -> BoxStream<'static, Notice> {
        let at_start = locked(&self.at_start).take();
        subscription::notices(Arc::clone(&self.link), at_start.and_then(Watch::of))
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        let session = self.link.session().await?;
        self.link.answer(&session, self.sync(&session)).await?;
        Ok(health::health(&self.link.members.hosts).await)
    }

    fn profile(&self) -> StoreProfile {
        StoreProfile::new("zookeeper", LIMITS)
    }

    fn timeline(&self) -> Option<&Timeline> {
        Some(&self.link.timeline)
    }

    /// Each change is a request of its own in any case.
    fn writes_at_once(&self) -> usize {
        WRITES_AT_ONCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_of_which_something_was_done_is_not_called_undone() {
        let refused = || Err(StoreError::Refused(Error::NoAuth.into()));
        let effect = |results| whole(results).map_err(|error| error.effect());
        assert_eq!(effect(vec![Ok(None), refused()]), Err(Effect::NotExecuted));
        assert_eq!(effect(vec![refused(), Ok(Some(Version(1)))]), Err(Effect::Unknown));
        let lost = Err(StoreError::Lost(Error::ConnectionLoss.into()));
        assert_eq!(effect(vec![refused(), lost]), Err(Effect::Unknown));
        assert_eq!(effect(vec![Ok(None), Ok(Some(Version(1)))]), Ok(vec![None, Some(Version(1))]));
    }
}
