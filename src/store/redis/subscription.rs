use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bb8_redis::redis::aio::PubSubStream;
use futures_util::StreamExt as _;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::script::Keys;
use super::{Settings, Topology, Turns};

/// The pause before a subscription that was lost is made anew.
const PAUSE: Duration = Duration::from_millis(250);

/// The one connection on which a store hears whose turn it is.
#[derive(Debug)]
pub(super) struct Subscription {
    topology: Arc<Topology>,
    timeout: Duration,
    keys: Arc<Keys>,
    turns: Arc<Turns>,
}

impl Subscription {
    pub(super) fn new(
        topology: &Arc<Topology>,
        settings: &Settings,
        keys: &Arc<Keys>,
        turns: &Arc<Turns>,
    ) -> Self {
        let (keys, turns) = (Arc::clone(keys), Arc::clone(turns));
        let topology = Arc::clone(topology);
        Self { topology, timeout: settings.connect_timeout(), keys, turns }
    }

    /// Passes on what is said, for ever. What is said while there is no connection is lost, and
    /// whoever waits makes up for it by asking.
    pub(super) async fn listen(self) {
        let mut quiet = false;
        for attempt in 0.. {
            match self.subscribe(attempt).await {
                Ok((said, left)) => {
                    quiet = false;
                    // Any turn may have gone unheard.
                    self.turns.call_all();
                    left.run_until_cancelled(self.pass_on(said)).await;
                }
                Err(error) if quiet => tracing::debug!(%error, "turns are still not heard of"),
                Err(error) => {
                    quiet = true;
                    tracing::warn!(%error, "turns are not heard of, and whoever waits has to ask");
                }
            }
            sleep(PAUSE).await;
        }
    }

    /// What is said, and what is cancelled when it is said somewhere else.
    async fn subscribe(
        &self,
        attempt: usize,
    ) -> Result<(PubSubStream, CancellationToken), Box<dyn Error + Send + Sync>> {
        let subscribing = async {
            let publisher = self.topology.publisher(attempt).ok_or("no master is known yet")?;
            let mut connection = publisher.client.get_async_pubsub().await?;
            connection.subscribe(self.keys.turns()).await?;
            Ok((connection.into_on_message(), publisher.left))
        };
        timeout(self.timeout, subscribing).await?
    }

    /// Passes on what is said until the connection is lost.
    async fn pass_on(&self, mut said: PubSubStream) {
        while let Some(message) = said.next().await {
            if let Some((name, token)) = self.keys.turn(message.get_payload_bytes()) {
                self.turns.call(&name, &token);
            }
        }
    }
}
