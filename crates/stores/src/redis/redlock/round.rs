//! The nodes together: one command to all of them at once, and what outlives its round.
//!
//! A [`Round`] ends when it is decided or its time is over, so that one slow node delays nothing. A
//! command that has no connection by then is not sent any more. Tasks, each with its own end, look
//! after the replies that are still to come and the grants that nodes gave too late.
//!
//! Invariant: a node that did not reply may have executed its command, unless it was never sent. So
//! [`Round::unanswered`] goes into every tally and into every withdrawal. Tested over real nodes that
//! are slow, paused or gone, by the tests of Redlock.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bb8_redis::redis::FromRedisValue;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, timeout_at};
use tokio_util::task::TaskTracker;

use super::command::ReleaseReport;
use super::command::{LockReport, NodeCommand, ReleaseCommand};
use super::node::{Node, NodeResult, SendWindow};
use super::tally::Tally;
use crate::error::OpenError;
use crate::redis::pool;
use crate::redis::script::{Keys, RedlockScripts};
use crate::redis::tls::Security;
use crate::redis::url::ServersUrl;
use crate::settings::{RedisSettings, RedlockSettings};
use keylatch_core::lock::Ttl;
use keylatch_core::retry::Retry;

/// The fewest nodes of which a majority survives the loss of one.
const MIN_NODES: usize = 3;
/// The most nodes: each command is sent to all of them.
pub(super) const MAX_NODES: usize = 31;
const REDIS_PORT: u16 = 6379;
/// The least time that a node has for a reply.
const MIN_NODE_TIME: Duration = Duration::from_millis(5);
/// How long the service looks after replies that come after their round.
const LATE_REPLY_MAX: Duration = Duration::from_secs(5);
/// How long one try of a withdrawal may take, and the pause before the next.
const WITHDRAWAL_TRY_MAX: Duration = Duration::from_secs(5);
const WITHDRAWAL_PAUSE: Duration = Duration::from_millis(250);
/// How many tasks may look after late replies at a time. No task is started for further ones.
const MAX_TASKS: usize = 10_000;

/// All nodes, and what a command to them takes.
#[derive(Debug)]
pub(super) struct Nodes {
    pub(super) all: Vec<Node>,
    /// How many nodes decide.
    pub(super) quorum: usize,
    pub(super) keys: Keys,
    pub(super) max_ttl: Ttl,
    node_time: Duration,
    scripts: RedlockScripts,
    /// What outlives its round; each task has its own end.
    tasks: TaskTracker,
}

impl Nodes {
    /// Connects to the nodes of a `redlock://` URL.
    pub(super) async fn open(
        url: &str,
        redis: &RedisSettings,
        redlock: &RedlockSettings,
    ) -> Result<Self, OpenError> {
        let (addresses, security) = addresses(url)?;
        let quorum = quorum(redlock.quorum, addresses.len())?;
        let max_ttl = Ttl::from_millis(redlock.max_ttl_ms);
        let max_ttl = max_ttl.map_err(|error| OpenError::BadRedlock(error.to_string()))?;
        let open = |address| Node::open(address, &security, redis, max_ttl.get());
        let opening = addresses.into_iter().map(open);
        let opened: Result<_, _> = join_all(opening).await.into_iter().collect();
        Ok(Self {
            all: opened?,
            quorum,
            keys: Keys::new(&redis.key_prefix),
            max_ttl,
            node_time: Duration::from_millis(redlock.node_timeout_ms),
            scripts: RedlockScripts::new(),
            tasks: TaskTracker::new(),
        })
    }

    /// Checks a URL, the files that it names and the settings that have to fit it.
    pub(super) fn check(
        url: &str,
        redis: &RedisSettings,
        redlock: &RedlockSettings,
    ) -> Result<(), OpenError> {
        let (addresses, security) = addresses(url)?;
        quorum(redlock.quorum, addresses.len())?;
        addresses.iter().try_for_each(|(_, url)| pool::client(url, &security, redis).map(drop))
    }

    /// How long a node has for a reply to a command with this TTL: a tenth of it, within the limits.
    pub(super) fn node_time(&self, ttl: Ttl) -> Duration {
        (ttl.get() / 10).clamp(MIN_NODE_TIME, self.node_time.max(MIN_NODE_TIME))
    }

    /// The longest time that a node has for a reply.
    pub(super) fn longest_node_time(&self) -> Duration {
        self.node_time
    }

