//! The writer of the embedded store: leader group commit.
//!
//! A caller queues a command. If nobody commits, it appoints a leader (`writer/queue.rs`): a task
//! of the runtime that commits inline, when the last batch was one quick command and another worker
//! is left to keep deadlines; else the writer's thread. Callers that come meanwhile share the next
//! batch, which the thread leads. Why inline: to wake a thread, and the thread a task again, costs
//! as much as half a sync of a quick disk. Why not always: a disk that hangs holds the worker that
//! leads. It never holds a second one, and no deadline, because the callers wait in tasks of their
//! own. So a task leads one command and nothing more. All else is a [`Job`], which the thread does
//! between two batches: sweeps, probes, copies, and reads of responses (`writer/reads.rs`).
//!
//! Invariant: a request is answered once its batch is on disk, or is known not to be, or is in
//! doubt; one that finds the queue full is refused at once. A batch that panics leaves its callers
//! in doubt. A thread that panics between two batches leaves a store that says that it is dead.
//! Tested in `crates/stores/tests/faults`: `leader.rs`, `batches.rs` and the fault disk.

mod queue;
mod reads;

use std::fmt;
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::oneshot;

use super::answers::AnswersInUse;
use super::batch::{Batch, SweptKeys};
use super::engine::{Engine, Failure};
use super::row::{is_same_at_rest, record_in_memory};
use super::snapshot::Snapshot;
use super::tables::BatchChanges;
use crate::table::Table;
use keylatch_core::idempotency::{RecordKey, RecordState};
use keylatch_core::lock::{LockName, LockState};
use keylatch_core::store::{Command, Reply, StoreError};
use queue::{Appointed, Turn};
use reads::ALL_OF_A_PAUSE;

/// How long the writer may take to end.
const END: Duration = Duration::from_millis(900);

type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// A command to run, and who waits for the reply.
type Step = (Command, Answer<Reply>);

/// What the thread does between two batches. Gives how many bytes of responses it has read.
type Job = Box<dyn FnOnce(&Arc<Shared>) -> u64 + Send>;

type Queue = queue::Queue<Step, Job>;

pub(super) struct Writer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Disconnected when the thread has ended.
    ended: Mutex<mpsc::Receiver<()>>,
}

struct Shared {
    queue: Mutex<Queue>,
    /// Notified when the thread is to lead, or to end.
    appointed: Condvar,
    /// The leader locks it for its term. `None` once the thread has ended.
    committer: Mutex<Option<Committer>>,
    state: Arc<State>,
    runtime: Handle,
    /// Whether the runtime has workers that do something else while one leads, or while the thread
    /// does.
    has_spare_workers: bool,
}

/// What callers read of the disk without a request.
#[derive(Debug, Default)]
struct State {
    /// The disk may have changes that the table does not.
    in_doubt: AtomicBool,
    /// The file has no more room than it needs, and its log is empty.
    at_rest: AtomicBool,
}

