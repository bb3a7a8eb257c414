use std::sync::Arc;

use super::count::no_quorum;
use super::nodes::Nodes;
use super::round::Answer;
use super::step::Return;
use crate::redis::reply::Reply;
use keylatch_core::lock::{Attempt, LockName, ReleaseReply, TokenHash};
use keylatch_core::store::{Effect, StoreError};

/// Gives a lock back on all nodes, if a quorum has it with this token.
pub(super) async fn release(
    nodes: &Arc<Nodes>,
    name: &LockName,
    token: &TokenHash,
) -> Result<ReleaseReply, StoreError> {
    let step = Return::Release(name.clone(), *token);
    let mut round = nodes.return_to_all(&step, nodes.longest_node_time());
    let mut tally = Tally { nodes: nodes.all.len(), quorum: nodes.quorum, ..Tally::default() };
    let found = loop {
        if let Some(found) = tally.found() {
            break Ok(found);
        }
        match round.next().await {
            Some((_, answer)) => tally.add(answer),
            None => {
                tally.maybe_done |= !round.unheard().is_empty();
                break Err(tally.error());
            }
        }
    };
    nodes.finish(round);
    found
}

/// Takes back on all nodes what an attempt got, so that no quorum has it.
pub(super) async fn withdraw(
    nodes: &Arc<Nodes>,
    name: &LockName,
    token: &TokenHash,
    attempt: Attempt,
) -> Result<(), StoreError> {
    let step = Return::Withdraw(name.clone(), *token, attempt);
    let mut round = nodes.return_to_all(&step, nodes.longest_node_time());
    let (mut done, total) = (0, nodes.all.len());
    while let Some((_, answer)) = round.next().await {
        done += usize::from(answer.is_ok());
        if total - done < nodes.quorum {
            nodes.finish(round);
            return Ok(());
        }
    }
    Err(no_quorum(done, total, true, None))
}

/// What nodes say that were asked for a lock back.
#[derive(Debug, Default)]
struct Tally {
    nodes: usize,
    quorum: usize,
    released: usize,
    mismatched: usize,
    free: usize,
    /// Whether a node may have given the lock back.
    maybe_done: bool,
    last_error: Option<StoreError>,
}

impl Tally {
    fn add(&mut self, answer: Answer<Reply>) {
        match answer {
            Ok(said) => {
                let released = said.what.found() == "released";
                self.maybe_done |= released;
                match said.what.found() {
                    _ if !said.votes => {}
                    _ if released => self.released += 1,
                    "mismatch" => self.mismatched += 1,
                    _ => self.free += 1,
                }
            }
            Err(error) => {
                self.maybe_done |= error.effect() == Effect::Unknown;
                self.last_error = Some(error);
            }
        }
    }

    /// What it comes to, whatever the others say.
    fn found(&self) -> Option<ReleaseReply> {
        let missing = self.nodes - self.votes();
        if self.released >= self.quorum {
            Some(ReleaseReply::Released)
        } else if self.mismatched >= self.quorum {
            Some(ReleaseReply::Mismatch)
        } else if self.released.max(self.mismatched) + missing < self.quorum {
            Some(ReleaseReply::NotHeld)
        } else {
            None
        }
    }

    fn votes(&self) -> usize {
        self.released + self.mismatched + self.free
    }

    /// A later try may find the rest of the nodes, so one that gave the lock back is enough.
    fn error(&mut self) -> StoreError {
        no_quorum(self.votes(), self.nodes, self.maybe_done, self.last_error.take())
    }
}
