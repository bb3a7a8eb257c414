//! The `keylatch` command.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use jiff::SignedDuration;
use tokio::signal::unix::{SignalKind, signal};

use keylatch::access::{ApiKey, IdentityName};
use keylatch::app::{self, App};
use keylatch::config::{Config, ConfigError, Flags};
use keylatch::error::Error;
use keylatch::http::{self, Extras, Part, SandboxMode};
use keylatch::run::{EXIT_CODES, Job, Locks, Reentry};
use keylatch::{healthcheck, telemetry};
use keylatch_client::AcquireOptions;
use keylatch_core::lock::{Limit, LockName, LockSet, Owner, Slots, Ttl};

/// Most of what a request allocates is small and soon freed, often by another thread: mimalloc is
/// made for that. Its version 2 returns memory to the system when a burst is over.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The variable that has the URL of the service for commands that are its clients.
const URL: &str = "KEYLATCH_URL";
/// What the variable was called before. The service itself would take it for a table of settings.
const FORMER_URL: &str = "KEYLATCH_SERVER";

/// A file has reached the process's size limit (Linux and the BSDs).
const SIGXFSZ: i32 = 25;

/// Locks over HTTP: leases by name, with fencing tokens and honest answers.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: Serve,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the service (the default).
    Serve(Serve),
    /// Ask the service on this machine whether it is alive: exit code 0 or 1.
    Healthcheck(Serve),
    /// Run the service with its toy shop on a store that is removed at the end, to try it.
    Demo(Demo),
    /// Print the OpenAPI document.
    Openapi,
    /// Print what lets a shell complete the arguments of keylatch.
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual, for `man`.
    Man,
    /// API keys, by which the service knows its clients.
    #[command(subcommand)]
    Key(KeyCommand),
    /// Run a command for as long as it holds a lock, or several.
    ///
    /// Waits until NAME is free, runs COMMAND with KEYLATCH_NAME and KEYLATCH_FENCING_TOKEN in its
    /// environment, renews the lock meanwhile, passes signals on, and releases the lock. A run of the same
    /// lock within COMMAND enters it again. When the lock
    /// is lost or cannot be renewed, keylatch stops COMMAND and all that it has started before another
    /// client can hold the lock: SIGTERM, then SIGKILL.
    ///
    /// With several NAMEs it gets all of the locks at once or none, and COMMAND is stopped when any of
    /// them is lost. KEYLATCH_FENCING_TOKENS then has a line `TOKEN NAME` for each lock,
    /// KEYLATCH_NAMES their names, one a line, and with --limit KEYLATCH_SLOTS lines `SLOT NAME`.
    #[command(after_help = EXIT_CODES)]
    Run(Run),
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Make an API key: prints it on the first line, and then the entry of the identity NAME for the file
    /// of `identities`. The entry has the key's SHA-256, and the key itself is nowhere else.
    Create {
        /// What the client is called: 1 to 64 of A-Z a-z 0-9 . _ - @
        name: IdentityName,
    },
}

#[derive(Debug, Args)]
struct Run {
    /// The URL of the service, or unix:PATH [env: KEYLATCH_URL, or its former name KEYLATCH_SERVER]
    #[arg(long, env = url_variable(), value_name = "URL", hide_env = true)]
    #[arg(default_value = "http://127.0.0.1:7070")]
    server: String,
    /// How long the lock lasts unless renewed, which happens at each third of it
    #[arg(long, value_parser = ttl, value_name = "TIME", default_value = "30s")]
    ttl: Ttl,
    /// How long to wait for the lock
    #[arg(long, value_parser = duration, value_name = "TIME", default_value = "10s")]
    wait: Duration,
    /// Try once, and do not wait
    #[arg(short = 'n', long = "try", conflicts_with = "wait")]
    tries_once: bool,
    /// Run this text by `sh`, in place of COMMAND
    #[arg(short = 'c', value_name = "TEXT", conflicts_with = "command")]
    shell: Option<String>,
    /// A label that says who holds the lock [default: the machine and the process]
    #[arg(long, value_parser = owner)]
    owner: Option<Owner>,
    /// Hold the lock together with others that share it
    #[arg(long)]
    shared: bool,
    /// Hold the lock together with at most so many, this one included; COMMAND reads its place, from 0,
    /// in KEYLATCH_SLOT
    #[arg(long, value_parser = slots, value_name = "N")]
    limit: Option<Slots>,
    /// The lock, or up to 16 to hold at once
    #[arg(value_parser = LockName::parse, value_name = "NAME", required = true, num_args = 1..=LockSet::MAX)]
    names: Vec<LockName>,
    /// The program and its arguments
    #[arg(last = true, required_unless_present = "shell")]
    command: Vec<OsString>,
}

/// The variable that has the service's URL.
fn url_variable() -> &'static str {
    let is_set = |name| std::env::var_os(name).is_some();
    if !is_set(URL) && is_set(FORMER_URL) { FORMER_URL } else { URL }
}

