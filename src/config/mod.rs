//! The configuration: what each setting means to the service, and what rules out a value.
//!
//! A value is parsed once, here, and the parts of the service get types that cannot be wrong. An
//! error names the key and the rule that it breaks, and the process does not start. Tested in
//! `tests/cli/config`.

mod layers;

use std::path::PathBuf;

use serde::Deserialize;
use toml::{Table, Value};

use crate::access::JwtSettings;
use crate::http::{self, GuardAccess, ListenerSettings, OriginPolicy};
use crate::serde_words::reworded;
use crate::telemetry;
use crate::traces;
use keylatch_axum::gateway::ErrorPage;
use keylatch_stores::{
    EtcdSettings, PostgresSettings, RedisSettings, RedlockSettings, ZookeeperSettings, scheme_of,
};

pub use layers::Setting;
pub(crate) use layers::url_without_secrets;
use layers::{Layers, visit};

/// Every setting with its default and a sentence about it, as TOML.
pub const DEFAULTS: &str = include_str!("../../config/keylatch.toml");

/// The numbers that may be 0, beside those of guards.
const MAY_BE_ZERO: [&str; 6] = [
    "server.body_limit_bytes",
    "server.drain_timeout_ms",
    "wait.max_wait_ms",
    "redis.min_replicas",
    "redlock.quorum",
    "log.slow_ms",
];

/// The whole configuration. `config/keylatch.toml` says what each setting means.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the file of defaults documents every setting")]
pub struct Config {
    pub listen: String,
    pub open: bool,
    pub identities: String,
    pub jwt: JwtSettings,
    pub store: StoreUrl,
    pub store_timeout_ms: u64,
    pub backup: Switch,
    pub backup_timeout_ms: u64,
    pub sandbox: http::SandboxMode,
    pub tls: http::TlsSettings,
    pub server: http::Settings,
    pub postgres: PostgresSettings,
    pub etcd: EtcdSettings,
    pub zookeeper: ZookeeperSettings,
    pub redis: RedisSettings,
    pub redlock: RedlockSettings,
    pub lock: Lock,
    pub wait: Wait,
    pub stream: Stream,
    pub idempotency: Idempotency,
    pub issued_keys: IssuedKeys,
    pub log: telemetry::Settings,
    pub cors: http::Cors,
    pub gateway: http::PassThrough,
    /// The listeners in place of the one of `listen`: none unless a file has some.
    #[serde(default)]
    pub listener: Vec<ListenerSettings>,
    /// The guarded routes: none unless a file has some.
    #[serde(default)]
    pub guard: Vec<http::Guard>,
    /// Whether a file is among the sources of these settings.
    #[serde(skip)]
    pub has_file: bool,
    /// Whether the variables ask for traces, which [`Traces`](traces::Traces) starts for the
    /// process.
    #[serde(skip)]
    pub traces: bool,
}

/// What clients may do with the locks of others.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the file of defaults documents every setting")]
pub struct Lock {
    pub r#break: Switch,
}

/// Whether clients may do what is an operator's to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    /// To identities where it is granted; without identities, where the service listens on loopback
    /// alone.
    Auto,
    /// Everywhere.
    On,
    /// Nowhere.
    Off,
}

/// Who may wait in the queue for a lock.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the file of defaults documents every setting")]
pub struct Wait {
    pub max_wait_ms: u64,
    pub max_waiters_per_lock: u64,
    pub max_waiters: usize,
}

/// What is kept of things that were done once.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the file of defaults documents every setting")]
pub struct Idempotency {
    pub max_kept_bytes: u64,
    pub max_unknown: u64,
    pub response_limit_bytes: usize,
    pub encryption_keys_file: String,
}

/// Where the secrets of issued keys are.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the file of defaults documents every setting")]
pub struct IssuedKeys {
    pub secret_file: String,
}

/// Who may read streams of events, and hold a lock by one.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the file of defaults documents every setting")]
pub struct Stream {
    pub max_streams: usize,
    pub max_hold_ms: u64,
    pub heartbeat_ms: u64,
}

/// The URL of a store, which may hold a password and so prints without its rest.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct StoreUrl(String);

impl StoreUrl {
    /// The whole URL.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StoreUrl({}:..)", scheme_of(&self.0).unwrap_or_default())
    }
}

/// What the command line sets.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    /// `--config FILE`
    pub config: Option<PathBuf>,
    /// `--listen ADDR`
    pub listen: Option<String>,
    /// `--store URL`
    pub store: Option<String>,
}

impl Config {
    /// How many may wait for locks. Waiters keep their connections for long, and what ends their
    /// waiting, a release on a new connection, must find room beside them.
    pub fn waiters_max(&self) -> usize {
        let room = self.server.max_connections.min(self.server.max_requests);
        self.wait.max_waiters.min(room / 2)
    }

    /// How many streams of events may be open, beside as many waiters as there may be.
    pub fn streams_max(&self) -> usize {
        self.stream.max_streams.min(self.server.max_connections * 2 / 5)
    }

