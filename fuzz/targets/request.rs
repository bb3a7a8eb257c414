//! Bytes that a client sends: the service answers each connection or closes it, with no error of
//! its own.
//!
//! A connection in memory leads to a whole service over memory. An answer of 500 fails, and so does
//! a connection that neither ends nor is answered in time.

#![no_main]

use std::fmt;
use std::io;
use std::sync::LazyLock;
use std::time::Duration;

use futures_util::FutureExt as _;
use keylatch::app::App;
use keylatch::config::{Config, Flags};
use keylatch::http::{AcceptedConnection, Listener};
use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::runtime::Runtime;
use tokio::sync::{Mutex, mpsc};
use tokio::time::timeout;

/// How long an answer may take that nothing makes wait: the request came whole, or ended.
const LIMIT: Duration = Duration::from_secs(10);

struct Service {
    runtime: Runtime,
    connections: mpsc::UnboundedSender<DuplexStream>,
}

static SERVICE: LazyLock<Service> = LazyLock::new(|| {
    let runtime = Runtime::new().unwrap();
    let (connections, arrivals) = mpsc::unbounded_channel();
    let flags = Flags { store: Some("memory:".to_owned()), ..Flags::default() };
    let config = Config::load(&flags, []).unwrap();
    let app = runtime.block_on(App::new(config)).unwrap();
    let listener = Duplex { arrivals: Mutex::new(arrivals) };
    runtime.spawn(app.serve(listener, std::future::pending()));
    Service { runtime, connections }
});

/// A listener whose clients are in this process.
struct Duplex {
    arrivals: Mutex<mpsc::UnboundedReceiver<DuplexStream>>,
}

impl fmt::Debug for Duplex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Duplex")
    }
}

impl Listener for Duplex {
    type Io = DuplexStream;

    async fn accept(&self, _: Duration) -> io::Result<AcceptedConnection<DuplexStream>> {
        let io = self.arrivals.lock().await.recv().await.expect("the fuzzer connects");
        let closed = std::future::pending().boxed();
        Ok(AcceptedConnection { io, peer: None, closed, has_ended: Box::new(|| false) })
    }

    fn is_local(&self) -> io::Result<bool> {
        Ok(true)
    }
}

fuzz_target!(|bytes: &[u8]| {
    let answer = SERVICE.runtime.block_on(answer(bytes));
    for line in answer.split(|&byte| byte == b'\n').filter(|line| line.starts_with(b"HTTP/1.")) {
        // What cannot be had is 501, 503 or 505; any other 5xx is an error of ours.
        let status = line.get(9..12).unwrap_or_default();
        let is_ours = status.starts_with(b"5") && !matches!(status, b"501" | b"503" | b"505");
        assert!(!is_ours, "{}", String::from_utf8_lossy(&answer));
    }
});

/// What the service sends to a client that sends this and ends.
async fn answer(bytes: &[u8]) -> Vec<u8> {
    let (mut client, server) = duplex(1 << 20);
    SERVICE.connections.send(server).unwrap();
    client.write_all(bytes).await.unwrap();
    client.shutdown().await.unwrap();
    let mut answer = Vec::new();
    let _ = timeout(LIMIT, client.read_to_end(&mut answer)).await.expect("an answer or an end");
    answer
}
