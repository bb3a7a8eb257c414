//! The members of one etcd, of which one is asked at a time.
//!
//! The first to be tried is the one after the one that failed last, and the next ones soon after,
//! so that a member that is stopped costs a moment. A member is used only if it has a leader, and
//! only if it is of the same cluster as the first that was used: members of two clusters would let
//! two clients hold a lock. Invariant: a call is sent again only if it was certainly not executed.
//! Tested in `tests/stores/etcd_faults.rs`.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use keylatch_core::store::{StoreError, chain};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tonic::codegen::http::uri::Authority;
use tonic::transport::Endpoint;

use super::messages::etcdserverpb::{AuthenticateRequest, ResponseHeader, StatusResponse};
use super::session::{Call, Session};
use crate::conn::unreachable;
use crate::optimistic::conditional::Timeline;

/// How much later than the one before each member is tried.
const STAGGER: Duration = Duration::from_millis(100);
/// A member reads the two numbers one after the other, while it applies writes.
const LOG_LEAD_SLACK: i64 = 100;
/// How often a call is sent that was certainly not executed.
const TRIES: u32 = 2;
/// The oldest version that takes all that is asked of it.
const OLDEST: (u32, u32) = (3, 4);

#[derive(Debug)]
pub(super) struct Cluster {
    endpoints: Vec<Endpoint>,
    credentials: Option<AuthenticateRequest>,
    connect_limit: Duration,
    live: Mutex<Option<Arc<Session>>>,
    /// The member that is tried first.
    next: AtomicUsize,
    /// The cluster that was used first.
    id: OnceLock<u64>,
    timeline: Arc<Timeline>,
    /// Of the last session.
    log_lead: AtomicI64,
}

impl Cluster {
    pub(super) fn new(
        endpoints: Vec<Endpoint>,
        credentials: Option<AuthenticateRequest>,
        connect_limit: Duration,
        timeline: Arc<Timeline>,
    ) -> Self {
        Self {
            endpoints,
            credentials,
            connect_limit,
            live: Mutex::default(),
            next: AtomicUsize::new(0),
            id: OnceLock::new(),
            timeline,
            log_lead: AtomicI64::new(i64::MIN),
        }
    }

    /// Calls a method with the request that `request` makes just before it is sent.
    pub(super) async fn call<C: Call>(
        &self,
        mut request: impl FnMut() -> C + Send,
    ) -> Result<(C::Response, ResponseHeader, Instant), StoreError> {
        let mut tries = TRIES;
        loop {
            let session = self.session().await?;
            let error = match session.call(request()).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            // Another member would say the same of a full database.
            if !matches!(error, StoreError::Refused(_) | StoreError::Full(_)) {
                self.leave(&session).await;
            }
            tries -= 1;
            if tries == 0 || !matches!(error, StoreError::Unreachable(_)) {
                return Err(error);
            }
        }
    }

    /// Looks at every member that can be reached. It is an error if one of them must not be used.
    pub(super) async fn inspect(&self) -> Result<(), StoreError> {
        let opening = (0..self.endpoints.len()).map(|member| self.open_in_time(member));
        let refusals = join_all(opening).await.into_iter().filter_map(Result::err);
        let refusal = refusals.into_iter().find(|error| matches!(error, StoreError::Refused(_)));
        refusal.map_or(Ok(()), Err)
    }

    /// The live session, or a new one.
    pub(super) async fn session(&self) -> Result<Arc<Session>, StoreError> {
        let mut live = self.live.lock().await;
        if let Some(session) = &*live {
            return Ok(Arc::clone(session));
        }
        let session = Arc::new(self.connect().await?);
        let known = self.log_lead.swap(session.log_lead, Ordering::Relaxed);
        if session.log_lead < known.saturating_sub(LOG_LEAD_SLACK) {
            // It was restored from a backup, and has revisions of other writes under the same
            // numbers.
            self.timeline.forget();
        }
        self.next.store(session.member, Ordering::Relaxed);
        *live = Some(Arc::clone(&session));
        Ok(session)
    }

