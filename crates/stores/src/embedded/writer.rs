//! The writer of the embedded store: leader group commit.
//!
//! A caller queues a [`WriteRequest`]. If nobody commits, it appoints a leader (`writer/queue.rs`):
//! a task of the runtime that commits inline, when the last batch was one quick request and another
//! worker is left to keep deadlines; else the writer's thread. Callers that come meanwhile share
//! the next batch, which the thread leads. Why inline: to wake a thread, and the thread a task
//! again, costs as much as half a sync of a quick disk. Why not always: a disk that hangs holds the
//! worker that leads. It never holds a second one, and no deadline, because the callers wait in
//! tasks of their own. So a task leads one request and nothing more. The thread reads answers from
//! the disk too (`writer/reads.rs`).
//!
//! Invariant: a request is answered once its batch is on disk, or is known not to be, or is in
//! doubt; one that finds the queue full is refused at once. A batch that panics leaves its callers
//! in doubt. A thread that panics between two batches leaves a store that says that it is dead.
//! Tested in `crates/stores/tests/faults`: `leader.rs`, `batches.rs` and the fault disk.

mod queue;
mod reads;

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
use super::row::{is_same_lock_at_rest, record_in_memory};
use super::snapshot::Snapshot;
use super::tables::{BatchChanges, Probe};
use crate::table::Table;
use keylatch_core::idempotency::{RecordKey, RecordState};
use keylatch_core::lock::{LockName, LockState};
use keylatch_core::store::{Command, Reply, StoreError};
use queue::{Appointed, Turn};
use reads::ReadRequest;

/// How long the writer may take to end.
const END: Duration = Duration::from_millis(900);

/// What waits for the writer.
#[derive(Debug)]
pub(super) enum WriteRequest {
    /// Run a command.
    Step(Command, Answer<Reply>),
    /// Remove those that are still expired, and write the ages of others down.
    Sweep(SweptKeys, Answer<()>),
    /// Tell whether the last batch was kept; if not, try whether there is room again.
    Probe(Answer<()>),
    /// Take a step towards a file without room that it does not need. The answer is whether there
    /// are more.
    Compact(Answer<bool>),
    /// Give a copy of the file as it is after the batch.
    Copy(Answer<Arc<Snapshot>>),
}

impl WriteRequest {
    /// Whether it is one commit of a quick disk, which a task may lead.
    fn is_step(&self) -> bool {
        matches!(self, Self::Step(..))
    }
}

type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

type Queue = queue::Queue<WriteRequest, ReadRequest>;

/// The way to the file and the table.
#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Disconnected when the thread has ended.
    ended: Mutex<mpsc::Receiver<()>>,
}

