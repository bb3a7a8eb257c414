//! The `keylatch` command: arguments, and one function for each subcommand.
//!
//! The help texts are the manual, so they are here with their arguments. Everything that a
//! subcommand does is in the library; `main` starts the runtime, calls it, prints an error with its
//! causes, and maps it to the exit code. Tested in `tests/cli`.

#[cfg(feature = "manual")]
mod manual;

use std::convert::Infallible;
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::UnknownArgumentValueParser;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use keylatch::access::{ApiKey, IdentityName};
use keylatch::app::{self, App};
use keylatch::command::{
    self, BackupCommand, ElectCommand, LockCommand, OnceCommand, RecordCommand, RunCommand,
};
use keylatch::config::{Config, ConfigError, Flags};
use keylatch::error::Error;
use keylatch::failure::{ELECT_EXIT_CODES, Failure, ONCE_EXIT_CODES, RUN_EXIT_CODES};
use keylatch::http::{self, Extras, Part, SandboxMode};
use keylatch::plain::say;
use keylatch::signals::Signals;
use keylatch::traces::Traces;
use keylatch::{healthcheck, telemetry};
use keylatch_stores::{ENGINES, Engine};

/// Most of what a request allocates is small and soon freed, often by another thread: mimalloc is
/// made for that. Its version 2 returns memory to the system when a burst is over. It asks for no
/// huge pages, of which a process that is idle would keep several for a few kilobytes.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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
    Healthcheck(Place),
    /// Run the service with its toy shop on a store that is removed at the end, to try it.
    Demo(Demo),
    /// Print the OpenAPI document.
    Openapi,
    #[cfg(feature = "manual")]
    #[command(flatten)]
    Manual(manual::ManualCommand),
    /// The configuration: what is in force, and whether the service would start with it.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Locks: each operation of the API, for a person or a script.
    #[command(subcommand)]
    Lock(LockCommand),
    /// Write a copy of an `embedded:` store to FILE, while it serves.
    ///
    /// FILE has every change that was answered before. To start on it, put it as `locks.sqlite`
    /// into an empty directory, with its mode, 0600: `keylatch --store embedded:DIRECTORY`.
    #[command(after_help = command::BACKUP_EXIT_CODES)]
    Backup(BackupCommand),
    /// API keys, by which the service knows its clients.
    #[command(subcommand)]
    Apikey(ApiKeyCommand),
    /// Idempotency keys: what became of the requests under them.
    #[command(subcommand)]
    Key(Box<RecordCommand>),
    /// Run a command for as long as it holds a lock, or several.
    ///
    /// Waits until NAME is free, runs COMMAND with KEYLATCH_NAME and KEYLATCH_FENCING_TOKEN in its
    /// environment, renews the lock meanwhile, passes signals on, and releases the lock. A run of
    /// the same lock within COMMAND enters it again. When the lock is lost or cannot be renewed,
    /// keylatch stops COMMAND and all that it has started before another client can hold the lock:
    /// SIGTERM, then SIGKILL.
    ///
    /// With several NAMEs it gets all of the locks at once or none, and COMMAND is stopped when any
    /// of them is lost. KEYLATCH_FENCING_TOKENS then has a line `TOKEN NAME` for each lock,
    /// KEYLATCH_NAMES their names, one a line, and with --limit KEYLATCH_SLOTS lines `SLOT NAME`.
    #[command(after_help = RUN_EXIT_CODES)]
    Run(RunCommand),
    /// Run a command once for a key, be it on one machine of many.
    ///
    /// The first machine that comes with KEY runs COMMAND, with KEYLATCH_KEY and
    /// KEYLATCH_FENCING_TOKEN in its environment. Its exit code is kept, zero or not. Whoever comes
    /// later with KEY gets that exit code and runs nothing. Whoever comes meanwhile exits with 0 at
    /// once, or waits with --wait.
    ///
    /// A run that did not end, since its machine or COMMAND was killed, has an unknown outcome,
    /// which a person settles with `keylatch key resolve`. With --on-crash rerun another machine
    /// runs COMMAND again, under a higher fencing token, and the others wait. A COMMAND that cannot
    /// be started leaves KEY free. As with `keylatch run`, COMMAND is stopped before another
    /// machine can run it.
    #[command(after_help = ONCE_EXIT_CODES)]
    Once(OnceCommand),
    /// Elect one leader among many, and run a command while this one leads.
    ///
    /// Waits for the lock NAME and leads while it holds it: the next one leads within the TTL after
    /// the leader has died, and at once after a SIGTERM. COMMAND runs while this one leads, with
    /// the variables of `keylatch run`, and is stopped before another one can lead. Where COMMAND
    /// ends by itself, so does this, with its exit code. Without COMMAND the program beside this
    /// one asks the address of --listen.
    #[command(after_help = ELECT_EXIT_CODES)]
    Elect(ElectCommand),
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Say whether the service would start. The store is not opened
    Check {
        #[command(flatten)]
        flags: Serve,
        /// Connect to the store as well, and say what it is
        #[arg(long)]
        connect: bool,
    },
    /// Print every setting and where it comes from: a flag, a variable, the file or the default
    Show {
        #[command(flatten)]
        flags: Serve,
        /// Print them as JSON, a setting on each line
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Subcommand)]
enum ApiKeyCommand {
    /// Make an API key: prints it on the first line, and then the entry of the identity NAME for
    /// the file of `identities`. The entry has the key's SHA-256, and the key itself is nowhere
    /// else.
    Create {
        /// What the client is called: 1 to 64 of A-Z a-z 0-9 . _ - @
        name: IdentityName,
    },
}