    /// Has later calls go to the next member, unless they do already.
    pub(super) async fn leave(&self, session: &Arc<Session>) {
        let mut live = self.live.lock().await;
        if live.as_ref().is_some_and(|live| Arc::ptr_eq(live, session)) {
            *live = None;
            self.next.store((session.member + 1) % self.endpoints.len(), Ordering::Relaxed);
        }
        session.left.cancel();
    }

    /// Connects to the first member that can be used.
    async fn connect(&self) -> Result<Session, StoreError> {
        let (count, first) = (self.endpoints.len(), self.next.load(Ordering::Relaxed));
        let attempts = (0..count).zip(0u32..).map(async |(place, turn)| {
            sleep(STAGGER * turn).await;
            self.open_in_time((first + place) % count).await
        });
        let mut attempts: FuturesUnordered<_> = attempts.collect();
        let mut failure = None;
        while let Some(attempt) = attempts.next().await {
            match attempt {
                Ok(session) => return Ok(session),
                // A refusal says more than a member that is down.
                Err(error) if failure.is_none() || matches!(error, StoreError::Refused(_)) => {
                    failure = Some(error);
                }
                Err(_) => {}
            }
        }
        Err(failure.unwrap_or_else(|| StoreError::Unreachable("there is no member".into())))
    }

    async fn open_in_time(&self, member: usize) -> Result<Session, StoreError> {
        let opening = timeout(self.connect_limit, self.open(member)).await;
        let server = self.endpoints[member].uri().authority().map_or("", Authority::as_str);
        match opening {
            Ok(Err(StoreError::Unreachable(why))) => Err(unreachable(server, chain(&*why))),
            Ok(opened) => opened,
            Err(late) => Err(unreachable(server, late)),
        }
    }

    /// Connects to a member, and sees whether it can be used. Nothing is executed on the way.
    async fn open(&self, member: usize) -> Result<Session, StoreError> {
        let unused = |error: StoreError| match error {
            StoreError::Refused(_) => error,
            error => StoreError::Unreachable(error.into()),
        };
        let channel = self.endpoints[member].connect().await;
        let channel = channel.map_err(|error| StoreError::Unreachable(error.into()))?;
        let mut session = Session::new(channel, member);
        if let Some(credentials) = &self.credentials {
            let (answer, ..) = session.call(credentials.clone()).await.map_err(unused)?;
            session.authorize(&answer.token)?;
        }
        let status = session.status().await.map_err(unused)?;
        session.cluster_id = self.check(&status)?;
        session.log_lead = log_lead(&status);
        Ok(session)
    }

    /// The cluster of a member that says this of itself.
    fn check(&self, status: &StatusResponse) -> Result<u64, StoreError> {
        if status.leader == 0 {
            return Err(StoreError::Unreachable("the member has no leader".into()));
        }
        if status.is_learner {
            return Err(StoreError::Unreachable("the member is a learner".into()));
        }
        if version_of(&status.version).is_some_and(|(major, minor, _)| (major, minor) < OLDEST) {
            let why = format!("etcd {} is too old: 3.4 or newer is needed", status.version);
            return Err(StoreError::Refused(why.into()));
        }
        let id = status.header.map(|header| header.cluster_id).unwrap_or_default();
        if *self.id.get_or_init(|| id) != id {
            let why = "the members are of two clusters; a cluster that was restored under a new \
                       identity needs a restart of keylatch";
            return Err(StoreError::Refused(why.into()));
        }
        Ok(id)
    }
}

/// By how many entries the member's log is ahead of its revision.
fn log_lead(status: &StatusResponse) -> i64 {
    let revision = status.header.as_ref().map_or(0, |header| header.revision);
    i64::try_from(status.raft_applied_index).unwrap_or(i64::MAX).saturating_sub(revision)
}

/// The parts of a version such as `3.5.16`.
pub(super) fn version_of(text: &str) -> Option<(u32, u32, u32)> {
    let plain = text.split(['-', '+']).next()?;
    let mut parts = plain.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??, parts.next()??))
}
