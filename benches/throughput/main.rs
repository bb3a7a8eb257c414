//! What keylatch costs, measured side by side in one run.
//!
//! The first part compares the rate of requests with that of a bare axum handler and of Redis
//! alone. The second does so for guarded requests, run for the first time and replayed, and with
//! keys that nobody sent. The third says how soon a waiter gets a lock that is released. The fourth
//! says what many holders of one lock cost, the fifth what keeping locks on disk costs, the sixth
//! what identities, TLS and a greedy identity cost. Then come the cost of open consoles, and of 100
//! unknown outcomes among a million records. Then 1,000 held locks are compared with very many,
//! requests come at a steady rate, services start and idle, very many clients hold, wait and watch,
//! and guarded requests are compared with what Redis and a plain proxy do. Subjects take turns,
//! round by round, so that noise hits all alike. Times are reported and never asserted.
//!
//! Options go after `--`: `cargo bench --bench throughput -- --rounds 3 --seconds 1 --pin`.
#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]

mod bare;
mod builds;
mod console;
mod door;
mod durable;
mod engine;
mod engine_alone;
mod events;
mod fan_out;
mod guarded;
mod handover;
mod http2;
mod keyless;
mod level;
mod load;
mod many;
mod modes;
mod once;
mod one_core;
mod outage;
mod processes;
mod redis_alone;
mod report;
mod sentinels;
mod side_by_side;
mod slice;
mod start;
mod steady;
mod steps;
mod unknown;
mod wire;

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

use load::Load;
use processes::{Machine, Pinning};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Measures keylatch next to a bare axum handler and to Redis alone.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Options {
    /// How often each subject is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How long each subject is measured in a round
    #[arg(long, value_name = "S", default_value = "2", value_parser = seconds)]
    seconds: Duration,
    /// Measure one part
    #[arg(long)]
    only: Option<Part>,
    /// How many locks are held where the number is to be large
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    held: usize,
    /// How many streams hold a lock each; twice as many wait
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = at_least_one)]
    streams: usize,
    /// Which build of keylatch to measure
    #[arg(long, value_name = "PATH", default_value = env!("CARGO_BIN_EXE_keylatch"))]
    build: PathBuf,
    /// Measure the build of keylatch beside the one at PATH, and nothing else
    #[arg(long, value_name = "PATH", conflicts_with = "only")]
    against: Option<PathBuf>,
    /// Measure locks on the PostgreSQL, etcd, ZooKeeper or Redis at URL, and nothing else
    #[arg(long, value_name = "URL", conflicts_with_all = ["only", "against"])]
    store: Option<String>,
    /// Keep the load generator, the service and Redis on cores of their own
    #[arg(long)]
    pin: bool,
    /// Measure the whole server side on one core, beside nginx and webdis, and nothing else
    #[arg(long, conflicts_with_all = ["only", "against", "store", "pin"])]
    one_core: bool,
    /// What cargo says to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Throughput,
    Guarded,
    Keyless,
    Handover,
    Modes,
    Durable,
    Door,
    Console,
    Unknown,
    Level,
    Steady,
    Start,
    Many,
    Once,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Be the bare handler
    #[command(hide = true)]
    Bare {
        listen: SocketAddr,
        #[command(flatten)]
        tls: bare::Pair,
    },
}

fn main() -> ExitCode {
    let options = Options::parse();
    let done = match &options.role {
        Some(Role::Bare { listen, tls }) => bare::serve(*listen, tls),
        None => measure(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "throughput: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<()> {
    let pinning = match options {
        Options { one_core: true, .. } => Pinning::OneCore,
        Options { pin: true, .. } => Pinning::Apart,
        _ => Pinning::Free,
    };
    let machine = Machine::new(&options.build, pinning)?;
    let load = Load::new(options.seconds)?;
    println!(
        "{} connections, or two for a hand-over. Each creates a lock and deletes it, over and over, or \
         submits orders.\n{} rounds of {} s for each subject, in turn, on {}.",
        load::CONNECTIONS,
        options.rounds,
        options.seconds.as_secs_f64(),
        machine.cores(),
    );
    if options.one_core {
        return one_core::run(&machine, &load, options.rounds);
    }
    if let Some(other) = &options.against {
        return builds::run(&machine, &load, options.rounds, other);
    }
    if let Some(url) = &options.store {
        return engine::run(&machine, &load, options.rounds, url);
    }
    measure_parts(options, &machine, &load)
}

/// Measures all parts, or the one that is wanted.
fn measure_parts(options: &Options, machine: &Machine, load: &Load) -> Result<()> {
    let wanted = |part| options.only.is_none_or(|only| only == part);
    if wanted(Part::Throughput) {
        side_by_side::run(machine, load, options.rounds)?;
    }
    if wanted(Part::Guarded) {
        guarded::run(machine, load, options.rounds)?;
    }
    if wanted(Part::Keyless) {
        keyless::run(machine, load, options.rounds)?;
    }
    if wanted(Part::Handover) {
        handover::run(machine, options.seconds, options.rounds)?;
    }
    if wanted(Part::Modes) {
        modes::run(machine, load, options.rounds)?;
    }
    if wanted(Part::Durable) {
        durable::run(machine, load, options.rounds)?;
    }
    if wanted(Part::Door) {
        door::run(machine, load, options.rounds)?;
    }
    if wanted(Part::Console) {
        console::run(machine, load, options.rounds)?;
    }
    if wanted(Part::Unknown) {
        unknown::run(machine, load, options.rounds)?;
    }
    measure_more(options, machine, load, wanted)
}

/// The parts that are about great numbers, time, and what stands in keylatch's place.
fn measure_more(
    options: &Options,
    machine: &Machine,
    load: &Load,
    wanted: impl Fn(Part) -> bool,
) -> Result<()> {
    if wanted(Part::Level) {
        level::run(machine, load, options.rounds, options.held)?;
    }
    if wanted(Part::Steady) {
        steady::run(machine, load, options.rounds)?;
    }
    if wanted(Part::Start) {
        start::run(machine)?;
    }
    if wanted(Part::Many) {
        many::run(machine, options.seconds * options.rounds, options.streams)?;
        fan_out::run(machine, load, options.rounds, options.streams)?;
    }
    if wanted(Part::Once) {
        once::run(machine, load, options.rounds)?;
    }
    Ok(())
}

fn at_least_one(text: &str) -> std::result::Result<usize, String> {
    let number = text.parse().map_err(|_| "not a number".to_owned())?;
    if number == 0 { Err("there must be one".to_owned()) } else { Ok(number) }
}

fn seconds(text: &str) -> std::result::Result<Duration, String> {
    let seconds = text.parse().map_err(|_| "not a number".to_owned())?;
    let duration = Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?;
    if duration < Duration::from_millis(50) {
        return Err("too short to measure anything".to_owned());
    }
    Ok(duration)
}
