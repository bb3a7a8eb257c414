//! The session with the ensemble, made when it is needed and made again when it is lost.
//!
//! One session carries every call, pipelined; the client connects to another member by itself when its
//! own is silent for the time that connecting may take. While it has no connection it would keep calls and
//! send them later, so a call waits here until there is one, and is not sent if there is none in time. A
//! session that was lost never comes back: the next call makes a new one, and since the ensemble may have
//! been restored from a backup in between, the timeline forgets what it saw.
//!
//! Invariant: a call that failed here was not sent. Tested in `tests/stores/zookeeper`.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use keylatch_core::store::StoreError;
use tokio::time::timeout;
use zookeeper_client::{
    Acls, AddWatchMode, Client, CreateMode, CreateOptions, Error, PersistentWatcher, SessionState,
};

use super::failure::classify;
use super::tls::Tunnels;
use super::tree::Tree;
use super::url::{Address, User, connect_string};
use crate::OpenError;
use crate::optimistic::conditional::{Key, Timeline};

/// After how long without a sign of this process the ensemble ends its session: nothing that was sent is
/// carried out after that.
const SESSION_TIMEOUT: Duration = Duration::from_secs(6);
/// How long a call waits for a connection. The adapter gives a call a second more.
const READY_LIMIT: Duration = Duration::from_secs(4);

/// A session that is made when it is needed.
#[derive(Debug)]
pub(super) struct Link {
    user: Option<User>,
    /// Where the members are to be reached.
    pub(super) members: Vec<(String, u16)>,
    _tunnels: Option<Tunnels>,
    pub(super) tree: Tree,
    pub(super) timeline: Timeline,
    /// How long one member may take to answer.
    member_limit: Duration,
    live: tokio::sync::Mutex<Option<Arc<Session>>>,
}

/// A session.
pub(super) struct Session {
    pub(super) client: Client,
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
        Ok(Self {
            user,
            members: entrances.unwrap_or(hosts),
            _tunnels: tunnels,
            tree: Tree { root },
            timeline: Timeline::default(),
            member_limit,
            live: tokio::sync::Mutex::default(),
        })
    }

    /// The session, connected to a member; a new one if it was lost.
    ///
    /// # Errors
    ///
    /// No member answers in time, or the ensemble does not let this user in.
    pub(super) async fn session(&self) -> Result<Arc<Session>, StoreError> {
        let silent = || StoreError::Unreachable("no member of the ensemble answers".into());
        timeout(READY_LIMIT, self.connected()).await.unwrap_or_else(|_| Err(silent()))
    }

    async fn connected(&self) -> Result<Arc<Session>, StoreError> {
        loop {
            let session = self.live_or_new().await?;
            let mut states = session.client.state_watcher();
            let mut state = session.client.state();
            while state == SessionState::Disconnected {
                state = states.changed().await;
            }
            if !state.is_terminated() {
                return Ok(session);
            }
        }
    }

    async fn live_or_new(&self) -> Result<Arc<Session>, StoreError> {
        let mut live = self.live.lock().await;
        match &*live {
            Some(session) if !session.client.state().is_terminated() => Ok(Arc::clone(session)),
            _ => {
                *live = None;
                let session = Arc::new(self.open().await?);
                *live = Some(Arc::clone(&session));
                Ok(session)
            }
        }
    }

    /// Drops a session on which something was wrong that a new one may not have.
    pub(super) async fn forget(&self, session: &Arc<Session>) {
        let mut live = self.live.lock().await;
        if live.as_ref().is_some_and(|live| Arc::ptr_eq(live, session)) {
            *live = None;
        }
    }

    async fn open(&self) -> Result<Session, StoreError> {
        let connector = Client::connector()
            .with_session_timeout(SESSION_TIMEOUT)
            .with_connection_timeout(self.member_limit)
            .with_fail_eagerly();
        let connector = match &self.user {
            Some(user) => connector.with_auth("digest", user.expose()),
            None => connector,
        };
        let client = connector.connect(&connect_string(&self.members)).await;
        let client = client.map_err(|error| StoreError::Unreachable(error.into()))?;
        self.prepare(&client).await.map_err(not_sent)?;
        let watching = client.watch(&self.tree.root, AddWatchMode::PersistentRecursive).await;
        let watcher = watching.map_err(not_sent)?;
        self.timeline.forget();
        Ok(Session { client, own: Mutex::default(), watcher: Mutex::new(Some(watcher)) })
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

    /// Forgets which events are to come, because some may have been lost.
    pub(super) fn forget_own(&self) {
        self.own().clear();
    }

    fn own(&self) -> std::sync::MutexGuard<'_, HashSet<Key>> {
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