    /// The configuration of a process with these flags and environment variables. An error names
    /// the key or the variable, and where it comes from.
    pub fn load(
        flags: &Flags,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let environment: Vec<_> = environment.into_iter().collect();
        let traces = traces::are_wanted(&environment);
        let layers = Layers::load(flags, environment)?;
        let has_file = layers.has_file();
        let config = deserialize("the configuration", layers.settings())?;
        Ok(Self { has_file, traces, ..config })
    }

    /// Every setting that these flags and variables make, with where it comes from, by name.
    pub fn settings(
        flags: &Flags,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Vec<Setting>, ConfigError> {
        let layers = Layers::load(flags, environment)?;
        deserialize("the configuration", layers.clone().settings())?;
        Ok(layers.list())
    }

    /// Whether the toy shop is served: where a person tries keylatch, and nowhere else.
    pub fn serves_sandbox(&self) -> bool {
        match self.sandbox {
            http::SandboxMode::Auto => !self.has_file && self.listens_on_loopback(),
            http::SandboxMode::On => true,
            http::SandboxMode::Off => false,
        }
    }

    /// The listeners: those of the file, or the one of `listen`.
    pub fn listeners(&self) -> Vec<ListenerSettings> {
        match self.listener.as_slice() {
            [] => vec![ListenerSettings::at(&self.listen)],
            listeners => listeners.to_vec(),
        }
    }

    /// Whether services behind guards have pages where clients have identities.
    pub(crate) fn has_guarded_pages(&self) -> bool {
        self.identity_file().is_some() && !self.guard.is_empty()
    }

    /// The file of identities, if there are any.
    pub fn identity_file(&self) -> Option<&str> {
        (!self.identities.is_empty()).then_some(&*self.identities)
    }

    /// Whether a client may break the lease of another, if its permissions do not forbid it.
    pub fn serves_breaks(&self) -> bool {
        self.serves(self.lock.r#break)
    }

    /// Whether a client may copy the store, if its permissions do not forbid it.
    pub fn serves_backups(&self) -> bool {
        self.serves(self.backup)
    }

    fn serves(&self, switch: Switch) -> bool {
        match switch {
            Switch::Auto => self.identity_file().is_some() || self.listens_on_loopback(),
            Switch::On => true,
            Switch::Off => false,
        }
    }

    /// The address of a listener that others reach, where no identities guard it and the operator
    /// has not said that something else does.
    pub(crate) fn exposed_address(&self) -> Option<String> {
        if self.open || self.identity_file().is_some() {
            return None;
        }
        let listeners = self.listeners();
        listeners.iter().find(|listener| !listener.is_local()).map(ListenerSettings::place)
    }

    /// Whether only programs of this machine reach the service.
    fn listens_on_loopback(&self) -> bool {
        self.listeners().iter().all(ListenerSettings::is_local)
    }

    /// How stores are used.
    pub fn stores(&self) -> keylatch_stores::Settings<'_> {
        keylatch_stores::Settings {
            postgres: &self.postgres,
            etcd: &self.etcd,
            zookeeper: &self.zookeeper,
            redis: &self.redis,
            redlock: &self.redlock,
        }
    }

    /// What types alone do not rule out.
    fn check(&self) -> Result<(), String> {
        let connections = self.server.max_connections;
        check("server.max_connections", connections <= 10_000_000, "must be at most 10000000")?;
        let silence = self.zookeeper.connect_timeout_ms;
        check("zookeeper.connect_timeout_ms", silence <= 3000, "must be at most 3000")?;
        check("server.max_headers", self.server.max_headers <= 1000, "must be at most 1000")?;
        check("wait.max_wait_ms", self.wait.max_wait_ms <= 3_600_000, "must be at most 3600000")?;
        let tiny_header = self.server.header_limit_bytes < 1024;
        check("server.header_limit_bytes", !tiny_header, "must be at least 1024")?;
        self.check_shared_names()?;
        self.check_origins()?;
        self.check_listeners()?;
        self.check_guards()?;
        check(
            "log.level",
            self.log.has_valid_level(),
            "is not a level or a list of levels by module",
        )
    }

    /// How a server is used that instances share, and the names that they share there.
    fn check_shared_names(&self) -> Result<(), String> {
        let schema = &self.postgres.schema;
        let is_plain = schema.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let is_schema = is_plain && (1..=48).contains(&schema.len());
        check("postgres.schema", is_schema, "must be 1 to 48 of A-Z a-z 0-9 _")?;
        check("redis.connections", self.redis.connections <= 1000, "must be at most 1000")?;
        let prefix = &self.redis.key_prefix;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || ":._-".contains(c);
        let is_prefix = !prefix.is_empty() && prefix.chars().all(is_plain);
        check("redis.key_prefix", is_prefix, "must be of A-Z a-z 0-9 : . _ -")?;
        self.check_redlock()
    }

    /// Refuses settings that are of no use without each other, which a later source may still set.
    pub(crate) fn check_together(&self) -> Result<(), ConfigError> {
        let checked = self.check_tls().and_then(|()| self.check_jwt());
        let checked = checked.and_then(|()| self.check_gateway());
        checked.map_err(|message| invalid("the configuration", message))
    }

    fn check_jwt(&self) -> Result<(), String> {
        self.jwt.check().map_err(|(key, rule)| format!("`{key}` {rule}"))?;
        let is_for_identities = !self.jwt.is_on() || self.identity_file().is_some();
        check("jwt.issuer", is_for_identities, "must be empty without `identities`")
    }

    fn check_tls(&self) -> Result<(), String> {
        self.tls.check().map_err(|(key, rule)| format!("`{key}` {rule}"))?;
        for (place, listener) in self.listener.iter().enumerate() {
            let has_certificate = self.tls.is_on() || listener.tls != Some(true);
            let key = format!("listener[{place}].tls");
            check(&key, has_certificate, "must not be true without `tls.cert`")?;
        }
        let is_for_identities = self.tls.client_ca.is_empty() || self.identity_file().is_some();
        check("tls.client_ca", is_for_identities, "must be empty without `identities`")
    }

    /// Refuses a page that cannot be read, and to pass an app through where keylatch has paths of
    /// its own.
    fn check_gateway(&self) -> Result<(), String> {
        for (place, guard) in self.guard.iter().enumerate() {
            ErrorPage::read(&guard.error_page).map_err(|error| {
                format!("`guard[{place}].error_page` must be a template: {error}")
            })?;
        }
        let checked = self.gateway.check(&self.listeners());
        checked.map_err(|rule| format!("`gateway.upstream` {rule}"))
    }

    fn check_origins(&self) -> Result<(), String> {
        let hosts = "must be names or addresses, without a scheme and without a port";
        check("server.hosts", OriginPolicy::are_hosts(&self.server.hosts), hosts)?;
        let proxies = "must be addresses, or networks like `10.0.0.0/8`";
        let are_networks = OriginPolicy::are_networks(&self.server.trusted_proxies);
        check("server.trusted_proxies", are_networks, proxies)?;
        let origins = "must be origins like `https://shop.example`, or `*`";
        check("cors.allow_origins", self.cors.is_valid(), origins)
    }

    fn check_redlock(&self) -> Result<(), String> {
        let (node_timeout_ms, max_ttl_ms) = (self.redlock.node_timeout_ms, self.redlock.max_ttl_ms);
        let some = (5..=1000).contains(&node_timeout_ms);
        check("redlock.node_timeout_ms", some, "must be 5 to 1000")?;
        let ttl = (100..=86_400_000).contains(&max_ttl_ms);
        check("redlock.max_ttl_ms", ttl, "must be 100 to 86400000")
    }

    fn check_listeners(&self) -> Result<(), String> {
        for (place, listener) in self.listener.iter().enumerate() {
            listener.check().map_err(|(key, rule)| format!("`listener[{place}].{key}` {rule}"))?;
        }
        Ok(())
    }

    fn check_guards(&self) -> Result<(), String> {
        for (place, guard) in self.guard.iter().enumerate() {
            let key = |setting| format!("guard[{place}].{setting}");
            guard
                .check_route()
                .map_err(|wrong| format!("`{}` {}", key(wrong.setting), wrong.rule))?;
            let is_free = !http::guards::is_in_the_way(&guard.path);
            check(&key("path"), is_free, "must not hold a path of the service itself")?;
            let twice = self.guard[..place].iter().any(|other| other.path == guard.path);
            check(&key("path"), !twice, "must not be that of another guard")?;
            let is_known = guard.access == GuardAccess::Public || self.identity_file().is_some();
            check(&key("access"), is_known, "must be `public` without `identities`")?;
        }
        Ok(())
    }
}

/// What is wrong with the configuration.
#[derive(Debug, thiserror::Error)]
#[error("{source_name}: {message}")]
pub struct ConfigError {
    /// The file, variable or flag.
    pub source_name: String,
    /// What is wrong, with the name of the key.
    pub message: String,
}

fn check(key: &str, holds: bool, rule: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!("`{key}` {rule}")) }
}

fn invalid(source_name: impl Into<String>, message: impl Into<String>) -> ConfigError {
    ConfigError { source_name: source_name.into(), message: message.into() }
}

fn deserialize(source: &str, settings: Table) -> Result<Config, ConfigError> {
    let positive = check_positive(&settings);
    let config: Config =
        serde_path_to_error::deserialize(Value::Table(settings)).map_err(|error| {
            invalid(source, reworded(&format!("`{}`", error.path()), &error.inner().to_string()))
        })?;
    positive.and_then(|()| config.check()).map_err(|why| invalid(source, why))?;
    Ok(config)
}

/// Refuses 0 where it would stop everything.
fn check_positive(settings: &Table) -> Result<(), String> {
    let mut checked = Ok(());
    visit(settings, "", &mut |name, value| {
        if *value == Value::Integer(0) && !MAY_BE_ZERO.contains(&name.as_str()) {
            checked = check(&name, false, "must be more than 0");
        }
    });
    checked
}
