//! The nodes together: one request to all of them at once, and what outlives its round.
//!
//! A [`Round`] ends when it is decided or its time is over, so that one slow node delays nothing. A
//! request that has no connection by then is not sent any more. Tasks, each with its own end, look
//! after the replies that are still to come and the grants that nodes gave too late.
//!
//! Invariant: a node that did not reply may have executed its request, unless it was never sent. So
//! [`Round::unanswered`] goes into every count and into every withdrawal. Tested over real nodes
//! that are slow, paused or gone, by the tests of Redlock.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bb8_redis::redis::ScriptInvocation;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::messages::{Message, Report, Request};
use super::node::{Node, NodeResult};
use super::votes::Votes;
use crate::conn::tls::Certificates;
use crate::error::OpenError;
use crate::redis::client::{PORT, RedisClient};
use crate::redis::script::Keys;
use crate::redis::url;
use crate::settings::{RedisSettings, RedlockSettings};
use keylatch_core::lock::{LockName, Ttl};
use keylatch_core::retry::Retry;

/// The fewest nodes of which a majority survives the loss of one.
const MIN_NODES: usize = 3;
/// The most nodes: each command is sent to all of them.
pub(super) const MAX_NODES: usize = 31;
/// The least time that a node has for a reply.
const MIN_NODE_TIME: Duration = Duration::from_millis(5);
/// How long the service looks after replies that come after their round.
const LATE_REPLY_MAX: Duration = Duration::from_secs(5);
/// How long one try of a withdrawal may take, and the pause before the next.
const WITHDRAWAL_TRY_MAX: Duration = Duration::from_secs(5);
const WITHDRAWAL_PAUSE: Duration = Duration::from_millis(250);
/// How many tasks may look after late replies at a time. No task is started for further ones.
const MAX_TASKS: usize = 10_000;

/// All nodes, and what a request to them takes.
#[derive(Debug)]
pub(super) struct Nodes {
    pub(super) all: Vec<Node>,
    /// How many nodes decide.
    pub(super) quorum: usize,
    pub(super) keys: Keys,
    pub(super) max_ttl: Ttl,
    /// The longest time that a node has for a reply.
    pub(super) longest_time: Duration,
    /// What outlives its round; each task has its own end.
    tasks: TaskTracker,
}

