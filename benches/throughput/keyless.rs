//! What a key costs that nobody sent, and a kept response that is encrypted.
//!
//! Both are compared with the same guard without it, on memory and on Redis, where the orders are
//! the same bytes: they carry a key in any case, and a guard that derives keys does not list its
//! header.

use std::fs;

use crate::Result;
use crate::load::{Load, Orders};
use crate::processes::{Machine, Process, ROOM};
use crate::report;
use crate::slice::{Slice, Spread};

/// The part of the rate of sent keys that is to be left to derived ones ...
const GOAL_DERIVED: f64 = 0.95;
/// ... and of plain replays to encrypted ones.
const GOAL_ENCRYPTED: f64 = 0.9;
const DERIVE: &str = r#"key = ["header:Webhook-Id"]
missing_key = "derive"
derive = { of = ["path", "body"], anonymous = true }
"#;
/// Thirty-two bytes in base64.
const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// Measures both, and prints a table of each store.
pub(crate) fn run(machine: &Machine, load: &Load, rounds: u32) -> Result<()> {
    let redis = machine.redis()?;
    measure(machine, load, rounds, ("memory", "memory:", None))?;
    measure(machine, load, rounds, ("Redis", &format!("redis://{}", redis.address), Some(&redis)))
}

fn measure(
    machine: &Machine,
    load: &Load,
    rounds: u32,
    (name, store, redis): (&str, &str, Option<&Process>),
) -> Result<()> {
    let upstream = machine.bare()?;
    let keys = machine.directory(&format!("keys-{name}"));
    fs::write(&keys, format!("bench = {KEY}\n"))?;
    let encrypted = format!("encryption_keys_file = {:?}\n", keys.display());
    let start = |general: &str, of_guard: &str| {
        let guard = format!("path = \"/v1/orders\"\nupstream = \"http://{}\"\n", upstream.address);
        let settings = format!("{ROOM}{general}[[guard]]\n{guard}{of_guard}");
        machine.keylatch_set(&machine.build, store, Some(&settings))
    };
    let subjects = [
        ("sent key, first run", Orders::New, start("", "")?),
        ("derived, first run", Orders::New, start("", DERIVE)?),
        ("sent key, replay", Orders::Repeated, start("", "")?),
        ("derived, replay", Orders::Repeated, start("", DERIVE)?),
        ("encrypted, replay", Orders::Repeated, start(&encrypted, "")?),
    ];
    let mut measured: [Vec<Slice>; 5] = Default::default();
    for _ in 0..rounds {
        for (slices, (_, orders, service)) in measured.iter_mut().zip(&subjects) {
            slices.push(load.measure_orders(*orders, service, redis)?);
        }
    }
    let rows: Vec<_> =
        subjects.iter().zip(&measured).map(|((row, ..), slices)| (*row, &slices[..])).collect();
    println!("\nKeys that nobody sends, and encrypted responses, on {name}:");
    report::table(&[], &rows, |_| Vec::new());
    report::legend("", &rows);
    println!("\nGoals:");
    let [first, derived, replay, derived_replay, encrypted] = &measured;
    for (what, goal, slices, base) in [
        ("a derived key's first run, of a sent key's", GOAL_DERIVED, derived, first),
        ("a derived key's replay, of a sent key's", GOAL_DERIVED, derived_replay, replay),
        ("an encrypted replay, of a plain one", GOAL_ENCRYPTED, encrypted, replay),
    ] {
        report::at_least(what, goal, Spread::of_rates(slices, base));
        report::by_cpu_time(slices, base);
    }
    Ok(())
}
