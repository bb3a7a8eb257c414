//! Holding a lock by a connection: the service renews it for as long as this client reads.
//!
//! The guard is that of any lock. Its watchdog sends nothing: it reads the stream, whose events say how long the
//! lease is valid, and gives the lease up where none comes in time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::Request;
use keylatch_core::lock::{LockName, Ttl};
use keylatch_core::watchdog::notice;
use keylatch_wire::{Code, LossEvent, ProblemDocument, RenewalEvent};
use serde_json::Value;
use tokio::time::timeout;

use crate::client::held_by;
use crate::clock::BootInstant;
use crate::connection::{ANSWER_TIMEOUT, refusal_of};
use crate::error::not_keylatch;
use crate::events::{Event, EventStream};
use crate::session::Session;
use crate::target::Target;
use crate::watchdog::LeaseReport;
use crate::{AcquireOptions, AcquireReply, Client, Error, Guard, LossReason};

impl Client {
    /// Holds a lock by a connection, and waits for it as long as `options` say. The service renews the lock,
    /// and frees it as soon as this process is gone.
    ///
    /// # Errors
    ///
    /// The service gave no answer, or refuses the request. Nothing is repeated: the connection is the claim.
    pub async fn hold(
        &self,
        name: &LockName,
        options: &AcquireOptions,
    ) -> Result<AcquireReply, Error> {
        let target = Target::Lock(name.clone(), options.entry.clone());
        let mut session =
            Session::new(Arc::clone(self.connection()), self.releases(), target, options)?;
        let sent = BootInstant::now();
        let opened = timeout(options.wait + ANSWER_TIMEOUT, self.open_hold(&mut session, options));
        let (mut stream, grant) = match opened.await.unwrap_or_else(|_| Err(Error::late())) {
            Ok(opened) => opened,
            Err(Error::Problem(problem)) if problem.is(Code::LockHeld) => {
                return Ok(AcquireReply::Held(held_by(*problem)));
            }
            Err(error) => return Err(error),
        };
        let grant = session.claim().target().grant(grant.to_string().as_bytes())?;
        let until = sent + grant.valid_from_sending;
        let lock = grant.locks.into_iter().next().ok_or_else(not_keylatch)?;
        let ttl = options.ttl;
        let guard = Guard::watched(session, lock, until, |report| async move {
            let reason = read_until_lost(&mut stream, ttl, sent, &report).await;
            report.lose(reason);
            outlast(&mut stream, report.until()).await;
        });
        Ok(AcquireReply::Granted(guard))
    }

    /// Opens the stream, and waits for the event that says that the lock is held.
    async fn open_hold(
        &self,
        session: &mut Session,
        options: &AcquireOptions,
    ) -> Result<(EventStream, Value), Error> {
        let claim = Arc::clone(session.claim());
        let body = claim.target().creation(options, options.wait).map_err(|_| not_keylatch())?;
        let request = Request::post(format!("{}/hold", claim.target().path()))
            .header("lock-token", claim.token().expose())
            .header("content-type", "application/json")
            .body(Bytes::from(body));
        session.opens();
        let answer = self.send(request.map_err(|_| not_keylatch())?).await?;
        if answer.status() != 200 {
            let refusal = refusal_of(answer).await?;
            if !refusal.is_passing() {
                session.holds_nothing();
            }
            return Err(refusal.into_problem());
        }
        let mut stream = EventStream::new(answer.into_body());
        while let Some(Event { kind, data }) = stream.next().await? {
            match kind.as_str() {
                "acquired" => return Ok((stream, data)),
                "refused" => {
                    let problem: ProblemDocument =
                        serde_json::from_value(data).map_err(|_| not_keylatch())?;
                    session.holds_nothing();
                    return Err(Error::Problem(Box::new(problem)));
                }
                _ => {}
            }
        }
        Err(Error::Unanswered("the stream has ended".to_owned()))
    }
}

/// Reads on until the validity is over or the service ends the stream: it frees the lock with the stream, and the
/// program has until then to stop.
async fn outlast(stream: &mut EventStream, until: BootInstant) {
    let reading = async { while let Ok(Some(_)) = stream.next().await {} };
    tokio::select! {
        () = reading => {}
        () = until.reached() => {}
    }
}

/// Follows the stream until the lease is lost, or no event has renewed it in time.
async fn read_until_lost(
    stream: &mut EventStream,
    ttl: Ttl,
    sent: BootInstant,
    report: &LeaseReport,
) -> LossReason {
    loop {
        let deadline = report.until() - notice(ttl.get());
        let event = tokio::select! {
            event = stream.next() => event,
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
                    report.renewed(sent + Duration::from_millis(valid));
                }
            }
            "lost" => return loss(data),
            _ => {}
        }
    }
}

fn loss(data: Value) -> LossReason {
    let Ok(LossEvent { reason, detail, broken }) = serde_json::from_value(data) else {
        return LossReason::Unrenewed("the stream has ended".to_owned());
    };
    match &*reason {
        "lock-not-held" => LossReason::NotHeld,
        "token-mismatch" => LossReason::TakenOver,
        "lock-broken" => LossReason::Broken(broken.map(|it| it.reason).unwrap_or_default()),
        _ => LossReason::Unrenewed(detail.into_owned()),
    }
}