impl Run {
    /// The locks; an error of use where one is there twice.
    fn locks(&self) -> Result<Locks, clap::Error> {
        Locks::new(self.names.clone()).map_err(|error| {
            let mut command = Self::augment_args(clap::Command::new("keylatch run"));
            command.error(ErrorKind::ValueValidation, format!("a set of locks {error}"))
        })
    }

    fn job(self, locks: Locks) -> Result<Job, Error> {
        let machine = nix::unistd::gethostname().unwrap_or_default();
        let process = format!("{}, pid {}", machine.display(), std::process::id());
        let owner = self.owner.or_else(|| Owner::parse(&process).ok().flatten());
        let limit = match self.limit {
            Some(slots) => Limit::Counted(slots),
            None if self.shared => Limit::Shared,
            None => Limit::Exclusive,
        };
        let wait = if self.tries_once { Duration::ZERO } else { self.wait };
        let ttl = self.ttl;
        let options = AcquireOptions { ttl, wait, owner, limit, ..AcquireOptions::default() };
        let outer = Reentry::find(&self.server, &locks, |variable| std::env::var(variable).ok());
        let options = match outer {
            Some(outer) => outer.options(&locks, options).map_err(std::io::Error::other)?,
            None => options,
        };
        let by_shell = |text: String| vec!["sh".into(), "-c".into(), text.into()];
        let command = self.shell.map_or(self.command, by_shell);
        Ok(Job { server: self.server, locks, options, command })
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let like = |why: &str| format!("{why}: write it like `30s`, `1m 30s` or `500ms`");
    let duration: SignedDuration = text.parse().map_err(|_| like("it is not a time"))?;
    duration.try_into().map_err(|_| like("it is before now"))
}

fn ttl(text: &str) -> Result<Ttl, String> {
    let millis = u64::try_from(duration(text)?.as_millis()).unwrap_or(u64::MAX);
    Ttl::from_millis(millis).map_err(|_| "it must be from 100ms to 24h".to_owned())
}

fn slots(text: &str) -> Result<Slots, String> {
    let slots = text.parse().map_err(|_| "it is not a whole number".to_owned())?;
    Slots::new(slots).map_err(|error| error.to_string())
}

fn owner(text: &str) -> Result<Owner, String> {
    let owner = Owner::parse(text).map_err(|error| error.to_string())?;
    owner.ok_or_else(|| "it is empty".to_owned())
}

#[derive(Debug, Args)]
struct Demo {
    /// The address to listen on [default: a free port of 127.0.0.1]
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", hide_default_value = true)]
    listen: String,
}

#[derive(Debug, Args)]
struct Serve {
    /// The address to listen on, a port of 127.0.0.1, or unix:PATH [env: KEYLATCH_LISTEN]
    /// [default: 127.0.0.1:7070]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Where locks are kept: embedded:DIRECTORY, memory:, postgres://HOST/DB, etcd://HOST,
    /// zookeeper://HOST or redis://HOST:PORT/DB
    /// [env: KEYLATCH_STORE] [default: embedded:./keylatch-data]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// A file with settings that differ from the defaults
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Serve {
    fn config(self) -> Result<Config, Error> {
        let flags = Flags { config: self.config, listen: self.listen, store: self.store };
        Ok(Config::load(&flags, environment()?)?)
    }
}

/// The variables of the process. One that is not Unicode is an error if it could be ours.
fn environment() -> Result<Vec<(String, String)>, ConfigError> {
    let named = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string())));
    let ours = named.filter(|(name, _)| name.starts_with("KEYLATCH_"));
    ours.map(|(name, value)| match value {
        Ok(value) => Ok((name, value)),
        Err(_) => {
            Err(ConfigError::Invalid { source_name: name, message: "is not Unicode".to_owned() })
        }
    })
    .collect()
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return wrong_use(&error),
    };
    let ran = match cli.command.unwrap_or(Command::Serve(cli.serve)) {
        Command::Serve(flags) => serve(flags),
        Command::Healthcheck(flags) => check_health(flags),
        Command::Demo(flags) => demo(flags),
        Command::Openapi => print_openapi(),
        Command::Completions { shell } => print_completions(shell),
        Command::Man => print_manual(),
        Command::Key(KeyCommand::Create { name }) => create_key(&name),
        Command::Run(run) => match run_under_lock(run) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "keylatch: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Says what is wrong with the arguments, or what was asked for with `--help` and `--version`.
fn wrong_use(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    let of_run = std::env::args_os().nth(1).is_some_and(|command| command == "run");
    let has_dashes = std::env::args_os().any(|argument| argument == "--");
    if of_run && !has_dashes && error.kind() == ErrorKind::MissingRequiredArgument {
        let hint = "\nPut `--` before the command: keylatch run NAME -- COMMAND";
        let _ = writeln!(std::io::stderr(), "{hint}");
    }
    match error.exit_code() {
        // The codes of `run` are those of sysexits.h, apart from what commands mostly use.
        2 if of_run => ExitCode::from(64),
        code => u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from),
    }
}

