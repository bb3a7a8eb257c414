//! Logging: `tracing` events to standard error, by a thread that no request waits for.
//!
//! What is logged of a request is the HTTP middleware's affair; this module has the setting for it,
//! and knows nothing of HTTP. Tested in `tests/api/logging.rs`.

use std::io::{self, IsTerminal};

use serde::Deserialize;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// How many lines may wait for standard error. Each has its place from the start.
const QUEUED_LINES: usize = 8192;

/// What is logged, and how.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// A level, or levels by module: `info,keylatch_stores=debug`.
    pub level: String,
    /// How lines look.
    pub format: Format,
    /// Which requests are logged.
    pub access: AccessLog,
    /// From how many milliseconds on a request is slow.
    pub slow_ms: u64,
    /// The file of the audit log, or `-` for standard output; none where it is empty.
    pub audit: String,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// For people.
    Text,
    /// For machines: one JSON object a line.
    Json,
    /// Text on a terminal, JSON otherwise.
    Auto,
}

/// Which requests are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccessLog {
    /// None.
    Off,
    /// Those that failed with a 5xx or were slow.
    Errors,
    /// All.
    All,
}

impl Settings {
    /// Whether `level` is understood.
    pub fn has_valid_level(&self) -> bool {
        // A word that is no level would be the name of a target, and silence all others.
        let words = self.level.split(',').map(str::trim).filter(|word| !word.contains(['=', ':']));
        let all_levels = words.into_iter().all(|word| word.parse::<LevelFilter>().is_ok());
        all_levels && self.level.parse::<Targets>().is_ok()
    }
}

/// Logs to standard error for as long as the guard lives.
///
/// When standard error is slower than the service, lines are lost rather than waited for.
pub fn init(settings: &Settings) -> Result<WorkerGuard, Box<dyn std::error::Error + Send + Sync>> {
    let builder = NonBlockingBuilder::default().buffered_lines_limit(QUEUED_LINES).lossy(true);
    let (writer, guard) = builder.finish(io::stderr());
    let json = match settings.format {
        Format::Text => false,
        Format::Json => true,
        Format::Auto => !io::stderr().is_terminal(),
    };
    subscriber(settings, json, io::stderr().is_terminal(), writer)?.try_init()?;
    tracing::debug!(level = settings.level, access = ?settings.access, "the log begins");
    Ok(guard)
}

/// What takes the events and writes them to `writer`.
pub fn subscriber<W>(
    settings: &Settings,
    json: bool,
    colours: bool,
    writer: W,
) -> Result<Box<dyn tracing::Subscriber + Send + Sync>, tracing_subscriber::filter::ParseError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter: Targets = settings.level.parse()?;
    // What is logged is for the filter alone to say.
    let lines = tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_writer(writer);
    Ok(if json {
        Box::new(lines.json().flatten_event(true).finish().with(filter))
    } else {
        Box::new(lines.with_ansi(colours).finish().with(filter))
    })
}
