//! The rules over an engine that writes on a condition: one adapter for every engine of that kind.
//!
//! [`Optimistic`] is the [`Executor`] of any [`ConditionalStore`]. Locks and records have a task each
//! (`worker.rs`), and steps on several locks a third (`sets.rs`), which decides by the pure functions of the core (`value.rs`), on an estimate of the
//! engine's clock (`clock.rs`) that the engine itself confirms; an engine without a clock has that of this
//! process (`timeline.rs`). Fencing tokens rise by what a row keeps,
//! and over its removal by the floor of its bucket (`floor.rs`, `sweep.rs`).
//!
//! Why not SQL, Lua or transactions for each engine: they would say the rules once more each, and one
//! batch of conditional writes is quicker than a statement for each command. Tested with a fake engine
//! that does everything that an engine may do, in `tests/stores/conditional.rs`.

mod clock;
pub mod conditional;
mod floor;
mod hints;
mod list;
mod sets;
mod sweep;
mod timeline;
mod value;
mod worker;

use std::sync::Arc;

use futures_util::stream::{self, StreamExt as _};
use keylatch_core::idempotency::{RecordState, RecordSummary};
use keylatch_core::lock::{Holding, LockState};
use keylatch_core::store::{
    Command, Hints, ListLocks, ListRecords, Page, Reply, Store, StoreError, StoreHealth,
    StoreProfile, Topic,
};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

use crate::ruled::{Executor, Ruled};
use conditional::ConditionalStore;
use hints::LocalHints;
use sets::{SetWorker, WaitingSet};
use sweep::Sweep;
use value::Kind;
use worker::{Waiting, Worker};

/// How many commands wait for the task of their kind; the callers of more wait for room.
const QUEUE: usize = 1024;

/// A store over `engine`; it has to be called within a tokio runtime.
pub fn optimistic(engine: impl ConditionalStore) -> Arc<dyn Store> {
    Arc::new(Ruled::start(Optimistic::new(Arc::new(engine))))
}

/// Runs commands by the rules over an engine.
#[derive(Debug)]
struct Optimistic<S> {
    engine: Arc<S>,
    hints: Arc<LocalHints>,
    locks: mpsc::Sender<Waiting<LockState>>,
    sets: mpsc::Sender<WaitingSet>,
    records: mpsc::Sender<Waiting<RecordState>>,
    lock_sweep: Mutex<Sweep<LockState>>,
    record_sweep: Mutex<Sweep<RecordState>>,
    /// Run commands for as long as the store lives.
    _workers: [AbortOnDropHandle<()>; 3],
}

impl<S: ConditionalStore> Optimistic<S> {
    fn new(engine: Arc<S>) -> Self {
        let hints = Arc::new(LocalHints::default());
        let (locks, lock_arrivals) = mpsc::channel(QUEUE);
        let (records, record_arrivals) = mpsc::channel(QUEUE);
        let (sets, set_arrivals) = mpsc::channel(QUEUE);
        let (written, writes_of_sets) = mpsc::unbounded_channel();
        let of_sets = SetWorker::new(Arc::clone(&engine), written);
        let writes_of_sets = stream::unfold(writes_of_sets, async |mut written| {
            written.recv().await.map(|notice| (notice, written))
        });
        let notices = stream::select(engine.notices(), writes_of_sets);
        let of_locks = Worker::new(Arc::clone(&engine), Arc::clone(&hints));
        let of_records = Worker::new(Arc::clone(&engine), Arc::clone(&hints));
        let workers = [
            tokio::spawn(of_locks.run(lock_arrivals, notices.boxed())),
            tokio::spawn(of_sets.run(set_arrivals)),
            tokio::spawn(of_records.run(record_arrivals, stream::pending().boxed())),
        ];
        Self {
            engine,
            hints,
            locks,
            sets,
            records,
            lock_sweep: Mutex::default(),
            record_sweep: Mutex::default(),
            _workers: workers.map(AbortOnDropHandle::new),
        }
    }
}

/// Hands a command to the task of its kind, and waits for the reply.
async fn ask<E: Kind>(
    worker: &mpsc::Sender<Waiting<E>>,
    key: E::Key,
    command: E::Command,
) -> Result<E::Reply, StoreError> {
    deliver(worker, |reply| Waiting { key, command, reply }).await
}

/// Hands what `ask` makes to a task, and waits for the reply.
async fn deliver<W, R>(
    worker: &mpsc::Sender<W>,
    ask: impl FnOnce(oneshot::Sender<Result<R, StoreError>>) -> W,
) -> Result<R, StoreError> {
    let (reply, answer) = oneshot::channel();
    let sent = worker.send(ask(reply)).await;
    sent.map_err(|_| StoreError::Unreachable("the store is closed".into()))?;
    answer.await.unwrap_or_else(|_| Err(StoreError::Lost("the store was closed".into())))
}

impl<S: ConditionalStore> Executor for Optimistic<S> {
    async fn run(&self, command: Command) -> Result<Reply, StoreError> {
        match command {
            Command::Lock(name, command) => ask(&self.locks, name, command).await.map(Reply::Lock),
            Command::Set(set, command) => {
                let ask = |reply| WaitingSet { set, command, reply };
                deliver(&self.sets, ask).await.map(Reply::Set)
            }
            Command::Record(key, command) => {
                ask(&self.records, key, command).await.map(Reply::Record)
            }
        }
    }

    async fn list(&self, query: &ListLocks) -> Result<Option<Page<Holding>>, StoreError> {
        list::locks(&*self.engine, query).await
    }

    async fn list_records(
        &self,
        query: &ListRecords,
    ) -> Result<Option<Page<RecordSummary>>, StoreError> {
        list::records(&*self.engine, query).await
    }

    fn subscribe(&self, topic: Topic) -> Hints {
        self.hints.subscribe(topic)
    }

    async fn sweep(&self, records: bool) -> Result<(), StoreError> {
        self.lock_sweep.lock().await.walk(&*self.engine).await?;
        if records {
            self.record_sweep.lock().await.walk(&*self.engine).await?;
        }
        Ok(())
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        self.engine.health().await
    }

    fn profile(&self) -> StoreProfile {
        self.engine.profile()
    }
}
