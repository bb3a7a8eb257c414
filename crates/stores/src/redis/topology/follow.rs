use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bb8_redis::redis::{FromRedisValue, ScriptInvocation};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::super::OpenError;
use super::super::replicas::NeedsReplicas;
use super::super::shared::{Failure, Redirect};
use super::cluster::Cluster;
use super::node::{Map, Node, View, Way};
use super::sentinel::{Sentinels, Silence};

/// How often it is asked who is master when nobody hints at a change.
const PERIOD: Duration = Duration::from_secs(1);
/// The least pause between two questions.
const BREATH: Duration = Duration::from_millis(25);
/// For how long it is believed who is master without having asked: more than pass between two
/// questions that nobody answers, so that only a process that did not run believes nothing.
const BELIEF: Duration = Duration::from_millis(2500);
/// For how long a step that was not executed is tried elsewhere or again: less than the default
/// `store_timeout_ms`, so that whoever asked is told that it was not executed.
const PATIENCE: Duration = Duration::from_millis(1500);
/// The pause before a step is tried again, unless somebody else becomes master sooner.
const PAUSE: Duration = Duration::from_millis(50);

/// Who knows who is master of what.
#[derive(Debug)]
pub(super) enum Guide {
    Sentinels(Sentinels),
    Cluster(Cluster),
}

impl Guide {
    async fn ask(&mut self) -> Result<View, Silence> {
        match self {
            Self::Sentinels(sentinels) => sentinels.ask().await,
            Self::Cluster(cluster) => cluster.ask().await,
        }
    }

    /// Resolves when something may have changed.
    async fn hint(&mut self) {
        match self {
            Self::Sentinels(sentinels) => sentinels.hint().await,
            // Whoever is asked for what it does not have says so.
            Self::Cluster(_) => pending().await,
        }
    }
}

/// What was found out last.
#[derive(Debug, Clone)]
struct Known {
    map: Arc<Map>,
    /// When the last question began that was answered, or stayed without an answer.
    asked: Instant,
}

impl Known {
    /// Whether the process was stopped since it was asked who is master.
    fn is_old(&self) -> bool {
        self.asked.elapsed() > BELIEF
    }
}

/// The masters as they are now, found out by a task that follows those who know.
#[derive(Debug)]
pub(in super::super) struct Followed {
    known: watch::Receiver<Known>,
    /// Has the task ask at once.
    doubt: Arc<Notify>,
    _following: AbortOnDropHandle<()>,
}

impl Followed {
    /// # Errors
    ///
    /// All who know say that the configuration is wrong, or a master is not fit. That nobody can be
    /// reached is no error.
    pub(super) async fn open(mut guide: Guide, way: Arc<Way>) -> Result<Self, OpenError> {
        let asked = Instant::now();
        let view = match guide.ask().await {
            Ok(view) => Some(view),
            Err(error @ (Silence::Unknown(_) | Silence::Refused(_))) => {
                return Err(OpenError::Unfit(error.to_string()));
            }
            Err(error) => {
                tracing::warn!(%error, "Redis cannot be reached yet");
                None
            }
        };
        for (address, _) in view.iter().flat_map(|view| &view.masters) {
            way.check(address).await?;
        }
        let map = view.as_ref().map(|view| Map::default().turned_into(view, &way));
        let (told, known) = watch::channel(Known { map: map.unwrap_or_default().into(), asked });
        let doubt = Arc::new(Notify::new());
        let following = follow(guide, way, view, told, Arc::clone(&doubt));
        let following = AbortOnDropHandle::new(tokio::spawn(following));
        Ok(Self { known, doubt, _following: following })
    }

    /// Runs a script where its bucket is. What was not executed is tried again for a while.
    pub(super) async fn run<T: FromRedisValue + NeedsReplicas>(
        &self,
        bucket: u8,
        call: &ScriptInvocation<'_>,
    ) -> Result<T, Failure> {
        let until = Instant::now() + PATIENCE;
        let mut changing = self.known.clone();
        let mut redirect: Option<Redirect> = None;
        loop {
            let known = changing.borrow_and_update().clone();
            let (node, asking) = match &redirect {
                None => (known.map.owner(bucket), false),
                Some(redirect) => (known.map.at(&redirect.address), redirect.asking),
            };
            let failure = match node {
                _ if known.is_old() => {
                    self.doubt.notify_one();
                    Failure::Unreachable("its master is asked for anew".into())
                }
                None => Failure::Unreachable("no master of it is known yet".into()),
                Some(node) => match self.run_on(&node, call, asking, until).await {
                    Ok(found) => return Ok(found),
                    Err(failure) => failure,
                },
            };
            if !failure.may_pass() || Instant::now() + PAUSE >= until {
                return Err(failure);
            }
            let was_redirected = redirect.is_some();
            redirect = failure.redirect();
            if was_redirected || redirect.is_none() {
                drop(timeout(PAUSE, changing.changed()).await);
            }
        }
    }

    pub(super) fn map(&self) -> Arc<Map> {
        Arc::clone(&self.known.borrow().map)
    }

    async fn run_on<T: FromRedisValue + NeedsReplicas>(
        &self,
        node: &Node,
        call: &ScriptInvocation<'_>,
        asking: bool,
        until: Instant,
    ) -> Result<T, Failure> {
        let ran = match timeout_at(until, node.pool.check_out()).await {
            Ok(Ok(shared)) if asking => shared.run_asking(call).await,
            Ok(Ok(shared)) => shared.run(call).await,
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(Failure::Unreachable("no connection in time".into())),
        };
        if let Err(failure) = &ran {
            self.doubt.notify_one();
            if failure.is_demotion() {
                // The others of its connections lead to the same server.
                node.leave();
            }
        }
        ran
    }
}

/// Keeps the map true, for ever.
async fn follow(
    mut guide: Guide,
    way: Arc<Way>,
    mut view: Option<View>,
    told: watch::Sender<Known>,
    doubt: Arc<Notify>,
) {
    let mut quiet = false;
    loop {
        let hint = async {
            tokio::select! {
                () = doubt.notified() => {}
                () = guide.hint() => {}
            }
        };
        drop(timeout(PERIOD, hint).await);
        let asked = Instant::now();
        let mut map = Arc::clone(&told.borrow().map);
        match guide.ask().await {
            Ok(found) => {
                quiet = false;
                if view.as_ref() != Some(&found) || !map.is_whole() {
                    tracing::info!(masters = ?found.masters, "Redis has these masters now");
                    map = Arc::new(map.turned_into(&found, &way));
                    view = Some(found);
                }
            }
            Err(error) if quiet => tracing::debug!(%error, "the masters are still not known"),
            Err(error) => {
                quiet = true;
                tracing::warn!(%error, "the masters that were known last are used");
            }
        }
        // Those who know may all be away while a master is well, so their silence is no reason to stop.
        told.send_replace(Known { map, asked });
        sleep(BREATH).await;
    }
}
