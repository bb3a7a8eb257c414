//! A claim under way or granted, and its end.
//!
//! A session may hold its locks, or places in their queues, from its first request that was sent
//! until the service has answered that it holds nothing. Dropped in between, it releases what it
//! may hold, in a task of the client: a program that stops waiting, or forgets a guard, leaves
//! nothing behind but for as long as the service cannot be reached.

use std::sync::Arc;
use std::time::Duration;

use crate::connection::{Connection, Failure};
use crate::ending::Parting;
use crate::target::{Claim, Grant};
use crate::{AcquireOptions, Error};

/// A claim that is released when it is dropped.
#[derive(Debug)]
pub(crate) struct Session {
    /// What the task that renews it shares.
    pub(crate) claim: Arc<Claim>,
    pub(crate) parting: Parting,
}

impl Session {
    /// A session under a new token, for which the service holds nothing yet, or under that of the
    /// options.
    pub(crate) fn new(
        connection: &Arc<Connection>,
        names: Vec<String>,
        is_set: bool,
        options: &AcquireOptions,
    ) -> Result<Self, Error> {
        let claim = Arc::new(Claim::new(connection, names, is_set, options)?);
        Ok(Self { claim, parting: Parting::new(connection) })
    }

    /// Asks for the locks, and waits for them at the service for `wait`.
    pub(crate) async fn create(
        &mut self,
        wait: Duration,
        limit: Duration,
    ) -> Result<Grant, Failure> {
        let (claim, sent) = (&self.claim, self.claim.connection.now());
        let call = claim.creation("", wait);
        let answer = claim.connection.send(&call, Duration::ZERO, limit);
        let answer = self.parting.venture(claim.undo(), wait, answer).await?;
        claim.fresh(claim.grant(&answer, sent)?).await
    }

    /// From now on the end of the session releases.
    pub(crate) fn granted(&mut self) {
        self.parting.call = (!self.claim.options.keep).then(|| self.claim.release_call());
    }
}
