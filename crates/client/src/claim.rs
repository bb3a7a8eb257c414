use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout_at};

use crate::acquire::{Options, Shared};
use crate::error::Error;
use crate::wire::{Answer, Lease, Problem, Silence};
use keylatch_core::lock::{LockName, ReleaseReply, Token, Ttl};

/// The pause before a request is repeated, unless the service asks for a longer one.
pub(crate) const PAUSE: Duration = Duration::from_millis(250);

/// A lock that may be this client's by the proof of a token, or a place in its line.
///
/// When it is dropped what it may hold is given back, in a task of the client.
#[derive(Debug)]
pub(crate) struct Claim {
    shared: Arc<Shared>,
    key: Arc<Key>,
    /// Whether the service may hold something for the token.
    open: bool,
}

/// What names a claim to the service.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) name: LockName,
    token: Token,
}

impl Claim {
    pub(crate) fn new(shared: Arc<Shared>, name: LockName) -> Result<Self, Error> {
        let key = Arc::new(Key { name, token: Token::generate()? });
        Ok(Self { shared, key, open: false })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn key(&self) -> &Arc<Key> {
        &self.key
    }

    /// Asks for the lock, and waits for it at the service for `wait`.
    pub(crate) async fn create(
        &mut self,
        options: &Options,
        wait: Duration,
    ) -> Result<Answer, Silence> {
        let before = std::mem::replace(&mut self.open, true);
        let body = json!({
            "ttl_ms": options.ttl.as_millis(),
            "owner": options.owner.as_ref().map(keylatch_core::lock::Owner::as_str),
            "wait_ms": u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
        });
        let limit = wait + self.shared.limit;
        let answer = self.shared.ask(Method::POST, &self.key, body.to_string(), limit).await;
        let nothing_left = match &answer {
            // Who has waited may have a place in the line for a moment longer.
            Ok(Answer::Problem(problem)) if problem.is("lock-held") => wait.is_zero(),
            Ok(Answer::Problem(problem)) => problem.status.is_client_error(),
            Err(Silence::Unsent(_)) => true,
            _ => false,
        };
        if nothing_left {
            self.open = before;
        }
        answer
    }

    /// Gives the lock back, trying until the service has said what became of it or the time for an
    /// answer is over.
    pub(crate) async fn release(mut self) -> Result<ReleaseReply, Error> {
        let released = release(&self.shared, &self.key).await;
        self.open = false;
        released
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        // Without a runtime the lease ends by itself.
        if let Ok(runtime) = Handle::try_current() {
            let (shared, key) = (Arc::clone(&self.shared), Arc::clone(&self.key));
            let releasing = async move {
                // Nobody is left to be told.
                let _ = release(&shared, &key).await;
            };
            self.shared.releasing.spawn_on(releasing, &runtime);
        }
    }
}

/// Lets the lease of a claim go on for `ttl`, unless the answer takes longer than `limit`.
pub(crate) async fn renew(
    shared: &Shared,
    key: &Key,
    ttl: Ttl,
    limit: Duration,
) -> Result<Lease, Unrenewed> {
    let body = json!({ "ttl_ms": ttl.as_millis() }).to_string();
    match shared.ask(Method::PUT, key, body, limit).await {
        Ok(Answer::Lease(lease)) => Ok(lease),
        Ok(Answer::Problem(problem)) if problem.is("lock-not-held") => Err(Unrenewed::NotHeld),
        Ok(Answer::Problem(problem)) if problem.is("token-mismatch") => Err(Unrenewed::TakenOver),
        Ok(Answer::Problem(problem)) => {
            Err(Unrenewed::Failed { after: problem.retry_after, error: problem.into() })
        }
        Ok(Answer::Done) => Err(Unrenewed::Failed { after: None, error: not_keylatch() }),
        Err(silence) => Err(Unrenewed::Failed { after: None, error: silence.into() }),
    }
}

/// Why a lease was not renewed.
pub(crate) enum Unrenewed {
    /// Nobody holds the lock.
    NotHeld,
    /// Somebody else does.
    TakenOver,
    /// It may be tried again, after some time if the service says so.
    Failed { after: Option<Duration>, error: Error },
}

async fn release(shared: &Shared, key: &Key) -> Result<ReleaseReply, Error> {
    let end = Instant::now() + shared.limit;
    let mut failure = Error::Unreachable("no answer came in time".to_owned());
    let trying = async {
        let mut may_be_done = false;
        loop {
            let asked = shared.ask(Method::DELETE, key, String::new(), shared.limit).await;
            let unheard = match &asked {
                Ok(Answer::Problem(problem)) => problem.is_passing(),
                Ok(_) => false,
                Err(silence) => matches!(silence, Silence::Unknown(_)),
            };
            match released(asked) {
                Err(error @ Error::Refused(_)) => return Err(error),
                Err(error) => failure = error,
                // What is gone was given back by the try whose answer was lost.
                Ok(_) if may_be_done => return Ok(ReleaseReply::Released),
                Ok(released) => return Ok(released),
            }
            may_be_done |= unheard;
            sleep(PAUSE).await;
        }
    };
    let tried = timeout_at(end, trying).await;
    tried.unwrap_or(Err(failure))
}

fn released(asked: Result<Answer, Silence>) -> Result<ReleaseReply, Error> {
    match asked? {
        Answer::Done => Ok(ReleaseReply::Released),
        Answer::Problem(problem) if problem.is("lock-not-held") => Ok(ReleaseReply::NotHeld),
        Answer::Problem(problem) if problem.is("token-mismatch") => Ok(ReleaseReply::Mismatch),
        Answer::Problem(problem) => Err(Problem::into(problem)),
        Answer::Lease(_) => Err(not_keylatch()),
    }
}

fn not_keylatch() -> Error {
    Error::Refused("the answer is not one of keylatch".to_owned())
}

impl Shared {
    async fn ask(
        &self,
        method: Method,
        key: &Key,
        body: String,
        limit: Duration,
    ) -> Result<Answer, Silence> {
        self.wire.ask(method, &key.name, &key.token, body, limit).await
    }
}
