//! The masters as they are now, followed by a task of their own.
//!
//! The task looks up the masters once a second, and at once when a sentinel publishes a change or a
//! command fails as if the master had changed. A command that was not executed is tried again, on
//! the master that is known by then, for up to [`FAILOVER_WAIT_MAX`].
//!
//! Invariant: a process that did not run for a while sends nothing to a master of before. What it
//! knows is older than [`TOPOLOGY_MAX_AGE`] then, and a source has to name the masters first.
//! Tested over real failovers, by the tests of Sentinel and of Cluster.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bb8_redis::redis::{FromRedisValue, ScriptInvocation};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::super::client::RedisClient;
use super::super::connection::ScriptReply;
use super::super::failure::{Failure, Redirect};
use super::super::pool;
use super::cluster::Cluster;
use super::masters::{Master, MasterMap, TopologyView};
use super::sentinel::Sentinels;
use super::source::MasterLookupError;
use crate::error::OpenError;
use crate::settings::RedisSettings;

/// How often the masters are looked up when no hint comes.
const LOOKUP_PERIOD: Duration = Duration::from_secs(1);
/// The least pause between two lookups.
const POLL_INTERVAL: Duration = Duration::from_millis(25);
/// For how long a lookup counts: longer than two lookups in a row without a reply take, so that
/// only a process that did not run is without masters.
const TOPOLOGY_MAX_AGE: Duration = Duration::from_millis(2500);
/// For how long a command that was not executed is tried again: less than the default
/// `store_timeout_ms`, so that the caller reads that it was not executed.
const FAILOVER_WAIT_MAX: Duration = Duration::from_millis(1500);
/// The pause before a command is tried again, unless the masters change sooner.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// The servers that know which server is master of what.
#[derive(Debug)]
pub(super) enum Discovery {
    /// One master has all buckets, and sentinels name it.
    Sentinels(Sentinels),
    /// Each master has some slots, and every node knows of all.
    Cluster(Cluster),
}

impl Discovery {
    /// What names the masters of a URL, and a client of any of them; `None` of the URL of one
    /// server.
    pub(super) fn of(
        url: &str,
        settings: &RedisSettings,
    ) -> Result<Option<(Self, RedisClient)>, OpenError> {
        let scheme = url.split(':').next().unwrap_or_default();
        Ok(if scheme.ends_with("+sentinel") {
            let (sentinels, client) = Sentinels::parse(url, settings)?;
            Some((Self::Sentinels(sentinels), client))
        } else if scheme.ends_with("+cluster") {
            let (cluster, client) = Cluster::parse(url, settings)?;
            Some((Self::Cluster(cluster), client))
        } else {
            None
        })
    }

    async fn look_up(&mut self, client: &RedisClient) -> Result<TopologyView, MasterLookupError> {
        match self {
            Self::Sentinels(sentinels) => sentinels.look_up().await,
            Self::Cluster(cluster) => cluster.look_up(client).await,
        }
    }

    /// Resolves when something may have changed.
    async fn hint(&mut self) {
        match self {
            Self::Sentinels(sentinels) => sentinels.hint().await,
            // A cluster publishes nothing; a node redirects a command on keys that it has not.
            Self::Cluster(_) => pending().await,
        }
    }
}

#[derive(Debug, Clone)]
struct Lookup {
    map: Arc<MasterMap>,
    /// When it began. A lookup without a reply counts too, unless the process did not run before
    /// it.
    begun: Instant,
}

impl Lookup {
    /// Whether the process did not run since.
    fn is_old(&self) -> bool {
        self.begun.elapsed() > TOPOLOGY_MAX_AGE
    }
}

/// The masters as they are now, and the task that follows them.
#[derive(Debug)]
pub(in super::super) struct DynamicTopology {
    latest: watch::Receiver<Lookup>,
    /// Whether each bucket may have a master of its own.
    pub(super) is_cluster: bool,
    /// Has the task look up the masters at once.
    lookup_now: Arc<Notify>,
    _following: AbortOnDropHandle<()>,
}

