//! How often and how long a request is tried: until there is a response for good.
//!
//! What others have is tried until the wait is over. A failure is outlasted for as long as a
//! response may take, or the wait if that is longer. A long wait is made of several requests, each
//! shorter than what proxies let a silent connection live for; the token keeps the place in the
//! queue between them. Tested in `tests/api/rust_client.rs` and `tests/api/rust_client_ends.rs`.

use std::time::Duration;

use keylatch_wire::{Code, millis};
use tokio::time::sleep;

use crate::clock::BootInstant;
use crate::connection::{Connection, Failure};
use crate::{Error, Result};

/// How long one request waits at the service.
const REQUEST_WAIT: Duration = Duration::from_secs(50);
/// Below this, a service that refuses to let the client wait is polled instead.
const MIN_REQUEST_WAIT: Duration = Duration::from_secs(1);
/// The longest wait that the clock can count: some hundred years.
const MAX_WAIT: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The tries of one request.
pub(crate) struct Tries<'a> {
    connection: &'a Connection,
    /// When the wait is over.
    end: BootInstant,
    /// Until when a failure is outlasted.
    patience: BootInstant,
    /// When the last response has to be there.
    deadline: BootInstant,
    /// How many retries of failures are left.
    left: u32,
    /// For how long the service lets a request wait, as far as is known.
    longest: Duration,
    /// When the last try was sent, and for how long it was to wait.
    last: (BootInstant, Duration),
    /// Whether an earlier try may have been carried out.
    pub(crate) in_doubt: bool,
}

impl Failure {
    /// The same, which is not retried: no caller has so much time.
    pub(crate) fn last(self) -> Self {
        Self { retry_after: Some(MAX_WAIT), ..self }
    }
}

impl Connection {
    /// The tries of a request for which the caller waits so long, and which is worth `patience`.
    pub(crate) fn tries(&self, wait: Duration, patience: Duration) -> Tries<'_> {
        let (start, timeout) = (self.now(), self.settings.timeout);
        let end = start + wait.min(MAX_WAIT);
        let patience = end.max(start + timeout.max(patience));
        Tries {
            connection: self,
            end,
            patience,
            deadline: patience.max(end + timeout),
            left: self.settings.retries,
            longest: REQUEST_WAIT,
            last: (start, Duration::ZERO),
            in_doubt: false,
        }
    }

    /// The pause before a request is retried: as long as the service asks for, and some more.
    pub(crate) fn pause(&self, retry_after: Option<Duration>) -> Duration {
        (self.settings.pause)().saturating_add(retry_after.unwrap_or_default())
    }
}

impl Tries<'_> {
    /// For how long the service may let the next try wait, and how long that may take in all.
    pub(crate) fn next(&mut self) -> (Duration, Duration) {
        let wait = Duration::from_millis(millis(self.end.left().min(self.longest)));
        self.last = (self.connection.now(), wait);
        (wait, (wait + self.connection.settings.timeout).min(self.deadline.left()))
    }

    /// Pauses before the next try.
    ///
    /// # Errors
    ///
    /// There is none: the failure is final, or there is no time.
    pub(crate) async fn failed(&mut self, failure: Failure) -> Result<()> {
        let Failure { error, retry_after } = failure;
        let (sent, wait) = self.last;
        let problem = error.problem().filter(|_| !wait.is_zero());
        if problem.is_some_and(|problem| problem.field.as_deref() == Some("wait_ms")) {
            let shorter = self.longest / 4;
            self.longest = if shorter < MIN_REQUEST_WAIT { Duration::ZERO } else { shorter };
            return Ok(());
        }
        self.in_doubt |= error.may_be_done();
        // The service did not let it wait: what the token has of the locks already is in its own
        // way, and no release of another client changes that.
        let was_not_let = problem.is_some_and(|it| it.is(Code::LockHeld) && it.waited_ms.is_none());
        let until = match &error {
            error if was_not_let || !error.is_passing() => sent,
            error if error.is_busy() => self.end,
            _ => self.patience,
        };
        let is_busy = error.is_busy();
        let last = |error: Error| Err(if self.in_doubt { error.in_doubt() } else { error });
        if until.left().is_zero() || !is_busy && self.left == 0 {
            return last(error);
        }
        // A wait that was granted is over, and the next one begins at once.
        let has_waited = !wait.is_zero() && (sent + wait).left().is_zero();
        let pause = match retry_after.filter(|_| !error.is(Code::LockHeld)) {
            _ if is_busy && has_waited => Duration::ZERO,
            after if is_busy => self.connection.pause(after).min(until.left()),
            after => self.connection.pause(after),
        };
        // A try that has no time would say less than this one.
        let least = pause.saturating_add(self.connection.settings.timeout / 5);
        if until.left() < pause || self.deadline.left() < least {
            return last(error);
        }
        self.left -= u32::from(!is_busy);
        tracing::debug!(why = %error, "a request is tried again");
        sleep(pause).await;
        Ok(())
    }
}
