use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::count::no_quorum;
use super::nodes::Nodes;
use crate::OpenError;
use crate::redis::server::Server;
use keylatch_core::store::{StoreError, StoreHealth, Tier};

/// How long a node may take to say what it is: it is asked for much, and nobody's lease runs meanwhile.
const LOOK: Duration = Duration::from_millis(500);

/// Says at start what the nodes are, and what they cannot do together.
pub(super) async fn at_start(nodes: &Arc<Nodes>, within: Duration) -> Result<(), OpenError> {
    let survey = Survey::of(nodes, within).await;
    if let Some(twice) = survey.twice() {
        return Err(OpenError::BadRedlock(twice));
    }
    let (total, quorum, voting) = (nodes.all.len(), nodes.quorum, survey.voting);
    tracing::info!(
        nodes = total,
        quorum,
        voting,
        tier = survey.tier(nodes).as_str(),
        "Redlock: those who wait are served in no order, and idempotency keys have no records"
    );
    if voting < quorum {
        tracing::warn!(voting, quorum, "too few nodes may vote yet: no lock is granted before");
    }
    Ok(())
}

/// What the nodes are now; an error when too few of them vote.
pub(super) async fn health(nodes: &Arc<Nodes>) -> Result<StoreHealth, StoreError> {
    let survey = Survey::of(nodes, LOOK).await;
    if let Some(twice) = survey.twice() {
        return Err(StoreError::Refused(twice.into()));
    }
    if survey.voting < nodes.quorum {
        let why = StoreError::Unreachable(survey.silent.join("; ").into());
        return Err(no_quorum(survey.voting, nodes.all.len(), false, Some(why)));
    }
    let known = || nodes.all.iter().filter_map(|node| node.last());
    let all = |fact: &dyn Fn(&Server) -> String| {
        known().map(|server| fact(&server)).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    };
    let facts = BTreeMap::from([
        ("nodes", nodes.all.len().to_string()),
        ("quorum", nodes.quorum.to_string()),
        ("answering", survey.answering.len().to_string()),
        ("voting", survey.voting.to_string()),
        ("version", all(&Server::version).join(", ")),
        ("appendfsync", all(&Server::sync).join(", ")),
        ("waiting", "unordered".to_owned()),
        ("idempotency_records", "none".to_owned()),
    ]);
    Ok(StoreHealth { tier: survey.tier(nodes), facts })
}

/// What the nodes said of themselves when they were all asked.
struct Survey {
    answering: Vec<(String, Server)>,
    voting: usize,
    /// Why each of the others does not vote.
    silent: Vec<String>,
}

impl Survey {
    async fn of(nodes: &Nodes, within: Duration) -> Self {
        let looks = join_all(nodes.all.iter().map(|node| node.look(within))).await;
        let mut survey = Self { answering: Vec::new(), voting: 0, silent: Vec::new() };
        for (node, said) in nodes.all.iter().zip(looks) {
            let at = &node.address;
            match said {
                Ok(said) => {
                    survey.answering.push((at.clone(), said.what));
                    survey.voting += usize::from(said.votes);
                    if !said.votes {
                        survey.silent.push(format!("{at} came up lately and keeps silent"));
                    }
                }
                Err(error) => survey.silent.push(format!("{at}: {}", with_cause(&error))),
            }
        }
        survey
    }

    /// One server under two names would vote twice.
    fn twice(&self) -> Option<String> {
        let mut seen = BTreeMap::new();
        self.answering.iter().find_map(|(address, server)| {
            let other = seen.insert(server.life().run_id, address)?;
            Some(format!("{other} and {address} are the same server, which would vote twice"))
        })
    }

    /// `strict` if no node forgets anything. Otherwise a node that came up lately keeps silent, and for
    /// how long it has been up is known by its own clock only, so that nobody can promise more.
    fn tier(&self, nodes: &Nodes) -> Tier {
        let forgets_nothing = |server: Server| server.life().forgets_nothing;
        let strict = nodes.all.iter().all(|node| node.last().is_some_and(forgets_nothing));
        if strict { Tier::Strict } else { Tier::Fenced }
    }
}

fn with_cause(error: &StoreError) -> String {
    let cause = error.source().map(|cause| format!(": {cause}"));
    format!("{error}{}", cause.unwrap_or_default())
}