#[derive(Debug)]
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
        self.submit(|answer| WriteRequest::Step(command, answer)).await
    }

    /// Removes those that are still expired, and writes the ages of others down.
    pub(super) async fn sweep(&self, swept: SweptKeys) -> Result<(), StoreError> {
        self.submit(|answer| WriteRequest::Sweep(swept, answer)).await
    }

    /// Whether the last transaction was kept; if not, tries whether there is room again. Waits for
    /// what is being written, so that there is no response while the disk hangs.
    pub(super) async fn probe(&self) -> Result<(), StoreError> {
        self.submit(WriteRequest::Probe).await
    }

    /// Takes a step towards a file without room that it does not need. Whether there are more.
    ///
    /// A store that is at rest is not asked, so that an idle process does not wake the thread.
    pub(super) async fn compact(&self) -> Result<bool, StoreError> {
        if self.shared.state.at_rest.load(Ordering::Acquire) {
            return Ok(false);
        }
        self.submit(WriteRequest::Compact).await
    }

    /// A copy of the file, with all that was answered before.
    pub(super) async fn copy(&self) -> Result<Arc<Snapshot>, StoreError> {
        self.submit(WriteRequest::Copy).await
    }

    async fn submit<T>(
        &self,
        request: impl FnOnce(Answer<T>) -> WriteRequest,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.shared.push(request(answer))?;
        answered.await.unwrap_or_else(|_| Err(StoreError::Lost("the batch had no end".into())))
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
    /// Queues a request that a leader will commit, and appoints one where there is none.
    fn push(self: &Arc<Self>, request: WriteRequest) -> Result<(), StoreError> {
        let is_step = request.is_step();
        let appointed = self.queue().push(request, is_step)?;
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
            self.answer_reads();
            self.queue().resign();
        }
        // The file is closed here, and not by a caller that drops the store.
        self.committer().take();
    }

    /// The next batch for the thread; `None` once the writer is closed and nothing is left.
    fn next_batch(&self) -> Option<Vec<WriteRequest>> {
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
    fn commit(&self, batch: Vec<WriteRequest>) -> Option<CommitResult> {
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
#[derive(Debug)]
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
    answers: Vec<PendingAnswer>,
    /// Commands that changed nothing, and whose replies have to be read.
    reads: Vec<ReadRequest>,
    kept: Result<(), Failure>,
    /// The copy of the file after the batch, if a request is for one.
    copied: Result<Option<Arc<Snapshot>>, Failure>,
    /// Whether the file has more room than it needs, if a request is to compact it.
    is_loose: bool,
    is_log_long: bool,
    is_light: bool,
}

/// What the requests of a batch come to beside changes.
#[derive(Default)]
struct BatchResults {
    answers: Vec<PendingAnswer>,
    reads: Vec<ReadRequest>,
    probing: bool,
    compacting: bool,
}

/// A waiter for a batch, and what it waits for.
enum PendingAnswer {
    Reply(Reply, Answer<Reply>),
    Done(Answer<()>),
    Compacted(Answer<bool>),
    Copy(Answer<Arc<Snapshot>>),
}

impl CommitResult {
    fn answer(self) {
        let kept = self.kept;
        for waiting in self.answers {
            // A caller that has gone does not read its response.
            match waiting {
                PendingAnswer::Reply(reply, answer) => drop(answer.send(outcome(&kept, reply))),
                PendingAnswer::Done(answer) => drop(answer.send(outcome(&kept, ()))),
                PendingAnswer::Compacted(answer) => {
                    drop(answer.send(outcome(&kept, self.is_loose)));
                }
                PendingAnswer::Copy(answer) => drop(answer.send(copy_of(&self.copied))),
            }
        }
    }
}

fn outcome<K, T>(kept: &Result<K, Failure>, value: T) -> Result<T, StoreError> {
    match kept {
        Ok(_) => Ok(value),
        Err(Failure::NotKept(error)) => Err(StoreError::Refused(error.clone().into())),
        Err(Failure::InDoubt(error)) => Err(StoreError::Lost(error.clone().into())),
    }
}

/// One reader has a copy at a time, since the log grows meanwhile.
fn copy_of(copied: &Result<Option<Arc<Snapshot>>, Failure>) -> Result<Arc<Snapshot>, StoreError> {
    outcome(copied, ())?;
    let copy = copied.as_ref().ok().and_then(Option::clone);
    copy.ok_or_else(|| StoreError::Refused("the store is being copied already".into()))
}

impl Committer {
    fn new(table: Arc<Table>, engine: Engine, state: Arc<State>) -> Self {
        let (answers, is_unwell) = (AnswersInUse::default(), !engine.is_writable());
        Self { table, engine, answers, state, is_unwell, is_light: false }
    }

    /// Puts what the requests come to on disk and then in the table.
    fn commit(&mut self, requests: Vec<WriteRequest>) -> CommitResult {
        let (started, is_lone) = (Instant::now(), requests.len() == 1);
        let settled = self.settle();
        let mut batch = Batch::on(&self.table);
        let mut results = BatchResults::default();
        for request in requests {
            self.run(request, &mut batch, &mut results);
        }
        let BatchResults { answers, reads, probing, compacting } = results;
        let changes = batch.finish();
        let kept = settled.and_then(|()| self.write(changes, probing));
        if matches!(kept, Ok(true)) {
            self.is_light = is_lone && self.engine.is_quick(started.elapsed());
        }
        self.note(&kept);
        let is_loose = compacting && kept.is_ok() && self.compact();
        self.state.at_rest.store(self.engine.is_at_rest(), Ordering::Release);
        let kept = kept.map(|_| ());
        let copying = answers.iter().any(|answer| matches!(answer, PendingAnswer::Copy(_)));
        let copied = if copying { kept.clone().and_then(|()| self.copy()) } else { Ok(None) };
        let (is_log_long, is_light) = (self.engine.is_log_long(), self.is_light);
        CommitResult { answers, reads, kept, copied, is_loose, is_log_long, is_light }
    }

    /// Runs a request of a batch.
    fn run(&self, request: WriteRequest, batch: &mut Batch<'_>, results: &mut BatchResults) {
        results.answers.push(match request {
            WriteRequest::Step(command, answer) => match (batch.run(&command), command) {
                (Reply::Record(reply), Command::Record(key, command)) if reply.has_stub() => {
                    return results.reads.push(ReadRequest { key, command, answer });
                }
                (reply, _) => PendingAnswer::Reply(reply, answer),
            },
            WriteRequest::Sweep(swept, answer) => {
                batch.sweep(&swept);
                PendingAnswer::Done(answer)
            }
            WriteRequest::Probe(answer) => {
                results.probing |= self.is_unwell;
                PendingAnswer::Done(answer)
            }
            WriteRequest::Compact(answer) => {
                results.compacting = true;
                PendingAnswer::Compacted(answer)
            }
            WriteRequest::Copy(answer) => PendingAnswer::Copy(answer),
        });
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
    fn write(&mut self, changes: BatchChanges, probing: bool) -> Result<bool, Failure> {
        if probing {
            for probe in [Probe::Write, Probe::Remove] {
                self.engine
                    .commit(&BatchChanges { probe: Some(probe), ..BatchChanges::default() })?;
            }
        }
        // What a batch undoes itself leaves nothing to write.
        let durable =
            self.is_change(&changes) || !self.engine.has_room_for(changes.last_fencing_token());
        if durable {
            self.engine.commit(&changes)?;
        }
        self.install(changes);
        Ok(probing || durable)
    }

    /// Whether the disk says something else of any entry.
    fn is_change(&self, changes: &BatchChanges) -> bool {
        let is_other_lock = |(name, state): (&LockName, &LockState)| {
            !is_same_lock_at_rest(state, &self.table.look::<LockState>(name).0)
        };
        let is_other_record = |(key, state): (&RecordKey, &RecordState)| {
            *state != self.table.look::<RecordState>(key).0
        };
        !changes.ages.is_empty()
            || changes.locks.iter().any(is_other_lock)
            || changes.records.iter().any(is_other_record)
    }

    fn install(&self, changes: BatchChanges) {
        for (bucket, fencing_token) in changes.fences {
            self.table.raise(bucket, fencing_token);
        }
        for (name, state) in changes.locks {
            self.table.install(&name, state);
        }
        for (key, state) in changes.records {
            self.table.install(&key, record_in_memory(state));
        }
    }

    /// Returns room that the file does not need. Whether there is more. What fails here undoes
    /// nothing that was kept.
    fn compact(&mut self) -> bool {
        let compacted = self.engine.compact();
        compacted.unwrap_or_else(|failure| {
            self.note(&Err(failure));
            false
        })
    }

    /// The file as it is now. What fails here undoes nothing that was kept.
    fn copy(&mut self) -> Result<Option<Arc<Snapshot>>, Failure> {
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

    /// Remembers how the batch went, before its callers are answered. One that had nothing to write
    /// says nothing of the disk.
    fn note(&mut self, kept: &Result<bool, Failure>) {
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
