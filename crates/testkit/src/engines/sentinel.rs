//! A Redis master with replicas and sentinels.
//!
//! It is ready when the sentinels agree on the master and know each other and the replicas. A
//! failover is waited for by what the sentinels report, and not for a time.

use std::collections::HashMap;

use tempfile::TempDir;

use crate::{RedisServer, eventually, started};

/// A master with its replicas, and the sentinels that monitor them.
#[derive(Debug)]
pub struct Sentinels {
    /// The first is the master at the start.
    pub servers: Vec<RedisServer>,
    /// The sentinels.
    pub sentinels: Vec<RedisServer>,
    files: TempDir,
}

impl Sentinels {
    /// So many replicas and sentinels, which know of each other.
    pub async fn start(replicas: usize, sentinels: usize) -> Self {
        let mut servers = vec![RedisServer::start().await];
        let port = servers[0].port().to_string();
        for _ in 0..replicas {
            let replica = ["--replicaof", "127.0.0.1", &port];
            servers.push(RedisServer::start_with(&replica).await);
        }
        let set_up = ["CONFIG", "SET", "repl-diskless-sync-delay", "0"];
        let () = servers[0].run(&set_up).await;
        wait_for(&servers[0], "INFO", "replication", &format!("connected_slaves:{replicas}")).await;
        for replica in &servers[1..] {
            wait_for(replica, "INFO", "replication", "master_link_status:up").await;
        }
        let files = tempfile::tempdir().expect("a temporary directory");
        let mut set = Self { servers, sentinels: Vec::new(), files };
        for number in 0..sentinels {
            let sentinel = set.watch(number, sentinels / 2 + 1).await;
            set.sentinels.push(sentinel);
        }
        for sentinel in &set.sentinels {
            let known = format!("slaves={replicas},sentinels={sentinels}");
            wait_for(sentinel, "INFO", "sentinel", &known).await;
        }
        set
    }

    /// Another sentinel, which knows the first master alone.
    pub async fn stale_sentinel(&self) -> RedisServer {
        self.watch(self.sentinels.len(), self.sentinels.len()).await
    }

    async fn watch(&self, number: usize, quorum: usize) -> RedisServer {
        let file = self.files.path().join(format!("{number}.conf"));
        // Where nothing can take the master's place, a busy machine is not to make it one that is
        // down.
        let down_after = if self.servers.len() == 1 { 60_000 } else { 400 };
        let lines = format!(
            "sentinel monitor mymaster 127.0.0.1 {} {quorum}\n\
             sentinel down-after-milliseconds mymaster {down_after}\n\
             sentinel failover-timeout mymaster 3000\n",
            self.servers[0].port()
        );
        std::fs::write(&file, lines).expect("a file for the sentinel");
        RedisServer::start_with(&[&file.display().to_string(), "--sentinel"]).await
    }

    /// Deletes every key.
    pub async fn flush(&self) {
        let () = self.servers[0].run(&["FLUSHALL"]).await;
    }

    /// Its URL for the service.
    pub fn url(&self) -> String {
        Self::url_of(&self.sentinels)
    }

    /// The URL of the master by these sentinels alone.
    pub fn url_of<'a>(sentinels: impl IntoIterator<Item = &'a RedisServer>) -> String {
        let addresses: Vec<_> = sentinels.into_iter().map(RedisServer::address).collect();
        format!("redis+sentinel://{}/mymaster", addresses.join(","))
    }

    /// The sentinel that has made another server master, and does not end the failover as long as
    /// there is a replica to be moved.
    pub async fn leader(&self) -> &RedisServer {
        eventually(async || {
            for sentinel in &self.sentinels {
                let question = ["SENTINEL", "MASTER", "mymaster"];
                let told: HashMap<String, String> = sentinel.run(&question).await;
                if told["flags"].contains("failover_in_progress") && told["config-epoch"] != "0" {
                    let patience = ["SENTINEL", "SET", "mymaster", "failover-timeout", "60000"];
                    let () = sentinel.run(&patience).await;
                    return Some(sentinel);
                }
            }
            None
        })
        .await
    }

    /// The server that most of the sentinels call master, if it is not this one.
    pub async fn master_after(&self, old: &RedisServer) -> &RedisServer {
        eventually(async || {
            let mut ports = Vec::new();
            for sentinel in &self.sentinels {
                let question = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"];
                let (_, port): (String, u16) = sentinel.run(&question).await;
                ports.push(port);
            }
            ports.sort_unstable();
            let port = ports[ports.len() / 2];
            self.servers.iter().find(|server| server.port() == port && port != old.port())
        })
        .await
    }
}

async fn wait_for(server: &RedisServer, command: &str, section: &str, found: &str) {
    started(async || {
        let told: String = server.run(&[command, section]).await;
        told.contains(found).then_some(())
    })
    .await;
}
