use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{
    Acquired, Busy, Grant, Lease, LockError, LockName, LockService, Owner, Renewed, Request, Token,
    Ttl,
};

/// How many events may wait for whoever reads them.
const EVENTS: usize = 8;
/// The longest time between the word that a lock is lost and its release.
const MAX_GRACE: Duration = Duration::from_secs(1);
/// The longest pause between two tries of a renewal or a release.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// A lock that is to be held for as long as somebody reads what happens to it.
#[derive(Debug)]
pub struct Hold {
    /// The lock.
    pub name: LockName,
    /// The proof, with which it can be renewed and released by others too.
    pub token: Token,
    /// For how long each renewal lets the lease last.
    pub ttl: Ttl,
    /// A label for people.
    pub owner: Option<Owner>,
    /// How long to wait for it.
    pub wait: Duration,
    /// For how long it is held at most, from when it is acquired.
    pub max_hold: Duration,
}

/// What happens to a lock that is held for as long as somebody reads this.
#[derive(Debug)]
pub enum HoldEvent {
    /// The lock is not to be had yet.
    Waiting {
        /// How many are in line before.
        ahead: u64,
    },
    /// The lock is held. Its validity is counted from now.
    Acquired(Grant),
    /// The lease goes on.
    Renewed {
        /// The lease.
        lease: Lease,
        /// For how long it is exclusive, counted from now.
        valid_for: Duration,
    },
    /// The lock is lost, or will be in a moment. Nothing follows.
    Lost(Lost),
    /// The lock was never held. Nothing follows.
    Refused(Refused),
}

/// Why a lock that was held is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// It was held for as long as it may be.
    MaxHold,
    /// The service shuts down.
    Shutdown,
    /// Nobody holds it: it was released with its token, or the store forgot it.
    NotHeld,
    /// Somebody else holds it.
    TakenOver,
    /// It could not be renewed, and its validity is about to end.
    Unrenewed,
}

/// Why a lock was not acquired.
#[derive(Debug)]
pub enum Refused {
    /// It is somebody else's, or others were before, for as long as there was time to wait.
    Held(Busy),
    /// The service has no answer.
    Failed(LockError),
    /// The service shuts down.
    Shutdown,
}

impl LockService {
    /// Acquires a lock, renews it at each third of its TTL, and releases it when the receiver is
    /// dropped, when `leaving` is cancelled, or when it was held for long enough.
    ///
    /// All of it is done in a task of the service. Whoever is slow to read may miss that the lease
    /// was renewed, but not that it was acquired or lost.
    pub fn hold(
        self: &Arc<Self>,
        hold: Hold,
        leaving: CancellationToken,
    ) -> mpsc::Receiver<HoldEvent> {
        let (events, receiver) = mpsc::channel(EVENTS);
        let Hold { name, token, ttl, owner, wait, max_hold } = hold;
        let request = Request { name: name.clone(), token: Some(token.clone()), ttl, owner, wait };
        let service = Arc::clone(self);
        let holding = Holding { service, name, token, ttl, max_hold, events, leaving };
        self.streams.spawn(holding.run(request));
        receiver
    }
}

/// The task behind one [`Hold`].
struct Holding {
    service: Arc<LockService>,
    name: LockName,
    token: Token,
    ttl: Ttl,
    max_hold: Duration,
    events: mpsc::Sender<HoldEvent>,
    leaving: CancellationToken,
}

