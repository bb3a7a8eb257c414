//! The servers below a store: independent redis-servers, a set with sentinels, a cluster, or what
//! `members.rs` has.
//!
//! Goal: a fault ends a master of any layout in the same ways and leaves the deployment able to
//! heal.
//!
//! Method: `fail_over` ends a master, waits for another, and brings the old one back in any case.
//! `are_whole` waits until every replica follows and the sentinels agree, or fails the test.
//! `checker_sees_lossy_failover_break_exclusion` shows that a failover can lose a grant.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use keylatch_testkit::{Cluster, RedisServer, Sentinels};

use super::clock::pass;
use super::faults::FaultEffect;
use super::members::Members;
use super::place::fact;

/// How long a deployment may take to be whole again.
pub(super) const WHOLE: Duration = Duration::from_secs(60);

/// The servers of a store. As a slice, it is its redis-servers.
#[derive(Debug)]
pub(super) enum Nodes {
    Independent(Vec<RedisServer>),
    Sentinels(Sentinels),
    Cluster(Cluster),
    Members(Members),
}

/// What ends a master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Killed,
    Stopped,
    /// Killed when its replicas had heard nothing for some time.
    CutOff,
}

impl Nodes {
    /// The URL by which keylatch finds them itself, without proxies in between.
    pub(super) fn url(&self) -> Option<String> {
        match self {
            Self::Independent(_) | Self::Members(_) => None,
            Self::Sentinels(sentinels) => Some(sentinels.url()),
            Self::Cluster(cluster) => Some(cluster.url()),
        }
    }

    /// Where the instances reach them, each through a proxy.
    pub(super) fn addresses(&self) -> Vec<String> {
        match self {
            Self::Independent(nodes) => nodes.iter().map(RedisServer::address).collect(),
            Self::Sentinels(_) | Self::Cluster(_) => Vec::new(),
            Self::Members(members) => members.addresses(),
        }
    }

    /// What the wall clock shows of the server that judges leases.
    pub(super) async fn time(&self) -> Duration {
        if let Self::Members(members) = self {
            return members.time().await;
        }
        let (seconds, micros): (u64, u64) = self[0].run(&["TIME"]).await;
        Duration::from_secs(seconds) + Duration::from_micros(micros)
    }

    /// Waits until there are as many masters as there should be, and the others follow them.
    pub(super) async fn are_whole(&self) {
        let masters = match self {
            Self::Independent(_) => return,
            Self::Members(members) => return members.are_whole().await,
            Self::Sentinels(_) => 1,
            Self::Cluster(cluster) => cluster.masters().len(),
        };
        let waiting = async {
            let mut whole_for = 0;
            // Twice in turn, since a master that comes back calls itself one at first.
            while whole_for < 2 {
                whole_for = if self.has(masters).await { whole_for + 1 } else { 0 };
                pass(Duration::from_millis(100)).await;
            }
        };
        let whole = tokio::time::timeout(WHOLE, waiting).await;
        assert!(whole.is_ok(), "not whole again after {WHOLE:?}: {:#?}", self.state().await);
    }

    /// Ends a master, waits until another node is one in its place, and lets the old one come back.
    pub(super) async fn fail_over(&mut self, pick: u64, end: End, time: Duration) -> FaultEffect {
        let masters = self.masters().await;
        let old = masters[pick as usize % masters.len()];
        match end {
            End::Stopped => self[old].pause(),
            End::Killed => self[old].kill().await,
            End::CutOff => {
                let forbid = ["ACL", "SETUSER", "default", "-psync", "-sync"];
                self[old].run::<()>(&forbid).await;
                let cut: u64 = self[old].run(&["CLIENT", "KILL", "TYPE", "replica"]).await;
                pass(time).await;
                self[old].kill().await;
                if cut == 0 {
                    self[old].restart().await;
                    return Err("it had no replicas".to_owned());
                }
            }
        }
        let taken_over = async {
            loop {
                let now = self.masters_but(old).await;
                if let Some(new) = now.into_iter().find(|node| !masters.contains(node)) {
                    return new;
                }
                pass(Duration::from_millis(20)).await;
            }
        };
        let new = tokio::time::timeout(WHOLE / 4, taken_over).await;
        match end {
            End::Stopped => self[old].resume(),
            End::Killed | End::CutOff => self[old].restart().await,
        }
        match new {
            Ok(new) => {
                Ok(format!("port {} is master after {}", self[new].port(), self[old].port()))
            }
            Err(_) => Ok(format!("port {}, and no node took over", self[old].port())),
        }
    }

    async fn has(&self, masters: usize) -> bool {
        let mut found = 0;
        for node in self.iter() {
            match fact(node, "role").await.as_str() {
                "master" => found += 1,
                _ if fact(node, "master_link_status").await == "up" => {}
                _ => return false,
            }
        }
        match self.masters().await.first() {
            Some(first) if found == masters => self.sentinels_agree(&self[*first]).await,
            _ => false,
        }
    }

    /// What is to be known of each.
    async fn state(&self) -> Vec<String> {
        let mut state = Vec::new();
        for node in self.iter() {
            let (role, link) = (fact(node, "role").await, fact(node, "master_link_status").await);
            state.push(format!("{} {role} {link}", node.port()));
        }
        if let Self::Sentinels(set) = self {
            for one in &set.sentinels {
                let (master, tilt) = (fact(one, "master0").await, fact(one, "sentinel_tilt").await);
                state.push(format!("{} {master} tilt={tilt}", one.port()));
            }
        }
        state
    }

    pub(super) async fn masters(&self) -> Vec<usize> {
        self.masters_but(usize::MAX).await
    }

    /// The masters, without asking one that gives no answer.
    async fn masters_but(&self, silent: usize) -> Vec<usize> {
        let mut masters = Vec::new();
        for (place, node) in self.iter().enumerate() {
            if place != silent && fact(node, "role").await == "master" {
                masters.push(place);
            }
        }
        masters
    }
}

impl Deref for Nodes {
    type Target = [RedisServer];

    fn deref(&self) -> &[RedisServer] {
        match self {
            Self::Independent(nodes) => nodes,
            Self::Sentinels(sentinels) => &sentinels.servers,
            Self::Cluster(cluster) => &cluster.nodes,
            Self::Members(_) => &[],
        }
    }
}

impl DerefMut for Nodes {
    fn deref_mut(&mut self) -> &mut [RedisServer] {
        match self {
            Self::Independent(nodes) => nodes,
            Self::Sentinels(sentinels) => &mut sentinels.servers,
            Self::Cluster(cluster) => &mut cluster.nodes,
            Self::Members(_) => &mut [],
        }
    }
}
