//! Carries out changes: one request for each, or one for all that go together.
//!
//! A row is written by `setData` on the data version of its node. A new row is created together
//! with a check of the floor's data version, in one `multi`; in an empty node it is written
//! together with that check and one of the parent's data version, which each deletion of a node
//! raises. A change that marks its row, or ends the mark, makes or deletes the mark's node in the
//! same `multi`.
//!
//! Changes that go together are one `multi` of what each would be by itself. Nodes in which a new
//! row may go are looked at first, since they may be empty; if one changes meanwhile, the `multi`
//! fails as a whole.
//!
//! Invariants: a change is carried out only if its row is the one that it names, and its floor too;
//! a row that this program wrote is marked as it says. Tested by the conformance and in
//! `tests/stores/zookeeper`.

use futures_util::future::try_join_all;
use keylatch_core::store::StoreError;
use zookeeper_client::{Client, Error, MultiWriteError, MultiWriteResult, MultiWriter, Stat};

use super::ZooKeeper;
use super::failure::{cause_of, classify, is_conflict};
use super::session::Session;
use super::tree::{data_version, parent_of, version_in, version_of};
use crate::optimistic::conditional::{Change, Version};

/// The last data version that a condition can name: -1, the next one, stands for any.
const LAST_DATA_VERSION: i32 = -2;

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

/// Where a change finds its node.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// It has a row, by this data version.
    Row(i32),
    /// There is no node.
    None,
    /// It is empty, and these are the data versions of its parent and its own.
    Empty { parent: i32, node: i32 },
}

impl ZooKeeper {
    /// The new version of a row; `None` where its condition did not hold.
    pub(super) async fn carry_out(
        &self,
        session: &Session,
        change: &Change,
    ) -> Result<Option<Version>, StoreError> {
        let own = session.expect_own(&change.key);
        let written = self.write_one(&session.client, change).await;
        if let Ok(version) = &written {
            self.link.timeline.note(*version);
            own.succeeded();
        }
        self.outcome(session, written, change.was.is_none() || change.mark.is).await
    }

    /// The new versions of all rows; `None` where the condition of one did not hold, and nothing
    /// was done.
    pub(super) async fn carry_out_all(
        &self,
        session: &Session,
        changes: &[Change],
    ) -> Result<Option<Vec<Version>>, StoreError> {
        let written = self.write_together(&session.client, changes).await;
        if let Some(latest) = written.iter().flatten().max() {
            self.link.timeline.note(*latest);
        }
        self.outcome(session, written, true).await
    }

    /// What became of a request; `None` where a condition did not hold. One of those is that the
    /// tree is there.
    async fn outcome<T>(
        &self,
        session: &Session,
        written: Result<T, Error>,
        needs_tree: bool,
    ) -> Result<Option<T>, StoreError> {
        match written {
            Ok(written) => Ok(Some(written)),
            Err(error) if is_conflict(&error) => {
                if needs_tree && matches!(error, Error::NoNode) {
                    // The tree is gone, or a part of it.
                    self.link.members.prepare(&session.client).await.map_err(classify)?;
                }
                Ok(None)
            }
            Err(error) => Err(classify(error)),
        }
    }

    async fn write_one(&self, client: &Client, change: &Change) -> Result<Version, Error> {
        let (path, mark) = (self.link.members.tree.node(&change.key), self.mark_step(change));
        // A new row seldom finds a node, so nobody looks before.
        let expected = change.was.map_or(Place::None, |was| Place::Row(data_version(was)));
        match self.write_at(client, &path, expected, change, &mark).await {
            Err(Error::NodeExists) if change.was.is_none() => {}
            written => return written,
        }
        let found = place(client, &path, change).await?;
        self.write_at(client, &path, found, change, &mark).await
    }

    async fn write_at(
        &self,
        client: &Client,
        path: &str,
        place: Place,
        change: &Change,
        mark: &MarkStep,
    ) -> Result<Version, Error> {
        let value = &change.value;
        if let (Place::Row(was), MarkStep::None) = (place, mark)
            && was != LAST_DATA_VERSION
        {
            self.in_time(change)?;
            return Ok(version_in(&client.set_data(path, value, Some(was)).await?));
        }
        let stats = self.commit(client, mark, |multi| {
            self.in_time(change)?;
            self.add(multi, change, path, place)
        });
        version(client, path, stats.await?.pop().ok_or(Error::NoNode)?).await
    }