#[derive(Debug, Args)]
struct Demo {
    /// The address to listen on [default: a free port of 127.0.0.1]
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", hide_default_value = true)]
    listen: String,
}

/// Where the service is, for a service and for what asks it on the same machine.
#[derive(Debug, Args)]
struct Place {
    /// The address to listen on, a port of 127.0.0.1, or unix:PATH [env: KEYLATCH_LISTEN]
    /// [default: 127.0.0.1:7070]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    #[arg(long, short, hide = true)]
    #[arg(value_parser = UnknownArgumentValueParser::suggest_arg("--listen"))]
    port: Option<Infallible>,
    /// A file with settings that differ from the defaults [env: KEYLATCH_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Serve {
    #[command(flatten)]
    place: Place,
    #[arg(long, value_name = "URL", help = help_of_store())]
    store: Option<String>,
}

impl Serve {
    fn flags(self) -> Flags {
        let Place { listen, config, port: _ } = self.place;
        Flags { config, listen, store: self.store }
    }

    fn config(self) -> Result<Config, Error> {
        Ok(Config::load(&self.flags(), environment()?)?)
    }
}

/// Which URLs the build takes, and how to get a build that takes the others.
fn help_of_store() -> String {
    let (built, left_out): (Vec<&Engine>, Vec<_>) =
        ENGINES.iter().partition(|engine| engine.is_built());
    let built: Vec<_> = built.iter().flat_map(|engine| engine.urls).copied().collect();
    let left_out: Vec<_> = left_out.iter().map(|engine| engine.feature).collect();
    let other_build = match &left_out[..] {
        [] => String::new(),
        names => format!("; this build leaves out {}, --features full has them", names.join(", ")),
    };
    format!(
        "Where locks are kept: {}{other_build} [env: KEYLATCH_STORE] [default: embedded:./keylatch-data]",
        built.join(", ")
    )
}

/// The variables of the process, those of OpenTelemetry too. One that is not Unicode is an error if
/// it could be ours.
fn environment() -> Result<Vec<(String, String)>, ConfigError> {
    let named = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string())));
    let ours = named.filter(|(name, _)| name.starts_with("KEYLATCH_") || name.starts_with("OTEL_"));
    ours.map(|(name, value)| match value {
        Ok(value) => Ok((name, value)),
        Err(_) => Err(ConfigError { source_name: name, message: "is not Unicode".to_owned() }),
    })
    .collect()
}

