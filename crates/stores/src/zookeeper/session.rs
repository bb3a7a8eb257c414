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
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use keylatch_core::store::StoreError;
use tokio::time::{Instant, sleep, timeout};
use zookeeper_client::{
    Acls, AddWatchMode, Client, CreateMode, CreateOptions, Error, PersistentWatcher, SessionState,
    Stat,
};

use super::failure::classify;
use super::tls::Tunnels;
use super::tree::{Tree, end_of};
use super::url::{Address, User, connect_string};
use crate::OpenError;
use crate::optimistic::conditional::{Key, Timeline};

/// After how long without a sign of this process the ensemble ends its session: nothing that was sent is
/// carried out after that.
const SESSION_TIMEOUT: Duration = Duration::from_secs(6);
/// How long a call waits for a session: shorter than a request for its answer (`store_timeout_ms`), which
/// would not know that nothing was sent.
const READY_LIMIT: Duration = Duration::from_secs(1);
/// How long a session may take that no request waits for.
const OPEN_LIMIT: Duration = Duration::from_secs(3);
/// How much later than the one before each member is tried.
const STAGGER: Duration = Duration::from_millis(100);
/// The pause before a member is tried again.
const PAUSE: Duration = Duration::from_millis(100);
/// In less time no ensemble is stopped, restored from a backup and started again.
const RESTORE_TIME: Duration = Duration::from_secs(15);

