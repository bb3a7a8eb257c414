//! The servers below PostgreSQL, etcd and ZooKeeper, one of which leads.
//!
//! Goal: a fault ends, stops or cuts off the leading server as well as any other, and a deployment
//! can heal.
//!
//! Method: every store of this kind is a list of servers that take signals and come back with what
//! they had. Each instance reaches each of them through a proxy of its own. `strike_member` causes
//! a fault and looks for it at the server. A PostgreSQL that was replaced by its standby never
//! comes back: a copy of the new primary takes its place, behind the same proxies.

use std::time::Duration;

use keylatch_testkit::{Dice, Ensemble, EtcdCluster, PostgresPair, eventually};
use tokio::time::timeout;

use super::clock::pass;
use super::faults::{FaultEffect, Kind, LONG, SILENCE, hours, short};
use super::nodes::{Nodes, WHOLE};
use super::place::Deployment;

/// Longer than the session of an instance with ZooKeeper (6 s) and what the ensemble takes to end
/// it.
const SESSION: Duration = Duration::from_millis(7500);
/// How long looks are apart.
const PAUSE: Duration = Duration::from_millis(20);

/// Servers of which one leads.
#[derive(Debug)]
pub(super) enum Members {
    /// A primary and a standby.
    Postgres(PostgresPair),
    /// Three members.
    Etcd(EtcdCluster),
    /// Three members.
    Zookeeper(Ensemble),
}

impl Members {
    pub(super) fn addresses(&self) -> Vec<String> {
        match self {
            Self::Postgres(pair) => pair.servers().iter().map(|one| one.address()).collect(),
            Self::Etcd(cluster) => cluster.members.iter().map(|one| one.address()).collect(),
            Self::Zookeeper(ensemble) => ensemble.members.iter().map(|one| one.address()).collect(),
        }
    }

    /// The URL for an instance that reaches the servers by these addresses.
    pub(super) fn url(&self, addresses: &str) -> String {
        match self {
            Self::Postgres(_) => format!("postgres://keylatch@{addresses}/postgres"),
            Self::Etcd(_) => format!("etcd://{addresses}"),
            Self::Zookeeper(_) => format!("zookeeper://{addresses}/keylatch"),
        }
    }

    /// Waits until all servers are there and follow the one that leads.
    pub(super) async fn are_whole(&self) {
        let waiting = async {
            while !self.is_whole().await {
                pass(PAUSE).await;
            }
        };
        assert!(timeout(WHOLE, waiting).await.is_ok(), "not whole again after {WHOLE:?}");
    }

    async fn is_whole(&self) -> bool {
        match self {
            Self::Postgres(pair) => pair.is_whole().await,
            Self::Etcd(cluster) => cluster.is_whole().await,
            Self::Zookeeper(ensemble) => ensemble.is_whole().await,
        }
    }

    /// What the clock of a PostgreSQL shows.
    pub(super) async fn time(&self) -> Duration {
        let Self::Postgres(pair) = self else { return Duration::ZERO };
        let time = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        let micros: i64 = pair.servers()[pair.primary()].ask("postgres", time).await;
        Duration::from_micros(micros.unsigned_abs())
    }

    async fn leader(&self) -> usize {
        match self {
            Self::Postgres(pair) => pair.primary(),
            Self::Etcd(cluster) => cluster.leader().await,
            Self::Zookeeper(ensemble) => ensemble.leader().await,
        }
    }

    /// Whether a server gives no answer within a short time.
    async fn is_silent(&self, one: usize) -> bool {
        let answers = async {
            match self {
                Self::Postgres(pair) => pair.servers()[one].connect("postgres").await.is_some(),
                Self::Etcd(cluster) => cluster.members[one].answers().await,
                Self::Zookeeper(ensemble) => ensemble.members[one].says("Mode:").await.is_some(),
            }
        };
        timeout(SILENCE, answers).await != Ok(true)
    }

    fn signal(&self, one: usize, signal: &str) {
        match self {
            Self::Postgres(pair) if signal == "-KILL" => pair.servers()[one].kill(),
            Self::Postgres(pair) => pair.servers()[one].signal(signal),
            Self::Etcd(cluster) => cluster.members[one].signal(signal),
            Self::Zookeeper(ensemble) => ensemble.members[one].signal(signal),
        }
    }

    async fn restart(&mut self, one: usize) {
        match self {
            Self::Postgres(pair) => pair.restart(one).await,
            Self::Etcd(cluster) => cluster.members[one].restart().await,
            Self::Zookeeper(ensemble) => ensemble.members[one].restart().await,
        }
    }

    /// Kills servers at once and, after a time, starts them again.
    async fn kill(&mut self, these: &[usize], time: Duration) -> FaultEffect {
        for one in these {
            self.signal(*one, "-KILL");
        }
        let mut silent = true;
        for one in these {
            silent &= self.is_silent(*one).await;
        }
        pass(time).await;
        for one in these {
            self.restart(*one).await;
        }
        self.seen(these, silent)
    }

    /// Kills all but the leading server. Before that they stop, so that it has in its log what
    /// nobody has agreed to.
    async fn kill_followers(&mut self, time: Duration) -> FaultEffect {
        let leader = self.leader().await;
        let all = 0..self.addresses().len();
        let others: Vec<_> = all.filter(|one| *one != leader).collect();
        for one in &others {
            self.signal(*one, "-STOP");
        }
        pass(SILENCE * 4).await;
        self.kill(&others, time).await
    }

