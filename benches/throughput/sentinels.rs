//! A Redis with a replica, and three sentinels that put the replica in the place of its master.
//!
//! All is ready when the replica has the master's data and the sentinels know each other. The
//! sentinels call a master down that was silent for a second; by default that is 30 s, and then a
//! failover is mostly their patience. The servers of the tests (`crates/testkit`) have a wall clock
//! in between that can be set, which measuring would count.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::Result;
use crate::processes::{Machine, Process, START};
use crate::redis_alone::Scripts;

/// How long a master is silent until a sentinel calls it down.
pub(crate) const DOWN_AFTER: Duration = Duration::from_secs(1);
/// How many sentinels there are.
const COUNT: usize = 3;

/// A Redis with a replica, and its sentinels.
#[derive(Debug)]
pub(crate) struct Sentinels {
    pub(crate) master: Process,
    _replica: Process,
    sentinels: Vec<Process>,
}

impl Sentinels {
    /// Starts all, and waits until the replica can take the master's place.
    pub(crate) fn start(machine: &Machine) -> Result<Self> {
        let master = machine.redis()?;
        Scripts::new(machine, &master).cli(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"])?;
        let replica = machine.replica("replica", &master)?;
        wait_for(machine, &replica, "replication", "master_link_status:up")?;
        let settings = format!(
            "sentinel monitor mymaster 127.0.0.1 {} {}\n\
             sentinel down-after-milliseconds mymaster {}\n\
             sentinel failover-timeout mymaster 3000\n",
            master.address.port(),
            COUNT / 2 + 1,
            DOWN_AFTER.as_millis()
        );
        let sentinels: Vec<_> =
            (0..COUNT).map(|_| machine.sentinel(&settings)).collect::<Result<_>>()?;
        for sentinel in &sentinels {
            let known = format!("slaves=1,sentinels={COUNT}");
            wait_for(machine, sentinel, "sentinel", &known)?;
        }
        Ok(Self { master, _replica: replica, sentinels })
    }

    /// The store's URL.
    pub(crate) fn url(&self) -> String {
        let addresses = self.sentinels.iter().map(|sentinel| sentinel.address.to_string());
        format!("redis+sentinel://{}/mymaster", addresses.collect::<Vec<_>>().join(","))
    }
}

/// Waits until a section of `INFO` has a text.
fn wait_for(machine: &Machine, server: &Process, section: &str, text: &str) -> Result<()> {
    let (server, started) = (Scripts::new(machine, server), Instant::now());
    loop {
        let told = server.cli(&["INFO", section])?;
        if told.contains(text) {
            return Ok(());
        }
        if started.elapsed() > START {
            return Err(format!("INFO {section} does not come to have {text}: {told}").into());
        }
        sleep(Duration::from_millis(10));
    }
}
