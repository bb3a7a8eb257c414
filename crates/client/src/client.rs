//! A client of a service: it acquires locks, leads while it holds one, and shows and breaks them.
//!
//! Invariant: a leader learns of the loss of its lease before another client can lead, so no two
//! clients lead at once if each stops then. Tested in `tests/api/rust_client.rs` and in
//! `crates/client/tests/fake.rs`.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, Request, Response};
use keylatch_wire::{self as wire, BreakLockRequest, Code, HeldLock, LockBreak};
use serde_json::json;
use tokio::time::sleep;

use crate::builder::{Builder, variable};
use crate::connection::{Call, Connection};
use crate::session::Parting;
use crate::target::{Claim, Grant, lock_path};
use crate::transport::Body;
use crate::{
    AcquireOptions, Error, FOREVER, Guard, Lease, LockGuard, LossReason, Result, SetGuard,
};

/// How long one who leads may still run after its lease is gone.
const GONE_GRACE: Duration = Duration::from_secs(1);

/// A keylatch service, for any number of locks. Clones share their connections.
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) connection: Arc<Connection>,
}

impl Builder {
    /// A client that is not connected yet.
    ///
    /// # Errors
    ///
    /// A text is not a URL with `http`, `https` or `unix`, or that of a proxy not one with `http`;
    /// the API key has characters that no key has; a file or the system's certificates cannot be
    /// read.
    pub fn build(self) -> Result<Client> {
        Ok(Client { connection: Connection::open(self)? })
    }
}

impl Client {
    /// A client of the service at `url`, such as `http://127.0.0.1:7070`, or
    /// `unix:/run/keylatch.sock` where it listens on a Unix socket. It does not connect yet.
    ///
    /// # Errors
    ///
    /// As [`Builder::build`].
    pub fn new(url: &str) -> Result<Self> {
        Self::builder(url).build()
    }

