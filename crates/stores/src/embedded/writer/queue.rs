//! What waits for the writer, and who commits it: the pure half of the writer, which knows neither
//! disk nor thread.
//!
//! Where nobody leads, who queues a request appoints a leader. A task of the runtime leads one lone
//! request after a batch that was one quick request itself; in all other cases the writer's thread
//! leads. A task that has not begun may be on the worker that closes the writer, so the thread
//! leads in its place then.
//!
//! Invariants: one leads at a time; what waits has a leader; what was queued before the writer was
//! closed is taken before the thread ends. Tested below, and with threads and a disk in
//! `crates/stores/tests/faults/leader.rs`.

use std::collections::VecDeque;
use std::mem;

use keylatch_core::store::StoreError;

/// The most requests that share one transaction.
const BATCH: usize = 1024;
/// The most requests that wait for a leader: more than there are clients whose requests are served
/// at once. Each whose caller has gone stays in the queue as long as the disk hangs.
const QUEUE: usize = 16 * BATCH;

/// Requests for the next batch, and jobs for the thread.
#[derive(Debug)]
pub(super) struct Queue<W, J> {
    requests: Vec<W>,
    jobs: VecDeque<J>,
    leader: Leader,
    /// The last batch was one quick request, and the next one is likely to be.
    is_light: bool,
    /// The thread is to shorten the log.
    is_log_long: bool,
    closed: bool,
}

/// What commits the next batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leader {
    None,
    /// A task that has not begun.
    AppointedTask,
    Task,
    Thread,
}

/// Whom the caller starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Appointed {
    Task,
    Thread,
}

/// What the thread does next.
#[derive(Debug)]
pub(super) enum Turn<W> {
    Lead(Vec<W>),
    Wait,
    End,
}

impl<W, J> Queue<W, J> {
    /// An empty queue that nobody leads.
    pub(super) fn new() -> Self {
        Self {
            requests: Vec::new(),
            jobs: VecDeque::new(),
            leader: Leader::None,
            is_light: false,
            is_log_long: false,
            closed: false,
        }
    }

    /// Queues a request.
    pub(super) fn push(&mut self, request: W) -> Result<Option<Appointed>, StoreError> {
        self.check_room(self.requests.len())?;
        self.requests.push(request);
        if self.is_light && self.leader == Leader::None {
            self.leader = Leader::AppointedTask;
            return Ok(Some(Appointed::Task));
        }
        Ok(self.appoint_thread())
    }

    /// Queues a job.
    pub(super) fn push_job(&mut self, job: J) -> Result<Option<Appointed>, StoreError> {
        self.check_room(self.jobs.len())?;
        self.jobs.push_back(job);
        Ok(self.appoint_thread())
    }

    /// Fails where no more may be queued beside so many.
    fn check_room(&self, queued: usize) -> Result<(), StoreError> {
        if self.closed {
            return Err(StoreError::Unreachable("the writer has ended".into()));
        }
        if queued >= QUEUE {
            return Err(StoreError::Refused("too many requests wait for the disk".into()));
        }
        Ok(())
    }

    fn appoint_thread(&mut self) -> Option<Appointed> {
        let is_free = self.leader == Leader::None;
        is_free.then(|| {
            self.leader = Leader::Thread;
            Appointed::Thread
        })
    }

    /// The term of the appointed task begins, if it is still to lead and the request is still
    /// alone.
    pub(super) fn begin_task(&mut self) -> Option<Vec<W>> {
        if self.leader != Leader::AppointedTask || self.requests.len() > 1 {
            return None;
        }
        self.leader = Leader::Task;
        Some(mem::take(&mut self.requests))
    }

    /// The task's term is over, begun or not. Whether the thread has to be woken. Nobody is
    /// appointed meanwhile, but the thread when the writer is closed, and then no one after it.
    pub(super) fn end_task(&mut self) -> bool {
        self.resign();
        if self.is_log_long {
            self.leader = Leader::Thread;
        }
        self.leader == Leader::Thread || self.closed
    }

