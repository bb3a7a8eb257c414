//! The session with the ensemble: a connection to one member, left as soon as that member is.
//!
//! One session carries every call, pipelined. The client would go to another member by itself and
//! send late what it was given meanwhile. So each session has one member. When that is gone, or
//! silent for as long as connecting may take, the session is left and every call on it is lost. The
//! next session is at whichever member takes one first: all are tried, one soon after the other,
//! and callers that wait share the opening, which rests when none is left. A member that takes one
//! has carried out a write, so it has a leader. Where the ensemble may have been restored from a
//! backup in between, the timeline forgets what it saw ([`Link::begin`]).
//!
//! Invariants: a call that failed in [`Link::session`] was not sent; what was given to a session
//! that was left is carried out within twice its time limit or never (`graves.rs`). Tested in
//! `tests/stores/zookeeper_faults.rs`.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use keylatch_core::store::StoreError;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::instrument::WithSubscriber as _;
use tracing::subscriber::NoSubscriber;
use zookeeper_client::{
    Acls, AddWatchMode, Client, CreateMode, CreateOptions, Error, PersistentWatcher, SessionState,
    Stat,
};

use super::failure::is_answer;
use super::tls::Tunnels;
use super::tree::{Tree, end_of};
use super::url::{Address, User, connect_string};
use crate::conn::{locked, unreachable};
use crate::error::OpenError;
use crate::optimistic::conditional::{Key, Timeline};

/// How long a call waits for a session: shorter than a request for its response
/// (`store_timeout_ms`), which would not know that nothing was sent.
const READY_LIMIT: Duration = Duration::from_secs(1);
/// How long a session may take that no request waits for.
const OPEN_LIMIT: Duration = Duration::from_secs(6);
/// In less time no ensemble is stopped, restored from a backup and started again.
const RESTORE_TIME: Duration = Duration::from_secs(15);
/// After how long without a sign of this process the ensemble ends its session: nothing that was
/// sent is carried out after that.
const SESSION_TIMEOUT: Duration = Duration::from_secs(6);
/// How much later than the one before each member is tried.
const STAGGER: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_millis(100);

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
    opening: Option<SessionFuture>,
}

/// What all callers wait for that need a session.
type SessionFuture = Shared<BoxFuture<'static, Result<Arc<Session>, Error>>>;

