//! The faults of the lock campaign, and what they do.
//!
//! Goal: every fault that the report counts as seen had an effect.
//!
//! Method: `strike` causes one fault, looks for its effect at the process, the node or the proxy,
//! and returns what it saw or why it saw nothing. `OUTSIDE_OF_PROMISES` names the faults that
//! excuse two certain holders (I1). The tests `checker_sees_*` in `mod.rs` show that faults reach
//! the locks.

use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use keylatch_testkit::{Dice, Proxy, RedisServer};
use tokio::time::timeout;

use super::client::lock_name;
use super::clock::pass;
use super::nodes::End;
use super::place::{Deployment, Instance, fact};
use super::worker::TTLS;

/// More than the longest TTL, and than an instance believes what it knew of the masters.
pub(super) const LONG: Duration = Duration::from_millis(2800);
/// Less than keylatch waits for one call of a store (5 s).
const ALMOST_A_CALL: Duration = Duration::from_millis(4700);
/// How long a process that may be stopped has for an answer.
pub(super) const SILENCE: Duration = Duration::from_millis(50);

/// What can happen. An instance is one of keylatch, and a store is its servers. What is long takes
/// longer than every TTL, and what is not, less than each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    KillInstance,
    StopInstance,
    StopInstanceLong,
    CutClients,
    StallClients,
    LoseAnswersToClients,
    HoldRequestsOfClients,
    HoldAnswersToClients,
    SlowSyncs,
    KillStore,
    /// Most nodes at once.
    KillMost,
    /// All nodes but the leading one, until the longest TTL is over.
    KillFollowers,
    StopStore,
    StopStoreLong,
    CutStore,
    StallStore,
    DelayStore,
    LoseAnswersOfStore,
    HoldRequestsToStore,
    HoldAnswersOfStore,
    /// For almost as long as a call may take.
    StallStoreLong,
    /// One minority of nodes after the other is cut off from all instances.
    CutInTurn,
    ScriptFlush,
    FlushAll,
    ClockAhead,
    ClockThereAndBack,
    /// The master is back later, as after each failover.
    FailoverStopped,
    FailoverKilled,
    /// The master is killed when its replicas have heard nothing for some time.
    FailoverCutOff,
    /// A sentinel is stopped meanwhile.
    FailoverUnseen,
    /// `CLIENT KILL` at a master.
    CutNode,
    KillSentinel,
    /// For longer than its down-after time.
    StopSentinel,
    MoveSlots,
    KillLeader,
    StopLeader,
    CutLeader,
    /// The primary is killed for good.
    Promote,
    /// The standby was cut off before.
    PromoteBehind,
    /// An instance is stopped until its session has expired.
    ExpireSession,
    /// An hour forth or back.
    InstanceClock,
    StoreClock,
}

/// How a fault was seen to have taken effect, or why it was not.
pub(super) type FaultEffect = Result<String, String>;

impl Kind {
    /// Whether an instance may lose sight of its waiters, so that their queue entries stay.
    pub(super) fn leaves_places(self) -> bool {
        use Kind as K;
        let sets = matches!(self, K::ClockAhead | K::InstanceClock | K::StoreClock);
        !(sets || self.is_of_clients() || matches!(self, K::ScriptFlush | K::FlushAll))
    }

    /// Whether it lasts until it is ended, so that another can come beside it.
    pub(super) fn lasts(self) -> bool {
        self.is_of_clients() || self.is_of_links() || self == Self::StopInstanceLong
    }

    pub(super) fn is_of_clients(self) -> bool {
        use Kind as K;
        matches!(
            self,
            K::CutClients
                | K::StallClients
                | K::LoseAnswersToClients
                | K::HoldRequestsOfClients
                | K::HoldAnswersToClients
        )
    }

    /// Whether it disturbs what instances and the nodes of their store say to each other.
    fn is_of_links(self) -> bool {
        use Kind as K;
        matches!(
            self,
            K::CutStore
                | K::StallStore
                | K::DelayStore
                | K::LoseAnswersOfStore
                | K::HoldRequestsToStore
                | K::HoldAnswersOfStore
        )
    }
}

