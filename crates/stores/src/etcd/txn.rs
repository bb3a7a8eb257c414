//! Changes, reads and removals as transactions of etcd, and what their responses say.
//!
//! A batch is one transaction of nested ones, each with its own conditions, so one request carries
//! them all and none depends on another. A marked row has a key of its own beside it, `m` and the
//! row's key, which the same nested transaction writes. etcd takes 128 steps in a transaction, the
//! nested one's steps among them, and 1.5 MiB in a request: what is more goes in several.

use std::collections::BTreeSet;

use keylatch_core::store::{EntryLimits, StoreError};

use super::messages::etcdserverpb::compare::{CompareTarget, TargetUnion};
use super::messages::etcdserverpb::request_op::Request as Step;
use super::messages::etcdserverpb::response_op::Response;
use super::messages::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, TxnResponse,
};
use super::messages::mvccpb::KeyValue;
use crate::optimistic::conditional::{
    Change, Key, Mark, Outline, Removal, Row, Version, end_of_prefix,
};

/// How many steps a transaction has at most.
const STEPS: usize = 100;
/// What the key of a mark begins with, before the key of its row.
const MARKS: &[u8] = b"m";
/// How many bytes the changes of a request have at most, as [`cost`] counts them.
const REQUEST_BYTES: usize = 1_500_000;
/// A value of that many bytes fits into a request by itself.
pub(super) const LIMITS: EntryLimits =
    EntryLimits { bytes: 1_400_000, waiters: 1000, answer_bytes: 512 * 1024 };

/// The keys of one store: all begin with its prefix.
#[derive(Debug, Clone)]
pub(super) struct Keyspace(pub(super) Vec<u8>);

impl Keyspace {
    pub(super) fn bytes(&self, key: &Key) -> Vec<u8> {
        [&*self.0, &key.to_bytes()].concat()
    }

    /// The key that etcd has so; `None` for what is no key of this store.
    pub(super) fn key(&self, bytes: &[u8]) -> Option<Key> {
        Key::from_bytes(bytes.strip_prefix(&*self.0)?)
    }

    /// The key that says that a row is marked.
    fn mark(&self, key: &Key) -> Vec<u8> {
        [&*self.0, MARKS, &key.to_bytes()].concat()
    }

    /// The row whose mark etcd has so.
    pub(super) fn marked_key(&self, bytes: &[u8]) -> Option<Key> {
        Key::from_bytes(bytes.strip_prefix(&*self.0)?.strip_prefix(MARKS)?)
    }

    /// Up to `limit` marks after that of a row.
    pub(super) fn marks(&self, after: Option<&Key>, limit: usize) -> RangeRequest {
        let mut range = self.range(MARKS);
        range.limit = i64::try_from(limit).unwrap_or(i64::MAX);
        // The next key after one is that key and a zero byte.
        range.key = after.map_or(range.key, |key| [&*self.mark(key), &[0]].concat());
        range
    }

    /// What a change does to the mark of its row, if it does anything.
    fn mark_step(&self, key: &Key, mark: Mark) -> Option<Step> {
        let key = self.mark(key);
        match (mark.was, mark.is) {
            (false, true) => Some(Step::RequestPut(PutRequest { key, value: Vec::new() })),
            (true, false) => Some(Step::RequestDeleteRange(DeleteRangeRequest { key })),
            _ => None,
        }
    }

    /// The keys whose bytes begin with `prefix`.
    pub(super) fn range(&self, prefix: &[u8]) -> RangeRequest {
        let key = [&*self.0, prefix].concat();
        let range_end = end_of_prefix(&key);
        RangeRequest { key, range_end, limit: 0 }
    }

    pub(super) fn one(&self, key: &Key) -> RangeRequest {
        RangeRequest { key: self.bytes(key), ..RangeRequest::default() }
    }

