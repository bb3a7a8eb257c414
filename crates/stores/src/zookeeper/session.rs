//! The session with the ensemble: a connection to one member, left as soon as that member is.
//!
//! One session carries every call, pipelined. The client would go to another member by itself, one after the
//! other with growing pauses, and keep what it is given meanwhile and send it late. So each session has one
//! member. When that is gone, or silent for as long as connecting may take, the session is left, every call
//! on it is given up as lost, and the next call has a new session at whichever member takes one first. A
//! member that takes one has carried out a write, so it has a leader.
//!
//! The ensemble may have been restored from a backup in between. Where it cannot be the one of before, the
//! timeline forgets what it saw ([`Link::begin`]).
//!
//! Invariants: a call that failed in [`Link::session`] was not sent; what was given to a session that was
//! left is carried out within twice its time limit or never (`graves.rs`). Tested in
//! `tests/stores/zookeeper_faults.rs`.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use keylatch_core::store::StoreError;
use tokio::time::{Instant, timeout};
use zookeeper_client::{Client, Error, PersistentWatcher, SessionState, Stat};

use super::members::Members;
use super::tls::Tunnels;
use super::tree::{Tree, end_of};
use super::url::Address;
use crate::OpenError;
use crate::optimistic::conditional::{Key, Timeline};

/// How long a call waits for a session: shorter than a request for its answer (`store_timeout_ms`), which
/// would not know that nothing was sent.
const READY_LIMIT: Duration = Duration::from_secs(1);
/// How long a session may take that no request waits for.
const OPEN_LIMIT: Duration = Duration::from_secs(6);
/// In less time no ensemble is stopped, restored from a backup and started again.
const RESTORE_TIME: Duration = Duration::from_secs(15);

/// A session that is made when it is needed.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) members: Arc<Members>,
    _tunnels: Option<Tunnels>,
    pub(super) timeline: Timeline,
    live: Mutex<Live>,
    last: Mutex<Option<LastAnswer>>,
}

/// The session, or the opening of the next one.
#[derive(Debug, Default)]
struct Live {
    session: Option<Arc<Session>>,
    opening: Option<Opening>,
}

/// What all callers wait for that need a session.
type Opening = Shared<BoxFuture<'static, Result<Arc<Session>, Error>>>;

/// What is known of the ensemble that answered last.
#[derive(Debug, Clone, Copy)]
struct LastAnswer {
    /// The transaction that made its tree.
    tree: i64,
    /// No later than its answer.
    at: Instant,
}

/// A session.
pub(super) struct Session {
    pub(super) client: Client,
    member: usize,
    /// What it began with: the node that it wrote, and when it asked for that.
    written: (Stat, Instant),
    /// The locks whose next event is of this process's own write.
    own: Mutex<HashSet<Key>>,
    /// What all processes change, until the notices take it.
    watcher: Mutex<Option<PersistentWatcher>>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.client.session_id()).finish_non_exhaustive()
    }
}

impl Link {
    /// A link to the members of `address`, one of which may take as long as `member_limit` to answer.
    ///
    /// # Errors
    ///
    /// Connections cannot be encrypted as the address says.
    pub(super) async fn new(address: Address, member_limit: Duration) -> Result<Self, OpenError> {
        let Address { hosts, user, root, security } = address;
        let tunnels = match &security {
            Some(certificates) => Some(Tunnels::open(&hosts, certificates, member_limit).await?),
            None => None,
        };
        let entrances = tunnels.as_ref().map(|tunnels| tunnels.entrances.clone());
        let hosts = entrances.unwrap_or(hosts);
        Ok(Self {
            members: Arc::new(Members::new(hosts, Tree { root }, user, member_limit)),
            _tunnels: tunnels,
            timeline: Timeline::default(),
            live: Mutex::default(),
            last: Mutex::default(),
        })
    }

    /// The session, at a member that carries out writes; a new one if it was lost.
    ///
    /// # Errors
    ///
    /// No member carries out a write in time, or the ensemble does not let this user in.
    pub(super) async fn session(&self) -> Result<Arc<Session>, StoreError> {
        self.session_within(READY_LIMIT).await
    }

    /// The same for what no request waits for.
    ///
    /// # Errors
    ///
    /// Those of [`Link::session`].
    pub(super) async fn session_for_long(&self) -> Result<Arc<Session>, StoreError> {
        self.session_within(OPEN_LIMIT).await
    }

