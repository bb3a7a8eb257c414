//! A real etcd for each test binary, with a prefix for each test; and clusters of a test's own.
//!
//! The shared server ends with the process, as the PostgreSQL of the tests does. etcd tells no
//! time, so the test's own clock moves the time of its stores. What no store does (users,
//! compaction, alarms) goes through etcd's JSON gateway.

use std::process::{Child, Command as Program};
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::future::join_all;
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::sync::OnceCell;

use super::full_disk::limit_files;
use super::postgres::spawn_beside_a_shell;
use crate::port::free_port;
use crate::signal;
use crate::{LIMIT, Proxy, eventually, started};

/// An etcd member on free ports; it ends when it is dropped, and with the process.
#[derive(Debug)]
pub struct EtcdServer {
    /// The shell beside the server, which ends it when this handle is dropped, and its input with
    /// it.
    shell: Child,
    /// The port of clients.
    port: u16,
    arguments: Vec<String>,
    directory: TempDir,
}

impl EtcdServer {
    /// The server that all tests of the process share.
    pub async fn shared() -> &'static Self {
        static SHARED: OnceCell<EtcdServer> = OnceCell::const_new();
        SHARED.get_or_init(|| Self::start_with(&[])).await
    }

    /// A server of the test's own, with options such as `["--quota-backend-bytes=1000000"]`.
    pub async fn start_with(options: &[&str]) -> Self {
        loop {
            let mut server = Self::spawn(&[Peer::create()], 0, options);
            let is_up = started(async || {
                if server.shell.try_wait().expect("a shell was started").is_some() {
                    return Some(false);
                }
                server.try_post("kv/range", &range_of_nothing()).await.map(|_| true)
            });
            // Another process may have taken a port.
            if is_up.await {
                return server;
            }
        }
    }

    /// A server of the test's own that has TLS for its clients, with the files that the options
    /// name.
    pub async fn start_with_tls(certificate: &str, key: &str, options: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let files = [("cert.pem", certificate), ("key.pem", key)].map(|(name, text)| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).expect("a file");
            path.display().to_string()
        });
        let tls = [format!("--cert-file={}", files[0]), format!("--key-file={}", files[1])];
        let options = [&[&*tls[0], &tls[1]], options].concat();
        let server = Self::spawn_in(directory, &[Peer::create()], 0, &options, "https");
        started(async || TcpStream::connect(server.address()).await.ok()).await;
        server
    }

    fn spawn(peers: &[Peer], member: usize, options: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        Self::spawn_in(directory, peers, member, options, "http")
    }

    fn spawn_in(
        directory: TempDir,
        peers: &[Peer],
        member: usize,
        options: &[&str],
        scheme: &str,
    ) -> Self {
        let port = free_port();
        let Peer { name, port: peer_port, known_port } = &peers[member];
        let client = format!("{scheme}://127.0.0.1:{port}");
        let (peer, known) = (loopback(*peer_port), loopback(*known_port));
        let cluster: Vec<_> = peers
            .iter()
            .map(|peer| format!("{}={}", peer.name, loopback(peer.known_port)))
            .collect();
        let mut arguments = vec![
            format!("--name={name}"),
            format!("--data-dir={}", directory.path().join("data").display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={known}"),
            format!("--initial-cluster={}", cluster.join(",")),
        ];
        arguments.extend(options.iter().map(|&option| option.to_owned()));
        let shell = spawn_beside_a_shell(Program::new("etcd").args(&arguments), directory.path());
        Self { shell, port, arguments, directory }
    }

    /// Its URL for the keys below a prefix.
    pub fn url(&self, prefix: &str) -> String {
        format!("etcd://{}/{prefix}", self.address())
    }

    /// Where it listens.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Calls a method of the JSON gateway, such as `auth/enable`.
    pub async fn post(&self, method: &str, body: &Value) -> Value {
        eventually(async || self.try_post(method, body).await).await
    }

    /// The same for a user, with the token that [`authenticate`](Self::authenticate) gives.
    pub async fn post_as(&self, token: &str, method: &str, body: &Value) -> Value {
        eventually(async || self.send(Some(token), method, body).await).await
    }

    /// A token of a user.
    pub async fn authenticate(&self, name: &str, password: &str) -> String {
        let body = serde_json::json!({"name": name, "password": password});
        let answer = self.post("auth/authenticate", &body).await;
        answer["token"].as_str().expect("a token").to_owned()
    }

    async fn try_post(&self, method: &str, body: &Value) -> Option<Value> {
        self.send(None, method, body).await
    }

    async fn send(&self, token: Option<&str>, method: &str, body: &Value) -> Option<Value> {
        let url = format!("http://{}/v3/{method}", self.address());
        let client = reqwest::Client::builder().timeout(LIMIT).build().expect("a client");
        let mut request = client.post(url).json(body);
        if let Some(token) = token {
            request = request.header("Authorization", token);
        }
        let answer = request.send().await.ok()?;
        let is_done = answer.status().is_success();
        let answer = answer.json().await.ok()?;
        is_done.then_some(answer)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        let shell = self.shell.id().to_string();
        let found = Program::new("pgrep").args(["-P", &shell, "-x", "etcd"]).output();
        let found = String::from_utf8(found.expect("pgrep runs").stdout).expect("digits");
        found.trim().parse().expect("etcd runs")
    }

    /// Lets no file of it grow above so many bytes, for as long as it runs.
    pub fn limit_files(&self, bytes: u64) {
        limit_files(&[], self.pid(), Some(bytes));
    }

    /// One of the numbers that it counts, such as `etcd_debugging_mvcc_slow_watcher_total`.
    pub async fn counts(&self, what: &str) -> f64 {
        let metrics = reqwest::get(format!("http://{}/metrics", self.address())).await;
        let metrics = metrics.expect("metrics").text().await.expect("a text");
        let line = metrics.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(' '));
        line.expect("a number of this name").parse().expect("a number")
    }

    /// Sends a signal to the server, such as `-STOP`, `-CONT` or `-KILL`.
    pub fn signal(&self, signal: &str) {
        signal::send(signal, self.pid());
    }

    /// Starts a server that was killed, on the same ports and data.
    pub async fn restart(&mut self) {
        eventually(async || self.shell.try_wait().expect("a shell was started")).await;
        self.shell =
            spawn_beside_a_shell(Program::new("etcd").args(&self.arguments), self.directory.path());
    }

    /// Whether the member answers for itself alone.
    pub async fn answers(&self) -> bool {
        self.try_post("maintenance/status", &serde_json::json!({})).await.is_some()
    }

    /// Whether the member leads its cluster.
    pub async fn leads(&self) -> bool {
        let status = self.post("maintenance/status", &serde_json::json!({})).await;
        status["leader"] == status["header"]["member_id"]
    }
}

