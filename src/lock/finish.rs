use std::pin::Pin;
use std::task::{Context, Poll};

use tokio_util::task::TaskTracker;

/// A call that has to be finished even if nobody waits for it any more.
pub(super) type Call<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Polls `call` in place; when dropped before the end, hands what is left of it to `orphaned` and
/// runs that as a task of its own.
///
/// A request's future is dropped when its client goes away, and a timeout drops what it times.
/// A store command that was sent cannot be unsent, so somebody has to see what came of it.
pub(super) struct Finish<'a, T, O, F>
where
    O: FnOnce(Call<T>) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    call: Option<Call<T>>,
    orphaned: Option<O>,
    tasks: &'a TaskTracker,
}

impl<'a, T, O, F> Finish<'a, T, O, F>
where
    O: FnOnce(Call<T>) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    pub(super) fn new(tasks: &'a TaskTracker, call: Call<T>, orphaned: O) -> Self {
        Self { call: Some(call), orphaned: Some(orphaned), tasks }
    }
}

impl<T, O, F> Future for Finish<'_, T, O, F>
where
    O: FnOnce(Call<T>) -> F + Unpin,
    F: Future<Output = ()> + Send + 'static,
{
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        // Taken out, so that a call that panics is not polled again by the drop.
        let Some(mut call) = self.call.take() else { return Poll::Pending };
        let polled = call.as_mut().poll(cx);
        if polled.is_pending() {
            self.call = Some(call);
        }
        polled
    }
}

impl<T, O, F> Drop for Finish<'_, T, O, F>
where
    O: FnOnce(Call<T>) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    fn drop(&mut self) {
        if let (Some(call), Some(orphaned)) = (self.call.take(), self.orphaned.take()) {
            self.tasks.spawn(orphaned(call));
        }
    }
}
