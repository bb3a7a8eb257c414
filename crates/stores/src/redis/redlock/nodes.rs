use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bb8_redis::redis::FromRedisValue;
use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::TaskTracker;

use super::RedlockSettings;
use super::count::Count;
use super::node::Node;
use super::round::{Answer, Round, Sending};
use super::step::{Return, Step};
use super::vote::Vote;
use crate::OpenError;
use crate::redis::Settings;
use crate::redis::reply::Reply;
use crate::redis::script::{Keys, Scripts};
use crate::redis::url::{MultiHostUrl, with_port};
use keylatch_core::lock::Ttl;

/// The fewest nodes of which a majority survives the loss of one.
const MIN_NODES: usize = 3;
/// The most nodes: each command is sent to all of them.
pub(super) const MAX_NODES: usize = 31;
const REDIS_PORT: u16 = 6379;
/// The least time that a node is given for an answer.
const LEAST_NODE_TIME: Duration = Duration::from_millis(5);
/// How long steps whose answers are not waited for may go on.
const LATE: Duration = Duration::from_secs(5);
/// How long one try of taking a grant back may take, and the pause before the next.
const TRY_LIMIT: Duration = Duration::from_secs(5);
const TRY_PAUSE: Duration = Duration::from_millis(250);
/// How many tasks may look after late answers before further ones are left to themselves.
const MAX_TASKS: usize = 10_000;

/// The servers, and what is needed to ask them.
#[derive(Debug)]
pub(super) struct Nodes {
    pub(super) all: Vec<Node>,
    pub(super) quorum: usize,
    pub(super) keys: Keys,
    pub(super) max_ttl: Ttl,
    node_time: Duration,
    scripts: Scripts,
    /// What goes on after its request was answered; each task has an end of its own.
    tasks: TaskTracker,
}

impl Nodes {
    pub(super) async fn open(
        url: &str,
        redis: &Settings,
        redlock: &RedlockSettings,
    ) -> Result<Self, OpenError> {
        let addresses = addresses(url)?;
        let quorum = quorum(redlock.quorum, addresses.len())?;
        let max_ttl = Ttl::from_millis(redlock.max_ttl_ms);
        let max_ttl = max_ttl.map_err(|error| OpenError::BadRedlock(error.to_string()))?;
        let opening =
            addresses.into_iter().map(|address| Node::open(address, redis, max_ttl.get()));
        let opened: Result<_, _> = join_all(opening).await.into_iter().collect();
        Ok(Self {
            all: opened?,
            quorum,
            keys: Keys::new(&redis.key_prefix),
            max_ttl,
            node_time: Duration::from_millis(redlock.node_timeout_ms),
            scripts: Scripts::new(),
            tasks: TaskTracker::new(),
        })
    }

    /// How long a node is given for an answer: a share of the TTL, and no longer than the settings say.
    pub(super) fn node_time(&self, ttl: Ttl) -> Duration {
        (ttl.get() / 10).clamp(LEAST_NODE_TIME, self.node_time.max(LEAST_NODE_TIME))
    }

    /// The longest time that a node is given for an answer.
    pub(super) fn longest_node_time(&self) -> Duration {
        self.node_time
    }

    /// Asks all nodes at once.
    pub(super) fn ask_all(self: &Arc<Self>, step: &Step, within: Duration) -> Round<Vote> {
        self.ask(0..self.all.len(), step, within)
    }

    /// Asks some nodes at once.
    pub(super) fn ask(
        self: &Arc<Self>,
        some: impl IntoIterator<Item = usize>,
        step: &Step,
        within: Duration,
    ) -> Round<Vote> {
        self.round(some, within, |nodes, node, sending| {
            let step = step.clone();
            async move {
                let call = step.call(&nodes.scripts, &nodes.keys);
                nodes.all[node].ask(&call, &sending).await
            }
        })
    }

    /// Asks all nodes at once for a lock back.
    pub(super) fn return_to_all(self: &Arc<Self>, step: &Return, within: Duration) -> Round<Reply> {
        self.round(0..self.all.len(), within, |nodes, node, sending| {
            let step = step.clone();
            async move {
                let call = step.call(&nodes.scripts, &nodes.keys);
                nodes.all[node].ask(&call, &sending).await
            }
        })
    }

