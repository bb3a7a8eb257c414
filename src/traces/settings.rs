//! What the variables of OpenTelemetry ask for, by the names of its specification.
//!
//! A service that has no endpoint looks at none of the others, because they may be meant for the programs beside
//! it. An empty variable counts as not set, as the specification has it. A value that is not understood is an error
//! at start, where the specification has a warning: an operator would miss the traces only when they are needed.
//! Tested in `tests/api/traces.rs` and `tests/cli/config/traces.rs`.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Uri};
use opentelemetry_sdk::trace::Sampler;
use percent_encoding::percent_decode_str;

use super::queue::Batches;

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
const PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";
const TRACES_PROTOCOL: &str = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL";
const COMPRESSION: &str = "OTEL_EXPORTER_OTLP_COMPRESSION";
const TRACES_COMPRESSION: &str = "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION";
const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
const TRACES_HEADERS: &str = "OTEL_EXPORTER_OTLP_TRACES_HEADERS";
const TIMEOUT: &str = "OTEL_EXPORTER_OTLP_TIMEOUT";
const TRACES_TIMEOUT: &str = "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT";
const CERTIFICATE: &str = "OTEL_EXPORTER_OTLP_CERTIFICATE";
const TRACES_CERTIFICATE: &str = "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE";
const SERVICE_NAME: &str = "OTEL_SERVICE_NAME";
const RESOURCE_ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";
const SAMPLER: &str = "OTEL_TRACES_SAMPLER";
const SAMPLER_ARG: &str = "OTEL_TRACES_SAMPLER_ARG";
const EXPORTER: &str = "OTEL_TRACES_EXPORTER";
const DISABLED: &str = "OTEL_SDK_DISABLED";
const QUEUE_SIZE: &str = "OTEL_BSP_MAX_QUEUE_SIZE";
const BATCH_SIZE: &str = "OTEL_BSP_MAX_EXPORT_BATCH_SIZE";
const DELAY: &str = "OTEL_BSP_SCHEDULE_DELAY";

/// The path below the endpoint of all signals that is that of traces.
const TRACES_PATH: &str = "/v1/traces";

/// A variable, and what it must be.
type InvalidVariable = (&'static str, &'static str);

/// Where spans go, and which.
#[derive(Clone)]
pub struct Settings {
    pub(super) endpoint: Uri,
    pub(super) headers: HashMap<String, String>,
    /// The file of the authorities that vouch for the collector; those of the system without one.
    pub(super) authorities: Option<PathBuf>,
    /// How long the collector may take for a batch.
    pub(super) timeout: Duration,
    pub(super) resource: Vec<(String, String)>,
    pub(super) sampler: Sampler,
    pub(super) batches: Batches,
}

impl fmt::Debug for Settings {
    /// Headers, and in places URLs, have credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("sampler", &self.sampler).finish_non_exhaustive()
    }
}

impl Settings {
    /// The settings of a process with these variables; `None` where they ask for no traces.
    ///
    /// # Errors
    ///
    /// A variable is not as it must be: its name, and the rule.
    pub fn from_variables(
        environment: &[(String, String)],
    ) -> Result<Option<Self>, (&'static str, &'static str)> {
        let variables = Variables(environment);
        if variables.get(DISABLED).is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let Some(endpoint) = variables.endpoint()? else { return Ok(None) };
        match variables.get(EXPORTER) {
            Some("none") => return Ok(None),
            Some("otlp") | None => {}
            Some(_) => return Err((EXPORTER, "must be `otlp` or `none`")),
        }
        let protocol = "must be `http/protobuf`, which most collectors take on port 4318";
        variables.require(&[TRACES_PROTOCOL, PROTOCOL], "http/protobuf", protocol)?;
        let compression = "must be `none`: batches are sent as they are";
        variables.require(&[TRACES_COMPRESSION, COMPRESSION], "none", compression)?;
        let queue = variables.count(&[QUEUE_SIZE], 2048)?;
        let size = variables.count(&[BATCH_SIZE], 512)?;
        Ok(Some(Self {
            endpoint,
            headers: variables.headers()?,
            authorities: variables
                .first(&[TRACES_CERTIFICATE, CERTIFICATE])
                .map(|(_, file)| file.into()),
            timeout: variables.millis(&[TRACES_TIMEOUT, TIMEOUT], 10_000)?,
            resource: variables.resource()?,
            sampler: variables.sampler()?,
            batches: Batches {
                queue,
                size: size.min(queue),
                delay: variables.millis(&[DELAY], 5000)?,
            },
        }))
    }
}

/// The variables of a process.
struct Variables<'a>(&'a [(String, String)]);

