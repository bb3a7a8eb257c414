//! How a change is carried out: one request, which the ensemble carries out by itself and atomically.
//!
//! A row is written by `setData` on the data version of its node. A new row is created together with a
//! check of the floor's data version, in one `multi`; in a node that is empty it is written together with
//! that check and one of the parent's data version, which each deletion of a node raises. Where a change
//! marks its row, or ends that, the same `multi` makes or deletes the node of the mark.
//!
//! Invariants: a change is carried out only if its row is the one that it names, and its floor too;
//! a row that this program wrote is marked as it says. Tested by the conformance and in
//! `tests/stores/zookeeper`.

use keylatch_core::store::StoreError;
use zookeeper_client::{Client, Error, MultiWriteError, MultiWriteResult, MultiWriter, Stat};

use super::ZooKeeper;
use super::failure::{cause_of, classify, is_conflict};
use super::session::Session;
use super::tree::{data_version, parent_of, version_in, version_of};
use crate::optimistic::conditional::{Change, Version};

/// The last data version that a condition can name: -1, the next one, stands for any.
pub(super) const LAST_DATA_VERSION: i32 = -2;

/// What a request does to the mark of its row.
#[derive(Debug)]
pub(super) enum MarkStep {
    None,
    Make(String),
    Delete(String),
}

impl MarkStep {
    /// Whether an error of this step says that there is nothing to do.
    fn stands(&self, error: &Error) -> bool {
        match self {
            Self::None => false,
            Self::Make(_) => matches!(error, Error::NodeExists),
            Self::Delete(_) => matches!(error, Error::NoNode),
        }
    }
}

/// Why a request was not carried out.
#[derive(Debug)]
pub(super) enum WriteError {
    /// The mark is already what the request makes of it. Only a write of the row changes it, so the same
    /// request without that step does the same.
    MarkStands,
    Failed(Error),
}

impl WriteError {
    pub(super) fn classify(self) -> StoreError {
        match self {
            Self::MarkStands => StoreError::Refused(Error::NodeExists.into()),
            Self::Failed(error) => classify(error),
        }
    }
}

impl From<Error> for WriteError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl ZooKeeper {
    /// The new version of a row; `None` where its condition did not hold.
    pub(super) async fn carry_out(
        &self,
        session: &Session,
        change: &Change,
    ) -> Result<Option<Version>, StoreError> {
        let (path, mut mark) = (self.link.members.tree.node(&change.key), self.mark_step(change));
        let own = session.expect_own(&change.key);
        let written = loop {
            if self.is_late(change) {
                return Ok(None);
            }
            let written = match change.was {
                Some(was) => self.update(&session.client, &path, was, change, &mark).await,
                None => self.create(&session.client, &path, change, &mark).await,
            };
            match written {
                // Another process has written the row since, or someone else made or removed the
                // mark.
                Err(WriteError::MarkStands) => mark = MarkStep::None,
                Err(WriteError::Failed(error)) => break Err(error),
                Ok(version) => break Ok(version),
            }
        };
        match written {
            Ok(version) => {
                self.link.timeline.note(version);
                own.succeeded();
                Ok(Some(version))
            }
            Err(error) if is_conflict(&error) => {
                if matches!(error, Error::NoNode) && (change.was.is_none() || change.mark.is) {
                    // The tree is gone, or a part of it.
                    self.link.members.prepare(&session.client).await.map_err(classify)?;
                }
                Ok(None)
            }
            Err(error) => Err(classify(error)),
        }
    }

    async fn update(
        &self,
        client: &Client,
        path: &str,
        was: Version,
        change: &Change,
        mark: &MarkStep,
    ) -> Result<Version, WriteError> {
        let (was, value) = (data_version(was), &change.value);
        let mut multi = client.new_multi_writer();
        self.add_mark(&mut multi, mark)?;
        if was == LAST_DATA_VERSION {
            // After as many writes the node is made again, in the same step.
            multi.add_delete(path, Some(was))?;
            multi.add_create(path, value, &self.link.members.options())?;
            return created(client, path, multi, mark).await;
        }
        if matches!(mark, MarkStep::None) {
            return Ok(version_in(&client.set_data(path, value, Some(was)).await?));
        }
        multi.add_set_data(path, value, Some(was))?;
        let stat = stat_of(multi, mark).await?.ok_or(Error::NoNode)?;
        Ok(version_in(&stat))
    }

    /// Creates a row, if there is none and its floor is the one that it is above.
    async fn create(
        &self,
        client: &Client,
        path: &str,
        change: &Change,
        mark: &MarkStep,
    ) -> Result<Version, WriteError> {
        let mut multi = client.new_multi_writer();
        self.add_mark(&mut multi, mark)?;
        self.check_floor(&mut multi, change)?;
        multi.add_create(path, &change.value, &self.link.members.options())?;
        match created(client, path, multi, mark).await {
            Err(WriteError::Failed(Error::NodeExists)) => {
                self.fill(client, path, change, mark).await
            }
            created => created,
        }
    }

