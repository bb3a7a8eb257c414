//! A real etcd for each test binary, with a prefix for each test; and clusters of a test's own.
//!
//! The shared server ends with the process, as the PostgreSQL of the tests does. etcd tells no time, so the
//! test's own clock moves the time of its stores. What no store does (users, compaction, alarms) goes
//! through etcd's JSON gateway.

use std::process::{Child, Command as Program};
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::future::join_all;
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::OnceCell;

use crate::postgres::spawn_beside_a_shell;
use crate::redis::free_port;
use crate::{LIMIT, eventually};

/// An etcd member on free ports; it ends when it is dropped, and with the process.
#[derive(Debug)]
pub struct EtcdServer {
    /// The shell beside the server, which ends it when this handle is dropped, and its input with it.
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
            let mut server = Self::spawn(&[peer()], 0, options);
            let is_up = eventually(async || {
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

    /// A server of the test's own that has TLS for its clients, with the files that the options name.
    pub async fn start_with_tls(certificate: &str, key: &str, options: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let files = [("cert.pem", certificate), ("key.pem", key)].map(|(name, text)| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).expect("a file");
            path.display().to_string()
        });
        let tls = [format!("--cert-file={}", files[0]), format!("--key-file={}", files[1])];
        let options = [&[&*tls[0], &tls[1]], options].concat();
        Self::spawn_in(directory, &[peer()], 0, &options, "https")
    }

    fn spawn(peers: &[(String, u16)], member: usize, options: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        Self::spawn_in(directory, peers, member, options, "http")
    }

    fn spawn_in(
        directory: TempDir,
        peers: &[(String, u16)],
        member: usize,
        options: &[&str],
        scheme: &str,
    ) -> Self {
        let port = free_port();
        let (name, peer_port) = &peers[member];
        let client = format!("{scheme}://127.0.0.1:{port}");
        let peer = format!("http://127.0.0.1:{peer_port}");
        let cluster: Vec<_> =
            peers.iter().map(|(name, port)| format!("{name}=http://127.0.0.1:{port}")).collect();
        let mut arguments = vec![
            format!("--name={name}"),
            format!("--data-dir={}", directory.path().join("data").display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
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

    /// Sends a signal to the server, such as `-STOP`, `-CONT` or `-KILL`.
    pub fn signal(&self, signal: &str) {
        let shell = self.shell.id().to_string();
        let sent = Program::new("pkill").args([signal, "-P", &shell, "-x", "etcd"]).status();
        assert!(sent.expect("pkill runs").success(), "etcd takes {signal}");
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
}

impl EtcdCluster {
    /// Three members that have a leader.
    pub async fn start() -> Self {
        let peers: Vec<_> = (0..3).map(|_| peer()).collect();
        let members = (0..3).map(|member| EtcdServer::spawn(&peers, member, &[]));
        let cluster = Self { members: members.collect() };
        cluster.serves().await;
        cluster
    }

    /// Waits until each member answers what it asks a majority.
    pub async fn serves(&self) {
        eventually(async || self.is_whole().await.then_some(())).await;
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

/// A member's name and its port for the other members.
fn peer() -> (String, u16) {
    let port = free_port();
    (format!("member-{port}"), port)
}

/// A read that a majority answers; the key is `nothing`.
fn range_of_nothing() -> Value {
    serde_json::json!({"key": "bm90aGluZw=="})
}
