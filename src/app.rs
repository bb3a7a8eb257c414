//! The service put together: the only place that knows all of its parts.
//!
//! It opens the store, wraps it in the decorators, builds the services and the router, and ends
//! them in order: the streams, then the requests, then the tasks that finish steps. Invariant: each
//! task of the service has an owner here, and the end waits for it for a bounded time. Tested in
//! `tests/api/shutdown.rs`.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::access::{Authenticator, compare_quotas};
use crate::audit::AuditLog;
use crate::config::{Config, url_without_secrets};
use crate::encryption::Encryption;
use crate::error::Error;
use crate::grant_ends::EndReporter;
use crate::guard_comparison::GuardComparison;
use crate::http::{
    self, Api, Backups, BodyLimits, BoundListener, Extras, HandedSockets, Listener, OriginPolicy,
    RecordCounter, RequestLayer, RequestRules, Routes, ServeError, ServedParts, Server, Streams,
    TlsFiles,
};
use crate::instrumented::InstrumentedStore;
use crate::issuing::Issuing;
use crate::metrics::Metrics;
use crate::past_grants::PastGrants;
use keylatch_core::idempotency::{IdempotencyService, RecordLimits};
use keylatch_core::lock::{LockService, WaiterLimits};
use keylatch_core::store::{Store, StoreError, chain};
use keylatch_stores::{OpenError, scheme_of};

/// How long the service may take at shutdown, after the drain, to withdraw grants without a reader.
const LAST_TASKS: Duration = Duration::from_secs(2);
/// How much of it the clients have to read that their run was interrupted.
const LAST_ANSWERS: Duration = Duration::from_millis(250);

/// How long a store may take to say what it is before the service says that it listens.
const START_LOOK: Duration = Duration::from_secs(1);

/// A server that runs, and what closes its connections when it is cancelled.
type Serving = (AbortOnDropHandle<Result<(), ServeError>>, CancellationToken);

/// A service that is ready to serve.
#[derive(Debug)]
pub struct App {
    config: Config,
    router: Router,
    locks: Arc<LockService>,
    records: Option<Arc<IdempotencyService>>,
    authenticator: Option<Arc<Authenticator>>,
    tls: Option<Arc<TlsFiles>>,
    issuing: Option<Arc<Issuing>>,
    metrics: Arc<Metrics>,
    guards: Arc<GuardComparison>,
    /// Reports ends of grants for as long as this lives.
    _ends: AbortOnDropHandle<()>,
    closing: CancellationToken,
    /// What serves since before the store was open.
    serving: Option<Serving>,
}

impl App {
    /// Opens the store and builds the service over it. It is an error if `listen` is an address
    /// that others reach and nothing guards.
    pub async fn new(config: Config) -> Result<Self, Error> {
        check_access(&config)?;
        let store = keylatch_stores::open(config.store.expose(), config.stores()).await?;
        Self::with_store(config, store, Arc::new(Metrics::new()))
    }

    /// The same, and answers `/livez` on the listeners meanwhile: they have to be those that the
    /// service is then served on.
    pub async fn open_on(config: Config, listeners: &[BoundListener]) -> Result<Self, Error> {
        let of_store = config.clone();
        let store =
            async move { keylatch_stores::open(of_store.store.expose(), of_store.stores()).await };
        Self::open_with(config, listeners, store).await
    }

    /// The same over a store that opens.
    pub async fn open_with(
        config: Config,
        listeners: &[BoundListener],
        store: impl Future<Output = Result<Arc<dyn Store>, OpenError>>,
    ) -> Result<Self, Error> {
        check_access(&config)?;
        let (settings, tls) = (config.server.clone(), tls_files(&config)?.map(Arc::new));
        let (metrics, closing) = (Arc::new(Metrics::new()), CancellationToken::new());
        let routes = Routes::to_come(closing.clone());
        let server = Server::new(routes.clone(), settings, Arc::clone(&metrics), closing.clone());
        let serving = start(server.with_listeners(listeners, tls.as_ref()));
        let failed = closing.clone().drop_guard();
        let app = Self::build(config, store.await?, metrics, closing)?;
        failed.disarm();
        routes.replace(app.router());
        Ok(Self { tls, serving: Some(serving), ..app })
    }

    /// Whether the service would start with the configuration, as far as that is known without its
    /// store.
    pub fn check(config: &Config) -> Result<(), Error> {
        check_access(config)?;
        let url = config.store.expose();
        let store = keylatch_stores::check(url, config.stores())?;
        check_guards(config, scheme_of(url).unwrap_or_default(), store.records)?;
        AuditLog::check(&config.log).map_err(of_audit(&config.log.audit))?;
        authenticator(config)?;
        tls_files(config)?;
        Encryption::open(config)?;
        Ok(())
    }

