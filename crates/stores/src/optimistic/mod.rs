//! The rules over an engine that writes on a condition: one adapter for every engine of that kind.
//!
//! [`Optimistic`] is the [`Store`] of any [`ConditionalStore`]. Locks and records have a task each
//! (`worker.rs`), and steps on several locks have a third (`sets.rs`). All decide by the pure
//! functions of the core (`value.rs`), on an estimate of the engine's clock (`clock.rs`) that the
//! engine itself confirms; an engine without a clock has that of this process (`timeline.rs`).
//! Fencing tokens rise by what a row keeps, and over its removal by the floor of its bucket
//! (`floor.rs`, `sweep.rs`).
//!
//! The engine is behind `dyn`: the adapter is compiled once, and not for each engine.
//!
//! Why not SQL, Lua or transactions for each engine: they would say the rules once more each, and
//! one batch of conditional writes is quicker than a statement for each command. Tested with a fake
//! engine that does everything that an engine may do, in `tests/stores/conditional.rs` and
//! `conditional_steps.rs`.

mod call;
mod clock;
pub mod conditional;
mod floor;
mod list;
mod news;
mod reserved;
mod sets;
mod slot;
mod sweep;
mod timeline;
pub(crate) mod value;
mod worker;

pub use floor::floor_row;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use futures_util::future::{FutureExt as _, try_join};
use futures_util::stream::{self, BoxStream, StreamExt as _};
use keylatch_core::idempotency::{RecordState, RecordSummary};
use keylatch_core::lock::{Holding, LockState, Token};
use keylatch_core::store::{
    Command, Hints, ListLocks, ListRecords, Page, Reply, Store, StoreError, StoreGauges,
    StoreHealth, StoreProfile, Topic,
};
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

use crate::hints::LocalHints;
use crate::sweeper;
use conditional::{Change, ConditionalStore, EngineTime, Guard, Key, Mark, Notice, Outline};
use reserved::ReservedLocks;
use sets::{PendingSet, SetWorker};
use slot::PendingCommand;
use sweep::RowSweeper;
use value::{DECISION_LASTS, Kind};
use worker::Worker;

/// How many commands wait for the task of their kind; the callers of more wait for room.
const QUEUE: usize = 1024;
/// How many notices wait for a task where there are several.
const NOTICES: usize = 64;

/// A store over `engine`; it has to be called within a tokio runtime.
pub fn optimistic(engine: impl ConditionalStore) -> Arc<dyn Store> {
    Arc::new(Optimistic::new(Arc::new(engine)))
}

#[derive(Debug)]
pub(crate) struct Optimistic {
    engine: Arc<dyn ConditionalStore>,
    hints: Arc<LocalHints>,
    /// How often a write met that of another process.
    conflicts: Arc<AtomicU64>,
    /// The tasks that run commands, one of each kind for each part of the engine.
    locks: Vec<mpsc::Sender<PendingCommand<LockState>>>,
    records: Vec<mpsc::Sender<PendingCommand<RecordState>>>,
    /// The task of steps on several locks, where the engine takes them.
    sets: Option<mpsc::Sender<PendingSet>>,
    /// Run commands for as long as the store lives.
    workers: Vec<AbortOnDropHandle<()>>,
    /// Hands the engine's notices out, where several tasks read them.
    _dispatch: Option<AbortOnDropHandle<()>>,
    /// Sweeps for as long as the store lives, where the engine does not forget what has expired by
    /// itself.
    _sweeper: Option<AbortOnDropHandle<()>>,
}

impl Optimistic {
    pub(crate) fn new(engine: Arc<dyn ConditionalStore>) -> Self {
        let hints = Arc::new(LocalHints::default());
        let (mut locks, mut records, mut workers) = (Vec::new(), Vec::new(), Vec::new());
        let conflicts = Arc::<AtomicU64>::default();
        let reserved = Arc::<ReservedLocks>::default();
        let (sets, of_sets, notices) = with_sets(&engine, &hints, &conflicts, &reserved);
        let shared = || (Arc::clone(&engine), Arc::clone(&hints), Arc::clone(&conflicts));
        let (of_part, dispatch) = notices_by_part(engine.parts().max(1), notices);
        for notices in of_part {
            let (sender, arrivals) = mpsc::channel(QUEUE);
            let worker = Worker::new(shared(), Arc::clone(&reserved));
            workers.push(tokio::spawn(worker.run(arrivals, notices)));
            locks.push(sender);
            let (sender, arrivals) = mpsc::channel(QUEUE);
            let worker = Worker::new(shared(), Arc::default());
            workers.push(tokio::spawn(worker.run(arrivals, stream::pending().boxed())));
            records.push(sender);
        }
        workers.extend(of_sets);
        let sweeper = (!engine.forgets()).then(|| sweeper::start(RowSweeper::of(&engine)));
        Self {
            engine,
            hints,
            conflicts,
            locks,
            records,
            sets,
            workers: workers.into_iter().map(AbortOnDropHandle::new).collect(),
            _dispatch: dispatch.map(AbortOnDropHandle::new),
            _sweeper: sweeper,
        }
    }

