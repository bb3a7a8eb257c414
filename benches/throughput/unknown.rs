//! What it costs to find 100 unknown outcomes among a million records, beside a thousand in another
//! store.
//!
//! The list goes by the store's index, so the cost is to be that of the 100. The records are made
//! over HTTP, on memory and on Redis.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::Result;
use crate::load::Load;
use crate::processes::{Machine, Process};
use crate::report;

const FEW: usize = 1_000;
const MANY: usize = 1_000_000;
/// How many outcomes are unknown.
const UNKNOWN: usize = 100;
/// How often a round asks for the list of these.
const ASKS: u32 = 50;
/// How many times as long the list may take with many records as with few.
const GOAL: f64 = 1.5;
/// How long the last outcome may take to be unknown.
const PATIENCE: Duration = Duration::from_secs(30);

/// Services on one kind of store, one with few records and one with many, and how long the list of
/// the unknown ones took at each, round by round.
struct Subject {
    name: &'static str,
    services: [Service; 2],
    milliseconds: [Vec<f64>; 2],
}

/// A service with what it stands on.
struct Service {
    process: Process,
    _behind: [Option<Process>; 2],
}

/// Fills stores of both kinds, measures the lists with few and with many records in turn, and
/// prints the times.
pub(crate) fn run(machine: &Machine, load: &Load, rounds: u32) -> Result<()> {
    println!("\n{UNKNOWN} unknown outcomes among {FEW} and {MANY} records; this takes a while.");
    for on_redis in [false, true] {
        let mut subject = Subject::new(machine, on_redis)?;
        for (service, records) in subject.services.iter().zip([FEW, MANY]) {
            service.begin_unknown()?;
            load.order(&service.process, records)?;
        }
        for _ in 0..rounds {
            for (service, milliseconds) in subject.services.iter().zip(&mut subject.milliseconds) {
                milliseconds.push(service.list()?);
            }
        }
        subject.print();
    }
    Ok(())
}

impl Subject {
    fn new(machine: &Machine, on_redis: bool) -> Result<Self> {
        let services = [Service::start(machine, on_redis)?, Service::start(machine, on_redis)?];
        let name = if on_redis { "Redis" } else { "memory" };
        Ok(Self { name, services, milliseconds: Default::default() })
    }

    fn print(&self) {
        let median = |times: &[f64]| {
            let mut times = times.to_vec();
            times.sort_unstable_by(f64::total_cmp);
            times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
        };
        let [few, many] = self.milliseconds.each_ref().map(|times| median(times));
        println!("\n{}: {few:.2} ms with {FEW} records, {many:.2} ms with {MANY}", self.name);
        let what = format!("on {}, the list takes at most {GOAL} times as long", self.name);
        report::goal(&what, many <= GOAL * few, format_args!("{:.2}", many / few));
    }
}

impl Service {
    fn start(machine: &Machine, on_redis: bool) -> Result<Self> {
        let (upstream, redis) = (machine.bare()?, on_redis.then(|| machine.redis()).transpose()?);
        let store = redis
            .as_ref()
            .map_or("memory:".to_owned(), |redis| format!("redis://{}", redis.address));
        let process = machine.keylatch_of(&machine.build, &store, Some(&upstream))?;
        Ok(Self { process, _behind: [Some(upstream), redis] })
    }

    /// Begins runs of which nothing is heard again.
    fn begin_unknown(&self) -> Result<()> {
        for number in 0..UNKNOWN {
            let path = format!("/v1/idempotency/unknown-{number}?method=POST&path=/v1/orders");
            self.process.post(&path, r#"{"lease_ms":100}"#)?;
        }
        let began = Instant::now();
        while self.count_unknown()? < UNKNOWN {
            if began.elapsed() > PATIENCE {
                return Err("the outcomes did not become unknown".into());
            }
            sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// The mean time of the list, in milliseconds.
    fn list(&self) -> Result<f64> {
        let began = Instant::now();
        for _ in 0..ASKS {
            let found = self.count_unknown()?;
            if found != UNKNOWN {
                return Err(format!("the list has {found} records").into());
            }
        }
        Ok(began.elapsed().as_secs_f64() * 1000.0 / f64::from(ASKS))
    }

    fn count_unknown(&self) -> Result<usize> {
        Ok(self.process.get(LIST)?.matches(r#""state":"unknown""#).count())
    }
}

const LIST: &str = "/v1/idempotency?state=unknown&limit=1000";