    /// Builds the service over a store that is open.
    pub fn with_store(
        config: Config,
        store: Arc<dyn Store>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, Error> {
        Self::build(config, store, metrics, CancellationToken::new())
    }

    /// The same, that is told by `closing` that it ends.
    fn build(
        config: Config,
        store: Arc<dyn Store>,
        metrics: Arc<Metrics>,
        closing: CancellationToken,
    ) -> Result<Self, Error> {
        let (past_grants, audit) = (Arc::new(PastGrants::new()), audit_log(&config, &metrics)?);
        let store: Arc<dyn Store> = Arc::new(InstrumentedStore::new(store, &metrics, &past_grants));
        let (locks, records) = services(&config, &store)?;
        let (authenticator, issuing) = (authenticator(&config)?, Issuing::open(&config)?);
        let guards = Arc::new(GuardComparison::new(&config.guard)?);
        let api = Api {
            locks: Arc::clone(&locks),
            records: records.clone(),
            issued_keys: issuing.as_ref().map(|issuing| issuing.keys.clone()),
            guard_settings: config.guard.clone(),
            record_counter: RecordCounter::default(),
            guards: Arc::clone(&guards),
            metrics: Arc::clone(&metrics),
            past_grants: Arc::clone(&past_grants),
            store_kind: store.profile().kind,
            body_limits: body_limits(&config),
            response_limit_bytes: config.idempotency.response_limit_bytes,
            authenticator: authenticator.clone(),
            audit: audit.clone(),
            breaks: config.serves_breaks(),
            backups: config.serves_backups().then(|| Backups::new(config.backup_timeout_ms)),
            max_wait: Duration::from_millis(config.wait.max_wait_ms),
            max_hold: Duration::from_millis(config.stream.max_hold_ms),
            streams: streams(&config, &metrics),
            closing: closing.clone(),
        };
        Ok(Self {
            _ends: EndReporter::start(&*store, &metrics, past_grants, audit, &authenticator),
            tls: tls_files(&config)?.map(Arc::new),
            issuing,
            router: router(&config, api)?,
            config,
            locks,
            records,
            authenticator,
            metrics,
            guards,
            closing,
            serving: None,
        })
    }

    /// The routes, without a listener.
    pub fn router(&self) -> Router {
        self.router.clone()
    }

    /// Serves on `listener`, with TLS if the configuration has a certificate, until `closing`
    /// resolves, finishes what is under way, and ends.
    pub async fn serve(
        self,
        listener: impl Listener,
        closing: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        let server =
            self.server().with_listener(Arc::new(listener), self.tls.clone(), ServedParts::ALL);
        self.run(start(server), closing).await
    }

    /// The same on several listeners, each as its settings say.
    pub async fn serve_on(
        mut self,
        listeners: Vec<BoundListener>,
        closing: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        let serving = self
            .serving
            .take()
            .unwrap_or_else(|| start(self.server().with_listeners(&listeners, self.tls.as_ref())));
        // The server has them, and closes them when it has accepted the last connection.
        drop(listeners);
        self.run(serving, closing).await
    }

    /// Where the store is, for people, and what its grants are worth if it responds.
    pub async fn store(&self) -> (String, Option<&'static str>) {
        let health = timeout(START_LOOK, self.locks.health()).await;
        let tier = health.ok().and_then(Result::ok).map(|health| health.tier.as_str());
        (url_without_secrets(self.config.store.expose()), tier)
    }

    fn server(&self) -> Server {
        let (settings, metrics) = (self.config.server.clone(), Arc::clone(&self.metrics));
        Server::new(self.router.clone().into(), settings, metrics, self.closing.clone())
    }

    async fn run(
        self,
        (serving, killed): Serving,
        closing: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        let (locks, records) = (&self.locks, &self.records);
        let of_access = self.authenticator.clone().map(|all| {
            let quotas = compare_quotas(Arc::clone(&all), Arc::clone(locks), records.clone());
            tokio::spawn(async move {
                tokio::join!(all.follow(), quotas);
            })
        });
        let of_tls = self.tls.clone().map(|tls| tokio::spawn(tls.follow()));
        let of_issuing = self.issuing.clone();
        let of_issuing = of_issuing.map(|one| tokio::spawn(async move { one.follow().await }));
        let metrics = Arc::clone(&self.metrics);
        let of_metrics = tokio::spawn(async move { metrics.recent.sample_all().await });
        let unconnected = CancellationToken::new();
        let connections = async {
            let served = serving.await;
            unconnected.cancel();
            served
        };
        let closing = async {
            // A listener that broke ends the service as well.
            self.closing.run_until_cancelled(closing).await;
            self.closing.cancel();
            self.drain(&unconnected, &killed).await;
        };
        let guards = self.guards.follow(locks, &self.metrics, &self.closing);
        let (served, (), ()) = tokio::join!(connections, closing, guards);
        for following in [of_access, of_tls, of_issuing, Some(of_metrics)].into_iter().flatten() {
            following.abort();
        }
        Ok(served.map_err(io::Error::from)??)
    }

    /// Lets requests and runs end, also runs whose client has gone, for as long as the settings
    /// allow. Then runs have an unknown outcome, and what is left of connections is closed once
    /// their clients could read so.
    async fn drain(&self, unconnected: &CancellationToken, killed: &CancellationToken) {
        self.locks.stop_waiting();
        let drain_timeout = Duration::from_millis(self.config.server.drain_timeout_ms);
        let quiet = async {
            unconnected.cancelled().await;
            if let Some(records) = &self.records {
                records.quiet().await;
            }
        };
        if let Some(records) = &self.records {
            records.stop_waiting();
        }
        let _ = timeout(drain_timeout, quiet).await;
        let last = Instant::now() + LAST_TASKS;
        if let Some(records) = &self.records {
            let _ = timeout_at(last, records.drain(Duration::ZERO)).await;
        }
        let _ = timeout(LAST_ANSWERS, unconnected.cancelled()).await;
        killed.cancel();
        unconnected.cancelled().await;
        let records = async {
            if let Some(records) = &self.records {
                records.close().await;
            }
        };
        let closed = async { tokio::join!(self.locks.close(), records) };
        if timeout_at(last, closed).await.is_err() {
            tracing::warn!(
                "what has no waiting client any more is left: grants expire, runs are unknown"
            );
        }
    }
}

fn start(server: Server) -> Serving {
    let killed = server.killed();
    (AbortOnDropHandle::new(tokio::spawn(server.run())), killed)
}

/// Connects to the store of a configuration, and says what it is.
pub async fn connect(config: &Config) -> Result<String, Error> {
    let (url, limit) = (config.store.expose(), Duration::from_millis(config.store_timeout_ms));
    let place = url_without_secrets(url);
    if matches!(scheme_of(url), Some("embedded" | "memory")) {
        return Ok(format!("{place} is in the service itself: there is nothing to connect to"));
    }
    let store = keylatch_stores::open(url, config.stores()).await?;
    let health = timeout(limit, store.health()).await.unwrap_or(Err(StoreError::Deadline(limit)));
    let health =
        health.map_err(|error| Error::Unreachable(format!("{place}: {}", chain(&error))))?;
    let facts = health.facts.into_iter().map(|(name, fact)| format!("\n  {name}: {fact}"));
    let advice = health.advice.into_iter().map(|advice| format!("\n  advice: {advice}"));
    let more: String = facts.chain(advice).collect();
    Ok(format!("{place} responds; tier {}{more}", health.tier.as_str()))
}

/// Listens wherever the configuration says, or on the sockets that a service manager handed over.
/// It has the addresses of the listeners then, where it had names.
pub async fn bind(config: &mut Config) -> Result<Vec<BoundListener>, Error> {
    let (mut bound, listeners) = (Vec::new(), config.listeners());
    let mut handed = HandedSockets::of_process(listeners.len())?;
    for settings in listeners {
        let address = settings.place();
        let listen = |source| Error::Listen { address, source };
        bound.push(settings.bind(&mut handed).await.map_err(listen)?);
    }
    config.listener = bound.iter().map(|bound| bound.settings.clone()).collect();
    Ok(bound)
}

fn router(config: &Config, api: Api) -> io::Result<Router> {
    warn_of_shared_origins(config);
    let requests = request_layer(config, &api.metrics, &api.authenticator, &api.audit);
    let extras = Extras { guards: &config.guard, sandbox: config.serves_sandbox() };
    http::router(api, extras, (&config.cors, &config.gateway), &requests)
}

type Services = (Arc<LockService>, Option<Arc<IdempotencyService>>);

/// The service of locks, and that of records if the store keeps any.
fn services(config: &Config, store: &Arc<dyn Store>) -> Result<Services, Error> {
    let timeout = Duration::from_millis(config.store_timeout_ms);
    let waiters =
        WaiterLimits { each: config.wait.max_waiters_per_lock, all: config.waiters_max() };
    let locks = Arc::new(LockService::start(Arc::clone(store), timeout, waiters)?);
    let profile = store.profile();
    check_guards(config, profile.kind, profile.records)?;
    let limits = RecordLimits {
        kept_bytes: config.idempotency.max_kept_bytes,
        unknown: config.idempotency.max_unknown,
        waiters: locks.waiter_room().part(config.waiters_max() / 2),
    };
    let encryption = Encryption::open(config)?;
    let over = encryption.as_ref().map_or_else(|| Arc::clone(store), |keys| keys.over(store));
    let start = || IdempotencyService::start_within(over, timeout, limits);
    let records = profile.records.then(start);
    if let (Some(records), Some(encryption)) = (&records, encryption) {
        records.spawn_until_drain(encryption.follow());
    }
    Ok((locks, records))
}

/// Says on which listeners the console and the docs are not served, since services behind guards
/// have pages there.
fn warn_of_shared_origins(config: &Config) {
    for listener in config.listeners() {
        if config.has_guarded_pages() && listener.serves.beside_guarded_pages() != listener.serves {
            tracing::warn!(
                listener = listener.place(),
                "the console and /docs are not served here: pages of guarded services could use the API keys of \
                 those who sign in; give them a [[listener]] of their own with \
                 serves = [\"api\", \"docs\", \"console\"]"
            );
        }
    }
}

fn request_layer(
    config: &Config,
    metrics: &Arc<Metrics>,
    authenticator: &Option<Arc<Authenticator>>,
    audit: &Option<Arc<AuditLog>>,
) -> RequestLayer {
    let rules = RequestRules {
        metrics: Arc::clone(metrics),
        max_requests: i64::try_from(config.server.max_requests).unwrap_or(i64::MAX),
        log: config.log.access,
        slow: Duration::from_millis(config.log.slow_ms),
        origins: OriginPolicy::new(&config.server, &config.cors),
        has_guarded_pages: config.has_guarded_pages(),
        authenticator: authenticator.clone(),
        audit: audit.clone(),
    };
    RequestLayer::new(rules, Duration::from_millis(config.server.request_timeout_ms))
}

fn authenticator(config: &Config) -> Result<Option<Arc<Authenticator>>, Error> {
    let file = config.identity_file();
    let opened = file.map(|file| Authenticator::open(file, &config.jwt)).transpose();
    opened.map(|opened| opened.map(Arc::new)).map_err(Error::Access)
}

fn tls_files(config: &Config) -> Result<Option<TlsFiles>, Error> {
    Ok(config.tls.is_on().then(|| TlsFiles::open(&config.tls)).transpose()?)
}

fn audit_log(config: &Config, metrics: &Metrics) -> Result<Option<Arc<AuditLog>>, Error> {
    let file = &config.log.audit;
    if file.is_empty() {
        return Ok(None);
    }
    let log = AuditLog::open(&config.log, metrics.audit.clone()).map_err(of_audit(file))?;
    Ok(Some(Arc::new(log)))
}

fn of_audit(file: &str) -> impl FnOnce(io::Error) -> Error {
    |source| Error::Audit { file: file.to_owned(), source }
}

/// Refuses guards without a store for their records, since their requests are not served unguarded.
fn check_guards(config: &Config, store: &str, has_records: bool) -> Result<(), Error> {
    match config.guard.first() {
        Some(guard) if !has_records => {
            Err(Error::Unguarded { path: guard.path.clone(), store: store.to_owned() })
        }
        _ => Issuing::check(config),
    }
}

fn streams(config: &Config, metrics: &Arc<Metrics>) -> Streams {
    let heartbeat = Duration::from_millis(config.stream.heartbeat_ms);
    Streams::new(config.streams_max(), heartbeat, Arc::clone(metrics))
}

fn body_limits(config: &Config) -> BodyLimits {
    let time = Duration::from_millis(config.server.body_timeout_ms);
    BodyLimits { bytes: config.server.body_limit_bytes, time }
}

/// Refuses to be reached by clients as the configuration does not mean it: at an address that
/// others reach and nothing guards, for one.
fn check_access(config: &Config) -> Result<(), Error> {
    if let Some(address) = config.exposed_address() {
        return Err(Error::Exposed { address });
    }
    Ok(config.check_together()?)
}
