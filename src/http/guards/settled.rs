//! Who is told that an upstream settled an unknown outcome: the audit log, the metrics and the log.
//!
//! There is no request to name, so the lines of the audit log have `by: upstream` and no
//! `request_id`. As for a person, one is written before the store is asked. Tested in
//! `tests/api/settling.rs`.

use std::sync::Arc;

use crate::http::api::Api;
use crate::http::audit::{Act, Progress, write};
use keylatch_axum::gateway::{SettleObserver, SettleStep};
use keylatch_core::store::Effect;

/// Counts and writes what upstreams settle.
pub(in crate::http) fn observer(api: &Api) -> SettleObserver {
    let (metrics, audit) = (Arc::clone(&api.metrics), api.audit.clone());
    Arc::new(move |step| {
        if step.result == Some(Ok(true)) {
            metrics.settled(if step.is_done { "done" } else { "not_done" });
            let fencing_token = step.run.get();
            tracing::info!(fencing_token, step.is_done, "an upstream settled an unknown outcome");
        }
        if let Some(audit) = &audit {
            write(audit, None, None, &act(&step), Some(progress(step.result)));
        }
    })
}

fn progress(result: Option<Result<bool, Effect>>) -> Progress {
    match result {
        None => Progress::Asked,
        Some(Ok(true)) => Progress::Done,
        Some(Ok(false) | Err(Effect::NotExecuted)) => Progress::Refused,
        Some(Err(_)) => Progress::Unknown,
    }
}

fn act(step: &SettleStep<'_>) -> Act {
    Act::Resolve {
        key: step.scope.key().as_str().to_owned(),
        method: step.scope.method().to_owned(),
        path: step.scope.path().to_owned(),
        fencing_token: Some(step.run.get()),
        outcome: if step.is_done { "completed" } else { "not-executed" },
        by: Some("upstream".to_owned()),
        reason: None,
    }
}
