use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::ballot::Ballot;
use super::nodes::Nodes;
use super::step::Step;
use super::vote::{Grant, Proposal, Vote};
use keylatch_core::lock::{FencingToken, LockName, TokenHash};

/// What nodes said that have the lock with whoever asked.
pub(super) type Votes = BTreeMap<usize, Vote>;

/// The grants that agree on a fencing token, of the one on which most do; the higher one of two.
pub(super) fn agreed<'a>(grants: impl Iterator<Item = &'a Grant>) -> Vec<&'a Grant> {
    most(grants, |grant| (grant.fence, &*grant.token))
}

/// The grants whose fencing token was taken under the same ballot, of the one under which most did. If
/// they are a quorum, they agree for good.
pub(super) fn taken<'a>(grants: impl Iterator<Item = &'a Grant>) -> Vec<&'a Grant> {
    most(grants, |grant| (grant.accepted, grant.fence))
}

fn most<'a, K: Ord>(
    grants: impl Iterator<Item = &'a Grant>,
    key: impl Fn(&'a Grant) -> K,
) -> Vec<&'a Grant> {
    let mut by_key = BTreeMap::<K, Vec<_>>::new();
    for grant in grants.filter(|grant| grant.fence > FencingToken::NONE) {
        by_key.entry(key(grant)).or_default().push(grant);
    }
    by_key.into_values().max_by_key(Vec::len).unwrap_or_default()
}

/// What a quorum has agreed on; only the votes of nodes that have it are left then.
pub(super) fn settled(votes: &mut Votes, quorum: usize) -> Option<Proposal> {
    let taken = taken(votes.values().filter_map(Vote::mine));
    let proposal = taken.first().filter(|_| taken.len() >= quorum)?.proposal();
    votes.retain(|_, vote| vote.mine().is_some_and(|grant| grant.fence == proposal.fence));
    Some(proposal)
}

/// What a node took under the highest ballot.
pub(super) fn latest(votes: &Votes) -> Option<&Grant> {
    let grants = votes.values().filter_map(Vote::mine);
    grants.filter(|grant| grant.fence > FencingToken::NONE).max_by_key(|grant| grant.accepted)
}

/// What is to be proposed to the nodes that promised a ballot: what a quorum may have taken already, and
/// `own` otherwise, with a fencing token above every counter and not below any of the clocks.
///
/// If a quorum took something under a lower ballot, nothing else was proposed since. So it can only be
/// what was taken under the highest ballot, and all who took it have it still; the nodes that are not
/// among these may be some of them.
pub(super) fn proposal(
    votes: &Votes,
    nodes: &Nodes,
    own: impl FnOnce(FencingToken) -> Proposal,
) -> Proposal {
    if let Some(latest) = latest(votes) {
        let grants = votes.values().filter_map(Vote::mine);
        let same = grants.filter(|grant| grant.fence == latest.fence).count();
        if same + nodes.all.len() - votes.len() >= nodes.quorum {
            return latest.proposal();
        }
    }
    let last = votes.values().map(|vote| vote.counter).max().unwrap_or_default();
    own(last.next(votes.values().map(|vote| vote.micros).max().unwrap_or_default()))
}

/// One lock's nodes, to agree under a ballot.
pub(super) struct Settling<'a> {
    pub(super) nodes: &'a Arc<Nodes>,
    pub(super) name: &'a LockName,
    pub(super) token: &'a TokenHash,
    pub(super) ballot: Ballot,
    pub(super) node_time: Duration,
}

impl Settling<'_> {
    /// Proposes something to these nodes, and says what is left of the votes: those who took it, a quorum
    /// if there are so many.
    pub(super) async fn propose(&self, mut votes: Votes, proposal: &Proposal) -> Votes {
        let asked: Vec<_> = votes.keys().copied().collect();
        let mut round = self.nodes.ask(asked, &self.step(proposal), self.node_time);
        let took = |vote: &Vote| {
            let took =
                |grant: &Grant| grant.accepted == self.ballot && grant.fence == proposal.fence;
            vote.mine().is_some_and(took)
        };
        let mut taken = Votes::new();
        while taken.len() < self.nodes.quorum {
            let Some((node, answer)) = round.next().await else { break };
            let answer = answer.ok().filter(|said| said.votes && took(&said.what));
            if let (Some(_), Some(vote)) = (answer, votes.remove(&node)) {
                taken.insert(node, vote);
            }
        }
        self.nodes.finish(round);
        taken
    }

    pub(super) fn step(&self, proposal: &Proposal) -> Step {
        Step::Settle(self.name.clone(), *self.token, self.ballot, proposal.clone())
    }
}