    fn round<T, F>(
        self: &Arc<Self>,
        some: impl IntoIterator<Item = usize>,
        within: Duration,
        ask: impl Fn(Arc<Self>, usize, Sending) -> F,
    ) -> Round<T>
    where
        T: FromRedisValue,
        F: Future<Output = Answer<T>> + Send + 'static,
    {
        let now = Instant::now();
        // A node that cannot be reached has surely done nothing: that is to be known before the time is
        // over.
        let sending = Sending::by(now + within / 2);
        let mut round = Round::new(now + within, sending.clone());
        for node in some {
            round.ask(node, ask(Arc::clone(self), node, sending.clone()));
        }
        round
    }

    /// Counts the answers of a round until more would decide nothing.
    pub(super) async fn count(
        &self,
        round: &mut Round<Vote>,
        decided: impl Fn(&Count) -> bool,
    ) -> Count {
        let mut count = Count::new(self.all.len(), self.quorum);
        while let Some((node, answer)) = round.next().await {
            count.add(node, answer);
            if decided(&count) {
                return count;
            }
        }
        count.suspects.extend(round.unheard());
        count
    }

    /// Runs a task that nobody waits for, unless there are too many of them.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if self.tasks.len() < MAX_TASKS {
            self.tasks.spawn(task);
        }
    }

    /// Has the rest of a round go on although it is decided.
    pub(super) fn finish<T: Send + 'static>(&self, round: Round<T>) {
        if !round.unheard().is_empty() {
            let mut round = round.decided(Instant::now() + LATE);
            self.spawn(async move { while round.next().await.is_some() {} });
        }
    }

    /// The same for a grant, which is to have its fencing token wherever it comes late.
    pub(super) fn finish_grant(
        self: &Arc<Self>,
        round: Round<Vote>,
        unsettled: Vec<usize>,
        settle: Step,
    ) {
        if round.unheard().is_empty() && unsettled.is_empty() {
            return;
        }
        let (nodes, mut round) = (Arc::clone(self), round.decided(Instant::now() + LATE));
        self.spawn(async move {
            let mut settling = nodes.ask(unsettled, &settle, LATE);
            while settling.next().await.is_some() {}
            while let Some((node, answer)) = round.next().await {
                if answer.is_ok_and(|said| said.what.mine().is_some()) {
                    let mut settling = nodes.ask([node], &settle, LATE);
                    settling.next().await;
                }
            }
        });
    }

    /// Takes back from some nodes what an attempt got there, trying again until the limit.
    pub(super) async fn take_back(
        self: Arc<Self>,
        some: Vec<usize>,
        step: Return,
        limit: Duration,
    ) {
        join_all(some.into_iter().map(|node| self.take_back_from(node, &step, limit))).await;
    }

    async fn take_back_from(&self, node: usize, step: &Return, limit: Duration) {
        let call = step.call(&self.scripts, &self.keys);
        let trying = async {
            loop {
                let sending = Sending::by(Instant::now() + TRY_LIMIT);
                let asked = self.all[node].ask::<Reply>(&call, &sending);
                if timeout(TRY_LIMIT, asked).await.is_ok_and(|answer| answer.is_ok()) {
                    return;
                }
                sleep(TRY_PAUSE).await;
            }
        };
        if timeout(limit, trying).await.is_err() {
            let node = &self.all[node].address;
            tracing::debug!(node, "a grant that nobody has is left to expire");
        }
    }
}

/// Each node's address, for people, and its URL, of
/// `redlock://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT],…[/DB]`.
fn addresses(url: &str) -> Result<Vec<(String, String)>, OpenError> {
    let bad = |why: &str| OpenError::BadRedlock(why.to_owned());
    let url = MultiHostUrl::parse(url).map_err(|error| bad(error.0))?;
    let hosts: Vec<_> = url.hosts.iter().map(|host| with_port(host, REDIS_PORT)).collect();
    if !(MIN_NODES..=MAX_NODES).contains(&hosts.len()) {
        return Err(bad("it takes 3 to 31 nodes, with commas between them"));
    }
    if hosts.iter().collect::<BTreeSet<_>>().len() < hosts.len() {
        return Err(bad("a node is there twice, and would vote twice"));
    }
    let with_url = |host: String| (host.clone(), url.of_host(&host, url.path));
    Ok(hosts.into_iter().map(with_url).collect())
}

/// How many nodes decide: more than half of them, so that any two quorums share one.
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
