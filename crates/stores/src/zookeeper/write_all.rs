//! How several changes are carried out together: one `multi`, which the ensemble carries out as a whole or not
//! at all.
//!
//! Each change has in it what it would be by itself (`write.rs`): `setData` on the data version of its node, or
//! the creation of a node with a check of its floor. Whether a new row goes in a node that is empty is not
//! known before, so those nodes are looked at first; if one changes meanwhile, the `multi` fails as a whole.
//! No lock has a mark, and nothing else is changed together.

use futures_util::future::try_join_all;
use keylatch_core::store::StoreError;
use zookeeper_client::{Client, Error, MultiWriteResult, MultiWriter, Stat};

use super::ZooKeeper;
use super::failure::{cause_of, classify, is_conflict};
use super::session::Session;
use super::tree::{data_version, parent_of, version_in, version_of};
use super::write::{LAST_DATA_VERSION, unknown};
use crate::optimistic::conditional::{Change, Version};

/// Where a change finds its node.
#[derive(Debug, Clone, Copy)]
enum NodeVersions {
    /// It has a row, by this data version.
    Row(i32),
    /// There is no node.
    None,
    /// It is empty, and these are the data versions of its parent and its own.
    Empty { parent: i32, node: i32 },
}

impl ZooKeeper {
    /// The new versions of all rows; `None` where the condition of one did not hold, and nothing was done.
    pub(super) async fn carry_out_all(
        &self,
        session: &Session,
        changes: &[Change],
    ) -> Result<Option<Vec<Version>>, StoreError> {
        let now = self.link.timeline.now();
        if !changes.iter().all(|change| change.guard.allows(now)) {
            return Ok(None);
        }
        let versions = match self.try_all(&session.client, changes).await {
            Ok(versions) => versions,
            Err(error) if is_conflict(&error) => {
                if matches!(error, Error::NoNode) {
                    // The tree is gone, or a part of it.
                    self.link.members.prepare(&session.client).await.map_err(classify)?;
                }
                return Ok(None);
            }
            Err(error) => return Err(classify(error)),
        };
        if let Some(latest) = versions.iter().max() {
            self.link.timeline.note(*latest);
        }
        Ok(Some(versions))
    }

    async fn try_all(&self, client: &Client, changes: &[Change]) -> Result<Vec<Version>, Error> {
        let paths: Vec<_> =
            changes.iter().map(|change| self.link.members.tree.node(&change.key)).collect();
        let places = changes.iter().zip(&paths).map(|(change, path)| place(client, path, change));
        let places = try_join_all(places).await?;
        let mut multi = client.new_multi_writer();
        for ((change, path), place) in changes.iter().zip(&paths).zip(places) {
            self.add(&mut multi, change, path, place)?;
        }
        let results = multi.commit().await.map_err(cause_of)?;
        // One of each change, in their order.
        let stats = results.into_iter().filter_map(|result| match result {
            MultiWriteResult::Create { stat, .. } | MultiWriteResult::SetData { stat } => {
                Some(stat)
            }
            _ => None,
        });
        let versions = stats.zip(&paths).map(|(stat, path)| version(client, path, stat));
        try_join_all(versions).await
    }

    /// Adds a change to what goes together.
    fn add(
        &self,
        multi: &mut MultiWriter<'_>,
        change: &Change,
        path: &str,
        place: NodeVersions,
    ) -> Result<(), Error> {
        match place {
            // After as many writes the node is made again, in the same step.
            NodeVersions::Row(LAST_DATA_VERSION) => {
                multi.add_delete(path, Some(LAST_DATA_VERSION))?;
                multi.add_create(path, &change.value, &self.link.members.options())
            }
            NodeVersions::Row(was) => multi.add_set_data(path, &change.value, Some(was)),
            NodeVersions::None => {
                self.check_floor(multi, change)?;
                multi.add_create(path, &change.value, &self.link.members.options())
            }
            NodeVersions::Empty { parent, node } => {
                self.check_floor(multi, change)?;
                multi.add_check_version(parent_of(path), parent)?;
                multi.add_set_data(path, &change.value, Some(node))
            }
        }
    }
}

/// Where a change finds its node.
async fn place(client: &Client, path: &str, change: &Change) -> Result<NodeVersions, Error> {
    if let Some(was) = change.was {
        return Ok(NodeVersions::Row(data_version(was)));
    }
    // The parent is asked first: a node that is deleted after that fails the check.
    let (parent, node) = tokio::join!(client.check_stat(parent_of(path)), client.get_data(path));
    match (parent?, node) {
        (Some(parent), Ok((value, node)))
            if value.is_empty() && node.version != LAST_DATA_VERSION =>
        {
            Ok(NodeVersions::Empty { parent: parent.version, node: node.version })
        }
        (_, Ok(_)) => Err(Error::NodeExists),
        (Some(_), Err(Error::NoNode)) => Ok(NodeVersions::None),
        (None, Err(Error::NoNode)) => Err(Error::NoNode),
        (_, Err(error)) => Err(error),
    }
}

/// The version of a row that was written.
async fn version(client: &Client, path: &str, stat: Stat) -> Result<Version, Error> {
    if !stat.is_invalid() {
        return Ok(version_in(&stat));
    }
    // Members before 3.8.2 do not say it of a new node. It is still this node: none is deleted so soon.
    let stat = client.check_stat(path).await.map_err(|error| unknown(&error))?;
    let stat = stat.ok_or_else(|| Error::UnexpectedError("a new node is gone".to_owned()))?;
    Ok(version_of(stat.czxid, 0))
}
