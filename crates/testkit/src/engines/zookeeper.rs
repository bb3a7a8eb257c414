//! A real ZooKeeper for each test binary, with a node for each test; and ensembles of three.
//!
//! The tests of a binary share a server, whose JVM takes its time to start; it ends with the
//! process. A server does not wait for its disk, as no test of it cuts the power. Time passes for a
//! store on it by tokio's clock, because ZooKeeper has none. A test that stops or kills a server
//! starts one of its own.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Child, Command as Program};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio::time::timeout;
use zookeeper_client::Client;

use super::full_disk::limit_files;
use super::postgres::{Environment, owned, spawn_beside_a_shell};
use crate::port::free_port;
use crate::signal::send;
use crate::store_time::pass_for_store;
use crate::{Proxy, eventually, started};

/// The ZooKeeper of the tests: `make zookeeper` brings it.
const JARS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/zookeeper/*");
/// It is there whole.
const MARK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/zookeeper/done");
/// Debian's, 3.8.0.
const OLD_JARS: &str = "/usr/share/java/zookeeper.jar";
/// What a test's server is run with: `-Xrs` lets signals end it, and the rest lets it start soon.
const JVM: [&str; 6] = [
    "-Xrs",
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dzookeeper.forceSync=no",
    "-Dzookeeper.preAllocSize=1024",
];
/// Its settings, but for ports and directories.
const SETTINGS: &str = "tickTime=500\ninitLimit=20\nsyncLimit=4\nmaxClientCnxns=0\nadmin.enableServer=false\n\
    clientPortAddress=127.0.0.1\n4lw.commands.whitelist=srvr,dump\n";

/// How many answers of the server a test awaits while the store's tasks ask it: a walk over all
/// buckets is some 20, one after the other.
const ANSWERS: usize = 32;

/// A ZooKeeper on a free port; it ends when it is dropped, and with the process.
#[derive(Debug)]
pub struct ZookeeperServer {
    /// The shell beside the server, which ends it when this handle is dropped, and its input with
    /// it.
    shell: Child,
    port: u16,
    directory: TempDir,
    environment: Environment,
    jars: &'static str,
}

impl ZookeeperServer {
    /// The server that all tests of the process share.
    pub async fn shared() -> &'static Self {
        static SHARED: OnceCell<ZookeeperServer> = OnceCell::const_new();
        SHARED.get_or_init(Self::start).await
    }

    /// A server of the test's own.
    pub async fn start() -> Self {
        Self::start_with("").await
    }

    /// The same with more settings, a line each.
    pub async fn start_with(settings: &str) -> Self {
        let server = Self::spawn(free_port(), settings, 1, Vec::new(), JARS);
        server.serves().await;
        server
    }

    /// A server of Debian's old version.
    pub async fn start_old() -> Self {
        let server = Self::spawn(free_port(), "", 1, Vec::new(), OLD_JARS);
        server.serves().await;
        server
    }

    fn spawn(
        port: u16,
        settings: &str,
        number: usize,
        environment: Environment,
        jars: &'static str,
    ) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let data = directory.path().display();
        let settings = format!("{SETTINGS}clientPort={port}\ndataDir={data}\n{settings}");
        write(&directory, "zoo.cfg", &settings);
        write(&directory, "myid", &number.to_string());
        let shell = run(directory.path(), &environment, jars);
        Self { shell, port, directory, environment, jars }
    }

    /// Waits until it serves requests.
    pub async fn serves(&self) {
        started(async || self.is_serving().await.then_some(())).await;
    }

    /// Whether it serves requests.
    async fn is_serving(&self) -> bool {
        let address = self.address();
        let connector = Client::connector().with_fail_eagerly();
        let connecting = connector.with_session_timeout(Duration::from_secs(4)).connect(&address);
        timeout(Duration::from_secs(4), connecting).await.is_ok_and(|client| client.is_ok())
    }

    /// Where it listens.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Its URL for a node.
    pub fn url(&self, node: &str) -> String {
        format!("zookeeper://{}/{node}", self.address())
    }

    /// A session with it.
    pub async fn connect(&self) -> Client {
        Client::connect(&self.address()).await.expect("ZooKeeper takes sessions")
    }

    /// What it says of itself on the line that begins with `what`: `Mode:`, `Received:`.
    pub async fn says(&self, what: &str) -> Option<String> {
        self.tell("srvr")
            .await?
            .lines()
            .find_map(|line| Some(line.strip_prefix(what)?.trim().to_owned()))
    }

    /// How many sessions the ensemble has, if this member leads it.
    pub async fn sessions(&self) -> Option<usize> {
        let dump = self.tell("dump").await?;
        let sessions = dump.lines().take_while(|line| !line.starts_with("ephemeral"));
        dump.starts_with("SessionTracker")
            .then(|| sessions.filter(|line| line.trim_start().starts_with("0x")).count())
    }

    /// Its answer to a word of four letters.
    async fn tell(&self, word: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.address()).await.ok()?;
        stream.write_all(word.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        Some(answer)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        let pid = std::fs::read_to_string(self.directory.path().join("pid")).expect("it runs");
        pid.trim().parse().expect("a process id")
    }

    /// Lets no file of it grow above so many bytes, for as long as it runs.
    pub fn limit_files(&self, bytes: u64) {
        limit_files(&[], self.pid(), Some(bytes));
    }

    /// Sends a signal to the server, such as `-STOP`, `-CONT` or `-KILL`.
    pub fn signal(&self, signal: &str) {
        send(signal, self.pid());
    }

    /// Starts a server that was killed, on the same port and without what it knew.
    pub async fn restart_empty(&mut self) {
        let data = self.directory.path().join("version-2");
        std::fs::remove_dir_all(data).expect("it has data");
        self.restart().await;
    }

    /// Starts a server that was killed, on the same port and data.
    pub async fn restart(&mut self) {
        eventually(async || self.shell.try_wait().expect("a shell was started")).await;
        self.shell = run(self.directory.path(), &self.environment, self.jars);
    }
}

fn write(directory: &TempDir, name: &str, text: &str) {
    std::fs::write(directory.path().join(name), text).expect("a file");
}

/// Runs the server of a directory, and a shell that ends it when this process ends.
fn run(directory: &Path, environment: &Environment, jars: &str) -> Child {
    assert!(Path::new(OLD_JARS).exists() && Path::new(MARK).exists(), "run `make zookeeper` first");
    let mut server = Program::new("sh");
    server.envs(environment.iter().map(|(name, value)| (name, value)));
    server.args(["-c", "echo $$ > \"$0/pid\"; exec java \"$@\""]).arg(directory).args(JVM);
    server.args(["-cp", jars, "org.apache.zookeeper.server.quorum.QuorumPeerMain"]);
    spawn_beside_a_shell(server.arg(directory.join("zoo.cfg")), directory)
}

/// Three servers that are one ensemble.
#[derive(Debug)]
pub struct Ensemble {
    /// The members.
    pub members: Vec<ZookeeperServer>,
    /// The ways between two of them: from one, to another.
    ways: Vec<(usize, usize, Proxy)>,
}

impl Ensemble {
    /// Three whose ways to each other can be cut.
    pub async fn start_behind_proxies() -> Self {
        let ports = three_ports();
        let (mut ways, mut members) = (Vec::new(), Vec::new());
        for (from, [port, ..]) in ports.iter().enumerate() {
            // A member that was cut off soon asks the others again.
            let mut peers = "fastleader.maxNotificationInterval=500\n".to_owned();
            for (to, [_, peer, election]) in ports.iter().enumerate() {
                let mut known = [*peer, *election];
                if to != from {
                    for port in &mut known {
                        let way = Proxy::start(format!("127.0.0.1:{port}")).await;
                        *port = way.address().port();
                        ways.push((from, to, way));
                    }
                }
                let [peer, election] = known;
                let _ = writeln!(peers, "server.{}=127.0.0.1:{peer}:{election}", to + 1);
            }
            members.push(ZookeeperServer::spawn(*port, &peers, from + 1, Vec::new(), JARS));
        }
        let ensemble = Self { members, ways };
        ensemble.serves().await;
        ensemble
    }

    /// Has nothing pass between a member and the others, and keeps all connections open.
    pub fn cut_off(&self, member: usize) {
        self.ways_of(member).for_each(Proxy::stall);
    }

    /// Lets everything pass again.
    pub fn join(&self, member: usize) {
        self.ways_of(member).for_each(Proxy::forward);
    }

    fn ways_of(&self, member: usize) -> impl Iterator<Item = &Proxy> {
        let ways = self.ways.iter().filter(move |(from, to, _)| [*from, *to].contains(&member));
        ways.map(|(.., way)| way)
    }

    /// Starts three, and waits until all serve.
    pub async fn start() -> Self {
        Self::start_with_environment(&[]).await
    }

    /// The same with variables in their environment.
    pub async fn start_with_environment(environment: &[(&str, &str)]) -> Self {
        let ports = three_ports();
        let numbered = || ports.iter().zip(1..);
        let peers = numbered().map(|([_, peer, election], number)| {
            format!("server.{number}=127.0.0.1:{peer}:{election}\n")
        });
        let peers: String = peers.collect();
        let spawn = |([port, ..], number): (&[u16; 3], usize)| {
            ZookeeperServer::spawn(*port, &peers, number, owned(environment), JARS)
        };
        let members = numbered().map(spawn);
        let ensemble = Self { members: members.collect(), ways: Vec::new() };
        ensemble.serves().await;
        ensemble
    }

    /// Waits until all members serve requests.
    pub async fn serves(&self) {
        join_all(self.members.iter().map(ZookeeperServer::serves)).await;
    }

    /// Whether all members serve requests.
    pub async fn is_whole(&self) -> bool {
        let serving = join_all(self.members.iter().map(ZookeeperServer::is_serving)).await;
        serving.into_iter().all(|serves| serves)
    }

    /// Which member leads.
    pub async fn leader(&self) -> usize {
        eventually(async || {
            for (place, member) in self.members.iter().enumerate() {
                if member.says("Mode:").await.as_deref() == Some("leader") {
                    return Some(place);
                }
            }
            None
        })
        .await
    }

    /// The member that leads, and one that follows.
    pub async fn leader_and_follower(&self) -> (&ZookeeperServer, &ZookeeperServer) {
        let (mut leader, mut follower) = (None, None);
        for member in &self.members {
            match eventually(async || member.says("Mode:").await).await.as_str() {
                "leader" => leader = Some(member),
                _ => follower = Some(member),
            }
        }
        (leader.expect("one leads"), follower.expect("two follow"))
    }

    /// Its URL for a node.
    pub fn url(&self, node: &str) -> String {
        let members: Vec<_> = self.members.iter().map(ZookeeperServer::address).collect();
        format!("zookeeper://{}/{node}", members.join(","))
    }
}

/// For each of three members a port for clients, one for the member that leads, and one for
/// elections.
fn three_ports() -> [[u16; 3]; 3] {
    [(); 3].map(|()| [(); 3].map(|()| free_port()))
}

/// A node of the shared server.
#[derive(Debug)]
pub struct ZookeeperRoot {
    server: &'static ZookeeperServer,
    name: String,
    client: Client,
}

impl ZookeeperRoot {
    /// A node that is not there yet.
    pub async fn create() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let server = ZookeeperServer::shared().await;
        let name = format!("test-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        Self { server, name, client: server.connect().await }
    }

    /// Its URL for the service.
    pub fn url(&self) -> String {
        self.server.url(&self.name)
    }

    /// A session with the server, which sees all nodes.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The path of a node below it: `l/3f/…`.
    pub fn path(&self, below: &str) -> String {
        format!("/{}/{below}", self.name)
    }

    /// Lets time pass for the stores of this process, which count by tokio's clock.
    pub async fn pass(&self, by: Duration) {
        tokio::time::pause();
        tokio::time::advance(by).await;
        tokio::time::resume();
        pass_for_store(by);
    }

    /// Gives the tasks of these stores time for what they ask the server.
    pub async fn settle(&self) {
        for _ in 0..ANSWERS {
            self.client.sync("/").await.expect("ZooKeeper answers");
        }
    }
}
