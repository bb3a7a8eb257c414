//! What keylatch costs, measured side by side in one run.
//!
//! Each part is a file, whose head says what it compares; `docs/performance.md` has the figures.
//! Subjects take turns, round by round, so that noise hits all alike. Times are reported and never
//! asserted.
//!
//! Options go after `--`: `cargo bench --bench throughput -- --rounds 3 --seconds 1`.
#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]

mod background;
mod bare;
mod builds;
mod console;
mod door;
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
mod locks;
mod many;
mod modes;
mod one_core;
mod outage;
mod processes;
mod redis_alone;
mod sentinels;
mod slice;
mod start;
mod steady;
mod table;
mod unknown;
mod wire;

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

use load::Load;
use processes::Machine;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Measures keylatch next to what people would use in its place.
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
    /// Measure the whole server side on one core, beside nginx and webdis, and nothing else
    #[arg(long, conflicts_with_all = ["only", "against", "store"])]
    one_core: bool,
    /// What cargo says to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Locks,
    Guarded,
    Keyless,
    Handover,
    Modes,
    Door,
    Console,
    Unknown,
    Level,
    Steady,
    Start,
    Many,
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

/// What every part measures with.
struct Bench {
    machine: Machine,
    load: Load,
    rounds: u32,
    /// How many locks are held, and by how many streams, where the number is to be large.
    held: usize,
    streams: usize,
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
    let bench = Bench {
        machine: Machine::new(&options.build, options.one_core)?,
        load: Load::new(options.seconds)?,
        rounds: options.rounds,
        held: options.held,
        streams: options.streams,
    };
    println!(
        "{} rounds of {} s for each subject, in turn, on {}. Where no other number is said, {} \
         connections\ncreate a lock and delete it, over and over, or submit orders.\n{}",
        bench.rounds,
        options.seconds.as_secs_f64(),
        bench.machine.cores(),
        load::CONNECTIONS,
        table::LEGEND,
    );
    if options.one_core {
        return one_core::run(&bench);
    }
    if let Some(other) = &options.against {
        return builds::run(&bench, other);
    }
    if let Some(url) = &options.store {
        return engine::run(&bench, url);
    }
    let all = Part::value_variants().iter();
    let wanted = |part: &&Part| options.only.is_none_or(|only| only == **part);
    all.filter(wanted).try_for_each(|part| part.run(&bench))
}

impl Part {
    fn run(self, bench: &Bench) -> Result<()> {
        match self {
            Self::Locks => locks::run(bench),
            Self::Guarded => guarded::run(bench),
            Self::Keyless => keyless::run(bench),
            Self::Handover => handover::run(bench),
            Self::Modes => modes::run(bench),
            Self::Door => door::run(bench),
            Self::Console => console::run(bench),
            Self::Unknown => unknown::run(bench),
            Self::Level => level::run(bench),
            Self::Steady => steady::run(bench),
            Self::Start => start::run(&bench.machine),
            Self::Many => {
                many::run(bench)?;
                fan_out::run(bench)
            }
        }
    }
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
