//! The log line of a request: which requests have one, and what it says.
//!
//! It has no path, no token and no key of a client, only the pattern of the route. Tested in
//! `tests/api/logging.rs` and `secrets.rs`.

use std::error::Error;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Response};

use crate::telemetry::AccessLog;
use keylatch_axum::ProblemCause;

/// Logs the requests that a setting names.
#[derive(Debug)]
pub(super) struct AccessLogger {
    pub(super) log: AccessLog,
    /// From this time on a request is slow.
    pub(super) slow: Duration,
}

/// What a log line says of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct AccessEntry<'a> {
    pub(super) method: &'static str,
    /// The pattern of the route.
    pub(super) route: &'a str,
    pub(super) id: &'a HeaderValue,
    pub(super) took: Duration,
}

impl AccessLogger {
    /// Writes the line of a request, if it is to have one.
    pub(super) fn log(&self, entry: AccessEntry<'_>, response: &Response<Body>) {
        let is_notable = response.status().is_server_error() || entry.took >= self.slow;
        let is_logged = match self.log {
            AccessLog::All => true,
            AccessLog::Errors => is_notable,
            AccessLog::Off => false,
        };
        if is_logged {
            write(entry, response);
        }
    }
}

fn write(entry: AccessEntry<'_>, response: &Response<Body>) {
    let AccessEntry { method, route, id, took } = entry;
    let status = response.status().as_u16();
    let duration_ms = took.as_secs_f64() * 1000.0;
    let request_id = id.to_str().unwrap_or_default();
    if response.status().is_server_error() {
        let cause = response.extensions().get::<ProblemCause>();
        let cause = cause.map(|ProblemCause(cause)| tracing::field::display(chain(cause.as_ref())));
        tracing::error!(method, route, status, duration_ms, request_id, cause, "request");
    } else {
        tracing::info!(method, route, status, duration_ms, request_id, "request");
    }
}

/// An error and its causes, on one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
