//! A step that is tried until the store answers it, until an end.
//!
//! Each try has its own limit, because a store that hangs answers none. Between two tries there is
//! a pause with jitter, so that the callers that lost the same store do not all come back at once.
//! When the end comes first, the caller logs it: the caller knows what that means.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

/// How long one try of a step may take that no caller waits for.
pub(crate) const TRY_LIMIT: Duration = Duration::from_secs(5);
/// The pause between two tries of such a step.
pub(crate) const PAUSE: Duration = Duration::from_millis(250);
/// The longest pause between two tries of a step that is tried without an end.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// When a step whose response was lost is undone again.
const AFTER_LOST: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// How often and for how long a step is tried.
#[derive(Debug, Clone, Copy)]
pub struct Retry {
    /// How long one try may take.
    pub try_limit: Duration,
    /// The pause between two tries; up to a quarter is added at random.
    pub pause: Duration,
    /// How long all tries may take together.
    pub limit: Duration,
}

impl Retry {
    /// The value of the first try that succeeds; `None` when none did until the end. `what` says in
    /// the log what was tried.
    pub async fn run<T, E, F>(self, what: &'static str, mut step: impl FnMut() -> F) -> Option<T>
    where
        E: Display,
        F: Future<Output = Result<T, E>>,
    {
        let end = Instant::now() + self.limit;
        loop {
            match timeout_at(end.min(Instant::now() + self.try_limit), step()).await {
                Ok(Ok(value)) => return Some(value),
                Ok(Err(error)) => tracing::debug!(%error, what, "a step is tried again"),
                Err(_) => tracing::debug!(what, "a step got no answer and is tried again"),
            }
            let pause = with_jitter(self.pause);
            if Instant::now() + pause >= end {
                return None;
            }
            sleep(pause).await;
        }
    }
}

/// Tries a step until it succeeds, however long that takes. The pauses become longer.
pub(crate) async fn until_done<T, E, F>(what: &'static str, mut step: impl FnMut() -> F) -> T
where
    E: Display,
    F: Future<Output = Result<T, E>>,
{
    let mut pause = PAUSE;
    loop {
        let retry = Retry { try_limit: TRY_LIMIT, pause, limit: TRY_LIMIT };
        if let Some(value) = retry.run(what, &mut step).await {
            return value;
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Undoes a step of which only the answer is known to be lost: at once, and twice later, because
/// the step itself may still be on its way to the store, behind the first undoing.
pub(crate) async fn undo_lost<F: Future<Output = ()>>(mut undo: impl FnMut() -> F) {
    undo().await;
    for pause in AFTER_LOST {
        sleep(pause).await;
        undo().await;
    }
}

/// A pause that is longer by up to a quarter.
pub fn with_jitter(pause: Duration) -> Duration {
    pause + random_part_of(pause / 4)
}

/// Some part of a pause, at random.
pub fn random_part_of(pause: Duration) -> Duration {
    // Without random bytes all pauses are alike, which is no more than a herd.
    let random = getrandom::u32().unwrap_or_default();
    pause.mul_f64(f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRY: Retry = Retry {
        try_limit: Duration::from_secs(5),
        pause: Duration::from_millis(250),
        limit: Duration::from_secs(60),
    };

    #[tokio::test(start_paused = true)]
    async fn first_success_ends_the_tries() {
        let mut tries = 0;
        let step = || {
            tries += 1;
            std::future::ready(if tries < 3 { Err("not yet") } else { Ok(tries) })
        };
        assert_eq!(RETRY.run("a test", step).await, Some(3));
    }

    #[tokio::test(start_paused = true)]
    async fn step_that_hangs_is_given_up_at_the_limit() {
        let begun = Instant::now();
        let step = std::future::pending::<Result<(), &str>>;
        assert_eq!(RETRY.run("a test", step).await, None);
        assert!(begun.elapsed() <= RETRY.limit);
        assert!(begun.elapsed() > RETRY.limit - RETRY.try_limit - RETRY.pause * 2);
    }
}
