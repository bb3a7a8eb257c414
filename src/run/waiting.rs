//! What a command says while it waits for its locks: that the service cannot be reached, and on a
//! terminal who holds them, for how long, and how many are before this client.
//!
//! A command that gets its locks within a second says nothing. The service says how many wait in
//! all. Later ones queue behind, so the fewest others seen so far are the most that are ahead.
//! Tested in `tests/cli/run_waits.rs`.

use std::convert::Infallible;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::{HeaderMap, Request, header};
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use keylatch_client::{Client, Error, escape};
use keylatch_core::lock::LockName;
use keylatch_wire::{HeldLock, in_words};
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};

use crate::plain::say;

/// How long a command waits before it says anything, and how long one look may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long after a look the next one comes, and at most where no terminal is there: a process may
/// wait for months.
const PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(80);
/// The largest answer that is read, in bytes: a lock with a thousand holders.
const MAX_ANSWER: usize = 1 << 20;

/// Says what the command waits for, until the wait is over and this is dropped.
pub(crate) async fn narrate(client: &Client, server: &str, names: &[LockName]) -> Infallible {
    sleep(PATIENCE).await;
    let (mut said, mut fewest, mut pause) = (None, u64::MAX, PAUSE);
    loop {
        let news = match timeout(PATIENCE, contention(client, names)).await {
            Ok(Err(error @ Error::Unreachable(_))) => {
                Some(News::Text(format!("{server}: {error}; trying again")))
            }
            Ok(Ok(contention)) if io::stderr().is_terminal() => contention.map(News::Contention),
            Err(_) => Some(News::Text(format!("{server}: no answer yet"))),
            Ok(_) => None,
        };
        if let Some(mut news) = news {
            if let News::Contention(contention) = &mut news {
                fewest = fewest.min(contention.ahead);
                contention.ahead = fewest;
            }
            if said.as_ref().is_none_or(|said| !news.repeats(said)) {
                say(&news);
            }
            said = Some(news);
        }
        sleep(pause).await;
        if !io::stderr().is_terminal() {
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// What there is to say.
enum News {
    Text(String),
    Contention(Contention),
}

impl News {
    /// Whether it says nothing new: the times alone are other ones.
    fn repeats(&self, said: &Self) -> bool {
        match (self, said) {
            (Self::Text(text), Self::Text(said)) => text == said,
            (Self::Contention(new), Self::Contention(said)) => {
                let what = |one: &Contention| (one.name.clone(), one.grant, one.ahead);
                what(new) == what(said)
            }
            _ => false,
        }
    }
}

impl std::fmt::Display for News {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Contention(Contention { name, holders, ahead, .. }) => {
                let ahead = match ahead {
                    0 => "none ahead".to_owned(),
                    some => format!("at most {some} ahead"),
                };
                write!(f, "waiting for `{name}`, held by {holders}; {ahead}")
            }
        }
    }
}

/// The first of the locks that is held.
struct Contention {
    name: LockName,
    /// What tells this grant from the next; none where several share the lock.
    grant: Option<u64>,
    holders: String,
    /// At most so many others wait before this client.
    ahead: u64,
}

/// Who holds the first of the locks that is held; `None` where no client does or this one may not
/// know.
async fn contention(client: &Client, names: &[LockName]) -> Result<Option<Contention>, Error> {
    for name in names {
        if let Some((lock, now)) = look(client, name).await? {
            return Ok(Some(Contention::of(name, &lock, now)));
        }
    }
    Ok(None)
}

/// How a lock is held, and when by the service's clock.
async fn look(client: &Client, name: &LockName) -> Result<Option<(HeldLock, Timestamp)>, Error> {
    let path = format!("/v1/locks/{}", escape(name.as_str()));
    let (lock, headers) = read(client, path).await?;
    Ok(lock.map(|lock| (lock, date_of(&headers).unwrap_or_else(Timestamp::now))))
}

/// What is at a path, and the headers of the response; `None` where it is something else.
pub(super) async fn read<T: DeserializeOwned>(
    client: &Client,
    path: String,
) -> Result<(Option<T>, HeaderMap), Error> {
    let request = Request::get(path).body(Bytes::new());
    let Ok(request) = request else { return Ok((None, HeaderMap::new())) };
    let (head, body) = client.send(request).await?.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await;
    let value = body.ok().and_then(|body| serde_json::from_slice(&body.to_bytes()).ok());
    Ok((value, head.headers))
}

fn date_of(headers: &HeaderMap) -> Option<Timestamp> {
    let date = headers.get(header::DATE)?.to_str().ok()?;
    rfc2822::DateTimeParser::new().parse_timestamp(date).ok()
}

impl Contention {
    fn of(name: &LockName, lock: &HeldLock, now: Timestamp) -> Self {
        let (grant, holders, waiting) = match lock {
            HeldLock::Exclusive(lock) => {
                let owner = lock.owner.as_deref().unwrap_or("a client without a label");
                let since = lock.acquired_at.parse().unwrap_or(now);
                let held = u64::try_from(now.duration_since(since).as_millis()).unwrap_or_default();
                let (held, left) = (in_words(held), in_words(lock.expires_in_ms));
                let holders = format!("{owner} for {held}, {left} left unless renewed");
                (Some(lock.fencing_token), holders, lock.waiting)
            }
            HeldLock::Shared(lock) => {
                let holders = match lock.holding {
                    1 => "1 client that shares it".to_owned(),
                    several => format!("{several} clients together"),
                };
                (None, holders, lock.waiting)
            }
        };
        Self { name: name.clone(), grant, holders, ahead: waiting.saturating_sub(1) }
    }
}