/// A fault of connections or instances that lasts until it is ended.
#[derive(Debug)]
pub(super) struct LastingFault {
    pub(super) kind: Kind,
    instances: Vec<usize>,
    /// What the proxies had disturbed before.
    before: u64,
}

const NOTHING: &str = "there was nothing to flush";

/// What no store is promised to stand: it takes leases away behind the back of keylatch.
pub(super) const OUTSIDE_OF_PROMISES: [Kind; 3] =
    [Kind::FlushAll, Kind::ClockAhead, Kind::ClockThereAndBack];

impl Deployment {
    /// Lets something happen, and be over again.
    pub(super) async fn strike(&mut self, kind: Kind, dice: &mut Dice) -> FaultEffect {
        if let Some(seen) = self.strike_member(kind, dice).await {
            return seen;
        }
        let some_time = Duration::from_millis(50 + dice.below(700));
        let instance = dice.below(self.instances.len() as u64) as usize;
        match kind {
            Kind::KillInstance => {
                let [old, new] = self.replace(instance, some_time / 2).await;
                Ok(format!("process {old} ended by a signal, now {new}"))
            }
            Kind::StopInstance => self.stop_instance(instance, short(dice)).await,
            Kind::SlowSyncs => self.slow_syncs(instance, some_time + LONG / 4).await,
            Kind::StopInstanceLong => self.stop_instance(instance, LONG).await,
            Kind::KillStore => self.kill_node(dice).await,
            Kind::KillMost => self.kill_most().await,
            Kind::CutInTurn => self.cut_in_turn(some_time).await,
            Kind::StallStoreLong => self.disturb(Kind::StallStore, ALMOST_A_CALL, dice).await,
            Kind::StopStore => stop_node(self.any_node(dice), short(dice)).await,
            Kind::StopStoreLong => stop_node(self.any_node(dice), LONG).await,
            Kind::ScriptFlush => flush(self.any_node(dice), "number_of_cached_scripts").await,
            Kind::FlushAll => self.flush_all().await,
            Kind::ClockAhead => self.set_clock(Some(some_time)).await,
            Kind::ClockThereAndBack => self.set_clock_there_and_back(some_time).await,
            Kind::FailoverStopped => self.fail_over(End::Stopped, some_time, dice).await,
            Kind::FailoverKilled => self.fail_over(End::Killed, some_time, dice).await,
            Kind::FailoverCutOff => self.fail_over(End::CutOff, some_time, dice).await,
            Kind::FailoverUnseen => {
                self.nodes.are_whole().await;
                self.nodes.fail_over_unseen(dice.below(1 << 32), some_time).await
            }
            Kind::CutNode => self.nodes.cut(dice.below(1 << 32), some_time).await,
            Kind::KillSentinel => self.nodes.kill_sentinel(dice.below(3), some_time).await,
            Kind::StopSentinel => self.nodes.stop_sentinel(dice.below(3)).await,
            Kind::MoveSlots => self.move_slots(some_time, dice).await,
            Kind::InstanceClock => self.instances[instance].set_clock(hours(dice)),
            _ => self.disturb(kind, some_time, dice).await,
        }
    }

    /// Begins a fault of one instance or of all, which lasts until [`Self::end`].
    pub(super) fn begin(&self, kind: Kind, dice: &mut Dice) -> LastingFault {
        let (all, one) = (dice.below(3) == 0, dice.below(self.instances.len() as u64) as usize);
        let instances = (0..self.instances.len()).filter(|place| all || *place == one).collect();
        let delay = Duration::from_millis(10 + dice.below(200));
        let mut fault = LastingFault { kind, instances, before: 0 };
        fault.before = self.disturbed_by(&fault);
        for proxy in self.proxies(&fault) {
            match kind {
                Kind::StallClients | Kind::StallStore => proxy.stall(),
                Kind::LoseAnswersToClients | Kind::LoseAnswersOfStore => proxy.lose_answers(),
                Kind::HoldRequestsOfClients | Kind::HoldRequestsToStore => proxy.hold_requests(),
                Kind::HoldAnswersToClients | Kind::HoldAnswersOfStore => proxy.hold_answers(),
                Kind::DelayStore => proxy.delay(delay),
                _ => proxy.refuse(),
            }
        }
        self.signal(&fault, "-STOP");
        fault
    }

