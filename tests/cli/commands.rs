//! Goal: the command starts only with valid settings and a fit store, and names what is wrong with
//! them.
//!
//! Method: the command as a process; its exit code and output.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use keylatch_testkit::{Exit, RawConnection, RedisServer, eventually, post_head, redis_test};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::KEYLATCH;

const ANYWHERE: [&str; 2] = ["--listen", "127.0.0.1:0"];

/// Asserts that the service does not start, and says all of `why` in one line.
#[track_caller]
fn is_refused(ended: &Exit, why: &[&str]) {
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let line = ended.stderr.lines().last().unwrap_or_default();
    assert!(line.starts_with("keylatch: "), "{ended:?}");
    for why in why {
        assert!(line.contains(why), "`{why}` is not in {line:?}");
    }
}

/// What becomes of a service that is started with this store.
async fn start_on(store: &str) -> Exit {
    KEYLATCH.run(&[&ANYWHERE[..], &["--store", store]].concat()).await
}

#[tokio::test]
async fn healthcheck_succeeds_for_a_running_service() {
    let process = KEYLATCH.serve(&[], &[]).await;
    let everywhere = format!("0.0.0.0:{}", process.address.port());
    for address in [process.address.to_string(), everywhere] {
        let ended = KEYLATCH.run(&["healthcheck", "--listen", &address]).await;
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{address}");
        let ended = KEYLATCH.run_with(&["healthcheck"], &[("KEYLATCH_LISTEN", &address)]).await;
        assert_eq!(ended.code, Some(0), "{address}: {ended:?}");
    }
}

#[tokio::test]
async fn help_of_each_client_has_its_environment_and_exit_codes() {
    let mut clients = vec![vec!["run"], vec!["backup"]];
    for command in ["acquire", "renew", "release", "hold", "watch", "list", "show", "break"] {
        clients.push(vec!["lock", command]);
    }
    for command in ["list", "show", "resolve", "erase"] {
        clients.push(vec!["key", command]);
    }
    for client in clients {
        let ended = KEYLATCH.run(&[&client[..], &["--help"]].concat()).await;
        for part in [
            "KEYLATCH_URL ",
            "KEYLATCH_API_KEY ",
            "KEYLATCH_CA ",
            "KEYLATCH_CLIENT_CERT ",
            "KEYLATCH_CLIENT_KEY ",
            "Exit codes:\n",
        ] {
            assert_eq!(ended.stdout.matches(part).count(), 1, "{client:?} {part}: {ended:?}");
        }
    }
}

#[tokio::test]
async fn help_has_the_exit_codes_of_its_own_command_alone() {
    for (command, codes) in [
        (["lock", "acquire"], &["0", "64", "69", "70", "73", "76"][..]),
        (["lock", "release"], &["0", "1", "64", "69", "70", "75", "76"]),
        (["lock", "list"], &["0", "64", "69", "70", "76"]),
        (["key", "show"], &["0", "1", "64", "69", "70", "76"]),
    ] {
        let help = KEYLATCH.run(&[&command[..], &["-h"]].concat()).await.stdout;
        assert!(!help.contains("KEYLATCH_API_KEY"), "{help}");
        let (_, listed) = help.split_once("Exit codes:\n").expect("exit codes");
        let found = listed.lines().filter_map(|line| line.split_whitespace().next());
        assert_eq!(found.collect::<Vec<_>>(), codes, "{help}");
        let is_of_keys = command[0] == "key";
        assert!(is_of_keys || !listed.contains("the key"), "{help}");
    }
}

#[tokio::test]
async fn help_has_the_flags_that_are_of_use_with_their_variables() {
    let serve = KEYLATCH.run(&["serve", "--help"]).await.stdout;
    for variable in ["KEYLATCH_LISTEN", "KEYLATCH_STORE", "KEYLATCH_CONFIG"] {
        assert!(serve.contains(&format!("[env: {variable}]")), "{variable}: {serve}");
    }
    let healthcheck = KEYLATCH.run(&["healthcheck", "--help"]).await.stdout;
    assert!(healthcheck.contains("--config") && !healthcheck.contains("--store"), "{healthcheck}");
}

#[tokio::test]
async fn healthcheck_reports_that_nothing_listens() {
    let address = free_address().await;
    let ended = KEYLATCH.run(&["healthcheck", "--listen", &address]).await;
    is_refused(&ended, &["not healthy", &address]);
}

#[tokio::test]
async fn healthcheck_times_out() {
    let deaf = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = deaf.local_addr().expect("an address").to_string();
    let ended = KEYLATCH.run(&["healthcheck", "--listen", &address]).await;
    is_refused(&ended, &["not healthy", &address, "no response"]);
}

