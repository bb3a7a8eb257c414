use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bb8_redis::redis::aio::PubSubStream;
use futures_util::StreamExt as _;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::said::Said;
use super::script::Keys;
use super::watching::Watching;
use super::{Settings, Topology, Wakeups};

/// The pause before a subscription that was lost is made anew.
const PAUSE: Duration = Duration::from_millis(250);

/// A subscription and what is cancelled when it is said somewhere else, or why there is none.
pub(super) type Subscribed =
    Result<(PubSubStream, CancellationToken), Box<dyn Error + Send + Sync>>;

/// The one connection on which a store hears whose turn it is, and what happens to locks that are
/// watched.
#[derive(Debug)]
pub(super) struct Subscription {
    topology: Arc<Topology>,
    timeout: Duration,
    keys: Arc<Keys>,
    wakeups: Arc<Wakeups>,
    watching: Arc<Watching>,
}

impl Subscription {
    pub(super) fn new(
        topology: &Arc<Topology>,
        settings: &Settings,
        keys: &Arc<Keys>,
        wakeups: &Arc<Wakeups>,
        watching: &Arc<Watching>,
    ) -> Self {
        let (keys, wakeups, watching) =
            (Arc::clone(keys), Arc::clone(wakeups), Arc::clone(watching));
        let topology = Arc::clone(topology);
        Self { topology, timeout: settings.connect_timeout(), keys, wakeups, watching }
    }

    /// Passes on what is said, for ever, beginning with the `first` subscription. What is said while
    /// there is no connection is lost, and whoever waits or watches makes up for it by asking.
    pub(super) async fn listen(self, first: Subscribed) {
        let (mut quiet, mut subscribed) = (false, first);
        for attempt in 1.. {
            match subscribed {
                Ok((said, retired)) => {
                    quiet = false;
                    // Any turn may have gone unheard.
                    self.wakeups.wake_all();
                    self.watching.missed();
                    retired.run_until_cancelled(self.pass_on(said)).await;
                }
                Err(error) if quiet => tracing::debug!(%error, "turns are still not heard of"),
                Err(error) => {
                    quiet = true;
                    tracing::warn!(%error, "turns are not heard of, and whoever waits has to ask");
                }
            }
            sleep(PAUSE).await;
            subscribed = self.subscribe(attempt).await;
        }
    }

    /// One try to hear what is said.
    pub(super) async fn subscribe(&self, attempt: usize) -> Subscribed {
        let subscribing = async {
            let publisher = self.topology.publisher(attempt).ok_or("no master is known yet")?;
            let mut connection = publisher.client.get_async_pubsub().await?;
            connection.subscribe(&[self.keys.turns(), self.keys.changes()]).await?;
            Ok((connection.into_on_message(), publisher.retired))
        };
        timeout(self.timeout, subscribing).await?
    }

    /// Passes on what is said until the connection is lost.
    async fn pass_on(&self, mut said: PubSubStream) {
        while let Some(message) = said.next().await {
            let payload = message.get_payload_bytes();
            if let Some((name, token)) = self.keys.turn(payload) {
                self.wakeups.wake(&name, &token);
                continue;
            }
            match Said::parse(&self.keys, payload) {
                Some(Said::Watched(name)) => self.watching.heard(name),
                Some(Said::Changed(name, change)) => self.watching.tell(&name, change),
                None => {}
            }
        }
    }
}