fn run_under_lock(run: Run) -> Result<ExitCode, Error> {
    let job = match run.locks() {
        Ok(locks) => run.job(locks)?,
        Err(error) => return Ok(wrong_use(&error)),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let code = runtime.block_on(keylatch::run::run(&job));
    // A name that is still being looked up does not hold the process.
    runtime.shutdown_background();
    Ok(ExitCode::from(code))
}

fn serve(flags: Serve) -> Result<(), Error> {
    serve_with(flags.config()?, |_| Ok(()))
}

fn demo(flags: Demo) -> Result<(), Error> {
    let directory = tempfile::Builder::new().prefix("keylatch-demo-").tempdir()?;
    let store = Some(format!("embedded:{}", directory.path().display()));
    let flags = Serve { listen: Some(flags.listen), store, config: None };
    let config = Config { sandbox: SandboxMode::On, ..flags.config()? };
    serve_with(config, |at| Ok(std::io::stdout().write_all(pages_to_open(at).as_bytes())?))?;
    Ok(directory.close()?)
}

fn pages_to_open(at: &str) -> String {
    format!(
        "keylatch runs on a store of its own, which is removed when you stop it with Ctrl-C. Open:\n\n  \
         {at}/demo          a shop: buy twice, reload in the middle, and one order comes of it\n  \
         {at}/              the console: what is held, and what needs you\n  \
         {at}/docs          every request, to try in the browser\n  \
         {at}/openapi.json  the same as a document\n  \
         {at}/metrics       the counters\n\n"
    )
}

/// Serves until a signal ends it; `announce` is called with the URL of the first listener once clients can
/// connect.
fn serve_with(
    config: Config,
    announce: impl FnOnce(&str) -> Result<(), Error>,
) -> Result<(), Error> {
    let _log = telemetry::init(&config.log).map_err(Error::Telemetry)?;
    // Each connection is a file descriptor, and the usual soft limit of 1024 is fewer than
    // max_connections.
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ran = runtime.block_on(run(config, announce));
    // A name that is still being looked up does not hold the process.
    runtime.shutdown_background();
    ran
}

#[tokio::main(flavor = "current_thread")]
async fn check_health(flags: Serve) -> Result<(), Error> {
    let config = flags.config()?;
    let listeners = config.listeners();
    let [first, ..] = listeners.as_slice() else { return Ok(()) };
    healthcheck::check(first, config.tls.is_on()).await
}

fn create_key(name: &IdentityName) -> Result<(), Error> {
    let key = ApiKey::generate()?;
    Ok(writeln!(
        std::io::stdout(),
        "{key}\n\n\
         [[identity]]\n\
         name = \"{name}\"\n\
         keys = [{{ sha256 = \"{hash}\" }}]\n\
         allow = [\n  \
         {{ locks = \"{name}/\", may = [\"acquire\", \"read\"] }},\n  \
         {{ keys = \"{name}/\", may = [\"use\", \"read\"] }},\n\
         ]",
        key = key.expose(),
        hash = key.hash(),
    )?)
}

fn print_completions(shell: Shell) -> Result<(), Error> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), env!("CARGO_BIN_NAME"), &mut text);
    Ok(std::io::stdout().write_all(&text)?)
}

/// The manual of the command and, one after the other, of its subcommands.
fn print_manual() -> Result<(), Error> {
    let mut command = Cli::command();
    command.build();
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut text)?;
    for subcommand in command.get_subcommands().filter(|one| one.get_name() != "help") {
        let manual = clap_mangen::Man::new(subcommand.clone());
        manual.render_name_section(&mut text)?;
        manual.render_synopsis_section(&mut text)?;
        manual.render_description_section(&mut text)?;
        manual.render_options_section(&mut text)?;
    }
    Ok(std::io::stdout().write_all(&text)?)
}

fn print_openapi() -> Result<(), Error> {
    // The toy shop is no part of the API.
    let extras = Extras { guards: &[], sandbox: false };
    let document = http::openapi(extras).to_pretty_json().map_err(std::io::Error::from)?;
    Ok(writeln!(std::io::stdout(), "{document}")?)
}

async fn run(
    mut config: Config,
    announce: impl FnOnce(&str) -> Result<(), Error>,
) -> Result<(), Error> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    // A data file at its size limit is a full disk, which is an answer, and not this signal's end.
    let _file_too_large = signal(SignalKind::from_raw(SIGXFSZ))?;
    let listeners = app::bind(&mut config).await?;
    let has_certificate = config.tls.is_on();
    let settings = config.listener.clone();
    let app = App::new(config).await?;
    for listener in &settings {
        let address = listener.place();
        let url = listener.url(has_certificate).filter(|_| listener.serves.have(Part::Docs));
        let docs = url.map(|url| format!("{url}/docs"));
        tracing::info!(address, docs, "listening");
    }
    announce(&settings.iter().find_map(|first| first.url(has_certificate)).unwrap_or_default())?;
    let closing = async move {
        tokio::select! {
            _ = term.recv() => tracing::info!("SIGTERM: shutting down"),
            _ = int.recv() => tracing::info!("SIGINT: shutting down"),
        }
    };
    app.serve_on(listeners, closing).await
}