    pub(super) fn end(&self, fault: &LastingFault) -> FaultEffect {
        for proxy in self.proxies(fault) {
            proxy.forward();
        }
        self.signal(fault, "-CONT");
        match self.disturbed_by(fault) - fault.before {
            _ if fault.kind == Kind::StopInstanceLong => Ok(format!("{:?}", fault.instances)),
            0 => Err("nothing came by meanwhile".to_owned()),
            disturbed => Ok(format!("{disturbed} times")),
        }
    }

    fn proxies(&self, fault: &LastingFault) -> impl Iterator<Item = &Proxy> {
        let LastingFault { kind, ref instances, .. } = *fault;
        instances.iter().flat_map(move |place| {
            let Instance { front, links, .. } = &self.instances[*place];
            let front = kind.is_of_clients().then_some(front);
            front.into_iter().chain(links.iter().filter(move |_| kind.is_of_links()))
        })
    }

    fn disturbed_by(&self, fault: &LastingFault) -> u64 {
        self.proxies(fault).map(Proxy::disturbed).sum()
    }

    fn signal(&self, fault: &LastingFault, signal: &str) {
        for place in fault.instances.iter().filter(|_| fault.kind == Kind::StopInstanceLong) {
            self.instances[*place].process.signal(signal);
        }
    }

    /// Cuts nodes off from all instances, two at a time, each pair at once after the one before.
    async fn cut_in_turn(&self, time: Duration) -> FaultEffect {
        let count = self.nodes.addresses().len();
        let links = |node: usize| self.instances.iter().map(move |one| &one.links[node % count]);
        for first in (0..2 * count).step_by(2) {
            links(first).chain(links(first + 1)).for_each(Proxy::refuse);
            pass(time / 2).await;
            links(first).chain(links(first + 1)).for_each(Proxy::forward);
        }
        Ok(format!("{count} pairs"))
    }

    /// Lets a sync to disk take longer, some times, with quick ones in between.
    async fn slow_syncs(&self, instance: usize, by: Duration) -> FaultEffect {
        let clock = self.instances[instance].clock.as_ref().map_err(String::clone)?;
        for _ in 0..3 {
            clock.delay_syncs(by);
            pass(SILENCE).await;
            clock.delay_syncs(Duration::ZERO);
            pass(by).await;
        }
        let process = self.instances[instance].process.id();
        let seen = format!("{by:?} each in process {process}");
        if clock.is_that_of(process) { Ok(seen) } else { Err(seen) }
    }

    async fn fail_over(&mut self, end: End, time: Duration, dice: &mut Dice) -> FaultEffect {
        self.nodes.are_whole().await;
        self.nodes.fail_over(dice.below(1 << 32), end, time).await
    }

    async fn move_slots(&mut self, time: Duration, dice: &mut Dice) -> FaultEffect {
        let locks = TTLS.len() as u64;
        let [one, other] = [dice.below(locks), dice.below(locks)];
        self.nodes.move_slots([one, other].map(lock_name), dice.below(1 << 32), time).await
    }

    async fn disturb(&self, kind: Kind, time: Duration, dice: &mut Dice) -> FaultEffect {
        let fault = self.begin(kind, dice);
        pass(time).await;
        self.end(&fault)
    }

    async fn stop_instance(&self, instance: usize, time: Duration) -> FaultEffect {
        let instance = &self.instances[instance];
        instance.process.signal("-STOP");
        let silent = !instance.answers(SILENCE).await;
        pass(time.saturating_sub(SILENCE)).await;
        instance.process.signal("-CONT");
        if silent { Ok("no answer meanwhile".to_owned()) } else { Err("it answered".to_owned()) }
    }

