//! Goal: every setting has its default, its variable and its place in the file, in a fixed order of
//! precedence; whatever is wrong is named.
//!
//! Method: `Config::load` on files, variables and flags of the test's own.

mod commands;
mod listeners;
mod lists;
mod traces;

use std::path::PathBuf;

use keylatch::config::{Config, DEFAULTS, Flags};
use tempfile::TempDir;
use toml::{Table, Value};

/// Loads a configuration from a file with this text, if any, and these variables.
fn load(file: Option<&str>, variables: &[(&str, &str)]) -> Result<Config, String> {
    let file = file.map(File::new);
    let flags = Flags { config: file.as_ref().map(File::path), ..Flags::default() };
    load_with(&flags, variables)
}

fn load_with(flags: &Flags, variables: &[(&str, &str)]) -> Result<Config, String> {
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Config::load(flags, variables).map_err(|error| error.to_string())
}

/// A configuration file that is gone with the test.
struct File(TempDir);

impl File {
    const NAME: &str = "some-settings.toml";

    fn new(text: &str) -> Self {
        let file = Self(tempfile::tempdir().expect("a directory"));
        std::fs::write(file.path(), text).expect("a file");
        file
    }

    fn path(&self) -> PathBuf {
        self.0.path().join(Self::NAME)
    }
}

/// Asserts that a file is refused by an error that names the file and the key.
#[track_caller]
fn file_is_refused(text: &str, names: &str) {
    let error = load(Some(text), &[]).expect_err(text);
    assert!(error.contains(names), "{text}: `{names}` is not in `{error}`");
    assert!(error.contains(File::NAME), "{text}: the file is not in `{error}`");
}

/// Asserts that a variable is refused by an error that names it, or the key that it sets.
#[track_caller]
fn variable_is_refused(variable: &str, value: &str, key: &str) {
    let error = load(None, &[(variable, value)]).expect_err(variable);
    assert!(error.contains(variable) || error.contains(key), "{variable}={value}: {error}");
}

/// Every setting that is not a list: its path and its default.
fn settings() -> Vec<(Vec<String>, Value)> {
    let mut settings = Vec::new();
    for (key, value) in DEFAULTS.parse::<Table>().expect("TOML") {
        match value {
            Value::Table(table) => {
                let of_table =
                    table.into_iter().map(|(part, value)| (vec![key.clone(), part], value));
                settings.extend(of_table);
            }
            value => settings.push((vec![key], value)),
        }
    }
    settings.retain(|(_, value)| !value.is_array());
    settings
}

/// A line for each setting, as `key: value`, in a fixed order.
fn lines(config: &Config) -> Vec<String> {
    let mut config = config.clone();
    config.guard.clear();
    config.listener.clear();
    config.cors.allow_origins.clear();
    config.server.trusted_proxies.clear();
    let text = format!("{config:#?}");
    let lines = text.lines().map(|line| line.trim().trim_end_matches(',').to_owned());
    // These are no settings: one says where the settings are from, the other has its own variables.
    let is_setting =
        |line: &String| !line.starts_with("has_file: ") && !line.starts_with("traces: ");
    lines.filter(is_setting).collect()
}

/// How [`lines`] shows a setting. A store's URL is shown by its scheme.
fn shown(key: &str, value: &Value) -> String {
    match value {
        Value::String(url) if key == "store" => {
            format!("store: StoreUrl({}:..)", url.split(':').next().expect("a scheme"))
        }
        // These are enums.
        Value::String(name)
            if ["sandbox", "break", "backup", "format", "access"].contains(&key) =>
        {
            let (first, rest) = name.split_at(1);
            format!("{key}: {}{rest}", first.to_uppercase())
        }
        value => format!("{key}: {value}"),
    }
}

