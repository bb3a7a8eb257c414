//! What stands for traces in a build without them: a warning where the process asks for them, and
//! spans that are nothing.
//!
//! Tested in `tests/cli/traces_absent.rs`.

use std::io;

use axum::http::{HeaderValue, Request, StatusCode, Uri};

use crate::metrics::{StoreOperation, StoreOutcome};
use keylatch_axum::Code;
use keylatch_core::store::StoreError;

/// Nothing: no spans are sent.
#[derive(Debug)]
pub struct Traces;

impl Traces {
    /// Warns if traces are wanted.
    pub fn start(wanted: bool) -> io::Result<Self> {
        if wanted {
            tracing::warn!(
                "this build has no traces: `cargo build --release --features full` makes one that has"
            );
        }
        Ok(Self)
    }

    /// Does nothing.
    pub fn close(self) {}
}

#[derive(Debug)]
pub(crate) struct RequestSpan;

impl RequestSpan {
    pub(crate) fn start<B>(
        _: &Request<B>,
        _: impl FnOnce() -> &'static str,
        _: (&'static str, Option<&str>),
        _: &HeaderValue,
    ) -> Self {
        Self
    }

    pub(crate) fn enter(&self) -> Self {
        Self
    }

    pub(crate) fn trace_id(&self) -> Option<String> {
        None
    }

    pub(crate) fn hand_on<B>(&self, _: &'static str, _: &mut Request<B>) {}

    pub(crate) fn end(&self, _: StatusCode, _: Option<Code>) {}
}

pub(crate) struct StepSpan;

impl StepSpan {
    pub(crate) fn start(_: StoreOperation, _: &'static str) -> Self {
        Self
    }

    pub(crate) fn end(self, _: StoreOutcome, _: Option<&StoreError>) {}
}

pub(crate) enum CallSpan {}

impl CallSpan {
    pub(crate) fn start<B>(_: &mut Request<B>, _: &Uri, _: u32) -> Option<Self> {
        None
    }

    pub(crate) fn end(self, _: Result<StatusCode, Code>) {
        match self {}
    }
}
