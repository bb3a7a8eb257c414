//! One node: its connection, and whether it may vote.
//!
//! A node has **one** connection. So it takes the commands of this process in the order in which
//! they were sent: a withdrawal never overtakes the grant that it ends.
//!
//! A node that lost its memory in a crash would grant a held lock again. So it is in
//! [quarantine](VoterQuarantine) until every lease that it may have forgotten is over, unless it
//! forgets nothing; its replies do not count until then. The exclusive lease of
//! internals/redlock.md rests on this (steps 1 and 2). Tested over real nodes that crash, by
//! the tests of restarted nodes.

use std::sync::Mutex;
use std::time::Duration;

use bb8_redis::redis::ScriptInvocation;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::messages::Report;
use crate::conn::locked;
use crate::conn::tls::Certificates;
use crate::error::OpenError;
use crate::redis::client::RedisClient;
use crate::redis::pool::Pool;
use crate::redis::server::Server;
use crate::settings::RedisSettings;
use keylatch_core::store::StoreError;

/// By how much the whole seconds of two readings of a clock may miss the time between them.
const WHOLE_SECONDS: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Node {
    /// Where it is, for people.
    pub(super) address: String,
    pub(super) pool: Pool,
    quarantine: VoterQuarantine,
    last: Mutex<Option<Server>>,
}

pub(super) type NodeResult<T> = Result<NodeReply<T>, StoreError>;

#[derive(Debug)]
pub(super) struct NodeReply<T> {
    pub(super) value: T,
    /// Whether the reply counts: the node is not in quarantine.
    pub(super) votes: bool,
}

impl Node {
    /// The server at `url`, with one connection.
    pub(super) async fn open(
        (address, url): (String, String),
        security: &Certificates,
        settings: &RedisSettings,
        max_ttl: Duration,
    ) -> Result<Self, OpenError> {
        let settings = RedisSettings { connections: 1, ..settings.clone() };
        let pool = Pool::open(RedisClient::of(&url, security, &settings)?).await?;
        let quarantine = VoterQuarantine::new(max_ttl);
        Ok(Self { address, pool, quarantine, last: Mutex::default() })
    }

    /// Runs a script on the node, if there is a connection in time and the round is not over
    /// before. There is no limit to the wait for the reply.
    pub(super) async fn run(
        &self,
        call: &ScriptInvocation<'_>,
        connect_by: Instant,
        is_over: &CancellationToken,
    ) -> NodeResult<Report> {
        let unsent = |why: &str| StoreError::Unreachable(why.into());
        let shared = timeout_at(connect_by, self.pool.check_out()).await;
        let shared = shared.map_err(|_| unsent("no connection in time"))??;
        if is_over.is_cancelled() {
            return Err(unsent("the others decided it before"));
        }
        let votes = self.may_vote(&shared.server);
        Ok(NodeReply { value: shared.run(call, false).await?, votes })
    }

    /// What the node reports of itself within a time.
    pub(super) async fn inspect(&self, within: Duration) -> Result<NodeReply<Server>, StoreError> {
        let server = timeout(within, self.pool.inspect()).await;
        let server = server.map_err(|_| StoreError::Deadline(within))??;
        *locked(&self.last) = Some(server.clone());
        let votes = self.may_vote(&server);
        Ok(NodeReply { value: server, votes })
    }

    /// What the node reported of itself the last time that it was inspected.
    pub(super) fn last_inspection(&self) -> Option<Server> {
        locked(&self.last).clone()
    }

    fn may_vote(&self, server: &Server) -> bool {
        self.quarantine.ends_at(server) <= Instant::now()
    }
}

/// The time during which a restarted node does not vote, because it may have forgotten grants.
///
/// The right to vote is the connection's: a connection ends with the process at its other end, and
/// each new one asks which process that is, and for how long it has been up.
#[derive(Debug)]
pub(super) struct VoterQuarantine {
    duration: Duration,
    known: Mutex<Option<KnownProcess>>,
}

#[derive(Debug)]
struct KnownProcess {
    run_id: String,
    votes_from: Instant,
}

impl VoterQuarantine {
    /// The quarantine of a node that may have forgotten leases of at most `max_ttl`.
    pub(super) fn new(max_ttl: Duration) -> Self {
        let drift = max_ttl / 100 + Duration::from_millis(2);
        Self { duration: max_ttl + drift + WHOLE_SECONDS, known: Mutex::default() }
    }

    /// When the quarantine of this process of the node ends.
    pub(super) fn ends_at(&self, server: &Server) -> Instant {
        let mut known = locked(&self.known);
        let rest = match &*known {
            Some(known) if known.run_id == server.run_id() => return known.votes_from,
            _ if server.forgets_nothing() => Duration::ZERO,
            // For the first process there is only the node's own word, by its wall clock.
            None => self.duration.saturating_sub(server.uptime()),
            // Here this process's clock knows better; and a server that replaced another may have
            // been up for long, without the locks of the other.
            Some(_) => self.duration,
        };
        if !rest.is_zero() {
            tracing::info!(quarantine = ?rest, "a node that came up lately does not vote yet");
        }
        let votes_from = server.seen + rest;
        *known = Some(KnownProcess { run_id: server.run_id().to_owned(), votes_from });
        votes_from
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_TTL: Duration = Duration::from_secs(60);

    fn server(run_id: &str, uptime_secs: u64, forgets_nothing: bool) -> Server {
        let aof = u8::from(forgets_nothing);
        let info = format!("run_id:{run_id}\nuptime_in_seconds:{uptime_secs}\naof_enabled:{aof}\n");
        Server::of(&info, Some("always".to_owned()))
    }

    /// For how long a process stays in quarantine after it was seen.
    fn quarantine_of(voter: &VoterQuarantine, server: &Server) -> Duration {
        voter.ends_at(server).saturating_duration_since(server.seen)
    }

    #[test]
    fn first_process_is_believed_for_how_long_it_has_been_up() {
        let whole = quarantine_of(&VoterQuarantine::new(MAX_TTL), &server("a", 0, false));
        assert!(whole > MAX_TTL, "{whole:?}");
        let part = quarantine_of(&VoterQuarantine::new(MAX_TTL), &server("a", 20, false));
        assert_eq!(whole - part, Duration::from_secs(20));
        let none = quarantine_of(&VoterQuarantine::new(MAX_TTL), &server("a", 3600, false));
        assert_eq!(none, Duration::ZERO);
    }

    #[test]
    fn process_that_follows_another_is_in_quarantine_for_the_whole_time() {
        let voter = VoterQuarantine::new(MAX_TTL);
        assert_eq!(quarantine_of(&voter, &server("a", 3600, false)), Duration::ZERO);
        let second = server("b", 3600, false);
        assert!(quarantine_of(&voter, &second) > MAX_TTL);
        let mut later = second.clone();
        later.seen += MAX_TTL;
        assert_eq!(voter.ends_at(&later), voter.ends_at(&second), "a new connection starts none");
    }

    #[test]
    fn process_that_forgets_nothing_votes_at_once() {
        let voter = VoterQuarantine::new(MAX_TTL);
        for run_id in ["a", "b"] {
            assert_eq!(quarantine_of(&voter, &server(run_id, 0, true)), Duration::ZERO);
        }
    }
}
