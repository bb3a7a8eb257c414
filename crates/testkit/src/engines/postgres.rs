//! A real PostgreSQL for each test binary, with a database for each test.
//!
//! Making a cluster takes seconds, so the tests of a binary share a server; it ends with the
//! process, because a shell beside it waits for the end of a pipe that this process holds. Time
//! passes in a database when its test says so: the database finds a `clock_timestamp()` of its own
//! before the server's, which adds what has passed. A test that stops or kills a server starts one
//! of its own.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Program, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tokio::process::Command;
use tokio::sync::OnceCell;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::FromSqlOwned;
use tokio_postgres::{Client, NoTls};

use super::full_disk::limit_files;
use crate::port::free_port;
use crate::signal::send;
use crate::store_time::pass_for_store;
use crate::{eventually, started};

/// The role of the tests.
const ROLE: &str = "keylatch";
/// What a test's server does without: no test of it cuts the power.
const QUICK: [&str; 4] =
    ["fsync=off", "full_page_writes=off", "shared_buffers=32MB", "max_connections=400"];

/// How root runs a program as the user of PostgreSQL.
const AS_POSTGRES: [&str; 5] =
    ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--"];

/// A PostgreSQL on a free port; it ends when it is dropped, and with the process.
#[derive(Debug)]
pub struct PostgresServer {
    /// The shell beside the server, which ends it when this handle is dropped, and its input with
    /// it.
    shell: Child,
    port: u16,
    directory: TestDirectory,
    environment: Environment,
}

/// Variables that a server is started with.
pub(super) type Environment = Vec<(String, String)>;

