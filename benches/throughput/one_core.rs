//! The whole server side on one core, beside the programs that people put in keylatch's place:
//! nginx, which answers without any work, webdis before a Redis, Redis alone, and etcd with its
//! lock gateway.
//!
//! Every subject shares the core with its Redis; the load generator has another one. Subjects take
//! turns, round by round, and only ratios within a round count.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::Result;
use crate::engine::measure_gateway;
use crate::engine_alone::EtcdGateway;
use crate::load::Load;
use crate::processes::{Machine, Process, free_address};
use crate::redis_alone::{RELEASE, RedisAlone, Scripts};
use crate::report;
use crate::slice::{Cpu, Slice, Spread};

/// The part of the rate of nginx's 204 that is to be left with locks in memory.
const GOAL_MEMORY: f64 = 0.75;
/// The part of the bare handler's.
const GOAL_BARE: f64 = 0.95;
/// The part of memory's rate that is to be left on disk.
const GOAL_EMBEDDED: f64 = 0.75;
/// How many times webdis's rate locks in Redis are to have.
const GOAL_REDIS: f64 = 1.25;
/// The part of the rate of Redis alone with a plain SET NX PX that is to be left.
const GOAL_ALONE: f64 = 0.45;

/// The servers, each with its Redis if it has one.
struct Subjects {
    nginx: Process,
    bare: Process,
    memory: Process,
    embedded: Process,
    redis: (Process, Process),
    webdis: (Process, Process),
    etcd: Etcd,
}

/// Measures all subjects and prints the table.
pub(crate) fn run(machine: &Machine, load: &Load, rounds: u32) -> Result<()> {
    let alone = machine.redis()?;
    let plain = RedisAlone::new(machine, &alone, load.window)?;
    let subjects = Subjects::start(machine)?;
    let release = Scripts::new(machine, &subjects.webdis.1).load(RELEASE)?;
    let mut measured: [Vec<Slice>; 8] = Default::default();
    for _ in 0..rounds {
        let ((on_redis, redis), (webdis, behind)) = (&subjects.redis, &subjects.webdis);
        let slices = [
            load.measure_repeated(&subjects.nginx, 204)?,
            load.measure(&subjects.bare, None)?,
            load.measure(&subjects.memory, None)?,
            load.measure(&subjects.embedded, None)?,
            load.measure(on_redis, Some(redis))?,
            load.measure_webdis(webdis, behind, &release)?,
            subjects.etcd.measure(load.window)?,
            plain.measure()?,
        ];
        measured.iter_mut().zip(slices).for_each(|(rounds, slice)| rounds.push(slice));
    }
    print(&measured);
    print_calls(machine, load, &subjects.redis)
}

impl Subjects {
    fn start(machine: &Machine) -> Result<Self> {
        let directory = machine.directory("one-core");
        let (redis, behind_webdis) = (machine.redis()?, machine.redis()?);
        let on_redis = machine.keylatch(&format!("redis://{}", redis.address))?;
        let webdis = webdis(machine, &behind_webdis)?;
        Ok(Self {
            nginx: nginx(machine, "", "return 204;")?,
            bare: machine.bare()?,
            memory: machine.keylatch("memory:")?,
            embedded: machine.keylatch(&format!("embedded:{}", directory.display()))?,
            redis: (on_redis, redis),
            webdis: (webdis, behind_webdis),
            etcd: Etcd::start(machine)?,
        })
    }
}

/// An etcd of one member, on the disk that the embedded store is on, with its lock gateway.
struct Etcd {
    server: Process,
    runtime: Runtime,
    gateway: Arc<EtcdGateway>,
}

impl Etcd {
    fn start(machine: &Machine) -> Result<Self> {
        let (directory, peer) = (machine.directory("etcd"), free_address()?);
        let server = machine.server("etcd", |command: &mut Command, address, _| {
            command.arg("--data-dir").arg(directory);
            for (flag, address) in [
                ("--listen-client-urls", address),
                ("--advertise-client-urls", address),
                ("--listen-peer-urls", peer),
                ("--initial-advertise-peer-urls", peer),
            ] {
                command.arg(flag).arg(format!("http://{address}"));
            }
            command.args(["--initial-cluster", &format!("default=http://{peer}")]);
            Ok(())
        })?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let url = format!("etcd://{}", server.address);
        let gateway = Arc::new(runtime.block_on(EtcdGateway::connect(&url))?);
        Ok(Self { server, runtime, gateway })
    }

