//! The audit log: who did what to locks and to the work of others, a JSON object a line, in a file
//! of the operator's or on standard output.
//!
//! It has each grant, release and loss of a lock, each expiry that this instance sees, each break,
//! resolve and erasure, when the store is asked and when its answer is known, and each request that
//! keylatch refused. A thread writes the lines, so that no request waits for a disk, and none fails
//! where the disk is full: the lines that are lost are counted, and a warning says so. Unlike the
//! log it has names of locks and keys, and what people wrote; it has no token. Refusals of requests
//! whose sender the service does not know have a file and a queue of their own beside it, because a
//! stranger can make as many as it likes. What a line says of a request is in `http/audit.rs`.
//! Tested in `tests/api/audit.rs`, `audit_files.rs` and `tests/cli/audit_log.rs`.

mod file;

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::Serialize;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};

use crate::metrics::AuditCounters;
use crate::plain::plain_json;
use crate::telemetry::Settings;
use file::AuditFile;

/// The name that stands for standard output.
const STANDARD_OUTPUT: &str = "-";
/// How long there is no second warning of a queue that is full.
const WARNING_PAUSE: Duration = Duration::from_secs(60);

/// What ends the name of the file with the refusals of strangers, after that of the audit log.
const OF_STRANGERS: &str = ".strangers";

/// What lines are appended to, until this is dropped.
pub struct AuditLog {
    queue: Mutex<Queue>,
    counters: AuditCounters,
    /// Where lines about strangers go; none in that log itself.
    of_strangers: Option<Box<Self>>,
    /// Writes what there is when it is dropped.
    _worker: WorkerGuard,
}

/// A line with the time at which it was written.
#[derive(Serialize)]
struct DatedLine<'a, T> {
    at: Option<Timestamp>,
    #[serde(flatten)]
    line: &'a T,
}

/// The lines on their way to the thread that writes them.
struct Queue {
    lines: NonBlocking,
    dropped: ErrorCounter,
    /// How many of the dropped lines were counted.
    counted: usize,
    warned: Option<Instant>,
}

impl AuditLog {
    /// Appends to what the settings name: a file, which only its owner may read, or standard
    /// output.
    pub(crate) fn open(settings: &Settings, counters: AuditCounters) -> io::Result<Self> {
        let strangers = Self::at(&file_of_strangers(&settings.audit), counters.clone(), None)?;
        Self::at(&settings.audit, counters, Some(Box::new(strangers)))
    }

    fn at(
        place: &str,
        counters: AuditCounters,
        of_strangers: Option<Box<Self>>,
    ) -> io::Result<Self> {
        let sink = match place {
            STANDARD_OUTPUT => Sink::StandardOutput,
            file => Sink::File(AuditFile::open(Path::new(file))?),
        };
        let writer = LineWriter { sink, counters: counters.clone(), has_failed: false };
        let (lines, worker) = NonBlockingBuilder::default().lossy(true).finish(writer);
        let dropped = lines.error_counter();
        let queue = Mutex::new(Queue { lines, dropped, counted: 0, warned: None });
        Ok(Self { queue, counters, of_strangers, _worker: worker })
    }

    /// Whether lines can be appended to what the settings name, without making a file.
    pub(crate) fn check(settings: &Settings) -> io::Result<()> {
        match settings.audit.as_str() {
            "" | STANDARD_OUTPUT => Ok(()),
            file => AuditFile::check(Path::new(file)),
        }
    }

    /// Appends a line about a request of a client, or of a stranger.
    pub(crate) fn write(&self, line: &impl Serialize, is_of_stranger: bool) {
        if let (Some(strangers), true) = (&self.of_strangers, is_of_stranger) {
            return strangers.write(line, false);
        }
        let at = Timestamp::from_millisecond(Timestamp::now().as_millisecond()).ok();
        let Ok(json) = serde_json::to_string(&DatedLine { at, line }) else { return };
        let json = plain_json(&json) + "\n";
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        // It always succeeds: a queue that is full loses the line, and counts it.
        let _ = queue.lines.write_all(json.as_bytes());
        let lost = queue.dropped.dropped_lines() - queue.counted;
        if lost > 0 {
            queue.counted += lost;
            self.counters.lost.inc_by(lost as u64);
            if queue.warned.is_none_or(|warned| warned.elapsed() > WARNING_PAUSE) {
                queue.warned = Some(Instant::now());
                tracing::warn!("the audit log is slower than the service and loses lines");
            }
        }
    }
}

/// The file beside that of the audit log; devices and standard output have none.
fn file_of_strangers(audit: &str) -> String {
    let is_file = audit != STANDARD_OUTPUT && !audit.starts_with("/dev/");
    format!("{audit}{}", if is_file { OF_STRANGERS } else { "" })
}

impl fmt::Debug for AuditLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuditLog").finish_non_exhaustive()
    }
}

/// Where lines go.
enum Sink {
    StandardOutput,
    File(AuditFile),
}

/// Writes lines, and counts those that are written and those that are lost.
struct LineWriter {
    sink: Sink,
    counters: AuditCounters,
    has_failed: bool,
}

impl Write for LineWriter {
    /// Takes a whole line, be it written or lost: no line is tried twice.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let written = match &mut self.sink {
            Sink::StandardOutput => io::stdout().write_all(line),
            Sink::File(file) => file.append(line),
        };
        match &written {
            Ok(()) => {
                self.counters.lines.inc();
                if self.has_failed {
                    tracing::info!("the audit log is written again");
                }
            }
            Err(error) => {
                self.counters.lost.inc();
                if !self.has_failed {
                    tracing::warn!(%error, "the audit log cannot be written and loses lines");
                }
            }
        }
        self.has_failed = written.is_err();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
