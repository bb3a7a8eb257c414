//! A Redis Cluster, with slots that a test can move.
//!
//! It is ready when every node has every slot and every replica follows. A slot can be left half
//! moved, which is what `ASK` answers. The processes end with the value.

use std::time::Duration;

use futures_util::future::join_all;
use redis::RedisResult;
use tokio::time::{interval, timeout};

use crate::{RedisServer, started};

const SLOTS: usize = 16_384;
/// How long a slot that was moved may have no owner.
const SETTLE: Duration = Duration::from_secs(5);

/// A cluster of masters that share the slots, each with so many replicas.
#[derive(Debug)]
pub struct Cluster {
    /// The masters at the start, and then the replicas.
    pub nodes: Vec<RedisServer>,
    masters: usize,
}

impl Cluster {
    /// So many masters, each with so many replicas, which agree about their slots.
    pub async fn start(masters: usize, replicas_each: usize) -> Self {
        let count = masters * (1 + replicas_each);
        // Where nothing can take a node's place, a busy machine is not to make it one that failed.
        let node_timeout = if replicas_each == 0 { "60000" } else { "1000" };
        let options = [
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            node_timeout,
            "--repl-diskless-sync-delay",
            "0",
        ];
        let nodes = join_all((0..count).map(|_| RedisServer::start_with(&options))).await;
        let cluster = Self { nodes, masters };
        for (number, master) in cluster.masters().iter().enumerate() {
            let () = master.run(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]).await;
            let slots: Vec<_> = (SLOTS * number / masters..SLOTS * (number + 1) / masters)
                .map(|slot| slot.to_string())
                .collect();
            let slots: Vec<_> = slots.iter().map(String::as_str).collect();
            let () = master.run(&[&["CLUSTER", "ADDSLOTS"], &slots[..]].concat()).await;
        }
        let first = cluster.nodes[0].port().to_string();
        for node in &cluster.nodes[1..] {
            let () = node.run(&["CLUSTER", "MEET", "127.0.0.1", &first]).await;
        }
        cluster.all_say(&format!("cluster_known_nodes:{count}")).await;
        for (number, replica) in cluster.nodes[masters..].iter().enumerate() {
            let master: String = cluster.nodes[number % masters].run(&["CLUSTER", "MYID"]).await;
            let () = replica.run(&["CLUSTER", "REPLICATE", &master]).await;
        }
        for replica in &cluster.nodes[masters..] {
            started(async || {
                let told: String = replica.run(&["INFO", "replication"]).await;
                told.contains("master_link_status:up").then_some(())
            })
            .await;
        }
        cluster.all_say("cluster_state:ok").await;
        cluster
    }

    /// Its URL for the service.
    pub fn url(&self) -> String {
        let addresses: Vec<_> = self.nodes.iter().map(RedisServer::address).collect();
        format!("redis+cluster://{}", addresses.join(","))
    }

    /// The masters at the start.
    pub fn masters(&self) -> &[RedisServer] {
        &self.nodes[..self.masters]
    }

    /// Which of the masters has a slot at the start.
    pub fn home(&self, slot: u16) -> usize {
        (usize::from(slot) * self.masters + self.masters - 1) / SLOTS
    }

    /// The node that says of itself that it has a slot now.
    pub async fn owner(&self, slot: u16) -> Option<&RedisServer> {
        for node in &self.nodes {
            let told: String = node.run(&["CLUSTER", "NODES"]).await;
            let own = told.lines().find(|line| line.contains("myself,master"));
            let has = |slots: &str| {
                let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
                first.parse().is_ok_and(|first: u16| first <= slot)
                    && last.parse().is_ok_and(|last: u16| slot <= last)
            };
            if own.is_some_and(|own| own.split(' ').skip(8).any(has)) {
                return Some(node);
            }
        }
        None
    }

    /// Moves a slot with all its keys from one master to another, key by key.
    pub async fn migrate(&self, slot: u16, from: &RedisServer, to: &RedisServer) {
        let moved = self.try_migrate(slot, [from, to], async || ()).await;
        moved.expect("the slot can be moved");
    }

    /// Moves a slot where a master may lose its role meanwhile; gives the number of its keys.
    /// `meanwhile` runs twice, before and after the keys move, while the slot is half here and half
    /// there.
    ///
    /// # Errors
    ///
    /// A node refused a command, or is not there.
    pub async fn try_migrate(
        &self,
        slot: u16,
        [from, to]: [&RedisServer; 2],
        meanwhile: impl AsyncFn(),
    ) -> RedisResult<u64> {
        let slot = slot.to_string();
        let source: String = from.try_run(&["CLUSTER", "MYID"]).await?;
        let target: String = to.try_run(&["CLUSTER", "MYID"]).await?;
        let () = to.try_run(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]).await?;
        let () = from.try_run(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]).await?;
        meanwhile().await;
        let (mut moved, port) = (0, to.port().to_string());
        loop {
            let keys: Vec<String> =
                from.try_run(&["CLUSTER", "GETKEYSINSLOT", &slot, "10"]).await?;
            if keys.is_empty() {
                break;
            }
            for key in keys {
                let one = ["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"];
                let _: String = from.try_run(&one).await?;
                moved += 1;
            }
        }
        meanwhile().await;
        for node in [to, from] {
            let () = node.try_run(&["CLUSTER", "SETSLOT", &slot, "NODE", &target]).await?;
        }
        let settled = self.settle(&slot, [from, to], &target);
        // A master that lost its role gets no slot.
        let _ = timeout(SETTLE, settled).await;
        Ok(moved)
    }

    /// Gives a slot to its target until the target says that it has it. Gossip of before may make
    /// the target take it for the source's, which has given it up: then no node has the slot, and
    /// none ever would.
    async fn settle(&self, slot: &str, [from, to]: [&RedisServer; 2], target: &str) {
        let number = slot.parse().expect("a slot");
        let mut tick = interval(Duration::from_millis(50));
        while self.owner(number).await.is_none_or(|owner| owner.port() != to.port()) {
            tick.tick().await;
            for node in [to, from] {
                let given: RedisResult<()> =
                    node.try_run(&["CLUSTER", "SETSLOT", slot, "NODE", target]).await;
                // The next round gives it again.
                let _ = given;
            }
        }
    }

    /// Waits until each node's `CLUSTER INFO` has a line.
    pub async fn all_say(&self, line: &str) {
        for node in &self.nodes {
            started(async || {
                let told: String = node.run(&["CLUSTER", "INFO"]).await;
                told.lines().any(|found| found == line).then_some(())
            })
            .await;
        }
    }
}
