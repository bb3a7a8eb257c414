//! Locks and records in PostgreSQL, shared by all keylatch instances that use the table.
//!
//! The adapter over conditional writes runs the rules (`optimistic`); this is its engine: one
//! table, one upsert for a batch (`sql.rs`), a connection each for locks, sets of locks, records
//! and reads (`link.rs`), and one that listens for what other instances change. The server's clock
//! judges every end. The table is made at start, if the role may; one that is there stays as it is.

mod failure;
mod health;
mod link;
mod sql;
mod url;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use keylatch_core::store::{EntryLimits, Store, StoreError, StoreHealth, StoreProfile};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_postgres::{Config, Row};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::conn::locked;
use crate::conn::subscription::{self, Source};
use crate::error::OpenError;
use crate::optimistic::conditional::{
    Change, ConditionalStore, Key, Listing, Notice, ReadReply, Removal, WriteReply, end_of_prefix,
};
use crate::optimistic::optimistic;
use crate::settings::Settings;
use failure::is_refusal;
use link::{Link, Session, Values};
use sql::{
    CREATION_LOCK, Sql, Statement, WriteColumns, column_of, get, parse_announcement, rows_of,
    time_of, version_of,
};
use url::{Address, connector};

/// After how long without an announcement the server is asked whether it is still the right one.
const SILENCE: Duration = Duration::from_secs(5);
/// How many announcements wait for the task that hears them.
const ANNOUNCEMENTS: usize = 1024;

/// Opens the PostgreSQL at `url`.
///
/// # Errors
///
/// `url` is not understood, or the server answers and is not fit: the role may neither use the
/// table nor make it. A server that does not answer is no error: the store keeps trying.
pub(crate) async fn open(url: &str, settings: Settings<'_>) -> Result<Arc<dyn Store>, OpenError> {
    let settings = settings.postgres;
    let address = Address::parse(url)?;
    let tls = address.security.as_ref().map(connector).transpose()?;
    let target = Arc::new(Target {
        hosts: address.hosts,
        tls,
        sql: Sql::new(&settings.schema),
        connect_limit: Duration::from_millis(settings.connect_timeout_ms),
        is_prepared: AtomicBool::new(false),
    });
    let (sender, announcements) = mpsc::channel(ANNOUNCEMENTS);
    let mut subscription = None;
    // Before the first watch, so that no change is missed because the store is new.
    let listening = async {
        let session = target.listen(sender).await?;
        target.prepare(&session).await.map(|()| session)
    };
    match listening.await {
        Ok(session) => subscription = Some(Subscription { session, announcements }),
        Err(error) if is_refusal(&error) => {
            return Err(OpenError::Unfit("PostgreSQL", error.cause()));
        }
        Err(error) => tracing::warn!(error = error.cause(), "PostgreSQL cannot be reached yet"),
    }
    let link = || Link::new(&target);
    Ok(optimistic(Postgres {
        lock_writer: link(),
        set_writer: link(),
        record_writer: link(),
        reader: link(),
        subscription: Mutex::new(subscription),
        target: Arc::clone(&target),
    }))
}

/// Checks a URL and the files that it names.
pub(crate) fn check(url: &str, _: Settings<'_>) -> Result<(), OpenError> {
    Address::parse(url)?.security.as_ref().map(connector).transpose().map(drop)
}

/// What connections are made to.
struct Target {
    /// How to connect to each host.
    hosts: Vec<Config>,
    tls: Option<MakeRustlsConnect>,
    sql: Sql,
    connect_limit: Duration,
    /// The table was seen.
    is_prepared: AtomicBool,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").finish_non_exhaustive()
    }
}

/// Why the table cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the role may neither use nor make the table of locks; an administrator runs {grants}")]
struct NoTable {
    grants: String,
    source: Option<StoreError>,
}

/// The table is not one that this version makes.
const OTHER_TABLE: &str = "the table `entries` has other columns or another index than the one that this version of \
     keylatch makes; set postgres.schema to another schema, or drop the table once every lease in \
     it has surely ended";

impl Target {
    /// Makes the table, unless it is there.
    async fn prepare(&self, session: &Session) -> Result<(), StoreError> {
        if self.is_prepared.load(Ordering::Acquire) {
            return Ok(());
        }
        let no_table = |source| {
            StoreError::Refused(NoTable { grants: self.sql.grants.clone(), source }.into())
        };
        let found = session.row(&self.sql.check).await?;
        if !get::<bool>(&found, 1)? {
            let schema = if get(&found, 0)? { "" } else { &*self.sql.create_schema };
            let created = [CREATION_LOCK, schema, &self.sql.create_table].concat();
            match session.run(&created).await {
                Ok(()) => {}
                Err(error @ StoreError::Refused(_)) => return Err(no_table(Some(error))),
                Err(error) => return Err(error),
            }
        }
        let found = session.row(&self.sql.check).await?;
        if !get::<bool>(&found, 2)? {
            return Err(no_table(None));
        }
        if !get::<bool>(&found, 3)? {
            return Err(StoreError::Refused(OTHER_TABLE.into()));
        }
        self.is_prepared.store(true, Ordering::Release);
        Ok(())
    }
}

#[derive(Debug)]
struct Postgres {
    target: Arc<Target>,
    lock_writer: Link,
    /// Of the changes that go together.
    set_writer: Link,
    record_writer: Link,
    reader: Link,
    /// The subscription that was made when the store was opened, until it is used.
    subscription: Mutex<Option<Subscription>>,
}

