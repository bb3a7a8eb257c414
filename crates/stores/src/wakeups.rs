//! Waking the waiter whose turn it is, within one process.
//!
//! Several requests with one token share a turn, and a wakeup reaches all of them: the client of one may
//! be gone. A waiter that subscribes before it acquires misses no wakeup, because its receiver keeps
//! one that comes before the waiter listens.

use futures_util::stream;
use tokio::sync::watch;

use keylatch_core::lock::{LockName, TokenHash};
use keylatch_core::store::{Hint, Hints};
use keylatch_core::waiters::WaiterRegistry;

/// The waiters of this process, by lock and token.
#[derive(Debug, Default)]
pub(crate) struct Wakeups {
    waiters: WaiterRegistry<(LockName, TokenHash), watch::Sender<()>>,
}

impl Wakeups {
    /// A hint for each time that it may be the turn of `token` from now on.
    pub(crate) fn subscribe(&self, name: LockName, token: TokenHash) -> Hints {
        let waiter = self.waiters.join((name, token), || watch::Sender::new(()));
        let turns = waiter.subscribe();
        Box::pin(stream::unfold((waiter, turns), async |(waiter, mut turns)| {
            turns.changed().await.ok().map(|()| (Hint::Wakeup, (waiter, turns)))
        }))
    }

    /// Wakes the waiters with this token.
    pub(crate) fn wake(&self, name: &LockName, token: &TokenHash) {
        if self.waiters.is_empty() {
            return;
        }
        if let Some(waiter) = self.waiters.get(&(name.clone(), *token)) {
            waiter.send_replace(());
        }
    }

    /// Wakes all waiters, after hints may have been lost.
    #[cfg(feature = "redis")]
    pub(crate) fn wake_all(&self) {
        for waiter in self.waiters.values() {
            waiter.send_replace(());
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, StreamExt as _};
    use keylatch_core::lock::Token;

    use super::*;

    #[test]
    fn wakeup_reaches_every_waiter_with_the_token_and_is_kept_for_it() {
        let wakeups = Wakeups::default();
        let name = LockName::parse("deploy").expect("a name");
        let [token, other] = ["the-token-that-they-share", "the-token-of-another-one"]
            .map(|token| Token::parse(token).expect("a token").hash());
        let subscribe = |token| wakeups.subscribe(name.clone(), token);
        let (mut first, mut second, mut third) =
            (subscribe(token), subscribe(token), subscribe(other));
        assert!(first.next().now_or_never().is_none(), "it is not its turn yet");
        wakeups.wake(&name, &token);
        for waiter in [&mut first, &mut second] {
            assert_eq!(waiter.next().now_or_never().flatten(), Some(Hint::Wakeup));
            assert!(waiter.next().now_or_never().is_none(), "one wakeup came twice");
        }
        assert!(third.next().now_or_never().is_none(), "another token was woken");
    }
}