#[tokio::test]
async fn healthcheck_fails_on_an_error_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    let ill = async {
        let (mut client, _) = listener.accept().await.expect("a client");
        let _ = client.read(&mut [0; 1024]).await.expect("a request");
        let answer = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
        client.write_all(answer).await.expect("a client that reads");
    };
    let command = ["healthcheck", "--listen", &address];
    let (ended, ()) = tokio::join!(KEYLATCH.run(&command), ill);
    is_refused(&ended, &["not healthy", "503"]);
}

#[tokio::test]
async fn openapi_prints_the_document() {
    let ended = KEYLATCH.run(&["openapi"]).await;
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    let document: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert_eq!(document["info"]["title"], "keylatch");
    assert!(document["paths"]["/v1/locks/{name}"]["post"].is_object(), "{document}");
}

#[tokio::test]
async fn address_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = taken.local_addr().expect("an address").to_string();
    for arguments in [&["--listen", &address][..], &["serve", "--listen", &address]] {
        let ended = KEYLATCH.run(arguments).await;
        is_refused(&ended, &["listen", &address, "in use", "`--listen 7071`"]);
    }
}

#[tokio::test]
async fn invalid_address_is_named() {
    let ended = KEYLATCH.run(&["--listen", "nowhere"]).await;
    is_refused(&ended, &["listen", "nowhere", "`127.0.0.1:7070`"]);
}

#[tokio::test]
async fn unknown_store_lists_the_known_ones() {
    for store in ["nonsense:", "nonsense://host", ""] {
        is_refused(&start_on(store).await, &["`memory:`", "`redis://"]);
    }
    for (store, meant) in [("redsi://host", "`redis://"), ("memory", "`memory:`")] {
        is_refused(&start_on(store).await, &["did you mean ", meant]);
    }
    let no_host = start_on("redis://user:sesame@/0").await;
    is_refused(&no_host, &["not a Redis URL: a host is missing"]);
    is_refused(&start_on("memory:somewhere").await, &["`memory:`"]);
    is_refused(&start_on("embedded:").await, &["`embedded:DIRECTORY`"]);
}

#[tokio::test]
async fn unknown_flag_or_command_is_a_usage_error() {
    for (arguments, tip) in [
        (&["--lisen", "127.0.0.1:0"][..], "'--listen'"),
        (&["serve", "--port", "1"], "'--listen'"),
        (&["-p", "1"], "'--listen'"),
        (&["server"], "'serve'"),
        (&["runn"], "'run'"),
        (&["config", "chek"], "'check'"),
        (&["lock", "lst"], "'list'"),
        (&["key", "resolve", "k", "--reason", "r"], "<--done|--not-done|--undone <FENCING_TOKEN>>"),
    ] {
        let ended = KEYLATCH.run(arguments).await;
        assert_eq!(ended.code, Some(64), "{ended:?}");
        assert!(ended.stderr.contains(tip), "{ended:?}");
    }
}

/// What `config check --connect` says of a store.
async fn connect_to(store: &str) -> Exit {
    KEYLATCH.run(&["config", "check", "--connect", "--store", store]).await
}

/// The stores of this build that are servers.
const SERVERS: &[&str] = if cfg!(feature = "test-engines") {
    &["redis", "postgres", "etcd", "zookeeper"]
} else {
    &["redis"]
};

