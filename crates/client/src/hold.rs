//! Holding a lock by a connection: the service renews it for as long as this client reads.
//!
//! The guard is that of any lock. Its watchdog sends nothing: it reads the stream, whose events say
//! how long the lease is valid, and gives the lease up where none comes in time.

use std::time::Duration;

use keylatch_wire::{LossEvent, ProblemDocument, RenewalEvent};
use serde_json::Value;
use tokio::time::timeout;

use crate::clock::BootInstant;
use crate::connection::Failure;
use crate::events::{Event, EventStream};
use crate::session::Session;
use crate::target::{Grant, loss_of};
use crate::{AcquireOptions, Client, Error, Guard, Lease, LockGuard, LossReason, Result};

impl Client {
    /// Holds a lock by a connection, and waits for it as long as `options` say. The service renews
    /// the lock, and frees it as soon as this process is gone.
    ///
    /// What fails on the way is retried as by [`lock`](Self::lock), but with a new token after a
    /// lost response, and not with a token of `options`.
    ///
    /// # Errors
    ///
    /// [`Error::Held`] if others held it until the wait was over. The service gave no response, or
    /// refuses the request.
    pub async fn hold(
        &self,
        name: impl Into<String>,
        options: &AcquireOptions,
    ) -> Result<LockGuard> {
        let names = vec![name.into()];
        let claimed = || Session::new(&self.connection, names.clone(), false, options);
        let mut session = claimed()?;
        let mut tries = self.connection.tries(options.wait, Duration::ZERO);
        let (stream, grant, sent) = loop {
            // When the service ends a stream that is lost, it releases what the token holds, also
            // by another stream.
            if tries.in_doubt {
                session = claimed()?;
            }
            let (sent, (wait, limit)) = (self.connection.now(), tries.next());
            let opened = timeout(limit, session.hold(wait, sent)).await;
            match opened.unwrap_or_else(|_| Err(Error::late().into())) {
                Ok((stream, grant)) => break (stream, grant, sent),
                Err(failure) => {
                    let is_last = options.token.is_some() && failure.error.may_be_done();
                    let failure = if is_last { failure.last() } else { failure };
                    let next = tries.failed(failure).await;
                    next.map_err(|error| session.claim.refused(error))?;
                }
            }
        };
        let lock = grant.first.clone();
        Ok(Guard::watched(session, &grant, lock, |lease| follow(stream, sent, lease)))
    }
}

impl Session {
    /// Opens the stream, and waits for the event that says that the lock is held.
    async fn hold(
        &mut self,
        wait: Duration,
        sent: BootInstant,
    ) -> Result<(EventStream, Grant), Failure> {
        let claim = &self.claim;
        let acquired = async {
            let mut stream = claim.connection.stream(&claim.creation("/hold", wait)).await?;
            let silence = claim.connection.settings.silence;
            while let Some(Event { kind, data }) = stream.next(silence).await? {
                if kind == "acquired" {
                    let grant = claim.grant(data.to_string().as_bytes(), sent)?;
                    return Ok((stream, grant));
                } else if kind == "refused" {
                    let problem = serde_json::from_value::<ProblemDocument>(data);
                    let problem = problem.map_err(|_| Error::not_keylatch())?;
                    return Err(Error::Problem(Box::new(problem)).into());
                }
            }
            Err(Error::Unanswered("the stream has ended".to_owned()).into())
        };
        self.parting.venture(claim.undo(), wait, acquired).await
    }
}

/// Follows the stream until its end. The service frees the lock with the stream, so after a loss it
/// is open until the validity is over: the program has until then to stop.
async fn follow(mut stream: EventStream, sent: BootInstant, lease: Lease) {
    let lost = loop {
        let until = if lease.loss().is_none() { lease.give_up() } else { lease.until() };
        let event = tokio::select! {
            event = stream.next(Duration::MAX) => event,
            () = until.reached() => {
                lease.lose(LossReason::Unrenewed("no event came in time".to_owned()));
                if lease.until().left().is_zero() {
                    return;
                }
                continue;
            }
        };
        match event {
            Ok(Some(Event { kind, data })) if kind == "renewed" => {
                if let Ok(renewal) = serde_json::from_value::<RenewalEvent>(data) {
                    let valid = renewal.waited_ms.saturating_add(renewal.valid_for_ms);
                    lease.renewed(sent + Duration::from_millis(valid));
                }
            }
            Ok(Some(Event { kind, data })) if kind == "lost" => lease.lose(loss(data)),
            Ok(Some(_)) => {}
            Ok(None) => break "the stream has ended".to_owned(),
            Err(error) => break error.to_string(),
        }
    };
    lease.lose(LossReason::Unrenewed(lost));
}

/// Why the service ended the hold, by the code of a problem or a word.
fn loss(data: Value) -> LossReason {
    let Ok(LossEvent { reason, detail, broken }) = serde_json::from_value(data) else {
        return LossReason::Unrenewed("the stream has ended".to_owned());
    };
    loss_of(&reason, broken).unwrap_or_else(|| LossReason::Unrenewed(detail.into_owned()))
}
