//! How a session is made: at the member that is the first to carry out a write.
//!
//! All members are tried, one soon after the other, and again until one takes a session or the ensemble
//! refuses this user. Callers that wait share one such opening. It does not end when one of them leaves,
//! and it rests when none is left. Tested in `tests/stores/zookeeper_faults.rs`.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use keylatch_core::store::StoreError;
use tokio::time::{Instant, sleep};
use tracing::instrument::WithSubscriber as _;
use tracing::subscriber::NoSubscriber;
use zookeeper_client::{Acls, AddWatchMode, Client, CreateMode, CreateOptions, Error};

use super::failure::is_answer;
use super::session::{Session, is_lost};
use super::tree::Tree;
use super::url::{User, connect_string};

/// After how long without a sign of this process the ensemble ends its session: nothing that was sent is
/// carried out after that.
const SESSION_TIMEOUT: Duration = Duration::from_secs(6);
/// How much later than the one before each member is tried.
const STAGGER: Duration = Duration::from_millis(100);
/// The pause before a member is tried again.
const PAUSE: Duration = Duration::from_millis(100);

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
    failure: Mutex<Option<Error>>,
}

impl Members {
    /// Members of which each may be silent for as long as `limit`.
    pub(super) fn new(
        hosts: Vec<(String, u16)>,
        tree: Tree,
        user: Option<User>,
        limit: Duration,
    ) -> Self {
        // So that not all instances are at one member.
        let first = getrandom::u32().unwrap_or_default() as usize % hosts.len();
        Self { hosts, tree, user, limit, next: AtomicUsize::new(first), failure: Mutex::default() }
    }

    /// Has a member be tried last.
    pub(super) fn pass_over(&self, member: usize) {
        self.next.store((member + 1) % self.hosts.len(), Ordering::Relaxed);
    }

    /// That no member takes a session.
    pub(super) fn silence(&self) -> StoreError {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let silent = || "no member of the ensemble answers".into();
        StoreError::Unreachable(failure.map_or_else(silent, Into::into))
    }

    /// A session at the member that is the first to carry out a write.
    ///
    /// # Errors
    ///
    /// The ensemble refuses this user.
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
                    let mut last = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                    *last = Some(failure);
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
        Ok(Session::new(client, member, watcher, (written, asked)))
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
