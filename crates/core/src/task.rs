//! Steps that have to end although their caller went away, and steps that end at a deadline.
//!
//! A request's future is dropped when its client goes away, and a timeout drops what it times. A
//! store command that was sent cannot be unsent. So `DetachOnDrop` gives a command whose caller
//! is gone to a task. The task finishes the command and undoes its effect. The tests of acquire and
//! of idempotent runs drop their futures at each await.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::store::StoreError;

/// A future on the heap that may move between threads.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Polls a step in place; when dropped before the step's end, hands what is left of the step to
/// `undo` and runs that as a new task.
pub(crate) struct DetachOnDrop<'a, T, U, F>
where
    U: FnOnce(BoxFuture<T>) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    step: Option<BoxFuture<T>>,
    undo: Option<U>,
    tasks: &'a TaskTracker,
}

impl<'a, T, U, F> DetachOnDrop<'a, T, U, F>
where
    U: FnOnce(BoxFuture<T>) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    /// A step that is finished by `undo`, in `tasks`, when the caller drops it.
    pub(crate) fn new(tasks: &'a TaskTracker, step: BoxFuture<T>, undo: U) -> Self {
        Self { step: Some(step), undo: Some(undo), tasks }
    }
}

impl<T, U, F> Future for DetachOnDrop<'_, T, U, F>
where
    U: FnOnce(BoxFuture<T>) -> F + Unpin,
    F: Future<Output = ()> + Send + 'static,
{
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        // Taken out, so that the drop does not poll a step again that panicked.
        let Some(mut step) = self.step.take() else { return Poll::Pending };
        let polled = step.as_mut().poll(cx);
        if polled.is_pending() {
            self.step = Some(step);
        }
        polled
    }
}

impl<T, U, F> Drop for DetachOnDrop<'_, T, U, F>
where
    U: FnOnce(BoxFuture<T>) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    fn drop(&mut self) {
        if let (Some(step), Some(undo)) = (self.step.take(), self.undo.take()) {
            self.tasks.spawn(undo(step));
        }
    }
}

/// The store's answer, if it comes within `deadline`.
///
/// # Errors
///
/// The step's own error, or [`StoreError::Deadline`] when no response came in time.
pub async fn with_deadline<T>(
    deadline: Duration,
    step: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let mut step = pin!(step);
    // Memory answers at once, and then needs no timer.
    if let Poll::Ready(answer) = poll_fn(|cx| Poll::Ready(step.as_mut().poll(cx))).await {
        return answer;
    }
    timeout(deadline, step).await.unwrap_or(Err(StoreError::Deadline(deadline)))
}