    /// The thread's turn.
    pub(super) fn turn(&mut self) -> Turn<W> {
        match self.leader {
            Leader::Thread if self.requests.len() <= BATCH => {
                Turn::Lead(mem::take(&mut self.requests))
            }
            Leader::Thread => Turn::Lead(self.requests.drain(..BATCH).collect()),
            Leader::None if self.closed => Turn::End,
            _ => Turn::Wait,
        }
    }

    /// Ends the leader's term. The thread leads what is left.
    pub(super) fn resign(&mut self) {
        let is_idle = self.requests.is_empty() && self.jobs.is_empty();
        self.leader = if is_idle { Leader::None } else { Leader::Thread };
    }

    /// Notes what a batch came to: jobs for the thread, whether it was one quick request, and
    /// whether it made the log long.
    pub(super) fn note(&mut self, jobs: Vec<J>, is_light: bool, is_log_long: bool) {
        self.jobs.extend(jobs);
        (self.is_light, self.is_log_long) = (is_light, is_log_long);
    }

    pub(super) fn pop_job(&mut self) -> Option<J> {
        self.jobs.pop_front()
    }

    /// Takes nothing more.
    pub(super) fn close(&mut self) {
        self.closed = true;
        if self.leader == Leader::AppointedTask {
            self.leader = Leader::Thread;
        }
    }

    /// Takes nothing more, and forgets what is queued.
    pub(super) fn abort(&mut self) {
        self.closed = true;
        self.requests.clear();
        self.jobs.clear();
    }
}

#[cfg(test)]
mod tests {
    use Event::{Close, DroppedTask, Job, Step, Task, Thread};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Event {
        /// A step is queued, or a job.
        Step,
        Job,
        /// The task begins, or has committed.
        Task,
        /// The runtime drops the task.
        DroppedTask,
        /// The thread looks what to do, or has committed.
        Thread,
        Close,
    }

