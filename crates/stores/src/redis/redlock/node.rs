use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bb8_redis::redis::{FromRedisValue, ScriptInvocation};
use tokio::time::{Instant, timeout, timeout_at};

use super::right::VoteRight;
use super::round::Sending;
use crate::OpenError;
use crate::redis::Settings;
use crate::redis::pool::{self, Pool};
use crate::redis::replicas::Promise;
use crate::redis::server::Server;
use keylatch_core::store::StoreError;

/// One of the servers.
#[derive(Debug)]
pub(super) struct Node {
    /// Where it is, for people.
    pub(super) address: String,
    pub(super) pool: Pool,
    right: VoteRight,
    /// What it said of itself the last time.
    last: Mutex<Option<Server>>,
}

/// What a node answered.
#[derive(Debug)]
pub(super) struct Said<T> {
    pub(super) what: T,
    /// Whether it counts.
    pub(super) votes: bool,
}

impl Node {
    /// The server at `url`.
    ///
    /// It is given **one** connection, so that it takes the steps of this process in the order in which
    /// they were sent: what takes a grant back never overtakes the grant.
    pub(super) async fn open(
        (address, url): (String, String),
        settings: &Settings,
        max_ttl: Duration,
    ) -> Result<Self, OpenError> {
        let settings = Settings { connections: 1, ..settings.clone() };
        let pool = Pool::open(pool::client(&url, &settings)?, &settings).await?;
        Ok(Self { address, pool, right: VoteRight::new(max_ttl), last: Mutex::default() })
    }

    /// Has the node take a step, if it may still be sent when there is a connection; the answer is waited
    /// for without end.
    pub(super) async fn ask<T: FromRedisValue + Promise>(
        &self,
        call: &ScriptInvocation<'_>,
        sending: &Sending,
    ) -> Result<Said<T>, StoreError> {
        let shared = timeout_at(sending.connect_by, self.pool.check_out()).await;
        let no_connection = |_| StoreError::Unreachable("no connection in time".into());
        let shared = shared.map_err(no_connection)??;
        if sending.is_over() {
            return Err(StoreError::Unreachable("the others decided it before".into()));
        }
        let votes = self.right.from(&shared.life) <= Instant::now();
        Ok(Said { what: shared.run(call).await?, votes })
    }

    /// What the node is, if it says so in time, and whether it may vote now.
    pub(super) async fn look(&self, within: Duration) -> Result<Said<Server>, StoreError> {
        let server = timeout(within, self.pool.ask()).await;
        let server = server.map_err(|_| StoreError::Deadline(within))??;
        *locked(&self.last) = Some(server.clone());
        let votes = self.right.from(&server.life()) <= Instant::now();
        Ok(Said { what: server, votes })
    }

    /// What the node said of itself the last time that it was asked.
    pub(super) fn last(&self) -> Option<Server> {
        locked(&self.last).clone()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
