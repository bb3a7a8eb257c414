//! Goal: locks, queues and records survive a failover and a resharding of a Redis Cluster.
//!
//! Method: a real cluster of three masters whose slots the test moves and whose nodes it kills.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use keylatch::app::App;
use keylatch_core::lock::LockName;
use keylatch_testkit::{Answer, Cluster, RedisServer, Service, default_config, eventually};
use serde_json::json;

use crate::failover;

const CLIENTS: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_under_load_fails_less_than_1_percent() {
    let mut cluster = Cluster::start(3, 1).await;
    let service = Service::by_default(&cluster.url()).await;
    let load = Load::default();
    let failover = async {
        load.has_done(500).await;
        cluster.nodes[0].kill().await;
        load.has_done(12_000).await;
        load.end();
    };
    tokio::join!(load.run(&service), failover);
    load.was_surfaced_rarely();
    // Each bucket has a master again.
    for bucket in 0..=u8::MAX {
        service.granted(&name_in(bucket)).await;
    }
    let health = service.get("/v1/info").await;
    assert_eq!(health.json["store"]["kind"], "redis+cluster", "{health:?}");
    assert_eq!(health.json["store"]["tier"], "fenced", "{health:?}");
    assert_eq!(health.json["store"]["facts"]["masters"], "3 of 3 answer", "{health:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resharding_under_load_fails_less_than_1_percent() {
    let cluster = Cluster::start(3, 0).await;
    let service = Service::by_default(&cluster.url()).await;
    let mut held = Vec::new();
    for number in 0..300 {
        let lease = service.create(&format!("held-{number}"), &json!({"ttl_ms": 3_600_000})).await;
        assert_eq!(lease.status, 201, "{lease:?}");
        held.push(lease);
    }
    let load = Load::default();
    let resharding = async {
        load.has_done(500).await;
        for bucket in 0..32 {
            let slot: u16 =
                cluster.nodes[0].run(&["CLUSTER", "KEYSLOT", &format!("{{{bucket:02x}}}")]).await;
            let from = cluster.home(slot);
            cluster.migrate(slot, &cluster.nodes[from], &cluster.nodes[(from + 1) % 3]).await;
        }
        load.has_done(6000).await;
        load.end();
    };
    tokio::join!(load.run(&service), resharding);
    load.was_surfaced_rarely();
    for lease in &held {
        let name = lease.json["name"].as_str().expect("a lease");
        let renewed = service.renew(name, &lease.token(), &json!({})).await;
        assert_eq!(
            (renewed.status.as_u16(), renewed.fencing_token()),
            (200, lease.fencing_token()),
            "{name}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrating_slot_is_found_at_either_node() {
    let cluster = Cluster::start(3, 0).await;
    let service = Service::by_default(&cluster.url()).await;
    let lease = service.granted("deploy").await;
    let (slot, from) = home(&cluster, "deploy").await;
    let to = &cluster.nodes[(from + 1) % 3];
    let from = &cluster.nodes[from];
    let slot = slot.to_string();
    let source: String = from.run(&["CLUSTER", "MYID"]).await;
    let target: String = to.run(&["CLUSTER", "MYID"]).await;
    let () = to.run(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]).await;
    let () = from.run(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]).await;
    for script in ["FLUSH", "keep"] {
        if script == "FLUSH" {
            let () = to.run(&["SCRIPT", "FLUSH"]).await;
        }
        let keys: Vec<String> = from.run(&["CLUSTER", "GETKEYSINSLOT", &slot, "10"]).await;
        for key in keys {
            let _: String =
                from.run(&["MIGRATE", "127.0.0.1", &to.port().to_string(), &key, "0", "99"]).await;
        }
        let renewed = service.renew("deploy", &lease.token(), &json!({})).await;
        assert_eq!(
            (renewed.status.as_u16(), renewed.fencing_token()),
            (200, lease.fencing_token()),
            "{script}"
        );
    }
    // A step on keys of which some are not there is taken nowhere until the slot has moved.
    let body = json!({});
    let (other, ()) = tokio::join!(service.create("deploy", &body), async {
        for node in [to, from] {
            let () = node.run(&["CLUSTER", "SETSLOT", &slot, "NODE", &target]).await;
        }
    });
    assert_eq!(other.status, 409, "{other:?}");
}

#[tokio::test]
async fn waiter_is_served_across_a_failover() {
    let mut cluster = Cluster::start(3, 1).await;
    let (_, home) = home(&cluster, "deploy").await;
    failover::the_line_goes_on(&cluster.url(), async || {
        failover::replicated(&cluster.nodes[home], &cluster.nodes[home + 3]).await;
        cluster.nodes[home].kill().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completed_run_is_not_repeated_after_a_failover() {
    let mut cluster = Cluster::start(3, 1).await;
    failover::what_was_done_is_known(&cluster.url(), async || {
        // Whichever has the record, it is dead after this or still there.
        failover::replicated(&cluster.nodes[0], &cluster.nodes[3]).await;
        cluster.nodes[0].kill().await;
    })
    .await;
}

#[tokio::test]
async fn wakeups_arrive_through_another_node_after_one_dies() {
    let mut cluster = Cluster::start(3, 1).await;
    let service = Service::by_default(&cluster.url()).await;
    let heard_at = eventually(async || {
        for (at, node) in cluster.nodes.iter().enumerate() {
            if listeners(node).await > 0 {
                return Some(at);
            }
        }
        None
    })
    .await;
    cluster.nodes[heard_at].kill().await;
    eventually(async || {
        for (at, node) in cluster.nodes.iter().enumerate() {
            if at != heard_at && listeners(node).await > 0 {
                return Some(());
            }
        }
        None
    })
    .await;
    service.granted("deploy").await;
}

#[tokio::test]
async fn credentials_are_sent_to_every_node() {
    let cluster = Cluster::start(3, 0).await;
    for node in &cluster.nodes {
        let user = ["ACL", "SETUSER", "locks", "on", ">s3cret", "~*", "&*", "+@all"];
        let () = node.run(&user).await;
    }
    let address = cluster.nodes[0].address();
    let service = Service::by_default(&format!("redis+cluster://locks:s3cret@{address}")).await;
    for bucket in 0..=u8::MAX {
        service.granted(&name_in(bucket)).await;
    }
    for node in &cluster.nodes {
        let clients: String = node.run(&["CLIENT", "LIST"]).await;
        assert!(clients.contains("user=locks"), "{clients}");
    }
    let url = format!("redis+cluster://locks:wrong@{address}");
    let error =
        App::new(default_config(&url)).await.expect_err("the password is wrong").to_string();
    assert!(error.contains("assword"), "{error}");
}

#[tokio::test]
async fn redis_outside_a_cluster_is_refused_at_start() {
    let redis = RedisServer::start().await;
    let url = format!("redis+cluster://{}", redis.address());
    let error = App::new(default_config(&url)).await.expect_err("it is no cluster").to_string();
    assert!(error.contains("cluster support disabled"), "{error}");
    for url in ["redis+cluster://", "redis+cluster://a,b/3", "redis+cluster://a?b=c"] {
        App::new(default_config(url)).await.expect_err(url);
    }
}

/// Clients that create and release locks of ever new names.
#[derive(Default)]
struct Load {
    done: AtomicUsize,
    surfaced: AtomicUsize,
    limit: AtomicUsize,
}

impl Load {
    async fn run(&self, service: &Service) {
        self.limit.store(usize::MAX, Ordering::Relaxed);
        join_all((0..CLIENTS).map(|client| self.client(service, client))).await;
    }

    async fn client(&self, service: &Service, client: usize) {
        for number in 0.. {
            let name = format!("load-{client}-{number}");
            let created = service.create(&name, &json!({"ttl_ms": 60_000})).await;
            self.count(&created, 201);
            if created.status == 201 {
                // A failover may have forgotten the grant.
                let released = service.release(&name, &created.token()).await;
                self.count(&released, if released.status == 404 { 404 } else { 204 });
            }
            if self.done.load(Ordering::Relaxed) >= self.limit.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    fn count(&self, answer: &Answer, expected: u16) {
        self.done.fetch_add(1, Ordering::Relaxed);
        if answer.status != expected {
            assert_eq!(answer.status, 503, "{answer:?}");
            assert!(["unknown", "not-executed"].map(Into::into).contains(&answer.json["outcome"]));
            self.surfaced.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn has_done(&self, requests: usize) {
        let mut before = 0;
        while before < requests {
            before = eventually(async || {
                let done = self.done.load(Ordering::Relaxed);
                (done >= requests || done > before).then_some(done)
            })
            .await;
        }
    }

    fn end(&self) {
        self.limit.store(0, Ordering::Relaxed);
    }

    #[expect(clippy::print_stdout, reason = "how many is of interest too")]
    fn was_surfaced_rarely(&self) {
        let (done, surfaced) =
            (self.done.load(Ordering::Relaxed), self.surfaced.load(Ordering::Relaxed));
        println!("{surfaced} of {done} requests were answered 503");
        assert!(surfaced * 100 < done, "{surfaced} of {done} requests were answered 503");
    }
}

/// The slot of a lock, and which of three masters has it at the start.
async fn home(cluster: &Cluster, name: &str) -> (u16, usize) {
    let bucket = LockName::parse(name).expect("a name").bucket();
    let tag = format!("{{{bucket:02x}}}");
    let slot: u16 = cluster.nodes[0].run(&["CLUSTER", "KEYSLOT", &tag]).await;
    (slot, cluster.home(slot))
}

/// The name of a lock in a bucket.
fn name_in(bucket: u8) -> String {
    let mut names = (0..).map(|number| format!("name-{number}"));
    let is_in = |name: &String| LockName::parse(name).expect("a name").bucket() == bucket;
    names.find(is_in).expect("a name")
}

/// How many listen to what is published at a node; none at one that is dead.
async fn listeners(node: &RedisServer) -> usize {
    let told = node.try_run::<String>(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
    told.map_or(0, |told| told.lines().count())
}