    /// Few requests, so that the queue is empty most of the time.
    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            3 => Just(Step),
            2 => Just(Job),
            3 => Just(Task),
            1 => Just(DroppedTask),
            6 => Just(Thread),
            1 => Just(Close),
        ]
    }

    /// The writer without a disk: a task that was spawned, the batches that are being committed,
    /// and what was answered.
    struct Model {
        queue: Queue<usize, usize>,
        spawned: bool,
        by_task: Option<Vec<usize>>,
        by_thread: Option<Vec<usize>>,
        is_awake: bool,
        has_ended: bool,
        pushed: usize,
        answered: Vec<usize>,
    }

    impl Model {
        fn take(&mut self, event: Event) {
            match event {
                Step => {
                    let appointed = self.queue.push(self.pushed);
                    appointed.into_iter().for_each(|it| self.start(it));
                }
                Job => {
                    let appointed = self.queue.push_job(self.pushed);
                    appointed.into_iter().for_each(|it| self.start(it));
                }
                Task | DroppedTask => self.run_task(event == DroppedTask),
                Thread => self.run_thread(),
                Close => {
                    self.queue.close();
                    self.is_awake = true;
                }
            }
            assert!(self.by_task.is_none() || self.by_thread.is_none(), "two lead");
        }

        fn start(&mut self, appointed: Option<Appointed>) {
            self.pushed += 1;
            assert!(appointed != Some(Appointed::Task) || !self.spawned, "two tasks are appointed");
            self.spawned |= appointed == Some(Appointed::Task);
            self.is_awake |= appointed == Some(Appointed::Thread);
        }

        fn run_task(&mut self, is_dropped: bool) {
            if let Some(batch) = self.by_task.take() {
                self.answered.extend(batch);
            } else if mem::take(&mut self.spawned) {
                self.by_task = if is_dropped { None } else { self.queue.begin_task() };
                if self.by_task.is_some() {
                    return;
                }
            } else {
                return;
            }
            self.is_awake |= self.queue.end_task();
        }

        fn run_thread(&mut self) {
            if let Some(batch) = self.by_thread.take() {
                self.answered.extend(batch);
                self.queue.note(Vec::new(), true, false);
                self.answered.extend(self.queue.pop_job());
                self.queue.resign();
            }
            if self.is_awake {
                match self.queue.turn() {
                    Turn::Lead(batch) => self.by_thread = Some(batch),
                    Turn::Wait => self.is_awake = false,
                    Turn::End => self.has_ended = true,
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        /// Goal: no order of events has two leaders, or leaves a request without one. Method:
        /// events of chance, then task and thread run until neither has work. A task that has not
        /// begun when the writer is closed never does.
        #[test]
        fn what_is_queued_is_taken_once_by_one_leader(events in vec(event(), 0..40)) {
            let mut model = Model {
                queue: Queue::new(),
                spawned: false,
                by_task: None,
                by_thread: None,
                is_awake: false,
                has_ended: false,
                pushed: 0,
                answered: Vec::new(),
            };
            for event in events {
                model.take(event);
            }
            model.spawned &= !model.queue.closed;
            for _ in 0..40 {
                model.take(Task);
                model.take(Thread);
            }
            model.answered.sort_unstable();
            prop_assert!(model.answered.iter().copied().eq(0..model.pushed));
            prop_assert_eq!(model.has_ended, model.queue.closed, "the thread ends when it is closed");
        }
    }

    #[test]
    fn task_leads_a_lone_step_after_a_quick_one() {
        let mut queue = Queue::<u32, u32>::new();
        let first = queue.push(0).unwrap();
        assert_eq!(first, Some(Appointed::Thread), "nothing is known of the disk");
        assert!(matches!(queue.turn(), Turn::Lead(batch) if batch == [0]));
        queue.note(Vec::new(), true, false);
        queue.resign();
        assert_eq!(queue.push(1).unwrap(), Some(Appointed::Task));
        assert_eq!(queue.begin_task(), Some(vec![1]));
        assert_eq!(queue.push(2).unwrap(), None, "it has a leader");
        assert!(matches!(queue.turn(), Turn::Wait));
        assert!(queue.end_task(), "the thread leads what came meanwhile");
        assert!(matches!(queue.turn(), Turn::Lead(batch) if batch == [2]));
        queue.resign();
        assert_eq!(queue.push(3).unwrap(), Some(Appointed::Task));
        assert_eq!(queue.push(4).unwrap(), None);
        assert_eq!(queue.begin_task(), None, "it is not alone");
        assert!(queue.end_task());
        assert!(matches!(queue.turn(), Turn::Lead(batch) if batch == [3, 4]));
        queue.resign();
        assert_eq!(queue.push(5).unwrap(), Some(Appointed::Task));
        assert_eq!(queue.begin_task(), Some(vec![5]));
        queue.note(Vec::new(), true, true);
        assert!(queue.end_task(), "the thread shortens the log");
        assert!(matches!(queue.turn(), Turn::Lead(batch) if batch.is_empty()));
        queue.resign();
        assert_eq!(queue.push_job(6).unwrap(), Some(Appointed::Thread), "it is no step");
    }

    #[test]
    fn full_or_closed_queue_takes_nothing() {
        let mut queue = Queue::<usize, usize>::new();
        for number in 0..QUEUE {
            queue.push(number).unwrap();
        }
        assert!(matches!(queue.push(QUEUE), Err(StoreError::Refused(_))));
        assert!(matches!(queue.turn(), Turn::Lead(batch) if batch.len() == BATCH));
        queue.close();
        assert!(matches!(queue.push(QUEUE), Err(StoreError::Unreachable(_))));
        assert!(matches!(queue.push_job(QUEUE), Err(StoreError::Unreachable(_))));
    }
}
