//! What a run says while it waits for its locks: that the service cannot be reached, and on a terminal who holds them.
//!
//! A run that gets its locks within a second says nothing. Tested in `tests/cli/run_waits.rs`.

use std::convert::Infallible;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::Request;
use keylatch_client::{Client, Error};
use keylatch_core::lock::LockName;
use keylatch_wire::HeldLock;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::time::{sleep, timeout};

use super::job::{Job, say};

/// How long a run waits before it says anything, and how long one look may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long after a look the next one comes.
const PAUSE: Duration = Duration::from_secs(5);
/// The largest answer that is read, in bytes: a lock with a thousand holders.
const MAX_ANSWER: usize = 1 << 20;

/// Says what the run waits for, until the wait is over and this is dropped.
pub(super) async fn narrate(client: &Client, job: &Job) -> Infallible {
    sleep(PATIENCE).await;
    let mut said = String::new();
    loop {
        let news = match timeout(PATIENCE, contention(client, job)).await {
            Ok(Err(error @ (Error::Unreachable(_) | Error::Unanswered(_)))) => {
                Some(format!("{}: {error}; trying again", job.server))
            }
            Ok(Ok(contention)) if io::stderr().is_terminal() => contention,
            Err(_) => Some(format!("{}: no answer yet", job.server)),
            Ok(_) => None,
        };
        if let Some(news) = news.filter(|news| *news != said) {
            say(&news);
            said = news;
        }
        sleep(PAUSE).await;
    }
}

/// Who holds the first of the locks that is held, and how many wait with this run.
async fn contention(client: &Client, job: &Job) -> Result<Option<String>, Error> {
    for name in job.locks.names() {
        if let Some(lock) = look(client, name).await? {
            return Ok(Some(describe(name, &lock)));
        }
    }
    Ok(None)
}

/// How a lock is held; `None` where no client holds it or this one may not know.
async fn look(client: &Client, name: &LockName) -> Result<Option<HeldLock>, Error> {
    let name = utf8_percent_encode(name.as_str(), NON_ALPHANUMERIC);
    let request = Request::get(format!("/v1/locks/{name}")).body(Bytes::new());
    let Ok(request) = request else { return Ok(None) };
    let body = client.send(request).await?.into_body();
    let body = Limited::new(body, MAX_ANSWER).collect().await;
    Ok(body.ok().and_then(|body| serde_json::from_slice(&body.to_bytes()).ok()))
}

fn describe(name: &LockName, lock: &HeldLock) -> String {
    let (holders, waiting) = match lock {
        HeldLock::Exclusive(lock) => {
            let owner = lock.owner.as_deref().unwrap_or("a client without a label");
            (format!("{owner} since {}", lock.acquired_at), lock.waiting)
        }
        HeldLock::Shared(lock) => (format!("{} clients together", lock.holding), lock.waiting),
    };
    let others = match waiting.saturating_sub(1) {
        0 => "no other client waits".to_owned(),
        1 => "1 other client waits".to_owned(),
        others => format!("{others} other clients wait"),
    };
    format!("waiting for `{name}`, which is held by {holders}; {others}")
}