/// What is known of the ensemble that answered last.
#[derive(Debug, Clone, Copy)]
struct LastAnswer {
    /// The transaction that made its tree.
    tree: i64,
    /// No later than its response.
    at: Instant,
}

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
    /// A link to the members of `address`, one of which may take as long as `member_limit` to
    /// response.
    pub(super) async fn new(address: Address, member_limit: Duration) -> Result<Self, OpenError> {
        let Address { hosts, user, root, security } = address;
        let tunnels = match &security {
            Some(certificates) => Some(Tunnels::open(&hosts, certificates, member_limit).await?),
            None => None,
        };
        let entrances = tunnels.as_ref().map(|tunnels| tunnels.entrances.clone());
        let hosts = entrances.unwrap_or(hosts);
        // So that not all instances are at one member.
        let first = getrandom::u32().unwrap_or_default() as usize % hosts.len();
        let members = Members {
            hosts,
            tree: Tree { root },
            user,
            limit: member_limit,
            next: AtomicUsize::new(first),
            failure: Mutex::default(),
            failed: watch::Sender::default(),
        };
        Ok(Self {
            members: Arc::new(members),
            _tunnels: tunnels,
            timeline: Timeline::default(),
            live: Mutex::default(),
            last: Mutex::default(),
        })
    }

    /// The session, at a member that carries out writes; a new one if it was lost.
    pub(super) async fn session(&self) -> Result<Arc<Session>, StoreError> {
        self.session_within(READY_LIMIT).await
    }

    /// The same for a start, for which requests wait: no longer than until each member has failed
    /// once.
    pub(super) async fn session_at_start(&self) -> Result<Arc<Session>, StoreError> {
        let (mut failed, count) = (self.members.failed.subscribe(), self.members.hosts.len());
        tokio::select! {
            session = self.session_for_long() => session,
            _ = failed.wait_for(|failed| failed.len() == count) => Err(self.members.silence()),
        }
    }

    /// The same for what no request waits for.
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

    fn live_or_opening(&self) -> Result<Arc<Session>, SessionFuture> {
        let mut live = locked(&self.live);
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
    fn finish(&self, opening: &SessionFuture, session: Option<&Arc<Session>>) {
        let mut live = locked(&self.live);
        if live.opening.take_if(|current| current.ptr_eq(opening)).is_some() {
            if let Some(session) = session {
                self.begin(session);
            }
            live.session = session.cloned();
        }
    }

    /// What `calls` on a session give, unless it loses its member first.
    pub(super) async fn answer<T>(
        &self,
        session: &Session,
        calls: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let asked = Instant::now();
        tokio::select! {
            biased;
            answer = calls => {
                if answer.is_ok() && let Some(last) = &mut *locked(&self.last) {
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
        let left = locked(&self.live).session.take_if(|live| Arc::ptr_eq(live, session));
        if let Some(left) = left {
            self.members.pass_over(left.member);
        }
    }

    /// Forgets what the timeline saw, unless it was seen of the ensemble that has just written a
    /// node. It is the same if it has the same tree, is no transaction behind, and answered so
    /// lately that an operator cannot have restored a backup since.
    fn begin(&self, session: &Session) {
        let (written, asked) = session.written;
        let mut last = locked(&self.last);
        let is_same = last.is_some_and(|last| {
            last.tree == written.czxid && asked.duration_since(last.at) < RESTORE_TIME
        });
        if !is_same || self.timeline.has_seen_beyond(end_of(written.mzxid)) {
            self.timeline.forget();
        }
        *last = Some(LastAnswer { tree: written.czxid, at: asked });
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
    /// What all processes change, for the first to ask.
    pub(super) fn take_watcher(&self) -> Option<PersistentWatcher> {
        locked(&self.watcher).take()
    }

    /// Notes that this process is about to write a row, so that the event of it is no news.
    pub(super) fn expect_own(&self, key: &Key) -> OwnWrite<'_> {
        locked(&self.own).insert(key.clone());
        OwnWrite { session: self, key: Some(key.clone()) }
    }

    /// Whether the next event of a row is that of this process's own write. It counts once.
    ///
    /// If the write succeeds, the first event after its sending is its own or one that it was made
    /// upon. If it fails, the row is read in any case.
    pub(super) fn takes_as_own(&self, key: &Key) -> bool {
        locked(&self.own).remove(key)
    }
}

/// A write of this process, whose event is expected unless it fails or nothing waits for it any
/// more.
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

/// The members of an ensemble, and what keylatch has there.
#[derive(Debug)]
pub(super) struct Members {
    /// Where they are to be reached.
    pub(super) hosts: Vec<(String, u16)>,
    pub(super) tree: Tree,
    user: Option<User>,
    /// How long one may be silent.
    limit: Duration,
    /// The one that is tried first.
    next: AtomicUsize,
    /// Why the last one that was tried took no session.
    failure: Mutex<Option<(usize, Error)>>,
    /// Those that have failed.
    failed: watch::Sender<HashSet<usize>>,
}

impl Members {
    /// Has a member be tried last.
    pub(super) fn pass_over(&self, member: usize) {
        self.next.store((member + 1) % self.hosts.len(), Ordering::Relaxed);
    }

    /// That no member takes a session.
    pub(super) fn silence(&self) -> StoreError {
        let place = |member: usize| connect_string(&self.hosts[member]);
        match locked(&self.failure).clone() {
            Some((member, failure)) => unreachable(place(member), failure),
            None => {
                let all: Vec<_> = (0..self.hosts.len()).map(place).collect();
                unreachable(all.join(","), "no member of the ensemble replies")
            }
        }
    }

    /// A session at the member that is the first to carry out a write.
    pub(super) async fn open(self: Arc<Self>) -> Result<Arc<Session>, Error> {
        let (count, first) = (self.hosts.len(), self.next.load(Ordering::Relaxed));
        let tries = (0..count).zip(0u32..);
        let tries =
            tries.map(|(place, turn)| self.try_member((first + place) % count, STAGGER * turn));
        let mut tries: FuturesUnordered<_> = tries.collect();
        while let Some((member, opened)) = tries.next().await {
            match opened {
                Ok(session) => return Ok(Arc::new(session)),
                Err(refusal) if is_answer(&refusal) => return Err(refusal),
                Err(failure) => {
                    let mut last = locked(&self.failure);
                    *last = Some((member, failure));
                    self.failed.send_if_modified(|failed| failed.insert(member));
                }
            }
            tries.push(self.try_member(member, PAUSE));
        }
        Err(Error::NoHosts)
    }

    /// Tries a member after a rest.
    async fn try_member(&self, member: usize, rest: Duration) -> (usize, Result<Session, Error>) {
        sleep(rest).await;
        (member, self.open_at(member).await)
    }

    async fn open_at(&self, member: usize) -> Result<Session, Error> {
        let connector = Client::connector()
            .with_session_timeout(SESSION_TIMEOUT)
            .with_connection_timeout(self.limit)
            .with_fail_eagerly();
        let connector = match &self.user {
            Some(user) => connector.with_auth("digest", user.expose()),
            None => connector,
        };
        // The client warns of each try that fails, and there are thirty a second.
        let address = connect_string(&self.hosts[member]);
        let connecting = connector.connect(&address);
        let client = connecting.with_subscriber(NoSubscriber::new()).await?;
        let beginning = async {
            self.prepare(&client).await?;
            let [first, ..] = self.tree.kinds();
            let asked = Instant::now();
            let written = client.set_data(&first, &[], None).await?;
            let watching = client.watch(&self.tree.root, AddWatchMode::PersistentRecursive);
            Ok::<_, Error>((watching.await?, written, asked))
        };
        let (watcher, written, asked) = tokio::select! {
            biased;
            begun = beginning => begun?,
            () = is_lost(&client) => return Err(Error::ConnectionLoss),
        };
        let (watcher, written) = (Mutex::new(Some(watcher)), (written, asked));
        Ok(Session { client, member, written, own: Mutex::default(), watcher })
    }

    /// Makes the nodes that rows are below, and those of the floors, unless they are there.
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
