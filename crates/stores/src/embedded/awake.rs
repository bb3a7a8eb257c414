//! Staying awake for a caller that is alone.
//!
//! A thread that sleeps has to be woken, often on a core that sleeps as well: twice for each change, which
//! is as long as half a sync of a quick disk. So while one task asks for one change after another, the writer
//! stays awake for the task's next change and, where the disk is quick, the task for the writer's answer.
//! As soon as anybody else asks for anything, no task waits awake: its thread has other work.

use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

/// For how long: what a batch on a quick disk takes, also where it takes twice as long as usual, and what a
/// client near by needs for its next request. It is longer than a task of tokio's should keep its thread to
/// itself where there are others; the first of them waits for so long at most, and ends it.
pub(super) const AWAKE: Duration = Duration::from_micros(200);

/// What is there already, or comes within [`AWAKE`].
pub(super) fn awake<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let asleep = Instant::now() + AWAKE;
    loop {
        let found = look();
        if found.is_some() || Instant::now() >= asleep {
            return found;
        }
        thread::yield_now();
    }
}

/// Who asks the store for anything.
#[derive(Debug, Default)]
pub(super) struct Callers {
    /// The task that asked last, and its complement until it has its answer; [`NOBODY`] where that says
    /// nothing.
    last: AtomicUsize,
}

const NOBODY: usize = 0;

impl Callers {
    /// Notes a call that is answered when this returns.
    pub(super) async fn passed(&self) {
        let (task, last) = (task().await, self.last.load(Ordering::Relaxed));
        // Many who read do not take what they all look at from each other.
        if ![task, NOBODY].contains(&last) {
            self.last.store(NOBODY, Ordering::Relaxed);
        }
    }

    /// Notes a call that lasts until what this gives is dropped.
    pub(super) async fn call(&self) -> Call<'_> {
        let task = task().await;
        let alone = self.last.swap(!task, Ordering::Relaxed) == task;
        Call { callers: self, task, alone }
    }
}

/// A call that is under way.
#[derive(Debug)]
pub(super) struct Call<'a> {
    callers: &'a Callers,
    task: usize,
    alone: bool,
}

impl Call<'_> {
    /// Whether the call before it was the same task's, and was over: nobody else asks for anything.
    pub(super) fn is_alone(&self) -> bool {
        self.alone
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let (last, ordering) = (&self.callers.last, Ordering::Relaxed);
        // Fails where somebody has called since.
        let _ = last.compare_exchange(!self.task, self.task, ordering, ordering);
    }
}

/// The task that polls this: what its waker knows it by.
async fn task() -> usize {
    poll_fn(|context| Poll::Ready(context.waker().data().addr())).await
}

#[cfg(test)]
mod tests {
    use tokio::spawn;

    use super::*;

    #[tokio::test]
    async fn a_task_that_asks_again_is_alone() {
        let callers = Callers::default();
        assert!(!callers.call().await.is_alone());
        assert!(callers.call().await.is_alone());
        callers.passed().await;
        assert!(callers.call().await.is_alone());
    }

    #[tokio::test]
    async fn a_task_is_not_alone_where_another_one_asks_in_between() {
        let callers: &Callers = Box::leak(Box::default());
        drop(callers.call().await);
        spawn(callers.passed()).await.unwrap();
        assert!(!callers.call().await.is_alone());
        spawn(async { drop(callers.call().await) }).await.unwrap();
        assert!(!callers.call().await.is_alone());
    }

    #[tokio::test]
    async fn a_task_is_not_alone_while_another_one_waits() {
        let callers: &Callers = Box::leak(Box::default());
        let waits = spawn(callers.call()).await.unwrap();
        let mine = callers.call().await;
        drop(waits);
        assert!(!mine.is_alone());
        drop(mine);
        assert!(callers.call().await.is_alone());
    }

    #[tokio::test]
    async fn a_task_that_asks_for_two_things_at_once_is_not_alone() {
        let callers = Callers::default();
        drop(callers.call().await);
        let (first, second) = (callers.call().await, callers.call().await);
        assert!(first.is_alone() && !second.is_alone());
    }

    #[test]
    fn what_does_not_come_is_not_waited_for() {
        assert_eq!(awake(|| None::<()>), None);
        assert_eq!(awake(|| Some("found")), Some("found"));
    }
}
