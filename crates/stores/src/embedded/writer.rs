use std::collections::BTreeMap;
use std::io;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::answers::Answers;
use super::awake::{AWAKE, Callers, awake};
use super::engine::{Changes, Engine, Failure, Probing};
use super::job::{Batch, Durable, Forget, Job, Probe, Run, Tidy};
use crate::table::Table;
use keylatch_core::lock::{Moment, StoreError};

/// The most commands that share one transaction.
const BATCH: usize = 1024;
/// How long the writer may take to end.
const END: Duration = Duration::from_millis(900);

/// The one thread that changes the file and the table.
#[derive(Debug)]
pub(super) struct Writer {
    /// `None` once the writer is told to end.
    jobs: Option<mpsc::Sender<Asked>>,
    /// Also those that are answered without the writer.
    pub(super) callers: Callers,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
    /// Disconnected when the thread has ended.
    ended: Mutex<mpsc::Receiver<()>>,
}

/// What the writer is to do.
struct Asked {
    job: Box<dyn Job>,
    /// Who waits for it is awake.
    awake: bool,
}

/// How the writer is doing.
#[derive(Debug, Default)]
struct State {
    /// The last transaction was not kept.
    unwell: AtomicBool,
    /// The disk may have changes that the table does not.
    in_doubt: AtomicBool,
    /// The last batch took no longer than its caller stays awake.
    quick: AtomicBool,
    /// The file has more room than it needs.
    untidy: AtomicBool,
}

impl Writer {
    /// Starts the writer; it has to be called within a tokio runtime that has I/O.
    pub(super) fn start(table: Arc<Table>, engine: Engine) -> io::Result<Self> {
        let (jobs, waiting) = mpsc::channel();
        let (ending, ended) = mpsc::channel();
        let state = Arc::new(State::default());
        let runtime = Handle::current();
        let answers = Answers::start(&runtime)?;
        let work = Work { table, engine, state: Arc::clone(&state), answers };
        let thread =
            thread::Builder::new().name("keylatch-writer".to_owned()).spawn(move || {
                // The table's clock is the runtime's.
                let _runtime = runtime.enter();
                work.run(&waiting);
                drop(ending);
            })?;
        Ok(Self {
            jobs: Some(jobs),
            callers: Callers::default(),
            state,
            thread: Some(thread),
            ended: Mutex::new(ended),
        })
    }

    /// Whether the table says all that the disk does.
    pub(super) fn is_certain(&self) -> bool {
        self.is_alive() && !self.state.in_doubt.load(Ordering::Acquire)
    }

    /// Carries a rule out and waits until that is on disk.
    pub(super) async fn run<E, O, F>(&self, key: E::Key, rule: F) -> Result<O, StoreError>
    where
        E: Durable,
        O: Send + 'static,
        F: Fn(&E, &Moment) -> (E, O) + Send + 'static,
    {
        let state = PhantomData;
        self.submit(|answer| Box::new(Run { key, rule, state, outcome: None, answer })).await
    }

    /// Forgets those that are still expired, and writes down what has ended by itself.
    pub(super) async fn forget<E: Durable>(&self, keys: Vec<E::Key>) -> Result<(), StoreError> {
        self.submit(|answer| Box::new(Forget::<E> { keys, answer })).await
    }

    /// Whether the last transaction was kept; if not, tries whether there is room again. Waits for
    /// what is being written, so that there is no answer while the disk hangs.
    pub(super) async fn probe(&self) -> Result<(), StoreError> {
        let writes = self.state.unwell.load(Ordering::Acquire);
        self.submit(|answer| Box::new(Probe { writes, answer })).await
    }

    /// Takes a step towards a file without room that it does not need. Whether there are more.
    pub(super) async fn tidy(&self) -> Result<bool, StoreError> {
        self.submit(|answer| Box::new(Tidy { answer })).await?;
        Ok(self.state.untidy.load(Ordering::Acquire))
    }

    fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    async fn submit<T>(
        &self,
        job: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Box<dyn Job>,
    ) -> Result<T, StoreError> {
        let (answer, mut answered) = oneshot::channel();
        let call = self.callers.call().await;
        let waits_awake = call.is_alone() && self.state.quick.load(Ordering::Relaxed);
        let asked = Asked { job: job(answer), awake: waits_awake };
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send(asked).is_ok());
        if !sent {
            return Err(StoreError::Unreachable("the writer has ended".into()));
        }
        if waits_awake && let Some(answer) = awake(|| answered.try_recv().ok()) {
            return answer;
        }
        answered.await.unwrap_or_else(|_| Err(StoreError::Lost("the writer has ended".into())))
    }
}

