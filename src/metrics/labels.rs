//! The labels of metrics, by which boards and alerts know them.
//!
//! The steps of the store and what they find are those of the port, and are in `docs/operating.md`.
//!
//! Invariant: a label has a bounded set of values, and a value stays as it is when its variant is renamed. Tested below,
//! and over HTTP in `tests/api/metrics_page.rs`.

use std::fmt;

use axum::http::StatusCode;
use keylatch_core::lock::Limit;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};

/// What a stream of events is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StreamKind {
    /// A lock is held for as long as the client reads the stream.
    Hold,
    /// A lock is watched.
    Watch,
    /// A console shows the held locks.
    Console,
}

impl StreamKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::Watch => "watch",
            Self::Console => "console",
        }
    }
}

/// How many may hold a lock, as the label `mode` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum GrantMode {
    Exclusive,
    Counted,
    Shared,
}

impl GrantMode {
    pub(super) fn of(limit: Limit) -> Self {
        match limit {
            Limit::Exclusive => Self::Exclusive,
            Limit::Counted(_) => Self::Counted,
            Limit::Shared => Self::Shared,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Counted => "counted",
            Self::Shared => "shared",
        }
    }
}

/// A step of the store, as the label `operation` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "named as the commands of the port are")]
pub enum StoreOperation {
    Acquire,
    Withdraw,
    Renew,
    Release,
    Break,
    AcquireSet,
    WithdrawSet,
    RenewSet,
    ReleaseSet,
    Look,
    LookAtQueue,
    Recall,
    List,
    Health,
    BeginRecord,
    RenewRecord,
    CompleteRecord,
    AbandonRecord,
    ResolveRecord,
    EraseRecord,
    LookAtRecord,
}

impl StoreOperation {
    pub(super) const COUNT: usize = Self::LookAtRecord as usize + 1;

    /// The label, which stays as it is when the variant is renamed.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Withdraw => "withdraw",
            Self::Renew => "renew",
            Self::Release => "release",
            Self::Break => "break",
            Self::AcquireSet => "acquire_set",
            Self::WithdrawSet => "withdraw_set",
            Self::RenewSet => "renew_set",
            Self::ReleaseSet => "release_set",
            Self::Look => "look",
            Self::LookAtQueue => "look_at_queue",
            Self::Recall => "recall",
            Self::List => "list",
            Self::Health => "health",
            Self::BeginRecord => "begin_record",
            Self::RenewRecord => "renew_record",
            Self::CompleteRecord => "complete_record",
            Self::AbandonRecord => "abandon_record",
            Self::ResolveRecord => "resolve_record",
            Self::EraseRecord => "erase_record",
            Self::LookAtRecord => "look_at_record",
        }
    }
}

/// What a step of the store found, as the label `outcome` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreOutcome {
    /// The step did what it was asked for.
    Done,
    /// It had been done before.
    Repeated,
    /// Another token holds the lock.
    Held,
    /// No token holds the lock, or there is no record.
    NotHeld,
    /// The request was begun before, under the same key.
    Found,
    /// The key was used for another request.
    Reused,
    /// A run would have begun, and there is no room for its answer.
    NoRoom,
    /// The token is not the holder's.
    Mismatch,
    /// The lease was broken.
    Broken,
    /// The store could not find out.
    Error,
}

impl StoreOutcome {
    pub(super) const COUNT: usize = Self::Error as usize + 1;

    /// The label, which stays as it is when the variant is renamed.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Repeated => "repeated",
            Self::Held => "held",
            Self::NotHeld => "not_held",
            Self::Found => "found",
            Self::Reused => "reused",
            Self::NoRoom => "no_room",
            Self::Mismatch => "mismatch",
            Self::Broken => "broken",
            Self::Error => "error",
        }
    }
}

/// Writes an enum as its stable label.
macro_rules! label {
    ($($kind:ident),+) => {$(
        impl EncodeLabelValue for $kind {
            fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
                EncodeLabelValue::encode(&self.as_str(), encoder)
            }
        }
    )+};
}

label!(StreamKind, GrantMode, StoreOperation, StoreOutcome);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RequestLabels {
    pub(super) method: &'static str,
    pub(super) route: String,
    pub(super) status: StatusLabel,
}

/// A status that has a name, or the class of one that has none: a client may have any number answered, and
/// each would be a histogram of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum StatusLabel {
    Named(u16),
    Class(u16),
}

impl StatusLabel {
    pub(super) fn of(status: u16) -> Self {
        let code = StatusCode::from_u16(status).ok();
        let name = code.and_then(|code| code.canonical_reason());
        name.map_or(Self::Class(status / 100), |_| Self::Named(status))
    }
}

impl EncodeLabelValue for StatusLabel {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        match self {
            Self::Named(status) => EncodeLabelValue::encode(status, encoder),
            Self::Class(class) => EncodeLabelValue::encode(&format!("{class}xx"), encoder),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct StepLabels {
    pub(super) operation: StoreOperation,
    pub(super) outcome: StoreOutcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct GrantLabels {
    pub(super) mode: GrantMode,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct StreamLabels {
    pub(super) kind: StreamKind,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ProblemLabels {
    pub(super) code: CodeLabel,
}

/// The slug of a problem, which two codes may share, in snake case as all labels are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct CodeLabel(pub(super) &'static str);

impl EncodeLabelValue for CodeLabel {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        EncodeLabelValue::encode(&self.0.replace('-', "_"), encoder)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct LossLabels {
    pub(super) reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct StateLabels {
    pub(super) state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct QuotaLabels {
    pub(super) identity: String,
    pub(super) quota: &'static str,
}

#[cfg(test)]
mod tests {
    use super::{StoreOperation, StoreOutcome};

    #[test]
    fn every_label_of_a_store_step_is_documented() {
        use StoreOperation::{
            AbandonRecord, Acquire, AcquireSet, BeginRecord, Break, CompleteRecord, EraseRecord,
            Health, List, Look, LookAtQueue, LookAtRecord, Recall, Release, ReleaseSet, Renew,
            RenewRecord, RenewSet, ResolveRecord, Withdraw, WithdrawSet,
        };
        use StoreOutcome::{
            Broken, Done, Error, Found, Held, Mismatch, NoRoom, NotHeld, Repeated, Reused,
        };
        let locks =
            [Acquire, Withdraw, Renew, Release, Break, Look, LookAtQueue, Recall, List, Health];
        let sets = [AcquireSet, WithdrawSet, RenewSet, ReleaseSet];
        let records = [
            BeginRecord,
            RenewRecord,
            CompleteRecord,
            AbandonRecord,
            ResolveRecord,
            EraseRecord,
            LookAtRecord,
        ];
        let outcomes =
            [Done, Repeated, Held, NotHeld, Found, Reused, NoRoom, Mismatch, Broken, Error];
        let operations: Vec<_> = locks.into_iter().chain(sets).chain(records).collect();
        assert_eq!(
            (operations.len(), outcomes.len()),
            (StoreOperation::COUNT, StoreOutcome::COUNT),
            "a variant is missing above"
        );
        let operations = operations.into_iter().map(StoreOperation::as_str);
        let document = include_str!("../../docs/operating.md");
        for label in operations.chain(outcomes.map(StoreOutcome::as_str)) {
            assert!(document.contains(&format!("`{label}`")), "{label}");
        }
    }
}
