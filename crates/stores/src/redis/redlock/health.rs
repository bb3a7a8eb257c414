//! What the nodes are: at start for the log, later for `GET /v1/info` and the readiness probe.
//!
//! All nodes are inspected at once. A node that does not reply in time, or is in quarantine, does not
//! vote; with fewer voters than a quorum the store is not ready. One server under two names would vote
//! twice, so that is refused. Tested over real nodes, by the tests of Redlock as a service.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::round::Nodes;
use super::tally::no_quorum;
use crate::OpenError;
use crate::redis::server::Server;
use keylatch_core::store::{StoreError, StoreHealth, Tier};

/// How long a node may take to report what it is: more than for a command, since no lease runs
/// meanwhile.
const INSPECTION_MAX: Duration = Duration::from_millis(500);

/// Logs at start what the nodes are, and what they cannot do together.
pub(super) async fn check_at_start(nodes: &Arc<Nodes>, within: Duration) -> Result<(), OpenError> {
    let inspection = Inspection::of(nodes, within).await;
    if let Some(duplicate) = inspection.duplicate() {
        return Err(OpenError::BadRedlock(duplicate));
    }
    let (total, quorum, voting) = (nodes.all.len(), nodes.quorum, inspection.voting);
    tracing::info!(
        nodes = total,
        quorum,
        voting,
        tier = inspection.tier(nodes).as_str(),
        "Redlock: waiters are served in no order, and idempotency keys have no records"
    );
    if voting < quorum {
        tracing::warn!(voting, quorum, "too few nodes may vote yet: no lock is granted before");
    }
    Ok(())
}

/// What the nodes are now; an error when too few of them vote.
pub(super) async fn health(nodes: &Arc<Nodes>) -> Result<StoreHealth, StoreError> {
    let inspection = Inspection::of(nodes, INSPECTION_MAX).await;
    if let Some(duplicate) = inspection.duplicate() {
        return Err(StoreError::Refused(duplicate.into()));
    }
    if inspection.voting < nodes.quorum {
        let why = StoreError::Unreachable(inspection.not_voting.join("; ").into());
        return Err(no_quorum(inspection.voting, nodes.all.len(), false, Some(why)));
    }
    let known = || nodes.all.iter().filter_map(|node| node.last_inspection());
    let all = |fact: &dyn Fn(&Server) -> String| {
        known().map(|server| fact(&server)).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    };
    let facts = BTreeMap::from([
        ("nodes", nodes.all.len().to_string()),
        ("quorum", nodes.quorum.to_string()),
        ("answering", inspection.answering.len().to_string()),
        ("voting", inspection.voting.to_string()),
        ("version", all(&Server::version).join(", ")),
        ("appendfsync", all(&Server::sync).join(", ")),
        ("waiting", "unordered".to_owned()),
        ("idempotency_records", "none".to_owned()),
    ]);
    Ok(StoreHealth { tier: inspection.tier(nodes), facts })
}

/// What the nodes reported of themselves, all inspected at once.
struct Inspection {
    /// The nodes that replied, by address.
    answering: Vec<(String, Server)>,
    voting: usize,
    /// Why each of the others does not vote.
    not_voting: Vec<String>,
}

impl Inspection {
    async fn of(nodes: &Nodes, within: Duration) -> Self {
        let replies = join_all(nodes.all.iter().map(|node| node.inspect(within))).await;
        let mut inspection = Self { answering: Vec::new(), voting: 0, not_voting: Vec::new() };
        for (node, reply) in nodes.all.iter().zip(replies) {
            let at = &node.address;
            match reply {
                Ok(reply) => {
                    inspection.answering.push((at.clone(), reply.value));
                    inspection.voting += usize::from(reply.votes);
                    if !reply.votes {
                        let why = format!("{at} came up lately and does not vote yet");
                        inspection.not_voting.push(why);
                    }
                }
                Err(error) => inspection.not_voting.push(format!("{at}: {}", with_cause(&error))),
            }
        }
        inspection
    }

    /// Two addresses of one server.
    fn duplicate(&self) -> Option<String> {
        let mut seen = BTreeMap::new();
        self.answering.iter().find_map(|(address, server)| {
            let other = seen.insert(server.life().run_id, address)?;
            Some(format!("{other} and {address} are the same server, which would vote twice"))
        })
    }

    /// `strict` if no node forgets anything. Otherwise the quarantine protects the leases, and it rests
    /// on the node's own word where this process did not see it come up, so no more is promised.
    fn tier(&self, nodes: &Nodes) -> Tier {
        let forgets_nothing = |server: Server| server.life().forgets_nothing;
        let strict =
            nodes.all.iter().all(|node| node.last_inspection().is_some_and(forgets_nothing));
        if strict { Tier::Strict } else { Tier::Fenced }
    }
}

fn with_cause(error: &StoreError) -> String {
    let cause = error.source().map(|cause| format!(": {cause}"));
    format!("{error}{}", cause.unwrap_or_default())
}
