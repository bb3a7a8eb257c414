//! A PostgreSQL whose commits wait for the disk of a standby, which can take its place.
//!
//! A promotion ends the old primary for good before it makes the standby one, as whatever promotes standbys
//! has to. Then a new standby is copied from the new primary, at another address. Commits wait from the
//! promotion until it is there, because the pair never commits on one disk alone.

use crate::{PostgresServer, eventually};

/// What both servers have, whichever is the primary: the disk is waited for, and what was lost is
/// connected to again at once.
const SETTINGS: [&str; 4] = [
    "shared_buffers=32MB",
    "max_connections=100",
    "synchronous_standby_names=walreceiver",
    "wal_retrieve_retry_interval=100ms",
];
/// How many standbys commits wait for, and have.
const IN_SYNC: &str =
    "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = 'sync'";

/// A primary and its synchronous standby.
#[derive(Debug)]
pub struct PostgresPair {
    servers: [PostgresServer; 2],
    primary: usize,
}

impl PostgresPair {
    /// A pair that commits, with variables in the environment of all its servers.
    pub async fn start_with_environment(environment: &[(&str, &str)]) -> Self {
        let primary = PostgresServer::start_with_environment(&SETTINGS, environment).await;
        let standby = primary.standby_with(&SETTINGS).await;
        let pair = Self { servers: [primary, standby], primary: 0 };
        pair.serves().await;
        pair
    }

    /// Both servers, of which [`primary`](Self::primary) is the primary.
    pub fn servers(&self) -> &[PostgresServer; 2] {
        &self.servers
    }

    /// Which server is the primary.
    pub fn primary(&self) -> usize {
        self.primary
    }

    /// Waits until the standby follows the primary, and commits do not wait for it for longer than it takes.
    pub async fn serves(&self) {
        eventually(async || self.is_whole().await.then_some(())).await;
    }

    /// Whether the standby follows the primary.
    pub async fn is_whole(&self) -> bool {
        let Some(client) = self.servers[self.primary].connect("postgres").await else {
            return false;
        };
        client.query_one(IN_SYNC, &[]).await.is_ok_and(|row| row.get::<_, i64>(0) == 1)
    }

    /// Starts a server that was killed, as what it was.
    pub async fn restart(&mut self, server: usize) {
        self.servers[server].restart(&SETTINGS).await;
    }

    /// Kills the primary for good and promotes the standby; gives which server is new, and its address.
    pub async fn promote(&mut self) -> (usize, String) {
        let (old, new) = (self.primary, 1 - self.primary);
        self.servers[old].kill();
        self.servers[new].promote().await;
        self.primary = new;
        self.servers[old] = self.servers[new].standby_with(&SETTINGS).await;
        (old, self.servers[old].address())
    }
}
