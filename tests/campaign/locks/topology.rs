//! Faults of the nodes that name the masters, and of what each master has.
//!
//! A sentinel is killed, stopped, or sleeps through a failover; slots of a cluster are moved; all
//! connections to a master are cut. Each fault is seen to have taken effect, or is counted as
//! skipped.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use keylatch_core::lock::LockName;
use keylatch_testkit::{Cluster, RedisServer};
use tokio::time::timeout;

use super::clock::{micros, now, pass};
use super::faults::FaultEffect;
use super::nodes::{End, Nodes};
use super::place::fact;

/// In which time the others call a paused sentinel down: they do after 400 ms. It is less than the
/// 2 s after which a sentinel that resumes trusts no node for some time (TILT).
const DOWN: Duration = Duration::from_millis(1500);
const MASTER: [&str; 3] = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"];
/// A sentinel that was paused trusts no node for 1 s, not for 30. Each one looks every second, not
/// every 10, whether an old master is back and has to follow the new one.
const HASTE: [&str; 6] = ["SENTINEL", "DEBUG", "tilt-period", "1000", "info-period", "1000"];

impl Nodes {
    /// Has all sentinels be done sooner with what takes them long.
    pub(super) async fn set_up(&self) {
        let Self::Sentinels(set) = self else { return };
        join_all(set.sentinels.iter().map(|one| one.run::<()>(&HASTE))).await;
    }

    /// Whether all sentinels act, and most of them see all others and name this master, if there
    /// are some. One may name another for good, if it has heard of two failovers under the same
    /// number.
    pub(super) async fn sentinels_agree(&self, master: &RedisServer) -> bool {
        let Self::Sentinels(set) = self else { return true };
        let all = format!("address={},slaves=2,sentinels=3", master.address());
        let mut agree = 0;
        for one in &set.sentinels {
            if fact(one, "sentinel_tilt").await != "0" {
                return false;
            }
            agree += usize::from(fact(one, "master0").await.ends_with(&format!("status=ok,{all}")));
        }
        agree > set.sentinels.len() / 2
    }

    /// Kills one of the sentinels and, after a time, starts it again.
    pub(super) async fn kill_sentinel(&mut self, pick: u64, time: Duration) -> FaultEffect {
        self.are_whole().await;
        let one = self.sentinel(pick)?;
        let old = fact(one, "run_id").await;
        one.kill().await;
        pass(time).await;
        one.restart().await;
        one.run::<()>(&HASTE).await;
        let new = fact(one, "run_id").await;
        if old == new { Err("it is the same".to_owned()) } else { Ok(format!("run_id {new}")) }
    }

    /// Stops one of the sentinels until another calls it down.
    pub(super) async fn stop_sentinel(&mut self, pick: u64) -> FaultEffect {
        self.are_whole().await;
        let port = self.sentinel(pick)?.port().to_string();
        let others = ["SENTINEL", "SENTINELS", "mymaster"];
        self.sentinel(pick)?.pause();
        let other = self.sentinel(pick + 1)?;
        let called_down = async {
            loop {
                let told: Vec<HashMap<String, String>> = other.run(&others).await;
                let is_it = |one: &&HashMap<_, _>| one.get("port") == Some(&port);
                if told.iter().find(is_it).is_some_and(|it| it["flags"].contains("s_down")) {
                    return;
                }
                pass(Duration::from_millis(20)).await;
            }
        };
        let called_down = timeout(DOWN, called_down).await;
        self.sentinel(pick)?.resume();
        match called_down {
            Ok(()) => Ok(format!("port {port} was called down")),
            Err(_) => Err("the others did not miss it".to_owned()),
        }
    }