impl Nodes {
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
            longest_time: Duration::from_millis(redlock.node_timeout_ms),
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
        addresses.iter().try_for_each(|(_, url)| RedisClient::of(url, &security, redis).map(drop))
    }

    /// How long a node has for a reply to a command with this TTL: a tenth of it, within the
    /// limits.
    pub(super) fn node_time(&self, ttl: Ttl) -> Duration {
        (ttl.get() / 10).clamp(MIN_NODE_TIME, self.longest_time.max(MIN_NODE_TIME))
    }

    pub(super) fn send_to_all(self: &Arc<Self>, request: Request, within: Duration) -> Round {
        self.send_to(0..self.all.len(), request, within)
    }

    pub(super) fn send_to(
        self: &Arc<Self>,
        some: impl IntoIterator<Item = usize>,
        request: Request,
        within: Duration,
    ) -> Round {
        let (now, request) = (Instant::now(), Arc::new(request));
        // A node that cannot be reached has executed nothing for sure, which the count has to learn
        // before the time is over.
        let connect_by = now + within / 2;
        let mut round = Round {
            pending: FuturesUnordered::new(),
            unanswered: BTreeSet::new(),
            deadline: now + within,
            is_over: CancellationToken::new(),
        };
        for node in some {
            let (nodes, request) = (Arc::clone(self), Arc::clone(&request));
            let is_over = round.is_over.clone();
            round.unanswered.insert(node);
            round.pending.push(Box::pin(async move {
                let call = request.call(&nodes.keys);
                (node, nodes.all[node].run(&call, connect_by, &is_over).await)
            }));
        }
        round
    }

    /// Counts the replies of a round until it is decided.
    pub(super) async fn count(
        &self,
        round: &mut Round,
        is_decided: impl Fn(&Votes) -> bool,
    ) -> Votes {
        let mut votes = Votes::new(self.all.len(), self.quorum);
        while let Some((node, reply)) = round.next().await {
            votes.add(node, reply);
            if is_decided(&votes) {
                return votes;
            }
        }
        votes.maybe_done.extend(round.unanswered());
        votes
    }

    /// What all nodes say of a lock, until that is decided.
    pub(super) async fn look(
        self: &Arc<Self>,
        name: &LockName,
        is_decided: impl Fn(&Votes) -> bool,
    ) -> Votes {
        let request = Request { name: name.clone(), message: Message::Look };
        self.count(&mut self.send_to_all(request, self.longest_time), is_decided).await
    }

    /// Runs a task that outlives its round, unless there are too many of them.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if self.tasks.len() < MAX_TASKS {
            self.tasks.spawn(task);
        }
    }

    /// Lets the requests of a decided round reach the nodes that have not replied.
    pub(super) fn finish(&self, round: Round) {
        if !round.unanswered.is_empty() {
            let mut round = round.close(Instant::now() + LATE_REPLY_MAX);
            self.spawn(async move { while round.next().await.is_some() {} });
        }
    }

    /// Finishes the round of a grant: sends the accept to `rest`, and to each node that gives the
    /// lock late.
    pub(super) fn finish_grant(
        self: &Arc<Self>,
        round: Round,
        rest: BTreeSet<usize>,
        accept: Request,
    ) {
        if round.unanswered.is_empty() && rest.is_empty() {
            return;
        }
        let nodes = Arc::clone(self);
        let mut round = round.close(Instant::now() + LATE_REPLY_MAX);
        self.spawn(async move {
            let mut accepts = nodes.send_to(rest, accept.clone(), LATE_REPLY_MAX);
            while accepts.next().await.is_some() {}
            while let Some((node, reply)) = round.next().await {
                if reply.is_ok_and(|reply| reply.value.own_grant().is_some()) {
                    nodes.send_to([node], accept.clone(), LATE_REPLY_MAX).next().await;
                }
            }
        });
    }

    /// Withdraws what an attempt got, with repeats until the limit: from `some` nodes now, and from
    /// those that have not answered its last round when they do, or when its time is over. A node
    /// that was sent nothing has nothing, and would be tried in vain.
    pub(super) fn withdraw(
        self: &Arc<Self>,
        round: Round,
        some: BTreeSet<usize>,
        withdrawal: Request,
        limit: Duration,
    ) {
        if some.is_empty() && round.unanswered.is_empty() {
            return;
        }
        let (nodes, deadline) = (Arc::clone(self), round.deadline);
        let mut round = round.close(deadline);
        self.spawn(async move {
            let call = withdrawal.call(&nodes.keys);
            let from_all = |some: BTreeSet<usize>| {
                join_all(some.into_iter().map(|node| nodes.withdraw_from(node, &call, limit)))
            };
            let late = async {
                let votes = nodes.count(&mut round, |_| false).await;
                from_all(&votes.maybe_done - &some).await;
            };
            tokio::join!(from_all(some.clone()), late);
        });
    }

    async fn withdraw_from(&self, node: usize, call: &ScriptInvocation<'_>, limit: Duration) {
        let retry = Retry { try_limit: WITHDRAWAL_TRY_MAX, pause: WITHDRAWAL_PAUSE, limit };
        let node = &self.all[node];
        let withdraw = || async move {
            let connect_by = Instant::now() + WITHDRAWAL_TRY_MAX;
            node.run(call, connect_by, &CancellationToken::new()).await
        };
        if retry.run("withdrawing a grant from a node", withdraw).await.is_none() {
            let node = &node.address;
            tracing::debug!(node, "a grant that no client has is left to expire");
        }
    }
}

/// Each node's address, for people, and its URL; and the certificates of all, of
/// `redlock://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT],…[/DB]`.
fn addresses(url: &str) -> Result<(Vec<(String, String)>, Certificates), OpenError> {
    let bad = |why: &str| OpenError::BadRedlock(why.to_owned());
    let url = url::parse(url).map_err(OpenError::BadRedlock)?;
    let [] = url.parameters([]).map_err(OpenError::BadRedlock)?;
    let hosts: Vec<_> = url.hosts.iter().map(|host| host.with_port(PORT)).collect();
    if !(MIN_NODES..=MAX_NODES).contains(&hosts.len()) {
        return Err(bad("it takes 3 to 31 nodes, with commas between them"));
    }
    if hosts.iter().collect::<BTreeSet<_>>().len() < hosts.len() {
        return Err(bad("a node is there twice, and would vote twice"));
    }
    let with_url = |host: String| (host.clone(), url.of_host(&host, url.path));
    let nodes = hosts.into_iter().map(with_url).collect();
    Ok((nodes, url.certificates.unwrap_or_default()))
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

type PendingReply = Pin<Box<dyn Future<Output = (usize, NodeResult<Report>)> + Send>>;

/// One request sent to several nodes at once, and their replies until a deadline.
pub(super) struct Round {
    pending: FuturesUnordered<PendingReply>,
    unanswered: BTreeSet<usize>,
    deadline: Instant,
    /// From then on no request is sent that was not sent before.
    is_over: CancellationToken,
}

impl Round {
    /// The next reply; `None` when all nodes have replied, or the deadline is over.
    pub(super) async fn next(&mut self) -> Option<(usize, NodeResult<Report>)> {
        let (node, reply) = timeout_at(self.deadline, self.pending.next()).await.ok()??;
        self.unanswered.remove(&node);
        Some((node, reply))
    }

    pub(super) fn unanswered(&self) -> &BTreeSet<usize> {
        &self.unanswered
    }

    /// What is left of a round that is decided: the replies to the requests that were sent, until a
    /// deadline.
    fn close(mut self, deadline: Instant) -> Self {
        self.is_over.cancel();
        self.deadline = deadline;
        self
    }
}