/// A session that is made when it is needed.
#[derive(Debug)]
pub(super) struct Link {
    user: Option<User>,
    /// Where the members are to be reached.
    pub(super) members: Vec<(String, u16)>,
    _tunnels: Option<Tunnels>,
    pub(super) tree: Tree,
    pub(super) timeline: Timeline,
    /// How long a member may be silent.
    member_limit: Duration,
    /// The member that is tried first.
    next: AtomicUsize,
    live: tokio::sync::Mutex<Option<Arc<Session>>>,
    last: Mutex<Option<LastAnswer>>,
}

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
            Some(roots) => Some(Tunnels::open(&hosts, roots, member_limit).await?),
            None => None,
        };
        let entrances = tunnels.as_ref().map(|tunnels| tunnels.entrances.clone());
        let members = entrances.unwrap_or(hosts);
        let count = members.len();
        Ok(Self {
            user,
            members,
            _tunnels: tunnels,
            tree: Tree { root },
            timeline: Timeline::default(),
            member_limit,
            next: AtomicUsize::new(getrandom::u32().unwrap_or_default() as usize % count),
            live: tokio::sync::Mutex::default(),
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
        let (mut failure, silent) = (None, "no member of the ensemble answers");
        match timeout(limit, self.live_or_new(&mut failure)).await {
            Ok(session) => session,
            Err(_) => Err(failure.unwrap_or_else(|| StoreError::Unreachable(silent.into()))),
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

    async fn live_or_new(
        &self,
        failure: &mut Option<StoreError>,
    ) -> Result<Arc<Session>, StoreError> {
        let mut live = self.live.lock().await;
        if let Some(session) = live.as_ref().filter(|session| is_connected(&session.client)) {
            return Ok(Arc::clone(session));
        }
        if let Some(left) = live.take() {
            self.pass_over(&left);
        }
        let session = Arc::new(self.open(failure).await?);
        *live = Some(Arc::clone(&session));
        Ok(session)
    }

    /// Has later calls make another session, unless they did already.
    pub(super) async fn leave(&self, session: &Arc<Session>) {
        let mut live = self.live.lock().await;
        if live.as_ref().is_some_and(|live| Arc::ptr_eq(live, session)) {
            *live = None;
            self.pass_over(session);
        }
    }

    /// Has the member of a session be tried last.
    fn pass_over(&self, session: &Session) {
        self.next.store((session.member + 1) % self.members.len(), Ordering::Relaxed);
    }

    /// A session at the member that is the first to carry out a write. `failure` gets what the last one
    /// said that did not.
    async fn open(&self, failure: &mut Option<StoreError>) -> Result<Session, StoreError> {
        let (count, first) = (self.members.len(), self.next.load(Ordering::Relaxed));
        let tries = (0..count).zip(0u32..);
        let tries =
            tries.map(|(place, turn)| self.try_member((first + place) % count, STAGGER * turn));
        let mut tries: FuturesUnordered<_> = tries.collect();
        while let Some((member, opened)) = tries.next().await {
            match opened {
                Ok((session, stat)) => {
                    self.begin(&stat);
                    return Ok(session);
                }
                Err(error @ StoreError::Refused(_)) => return Err(error),
                Err(error) => *failure = Some(error),
            }
            tries.push(self.try_member(member, PAUSE));
        }
        Err(StoreError::Unreachable("there is no member".into()))
    }

    /// Tries a member after a rest. Gives the node as well that it wrote.
    async fn try_member(
        &self,
        member: usize,
        rest: Duration,
    ) -> (usize, Result<(Session, Stat), StoreError>) {
        sleep(rest).await;
        (member, self.open_at(member).await)
    }

    async fn open_at(&self, member: usize) -> Result<(Session, Stat), StoreError> {
        let connector = Client::connector()
            .with_session_timeout(SESSION_TIMEOUT)
            .with_connection_timeout(self.member_limit)
            .with_fail_eagerly();
        let connector = match &self.user {
            Some(user) => connector.with_auth("digest", user.expose()),
            None => connector,
        };
        let client = connector.connect(&connect_string(&self.members[member])).await;
        let client = client.map_err(|error| StoreError::Unreachable(error.into()))?;
        let beginning = async {
            self.prepare(&client).await?;
            let [first, ..] = self.tree.kinds();
            let stat = client.set_data(&first, &[], None).await?;
            let watching = client.watch(&self.tree.root, AddWatchMode::PersistentRecursive);
            Ok((watching.await?, stat))
        };
        let (watcher, stat) = tokio::select! {
            biased;
            begun = beginning => begun.map_err(not_sent)?,
            () = is_lost(&client) => return Err(not_sent(Error::ConnectionLoss)),
        };
        let watcher = Mutex::new(Some(watcher));
        Ok((Session { client, member, own: Mutex::default(), watcher }, stat))
    }

    /// Forgets what the timeline saw, unless it was seen of the ensemble that has just written a node. It is
    /// the same if it has the same tree, is no transaction behind, and answered so lately that nobody can
    /// have restored a backup since.
    fn begin(&self, written: &Stat) {
        let mut last = self.last();
        let is_same =
            last.is_some_and(|last| last.tree == written.czxid && last.at.elapsed() < RESTORE_TIME);
        if !is_same || self.timeline.has_seen_beyond(end_of(written.mzxid)) {
            self.timeline.forget();
        }
        *last = Some(LastAnswer { tree: written.czxid, at: Instant::now() });
    }

    fn last(&self) -> MutexGuard<'_, Option<LastAnswer>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the nodes that rows are below, and those of the floors, unless they are there.
    ///
    /// # Errors
    ///
    /// A request failed.
    pub(super) async fn prepare(&self, client: &Client) -> Result<(), Error> {
        let options = self.options();
        for kind in self.tree.kinds() {
            let there: HashSet<String> = match client.list_children(&kind).await {
                Ok(there) => there.into_iter().collect(),
                Err(Error::NoNode) => {
                    client.mkdir(&kind, &options).await?;
                    HashSet::new()
                }
                Err(error) => return Err(error),
            };
            let buckets = (0..=u8::MAX).map(|bucket| format!("{bucket:02x}"));
            let missing = buckets.filter(|bucket| !there.contains(bucket));
            let missing: Vec<_> = missing.map(|bucket| format!("{kind}/{bucket}")).collect();
            for made in
                join_all(missing.iter().map(|node| client.create(node, &[], &options))).await
            {
                match made {
                    Ok(_) | Err(Error::NodeExists) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// How nodes are made: for this user alone, if there is one.
    pub(super) fn options(&self) -> CreateOptions<'static> {
        let is_named = self.user.is_some();
        let acls = if is_named { Acls::creator_all() } else { Acls::anyone_all() };
        CreateMode::Persistent.with_acls(acls)
    }
}

fn is_connected(client: &Client) -> bool {
    client.state() == SessionState::SyncConnected
}

/// Ends when the connection to the member does.
async fn is_lost(client: &Client) {
    let mut states = client.state_watcher();
    if is_connected(client) {
        states.changed().await;
    }
}

/// What an error before the first call says of that call: it was not sent.
fn not_sent(error: Error) -> StoreError {
    match classify(error) {
        refused @ StoreError::Refused(_) => refused,
        error => StoreError::Unreachable(error.into()),
    }
}

impl Session {
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
