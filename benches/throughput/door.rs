//! What the front door costs: identities, TLS, and an identity that asks for more than it may.
//!
//! Every client sends the same `Authorization` line, also where keylatch knows no identities, so
//! that the rows differ in what the service does and not in what it reads. TLS is compared with a
//! bare handler behind the same library, and its handshakes come before the window. The greedy
//! identity sends from a thread of its own, as fast as it is answered, and does not heed
//! `Retry-After`.

use std::sync::Arc;

use keylatch_testkit::{Authority, Keyring};
use rustls::ClientConfig;

use crate::Result;
use crate::load::{CONNECTIONS, GreedyClients, Load};
use crate::processes::{Machine, Process};
use crate::report;
use crate::slice::{Slice, Spread};

/// The part of the rate without identities that is to be left with them.
const GOAL_IDENTITIES: f64 = 0.97;
/// The part of the rate of the bare handler behind TLS that is to be left.
const GOAL_TLS: f64 = 0.85;
/// How many times its p99 without a greedy identity another one may see beside one.
const GOAL_GREEDY: f64 = 2.0;
/// On how many connections the greedy identity sends, and the other beside it.
const FEW: usize = 16;
/// What an identity has that may do everything.
const EVERYTHING: &str = "allow = [{ locks = \"\", may = [\"acquire\", \"read\"] }]";
/// A quota that nothing here comes near, so that all of it is counted.
const LARGE_QUOTA: &str = "quota = { locks = 1000000, waiters = 1000000, streams = 1000000, \
                           records = 1000000, bytes = 1000000000, requests_per_second = 100000000 }";
/// The quota of the greedy identity.
const SMALL_QUOTA: &str = "quota = { requests_per_second = 100 }";

/// Measures all subjects and prints the tables.
pub(crate) fn run(machine: &Machine, load: &Load, rounds: u32) -> Result<()> {
    let door = Door::open(machine)?;
    door.measure_identities(load, rounds)?;
    door.measure_tls(load, rounds)?;
    door.measure_greed(load, rounds)
}

/// The services, and what their clients are known by.
struct Door {
    plain: Process,
    known: Process,
    bare_tls: Process,
    plain_tls: Process,
    known_tls: Process,
    tls: Arc<ClientConfig>,
    /// The lines with the key of an identity without a quota, with a large one, and with a small
    /// one.
    free: String,
    counted: String,
    greedy: String,
    // The files are there until the services have ended.
    _authority: Authority,
    _keyring: Keyring,
}

impl Door {
    fn open(machine: &Machine) -> Result<Self> {
        let (authority, mut keyring) = (Authority::default(), Keyring::default());
        let mut header = |name: &str, lines: &str| {
            let key = keyring.add(name, lines);
            format!("Authorization: Bearer {key}\r\n")
        };
        let free = header("free", EVERYTHING);
        let counted = header("counted", &format!("{EVERYTHING}\n{LARGE_QUOTA}"));
        let greedy = header("greedy", &format!("{EVERYTHING}\n{SMALL_QUOTA}"));
        let files = authority.serve();
        let identities = format!("identities = {:?}\n", keyring.path());
        let tls = format!("[tls]\ncert = {:?}\nkey = {:?}\n", files.cert, files.key);
        let keylatch =
            |settings: &str| machine.keylatch_set(&machine.build, "memory:", Some(settings));
        Ok(Self {
            plain: keylatch("")?,
            known: keylatch(&identities)?,
            bare_tls: machine.bare_tls(&files.cert, &files.key)?,
            plain_tls: keylatch(&tls)?,
            known_tls: keylatch(&(identities + &tls))?,
            tls: authority.client(&["http/1.1"], None),
            free,
            counted,
            greedy,
            _authority: authority,
            _keyring: keyring,
        })
    }

    fn measure_identities(&self, load: &Load, rounds: u32) -> Result<()> {
        let subjects = [
            ("no identities", &self.plain, &self.free),
            ("identities", &self.known, &self.free),
            ("and a quota", &self.known, &self.counted),
        ];
        let mut slices = [const { Vec::new() }; 3];
        for _ in 0..rounds {
            for ((_, service, header), slices) in subjects.iter().zip(&mut slices) {
                slices.push(load.measure_known(CONNECTIONS, header, None, service)?);
            }
        }
        let [plain, known, counted] = &slices;
        let names = subjects.map(|(name, _, _)| name);
        print(names.into_iter().zip(&slices), "of no identities", plain);
        for (what, slices) in [("identities", known), ("the same with a quota", counted)] {
            let what = format!("{what}, of the rate without");
            report::at_least(&what, GOAL_IDENTITIES, Spread::of_rates(slices, plain));
            report::by_cpu_time(slices, plain);
        }
        Ok(())
    }

    fn measure_tls(&self, load: &Load, rounds: u32) -> Result<()> {
        let subjects = [
            ("bare handler, TLS", &self.bare_tls),
            ("keylatch, TLS", &self.plain_tls),
            ("and identities", &self.known_tls),
        ];
        let mut slices = [const { Vec::new() }; 3];
        for _ in 0..rounds {
            for ((_, service), slices) in subjects.iter().zip(&mut slices) {
                let tls = Some(&self.tls);
                slices.push(load.measure_known(CONNECTIONS, &self.free, tls, service)?);
            }
        }
        let [bare, plain, known] = &slices;
        let names = subjects.map(|(name, _)| name);
        print(names.into_iter().zip(&slices), "of bare, TLS", bare);
        for (what, slices) in [("TLS", plain), ("TLS and identities", known)] {
            let what = format!("{what}, of the bare handler behind TLS");
            report::at_least(&what, GOAL_TLS, Spread::of_rates(slices, bare));
        }
        Ok(())
    }

    fn measure_greed(&self, load: &Load, rounds: u32) -> Result<()> {
        let (mut alone, mut beside, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        let measure = || load.measure_known(FEW, &self.free, None, &self.known);
        for _ in 0..rounds {
            alone.push(measure()?);
            let greedy = GreedyClients::start(FEW, &self.greedy, &self.known);
            let measured = measure();
            refused.push(greedy.end()?);
            beside.push(measured?);
        }
        let rows = [("an identity alone", &alone), ("beside a greedy one", &beside)];
        print(rows.into_iter(), "of it alone", &alone);
        println!("The greedy identity was refused in each round: {refused:?}.");
        let p99 = Spread::of_ratios(&beside, &alone, |beside, alone| beside.p99 / alone.p99);
        let what =
            format!("beside a greedy identity, p99 within {GOAL_GREEDY} times of that alone");
        report::goal(&what, p99.median <= GOAL_GREEDY, p99);
        Ok(())
    }
}

/// Prints the rows, with the rate of each as a part of that of `base`.
fn print<'a>(
    rows: impl Iterator<Item = (&'static str, &'a Vec<Slice>)>,
    heading: &str,
    base: &[Slice],
) {
    let rows: Vec<_> = rows.map(|(name, slices)| (name, &slices[..])).collect();
    report::table(&[heading], &rows, |slices| vec![Some(Spread::of_rates(slices, base))]);
    report::legend("p50, p99: of creates and deletes together.\n", &rows);
    println!("\nGoals:");
}