    async fn stop(&self, one: usize, time: Duration) -> FaultEffect {
        self.signal(one, "-STOP");
        let silent = self.is_silent(one).await;
        pass(time.saturating_sub(SILENCE)).await;
        self.signal(one, "-CONT");
        self.seen(&[one], silent)
    }

    fn seen(&self, these: &[usize], silent: bool) -> FaultEffect {
        let addresses = self.addresses();
        let these: Vec<_> = these.iter().map(|one| addresses[*one].as_str()).collect();
        let these = these.join(" and ");
        if silent { Ok(format!("{these} silent")) } else { Err(format!("{these} answered")) }
    }

    /// How many sessions the ensemble has.
    async fn sessions(&self) -> Result<usize, String> {
        let Self::Zookeeper(ensemble) = self else { return Err("there are none".to_owned()) };
        let leader = &ensemble.members[ensemble.leader().await];
        Ok(eventually(async || leader.sessions().await).await)
    }
}

impl Deployment {
    /// A fault of a server, or of what only such a store has; `None` where it is another store or
    /// fault.
    pub(super) async fn strike_member(
        &mut self,
        kind: Kind,
        dice: &mut Dice,
    ) -> Option<FaultEffect> {
        use Kind as K;
        let Nodes::Members(members) = &mut self.nodes else { return None };
        let time = Duration::from_millis(50 + dice.below(700));
        let count = members.addresses().len();
        let any = dice.below(count as u64) as usize;
        let is_of_leader = matches!(kind, K::KillLeader | K::StopLeader | K::CutLeader);
        if is_of_leader
            || matches!(kind, K::KillMost | K::KillFollowers | K::Promote | K::PromoteBehind)
            || matches!(kind, K::ExpireSession | K::ClockThereAndBack)
        {
            members.are_whole().await;
        }
        Some(match kind {
            K::KillStore => members.kill(&[any], time / 2).await,
            K::KillMost => members.kill(&[any, (any + 1) % count], time).await,
            K::KillFollowers => members.kill_followers(LONG + time).await,
            K::StopStore => members.stop(any, short(dice)).await,
            K::StopStoreLong => members.stop(any, LONG).await,
            K::KillLeader => {
                let leader = members.leader().await;
                members.kill(&[leader], time * 2).await
            }
            K::StopLeader => {
                let leader = members.leader().await;
                members.stop(leader, LONG).await
            }
            K::CutLeader => self.cut_leader(time * 2, dice).await,
            K::Promote => self.promote(None).await,
            K::PromoteBehind => self.promote(Some(time)).await,
            K::ExpireSession => self.expire_session(dice).await,
            K::StoreClock => self.set_store_clocks(hours(dice)),
            _ => return None,
        })
    }

    /// Cuts or stalls all ways of all instances to the server that leads, and to no other.
    async fn cut_leader(&self, time: Duration, dice: &mut Dice) -> FaultEffect {
        let Nodes::Members(members) = &self.nodes else { return Err("none leads".to_owned()) };
        let leader = members.leader().await;
        let links: Vec<_> = self.instances.iter().map(|one| &one.links[leader]).collect();
        let count = || links.iter().map(|link| link.disturbed()).sum::<u64>();
        let (before, stalls) = (count(), dice.below(2) == 0);
        for link in &links {
            if stalls { link.stall() } else { link.refuse() }
        }
        pass(time).await;
        for link in &links {
            link.forward();
        }
        match count() - before {
            0 => Err("nothing came by meanwhile".to_owned()),
            disturbed => Ok(format!("{disturbed} times")),
        }
    }

    /// Kills the primary for good and promotes its standby, which has been without it for a time.
    async fn promote(&mut self, apart: Option<Duration>) -> FaultEffect {
        let Nodes::Members(Members::Postgres(pair)) = &mut self.nodes else {
            return Err("there is no standby".to_owned());
        };
        if let Some(time) = apart {
            pair.cut_standby_off().await;
            pass(time).await;
        }
        let (replaced, address) = pair.promote().await;
        for instance in &self.instances {
            instance.links[replaced].lead_to(address.clone());
        }
        let primary = pair.servers()[pair.primary()].address();
        Ok(format!("{primary} is primary, and {address} its standby"))
    }

    /// Sets the wall clocks of all servers wrong, and leaves them so.
    fn set_store_clocks(&self, hours: i64) -> FaultEffect {
        let clock = self.clock.as_ref().map_err(String::clone)?;
        let Nodes::Members(Members::Zookeeper(ensemble)) = &self.nodes else {
            return Err("its clocks cannot be set".to_owned());
        };
        clock.set_hours(hours);
        let processes = ensemble.members.iter().map(|one| one.pid());
        let have_it = processes.filter(|process| clock.is_that_of(*process)).count();
        let seen = format!("{hours} hours ahead in {have_it} processes");
        if have_it > 0 { Ok(seen) } else { Err(seen) }
    }

    /// Stops an instance until the ensemble has ended its session.
    async fn expire_session(&self, dice: &mut Dice) -> FaultEffect {
        let Nodes::Members(members) = &self.nodes else { return Err("there are none".to_owned()) };
        let instance = dice.below(self.instances.len() as u64) as usize;
        let process = &self.instances[instance].process;
        process.signal("-STOP");
        pass(SESSION).await;
        let sessions = members.sessions().await;
        process.signal("-CONT");
        let all = self.instances.len();
        match sessions? {
            left if left < all => Ok(format!("{left} sessions of {all} instances")),
            left => Err(format!("{left} sessions of {all} instances")),
        }
    }
}