impl PostgresServer {
    /// The server that all tests of the process share.
    pub async fn shared() -> &'static Self {
        static SHARED: OnceCell<PostgresServer> = OnceCell::const_new();
        SHARED.get_or_init(Self::start).await
    }

    /// A server of the test's own that does without what no test needs.
    pub async fn start() -> Self {
        Self::start_with(&QUICK).await
    }

    /// A server of the test's own, with settings such as `["fsync=off"]`.
    pub async fn start_with(settings: &[&str]) -> Self {
        Self::start_in(TestDirectory::create(), settings, Vec::new()).await
    }

    /// The same with variables in its environment and in that of its standbys.
    pub async fn start_with_environment(settings: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::start_in(TestDirectory::create(), settings, owned(environment)).await
    }

    /// The same with files of the test's, which settings name as `../NAME`.
    pub async fn start_with_files(files: &[(&str, &str)], settings: &[&str]) -> Self {
        let directory = TestDirectory::create();
        for (name, text) in files {
            directory.write(name, text);
        }
        Self::start_in(directory, settings, Vec::new()).await
    }

    async fn start_in(
        directory: TestDirectory,
        settings: &[&str],
        environment: Environment,
    ) -> Self {
        let arguments =
            ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "-U", ROLE, "-D"];
        make_data(&directory, "initdb", &arguments).await;
        let server = Self::spawn_in(directory, settings, environment);
        server.answers().await;
        server
    }

    /// A standby of a server that has the settings of [`start`](Self::start), which can be
    /// promoted.
    pub async fn standby(&self) -> Self {
        self.standby_with(&QUICK).await
    }

    /// A standby with settings of its own.
    pub async fn standby_with(&self, settings: &[&str]) -> Self {
        let (directory, port) = (TestDirectory::create(), self.port.to_string());
        let from = ["-h", "127.0.0.1", "-p", &port, "-U", ROLE, "--no-sync"];
        let arguments = [&from[..], &["--checkpoint=fast", "--write-recovery-conf", "-D"]].concat();
        make_data(&directory, "pg_basebackup", &arguments).await;
        let server = Self::spawn_in(directory, settings, self.environment.clone());
        server.answers().await;
        server
    }

    fn spawn_in(directory: TestDirectory, settings: &[&str], environment: Environment) -> Self {
        let port = free_port();
        let shell = spawn(&directory.path().join("data"), port, settings, &environment);
        Self { shell, port, directory, environment }
    }

    async fn answers(&self) {
        started(async || self.connect("postgres").await).await;
    }

    /// Its URL for a database.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{ROLE}@127.0.0.1:{}/{database}", self.port)
    }

    /// Where it listens.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// A connection to a database, if the server takes it.
    pub async fn connect(&self, database: &str) -> Option<Client> {
        connect(&self.url(database)).await
    }

    /// The one value of a query of a database.
    pub async fn ask<T: FromSqlOwned>(&self, database: &str, query: &str) -> T {
        let client = self.connect(database).await.expect("PostgreSQL takes connections");
        client.query_one(query, &[]).await.expect("PostgreSQL takes the query").get(0)
    }

    /// Changes settings of the running server, and returns when new connections have them.
    pub async fn set(&self, settings: &[(&str, &str)]) {
        for (name, value) in settings {
            self.run("postgres", &format!("ALTER SYSTEM SET {name} = '{value}'")).await;
        }
        self.run("postgres", "SELECT pg_reload_conf()").await;
        for (name, value) in settings {
            let query = format!("SELECT current_setting('{name}')");
            let is_set = async || self.ask::<String>("postgres", &query).await == *value;
            eventually(async || is_set().await.then_some(())).await;
        }
    }

    /// Runs statements in a database.
    pub async fn run(&self, database: &str, statements: &str) {
        let client = self.connect(database).await.expect("PostgreSQL takes connections");
        client.batch_execute(statements).await.expect("PostgreSQL takes the statements");
    }

    /// Sends a signal to the server, such as `-STOP`, `-CONT` or `-KILL`.
    pub fn signal(&self, signal: &str) {
        let pid = self.pid();
        let sent = Program::new("pkill").args([signal, "-P", &pid.to_string()]).status();
        sent.expect("pkill runs");
        send(signal, pid);
    }

    /// The id of its first process.
    pub fn pid(&self) -> u32 {
        let file = self.directory.path().join("data/postmaster.pid");
        let text = std::fs::read_to_string(file).expect("PostgreSQL runs");
        let pid = text.lines().next().expect("a process id");
        pid.parse().expect("a process id")
    }

    /// Lets no file of it grow above so many bytes, or as far as it will.
    pub fn limit_files(&self, bytes: Option<u64>) {
        limit_files(if is_root() { &AS_POSTGRES } else { &[] }, self.pid(), bytes);
    }

    /// Kills all its processes; one that was stopped has made no new one meanwhile.
    pub fn kill(&self) {
        self.signal("-STOP");
        self.signal("-KILL");
    }

    /// Starts a server that was killed, on the same port and data.
    pub async fn restart(&mut self, settings: &[&str]) {
        self.respawn(settings).await;
        self.answers().await;
    }

    /// Starts a server that was killed, which then waits for a promotion and takes no connection.
    pub async fn restart_unready(&mut self) {
        self.directory.write("data/standby.signal", "");
        self.respawn(&[&QUICK[..], &["hot_standby=off"]].concat()).await;
        let refuses = async || {
            let error = tokio_postgres::connect(&self.url("postgres"), NoTls).await.err()?;
            (error.code() == Some(&SqlState::CANNOT_CONNECT_NOW)).then_some(())
        };
        eventually(refuses).await;
    }

    /// Makes a standby a primary, or ends the waiting of
    /// [`restart_unready`](Self::restart_unready).
    pub async fn promote(&self) {
        let data = self.directory.path().join("data");
        // A server that starts up refuses connections before it knows that it is a standby.
        let is_standby = async || {
            let state =
                program("pg_controldata").env("LC_ALL", "C").arg("-D").arg(&data).output().await;
            let state = String::from_utf8(state.expect("pg_controldata runs").stdout);
            state.expect("a state").contains("in archive recovery").then_some(())
        };
        eventually(is_standby).await;
        let promoted = program("pg_ctl").arg("promote").arg("-D").arg(&data).output().await;
        let promoted = promoted.expect("pg_ctl runs");
        assert!(promoted.status.success(), "the server is promoted: {promoted:?}");
    }

    async fn respawn(&mut self, settings: &[&str]) {
        eventually(async || self.shell.try_wait().expect("a shell was started")).await;
        let data = self.directory.path().join("data");
        self.shell = spawn(&data, self.port, settings, &self.environment);
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

    /// A connection to it.
    pub async fn connect(&self) -> Client {
        self.server.connect(&self.name).await.expect("PostgreSQL takes connections")
    }

    /// The one value of a query of it.
    pub async fn ask<T: FromSqlOwned>(&self, query: &str) -> T {
        self.server.ask(&self.name, query).await
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

/// A program of PostgreSQL.
fn program(name: &str) -> Command {
    as_postgres(&programs().join(name))
}

/// A program that does not run as root.
fn as_postgres(path: &Path) -> Command {
    if is_root() {
        let [setpriv, arguments @ ..] = AS_POSTGRES;
        let mut command = Command::new(setpriv);
        command.args(arguments).arg(path);
        command
    } else {
        Command::new(path)
    }
}

fn is_root() -> bool {
    let output = Program::new("id").arg("-u").output().expect("id runs");
    output.stdout.starts_with(b"0\n")
}

/// A directory whose files belong to the user that the servers run as.
#[derive(Debug)]
struct TestDirectory(TempDir);

impl TestDirectory {
    fn create() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        give_away(directory.path());
        Self(directory)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path().join(name);
        std::fs::write(&path, text).expect("a file");
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&path, private).expect("its owner may say who reads it");
        give_away(&path);
    }
}

