//! The labels of metrics, by which boards and alerts know them.
//!
//! The steps of the store and what they find are those of the port, and are in `docs/operating.md`.
//!
//! Invariant: a label has a bounded set of values. That of an enum is the name of its variant in
//! snake case, so a variant that is renamed breaks boards. Tested below, and over HTTP in
//! `tests/api/metrics_page.rs`.

use std::fmt;

use axum::http::StatusCode;
use keylatch_core::lock::Limit;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use strum::{EnumCount, IntoStaticStr, VariantArray};

/// What a stream of events is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum StreamKind {
    /// A lock is held for as long as the client reads the stream.
    Hold,
    /// A lock is watched.
    Watch,
    /// A console shows the held locks.
    Console,
}

/// Some labels by their names, whose values are words.
pub(super) type Words<const N: usize> = [(&'static str, &'static str); N];

/// How many may hold a lock, as the label `mode` names it.
pub(super) fn mode(limit: Limit) -> &'static str {
    match limit {
        Limit::Exclusive => "exclusive",
        Limit::Counted(_) => "counted",
        Limit::Shared => "shared",
    }
}

/// A step of the store, as the label `operation` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EnumCount, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
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

/// What a step of the store found, as the label `outcome` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EnumCount, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
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
    /// A run would have begun, and there is no room for its response.
    NoRoom,
    /// The token is not the holder's.
    Mismatch,
    /// The lease was broken.
    Broken,
    /// The store could not find out.
    Error,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RequestLabels {
    pub(super) method: &'static str,
    pub(super) route: String,
    pub(super) status: StatusLabel,
}

/// A status that has a name, or the class of one that has none: a client may have any number
/// answered, and each would be a histogram of its own.
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

/// The slug of a problem, which two codes may share, in snake case as all labels are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct CodeLabel(pub(super) &'static str);

impl EncodeLabelValue for CodeLabel {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        EncodeLabelValue::encode(&self.0.replace('-', "_"), encoder)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct QuotaLabels {
    pub(super) identity: String,
    pub(super) quota: &'static str,
}

#[cfg(test)]
mod tests {
    use strum::VariantArray as _;

    use super::{StoreOperation, StoreOutcome};

    #[test]
    fn every_label_of_a_store_step_is_documented() {
        let operations = StoreOperation::VARIANTS.iter().map(<&str>::from);
        let outcomes = StoreOutcome::VARIANTS.iter().map(<&str>::from);
        let document = include_str!("../../docs/operating.md");
        for label in operations.chain(outcomes) {
            assert!(document.contains(&format!("`{label}`")), "{label}");
        }
    }
}