    async fn kill_node(&mut self, dice: &mut Dice) -> FaultEffect {
        let place = dice.below(self.nodes.len() as u64) as usize;
        let node = &mut self.nodes[place];
        let old = fact(node, "run_id").await;
        node.kill().await;
        pass(Duration::from_millis(dice.below(400))).await;
        node.restart().await;
        let new = fact(node, "run_id").await;
        if old == new { Err("it is the same".to_owned()) } else { Ok(format!("run_id {new}")) }
    }

    async fn kill_most(&mut self) -> FaultEffect {
        let most = self.nodes.len() / 2 + 1;
        let old = join_all(self.nodes[..most].iter().map(|node| fact(node, "run_id"))).await;
        for node in &mut self.nodes[..most] {
            node.kill().await;
        }
        for node in &mut self.nodes[..most] {
            node.restart().await;
        }
        let new = join_all(self.nodes[..most].iter().map(|node| fact(node, "run_id"))).await;
        let same = old.iter().any(|old| new.contains(old));
        if same { Err("some are the same".to_owned()) } else { Ok(format!("run_ids {new:?}")) }
    }

    async fn flush_all(&self) -> FaultEffect {
        let flushed = join_all(self.nodes.iter().map(|node| flush(node, "db0"))).await;
        flushed.into_iter().find(Result::is_ok).unwrap_or_else(|| Err(NOTHING.to_owned()))
    }

    async fn set_clock_there_and_back(&self, time: Duration) -> FaultEffect {
        let ahead = self.set_clock(Some(time * 2)).await;
        pass(time / 2).await;
        let back = self.set_clock(None).await;
        Ok(format!("{}; {}", ahead?, back?))
    }

    /// Sets the clock further forward, or to what it was, and looks at it.
    async fn set_clock(&self, forward: Option<Duration>) -> FaultEffect {
        let clock = self.clock.as_ref().map_err(String::clone)?;
        let ahead = forward.map_or(Duration::ZERO, |forward| clock.ahead() + forward);
        clock.set(ahead);
        let there = self.nodes.time().await;
        let found = there.saturating_sub(SystemTime::UNIX_EPOCH.elapsed().expect("a clock"));
        let what = format!("TIME is {found:.3?} ahead, set to {ahead:.3?}");
        if found.abs_diff(ahead) < Duration::from_millis(90) { Ok(what) } else { Err(what) }
    }

    fn any_node(&self, dice: &mut Dice) -> &RedisServer {
        &self.nodes[dice.below(self.nodes.len() as u64) as usize]
    }
}

/// Less than the shortest TTL.
pub(super) fn short(dice: &mut Dice) -> Duration {
    Duration::from_millis(60 + dice.below(100))
}

/// By how many hours a wall clock is to be wrong.
pub(super) fn hours(dice: &mut Dice) -> i64 {
    [-1, 1][dice.below(2) as usize]
}

async fn stop_node(node: &RedisServer, time: Duration) -> FaultEffect {
    node.pause();
    let silent = timeout(SILENCE, node.try_run::<String>(&["PING"])).await.is_err();
    pass(time.saturating_sub(SILENCE)).await;
    node.resume();
    if silent { Ok("PING unanswered".to_owned()) } else { Err("PING answered".to_owned()) }
}

/// Flushes scripts or keys, and looks whether there were some.
async fn flush(node: &RedisServer, what: &str) -> FaultEffect {
    let before = fact(node, what).await;
    let command: &[&str] = if what == "db0" { &["FLUSHALL"] } else { &["SCRIPT", "FLUSH"] };
    // A master that has just become a replica cuts all its connections.
    if let Err(error) = node.try_run::<()>(command).await {
        return Err(error.to_string());
    }
    match before.as_str() {
        "" | "0" => Err(NOTHING.to_owned()),
        before => Ok(format!("there was {before} before")),
    }
}
