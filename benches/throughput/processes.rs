//! The processes that are measured: where they run, what they use, and that they end.
//!
//! The time that a process used is read from `/proc`, and a process ends with the value that
//! started it, also where the benchmark fails.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::Result;

/// How long a server may take to listen, and to say that it is ready.
pub(crate) const START: Duration = Duration::from_secs(10);
/// In how many ticks a second Linux tells CPU time, on every architecture that Rust knows.
const TICKS: f64 = 100.0;
/// The core of the load generators, and that of all servers, where these share one.
const GENERATOR: &str = "0";
const SERVERS: &str = "1";

/// The machine that all runs on.
#[derive(Debug)]
pub(crate) struct Machine {
    /// The build of keylatch that is measured.
    pub(crate) build: PathBuf,
    count: usize,
    one_core: bool,
    /// Logs, and the working directory of Redis.
    directory: TempDir,
}

/// Where keylatch keeps what is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Store<'a> {
    Memory,
    /// In a directory of this name, on the disk that is measured.
    Embedded(&'a str),
    /// A Redis of this run. The bench counts its CPU time apart from that of the service.
    Redis(&'a Process),
    Url(&'a str),
}

impl Machine {
    /// With `one_core` all servers share one, and this process keeps to another.
    pub(crate) fn new(build: &Path, one_core: bool) -> Result<Self> {
        let count = std::thread::available_parallelism()?.get();
        if one_core {
            if count < 2 {
                return Err("to keep servers to one core takes at least 2".into());
            }
            let process = std::process::id().to_string();
            run(Command::new("taskset").args(["-cp", GENERATOR, &process]))?;
        }
        Ok(Self { build: build.to_owned(), count, one_core, directory: TempDir::new()? })
    }

    /// The cores, in words.
    pub(crate) fn cores(&self) -> String {
        let pinned = if self.one_core { "one for all servers" } else { "not pinned" };
        format!("{} cores, {pinned}", self.count)
    }

    /// This program in the role of the bare handler.
    pub(crate) fn bare(&self) -> Result<Process> {
        self.bare_with(&[])
    }

    /// The same, with the files of a certificate and its key if it speaks TLS.
    pub(crate) fn bare_with(&self, files: &[&str]) -> Result<Process> {
        let address = free_address()?;
        let program = std::env::current_exe()?;
        let mut command = self.on(SERVERS, &program.to_string_lossy());
        command.args(["bare", &address.to_string()]).args(files);
        self.start(command, address)
    }

    /// keylatch as it is by default.
    pub(crate) fn keylatch(&self, store: Store<'_>) -> Result<Process> {
        self.keylatch_with(store, "")
    }

    /// keylatch with settings in a file. `LISTEN` in a listener of theirs stands for its address.
    pub(crate) fn keylatch_with(&self, store: Store<'_>, settings: &str) -> Result<Process> {
        self.build_with(&self.build, store, settings)
    }

    /// Another build of keylatch.
    pub(crate) fn build_with(
        &self,
        build: &Path,
        store: Store<'_>,
        settings: &str,
    ) -> Result<Process> {
        let (mut process, log) = self.spawn_keylatch(build, store, settings)?;
        process.wait_until_it_listens(&log)?;
        Ok(process)
    }

    /// A build of keylatch that may not listen yet, and the file of what it says.
    pub(crate) fn spawn_keylatch(
        &self,
        build: &Path,
        store: Store<'_>,
        settings: &str,
    ) -> Result<(Process, PathBuf)> {
        let address = free_address()?;
        let mut command = self.on(SERVERS, &build.to_string_lossy());
        command.args(["serve", "--store", &self.url(store)]);
        if !settings.contains("[[listener]]") {
            command.args(["--listen", &address.to_string()]);
        }
        let file = self.directory(&format!("{}.toml", address.port()));
        fs::write(&file, settings.replace("LISTEN", &address.to_string()))?;
        command.arg("--config").arg(file);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("KEYLATCH_") {
                command.env_remove(name);
            }
        }
        let (process, log) = self.spawn(command, address)?;
        match store {
            Store::Redis(redis) => Ok((process.before(redis), log)),
            _ => Ok((process, log)),
        }
    }

    fn url(&self, store: Store<'_>) -> String {
        match store {
            Store::Memory => "memory:".to_owned(),
            Store::Embedded(name) => format!("embedded:{}", self.directory(name).display()),
            Store::Redis(redis) => format!("redis://{}", redis.address),
            Store::Url(url) => url.to_owned(),
        }
    }

    /// A directory that goes when the run ends, on the disk that is measured.
    pub(crate) fn directory(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A Redis that writes nothing to disk.
    pub(crate) fn redis(&self) -> Result<Process> {
        self.redis_with(free_address()?, self.directory.path(), &["--appendonly", "no"])
    }

    /// A Redis that keeps all in the directory `name`, at an address where it was before, if it
    /// was.
    pub(crate) fn lasting_redis(&self, name: &str, at: Option<SocketAddr>) -> Result<Process> {
        let address = at.map_or_else(free_address, Ok)?;
        self.redis_with(address, &self.directory(name), &["--appendonly", "yes"])
    }

    /// A Redis that copies `master`, by a file in the directory `name`.
    pub(crate) fn replica(&self, name: &str, master: &Process) -> Result<Process> {
        let port = master.address.port().to_string();
        let of_master = ["--replicaof", "127.0.0.1", &port];
        self.redis_with(free_address()?, &self.directory(name), &of_master)
    }

    fn redis_with(
        &self,
        address: SocketAddr,
        directory: &Path,
        options: &[&str],
    ) -> Result<Process> {
        require("redis-server")?;
        fs::create_dir_all(directory)?;
        let mut command = self.on(SERVERS, "redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string()]);
        command.args(["--save", ""]).args(options).arg("--dir").arg(directory);
        self.start(command, address)
    }

    /// A sentinel by the lines of its file.
    pub(crate) fn sentinel(&self, settings: &str) -> Result<Process> {
        let address = free_address()?;
        let file = self.directory.path().join(format!("{}.conf", address.port()));
        fs::write(&file, settings)?;
        let mut command = self.on(SERVERS, "redis-server");
        command.arg(file).args(["--sentinel", "--bind", "127.0.0.1"]);
        command.args(["--port", &address.port().to_string()]);
        self.start(command, address)
    }

    /// Another server, which `configure` tells its address and a directory for its files.
    pub(crate) fn server(
        &self,
        program: &str,
        configure: impl FnOnce(&mut Command, SocketAddr, &Path) -> Result<()>,
    ) -> Result<Process> {
        let address = free_address()?;
        let mut command = self.on(SERVERS, program);
        configure(&mut command, address, self.directory.path())?;
        self.start(command, address)
    }

    /// The load generator that comes with Redis.
    pub(crate) fn redis_benchmark(&self) -> Result<Command> {
        require("redis-benchmark")?;
        Ok(self.on(GENERATOR, "redis-benchmark"))
    }

    /// A command that keeps to a core, if all do.
    fn on(&self, core: &str, program: &str) -> Command {
        if !self.one_core {
            return Command::new(program);
        }
        let mut command = Command::new("taskset");
        command.args(["-c", core, program]);
        command
    }

    fn start(&self, command: Command, address: SocketAddr) -> Result<Process> {
        let (mut process, log) = self.spawn(command, address)?;
        process.wait_until_it_listens(&log)?;
        Ok(process)
    }

    /// The process, and the file of what it says.
    fn spawn(&self, mut command: Command, address: SocketAddr) -> Result<(Process, PathBuf)> {
        let log = self.directory.path().join(format!("{}.log", address.port()));
        let output = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.spawn().map_err(|error| not_run(&command, &error))?;
        Ok((Process { child, address, redis: None }, log))
    }
}

/// Settings of a guard of orders, with room for all records of a measurement, most of which are a
/// client's. `idempotency` and `guard` are further lines of either.
pub(crate) fn guard(upstream: &Process, idempotency: &str, guard: &str) -> String {
    let upstream = upstream.address;
    format!(
        "[idempotency]\nmax_kept_bytes = 68719476736\n{idempotency}\
         [[guard]]\npath = \"/v1/orders\"\nupstream = \"http://{upstream}\"\n{guard}"
    )
}

/// A server, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    pub(crate) address: SocketAddr,
    /// The Redis behind it, if this run started it.
    redis: Option<u32>,
}

impl Process {
    /// The same with a Redis behind it, whose CPU time counts as well.
    pub(crate) fn before(mut self, redis: &Self) -> Self {
        self.redis = Some(redis.child.id());
        self
    }

    /// CPU time so far, in seconds.
    pub(crate) fn cpu(&self) -> Result<f64> {
        cpu(&self.child.id().to_string())
    }

    /// The same of the Redis behind it; 0 where there is none.
    pub(crate) fn redis_cpu(&self) -> Result<f64> {
        self.redis.map_or(Ok(0.0), |redis| cpu(&redis.to_string()))
    }

    /// Memory in use, in bytes.
    pub(crate) fn resident(&self) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()).ok_or("no VmRSS")?;
        Ok(kib.parse::<f64>()? * 1024.0)
    }

    /// How often each thread, by its id and name, has stopped to wait for something.
    pub(crate) fn wakeups(&self) -> Result<BTreeMap<(String, String), u32>> {
        let mut wakeups = BTreeMap::new();
        for thread in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let thread = thread?;
            // It may have ended since.
            let Ok(status) = fs::read_to_string(thread.path().join("status")) else { continue };
            let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
            let name = field("Name:").ok_or("no name of a thread")?.trim().to_owned();
            let count = field("voluntary_ctxt_switches:").ok_or("no count of switches")?;
            let id = thread.file_name().to_string_lossy().into_owned();
            wakeups.insert((id, name), count.trim().parse()?);
        }
        Ok(wakeups)
    }

    /// Has the server end by itself, and waits until it has.
    pub(crate) fn terminate(mut self) -> Result<()> {
        run(Command::new("kill").args(["-TERM", &self.child.id().to_string()]))?;
        self.child.wait()?;
        Ok(())
    }

    /// The whole answer to `GET path`.
    pub(crate) fn get(&self, path: &str) -> Result<String> {
        self.ask(&format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n"))
    }

    /// The whole answer to `POST path`.
    pub(crate) fn post(&self, path: &str, body: &str) -> Result<String> {
        let length = body.len();
        let head = format!("POST {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {length}");
        self.ask(&format!("{head}\r\nContent-Type: application/json\r\n\r\n{body}"))
    }

    fn ask(&self, request: &str) -> Result<String> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(START))?;
        stream.write_all(request.as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }

    fn wait_until_it_listens(&mut self, log: &Path) -> Result<()> {
        let started = Instant::now();
        while TcpStream::connect(self.address).is_err() {
            if self.child.try_wait()?.is_some() || started.elapsed() > START {
                let said = fs::read_to_string(log)?;
                return Err(format!("a server does not start; it said:\n{said}").into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only when it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// CPU time of this process so far, in seconds.
pub(crate) fn own_cpu() -> Result<f64> {
    cpu("self")
}

/// CPU time of the commands that [`run`] ran so far, in seconds.
pub(crate) fn ended_cpu() -> Result<f64> {
    ticks("self", [15, 16])
}

/// CPU time of everything on this machine so far, in seconds, with what its host took away.
pub(crate) fn machine_cpu() -> Result<f64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().unwrap_or_default();
    // cpu user nice system idle iowait irq softirq steal guest guest_nice; guests count as user.
    let busy = [1, 2, 3, 6, 7, 8];
    let fields: Vec<_> = line.split_whitespace().collect();
    let mut sum = 0.0;
    for field in busy {
        sum += fields.get(field).ok_or("too few fields in /proc/stat")?.parse::<f64>()?;
    }
    Ok(sum / TICKS)
}

fn cpu(process: &str) -> Result<f64> {
    ticks(process, [13, 14])
}

/// The sum of two fields of `/proc/PID/stat`, counted from 0.
fn ticks(process: &str, fields: [usize; 2]) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The second field is the program's name in parentheses, which may have blanks in it.
    let (_, rest) = stat.rsplit_once(") ").ok_or("no name in /proc/PID/stat")?;
    let values: Vec<_> = rest.split(' ').collect();
    let mut sum = 0.0;
    for field in fields {
        sum += values.get(field - 2).ok_or("too few fields in /proc/PID/stat")?.parse::<f64>()?;
    }
    Ok(sum / TICKS)
}

/// Runs a command to its end; what it printed.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| not_run(command, &error))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?} failed ({}): {said}{errors}", output.status).into());
    }
    Ok(said)
}

/// Fails when `program` is missing, which taskset would not say.
fn require(program: &str) -> Result<()> {
    run(Command::new(program).arg("--version")).map(drop)
}

/// Why a command cannot be run, with the package that it is in.
fn not_run(command: &Command, error: &io::Error) -> String {
    let program = command.get_program().to_string_lossy();
    let package = match &*program {
        "redis-server" => "redis-server",
        "redis-benchmark" | "redis-cli" => "redis-tools",
        "taskset" => "util-linux",
        _ => return format!("{program} cannot be run: {error}"),
    };
    format!("{program} cannot be run: {error}. On Debian it is in the package {package}.")
}

/// An address at which no process listened a moment ago.
pub(crate) fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}
