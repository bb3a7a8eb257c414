//! What other instances write, as etcd says it unasked.
//!
//! One watch has all locks. A watch ends without a word when its member is stopped, and can be cut
//! off by an election or a compaction: so a quiet one is asked how far it is, and one that ended is
//! made again, on the member that calls go to. What was written in between is missed, and the
//! notice says so. Tested in `tests/stores/etcd.rs` and `etcd_faults.rs`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use keylatch_core::store::StoreError;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::Streaming;

use super::Etcd;
use super::failure::causes;
use super::messages::etcdserverpb::watch_request::RequestUnion;
use super::messages::etcdserverpb::{
    WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
};
use super::messages::mvccpb::event::EventType;
use super::session::Session;
use super::txn::{row, version};
use crate::conn::subscription::Source;
use crate::optimistic::conditional::{Key, Notice};

/// After how long without a word the watch is asked how far it is, and how long the response may
/// take.
const SILENCE: Duration = Duration::from_secs(3);

/// A watch of all locks, for as long as its session is used.
#[derive(Debug)]
pub(super) struct Subscription {
    session: Arc<Session>,
    requests: mpsc::Sender<WatchRequest>,
    answers: Streaming<WatchResponse>,
}

impl Subscription {
    /// Watches all locks from now on.
    pub(super) async fn start(etcd: &Etcd) -> Result<Self, StoreError> {
        let session = etcd.cluster.session().await?;
        let starting = Self::start_on(Arc::clone(&session), etcd);
        let started = timeout(SILENCE, starting).await;
        let started = started.unwrap_or_else(|late| Err(StoreError::Unreachable(late.into())));
        if started.is_err() {
            etcd.cluster.leave(&session).await;
        }
        started
    }

    async fn start_on(session: Arc<Session>, etcd: &Etcd) -> Result<Self, StoreError> {
        let range = etcd.keys.range(Key::LOCKS);
        let (key, range_end) = (range.key, range.range_end);
        let create = WatchCreateRequest { key, range_end, fragment: true };
        // Room for the creation and for one question that is under way.
        let (requests, receiver) = mpsc::channel(2);
        let lost = |_| StoreError::Lost("the watch ended".into());
        let request_union = Some(RequestUnion::CreateRequest(create));
        requests.send(WatchRequest { request_union }).await.map_err(lost)?;
        let sent = stream::unfold(receiver, async |mut receiver| {
            receiver.recv().await.map(|request| (request, receiver))
        });
        let mut answers = session.watch(sent).await?;
        match answers.message().await {
            Ok(Some(answer)) if answer.created && !answer.canceled => {
                Ok(Self { session, requests, answers })
            }
            Ok(Some(answer)) => Err(StoreError::Refused(answer.cancel_reason.into())),
            Ok(None) => Err(StoreError::Lost("the watch ended".into())),
            Err(status) => Err(super::failure::classify(status)),
        }
    }

    /// The next response that says anything; `None` where the watch is over.
    async fn next(&mut self) -> Option<WatchResponse> {
        let mut was_asked = false;
        loop {
            let answer = tokio::select! {
                biased;
                () = self.session.left.cancelled() => return None,
                answer = timeout(SILENCE, self.answers.message()) => answer,
            };
            match answer {
                Ok(Ok(Some(answer))) if !answer.canceled => return Some(answer),
                Ok(_) => return None,
                Err(_) if was_asked => return None,
                Err(_) => {
                    let question = RequestUnion::ProgressRequest(WatchProgressRequest {});
                    self.requests.try_send(WatchRequest { request_union: Some(question) }).ok()?;
                    was_asked = true;
                }
            }
        }
    }
}

/// The changes by other processes, as watches say them.
impl Source for Etcd {
    type Subscription = Subscription;

    async fn subscribe(&self) -> Result<Subscription, String> {
        Subscription::start(self).await.map_err(|error| causes(&error))
    }

    /// Notes what the watch said on the timeline, and then passes it on.
    async fn hear(&self, subscription: &mut Subscription) -> Option<Vec<Notice>> {
        let answer = subscription.next().await?;
        let notices = answer.events.into_iter().filter_map(|event| {
            let is_removal = event.r#type() == EventType::Delete;
            let kv = event.kv?;
            self.timeline.note(version(kv.mod_revision));
            let key = self.keys.key(&kv.key)?;
            Some(if is_removal { Notice::Changed(key, None) } else { Notice::Row(key, row(kv)) })
        });
        Some(notices.collect())
    }
}
