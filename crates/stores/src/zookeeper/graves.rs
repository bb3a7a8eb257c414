//! Removing rows in two steps: first a row is emptied, and later its node is deleted.
//!
//! A node that is made again begins with the data version 0. So a change that names a data version
//! of the old node could hit the new one, if the row was read just before it was removed. A node
//! without data is no row. Emptying gives the node another data version, so a change that was
//! decided from the row fails; and nothing is decided from an empty node. The node is deleted when
//! no such change can be on its way any more: a process remembers a row for 10 s, waits 5 s for a
//! call, and what it sent is carried out within its session or not at all. A row that is written in
//! an empty node has the next data version.
//!
//! Invariant: no change that names a version of a removed row is carried out. Its writer read the
//! row before the emptying, and [`Graves::rest`] later it has no session in which the change could
//! still come. A write in an empty node names the data version of the parent too, which each
//! deletion raises; so does what empties or deletes a node, beside the node's whole version, since
//! a walk may have seen the node long ago. Tested in `tests/stores/zookeeper`.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::try_join_all;
use keylatch_core::store::StoreError;
use tokio::time::Instant;
use zookeeper_client::{Client, Error};

use super::ZooKeeper;
use super::failure::{classify, is_conflict};
use super::session::Session;
use super::tree::{data_version, parent_of, version_in};
use super::write::MarkStep;
use crate::conn::locked;
use crate::optimistic::conditional::{Key, Removal, Version};

/// For how long a process may take a row as what the ensemble has, and wait for the call that
/// changes it.
const IN_USE: Duration = Duration::from_secs(15);
/// How many empty nodes a process keeps in mind; a later walk finds the others again.
const CAPACITY: usize = 16 * 1024;
/// How many are deleted at once.
const BATCH: usize = 256;
/// How many nodes below one parent are emptied or deleted in one request. A service that gives each
/// lock a new name would else have the ensemble commit as often for what it removes as for what it
/// grants.
const TOGETHER: usize = 64;

/// The empty nodes that this process knows of.
#[derive(Debug, Default)]
pub(super) struct Graves {
    /// With their versions, and when they were first seen empty.
    known: Mutex<HashMap<Key, (Version, Instant)>>,
}

impl Graves {
    /// For how long a node stays empty before it is deleted, where sessions have this time limit.
    pub(super) fn rest(session_timeout: Duration) -> Duration {
        // The client gives up a session that it cannot reach after 7/5 of its time.
        IN_USE + 2 * session_timeout
    }

    /// Notes that a node was seen empty, with this version.
    pub(super) fn note(&self, key: Key, version: Version) {
        let mut known = locked(&self.known);
        let is_known = known.get(&key).map(|(known, _)| *known == version);
        if is_known.unwrap_or(known.len() >= CAPACITY) {
            return;
        }
        known.insert(key, (version, Instant::now()));
    }

    /// Some of the nodes that were empty for `rest`, with their versions. They are forgotten.
    pub(super) fn take_due(&self, rest: Duration) -> Vec<(Key, Version)> {
        let mut known = locked(&self.known);
        let now = Instant::now();
        let due = known.iter().filter(|(_, (_, since))| *since + rest <= now);
        let mut due: Vec<_> = due.map(|(key, (version, _))| (key.clone(), *version)).collect();
        // Those of one bucket have one parent. A lock's bucket is a hash of its name.
        due.sort_by_cached_key(|(key, _)| key.bucket());
        due.truncate(BATCH);
        for (key, _) in &due {
            known.remove(key);
        }
        due
    }
}

/// A node that is to be emptied or deleted, if it still has this version.
#[derive(Debug)]
struct Node {
    key: Key,
    path: String,
    version: Version,
}

/// What is done to a node that is no row any more.
#[derive(Debug, Clone, Copy)]
enum Step {
    Empty,
    Delete,
}