    /// A client of the service at `url`, with more to say. Several URLs of one service have commas
    /// between them.
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
    }

    /// A client of the service at `KEYLATCH_URL`, or at `http://127.0.0.1:7070`.
    ///
    /// # Errors
    ///
    /// As [`Builder::with_env`] and [`Builder::build`].
    pub fn from_env() -> Result<Self> {
        let url = variable("KEYLATCH_URL").unwrap_or_else(|| "http://127.0.0.1:7070".into());
        Builder::new(&url.to_string_lossy()).with_env()?.build()
    }

    /// Gets a lock, and waits for it as long as `options` say.
    ///
    /// Within that time, and for 5 s in any case, a request that fails is retried with the same
    /// token. When this future is dropped, the client releases what it may have got.
    ///
    /// # Errors
    ///
    /// [`Error::Held`] if others held it until the wait was over. The service gave no response, or
    /// refuses the request.
    pub async fn lock(
        &self,
        name: impl Into<String>,
        options: &AcquireOptions,
    ) -> Result<LockGuard> {
        self.acquire(vec![name.into()], false, options, |grant| grant.first.clone()).await
    }

    /// The same, with `None` in place of [`Error::Held`].
    ///
    /// # Errors
    ///
    /// The service gave no response, or refuses the request.
    pub async fn try_lock(
        &self,
        name: impl Into<String>,
        options: &AcquireOptions,
    ) -> Result<Option<LockGuard>> {
        match self.lock(name, options).await {
            Err(Error::Held(_)) => Ok(None),
            guard => guard.map(Some),
        }
    }

    /// Gets all of several locks, and waits for them as long as `options` say. It holds none of
    /// them until it gets all, so the order of their names has no meaning.
    ///
    /// A token of `options` that holds one of the locks already does not wait for the others.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock); or the store cannot take several locks in one step.
    pub async fn lock_all<N: Into<String>>(
        &self,
        names: impl IntoIterator<Item = N>,
        options: &AcquireOptions,
    ) -> Result<SetGuard> {
        let names = names.into_iter().map(Into::into).collect();
        self.acquire(names, true, options, |grant| grant.locks.clone()).await
    }

    async fn acquire<L>(
        &self,
        names: Vec<String>,
        is_set: bool,
        options: &AcquireOptions,
        leased: impl FnOnce(&Grant) -> L,
    ) -> Result<Guard<L>> {
        let claim = Claim::new(&self.connection, names, is_set, options)?;
        let mut parting = Parting::new(&self.connection);
        let mut tries = self.connection.tries(options.wait, Duration::ZERO);
        loop {
            let (wait, limit) = tries.next();
            match claim.create(&mut parting, wait, limit).await {
                Ok(grant) => return Ok(Guard::start(claim, parting, &grant, leased(&grant))),
                Err(failure) => tries.failed(failure).await.map_err(|it| claim.refused(it))?,
            }
        }
    }

    /// Waits for the lock, leads while it is held, and waits again, until this future is dropped:
    /// that gives the lock up.
    ///
    /// [`lost`](Lease::lost) of the lease tells `lead` of a loss before another client can lead. A
    /// `lead` that still runs when the validity ends is dropped, or a second after the service has
    /// said that the lease is gone. When it returns, the next client leads.
    ///
    /// # Errors
    ///
    /// The service refuses the lock, or cannot be reached for a hundred years.
    pub async fn elect<F: Future<Output = ()>>(
        &self,
        name: impl Into<String>,
        options: &AcquireOptions,
        mut lead: impl FnMut(Lease) -> F,
    ) -> Result<Infallible> {
        let name = name.into();
        let options = AcquireOptions { wait: FOREVER, ..options.clone() };
        loop {
            let guard = self.lock(name.clone(), &options).await?;
            let lease = guard.lease();
            let over = async {
                lease.lost().cancelled().await;
                match lease.loss() {
                    Some(LossReason::NotHeld | LossReason::TakenOver) => sleep(GONE_GRACE).await,
                    _ => lease.until().reached().await,
                }
            };
            tokio::select! {
                () = lead(lease.clone()) => {}
                () = over => {}
            }
            // What cannot be released ends by itself.
            drop(guard.close().await);
            sleep(self.connection.pause(None)).await;
        }
    }

    /// Who holds a lock; `None` where it is free.
    ///
    /// # Errors
    ///
    /// The service gave no response, or refuses the request.
    pub async fn show(&self, name: &str) -> Result<Option<HeldLock>> {
        let call = Call::new(Method::GET, lock_path(name));
        let lock = match self.connection.ask(&call).await {
            Err(Error::Problem(problem)) if problem.is(Code::LockNotHeld) => return Ok(None),
            lock => lock?,
        };
        let (HeldLock::Exclusive(wire::PublicLock { name: of, .. })
        | HeldLock::Shared(wire::SharedLock { name: of, .. })) = &lock;
        if of == name { Ok(Some(lock)) } else { Err(Error::not_of_this_request()) }
    }

    /// Ends the lease of another client, of the grant with the `fencing_token` of `order`: its
    /// holder reads the `reason`, and `by` whom. Gives in how long it has ended at the latest.
    ///
    /// # Errors
    ///
    /// The service gave no response, or refuses the request: another grant holds the lock now.
    pub async fn break_lock(&self, name: &str, order: &BreakLockRequest) -> Result<Duration> {
        let call = Call::new(Method::POST, lock_path(name) + "/break").with_body(&json!(order));
        let broken: LockBreak = self.connection.ask(&call).await?;
        Ok(Duration::from_millis(broken.ends_in_ms))
    }

    /// Sends a request of the API that this crate has no method for: its URI is a path such as
    /// `/v1/locks`. The caller limits the body of the response, and its time.
    ///
    /// # Errors
    ///
    /// The service gave no response. Whether it carried the request out is unknown then.
    pub async fn send(&self, request: Request<Bytes>) -> Result<Response<Body>> {
        self.connection.forward(request.map(Full::new)).await
    }

    /// Waits until what guards and runs that were dropped held is ended, or the time for that is
    /// over.
    pub async fn close(&self) {
        self.connection.endings.close();
        self.connection.endings.wait().await;
    }
}
