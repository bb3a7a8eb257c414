//! The deadline of a request: how long it may take as a whole.
//!
//! A timer costs more than most requests take, so it is set only where the answer is not there at once.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::http::problem::{Code, Problem};
use keylatch_core::store::Effect;

pin_project! {
    /// The time at which a request is answered 503, whatever it has come to.
    #[derive(Debug)]
    pub(super) struct Deadline {
        end: Instant,
        #[pin]
        timer: Option<Sleep>,
    }
}

impl Deadline {
    pub(super) fn new(end: Instant) -> Self {
        Self { end, timer: None }
    }

    /// Ready with the problem when the time is over.
    pub(super) fn poll_over(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Problem> {
        let mut this = self.project();
        if this.timer.is_none() {
            this.timer.set(Some(sleep_until(*this.end)));
        }
        let timer = this.timer.as_pin_mut();
        timer.map_or(Poll::Ready(()), |timer| timer.poll(cx)).map(|()| too_slow())
    }
}

fn too_slow() -> Problem {
    Problem::new(Code::Timeout, "The request took longer than the service allows.")
        .with_outcome(Effect::Unknown)
        .with_retry_after(Duration::from_secs(1))
}
