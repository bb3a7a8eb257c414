//! What a connection is doing, and how long it may do that: the timeouts that only its client can end.
//!
//! hyper has one timeout for the head and for idling, and sets a timer for each request. Here a request
//! writes down a few numbers as it goes by, and its connection looks at them now and then. The service's
//! own time never counts against the client. Tested in `tests/api/connections.rs` and `slow_readers.rs`.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// How long a connection may be in each phase that only its client can end.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectionTimeouts {
    /// Until the first byte.
    pub(super) first_byte: Duration,
    /// From the first byte of a request's head to its last.
    pub(super) head: Duration,
    /// Between an answer and the next request, in which the client reads the answer.
    pub(super) keep_alive: Duration,
    /// While the client reads nothing of what it is sent.
    pub(super) write: Duration,
    /// Between the service's end of the connection and the client's.
    pub(super) leave: Duration,
}

impl ConnectionTimeouts {
    /// How often a connection that is being served is looked at.
    pub(super) fn shortest(&self) -> Duration {
        self.first_byte.min(self.head).min(self.keep_alive).min(self.write).min(self.leave)
    }
}

/// What a connection is doing, and since when.
#[derive(Debug)]
pub(super) struct ConnectionPhases {
    opened: Instant,
    phase: AtomicU8,
    /// Milliseconds after `opened`.
    since: AtomicU64,
    /// Since when nothing more can be written, likewise; [`FLOWING`] if it can.
    stuck: AtomicU64,
    /// The client has ended its side. Its last bytes may be unread.
    gone: AtomicBool,
}

/// The client of a request went away before the request was served.
#[derive(Debug, thiserror::Error)]
#[error("the client is gone")]
pub(super) struct ClientGone;

const FRESH: u8 = 0;
const IDLE: u8 = 1;
const HEAD: u8 = 2;
const BUSY: u8 = 3;
const LEAVING: u8 = 4;
const FLOWING: u64 = u64::MAX;

impl ConnectionPhases {
    pub(super) fn new() -> Self {
        Self {
            opened: Instant::now(),
            phase: AtomicU8::new(FRESH),
            since: AtomicU64::new(0),
            stuck: AtomicU64::new(FLOWING),
            gone: AtomicBool::new(false),
        }
    }

    /// The service has a request.
    ///
    /// # Errors
    ///
    /// Its client has ended its side already.
    pub(super) fn busy(&self) -> Result<(), ClientGone> {
        if self.gone.load(Ordering::Acquire) {
            return Err(ClientGone);
        }
        // How long this lasts is the service's affair, so the time does not matter.
        self.phase.store(BUSY, Ordering::Release);
        Ok(())
    }

    /// The client has ended its side. Gives whether the service is at work for it: no other request
    /// will be served, and what was answered is still sent.
    pub(super) fn gone(&self) -> bool {
        self.gone.store(true, Ordering::Release);
        self.phase.load(Ordering::Acquire) == BUSY
    }

    /// The service has answered, to the end.
    pub(super) fn idle(&self) {
        self.enter(IDLE);
    }

    /// When the time of the phase is over unless something happens; `None` while the service works. Looking again at that time, or when the service is done, is early enough.
    pub(super) fn deadline(&self, timeouts: &ConnectionTimeouts) -> Option<Instant> {
        let limit = match self.phase.load(Ordering::Acquire) {
            FRESH => Some(timeouts.first_byte),
            IDLE => Some(timeouts.keep_alive),
            HEAD => Some(timeouts.head),
            LEAVING => Some(timeouts.leave),
            _ => None,
        };
        let after = |millis| self.opened + Duration::from_millis(millis);
        let phase = limit.map(|limit| after(self.since.load(Ordering::Acquire)) + limit);
        let stuck = match self.stuck.load(Ordering::Acquire) {
            FLOWING => None,
            since => Some(after(since) + timeouts.write),
        };
        phase.into_iter().chain(stuck).min()
    }

    /// A write was taken, or not: then the client has to read before another can be.
    pub(super) fn wrote(&self, taken: bool) {
        if taken {
            self.stuck.store(FLOWING, Ordering::Release);
        } else if self.stuck.load(Ordering::Acquire) == FLOWING {
            self.stuck.store(self.now(), Ordering::Release);
        }
    }

    pub(super) fn received(&self) {
        if matches!(self.phase.load(Ordering::Acquire), FRESH | IDLE) {
            self.enter(HEAD);
        }
    }

    /// The service has ended its side.
    pub(super) fn leaving(&self) {
        self.enter(LEAVING);
    }

    fn enter(&self, phase: u8) {
        self.since.store(self.now(), Ordering::Release);
        self.phase.store(phase, Ordering::Release);
    }

    fn now(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
    }
}