impl Writer {
    /// Starts the writer; it has to be called within a tokio runtime.
    pub(super) fn start(table: Arc<Table>, engine: Engine) -> io::Result<Self> {
        let (ending, ended) = mpsc::channel();
        let state = Arc::<State>::default();
        let runtime = Handle::current();
        let workers = match runtime.runtime_flavor() {
            RuntimeFlavor::MultiThread => runtime.metrics().num_workers(),
            _ => 1,
        };
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue::new()),
            appointed: Condvar::new(),
            committer: Mutex::new(Some(Committer::new(table, engine, Arc::clone(&state)))),
            state,
            runtime: runtime.clone(),
            has_spare_workers: workers > 1,
        });
        let work = Arc::clone(&shared);
        let thread =
            thread::Builder::new().name("keylatch-writer".to_owned()).spawn(move || {
                // The table's clock is the runtime's.
                let _runtime = runtime.enter();
                if catch_unwind(AssertUnwindSafe(|| work.lead_as_thread())).is_err() {
                    work.abort();
                }
                drop(ending);
            })?;
        Ok(Self { shared, thread: Some(thread), ended: Mutex::new(ended) })
    }

    /// Whether the table says all that the disk does.
    pub(super) fn is_certain(&self) -> bool {
        self.is_alive() && !self.shared.state.in_doubt.load(Ordering::Acquire)
    }

    /// Whether anything can still be written: the thread has not ended.
    pub(super) fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Runs a command and waits until that is on disk.
    pub(super) async fn run(&self, command: Command) -> Result<Reply, StoreError> {
        self.ask(|answer| self.shared.push((command, answer))).await
    }

    /// Removes those that are still expired, and writes the ages of others down.
    pub(super) async fn sweep(&self, swept: SweptKeys) -> Result<(), StoreError> {
        self.between_batches(move |committer| {
            committer.transact(|batch| batch.sweep(&swept)).map(drop)
        })
        .await
    }

    /// Whether the last transaction was kept; if not, tries whether there is room again. Waits for
    /// what is being written, so that there is no response while the disk hangs.
    pub(super) async fn probe(&self) -> Result<(), StoreError> {
        self.between_batches(Committer::probe).await
    }

    /// Has the table say all that the disk does.
    pub(super) async fn be_certain(&self) -> Result<(), StoreError> {
        if self.is_certain() { Ok(()) } else { self.probe().await }
    }

    /// Takes a step towards a file without room that it does not need. Whether there are more.
    ///
    /// A store that is at rest is not asked, so that an idle process does not wake the thread.
    pub(super) async fn compact(&self) -> Result<bool, StoreError> {
        if self.shared.state.at_rest.load(Ordering::Acquire) {
            return Ok(false);
        }
        self.between_batches(Committer::compact).await
    }

    /// A copy of the file, with all that was answered before.
    pub(super) async fn copy(&self) -> Result<Arc<Snapshot>, StoreError> {
        self.between_batches(Committer::copy).await
    }

    /// Has the thread do this, unless its caller has gone by then.
    async fn between_batches<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Committer) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.ask(|answer: Answer<T>| {
            self.shared.push_job(Box::new(move |shared| {
                if answer.is_closed() {
                    return 0;
                }
                if let Some(done) = shared.with_committer(work) {
                    // A caller that has gone does not read its response.
                    let _ = answer.send(done.map_err(StoreError::from));
                }
                ALL_OF_A_PAUSE
            }))
        })
        .await
    }

    async fn ask<T>(
        &self,
        queue: impl FnOnce(Answer<T>) -> Result<(), StoreError>,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        queue(answer)?;
        answered.await.unwrap_or_else(|_| Err(StoreError::Lost("the batch had no end".into())))
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("is_certain", &self.is_certain()).finish_non_exhaustive()
    }
}