/// Makes the user that the servers run as the owner.
fn give_away(path: &Path) {
    if is_root() {
        let owned = Program::new("chown").arg("postgres").arg(path).status();
        assert!(owned.expect("chown runs").success(), "{} is that of postgres", path.display());
    }
}

/// Runs a program that makes a server's data, whose directory is its last argument.
async fn make_data(directory: &TestDirectory, name: &str, arguments: &[&str]) {
    let data = directory.path().join("data");
    let made = program(name).args(arguments).arg(data).output().await.expect("it runs");
    assert!(made.status.success(), "{name}: {}", String::from_utf8_lossy(&made.stderr));
}

async fn connect(url: &str) -> Option<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.ok()?;
    tokio::spawn(connection);
    Some(client)
}

/// Starts a server, and a shell that ends it when this process ends.
fn spawn(data: &Path, port: u16, settings: &[&str], environment: &Environment) -> Child {
    let mut server = program("postgres");
    server.envs(environment.iter().map(|(name, value)| (name, value)));
    server.arg("-D").arg(data).args(["-p", &port.to_string()]);
    for setting in ["listen_addresses=127.0.0.1", "unix_socket_directories="].iter().chain(settings)
    {
        server.args(["-c", setting]);
    }
    spawn_beside_a_shell(server.as_std(), data)
}

pub(super) fn owned(environment: &[(&str, &str)]) -> Environment {
    environment.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Starts a program, and a shell that ends it when this process ends. Then it removes the program's
/// data as well, which the process had no time for if all its tests shared them.
pub(super) fn spawn_beside_a_shell(program: &Program, data: &Path) -> Child {
    // The program has no input, so the shell alone reads the pipe; it ends when either does. A
    // program that a shell starts in the background may ignore what a terminal sends.
    let script = "data=$1; shift; \"$@\" </dev/null & server=$!
        (cat >/dev/null; kill -QUIT $server; kill -CONT $server; sleep 1; kill -KILL $server
            kill -0 $PPID || rm -rf \"$data\") 2>/dev/null <&3 3<&- & waiter=$!
        exec 3<&-; wait $server; kill -0 $PPID 2>/dev/null && kill $waiter 2>/dev/null; wait";
    let script = format!("exec 3<&0; {script}");
    Program::new("sh")
        .args(["-c", &script, "sh"])
        .arg(data)
        .arg(program.get_program())
        .args(program.get_args())
        .envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a shell starts")
}

/// A PgBouncer in transaction mode before a server: each statement may run on another connection of
/// it.
#[derive(Debug)]
pub struct PgBouncer {
    /// The shell beside the program, which ends it when this handle is dropped, and its input with
    /// it.
    _shell: Child,
    port: u16,
    _directory: TestDirectory,
}

impl PgBouncer {
    /// A PgBouncer that has at most so many connections to a database of `server`.
    pub async fn start(server: &PostgresServer, connections: u32) -> Self {
        let (directory, port) = (TestDirectory::create(), free_port());
        directory.write("users.txt", &format!("\"{ROLE}\" \"\"\n"));
        let users = directory.path().join("users.txt");
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {}\n\
             pool_mode = transaction\nserver_round_robin = 1\ndefault_pool_size = {connections}\n",
            server.port,
            users.display(),
        );
        directory.write("pgbouncer.ini", &settings);
        let mut pooler = as_postgres(Path::new("/usr/sbin/pgbouncer"));
        pooler.arg(directory.path().join("pgbouncer.ini"));
        let shell = spawn_beside_a_shell(pooler.as_std(), directory.path());
        let pooler = Self { _shell: shell, port, _directory: directory };
        started(async || pooler.connect("postgres").await).await;
        pooler
    }

    /// Its URL for a database.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{ROLE}@127.0.0.1:{}/{database}", self.port)
    }

    /// A connection to a database through it, if it takes it.
    pub async fn connect(&self, database: &str) -> Option<Client> {
        connect(&self.url(database)).await
    }
}
