//! Leading while a lock is held, again and again.
//!
//! Invariant: no two clients lead at once if each stops at the loss of its lease. The client reports
//! the loss before another client can lead. Tested in `crates/client/tests/fake.rs`.

use std::convert::Infallible;
use std::time::Duration;

use tokio::time::sleep;

use crate::{AcquireOptions, Client, FOREVER, Lease, LossReason, Result};

/// How long one who leads may still run after its lease is gone.
const GONE_GRACE: Duration = Duration::from_secs(1);

impl Client {
    /// Waits for the lock, leads while it is held, and waits again, until this future is dropped:
    /// that gives the lock up.
    ///
    /// [`lost`](Lease::lost) of the lease tells `lead` of a loss before another client can
    /// lead. A `lead` that still runs when the validity ends is dropped. After the service has said
    /// that the lease is gone, it is dropped a second later. When it returns, the next client leads.
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
}