impl Postgres {
    /// Carries changes out by a statement; `None` where it undid itself.
    async fn write_on(
        &self,
        link: &Link,
        statement: &Statement,
        changes: &[Change],
    ) -> Result<Option<WriteReply>, StoreError> {
        let versions = changes.iter().map(|_| random_version()).collect::<Result<Vec<_>, _>>()?;
        let columns = WriteColumns::new(changes, versions);
        let WriteColumns { keys, versions, was, values, since, until, say, finished } = &columns;
        let values: &Values<'_> = &[keys, versions, was, values, since, until, say, finished];
        link.session().await?;
        let asked = Instant::now();
        let read = |rows: &[Row]| {
            let Some(row) = rows.first() else { return Ok(None) };
            let written: HashSet<Vec<u8>> = get::<Vec<_>>(row, 1)?.into_iter().collect();
            let versions = keys
                .iter()
                .zip(versions)
                .map(|(key, version)| written.contains(key).then(|| version_of(*version)));
            let (versions, now) = (versions.collect(), time_of(get(row, 0)?));
            Ok(Some(WriteReply::new(versions, asked, now)))
        };
        link.query(statement, values, read).await
    }
}

#[async_trait]
impl ConditionalStore for Postgres {
    async fn read(&self, keys: &[Key]) -> Result<ReadReply, StoreError> {
        let bytes: Vec<_> = keys.iter().map(Key::to_bytes).collect();
        self.reader.session().await?;
        let asked = Instant::now();
        let (found, now) = self.reader.query(&self.target.sql.read, &[&bytes], rows_of).await?;
        let mut found: HashMap<_, _> = found.into_iter().collect();
        Ok(ReadReply { rows: bytes.iter().map(|key| found.remove(key)).collect(), asked, now })
    }

    async fn write(&self, changes: &[Change]) -> Result<WriteReply, StoreError> {
        let link = match changes.first().map(|change| &change.key) {
            Some(Key::Record(_)) => &self.record_writer,
            _ => &self.lock_writer,
        };
        let writing = self.write_on(link, &self.target.sql.write, changes).await?;
        writing.ok_or_else(|| StoreError::Lost("the batch had no answer".into()))
    }

    async fn write_all(&self, changes: &[Change]) -> Result<WriteReply, StoreError> {
        let asked = Instant::now();
        let writing = self.write_on(&self.set_writer, &self.target.sql.write_all, changes).await?;
        let nothing = || vec![None; changes.len()];
        Ok(writing.unwrap_or_else(|| WriteReply::new(nothing(), asked, Duration::ZERO)))
    }

    async fn list(
        &self,
        prefix: &[u8],
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Listing, StoreError> {
        let (end, after) = (end_of_prefix(prefix), after.map(Key::to_bytes).unwrap_or_default());
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let values: &Values<'_> = &[&prefix, &end, &after, &limit];
        let (found, now) = self.reader.query(&self.target.sql.list, values, rows_of).await?;
        let rows = found.into_iter().filter_map(|(key, row)| Some((Key::from_bytes(&key)?, row)));
        Ok(Listing { rows: rows.collect(), now })
    }

    async fn remove(&self, rows: &[Removal]) -> Result<(), StoreError> {
        let keys: Vec<_> = rows.iter().map(|row| row.key.to_bytes()).collect();
        let versions: Vec<_> = rows.iter().map(|row| column_of(row.version)).collect();
        self.reader.query(&self.target.sql.remove, &[&keys, &versions], |_| Ok(())).await
    }

    async fn marked(&self, after: Option<&Key>, limit: usize) -> Result<Vec<Key>, StoreError> {
        let after = after.map(Key::to_bytes).unwrap_or_default();
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let values: &Values<'_> = &[&after, &limit];
        let (found, _) = self.reader.query(&self.target.sql.marked, values, rows_of).await?;
        Ok(found.into_iter().filter_map(|(key, _)| Key::from_bytes(&key)).collect())
    }

    fn notices(&self) -> BoxStream<'static, Notice> {
        let live = locked(&self.subscription).take();
        subscription::notices(Arc::clone(&self.target), live)
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        health::health(&self.reader).await
    }

    fn profile(&self) -> StoreProfile {
        StoreProfile::new("postgres", EntryLimits::NONE)
    }
}

/// What other instances announce, for as long as the session lives.
#[derive(Debug)]
struct Subscription {
    session: Session,
    announcements: mpsc::Receiver<String>,
}

impl Subscription {
    /// The next announcement; `None` where this server announces nothing any more.
    async fn next(&mut self) -> Option<String> {
        loop {
            match timeout(SILENCE, self.announcements.recv()).await {
                Ok(announcement) => return announcement,
                // It is quiet, or the server is stopped or takes no writes, and they go to another.
                Err(_) if self.session.takes_writes().await => {}
                Err(_) => return None,
            }
        }
    }
}

impl Source for Arc<Target> {
    type Subscription = Subscription;

    async fn subscribe(&self) -> Result<Subscription, String> {
        let (sender, announcements) = mpsc::channel(ANNOUNCEMENTS);
        let session = self.listen(sender).await.map_err(|error| error.cause())?;
        Ok(Subscription { session, announcements })
    }

    async fn hear(&self, subscription: &mut Subscription) -> Option<Vec<Notice>> {
        Some(parse_announcement(&subscription.next().await?))
    }
}

/// A version that no other value has: 63 random bits, and never 0, which stands for no row.
fn random_version() -> Result<i64, StoreError> {
    let random = getrandom::u64().map_err(|error| StoreError::Unreachable(error.into()))?;
    Ok((random >> 1).max(1).cast_signed())
}
