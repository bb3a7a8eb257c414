//! What the service logs on a test's thread.
//!
//! The subscriber is the thread's and not the process's, so tests that run at the same time do not
//! read each other's lines. A test that captures runs its service on one thread.

use std::io::{self, Write};
use std::sync::{Arc, LazyLock, Mutex};

use keylatch::config::Config;
use keylatch::telemetry;
use serde_json::Value;
use tracing::Dispatch;
use tracing::dispatcher::DefaultGuard;

/// The log of this thread for as long as this lives.
#[derive(Debug)]
pub struct LogCapture {
    bytes: Bytes,
    _guard: DefaultGuard,
}

#[derive(Debug, Clone, Default)]
struct Bytes(Arc<Mutex<Vec<u8>>>);

impl Write for Bytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("the lines").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// With one subscriber alone, tracing remembers of each log line whether the first thread that
/// reached it had a subscriber: a thread of another test without one silences the line for every
/// thread. With a second subscriber, which discards everything, tracing asks each time.
static SECOND: LazyLock<Dispatch> = LazyLock::new(|| {
    let everything = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE);
    Dispatch::new(everything.with_writer(io::sink).finish())
});

impl LogCapture {
    /// Captures from now on, with the levels of a configuration.
    pub fn start(config: &Config, json: bool) -> Self {
        LazyLock::force(&SECOND);
        let bytes = Bytes::default();
        let writer = bytes.clone();
        let subscriber = telemetry::subscriber(&config.log, json, false, move || writer.clone());
        let dispatch = Dispatch::new(subscriber.expect("a valid level"));
        Self { bytes, _guard: tracing::dispatcher::set_default(&dispatch) }
    }

    /// All lines so far.
    pub fn text(&self) -> String {
        String::from_utf8(self.bytes.0.lock().expect("the lines").clone()).expect("text")
    }

    /// The lines about requests, as JSON.
    pub fn requests(&self) -> Vec<Value> {
        let text = self.text();
        let lines = text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON"));
        lines.filter(|line: &Value| line["message"] == "request").collect()
    }
}
