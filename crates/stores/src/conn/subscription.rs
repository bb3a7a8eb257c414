//! The subscription of an engine to what other instances write, made again whenever it is over.
//!
//! While there is none, waiters and watchers poll the store. Invariant: what was written between
//! two subscriptions is missed, and one [`Notice::Missed`] says so before anything else is heard.
//! Tested in `tests/stores`, over servers that are stopped and cut off.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt as _};
use tokio::time::{Instant, sleep_until};

use crate::optimistic::conditional::Notice;

/// How far two attempts to subscribe are apart, at least.
const PAUSE: Duration = Duration::from_millis(250);

/// What an engine subscribes by.
pub(crate) trait Source: Send + Sync + 'static {
    /// A subscription that is made.
    type Subscription: Send + 'static;

    /// Subscribes from now on; if that fails, the error is for the log.
    fn subscribe(&self) -> impl Future<Output = Result<Self::Subscription, String>> + Send;
    /// What a subscription says next, which may be nothing for others; `None` where it is over.
    fn hear(
        &self,
        subscription: &mut Self::Subscription,
    ) -> impl Future<Output = Option<Vec<Notice>>> + Send;
}

/// What is heard, beginning with a subscription that is made already.
pub(crate) fn notices<S: Source>(
    source: S,
    live: Option<S::Subscription>,
) -> BoxStream<'static, Notice> {
    let listener = Listener {
        source,
        live,
        heard: VecDeque::new(),
        next_try: Instant::now(),
        has_failed: false,
    };
    stream::unfold(listener, Listener::next).boxed()
}

struct Listener<S: Source> {
    source: S,
    live: Option<S::Subscription>,
    /// What was heard and is not handed on yet.
    heard: VecDeque<Notice>,
    next_try: Instant,
    has_failed: bool,
}

impl<S: Source> Listener<S> {
    async fn next(mut self) -> Option<(Notice, Self)> {
        loop {
            if let Some(notice) = self.heard.pop_front() {
                return Some((notice, self));
            }
            match &mut self.live {
                Some(live) => match self.source.hear(live).await {
                    Some(notices) => self.heard.extend(notices),
                    None => self.live = None,
                },
                None => self.resume().await,
            }
        }
    }

    async fn resume(&mut self) {
        sleep_until(self.next_try).await;
        self.next_try = Instant::now() + PAUSE;
        match self.source.subscribe().await {
            Ok(live) => {
                (self.live, self.has_failed) = (Some(live), false);
                self.heard.push_back(Notice::Missed);
            }
            Err(error) if self.has_failed => {
                tracing::debug!(error, "there is still no subscription");
            }
            Err(error) => {
                self.has_failed = true;
                tracing::warn!(error, "no subscription: waiters and watchers poll the store");
            }
        }
    }
}