    fn measure(&self, window: Duration) -> Result<Slice> {
        let before = self.server.cpu()?;
        let cycles = measure_gateway(&self.runtime, window, &self.gateway)?;
        let spent = self.server.cpu()? - before;
        let cpu = Cpu { generator: 0.0, service: spent, redis: 0.0, machine: spent };
        // A cycle is two requests.
        Ok(Slice { rate: 2.0 * cycles.rate, cores: cpu.over(window.as_secs_f64()), ..cycles })
    }
}

/// An nginx of one process that serves every path by `location`, with what else `http` says.
pub(crate) fn nginx(machine: &Machine, http: &str, location: &str) -> Result<Process> {
    machine.server("/usr/sbin/nginx", |command: &mut Command, address, directory| {
        let file = directory.join(format!("nginx-{}.conf", address.port()));
        let text = format!(
            "daemon off; master_process off; pid {pid}; error_log stderr crit;\n\
             events {{ worker_connections 1024; }}\n\
             http {{ access_log off; keepalive_requests 1000000000; {http}\n\
             server {{ listen {address}; location / {{ {location} }} }} }}\n",
            pid = directory.join(format!("nginx-{}.pid", address.port())).display(),
        );
        fs::write(&file, text)?;
        command.arg("-p").arg(directory).arg("-c").arg(file);
        Ok(())
    })
}

/// A webdis of one thread before a Redis.
fn webdis(machine: &Machine, redis: &Process) -> Result<Process> {
    let redis_port = redis.address.port();
    machine.server("webdis", |command: &mut Command, address, directory| {
        let file = directory.join("webdis.json");
        let text = format!(
            r#"{{"redis_host": "127.0.0.1", "redis_port": {redis_port}, "http_host": "127.0.0.1",
                "http_port": {port}, "threads": 1, "pool_size": 20, "daemonize": false,
                "websockets": false, "database": 0, "verbosity": 0, "logfile": "/dev/null"}}"#,
            port = address.port(),
        );
        fs::write(&file, text)?;
        command.arg(file);
        Ok(())
    })
}

/// Prints how many commands Redis carries out for a create and a release that meet no other client.
fn print_calls(
    machine: &Machine,
    load: &Load,
    (service, redis): &(Process, Process),
) -> Result<()> {
    const CYCLES: usize = 1000;
    let scripts = Scripts::new(machine, redis);
    scripts.cli(&["CONFIG", "RESETSTAT"])?;
    load.come_and_go(service, CYCLES)?;
    let stats = scripts.cli(&["INFO", "commandstats"])?;
    println!("\nCommands of Redis for a create and a release, those inside of scripts included:");
    for line in stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")) {
        let Some((name, calls)) = line.split_once(":calls=") else { continue };
        let calls = calls.split(',').next().unwrap_or_default().parse::<f64>()?;
        println!("  {name:<12}{:.2}", calls / CYCLES as f64);
    }
    Ok(())
}

fn print([nginx, bare, memory, embedded, redis, webdis, etcd, plain]: &[Vec<Slice>; 8]) {
    let rows = [
        ("nginx, 204", &nginx[..]),
        ("bare handler", bare),
        ("keylatch on memory", memory),
        ("keylatch, embedded", embedded),
        ("keylatch on Redis", redis),
        ("webdis on Redis", webdis),
        ("etcd's lock gateway", etcd),
        ("Redis, SET NX PX", plain),
    ];
    report::table(&["of nginx", "of webdis"], &rows, |slices| {
        vec![Some(Spread::of_rates(slices, nginx)), Some(Spread::of_rates(slices, webdis))]
    });
    report::legend(
        "The server side has one core, its Redis included. Times of etcd are of a lock and its unlock.\n",
        &rows,
    );
    println!("\nGoals:");
    let goals = [
        ("on Redis, of webdis", GOAL_REDIS, Spread::of_rates(redis, webdis)),
        ("on Redis, of Redis alone", GOAL_ALONE, Spread::of_rates(redis, plain)),
        ("on memory, of nginx", GOAL_MEMORY, Spread::of_rates(memory, nginx)),
        ("on memory, of the bare handler", GOAL_BARE, Spread::of_rates(memory, bare)),
        ("embedded, of memory", GOAL_EMBEDDED, Spread::of_rates(embedded, memory)),
    ];
    for (what, goal, found) in goals {
        report::at_least(what, goal, found);
    }
}
