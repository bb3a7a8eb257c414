//! What the front door costs: identities, TLS, and an identity that asks for more than it may.
//!
//! Every client sends the same `Authorization` line, also where keylatch knows no identities, so
//! that the rows differ in what the service does and not in what it reads. TLS is compared with a
//! bare handler behind the same library. The greedy identity sends from a thread of its own, as
//! fast as it gets responses, and does not heed `Retry-After`.

use std::sync::Arc;

use futures_util::future::try_join_all;
use keylatch_testkit::{Authority, Keyring};

use crate::background::Background;
use crate::load::{Connection, Work};
use crate::processes::{Process, Store};
use crate::slice::Slice;
use crate::table::Table;
use crate::{Bench, Result};

/// On how many connections the greedy identity sends, and the other beside it.
const FEW: usize = 16;
/// What an identity has that may do everything.
const EVERYTHING: &str = "allow = [{ locks = \"\", may = [\"acquire\", \"read\"] }]";
/// A quota that nothing here comes near, so that all of it is counted.
const LARGE_QUOTA: &str = "quota = { locks = 1000000, waiters = 1000000, streams = 1000000, \
                           records = 1000000, bytes = 1000000000, requests_per_second = 100000000 }";
/// The quota of the greedy identity.
const SMALL_QUOTA: &str = "quota = { requests_per_second = 100 }";

pub(crate) fn run(bench: &Bench) -> Result<()> {
    let Bench { machine, load, rounds, .. } = bench;
    let (authority, mut keyring) = (Authority::default(), Keyring::default());
    let mut header = |name: &str, quota: &str| {
        let key = keyring.add(name, &format!("{EVERYTHING}\n{quota}"));
        format!("Authorization: Bearer {key}\r\n")
    };
    let (free, counted) = (header("free", ""), header("counted", LARGE_QUOTA));
    let greedy = header("greedy", SMALL_QUOTA);
    let files = authority.serve();
    let identities = format!("identities = {:?}\n", keyring.path());
    let tls = format!("[tls]\ncert = {:?}\nkey = {:?}\n", files.cert, files.key);
    let keylatch = |settings: &str| machine.keylatch_with(Store::Memory, settings);
    let (plain, known) = (keylatch("")?, keylatch(&identities)?);
    let by = |service, header: &String| load.measure(service, &Work::Known(header.clone()));
    Table::default()
        .row("no identities", || by(&plain, &free))
        .row("identities", || by(&known, &free))
        .row("and a quota", || by(&known, &counted))
        .of("no identities")
        .run("Identities.", *rounds)?;
    let bare_tls = machine.bare_with(&[&files.cert, &files.key])?;
    let (plain_tls, known_tls) = (keylatch(&tls)?, keylatch(&(identities + &tls))?);
    let client = authority.client(&["http/1.1"], None);
    let by_tls = |service| load.measure_tls(&client, service, &Work::Known(free.clone()));
    Table::default()
        .row("bare handler, TLS", || by_tls(&bare_tls))
        .row("keylatch, TLS", || by_tls(&plain_tls))
        .row("and identities", || by_tls(&known_tls))
        .of("bare handler, TLS")
        .run("TLS.", *rounds)?;
    let measure = || load.measure_on(FEW, &[&known], &Work::Known(free.clone()));
    Table::default()
        .row("an identity alone", measure)
        .row("beside a greedy one", || beside(&known, &greedy, measure))
        .ratio("p99 of it alone", "an identity alone", |slice| slice.p99)
        .run("An identity that sends far above its quota.", *rounds)
}

/// Measures while a greedy identity sends.
fn beside(service: &Process, header: &str, measure: impl Fn() -> Result<Slice>) -> Result<Slice> {
    let (address, header) = (service.address, header.to_owned());
    let greedy = Background::start(async move |stop: Arc<_>| {
        let clients =
            (0..FEW).map(async |_| Connection::open(address).await?.press(&header, &stop).await);
        Ok(try_join_all(clients).await?.into_iter().sum::<usize>())
    });
    let measured = measure();
    if greedy.end()? == 0 {
        return Err("the greedy identity was never refused".into());
    }
    measured
}