/// A valid value that is not the default.
fn other(key: &str, default: &Value) -> Value {
    match (key, default) {
        (_, Value::Integer(number)) => Value::Integer(number + 1),
        (_, Value::Boolean(yes)) => Value::Boolean(!yes),
        ("listen", _) => "127.0.0.1:1".into(),
        ("store", _) => "redis://127.0.0.1:1".into(),
        ("key_prefix" | "schema" | "issuer" | "audience" | "jwks" | "claim", _) => "other".into(),
        ("level", _) => "info,keylatch::store=debug".into(),
        ("format", _) => "json".into(),
        ("access", _) => "all".into(),
        ("cert" | "key" | "client_ca", _) => "other.pem".into(),
        ("secret_file" | "encryption_keys_file", _) => "issued.secret".into(),
        ("identities", _) => "identities.toml".into(),
        ("upstream", _) => "http://127.0.0.1:9".into(),
        ("audit", _) => "audit.log".into(),
        ("sandbox" | "break" | "backup", _) => "off".into(),
        _ => panic!("`{key}` is new: give it another valid value here"),
    }
}

fn unquoted(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[test]
fn defaults_are_those_of_the_default_file() {
    let lines = lines(&load(None, &[]).unwrap());
    let settings = settings();
    assert!(settings.len() > 20, "{settings:?}");
    for (path, default) in &settings {
        let line = shown(path.last().unwrap(), default);
        assert!(lines.contains(&line), "`{line}` is not in {lines:#?}");
    }
    let braces = lines.iter().filter(|line| line.ends_with('{') || line.ends_with('}')).count();
    let lists = lines.iter().filter(|line| line.ends_with("[]")).count();
    assert_eq!(
        lines.len() - braces - lists,
        settings.len(),
        "a setting without a default: {lines:#?}"
    );
}

#[test]
fn default_file_has_every_setting_and_no_other() {
    let config = load(Some(DEFAULTS), &[]).unwrap();
    assert_eq!(lines(&config), lines(&load(None, &[]).unwrap()));
    assert_eq!(lines(&load(Some(""), &[]).unwrap()), lines(&config));
}

#[test]
fn every_setting_of_the_default_file_has_a_comment() {
    let (mut before, mut guards) = ("", 0);
    for line in DEFAULTS.lines() {
        guards += usize::from(line == "[[guard]]");
        let is_setting = line.split_once(" = ").is_some_and(|(key, _)| !key.starts_with('#'));
        // The second guard has no setting that the first has not.
        let said = before.starts_with("# ") || guards > 1;
        assert!(!is_setting || said, "no comment above `{line}`");
        before = line;
    }
}

#[test]
fn every_setting_has_its_variable_and_below_it_its_place_in_a_file() {
    let defaults = lines(&load(None, &[]).unwrap());
    for (path, default) in settings() {
        let key = path.last().unwrap();
        let other = other(key, &default);
        let variable = format!("KEYLATCH_{}", path.join("_").to_uppercase());
        let file = format!("{} = {other}", path.join("."));
        let by_variable = load(None, &[(&variable, &unquoted(&other))]);
        for (from, set) in [(&variable, by_variable), (&file, load(Some(&file), &[]))] {
            let set = lines(&set.expect(from));
            let changed: Vec<_> = set.iter().filter(|line| !defaults.contains(line)).collect();
            assert_eq!(changed, [&shown(key, &other)], "{from}");
            assert_eq!(set.len(), defaults.len(), "{from}");
        }
        // Of both, the variable counts. An empty one is none.
        let default = unquoted(&default);
        if !default.is_empty() {
            let both = lines(&load(Some(&file), &[(&variable, &default)]).expect(&file));
            assert_eq!(both, defaults, "{variable} over {file}");
        }
    }
}

#[test]
fn flags_override_variables_and_variables_the_file() {
    let file = "listen = \"file:1\"\nstore = \"redis://file\"";
    let variables = [("KEYLATCH_LISTEN", "variable:1"), ("KEYLATCH_STORE", "redis://variable")];
    let config = load(Some(file), &[]).unwrap();
    assert_eq!((config.listen.as_str(), config.store.expose()), ("file:1", "redis://file"));
    let config = load(Some(file), &variables).unwrap();
    assert_eq!((config.listen.as_str(), config.store.expose()), ("variable:1", "redis://variable"));
    let file = File::new(file);
    let (listen, store) = (Some("flag:1".to_owned()), Some("redis://flag".to_owned()));
    let flags = Flags { config: Some(file.path()), listen, store };
    let config = load_with(&flags, &variables).unwrap();
    assert_eq!((config.listen.as_str(), config.store.expose()), ("flag:1", "redis://flag"));
}

#[test]
fn unknown_key_in_a_file_is_named() {
    file_is_refused("stroe = \"memory:\"", "stroe");
    file_is_refused("[server]\nmax_conections = 1", "max_conections");
    file_is_refused("[redis]\nprefix = \"a\"", "prefix");
    file_is_refused("[log]\nlevels = \"info\"", "levels");
    file_is_refused("[servers]\nmax_connections = 1", "servers");
    file_is_refused("max_connections = 1", "max_connections");
}

#[test]
fn unknown_variable_is_named() {
    for variable in ["KEYLATCH_STROE", "KEYLATCH_REDIS", "KEYLATCH_SERVER_", "KEYLATCH_MAX_HEADERS"]
    {
        variable_is_refused(variable, "1", variable);
    }
}

#[test]
fn variables_of_others_and_of_kubernetes_are_ignored() {
    let variables = [
        ("SOMETHING_ELSE", "is not ours"),
        ("KEYLATCH_PORT", "tcp://10.0.0.1:7070"),
        ("KEYLATCH_PORT_7070_TCP_ADDR", "10.0.0.1"),
        ("KEYLATCH_SERVICE_HOST", "10.0.0.1"),
        ("KEYLATCH_SERVICE_PORT_HTTP", "7070"),
    ];
    let config = load(None, &variables).unwrap();
    assert_eq!(lines(&config), lines(&load(None, &[]).unwrap()));
}

#[test]
fn invalid_value_in_a_file_is_named() {
    file_is_refused("store_timeout_ms = \"2000\"", "store_timeout_ms");
    file_is_refused("store_timeout_ms = -1", "store_timeout_ms");
    file_is_refused("listen = 7070", "listen");
    file_is_refused("server = 1", "server");
    file_is_refused("[server]\nmax_headers = 1.5", "server.max_headers");
    file_is_refused("[redis]\nallow_eviction = \"yes\"", "redis.allow_eviction");
    file_is_refused("[redis]\nkey_prefix = \"{a}\"", "redis.key_prefix");
    file_is_refused("[redis]\nkey_prefix = \"\"", "redis.key_prefix");
    file_is_refused("[redlock]\nnode_timeout_ms = 4", "redlock.node_timeout_ms");
    file_is_refused("[redlock]\nmax_ttl_ms = 99", "redlock.max_ttl_ms");
    file_is_refused("[log]\nlevel = \"loud=very=loud\"", "log.level");
    // As a directive it would name a target, and nothing would be logged.
    file_is_refused("[log]\nlevel = \"verbose\"", "log.level");
    file_is_refused("[log]\naccess = \"some\"", "log.access");
    file_is_refused("[log]\nformat = \"xml\"", "log.format");
    file_is_refused("listen = \"127.0.0.1:1\"\nstore: memory", "line 2");
}

/// The rule and the name that was meant, and none of serde's types.
#[test]
fn error_says_what_is_right() {
    for (file, why) in [
        ("lisen = \"a\"", "`lisen` is unknown: did you mean `listen`?"),
        ("[[guards]]\npath = \"/a\"", "`guards` is unknown: did you mean `guard`?"),
        (
            "[server]\nmax_conections = 1",
            "`server.max_conections` is unknown: did you mean `max_connections`?",
        ),
        ("[issued_keys]\nx = 1", "`issued_keys.x` is unknown: use `secret_file`"),
        (
            "store_timeout_ms = \"30s\"",
            "`store_timeout_ms` must be a whole number of 0 or more, not \"30s\"",
        ),
        ("store_timeout_ms = -1", "`store_timeout_ms` must be a whole number of 0 or more, not -1"),
        ("open = 1", "`open` must be `true` or `false`, not 1"),
        ("backup = \"maybe\"", "`backup` must be one of `auto`, `on`, `off`, not `maybe`"),
        ("server = 1", "`server` must be a table, not 1"),
        ("[[guard]]\npath = \"/a\"", "`guard[0].upstream` is missing"),
    ] {
        let error = load(Some(file), &[]).expect_err(file);
        assert!(error.contains(why), "{file}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
    let error = load(None, &[("KEYLATCH_LISEN", "a")]).expect_err("no such setting");
    assert!(error.ends_with("did you mean KEYLATCH_LISTEN?"), "{error}");
}

#[test]
fn invalid_variable_is_named() {
    variable_is_refused("KEYLATCH_STORE_TIMEOUT_MS", "2s", "store_timeout_ms");
    variable_is_refused("KEYLATCH_STORE_TIMEOUT_MS", "", "store_timeout_ms");
    variable_is_refused("KEYLATCH_STORE_TIMEOUT_MS", "-1", "store_timeout_ms");
    variable_is_refused("KEYLATCH_SERVER_MAX_HEADERS", "1e3", "server.max_headers");
    variable_is_refused(
        "KEYLATCH_SERVER_MAX_HEADERS",
        "99999999999999999999",
        "server.max_headers",
    );
    variable_is_refused("KEYLATCH_SERVER_HEADER_LIMIT_BYTES", "100", "server.header_limit_bytes");
    variable_is_refused("KEYLATCH_REDIS_CONNECTIONS", "4294967296", "redis.connections");
    variable_is_refused("KEYLATCH_REDIS_ALLOW_EVICTION", "yes", "redis.allow_eviction");
    variable_is_refused("KEYLATCH_LOG_LEVEL", "inof", "log.level");
    variable_is_refused("KEYLATCH_LOG_ACCESS", "some", "log.access");
}

#[test]
fn zero_is_refused_where_nothing_would_be_served() {
    for (path, default) in settings() {
        let dotted = path.join(".");
        let may_be_zero = [
            "server.body_limit_bytes",
            "server.drain_timeout_ms",
            "wait.max_wait_ms",
            "log.slow_ms",
            "redis.min_replicas",
            "redlock.quorum",
        ];
        if !default.is_integer() || may_be_zero.contains(&dotted.as_str()) {
            continue;
        }
        file_is_refused(&format!("{dotted} = 0"), &dotted);
        let variable = format!("KEYLATCH_{}", path.join("_").to_uppercase());
        variable_is_refused(&variable, "0", &dotted);
    }
}

#[test]
fn number_above_every_machine_is_refused() {
    for key in ["server.max_connections", "server.max_headers"] {
        file_is_refused(&format!("{key} = {}", i64::MAX), key);
    }
}

#[test]
fn unreadable_file_is_named() {
    let path = PathBuf::from("/nowhere/some-settings.toml");
    let flags = Flags { config: Some(path), ..Flags::default() };
    let error = load_with(&flags, &[]).expect_err("there is no such file");
    assert!(error.contains("/nowhere/some-settings.toml"), "{error}");
    assert!(error.contains("No such file"), "{error}");
}

#[test]
fn password_in_the_store_url_is_not_shown() {
    let config = load(Some("store = \"redis://user:sesame@host/1\""), &[]).unwrap();
    assert_eq!(config.store.expose(), "redis://user:sesame@host/1");
    let plain = load(None, &[("KEYLATCH_STORE", "sesame@host:6379")]).unwrap();
    for config in [config, plain] {
        let (short, long) = (format!("{config:?}"), format!("{config:#?}"));
        assert!(!short.contains("sesame") && !long.contains("sesame"), "{long}");
    }
}

#[test]
fn password_in_an_invalid_file_is_not_echoed() {
    for file in [
        "store = redis://user:sesame@host",
        "store = \"redis://user:sesame@host",
        "stroe = \"sesame\"",
    ] {
        let error = load(Some(file), &[]).expect_err(file);
        assert!(!error.contains("sesame"), "{error}");
    }
}