    /// Fails over while one of the sentinels is paused. It resumes when the old master is back.
    pub(super) async fn fail_over_unseen(&mut self, pick: u64, time: Duration) -> FaultEffect {
        self.sentinel(pick)?.pause();
        let seen = self.fail_over(pick, End::Killed, time).await;
        let blind = self.sentinel(pick)?;
        let asking = async { blind.run::<(String, u16)>(&MASTER).await };
        let waking = async {
            pass(Duration::from_millis(50)).await;
            blind.resume();
        };
        let ((_, port), ()) = tokio::join!(asking, waking);
        let seen = seen?;
        if seen.starts_with(&format!("port {port} is master")) {
            return Err("it knew of the new one at once".to_owned());
        }
        Ok(format!("{seen}, and one still said {port}"))
    }

    /// Cuts all connections to a master again and again for some time, but not those by which it is
    /// watched: it is well.
    pub(super) async fn cut(&self, pick: u64, time: Duration) -> FaultEffect {
        self.are_whole().await;
        let masters = self.masters().await;
        let master = &self[masters[pick as usize % masters.len()]];
        let (until, mut cut) = (now() + micros(time), 0);
        while now() < until {
            for kind in ["normal", "pubsub"] {
                let clients: String = master.run(&["CLIENT", "LIST", "TYPE", kind]).await;
                let others = clients.lines().filter(|client| !client.contains(" name=sentinel-"));
                for client in others {
                    let id = client.split([' ', '=']).nth(1).expect("a number");
                    let killed: u64 = master.run(&["CLIENT", "KILL", "ID", id]).await;
                    let was_used = client.contains(" cmd=evalsha ");
                    cut += if was_used { killed } else { 0 };
                }
            }
            pass(Duration::from_millis(20)).await;
        }
        match cut {
            0 => Err("no client had asked it for a lock".to_owned()),
            cut => Ok(format!("{cut} connections on which locks were asked for")),
        }
    }

    /// Moves the slots of two locks to another master while they are asked for, and back.
    pub(super) async fn move_slots(
        &self,
        locks: [String; 2],
        pick: u64,
        time: Duration,
    ) -> FaultEffect {
        self.are_whole().await;
        let Self::Cluster(cluster) = self else { return Err("there are no slots".to_owned()) };
        let masters = self.masters().await;
        let mut seen = Vec::new();
        for (lock, pause) in locks.iter().zip([time / 4, Duration::ZERO]) {
            let bucket = LockName::parse(lock).expect("a name").bucket();
            let tag = format!("{{{bucket:02x}}}");
            let slot: u16 = cluster.nodes[0].run(&["CLUSTER", "KEYSLOT", &tag]).await;
            let from = cluster.owner(slot).await.ok_or("no master has it")?;
            let others = masters.iter().filter(|node| self[**node].port() != from.port());
            let others: Vec<_> = others.map(|node| &self[*node]).collect();
            let to = others[pick as usize % others.len()];
            let there = moved(cluster, slot, [from, to], pause).await?;
            pass(time / 2).await;
            let back = moved(cluster, slot, [to, from], pause).await?;
            let ports = [from.port(), to.port()];
            seen.push(format!("{lock} with {there} keys from {ports:?}, and back with {back}"));
        }
        Ok(seen.join("; "))
    }

    fn sentinel(&mut self, pick: u64) -> Result<&mut RedisServer, String> {
        let Self::Sentinels(set) = self else { return Err("there are no sentinels".to_owned()) };
        let all = set.sentinels.len();
        Ok(&mut set.sentinels[pick as usize % all])
    }
}

/// Moves a slot, and looks where it is then; gives how many keys it had.
async fn moved(
    cluster: &Cluster,
    slot: u16,
    [from, to]: [&RedisServer; 2],
    pause: Duration,
) -> Result<u64, String> {
    let keys = cluster.try_migrate(slot, [from, to], async || pass(pause).await).await;
    let keys = keys.map_err(|error| format!("slot {slot}: {error}"))?;
    match cluster.owner(slot).await {
        Some(owner) if owner.port() == to.port() => Ok(keys),
        _ => Err(format!("slot {slot} is not where it was moved")),
    }
}