fn main() -> ExitCode {
    let cli = match parse() {
        Ok(cli) => cli,
        Err(error) => return wrong_use(&error),
    };
    let ran = match cli.command.unwrap_or(Command::Serve(cli.serve)) {
        Command::Serve(flags) => serve(flags),
        Command::Healthcheck(flags) => check_health(flags),
        Command::Demo(flags) => demo(flags),
        Command::Openapi => print_openapi(),
        #[cfg(feature = "manual")]
        Command::Manual(command) => command.print(program()),
        Command::Apikey(ApiKeyCommand::Create { name }) => create_key(&name),
        Command::Key(command) => return ask_service(command.run()),
        Command::Config(ConfigCommand::Check { flags, connect }) => check_config(flags, connect),
        Command::Config(ConfigCommand::Show { flags, json }) => show_config(flags, json),
        Command::Lock(command) => return ask_service(command.run()),
        Command::Backup(command) => return ask_service(command.run()),
        Command::Run(command) => return ask_service(command.run()),
        Command::Elect(command) => return ask_service(command.run()),
        Command::Once(command) => return ask_service(command.run()),
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&error);
            ExitCode::FAILURE
        }
    }
}

fn parse() -> Result<Cli, clap::Error> {
    Cli::from_arg_matches(&program().try_get_matches()?)
}

/// The command, with what all clients of the service have in common in the help of each.
fn program() -> clap::Command {
    with_environment(Cli::command())
}

/// Adds the variables of clients to the long help of those commands.
fn with_environment(command: clap::Command) -> clap::Command {
    let command = command.mut_subcommands(with_environment);
    if command.get_arguments().all(|argument| argument.get_id() != "server") {
        return command;
    }
    let exit_codes = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    command.after_long_help(format!("{}\n\n{exit_codes}", command::ENVIRONMENT))
}

/// Says what is wrong with the arguments, or what was asked for with `--help` and `--version`.
fn wrong_use(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    let command = std::env::args_os().nth(1).and_then(|command| command.into_string().ok());
    let usage = match command.as_deref() {
        Some("run") => "run NAME",
        Some("once") => "once KEY",
        Some("elect") => "elect NAME",
        _ => "",
    };
    let lacks_dashes = match error.kind() {
        ErrorKind::UnknownArgument => true,
        // Without a COMMAND there is an election, too.
        ErrorKind::MissingRequiredArgument => usage != "elect NAME",
        _ => false,
    };
    let has_dashes = std::env::args_os().any(|argument| argument == "--");
    if !usage.is_empty() && lacks_dashes && !has_dashes {
        let hint = format!("\nPut `--` before the command: keylatch {usage} -- COMMAND");
        let _ = writeln!(std::io::stderr(), "{hint}");
    }
    // As sysexits.h has it, apart from the codes that commands under `run` mostly use.
    if error.use_stderr() { ExitCode::from(64) } else { ExitCode::SUCCESS }
}

/// Runs a command that is a client of the service.
fn ask_service(command: impl Future<Output = Result<u8, Failure>>) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return report(&Failure::from(error)),
    };
    let code = runtime.block_on(command).map_or_else(|failure| report(&failure), ExitCode::from);
    // A name that is still being looked up does not hold the process.
    runtime.shutdown_background();
    code
}

fn report(failure: &Failure) -> ExitCode {
    say(failure);
    ExitCode::from(failure.code())
}

fn serve(flags: Serve) -> Result<(), Error> {
    serve_with(|| flags.config(), None)
}

fn demo(flags: Demo) -> Result<(), Error> {
    let directory = tempfile::Builder::new().prefix("keylatch-demo-").tempdir()?;
    let store = Some(format!("embedded:{}", directory.path().display()));
    let place = Place { listen: Some(flags.listen), config: None, port: None };
    let flags = Serve { place, store };
    let config = || Ok(Config { sandbox: SandboxMode::On, ..flags.config()? });
    serve_with(config, Some("It keeps them in a store that is removed when it ends."))?;
    Ok(directory.close()?)
}

