//! Goal: the campaign finds every version of keylatch that is wrong in one place, or a test of the
//! stores or of the rules does that the mutant names.
//!
//! Method: one build of a copy of the sources, in which the variable `MUTANT` chooses the wrong
//! place, so that the sources do not know of them. `make mutants` builds and runs it. A test that
//! is to find a mutant has to pass on what is right.

mod edits;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::clock::{micros, now};
use super::faults::Kind;
use super::place::{Build, Store};
use super::verdict::{Violation, judge};
use super::{Campaign, Plan, is_broken_promise};
use edits::{MUTANTS, SEAMS};
use keylatch_testkit::{Program, seed};

/// The time in which a mutant has to be noticed.
const LIMIT: Duration = Duration::from_secs(60);
/// Mutants that show only under some faults. The waiters at an instance that dies stay in the queue
/// for some time in any case. A lost write shows only when an instance dies. A majority of nodes
/// has to forget while a lease lasts. Time is a floor for fencing tokens unless a clock is set
/// back. A clock is ahead after a stall, a lapse comes during a slow sync, and a minority of nodes
/// has to be away twice.
const SPECIAL: [(&str, &[Kind]); 8] = [
    ("a client that leaves stays in the queue", &[Kind::CutClients, Kind::StallClients]),
    ("embedded: answered and not written", &[Kind::KillInstance]),
    ("Redlock: a node that came up lately votes", &[Kind::KillMost]),
    ("Redlock: the accept is left out", &[Kind::ClockThereAndBack]),
    ("adapter: the estimate of the clock waits for the clock", &[Kind::StallStoreLong]),
    ("Redis: a row that is remembered and over counts as removed", &[Kind::CutClients]),
    ("embedded: what a lapse decides is answered from memory", &[Kind::SlowSyncs]),
    ("Redlock: it is not asked who else may hold", &[Kind::CutInTurn]),
];
/// The crate that has the module, because all others see it.
const CORE: &str = "crates/core/src/";
/// What a build needs besides the sources.
const PARTS: [&str; 12] = [
    "Cargo.toml",
    "Cargo.lock",
    "ARCHITECTURE.md",
    "assets",
    "benches",
    "config",
    "crates",
    "openapi",
    "src",
    "docs",
    "examples",
    "tests",
];

/// A wrong version.
#[derive(Debug)]
struct Mutant {
    name: &'static str,
    /// The store on which it is looked for.
    store: Store,
    edit: Edit,
    /// The test that finds it, if it is not the campaign.
    test: Option<&'static str>,
}

/// What is replaced in which file. In Rust, the new text asks `mutant!(NAME)`.
#[derive(Debug)]
struct Edit {
    file: &'static str,
    find: &'static str,
    replace: &'static str,
}

#[test]
fn every_mutant_edit_applies_to_the_sources() {
    let mut names: Vec<_> = MUTANTS.iter().map(|mutant| mutant.name).collect();
    names.sort_unstable();
    names.dedup();
    assert!(names.len() >= 12 && names.len() == MUTANTS.len(), "{names:?}");
    assert!(SPECIAL.iter().all(|(name, _)| names.contains(name)), "{SPECIAL:?}");
    let sources = mutated();
    for mutant in MUTANTS.iter().filter(|mutant| !mutant.is_lua()) {
        let text = &sources[mutant.edit.file];
        assert!(text.contains(&format!("is(\"{}\")", mutant.name)), "{mutant:?}");
    }
    for test in MUTANTS.iter().filter_map(|mutant| mutant.test) {
        let (directory, _, test) = binary_of(test);
        let (module, name) = test.split_once("::").expect("a test of a module");
        let text = source(&format!("{directory}/{module}.rs"));
        assert!(text.contains(&format!("fn {name}(")), "there is no test {test}");
    }
}

/// `KEYLATCH_TEST_MUTANTS=all`, or what names begin with (`etcd,ZooKeeper`), builds and runs them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checker_finds_every_mutant() {
    let Ok(asked) = std::env::var("KEYLATCH_TEST_MUTANTS") else { return };
    let program = build();
    let mut table =
        "| mutant | store | noticed by | after |\n| --- | --- | --- | --- |\n".to_owned();
    let (mut unnoticed, mut plans) = (Vec::new(), Vec::new());
    let is_asked = |name: &str| asked == "all" || asked.split(',').any(|one| name.starts_with(one));
    for mutant in MUTANTS.iter().filter(|mutant| is_asked(mutant.name)) {
        let begun = now();
        let by = match mutant.test {
            Some(test) => mutant.fails(test),
            None => mutant.breaks_promises(&program).await,
        };
        let seconds = (now() - begun) / 1_000_000;
        if by.is_empty() || (mutant.test.is_none() && seconds > LIMIT.as_secs()) {
            unnoticed.push(mutant.name);
        }
        let store = mutant.store;
        let _ = writeln!(table, "| {} | {store:?} | {by} | {seconds} s |", mutant.name);
        let plan = mutant.plan();
        if mutant.test.is_none() && !plans.contains(&plan) {
            plans.push(plan);
        }
    }
    print(&table);
    let unmutated = Build { program: Some(program), mutant: None };
    for plan in &plans {
        let found = noticed(plan, &unmutated).await;
        assert!(found.is_empty(), "noticed where nothing is wrong: {found:#?} {plan:?}");
    }
    assert!(unnoticed.is_empty(), "not noticed: {unnoticed:?}");
}