#[tokio::test]
async fn store_that_does_not_respond_is_found_before_a_start() {
    let nowhere = free_address().await;
    for scheme in SERVERS {
        let ended = connect_to(&format!("{scheme}://user:sesame@{nowhere}")).await;
        is_refused(&ended, &["the store cannot be reached", &nowhere]);
        assert!(!ended.stderr.contains("sesame"), "{ended:?}");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("data");
    let ended = connect_to(&format!("embedded:{}", data.display())).await;
    assert!(ended.stdout.contains("nothing to connect to"), "{ended:?}");
    assert!(!data.exists());
}

#[redis_test]
async fn store_that_responds_says_what_it_is() {
    let redis = RedisServer::start().await;
    let ended = connect_to(&redis.url()).await;
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    assert!(ended.stdout.contains(&format!("{} responds; tier ", redis.address())), "{ended:?}");
}

/// The log names the server, and no part of what the service knows it by.
#[tokio::test]
async fn log_names_a_server_that_does_not_respond() {
    let nowhere = free_address().await;
    for scheme in SERVERS {
        let store = format!("{scheme}://user:sesame@{nowhere}");
        let process = KEYLATCH.serve(&["--store", &store], &[]).await;
        let mut wire = RawConnection::sending(process.address, &post_head("/v1/locks/a", 0)).await;
        wire.answer().await.is_problem(503, "store-unavailable");
        process.logs(&format!("\"cause\":\"the store cannot be reached: {nowhere}: "), 1).await;
        let ended = process.ended_by("-TERM").await;
        let line = ended.stderr.lines().find(|line| line.contains("cannot be reached yet"));
        assert!(line.is_some_and(|line| line.contains(&nowhere)), "{ended:?}");
        assert!(!ended.stderr.contains("sesame"), "{ended:?}");
    }
}

#[tokio::test]
async fn invalid_configuration_is_named() {
    let ended = KEYLATCH.run(&["--config", "/nowhere/keylatch.toml"]).await;
    is_refused(&ended, &["/nowhere/keylatch.toml"]);
    let ended = KEYLATCH.run_with(&ANYWHERE, &[("KEYLATCH_STOER", "memory:")]).await;
    is_refused(&ended, &["KEYLATCH_STOER"]);
    let ended = KEYLATCH.run_with(&ANYWHERE, &[("KEYLATCH_SERVER_MAX_HEADERS", "many")]).await;
    is_refused(&ended, &["KEYLATCH_SERVER_MAX_HEADERS", "many"]);
}

#[tokio::test]
async fn non_unicode_variable_is_refused() {
    let store = OsStr::from_bytes(b"redis://\xff");
    let ended = KEYLATCH.run_with(&ANYWHERE, &[("KEYLATCH_STORE", store)]).await;
    is_refused(&ended, &["KEYLATCH_STORE"]);
}

/// URLs that name no store, each with a password.
const INVALID_URLS: &[&str] = &[
    "redis://user:sesame@127.0.0.1:port/0",
    "redis://user:sesame@127.0.0.1:6379/zero",
    "redis://user:sesame@:6379",
    "redis://:sesame@[127.0.0.1",
    "redis://user:se%same@127.0.0.1:99999",
    "redis+unix://:sesame@",
    "rediss:sesame@127.0.0.1",
    "redis+sentinel://user:sesame@a,b",
    "redis+sentinel://user:sesame@a:port,b/mymaster",
    "redis+sentinel://a,b/mymaster?sesame=sesame",
    "redis+cluster://user:sesame@a,,b",
    "redis+cluster://user:sesame@a,b/sesame",
    "postgres://user:sesame@127.0.0.1:port/db",
    "postgres://user:sesame@/db",
    "postgres://user:sesame@a,b:1,c:2/db?port=1,2",
    "postgres://user:sesame@127.0.0.1/db?sslmode=sesame",
    "postgres://user:sesame@127.0.0.1/db?sslrootcert=/sesame",
    "postgres://user:sesame@127.0.0.1/db?sesame=sesame",
    "postgres://user:sesame@127.0.0.1/db?port=sesame",
    "postgresql:sesame@127.0.0.1",
    "etcd://user:sesame@127.0.0.1:port",
    "etcd://user:sesame@a,,b",
    "etcd://sesame@a",
    "etcd://user:sesame%ff@a",
    "etcd://user:sesame@a/sesame locks",
    "etcd://user:sesame@a?sesame=sesame",
    "etcds://user:sesame@a?cacert=/sesame",
    "etcds://user:sesame@a?cert=/sesame",
    "etcds:sesame@127.0.0.1",
    "zookeeper:sesame@127.0.0.1",
    "zookeeper://user:sesame@127.0.0.1:port/node",
    "zookeeper://user:sesame@127.0.0.1/node?cacert=/sesame",
    "zookeepers://user:sesame@127.0.0.1/node?cacert=/sesame",
    "zookeepers://user:sesame@127.0.0.1/node?sesame=sesame",
    "zookeepers://user:sesame@127.0.0.1/node?cert=sesame&key=sesame",
    "zookeeper://sesame@a",
    "zookeeper://user:sesame@a/sesame//b",
    "zookeeper://user:sesame@a/../sesame",
    "zookeeper://user:sesame@a/zookeeper/sesame",
    "http://user:sesame@127.0.0.1",
    "user:sesame@127.0.0.1",
    "sesame@127.0.0.1:6379",
    "sesame",
];

#[tokio::test]
async fn password_in_an_invalid_url_is_not_printed() {
    for store in INVALID_URLS {
        let ended = start_on(store).await;
        assert_eq!(ended.code, Some(1), "{store}: {ended:?}");
        assert!(!ended.stderr.contains("same"), "{store}: {ended:?}");
    }
}

#[redis_test]
async fn wrong_redis_password_is_refused_and_not_printed() {
    let redis = RedisServer::start_with(&["--requirepass", "right"]).await;
    let store = format!("redis://:sesame@{}", redis.address());
    let ended = start_on(&store).await;
    is_refused(&ended, &["password"]);
    assert!(!ended.stderr.contains("sesame"), "{ended:?}");
    is_refused(&start_on(&redis.url()).await, &["authenticate"]);
    KEYLATCH.serve(&["--store", &format!("redis://:right@{}", redis.address())], &[]).await;
}

#[redis_test]
async fn evicting_redis_is_refused_unless_allowed() {
    let options = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    let redis = RedisServer::start_with(&options).await;
    let ended = start_on(&redis.url()).await;
    is_refused(&ended, &["maxmemory-policy", "allkeys-lru", "noeviction", "allow_eviction"]);
    let allowed = [("KEYLATCH_REDIS_ALLOW_EVICTION", "true")];
    let process = KEYLATCH.serve(&["--store", &redis.url()], &allowed).await;
    let mut wire = RawConnection::sending(process.address, &post_head("/v1/locks/a", 0)).await;
    assert_eq!(wire.answer().await.status, 201);
}

#[redis_test]
async fn node_of_a_cluster_is_refused_as_one_redis() {
    let node = RedisServer::start_with(&["--cluster-enabled", "yes"]).await;
    is_refused(&start_on(&node.url()).await, &["node of a cluster", "redis+cluster://"]);
}

#[redis_test]
async fn redis_is_reached_with_any_connect_timeout() {
    let redis = RedisServer::start().await;
    // Below a second, and above what the kernel takes for a keep-alive time.
    for timeout in ["300", "100000000"] {
        let environment = [("KEYLATCH_REDIS_CONNECT_TIMEOUT_MS", timeout)];
        let process = KEYLATCH.serve(&["--store", &redis.url()], &environment).await;
        let ready = RawConnection::connect(process.address).await.get("/readyz").await;
        assert_eq!(ready.status, 200, "{timeout} ms: {ready:?}");
    }
}

#[redis_test]
async fn redis_replica_is_refused() {
    let master = RedisServer::start().await;
    let (host, port) = master.address().split_once(':').map(own).expect("host and port");
    let replica = RedisServer::start_with(&["--replicaof", &host, &port]).await;
    is_refused(&start_on(&replica.url()).await, &["replica", "master"]);
}

#[redis_test]
async fn service_starts_while_redis_is_down() {
    let mut redis = RedisServer::start().await;
    redis.kill().await;
    let process = KEYLATCH.serve(&["--store", &redis.url()], &[]).await;
    let mut wire = RawConnection::connect(process.address).await;
    assert_eq!(wire.get("/livez").await.status, 200);
    wire.get("/readyz").await.is_problem(503, "store-unavailable");
    wire.send(&post_head("/v1/locks/a", 0)).await;
    let answer = wire.answer().await;
    answer.is_problem(503, "store-unavailable");
    assert_eq!(answer.json["outcome"], "not-executed", "{answer:?}");

    redis.restart().await;
    eventually(async || (wire.get("/readyz").await.status == 200).then_some(())).await;
    wire.send(&post_head("/v1/locks/a", 0)).await;
    assert_eq!(wire.answer().await.status, 201);
}

/// An address on which nothing listens.
async fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    listener.local_addr().expect("an address").to_string()
}

fn own((host, port): (&str, &str)) -> (String, String) {
    (host.to_owned(), port.to_owned())
}

#[cfg(feature = "manual")]
#[tokio::test]
async fn shells_and_man_learn_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let printed = KEYLATCH.run(&["completions", shell]).await;
        assert_eq!((printed.code, printed.stderr.as_str()), (Some(0), ""), "{shell}: {printed:?}");
        for word in ["healthcheck", "run", "completions"] {
            assert!(printed.stdout.contains(word), "{shell}: {word}");
        }
    }
    let manual = KEYLATCH.run(&["man"]).await;
    assert_eq!((manual.code, manual.stderr.as_str()), (Some(0), ""), "{manual:?}");
    assert!(manual.stdout.starts_with(".ie"), "roff: {}", &manual.stdout[..40]);
    let text = "Run a command for as long as it holds a lock";
    for word in [".TH keylatch 1", "\\-\\-listen", text, "KEYLATCH_API_KEY"] {
        assert!(manual.stdout.contains(word), "{word}");
    }
}
