//! The default store: locks and records in one process, on disk before they are answered.
//!
//! The [`Table`] in memory serves every read and every refusal. A change goes to the writer, one
//! thread that takes all that waits, runs it against the table, writes one transaction, syncs once,
//! and only then makes it the table's and answers. So the table never says what the disk does not.

mod answers;
mod awake;
mod directory;
mod engine;
#[cfg(test)]
mod faults;
mod job;
mod log;
mod record_row;
mod records;
mod row;
mod tables;
mod writer;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;

use super::OpenError;
use super::table::Table;
use directory::Directory;
use engine::{Engine, Medium, Take};
use job::Durable;
use keylatch_core::idempotency::{self, RecordKey, RecordState};
use keylatch_core::lock::{
    Acquire, Acquisition, Attempt, Changes, Command, Holder, ListLocks, LockName, LockState,
    LockStore, Moment, Page, Peek, Record, Release, Renew, Renewal, Return, StoreError,
    StoreHealth, Tier, TokenHash, Ttl, Turn, Withdraw,
};
use writer::Writer;

/// How many expired locks one transaction takes off the disk.
const SWEEP_BATCH: usize = 4096;

/// A [`LockStore`] in a directory of its own.
#[derive(Debug)]
pub struct EmbeddedStore {
    table: Arc<Table>,
    writer: Writer,
    path: PathBuf,
}

impl EmbeddedStore {
    /// Opens the store in `path`, which is created if it is not there.
    ///
    /// A lease that was valid when the last process ended lasts its full TTL again from now.
    /// The runtime has to have I/O and time enabled.
    ///
    /// # Errors
    ///
    /// The directory cannot be used or another process has it; the file in it is damaged, or was
    /// written by a newer version.
    pub async fn open(path: &Path) -> Result<Self, OpenError> {
        // Absolute, so that whoever reads it in a log or an error knows where it is.
        let path = std::path::absolute(path)
            .map_err(|source| OpenError::Directory { path: path.to_owned(), source })?;
        let directory = path.clone();
        let opening = tokio::task::spawn_blocking(move || {
            let medium = Directory::lock(&path)?.medium();
            Self::on(medium, path)
        });
        opening.await.unwrap_or_else(|panic| {
            Err(OpenError::Directory { path: directory, source: io::Error::other(panic) })
        })
    }

    /// The store on a medium, be it a file or a test's.
    fn on(medium: Medium, path: PathBuf) -> Result<Self, OpenError> {
        let mut engine = Engine::open(medium)?;
        let table = Table::new(engine.fence_limit());
        let (locks, records) = engine.load(&mut Restore(&table))?;
        tracing::info!(directory = %path.display(), locks, records, "locks are kept on disk");
        let table = Arc::new(table);
        let writer = Writer::start(Arc::clone(&table), engine)
            .map_err(|source| OpenError::Directory { path: path.clone(), source })?;
        Ok(Self { table, writer, path })
    }

    /// Answers from memory what changes nothing, and from the disk what does. While the table may
    /// lack what the disk has, everything goes to the writer, which settles that first.
    async fn run<E, O, F>(&self, key: &E::Key, rule: F) -> Result<O, StoreError>
    where
        E: Durable,
        O: Send + 'static,
        F: Fn(&E, &Moment) -> (E, O) + Send + 'static,
    {
        if self.writer.is_certain() {
            let step = self.table.consider(key, &rule);
            if step.change.is_none() {
                self.writer.callers.passed().await;
                return Ok(step.outcome);
            }
        }
        self.writer.run(key.clone(), rule).await
    }

    async fn lock<C>(&self, name: &LockName, command: C) -> Result<C::Outcome, StoreError>
    where
        C: Command<Outcome: Send> + Send + 'static,
    {
        self.run(name, on_lock(command)).await
    }

    /// Takes off the disk what has expired.
    async fn forget<E: Durable>(&self) -> Result<(), StoreError> {
        let mut expired = Vec::new();
        for bucket in 0..=u8::MAX {
            expired.extend(self.table.expired::<E>(bucket));
            if expired.len() >= SWEEP_BATCH || (bucket == u8::MAX && !expired.is_empty()) {
                self.writer.forget::<E>(std::mem::take(&mut expired)).await?;
            }
            tokio::task::yield_now().await;
        }
        Ok(())
    }
}

/// The rule of a command on a lock.
fn on_lock<C: Command>(command: C) -> impl Fn(&LockState, &Moment) -> (LockState, C::Outcome) {
    move |state, moment| state.apply(&command, moment)
}

/// Takes into a table what the file holds.
struct Restore<'a>(&'a Table);

impl Take for Restore<'_> {
    fn lock(&mut self, name: &LockName, record: &Record<'_>) {
        self.0.restore(name, |now| LockState::restore(record, now));
    }

    fn record(&mut self, key: RecordKey, record: idempotency::Record) {
        self.0.restore(&key, |now| RecordState::restore(record, now));
    }
}

#[async_trait]
impl LockStore for EmbeddedStore {
    async fn acquire(&self, ask: &Acquire) -> Result<Acquisition, StoreError> {
        self.lock(&ask.name, ask.clone()).await
    }

    async fn withdraw(
        &self,
        name: &LockName,
        token: &TokenHash,
        attempt: Attempt,
    ) -> Result<(), StoreError> {
        // Always behind the acquire that it takes back, which may still be on its way.
        let withdraw = Withdraw { token: *token, attempt };
        self.writer.run(name.clone(), on_lock(withdraw)).await
    }

    async fn renew(
        &self,
        name: &LockName,
        token: &TokenHash,
        ttl: Ttl,
    ) -> Result<Renewal, StoreError> {
        self.lock(name, Renew { token: *token, ttl }).await
    }

    async fn release(&self, name: &LockName, token: &TokenHash) -> Result<Release, StoreError> {
        self.lock(name, Return { token: *token }).await
    }

    async fn get(&self, name: &LockName) -> Result<Option<Holder>, StoreError> {
        self.lock(name, Peek { name: name.clone() }).await
    }

    async fn list(&self, query: &ListLocks) -> Result<Option<Page>, StoreError> {
        if !self.writer.is_certain() {
            self.writer.probe().await?;
        }
        self.writer.callers.passed().await;
        Ok(self.table.list(query))
    }

    fn max_ttl(&self) -> Ttl {
        Ttl::MAX
    }

    fn turn(&self, name: &LockName, token: &TokenHash) -> Turn {
        self.table.turn(name, token)
    }

    fn changes(&self, name: &LockName) -> Changes {
        self.table.changes(name)
    }

    async fn ping(&self) -> Result<StoreHealth, StoreError> {
        self.writer.probe().await?;
        let directory = self.path.display().to_string();
        Ok(StoreHealth { tier: Tier::Strict, facts: BTreeMap::from([("directory", directory)]) })
    }

    async fn sweep(&self) -> Result<(), StoreError> {
        self.forget::<LockState>().await?;
        // Step by step, so that those who change something come in between.
        while self.writer.tidy().await? {}
        Ok(())
    }
}
