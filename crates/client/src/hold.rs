//! Holding a lock by a connection: the service renews it for as long as this client reads.
//!
//! The guard is that of any lock. Its watchdog sends nothing: it reads the stream, whose events say
//! how long the lease is valid, and gives the lease up where none comes in time.

use std::sync::Arc;
use std::time::Duration;

use keylatch_wire::{LossEvent, ProblemDocument, RenewalEvent};
use serde_json::Value;
use tokio::time::timeout;

use crate::client::{MAX_WAIT, whole_millis};
use crate::clock::BootInstant;
use crate::connection::{Refusal, refusal_of};
use crate::error::not_keylatch;
use crate::events::{Event, EventStream};
use crate::session::Session;
use crate::target::{Target, loss_of};
use crate::{AcquireOptions, Client, Error, Guard, Lease, LockGuard, LossReason};

/// How long one stream waits: as long as a service lets wait unless it is configured otherwise.
const STREAM_WAIT: Duration = Duration::from_secs(300);

impl Client {
    /// Holds a lock by a connection, and waits for it as long as `options` say. The service renews
    /// the lock, and frees it as soon as this process is gone.
    ///
    /// # Errors
    ///
    /// [`Error::Held`] if others held it until the wait was over. The service gave no response, or
    /// refuses the request. No lost response is retried: the connection is the claim.
    pub async fn hold(
        &self,
        name: impl Into<String>,
        options: &AcquireOptions,
    ) -> Result<LockGuard, Error> {
        let target = Target::lock(name.into(), options.entry.clone());
        let mut session = Session::new(&self.connection, target, options)?;
        let end = self.connection.now() + options.wait.min(MAX_WAIT);
        let (mut stream, grant, sent) = loop {
            let (sent, wait) = (self.connection.now(), whole_millis(end.left().min(STREAM_WAIT)));
            let limit = wait + self.connection.settings.timeout;
            let opened = timeout(limit, self.open_hold(&mut session, options, wait)).await;
            match opened.unwrap_or_else(|_| Err(Error::late())) {
                Ok((stream, grant)) => break (stream, grant, sent),
                // A wait that was granted is over, and the next one begins at once.
                Err(Error::Held(_)) if (sent + wait).left().is_zero() && !end.left().is_zero() => {}
                Err(error) => return Err(error),
            }
        };
        let grant = session.claim.grant(grant.to_string().as_bytes())?;
        let until = sent + grant.valid_from_sending;
        let lock = grant.locks.into_iter().next().ok_or_else(not_keylatch)?;
        let ttl = options.ttl;
        Ok(Guard::watched(session, ttl, lock, until, |lease| async move {
            let reason = read_until_lost(&mut stream, sent, &lease).await;
            lease.lose(reason);
            outlast(&mut stream, lease.until()).await;
        }))
    }

    /// Opens the stream, and waits for the event that says that the lock is held.
    async fn open_hold(
        &self,
        session: &mut Session,
        options: &AcquireOptions,
        wait: Duration,
    ) -> Result<(EventStream, Value), Error> {
        let claim = Arc::clone(&session.claim);
        let request = claim.creation("/hold", options, wait).request(Duration::ZERO)?;
        session.open = true;
        let answer = self.connection.forward(request).await?;
        if answer.status() != 200 {
            let refusal = refusal_of(answer).await?;
            session.open = !refusal.is_without_effect();
            return Err(claim.refused(refusal));
        }
        let silence = self.connection.settings.silence;
        let mut stream = EventStream::new(answer.into_body());
        while let Some(Event { kind, data }) = stream.next(silence).await? {
            match kind.as_str() {
                "acquired" => return Ok((stream, data)),
                "refused" => {
                    let problem: ProblemDocument =
                        serde_json::from_value(data).map_err(|_| not_keylatch())?;
                    session.open = false;
                    return Err(claim.refused(Refusal::of(problem)));
                }
                _ => {}
            }
        }
        Err(Error::Unanswered("the stream has ended".to_owned()))
    }
}

/// Reads on until the validity is over or the service ends the stream: it frees the lock with the
/// stream, and the program has until then to stop.
async fn outlast(stream: &mut EventStream, until: BootInstant) {
    let reading = async { while let Ok(Some(_)) = stream.next(Duration::MAX).await {} };
    tokio::select! {
        () = reading => {}
        () = until.reached() => {}
    }
}

/// Follows the stream until the lease is lost, or no event has renewed it in time.
async fn read_until_lost(stream: &mut EventStream, sent: BootInstant, lease: &Lease) -> LossReason {
    loop {
        let deadline = lease.give_up();
        let event = tokio::select! {
            event = stream.next(Duration::MAX) => event,
            () = deadline.reached() => {
                return LossReason::Unrenewed("no event came in time".to_owned());
            }
        };
        let Event { kind, data } = match event {
            Ok(Some(event)) => event,
            Ok(None) => return LossReason::Unrenewed("the stream has ended".to_owned()),
            Err(error) => return LossReason::Unrenewed(error.to_string()),
        };
        match kind.as_str() {
            "renewed" => {
                if let Ok(renewal) = serde_json::from_value::<RenewalEvent>(data) {
                    let valid = renewal.waited_ms.saturating_add(renewal.valid_for_ms);
                    lease.renewed(sent + Duration::from_millis(valid));
                }
            }
            "lost" => return loss(data),
            _ => {}
        }
    }
}

/// Why the service ended the hold, by the code of a problem or a word.
fn loss(data: Value) -> LossReason {
    let Ok(LossEvent { reason, detail, broken }) = serde_json::from_value(data) else {
        return LossReason::Unrenewed("the stream has ended".to_owned());
    };
    loss_of(&reason, broken).unwrap_or_else(|| LossReason::Unrenewed(detail.into_owned()))
}
