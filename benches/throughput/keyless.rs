//! What a key costs that nobody sent, and a kept response that is encrypted.
//!
//! Both are compared with the same guard without it, on memory and on Redis, where the orders are
//! the same bytes: they carry a key in any case, and a guard that derives keys does not list its
//! header.

use std::fs;

use crate::load::Work;
use crate::processes::{Store, guard};
use crate::table::Table;
use crate::{Bench, Result};

const DERIVE: &str = r#"key = ["header:Webhook-Id"]
missing_key = "derive"
derive = { of = ["path", "body"], anonymous = true }
"#;
/// Thirty-two bytes in base64.
const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

pub(crate) fn run(bench: &Bench) -> Result<()> {
    let redis = bench.machine.redis()?;
    measure(bench, "on memory", Store::Memory)?;
    measure(bench, "on Redis", Store::Redis(&redis))
}

fn measure(Bench { machine, load, rounds, .. }: &Bench, on: &str, store: Store<'_>) -> Result<()> {
    let upstream = machine.bare()?;
    let keys = machine.directory("keys");
    fs::write(&keys, format!("bench = {KEY}\n"))?;
    let encrypt = format!("encryption_keys_file = {:?}\n", keys.display());
    let start = |general: &str, of_guard: &str| {
        machine.keylatch_with(store, &guard(&upstream, general, of_guard))
    };
    let (sent, derived, encrypted) = (start("", "")?, start("", DERIVE)?, start(&encrypt, "")?);
    Table::default()
        .row("sent key, first run", || load.measure(&sent, &Work::FirstRun))
        .row("derived, first run", || load.measure(&derived, &Work::FirstRun))
        .row("sent key, replay", || load.measure(&sent, &Work::Replay))
        .row("derived, replay", || load.measure(&derived, &Work::Replay))
        .row("encrypted, replay", || load.measure(&encrypted, &Work::Replay))
        .of("sent key, first run")
        .of("sent key, replay")
        .run(&format!("Keys that nobody sends, and encrypted responses, {on}."), *rounds)
}