/// What is first found to break a promise, if something is in time.
async fn noticed(plan: &Plan, build: &Build) -> Vec<Violation> {
    let store = plan.store;
    let mut campaign = Campaign::open(plan.clone(), build, seed()).await;
    let until = now() + micros(LIMIT);
    let tier = campaign.place.tier().await;
    while now() < until {
        campaign.segment().await;
        let mut broken = judge(&campaign.history().await);
        broken.retain(|one| is_broken_promise(one, store, &tier));
        if !broken.is_empty() {
            return broken;
        }
    }
    Vec::new()
}

impl Mutant {
    /// Where it shows.
    fn plan(&self) -> Plan {
        let special = SPECIAL.iter().find(|(name, _)| *name == self.name);
        let faults = special.map_or_else(|| self.store.faults(), |(_, faults)| faults.to_vec());
        Plan { store: self.store, faults, segment: Duration::from_secs(3) }
    }

    /// The promises that the campaign finds broken.
    async fn breaks_promises(&self, program: &Program) -> String {
        let build = Build { program: Some(program.clone()), mutant: Some(self.name) };
        let found = noticed(&self.plan(), &build).await;
        let mut by: Vec<_> = found.iter().map(|one| one.invariant.name()).collect();
        by.dedup();
        by.join(", ")
    }

    /// The name of the test, if it fails on this mutant. It has to pass on what is right.
    fn fails(&self, test: &'static str) -> String {
        assert!(passes(test, None), "{test} fails where nothing is wrong");
        let name = if passes(test, Some(self.name)) { "" } else { test };
        name.to_owned()
    }

    fn is_lua(&self) -> bool {
        self.edit.file.ends_with(".lua")
    }
}

/// Builds the mutants from a copy of the sources; gives the program.
fn build() -> Program {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (tree, target) = (directory().join("tree"), directory().join("target"));
    let _ = std::fs::remove_dir_all(&tree);
    std::fs::create_dir_all(&tree).expect("a directory");
    let mut copy = Command::new("cp");
    copy.arg("-a").args(PARTS.map(|part| root.join(part))).arg(&tree);
    assert!(copy.status().expect("cp runs").success());
    for (file, text) in mutated() {
        std::fs::write(tree.join(file), text).expect("a file");
    }
    let built = cargo(&["build", "--bin", "keylatch", "--features", "test-engines"])
        .status()
        .expect("cargo runs");
    assert!(built.success(), "the mutants can be built");
    let program = target.join("debug/keylatch");
    Program::found_at(program.to_str().expect("a plain path").to_owned())
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("mutants")
}

/// Cargo in the copy of the sources.
fn cargo(arguments: &[&str]) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(arguments).args(["--locked", "--target-dir"]).arg(directory().join("target"));
    cargo.current_dir(directory().join("tree"));
    cargo
}

/// Where a test is, how cargo runs its binary, and what it is called there: one of the rules begins
/// with `modes::`, and all others are of the stores.
fn binary_of(test: &str) -> (&'static str, &'static [&'static str], &str) {
    match test.strip_prefix("modes::") {
        Some(test) => {
            let cargo = &["test", "--package", "keylatch-core", "--test", "modes"];
            ("crates/core/tests/modes", cargo, test)
        }
        None => ("tests/stores", &["test", "--test", "stores", "--features", "test-engines"], test),
    }
}

/// Whether a test passes on a mutant, or on what is right.
fn passes(test: &str, mutant: Option<&str>) -> bool {
    let (_, binary, test) = binary_of(test);
    let built = cargo(binary).arg("--no-run").status().expect("cargo runs");
    assert!(built.success(), "the tests of the mutants can be built");
    let mut run = cargo(binary);
    run.args(["--", "--exact", test]).env_remove("MUTANT");
    if let Some(mutant) = mutant {
        run.env("MUTANT", mutant);
    }
    let output = run.output().expect("cargo runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("running 1 test"), "there is no test {test}: {text}");
    output.status.success()
}

/// The sources that are not as they were, with all edits made.
fn mutated() -> BTreeMap<String, String> {
    let mut sources = BTreeMap::from([(format!("{CORE}mutant.rs"), module())]);
    let in_rust = MUTANTS.iter().filter(|mutant| !mutant.is_lua()).map(|mutant| {
        let core = if mutant.edit.file.starts_with(CORE) { "crate" } else { "keylatch_core" };
        let asks = format!("{core}::mutant::is(\"{}\")", mutant.name);
        (&mutant.edit, mutant.edit.replace.replace("mutant!()", &asks))
    });
    let seams = SEAMS.iter().map(|seam| (seam, seam.replace.to_owned()));
    for (edit, replace) in seams.chain(in_rust) {
        let text = sources.entry(edit.file.to_owned()).or_insert_with(|| source(edit.file));
        assert_eq!(text.matches(edit.find).count(), 1, "found once: {edit:?}");
        *text = text.replace(edit.find, &replace);
    }
    sources
}

/// The module that knows which mutant is to be, and changes the scripts.
fn module() -> String {
    let mut scripts = String::new();
    for mutant in MUTANTS.iter().filter(|mutant| mutant.is_lua()) {
        let Edit { file, find, replace } = &mutant.edit;
        assert_eq!(source(file).matches(find).count(), 1, "found once: {mutant:?}");
        let _ = writeln!(scripts, "        ({:?}, {find:?}, {replace:?}),", mutant.name);
    }
    format!(
        "pub fn is(name: &str) -> bool {{
    std::env::var(\"MUTANT\").is_ok_and(|mutant| mutant == name)
}}

pub fn lua(script: &str) -> String {{
    let edits = [
{scripts}    ];
    let edit = edits.iter().find(|(name, ..)| is(name));
    edit.map_or_else(|| script.to_owned(), |(_, find, replace)| script.replace(find, replace))
}}
"
    )
}

fn source(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[expect(clippy::print_stdout, reason = "which mutant was noticed how is for people to read")]
fn print(table: &str) {
    println!("{table}");
}