    /// Sends a command to all nodes at once.
    pub(super) fn send_to_all(
        self: &Arc<Self>,
        command: &NodeCommand,
        within: Duration,
    ) -> Round<LockReport> {
        self.send_to(0..self.all.len(), command, within)
    }

    /// Sends a command to some nodes at once.
    pub(super) fn send_to(
        self: &Arc<Self>,
        some: impl IntoIterator<Item = usize>,
        command: &NodeCommand,
        within: Duration,
    ) -> Round<LockReport> {
        self.round(some, within, |nodes, node, window| {
            let command = command.clone();
            async move {
                let call = command.call(&nodes.scripts, &nodes.keys);
                nodes.all[node].run(&call, &window).await
            }
        })
    }

    /// Ends a grant on all nodes at once.
    pub(super) fn release_on_all(
        self: &Arc<Self>,
        command: &ReleaseCommand,
        within: Duration,
    ) -> Round<ReleaseReport> {
        self.round(0..self.all.len(), within, |nodes, node, window| {
            let command = command.clone();
            async move {
                let call = command.call(&nodes.scripts, &nodes.keys);
                nodes.all[node].run(&call, &window).await
            }
        })
    }

    fn round<T, F>(
        self: &Arc<Self>,
        some: impl IntoIterator<Item = usize>,
        within: Duration,
        run: impl Fn(Arc<Self>, usize, SendWindow) -> F,
    ) -> Round<T>
    where
        T: FromRedisValue,
        F: Future<Output = NodeResult<T>> + Send + 'static,
    {
        let now = Instant::now();
        // A node that cannot be reached has executed nothing for sure, which the tally has to learn
        // before the time is over.
        let window = SendWindow::until(now + within / 2);
        let mut round = Round::new(now + within, window.clone());
        for node in some {
            round.add(node, run(Arc::clone(self), node, window.clone()));
        }
        round
    }

    /// Counts the replies of a round until it is decided.
    pub(super) async fn tally(
        &self,
        round: &mut Round<LockReport>,
        is_decided: impl Fn(&Tally) -> bool,
    ) -> Tally {
        let mut tally = Tally::new(self.all.len(), self.quorum);
        while let Some((node, reply)) = round.next().await {
            tally.add(node, reply);
            if is_decided(&tally) {
                return tally;
            }
        }
        tally.maybe_granted.extend(round.unanswered());
        tally
    }

    /// Runs a task that outlives its round, unless there are too many of them.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if self.tasks.len() < MAX_TASKS {
            self.tasks.spawn(task);
        }
    }

    /// Lets the commands of a decided round reach the nodes that have not replied.
    pub(super) fn finish<T: Send + 'static>(&self, round: Round<T>) {
        if !round.unanswered().is_empty() {
            let mut round = round.close(Instant::now() + LATE_REPLY_MAX);
            self.spawn(async move { while round.next().await.is_some() {} });
        }
    }

    /// Finishes the round of a grant: sends the accept to `rest`, and to each node that gives the
    /// lock late.
    pub(super) fn finish_grant(
        self: &Arc<Self>,
        round: Round<LockReport>,
        rest: Vec<usize>,
        accept: NodeCommand,
    ) {
        if round.unanswered().is_empty() && rest.is_empty() {
            return;
        }
        let nodes = Arc::clone(self);
        let mut round = round.close(Instant::now() + LATE_REPLY_MAX);
        self.spawn(async move {
            let mut accepts = nodes.send_to(rest, &accept, LATE_REPLY_MAX);
            while accepts.next().await.is_some() {}
            while let Some((node, reply)) = round.next().await {
                if reply.is_ok_and(|reply| reply.value.own_grant().is_some()) {
                    let mut accepts = nodes.send_to([node], &accept, LATE_REPLY_MAX);
                    accepts.next().await;
                }
            }
        });
    }

    /// Withdraws from some nodes what an attempt got there, with repeats until the limit.
    pub(super) async fn withdraw(
        self: Arc<Self>,
        some: Vec<usize>,
        withdrawal: ReleaseCommand,
        limit: Duration,
    ) {
        join_all(some.into_iter().map(|node| self.withdraw_from(node, &withdrawal, limit))).await;
    }

    async fn withdraw_from(&self, node: usize, withdrawal: &ReleaseCommand, limit: Duration) {
        let retry = Retry { try_limit: WITHDRAWAL_TRY_MAX, pause: WITHDRAWAL_PAUSE, limit };
        let (node, call) = (&self.all[node], &withdrawal.call(&self.scripts, &self.keys));
        let withdraw = || async move {
            let window = SendWindow::until(Instant::now() + WITHDRAWAL_TRY_MAX);
            node.run::<ReleaseReport>(call, &window).await
        };
        if retry.run("withdrawing a grant from a node", withdraw).await.is_none() {
            let node = &node.address;
            tracing::debug!(node, "a grant that no client has is left to expire");
        }
    }
}

