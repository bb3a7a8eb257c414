//! Where settings come from: compiled-in defaults, a file, environment variables, flags. A later
//! one counts.
//!
//! The defaults are `config/keylatch.toml` itself, so the documented value is the one in force, and
//! a key that is not in it is an error. Each value remembers its origin. Invariant: no error and no
//! list shows a password. Tested in `tests/cli/config`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::{ConfigError, DEFAULTS, Flags, deserialize, invalid};
use crate::serde_words::similar;

/// The setting of the one listener, which `[[listener]]` takes the place of.
const LISTEN: &str = "listen";

/// What the variables of the service begin with.
const PREFIX: &str = "KEYLATCH_";
/// The variable, without that, that names the file of settings.
const CONFIG: &str = "CONFIG";

/// Variables with that beginning that `keylatch run` reads or sets, for a service that is started
/// beside or under it.
const CLIENT_VARIABLES: [&str; 14] = [
    "API_KEY",
    "CA",
    "CLIENT_CERT",
    "CLIENT_KEY",
    "URL",
    "NAME",
    "NAMES",
    "FENCING_TOKEN",
    "FENCING_TOKENS",
    "SLOT",
    "SLOTS",
    "TOKEN",
    "TTL_MS",
    "LIMIT",
];

/// A setting that is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its name, such as `wait.max_wait_ms`.
    pub name: String,
    /// Its value as TOML. Of a URL it has neither a user and a password nor a query, which may hold
    /// secrets.
    pub value: String,
    /// Where it comes from: `default`, the path of a file, the name of a variable, or a flag.
    pub origin: String,
}

/// The settings of all sources so far, and where those come from that are no defaults.
#[derive(Debug, Clone)]
pub(super) struct Layers {
    settings: Table,
    origins: BTreeMap<String, String>,
    file: Option<PathBuf>,
}

impl Layers {
    /// Those of a process with these flags and environment variables.
    pub(super) fn load(
        flags: &Flags,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let mut layers = Self {
            settings: parse("the defaults", DEFAULTS)?,
            origins: BTreeMap::new(),
            file: None,
        };
        // Until a source sets it: then it is no default.
        let default = layers.settings.insert(LISTEN.to_owned(), Value::String(String::new()));
        let environment: Vec<_> = environment.into_iter().collect();
        layers.file = flags.config.clone().or_else(|| file_of(&environment));
        if let Some(path) = layers.file.clone() {
            layers.merge_file(&path)?;
        }
        for (variable, value) in environment {
            if let Some(path) = variable.strip_prefix(PREFIX)
                && path != CONFIG
                && !is_service_link(path)
                && !CLIENT_VARIABLES.contains(&path)
            {
                let name =
                    set_variable(&mut layers.settings, &variable, &path.to_lowercase(), &value)?;
                layers.origins.insert(name, variable);
            }
        }
        for (key, flag, value) in
            [(LISTEN, "--listen", &flags.listen), ("store", "--store", &flags.store)]
        {
            if let Some(value) = value {
                layers.settings.insert(key.to_owned(), Value::String(value.clone()));
                layers.origins.insert(key.to_owned(), flag.to_owned());
            }
        }
        settle_listen(&mut layers.settings, default)?;
        Ok(layers)
    }

    pub(super) fn has_file(&self) -> bool {
        self.file.is_some()
    }

    pub(super) fn settings(self) -> Table {
        self.settings
    }

    /// Each setting with where it comes from.
    pub(super) fn list(&self) -> Vec<Setting> {
        let mut settings = Vec::new();
        visit(&self.settings, "", &mut |name, value| {
            let origin = self.origins.get(&name).cloned().unwrap_or_else(|| "default".to_owned());
            settings.push(Setting { name, value: without_secrets(value).to_string(), origin });
        });
        settings
    }

    /// A file is checked by itself too, so that an error in it names the file.
    fn merge_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let source = path.display().to_string();
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| invalid(&*source, error.to_string()))?;
        let file = parse(&source, &text)?;
        visit(&file, "", &mut |name, _| {
            self.origins.insert(name, source.clone());
        });
        merge(&mut self.settings, file);
        deserialize(&source, self.settings.clone()).map(|_| ())
    }
}

/// The file that the environment names.
fn file_of(environment: &[(String, String)]) -> Option<PathBuf> {
    let named = environment.iter().find(|(name, _)| name.strip_prefix(PREFIX) == Some(CONFIG));
    named.map(|(_, path)| path.into()).filter(|path: &PathBuf| !path.as_os_str().is_empty())
}