    async fn session_within(&self, limit: Duration) -> Result<Arc<Session>, StoreError> {
        let waiting = async {
            loop {
                let opening = match self.live_or_opening() {
                    Ok(session) => return Ok(session),
                    Err(opening) => opening,
                };
                let opened = opening.clone().await;
                self.finish(&opening, opened.as_ref().ok());
                opened.map_err(|refusal| StoreError::Refused(refusal.into()))?;
            }
        };
        timeout(limit, waiting).await.unwrap_or_else(|_| Err(self.members.silence()))
    }

    fn live_or_opening(&self) -> Result<Arc<Session>, Opening> {
        let mut live = self.live();
        if let Some(session) = live.session.take() {
            if is_connected(&session.client) {
                return Ok(Arc::clone(live.session.insert(session)));
            }
            self.members.pass_over(session.member);
        }
        let opening = || Arc::clone(&self.members).open().boxed().shared();
        Err(live.opening.get_or_insert_with(opening).clone())
    }

    /// Takes what an opening gave, unless another caller has.
    fn finish(&self, opening: &Opening, session: Option<&Arc<Session>>) {
        let mut live = self.live();
        if live.opening.take_if(|current| current.ptr_eq(opening)).is_some() {
            if let Some(session) = session {
                self.begin(session);
            }
            live.session = session.cloned();
        }
    }

    /// What `calls` on a session give, unless it loses its member first.
    ///
    /// # Errors
    ///
    /// Those of `calls`, or they are lost.
    pub(super) async fn answer<T>(
        &self,
        session: &Session,
        calls: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let asked = Instant::now();
        tokio::select! {
            biased;
            answer = calls => {
                if answer.is_ok() && let Some(last) = &mut *self.last() {
                    last.at = last.at.max(asked);
                }
                answer
            }
            () = is_lost(&session.client) => {
                Err(StoreError::Lost("the connection to the member was lost".into()))
            }
        }
    }

    /// Has later calls make another session, unless they did already.
    pub(super) fn leave(&self, session: &Arc<Session>) {
        let left = self.live().session.take_if(|live| Arc::ptr_eq(live, session));
        if let Some(left) = left {
            self.members.pass_over(left.member);
        }
    }

    /// Forgets what the timeline saw, unless it was seen of the ensemble that has just written a node. It is
    /// the same if it has the same tree, is no transaction behind, and answered so lately that an operator cannot
    /// have restored a backup since.
    fn begin(&self, session: &Session) {
        let (written, asked) = session.written;
        let mut last = self.last();
        let is_same = last.is_some_and(|last| {
            last.tree == written.czxid && asked.duration_since(last.at) < RESTORE_TIME
        });
        if !is_same || self.timeline.has_seen_beyond(end_of(written.mzxid)) {
            self.timeline.forget();
        }
        *last = Some(LastAnswer { tree: written.czxid, at: asked });
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last(&self) -> MutexGuard<'_, Option<LastAnswer>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_connected(client: &Client) -> bool {
    client.state() == SessionState::SyncConnected
}

/// Ends when the connection to the member does.
pub(super) async fn is_lost(client: &Client) {
    let mut states = client.state_watcher();
    if is_connected(client) {
        states.changed().await;
    }
}

impl Session {
    pub(super) fn new(
        client: Client,
        member: usize,
        watcher: PersistentWatcher,
        written: (Stat, Instant),
    ) -> Self {
        Self { client, member, written, own: Mutex::default(), watcher: Mutex::new(Some(watcher)) }
    }

    /// What all processes change, for the first to ask.
    pub(super) fn take_watcher(&self) -> Option<PersistentWatcher> {
        self.watcher.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Notes that this process is about to write a row, so that the event of it is no news.
    pub(super) fn expect_own(&self, key: &Key) -> OwnWrite<'_> {
        self.own().insert(key.clone());
        OwnWrite { session: self, key: Some(key.clone()) }
    }

    /// Whether the next event of a row is that of this process's own write. It counts once.
    ///
    /// If the write succeeds, the first event after its sending is its own or one that it was made upon.
    /// If it fails, the row is read in any case.
    pub(super) fn takes_as_own(&self, key: &Key) -> bool {
        self.own().remove(key)
    }

    fn own(&self) -> MutexGuard<'_, HashSet<Key>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A write of this process, whose event is expected unless it fails or nothing waits for it any more.
#[derive(Debug)]
pub(super) struct OwnWrite<'a> {
    session: &'a Session,
    key: Option<Key>,
}

impl OwnWrite<'_> {
    /// The write was carried out: its event comes, or has come.
    pub(super) fn succeeded(mut self) {
        self.key = None;
    }
}

impl Drop for OwnWrite<'_> {
    fn drop(&mut self) {
        if let Some(key) = &self.key {
            self.session.takes_as_own(key);
        }
    }
}
