//! The default store: locks and records in one process, on disk before they are answered.
//!
//! The [`Table`] in memory serves refusals and reads: not that of a long response, which stays on
//! disk (`answers.rs`), and not what depends on an end by time that is not on disk yet. A change
//! goes to the writer (`writer.rs`), which runs a batch of commands against the table, writes one
//! transaction, syncs once, and only then makes it the table's and answers. Invariant: the table
//! never says what the disk does not. While that is in doubt, after a failed commit, everything
//! goes through the writer, which settles the doubt first.
//!
//! What a restart forgets is a rule of this store (`row.rs`): queues, because the waiters went away
//! with the process, and how much of a lease is left, because no clock that runs while the process
//! is away can be trusted. The tests `embedded`, `kills` and the fault disk hold all this.

mod answers;
mod batch;
mod directory;
mod engine;
mod row;
mod snapshot;
mod tables;
#[cfg(feature = "test-medium")]
pub mod test_medium;
mod writer;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::task::yield_now;
use tokio_util::task::AbortOnDropHandle;

use crate::error::OpenError;
use crate::settings::Settings;
use crate::sweeper::{self, Sweeper};
use crate::table::{Refusal, Sweep, Table};
use batch::SweptKeys;
use directory::{Directory, Medium};
use engine::Engine;
use keylatch_core::idempotency::{RecordState, RecordSummary};
use keylatch_core::lock::{Holding, LockState};
use keylatch_core::store::{
    Backup, Command, EntryLimits, Hints, ListLocks, ListRecords, Page, Reply, Store, StoreError,
    StoreGauges, StoreHealth, StoreProfile, Tier, Topic,
};
use writer::Writer;

/// From how many expired entries on one transaction removes them from the disk. Requests wait for
/// it.
const SWEEP_BATCH: usize = 1024;
/// How often the age of a record is written down within its retention, and how long is between two
/// times at least.
const AGE_STEPS: u32 = 96;
const SHORTEST_STEP: Duration = Duration::from_secs(60);

/// Opens the store in the directory `path`, which is created if it is not there.
///
/// A lease that was valid when the last process ended lasts its full TTL again from now. It has to
/// be called within a tokio runtime that has I/O and time enabled.
///
/// # Errors
///
/// The directory cannot be used or another process has it; the file in it is damaged, or another
/// version wrote it.
pub async fn embedded(path: &Path) -> Result<Arc<dyn Store>, OpenError> {
    // Absolute, so that a reader of a log or an error knows where it is.
    let path = std::path::absolute(path)
        .map_err(|source| OpenError::Directory { path: path.to_owned(), source })?;
    let directory = path.clone();
    let opening = tokio::task::spawn_blocking(move || {
        let medium = Directory::lock(&path)?.medium()?;
        let mut store = Embedded::open(medium, path.clone())?;
        store.id = own_id(&path);
        Ok(store)
    });
    let opened = opening.await.unwrap_or_else(|panic| {
        Err(OpenError::Directory { path: directory, source: io::Error::other(panic) })
    });
    let mut store = opened?;
    store.sweeper = Some(sweeper::start(store.sweeper()));
    Ok(Arc::new(store))
}

pub(crate) async fn open(url: &str, _: Settings<'_>) -> Result<Arc<dyn Store>, OpenError> {
    embedded(directory_of(url)?).await
}

pub(crate) fn check(url: &str, _: Settings<'_>) -> Result<(), OpenError> {
    directory_of(url).map(drop)
}

fn directory_of(url: &str) -> Result<&Path, OpenError> {
    let directory = url.strip_prefix("embedded:").filter(|directory| !directory.is_empty());
    directory.map(Path::new).ok_or(OpenError::NoDirectory)
}

/// Which store it is. A disk that has no room for that may have some for a lock all the same.
fn own_id(path: &Path) -> Option<String> {
    let id = directory::own_text(path, directory::ID);
    let id = id.inspect_err(|error| tracing::warn!(%error, "the store has no id"));
    id.ok().and_then(|id| String::from_utf8(id).ok())
}

/// The secret in the directory of a store that is open.
pub(super) fn own_secret(path: &Path) -> Result<Vec<u8>, OpenError> {
    directory::own_text(path, directory::SECRET)
        .map_err(|source| OpenError::Directory { path: path.to_owned(), source })
}

/// A [`Store`] on a medium, be it a file or a test's.
#[derive(Debug)]
struct Embedded {
    /// Which store it is; `None` on a medium of a test.
    id: Option<String>,
    table: Arc<Table>,
    writer: Arc<Writer>,
    /// Sweeps for as long as the store lives.
    sweeper: Option<AbortOnDropHandle<()>>,
}

impl Embedded {
    fn open(medium: Medium, path: PathBuf) -> Result<Self, OpenError> {
        let (engine, table, (locks, records)) = Engine::open(medium)?;
        tracing::info!(directory = %path.display(), locks, records, "locks are kept on disk");
        let table = Arc::new(table);
        let writer = Writer::start(Arc::clone(&table), engine)
            .map_err(|source| OpenError::Directory { path, source })?;
        Ok(Self { id: None, table, writer: Arc::new(writer), sweeper: None })
    }