/// Members of one cluster, on free ports.
#[derive(Debug)]
pub struct EtcdCluster {
    /// The members.
    pub members: Vec<EtcdServer>,
    /// The ways to each of them from the others.
    ways: Vec<Proxy>,
}

impl EtcdCluster {
    /// Three members that have a leader.
    pub async fn start() -> Self {
        Self::start_of([(); 3].map(|()| Peer::create()), Vec::new()).await
    }

    /// Three whose ways to each other can be cut.
    pub async fn start_behind_proxies() -> Self {
        let (mut peers, mut ways) = ([(); 3].map(|()| Peer::create()), Vec::new());
        for peer in &mut peers {
            let way = Proxy::start(format!("127.0.0.1:{}", peer.port)).await;
            peer.known_port = way.address().port();
            ways.push(way);
        }
        Self::start_of(peers, ways).await
    }

    async fn start_of(peers: [Peer; 3], ways: Vec<Proxy>) -> Self {
        let members = (0..3).map(|member| EtcdServer::spawn(&peers, member, &[]));
        let cluster = Self { members: members.collect(), ways };
        cluster.serves().await;
        cluster
    }

    /// Has nothing pass between any two members, and keeps all connections open. One member alone
    /// cannot be cut off: each of two members talks on the connection that either has made.
    pub fn cut(&self) {
        self.ways.iter().for_each(Proxy::stall);
    }

    /// Lets everything pass again.
    pub fn join(&self) {
        self.ways.iter().for_each(Proxy::forward);
    }

    /// Waits until each member answers what it asks a majority.
    pub async fn serves(&self) {
        started(async || self.is_whole().await.then_some(())).await;
    }

    /// Whether each member answers what it asks a majority.
    pub async fn is_whole(&self) -> bool {
        let nothing = range_of_nothing();
        let asked = self.members.iter().map(|member| member.try_post("kv/range", &nothing));
        let asked = join_all(asked).await;
        asked.iter().all(Option::is_some)
    }

    /// The URL of all members.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.members.iter().map(EtcdServer::address).collect();
        format!("etcd://{}", hosts.join(","))
    }

    /// Which member leads.
    pub async fn leader(&self) -> usize {
        eventually(async || {
            for (place, member) in self.members.iter().enumerate() {
                if member.leads().await {
                    return Some(place);
                }
            }
            None
        })
        .await
    }
}

/// A prefix of the shared server, with nothing below it.
pub async fn empty_etcd() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let prefix = format!("test-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    EtcdServer::shared().await.url(&prefix)
}

/// A member as the others know it.
#[derive(Debug)]
struct Peer {
    name: String,
    /// Where it listens for the others.
    port: u16,
    /// Where they reach it.
    known_port: u16,
}

impl Peer {
    fn create() -> Self {
        let port = free_port();
        Self { name: format!("member-{port}"), port, known_port: port }
    }
}

fn loopback(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

/// A read that a majority answers; the key is `nothing`.
fn range_of_nothing() -> Value {
    serde_json::json!({"key": "bm90aGluZw=="})
}
