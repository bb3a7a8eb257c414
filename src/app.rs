//! The service put together: the only place that knows all of its parts.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio_util::sync::CancellationToken;

use crate::access::IdentityFile;
use crate::config::Config;
use crate::error::Error;
use crate::http::{
    self, Api, BodyLimits, Extras, Listener, OriginPolicy, RequestLayer, Server, Streams, TlsFiles,
};
use crate::instrumented::InstrumentedStore;
use crate::metrics::Metrics;
use keylatch_core::idempotency::IdempotencyService;
use keylatch_core::lock::{LockService, WaiterLimits};
use keylatch_core::store::Store;

/// How long the service may take at shutdown, after the drain, to withdraw grants without a reader.
const LAST_TASKS: Duration = Duration::from_secs(2);

/// A service that is ready to serve.
#[derive(Debug)]
pub struct App {
    config: Config,
    router: Router,
    requests: RequestLayer,
    locks: Arc<LockService>,
    records: Option<Arc<IdempotencyService>>,
    identities: Option<Arc<IdentityFile>>,
    tls: Option<Arc<TlsFiles>>,
    metrics: Arc<Metrics>,
    closing: CancellationToken,
}

impl App {
    /// Opens the store and builds the service over it.
    ///
    /// # Errors
    ///
    /// The store cannot be used, or `listen` is an address that others reach and nothing guards.
    pub async fn new(config: Config) -> Result<Self, Error> {
        config.check_exposure()?;
        config.check_tls()?;
        let metrics = Arc::new(Metrics::new());
        let store = keylatch_stores::open(config.store.expose(), config.stores()).await?;
        Self::with_store(config, store, metrics)
    }

    /// Builds the service over a store that is open.
    ///
    /// # Errors
    ///
    /// The operating system has no random bytes, or no certificates to know servers by; or the files of TLS or
    /// of identities are of no use.
    pub fn with_store(
        config: Config,
        store: Arc<dyn Store>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, Error> {
        let store_timeout = Duration::from_millis(config.store_timeout_ms);
        let profile = store.profile();
        let store: Arc<dyn Store> = Arc::new(InstrumentedStore::new(store, Arc::clone(&metrics)));
        let waiters =
            WaiterLimits { each: config.wait.max_waiters_per_lock, all: config.waiters_max() };
        let locks = Arc::new(LockService::start(Arc::clone(&store), store_timeout, waiters)?);
        let records = profile.records.then(|| IdempotencyService::start(store, store_timeout));
        if records.is_none()
            && let Some(guard) = config.guard.first()
        {
            // Its requests are not served unguarded.
            return Err(Error::Unguarded { path: guard.path.clone(), store: profile.kind });
        }
        let identities = config.identity_file().map(IdentityFile::open).transpose()?.map(Arc::new);
        let tls = config.tls.is_on().then(|| TlsFiles::open(&config.tls)).transpose()?;
        let tls = tls.map(Arc::new);
        let closing = CancellationToken::new();
        let api = Api {
            locks: Arc::clone(&locks),
            records: records.clone(),
            metrics: Arc::clone(&metrics),
            store_kind: profile.kind,
            body_limits: body_limits(&config),
            identities: identities.clone(),
            breaks: config.serves_breaks(),
            max_wait: Duration::from_millis(config.wait.max_wait_ms),
            max_hold: Duration::from_millis(config.stream.max_hold_ms),
            streams: streams(&config, &metrics),
            closing: closing.clone(),
        };
        let deadline = Duration::from_millis(config.server.request_timeout_ms);
        let slow = Duration::from_millis(config.log.slow_ms);
        let requests =
            RequestLayer::new(Arc::clone(&metrics), deadline, config.server.max_requests)?
                .with_access_log(config.log.access, slow)
                .with_origin_policy(OriginPolicy::new(&config.server, &config.cors))
                .with_identities(identities.clone());
        let extras = Extras { guards: &config.guard, sandbox: config.serves_sandbox() };
        let router = http::router(api, extras, &config.cors, &requests)?;
        Ok(Self { config, router, requests, locks, records, identities, tls, metrics, closing })
    }

    /// The routes, without a listener.
    pub fn router(&self) -> Router {
        self.router.clone()
    }

    /// Serves on `listener` until `closing` resolves, finishes what is under way, and ends.
    ///
    /// # Errors
    ///
    /// The listener broke.
    pub async fn serve(
        self,
        listener: impl Listener,
        closing: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        let (token, locks, records) =
            (self.closing.clone(), Arc::clone(&self.locks), self.records.clone());
        let told = tokio::spawn(async move {
            closing.await;
            token.cancel();
            locks.stop_waiting();
            if let Some(records) = records {
                records.stop_waiting();
            }
        });
        let of_identities = self.identities.map(|identities| tokio::spawn(identities.follow()));
        let of_tls = self.tls.clone().map(|tls| tokio::spawn(tls.follow()));
        let server =
            Server::new(listener, self.router, self.requests, self.config.server, self.metrics);
        let server = server.with_tls(self.tls);
        let served = server.run(self.closing).await;
        told.abort();
        for following in [of_identities, of_tls].into_iter().flatten() {
            following.abort();
        }
        let closed = async {
            let records = async {
                if let Some(records) = &self.records {
                    records.close().await;
                }
            };
            tokio::join!(self.locks.close(), records)
        };
        if tokio::time::timeout(LAST_TASKS, closed).await.is_err() {
            tracing::warn!(
                "what has no waiting client any more is left: grants expire, runs are unknown"
            );
        }
        Ok(served?)
    }
}

fn body_limits(config: &Config) -> BodyLimits {
    let time = Duration::from_millis(config.server.body_timeout_ms);
    BodyLimits { bytes: config.server.body_limit_bytes, time }
}

fn streams(config: &Config, metrics: &Arc<Metrics>) -> Streams {
    let heartbeat = Duration::from_millis(config.stream.heartbeat_ms);
    Streams::new(config.streams_max(), heartbeat, Arc::clone(metrics))
}