impl ZooKeeper {
    /// Removes rows that still have these versions: their nodes are empty from now on, and deleted
    /// later.
    pub(super) async fn empty(
        &self,
        session: &Session,
        rows: &[Removal],
    ) -> Result<(), StoreError> {
        let (marked, rows): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.is_marked);
        let marked = marked.into_iter().map(|row| self.empty_marked(session, row));
        let rows = rows.into_iter().map(|row| (row.key.clone(), row.version));
        tokio::try_join!(try_join_all(marked), self.take_steps(session, rows, Step::Empty))
            .map(drop)
    }

    /// Deletes nodes that have been empty for long enough.
    pub(super) async fn bury(&self, session: &Session) -> Result<(), StoreError> {
        let due = self.graves.take_due(Graves::rest(session.client.session_timeout()));
        self.take_steps(session, due.into_iter(), Step::Delete).await
    }

    /// The row's node is emptied with its mark, in a request of its own.
    async fn empty_marked(&self, session: &Session, row: &Removal) -> Result<(), StoreError> {
        let mark = self.link.members.tree.mark(&row.key);
        let mark = mark.map_or(MarkStep::None, MarkStep::Delete);
        let node = [self.node_of(row.key.clone(), row.version)];
        is_taken(self.step(&session.client, &node, Step::Empty, &mark).await).map(drop)
    }

    fn node_of(&self, key: Key, version: Version) -> Node {
        Node { path: self.link.members.tree.node(&key), key, version }
    }

    /// Takes a step on each node. Nodes below one parent share requests; where one of them has
    /// changed, each has its own.
    async fn take_steps(
        &self,
        session: &Session,
        nodes: impl Iterator<Item = (Key, Version)>,
        step: Step,
    ) -> Result<(), StoreError> {
        let mut below: HashMap<String, Vec<Node>> = HashMap::new();
        for (key, version) in nodes {
            let node = self.node_of(key, version);
            below.entry(parent_of(&node.path).to_owned()).or_default().push(node);
        }
        // A deletion raises the version of the parent, so those below one parent come one after
        // another.
        let stepping = below.into_values().map(async |nodes| {
            for some in nodes.chunks(TOGETHER) {
                let taken = self.step(&session.client, some, step, &MarkStep::None).await;
                if is_taken(taken)? || some.len() == 1 {
                    continue;
                }
                // A row was written in one of them, or another process was before.
                for node in some.chunks(1) {
                    let taken = self.step(&session.client, node, step, &MarkStep::None).await;
                    is_taken(taken)?;
                }
            }
            Ok::<_, StoreError>(())
        });
        try_join_all(stepping).await.map(drop)
    }

    /// Takes a step on all of some nodes below one parent that still have their versions, or on
    /// none.
    async fn step(
        &self,
        client: &Client,
        nodes: &[Node],
        step: Step,
        mark: &MarkStep,
    ) -> Result<(), Error> {
        let Some(parent) = nodes.first().map(|node| parent_of(&node.path)) else { return Ok(()) };
        let Some((parent_version, same)) = same_below(client, parent, nodes).await? else {
            return Ok(());
        };
        let stats = self.commit(client, mark, |multi| {
            match step {
                Step::Empty => multi.add_check_version(parent, parent_version)?,
                Step::Delete => multi.add_set_data(parent, &[], Some(parent_version))?,
            }
            same.iter().try_for_each(|Node { path, version, .. }| {
                let version = Some(data_version(*version));
                match step {
                    Step::Empty => multi.add_set_data(path, &[], version),
                    Step::Delete => multi.add_delete(path, version),
                }
            })
        });
        let stats = stats.await?;
        if let Step::Empty = step {
            let emptied = same.iter().zip(&stats).filter(|(_, stat)| !stat.is_invalid());
            emptied.for_each(|(node, stat)| self.graves.note(node.key.clone(), version_in(stat)));
        }
        Ok(())
    }
}

/// Whether a step was taken; `false` where a node or its parent is not as it was.
fn is_taken(taken: Result<(), Error>) -> Result<bool, StoreError> {
    match taken {
        Ok(()) => Ok(true),
        Err(error) if is_conflict(&error) => Ok(false),
        Err(error) => Err(classify(error)),
    }
}

/// The data version of a parent, and the nodes below it that still have their versions; `None` if
/// there are none. The parent is asked first: as long as it keeps that data version, no node below
/// it is deleted, so none is made again, and the data version of each stands for its whole version.
async fn same_below<'nodes>(
    client: &Client,
    parent: &str,
    nodes: &'nodes [Node],
) -> Result<Option<(i32, Vec<&'nodes Node>)>, Error> {
    let stats = try_join_all(nodes.iter().map(|node| client.check_stat(&node.path)));
    let (parent, stats) = tokio::join!(client.check_stat(parent), stats);
    let (Some(parent), stats) = (parent?, stats?) else { return Ok(None) };
    let same = nodes
        .iter()
        .zip(&stats)
        .filter(|(node, stat)| stat.as_ref().is_some_and(|stat| version_in(stat) == node.version));
    let same: Vec<_> = same.map(|(node, _)| node).collect();
    Ok((!same.is_empty()).then_some((parent.version, same)))
}

#[cfg(test)]
mod tests {
    use keylatch_core::lock::LockName;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn node_is_due_when_it_was_empty_long_enough() {
        let (graves, rest) = (Graves::default(), Graves::rest(Duration::from_secs(6)));
        let key = Key::Lock(LockName::parse("a").unwrap());
        graves.note(key.clone(), Version(3));
        tokio::time::advance(rest / 2).await;
        graves.note(key.clone(), Version(3));
        tokio::time::advance(rest / 2).await;
        assert_eq!(graves.take_due(rest), [(key.clone(), Version(3))], "it was empty all the time");
        graves.note(key.clone(), Version(3));
        tokio::time::advance(rest / 2).await;
        graves.note(key.clone(), Version(5));
        tokio::time::advance(rest / 2).await;
        assert_eq!(graves.take_due(rest), [], "there was a row in between");
        tokio::time::advance(rest / 2).await;
        assert_eq!(graves.take_due(rest), [(key, Version(5))]);
    }
}