    /// Carries out each change if its row is as it says.
    ///
    /// etcd looks for writes beyond its quota in the outer transaction alone, and would let the
    /// database grow without an end. So the outer one has a write that is never carried out, as it
    /// has no condition that could fail. Changes that leave nothing in their rows, as a release
    /// does, have none: they pass where the database is full, and there are no more of them than of
    /// what was granted before.
    pub(super) fn write<'a>(&self, changes: impl IntoIterator<Item = &'a Change>) -> TxnRequest {
        let counted = PutRequest { key: self.bytes(&Key::Floor(0)), value: Vec::new() };
        let mut grows = false;
        let batch = all(changes.into_iter().map(|change| {
            grows |= !is_end(change);
            let mut conditions = vec![self.has(&change.key, change.was)];
            if let Some((floor, version)) = &change.above {
                conditions.push(self.has(floor, *version));
            }
            let put = PutRequest { key: self.bytes(&change.key), value: change.value.clone() };
            let mark = self.mark_step(&change.key, change.mark);
            on(conditions, [Step::RequestPut(put)].into_iter().chain(mark))
        }));
        let counted = grows.then_some(Step::RequestPut(counted));
        TxnRequest { failure: steps_of(counted), ..batch }
    }

    /// Carries out all changes if the rows of all are as they say, or none. No lock has a mark.
    pub(super) fn write_all(&self, changes: &[Change]) -> TxnRequest {
        let rows = changes.iter().map(|change| self.has(&change.key, change.was));
        let floors = changes.iter().filter_map(|change| change.above.as_ref());
        let floors: BTreeSet<_> = floors.map(|(floor, version)| (floor, *version)).collect();
        let floors = floors.into_iter().map(|(floor, version)| self.has(floor, version));
        let compare = rows.chain(floors).collect();
        let steps = changes.iter().map(|change| {
            Step::RequestPut(PutRequest {
                key: self.bytes(&change.key),
                value: change.value.clone(),
            })
        });
        if changes.iter().all(is_end) {
            return TxnRequest { compare, ..all([on(Vec::new(), steps)]) };
        }
        TxnRequest { compare, ..all(steps) }
    }

    pub(super) fn read(&self, keys: &[Key]) -> TxnRequest {
        all(keys.iter().map(|key| Step::RequestRange(self.one(key))))
    }

    /// Removes each row if its version is the one that is named.
    pub(super) fn remove(&self, rows: &[Removal]) -> TxnRequest {
        all(rows.iter().map(|Removal { key, version, is_marked }| {
            let removal = Step::RequestDeleteRange(DeleteRangeRequest { key: self.bytes(key) });
            let mark = self.mark_step(key, Mark { was: *is_marked, is: false });
            on(vec![self.has(key, Some(*version))], [removal].into_iter().chain(mark))
        }))
    }

    /// A transaction that does nothing, and that etcd refuses to a user who may not do everything.
    pub(super) fn probe(&self) -> TxnRequest {
        let [put, removed] = [Key::Floor(0), Key::Floor(1)].map(|key| self.bytes(&key));
        let never = self.never();
        let steps = [
            Step::RequestRange(RangeRequest { limit: 1, ..self.range(b"") }),
            Step::RequestPut(PutRequest { key: put, value: Vec::new() }),
            Step::RequestDeleteRange(DeleteRangeRequest { key: removed }),
        ];
        TxnRequest { compare: vec![never], ..all(steps) }
    }

    /// A condition that no etcd fulfils.
    fn never(&self) -> Compare {
        let revision = Some(TargetUnion::ModRevision(-1));
        Compare { target_union: revision, ..self.has(&Key::Floor(0), None) }
    }

    pub(super) fn nothing(&self) -> TxnRequest {
        TxnRequest { compare: vec![self.never()], ..TxnRequest::default() }
    }

    /// The condition that the row of a key has this version, or is not there.
    fn has(&self, key: &Key, version: Option<Version>) -> Compare {
        let revision = TargetUnion::ModRevision(version.map_or(0, revision_of));
        let target = CompareTarget::Mod.into();
        Compare { target, key: self.bytes(key), target_union: Some(revision) }
    }
}

/// Whether a change ends what its row has, and leaves nothing in it.
pub(super) fn is_end(change: &Change) -> bool {
    let Outline { given, lasts, .. } = &change.outline;
    change.was.is_some() && given.is_none() && lasts.is_zero()
}

fn on(compare: Vec<Compare>, steps: impl IntoIterator<Item = Step>) -> Step {
    Step::RequestTxn(TxnRequest { compare, ..all(steps) })
}

fn all(steps: impl IntoIterator<Item = Step>) -> TxnRequest {
    TxnRequest { success: steps_of(steps), ..TxnRequest::default() }
}

fn steps_of(steps: impl IntoIterator<Item = Step>) -> Vec<RequestOp> {
    steps.into_iter().map(|step| RequestOp { request: Some(step) }).collect()
}

/// Changes in as many parts as they need requests.
pub(super) fn requests(changes: &[Change]) -> Vec<&[Change]> {
    let (mut parts, mut rest) = (Vec::new(), changes);
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |change: &&Change| {
            bytes += cost(change);
            bytes <= REQUEST_BYTES
        };
        let count = rest.iter().take(STEPS).take_while(fits).count().max(1);
        let (part, others) = rest.split_at(count);
        parts.push(part);
        rest = others;
    }
    parts
}

/// Keys, or rows, in as many parts as they need requests.
pub(super) fn parts<T>(all: &[T]) -> impl Iterator<Item = &[T]> {
    all.chunks(STEPS)
}

/// Checks that changes go in one request.
pub(super) fn check_one_request(changes: &[Change]) -> Result<(), StoreError> {
    let (bytes, limit) = (changes.iter().map(cost).sum(), REQUEST_BYTES);
    if bytes > limit { Err(StoreError::TooLarge { bytes, limit }) } else { Ok(()) }
}

/// How many bytes a change has in a request, and a little more.
fn cost(change: &Change) -> usize {
    /// A prefix, a floor and what is around them.
    const AROUND: usize = 1024;
    change.value.len() + 3 * change.key.to_bytes().len() + AROUND
}

/// Which of the nested transactions were carried out. A response to another number is an error.
pub(super) fn carried_out(answer: TxnResponse, count: usize) -> Result<Vec<bool>, StoreError> {
    let nested = answer.responses.into_iter().map(|response| match response.response {
        Some(Response::ResponseTxn(answer)) => Some(answer.succeeded),
        _ => None,
    });
    whole(nested.collect(), count)
}

/// The row of each key that was read.
pub(super) fn rows(answer: TxnResponse, count: usize) -> Result<Vec<Option<Row>>, StoreError> {
    let rows = answer.responses.into_iter().map(|response| match response.response {
        Some(Response::ResponseRange(range)) => Some(range.kvs.into_iter().next().map(row)),
        _ => None,
    });
    whole(rows.collect(), count)
}

/// All of `count` answers.
fn whole<T>(answers: Option<Vec<T>>, count: usize) -> Result<Vec<T>, StoreError> {
    let mismatched = || StoreError::Lost("the answer belongs to another transaction".into());
    answers.filter(|answers| answers.len() == count).ok_or_else(mismatched)
}

pub(super) fn row(kv: KeyValue) -> Row {
    Row { version: version(kv.mod_revision), value: kv.value }
}

pub(super) fn version(revision: i64) -> Version {
    Version(u64::try_from(revision).unwrap_or_default().into())
}

fn revision_of(version: Version) -> i64 {
    i64::try_from(version.0).unwrap_or(i64::MAX)
}