    /// Writes a row in a node that is empty.
    async fn fill(
        &self,
        client: &Client,
        path: &str,
        change: &Change,
        mark: &MarkStep,
    ) -> Result<Version, WriteError> {
        let parent = parent_of(path);
        let (bucket, node) = tokio::join!(client.check_stat(parent), client.get_data(path));
        let (bucket, (value, stat)) = (bucket?.ok_or(Error::NoNode)?, node?);
        if !value.is_empty() || stat.version == LAST_DATA_VERSION {
            return Err(Error::NodeExists.into());
        }
        if self.is_late(change) {
            // Decided again, as after any conflict.
            return Err(Error::BadVersion.into());
        }
        let mut multi = client.new_multi_writer();
        self.add_mark(&mut multi, mark)?;
        self.check_floor(&mut multi, change)?;
        multi.add_check_version(parent, bucket.version)?;
        multi.add_set_data(path, &change.value, Some(stat.version))?;
        let stat = stat_of(multi, mark).await?.ok_or(Error::NoNode)?;
        Ok(version_in(&stat))
    }

    /// Whether the time of a decision is over. Asked before each request that carries it out.
    fn is_late(&self, change: &Change) -> bool {
        !change.guard.allows(self.link.timeline.now())
    }

    /// What a change does to the mark of its row.
    fn mark_step(&self, change: &Change) -> MarkStep {
        let Some(node) = self.link.members.tree.mark(&change.key) else { return MarkStep::None };
        match (change.mark.was, change.mark.is) {
            (false, true) => MarkStep::Make(node),
            (true, false) => MarkStep::Delete(node),
            _ => MarkStep::None,
        }
    }

    /// Adds what is done to a mark, as the first operation.
    pub(super) fn add_mark(
        &self,
        multi: &mut MultiWriter<'_>,
        mark: &MarkStep,
    ) -> Result<(), Error> {
        match mark {
            MarkStep::None => Ok(()),
            MarkStep::Make(node) => multi.add_create(node, &[], &self.link.members.options()),
            MarkStep::Delete(node) => multi.add_delete(node, None),
        }
    }

    /// No floor is a node that was never written: one is made empty, and never removed.
    pub(super) fn check_floor(
        &self,
        multi: &mut MultiWriter<'_>,
        change: &Change,
    ) -> Result<(), Error> {
        let Some((floor, version)) = &change.above else { return Ok(()) };
        multi
            .add_check_version(&self.link.members.tree.node(floor), version.map_or(0, data_version))
    }
}

/// The version of a row whose node `multi` creates.
async fn created(
    client: &Client,
    path: &str,
    multi: MultiWriter<'_>,
    mark: &MarkStep,
) -> Result<Version, WriteError> {
    match stat_of(multi, mark).await? {
        Some(stat) => Ok(version_of(stat.czxid, 0)),
        // Members before 3.8.2 do not say it. It is still this node: none is deleted so soon.
        None => {
            let stat = client.check_stat(path).await.map_err(|error| unknown(&error))?;
            let stat =
                stat.ok_or_else(|| Error::UnexpectedError("a new node is gone".to_owned()))?;
            Ok(version_of(stat.czxid, 0))
        }
    }
}

/// What a server says of a later request says nothing of an earlier one.
pub(super) fn unknown(error: &Error) -> Error {
    Error::UnexpectedError(error.to_string())
}

/// The last node that a transaction wrote, as far as the server says.
async fn stat_of(multi: MultiWriter<'_>, mark: &MarkStep) -> Result<Option<Stat>, WriteError> {
    let last = stats_of(multi, mark).await?.pop();
    Ok(last.filter(|stat| !stat.is_invalid()))
}

/// The nodes that a transaction wrote. Its first operation is that on the mark, if there is one.
pub(super) async fn stats_of(
    mut multi: MultiWriter<'_>,
    mark: &MarkStep,
) -> Result<Vec<Stat>, WriteError> {
    let results = multi.commit().await.map_err(|error| match (error, mark) {
        (MultiWriteError::OperationFailed { index: 0, source }, mark) if mark.stands(&source) => {
            WriteError::MarkStands
        }
        (error, _) => WriteError::Failed(cause_of(error)),
    })?;
    let stats = results.into_iter().filter_map(|result| match result {
        MultiWriteResult::Create { stat, .. } | MultiWriteResult::SetData { stat } => Some(stat),
        _ => None,
    });
    Ok(stats.collect())
}