    async fn write_together(
        &self,
        client: &Client,
        changes: &[Change],
    ) -> Result<Vec<Version>, Error> {
        changes.iter().try_for_each(|change| self.in_time(change))?;
        let paths: Vec<_> =
            changes.iter().map(|change| self.link.members.tree.node(&change.key)).collect();
        let places = changes.iter().zip(&paths).map(|(change, path)| place(client, path, change));
        let places = try_join_all(places).await?;
        let places: Vec<_> = changes.iter().zip(&paths).zip(places).collect();
        // One of each change, in their order.
        let stats = self.commit(client, &MarkStep::None, |multi| {
            let mut all = places.iter();
            all.try_for_each(|((change, path), place)| self.add(multi, change, path, *place))
        });
        let stats = stats.await?.into_iter();
        let versions = stats.zip(&paths).map(|(stat, path)| version(client, path, stat));
        try_join_all(versions).await
    }

    /// Sends what `add` adds to a request, behind what is done to a mark. Where the mark is already
    /// what that would make of it, the request goes without: only a write of the row changes it, or
    /// someone else. Gives the nodes that it wrote.
    pub(super) async fn commit(
        &self,
        client: &Client,
        mut mark: &MarkStep,
        add: impl Fn(&mut MultiWriter<'_>) -> Result<(), Error>,
    ) -> Result<Vec<Stat>, Error> {
        let results = loop {
            let mut multi = client.new_multi_writer();
            match mark {
                MarkStep::None => {}
                MarkStep::Make(node) => {
                    multi.add_create(node, &[], &self.link.members.options())?;
                }
                MarkStep::Delete(node) => multi.add_delete(node, None)?,
            }
            add(&mut multi)?;
            match multi.commit().await {
                Err(MultiWriteError::OperationFailed { index: 0, source })
                    if mark.stands(&source) =>
                {
                    mark = &MarkStep::None;
                }
                results => break results.map_err(cause_of)?,
            }
        };
        let stats = results.into_iter().filter_map(|result| match result {
            MultiWriteResult::Create { stat, .. } | MultiWriteResult::SetData { stat } => {
                Some(stat)
            }
            _ => None,
        });
        Ok(stats.collect())
    }

    fn add(
        &self,
        multi: &mut MultiWriter<'_>,
        change: &Change,
        path: &str,
        place: Place,
    ) -> Result<(), Error> {
        match place {
            // After as many writes the node is made again, in the same step.
            Place::Row(LAST_DATA_VERSION) => {
                multi.add_delete(path, Some(LAST_DATA_VERSION))?;
                multi.add_create(path, &change.value, &self.link.members.options())
            }
            Place::Row(was) => multi.add_set_data(path, &change.value, Some(was)),
            Place::None => {
                self.check_floor(multi, change)?;
                multi.add_create(path, &change.value, &self.link.members.options())
            }
            Place::Empty { parent, node } => {
                self.check_floor(multi, change)?;
                multi.add_check_version(parent_of(path), parent)?;
                multi.add_set_data(path, &change.value, Some(node))
            }
        }
    }

    /// Refuses, as any conflict, what was decided for a time that is over. Asked before each request
    /// that carries it out.
    fn in_time(&self, change: &Change) -> Result<(), Error> {
        let allows = change.guard.allows(self.link.timeline.now());
        if allows { Ok(()) } else { Err(Error::BadVersion) }
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

    /// No floor is a node that was never written: one is made empty, and never removed.
    fn check_floor(&self, multi: &mut MultiWriter<'_>, change: &Change) -> Result<(), Error> {
        let Some((floor, version)) = &change.above else { return Ok(()) };
        multi
            .add_check_version(&self.link.members.tree.node(floor), version.map_or(0, data_version))
    }
}

/// Where a change finds its node. The parent is asked first: a node that is deleted after that
/// fails the check.
async fn place(client: &Client, path: &str, change: &Change) -> Result<Place, Error> {
    if let Some(was) = change.was {
        return Ok(Place::Row(data_version(was)));
    }
    let (parent, node) = tokio::join!(client.check_stat(parent_of(path)), client.get_data(path));
    match (parent?.ok_or(Error::NoNode)?, node) {
        (parent, Ok((value, node))) if value.is_empty() && node.version != LAST_DATA_VERSION => {
            Ok(Place::Empty { parent: parent.version, node: node.version })
        }
        (_, Ok(_)) => Err(Error::NodeExists),
        (_, Err(Error::NoNode)) => Ok(Place::None),
        (_, Err(error)) => Err(error),
    }
}

/// The version of a row that was written.
async fn version(client: &Client, path: &str, stat: Stat) -> Result<Version, Error> {
    if !stat.is_invalid() {
        return Ok(version_in(&stat));
    }
    // Members before 3.8.2 do not say it of a new node. It is still this node: none is deleted so
    // soon. What a server says of a later request says nothing of an earlier one.
    let unknown = |why: String| Error::UnexpectedError(why);
    let stat = client.check_stat(path).await.map_err(|error| unknown(error.to_string()))?;
    let stat = stat.ok_or_else(|| unknown("a new node is gone".to_owned()))?;
    Ok(version_of(stat.czxid, 0))
}