/// Calls `see` with the name and the value of each setting.
pub(super) fn visit(settings: &Table, prefix: &str, see: &mut impl FnMut(String, &Value)) {
    for (key, value) in settings {
        let name = format!("{prefix}{key}");
        match value {
            Value::Table(table) => visit(table, &format!("{name}."), see),
            value => see(name, value),
        }
    }
}

/// The value with each URL in it cut down to what is no secret.
fn without_secrets(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(url_without_secrets(text)),
        Value::Array(values) => Value::Array(values.iter().map(without_secrets).collect()),
        Value::Table(table) => {
            let members = table.iter().map(|(name, value)| (name.clone(), without_secrets(value)));
            Value::Table(members.collect())
        }
        value => value.clone(),
    }
}

/// The URL with its hosts and ports, and without what may be a secret.
pub(crate) fn url_without_secrets(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let (rest, query) = match rest.split_once('?') {
        // A password may have a question mark that should have been escaped.
        Some((_, query)) if query.contains('@') => return format!("{scheme}://…"),
        Some((rest, _)) => (rest, "?…"),
        None => (rest, ""),
    };
    // A password may have a slash that should have been escaped.
    let (user, rest) = rest.rsplit_once('@').map_or(("", rest), |(_, rest)| ("…@", rest));
    format!("{scheme}://{user}{rest}{query}")
}

fn parse(source: &str, text: &str) -> Result<Table, ConfigError> {
    text.parse().map_err(|error: toml::de::Error| {
        // The error's own text repeats the line, which may hold a password.
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        invalid(source, format!("line {line}: {}", error.message()))
    })
}

/// Whether Kubernetes made the variable: it puts `KEYLATCH_SERVICE_HOST`, `KEYLATCH_PORT` and the
/// like into each pod beside a Service that is called `keylatch`.
fn is_service_link(path: &str) -> bool {
    path == "PORT" || path.starts_with("PORT_") || path.starts_with("SERVICE_")
}

/// Gives `listen` its default where no source has set it; refuses it beside listeners of a file,
/// which would leave open where the service listens.
fn settle_listen(settings: &mut Table, default: Option<Value>) -> Result<(), ConfigError> {
    let has_listeners = settings.contains_key("listener");
    match settings.get(LISTEN).and_then(Value::as_str) {
        Some("") => {
            settings.extend(default.map(|default| (LISTEN.to_owned(), default)));
            Ok(())
        }
        Some(_) if has_listeners => {
            let message = "`listen` must not be set beside `[[listener]]`: write it as one of them";
            Err(invalid("the configuration", message))
        }
        _ => Ok(()),
    }
}

fn merge(into: &mut Table, from: Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Table(into)), Value::Table(from)) => merge(into, from),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

/// Sets the setting whose path, with `_` between its parts, is `path`. What the default's type is
/// decides how `text` is read. Gives the setting's name.
fn set_variable(
    settings: &mut Table,
    variable: &str,
    path: &str,
    text: &str,
) -> Result<String, ConfigError> {
    let mut known = Vec::new();
    visit(settings, "", &mut |name, _| known.push(name.replace('.', "_")));
    let (name, slot) = find(settings, path).ok_or_else(|| {
        let meant = similar(path, known.iter().map(String::as_str));
        let meant = meant.map(|name| format!(": did you mean {PREFIX}{}?", name.to_uppercase()));
        invalid(variable, format!("there is no such setting{}", meant.unwrap_or_default()))
    })?;
    let bad = |kind| invalid(variable, format!("`{text}` is not {kind}"));
    *slot = match slot {
        Value::Integer(_) => Value::Integer(text.parse().map_err(|_| bad("a whole number"))?),
        Value::Array(_) => {
            let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
            Value::Array(parts.map(|part| Value::String(part.to_owned())).collect())
        }
        Value::Boolean(_) => Value::Boolean(text.parse().map_err(|_| bad("`true` or `false`"))?),
        _ => Value::String(text.to_owned()),
    };
    Ok(name)
}

/// The setting, and its name with a dot between its parts.
fn find<'a>(settings: &'a mut Table, path: &str) -> Option<(String, &'a mut Value)> {
    settings.iter_mut().find_map(|(key, value)| {
        let rest = path.strip_prefix(key.as_str())?;
        match (rest, value) {
            ("", value) if !value.is_table() => Some((key.clone(), value)),
            (rest, Value::Table(table)) => {
                let (name, value) = find(table, rest.strip_prefix('_')?)?;
                Some((format!("{key}.{name}"), value))
            }
            _ => None,
        }
    })
}
