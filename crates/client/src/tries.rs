//! How often and how long a request is tried: until there is a response for good.
//!
//! What others have is tried until the wait is over. A failure is outlasted for as long as a
//! response may take, or the wait if that is longer. A long wait is made of several requests, each
//! shorter than what proxies let a silent connection live for; the token keeps the place in the
//! queue between them. Tested in `tests/api/rust_client.rs` and `crates/client/tests/fake.rs`.

use std::time::Duration;

use keylatch_wire::{Code, millis};
use tokio::time::sleep;

use crate::Error;
use crate::clock::BootInstant;
use crate::connection::{Connection, Failure};

/// How long one request waits at the service. The next request keeps the place in the queue.
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
    pub(crate) async fn failed(&mut self, failure: Failure) -> Result<(), Error> {
        let Failure { error, retry_after } = failure;
        let (sent, wait) = self.last;
        let field = error.problem().and_then(|problem| problem.field.as_deref());
        if field == Some("wait_ms") && !wait.is_zero() {
            let shorter = self.longest / 4;
            self.longest = if shorter < MIN_REQUEST_WAIT { Duration::ZERO } else { shorter };
            return Ok(());
        }
        self.in_doubt |= error.may_be_done();
        let until = match &error {
            error if !error.is_passing() || error.is_final(wait) => sent,
            error if error.is_busy() => self.end,
            _ => self.patience,
        };
        // A wait that was granted is over, and the next one begins at once.
        let has_waited = !wait.is_zero() && (sent + wait).left().is_zero();
        let pause = match retry_after.filter(|_| !error.is(Code::LockHeld)) {
            _ if error.is_busy() && has_waited => Duration::ZERO,
            after if error.is_busy() => self.connection.pause(after).min(until.left()),
            after => self.connection.pause(after),
        };
        // A try that has no time would say less than this one.
        let least = pause.saturating_add(self.connection.settings.timeout / 5);
        let is_late =
            until.left().is_zero() || until.left() < pause || self.deadline.left() < least;
        if is_late || !error.is_busy() && self.left == 0 {
            return Err(if self.in_doubt { error.in_doubt() } else { error });
        }
        self.left -= u32::from(!error.is_busy());
        event!(debug, why = %error, "a request is tried again");
        sleep(pause).await;
        Ok(())
    }
}