/// Each node's address, for people, and its URL; and the certificates of all, of
/// `redlock://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT],…[/DB]`.
fn addresses(url: &str) -> Result<(Vec<(String, String)>, Security), OpenError> {
    let bad = |why: &str| OpenError::BadRedlock(why.to_owned());
    let url = ServersUrl::parse(url).map_err(|error| bad(error.0))?;
    let [] = url.parameters([]).map_err(|error| bad(error.0))?;
    let hosts: Vec<_> = url.hosts().iter().map(|host| host.with_port(REDIS_PORT)).collect();
    if !(MIN_NODES..=MAX_NODES).contains(&hosts.len()) {
        return Err(bad("it takes 3 to 31 nodes, with commas between them"));
    }
    if hosts.iter().collect::<BTreeSet<_>>().len() < hosts.len() {
        return Err(bad("a node is there twice, and would vote twice"));
    }
    let with_url = |host: String| (host.clone(), url.of_host(&host, url.path()));
    let nodes = hosts.into_iter().map(with_url).collect();
    Ok((nodes, url.security))
}

/// How many nodes decide: more than half of them, so that any two quorums share a node.
fn quorum(set: usize, nodes: usize) -> Result<usize, OpenError> {
    let majority = nodes / 2 + 1;
    match set {
        0 => Ok(majority),
        set if (majority..=nodes).contains(&set) => Ok(set),
        _ => {
            let rule = format!("redlock.quorum must be {majority} to {nodes}, or 0 for a majority");
            Err(OpenError::BadRedlock(rule))
        }
    }
}

type PendingReply<T> = Pin<Box<dyn Future<Output = (usize, NodeResult<T>)> + Send>>;

/// One command sent to several nodes at once, and their replies until a deadline.
pub(super) struct Round<T> {
    pending: FuturesUnordered<PendingReply<T>>,
    unanswered: BTreeSet<usize>,
    deadline: Instant,
    window: SendWindow,
}

impl<T> Round<T> {
    fn new(deadline: Instant, window: SendWindow) -> Self {
        Self { pending: FuturesUnordered::new(), unanswered: BTreeSet::new(), deadline, window }
    }

    fn add(&mut self, node: usize, reply: impl Future<Output = NodeResult<T>> + Send + 'static) {
        self.unanswered.insert(node);
        self.pending.push(Box::pin(async move { (node, reply.await) }));
    }

    /// The next reply; `None` when all nodes have replied, or the deadline is over.
    pub(super) async fn next(&mut self) -> Option<(usize, NodeResult<T>)> {
        let (node, reply) = timeout_at(self.deadline, self.pending.next()).await.ok()??;
        self.unanswered.remove(&node);
        Some((node, reply))
    }

    /// The nodes that have not replied.
    pub(super) fn unanswered(&self) -> &BTreeSet<usize> {
        &self.unanswered
    }

    /// What is left of a decided round: the replies to the commands that were sent, until another
    /// deadline. Commands that were not sent stay unsent.
    pub(super) fn close(mut self, deadline: Instant) -> Self {
        self.window.close();
        self.deadline = deadline;
        self
    }

    /// When the round ends.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quorum_below_a_majority_is_refused() {
        assert_eq!([3, 4, 5, 31].map(|nodes| quorum(0, nodes).ok()), [2, 3, 3, 16].map(Some));
        assert_eq!(quorum(4, 5).ok(), Some(4));
        for (set, nodes) in [(1, 3), (2, 4), (2, 5), (6, 5)] {
            assert!(quorum(set, nodes).is_err(), "{set} of {nodes}");
        }
    }

    #[test]
    fn node_named_twice_is_refused() {
        assert!(addresses("redlock://a,b,a:6379").is_err());
        let (nodes, _) = addresses("redlock://u:p@a,b:7000,[::1]/2").unwrap();
        assert_eq!(nodes[1], ("b:7000".to_owned(), "redis://u:p@b:7000/2".to_owned()));
        assert_eq!(nodes[2].0, "[::1]:6379");
    }
}
