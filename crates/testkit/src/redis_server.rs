//! One real redis-server on a free port.
//!
//! Time passes for it when a test says so, so that a test of an expiry does not wait: its wall
//! clock is one that can be set ([`RedisServer::advance`]). A node of Redlock, whose uptime counts
//! too, gets older keys instead ([`RedisServer::age`]).

use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, RedisResult};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::WallClock;
use crate::port::free_port;
use crate::signal::send;

/// A redis-server for one test, on a free port; it ends with the test.
#[derive(Debug)]
pub struct RedisServer {
    process: Child,
    port: u16,
    options: Vec<String>,
    environment: Vec<(String, String)>,
    /// Its wall clock, and how many microseconds that is ahead; `None` where the test gave it
    /// another one.
    clock: Option<(WallClock, Mutex<i64>)>,
    directory: TempDir,
    earlier: Vec<TempDir>,
}

impl RedisServer {
    /// A server without persistence.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// A server with further options, such as `["--maxmemory", "1mb"]`.
    pub async fn start_with(options: &[&str]) -> Self {
        Self::start_in(options, &[]).await
    }

    /// A server with further options and environment variables.
    pub async fn start_in(options: &[&str], environment: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let options: Vec<_> = options.iter().map(|option| (*option).to_owned()).collect();
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut environment: Vec<_> = environment.iter().map(owned).collect();
        let mut clock = None;
        if environment.iter().all(|(name, _)| name != "LD_PRELOAD") {
            let wall_clock = WallClock::new(directory.path()).expect("a clock");
            environment.extend(wall_clock.environment().iter().map(owned));
            clock = Some((wall_clock, Mutex::default()));
        }
        loop {
            // Another process may take a free port before the server does; then the next is tried.
            let port = free_port();
            if let Some(process) = spawn(port, &options, &environment, &directory).await {
                return Self {
                    process,
                    port,
                    options,
                    environment,
                    clock,
                    directory,
                    earlier: vec![],
                };
            }
        }
    }

    /// Its URL for the service.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// `host:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Kills the server; only what it has persisted is left.
    pub async fn kill(&mut self) {
        self.process.kill().await.expect("redis-server can be killed");
    }

    /// Starts a server that was killed, on the same port and directory.
    pub async fn restart(&mut self) {
        let process = spawn(self.port, &self.options, &self.environment, &self.directory).await;
        self.process = process.expect("redis-server starts again on its port");
    }

    /// Starts a server that was killed, and lets it take so many microseconds for each command that
    /// it reads from its log.
    pub async fn restart_slowly(&mut self, micros: u64) {
        let options = self.options.clone();
        self.options.extend(["--key-load-delay".to_owned(), micros.to_string()]);
        self.restart().await;
        self.options = options;
    }

    /// Starts a server that was killed, on the same port with other options and an empty disk.
    pub async fn restart_empty(&mut self, options: &[&str]) {
        // Its clock's file is in the directory of before, which stays with the clock.
        let before = std::mem::replace(
            &mut self.directory,
            tempfile::tempdir().expect("a temporary directory"),
        );
        self.earlier.push(before);
        self.options = options.iter().map(|option| (*option).to_owned()).collect();
        self.restart().await;
    }

    /// Stops the process without ending it: connections stay open and get no answers.
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    /// Continues a paused server.
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    /// Runs a command, such as `["FLUSHALL"]`.
    pub async fn run<T: FromRedisValue>(&self, command: &[&str]) -> T {
        self.try_run(command).await.expect("redis-server takes the command")
    }

    /// Runs a command on a server that may cut the connection.
    pub async fn try_run<T: FromRedisValue>(&self, command: &[&str]) -> RedisResult<T> {
        let mut connection = self.try_connect().await?;
        let mut cmd = Cmd::new();
        cmd.arg(command);
        cmd.query_async(&mut connection).await
    }

    /// The messages of a channel from now on.
    pub async fn messages(&self, channel: &str) -> impl Stream<Item = String> + Unpin {
        let client = Client::open(self.url()).expect("a Redis URL");
        let mut connection =
            client.get_async_pubsub().await.expect("redis-server takes connections");
        connection.subscribe(channel).await.expect("redis-server takes subscriptions");
        let messages = connection.into_on_message();
        messages.map(|message| String::from_utf8_lossy(message.get_payload_bytes()).into_owned())
    }

    /// Sets its wall clock forward, so that this time passes for all that it keeps.
    pub fn advance(&self, by: Duration) {
        self.move_clock(i64::try_from(by.as_micros()).expect("a short time"));
    }

    fn move_clock(&self, micros: i64) {
        let (clock, ahead) = self.clock.as_ref().expect("a clock of this server's");
        let mut ahead = ahead.lock().unwrap_or_else(PoisonError::into_inner);
        *ahead += micros;
        clock.set_micros(*ahead);
    }

    /// Sets its wall clock back.
    pub fn set_back(&self, by: Duration) {
        self.move_clock(-i64::try_from(by.as_micros()).expect("a short time"));
    }

    /// Makes all locks of a node of Redlock older, as if this time had passed.
    pub async fn age(&self, by: Duration) {
        let mut connection = self.connect().await;
        let by = u64::try_from(by.as_millis()).expect("a short time");
        let aged = redis::Script::new(AGE).arg(by).invoke_async(&mut connection).await;
        let () = aged.expect("redis-server takes the script");
    }

    async fn connect(&self) -> MultiplexedConnection {
        self.try_connect().await.expect("redis-server takes connections")
    }

    async fn try_connect(&self) -> RedisResult<MultiplexedConnection> {
        let client = Client::open(self.url())?;
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        client.get_multiplexed_async_connection_with_config(&config).await
    }

    fn signal(&self, signal: &str) {
        send(signal, self.process.id().expect("redis-server runs"));
    }
}

/// An expiry that is not in the future deletes the key, and a key without one does not age.
const AGE: &str = r"
for _, key in ipairs(redis.call('KEYS', '*}:lock:*')) do
  local left = redis.call('PTTL', key)
  if left >= 0 then
    redis.call('PEXPIRE', key, left - ARGV[1])
  end
end";

impl Drop for RedisServer {
    fn drop(&mut self) {
        // The process is killed on drop, which a stopped one takes as well.
        let _ = self.process.start_kill();
    }
}

/// Starts a server and waits until it says that it is ready; `None` when the port is taken.
async fn spawn(
    port: u16,
    options: &[String],
    environment: &[(String, String)],
    directory: &TempDir,
) -> Option<Child> {
    // A file comes before all else, and what is to be saved after what is not.
    let (file, options) = match options {
        [first, rest @ ..] if !first.starts_with("--") => (Some(first), rest),
        options => (None, options),
    };
    let mut process = Command::new("redis-server")
        .args(file)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
        .args(options)
        .args(["--dir".as_ref(), directory.path().as_os_str()])
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect(
            "redis-server is installed: `make test` installs it, or `apt-get install redis-server`",
        );
    let output = process.stdout.take().expect("its output");
    let mut lines = BufReader::new(output).lines();
    while let Some(line) = lines.next_line().await.expect("redis-server's output") {
        if line.contains("Address already in use") || line.contains("ailed listening on port") {
            return None;
        }
        if line.contains("eady to accept connections") || line.contains("+monitor master") {
            // The task keeps reading, so that the server never waits for a full pipe.
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return Some(process);
        }
    }
    panic!("redis-server with {options:?} ended before it was ready");
}