impl Variables<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(of, _)| of == name);
        found.map(|(_, value)| value.trim()).filter(|value| !value.is_empty())
    }

    /// The first of these that is set, with its name.
    fn first(&self, names: &[&'static str]) -> Option<(&'static str, &str)> {
        names.iter().find_map(|name| Some((*name, self.get(name)?)))
    }

    /// Refuses every value but one.
    fn require(
        &self,
        names: &[&'static str],
        only: &str,
        rule: &'static str,
    ) -> Result<(), InvalidVariable> {
        match self.first(names) {
            Some((name, value)) if value != only => Err((name, rule)),
            _ => Ok(()),
        }
    }

    /// Where traces go. Only to the endpoint of all signals is their path added.
    fn endpoint(&self) -> Result<Option<Uri>, InvalidVariable> {
        let Some((name, url)) = self.first(&[TRACES_ENDPOINT, ENDPOINT]) else { return Ok(None) };
        let url = match name {
            ENDPOINT => format!("{}{TRACES_PATH}", url.trim_end_matches('/')),
            _ => url.to_owned(),
        };
        let url: Option<Uri> = url.parse().ok().filter(is_endpoint);
        url.map(Some).ok_or((name, "must be a URL like `http://collector:4318`"))
    }

    fn headers(&self) -> Result<HashMap<String, String>, InvalidVariable> {
        let Some((name, list)) = self.first(&[TRACES_HEADERS, HEADERS]) else {
            return Ok(HashMap::new());
        };
        let headers = pairs(list).filter(|headers| {
            let is_header = |(name, value): &(String, String)| {
                name.parse::<HeaderName>().is_ok() && HeaderValue::from_str(value).is_ok()
            };
            headers.iter().all(is_header)
        });
        let headers = headers.map(|headers| headers.into_iter().collect());
        headers.ok_or((name, "must be headers like `name=value,other=value`"))
    }

    fn resource(&self) -> Result<Vec<(String, String)>, InvalidVariable> {
        let rule = "must be attributes like `deployment.environment.name=test,other=value`";
        let list = self.get(RESOURCE_ATTRIBUTES).unwrap_or_default();
        let mut attributes = pairs(list).ok_or((RESOURCE_ATTRIBUTES, rule))?;
        let is_named = attributes.iter().any(|(key, _)| key == "service.name");
        if let Some(name) = self.get(SERVICE_NAME) {
            attributes.push(("service.name".to_owned(), name.to_owned()));
        } else if !is_named {
            attributes.push(("service.name".to_owned(), "keylatch".to_owned()));
        }
        Ok(attributes)
    }

    fn sampler(&self) -> Result<Sampler, InvalidVariable> {
        let name = self.get(SAMPLER).unwrap_or("parentbased_always_on");
        let of_root = name.strip_prefix("parentbased_");
        let root = match of_root.unwrap_or(name) {
            "always_on" => Sampler::AlwaysOn,
            "always_off" => Sampler::AlwaysOff,
            "traceidratio" => Sampler::TraceIdRatioBased(self.ratio()?),
            _ => {
                let rule = "must be `always_on`, `always_off` or `traceidratio`, with or without \
                            `parentbased_` before it";
                return Err((SAMPLER, rule));
            }
        };
        Ok(if of_root.is_some() { Sampler::ParentBased(Box::new(root)) } else { root })
    }

    fn ratio(&self) -> Result<f64, InvalidVariable> {
        let ratio = self.get(SAMPLER_ARG).map_or(Some(1.0), |text| text.parse().ok());
        let ratio = ratio.filter(|ratio| (0.0..=1.0).contains(ratio));
        ratio.ok_or((SAMPLER_ARG, "must be 0 to 1, such as `0.1`"))
    }

    fn count(&self, names: &[&'static str], default: usize) -> Result<usize, InvalidVariable> {
        let Some((name, text)) = self.first(names) else { return Ok(default) };
        let count = text.parse().ok().filter(|count| (1..=1_000_000).contains(count));
        count.ok_or((name, "must be 1 to 1000000"))
    }

    fn millis(&self, names: &[&'static str], default: usize) -> Result<Duration, InvalidVariable> {
        self.count(names, default).map(|millis| Duration::from_millis(millis as u64))
    }
}

fn is_endpoint(url: &Uri) -> bool {
    let has_scheme = matches!(url.scheme_str(), Some("http" | "https"));
    let has_host = url.authority().is_some_and(|authority| {
        let is_bare = authority.as_str() == authority.host() || authority.port_u16().is_some();
        is_bare && !authority.host().is_empty() && !authority.as_str().contains('@')
    });
    has_scheme && has_host
}

/// A list as `key=value,key=value`, where values have percent escapes; `None` for what is none.
fn pairs(list: &str) -> Option<Vec<(String, String)>> {
    let entries = list.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    let pairs = entries.map(|entry| {
        let (key, value) = entry.split_once('=')?;
        let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
        let key = key.trim();
        (!key.is_empty()).then(|| (key.to_owned(), value.into_owned()))
    });
    pairs.collect()
}