    /// Runs a command; a store that stands on this one has no box more.
    pub(crate) async fn run(&self, command: Command) -> Result<Reply, StoreError> {
        match command {
            Command::Lock(names, command) => match names.names() {
                [name] => ask(&self.locks, name.clone(), command).await,
                _ => {
                    let sets = self.sets.as_ref().ok_or(StoreError::Unsupported)?;
                    deliver(sets, |reply| PendingSet { names, command, reply }).await
                }
            }
            .map(Reply::Lock),
            Command::Record(key, command) => {
                ask(&self.records, key, command).await.map(Reply::Record)
            }
        }
    }
}

/// Starts the task of steps on several locks where the engine takes them: where to send it steps,
/// the task, and the engine's notices with those of what the task wrote.
fn with_sets(
    engine: &Arc<dyn ConditionalStore>,
    hints: &Arc<LocalHints>,
    conflicts: &Arc<AtomicU64>,
    reserved: &Arc<ReservedLocks>,
) -> (Option<mpsc::Sender<PendingSet>>, Option<JoinHandle<()>>, BoxStream<'static, Notice>) {
    let notices = engine.notices();
    if engine.parts() > 1 {
        return (None, None, notices);
    }
    let (sets, arrivals) = mpsc::channel(QUEUE);
    let (written, writes) = mpsc::unbounded_channel();
    let writes = stream::unfold(writes, async |mut written| {
        written.recv().await.map(|notice| (notice, written))
    });
    let shared = (Arc::clone(hints), Arc::clone(conflicts), Arc::clone(reserved));
    let worker = SetWorker::new(Arc::clone(engine), shared, written);
    let task = tokio::spawn(worker.run(arrivals));
    (Some(sets), Some(task), stream::select(notices, writes).boxed())
}

/// The notices of each part of an engine, and the task that hands them out where there are several.
fn notices_by_part(
    parts: usize,
    mut notices: BoxStream<'static, Notice>,
) -> (Vec<BoxStream<'static, Notice>>, Option<JoinHandle<()>>) {
    if parts == 1 {
        return (vec![notices], None);
    }
    let (senders, streams): (Vec<_>, Vec<_>) = (0..parts)
        .map(|_| {
            let (sender, receiver) = broadcast::channel(NOTICES);
            (sender, stream::unfold(receiver, next_notice).boxed())
        })
        .unzip();
    let dispatch = async move {
        while let Some(notice) = notices.next().await {
            // A task that ended takes no notice.
            match &notice {
                Notice::Changed(key, _) | Notice::Turns(key, ..) | Notice::Row(key, _) => {
                    let _ = senders[usize::from(key.bucket()) % parts].send(notice);
                }
                Notice::Missed => senders.iter().for_each(|sender| {
                    let _ = sender.send(Notice::Missed);
                }),
            }
        }
    };
    (streams, Some(tokio::spawn(dispatch)))
}

/// The next notice; one in the place of those that a busy task missed.
async fn next_notice(
    mut receiver: broadcast::Receiver<Notice>,
) -> Option<(Notice, broadcast::Receiver<Notice>)> {
    match receiver.recv().await {
        Ok(notice) => Some((notice, receiver)),
        Err(broadcast::error::RecvError::Lagged(_)) => Some((Notice::Missed, receiver)),
        Err(broadcast::error::RecvError::Closed) => None,
    }
}

/// Hands a command to the task of its kind, and waits for the reply.
async fn ask<E: Kind>(
    workers: &[mpsc::Sender<PendingCommand<E>>],
    key: E::Key,
    command: E::Command,
) -> Result<E::Reply, StoreError> {
    let worker = &workers[usize::from(E::bucket(&key)) % workers.len()];
    deliver(worker, |reply| PendingCommand { key, command, reply }).await
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

/// Which store the engine has: a row says so that the first instance to ask makes. `None` where the
/// row can be neither read nor made, as on an engine that is full; a later look tries again.
async fn store_id(engine: &dyn ConditionalStore) -> Option<String> {
    let read = async || engine.read(&[Key::Id]).await.ok();
    let reply = read().await?;
    let row = match reply.rows.into_iter().next()? {
        Some(row) => row,
        None => {
            let id = Token::generate().ok()?;
            let made = Change {
                key: Key::Id,
                was: None,
                value: id.expose().as_bytes().to_vec(),
                mark: Mark::default(),
                guard: Guard { from: EngineTime::ZERO, until: reply.now + DECISION_LASTS },
                above: None,
                outline: Outline { lasts: EngineTime::MAX, ..Outline::default() },
            };
            engine.write(&[made]).await.ok()?;
            // Another instance may have been the first.
            read().await?.rows.into_iter().next()??
        }
    };
    String::from_utf8(row.value).ok().filter(|id| !id.is_empty())
}

#[async_trait]
impl Store for Optimistic {
    async fn execute(&self, command: Command) -> Result<Reply, StoreError> {
        self.run(command).await
    }

    async fn list_locks(&self, query: &ListLocks) -> Result<Option<Page<Holding>>, StoreError> {
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

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        let id = store_id(&*self.engine).map(Ok);
        let (health, id) = try_join(self.engine.health(), id).await?;
        Ok(StoreHealth { id, ..health })
    }

    fn profile(&self) -> StoreProfile {
        self.engine.profile()
    }

    fn gauges(&self) -> StoreGauges {
        let is_alive = self.workers.iter().all(|worker| !worker.is_finished());
        let conflicts = self.conflicts.load(Ordering::Relaxed);
        StoreGauges { is_alive, conflicts, ..StoreGauges::default() }
    }
}
