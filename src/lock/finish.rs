use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::StoreError;

/// A call that has to be finished even if nobody waits for it any more.
pub(crate) type Call<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Polls `call` in place; when dropped before the end, hands what is left of it to `orphaned` and
/// runs that as a task of its own.
///
/// A request's future is dropped when its client goes away, and a timeout drops what it times.
/// A store command that was sent cannot be unsent, so somebody has to see what came of it.
pub(crate) struct Finish<'a, T, O, F>
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
    pub(crate) fn new(tasks: &'a TaskTracker, call: Call<T>, orphaned: O) -> Self {
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

/// The store's answer, if it comes within `deadline`.
pub(crate) async fn within<T>(
    deadline: Duration,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let mut call = pin!(call);
    // Memory answers at once, and then needs no timer.
    if let Poll::Ready(answer) = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await {
        return answer;
    }
    timeout(deadline, call).await.unwrap_or(Err(StoreError::Deadline(deadline)))
}
