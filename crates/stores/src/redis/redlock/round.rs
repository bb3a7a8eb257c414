use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, timeout_at};

use super::node::Said;
use keylatch_core::store::StoreError;

/// What one node answered, or why it did not.
pub(super) type Answer<T> = Result<Said<T>, StoreError>;

type Call<T> = Pin<Box<dyn Future<Output = (usize, Answer<T>)> + Send>>;

/// Until when a step may be sent: one that comes after its round was decided would be late for nothing.
#[derive(Debug, Clone)]
pub(super) struct Sending {
    pub(super) connect_by: Instant,
    decided: Arc<AtomicBool>,
}

impl Sending {
    /// A step that is to be sent if there is a connection by then.
    pub(super) fn by(connect_by: Instant) -> Self {
        Self { connect_by, decided: Arc::default() }
    }

    pub(super) fn is_over(&self) -> bool {
        self.decided.load(Ordering::Relaxed)
    }
}

/// Nodes that are asked all at once, until a time.
pub(super) struct Round<T> {
    calls: FuturesUnordered<Call<T>>,
    unheard: BTreeSet<usize>,
    until: Instant,
    sending: Sending,
}

impl<T> Round<T> {
    pub(super) fn new(until: Instant, sending: Sending) -> Self {
        Self { calls: FuturesUnordered::new(), unheard: BTreeSet::new(), until, sending }
    }

    /// Asks one more node.
    pub(super) fn ask(
        &mut self,
        node: usize,
        call: impl Future<Output = Answer<T>> + Send + 'static,
    ) {
        self.unheard.insert(node);
        self.calls.push(Box::pin(async move { (node, call.await) }));
    }

    /// The next answer; `None` when all have answered, or the time is over.
    pub(super) async fn next(&mut self) -> Option<(usize, Answer<T>)> {
        let (node, answer) = timeout_at(self.until, self.calls.next()).await.ok()??;
        self.unheard.remove(&node);
        Some((node, answer))
    }

    /// The nodes that have not answered.
    pub(super) fn unheard(&self) -> &BTreeSet<usize> {
        &self.unheard
    }

    /// What is left of a round that is decided: the answers to what was sent, until another time.
    pub(super) fn decided(mut self, until: Instant) -> Self {
        self.sending.decided.store(true, Ordering::Relaxed);
        self.until = until;
        self
    }

    /// When the round ends.
    pub(super) fn end(&self) -> Instant {
        self.until
    }
}