/// Serves until a signal ends it. With a note or on a terminal it prints what to open and to try.
fn serve_with(
    config: impl FnOnce() -> Result<Config, Error>,
    note: Option<&str>,
) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // Before anything else: what else there is takes its time.
    let signals = runtime.block_on(async { Signals::catch() })?;
    let config = config()?;
    let _log = telemetry::init(&config.log).map_err(Error::Telemetry)?;
    let traces = Traces::start(config.traces).map_err(Error::Traces)?;
    // Each connection is a file descriptor, and the usual soft limit of 1024 is fewer than
    // max_connections.
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
    let ran = runtime.block_on(run(config, signals, note));
    traces.close();
    // A name that is still being looked up does not hold the process.
    runtime.shutdown_background();
    ran
}

/// What a person sees who starts the service: where it is, what to open, and what to try.
fn greeting(at: &str, store: &str, note: Option<&str>, has_shop: bool) -> String {
    let note = note.map(|note| format!(" {note}")).unwrap_or_default();
    let shop = format!("{at}/demo          a shop: buy twice, reload in the middle: one order\n  ");
    format!(
        "keylatch listens at {at} and keeps locks and keys in {store}.{note}\n\nOpen:\n  \
         {shop}{at}/              the console: what is held, and what needs you\n  \
         {at}/docs          every request, to try in the browser\n  \
         {at}/openapi.json  the same as a document\n  \
         {at}/metrics       the counters\n\nTry, in another terminal, each of them twice:\n  \
         curl -X POST {at}/v1/locks/deploy\n  \
         keylatch lock acquire report --server {at}\n\nCtrl-C ends it.\n\n",
        shop = if has_shop { &shop } else { "" }
    )
}

#[tokio::main(flavor = "current_thread")]
async fn check_health(place: Place) -> Result<(), Error> {
    let config = Serve { place, store: None }.config()?;
    let listeners = config.listeners();
    let [first, ..] = listeners.as_slice() else { return Ok(()) };
    healthcheck::check(&config, first).await
}

fn check_config(flags: Serve, connect: bool) -> Result<(), Error> {
    let config = flags.config()?;
    App::check(&config)?;
    Traces::start(config.traces).map_err(Error::Traces)?.close();
    let built = ENGINES.iter().filter(|engine| engine.is_built()).map(|engine| engine.feature);
    let stores = built.collect::<Vec<_>>().join(", ");
    writeln!(std::io::stdout(), "the configuration is valid; this build has the stores {stores}")?;
    if connect {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let found = runtime.block_on(app::connect(&config));
        runtime.shutdown_background();
        writeln!(std::io::stdout(), "{}", found?)?;
    }
    Ok(())
}

fn show_config(flags: Serve, json: bool) -> Result<(), Error> {
    let settings = Config::settings(&flags.flags(), environment()?)?;
    Ok(command::print_settings(&settings, json)?)
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

fn print_openapi() -> Result<(), Error> {
    // The toy shop is no part of the API.
    let extras = Extras { guards: &[], sandbox: false };
    let document = http::openapi(extras).to_pretty_json()?;
    Ok(writeln!(std::io::stdout(), "{document}")?)
}

async fn run(mut config: Config, mut signals: Signals, note: Option<&str>) -> Result<(), Error> {
    let listeners = app::bind(&mut config).await?;
    let (settings, has_certificate) = (config.listener.clone(), config.tls.is_on());
    let has_shop = config.serves_sandbox();
    let app = tokio::select! {
        opened = App::open_on(config, &listeners) => opened?,
        () = signals.end() => return Ok(()),
    };
    let (store, tier) = app.store().await;
    for listener in &settings {
        let address = listener.place();
        let url = listener.url(has_certificate).filter(|_| listener.serves.have(Part::Docs));
        let docs = url.map(|url| format!("{url}/docs"));
        tracing::info!(address, docs, store, tier, "listening");
    }
    if note.is_some() || std::io::stdout().is_terminal() {
        let url = settings.iter().find_map(|first| first.url(has_certificate)).unwrap_or_default();
        let worth =
            tier.map_or("which does not respond yet".to_owned(), |tier| format!("tier {tier}"));
        let text = greeting(&url, &format!("{store} ({worth})"), note, has_shop);
        std::io::stdout().write_all(text.as_bytes())?;
    }
    app.serve_on(listeners, async move { signals.end().await }).await
}