impl DynamicTopology {
    /// Looks up the masters, and follows them from then on. Servers that do not reply are no error.
    pub(super) async fn open(
        mut discovery: Discovery,
        client: RedisClient,
    ) -> Result<Self, OpenError> {
        let (begun, is_cluster) = (Instant::now(), matches!(discovery, Discovery::Cluster(_)));
        let view = match discovery.look_up(&client).await {
            Ok(view) => Some(view),
            Err(error) if error.is_misconfiguration() => {
                return Err(OpenError::UnfitRedis(error.to_string()));
            }
            Err(error) => {
                tracing::warn!(%error, "Redis cannot be reached yet");
                None
            }
        };
        for (address, _) in view.iter().flat_map(|view| &view.masters) {
            pool::check(client.at(address)).await?;
        }
        let map = view.as_ref().map(|view| MasterMap::default().updated(view, &client));
        let lookup = Lookup { map: map.unwrap_or_default().into(), begun };
        let (sender, latest) = watch::channel(lookup);
        let lookup_now = Arc::new(Notify::new());
        let following = follow(discovery, client, view, sender, Arc::clone(&lookup_now));
        let following = AbortOnDropHandle::new(tokio::spawn(following));
        Ok(Self { latest, is_cluster, lookup_now, _following: following })
    }

    /// Runs a script on the master of its bucket. A command that was not executed is tried again
    /// for a while.
    pub(super) async fn run<T: FromRedisValue + ScriptReply>(
        &self,
        bucket: u8,
        call: &ScriptInvocation<'_>,
    ) -> Result<T, Failure> {
        let until = Instant::now() + FAILOVER_WAIT_MAX;
        let mut changes = self.latest.clone();
        let mut redirect: Option<Redirect> = None;
        loop {
            let latest = changes.borrow_and_update().clone();
            let (master, asking) = match &redirect {
                None => (latest.map.owner(bucket), false),
                Some(redirect) => (latest.map.at(&redirect.address), redirect.asking),
            };
            let failure = match master {
                _ if latest.is_old() => {
                    self.lookup_now.notify_one();
                    Failure::Unreachable("its master is looked up again".into())
                }
                None => Failure::Unreachable("no master of it is known yet".into()),
                Some(master) => match self.run_on(&master, call, asking, until).await {
                    Ok(found) => return Ok(found),
                    Err(failure) => failure,
                },
            };
            if !failure.may_pass() || Instant::now() + RETRY_PAUSE >= until {
                return Err(failure);
            }
            let was_redirected = redirect.is_some();
            redirect = failure.redirect();
            if was_redirected || redirect.is_none() {
                drop(timeout(RETRY_PAUSE, changes.changed()).await);
            }
        }
    }

    pub(super) fn map(&self) -> Arc<MasterMap> {
        Arc::clone(&self.latest.borrow().map)
    }

    async fn run_on<T: FromRedisValue + ScriptReply>(
        &self,
        master: &Master,
        call: &ScriptInvocation<'_>,
        asking: bool,
        until: Instant,
    ) -> Result<T, Failure> {
        let ran = match timeout_at(until, master.pool.check_out()).await {
            Ok(Ok(shared)) => shared.run(call, asking).await,
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(Failure::Unreachable("no connection in time".into())),
        };
        if let Err(failure) = &ran {
            self.lookup_now.notify_one();
            if failure.is_demotion() {
                // Its other connections lead to the same server.
                master.retire();
            }
        }
        ran
    }
}

/// Keeps the latest lookup true, for ever.
async fn follow(
    mut discovery: Discovery,
    client: RedisClient,
    mut view: Option<TopologyView>,
    latest: watch::Sender<Lookup>,
    lookup_now: Arc<Notify>,
) {
    let mut has_failed = false;
    loop {
        let hint = async {
            tokio::select! {
                () = lookup_now.notified() => {}
                () = discovery.hint() => {}
            }
        };
        drop(timeout(LOOKUP_PERIOD, hint).await);
        let mut lookup = latest.borrow().clone();
        let (begun, did_not_run) = (Instant::now(), lookup.is_old());
        match discovery.look_up(&client).await {
            Ok(found) => {
                has_failed = false;
                lookup.begun = begun;
                if view.as_ref() != Some(&found) || !lookup.map.is_whole() {
                    tracing::info!(masters = ?found.masters, "Redis has these masters now");
                    lookup.map = Arc::new(lookup.map.updated(&found, &client));
                    view = Some(found);
                }
            }
            Err(error) if has_failed => tracing::debug!(%error, "the masters are still not known"),
            Err(error) if did_not_run => {
                has_failed = true;
                tracing::warn!(%error, "no master is used until a source names it again");
            }
            Err(error) => {
                has_failed = true;
                tracing::warn!(%error, "the masters that were known last are used");
            }
        }
        // All sources may be away while a master is well. But what was known before the process was
        // stopped may be a master of before.
        if !did_not_run {
            lookup.begun = begun;
        }
        latest.send_replace(lookup);
        sleep(POLL_INTERVAL).await;
    }
}