    fn sweeper(&self) -> EmbeddedSweeper {
        EmbeddedSweeper {
            table: Arc::clone(&self.table),
            writer: Arc::downgrade(&self.writer),
            aged_until: self.table.now(),
        }
    }
}

/// Removes what has expired, from memory and disk. It owns the writer for a sweep and no longer,
/// because a store that is dropped closes its file at once, and its task ends later.
#[derive(Debug)]
struct EmbeddedSweeper {
    table: Arc<Table>,
    writer: Weak<Writer>,
    /// Until when the ages of records are written down.
    aged_until: Duration,
}

/// Whether the outcome of a record became older by a step of its retention between two moments.
fn has_aged(state: &RecordState, from: Duration, to: Duration) -> bool {
    let Some((record, lasts)) = state.record().zip(state.retention()) else { return false };
    let step = (lasts / AGE_STEPS).max(SHORTEST_STEP).as_millis();
    let steps = |now: Duration| now.saturating_sub(record.since).as_millis() / step;
    steps(from) < steps(to)
}

/// Writes down what a sweep has found, if that is enough for a transaction, and lets other tasks
/// in.
async fn write_down(writer: &Writer, swept: &mut SweptKeys) -> Result<(), StoreError> {
    if swept.len() >= SWEEP_BATCH {
        writer.sweep(std::mem::take(swept)).await?;
    }
    yield_now().await;
    Ok(())
}

impl Sweeper for EmbeddedSweeper {
    async fn sweep(&mut self, records: bool) -> Result<usize, StoreError> {
        let Some(writer) = self.writer.upgrade() else { return Ok(0) };
        let (table, mut swept) = (&self.table, SweptKeys::default());
        let (from, to) = (self.aged_until, table.now());
        let mut locks = Sweep::<LockState>::default();
        while table.find_expired(&mut locks, &mut swept.locks) {
            write_down(&writer, &mut swept).await?;
        }
        let mut of_records = Sweep::<RecordState>::default();
        while records && table.find_expired(&mut of_records, &mut swept.records) {
            write_down(&writer, &mut swept).await?;
        }
        let (mut of_ages, aged) = (Sweep::default(), |state: &_| has_aged(state, from, to));
        while records && table.find(&mut of_ages, &mut swept.aged, aged) {
            write_down(&writer, &mut swept).await?;
        }
        if swept.len() > 0 {
            writer.sweep(swept).await?;
        }
        if records {
            self.aged_until = to;
        }
        // Step by step, so that changes come in between.
        while writer.compact().await? {}
        Ok(locks.looks() + of_records.looks() + of_ages.looks())
    }
}

#[async_trait]
impl Store for Embedded {
    /// Answers from memory what changes nothing and shows no response that is on disk. While the
    /// table may lack what the disk has, everything goes to the writer, which settles that first.
    /// So does what depends on an end that nobody has written down yet: a batch that is on its way
    /// may have been before it. The disk keeps the end then, if it can keep anything.
    async fn execute(&self, command: Command) -> Result<Reply, StoreError> {
        let may_refuse = self.writer.is_certain() && !command.is_undo();
        match may_refuse.then(|| self.table.refuse(&command)).flatten() {
            None => self.writer.run(command).await,
            Some(Refusal { has_lapsed: true, .. }) => {
                match self.writer.run(command.clone()).await {
                    Err(error @ StoreError::Refused(_)) => {
                        self.table.refuse(&command).map(|refusal| refusal.reply).ok_or(error)
                    }
                    answer => answer,
                }
            }
            Some(Refusal { reply, .. }) => match (command, reply) {
                (Command::Record(key, command), Reply::Record(reply)) if reply.has_stub() => {
                    self.writer.read(key, command).await
                }
                (_, reply) => Ok(reply),
            },
        }
    }

    async fn list_locks(&self, query: &ListLocks) -> Result<Option<Page<Holding>>, StoreError> {
        self.writer.be_certain().await?;
        Ok(self.table.list(query))
    }

    async fn list_records(
        &self,
        query: &ListRecords,
    ) -> Result<Option<Page<RecordSummary>>, StoreError> {
        self.writer.be_certain().await?;
        Ok(self.table.list_records(query))
    }

    fn subscribe(&self, topic: Topic) -> Hints {
        self.table.subscribe(topic)
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        self.writer.probe().await?;
        let facts = BTreeMap::from([("instances", "1".to_owned())]);
        let (id, advice) = (self.id.clone(), Vec::new());
        Ok(StoreHealth { id, tier: Tier::Strict, facts, advice, is_full: false })
    }

    async fn back_up(&self) -> Result<Backup, StoreError> {
        Ok(self.writer.copy().await?.into_backup())
    }

    fn profile(&self) -> StoreProfile {
        StoreProfile::new("embedded", EntryLimits::NONE)
    }

    fn gauges(&self) -> StoreGauges {
        StoreGauges { is_alive: self.writer.is_alive(), ..self.table.gauges() }
    }
}
