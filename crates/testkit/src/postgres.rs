//! A real PostgreSQL for each test binary, with a database for each test.
//!
//! Making a cluster takes seconds, so the tests of a binary share a server; it ends with the process,
//! because a shell beside it waits for the end of a pipe that this process holds. Time passes in a
//! database when its test says so: the database finds a `clock_timestamp()` of its own before the server's,
//! which adds what has passed. A test that stops or kills a server starts one of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command as Program, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tokio::process::Command;
use tokio::sync::OnceCell;
use tokio_postgres::{Client, NoTls};

use crate::eventually;
use crate::redis::free_port;
use crate::stores::pass_for_store;

/// The role of the tests.
const ROLE: &str = "keylatch";
/// What a test's server does without: no test of it cuts the power.
const QUICK: [&str; 4] =
    ["fsync=off", "full_page_writes=off", "shared_buffers=32MB", "max_connections=400"];

/// A PostgreSQL on a free port; it ends when it is dropped, and with the process.
#[derive(Debug)]
pub struct PostgresServer {
    /// The shell beside the server, which ends it when this handle is dropped, and its input with it.
    shell: Child,
    port: u16,
    directory: TempDir,
}

impl PostgresServer {
    /// The server that all tests of the process share.
    pub async fn shared() -> &'static Self {
        static SHARED: OnceCell<PostgresServer> = OnceCell::const_new();
        SHARED.get_or_init(|| Self::start_with(&QUICK)).await
    }

    /// A server of the test's own, with settings such as `["fsync=off"]`.
    pub async fn start_with(settings: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let data = directory.path().join("data");
        make_cluster(directory.path(), &data).await;
        let port = free_port();
        let shell = spawn(&data, port, settings);
        let server = Self { shell, port, directory };
        eventually(async || server.connect("postgres").await).await;
        server
    }

    /// Its URL for a database.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{ROLE}@127.0.0.1:{}/{database}", self.port)
    }

    /// A connection to a database, if the server takes it.
    pub async fn connect(&self, database: &str) -> Option<Client> {
        let (client, connection) =
            tokio_postgres::connect(&self.url(database), NoTls).await.ok()?;
        tokio::spawn(connection);
        Some(client)
    }

    /// Runs statements in a database.
    pub async fn run(&self, database: &str, statements: &str) {
        let client = self.connect(database).await.expect("PostgreSQL takes connections");
        client.batch_execute(statements).await.expect("PostgreSQL takes the statements");
    }

    /// Sends a signal to the server, such as `-STOP`, `-CONT` or `-KILL`.
    pub fn signal(&self, signal: &str) {
        let file = self.directory.path().join("data/postmaster.pid");
        let text = std::fs::read_to_string(file).expect("PostgreSQL runs");
        let pid = text.lines().next().expect("a process id");
        let sent = Program::new("pkill").args([signal, "-P", pid]).status();
        sent.expect("pkill runs");
        let sent = Program::new("kill").args([signal, pid]).status();
        assert!(sent.expect("kill runs").success(), "PostgreSQL takes {signal}");
    }

    /// Starts a server that was killed, on the same port and data.
    pub async fn restart(&mut self, settings: &[&str]) {
        eventually(async || self.shell.try_wait().expect("a shell was started")).await;
        self.shell = spawn(&self.directory.path().join("data"), self.port, settings);
        eventually(async || self.connect("postgres").await).await;
    }
}

/// A database of the shared server, whose time a test moves forward.
#[derive(Debug)]
pub struct PostgresDatabase {
    server: &'static PostgresServer,
    name: String,
}

impl PostgresDatabase {
    /// An empty database.
    pub async fn create() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let server = PostgresServer::shared().await;
        let name = format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        server.run("postgres", &format!("CREATE DATABASE {name}")).await;
        server.run(&name, CLOCK).await;
        let path = format!("ALTER DATABASE {name} SET search_path = shifted, pg_catalog, public");
        server.run("postgres", &path).await;
        Self { server, name }
    }

    /// Its URL for the service.
    pub fn url(&self) -> String {
        self.server.url(&self.name)
    }

    /// Runs statements in it.
    pub async fn run(&self, statements: &str) {
        self.server.run(&self.name, statements).await;
    }

    /// Lets time pass.
    pub async fn advance(&self, by: Duration) {
        let micros = by.as_micros();
        self.run(&format!("UPDATE shifted.by SET micros = micros + {micros}")).await;
        pass_for_store(by);
    }
}

/// A clock that shows what the server's shows and what has passed besides.
const CLOCK: &str = "
    CREATE SCHEMA shifted;
    CREATE TABLE shifted.by (micros bigint NOT NULL);
    INSERT INTO shifted.by VALUES (0);
    CREATE FUNCTION shifted.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
        'SELECT pg_catalog.clock_timestamp() + (SELECT micros FROM shifted.by) * interval ''1 microsecond''';
";

/// The directory of PostgreSQL's programs: Debian has one for each version.
fn programs() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL is installed");
    let versions = versions.filter_map(|version| Some(version.ok()?.path()));
    versions.max().expect("a version of PostgreSQL").join("bin")
}

/// A program of PostgreSQL, which does not run as root.
fn program(name: &str) -> Command {
    let path = programs().join(name);
    if is_root() {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]).arg(path);
        command
    } else {
        Command::new(path)
    }
}

fn is_root() -> bool {
    let output = Program::new("id").arg("-u").output().expect("id runs");
    output.stdout.starts_with(b"0\n")
}

async fn make_cluster(directory: &Path, data: &Path) {
    if is_root() {
        let owned = Program::new("chown").arg("postgres").arg(directory).status();
        assert!(owned.expect("chown runs").success(), "the directory is that of postgres");
    }
    let made = program("initdb")
        .args(["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "-U", ROLE, "-D"])
        .arg(data)
        .stdout(Stdio::null())
        .status()
        .await;
    assert!(made.expect("initdb runs").success(), "initdb makes a cluster");
}

/// Starts a server, and a shell that ends it when this process ends.
fn spawn(data: &Path, port: u16, settings: &[&str]) -> Child {
    let server = program("postgres");
    let server = server.as_std();
    let mut words = vec![server.get_program().to_owned()];
    words.extend(server.get_args().map(ToOwned::to_owned));
    words.extend(["-D".into(), data.into(), "-p".into(), port.to_string().into()]);
    words.extend(
        ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="].map(Into::into),
    );
    for setting in settings {
        words.extend(["-c".into(), (*setting).into()]);
    }
    // The server has no input, so the shell alone reads the pipe; it ends when either does.
    let script = "\"$@\" </dev/null & server=$!
        (cat >/dev/null; kill -QUIT $server 2>/dev/null) <&3 3<&- & waiter=$!
        exec 3<&-; wait $server; kill $waiter 2>/dev/null";
    let script = format!("exec 3<&0; {script}");
    Program::new("sh")
        .args(["-c", &script, "sh"])
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a shell starts")
}