impl Holding {
    async fn run(self, request: Request) {
        // There is room for the last event whatever was not read.
        let Ok(last) = self.events.clone().reserve_owned().await else { return };
        let started = Instant::now();
        let mut grant = match self.acquire(request).await {
            None => return,
            Some(Err(refused)) => {
                last.send(HoldEvent::Refused(refused));
                return;
            }
            Some(Ok(grant)) => grant,
        };
        let until = started + grant.valid_for;
        grant.valid_for = left(until);
        self.tell(HoldEvent::Acquired(grant));
        let lost = tokio::select! {
            biased;
            () = self.events.closed() => None,
            () = self.leaving.cancelled() => Some(Lost::Shutdown),
            () = sleep(self.max_hold) => Some(Lost::MaxHold),
            lost = self.renew_until_lost(until) => Some(lost),
        };
        if let Some(lost) = lost {
            last.send(HoldEvent::Lost(lost));
            if matches!(lost, Lost::NotHeld | Lost::TakenOver) {
                return;
            }
            // Whoever reads it needs a moment to stop, and may say that it needs no more.
            let grace = self.ttl.notice().min(MAX_GRACE);
            let _ = timeout(grace, self.events.closed()).await;
        }
        self.let_go().await;
    }

    /// The lock, if it is to be had; `None` if nobody is there any more to have it. What is dropped
    /// here is given back by the service, be it the lock or a place in line.
    async fn acquire(&self, request: Request) -> Option<Result<Grant, Refused>> {
        let mut told = None;
        let tell = |busy: &Busy| {
            // One place is for the word that the lock is acquired.
            if told != Some(busy.ahead) && self.events.capacity() > 1 {
                told = Some(busy.ahead);
                self.tell(HoldEvent::Waiting { ahead: busy.ahead });
            }
        };
        let acquired = tokio::select! {
            biased;
            () = self.events.closed() => return None,
            () = self.leaving.cancelled() => return Some(Err(Refused::Shutdown)),
            acquired = self.service.acquire_telling(request, tell) => acquired,
        };
        Some(match acquired {
            Ok(Acquired::New(grant) | Acquired::Again(grant)) => Ok(grant),
            Ok(Acquired::Held(busy)) => Err(Refused::Held(busy)),
            Err(error) => Err(Refused::Failed(error)),
        })
    }

    /// Renews a lease that is valid `until` then, and says why it cannot go on any more.
    async fn renew_until_lost(&self, mut until: Instant) -> Lost {
        let ttl = self.ttl.get();
        // A third of the TTL after the grant, if all of it was left then, and else earlier.
        let mut pause = left(until).saturating_sub(ttl * 2 / 3);
        loop {
            let time = left(until).saturating_sub(self.ttl.notice());
            sleep(pause.min(time)).await;
            let asked = Instant::now();
            let time = left(until).saturating_sub(self.ttl.notice());
            if time.is_zero() {
                return Lost::Unrenewed;
            }
            let renewal = self.service.renew(&self.name, &self.token, self.ttl);
            match timeout_at(asked + time.min(ttl / 3), renewal).await {
                Ok(Ok(Renewed::Renewed { lease, valid_for })) => {
                    until = until.max(asked + valid_for);
                    self.tell(HoldEvent::Renewed { lease, valid_for: left(until) });
                    pause = (asked + ttl / 3).saturating_duration_since(Instant::now());
                    continue;
                }
                Ok(Ok(Renewed::NotHeld)) => return Lost::NotHeld,
                Ok(Ok(Renewed::Mismatch)) => return Lost::TakenOver,
                Ok(Err(error)) => tracing::debug!(%error, "a held lock is not yet renewed"),
                Err(_) => tracing::debug!("renewing a held lock is not answered"),
            }
            pause = (ttl / 20).min(MAX_PAUSE);
        }
    }

    /// Tells what need not be read.
    fn tell(&self, event: HoldEvent) {
        // Whoever does not read does not miss it.
        let _ = self.events.try_send(event);
    }

    /// Gives the lock back, trying until the lease is over by itself. The events end with the first
    /// try, whatever comes of it.
    async fn let_go(self) {
        let Self { service, name, token, ttl, events, .. } = self;
        let mut events = Some(events);
        let trying = async {
            while let Err(error) = service.release(&name, &token).await {
                drop(events.take());
                tracing::debug!(%error, "a held lock is not yet released");
                sleep(MAX_PAUSE.min(ttl.get() / 20)).await;
            }
        };
        if timeout(ttl.get(), trying).await.is_err() {
            tracing::warn!("a held lock could not be released and was left to expire");
        }
    }
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}