impl Drop for Writer {
    /// Ends the writer after what it was given, so that the file is closed when this returns; a
    /// disk that hangs does not hold the process.
    fn drop(&mut self) {
        self.shared.close();
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(END) == Err(mpsc::RecvTimeoutError::Timeout) {
            tracing::warn!("the disk gives no answer; what was not answered may not be kept");
        } else if let Some(thread) = self.thread.take() {
            // It does not end by a panic: `Shared::abort` has logged one.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Queues a command that a leader will commit, and appoints one where there is none.
    fn push(self: &Arc<Self>, step: Step) -> Result<(), StoreError> {
        let appointed = self.queue().push(step)?;
        self.start(appointed);
        Ok(())
    }

    /// Queues a job for the thread, and appoints it where there is no leader.
    fn push_job(self: &Arc<Self>, job: Job) -> Result<(), StoreError> {
        let appointed = self.queue().push_job(job)?;
        self.start(appointed);
        Ok(())
    }

    fn start(self: &Arc<Self>, appointed: Option<Appointed>) {
        match appointed {
            Some(Appointed::Task) => {
                let term = InlineTerm(Arc::clone(self));
                self.runtime.spawn(async move { term.lead() });
            }
            Some(Appointed::Thread) => self.appointed.notify_one(),
            None => {}
        }
    }

    /// Refuses every request from now on, because the thread ended by a panic between two batches.
    /// What is queued ends without a response.
    fn abort(&self) {
        tracing::error!("the writer ended by a panic: only a restart of the process helps");
        self.queue().abort();
    }

    /// Has the thread end after what is queued.
    fn close(&self) {
        self.queue().close();
        self.appointed.notify_one();
    }

    /// Leads whenever it is appointed, until the writer is closed.
    fn lead_as_thread(self: &Arc<Self>) {
        while let Some(batch) = self.next_batch() {
            if let Some(committed) = self.commit(batch) {
                // One wake-up of the runtime for the batch, and not one for each of its callers.
                self.runtime.spawn(async move { committed.answer() });
            }
            self.shorten_log();
            self.do_jobs();
            self.queue().resign();
        }
        // The file is closed here, and not by a caller that drops the store.
        self.committer().take();
    }

    /// The next batch for the thread; `None` once the writer is closed and nothing is left.
    fn next_batch(&self) -> Option<Vec<Step>> {
        let mut queue = self.queue();
        loop {
            match queue.turn() {
                Turn::Lead(batch) => return Some(batch),
                Turn::End => return None,
                Turn::Wait => {
                    queue = self.appointed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Commits a batch; `None` if that panicked. Commands of it whose replies have to be read are
    /// queued.
    fn commit(&self, batch: Vec<Step>) -> Option<CommitResult> {
        // The rules run before anything is written, and the file is opened again where a
        // transaction was left open.
        let mut committed = self.with_committer(|committer| committer.commit(batch))?;
        let is_light = committed.is_light && self.has_spare_workers;
        self.queue().note(mem::take(&mut committed.reads), is_light, committed.is_log_long);
        Some(committed)
    }

    /// What `work` comes to; `None` if it panicked, or the writer has ended.
    fn with_committer<T>(&self, work: impl FnOnce(&mut Committer) -> T) -> Option<T> {
        let working = AssertUnwindSafe(|| self.committer().as_mut().map(work));
        catch_unwind(working).unwrap_or_else(|_| {
            tracing::error!("a batch of changes ended by a panic");
            None
        })
    }

    fn shorten_log(&self) {
        if let Some(committer) = self.committer().as_mut() {
            committer.shorten_log();
        }
    }

    /// Does some of the jobs: changes wait for them.
    fn do_jobs(self: &Arc<Self>) {
        let mut bytes = 0;
        while bytes < ALL_OF_A_PAUSE {
            let Some(job) = self.queue().pop_job() else { return };
            bytes += job(self);
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn committer(&self) -> MutexGuard<'_, Option<Committer>> {
        self.committer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The term of a leader that is a task. It ends also when the runtime drops the task unpolled.
struct InlineTerm(Arc<Shared>);

impl InlineTerm {
    fn lead(self) {
        let Some(batch) = self.0.queue().begin_task() else { return };
        let committed = self.0.commit(batch);
        // Before the responses: a caller that asks again at once finds no leader.
        drop(self);
        if let Some(committed) = committed {
            committed.answer();
        }
    }
}

impl Drop for InlineTerm {
    fn drop(&mut self) {
        if self.0.queue().end_task() {
            self.0.appointed.notify_one();
        }
    }
}

/// The file and the table, in the hands of the leader.
struct Committer {
    table: Arc<Table>,
    engine: Engine,
    answers: AnswersInUse,
    state: Arc<State>,
    /// The last transaction was not kept.
    is_unwell: bool,
    /// The last transaction was one request, and kept quickly.
    is_light: bool,
}

/// A batch that was committed, or was not, and its waiters.
struct CommitResult {
    answers: Vec<(Reply, Answer<Reply>)>,
    /// Commands that changed nothing, and whose replies have to be read.
    reads: Vec<Job>,
    kept: Result<(), Failure>,
    is_log_long: bool,
    is_light: bool,
}

impl CommitResult {
    fn answer(self) {
        for (reply, answer) in self.answers {
            let reply = self.kept.clone().map(|()| reply);
            // A caller that has gone does not read its response.
            let _ = answer.send(reply.map_err(StoreError::from));
        }
    }
}

impl Committer {
    fn new(table: Arc<Table>, engine: Engine, state: Arc<State>) -> Self {
        let (answers, is_unwell) = (AnswersInUse::default(), !engine.is_writable());
        Self { table, engine, answers, state, is_unwell, is_light: false }
    }

    /// Runs commands, and puts what they come to on disk and then in the table.
    fn commit(&mut self, steps: Vec<Step>) -> CommitResult {
        let (started, is_lone) = (Instant::now(), steps.len() == 1);
        let (mut answers, mut reads) = (Vec::with_capacity(steps.len()), Vec::new());
        let kept = self.transact(|batch| {
            for (command, answer) in steps {
                match (batch.run(&command), command) {
                    (Reply::Record(reply), Command::Record(key, command)) if reply.has_stub() => {
                        reads.push(reads::job(key, command, answer));
                    }
                    (reply, _) => answers.push((reply, answer)),
                }
            }
        });
        if matches!(kept, Ok(true)) {
            self.is_light = is_lone && self.engine.is_quick(started.elapsed());
        }
        let (is_log_long, is_light) = (self.engine.is_log_long(), self.is_light);
        CommitResult { answers, reads, kept: kept.map(drop), is_log_long, is_light }
    }

    /// Puts what `fill` makes of a batch on disk and then in the table. Whether there was anything
    /// to write.
    fn transact(&mut self, fill: impl FnOnce(&mut Batch<'_>)) -> Result<bool, Failure> {
        let settled = self.settle();
        let mut batch = Batch::on(&self.table);
        fill(&mut batch);
        let changes = batch.finish();
        let kept = settled.and_then(|()| self.write(changes));
        self.note(&kept);
        kept
    }

    fn probe(&mut self) -> Result<(), Failure> {
        let is_unwell = self.is_unwell;
        let settled = self.settle();
        let kept = settled.and_then(|()| if is_unwell { self.engine.probe() } else { Ok(()) });
        self.note(&kept.clone().map(|()| is_unwell));
        kept
    }

    /// Finds out what became of the changes in doubt, if there are any.
    fn settle(&mut self) -> Result<(), Failure> {
        match self.engine.settle() {
            Ok(kept) => kept.into_iter().for_each(|kept| self.install(kept)),
            Err(error) => return Err(Failure::InDoubt(error.to_string())),
        }
        self.state.in_doubt.store(false, Ordering::Release);
        Ok(())
    }

    /// Writes changes and makes them the table's. Whether there was anything to write.
    fn write(&mut self, changes: BatchChanges) -> Result<bool, Failure> {
        // What a batch undoes itself leaves nothing to write.
        let durable =
            self.is_change(&changes) || !self.engine.has_room_for(changes.last_fencing_token());
        if durable {
            self.engine.commit(&changes)?;
        }
        self.install(changes);
        Ok(durable)
    }

    /// Whether the disk says something else of any entry.
    fn is_change(&self, changes: &BatchChanges) -> bool {
        let is_other_lock = |(name, state): (&LockName, &LockState)| {
            !is_same_at_rest(state, &self.table.look::<LockState>(name).0)
        };
        let is_other_record = |(key, state): (&RecordKey, &RecordState)| {
            *state != self.table.look::<RecordState>(key).0
        };
        !changes.ages.is_empty()
            || changes.entries.locks.iter().any(is_other_lock)
            || changes.entries.records.iter().any(is_other_record)
    }

    fn install(&self, changes: BatchChanges) {
        for (bucket, fencing_token) in changes.fences {
            self.table.raise(bucket, fencing_token);
        }
        for (name, state) in changes.entries.locks {
            self.table.install(&name, state);
        }
        for (key, state) in changes.entries.records {
            self.table.install(&key, record_in_memory(state));
        }
    }

    /// Returns room that the file does not need. Whether there is more.
    fn compact(&mut self) -> Result<bool, Failure> {
        self.settle()?;
        let compacted = self.engine.compact();
        self.note(&compacted.clone().map(|_| false));
        compacted
    }

    /// The file as it is now.
    fn copy(&mut self) -> Result<Arc<Snapshot>, Failure> {
        self.settle()?;
        let copied = self.engine.copy();
        if let Err(failure @ Failure::InDoubt(_)) = &copied {
            self.note(&Err(failure.clone()));
        }
        copied
    }

    fn shorten_log(&mut self) {
        if let Err(failure) = self.engine.shorten_log() {
            self.note(&Err(failure));
        }
    }

    /// Remembers how it went to write, before who waits for that is answered. Where there was
    /// nothing to write, that says nothing of the disk.
    fn note(&mut self, kept: &Result<bool, Failure>) {
        self.state.at_rest.store(self.engine.is_at_rest(), Ordering::Release);
        if matches!(kept, Err(Failure::InDoubt(_))) {
            self.state.in_doubt.store(true, Ordering::Release);
        }
        match kept {
            Err(Failure::NotKept(error) | Failure::InDoubt(error)) => {
                self.is_light = false;
                if !mem::replace(&mut self.is_unwell, true) {
                    tracing::error!(error, "changes cannot be kept on disk");
                }
            }
            Ok(true) => {
                if mem::take(&mut self.is_unwell) {
                    tracing::info!("changes are kept on disk again");
                }
            }
            Ok(false) => {}
        }
    }
}
