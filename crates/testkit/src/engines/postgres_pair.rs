//! A PostgreSQL with a standby, which can take its place. Commits wait for the standby's disk, or
//! they do not.
//!
//! A promotion ends the old primary for good before it makes the standby one, as whatever promotes
//! standbys has to. Then a new standby is copied from the new primary, at another address. Where
//! commits wait, they do from the promotion until it is there, because such a pair never commits on
//! one disk alone.

use super::PostgresServer;
use crate::{eventually, started};

/// What both servers have, whichever is the primary: the disk is waited for, and what was lost is
/// connected to again at once.
const SETTINGS: [&str; 3] =
    ["shared_buffers=32MB", "max_connections=100", "wal_retrieve_retry_interval=100ms"];
/// How many standbys follow in this way.
const STANDBYS: &str =
    "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = $1";

/// How a standby follows its primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replication {
    /// A commit waits until the standby has it on its disk.
    Synchronous,
    /// A commit waits for no standby, so a promotion may lose the last ones.
    Asynchronous,
}

impl Replication {
    fn settings(self) -> [&'static str; 4] {
        let [buffers, connections, retry] = SETTINGS;
        let names = match self {
            Self::Synchronous => "synchronous_standby_names=walreceiver",
            Self::Asynchronous => "synchronous_standby_names=",
        };
        [buffers, connections, retry, names]
    }

    /// What the primary calls the state of its standby.
    fn state(self) -> &'static str {
        match self {
            Self::Synchronous => "sync",
            Self::Asynchronous => "async",
        }
    }
}

/// A primary and its standby.
#[derive(Debug)]
pub struct PostgresPair {
    servers: [PostgresServer; 2],
    primary: usize,
    replication: Replication,
}

impl PostgresPair {
    /// A pair that commits, with variables in the environment of all its servers.
    pub async fn start_with_environment(
        replication: Replication,
        environment: &[(&str, &str)],
    ) -> Self {
        let settings = replication.settings();
        let primary = PostgresServer::start_with_environment(&settings, environment).await;
        let standby = primary.standby_with(&settings).await;
        let pair = Self { servers: [primary, standby], primary: 0, replication };
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

    /// Waits until the standby follows the primary, and commits do not wait for it for longer than
    /// it takes.
    pub async fn serves(&self) {
        started(async || self.is_whole().await.then_some(())).await;
    }

    /// Whether the standby follows the primary.
    pub async fn is_whole(&self) -> bool {
        let Some(client) = self.servers[self.primary].connect("postgres").await else {
            return false;
        };
        let state = self.replication.state();
        client.query_one(STANDBYS, &[&state]).await.is_ok_and(|row| row.get::<_, i64>(0) == 1)
    }

    /// Starts a server that was killed, as what it was.
    pub async fn restart(&mut self, server: usize) {
        self.servers[server].restart(&self.replication.settings()).await;
    }

    /// Has the standby leave its primary: what is committed from now on, it does not have.
    pub async fn cut_standby_off(&self) {
        let standby = &self.servers[1 - self.primary];
        standby.set(&[("primary_conninfo", "")]).await;
        let receivers = "SELECT count(*) FROM pg_stat_wal_receiver";
        let has_left =
            async || (standby.ask::<i64>("postgres", receivers).await == 0).then_some(());
        eventually(has_left).await;
    }

    /// Kills the primary for good and promotes the standby; gives which server is new, and its
    /// address.
    pub async fn promote(&mut self) -> (usize, String) {
        let (old, new) = (self.primary, 1 - self.primary);
        self.servers[old].kill();
        self.servers[new].promote().await;
        self.primary = new;
        self.servers[old] = self.servers[new].standby_with(&self.replication.settings()).await;
        (old, self.servers[old].address())
    }
}