impl Drop for Writer {
    /// Ends the writer after what it was given, so that the file is closed when this returns; a
    /// disk that hangs does not hold the process.
    fn drop(&mut self) {
        self.jobs = None;
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if ended.recv_timeout(END) == Err(mpsc::RecvTimeoutError::Timeout) {
            tracing::warn!("the disk gives no answer; what was not answered may not be kept");
        } else if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the writer ended by a panic");
        }
    }
}

/// What is asked next; `None` once nobody can ask any more.
fn next(waiting: &mpsc::Receiver<Asked>, stay_awake: bool) -> Option<Asked> {
    let soon = stay_awake.then(|| awake(|| waiting.try_recv().ok())).flatten();
    soon.or_else(|| waiting.recv().ok())
}

struct Work {
    table: Arc<Table>,
    engine: Engine,
    state: Arc<State>,
    answers: Answers,
}

impl Work {
    /// Takes what waits, batch by batch, until nobody can ask any more.
    fn run(mut self, waiting: &mpsc::Receiver<Asked>) {
        let mut one_by_one = false;
        while let Some(first) = next(waiting, one_by_one) {
            let started = Instant::now();
            let rest = waiting.try_iter().take(BATCH - 1).map(|asked| asked.job);
            let mut jobs: Vec<_> = std::iter::once(first.job).chain(rest).collect();
            one_by_one = jobs.len() == 1;
            let kept = self.commit(&mut jobs);
            self.note(&kept);
            let kept = kept.map(|_| ());
            let answer = move || jobs.into_iter().for_each(|job| job.answer(&kept));
            self.state.quick.store(started.elapsed() < AWAKE, Ordering::Relaxed);
            if one_by_one && first.awake {
                answer();
            } else {
                self.answers.send(answer);
            }
            if let Err(failure) = self.engine.shorten_log() {
                self.note(&Err(failure));
            }
        }
    }

    /// Puts what the jobs come to on disk and then in the table. Whether there was anything to
    /// write.
    fn commit(&mut self, jobs: &mut [Box<dyn Job>]) -> Result<bool, Failure> {
        match self.engine.settle() {
            Ok(kept) => kept.into_iter().for_each(|kept| self.install(kept)),
            Err(error) => return Err(Failure::InDoubt(error.to_string())),
        }
        self.state.in_doubt.store(false, Ordering::Release);
        let changes = Changes::default();
        let mut batch = Batch { table: &self.table, changes, probing: false, tidying: false };
        for job in jobs {
            job.stage(&mut batch);
        }
        let Batch { changes, probing, tidying, .. } = batch;
        if probing {
            for probe in [Probing::Write, Probing::TakeAway] {
                self.engine.commit(&Changes { probe: Some(probe), ..Changes::default() })?;
            }
        }
        // What a batch takes back itself leaves nothing to write.
        let durable = self.changes_any(&changes.locks)
            || self.changes_any(&changes.records)
            || !self.engine.has_room_for(changes.last_fence());
        if durable {
            self.engine.commit(&changes)?;
        }
        self.install(changes);
        if tidying {
            self.tidy();
        }
        Ok(probing || durable)
    }

    /// Whether the disk says something else of any of them.
    fn changes_any<E: Durable>(&self, changed: &BTreeMap<E::Key, E>) -> bool {
        changed.iter().any(|(key, state)| !state.is_written_as(&self.table.look::<E>(key).0))
    }

    /// What fails here takes nothing back of what was kept.
    fn tidy(&mut self) {
        let tidied = self.engine.tidy();
        self.state.untidy.store(matches!(tidied, Ok(true)), Ordering::Release);
        if let Err(failure) = tidied {
            self.note(&Err(failure));
        }
    }

    fn install(&self, changes: Changes) {
        for (bucket, fence) in changes.fences {
            self.table.raise(bucket, fence);
        }
        for (name, state) in changes.locks {
            self.table.install(&name, state);
        }
        for (key, state) in changes.records {
            self.table.install(&key, state);
        }
    }

    /// Remembers how the batch went, before anybody is answered. One that had nothing to write says
    /// nothing of the disk.
    fn note(&self, kept: &Result<bool, Failure>) {
        if matches!(kept, Err(Failure::InDoubt(_))) {
            self.state.in_doubt.store(true, Ordering::Release);
        }
        match kept {
            Err(Failure::NotKept(error) | Failure::InDoubt(error)) => {
                if !self.state.unwell.swap(true, Ordering::AcqRel) {
                    tracing::error!(error, "changes cannot be kept on disk");
                }
            }
            Ok(true) => {
                if self.state.unwell.swap(false, Ordering::AcqRel) {
                    tracing::info!("changes are kept on disk again");
                }
            }
            Ok(false) => {}
        }
    }
}
