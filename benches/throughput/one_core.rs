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

use crate::engine::{Cycle, measure};
use crate::engine_alone::EtcdGateway;
use crate::load::Work;
use crate::processes::{Machine, Process, Store, free_address};
use crate::redis_alone::{RELEASE, RedisAlone, Scripts};
use crate::slice::{Meter, Slice};
use crate::table::Table;
use crate::{Bench, Result};

pub(crate) fn run(bench: &Bench) -> Result<()> {
    let Bench { machine, load, rounds, .. } = bench;
    let (alone, redis, behind_webdis) = (machine.redis()?, machine.redis()?, machine.redis()?);
    let plain = RedisAlone::new(machine, &alone, load.window)?;
    let (nginx, bare) = (nginx(machine, "", "return 204;")?, machine.bare()?);
    let memory = machine.keylatch(Store::Memory)?;
    let embedded = machine.keylatch(Store::Embedded("one-core"))?;
    let on_redis = machine.keylatch(Store::Redis(&redis))?;
    let webdis = webdis(machine, &behind_webdis)?.before(&behind_webdis);
    let release = Scripts::new(machine, &behind_webdis).load(RELEASE)?;
    let etcd = Etcd::start(machine)?;
    Table::default()
        .row("nginx, 204", || load.measure(&nginx, &Work::Nothing))
        .row("bare handler", || load.measure(&bare, &Work::Lock))
        .row("keylatch on memory", || load.measure(&memory, &Work::Lock))
        .row("keylatch, embedded", || load.measure(&embedded, &Work::Lock))
        .row("keylatch on Redis", || load.measure(&on_redis, &Work::Lock))
        .row("webdis on Redis", || load.measure(&webdis, &Work::Webdis(release.clone())))
        .row("etcd's lock gateway", || etcd.measure(load.window))
        .row("Redis, SET NX PX", || plain.measure())
        .of("nginx, 204")
        .of("webdis on Redis")
        .run("One core has the server side. Times of etcd are of a lock and its unlock.", *rounds)
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
        let services = [&self.server];
        let meter = Meter::start(&services)?;
        let cycles = measure(&self.runtime, window, &Cycle::Gateway(Arc::clone(&self.gateway)))?;
        let (elapsed, spent) = meter.read()?;
        // A cycle is two requests.
        Ok(Slice { cores: spent.over(elapsed.as_secs_f64()), ..cycles.by(0.5) })
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
